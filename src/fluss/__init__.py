"""Streaming tables for Python."""
