"""Which snapshots of rows by key are in remote storage, and who has leased them, in the file of the metadata.

Like remote logs they are read when they are asked for. The row of a bucket is there before the first object of its
snapshots is; when its table or partition is dropped, the same transaction notes its directory among those that are to
be removed. A lease keeps snapshots from being retired until it is released or its time is over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Any, Final

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.remote_log_table import IS_BUCKET, bucket_key, is_hosted
from fluss.server.coordinator.metadata.sqlite_file import SqliteFile
from fluss.server.model import KvSnapshotBucket, KvSnapshotEntry, KvSnapshotTotals

_BUCKET_COLUMNS: Final = "table_id, partition_id, bucket_id, root, directory, next_id, is_dirty"
_COLUMNS: Final = (
    "table_id, partition_id, bucket_id, snapshot_id, root, directory, log_offset, size_bytes, value_bytes_max, "
    "created_ms, retired_ms"
)
_GROUP: Final = "table_id, ifnull(partition_id, -1), bucket_id"
# Leases of all clients together. One that is not released goes when its time is over.
_LEASES_MAX: Final = 10_000


class KvSnapshotTable:
    """Implements KvSnapshotRegistry. May be used by all tasks of one event loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    # What there is

    async def load(self) -> tuple[list[KvSnapshotBucket], list[KvSnapshotEntry]]:
        def load(connection: sqlite3.Connection) -> tuple[list[KvSnapshotBucket], list[KvSnapshotEntry]]:
            dirty = connection.execute(f"SELECT {_BUCKET_COLUMNS} FROM kv_snapshot_buckets WHERE is_dirty")
            # Of the columns without an aggregate SQLite takes those of the row with the largest id.
            newest = connection.execute(
                f"SELECT {_COLUMNS}, max(snapshot_id) FROM kv_snapshots WHERE retired_ms IS NULL GROUP BY {_GROUP}"
            )
            return [_bucket(*row) for row in dirty], [_entry(*row[:-1]) for row in newest]

        return await self._file.read(load)

    async def totals(self, now_ms: int) -> KvSnapshotTotals:
        def read(connection: sqlite3.Connection) -> KvSnapshotTotals:
            count, size = connection.execute("SELECT count(*), ifnull(sum(size_bytes), 0) FROM kv_snapshots").fetchone()
            leases = connection.execute("SELECT count(*) FROM kv_snapshot_leases WHERE expires_ms > ?", (now_ms,))
            leased = connection.execute(
                "SELECT count(*) FROM kv_leased_snapshots JOIN kv_snapshot_leases USING (lease_id) "
                "WHERE expires_ms > ?",
                (now_ms,),
            )
            return KvSnapshotTotals(count, size, leases.fetchone()[0], leased.fetchone()[0])

        return await self._file.read(read)

    async def find(self, bucket: TableBucket) -> KvSnapshotBucket | None:
        def find(connection: sqlite3.Connection) -> KvSnapshotBucket | None:
            query = f"SELECT {_BUCKET_COLUMNS} FROM kv_snapshot_buckets WHERE {IS_BUCKET}"
            row = connection.execute(query, bucket_key(bucket)).fetchone()
            return None if row is None else _bucket(*row)

        return await self._file.read(find)

    async def of_bucket(self, bucket: TableBucket) -> list[KvSnapshotEntry]:
        query = f"SELECT {_COLUMNS} FROM kv_snapshots WHERE {IS_BUCKET} ORDER BY snapshot_id DESC"
        return await self._file.read(
            lambda connection: [_entry(*row) for row in connection.execute(query, bucket_key(bucket))]
        )

    async def find_snapshot(self, bucket: TableBucket, snapshot_id: int) -> KvSnapshotEntry | None:
        entries = await self.of_bucket(bucket)
        return next((entry for entry in entries if entry.snapshot_id == snapshot_id), None)

    async def of_group(self, table_id: int, partition_id: int | None) -> list[KvSnapshotEntry]:
        """Return the snapshots that are needed of a table without partitions, or of a partition.

        They are in the order of their buckets, and the newest of each comes first.
        """
        query = (
            f"SELECT {_COLUMNS} FROM kv_snapshots WHERE table_id = ? AND ifnull(partition_id, -1) = ? "
            "AND retired_ms IS NULL ORDER BY bucket_id, snapshot_id DESC"
        )
        key = (table_id, -1 if partition_id is None else partition_id)
        return await self._file.read(lambda connection: [_entry(*row) for row in connection.execute(query, key)])

    async def superfluous(self, retained_count: int) -> list[TableBucket]:
        query = (
            "SELECT table_id, partition_id, bucket_id FROM kv_snapshots "
            f"GROUP BY {_GROUP} HAVING count(*) > ? OR count(retired_ms)"
        )
        return await self._file.read(
            lambda connection: [
                TableBucket.new_with_partition(*row) for row in connection.execute(query, (retained_count,))
            ]
        )

    # Changes

    async def begin(self, buckets: Collection[KvSnapshotBucket]) -> None:
        def begin(connection: sqlite3.Connection) -> None:
            for new in buckets:
                changed = connection.execute(
                    f"UPDATE kv_snapshot_buckets SET is_dirty = 1 WHERE {IS_BUCKET}", bucket_key(new.bucket)
                )
                if not changed.rowcount and is_hosted(connection, new.bucket):
                    connection.execute(
                        "INSERT INTO kv_snapshot_buckets VALUES (?, ?, ?, ?, ?, ?, 1)",
                        (*_ids(new.bucket), new.root, new.directory, new.next_id),
                    )

        await self._file.write(begin)

    async def add(self, entry: KvSnapshotEntry) -> bool:
        def add(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(
                f"UPDATE kv_snapshot_buckets SET next_id = ? WHERE {IS_BUCKET}",
                (entry.snapshot_id + 1, *bucket_key(entry.bucket)),
            )
            if not changed.rowcount:
                return False
            marks = ", ".join("?" * 11)
            connection.execute(f"INSERT INTO kv_snapshots VALUES ({marks})", (*_ids(entry.bucket), *entry[1:]))
            return True

        return await self._file.write(add)

    async def retire(self, bucket: TableBucket, retained_count: int, now_ms: int) -> None:
        def retire(connection: sqlite3.Connection) -> None:
            key = bucket_key(bucket)
            leased = connection.execute(
                "SELECT snapshot_id FROM kv_leased_snapshots JOIN kv_snapshot_leases USING (lease_id) "
                f"WHERE {IS_BUCKET} AND expires_ms > ?",
                (*key, now_ms),
            )
            kept = {row[0] for row in leased}
            needed = connection.execute(
                f"SELECT snapshot_id FROM kv_snapshots WHERE {IS_BUCKET} AND retired_ms IS NULL "
                "ORDER BY snapshot_id DESC",
                key,
            ).fetchall()
            statement = f"UPDATE kv_snapshots SET retired_ms = ? WHERE {IS_BUCKET} AND snapshot_id = ?"
            for (snapshot_id,) in needed[retained_count:]:
                if snapshot_id not in kept:
                    connection.execute(statement, (now_ms, *key, snapshot_id))

        await self._file.write(retire)

    async def remove(self, bucket: TableBucket, snapshot_ids: Collection[int]) -> None:
        key = bucket_key(bucket)
        statement = f"DELETE FROM kv_snapshots WHERE {IS_BUCKET} AND snapshot_id = ?"
        rows = [(*key, snapshot_id) for snapshot_id in snapshot_ids]
        await self._file.write(lambda connection: connection.executemany(statement, rows))

    async def finish(self, buckets: Collection[TableBucket]) -> None:
        keys = [bucket_key(bucket) for bucket in buckets]
        statement = f"UPDATE kv_snapshot_buckets SET is_dirty = 0 WHERE {IS_BUCKET}"
        await self._file.write(lambda connection: connection.executemany(statement, keys))

    # Leases

    async def acquire_lease(
        self, lease_id: str, expires_ms: int, wanted: Collection[tuple[TableBucket, int]]
    ) -> list[tuple[TableBucket, int]]:
        """Lease snapshots until a time, and return those that are not there (any more).

        What the lease has already stays until the same time, with a newer snapshot of the bucket if there is one now.
        """

        def acquire(connection: sqlite3.Connection) -> list[tuple[TableBucket, int]]:
            (others,) = connection.execute(
                "SELECT count(*) FROM kv_snapshot_leases WHERE lease_id <> ?", (lease_id,)
            ).fetchone()
            if others >= _LEASES_MAX:
                raise FlussError(f"there are {others} leases of snapshots already; release some, or try again later")
            connection.execute(
                "INSERT INTO kv_snapshot_leases VALUES (?, ?) "
                "ON CONFLICT (lease_id) DO UPDATE SET expires_ms = excluded.expires_ms",
                (lease_id, expires_ms),
            )
            missing = []
            for bucket, snapshot_id in wanted:
                query = f"SELECT 1 FROM kv_snapshots WHERE {IS_BUCKET} AND snapshot_id = ? AND retired_ms IS NULL"
                if connection.execute(query, (*bucket_key(bucket), snapshot_id)).fetchone() is None:
                    missing.append((bucket, snapshot_id))
                    continue
                self._release(connection, lease_id, bucket)
                connection.execute(
                    "INSERT INTO kv_leased_snapshots VALUES (?, ?, ?, ?, ?)", (lease_id, *_ids(bucket), snapshot_id)
                )
            self._forget_empty(connection, lease_id)
            return missing

        return await self._file.write(acquire)

    async def release_lease(self, lease_id: str, buckets: Collection[TableBucket]) -> None:
        """Take buckets out of a lease; one with none left is gone. What is unknown changes nothing."""

        def release(connection: sqlite3.Connection) -> None:
            for bucket in buckets:
                self._release(connection, lease_id, bucket)
            self._forget_empty(connection, lease_id)

        await self._file.write(release)

    async def tables_of_lease(self, lease_id: str) -> list[int]:
        """Return the ids of the tables that a lease has snapshots of."""
        query = "SELECT DISTINCT table_id FROM kv_leased_snapshots WHERE lease_id = ?"
        return await self._file.read(lambda connection: [row[0] for row in connection.execute(query, (lease_id,))])

    async def drop_lease(self, lease_id: str) -> None:
        """Forget a lease; an unknown one changes nothing."""
        statement = "DELETE FROM kv_snapshot_leases WHERE lease_id = ?"
        await self._file.write(lambda connection: connection.execute(statement, (lease_id,)))

    async def expire_leases(self, now_ms: int) -> int:
        statement = "DELETE FROM kv_snapshot_leases WHERE expires_ms <= ?"
        return await self._file.write(lambda connection: connection.execute(statement, (now_ms,)).rowcount)

    def _release(self, connection: sqlite3.Connection, lease_id: str, bucket: TableBucket) -> None:
        statement = f"DELETE FROM kv_leased_snapshots WHERE {IS_BUCKET} AND lease_id = ?"
        connection.execute(statement, (*bucket_key(bucket), lease_id))

    def _forget_empty(self, connection: sqlite3.Connection, lease_id: str) -> None:
        connection.execute(
            "DELETE FROM kv_snapshot_leases WHERE lease_id = ? "
            "AND NOT EXISTS (SELECT 1 FROM kv_leased_snapshots WHERE kv_leased_snapshots.lease_id = ?)",
            (lease_id, lease_id),
        )


def _ids(bucket: TableBucket) -> tuple[int, int | None, int]:
    return bucket.table_id, bucket.partition_id, bucket.bucket_id


def _bucket(table_id: int, partition_id: int | None, bucket_id: int, *rest: Any) -> KvSnapshotBucket:
    *fields, is_dirty = rest
    bucket = TableBucket.new_with_partition(table_id, partition_id, bucket_id)
    return KvSnapshotBucket._make((bucket, *fields, bool(is_dirty)))


def _entry(table_id: int, partition_id: int | None, bucket_id: int, *rest: Any) -> KvSnapshotEntry:
    return KvSnapshotEntry._make((TableBucket.new_with_partition(table_id, partition_id, bucket_id), *rest))
