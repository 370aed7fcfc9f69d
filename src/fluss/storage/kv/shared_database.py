"""The databases that small stores share: a few for the whole server, opened when they are first needed.

A database of its own costs a store half a megabyte, half a dozen descriptors, and milliseconds to open. A store of some
thousand rows is better off as a range of keys in a database with thousands of others. All buckets of a table lie in the
same one, which the number of the table chooses:

    kv.shared/{number of the database}/

A shared database that fails or is damaged is given up as a whole: it is closed when the last of its stores is closed,
removed if it is damaged, and opened again. Every store then has what was on the disk, or nothing, and its changelog has
the rest.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import KeyRange, PartitionKeys, partition_of, partition_range, table_range
from fluss.storage.kv.rocks import KvResources

# No database of a user can have this name.
DIRECTORY_NAME: Final = "kv.shared"
# More of them would each have less to flush and to merge at a time; with fewer, damage would concern more tables.
DATABASES_COUNT: Final = 8
UNFINISHED_SUFFIX: Final = ".unfinished"

logger = logging.getLogger(__name__)


class GivenUpError(FlussError):
    """A shared database is being closed, because it failed; it can be opened again in a moment."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"The key-value stores in {directory} are being opened again; try again in a moment",
            ErrorCode.KV_STORAGE_EXCEPTION,
        )


class SharedDatabase:
    """One of them, open. All methods block and may be called from any thread."""

    def __init__(self, number: int, directory: Path, resources: KvResources) -> None:
        """Open the database in a directory, creating it when absent; KvDamagedError if it cannot be read."""
        self.number = number
        self.directory = directory
        self.database = rocks.open_database(directory, resources, resources.shared_options)
        # Set by the store that finds out. It is of no use any more, and is to be given up.
        self.is_damaged = False
        self._resources = resources
        self._user_count = 0
        self._is_given_up = self._is_closed = False
        self._changed = threading.Condition()
        for name in rocks.DISK.names(directory):
            if name.endswith(UNFINISHED_SUFFIX):
                rocks.DISK.remove(directory / name)
        resources.write_buffers.add(self)

    @property
    def is_given_up(self) -> bool:
        return self._is_given_up

    def use(self) -> None:
        """Keep it open until ``end_use``; GivenUpError if it is about to be closed."""
        with self._changed:
            if self._is_given_up:
                raise GivenUpError(self.directory)
            self._user_count += 1

    def end_use(self) -> None:
        with self._changed:
            self._user_count -= 1
            self._changed.notify_all()

    def __enter__(self) -> rocks.Rdict:
        self.use()
        return self.database

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end_use()
        if kind is Exception and isinstance(error, Exception):
            explained = rocks.explain(error, self.directory)
            self.is_damaged |= isinstance(explained, KvDamagedError)
            raise explained from error

    # As an owner of write buffers

    def buffered_bytes(self) -> int:
        """Return how much memory ``release`` would give back; nothing if the disk has failed."""
        with self as database:
            if self.has_failed:
                return 0
            return rocks.number_of(database, "cur-size-all-mem-tables")

    def release(self) -> None:
        self.flush()

    def flush(self) -> None:
        """Bring what its stores have written to it to the disk."""
        with self as database:
            database.flush(True)

    def size_bytes(self) -> int:
        """Return what its SST files take on the disk."""
        with self as database:
            return rocks.number_of(database, "total-sst-files-size")

    @property
    def has_failed(self) -> bool:
        """Whether RocksDB could not bring something to the disk."""
        return rocks.number_of(self.database, "background-errors") > 0

    # Ranges of keys

    def remove(self, keys: KeyRange, *, durably: bool = False) -> bool:
        """Remove all rows and states in a range; return whether there were any."""
        with self as database:
            is_found = bool(rocks.next_keys(database, keys.first, 1, keys.end))
            if is_found:
                database.delete_range(*keys)
            if durably:
                # Also if there is nothing: an earlier removal may not be on the disk yet.
                database.flush(True)
            return is_found

    def reclaim(self, keys: KeyRange) -> None:
        """Give back the place that removed rows take on the disk, and the time that readers take to step over them."""
        with self as database:
            database.flush(True)
            rocks.compact(database, *keys)

    def partitions(self) -> list[PartitionKeys]:
        """Return which tables and partitions have keys here."""
        found, key = [], b"\x00"
        with self as database:
            while keys := rocks.next_keys(database, key, 1):
                partition = partition_of(keys[0])
                if partition is None:
                    key = keys[0] + b"\x00"
                else:
                    found.append(partition)
                    key = partition_range(partition).end
        return found

    def give_up(self) -> None:
        """Hand it out no more. Stores that have it go on until they are closed."""
        with self._changed:
            self._is_given_up = True

    def close(self) -> None:
        """After ``give_up``: wait until the last store is closed, and close it; removes it if it is damaged."""
        with self._changed:
            assert self._is_given_up, "stores could still get it"
            self._changed.wait_for(lambda: not self._user_count)
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._resources.write_buffers.remove(self)
        try:
            self.database.close()
        except Exception as error:
            # What is not on the disk is in the changelogs.
            logger.warning("%s", rocks.explain(error, self.directory).message)
        if self.is_damaged:
            rocks.remove_database(self.directory)


