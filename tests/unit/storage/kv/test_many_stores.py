"""Many stores that share a database are read and written at once, with the same result as one after the other.
Stores of a shared database and of their own, in every state: empty, with rows in memtables, locked, closed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.bucket_prefix import bucket_prefix
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.shared_database import SharedDatabase
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_lookups import find_in_stores, get_in_stores
from fluss.storage.kv.store_writes import StoreWrite, write_to_stores, write_to_stores_if_quick
from tests.unit.storage.kv.support import SCHEMA_ID, SMALL, get_many, keyed_rows

KEYS = [b"key %d" % number for number in range(30)]


class Stores:
    """Some stores in one shared database, and one with a database of its own."""

    def __init__(self, directory: Path, count: int) -> None:
        resources = KvResources(SMALL)
        self.shared = SharedDatabase(0, directory / "shared", resources)
        self.all = [
            KvStore.open_shared(directory / f"kv-{number}", resources, self.shared, bucket_prefix(1, None, number))
            for number in range(count)
        ]
        self.all.append(KvStore.open(directory / "own", resources))

    def close(self) -> None:
        for store in self.all:
            store.close()
        self.shared.give_up()
        self.shared.close()


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_found_in_all_stores_wherever_they_are(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stores = Stores(tmp_path, 6)
    wanted: list[bytes] = []
    ends, expected, asked = [], {}, []
    for number, store in enumerate(stores.all):
        pending: list[Memtable] = []
        # As they are in the end: what is pending is newer than the rest.
        rows: dict[bytes, bytes | None] = {}
        for place in sorted(rng.sample(["database", "memtable", "pending"], rng.randrange(4)), key="pending".__eq__):
            changed = {key: None if rng.random() < 0.2 else b"%d %s" % (number, key) for key in rng.sample(KEYS, 12)}
            mutations = keyed_rows(list(changed), list(changed.values()))
            rows |= changed
            if place == "pending":
                pending.insert(0, Memtable.over(mutations))
            else:
                store.write([mutations], KvState(1, None))
                if place == "memtable":
                    store.write([keyed_rows([b"%d" % n for n in range(200)], [b"x"] * 200)], KvState(2, None))
        keys = rng.sample(KEYS, rng.randrange(len(KEYS)))
        for at, key in enumerate(keys):
            if rows.get(key) is not None:
                expected[len(wanted) + at] = rows[key]
        wanted += keys
        ends.append(len(wanted))
        asked.append((store, pending))
    together = find_in_stores(asked, HashedKeys.from_list(wanted), ends, bytes_max=10**6)
    by_number = {
        number: row
        for numbers, values in together.groups
        for number, row in zip(numbers.tolist(), values.rows.to_list(), strict=True)
    }
    assert by_number == expected
    if expected:
        with pytest.raises(FlussError) as refused:
            find_in_stores(asked, HashedKeys.from_list(wanted), ends, bytes_max=1)
        assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    stores.close()


@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_each_store_by_itself(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stores = Stores(tmp_path, 8)
    for number, store in enumerate(stores.all):
        for place in rng.sample(["database", "memtable", "memtable"], rng.randrange(4)):
            changed = {key: None if rng.random() < 0.2 else b"%d %s" % (number, key) for key in rng.sample(KEYS, 12)}
            store.write([keyed_rows(list(changed), list(changed.values()))], KvState(1, None))
            if place == "memtable":
                store.write([keyed_rows([b"%d" % n for n in range(200)], [b"x"] * 200)], KvState(2, None))
    asked = [(store, rng.sample([b"", b"nowhere", *KEYS], rng.randrange(20))) for store in stores.all]
    closed = stores.all[3]
    closed.close()
    found = get_in_stores(asked, bytes_max=10**6)
    for (store, keys), values in zip(asked, found, strict=True):
        if store is closed or store is stores.all[-1] or b"" in keys:
            assert values is None, "it is to be asked by itself"
        else:
            assert values == store.get_many(keys)
    # Who has too much is found out one by one.
    for (store, keys), values in zip(asked, get_in_stores(asked, bytes_max=1), strict=True):
        if values is not None:
            assert values == store.get_many(keys)
    stores.close()


def test_writes_to_many_stores_reach_each_of_them_with_its_state(tmp_path: Path) -> None:
    stores = Stores(tmp_path, 5)
    locked, filled, closed = stores.all[1], stores.all[2], stores.all[3]
    # It has rows in its memtable, which would hide others.
    filled.write([keyed_rows([b"%d" % n for n in range(300)], [b"old"] * 300)], KvState(1, 300))
    closed.close()
    writes = [
        StoreWrite(store, [keyed_rows([b"1", b"2"], [b"%d" % n, None])], KvState(7, n))
        for n, store in enumerate(stores.all)
    ]
    with locked._write_lock:
        outcomes = write_to_stores_if_quick(writes)
    assert [outcome if isinstance(outcome, bool) else "error" for outcome in outcomes] == [
        *(True, False, True, "error", True, True)
    ]
    assert locked.state.applied_offset == 0
    failures = write_to_stores([writes[1]])
    assert failures == [None]
    for number, store in enumerate(stores.all):
        if store is not closed:
            assert get_many(store, [b"1", b"2"]) == [b"%d" % number, None]
            assert (store.state.applied_offset, store.state.row_count) == (7, number)
    stores.close()


def test_the_states_of_many_stores_are_on_the_disk_with_their_rows(tmp_path: Path) -> None:
    stores = Stores(tmp_path, 60)
    # So many rows that they are more than one batch.
    keys = [b"%d" % n for n in range(40)]
    rows = [StoreWrite(store, [keyed_rows(keys, [b"r"] * 40)], KvState(3, 40)) for store in stores.all]
    assert write_to_stores_if_quick(rows) == [True] * len(rows)
    written = [store._written_bytes for store in stores.all]
    stores.close()
    again = Stores(tmp_path, 60)
    assert {(store.state.applied_offset, store.state.row_count) for store in again.all} == {(3, 40)}
    assert [store._written_bytes for store in again.all[:-1]] == written[:-1]
    assert all(get_many(store, keys) == [b"r"] * 40 for store in again.all)
    again.close()


def test_rows_without_a_key_are_refused_and_concern_no_other_store(tmp_path: Path) -> None:
    stores = Stores(tmp_path, 2)
    first, second, _ = stores.all
    good = StoreWrite(first, [keyed_rows([b"a"], [b"1"], SCHEMA_ID)], KvState(1, 1))
    bad = StoreWrite(second, [keyed_rows([b""], [b"1"], SCHEMA_ID)], KvState(1, 1))
    failures = write_to_stores([good, bad])
    assert failures[0] is None
    assert isinstance(failures[1], CorruptRecordError)
    assert get_many(first, [b"a"]) == [b"1"]
    stores.close()
