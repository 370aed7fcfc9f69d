"""A snapshot shows one moment of a store, whatever is written, flushed or closed afterwards.
Real stores; writers in other threads where it matters."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv.store import KvResources, KvSnapshot, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import BYTES_MAX, SMALL, open_store, read, write

KEYS = [b"%05d" % number for number in range(2500)]


def fill(store: KvStore, value: bytes, offset: int) -> None:
    write(store, KEYS, [value] * len(KEYS), KvState(offset, len(KEYS)))


def read_all(snapshot: KvSnapshot) -> list[bytes]:
    values = []
    while snapshot.has_more:
        values += read(snapshot, 1000, 100)
    return values


def test_later_writes_are_not_in_a_snapshot(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store, b"old", 1)
        snapshot = store.snapshot()
        fill(store, b"new", 2)
        write(store, KEYS[:100], [None] * 100, KvState(3, 2400))
        store.flush()
        assert snapshot.state == KvState(1, 2500)
        assert read_all(snapshot) == [b"old"] * 2500
        later = store.snapshot()
        assert later.state == KvState(3, 2400)
        assert read_all(later) == [b"new"] * 2400


def test_a_snapshot_is_read_in_pieces_of_rows_and_bytes(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        # Values of ten bytes.
        write(store, KEYS[:6], [bytes(8)] * 6, KvState(6, 6))
        snapshot = store.snapshot()
        assert len(snapshot.read(BYTES_MAX, 1)) == 1
        assert len(snapshot.read(11, 10)) == 2
        assert len(snapshot.read(0, 10)) == 1
        assert snapshot.has_more
        assert len(snapshot.read(BYTES_MAX, 10)) == 2
        assert not snapshot.has_more
        assert snapshot.read(BYTES_MAX, 10) == []


def test_a_snapshot_of_an_empty_store_has_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        snapshot = store.snapshot()
        assert not snapshot.has_more
        assert snapshot.read(1, 1) == []


def test_a_snapshot_has_whole_writes(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        fill(store, b"0", 0)
        has_seen_enough = threading.Event()

        def write_on() -> None:
            number = 0
            while not has_seen_enough.is_set():
                number += 1
                fill(store, b"%d" % number, number)

        thread = threading.Thread(target=write_on)
        thread.start()
        seen = set()
        try:
            while len(seen) < 10:
                snapshot = store.snapshot()
                assert set(read_all(snapshot)) == {b"%d" % snapshot.state.applied_offset}
                seen.add(snapshot.state.applied_offset)
                snapshot.close()
        finally:
            has_seen_enough.set()
            thread.join()


def test_a_closed_snapshot_says_so(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store, b"1", 1)
        snapshot = store.snapshot()
        snapshot.close()
        snapshot.close()
        for use in (lambda: snapshot.read(1, 1), lambda: snapshot.has_more):
            with pytest.raises(FlussError, match=r"snapshot.*is closed") as caught:
                use()
            assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION


def test_closing_the_store_closes_its_snapshots_and_frees_the_directory(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path, KvResources(SMALL))
    fill(store, b"1", 1)
    half_read, unread = store.snapshot(), store.snapshot()
    half_read.read(100, 5)
    store.close()
    for snapshot in (half_read, unread):
        with pytest.raises(FlussError, match="is closed"):
            snapshot.read(1, 1)
    with open_store(tmp_path) as store:
        assert store.state.applied_offset == 1


def test_a_forgotten_snapshot_is_not_kept_alive_by_the_store(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        forgotten = weakref.ref(store.snapshot())
        gc.collect()
        assert forgotten() is None