class SharedDatabases:
    """All of them. Methods block and may be called from any thread."""

    def __init__(self, data_dir: Path, resources: KvResources) -> None:
        self._directory = data_dir / DIRECTORY_NAME
        self._resources = resources
        self._open: dict[int, SharedDatabase] = {}
        # Of one that is opened, so that the others can be used meanwhile.
        self._locks = [threading.Lock() for _ in range(DATABASES_COUNT)]

    def of_table(self, table_id: int) -> SharedDatabase:
        """Return the database of a table, opened if need be.

        GivenUpError while it is being closed. One that is damaged is removed, and begun anew.
        """
        return self._opened(table_id % DATABASES_COUNT)

    def find(self, table_id: int) -> SharedDatabase | None:
        """Return the database of a table, None if there is none yet."""
        number = table_id % DATABASES_COUNT
        if number not in self._open and not rocks.DISK.exists(self._path(number)):
            return None
        return self._opened(number)

    def in_directory(self, directory: Path) -> SharedDatabase | None:
        """Return the database in a directory, None if there is none."""
        numbers = [number for number in range(DATABASES_COUNT) if self._path(number) == directory]
        return self._opened(numbers[0]) if numbers and rocks.DISK.exists(directory) else None

    def open_ones(self) -> list[SharedDatabase]:
        """Return those that are open and not given up."""
        return [shared for shared in list(self._open.values()) if not shared.is_given_up]

    def damaged(self, table_id: int) -> SharedDatabase | None:
        """Return the database of a table if it is open, and known to be damaged."""
        shared = self._open.get(table_id % DATABASES_COUNT)
        return shared if shared is not None and shared.is_damaged else None

    def drop(self, table_id: int, partition_id: int | None) -> tuple[SharedDatabase, KeyRange] | None:
        """Remove what a table has, or a partition of it, whose stores are all closed.

        Returns which keys are gone, for ``SharedDatabase.reclaim``; None if there were none.
        """
        shared = self.find(table_id)
        if shared is None:
            return None
        keys = table_range(table_id) if partition_id is None else partition_range(PartitionKeys(table_id, partition_id))
        return (shared, keys) if shared.remove(keys) else None

    def partitions(self) -> list[PartitionKeys]:
        """Return which tables and partitions have keys in any of them."""
        numbers = [number for number in range(DATABASES_COUNT) if rocks.DISK.exists(self._path(number))]
        return [partition for number in numbers for partition in self._opened(number).partitions()]

    def reopen(self, shared: SharedDatabase) -> None:
        """Give one up, and let it be opened again when all its stores are closed, which this waits for."""
        shared.give_up()
        shared.close()
        with self._locks[shared.number]:
            if self._open.get(shared.number) is shared:
                del self._open[shared.number]

    def close(self) -> None:
        """Bring everything to the disk and close; every store was closed before."""
        for shared in list(self._open.values()):
            self.reopen(shared)

    def _opened(self, number: int) -> SharedDatabase:
        with self._locks[number]:
            shared = self._open.get(number)
            if shared is None:
                shared = self._open[number] = self._new(number)
        if shared.is_given_up:
            raise GivenUpError(shared.directory)
        return shared

    def _new(self, number: int) -> SharedDatabase:
        directory = self._path(number)
        rocks.DISK.make_directory(self._directory)
        try:
            return SharedDatabase(number, directory, self._resources)
        except KvDamagedError as error:
            logger.error("%s; its stores are built again from their changelogs when they are next used", error.message)
        rocks.remove_database(directory)
        return SharedDatabase(number, directory, self._resources)

    def _path(self, number: int) -> Path:
        return self._directory / str(number)
