"""Writing a few rows at a time: to a memtable that has rows, or directly to the database.

Stores that share a database are written at once, see ``write_to_stores``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from fluss.errors import CorruptRecordError, FlussError
from fluss.record.mutations import Mutations, copied_entries
from fluss.record.value_batch import SCHEMA_ID_BYTES
from fluss.storage.kv import rocks
from fluss.storage.kv.flush import MemtableFlush
from fluss.storage.kv.memtable import MEMTABLE_BYTES_MAX
from fluss.storage.kv.place import Place
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.state import KvState, SharedState
from fluss.storage.kv.store_lookups import StoreLookups

_DIRECT_BYTES_MAX: Final = 256 * 1024
# Rows that stores write to the database they share at once: RocksDB takes them with the GIL held.
_ROWS_AT_ONCE: Final = 1024


class StoreWrites(StoreLookups, ABC):
    """What a ``KvStore`` does with new rows before they are flushed."""

    __slots__ = (
        "_database_state",
        "_flush",
        "_flush_lock",
        "_resources",
        "_state",
        "_write_lock",
        "_written_bytes",
    )

    _resources: KvResources
    # As of the last write, and what of it the database has.
    _state: KvState
    _database_state: KvState
    # Of a small store, in bytes: it may be time for a database of its own.
    _written_bytes: int
    _flush: MemtableFlush | None
    # A thread that takes both takes the flush lock first.
    _flush_lock: threading.Lock
    _write_lock: threading.Lock

    @abstractmethod
    def write(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Have new rows, the oldest first, and with them a new state."""

    def write_if_quick(self, changes: Sequence[Mutations], state: KvState) -> bool:
        """Write a few rows like ``write`` if that takes microseconds; if not return False, and nothing was written.

        It would take longer while another thread writes, flushes or copies the store, and while the disk is behind.
        """
        write = _QuickWrite.begin(self, changes, state)
        if write is None:
            return False
        with write:
            if not write.is_direct:
                write.add_to_memtable()
                return True
            if not rocks.write(write.place.database, _filled([write])):
                return False
            write.note_written()
            return True

    def _stored(self, state: KvState, byte_count: int = 0) -> bytes:
        """Return what is stored of a state, with so many bytes that are written together with it."""
        is_shared = self._database.place.shared is not None
        return SharedState(state, self._written_bytes + byte_count).encode() if is_shared else state.encode()

    def _add(self, changes: Sequence[Mutations], state: KvState) -> None:
        """Add to the memtable. The caller has the write lock."""
        state = self._with_longest(state, changes)
        memtable, byte_count = self._memtables[0], self._memtables[0].byte_count
        for mutations in changes:
            memtable.add(mutations)
            self._written_bytes += mutations.byte_count
        self._resources.write_buffers.note(memtable.byte_count - byte_count)
        self._state = state

    def _with_longest(self, state: KvState, changes: Sequence[Mutations]) -> KvState:
        """Note how long values are before a lookup can find them."""
        for mutations in changes:
            if longest := mutations.sizes.row_bytes_max:
                self._value_bytes_max = max(self._value_bytes_max, SCHEMA_ID_BYTES + longest)
        return KvState(state.applied_offset, state.row_count, state.ids, self._value_bytes_max)

    @property
    def _is_memtable_full(self) -> bool:
        """Whether the memtable has to be flushed before more rows are added."""
        return self._memtables[0].byte_count >= min(self._resources.settings.write_buffer_bytes, MEMTABLE_BYTES_MAX)


