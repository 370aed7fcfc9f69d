"""What can be told from memory is told without the disk, and is what a real read returns; else nothing is told.

Real stores: rows in the memtable, in the write buffer, in SST files, and SST files that were not read yet.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import (
    copy_as_after_a_crash,
    find,
    find_cached,
    get_cached,
    get_many,
    open_store,
    rows_of,
    write,
)


def test_memory_tells_the_same_as_the_disk_or_nothing(tmp_path: Path) -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(rng.randrange(1, 9)) for _ in range(3000)]
    unwritten = [rng.randbytes(10) for _ in range(300)]
    with_values = keys[::2]
    store = KvStore.open(tmp_path / "store", KvResources())
    write(store, with_values, [b"v" * rng.randrange(1, 50) for _ in with_values], KvState(1, 1))
    assert get_cached(store, keys) == find_cached(store, keys) == get_many(store, keys), "everything is in the memtable"
    rows_of(store)
    assert get_cached(store, keys) == find_cached(store, keys) == get_many(store, keys), "it is in the write buffer"
    store.flush()
    write(store, keys[:200], [None] * 200, KvState(2, 1))
    assert get_cached(store, keys[:200]) == find_cached(store, keys[:200]) == [None] * 200
    assert get_many(store, keys[:200]) == find(store, keys[:200]) == [None] * 200
    rows_of(store)
    assert get_cached(store, keys[:200]) == find_cached(store, keys[:200]) == [None] * 200
    store.close()

    store = KvStore.open(tmp_path / "store", KvResources())
    assert [get_cached(store, [key]) for key in with_values[500:550]].count(None) > 40, "little was read yet"
    assert get_cached(store, with_values[500:550]) is None
    assert find_cached(store, with_values[500:550]) is None
    get_many(store, keys)
    for key in keys + unwritten:
        told = get_cached(store, [key])
        assert told in (None, get_many(store, [key]))
    assert get_cached(store, with_values[500:550]) == get_many(store, with_values[500:550])
    assert find_cached(store, with_values[500:550]) == find(store, with_values[500:550])
    assert get_cached(store, [b""]) is None, "no row has this key"
    assert get_cached(store, []) == find_cached(store, []) == []
    store.close()


def test_a_row_in_the_memtable_is_told_whatever_the_disk_has(tmp_path: Path) -> None:
    """The newest memtable that has a key tells, also that it was removed; unread SST files do not matter."""
    keys = [b"%05d" % number for number in range(600)]
    with open_store(tmp_path) as store:
        write(store, keys, keys, KvState(1, 600))
    with open_store(tmp_path) as store:
        write(store, keys[:400], [b"new %s" % key for key in keys[:400]], KvState(2, 600))
        write(store, keys[:200], [None] * 200, KvState(3, 400))
        expected = [None] * 200 + [b"new %s" % key for key in keys[200:400]]
        assert get_cached(store, keys[:400]) == find_cached(store, keys[:400]) == expected
        assert get_cached(store, keys[300:500]) is None, "some of it is on the disk"
        assert get_many(store, keys) == find(store, keys) == expected + keys[400:]


@pytest.mark.parametrize("row_count", [50, 500])
def test_a_value_whose_index_is_not_in_memory_is_not_taken_for_an_empty_one(tmp_path: Path, row_count: int) -> None:
    keys = [b"%05d" % number for number in range(row_count)]
    resources = KvResources(KvStoreSettings(block_cache_bytes=0))
    store = KvStore.open(tmp_path / "store", resources)
    write(store, keys, keys, KvState(1, row_count))
    store.release()
    assert get_many(store, keys) == keys
    assert [get_cached(store, [key]) for key in keys] == [None] * row_count
    assert [find_cached(store, [key]) for key in keys] == [None] * row_count
    store.close()


def test_a_new_store_knows_that_it_has_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for look_up in (get_cached, find_cached, get_many, find):
            assert look_up(store, [b"a", b"b"]) == [None, None]
        write(store, [b"a"], [b"1"], KvState(1, 1))
        for look_up in (get_cached, find_cached, get_many, find):
            assert look_up(store, [b"a", b"b"]) == [b"1", None]


def test_rows_that_reached_the_disk_before_any_state_are_told_like_others(tmp_path: Path) -> None:
    """A crash may leave the first rows of a store without a state. All ways to read them agree that they are there."""
    keys = [b"%05d" % number for number in range(3000)]
    copy = tmp_path / "copy"
    pauses: list[float] = []

    def copy_first_tables(seconds: float) -> None:
        pauses.append(seconds)
        # The second part of the rows finds the write buffer full.
        if len(pauses) == 2:
            eventually(lambda: store.size_bytes() > store.buffered_bytes())
            copy_as_after_a_crash(tmp_path / "store", copy)

    settings = KvStoreSettings(write_buffer_bytes=64 * 1024)
    with open_store(tmp_path / "store", KvResources(settings, sleep=copy_first_tables)) as store:
        write(store, keys, [bytes(1000)] * 3000, KvState(1, 3000))
        store.flush()
    with open_store(copy) as store:
        assert store.state == KvState()
        found = get_many(store, keys)
        assert 0 < len(rows_of(store)) == 3000 - found.count(None) < 3000
        assert find(store, keys) == found
        assert all(get_cached(store, [key]) in (None, [row]) for key, row in zip(keys, found, strict=True))
