"""What can be told from memory is told without the disk, and is what a real read returns; else nothing is told.

A real store: rows in its write buffer, rows in its tables, and tables that nobody has read yet.
"""

from __future__ import annotations

import random
from pathlib import Path

from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import KvResources, KvState, KvStore


def test_memory_tells_the_same_as_the_disk_or_nothing(tmp_path: Path) -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(rng.randrange(1, 9)) for _ in range(3000)]
    unwritten = [rng.randbytes(10) for _ in range(300)]
    with_values = keys[::2]
    store = KvStore.open(tmp_path / "store", KvResources())
    store.write(with_values, [b"v" * rng.randrange(1, 50) for _ in with_values], KvState(1, 1))
    assert store.get_cached(keys) == store.get_many(keys), "everything is in the write buffer"
    store.flush()
    store.write(keys[:200], [None] * 200, KvState(2, 1))
    assert store.get_cached(keys[:200]) == [None] * 200
    store.close()

    store = KvStore.open(tmp_path / "store", KvResources())
    assert [store.get_cached([key]) for key in with_values[500:550]].count(None) > 40, "little was read yet"
    assert store.get_cached(with_values[500:550]) is None
    store.get_many(keys)
    for key in keys + unwritten:
        told = store.get_cached([key])
        assert told in (None, store.get_many([key]))
    assert store.get_cached(with_values[500:550]) == store.get_many(with_values[500:550])
    assert store.get_cached([b""]) is None, "no row has this key"
    assert store.get_cached([]) == []
    store.close()


def test_a_value_whose_index_is_not_in_memory_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(500)]
    resources = KvResources(KvStoreSettings(block_cache_bytes=0))
    store = KvStore.open(tmp_path / "store", resources)
    store.write(keys, keys, KvState(1, 500))
    store.flush()
    assert store.get_many(keys) == keys
    assert [store.get_cached([key]) for key in keys] == [None] * 500
    store.close()