class _QuickWrite:
    """A few rows on their way into a store, whose database and locks it holds until it ends."""

    __slots__ = ("_byte_count", "_state", "_store", "changes", "row_count")

    def __init__(self, store: StoreWrites, changes: Sequence[Mutations], state: KvState, byte_count: int) -> None:
        self._store = store
        self.changes = changes
        self._state = state
        self._byte_count = byte_count
        self.row_count = sum(map(len, changes))

    @classmethod
    def begin(cls, store: StoreWrites, changes: Sequence[Mutations], state: KvState) -> _QuickWrite | None:
        """Take hold of a store for a few rows; None if they are many, or if anything would have to be waited for."""
        check_keys(changes)
        resources = store._resources
        byte_count = sum([mutations.byte_count for mutations in changes])
        write = cls(store, changes, state, byte_count)
        if (
            write.row_count > resources.settings.direct_rows_max
            or byte_count > _DIRECT_BYTES_MAX
            or not resources.write_buffers.has_room()
            or store._is_memtable_full
        ):
            return None
        store._database.__enter__()
        if store._flush_lock.acquire(blocking=False):
            if store._flush is None and store._write_lock.acquire(blocking=False):
                return write
            store._flush_lock.release()
        store._database.__exit__(None, None, None)
        return None

    def __enter__(self) -> _QuickWrite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        self._store._database.__exit__(kind, error, trace)

    def end(self) -> None:
        """Let go of the store. Whatever RocksDB has raised was explained before."""
        self._release()
        self._store._database.__exit__(None, None, None)

    def _release(self) -> None:
        self._store._write_lock.release()
        self._store._flush_lock.release()

    @property
    def place(self) -> Place:
        return self._store._database.place

    @property
    def is_direct(self) -> bool:
        """Whether the rows go to the database. If the memtable has rows it would hide them."""
        return not any(map(len, self._store._memtables))

    def add_to_memtable(self) -> None:
        self._store._add(self.changes, self._state)

    def fill(self, batch: rocks.WriteBatch, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add the rows and the state to what is written to the database."""
        store = self._store
        self._state = store._with_longest(self._state, self.changes)
        store._is_database_empty = False
        for mutations in self.changes:
            store._filter.add(mutations.keys.keys)
        self.place.fill(batch, keys, values, store._stored(self._state, self._byte_count))

    def explain(self, error: Exception) -> FlussError:
        """Return what an error of RocksDB means for the store."""
        return self.place.explain(error, self._store.directory)

    def note_written(self) -> None:
        """Note that the database has what it was filled with."""
        store = self._store
        store._written_bytes += self._byte_count
        store._state = store._database_state = self._state


class StoreWrite(NamedTuple):
    """New rows of a store, the oldest first, and with them a new state."""

    store: StoreWrites
    changes: Sequence[Mutations]
    state: KvState


def write_to_stores(writes: Sequence[StoreWrite]) -> list[FlussError | None]:
    """Write to many stores, as ``write`` does to one, and a few rows to stores of one database at once.

    Returns for each of them what has failed, if anything has.
    """
    outcomes = write_to_stores_if_quick(writes)
    failures: list[FlussError | None] = []
    for (store, changes, state), outcome in zip(writes, outcomes, strict=True):
        failure = outcome if isinstance(outcome, FlussError) else None
        if outcome is False:
            try:
                store.write(changes, state)
            except FlussError as error:
                failure = error
        failures.append(failure)
    return failures


def write_to_stores_if_quick(writes: Sequence[StoreWrite]) -> list[FlussError | bool]:
    """Write a few rows to each of many stores, those of one database at once, as ``write_if_quick`` does to one.

    Returns what that would return for each, or the error that it would raise.
    """
    outcomes: list[FlussError | bool] = [False] * len(writes)
    direct: dict[int, list[tuple[int, _QuickWrite]]] = {}
    held: list[_QuickWrite] = []
    try:
        for number, (store, changes, state) in enumerate(writes):
            try:
                write = _QuickWrite.begin(store, changes, state)
            except FlussError as error:
                outcomes[number] = error
                continue
            if write is None:
                continue
            held.append(write)
            if write.is_direct:
                direct.setdefault(id(write.place.database), []).append((number, write))
            else:
                write.add_to_memtable()
                outcomes[number] = True
        for numbered in direct.values():
            for piece in _pieces(numbered):
                _write_at_once(piece, outcomes)
    finally:
        for write in held:
            write.end()
    return outcomes


def _write_at_once(numbered: Sequence[tuple[int, _QuickWrite]], outcomes: list[FlussError | bool]) -> None:
    """Write the rows of stores of one database as one batch, and note what has become of them under their numbers."""
    batch = _filled([write for _, write in numbered])
    try:
        is_written = rocks.write(numbered[0][1].place.database, batch)
    except Exception as error:
        for number, write in numbered:
            outcomes[number] = write.explain(error)
        return
    if is_written:
        for number, write in numbered:
            write.note_written()
            outcomes[number] = True


def _filled(writes: Sequence[_QuickWrite]) -> rocks.WriteBatch:
    """Return all rows and states as one batch for the database of the stores."""
    batch = rocks.write_batch()
    keys, values = copied_entries(mutations for write in writes for mutations in write.changes)
    first = 0
    for write in writes:
        end = first + write.row_count
        write.fill(batch, keys[first:end], values[first:end])
        first = end
    return batch


def _pieces(numbered: Sequence[tuple[int, _QuickWrite]]) -> Iterator[Sequence[tuple[int, _QuickWrite]]]:
    """Cut writes into pieces of not too many rows."""
    first, row_count = 0, 0
    for index, (_, write) in enumerate(numbered):
        if index > first and row_count + write.row_count > _ROWS_AT_ONCE:
            yield numbered[first:index]
            first, row_count = index, 0
        row_count += write.row_count
    yield numbered[first:]


def check_keys(changes: Sequence[Mutations]) -> None:
    """Refuse rows without a key."""
    for mutations in changes:
        if mutations.sizes.key_bytes_min == 0:
            raise CorruptRecordError("A row without a key cannot be stored")
