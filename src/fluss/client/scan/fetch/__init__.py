"""Fetching: from the requests of a scan, over servers and remote storage, to the batches that a reader polls."""
