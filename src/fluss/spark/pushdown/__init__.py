"""Pushdown: what Spark's optimizer knows of a query, told to the readers of Fluss tables."""
