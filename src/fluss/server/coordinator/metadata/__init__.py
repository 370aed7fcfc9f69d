"""What a cluster must never forget, in one SQLite file: tables, rights, settings, and where copies of buckets are."""
