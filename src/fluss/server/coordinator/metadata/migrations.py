"""The tables of the metadata file, as the steps that led to them."""

from __future__ import annotations

from typing import Final

# The n-th entry leads from version n-1 to version n; entries are only ever added. Lists and maps are JSON texts, times
# epoch milliseconds.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """
        CREATE TABLE databases (
            name TEXT PRIMARY KEY,
            comment TEXT,
            custom_properties TEXT NOT NULL,
            created_ms INTEGER NOT NULL,
            modified_ms INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE tables (
            table_id INTEGER PRIMARY KEY,
            database_name TEXT NOT NULL REFERENCES databases (name) ON DELETE CASCADE,
            table_name TEXT NOT NULL,
            schema_id INTEGER NOT NULL,
            comment TEXT,
            partition_keys TEXT NOT NULL,
            bucket_keys TEXT NOT NULL,
            bucket_count INTEGER NOT NULL,
            properties TEXT NOT NULL,
            custom_properties TEXT NOT NULL,
            created_ms INTEGER NOT NULL,
            modified_ms INTEGER NOT NULL,
            UNIQUE (database_name, table_name)
        )
        """,
        """
        CREATE TABLE schemas (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            schema_id INTEGER NOT NULL,
            schema_json TEXT NOT NULL,
            PRIMARY KEY (table_id, schema_id)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE partitions (
            partition_id INTEGER PRIMARY KEY,
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            UNIQUE (table_id, name)
        )
        """,
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value_next INTEGER NOT NULL) WITHOUT ROWID",
        """
        CREATE TABLE acls (
            resource_type INTEGER NOT NULL,
            resource_name TEXT NOT NULL,
            principal_type TEXT NOT NULL,
            principal_name TEXT NOT NULL,
            host TEXT NOT NULL,
            operation INTEGER NOT NULL,
            PRIMARY KEY (resource_type, resource_name, principal_type, principal_name, host, operation)
        ) WITHOUT ROWID
        """,
        "CREATE TABLE cluster_configs (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE server_tags (server_id INTEGER PRIMARY KEY, tag INTEGER NOT NULL)",
        """
        CREATE TABLE producer_offsets (
            producer_id TEXT PRIMARY KEY,
            expires_ms INTEGER NOT NULL,
            offsets TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        # The snapshots of a table in the order in which they were committed.
        """
        CREATE TABLE lake_snapshots (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            snapshot_id INTEGER NOT NULL,
            tiered_offsets_path TEXT NOT NULL,
            readable_offsets_path TEXT,
            PRIMARY KEY (table_id, position)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE row_ids (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            column_id INTEGER NOT NULL,
            id_next INTEGER NOT NULL,
            PRIMARY KEY (table_id, column_id)
        ) WITHOUT ROWID
        """,
    ),
    ("ALTER TABLE producer_offsets ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
    # Partitions that were dropped, for a while, and where the logs of their buckets ended.
    (
        """
        CREATE TABLE dropped_partitions (
            partition_id INTEGER PRIMARY KEY,
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            dropped_ms INTEGER NOT NULL,
            log_ends TEXT NOT NULL
        )
        """,
    ),
    # Which manifest of a remote log counts. What is dropped leaves the directory behind, to be removed.
    (
        """
        CREATE TABLE remote_logs (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            partition_id INTEGER REFERENCES partitions (partition_id) ON DELETE CASCADE,
            bucket_id INTEGER NOT NULL,
            root TEXT NOT NULL,
            directory TEXT NOT NULL,
            manifest_path TEXT,
            start_offset INTEGER NOT NULL,
            end_offset INTEGER NOT NULL,
            first_time_ms INTEGER NOT NULL,
            size_bytes INTEGER NOT NULL,
            segment_count INTEGER NOT NULL,
            is_dirty INTEGER NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX remote_logs_by_bucket ON remote_logs (table_id, ifnull(partition_id, -1), bucket_id)",
        "CREATE INDEX remote_logs_by_partition ON remote_logs (partition_id)",
        """
        CREATE TABLE dropped_remote_logs (
            root TEXT NOT NULL, directory TEXT NOT NULL, PRIMARY KEY (root, directory)
        ) WITHOUT ROWID
        """,
        """
        CREATE TRIGGER remote_log_dropped AFTER DELETE ON remote_logs
        BEGIN
            INSERT OR IGNORE INTO dropped_remote_logs VALUES (old.root, old.directory);
        END
        """,
    ),
    # Snapshots of rows by key in remote storage: of a bucket all together, one by one, and leases of them. What is
    # dropped leaves the directory behind, to be removed with those of remote logs.
    (
        """
        CREATE TABLE kv_snapshot_buckets (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            partition_id INTEGER REFERENCES partitions (partition_id) ON DELETE CASCADE,
            bucket_id INTEGER NOT NULL,
            root TEXT NOT NULL,
            directory TEXT NOT NULL,
            next_id INTEGER NOT NULL,
            is_dirty INTEGER NOT NULL
        )
        """,
        """
        CREATE UNIQUE INDEX kv_snapshot_buckets_by_bucket
        ON kv_snapshot_buckets (table_id, ifnull(partition_id, -1), bucket_id)
        """,
        "CREATE INDEX kv_snapshot_buckets_by_partition ON kv_snapshot_buckets (partition_id)",
        """
        CREATE TABLE kv_snapshots (
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            partition_id INTEGER REFERENCES partitions (partition_id) ON DELETE CASCADE,
            bucket_id INTEGER NOT NULL,
            snapshot_id INTEGER NOT NULL,
            root TEXT NOT NULL,
            directory TEXT NOT NULL,
            log_offset INTEGER NOT NULL,
            size_bytes INTEGER NOT NULL,
            value_bytes_max INTEGER NOT NULL,
            created_ms INTEGER NOT NULL,
            retired_ms INTEGER
        )
        """,
        """
        CREATE UNIQUE INDEX kv_snapshots_by_bucket
        ON kv_snapshots (table_id, ifnull(partition_id, -1), bucket_id, snapshot_id)
        """,
        "CREATE INDEX kv_snapshots_by_partition ON kv_snapshots (partition_id)",
        """
        CREATE TABLE kv_snapshot_leases (
            lease_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE kv_leased_snapshots (
            lease_id TEXT NOT NULL REFERENCES kv_snapshot_leases (lease_id) ON DELETE CASCADE,
            table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,
            partition_id INTEGER REFERENCES partitions (partition_id) ON DELETE CASCADE,
            bucket_id INTEGER NOT NULL,
            snapshot_id INTEGER NOT NULL
        )
        """,
        """
        CREATE UNIQUE INDEX kv_leased_snapshots_by_bucket
        ON kv_leased_snapshots (table_id, ifnull(partition_id, -1), bucket_id, lease_id)
        """,
        "CREATE INDEX kv_leased_snapshots_by_lease ON kv_leased_snapshots (lease_id)",
        "CREATE INDEX kv_leased_snapshots_by_partition ON kv_leased_snapshots (partition_id)",
        """
        CREATE TRIGGER kv_snapshots_dropped AFTER DELETE ON kv_snapshot_buckets
        BEGIN
            INSERT OR IGNORE INTO dropped_remote_logs VALUES (old.root, old.directory);
        END
        """,
    ),
)
