"""Closing waits for those inside, refuses those who come later, and leaves the directory free at once.
Threads that use a store in every way while another closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import SMALL, open_store, rows_of, write

KEYS = [b"%05d" % number for number in range(3000)]


def uses_of(store: KvStore, directory: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.get_many(KEYS),
        lambda: store.get_cached(KEYS),
        lambda: store.find(HashedKeys.from_list(KEYS)),
        lambda: store.find_cached(HashedKeys.from_list(KEYS)),
        lambda: write(store, KEYS, KEYS, KvState(1, 3000)),
        lambda: write(store, KEYS[:100], KEYS[:100], KvState(1, 3000)),
        lambda: store.prefix_values(b"01", bytes_max=10**9),
        lambda: store.first_values(10, bytes_max=10**9),
        lambda: store.snapshot().read(10**9, 10**9),
        store.flush,
        store.release,
        lambda: store.checkpoint(directory / "copy"),
        lambda: store.flushed_offset,
        store.size_bytes,
        store.memory_bytes,
        store.buffered_bytes,
        lambda: store.has_failed,
    ]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path / "store", KvResources(SMALL))
    store.close()
    store.close()
    for use in uses_of(store, tmp_path):
        with pytest.raises(FlussError, match="is closed") as caught:
            use()
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert not isinstance(caught.value, KvDamagedError)


def test_everyone_may_use_a_store_while_it_is_closed(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings())
    for round_number in range(3):
        directory = tmp_path / str(round_number)
        store = KvStore.open(directory / "store", resources)
        write(store, KEYS, KEYS, KvState(1, 3000))
        begun = threading.Barrier(len(uses_of(store, directory)) + 1)
        unexpected: list[BaseException] = []

        def use_until_closed(
            use: Callable[[], object], begun: threading.Barrier, unexpected: list[BaseException]
        ) -> None:
            begun.wait()
            try:
                while True:
                    use()
            except FlussError as error:
                # A second checkpoint has no room; the rest go on until the store is closed.
                if "is closed" not in error.message and "no room" not in error.message:
                    unexpected.append(error)
            except BaseException as error:
                unexpected.append(error)

        threads = [
            threading.Thread(target=use_until_closed, args=(use, begun, unexpected))
            for use in uses_of(store, directory)
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        closers = [threading.Thread(target=store.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for thread in closers + threads:
            thread.join()
        assert unexpected == []
        with open_store(directory / "store", resources) as store:
            assert rows_of(store) == KEYS


def test_an_error_that_is_kept_does_not_keep_the_directory(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, KEYS, KEYS, KvState(1, 3000))
        store.flush()
    table = next(tmp_path.glob("*.sst"))
    data = bytearray(table.read_bytes())
    # In the middle of the rows: it opens, and the rows cannot be read.
    data[len(data) // 3] ^= 1
    table.write_bytes(data)
    store = KvStore.open(tmp_path, KvResources(SMALL))
    snapshot = store.snapshot()
    with pytest.raises(KvDamagedError) as kept_by_scan:
        store.first_values(3000, bytes_max=10**9)
    with pytest.raises(KvDamagedError) as kept_by_snapshot:
        snapshot.read(10**9, 10**9)
    store.close()
    with open_store(tmp_path) as store:
        assert store.state.applied_offset == 1
    assert kept_by_scan.value.error_code == kept_by_snapshot.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION


def test_a_store_that_is_about_to_be_removed_does_not_bring_its_rows_to_the_disk(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings())
    store = KvStore.open(tmp_path, resources)
    write(store, KEYS, KEYS, KvState(1, 3000))
    store.close(keeps_rows=False)
    assert resources.buffered_bytes == 0
    with open_store(tmp_path, resources) as store:
        assert store.state == KvState()
        assert rows_of(store) == []
