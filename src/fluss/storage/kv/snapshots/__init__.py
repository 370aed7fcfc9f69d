"""Snapshots of a store as files that are complete: made, checked, brought to remote storage and read there."""
