"""Rows by command: single ones, files in and out, tables from cluster to cluster."""
