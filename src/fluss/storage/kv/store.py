"""One key-value store: the current rows of one bucket, as a log-structured merge tree.

    write -> memtable -> (full) immutable memtable -> flush, step by step -> RocksDB (SST files on the disk)

A few rows go to RocksDB directly if the memtable is empty. A lookup asks the memtables first, then the key filter, then
RocksDB. A scan has everything brought into RocksDB before.

There is no write-ahead log, because the changelog is one. After a crash the store is as it was when something last
reached the disk, and its state says from which offset on the changelog has to be applied again. The state lies under
the empty key, which no row can have, beside the rows: they reach the disk together.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, KvDamagedError
from fluss.record.mutations import FoundGroup, FoundRows, Mutations, StoredValues
from fluss.record.value_batch import SCHEMA_ID_BYTES
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv import rocks
from fluss.storage.kv.flush import STATE_KEY, MemtableFlush, remove_unfinished, write_batch
from fluss.storage.kv.key_filter import KEY_FIRST, DatabaseFilter, KeyFilter
from fluss.storage.kv.memtable import MEMTABLE_BYTES_MAX, Memtable, find_in_memtables
from fluss.storage.kv.point_reads import checked_bytes, get_from_database, get_newest, get_one, in_key_order
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.snapshot import KvSnapshot, RowReader
from fluss.storage.kv.state import IdBlock, KvState

__all__ = ["IdBlock", "KvDamagedError", "KvResources", "KvSnapshot", "KvState", "KvStore", "remove_store"]

_DIRECT_BYTES_MAX: Final = 256 * 1024
_CACHED_VALUE_BYTES_MAX: Final = 1024 * 1024


class KvStore:
    """The rows of one bucket by key, and how far they have come.

    All methods block and may be called from any thread. Writes happen one after the other; lookups wait for nothing,
    scans for what has to be flushed.
    """

    def __init__(
        self,
        directory: Path,
        resources: KvResources,
        database: rocks.Rdict,
        state: KvState,
        *,
        is_empty: bool = False,
        key_filter: KeyFilter | None = None,
    ) -> None:
        """Take over an open database; every other caller uses ``open``."""
        self.directory = directory
        self._resources = resources
        self._database = rocks.SharedDatabase(database, directory)
        self._state = state
        self._value_bytes_max = state.value_bytes_max
        # Newest first: the one that rows are added to, and behind it an immutable one that is being flushed, or was
        # flushed and stays while the memory is not needed: reading rows from the database takes ten times as long.
        self._memtables: tuple[Memtable, ...] = (Memtable(),)
        self._flush: MemtableFlush | None = None
        # What the database has, what of it is on the disk for sure, and whether it has no rows at all.
        self._database_state = state
        self._flushed_offset = state.applied_offset
        self._is_database_empty = is_empty
        self._filter = DatabaseFilter(resources.settings, resources.filter_memory, resources.sleep, key_filter)
        # The flush lock protects the flush and the filter, the write lock the memtable that rows are added to. A thread
        # that takes both takes the flush lock first.
        self._flush_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._snapshots: weakref.WeakSet[KvSnapshot] = weakref.WeakSet()
        resources.write_buffers.add(self)

    @classmethod
    def open(cls, directory: Path, resources: KvResources) -> KvStore:
        """Open the store in a directory, creating it when absent.

        KvDamagedError: it has to be built again. Any other FlussError: the machine has trouble, and it may be there
        later as it was. Opening holds the GIL, for some milliseconds whatever its size.
        """
        database = rocks.open_database(directory, resources)
        try:
            with rocks.SharedDatabase(database, directory):
                remove_unfinished(directory)
                stored = database.get(STATE_KEY)
                state = KvState() if stored is None else KvState.decode(stored, str(directory))
                is_empty = stored is None and not RowReader(rocks.scan(database, KEY_FIRST), directory).has_more
            key_filter = _loaded_filter(directory, resources, stored)
        except BaseException:
            with suppress(Exception):
                database.close()
            raise
        return cls(directory, resources, database, state, is_empty=is_empty, key_filter=key_filter)

    @property
    def state(self) -> KvState:
        """As of the last write that succeeded."""
        return self._state

    @property
    def flushed_offset(self) -> int:
        """The applied offset that a crash at this moment would leave, or an earlier one."""
        with self._database:
            return self._flushed_offset

    @property
    def has_failed(self) -> bool:
        """Whether RocksDB could not bring something to the disk. Reads go on, and writes while there is memory."""
        with self._database as database:
            return rocks.number_of(database, "background-errors") > 0

    @property
    def snapshot_count(self) -> int:
        """Snapshots that are still referenced."""
        return len(self._snapshots)

    # Looking keys up

    def find(self, keys: HashedKeys, *, pending: Sequence[Memtable] = (), bytes_max: int = sys.maxsize) -> FoundRows:
        """Return the newest rows of keys, as many as there are. More than ``bytes_max`` is a FlussError (13).

        ``pending`` has writes that are not in the store yet, newest first, as they were before this call.
        """
        groups, left = find_in_memtables(pending, keys)
        if not len(left):
            return FoundRows(groups)
        with self._database as database:
            own, left = find_in_memtables(self._memtables, keys, left)
            groups += own
            byte_count = checked_bytes(groups, len(keys), bytes_max)
            left = self._without_new_keys(keys, left)
            if len(left):
                left = in_key_order(keys, left)
                values = get_from_database(
                    database,
                    keys.keys.some(left).to_list(),
                    bytes_max=bytes_max - byte_count,
                    value_bytes_max=self._value_bytes_max,
                )
                groups += self._group_of(left, values)
                self._filter.note_missed(values.count(None))
        return FoundRows(groups)

    def find_cached(
        self, keys: HashedKeys, *, pending: Sequence[Memtable] = (), bytes_max: int = sys.maxsize
    ) -> FoundRows | None:
        """Return what ``find`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large.
        """
        groups, left = find_in_memtables(pending, keys)
        if groups:
            bytes_max -= sum(stored.byte_count for _, stored in groups)
        if bytes_max < 0:
            return None
        if len(left):
            values = self.get_cached(keys.keys.some(left).to_list(), bytes_max=bytes_max)
            if values is None:
                return None
            groups += self._group_of(left, values)
        return FoundRows(groups)

    def get_many(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
        """Return the value of each key, None where there is none. More than ``bytes_max`` is a FlussError (13)."""
        keys = list(keys)
        with self._database as database:
            values = get_newest(
                self._memtables, database, keys, bytes_max=bytes_max, value_bytes_max=self._value_bytes_max
            )
        if STATE_KEY in keys:
            values = [value if key else None for key, value in zip(keys, values, strict=True)]
        return values

    def get_cached(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
        """Return what ``get_many`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large: copying it would
        take too long.
        """
        if STATE_KEY in keys or self._value_bytes_max > _CACHED_VALUE_BYTES_MAX:
            return None
        values: list[bytes | None] = []
        bytes_left = bytes_max
        with self._database as database:
            memtables = [memtable for memtable in self._memtables if len(memtable)]
            for key in keys:
                value = get_one(memtables, key)
                if value is None and not self._is_database_empty:
                    # With ``fetch`` it returns a pair, unlike what its stub says.
                    may_exist, value = database.key_may_exist(key, fetch=True)  # type: ignore[misc]
                    # Where a piece of an index is not in the cache the value comes out empty, as if it had been found.
                    if may_exist and not value:
                        return None
                bytes_left -= len(value or b"")
                if bytes_left < 0:
                    return None
                values.append(value or None)
        return values

    def _without_new_keys(self, keys: HashedKeys, numbers: Int64Array) -> Int64Array:
        """Leave out the keys that the database cannot have."""
        if self._is_database_empty:
            return numbers[:0]
        numbers = numbers[keys.keys.lengths[numbers] > 0]
        may_have = self._filter.may_have(keys.keys.some(numbers)) if len(numbers) else None
        return numbers if may_have is None else numbers[may_have]

    def _group_of(self, numbers: Int64Array, values: list[bytes | None]) -> list[FoundGroup]:
        """Return the values of those keys that have one; an empty list if none has."""
        is_found = np.fromiter((value is not None for value in values), np.bool_, len(values))
        if not is_found.any():
            return []
        try:
            stored = StoredValues.from_list([value for value in values if value is not None])
        except CorruptRecordError as error:
            raise KvDamagedError(f"The key-value store {self.directory} is damaged: {error.message}") from error
        return [(numbers[is_found], stored)]

    # Writing

    def write(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Have new rows, the oldest first, and with them a new state. It is in memory, and a lookup finds it.

        When it fails nothing was added, and the state is the old one.
        """
        if self.write_if_quick(changes, state):
            return
        self._resources.write_buffers.make_room()
        row_count = sum(map(len, changes))
        with self._database as database:
            self._make_way(database, row_count)
            self._build_filter(database, row_count)
            with self._write_lock:
                self._add(changes, state)

    def write_if_quick(self, changes: Sequence[Mutations], state: KvState) -> bool:
        """Write a few rows like ``write`` if that takes microseconds; if not return False, and nothing was written.

        It would take longer while another thread writes, flushes or copies the store, and while the disk is behind.
        """
        _check_keys(changes)
        if not self._are_few(changes) or not self._resources.write_buffers.has_room() or self._is_memtable_full:
            return False
        with self._database as database:
            if not self._flush_lock.acquire(blocking=False):
                return False
            try:
                if self._flush is not None or not self._write_lock.acquire(blocking=False):
                    return False
                try:
                    return self._write_directly(database, changes, state)
                finally:
                    self._write_lock.release()
            finally:
                self._flush_lock.release()

    def _write_directly(self, database: rocks.Rdict, changes: Sequence[Mutations], state: KvState) -> bool:
        """Write a few rows to RocksDB, or to the memtable if that has rows, which would hide them."""
        if any(map(len, self._memtables)):
            self._add(changes, state)
            return True
        state = self._with_longest(state, changes)
        for mutations in changes:
            self._filter.add(mutations.keys.keys)
        keys = [key for mutations in changes for key in mutations.keys.keys.to_list()]
        values = [value for mutations in changes for value in mutations.to_values()]
        self._is_database_empty = False
        if not write_batch(database, keys, values, state):
            return False
        self._state = self._database_state = state
        return True

    def _add(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Add to the memtable. The caller has the write lock."""
        state = self._with_longest(state, changes)
        memtable, byte_count = self._memtables[0], self._memtables[0].byte_count
        for mutations in changes:
            memtable.add(mutations)
        self._resources.write_buffers.note(memtable.byte_count - byte_count)
        self._state = state

    def _with_longest(self, state: KvState, changes: Sequence[Mutations]) -> KvState:
        """Note how long values are before a lookup can find them."""
        for mutations in changes:
            longest = int(mutations.rows.lengths.max(initial=0))
            if longest:
                self._value_bytes_max = max(self._value_bytes_max, SCHEMA_ID_BYTES + longest)
        return replace(state, value_bytes_max=self._value_bytes_max)

    def _are_few(self, changes: Sequence[Mutations]) -> bool:
        return (
            sum(map(len, changes)) <= self._resources.settings.direct_rows_max
            and sum(mutations.byte_count for mutations in changes) <= _DIRECT_BYTES_MAX
        )

    @property
    def _is_memtable_full(self) -> bool:
        """Whether the memtable has to be flushed before more rows are added."""
        return self._memtables[0].byte_count >= min(self._resources.settings.write_buffer_bytes, MEMTABLE_BYTES_MAX)

    # Flushing memtables into the database

    def _make_way(self, database: rocks.Rdict, row_count: int) -> None:
        """Before a write: flush as much as goes with it; if the memtable is full, begin to flush it."""
        if self._is_memtable_full:
            with self._flush_lock:
                # Another thread may have done it meanwhile.
                if self._is_memtable_full:
                    self._finish_flush(database)
                    with self._write_lock:
                        self._seal()
        if self._flush is not None and self._flush_lock.acquire(blocking=False):
            settings = self._resources.settings
            try:
                self._advance_flush(database, max(settings.flush_rows_min, settings.flush_rows_per_row * row_count))
            finally:
                self._flush_lock.release()

    def _build_filter(self, database: rocks.Rdict, row_count: int) -> None:
        """With a write: go on with a filter that is being built, or begin with one that is needed."""
        if self._is_database_empty or not self._filter.is_build_due or not self._flush_lock.acquire(blocking=False):
            return
        try:
            # It begins while nothing is flushed: a flush that began without a filter brings in keys it does not have.
            self._filter.build(partial(rocks.next_keys, database), row_count, may_begin=self._flush is None)
        finally:
            self._flush_lock.release()

    def _seal(self) -> None:
        """Add to another memtable from now on, and begin to flush this one. The caller has both locks."""
        assert self._flush is None, "there is one already"
        memtable = self._memtables[0]
        if len(memtable) or self._state != self._database_state:
            if self._is_database_empty and len(memtable) >= self._resources.settings.filter_keys_min:
                self._filter.begin_empty()
            self._filter.add(memtable.keys(np.arange(len(memtable))))
            self._flush = MemtableFlush(memtable, self._state, self.directory, self._resources)
            self._keep((Memtable(), memtable))

    def _keep(self, memtables: tuple[Memtable, ...]) -> None:
        """Have other memtables. Those that are left out are in the database."""
        bytes_before = self._memtable_bytes
        self._memtables = memtables
        self._resources.write_buffers.note(self._memtable_bytes - bytes_before)

    def _advance_flush(self, database: rocks.Rdict, row_count: int) -> None:
        """Go on with a flush, if there is one. The caller has the flush lock."""
        flush = self._flush
        if flush is None:
            return
        self._is_database_empty = False
        try:
            is_over = flush.advance(database, row_count)
        except BaseException:
            self._flush = flush.restarted()
            raise
        if not is_over:
            return
        self._database_state = flush.state
        self._flush = None
        if flush.is_on_disk:
            self._flushed_offset = flush.state.applied_offset
        else:
            # So few are not worth the memory, and without them a few more go to RocksDB directly again.
            self._keep(self._memtables[:1])

    def _finish_flush(self, database: rocks.Rdict) -> None:
        while self._flush is not None:
            self._advance_flush(database, sys.maxsize)

    def _flush_memtables(self, database: rocks.Rdict) -> None:
        """Have everything in the database that was written before. The caller has the flush lock."""
        self._finish_flush(database)
        with self._write_lock:
            self._seal()
        self._finish_flush(database)

    # Scanning

    def prefix_values(self, prefix: bytes, *, bytes_max: int) -> list[bytes]:
        """Return the values of all keys with a prefix, in key order.

        More than ``bytes_max``, or more rows than fit into memory beside others, is a FlussError (13).
        """
        return self._scan(max(prefix, KEY_FIRST), _end_of_prefix(prefix), sys.maxsize, bytes_max)

    def first_values(self, count: int, *, bytes_max: int) -> list[bytes]:
        """Return the values of the first keys, in key order, with the limits of ``prefix_values``."""
        return self._scan(KEY_FIRST, None, count, bytes_max) if count > 0 else []

    def snapshot(self) -> KvSnapshot:
        """Pin the rows as they are now. A write that is under way is waited for: snapshots have whole writes."""
        with self._database as database, self._flush_lock:
            # The first time most of it, while writes go on; the second time what they have added.
            self._flush_memtables(database)
            with self._write_lock:
                self._seal()
                self._finish_flush(database)
                reader = RowReader(rocks.scan(database, KEY_FIRST, fill_cache=False), self.directory)
                snapshot = KvSnapshot(reader, self._state)
            self._snapshots.add(snapshot)
            return snapshot

    def _scan(self, key_first: bytes, key_end: bytes | None, count_max: int, bytes_max: int) -> list[bytes]:
        rows_max = self._resources.settings.scan_rows_max
        with self._database as database:
            if len(self._memtables[0]) or self._flush is not None:
                with self._flush_lock:
                    self._flush_memtables(database)
            reader = RowReader(rocks.scan(database, key_first, key_end), self.directory)
            try:
                values, byte_count = reader.read(bytes_max + 1, min(count_max, rows_max + 1))
            finally:
                reader.close()
        if byte_count > bytes_max or len(values) > rows_max:
            raise FlussError(
                f"There are more than {bytes_max} bytes or {rows_max} rows, and one answer cannot have more: ask for "
                "fewer rows, or scan the bucket",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        return values

    # To the disk

    def flush(self) -> None:
        """Bring everything that was written before to the disk. After an error see ``has_failed``."""
        with self._database as database, self._flush_lock:
            self._flush_memtables(database)
            database.flush(True)
            self._flushed_offset = self._database_state.applied_offset

    def release(self) -> None:
        """Bring everything to the disk that was written before, and keep nothing of it in memory."""
        self.flush()
        with self._database, self._flush_lock, self._write_lock:
            if self._flush is None:
                self._keep(self._memtables[:1])

    def checkpoint(self, directory: Path) -> KvState:
        """Make a copy that opens as a store of its own, in a directory that must not exist yet; return its state.

        SST files are hard links. It is durable when this returns; one that was interrupted leaves at most a directory
        with the same name and the suffix ``.tmp``.
        """
        if rocks.DISK.exists(directory):
            raise FlussError(f"There is no room for a checkpoint: {directory} exists", ErrorCode.KV_STORAGE_EXCEPTION)
        rocks.DISK.make_directory(directory.parent)
        # This leaves little for the copy, which holds the GIL.
        self.flush()
        with self._database as database, self._flush_lock:
            self._flush_memtables(database)
            database.flush(True)
            state = self._database_state
            rocks.copy_database(database, directory)
            self._flushed_offset = state.applied_offset
        rocks.DISK.sync_directory(directory)
        rocks.DISK.sync_directory(directory.parent)
        return state

    def close(self, *, keeps_rows: bool = True) -> None:
        """Flush, and give up the directory, which may be opened again at once. May be called twice.

        Calls that are under way are waited for, and snapshots are closed. When the flush fails the store is closed
        nevertheless, and the error is raised: the changelog has the rest. A store that is about to be removed need not
        keep its rows, which saves the flush.
        """
        with self._close_lock:
            database = self._database.close()
            if database is None:
                return
            self._resources.write_buffers.remove(self)
            for snapshot in list(self._snapshots):
                snapshot.close()
            try:
                try:
                    if keeps_rows:
                        self._flush_memtables(database)
                finally:
                    self._keep((Memtable(),))
                    database.close()
                if keeps_rows:
                    self._filter.save(rocks.DISK, self.directory, self._database_state.encode())
            except FlussError:
                raise
            except Exception as error:
                raise rocks.explain(error, self.directory) from error
            finally:
                self._filter.close()

    # Sizes

    def size_bytes(self) -> int:
        """Return the size of the SST files on the disk and of what will be written to them."""
        with self._database as database:
            files = rocks.number_of(database, "live-sst-files-size")
            unflushed = self._memtables if self._flush is not None else self._memtables[:1]
            waiting = sum(memtable.byte_count for memtable in unflushed)
            return files + rocks.number_of(database, "cur-size-all-mem-tables") + waiting

    def memory_bytes(self) -> int:
        """Return the memory of this store alone: memtables, what is not on the disk yet or kept by snapshots, and SST
        files that are open."""
        with self._database as database:
            readers = rocks.number_of(database, "estimate-table-readers-mem")
            return readers + rocks.number_of(database, "size-all-mem-tables") + self._memtable_bytes

    def buffered_bytes(self) -> int:
        """Return how much memory ``release`` would give back; nothing if the disk has failed."""
        with self._database as database:
            if rocks.number_of(database, "background-errors") > 0:
                return 0
            return rocks.number_of(database, "cur-size-all-mem-tables") + self._memtable_bytes

    @property
    def _memtable_bytes(self) -> int:
        return sum(memtable.byte_count for memtable in self._memtables)


def remove_store(directory: Path) -> None:
    """Remove a store that is not open; a missing one is not an error."""
    rocks.DISK.remove_tree(directory)
    if rocks.DISK.exists(directory.parent):
        rocks.DISK.sync_directory(directory.parent)


def _loaded_filter(directory: Path, resources: KvResources, state: bytes | None) -> KeyFilter | None:
    try:
        return KeyFilter.load(rocks.DISK, directory, state or b"", resources.filter_memory)
    except OSError as error:
        raise rocks.explain(error, directory) from error


def _check_keys(changes: Sequence[Mutations]) -> None:
    if not all(bool(mutations.keys.keys.lengths.all()) for mutations in changes):
        raise CorruptRecordError("A row without a key cannot be stored")


def _end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all those with a prefix, None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
