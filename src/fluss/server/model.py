"""What the two roles of a server know of each other: tables, partitions, and the interfaces between them.

The coordinator owns the catalog and implements ``CatalogView`` and ``IdSource``; the tablet server owns the bytes and
implements ``BucketHost``. Neither imports the other, so that they could live in two processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_from_json
from fluss.schema.table import TableBucket, TablePath

# Epoch milliseconds. A parameter of everything that stamps, expires or waits, so that tests own the time.
Clock: TypeAlias = Callable[[], int]


class TableSchemas(Mapping[int, Schema]):
    """All schemas that a table ever had, by id. Those that were stored are read when they are first wanted.

    A table that had a column added a thousand times has a million columns in them, and hardly ever is one wanted but
    the newest. Threads may share it.
    """

    __slots__ = ("_schemas", "_table_name")

    def __init__(self, schemas: Mapping[int, Schema] | Mapping[int, str], table_name: str) -> None:
        """``schemas`` are values or their JSON, ``table_name`` is for errors."""
        self._table_name = table_name
        self._schemas: dict[int, Schema | str] = {}
        self._schemas.update(schemas._schemas if isinstance(schemas, TableSchemas) else schemas)

    def __getitem__(self, schema_id: int) -> Schema:
        schema = self._schemas[schema_id]
        if isinstance(schema, str):
            try:
                schema = schema_from_json(schema)
            except FlussError as error:
                raise FlussError(
                    f"the metadata is damaged: schema {schema_id} of the table {self._table_name} cannot be read: "
                    f"{error.message}. Restore metadata.sqlite from a backup",
                    ErrorCode.STORAGE_EXCEPTION,
                ) from error
            self._schemas[schema_id] = schema
        return schema

    def __iter__(self) -> Iterator[int]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._schemas

    def having(self, schema_id: int, schema: Schema) -> TableSchemas:
        """Return these schemas and another one."""
        schemas = TableSchemas(self, self._table_name)
        schemas._schemas[schema_id] = schema
        return schemas


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it. A change makes a new value; a value never changes."""

    path: TablePath
    table_id: int
    schema_id: int
    # With the newest schema, and with every default that was written at creation.
    descriptor: TableDescriptor
    # All schemas the table ever had, by id.
    schemas: Mapping[int, Schema]
    created_ms: int
    modified_ms: int

    @property
    def bucket_count(self) -> int:
        """The buckets of the table, or of each of its partitions."""
        count = self.descriptor.bucket_count
        assert count is not None, "the catalog writes the number of buckets into every descriptor"
        return count

    @property
    def is_partitioned(self) -> bool:
        return self.descriptor.is_partitioned()

    @property
    def has_primary_key(self) -> bool:
        return self.descriptor.has_primary_key()


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table. Ids are unique in the cluster; the name is unique in the table."""

    partition_id: int
    table_id: int
    name: str


@dataclass(frozen=True, slots=True)
class PartitionDrop:
    """A partition that is gone. ``log_ends`` are the next offsets its buckets would have had, by number.

    An end is -1 where it is not known; all of them are unknown in an empty tuple.
    """

    partition_id: int
    table_id: int
    name: str
    dropped_ms: int
    log_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BucketHealth:
    """How many buckets a tablet server should lead, and how many of them work."""

    bucket_count: int
    active_count: int
    # Whether another server has taken over, and what an operator should know besides.
    is_fenced: bool = False
    problem: str | None = None


class CatalogView(Protocol):
    """What a tablet server may ask the coordinator. Answers come from memory."""

    def tables(self) -> Collection[Table]: ...

    def table_by_id(self, table_id: int) -> Table | None: ...

    def table_by_path(self, path: TablePath) -> Table | None: ...

    def partition_by_id(self, partition_id: int) -> Partition | None: ...

    def partitions_of(self, table_id: int) -> Mapping[str, Partition]:
        """Return the partitions by name."""
        ...


class IdSource(Protocol):
    """What a tablet server asks the coordinator for when it numbers rows."""

    async def reserve(self, table_id: int, column_id: int, count: int) -> int:
        """Reserve consecutive ids for an auto-increment column and return the first; the first ever is 1.

        They are reserved for good when this returns, whether they are used or not.
        """
        ...


class TieredOffsets(Protocol):
    """What a tablet server asks the coordinator before records of a lake table expire."""

    async def tiered_offset(self, table: Table, bucket: TableBucket) -> int:
        """Return the offset up to which the lake has a bucket, 0 if it has nothing. Raises FlussError."""
        ...


class BucketHost(Protocol):
    """What the coordinator asks of a tablet server."""

    async def open_buckets(self, table: Table, partition: Partition | None) -> None:
        """Make the buckets of a table, or of one partition, ready for requests. Repeating it changes nothing."""
        ...

    async def know_log_ends(self, table: Table, partition: Partition) -> None:
        """See to it that it is known where the logs of a partition end, which is about to be dropped."""
        ...

    async def drop_buckets(self, table: Table, partition: Partition | None) -> tuple[int, ...]:
        """Forget the buckets at once and delete their bytes in the background. Repeating it changes nothing.

        Returns where their logs ended, by number, with -1 where that is not known; nothing for buckets not there.
        """
        ...

    def table_altered(self, table: Table) -> None:
        """Take over new properties or a new schema."""
        ...

    def check_change(self) -> None:
        """Raise why nothing may be changed any more (code 24): another server has taken over."""
        ...

    def health(self) -> BucketHealth: ...


class LogArchive(Protocol):
    """Older records of a log than it has itself. Methods block, and may be called from any thread but the loop's."""

    def offset_start(self) -> int:
        """Return the first offset from which on there is no gap until the log itself begins."""
        ...

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return bytes from the batch with an offset on, at least one batch; the last one may be cut off."""
        ...


class RemoteLogEntry(NamedTuple):
    """What is registered of the remote log of a bucket."""

    bucket: TableBucket
    # The directory of remote storage, and that of the log below it.
    root: str
    directory: str
    # The current manifest, below the root; None as long as nothing was committed.
    manifest_path: str | None = None
    # Which offsets it has; both are equal if all that was copied has expired.
    start_offset: int = 0
    end_offset: int = 0
    # The largest commit time in its first segment; -1 if there is none.
    first_time_ms: int = -1
    size_bytes: int = 0
    segment_count: int = 0
    # Whether there may be objects that the manifest does not name.
    is_dirty: bool = False


class RemoteLogRegistry(Protocol):
    """Where the coordinator keeps which manifest counts. Each method is one durable step."""

    async def load(self) -> list[RemoteLogEntry]:
        """Return all entries."""
        ...

    async def find(self, bucket: TableBucket) -> RemoteLogEntry | None: ...

    async def begin(self, entries: Collection[RemoteLogEntry]) -> None:
        """Note that objects are about to be written or removed; those of dropped tables are left out."""
        ...

    async def commit(self, entry: RemoteLogEntry) -> bool:
        """Make a manifest the current one. False if the table or partition is gone: then nothing has changed."""
        ...

    async def finish(self, buckets: Collection[TableBucket]) -> None:
        """Note that there are no objects any more that the manifests do not name."""
        ...

    async def dropped(self) -> list[tuple[str, str]]:
        """Return root and directory of the remote logs of tables and partitions that were dropped."""
        ...

    async def forget_dropped(self, removed: Collection[tuple[str, str]]) -> None:
        """Note that such directories are gone."""
        ...


class MetadataCopies(Protocol):
    """What a backup needs of the coordinator's metadata."""

    def begin_round(self) -> None:
        """Note from now on how far lakes are by snapshots that are registered, and forget what was noted before."""
        ...

    async def change_count(self) -> int:
        """Return a number that is another one when something was changed since the file was opened."""
        ...

    def copy_to(self, target: Path) -> None:
        """Copy the content of one moment to a file of its own. Blocking; any thread may call. Raises FlussError."""
        ...

    def snapshot_offsets(self, copy: Path) -> Mapping[TableBucket, int]:
        """Return up to which offsets the snapshots of rows by key have come that a copy knows of. Blocking."""
        ...

    def lake_offsets(self) -> Mapping[TableBucket, int]:
        """Return up to which offsets lakes have buckets by snapshots that were registered since the round began.

        No copy that was made since then names one that has more.
        """
        ...


