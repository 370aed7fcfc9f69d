"""One key-value store: the current rows of one bucket, as a log-structured merge tree.

    write -> memtable -> (full) immutable memtable -> flush, step by step -> RocksDB (SST files on the disk)

A few rows go to RocksDB directly if the memtable is empty. A lookup asks the memtables first, then the key filter, then
RocksDB. A scan has everything brought into RocksDB before.

A small store is a range of keys in a database that it shares with others (``shared_database``). When it has become
large it moves to a database of its own while it is used: ``promote``.

There is no write-ahead log, because the changelog is one. After a crash the store is as it was when something last
reached the disk, and its state says from which offset on the changelog has to be applied again. The state lies under
the empty key, which no row can have, beside the rows: they reach the disk together. That holds in a shared database,
too: a store writes its state in one batch with the last of its rows, and RocksDB brings batches to the disk whole and
in their order, whosever they are.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.record.mutations import Mutations
from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import end_of_prefix, prefix_range
from fluss.storage.kv.flush import MemtableFlush
from fluss.storage.kv.key_filter import KEY_FIRST, DatabaseFilter, KeyFilter
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.place import STATE_KEY, Lending, Place
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.row_copy import RowCopy, copy_to_directory, copy_to_shared, database_of_copy
from fluss.storage.kv.shared_database import SharedDatabase
from fluss.storage.kv.snapshot import KvSnapshot, RowReader
from fluss.storage.kv.state import IdBlock, KvState, SharedState
from fluss.storage.kv.store_writes import StoreWrites
from fluss.storage.kv.write_buffers import SMALL_BYTES

__all__ = ["IdBlock", "KvDamagedError", "KvResources", "KvSnapshot", "KvState", "KvStore", "remove_store"]

# How long a store that has moved waits for readers of the old rows. If they take longer the rows stay until
# the store is opened again.
_MOVED_WAIT_S: Final = 10.0

logger = logging.getLogger(__name__)


class KvStore(StoreWrites):
    """The rows of one bucket by key, and how far they have come.

    All methods block and may be called from any thread. Writes happen one after the other; lookups wait for nothing,
    scans for what has to be flushed.
    """

    # Thousands of small ones may be open.
    __slots__ = ("__weakref__", "_close_lock", "_flushed_offset", "_snapshots")

    def __init__(
        self,
        directory: Path,
        resources: KvResources,
        place: Place,
        stored: SharedState | None,
        *,
        is_empty: bool = False,
        key_filter: KeyFilter | None = None,
    ) -> None:
        """Take over an open place; every other caller uses ``open`` and ``open_shared``."""
        # Of its database, or where that would be.
        self.directory = directory
        state, self._written_bytes = (KvState(), 0) if stored is None else (stored.state, stored.written_bytes)
        self._resources = resources
        self._database = Lending(place, directory)
        self._state = state
        self._value_bytes_max = state.value_bytes_max
        # Newest first: the one that rows are added to, and behind it an immutable one that is being flushed, or was
        # flushed and stays while the memory is not needed: reading rows from the database takes ten times as long.
        self._memtables: tuple[Memtable, ...] = (Memtable(),)
        self._flush: MemtableFlush | None = None
        # What the database has, what of it is on the disk for sure, and whether it has no rows at all.
        self._database_state = state
        # Of a shared one it is not known before its next flush.
        self._flushed_offset = state.applied_offset if place.shared is None else 0
        self._is_database_empty = is_empty
        self._filter = DatabaseFilter(resources.settings, resources.filter_memory, resources.sleep, key_filter)
        # The flush lock protects the flush, the filter and the place, the write lock the memtable that rows are added
        # to. A thread that takes both takes the flush lock first.
        self._flush_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._snapshots: weakref.WeakSet[KvSnapshot] | None = None
        # What a small store gives back goes to the shared database, which has an owner for itself.
        resources.write_buffers.add(self, SMALL_BYTES if place.shared is None else 1)

    @classmethod
    def open(cls, directory: Path, resources: KvResources) -> KvStore:
        """Open the store in a directory of its own, creating it when absent.

        KvDamagedError: it has to be built again. Any other FlussError: the machine has trouble, and it may be there
        later as it was. Opening holds the GIL, for some milliseconds whatever its size.
        """
        place = Place.own(rocks.open_database(directory, resources), directory)
        try:
            with Lending(place, directory) as database:
                place.remove_unfinished()
                encoded = database.get(STATE_KEY)
                stored = None if encoded is None else SharedState(KvState.decode(encoded, str(directory)))
                is_empty = stored is None and not _has_rows(place, directory)
            key_filter = _loaded_filter(directory, resources, encoded)
        except BaseException:
            with suppress(Exception):
                place.database.close()
            raise
        return cls(directory, resources, place, stored, is_empty=is_empty, key_filter=key_filter)

    @classmethod
    def open_shared(cls, directory: Path, resources: KvResources, shared: SharedDatabase, prefix: bytes) -> KvStore:
        """Open a store that is the keys with a prefix in a shared database; it may have none yet. Takes microseconds.

        ``directory`` is where the store gets a database of its own when it is large. Raises what ``open`` raises, and
        GivenUpError if the shared database is about to be closed.
        """
        shared.use()
        try:
            place = Place.within(shared, prefix)
            with Lending(place, directory) as database:
                encoded = database.get(place.state_key)
                stored = None if encoded is None else SharedState.decode(encoded, str(directory))
                is_empty = stored is None and not _has_rows(place, directory)
            return cls(directory, resources, place, stored, is_empty=is_empty)
        except BaseException:
            shared.end_use()
            raise

    @property
    def shared(self) -> SharedDatabase | None:
        """The database that the store shares with others, None if it has one of its own."""
        return self._database.place.shared

    @property
    def state(self) -> KvState:
        """As of the last write that succeeded."""
        return self._state

    @property
    def has_state(self) -> bool:
        """Whether there is a state in the database: there is one as soon as everything of a first write is there."""
        with self._database:
            place = self._database.place
            return place.database.get(place.state_key) is not None

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
        return 0 if self._snapshots is None else len(self._snapshots)

    # Writing

    def write(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Have new rows, the oldest first, and with them a new state. It is in memory, and a lookup finds it.

        When it fails nothing was added, and the state is the old one.
        """
        if self.write_if_quick(changes, state):
            return
        self._resources.write_buffers.make_room()
        row_count = sum(map(len, changes))
        with self._database:
            self._make_way(row_count)
            self._build_filter(row_count)
            with self._write_lock:
                self._add(changes, state)

    # Flushing memtables into the database

    def _make_way(self, row_count: int) -> None:
        """Before a write: flush as much as goes with it; if the memtable is full, begin to flush it."""
        if self._is_memtable_full:
            with self._flush_lock:
                # Another thread may have done it meanwhile.
                if self._is_memtable_full:
                    self._finish_flush()
                    # What comes now would be a large part of a shared database, and had to be copied out of it soon.
                    self._leave_shared_if_possible()
                    with self._write_lock:
                        self._seal()
        if self._flush is not None and self._flush_lock.acquire(blocking=False):
            settings = self._resources.settings
            try:
                self._advance_flush(max(settings.flush_rows_min, settings.flush_rows_per_row * row_count))
            finally:
                self._flush_lock.release()

    def _build_filter(self, row_count: int) -> None:
        """With a write: go on with a filter that is being built, or begin with one that is needed."""
        if self._is_database_empty or not self._filter.is_build_due or not self._flush_lock.acquire(blocking=False):
            return
        try:
            # It begins while nothing is flushed: a flush that began without a filter brings in keys it does not have.
            self._filter.build(self._database.place.next_keys, row_count, may_begin=self._flush is None)
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
            self._flush = MemtableFlush(
                memtable, self._state, self._stored(self._state), self._database.place, self._resources
            )
            self._keep((Memtable(), memtable))

    def _keep(self, memtables: tuple[Memtable, ...]) -> None:
        """Have other memtables. Those that are left out are in the database."""
        bytes_before = self._memtable_bytes
        self._memtables = memtables
        self._resources.write_buffers.note(self._memtable_bytes - bytes_before)

    def _advance_flush(self, row_count: int) -> None:
        """Go on with a flush, if there is one. The caller has the flush lock."""
        flush = self._flush
        if flush is None:
            return
        self._is_database_empty = False
        try:
            is_over = flush.advance(row_count)
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

    def _finish_flush(self) -> None:
        while self._flush is not None:
            self._advance_flush(sys.maxsize)

    def _flush_memtables(self) -> None:
        """Have everything in the database that was written before. The caller has the flush lock."""
        self._finish_flush()
        with self._write_lock:
            self._seal()
        self._finish_flush()

    # Scanning

    def prefix_values(self, prefix: bytes, *, bytes_max: int) -> list[bytes]:
        """Return the values of all keys with a prefix, in key order.

        More than ``bytes_max``, or more rows than fit into memory beside others, is a FlussError (13).
        """
        return self._scan(max(prefix, KEY_FIRST), end_of_prefix(prefix), sys.maxsize, bytes_max)

    def first_values(self, count: int, *, bytes_max: int) -> list[bytes]:
        """Return the values of the first keys, in key order, with the limits of ``prefix_values``."""
        return self._scan(KEY_FIRST, None, count, bytes_max) if count > 0 else []

    def snapshot(self) -> KvSnapshot:
        """Pin the rows as they are now. A write that is under way is waited for: snapshots have whole writes."""
        with self._database, self._flush_lock:
            # The first time most of it, while writes go on; the second time what they have added.
            self._flush_memtables()
            with self._write_lock:
                self._seal()
                self._finish_flush()
                reader = RowReader(self._database.place, self.directory, fill_cache=False)
                snapshot = KvSnapshot(reader, self._state)
            if self._snapshots is None:
                self._snapshots = weakref.WeakSet()
            self._snapshots.add(snapshot)
            return snapshot

    def _scan(self, key_first: bytes, key_end: bytes | None, count_max: int, bytes_max: int) -> list[bytes]:
        rows_max = self._resources.settings.scan_rows_max
        with self._database:
            if len(self._memtables[0]) or self._flush is not None:
                with self._flush_lock:
                    self._flush_memtables()
            reader = RowReader(self._database.place, self.directory, key_first, key_end)
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
        with self._database, self._flush_lock:
            self._flush_memtables()
            self._database.place.database.flush(True)
            self._flushed_offset = self._database_state.applied_offset

    def flush_to_shared(self) -> int:
        """Bring everything that was written before into the shared database, whose own flush is the caller's.

        So a flush of thousands of stores is one of the shared database. Returns the offset for ``note_flushed``.
        """
        with self._database, self._flush_lock:
            self._flush_memtables()
            return self._database_state.applied_offset

    def note_flushed(self, offset: int) -> None:
        """Note that the shared database was flushed after ``flush_to_shared`` returned the offset."""
        with self._database, self._flush_lock:
            self._flushed_offset = max(self._flushed_offset, offset)

    def release(self) -> None:
        """Bring everything to the disk that was written before, and keep nothing of it in memory.

        A small store gives it to the shared database, which keeps it in memory for a while.
        """
        if self.shared is None:
            self.flush()
        else:
            self.flush_to_shared()
        with self._database, self._flush_lock, self._write_lock:
            if self._flush is None:
                self._keep(self._memtables[:1])

    def checkpoint(self, directory: Path, *, copies_rows: bool = False) -> KvState:
        """Make a copy that opens as a store of its own, in a directory that must not exist yet; return its state.

        SST files are hard links, unless the store shares a database or ``copies_rows``: then its rows are copied. It is
        durable when this returns; one that was interrupted leaves a directory that is not complete, with the same name
        or with the suffix ``.tmp``.
        """
        if rocks.DISK.exists(directory):
            raise FlussError(f"There is no room for a checkpoint: {directory} exists", ErrorCode.KV_STORAGE_EXCEPTION)
        rocks.DISK.make_directory(directory.parent)
        if copies_rows or self.shared is not None:
            return self._copy_rows(directory)
        # This leaves little for the copy, which holds the GIL.
        self.flush()
        with self._database as database, self._flush_lock:
            self._flush_memtables()
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
        keep its rows, which saves the flush. What a small store has goes to the shared database, and to the disk with
        that.
        """
        with self._close_lock:
            place = self._database.close()
            if place is None:
                return
            self._resources.write_buffers.remove(self)
            for snapshot in list(self._snapshots or ()):
                snapshot.close()
            try:
                try:
                    if keeps_rows:
                        self._flush_memtables()
                finally:
                    self._keep((Memtable(),))
                    if place.shared is None:
                        place.database.close()
                    else:
                        place.shared.end_use()
                if keeps_rows and place.shared is None:
                    self._filter.save(rocks.DISK, self.directory, self._database_state.encode())
            except FlussError:
                raise
            except Exception as error:
                raise place.explain(error, self.directory) from error
            finally:
                self._filter.close()

    # From a shared database to one of its own, and back

    @property
    def is_promotion_due(self) -> bool:
        """Whether so much was written to a small store that it may be time for a database of its own."""
        return self.shared is not None and self._written_bytes >= self._resources.settings.shared_store_bytes_max

    def promote(self) -> None:
        """Have a database of its own from now on if the rows have become many; if they have not, look again later.

        Lookups and writes go on; what would flush the memtable waits. When it fails all is as it was before.
        """
        with self._database, self._flush_lock:
            self._finish_flush()
            self._leave_shared()

    def _leave_shared(self) -> None:
        """Copy the rows of the shared database to one of its own, unless they are few. The caller has the flush lock.

        What a crash leaves in the directory does not count before the file with all rows and the state is a
        part of the new database; afterwards what is left in the shared one does not count.
        """
        place = self._database.place
        if place.shared is None:
            return
        bytes_min = self._resources.settings.shared_store_bytes_max
        # Whatever comes of it, the next time is when as much was written again.
        self._written_bytes = min(self._written_bytes, bytes_min // 2)
        rows = RowCopy(place, self.directory)
        try:
            copy_to_directory(rows, self.directory, self._database_state, self._resources)
            if not self._is_memtable_full and rows.byte_count + self._memtable_bytes < bytes_min // 2:
                self._written_bytes = rows.byte_count
                rocks.remove_database(self.directory)
                return
            own = database_of_copy(self.directory, self._resources)
        finally:
            rows.close()
        self._database.move(own)
        self._flushed_offset = self._database_state.applied_offset
        self._resources.write_buffers.add(self)
        threading.Thread(target=self._remove_moved, args=(place,), name="fluss-kv-moved").start()

    def _leave_shared_if_possible(self) -> None:
        try:
            self._leave_shared()
        except KvDamagedError:
            raise
        except FlussError as error:
            # It is no worse off than before; what follows finds out whether the disk can still be written to.
            logger.warning("%s shares a database for now: %s", self.directory, error.message)

    def _remove_moved(self, place: Place) -> None:
        """Remove the rows from a shared database that the store has left, when no thread can be reading them."""
        shared = place.shared
        assert shared is not None, "it was never shared"
        try:
            keys = prefix_range(place.prefix)
            if self._database.wait_idle(_MOVED_WAIT_S) and shared.remove(keys):
                shared.reclaim(keys)
        except FlussError as error:
            logger.warning("%s: the rows of a store that has left are removed later: %s", shared.directory, error)
        finally:
            shared.end_use()

    def _copy_rows(self, directory: Path) -> KvState:
        with self._database:
            with self._flush_lock:
                self._flush_memtables()
                state, rows = self._database_state, RowCopy(self._database.place, self.directory)
            try:
                copy_to_directory(rows, directory, state, self._resources)
            finally:
                rows.close()
        database_of_copy(directory, self._resources).database.close()
        return state

    def copy_to_shared(self, shared: SharedDatabase, prefix: bytes) -> None:
        """Bring all rows and the state into a shared database, where there is nothing with this prefix yet."""
        with self._database:
            with self._flush_lock:
                self._flush_memtables()
                state, rows = self._database_state, RowCopy(self._database.place, self.directory)
            try:
                with shared:
                    copy_to_shared(rows, Place.within(shared, prefix), state, self._resources)
            finally:
                rows.close()

    # Sizes

    def size_bytes(self) -> int:
        """Return the size of the SST files on the disk and of what will be written to them.

        Of a store that shares a database, how much was written to it.
        """
        with self._database:
            place = self._database.place
            if place.shared is not None:
                return self._written_bytes
            files = rocks.number_of(place.database, "live-sst-files-size")
            unflushed = self._memtables if self._flush is not None else self._memtables[:1]
            waiting = sum(memtable.byte_count for memtable in unflushed)
            return files + rocks.number_of(place.database, "cur-size-all-mem-tables") + waiting

    def memory_bytes(self) -> int:
        """Return the memory of this store alone: memtables, what is not on the disk yet or kept by snapshots, and SST
        files that are open."""
        with self._database:
            place = self._database.place
            if place.shared is not None:
                return self._memtable_bytes
            readers = rocks.number_of(place.database, "estimate-table-readers-mem")
            return readers + rocks.number_of(place.database, "size-all-mem-tables") + self._memtable_bytes

    def buffered_bytes(self) -> int:
        """Return how much memory ``release`` would give back; nothing if the disk has failed."""
        with self._database:
            place = self._database.place
            if rocks.number_of(place.database, "background-errors") > 0:
                return 0
            if place.shared is not None:
                return self._memtable_bytes
            return rocks.number_of(place.database, "cur-size-all-mem-tables") + self._memtable_bytes

    @property
    def _memtable_bytes(self) -> int:
        return sum(memtable.byte_count for memtable in self._memtables)


def remove_store(directory: Path) -> None:
    """Remove a store that has a directory of its own and is not open; a missing one is not an error."""
    rocks.remove_database(directory)


def _has_rows(place: Place, directory: Path) -> bool:
    reader = RowReader(place, directory)
    try:
        return reader.has_more
    finally:
        reader.close()


def _loaded_filter(directory: Path, resources: KvResources, state: bytes | None) -> KeyFilter | None:
    try:
        return KeyFilter.load(rocks.DISK, directory, state or b"", resources.filter_memory)
    except OSError as error:
        raise rocks.explain(error, directory) from error
