"""Whatever is done to a store, it has the rows of a dict to which the same was done.
A state machine: writes of all sizes, reads, snapshots, flushes, trouble, restarts, crashes and checkpoints. So few rows
are many here that they take every way there is: directly, by way of memtables, with flushes under way, as SST files."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluss.errors import FlussError
from fluss.record.mutations import Mutations
from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import bucket_prefix
from fluss.storage.kv.shared_database import UNFINISHED_SUFFIX, SharedDatabases
from fluss.storage.kv.store import IdBlock, KvResources, KvSnapshot, KvState, KvStore, remove_store
from fluss.storage.kv.store_home import StoreHome
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import (
    SMALL,
    Rows,
    apply,
    copy_as_after_a_crash,
    find,
    find_cached,
    first_rows,
    get_cached,
    get_many,
    keyed_rows,
    open_store,
    prefix_rows,
    random_batch,
    rows_in,
    rows_of,
    sorted_values,
    write,
)

# Bytes that matter for order and prefixes.
KEYS = st.text("\x00\x01a\xfe\xff", min_size=1, max_size=4).map(lambda text: text.encode("latin-1"))
VALUES = st.none() | st.binary(min_size=1, max_size=20) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 5000)
ROWS = st.lists(st.tuples(KEYS, VALUES), max_size=30)
IDS = st.none() | st.builds(IdBlock, st.just(1), st.just(2), st.just(9))
SNAPSHOTS_MAX = 3


class StoreMachine(RuleBasedStateMachine):
    """The model is the rows after every write, by applied offset."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.temporary = tempfile.TemporaryDirectory()
        # What a crash leaves a copy of, and the store in it.
        self.root = self.directory = Path(self.temporary.name) / "store"
        self.copy_count = 0
        self.rows: Rows = {}
        self.rows_at: dict[int, Rows] = {0: {}}
        self.snapshots: list[tuple[KvSnapshot, KvState, list[bytes]]] = []

    def teardown(self) -> None:
        self.patch.undo()
        self.close()
        self.temporary.cleanup()

    def open(self) -> KvStore:
        return KvStore.open(self.directory, self.resources)

    def close(self) -> None:
        self.store.close()

    @initialize(sst_rows_min=st.sampled_from((1, 8, 10**6)), direct_rows_max=st.sampled_from((0, 3, 20)))
    def choose_what_is_many(self, sst_rows_min: int, direct_rows_max: int) -> None:
        settings = replace(
            SMALL,
            sst_rows_min=sst_rows_min,
            direct_rows_max=direct_rows_max,
            filter_keys_min=sst_rows_min,
            # Flushes and filters take several writes.
            flush_rows_min=3,
            flush_rows_per_row=1,
            filter_keys_per_row=1,
            filter_step_keys=20,
            # A few large rows, or a few hundred small ones, are a large store.
            shared_store_bytes_max=20_000,
        )
        self.resources = KvResources(settings)
        self.store = self.open()

    @rule(rows=ROWS, cut=st.integers(0, 30), steps=st.integers(1, 5), ids=IDS)
    def write(self, rows: list[tuple[bytes, bytes | None]], cut: int, steps: int, ids: IdBlock | None) -> None:
        state, parts = self._changed([row for row in (rows[:cut], rows[cut:]) if row], steps, ids)
        self.store.write(parts, state)
        self._is_at(state)

    @rule(rows=st.lists(st.tuples(KEYS, VALUES), max_size=5), steps=st.integers(1, 5), ids=IDS)
    def write_if_quick(self, rows: list[tuple[bytes, bytes | None]], steps: int, ids: IdBlock | None) -> None:
        before, state_before = dict(self.rows), self.store.state
        state, parts = self._changed([rows], steps, ids)
        if self.store.write_if_quick(parts, state):
            self._is_at(state)
        else:
            self.rows = before
            assert self.store.state == state_before

    @rule(seed=st.integers(0, 10**6), row_counts=st.sampled_from(((40,), (300,), (300, 1), (300, 5, 40))))
    def write_many(self, seed: int, row_counts: tuple[int, ...]) -> None:
        """Fill the memtable; the next write, now or later, begins to flush them."""
        for number, row_count in enumerate(row_counts):
            keys, short = random_batch(seed + number, row_count, 300)
            values = [value and value * 8 for value in short]
            state, parts = self._changed([list(zip(keys, values, strict=True))], 1, None)
            self.store.write(parts, state)
            self._is_at(state)

    def _changed(
        self, parts: list[list[tuple[bytes, bytes | None]]], steps: int, ids: IdBlock | None
    ) -> tuple[KvState, list[Mutations]]:
        """Change the model; return what makes the same of the store."""
        changes = []
        for rows in parts:
            keys, values = [key for key, _ in rows], [value for _, value in rows]
            apply(self.rows, keys, values)
            changes.append(keyed_rows(keys, values))
        return KvState(self.store.state.applied_offset + steps, len(self.rows), ids), changes

    def _is_at(self, state: KvState) -> None:
        self.rows_at[state.applied_offset] = dict(self.rows)
        assert self.store.state == state

    @rule(keys=st.lists(KEYS | st.just(b""), max_size=10), seed=st.integers(0, 100))
    def get(self, keys: list[bytes], seed: int) -> None:
        keys = keys + random_batch(seed, 10, 300)[0]
        expected = [self.rows.get(key) for key in keys]
        assert get_cached(self.store, keys) in (None, expected)
        assert get_many(self.store, keys) == expected
        assert get_cached(self.store, keys) in (None, expected)

    @rule(keys=st.lists(KEYS, max_size=10), count=st.sampled_from((0, 10, 1000)))
    def find(self, keys: list[bytes], count: int) -> None:
        keys = keys + sorted(self.rows)[:count]
        expected = [self.rows.get(key) for key in keys]
        assert find_cached(self.store, keys) in (None, expected)
        assert find(self.store, keys) == expected
        assert find_cached(self.store, keys) in (None, expected)

    @rule(prefix=KEYS | st.just(b""))
    def read_prefix(self, prefix: bytes) -> None:
        expected = [self.rows[key] for key in sorted(self.rows) if key.startswith(prefix)]
        assert prefix_rows(self.store, prefix) == expected

    @rule(count=st.integers(0, 10))
    def read_first(self, count: int) -> None:
        assert first_rows(self.store, count) == sorted_values(self.rows)[:count]

    @precondition(lambda self: len(self.snapshots) < SNAPSHOTS_MAX)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.store.snapshot(), self.store.state, sorted_values(self.rows)))

    @precondition(lambda self: self.snapshots)
    @rule(bytes_target=st.sampled_from((0, 100, 6000)), rows_max=st.integers(1, 10))
    def read_snapshot(self, bytes_target: int, rows_max: int) -> None:
        snapshot, state, remaining = self.snapshots.pop(0)
        assert snapshot.state == state
        assert snapshot.has_more == bool(remaining)
        values = snapshot.read(bytes_target, rows_max)
        assert rows_in(values) == remaining[: len(values)]
        assert len(values) <= rows_max
        assert values or not remaining
        if len(values) < rows_max and len(values) < len(remaining):
            assert sum(map(len, values)) >= bytes_target > sum(map(len, values[:-1])) or bytes_target == 0
        if snapshot.has_more:
            self.snapshots.append((snapshot, state, remaining[len(values) :]))
        else:
            assert len(values) == len(remaining)
            snapshot.close()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.flushed_offset == self.store.state.applied_offset

    @rule()
    def release(self) -> None:
        self.store.release()
        assert self.store.flushed_offset == self.store.state.applied_offset or self.store.shared is not None

    @rule(fault_count=st.integers(1, 2))
    def have_trouble(self, fault_count: int) -> None:
        """Tables cannot be taken in for a while: what fails changes nothing."""

        def fail(*_: object) -> None:
            raise Exception("IO error: No space left on device")

        before = self.store.state, self.store.flushed_offset
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rocks, "ingest", fail)
            for _ in range(fault_count):
                with suppress(FlussError):
                    self.store.flush()
                    before = self.store.state, self.store.state.applied_offset
        assert (self.store.state, self.store.flushed_offset) == before

    @rule()
    def restart(self) -> None:
        state = self.store.state
        self.snapshots.clear()
        self.close()
        assert self.resources.buffered_bytes == 0
        self.store = self.open()
        assert self.store.state == state
        # In a shared database it is not known.
        assert self.store.flushed_offset == (state.applied_offset if self.store.shared is None else 0)

    @rule()
    def crash_and_replay(self) -> None:
        state, flushed_offset = self.store.state, self.store.flushed_offset
        left = self._new_directory()
        copy_as_after_a_crash(self.root, left)
        self.snapshots.clear()
        self.close()
        remove_store(self.root)
        left.rename(self.root)
        self.store = self.open()
        assert not list(self.root.rglob(f"*{UNFINISHED_SUFFIX}"))
        applied_offset = self.store.state.applied_offset
        assert flushed_offset <= applied_offset <= state.applied_offset
        found = self.rows_at[applied_offset]
        assert rows_of(self.store) == sorted_values(found)
        keys = [*found, *self.rows]
        write(self.store, keys, [self.rows.get(key) for key in keys], state)

    @rule()
    def checkpoint(self) -> None:
        directory = self._new_directory()
        state = self.store.checkpoint(directory)
        assert state == self.store.state
        with open_store(directory, KvResources(KvStoreSettings())) as copy:
            assert copy.state == state
            assert rows_of(copy) == sorted_values(self.rows)

    @invariant()
    def finds_what_it_has(self) -> None:
        keys = [b"key-%06d" % number for number in range(0, 300, 7)] + [key for key in self.rows if len(key) < 5]
        expected = [self.rows.get(key) for key in keys]
        assert find(self.store, keys) == expected
        assert get_cached(self.store, keys) in (None, expected)

    @invariant()
    def promises_no_more_than_it_has(self) -> None:
        assert self.store.flushed_offset <= self.store.state.applied_offset
        assert not self.store.has_failed

    def _new_directory(self) -> Path:
        self.copy_count += 1
        return Path(self.temporary.name) / f"copy-{self.copy_count}"


