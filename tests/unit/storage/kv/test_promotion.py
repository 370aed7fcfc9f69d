"""A crash while a small store moves to a database of its own, or is copied, leaves one of both and all of its rows.
The files are copied before and after every step, and opened as after a crash."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.shared_database import SharedDatabase, SharedDatabases
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_home import StoreHome
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import (
    SMALL,
    Rows,
    copy_as_after_a_crash,
    find,
    rows_of,
    sorted_values,
    write,
    write_batch,
)

# Every store is large that has a few hundred rows.
SETTINGS = replace(SMALL, shared_store_bytes_max=10_000, write_buffer_bytes=2**20)
TABLE_ID = 3


class Data:
    """A data directory with the homes of some buckets of a table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.resources = KvResources(SETTINGS)
        self.databases = SharedDatabases(root, self.resources)
        self._opened: list[KvStore] = []

    def home(self, bucket_id: int = 0) -> StoreHome:
        directory = self.root / f"kv-{bucket_id}"
        return StoreHome(
            directory, self.resources, self.databases, table_id=TABLE_ID, partition_id=None, bucket_id=bucket_id
        )

    def open(self, bucket_id: int = 0) -> KvStore:
        store = self.home(bucket_id).open()
        assert store is not None
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self.databases.close()


@contextmanager
def opened(root: Path) -> Iterator[Data]:
    data = Data(root)
    try:
        yield data
    finally:
        data.close()


