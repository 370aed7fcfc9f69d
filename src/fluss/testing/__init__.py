"""Helpers for testing programs that use Fluss tables; part of the public API."""