class SharedStoreMachine(StoreMachine):
    """The same with a store that shares a database with others, and moves when it is large or at any other time."""

    BUCKET = (7, None, 255)
    # Just before and just behind it, in tables and partitions whose codes are alike, and in the same database.
    NEIGHBOURS = ((7, None, 254), (7, None, 256), (7, 0, 255), (15, None, 0))
    NEIGHBOUR_KEYS = (b"\x00", b"key-000001", b"\xff")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(self.temporary.name) / "data"
        self.directory = self.root / "kv-255"

    def open(self) -> KvStore:
        self.databases = SharedDatabases(self.root, self.resources)
        shared = self.databases.of_table(self.BUCKET[0])
        self.neighbours = []
        for neighbour in self.NEIGHBOURS:
            store = KvStore.open_shared(self.root / "nowhere", self.resources, shared, bucket_prefix(*neighbour))
            if not store.has_state:
                write(store, self.NEIGHBOUR_KEYS, [b"neighbour"] * 3, KvState(3))
            self.neighbours.append(store)
        table_id, partition_id, bucket_id = self.BUCKET
        home = StoreHome(
            *(self.directory, self.resources, self.databases),
            table_id=table_id,
            partition_id=partition_id,
            bucket_id=bucket_id,
        )
        store = home.open()
        assert store is not None
        return store

    def close(self) -> None:
        for store in (self.store, *self.neighbours):
            store.close()
        self.databases.close()

    @rule()
    def promote(self) -> None:
        state = self.store.state
        self.store.promote()
        assert self.store.state == state

    @precondition(lambda self: self.store.is_promotion_due)
    @rule()
    def promote_what_is_large(self) -> None:
        self.promote()

    @rule()
    def flush_with_all_others(self) -> None:
        self.store.flush_to_shared()
        for store in self.neighbours:
            store.flush()

    @invariant()
    def neighbours_have_what_they_had(self) -> None:
        for store in self.neighbours:
            assert rows_of(store) == [b"neighbour"] * 3
            assert get_many(store, self.NEIGHBOUR_KEYS) == [b"neighbour"] * 3


TestStore = StoreMachine.TestCase
TestStore.settings = settings(stateful_step_count=40)
TestSharedStore = SharedStoreMachine.TestCase
TestSharedStore.settings = settings(stateful_step_count=40)
