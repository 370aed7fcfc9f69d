"""The metadata of a backup, made ready for the server that is restored from it.

Ids go on behind a gap. What the lost server gave out after its last backup is known to clients and to nobody else: a
table that is created next must not have the id of one that was lost, nor a writer the id of a writer that still sends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata_store import PARTITION_ID, TABLE_ID, WRITER_ID
from fluss.server.model import RemoteLogEntry

# More than a server can have given out between two backups.
_GAPS: Final = {TABLE_ID: 1_000_000, PARTITION_ID: 1_000_000, WRITER_ID: 2**32}


def check_metadata(path: Path) -> None:
    """Raise a FlussError if a file is not what SQLite has written. Blocking."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    except sqlite3.Error as error:
        problems = [str(error)]
    if problems != ["ok"]:
        raise FlussError(f"the metadata of the backup are damaged: {'; '.join(problems)}", ErrorCode.STORAGE_EXCEPTION)


def table_count(path: Path) -> int:
    """Return how many tables there are. Blocking."""
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM tables").fetchone()[0]
        return count


def remote_logs(path: Path) -> list[RemoteLogEntry]:
    """Return which manifests of remote logs count. Blocking."""
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'remote_logs'").fetchone():
            return []
        rows = connection.execute(
            "SELECT table_id, partition_id, bucket_id, root, directory, manifest_path, start_offset, end_offset, "
            "first_time_ms, size_bytes, segment_count, is_dirty FROM remote_logs"
        )
        return [
            RemoteLogEntry._make((TableBucket.new_with_partition(*row[:3]), *row[3:11], bool(row[11]))) for row in rows
        ]


def adapt(path: Path, *, moved: Mapping[str, str]) -> None:
    """Leave a gap in front of new ids, and have remote logs where they are now: new places by old ones. Blocking."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, gap in _GAPS.items():
            connection.execute(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value_next = value_next + ?",
                (name, gap, gap),
            )
        for old, new in moved.items():
            for table in ("remote_logs", "dropped_remote_logs"):
                connection.execute(f"UPDATE {table} SET root = ? WHERE root = ?", (new, old))
            for column in ("tiered_offsets_path", "readable_offsets_path"):
                connection.execute(
                    f"UPDATE lake_snapshots SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (new, len(old) + 1, len(old) + 1, f"{old}/"),
                )
