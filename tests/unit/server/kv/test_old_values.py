"""A batch finds the newest row of each key, wherever it is: in a pending batch, in the memtable or in RocksDB.
Real stores with rows at random in all of these places, and buckets whose disk is held while large batches wait."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

from fluss.record.mutations import FoundRows, Mutations
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.server.kv.preparer import (
    QUICK_BYTES_MAX,
    BucketShare,
    NotQuickError,
    current_rows,
    current_rows_in_memory,
)
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import HeldDisk, hosting
from tests.unit.server.merge.merging import Delete, Row

Changed = dict[bytes, bytes | None]


def keyed(changed: Changed, schema_id: int = 1) -> Mutations:
    rows = EncodedRows.from_list([row or b"" for row in changed.values()])
    return Mutations(HashedKeys.from_list(list(changed)), rows, schema_id)


def found(rows: FoundRows, keys: list[bytes]) -> dict[bytes, tuple[int, bytes]]:
    """Return the rows and their schemas by key; no key may come twice."""
    by_number: dict[int, tuple[int, bytes]] = {}
    for numbers, stored in rows.groups:
        for number, schema_id, row in zip(numbers.tolist(), stored.schema_ids, stored.rows.to_list(), strict=True):
            assert number not in by_number
            by_number[number] = int(schema_id), row
    assert rows.numbers.tolist() == list(by_number)
    assert rows.value_lengths.tolist() == [2 + len(row) for _, row in by_number.values()]
    return {keys[number]: row for number, row in by_number.items()}


@pytest.mark.parametrize("seed", range(6))
def test_the_newest_row_of_a_key_is_found_wherever_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    keys = [b"key %d" % number for number in range(400)]

    def some_changes(place: bytes) -> Changed:
        chosen = rng.sample(keys, 200)
        return {key: None if rng.random() < 0.3 else place + key for key in chosen}

    places = [some_changes(place) for place in (b"rocksdb ", b"memtable ", b"older ", b"newer ")]
    model: dict[bytes, tuple[int, bytes]] = {}
    for schema_id, changed in enumerate(places, start=1):
        for key, row in changed.items():
            if row is None:
                model.pop(key, None)
            else:
                model[key] = schema_id, row
    store = KvStore.open(tmp_path / "store", KvResources())
    store.write([keyed(places[0], 1)], KvState(1, None))
    store.flush()
    store.write([keyed(places[1], 2)], KvState(2, None))
    pending = [Memtable.over(keyed(places[3], 4)), Memtable.over(keyed(places[2], 3))]
    wanted = rng.sample([*keys, b"unknown", b"key"], 300)
    expected = {key: model[key] for key in wanted if key in model}
    assert {schema_id for schema_id, _ in expected.values()} == {1, 2, 3, 4}, "there are rows of every place"
    hashed, share = HashedKeys.from_list(wanted), BucketShare((), store, pending)
    assert found(current_rows([share], hashed, [len(wanted)]), wanted) == expected
    few = [next(key for key in wanted if changed.get(key)) for changed in places[1:]]
    few.append(b"unknown")
    quick = current_rows_in_memory([share], HashedKeys.from_list(few), [len(few)])
    assert found(quick, few) == {key: model[key] for key in few if key in model}
    store.close()


def test_what_is_pending_needs_no_store_and_what_is_removed_there_is_not_found_behind_it(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path / "store", KvResources())
    store.write([keyed({b"a": b"stored", b"b": b"stored"})], KvState(1, 2))
    pending = [Memtable.over(keyed({b"a": None})), Memtable.over(keyed({b"a": b"older", b"c": b"older"}))]

    def find(*keys: bytes) -> dict[bytes, tuple[int, bytes]]:
        share = BucketShare((), store, pending)
        return found(current_rows([share], HashedKeys.from_list(list(keys)), [len(keys)]), list(keys))

    assert find(b"b", b"a", b"c") == {
        b"b": (1, b"stored"),
        b"c": (1, b"older"),
    }
    store.close()
    assert find(b"c", b"a") == {b"c": (1, b"older")}
    assert find(b"a") == {}


def test_many_bytes_are_not_quick_wherever_they_are(tmp_path: Path) -> None:
    store = KvStore.open(tmp_path / "store", KvResources())
    half = bytes(QUICK_BYTES_MAX // 2)
    store.write([keyed({b"a": half})], KvState(1, 1))
    for row, is_quick in ((half[:-4], True), (half, False)):
        share = BucketShare((), store, [Memtable.over(keyed({b"b": row}))])
        keys = HashedKeys.from_list([b"a", b"b"])
        if is_quick:
            assert np.sort(current_rows_in_memory([share], keys, [2]).numbers).tolist() == [0, 1]
        else:
            with pytest.raises(NotQuickError):
                current_rows_in_memory([share], keys, [2])
    store.close()


@pytest.mark.parametrize("seed", range(3))
async def test_large_batches_build_on_what_is_pending_in_memory_and_on_the_disk(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model: dict[int, str] = {}

    def batch(name: str) -> list[Row | Delete]:
        """Return records of many keys, some of them several times, and note what they leave."""
        records: list[Row | Delete] = []
        for place in range(250):
            key = rng.randrange(400)
            if rng.random() < 0.3:
                records.append(Delete((key, None)))
                model.pop(key, None)
            else:
                model[key] = f"{name} {place}"
                records.append((key, model[key]))
        return records

    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put(*batch("rocksdb"))
        await bucket.kv.flush()
        await bucket.put(*batch("memtable"))
        disk.hold()
        answers = [bucket.begin(*batch(f"pending {number}")) for number in range(4)]
        answers += [bucket.begin((number, "small")) for number in range(3)]
        model.update(dict.fromkeys(range(3), "small"))
        await eventually_async(lambda: len(bucket.kv._pending) == len(answers))
        disk.release()
        ends = [(await answer).log_end_offset for answer in answers]
        assert ends == sorted(ends)
        assert sorted(await bucket.rows()) == sorted(model.items())
        assert await bucket.kv.row_count() == len(model)
        assert replayed(bucket.changelog()) == model
        assert bucket.manager.kv_runtime.memory.held_bytes == 0


def replayed(changes: list[tuple[str, Row]]) -> dict[int, str]:
    """Return the rows that a changelog leads to; every change has to fit what was there."""
    rows: dict[int, str] = {}
    for kind, (key, text) in changes:
        if kind == "+I":
            assert key not in rows
        if kind in ("-U", "-D"):
            assert rows[key] == text
        if kind == "-D":
            del rows[key]
        elif kind != "-U":
            rows[key] = text
    return rows


async def test_a_batch_that_replaces_pending_rows_is_itself_replaced_while_it_waits(tmp_path: Path) -> None:
    disk = HeldDisk()
    keys = range(100)
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put(*((key, "a") for key in keys))
        disk.hold()
        answers = [bucket.begin(*((key, "b") for key in keys))]
        answers.append(bucket.begin(*(Delete((key, None)) for key in keys)))
        answers.append(bucket.begin(*((key, "c") for key in keys[::2])))
        await eventually_async(lambda: len(bucket.kv._pending) == 3)
        assert await bucket.rows() == [(key, "a") for key in keys]
        disk.release()
        await asyncio.gather(*answers)
        changes = bucket.changelog()
        assert changes[-50:] == [("+I", (key, "c")) for key in keys[::2]]
        assert changes[-150:-50] == [("-D", (key, "b")) for key in keys]
        assert await bucket.rows() == [(key, "c") for key in keys[::2]]
