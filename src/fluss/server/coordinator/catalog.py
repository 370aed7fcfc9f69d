"""The catalog: databases, tables and partitions, read from memory without waiting, changed on disk first.

Changes happen one after the other. New buckets are made ready before their table or partition can be seen, and the
bytes of dropped ones are deleted after it has disappeared. So whatever a client can see works, and a crash in between
leaves at most bytes without a table, which the tablet server removes when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.schema.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.schema.serde import table_to_json
from fluss.schema.table import TablePath
from fluss.server.coordinator.metadata.metadata_store import Database, MetadataStore
from fluss.server.model import BucketHost, Clock, Partition, PartitionDrop, Table

DEFAULT_DATABASE: Final = "fluss"
_SCHEMA_ID_FIRST: Final = 1
# What is known of dropped partitions is kept so long, and of so many.
DROPS_KEPT_MS: Final = 30 * 24 * 60 * 60 * 1000
DROPS_KEPT_MAX: Final = 65_536
_NO_PARTITIONS: Final[Mapping[str, Partition]] = MappingProxyType({})

logger = logging.getLogger(__name__)


class DroppedPartitions:
    """Where the logs of dropped partitions ended, in memory, the oldest drops first. Belongs to one event loop.

    A stream that comes back and finds a partition gone has to know whether it had read everything in it. It is told for
    30 days, as long as the table exists, and of the 65,536 partitions at most that were dropped last. After that, or if
    the server crashed in the instant of the drop, the answer is that it is not known.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, PartitionDrop] = {}
        self._ids_by_table: dict[int, dict[int, None]] = {}

    def put(self, dropped: Iterable[PartitionDrop]) -> None:
        for partition in dropped:
            self._by_id.pop(partition.partition_id, None)
            self._by_id[partition.partition_id] = partition
            self._ids_by_table.setdefault(partition.table_id, {})[partition.partition_id] = None

    def of_table(self, table_id: int, first_id: int) -> list[PartitionDrop]:
        """Return those of a table whose ids are ``first_id`` or greater."""
        return [self._by_id[id_] for id_ in self._ids_by_table.get(table_id, ()) if id_ >= first_id]

    def take_old(self, now_ms: int) -> list[int]:
        """Forget those that are not kept any longer, and return their ids."""
        surplus = len(self._by_id) - DROPS_KEPT_MAX
        old: list[PartitionDrop] = []
        for partition in self._by_id.values():
            if len(old) >= surplus and partition.dropped_ms >= now_ms - DROPS_KEPT_MS:
                break
            old.append(partition)
        self._forget(old)
        return [partition.partition_id for partition in old]

    def forget_table(self, table_id: int) -> None:
        self._forget([self._by_id[id_] for id_ in self._ids_by_table.get(table_id, ())])

    def _forget(self, partitions: Collection[PartitionDrop]) -> None:
        for partition in partitions:
            del self._by_id[partition.partition_id]
            ids = self._ids_by_table[partition.table_id]
            del ids[partition.partition_id]
            if not ids:
                del self._ids_by_table[partition.table_id]


