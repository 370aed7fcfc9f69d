"""Reads of tables: planned on the driver, done by tasks on executors, in batches and as streams."""
