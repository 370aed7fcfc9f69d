"""A filter never denies a key that was added, seldom claims one that was not, and takes no more memory than it may.
Filters by themselves, and stores that have one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fluss.row.encoded import EncodedRows
from fluss.storage.kv import rocks
from fluss.storage.kv import store_lookups as store_module
from fluss.storage.kv.key_filter import FILE_NAME, FilterMemory, KeyFilter
from fluss.storage.kv.point_reads import get_from_database
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import find, get_many, open_store, rows_of, write

MIB = 1024 * 1024


def keys(first: int, count: int) -> EncodedRows:
    """Return keys as short integers have them."""
    return EncodedRows.from_list([number.to_bytes(4, "little") for number in range(first, first + count)])


def test_no_key_is_denied_and_few_are_claimed_however_many_there_are() -> None:
    key_filter = KeyFilter(FilterMemory(64 * MIB))
    assert not key_filter.may_have(keys(0, 100)).any()
    added = 0
    for count in (1, 10, 100_000, 7, 200_000, 300_000):
        assert key_filter.add(keys(added, count))
        added += count
        assert key_filter.may_have(keys(0, added)).all()
        assert key_filter.may_have(keys(10_000_000, 50_000)).mean() < 0.08
    assert key_filter.byte_count < 4 * MIB


def test_keys_that_share_a_word_are_all_added() -> None:
    key_filter = KeyFilter(FilterMemory(MIB))
    same_word = np.arange(2000, dtype=np.uint64)
    assert key_filter._add(same_word)
    assert key_filter._may_have(same_word).all()


def test_without_memory_there_is_no_filter_and_what_was_taken_is_given_back() -> None:
    memory = FilterMemory(MIB)
    first, second = KeyFilter(memory), KeyFilter(memory)
    assert first.add(keys(0, 1000))
    assert not second.add(keys(0, 1_000_000))
    assert second.byte_count == 0
    taken = first.byte_count
    first.close()
    assert taken > 0
    assert first.may_have(keys(0, 1000)).all(), "a thread may be asking while it is given up"
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
        for number in range(1, 13):
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
    resources.filter_memory.give_back(filters_bytes_max)
    with open_store(tmp_path, resources) as store:
        assert find(store, list(model)) == list(model.values())


# Over restarts


def test_keys_that_are_added_again_take_no_room() -> None:
    memory = FilterMemory(64 * MIB)
    key_filter = KeyFilter(memory)
    for _ in range(50):
        assert key_filter.add(keys(0, 20_000))
    assert key_filter.byte_count < MIB


def load(store: KvStore, first: int, count: int, offset: int) -> None:
    """Look keys up and write their rows, like a batch of upserts does."""
    new = [b"%08d" % number for number in range(first, first + count)]
    assert find(store, new) == [None] * count
    write(store, new, new, KvState(offset, None))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of keys that the database was asked for."""
    counts: list[int] = []

    def counting(database: rocks.Rdict, keys: list[bytes], **limits: int) -> list[bytes | None]:
        counts.append(len(keys))
        return get_from_database(database, keys, **limits)

    monkeypatch.setattr(store_module, "get_from_database", counting)
    return counts


def test_after_a_clean_close_new_keys_are_known_as_before(tmp_path: Path, asked: list[int]) -> None:
    resources = KvResources(KvStoreSettings())
    for restart in range(4):
        with open_store(tmp_path, resources) as store:
            assert not (tmp_path / FILE_NAME).exists(), "it holds for the store as it was closed"
            for number in range(3):
                load(store, 100_000 * restart + 10_000 * number, 10_000, 3 * restart + number + 1)
            old = [b"%08d" % (100_000 * n) for n in range(restart + 1)]
            assert find(store, old) == old
        assert (tmp_path / FILE_NAME).exists()
    assert sum(asked) < 0.05 * 120_000


@pytest.mark.parametrize("what", ["missing", "cut off", "a flipped bit", "of another state"])
def test_without_its_file_a_filter_is_built_beside_the_writes(tmp_path: Path, asked: list[int], what: str) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        for number in range(5):
            load(store, 10_000 * number, 10_000, number + 1)
    path = tmp_path / FILE_NAME
    saved = path.read_bytes()
    if what == "of another state":
        with open_store(tmp_path, KvResources(KvStoreSettings(filter_keys_min=10**9))) as store:
            load(store, 50_000, 10_000, 6)
        path.write_bytes(saved)
    elif what == "missing":
        path.unlink()
    else:
        path.write_bytes(saved[:-1] if what == "cut off" else saved[:-100] + bytes([saved[-100] ^ 1]) + saved[-99:])
    with open_store(tmp_path, KvResources(KvStoreSettings(filter_step_keys=700))) as store:
        assert not path.exists()
        asked.clear()
        for number in range(10):
            load(store, 100_000 + 10_000 * number, 10_000, 10 + number)
            # Old keys are found at every stage, and rows that were written while the filter was built.
            known = [b"%08d" % n for n in range(0, 50_000, 77)] + [b"%08d" % n for n in range(100_000, 110_000, 77)]
            assert find(store, known) == known
    assert 10_000 <= asked[0] <= 10_000
    assert sum(count for count in asked if count > 5_000) <= 20_000, "it knew new keys after one or two writes"
    assert path.exists()


def test_a_filter_that_finds_no_memory_is_given_up_for_good(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings(key_filters_bytes_max=0))) as store:
        load(store, 0, 20_000, 1)
    resources = KvResources(KvStoreSettings(key_filters_bytes_max=100_000))
    with open_store(tmp_path, resources) as store:
        for number in range(1, 5):
            load(store, 20_000 * number, 20_000, 1 + number)
            old = [b"%08d" % n for n in range(0, 20_000 * number, 999)]
            assert find(store, old) == old
    assert not (tmp_path / FILE_NAME).exists()
    assert resources.filter_memory.take(100_000)


def test_what_is_closed_while_a_filter_is_built_leaves_no_file(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings(filter_keys_min=10**9))) as store:
        load(store, 0, 20_000, 1)
    resources = KvResources(KvStoreSettings(filter_keys_min=100, filter_keys_per_row=1, filter_step_keys=10))
    with open_store(tmp_path, resources) as store:
        load(store, 20_000, 200, 2)
        load(store, 30_000, 200, 3)
        assert store._filter._building is not None
    assert not (tmp_path / FILE_NAME).exists()
    assert resources.filter_memory.take(64 * MIB), "everything was given back"
