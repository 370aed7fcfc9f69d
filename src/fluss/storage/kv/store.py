"""One key-value store: the current rows of one bucket, in RocksDB.

There is no write-ahead log, because the changelog is one. After a crash the store is as it was when a write buffer was
last brought to the disk, and its state says from which offset on the changelog has to be applied again. The state lies
under the empty key, which no row can have, beside the rows: they reach the disk together.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.access import Access
from fluss.storage.kv.damage import KvDamagedError
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.snapshot import KvSnapshot, RowReader
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.kv.write_buffers import BufferSizes
from fluss.storage.vfs import OsFiles

__all__ = ["IdBlock", "KvDamagedError", "KvResources", "KvSnapshot", "KvState", "KvStore", "remove_store"]

_STATE_KEY: Final = b""
_ROW_KEY_FIRST: Final = b"\x00"
# A write holds the GIL: a part takes one to two milliseconds.
_PART_ROWS_MAX: Final = 1000
_PART_BYTES_TARGET: Final = 512 * 1024
# After a part, so that whoever waits for the GIL gets it. Without it they would get it after five milliseconds.
_PART_PAUSE_S: Final = 1e-6
_STALL_PAUSE_MS: Final = 5
# Keys of one call of RocksDB; between the calls values become Python objects, which needs the GIL.
_GET_KEYS_MAX: Final = 1000
# A scan steps over removed keys with the GIL held: with so many in a write buffer, 10 to 20 ms. In tables they are
# merged away.
_BUFFERED_REMOVALS_MAX: Final = 50_000
_CACHED_VALUE_BYTES_MAX: Final = 1024 * 1024
# Of one answer, whatever the rows weigh: a row takes more memory than it has bytes.
_ROWS_MAX: Final = 1_048_576
_FILES: Final = OsFiles()


class KvStore:
    """The rows of one bucket by key, and how far they have come.

    All methods block and may be called from any thread. Writes happen one after the other; reads wait for nothing.
    """

    def __init__(self, directory: Path, resources: KvResources, database: rocks.Rdict, state: KvState) -> None:
        """Take over an open database; ``open`` is for everyone else."""
        self.directory = directory
        self._resources = resources
        self._access = Access(database, directory)
        self._state = state
        self._value_bytes_max = state.value_bytes_max
        self._write_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._snapshots: weakref.WeakSet[KvSnapshot] = weakref.WeakSet()
        # On the disk for sure; and in write buffers that are full and go to the disk by themselves.
        self._flushed_offset = state.applied_offset
        self._sealed_offset = state.applied_offset
        self._flushed_lock = threading.Lock()
        self._buffered_entries = 0
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
                stored = database.get(_STATE_KEY)
                state = KvState() if stored is None else KvState.decode(stored, str(directory))
        except BaseException:
            with suppress(Exception):
                database.close()
            raise
        return cls(directory, resources, database, state)

    @property
    def state(self) -> KvState:
        """As of the last write that succeeded."""
        return self._state

    @property
    def flushed_offset(self) -> int:
        """The applied offset that a crash at this moment would leave, or an earlier one."""
        applied_offset = self._state.applied_offset
        sealed_offset = self._sealed_offset
        with self._access as database:
            # First the buffer that is being filled, then those that are being flushed: what leaves the one between
            # the two looks is seen in the others.
            reached_offset = (
                sealed_offset if rocks.number_of(database, "num-entries-active-mem-table") else applied_offset
            )
            if rocks.number_of(database, "num-immutable-mem-table") == 0:
                self._note_flushed(reached_offset)
            return self._flushed_offset

    @property
    def has_failed(self) -> bool:
        """Whether something could not be brought to the disk. Reads go on; writes fail until it is opened again."""
        with self._access as database:
            return rocks.number_of(database, "background-errors") > 0

    @property
    def snapshot_count(self) -> int:
        """Snapshots that somebody still has."""
        return len(self._snapshots)

    def get_many(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
        """Return the value of each key, None where there is none. More than ``bytes_max`` is a FlussError (13)."""
        values: list[bytes | None] = []
        bytes_left = bytes_max
        with self._access as database:
            while len(values) < len(keys):
                # One call returns no more than fits, or a single value.
                count = max(1, min(_GET_KEYS_MAX, bytes_left // max(1, self._value_bytes_max)))
                part: list[bytes] = list(keys[len(values) : len(values) + count])
                # Its stub asks for keys of mixed types, and knows nothing of lists of values.
                found: list[bytes | None] = database.get(part)  # type: ignore[arg-type,assignment]
                bytes_left -= sum(map(len, filter(None, found)))
                if bytes_left < 0:
                    raise FlussError(
                        f"The rows of these {len(keys)} keys have more than {bytes_max} bytes, which is the most that "
                        "may be read for one request; look up or write fewer keys at once",
                        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                    )
                values += found
        if _STATE_KEY in keys:
            values = [value if key else None for key, value in zip(keys, values, strict=True)]
        return values

    def get_cached(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
        """Return what ``get_many`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large: copying it would
        take too long.
        """
        if _STATE_KEY in keys or self._value_bytes_max > _CACHED_VALUE_BYTES_MAX:
            return None
        values: list[bytes | None] = []
        bytes_left = bytes_max
        with self._access as database:
            for key in keys:
                # With ``fetch`` it returns a pair, unlike what its stub says.
                may_exist, value = database.key_may_exist(key, fetch=True)  # type: ignore[misc]
                # Where a piece of an index is not in the cache the value comes out empty, as if it had been found.
                if may_exist and not value:
                    return None
                bytes_left -= len(value or b"")
                if bytes_left < 0:
                    return None
                values.append(value)
        return values

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None], state: KvState) -> None:
        """Put values under their keys, or remove the key where the value is None; of equal keys the last counts.

        Rows become visible part by part, the state with the last of them. When it fails the state is the old one, and
        any of the rows may be there: the same write again puts that right, and so does the changelog from the old
        state on.
        """
        _check_entries(keys, values)
        part_rows = _part_rows(keys, values)
        self._resources.write_buffers.make_room()
        with self._access as database, self._write_lock:
            state = self._with_longest(state, values)
            first = 0
            while len(keys) - first > part_rows:
                end = first + part_rows
                self._write_part(database, keys[first:end], values[first:end], None)
                first = end
                self._resources.sleep(_PART_PAUSE_S)
            self._write_part(database, keys[first:], values[first:], state)
            self._state = state

    def write_if_quick(self, keys: Sequence[bytes], values: Sequence[bytes | None], state: KvState) -> bool:
        """Write a few rows like ``write`` if that takes microseconds; if not return False, and nothing was written.

        It would take longer while somebody else writes or copies the store, and while the disk is behind.
        """
        _check_entries(keys, values)
        if not self._resources.write_buffers.has_room:
            return False
        with self._access as database:
            if not self._write_lock.acquire(blocking=False):
                return False
            try:
                state = self._with_longest(state, values)
                if not self._try_write_part(database, keys, values, state):
                    return False
                self._state = state
            finally:
                self._write_lock.release()
        return True

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
        with self._access as database, self._write_lock:
            reader = RowReader(rocks.scan(database, _ROW_KEY_FIRST, fill_cache=False), self.directory)
            snapshot = KvSnapshot(reader, self._state)
            self._snapshots.add(snapshot)
            return snapshot

    def flush(self) -> None:
        """Bring everything that was written before to the disk. After an error see ``has_failed``."""
        applied_offset = self._state.applied_offset
        with self._access as database:
            database.flush(True)
        self._note_flushed(applied_offset)

    def checkpoint(self, directory: Path) -> KvState:
        """Make a copy that opens as a store of its own, in a directory that must not exist yet; return its state.

        Tables are hard links. It is durable when this returns; one that was interrupted leaves at most a directory
        with the same name and the suffix ``.tmp``.
        """
        if directory.exists():
            raise FlussError(f"There is no room for a checkpoint: {directory} exists", ErrorCode.KV_STORAGE_EXCEPTION)
        _FILES.make_directory(directory.parent)
        # The first flush leaves little for the second, and the second nothing for the copy, which holds the GIL.
        self.flush()
        with self._access as database, self._write_lock:
            state = self._state
            database.flush(True)
            rocks.copy_database(database, directory)
        self._note_flushed(state.applied_offset)
        _FILES.sync_directory(directory)
        _FILES.sync_directory(directory.parent)
        return state

    def size_bytes(self) -> int:
        """Return the size of the tables on the disk and of what will be written to them."""
        with self._access as database:
            return rocks.number_of(database, "live-sst-files-size") + rocks.number_of(
                database, "cur-size-all-mem-tables"
            )

    def memory_bytes(self) -> int:
        """Return the memory of this store alone: write buffers, those of snapshots included, and open tables."""
        with self._access as database:
            return rocks.number_of(database, "size-all-mem-tables") + rocks.number_of(
                database, "estimate-table-readers-mem"
            )

    def close(self) -> None:
        """Flush, and give up the directory, which may be opened again at once. May be called twice.

        Calls that are under way are waited for, and snapshots are closed. When the flush fails the store is closed
        nevertheless, and the error is raised: the changelog has the rest.
        """
        with self._close_lock:
            database = self._access.close()
            if database is None:
                return
            self._resources.write_buffers.remove(self)
            for snapshot in list(self._snapshots):
                snapshot.close()
            try:
                database.close()
            except Exception as error:
                raise rocks.explain(error, self.directory) from error

    def buffer_sizes(self) -> BufferSizes:
        """Return how much is waiting in write buffers; what cannot be brought to the disk at all is not waiting."""
        with self._access as database:
            filling_bytes = rocks.number_of(database, "cur-size-active-mem-table")
            all_bytes = rocks.number_of(database, "cur-size-all-mem-tables")
            has_failed = rocks.number_of(database, "background-errors") > 0
        return BufferSizes(filling_bytes, 0 if has_failed else max(0, all_bytes - filling_bytes))

    def start_flush(self) -> None:
        """Let what was written before go to the disk, without waiting for it."""
        with self._access as database:
            database.flush(False)

    def _with_longest(self, state: KvState, values: Sequence[bytes | None]) -> KvState:
        """Note how long values are before anybody can find them."""
        self._value_bytes_max = max(self._value_bytes_max, max(map(len, filter(None, values)), default=0))
        return replace(state, value_bytes_max=self._value_bytes_max)

    def _write_part(
        self, database: rocks.Rdict, keys: Sequence[bytes], values: Sequence[bytes | None], state: KvState | None
    ) -> None:
        stalled_ms = 0
        while not self._try_write_part(database, keys, values, state):
            if stalled_ms >= self._resources.settings.stall_ms_max:
                raise FlussError(
                    f"The key-value store {self.directory} waited {stalled_ms} ms for the disk to catch up",
                    ErrorCode.KV_STORAGE_EXCEPTION,
                )
            self._resources.sleep(_STALL_PAUSE_MS / 1000)
            stalled_ms += _STALL_PAUSE_MS

    def _try_write_part(
        self, database: rocks.Rdict, keys: Sequence[bytes], values: Sequence[bytes | None], state: KvState | None
    ) -> bool:
        """Write once; return False, with nothing written, if the disk has to catch up first."""
        batch = rocks.write_batch()
        if None in values:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
        else:
            deque(map(batch.put, keys, values), maxlen=0)
        if state is not None:
            batch.put(_STATE_KEY, state.encode())
        entry_count = len(batch)
        try:
            database.write(batch)
        except Exception as error:
            if rocks.is_stall(error):
                return False
            raise
        self._look_at_buffer(database, entry_count)
        return True

    def _look_at_buffer(self, database: rocks.Rdict, entries_added: int) -> None:
        """See what the last part did to the write buffer."""
        entry_count = rocks.number_of(database, "num-entries-active-mem-table")
        if entry_count < self._buffered_entries + entries_added:
            # It was the first of a new one. The old one has everything up to the state before it.
            self._sealed_offset = self._state.applied_offset
        self._buffered_entries = entry_count
        if rocks.number_of(database, "num-deletes-active-mem-table") > _BUFFERED_REMOVALS_MAX:
            database.flush(False)

    def _note_flushed(self, offset: int) -> None:
        with self._flushed_lock:
            self._flushed_offset = max(self._flushed_offset, offset)

    def _scan(self, key_first: bytes, key_end: bytes | None, rows_max: int, bytes_max: int) -> list[bytes]:
        with self._access as database:
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


def _check_entries(keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    assert len(keys) == len(values), f"{len(keys)} keys and {len(values)} values"
    if _STATE_KEY in keys:
        raise CorruptRecordError("A row without a key cannot be stored")


def _part_rows(keys: Sequence[bytes], values: Sequence[bytes | None]) -> int:
    """Return how many rows one part of a write may have, judging by their average size."""
    byte_count = sum(map(len, keys)) + sum(map(len, filter(None, values)))
    return max(1, min(_PART_ROWS_MAX, _PART_BYTES_TARGET * len(keys) // max(1, byte_count)))


def _end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all those with a prefix, None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
