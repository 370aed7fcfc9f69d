"""``fluss sql``: queries over tables by DuckDB, and its shell."""
