"""The tables of the metadata file. The n-th entry leads from version n-1 to version n; entries are only ever added."""

from __future__ import annotations

from typing import Final

# Lists and maps are JSON texts, times epoch milliseconds.
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
)
