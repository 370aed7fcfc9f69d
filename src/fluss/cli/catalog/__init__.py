"""Databases, tables and partitions by command."""
