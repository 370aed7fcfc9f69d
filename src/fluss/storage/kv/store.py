"""One key-value store: the current rows of one bucket.

    write -> recent rows (memory) -> a drain, step by step -> RocksDB (tables on the disk)

A few rows go to RocksDB directly if nothing is recent. Whoever looks a key up is told by the recent rows first. Whoever
scans has everything brought into RocksDB before.

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
from pathlib import Path
from typing import Final

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, KvDamagedError
from fluss.record.mutations import FoundRows, Mutations, StoredValues
from fluss.record.value_batch import SCHEMA_ID_BYTES
from fluss.row.hashed_keys import HashedKeys, row_words
from fluss.row.varint import UInt64Array
from fluss.storage.kv import rocks
from fluss.storage.kv.flush import STATE_KEY, MemtableFlush, remove_unfinished, write_part
from fluss.storage.kv.key_filter import KeyFilter
from fluss.storage.kv.memtable import RECENT_BYTES_MAX, Memtable, Part, find_in_memtables
from fluss.storage.kv.rocks import Access, KvResources
from fluss.storage.kv.snapshot import KvSnapshot, RowReader
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.vfs import OsFiles

__all__ = ["IdBlock", "KvDamagedError", "KvResources", "KvSnapshot", "KvState", "KvStore", "remove_store"]

_ROW_KEY_FIRST: Final = b"\x00"
# So few rows are written to RocksDB in microseconds.
_DIRECT_ROWS_MAX: Final = 128
_DIRECT_BYTES_MAX: Final = 256 * 1024
# While rows are drained, every write drains so many for each of its own: it is over long before there are as many new
# ones.
_DRAINED_PER_ROW: Final = 2
_DRAINED_MIN: Final = 1000
# With so many rows at once a store is being loaded, and a filter of its keys is worth its memory.
_FILTERED_ROWS_MIN: Final = 8192
# So many keys are looked up among the recent rows one by one in the time that it takes to do it all at once.
_FEW_KEYS: Final = 16
# Keys of one call of RocksDB; between the calls values become Python objects, which needs the GIL.
_GET_KEYS_MAX: Final = 1000
# Reading so many keys in their order saves more than ordering them takes.
_ORDERED_KEYS_MIN: Final = 100
_CACHED_VALUE_BYTES_MAX: Final = 1024 * 1024
# Of one answer, whatever the rows weigh: a row takes more memory than it has bytes.
_ROWS_MAX: Final = 1_048_576
_FILES: Final = OsFiles()


class KvStore:
    """The rows of one bucket by key, and how far they have come.

    All methods block and may be called from any thread. Writes happen one after the other; reads wait for nothing,
    scans for what has to be drained.
    """

    def __init__(
        self, directory: Path, resources: KvResources, database: rocks.Rdict, state: KvState, *, is_empty: bool = False
    ) -> None:
        """Take over an open database; ``open`` is for everyone else."""
        self.directory = directory
        self._resources = resources
        self._access = Access(database, directory)
        self._state = state
        self._value_bytes_max = state.value_bytes_max
        # The recent rows, newest first: those that writes are added to, and behind them those that are being drained or
        # have been. They stay while nobody needs the memory: reading them from the database takes ten times as long.
        self._recent: tuple[Memtable, ...] = (Memtable(),)
        self._drain: MemtableFlush | None = None
        # What the database has, what of it is on the disk for sure, whether it has no rows at all, and its keys, if
        # anybody knows them.
        self._drained_state = state
        self._flushed_offset = state.applied_offset
        self._is_empty_below = is_empty
        self._filter: KeyFilter | None = None
        # Whoever takes both takes the first one first.
        self._drain_lock = threading.Lock()
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
            with Access(database, directory):
                remove_unfinished(directory)
                stored = database.get(STATE_KEY)
                state = KvState() if stored is None else KvState.decode(stored, str(directory))
                is_empty = stored is None and not RowReader(rocks.scan(database, _ROW_KEY_FIRST), directory).has_more
        except BaseException:
            with suppress(Exception):
                database.close()
            raise
        return cls(directory, resources, database, state, is_empty=is_empty)

    @property
    def state(self) -> KvState:
        """As of the last write that succeeded."""
        return self._state

    @property
    def flushed_offset(self) -> int:
        """The applied offset that a crash at this moment would leave, or an earlier one."""
        with self._access:
            return self._flushed_offset

    @property
    def has_failed(self) -> bool:
        """Whether RocksDB could not bring something to the disk. Reads go on, and writes while there is memory."""
        with self._access as database:
            return rocks.number_of(database, "background-errors") > 0

    @property
    def snapshot_count(self) -> int:
        """Snapshots that somebody still has."""
        return len(self._snapshots)

    # Looking keys up

    def find(self, keys: HashedKeys, *, bytes_max: int = sys.maxsize) -> FoundRows:
        """Return the rows of keys, as many as there are. More than ``bytes_max`` is a FlussError (13)."""
        with self._access as database:
            parts, left = find_in_memtables(self._recent, keys)
            byte_count = _checked_bytes(parts, len(keys), bytes_max)
            left = self._possible(keys, left)
            if len(left):
                left = _in_order(keys, left)
                values = self._get(database, keys.keys.some(left).to_list(), bytes_max - byte_count)
                is_found = np.fromiter((value is not None for value in values), np.bool_, len(values))
                if is_found.any():
                    parts.append((left[is_found], self._rows([value for value in values if value is not None])))
        return FoundRows(len(keys), parts)

    def find_cached(self, keys: HashedKeys, *, bytes_max: int = sys.maxsize) -> FoundRows | None:
        """Return what ``find`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large.
        """
        values = self.get_cached(keys.keys.to_list(), bytes_max=bytes_max)
        if values is None:
            return None
        numbers = np.array([number for number, value in enumerate(values) if value is not None], np.int64)
        if not len(numbers):
            return FoundRows.none(len(keys))
        return FoundRows(len(keys), [(numbers, self._rows([value for value in values if value is not None]))])

    def get_many(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
        """Return the value of each key, None where there is none. More than ``bytes_max`` is a FlussError (13)."""
        keys = list(keys)
        with self._access as database:
            if self._has_recent:
                values = self._get_with_recent(database, keys, bytes_max)
            else:
                values = self._get(database, keys, bytes_max)
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
        with self._access as database:
            levels = [level for level in self._recent if len(level)]
            for key in keys:
                value = _recent_value(levels, key)
                if value is None and not self._is_empty_below:
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

    def _possible(self, keys: HashedKeys, numbers: Int64Array) -> Int64Array:
        """Leave out the keys that the database cannot have."""
        if self._is_empty_below:
            return numbers[:0]
        numbers = numbers[keys.keys.lengths[numbers] > 0]
        key_filter = self._filter
        return numbers if key_filter is None else numbers[key_filter.may_have(keys.hashes[numbers])]

    def _get(self, database: rocks.Rdict, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """Return what the database has under keys."""
        values: list[bytes | None] = []
        bytes_left = bytes_max
        while len(values) < len(keys):
            # One call returns no more than fits, or a single value.
            count = max(1, min(_GET_KEYS_MAX, bytes_left // max(1, self._value_bytes_max)))
            # Its stub asks for keys of mixed types, and knows nothing of lists of values.
            found: list[bytes | None] = database.get(keys[len(values) : len(values) + count])  # type: ignore[arg-type,assignment]
            bytes_left -= sum(map(len, filter(None, found)))
            if bytes_left < 0:
                raise _too_many_bytes(len(keys), bytes_max)
            values += found
        return values

    def _get_with_recent(self, database: rocks.Rdict, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """Return what the recent rows have under keys, or the database where they know nothing."""
        values = self._recent_values(keys, bytes_max)
        bytes_left = bytes_max - sum(map(len, filter(None, values)))
        if bytes_left < 0:
            raise _too_many_bytes(len(keys), bytes_max)
        numbers = [number for number, value in enumerate(values) if value is None]
        stored = self._get(database, [keys[number] for number in numbers], bytes_left)
        for number, value in zip(numbers, stored, strict=True):
            values[number] = value
        return [value or None for value in values]

    def _recent_values(self, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """Return the values of keys, empty ones where a key was removed, None where the recent rows know nothing."""
        if len(keys) <= _FEW_KEYS:
            return [_recent_value(self._recent, key) for key in keys]
        parts, left = find_in_memtables(self._recent, HashedKeys.from_list(keys))
        # Before they are copied.
        _checked_bytes(parts, len(keys), bytes_max)
        values: list[bytes | None] = [b""] * len(keys)
        for number in left.tolist():
            values[number] = None
        for numbers, stored in parts:
            for number, value in zip(numbers.tolist(), stored.values(), strict=True):
                values[number] = value
        return values

    def _rows(self, values: list[bytes]) -> StoredValues:
        try:
            return StoredValues.from_values(values)
        except CorruptRecordError as error:
            raise KvDamagedError(f"The key-value store {self.directory} is damaged: {error.message}") from error

    # Writing

    def write(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Have new rows, the oldest first, and with them a new state. It is in memory, and a lookup finds it.

        When it fails nothing was added, and the state is the old one.
        """
        if self.write_if_quick(changes, state):
            return
        self._resources.write_buffers.make_room()
        with self._access as database:
            self._make_way(database, sum(map(len, changes)))
            with self._write_lock:
                self._add(changes, state)

    def write_if_quick(self, changes: Sequence[Mutations], state: KvState) -> bool:
        """Write a few rows like ``write`` if that takes microseconds; if not return False, and nothing was written.

        It would take longer while somebody else writes, drains or copies the store, and while the disk is behind.
        """
        _check_keys(changes)
        if not _are_few(changes) or not self._resources.write_buffers.has_room() or self._is_full:
            return False
        with self._access as database:
            if not self._drain_lock.acquire(blocking=False):
                return False
            try:
                if self._drain is not None or not self._write_lock.acquire(blocking=False):
                    return False
                try:
                    return self._write_directly(database, changes, state)
                finally:
                    self._write_lock.release()
            finally:
                self._drain_lock.release()

    def _write_directly(self, database: rocks.Rdict, changes: Sequence[Mutations], state: KvState) -> bool:
        """Write a few rows to RocksDB, or to the recent rows if there are any, which would hide them."""
        if self._has_recent:
            self._add(changes, state)
            return True
        state = self._with_longest(state, changes)
        for part in changes:
            self._filter_keys(part.keys.hashes)
        keys = [key for part in changes for key in part.keys.keys.to_list()]
        values = [value for part in changes for value in part.values()]
        self._is_empty_below = False
        if not write_part(database, keys, values, state):
            return False
        self._state = self._drained_state = state
        return True

    def _add(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Add to the recent rows; whoever calls has the write lock."""
        state = self._with_longest(state, changes)
        recent, byte_count = self._recent[0], self._recent[0].byte_count
        for part in changes:
            recent.add(part)
        self._resources.write_buffers.note(recent.byte_count - byte_count)
        self._state = state

    def _with_longest(self, state: KvState, changes: Sequence[Mutations]) -> KvState:
        """Note how long values are before anybody can find them."""
        for part in changes:
            longest = int(part.rows.lengths.max(initial=0))
            if longest:
                self._value_bytes_max = max(self._value_bytes_max, SCHEMA_ID_BYTES + longest)
        return replace(state, value_bytes_max=self._value_bytes_max)

    @property
    def _is_full(self) -> bool:
        """Whether the recent rows have to be drained before there are more of them."""
        return self._recent[0].byte_count >= min(self._resources.settings.write_buffer_bytes, RECENT_BYTES_MAX)

    @property
    def _has_recent(self) -> bool:
        return any(map(len, self._recent))

    # Draining

    def _make_way(self, database: rocks.Rdict, row_count: int) -> None:
        """Before a write: drain as much as goes with it; if the recent rows are too many, begin to drain them."""
        if self._is_full:
            with self._drain_lock:
                # Somebody else may have done it meanwhile.
                if self._is_full:
                    self._finish_drain(database)
                    with self._write_lock:
                        self._seal()
        if self._drain is not None and self._drain_lock.acquire(blocking=False):
            try:
                self._advance_drain(database, max(_DRAINED_MIN, _DRAINED_PER_ROW * row_count))
            finally:
                self._drain_lock.release()

    def _seal(self) -> None:
        """Add to other rows from now on, and begin to drain these. Whoever calls has both locks."""
        assert self._drain is None, "there is one already"
        recent = self._recent[0]
        if len(recent) or self._state != self._drained_state:
            if self._is_empty_below and len(recent) >= _FILTERED_ROWS_MIN:
                self._filter = KeyFilter(self._resources.filter_memory)
            self._filter_keys(recent.hashes())
            self._drain = MemtableFlush(recent, self._state, self.directory, self._resources)
            self._keep((Memtable(), recent))

    def _filter_keys(self, hashes: UInt64Array) -> None:
        """Note keys before the database gets them."""
        if self._filter is not None and not self._filter.add(hashes):
            self._drop_filter()

    def _drop_filter(self) -> None:
        key_filter, self._filter = self._filter, None
        if key_filter is not None:
            key_filter.close()

    def _keep(self, levels: tuple[Memtable, ...]) -> None:
        """Have other recent rows. Those that are left out are in the database."""
        bytes_before = self._recent_bytes
        self._recent = levels
        self._resources.write_buffers.note(self._recent_bytes - bytes_before)

    def _advance_drain(self, database: rocks.Rdict, row_count: int) -> None:
        """Go on with a drain, if there is one. Whoever calls has the drain lock."""
        drain = self._drain
        if drain is None:
            return
        self._is_empty_below = False
        try:
            is_over = drain.advance(database, row_count)
        except BaseException:
            self._drain = drain.again()
            raise
        if not is_over:
            return
        self._drained_state = drain.state
        self._drain = None
        if drain.is_on_disk:
            self._flushed_offset = drain.state.applied_offset
        else:
            # So few are not worth the memory, and without them a few more go to RocksDB directly again.
            self._keep(self._recent[:1])

    def _finish_drain(self, database: rocks.Rdict) -> None:
        while self._drain is not None:
            self._advance_drain(database, sys.maxsize)

    def _drain_all(self, database: rocks.Rdict) -> None:
        """Have everything in the database that was written before. Whoever calls has the drain lock."""
        self._finish_drain(database)
        with self._write_lock:
            self._seal()
        self._finish_drain(database)

    # Scanning

    def prefix_values(self, prefix: bytes, *, bytes_max: int) -> list[bytes]:
        """Return the values of all keys with a prefix, in key order.

        More than ``bytes_max``, or more rows than fit into memory beside others, is a FlussError (13).
        """
        return self._scan(max(prefix, _ROW_KEY_FIRST), _end_of_prefix(prefix), _ROWS_MAX + 1, bytes_max)

    def first_values(self, count: int, *, bytes_max: int) -> list[bytes]:
        """Return the values of the first keys, in key order, with the limits of ``prefix_values``."""
        return self._scan(_ROW_KEY_FIRST, None, count, bytes_max) if count > 0 else []

    def snapshot(self) -> KvSnapshot:
        """Pin the rows as they are now. A write that is under way is waited for: snapshots have whole writes."""
        with self._access as database, self._drain_lock:
            # The first time most of it, while writes go on; the second time what they have added.
            self._drain_all(database)
            with self._write_lock:
                self._seal()
                self._finish_drain(database)
                reader = RowReader(rocks.scan(database, _ROW_KEY_FIRST, fill_cache=False), self.directory)
                snapshot = KvSnapshot(reader, self._state)
            self._snapshots.add(snapshot)
            return snapshot

    # Care

    def flush(self) -> None:
        """Bring everything that was written before to the disk. After an error see ``has_failed``."""
        with self._access as database, self._drain_lock:
            self._drain_all(database)
            database.flush(True)
            self._flushed_offset = self._drained_state.applied_offset

    def release(self) -> None:
        """Bring everything to the disk that was written before, and keep nothing of it in memory."""
        self.flush()
        with self._access, self._drain_lock, self._write_lock:
            if self._drain is None:
                self._keep(self._recent[:1])

    def checkpoint(self, directory: Path) -> KvState:
        """Make a copy that opens as a store of its own, in a directory that must not exist yet; return its state.

        Tables are hard links. It is durable when this returns; one that was interrupted leaves at most a directory
        with the same name and the suffix ``.tmp``.
        """
        if directory.exists():
            raise FlussError(f"There is no room for a checkpoint: {directory} exists", ErrorCode.KV_STORAGE_EXCEPTION)
        _FILES.make_directory(directory.parent)
        # This leaves little for the copy, which holds the GIL.
        self.flush()
        with self._access as database, self._drain_lock:
            self._drain_all(database)
            database.flush(True)
            state = self._drained_state
            rocks.copy_database(database, directory)
            self._flushed_offset = state.applied_offset
        _FILES.sync_directory(directory)
        _FILES.sync_directory(directory.parent)
        return state

    def size_bytes(self) -> int:
        """Return the size of the tables on the disk and of what will be written to them."""
        with self._access as database:
            tables = rocks.number_of(database, "live-sst-files-size")
            undrained = self._recent if self._drain is not None else self._recent[:1]
            waiting = sum(level.byte_count for level in undrained)
            return tables + rocks.number_of(database, "cur-size-all-mem-tables") + waiting

    def memory_bytes(self) -> int:
        """Return the memory of this store alone: what is not on the disk yet, or kept by snapshots, and open tables."""
        with self._access as database:
            tables = rocks.number_of(database, "estimate-table-readers-mem")
            return tables + rocks.number_of(database, "size-all-mem-tables") + self._recent_bytes

    def buffered_bytes(self) -> int:
        """Return how much memory ``release`` would give back; nothing if the disk has failed."""
        with self._access as database:
            if rocks.number_of(database, "background-errors") > 0:
                return 0
            return rocks.number_of(database, "cur-size-all-mem-tables") + self._recent_bytes

    @property
    def _recent_bytes(self) -> int:
        return sum(level.byte_count for level in self._recent)

    def close(self, *, keeps_rows: bool = True) -> None:
        """Flush, and give up the directory, which may be opened again at once. May be called twice.

        Calls that are under way are waited for, and snapshots are closed. When the flush fails the store is closed
        nevertheless, and the error is raised: the changelog has the rest. A store that is about to be removed need not
        keep its rows, which saves the flush.
        """
        with self._close_lock:
            database = self._access.close()
            if database is None:
                return
            self._resources.write_buffers.remove(self)
            for snapshot in list(self._snapshots):
                snapshot.close()
            try:
                try:
                    if keeps_rows:
                        self._drain_all(database)
                finally:
                    self._keep((Memtable(),))
                    self._drop_filter()
                    database.close()
            except FlussError:
                raise
            except Exception as error:
                raise rocks.explain(error, self.directory) from error

    def _scan(self, key_first: bytes, key_end: bytes | None, rows_max: int, bytes_max: int) -> list[bytes]:
        with self._access as database:
            if len(self._recent[0]) or self._drain is not None:
                with self._drain_lock:
                    self._drain_all(database)
            reader = RowReader(rocks.scan(database, key_first, key_end), self.directory)
            try:
                values, byte_count = reader.read(bytes_max + 1, min(rows_max, _ROWS_MAX + 1))
            finally:
                reader.close()
        if byte_count > bytes_max or len(values) > _ROWS_MAX:
            raise FlussError(
                f"There are more than {bytes_max} bytes or {_ROWS_MAX} rows, and one answer cannot have more: ask for "
                "fewer rows, or scan the bucket",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        return values


def remove_store(directory: Path) -> None:
    """Remove a store that is not open; a missing one is not an error."""
    _FILES.remove_tree(directory)
    if directory.parent.exists():
        _FILES.sync_directory(directory.parent)


def _recent_value(levels: Sequence[Memtable], key: bytes) -> bytes | None:
    """Return the value of a key in the newest level that knows it, empty if it was removed there."""
    for level in levels:
        value = level.value_of(key)
        if value is not None:
            return value
    return None


def _check_keys(changes: Sequence[Mutations]) -> None:
    if not all(bool(part.keys.keys.lengths.all()) for part in changes):
        raise CorruptRecordError("A row without a key cannot be stored")


def _are_few(changes: Sequence[Mutations]) -> bool:
    return sum(map(len, changes)) <= _DIRECT_ROWS_MAX and sum(part.byte_count for part in changes) <= _DIRECT_BYTES_MAX


def _in_order(keys: HashedKeys, numbers: Int64Array) -> Int64Array:
    """Return the numbers of keys in nearly the order of their bytes, in which RocksDB finds them faster."""
    if len(numbers) < _ORDERED_KEYS_MIN:
        return numbers
    # The first bytes will do: keys that share them are neighbours anyway.
    return numbers[np.argsort(row_words(keys.keys.some(numbers), 0).byteswap(), kind="stable")]


def _checked_bytes(parts: Sequence[Part], key_count: int, bytes_max: int) -> int:
    """Return how many bytes the values have that were found; too many are a FlussError (13)."""
    byte_count = sum(int(stored.rows.lengths.sum()) + SCHEMA_ID_BYTES * len(stored) for _, stored in parts)
    if byte_count > bytes_max:
        raise _too_many_bytes(key_count, bytes_max)
    return byte_count


def _too_many_bytes(key_count: int, bytes_max: int) -> FlussError:
    return FlussError(
        f"The rows of these {key_count} keys have more than {bytes_max} bytes, which is the most that may be read for "
        "one request; look up or write fewer keys at once",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )


def _end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all those with a prefix, None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