class CatalogImage:
    """The catalog in memory. The values it hands out do not change, and neither do its mappings of partitions."""

    def __init__(self) -> None:
        self._databases: dict[str, Database] = {}
        self._tables_by_name: dict[str, dict[str, Table]] = {}
        self._tables: dict[int, Table] = {}
        self._table_jsons: dict[int, bytes] = {}
        self._partitions: dict[int, Partition] = {}
        self._bucket_count = 0
        # A new mapping for every change, so that those handed out stay as they were.
        self._partitions_by_name: dict[int, Mapping[str, Partition]] = {}
        self._dropped = DroppedPartitions()

    # Reading

    @property
    def bucket_count(self) -> int:
        """The buckets of all tables and partitions."""
        return self._bucket_count

    def database_names(self) -> list[str]:
        return sorted(self._databases)

    def database(self, name: str) -> Database | None:
        return self._databases.get(name)

    def existing_database(self, name: str) -> Database:
        """Return a database, or raise code 4."""
        database = self._databases.get(name)
        if database is None:
            raise FlussError(f"Database {name} does not exist.", ErrorCode.DATABASE_NOT_EXIST)
        return database

    def table_names(self, database_name: str) -> list[str]:
        """Return the names of all tables of a database; raises code 4."""
        self.existing_database(database_name)
        return sorted(self._tables_by_name[database_name])

    def table_count(self, database_name: str) -> int:
        return len(self._tables_by_name[database_name])

    def tables(self) -> Collection[Table]:
        """Return all tables there are now."""
        return tuple(self._tables.values())

    def tables_of(self, database_name: str) -> Collection[Table]:
        return tuple(self._tables_by_name[database_name].values())

    def table_by_id(self, table_id: int) -> Table | None:
        return self._tables.get(table_id)

    def table_by_path(self, path: TablePath) -> Table | None:
        tables = self._tables_by_name.get(path.database_name)
        return None if tables is None else tables.get(path.table_name)

    def existing_table(self, path: TablePath) -> Table:
        """Return a table, or raise code 7, also when the database is missing."""
        table = self.table_by_path(path)
        if table is None:
            raise FlussError(f"Table '{path}' does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return table

    def existing_table_by_id(self, table_id: int) -> Table:
        """Return a table, or raise code 7."""
        table = self._tables.get(table_id)
        if table is None:
            raise FlussError(f"The table of id {table_id} does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return table

    def table_json(self, table: Table) -> bytes:
        """Return the descriptor of a table as JSON; it is written once for each version of a table."""
        if self._tables.get(table.table_id) is not table:
            return table_to_json(table.descriptor)
        json = self._table_jsons.get(table.table_id)
        if json is None:
            json = self._table_jsons[table.table_id] = table_to_json(table.descriptor)
        return json

    def partition_by_id(self, partition_id: int) -> Partition | None:
        return self._partitions.get(partition_id)

    def partitions_of(self, table_id: int) -> Mapping[str, Partition]:
        """Return the partitions of a table by name."""
        return self._partitions_by_name.get(table_id, _NO_PARTITIONS)

    # Changing

    def _put_database(self, database: Database) -> None:
        self._databases[database.name] = database
        self._tables_by_name.setdefault(database.name, {})

    def _remove_database(self, name: str) -> None:
        for table in self.tables_of(name):
            self._remove_table(table)
        del self._databases[name]
        del self._tables_by_name[name]

    def _put_table(self, table: Table) -> None:
        if table.table_id not in self._tables and not table.is_partitioned:
            self._bucket_count += table.bucket_count
        self._tables[table.table_id] = table
        self._tables_by_name[table.path.database_name][table.path.table_name] = table
        self._table_jsons.pop(table.table_id, None)

    def _remove_table(self, table: Table) -> None:
        partitions = self._partitions_by_name.pop(table.table_id, _NO_PARTITIONS)
        for partition in partitions.values():
            del self._partitions[partition.partition_id]
        self._bucket_count -= table.bucket_count * (len(partitions) if table.is_partitioned else 1)
        self._dropped.forget_table(table.table_id)
        del self._tables[table.table_id]
        del self._tables_by_name[table.path.database_name][table.path.table_name]
        self._table_jsons.pop(table.table_id, None)

    def _put_partitions(self, table_id: int, partitions: Iterable[Partition]) -> None:
        by_name = dict(self.partitions_of(table_id))
        for partition in partitions:
            by_name[partition.name] = partition
            self._partitions[partition.partition_id] = partition
        self._bucket_count += self._tables[table_id].bucket_count * (len(by_name) - len(self.partitions_of(table_id)))
        self._partitions_by_name[table_id] = MappingProxyType(by_name)

    def _remove_partitions(self, table_id: int, partitions: Iterable[Partition]) -> None:
        by_name = dict(self.partitions_of(table_id))
        for partition in partitions:
            del by_name[partition.name]
            del self._partitions[partition.partition_id]
        self._bucket_count -= self._tables[table_id].bucket_count * (len(self.partitions_of(table_id)) - len(by_name))
        self._partitions_by_name[table_id] = MappingProxyType(by_name)


class Catalog(CatalogImage):
    """The catalog of a cluster. It belongs to one event loop; a change that was begun must be let run to its end."""

    def __init__(self, store: MetadataStore, clock: Clock, bucket_count_max: int) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._bucket_count_max = bucket_count_max
        self._host: BucketHost | None = None
        self._lock = asyncio.Lock()
        self._table_id_next = 0
        self._partition_id_next = 0

    @classmethod
    async def open(cls, store: MetadataStore, *, clock: Clock, bucket_count_max: int = INT32_MAX) -> Catalog:
        """Load the catalog; one without any database gets the default one.

        If there are more than ``bucket_count_max`` buckets, they stay, and there will be no more of them.
        """
        catalog = cls(store, clock, bucket_count_max)
        await catalog._load()
        if not catalog.database_names():
            await catalog.create_database(DEFAULT_DATABASE, DatabaseDescriptor(), ignore_if_exists=True)
        return catalog

    def attach(self, host: BucketHost) -> None:
        """Name the tablet server that keeps the buckets; then tables and partitions can be created and dropped."""
        self._host = host

    @property
    def _buckets(self) -> BucketHost:
        assert self._host is not None, "the catalog was attached to a bucket host"
        return self._host

    async def _load(self) -> None:
        stored = await self._store.load_catalog()
        for database in stored.databases:
            self._put_database(database)
        for table in stored.tables:
            self._put_table(table)
        partitions: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in stored.partitions:
            partitions[partition.table_id].append(partition)
        for table_id, of_table in partitions.items():
            self._put_partitions(table_id, of_table)
        self._dropped.put(stored.dropped_partitions)
        self._table_id_next = stored.table_id_next
        self._partition_id_next = stored.partition_id_next

    # Databases

    async def create_database(self, name: str, descriptor: DatabaseDescriptor, *, ignore_if_exists: bool) -> None:
        async with self._lock:
            if self.database(name) is not None:
                if ignore_if_exists:
                    return
                raise FlussError(f"Database {name} already exists.", ErrorCode.DATABASE_ALREADY_EXIST)
            now_ms = self._clock()
            database = Database(name, descriptor, now_ms, now_ms)
            await self._store.create_database(database)
            self._put_database(database)

    async def alter_database(
        self, name: str, change: Callable[[DatabaseDescriptor], DatabaseDescriptor], *, ignore_if_not_exists: bool
    ) -> None:
        """Give a database another descriptor; an equal one changes nothing, not even the time of modification."""
        async with self._lock:
            if ignore_if_not_exists and self.database(name) is None:
                return
            database = self.existing_database(name)
            descriptor = change(database.descriptor)
            if descriptor == database.descriptor:
                return
            database = replace(database, descriptor=descriptor, modified_ms=self._clock())
            await self._store.update_database(database)
            self._put_database(database)

    async def drop_database(self, name: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        async with self._lock:
            if name == DEFAULT_DATABASE:
                raise FlussError(
                    f"Database {name} is the default database and cannot be dropped; drop its tables one by one",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
            if ignore_if_not_exists and self.database(name) is None:
                return
            self.existing_database(name)
            tables = self.tables_of(name)
            if tables and not cascade:
                raise FlussError(
                    f"Database {name} is not empty. Drop its tables first, or drop it with cascade",
                    ErrorCode.DATABASE_NOT_EMPTY,
                )
            partitions = {table.table_id: tuple(self.partitions_of(table.table_id).values()) for table in tables}
            await self._store.drop_database(name)
            self._remove_database(name)
            for table in tables:
                await self._drop_buckets(table, partitions[table.table_id])

    # Tables

    async def create_table(
        self, path: TablePath, descriptor: TableDescriptor, *, ignore_if_exists: bool, partitions_at_once: int = 0
    ) -> Table | None:
        """Create a table from a complete, validated descriptor. Returns None if it existed and that was allowed.

        ``partitions_at_once`` is how many partitions it is going to get right away. Raises code 49 if there is no room
        for the buckets of all of them.
        """
        async with self._lock:
            if ignore_if_exists and self.table_by_path(path) is not None:
                return None
            self.existing_database(path.database_name)
            if self.table_by_path(path) is not None:
                raise FlussError(f"Table {path} already exists.", ErrorCode.TABLE_ALREADY_EXIST)
            now_ms = self._clock()
            schemas = {_SCHEMA_ID_FIRST: descriptor.schema}
            table = Table(path, self._table_id_next, _SCHEMA_ID_FIRST, descriptor, schemas, now_ms, now_ms)
            self._check_room(table, partitions_at_once if table.is_partitioned else 1)
            # The id is spent even if something fails now: bytes under it may exist.
            self._table_id_next += 1
            partitions = () if table.is_partitioned else (None,)
            await self._with_open_buckets(table, partitions, lambda: self._store.create_table(table))
            self._put_table(table)
            return table

    async def alter_table(
        self, path: TablePath, change: Callable[[Table], Table], *, ignore_if_not_exists: bool
    ) -> Table | None:
        """Apply a change and return the changed table; None if there was nothing to do."""
        async with self._lock:
            if ignore_if_not_exists and self.table_by_path(path) is None:
                return None
            before = self.existing_table(path)
            table = change(before)
            if table is before:
                return None
            if table.schema_id != before.schema_id:
                await self._store.add_schema(table)
            else:
                await self._store.update_table_properties(table)
            self._put_table(table)
            self._buckets.table_altered(table)
            return table

    async def drop_table(self, path: TablePath, *, ignore_if_not_exists: bool) -> None:
        async with self._lock:
            table = self.table_by_path(path)
            if table is None:
                if ignore_if_not_exists:
                    return
                raise FlussError(f"Table {path} does not exist.", ErrorCode.TABLE_NOT_EXIST)
            partitions = tuple(self.partitions_of(table.table_id).values())
            await self._store.drop_table(table.table_id)
            self._remove_table(table)
            await self._drop_buckets(table, partitions)

    # Partitions

    async def create_partitions(self, table_id: int, names: Iterable[str], *, count_max: int) -> list[Partition]:
        """Create the partitions of a table that do not exist yet, and return them. None is created if one fails.

        Raises code 7 if the table has gone, 45 if it would have more than ``count_max`` partitions, and 49 if the
        server would have more buckets than it may have.
        """
        async with self._lock:
            table = self.existing_table_by_id(table_id)
            existing = self.partitions_of(table_id)
            names = [name for name in dict.fromkeys(names) if name not in existing]
            if not names:
                return []
            if len(existing) + len(names) > count_max:
                raise FlussError(
                    f"Table {table.path} has {len(existing)} partitions and cannot have {len(names)} more: the maximum "
                    f"is {count_max}; drop old ones or raise 'max.partition.num' of the server",
                    ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
                )
            self._check_room(table, len(names))
            first_id = self._partition_id_next
            partitions = [Partition(first_id + index, table_id, name) for index, name in enumerate(names)]
            self._partition_id_next += len(partitions)
            await self._with_open_buckets(table, partitions, lambda: self._store.create_partitions(partitions))
            self._put_partitions(table_id, partitions)
            return partitions

    async def drop_partitions(
        self, table_id: int, names: Collection[str] | Callable[[Table], Collection[str]]
    ) -> list[Partition]:
        """Drop the partitions of a table that exist, and return them.

        ``names`` may be a function of the table, which is asked when no other change is under way.
        """
        async with self._lock:
            table = self.table_by_id(table_id)
            if table is None:
                return []
            existing = self.partitions_of(table_id)
            partitions = [existing[name] for name in (names(table) if callable(names) else names) if name in existing]
            if not partitions:
                return []
            for partition in partitions:
                await self._buckets.know_log_ends(table, partition)
            now_ms = self._clock()
            dropped = [PartitionDrop(each.partition_id, table_id, each.name, now_ms) for each in partitions]
            # Without their ends: rows may be written up to the moment in which the partitions are gone.
            await self._store.drop_partitions(dropped, forgotten_ids=self._dropped.take_old(now_ms))
            self._remove_partitions(table_id, partitions)
            self._dropped.put(dropped)
            ends = [await self._drop_group(table, partition) for partition in partitions]
            dropped = [replace(each, log_ends=log_ends) for each, log_ends in zip(dropped, ends, strict=True)]
            self._dropped.put(dropped)
            await self._store.set_log_ends(dropped)
            return partitions

    def dropped_partitions_of(self, table_id: int, first_id: int) -> list[PartitionDrop]:
        """Return the partitions of a table that were dropped not too long ago, from an id on."""
        return self._dropped.of_table(table_id, first_id)

    # Buckets

    @property
    def bucket_room(self) -> int:
        """How many buckets more there may be."""
        return max(0, self._bucket_count_max - self._bucket_count)

    def _check_room(self, table: Table, group_count: int) -> None:
        """Refuse the buckets of so many partitions, or of a table without partitions, if there is no room for them."""
        wanted = table.bucket_count * group_count
        if wanted <= self.bucket_room:
            return
        what = f"{group_count} partitions of {table.path}" if table.is_partitioned else f"Table {table.path}"
        raise FlussError(
            f"{what} would need {wanted} buckets, and the server has {self._bucket_count} of at most "
            f"{self._bucket_count_max}; choose fewer buckets or partitions, drop what is not needed, or raise "
            "'server.max-buckets'",
            ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
        )

    async def _with_open_buckets(
        self, table: Table, partitions: Iterable[Partition | None], store: Callable[[], Awaitable[None]]
    ) -> None:
        """Make buckets ready, then store what they belong to; if either fails, nothing is left of them."""
        opened: list[Partition | None] = []
        try:
            for partition in partitions:
                opened.append(partition)
                await self._buckets.open_buckets(table, partition)
            await store()
        except BaseException:
            await self._drop_opened(table, opened)
            raise

    async def _drop_opened(self, table: Table, opened: Iterable[Partition | None]) -> None:
        for partition in opened:
            await self._drop_group(table, partition)

    async def _drop_group(self, table: Table, partition: Partition | None) -> tuple[int, ...]:
        """Let go of the buckets of a partition, or of a table without partitions; return where their logs ended."""
        try:
            return await self._buckets.drop_buckets(table, partition)
        except Exception:
            logger.exception("the buckets of %s could not be dropped again", table.path)
            return ()

    async def _drop_buckets(self, table: Table, partitions: Collection[Partition]) -> None:
        """Let go of the buckets of what was dropped. Failures are logged: the next start removes the bytes."""
        await self._drop_opened(table, partitions if table.is_partitioned else (None,))
