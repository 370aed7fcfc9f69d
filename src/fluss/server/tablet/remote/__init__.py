"""Copies of buckets in remote storage: segments, snapshots of stores, backups, and what is made from them again."""
