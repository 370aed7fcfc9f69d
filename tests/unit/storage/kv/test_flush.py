"""What a crash leaves is what ``flushed_offset`` promised or more, however the write buffers reached the disk.
Copies of the files of an open store stand for the crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import KvResources, KvState, KvStore
from tests.unit.storage.kv.support import Rows, copy_as_after_a_crash, open_store, rows_of, sorted_values, write_batch


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.002)


def test_only_what_was_flushed_survives(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        store.write([b"a"], [b"1"], KvState(1, 1))
        assert store.flushed_offset == 0
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "before")
        store.flush()
        assert store.flushed_offset == 1
        store.write([b"b"], [b"2"], KvState(2, 2))
        assert store.flushed_offset == 1
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "after")
        store.flush()
        store.flush()
        assert store.flushed_offset == 2
    with open_store(tmp_path / "before") as copy:
        assert copy.state == KvState()
        assert rows_of(copy) == []
    with open_store(tmp_path / "after") as copy:
        assert copy.state == KvState(1, 1)
        assert rows_of(copy) == [b"1"]


def test_full_write_buffers_go_to_the_disk_by_themselves_and_the_offset_follows(tmp_path: Path) -> None:
    model: Rows = {}
    with open_store(tmp_path / "store") as store:
        for number in range(1, 41):
            write_batch(store, model, number)
            flushed_offset = store.flushed_offset
            assert flushed_offset <= number
            if number % 10 == 0:
                copy_as_after_a_crash(tmp_path / "store", tmp_path / f"copy-{number}")
                with open_store(tmp_path / f"copy-{number}") as copy:
                    assert flushed_offset <= copy.state.applied_offset <= number
                # A buffer holds two or three batches.
                wait_until(lambda expected=number - 5: store.flushed_offset >= expected)


def test_a_flush_that_nobody_waits_for_is_noticed(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        store.write([b"a"], [b"1"], KvState(1, 1))
        store.start_flush()
        wait_until(lambda: store.flushed_offset == 1)
        store.write([b"a"], [b"2"], KvState(2, 1))
        store.start_flush()
        store.write([b"a"], [b"3"], KvState(3, 1))
        wait_until(lambda: store.flushed_offset == 2)
        time.sleep(0.01)
        assert store.flushed_offset == 2


def test_many_removals_do_not_stay_in_the_write_buffer(tmp_path: Path) -> None:
    keys = [b"%06d" % number for number in range(60_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        store.write(keys[:50_000], [None] * 50_000, KvState(1, 0))
        assert store.flushed_offset == 0
        store.write(keys[50_000:], [None] * 10_000, KvState(2, 0))
        wait_until(lambda: store.flushed_offset >= 1)


def test_a_store_that_is_closed_has_flushed(tmp_path: Path) -> None:
    model: Rows = {}
    store = KvStore.open(tmp_path, KvResources(KvStoreSettings()))
    for number in range(1, 5):
        write_batch(store, model, number)
    store.close()
    with open_store(tmp_path) as store:
        assert store.state == KvState(4, len(model))
        assert rows_of(store) == sorted_values(model)