class KvSnapshotEntry(NamedTuple):
    """What is registered of one snapshot of a bucket's rows in remote storage."""

    bucket: TableBucket
    snapshot_id: int
    # The directory of remote storage, and that of the bucket's snapshots below it.
    root: str
    directory: str
    # The changes before it are in the rows, and none from it on.
    log_offset: int
    size_bytes: int
    # No value has more bytes.
    value_bytes_max: int
    created_ms: int
    # Since when it is not needed any more; None while it is.
    retired_ms: int | None = None


class KvSnapshotBucket(NamedTuple):
    """What is registered of all snapshots of a bucket."""

    bucket: TableBucket
    root: str
    directory: str
    next_id: int = 0
    # Whether there may be objects that no snapshot names.
    is_dirty: bool = False


class KvSnapshotTotals(NamedTuple):
    """How many snapshots and leases are registered."""

    snapshot_count: int = 0
    size_bytes: int = 0
    lease_count: int = 0
    leased_count: int = 0


class KvSnapshotRegistry(Protocol):
    """Where the coordinator keeps which snapshots there are. Each method is one durable step."""

    async def load(self) -> tuple[list[KvSnapshotBucket], list[KvSnapshotEntry]]:
        """Return the buckets that may have orphans, and the newest snapshot of each bucket."""
        ...

    async def totals(self, now_ms: int) -> KvSnapshotTotals: ...

    async def find(self, bucket: TableBucket) -> KvSnapshotBucket | None: ...

    async def of_bucket(self, bucket: TableBucket) -> list[KvSnapshotEntry]:
        """Return the snapshots of a bucket, the newest first, also those that are not needed any more."""
        ...

    async def superfluous(self, retained_count: int) -> list[TableBucket]:
        """Return the buckets with more snapshots than are retained, or with some that are not needed any more."""
        ...

    async def begin(self, buckets: Collection[KvSnapshotBucket]) -> None:
        """Note that objects are about to be written or removed; those of dropped tables are left out."""
        ...

    async def add(self, entry: KvSnapshotEntry) -> bool:
        """Make a snapshot the newest one. False if the table or partition is gone: then nothing has changed."""
        ...

    async def retire(self, bucket: TableBucket, retained_count: int, now_ms: int) -> None:
        """Note that all but the newest snapshots, and those that are leased, are not needed any more."""
        ...

    async def remove(self, bucket: TableBucket, snapshot_ids: Collection[int]) -> None:
        """Forget snapshots; their objects become orphans."""
        ...

    async def finish(self, buckets: Collection[TableBucket]) -> None:
        """Note that there are no objects any more that no snapshot names."""
        ...

    async def expire_leases(self, now_ms: int) -> int:
        """Forget leases whose time is over; return how many they were."""
        ...


def format_bucket(bucket: TableBucket) -> str:
    """Return a bucket in the form that clients look for in messages."""
    partition = "" if bucket.partition_id is None else f"partitionId={bucket.partition_id}, "
    return f"TableBucket{{tableId={bucket.table_id}, {partition}bucket={bucket.bucket_id}}}"
