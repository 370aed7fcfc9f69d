"""However large the values are, no more of them are read at once than was asked for, or one.
A real store with a few large values among small ones, also after it was opened again; memory is measured."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv import store as store_module
from fluss.storage.kv.store import KvResources, KvState, KvStore
from tests.unit.storage.kv.support import BYTES_MAX, open_store

MIB = 1024 * 1024


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_values_of_many_keys_are_refused_before_they_are_read(tmp_path: Path) -> None:
    small = [b"small %d" % number for number in range(200)]
    with open_store(tmp_path, KvResources()) as store:
        store.write([*small, b"large"], [*small, bytes(4 * MIB)], KvState(1, 201))
    with open_store(tmp_path, KvResources()) as store:
        assert store.state.value_bytes_max == 4 * MIB
        before = peak_bytes()
        with pytest.raises(FlussError, match="fewer keys at once") as caught:
            # The small ones do not make it careless.
            store.get_many([*small, *[b"large"] * 300], bytes_max=16 * MIB)
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert peak_bytes() - before < 100 * MIB
        assert [len(value or b"") for value in store.get_many([b"large"] * 4, bytes_max=16 * MIB)] == [4 * MIB] * 4
        assert store.get_many(small, bytes_max=16 * MIB) == small


def test_large_values_are_not_copied_in_passing(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path / "store", KvResources())
    store.write([b"a", b"b"], [bytes(1000), bytes(10)], KvState(1, 2))
    assert store.get_cached([b"a", b"b"], bytes_max=1010) == [bytes(1000), bytes(10)]
    assert store.get_cached([b"a", b"b"], bytes_max=1009) is None
    store.write([b"c"], [bytes(2 * MIB)], KvState(2, 3))
    assert store.get_cached([b"c"]) is None
    assert store.get_cached([b"b"]) is None, "nobody knows before"
    store.close()


def test_the_largest_value_is_remembered_beside_the_state(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write([b"a"], [b"1"], KvState(1, 1))
        assert store.state.value_bytes_max == 1
        store.write([b"a"], [None], KvState(2, 0))
        assert store.state.value_bytes_max == 1
        assert store.state == KvState(2, 0), "it is no part of what was asked for"


def test_so_many_rows_fit_into_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_ROWS_MAX", 10)
    with open_store(tmp_path) as store:
        keys = [b"%02d" % number for number in range(11)]
        store.write(keys, keys, KvState(1, 11))
        assert store.first_values(10, bytes_max=BYTES_MAX) == keys[:10]
        assert store.prefix_values(b"0", bytes_max=BYTES_MAX) == keys[:10]
        with pytest.raises(FlussError, match="fewer rows, or scan") as caught:
            store.first_values(2**31 - 1, bytes_max=BYTES_MAX)
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        with pytest.raises(FlussError, match="fewer rows, or scan"):
            store.prefix_values(b"", bytes_max=BYTES_MAX)
