"""Writes to tables: what is written is checked on the driver; tasks write it, at least once or exactly once."""
