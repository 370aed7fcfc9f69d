"""SQL for Fluss tables: the statements that Spark does not have for tables like these."""
