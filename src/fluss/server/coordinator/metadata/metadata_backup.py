"""The metadata as a file of its own: copied for a backup, and made ready for the server that is restored from it.

Ids go on behind a gap. What the lost server gave out after its last backup is known to clients only: a
table that is created next must not have the id of one that was lost, nor a writer the id of a writer that still sends.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_store import (
    COORDINATOR_EPOCH,
    HISTORY,
    HISTORY_BEFORE,
    PARTITION_ID,
    TABLE_ID,
    WRITER_ID,
    MetadataStore,
)
from fluss.server.model import KvSnapshotEntry, RemoteLogEntry

# More than a server can have given out between two backups. By the epoch services are told that rounds of tiering which
# they planned from what the lost server had are not theirs any more.
_GAPS: Final = {TABLE_ID: 1_000_000, PARTITION_ID: 1_000_000, WRITER_ID: 2**32, COORDINATOR_EPOCH: 1_000}
_HISTORY_BITS: Final = 48
_SNAPSHOT_ID_GAP: Final = 1_000_000
# Names of directories. A writer to remote storage must not choose where on this machine they are.
_NAMES: Final = (
    "SELECT name FROM databases UNION SELECT database_name FROM tables UNION SELECT table_name FROM tables "
    "UNION SELECT name FROM partitions"
)


class MetadataBackup:
    """Copies the metadata of a running server. Implements MetadataCopies."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def change_count(self) -> int:
        return await self._store.change_count()

    def copy_to(self, target: Path) -> None:
        self._store.copy_to(target)

    def begin_round(self) -> None:
        self._store.lake_snapshots.begin_note()

    def lake_offsets(self) -> Mapping[TableBucket, int]:
        return self._store.lake_snapshots.noted

    def snapshot_offsets(self, copy: Path) -> dict[TableBucket, int]:
        offsets: dict[TableBucket, int] = {}
        for entry in kv_snapshots(copy):
            offsets[entry.bucket] = max(entry.log_offset, offsets.get(entry.bucket, 0))
        return offsets


def check_metadata(path: Path) -> None:
    """Raise a FlussError if a file is not what SQLite has written, or not what a server has told it to. Blocking."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            if problems == ["ok"]:
                problems = [
                    f"the name {row[0]!r}" for row in connection.execute(_NAMES) if _leads_away(row[0])
                ] or problems
    except sqlite3.Error as error:
        problems = [str(error)]
    if problems != ["ok"]:
        raise FlussError(f"the metadata of the backup are damaged: {'; '.join(problems)}", ErrorCode.STORAGE_EXCEPTION)


def _leads_away(name: object) -> bool:
    """Whether a directory of this name would not be where it belongs."""
    return not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name


def table_count(path: Path) -> int:
    """Return how many tables there are. Blocking."""
    with _reading(path) as connection:
        count: int = connection.execute("SELECT count(*) FROM tables").fetchone()[0]
        return count


def remote_logs(path: Path) -> list[RemoteLogEntry]:
    """Return which manifests of remote logs count. Blocking."""
    with _reading(path) as connection:
        rows = connection.execute(
            "SELECT table_id, partition_id, bucket_id, root, directory, manifest_path, start_offset, end_offset, "
            "first_time_ms, size_bytes, segment_count, is_dirty FROM remote_logs"
        )
        return [
            RemoteLogEntry._make((TableBucket.new_with_partition(*row[:3]), *row[3:11], bool(row[11]))) for row in rows
        ]


def kv_snapshots(path: Path) -> list[KvSnapshotEntry]:
    """Return which snapshots of rows by key there are, without those that are not needed any more. Blocking."""
    with _reading(path) as connection:
        rows = connection.execute(
            "SELECT table_id, partition_id, bucket_id, snapshot_id, root, directory, log_offset, size_bytes, "
            "value_bytes_max, created_ms, retired_ms FROM kv_snapshots WHERE retired_ms IS NULL"
        )
        return [KvSnapshotEntry._make((TableBucket.new_with_partition(*row[:3]), *row[3:])) for row in rows]


def adapt(path: Path, *, moved: Mapping[str, str]) -> None:
    """Make the metadata of a lost server those of its successor. Blocking.

    New ids are given out behind a gap; what the lost server has put into remote storage since, and nothing names, is
    looked for; and remote storage is where it is now: new places by old ones. A new history begins: at an offset of a
    log there may be another record than the lost server had there.
    """
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, gap in _GAPS.items():
            connection.execute(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value_next = value_next + ?",
                (name, gap, gap),
            )
        row = connection.execute("SELECT value_next FROM counters WHERE name = ?", (HISTORY,)).fetchone()
        connection.executemany(
            "REPLACE INTO counters VALUES (?, ?)",
            # By chance, because two servers may be restored from one backup, one after the other.
            [(HISTORY_BEFORE, 0 if row is None else row[0]), (HISTORY, secrets.randbits(_HISTORY_BITS) + 1)],
        )
        connection.execute("UPDATE kv_snapshot_buckets SET is_dirty = 1, next_id = next_id + ?", (_SNAPSHOT_ID_GAP,))
        connection.execute("UPDATE remote_logs SET is_dirty = 1")
        for old, new in moved.items():
            for table in ("remote_logs", "dropped_remote_logs", "kv_snapshot_buckets", "kv_snapshots"):
                connection.execute(f"UPDATE {table} SET root = ? WHERE root = ?", (new, old))
            for column in ("tiered_offsets_path", "readable_offsets_path"):
                connection.execute(
                    f"UPDATE lake_snapshots SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (new, len(old) + 1, len(old) + 1, f"{old}/"),
                )


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise FlussError(f"the metadata of the backup cannot be read: {error}", ErrorCode.STORAGE_EXCEPTION) from error
