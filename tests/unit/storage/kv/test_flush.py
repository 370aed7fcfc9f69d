"""What a crash leaves is what ``flushed_offset`` promised or more, however the rows reached the disk.
Copies of the files of an open store stand for the crash."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import (
    SMALL,
    Rows,
    copy_as_after_a_crash,
    first_rows,
    get_many,
    open_store,
    rows_of,
    sorted_values,
    write,
    write_batch,
)


def state_after_a_crash(directory: Path, copy: Path) -> KvState:
    copy_as_after_a_crash(directory, copy)
    with open_store(copy) as store:
        return store.state


@pytest.mark.parametrize("more", [0, 500, 10_000], ids=["a few rows", "a memtable", "rows for an SST file"])
def test_only_what_was_flushed_survives(tmp_path: Path, more: int) -> None:
    others = [b"c%05d" % number for number in range(more)]
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        write(store, [b"a", *others], [b"1", *others], KvState(1, 1 + more))
        assert store.flushed_offset == 0
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "before")
        store.flush()
        assert store.flushed_offset == 1
        write(store, [b"b", *others], [b"2", *others], KvState(2, 2 + more))
        assert store.flushed_offset == 1
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "after")
        store.flush()
        store.flush()
        assert store.flushed_offset == 2
    with open_store(tmp_path / "before") as copy:
        assert copy.state == KvState()
        assert rows_of(copy) == []
    with open_store(tmp_path / "after") as copy:
        assert copy.state == KvState(1, 1 + more)
        assert rows_of(copy) == [b"1", *others]


@pytest.mark.parametrize(
    ("row_count", "sst_rows_min"),
    [(200, 1), (200, 10**9), (100, 10**9)],
    ids=["as tables", "through the write buffer", "written directly"],
)
def test_full_memory_goes_to_the_disk_by_itself_and_the_offset_follows(
    tmp_path: Path, row_count: int, sst_rows_min: int
) -> None:
    # What there is room for: in the memtable, in one that is being flushed, and in a write buffer, which gets only the
    # newest rows of the keys that all batches share.
    lag = 30
    models: list[Rows] = [{}]
    with open_store(tmp_path / "store", KvResources(replace(SMALL, sst_rows_min=sst_rows_min))) as store:
        for number in range(1, 81):
            models.append(dict(models[-1]))
            write_batch(store, models[-1], number, row_count=row_count)
            flushed_offset = store.flushed_offset
            assert flushed_offset <= number
            if number % 40 == 0:
                copy = tmp_path / f"copy-{number}"
                eventually(
                    lambda copy=copy, expected=number - lag: (
                        state_after_a_crash(tmp_path / "store", copy).applied_offset >= expected
                    )
                )
                with open_store(copy) as left:
                    assert flushed_offset <= left.state.applied_offset <= number
                    assert rows_of(left) == sorted_values(models[left.state.applied_offset])
                if sst_rows_min == 1:
                    assert store.flushed_offset >= number - lag


def test_a_flush_beside_writes_promises_no_more_than_it_has(tmp_path: Path) -> None:
    keys = [b"%04d" % number for number in range(500)]
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        is_over = threading.Event()

        def write_on() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                # Recent rows, and now and then a few.
                write(store, keys[:: 1 + number % 7], [b"%d" % number] * len(keys[:: 1 + number % 7]), KvState(number))

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            for number in range(10):
                before = store.state.applied_offset
                store.flush()
                flushed_offset = store.flushed_offset
                assert flushed_offset >= before
                left = state_after_a_crash(tmp_path / "store", tmp_path / f"copy-{number}")
                assert flushed_offset <= left.applied_offset <= store.state.applied_offset
        finally:
            is_over.set()
            thread.join()
        assert store.flushed_offset <= store.state.applied_offset
        store.flush()
        assert store.flushed_offset == store.state.applied_offset


def test_a_flush_of_nothing_but_a_state_is_noticed(tmp_path: Path) -> None:
    keys = [b"%04d" % number for number in range(500)]
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        write(store, keys, keys, KvState(1, 500))
        first_rows(store, 1)
        assert store.flushed_offset == 0
        store.write([], KvState(2, 500))
        assert store.flushed_offset == 0
        store.flush()
        assert store.flushed_offset == 2
        assert state_after_a_crash(tmp_path / "store", tmp_path / "copy") == KvState(2, 500)


@pytest.mark.parametrize("row_count", [5000, 125], ids=["a memtable", "a few rows at a time"])
def test_many_removals_do_not_stay_in_the_write_buffer(tmp_path: Path, row_count: int) -> None:
    keys = [b"%06d" % number for number in range(60_000)]
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        for start in range(0, len(keys), row_count):
            if start == 50_000:
                assert list((tmp_path / "store").glob("*.sst")) == []
            write(store, keys[start : start + row_count], [None] * row_count, KvState(start + row_count, 0))
            # A scan has them in the write buffer first.
            assert first_rows(store, 1) == []
        eventually(lambda: any((tmp_path / "store").glob("*.sst")))
        eventually(lambda: state_after_a_crash(tmp_path / "store", tmp_path / "copy").applied_offset >= 50_000)


def test_many_removals_at_once_are_a_table(tmp_path: Path) -> None:
    keys = [b"%06d" % number for number in range(60_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        write(store, keys[:100], keys[:100], KvState(1, 100))
        write(store, keys, [None] * 60_000, KvState(2, 0))
        assert rows_of(store) == []
        assert store.flushed_offset == 2
        assert get_many(store, keys[:200]) == [None] * 200


@pytest.mark.parametrize("row_count", [20, 200])
def test_a_store_that_is_closed_has_flushed(tmp_path: Path, row_count: int) -> None:
    model: Rows = {}
    store = KvStore.open(tmp_path, KvResources(KvStoreSettings()))
    for number in range(1, 5):
        write_batch(store, model, number, row_count=row_count)
    store.close()
    with open_store(tmp_path) as store:
        assert store.state == KvState(4, len(model))
        assert rows_of(store) == sorted_values(model)
