"""A checkpoint is a store of its own, with the state and the rows of one moment.
Real stores; one of them is written to while it is copied."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv.store import KvResources, KvState, KvStore, remove_store
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import SMALL, Rows, get_many, open_store, rows_of, sorted_values, write, write_batch

KEYS = [b"%05d" % number for number in range(2500)]


def test_a_checkpoint_opens_as_a_store_and_goes_its_own_way(tmp_path: Path) -> None:
    model: Rows = {}
    with open_store(tmp_path / "store") as store:
        for number in range(1, 20):
            write_batch(store, model, number)
        assert store.checkpoint(tmp_path / "deep" / "copy") == KvState(19, len(model))
        assert store.flushed_offset == 19
        expected = sorted_values(model)
        write_batch(store, model, 20)
        with open_store(tmp_path / "deep" / "copy") as copy:
            assert copy.state == KvState(19, len(expected))
            assert rows_of(copy) == expected
            write(copy, [b"only here"], [b"1"], KvState(50, 1))
        assert get_many(store, [b"only here"]) == [None]
        assert rows_of(store) == sorted_values(model)


def test_a_checkpoint_outlives_its_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        write(store, KEYS, KEYS, KvState(1, 2500))
        store.checkpoint(tmp_path / "copy")
    remove_store(tmp_path / "store")
    with open_store(tmp_path / "copy") as copy:
        assert rows_of(copy) == KEYS


def test_a_checkpoint_shares_its_tables_with_the_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        write(store, KEYS, KEYS, KvState(1, 2500))
        store.checkpoint(tmp_path / "copy")
        tables = list((tmp_path / "copy").glob("*.sst"))
        assert tables
        assert all(table.samefile(tmp_path / "store" / table.name) for table in tables)


def test_a_checkpoint_of_an_empty_store_is_empty(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        assert store.checkpoint(tmp_path / "copy") == KvState()
    with open_store(tmp_path / "copy") as copy:
        assert copy.state == KvState()


def test_a_checkpoint_has_whole_writes_while_others_write(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        is_over = threading.Event()

        def write_on() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                write(store, KEYS, [b"%d" % number] * len(KEYS), KvState(number, len(KEYS)))

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            states = [store.checkpoint(tmp_path / f"copy-{number}") for number in range(3)]
        finally:
            is_over.set()
            thread.join()
    for number, state in enumerate(states):
        with open_store(tmp_path / f"copy-{number}") as copy:
            assert copy.state == state
            assert set(rows_of(copy)) == ({b"%d" % state.applied_offset} if state.applied_offset else set())


def test_a_checkpoint_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with open_store(tmp_path / "store") as store:
        with pytest.raises(FlussError, match="copy exists") as caught:
            store.checkpoint(tmp_path / "copy")
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert list((tmp_path / "copy").iterdir()) == []


def test_what_an_interrupted_checkpoint_left_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "copy.tmp").mkdir()
    (tmp_path / "copy.tmp" / "000001.sst").write_bytes(b"half a table")
    with open_store(tmp_path / "store") as store:
        write(store, KEYS, KEYS, KvState(1, 2500))
        store.checkpoint(tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        assert rows_of(copy) == KEYS
    assert not (tmp_path / "copy.tmp").exists()


def test_the_directory_is_free_after_a_checkpoint(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path / "store", KvResources(SMALL))
    store.checkpoint(tmp_path / "copy")
    store.close()
    with open_store(tmp_path / "store"), open_store(tmp_path / "copy"):
        pass
