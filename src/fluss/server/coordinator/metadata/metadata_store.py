"""Everything a coordinator must not forget, in one SQLite file. With ``remote_log_table`` the only SQL for it.

Each method is one transaction: it is on disk when the method returns, or it has not happened. Nothing but the counters
of row ids is read back while the server runs; the coordinator's parts load their share at the start and keep it in
memory. The tables of the file are at the end of this module.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.errors import ErrorCode, FlussError
from fluss.schema.acl import AclBinding, AclOperation, AclResource, AclResourceType, split_principal
from fluss.schema.cluster_info import ServerTag
from fluss.schema.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.schema.serde import schema_to_json
from fluss.schema.table import TableBucket, TablePath
from fluss.server.coordinator.metadata.kv_snapshot_table import KvSnapshotTable
from fluss.server.coordinator.metadata.migrations import MIGRATIONS
from fluss.server.coordinator.metadata.remote_log_table import RemoteLogTable
from fluss.server.coordinator.metadata.sqlite_file import SqliteFile
from fluss.server.model import Partition, PartitionDrop, Table, TableSchemas


@dataclass(frozen=True, slots=True)
class Database:
    """A database as the catalog has it. A change makes a new value."""

    name: str
    descriptor: DatabaseDescriptor
    created_ms: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoredCatalog:
    """Everything the catalog is made of when a server starts."""

    databases: Collection[Database]
    tables: Collection[Table]
    partitions: Collection[Partition]
    # The oldest drops first.
    dropped_partitions: Collection[PartitionDrop]
    table_id_next: int
    partition_id_next: int


@dataclass(frozen=True, slots=True)
class RegisteredOffsets:
    """How far a producer had written its buckets, as it registered it; None where it did not say. It expires."""

    producer_id: str
    expires_ms: int
    offsets: tuple[tuple[TableBucket, int | None], ...]
    # The principal who registered it; empty if that was before owners were recorded.
    owner: str = ""


FILE_NAME: Final = "metadata.sqlite"
TABLE_ID: Final = "table_id"
PARTITION_ID: Final = "partition_id"
WRITER_ID: Final = "writer_id"
COORDINATOR_EPOCH: Final = "coordinator_epoch"
# Each restore from a backup begins a history; the number of the one that it goes on from.
HISTORY: Final = "history"
HISTORY_BEFORE: Final = "history_before"
_ROW_ID_FIRST: Final = 1
_SELECT_DROPPED: Final = "SELECT * FROM dropped_partitions ORDER BY dropped_ms, partition_id"


class MetadataStore:
    """Loads and changes what is stored. May be used by all tasks of one event loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        # Which snapshots of lake tables are registered.
        self.lake_snapshots = LakeSnapshotTable(file)

    @classmethod
    async def open(cls, path: Path) -> MetadataStore:
        """Open or create the file. One that is damaged or of a newer version is refused with a FlussError."""
        return cls(await SqliteFile.open(path, MIGRATIONS))

    async def close(self) -> None:
        await self._file.close()

    async def change_count(self) -> int:
        """Return a number that is another one when something was changed since the file was opened."""
        return await self._file.change_count()

    def copy_to(self, target: Path) -> None:
        """Copy the content of one moment to a file of its own. Blocking; any thread may call."""
        self._file.copy_to(target)

    @property
    def remote_logs(self) -> RemoteLogTable:
        """Which manifests of remote logs count."""
        return RemoteLogTable(self._file)

    @property
    def kv_snapshots(self) -> KvSnapshotTable:
        """Which snapshots of rows by key are in remote storage, and who has leased them."""
        return KvSnapshotTable(self._file)

    async def next_coordinator_epoch(self) -> int:
        """Count the starts of coordinators, and return the number of this one; the first is 0."""

        def count(connection: sqlite3.Connection) -> int:
            epoch = _counter(connection, COORDINATOR_EPOCH)
            _set_counter(connection, COORDINATOR_EPOCH, epoch + 1)
            return epoch

        return await self._file.write(count)

    async def load_history(self) -> tuple[int, int]:
        """Return the number of the history that this server writes, 0 if it was not restored, and of the one before."""
        return await self._file.read(
            lambda connection: (_counter(connection, HISTORY), _counter(connection, HISTORY_BEFORE))
        )

    # Databases

    async def create_database(self, database: Database) -> None:
        await self._execute("INSERT INTO databases VALUES (?, ?, ?, ?, ?)", _database_row(database))

    async def update_database(self, database: Database) -> None:
        # Not REPLACE, which would delete the row first, and with it the tables.
        await self._execute(
            "UPDATE databases SET comment = ?, custom_properties = ?, modified_ms = ? WHERE name = ?",
            (
                database.descriptor.comment,
                _dump(database.descriptor.custom_properties),
                database.modified_ms,
                database.name,
            ),
        )

    async def drop_database(self, name: str) -> None:
        """Remove a database with its tables and partitions."""
        await self._execute("DELETE FROM databases WHERE name = ?", (name,))

    # Tables

    async def create_table(self, table: Table) -> None:
        """Store a table with its first schema; its id counts as given out."""

        def create(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT INTO tables VALUES ({_marks(12)})", _table_row(table))
            _insert_schema(connection, table)
            _set_counter(connection, TABLE_ID, table.table_id + 1)

        await self._file.write(create)

    async def update_table_properties(self, table: Table) -> None:
        await self._execute(
            "UPDATE tables SET properties = ?, custom_properties = ?, modified_ms = ? WHERE table_id = ?",
            (
                _dump(table.descriptor.properties),
                _dump(table.descriptor.custom_properties),
                table.modified_ms,
                table.table_id,
            ),
        )

    async def add_schema(self, table: Table) -> None:
        """Store the newest schema of a table besides the older ones."""

        def add(connection: sqlite3.Connection) -> None:
            _insert_schema(connection, table)
            connection.execute("UPDATE tables SET schema_id = ? WHERE table_id = ?", (table.schema_id, table.table_id))

        await self._file.write(add)

    async def drop_table(self, table_id: int) -> None:
        """Remove a table with its partitions."""
        await self._execute("DELETE FROM tables WHERE table_id = ?", (table_id,))

    # Partitions

    async def create_partitions(self, partitions: Collection[Partition]) -> None:
        """Store partitions; their ids count as given out."""

        def create(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO partitions VALUES (?, ?, ?)",
                [(partition.partition_id, partition.table_id, partition.name) for partition in partitions],
            )
            _set_counter(connection, PARTITION_ID, max(partition.partition_id for partition in partitions) + 1)

        await self._file.write(create)

    async def drop_partitions(self, dropped: Collection[PartitionDrop], forgotten_ids: Iterable[int] = ()) -> None:
        """Remove partitions, and note that they were there; forget about others that were dropped before."""

        def drop(connection: sqlite3.Connection) -> None:
            ids = [(partition.partition_id,) for partition in dropped]
            connection.executemany("DELETE FROM partitions WHERE partition_id = ?", ids)
            connection.executemany(
                "INSERT INTO dropped_partitions VALUES (?, ?, ?, ?, ?)",
                [(*_dropped_key(partition), _dump(partition.log_ends)) for partition in dropped],
            )
            forgotten = [(partition_id,) for partition_id in forgotten_ids]
            connection.executemany("DELETE FROM dropped_partitions WHERE partition_id = ?", forgotten)

        await self._file.write(drop)

    async def set_log_ends(self, dropped: Collection[PartitionDrop]) -> None:
        """Note where the logs of dropped partitions ended."""
        rows = [(_dump(partition.log_ends), partition.partition_id) for partition in dropped]
        statement = "UPDATE dropped_partitions SET log_ends = ? WHERE partition_id = ?"
        await self._file.write(lambda connection: connection.executemany(statement, rows))

    async def load_catalog(self) -> StoredCatalog:
        """Read all databases, tables and partitions."""
        return await self._file.read(self._load_catalog)

    def _load_catalog(self, connection: sqlite3.Connection) -> StoredCatalog:
        schemas: defaultdict[int, dict[int, str]] = defaultdict(dict)
        for table_id, schema_id, schema_json in connection.execute("SELECT * FROM schemas ORDER BY schema_id"):
            schemas[table_id][schema_id] = schema_json
        return StoredCatalog(
            [_database(*row) for row in connection.execute("SELECT * FROM databases")],
            [self._table(schemas[row[0]], row) for row in connection.execute("SELECT * FROM tables")],
            [Partition(*row) for row in connection.execute("SELECT * FROM partitions")],
            [_dropped_partition(*row) for row in connection.execute(_SELECT_DROPPED)],
            _counter(connection, TABLE_ID),
            _counter(connection, PARTITION_ID),
        )

    def _table(self, schema_jsons: Mapping[int, str], row: tuple[Any, ...]) -> Table:
        try:
            return _table(TableSchemas(schema_jsons, f"{row[1]}.{row[2]}"), *row)
        except (FlussError, ValueError, KeyError, TypeError) as error:
            raise FlussError(
                f"the metadata in {self._file.path} is damaged: table {row[0]} ({row[1]}.{row[2]}) cannot be read: "
                f"{error}. Restore the file from a backup",
                ErrorCode.STORAGE_EXCEPTION,
            ) from error

    # Writer ids

    async def load_writer_id_next(self) -> int:
        return await self._file.read(lambda connection: _counter(connection, WRITER_ID))

    async def set_writer_id_next(self, writer_id_next: int) -> None:
        await self._file.write(lambda connection: _set_counter(connection, WRITER_ID, writer_id_next))

    # Row ids

    async def reserve_row_ids(self, table_id: int, column_id: int, count: int) -> int:
        """Count the ids of an auto-increment column on, and return the first of those that are reserved by that.

        Raises code 7 if the table has been dropped.
        """

        def reserve(connection: sqlite3.Connection) -> int:
            if connection.execute("SELECT 1 FROM tables WHERE table_id = ?", (table_id,)).fetchone() is None:
                raise FlussError(f"The table of id {table_id} does not exist.", ErrorCode.TABLE_NOT_EXIST)
            connection.execute("INSERT OR IGNORE INTO row_ids VALUES (?, ?, ?)", (table_id, column_id, _ROW_ID_FIRST))
            key = (table_id, column_id)
            row = connection.execute("SELECT id_next FROM row_ids WHERE table_id = ? AND column_id = ?", key).fetchone()
            id_first: int = row[0]
            connection.execute(
                "UPDATE row_ids SET id_next = ? WHERE table_id = ? AND column_id = ?", (id_first + count, *key)
            )
            return id_first

        return await self._file.write(reserve)

    # Access control

    async def load_acls(self) -> list[AclBinding]:
        return await self._file.read(
            lambda connection: [_acl(*row) for row in connection.execute("SELECT * FROM acls")]
        )

    async def add_acls(self, acls: Iterable[AclBinding]) -> None:
        """Store entries; those that are there already change nothing."""
        rows = [_acl_row(acl) for acl in acls]
        await self._file.write(
            lambda connection: connection.executemany(f"REPLACE INTO acls VALUES ({_marks(6)})", rows)
        )

    async def remove_acls(self, acls: Iterable[AclBinding]) -> None:
        rows = [_acl_row(acl) for acl in acls]
        statement = (
            "DELETE FROM acls WHERE resource_type = ? AND resource_name = ? AND principal_type = ? "
            "AND principal_name = ? AND host = ? AND operation = ?"
        )
        await self._file.write(lambda connection: connection.executemany(statement, rows))

    # Configuration of the cluster

    async def load_configs(self) -> dict[str, str]:
        return await self._file.read(lambda connection: dict(connection.execute("SELECT * FROM cluster_configs")))

    async def replace_configs(self, configs: Mapping[str, str]) -> None:
        def replace(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM cluster_configs")
            connection.executemany("INSERT INTO cluster_configs VALUES (?, ?)", configs.items())

        await self._file.write(replace)

    async def load_server_tags(self) -> dict[int, ServerTag]:
        return await self._file.read(
            lambda connection: {
                server_id: ServerTag(tag) for server_id, tag in connection.execute("SELECT * FROM server_tags")
            }
        )

    async def replace_server_tags(self, tags: Mapping[int, ServerTag]) -> None:
        def replace(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM server_tags")
            connection.executemany("INSERT INTO server_tags VALUES (?, ?)", tags.items())

        await self._file.write(replace)

    # Offsets of producers

    async def load_producer_offsets(self) -> list[RegisteredOffsets]:
        return await self._file.read(
            lambda connection: [_producer(*row) for row in connection.execute("SELECT * FROM producer_offsets")]
        )

    async def put_producer_offsets(self, producer: RegisteredOffsets) -> None:
        """Store what a producer registered, in place of what it registered before."""
        offsets = _dump(
            [(bucket.table_id, bucket.partition_id, bucket.bucket_id, offset) for bucket, offset in producer.offsets]
        )
        await self._execute(
            "REPLACE INTO producer_offsets VALUES (?, ?, ?, ?)",
            (producer.producer_id, producer.expires_ms, offsets, producer.owner),
        )

    async def delete_producer_offsets(self, producer_ids: Iterable[str]) -> None:
        ids = [(producer_id,) for producer_id in producer_ids]
        await self._file.write(
            lambda connection: connection.executemany("DELETE FROM producer_offsets WHERE producer_id = ?", ids)
        )

    async def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        await self._file.write(lambda connection: connection.execute(statement, values))


# Rows


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _database_row(database: Database) -> tuple[Any, ...]:
    descriptor = database.descriptor
    properties = _dump(descriptor.custom_properties)
    return database.name, descriptor.comment, properties, database.created_ms, database.modified_ms


def _database(name: str, comment: str | None, properties: str, created_ms: int, modified_ms: int) -> Database:
    return Database(name, DatabaseDescriptor(comment, json.loads(properties)), created_ms, modified_ms)


def _table_row(table: Table) -> tuple[Any, ...]:
    descriptor = table.descriptor
    return (
        table.table_id,
        table.path.database_name,
        table.path.table_name,
        table.schema_id,
        descriptor.comment,
        _dump(descriptor.partition_keys),
        _dump(descriptor.bucket_keys),
        table.bucket_count,
        _dump(descriptor.properties),
        _dump(descriptor.custom_properties),
        table.created_ms,
        table.modified_ms,
    )


def _table(
    schemas: TableSchemas,
    table_id: int,
    database_name: str,
    table_name: str,
    schema_id: int,
    comment: str | None,
    partition_keys: str,
    bucket_keys: str,
    bucket_count: int,
    properties: str,
    custom_properties: str,
    created_ms: int,
    modified_ms: int,
) -> Table:
    descriptor = TableDescriptor(
        schemas[schema_id],
        comment=comment,
        partition_keys=json.loads(partition_keys),
        bucket_keys=json.loads(bucket_keys),
        bucket_count=bucket_count,
        properties=json.loads(properties),
        custom_properties=json.loads(custom_properties),
    )
    path = TablePath(database_name, table_name)
    return Table(path, table_id, schema_id, descriptor, schemas, created_ms, modified_ms)


def _dropped_key(partition: PartitionDrop) -> tuple[int, int, str, int]:
    return partition.partition_id, partition.table_id, partition.name, partition.dropped_ms


def _dropped_partition(partition_id: int, table_id: int, name: str, dropped_ms: int, log_ends: str) -> PartitionDrop:
    return PartitionDrop(partition_id, table_id, name, dropped_ms, tuple(json.loads(log_ends)))


def _insert_schema(connection: sqlite3.Connection, table: Table) -> None:
    schema_json = schema_to_json(table.descriptor.schema).decode()
    connection.execute("INSERT INTO schemas VALUES (?, ?, ?)", (table.table_id, table.schema_id, schema_json))


def _counter(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT value_next FROM counters WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else row[0]


def _set_counter(connection: sqlite3.Connection, name: str, value_next: int) -> None:
    connection.execute("REPLACE INTO counters VALUES (?, ?)", (name, value_next))


def _acl_row(acl: AclBinding) -> tuple[Any, ...]:
    resource = acl.resource
    return int(resource.resource_type), resource.name, *split_principal(acl.principal), acl.host, int(acl.operation)


def _acl(
    resource_type: int, resource_name: str, principal_type: str, principal_name: str, host: str, operation: int
) -> AclBinding:
    resource = AclResource(AclResourceType(resource_type), resource_name)
    return AclBinding(resource, f"{principal_type}:{principal_name}", AclOperation(operation), host)


def _producer(producer_id: str, expires_ms: int, offsets: str, owner: str) -> RegisteredOffsets:
    parsed = ((TableBucket.new_with_partition(*bucket), offset) for *bucket, offset in json.loads(offsets))
    return RegisteredOffsets(producer_id, expires_ms, tuple(parsed), owner)


class LakeEntry(NamedTuple):
    """A snapshot of a lake table, and where the offsets are up to which it has all records."""

    snapshot_id: int
    tiered_offsets_path: str
    # None if readers that want everything cannot use it.
    readable_offsets_path: str | None


class LakeSnapshotTable:
    """The snapshots of lake tables that the tiering service has registered.

    May be used by all tasks of one event loop. Entries of dropped tables go with them."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        # Up to which offsets lakes have buckets by what was registered since a round of the backup began; None until
        # the first one does.
        self._noted: dict[TableBucket, int] | None = None

    def begin_note(self) -> None:
        """Note from now on how far lakes are by what is registered, and forget what was noted before."""
        self._noted = {}

    @property
    def noted(self) -> Mapping[TableBucket, int]:
        """Up to which offsets lakes have buckets, at most, by what was registered since the note was begun."""
        return self._noted or {}

    async def load(self) -> dict[int, list[LakeEntry]]:
        """Return the entries of all tables, the newest last."""

        def load(connection: sqlite3.Connection) -> dict[int, list[LakeEntry]]:
            entries: defaultdict[int, list[LakeEntry]] = defaultdict(list)
            for table_id, _, *entry in connection.execute("SELECT * FROM lake_snapshots ORDER BY table_id, position"):
                entries[table_id].append(LakeEntry(*entry))
            return dict(entries)

        return await self._file.read(load)

    async def replace(
        self, table_id: int, entries: Sequence[LakeEntry], offsets: Mapping[TableBucket, int] | None = None
    ) -> None:
        """Store the entries of a table in place of those it had; those of a table that has gone are not stored.

        ``offsets`` are those of the newest entry.
        """
        if self._noted is not None and offsets:
            # Before it is stored: no copy of the file is to be ahead of the note.
            for bucket, offset in offsets.items():
                self._noted[bucket] = max(offset, self._noted.get(bucket, 0))

        def replace(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM lake_snapshots WHERE table_id = ?", (table_id,))
            if connection.execute("SELECT 1 FROM tables WHERE table_id = ?", (table_id,)).fetchone() is None:
                return
            rows = [(table_id, position, *entry) for position, entry in enumerate(entries)]
            connection.executemany("INSERT INTO lake_snapshots VALUES (?, ?, ?, ?, ?)", rows)

        await self._file.write(replace)
