"""Which manifests of remote logs count, in the file of the metadata. Unlike other metadata it is read when it is asked
for: there may be one per bucket, and most are never looked at.

A row is there before the first object of a remote log is. When its table or partition is dropped, the same transaction
notes its directory among those that are to be removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Any, Final

from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.sqlite_file import SqliteFile
from fluss.server.model import RemoteLogEntry

_COLUMNS: Final = (
    "table_id, partition_id, bucket_id, root, directory, manifest_path, start_offset, end_offset, first_time_ms, "
    "size_bytes, segment_count, is_dirty"
)
IS_BUCKET: Final = "table_id = ? AND ifnull(partition_id, -1) = ? AND bucket_id = ?"


class RemoteLogTable:
    """Implements RemoteLogRegistry. May be used by all tasks of one event loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def load(self) -> list[RemoteLogEntry]:
        return await self._file.read(
            lambda connection: [_entry(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM remote_logs")]
        )

    async def find(self, bucket: TableBucket) -> RemoteLogEntry | None:
        def find(connection: sqlite3.Connection) -> RemoteLogEntry | None:
            query = f"SELECT {_COLUMNS} FROM remote_logs WHERE {IS_BUCKET}"
            row = connection.execute(query, bucket_key(bucket)).fetchone()
            return None if row is None else _entry(*row)

        return await self._file.read(find)

    async def of_group(self, table_id: int, partition_id: int | None) -> list[RemoteLogEntry]:
        """Return the entries of a table without partitions, or of a partition, in the order of their buckets."""
        query = (
            f"SELECT {_COLUMNS} FROM remote_logs WHERE table_id = ? AND ifnull(partition_id, -1) = ? ORDER BY bucket_id"
        )
        key = (table_id, -1 if partition_id is None else partition_id)
        return await self._file.read(lambda connection: [_entry(*row) for row in connection.execute(query, key)])

    async def begin(self, entries: Collection[RemoteLogEntry]) -> None:
        def begin(connection: sqlite3.Connection) -> None:
            for entry in entries:
                changed = connection.execute(
                    f"UPDATE remote_logs SET is_dirty = 1 WHERE {IS_BUCKET}", bucket_key(entry.bucket)
                )
                if not changed.rowcount and is_hosted(connection, entry.bucket):
                    marks = ", ".join("?" * 12)
                    connection.execute(f"INSERT INTO remote_logs VALUES ({marks})", _row(entry._replace(is_dirty=True)))

        await self._file.write(begin)

    async def commit(self, entry: RemoteLogEntry) -> bool:
        def commit(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                "UPDATE remote_logs SET manifest_path = ?, start_offset = ?, end_offset = ?, first_time_ms = ?, "
                f"size_bytes = ?, segment_count = ? WHERE {IS_BUCKET}",
                (*_row(entry)[5:11], *bucket_key(entry.bucket)),
            )
            return changed.rowcount > 0

        return await self._file.write(commit)

    async def finish(self, buckets: Collection[TableBucket]) -> None:
        keys = [bucket_key(bucket) for bucket in buckets]
        statement = f"UPDATE remote_logs SET is_dirty = 0 WHERE {IS_BUCKET}"
        await self._file.write(lambda connection: connection.executemany(statement, keys))

    async def dropped(self) -> list[tuple[str, str]]:
        return await self._file.read(
            lambda connection: connection.execute("SELECT root, directory FROM dropped_remote_logs").fetchall()
        )

    async def forget_dropped(self, removed: Collection[tuple[str, str]]) -> None:
        statement = "DELETE FROM dropped_remote_logs WHERE root = ? AND directory = ?"
        await self._file.write(lambda connection: connection.executemany(statement, removed))


def is_hosted(connection: sqlite3.Connection, bucket: TableBucket) -> bool:
    """Tell whether the table or partition is still there."""
    if bucket.partition_id is None:
        query, key = "SELECT 1 FROM tables WHERE table_id = ?", bucket.table_id
    else:
        query, key = "SELECT 1 FROM partitions WHERE partition_id = ?", bucket.partition_id
    return connection.execute(query, (key,)).fetchone() is not None


def bucket_key(bucket: TableBucket) -> tuple[int, int, int]:
    return bucket.table_id, -1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket_id


def _row(entry: RemoteLogEntry) -> tuple[Any, ...]:
    bucket = entry.bucket
    return bucket.table_id, bucket.partition_id, bucket.bucket_id, *entry[1:-1], int(entry.is_dirty)


def _entry(table_id: int, partition_id: int | None, bucket_id: int, *rest: Any) -> RemoteLogEntry:
    *fields, is_dirty = rest
    return RemoteLogEntry._make(
        (TableBucket.new_with_partition(table_id, partition_id, bucket_id), *fields, bool(is_dirty))
    )
