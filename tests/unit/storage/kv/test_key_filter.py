"""A filter never denies a key that was added, seldom claims one that was not, and takes no more memory than it may.
Filters by themselves, and stores that have one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fluss.row.hashed_keys import HashedKeys
from fluss.row.varint import UInt64Array
from fluss.storage.kv.key_filter import FilterMemory, KeyFilter
from fluss.storage.kv.store import KvResources, KvState
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import find, get_many, open_store, rows_of, write

MIB = 1024 * 1024


def hashes(first: int, count: int) -> UInt64Array:
    """Return the hashes of keys as short integers have them."""
    return HashedKeys.from_list([number.to_bytes(4, "little") for number in range(first, first + count)]).hashes


def test_no_key_is_denied_and_few_are_claimed_however_many_there_are() -> None:
    key_filter = KeyFilter(FilterMemory(64 * MIB))
    assert not key_filter.may_have(hashes(0, 100)).any()
    added = 0
    for count in (1, 10, 100_000, 7, 200_000, 300_000):
        assert key_filter.add(hashes(added, count))
        added += count
        assert key_filter.may_have(hashes(0, added)).all()
        assert key_filter.may_have(hashes(10_000_000, 50_000)).mean() < 0.08
    assert key_filter.byte_count < 4 * MIB


def test_keys_that_share_a_word_are_all_added() -> None:
    key_filter = KeyFilter(FilterMemory(MIB))
    same_word = np.arange(2000, dtype=np.uint64)
    assert key_filter.add(same_word)
    assert key_filter.may_have(same_word).all()


def test_without_memory_there_is_no_filter_and_what_was_taken_is_given_back() -> None:
    memory = FilterMemory(MIB)
    first, second = KeyFilter(memory), KeyFilter(memory)
    assert first.add(hashes(0, 1000))
    assert not second.add(hashes(0, 1_000_000))
    assert second.byte_count == 0
    taken = first.byte_count
    first.close()
    assert taken > 0
    assert first.may_have(hashes(0, 1000)).all(), "somebody may be asking while it is given up"
    assert memory.take(MIB)
    assert not memory.take(1)


@pytest.mark.parametrize("filters_bytes_max", [64 * MIB, 300_000, 0])
def test_a_store_finds_its_rows_with_and_without_a_filter(tmp_path: Path, filters_bytes_max: int) -> None:
    """Loads, a few rows, updates, removals and new keys, while the rows are in memory and when they are not."""
    rng = random.Random(3)
    settings = KvStoreSettings(write_buffer_bytes=2 * MIB, key_filters_bytes_max=filters_bytes_max)
    resources = KvResources(settings)
    model: dict[bytes, bytes] = {}
    with open_store(tmp_path, resources) as store:
        for number in range(1, 25):
            keys = [b"%06d" % rng.randrange(300_000) for _ in range(rng.choice((1, 50, 9000, 20_000)))]
            values = [None if rng.random() < 0.1 else b"%d %d" % (number, index) for index in range(len(keys))]
            write(store, keys, values, KvState(number, None))
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            if number % 5 == 0:
                store.release()
            probes = rng.sample(keys, min(500, len(keys))) + [b"%06d" % rng.randrange(400_000) for _ in range(1000)]
            expected = [model.get(key) for key in probes]
            assert find(store, probes) == get_many(store, probes) == expected
        assert rows_of(store) == [model[key] for key in sorted(model)]
    assert resources.filter_memory.take(filters_bytes_max), "everything was given back"
    with open_store(tmp_path, resources) as store:
        keys = list(model)
        assert find(store, keys) == list(model.values()), "nobody knows its keys any more"