class Crashes:
    """Copies a data directory before and after the steps of RocksDB and of the disk that are taken meanwhile."""

    def __init__(self, root: Path, copies: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._copies = copies
        self.count = 0
        for target, name in (
            (rocks, "remove_database"),
            (rocks, "sst_writer"),
            (rocks, "open_database"),
            (rocks, "ingest"),
            (SharedDatabase, "remove"),
        ):
            patch.setattr(target, name, self._around(getattr(target, name)))

    def _around(self, step):
        def taking_copies(*arguments, **options):
            self.copy()
            result = step(*arguments, **options)
            self.copy()
            return result

        return taking_copies

    def copy(self) -> None:
        copy_as_after_a_crash(self._root, self._copies / str(self.count))
        self.count += 1

    @property
    def left(self) -> list[Path]:
        return [self._copies / str(number) for number in range(self.count)]


def test_a_crash_at_any_step_of_a_move_leaves_all_rows_in_one_place(tmp_path, monkeypatch):
    model: Rows = {}
    with opened(tmp_path / "data") as data:
        store, neighbour = data.open(), data.open(1)
        write_batch(neighbour, {}, 7)
        write_batch(store, model, 1)
        store.flush()
        before = dict(model)
        write_batch(store, model, 2)
        assert store.shared is not None
        with monkeypatch.context() as patch:
            crashes = Crashes(tmp_path / "data", tmp_path / "copies", patch)
            store.promote()
            assert store.shared is None
            removed = eventually_removed(data)
            store.close()
            neighbour.close()
    assert removed
    assert crashes.count >= 10
    moved = 0
    for left in crashes.left:
        with opened(left) as data:
            store = data.open()
            # What was flushed before may be all that is there; the changelog has the rest.
            rows = dict({1: before, 2: model}[store.state.applied_offset])
            assert rows_of(store) == sorted_values(rows)
            if store.shared is None:
                moved += 1
                assert not home_is_shared(data), "the rows in both places"
            else:
                assert not (left / "kv-0").exists(), "what a move has left"
            write_batch(store, rows, 3)
            store.close()
            store = data.open()
            assert rows_of(store) == sorted_values(rows)
            store.close()
    assert 0 < moved < crashes.count


def home_is_shared(data: Data, bucket_id: int = 0) -> bool:
    return data.home(bucket_id)._is_in_shared()


def eventually_removed(data: Data) -> bool:
    eventually(lambda: not home_is_shared(data))
    return True


def test_a_crash_at_any_step_of_a_copy_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    model: Rows = {}
    with opened(tmp_path / "data") as data:
        store = data.open()
        write_batch(store, model, 1)
        store.flush()
        with monkeypatch.context() as patch:
            crashes = Crashes(tmp_path / "data", tmp_path / "copies", patch)
            assert store.checkpoint(tmp_path / "data" / "copy").applied_offset == 1
        assert store.shared is not None
        copy = KvStore.open(tmp_path / "data" / "copy", data.resources)
        assert (copy.state, rows_of(copy)) == (store.state, sorted_values(model))
        copy.close()
        store.close()
    for left in crashes.left:
        with opened(left) as data:
            store = data.open()
            assert store.shared is not None
            assert rows_of(store) == sorted_values(model)
            store.close()


def test_a_small_copy_comes_back_into_a_shared_database_and_a_large_one_does_not(tmp_path):
    with opened(tmp_path) as data:
        for bucket_id, row_count in ((0, 20), (1, 400)):
            model: Rows = {}
            store = data.open(bucket_id)
            write_batch(store, model, 1, row_count=row_count)
            state = store.checkpoint(tmp_path / f"copy-{bucket_id}")
            store.close()
            home = data.home(bucket_id)
            home.remove()
            copy = home.open_copy(tmp_path / f"copy-{bucket_id}")
            home.restore(copy)
            copy.close()
            store = data.open(bucket_id)
            assert (store.shared is not None) == (bucket_id == 0)
            assert (store.state, rows_of(store)) == (state, sorted_values(model))
            store.close()


def test_what_was_removed_does_not_come_back_after_a_crash(tmp_path):
    with opened(tmp_path / "data") as data:
        store = data.open()
        write_batch(store, {}, 1)
        store.flush()
        store.close()
        data.home().remove()
        copy_as_after_a_crash(tmp_path / "data", tmp_path / "left")
    with opened(tmp_path / "left") as data:
        store = data.open()
        assert (store.state, rows_of(store)) == (KvState(), [])
        store.close()


def test_few_rows_that_are_written_again_and_again_stay_small(tmp_path):
    with opened(tmp_path) as data:
        store, model = data.open(), {}
        for number in range(1, 40):
            write_batch(store, model, number, row_count=30, key_count=20)
            if store.is_promotion_due:
                store.promote()
        assert store.shared is not None
        assert not (tmp_path / "kv-0").exists()
        assert rows_of(store) == sorted_values(model)
        store.close()


def test_a_memtable_that_is_full_goes_to_a_database_of_its_own(tmp_path):
    with opened(tmp_path) as data:
        store, model = data.open(), {}
        number = 0
        while store.shared is not None:
            number += 1
            write_batch(store, model, number, row_count=3000, key_count=10_000)
        eventually(lambda: not home_is_shared(data))
        assert rows_of(store) == sorted_values(model)
        store.close()
        store = data.open()
        assert store.shared is None
        assert rows_of(store) == sorted_values(model)
        store.close()


def test_a_move_that_fails_leaves_everything_as_it_was(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise Exception("IO error: No space left on device")

    with opened(tmp_path) as data:
        store, model = data.open(), {}
        write_batch(store, model, 1, row_count=1000)
        with monkeypatch.context() as patch:
            patch.setattr(rocks, "ingest", fail)
            with pytest.raises(FlussError, match="No space"):
                store.promote()
        shared = store.shared
        assert shared is not None
        assert not shared.is_damaged
        assert rows_of(store) == sorted_values(model)
        store.close()
        store = data.open()
        assert store.shared is shared
        assert rows_of(store) == sorted_values(model)
        store.promote()
        assert store.shared is None
        store.close()


def test_lookups_and_writes_go_on_while_a_store_moves(tmp_path):
    with opened(tmp_path) as data:
        store, model = data.open(), {}
        write_batch(store, model, 1, row_count=2000, key_count=3000)
        keys = sorted(model)
        expected = sorted_values(model)
        problems: list[object] = []
        is_over = threading.Event()

        def look_up() -> None:
            while not is_over.is_set():
                if find(store, keys) != expected:
                    problems.append("rows were missing")

        readers = [threading.Thread(target=look_up) for _ in range(3)]
        for reader in readers:
            reader.start()
        number = 1
        try:
            mover = threading.Thread(target=store.promote)
            mover.start()
            while mover.is_alive():
                number += 1
                # The same rows, so that lookups know what to find.
                store.write([], KvState(number, len(model)))
            mover.join()
            eventually(lambda: not home_is_shared(data))
        finally:
            is_over.set()
            for reader in readers:
                reader.join()
        assert not problems
        assert store.shared is None
        assert store.state.applied_offset == number
        store.close()
        store = data.open()
        assert (store.state.applied_offset, rows_of(store)) == (number, expected)
        store.close()


def test_without_sharing_small_stores_move_when_they_are_opened(tmp_path):
    with opened(tmp_path) as data:
        store, model = data.open(), {}
        write_batch(store, model, 1, row_count=3)
        store.close()
    data = Data(tmp_path)
    data.resources = KvResources(replace(SETTINGS, shared_store_bytes_max=0))
    data.databases = SharedDatabases(tmp_path, data.resources)
    store = data.open()
    assert store.shared is not None
    assert store.is_promotion_due
    store.promote()
    assert store.shared is None
    assert rows_of(store) == sorted_values(model)
    store.close()
    other = data.open(1)
    assert other.shared is None
    other.close()
    data.databases.close()


def test_a_scan_in_a_shared_database_ends_where_its_prefix_does(tmp_path):
    with opened(tmp_path) as data:
        store = data.open()
        write(store, [b"%03d" % number for number in range(1000)], [b"x"] * 1000, KvState(1))
        for number in range(500):
            prefix = b"%02d" % (number % 100)
            # The library has a pointer to the end, and no copy of it: what else takes its memory must not matter.
            noise = [bytes([number % 256]) * length for length in range(1, 40)]
            assert len(store.prefix_values(prefix, bytes_max=10**6)) == 10
            assert len(store.first_values(10**6, bytes_max=10**6)) == 1000
            del noise
