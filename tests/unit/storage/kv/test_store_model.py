"""Whatever is done to a store, it has the rows of a dict to which the same was done.
A state machine: writes, reads, snapshots, flushes, restarts, crashes and checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import IdBlock, KvResources, KvSnapshot, KvState, KvStore, remove_store
from tests.unit.storage.kv.support import (
    BYTES_MAX,
    SMALL,
    Rows,
    apply,
    copy_as_after_a_crash,
    open_store,
    rows_of,
    sorted_values,
)

# Bytes that matter for order and prefixes.
KEYS = st.text("\x00\x01a\xfe\xff", min_size=1, max_size=4).map(lambda text: text.encode("latin-1"))
VALUES = st.none() | st.binary(max_size=20) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 5000)
ROWS = st.lists(st.tuples(KEYS, VALUES), max_size=30)
SNAPSHOTS_MAX = 3


class StoreMachine(RuleBasedStateMachine):
    """The model is the rows after every write, by applied offset."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.directory = Path(self.temporary.name) / "store"
        self.copy_count = 0
        self.resources = KvResources(SMALL)
        self.store = KvStore.open(self.directory, self.resources)
        self.rows: Rows = {}
        self.rows_at: dict[int, Rows] = {0: {}}
        self.snapshots: list[tuple[KvSnapshot, KvState, list[bytes]]] = []

    def teardown(self) -> None:
        self.store.close()
        self.temporary.cleanup()

    @rule(rows=ROWS, steps=st.integers(1, 5), ids=st.none() | st.builds(IdBlock, st.just(1), st.just(2), st.just(9)))
    def write(self, rows: list[tuple[bytes, bytes | None]], steps: int, ids: IdBlock | None) -> None:
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        apply(self.rows, keys, values)
        state = KvState(self.store.state.applied_offset + steps, len(self.rows), ids)
        self.store.write(keys, values, state)
        self.rows_at[state.applied_offset] = dict(self.rows)
        assert self.store.state == state

    @rule(keys=st.lists(KEYS | st.just(b""), max_size=10))
    def get(self, keys: list[bytes]) -> None:
        expected = [self.rows.get(key) for key in keys]
        assert self.store.get_cached(keys) in (None, expected)
        assert self.store.get_many(keys) == expected
        assert self.store.get_cached(keys) in (None, expected)

    @rule(prefix=KEYS | st.just(b""))
    def read_prefix(self, prefix: bytes) -> None:
        expected = [self.rows[key] for key in sorted(self.rows) if key.startswith(prefix)]
        assert self.store.prefix_values(prefix, bytes_max=BYTES_MAX) == expected

    @rule(count=st.integers(0, 10))
    def read_first(self, count: int) -> None:
        assert self.store.first_values(count, bytes_max=BYTES_MAX) == sorted_values(self.rows)[:count]

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
        assert values == remaining[: len(values)]
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
    def restart(self) -> None:
        state = self.store.state
        self.snapshots.clear()
        self.store.close()
        self.store = KvStore.open(self.directory, self.resources)
        assert self.store.state == state
        assert self.store.flushed_offset == state.applied_offset

    @rule()
    def crash_and_replay(self) -> None:
        state, flushed_offset = self.store.state, self.store.flushed_offset
        left = self._new_directory()
        copy_as_after_a_crash(self.directory, left)
        self.snapshots.clear()
        self.store.close()
        remove_store(self.directory)
        left.rename(self.directory)
        self.store = KvStore.open(self.directory, self.resources)
        applied_offset = self.store.state.applied_offset
        assert flushed_offset <= applied_offset <= state.applied_offset
        found = self.rows_at[applied_offset]
        assert rows_of(self.store) == sorted_values(found)
        keys = [*found, *self.rows]
        self.store.write(keys, [self.rows.get(key) for key in keys], state)

    @rule()
    def checkpoint(self) -> None:
        directory = self._new_directory()
        state = self.store.checkpoint(directory)
        assert state == self.store.state
        with open_store(directory, KvResources(KvStoreSettings())) as copy:
            assert copy.state == state
            assert rows_of(copy) == sorted_values(self.rows)

    @invariant()
    def promises_no_more_than_it_has(self) -> None:
        assert self.store.flushed_offset <= self.store.state.applied_offset
        assert not self.store.has_failed

    def _new_directory(self) -> Path:
        self.copy_count += 1
        return Path(self.temporary.name) / f"copy-{self.copy_count}"


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
