"""However large the values are, no more of them are read at once than was asked for, or one.
Real stores with a few large values among small ones, recent and on the disk, also opened again; memory is measured."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import (
    find,
    find_cached,
    first_rows,
    get_cached,
    get_many,
    open_store,
    prefix_rows,
    write,
)

MIB = 1024 * 1024
# A value has two bytes more than its row.
LARGE = bytes(4 * MIB - 2)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_values_of_many_keys_are_refused_before_they_are_read(tmp_path: Path) -> None:
    small = [b"small %d" % number for number in range(200)]
    with open_store(tmp_path, KvResources()) as store:
        write(store, [*small, b"large"], [*small, LARGE], KvState(1, 201))
        assert_large_values_are_refused(store, small)
    with open_store(tmp_path, KvResources()) as store:
        assert_large_values_are_refused(store, small)


def assert_large_values_are_refused(store: KvStore, small: list[bytes]) -> None:
    assert store.state.value_bytes_max == 4 * MIB
    before = peak_bytes()
    for look_up in (get_many, find):
        with pytest.raises(FlussError, match="fewer keys at once") as caught:
            # The small ones do not make it careless.
            look_up(store, [*small, *[b"large"] * 300], bytes_max=16 * MIB)
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert peak_bytes() - before < 100 * MIB
    for look_up in (get_many, find):
        assert [len(row or b"") for row in look_up(store, [b"large"] * 4, bytes_max=16 * MIB)] == [len(LARGE)] * 4
        assert look_up(store, small, bytes_max=16 * MIB) == small


@pytest.mark.parametrize("where", ["recent", "in the write buffer", "on the disk"])
def test_the_limit_is_the_same_wherever_the_rows_are(tmp_path: Path, where: str) -> None:
    keys = [b"%03d" % number for number in range(100 if where == "in the write buffer" else 200)]
    with open_store(tmp_path, KvResources()) as store:
        # Values of ten bytes.
        write(store, keys, [bytes(8)] * len(keys), KvState(1, len(keys)))
        if where == "on the disk":
            store.release()
        for look_up in (get_many, find):
            assert look_up(store, keys[:3], bytes_max=30) == [bytes(8)] * 3
            with pytest.raises(FlussError, match="more than 29 bytes"):
                look_up(store, keys[:3], bytes_max=29)
        for look_up_cached in (get_cached, find_cached):
            assert look_up_cached(store, keys[:3], bytes_max=29) is None
            assert look_up_cached(store, keys[:3], bytes_max=30) in (None, [bytes(8)] * 3)


def test_recent_rows_and_others_share_the_limit(tmp_path: Path) -> None:
    keys = [b"%03d" % number for number in range(400)]
    with open_store(tmp_path, KvResources()) as store:
        write(store, keys[:200], [bytes(98)] * 200, KvState(1, 200))
        store.release()
        write(store, keys[200:], [bytes(98)] * 200, KvState(2, 400))
        for look_up in (get_many, find):
            assert look_up(store, keys, bytes_max=40_000) == [bytes(98)] * 400
            with pytest.raises(FlussError, match="fewer keys at once"):
                look_up(store, keys, bytes_max=30_000)


@pytest.mark.parametrize("row_count", [2, 200])
def test_large_values_are_not_copied_in_passing(tmp_path: Path, row_count: int) -> None:
    """Neither from the write buffer, which a few rows go to, nor from the recent rows."""
    store = KvStore.open(tmp_path / "store", KvResources())
    others = [b"%03d" % number for number in range(row_count - 2)]
    write(store, [b"a", b"b", *others], [bytes(998), bytes(8), *others], KvState(1, row_count))
    for look_up in (get_cached, find_cached):
        assert look_up(store, [b"a", b"b"], bytes_max=1010) == [bytes(998), bytes(8)]
        assert look_up(store, [b"a", b"b"], bytes_max=1009) is None
    write(store, [b"c"], [bytes(2 * MIB)], KvState(2, row_count + 1))
    for look_up in (get_cached, find_cached):
        assert look_up(store, [b"c"]) is None
        assert look_up(store, [b"b"]) is None, "that is not known before"
    assert get_many(store, [b"c", b"b"]) == find(store, [b"c", b"b"]) == [bytes(2 * MIB), bytes(8)]
    store.close()


def test_the_largest_value_is_remembered_beside_the_state(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, [b"a"], [b"1"], KvState(1, 1))
        assert store.state.value_bytes_max == 3
        write(store, [b"a"], [None], KvState(2, 0))
        assert store.state.value_bytes_max == 3
        assert store.state == KvState(2, 0), "it is no part of what was asked for"
        keys = [b"%03d" % number for number in range(200)]
        write(store, keys, [*keys[:-1], bytes(100)], KvState(3, 200))
        assert store.state.value_bytes_max == 102
    with open_store(tmp_path) as store:
        assert store.state.value_bytes_max == 102


def test_so_many_rows_fit_into_one_answer(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings(scan_rows_max=10))) as store:
        keys = [b"%02d" % number for number in range(11)]
        write(store, keys, keys, KvState(1, 11))
        assert first_rows(store, 10) == keys[:10]
        assert prefix_rows(store, b"0") == keys[:10]
        with pytest.raises(FlussError, match="fewer rows, or scan") as caught:
            first_rows(store, 2**31 - 1)
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        with pytest.raises(FlussError, match="fewer rows, or scan"):
            prefix_rows(store, b"")
