"""Small batches give the same changelog and the same rows whether they are prepared alone, together or in threads.
Real buckets that take everything at once, some of them without the short ways."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.record.mutations import Mutations
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.schema.schema import Schema
from fluss.server.kv.joint_work import LoopBudget
from fluss.server.kv.preparer import BatchPreparer, BucketShare, MergeMode, current_rows
from fluss.storage.kv.store import KvResources, KvState, KvStore
from tests.unit.server.kv.bucket_support import SCHEMA, TABLE, hosting, kv_batch
from tests.unit.server.merge.merging import Delete, make_table

TABLES = {
    "full image": TABLE,
    "wal image": make_table(SCHEMA, {"changelog.image": "wal"}),
    "first row": make_table(SCHEMA, {"merge-engine": "first_row"}),
    "versioned": make_table(
        Schema(pa.schema([("id", pa.int32()), ("version", pa.int64())]), primary_keys=["id"]),
        {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "version"},
    ),
}


def made_up_batches(rng, table, count):
    """Return batches of a few rows each, with keys that come again."""
    is_text = table.descriptor.schema.columns[1].data_type.root == "STRING"
    takes_deletes = table is TABLE or table is TABLES["wal image"]
    batches = []
    for _ in range(count):
        rows = []
        for _ in range(rng.randrange(1, 4)):
            row = (rng.randrange(40), f"v{rng.randrange(10**6)}" if is_text else rng.randrange(10**6))
            rows.append(Delete(row) if takes_deletes and rng.random() < 0.2 else row)
        batches.append(rows)
    return batches


async def outcome(directory, table, batches):
    async with hosting(directory, table) as bucket:
        begun = [bucket.begin(*rows, writer=1, sequence=number) for number, rows in enumerate(batches)]
        ends = [(await answer).log_end_offset for answer in begun]
        return ends, bucket.changelog(), await bucket.rows(), await bucket.kv.row_count()


@pytest.mark.parametrize("name", TABLES)
async def test_it_does_not_matter_whether_batches_are_prepared_together_alone_or_in_threads(
    tmp_path, monkeypatch, name
):
    table = TABLES[name]
    batches = made_up_batches(random.Random(name), table, 150)
    together = await outcome(tmp_path / "together", table, batches)
    monkeypatch.setattr(BatchPreparer, "is_joinable", lambda *_: False)
    assert await outcome(tmp_path / "alone", table, batches) == together
    monkeypatch.setattr(BatchPreparer, "are_quick", lambda *_: False)
    assert await outcome(tmp_path / "threads", table, batches) == together
    assert len(together[1]) >= 40


def noted_attempts(monkeypatch):
    """Return a list that gets, for each attempt to prepare batches as one, how many of each bucket they are."""
    attempts = []
    prepare = BatchPreparer._prepare_as_one

    def noting(self, mode, shares, find_rows):
        attempts.append([len(share.batches) for share in shares])
        return prepare(self, mode, shares, find_rows)

    monkeypatch.setattr(BatchPreparer, "_prepare_as_one", noting)
    return attempts


async def test_small_batches_that_wait_are_really_prepared_together(tmp_path, monkeypatch):
    async with hosting(tmp_path) as bucket:
        await bucket.put((0, "open"))
        attempts = noted_attempts(monkeypatch)
        await asyncio.gather(*(bucket.begin((key, "a")) for key in range(1, 9)))
        assert attempts == [[8]]
        await asyncio.gather(*(bucket.begin((1, text)) for text in "bcd"))
        # They are all about one key; those that were put back are not tried together again.
        assert attempts[1:] == [[3], [1], [1], [1]]
        assert bucket.changelog()[-2:] == [("-U", (1, "c")), ("+U", (1, "d"))]


async def test_a_bad_batch_among_small_ones_is_refused_alone(tmp_path):
    async with hosting(tmp_path) as bucket:
        await bucket.put((0, "open"))
        begun = [bucket.begin((key, "a"), writer=1, sequence=key if key != 3 else 77) for key in range(3)]
        begun.append(bucket.begin((8, "out of order"), writer=1, sequence=77))
        begun.append(bucket.begin((9, "again"), writer=1, sequence=1))
        begun.append(bucket.begin((4, "a"), writer=1, sequence=3))
        answers = await asyncio.gather(*begun, return_exceptions=True)
        assert [answer.log_end_offset for answer in (*answers[:3], answers[4], answers[5])] == [3, 4, 5, 4, 6]
        assert isinstance(answers[3], FlussError)
        assert answers[3].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert await bucket.rows() == [(0, "a"), (1, "a"), (2, "a"), (4, "a")]


def test_records_that_reach_into_the_next_batch_are_not_found_there(tmp_path):
    preparer = BatchPreparer(TABLE)
    store = KvStore.open(tmp_path / "store", KvResources())
    good = [preparer.check(memoryview(kv_batch(TABLE, (key, "a"))), (), is_overwrite=False) for key in range(2)]
    (prepared,) = preparer.prepare(MergeMode(1), [BucketShare(good, store)], current_rows)
    assert len(prepared) == 2
    lying = [_counting(good[0], 2), _counting(good[1], 0)]
    (refusal,) = preparer.prepare(MergeMode(1), [BucketShare(lying, store)], current_rows)
    assert isinstance(refusal, FlussError)
    assert refusal.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    store.close()


def _counting(batch, record_count):
    return type(batch)(batch.data, batch.schema_id, batch.writer_id, batch.batch_sequence, record_count, batch.crc)


def _keyed(keys, rows):
    return Mutations(HashedKeys.from_list(keys), EncodedRows.from_list(rows), 1)


async def test_time_of_the_loop_is_limited_per_turn_and_comes_back_in_the_next():
    now_s = 0.0
    budget = LoopBudget(lambda: now_s)
    for _ in range(3):
        assert budget.is_left
        with budget.spend():
            now_s += 0.001
        assert budget.is_left
        with budget.spend():
            now_s += 0.005
        assert not budget.is_left
        await asyncio.sleep(0)


def test_a_store_that_is_being_written_or_is_behind_takes_no_quick_writes(tmp_path):
    store = KvStore.open(tmp_path / "store", KvResources())
    assert store.write_if_quick([_keyed([b"a", b"b"], [b"1", b"2"])], KvState(1, 2))
    assert store.write_if_quick([_keyed([b"a"], [b""])], KvState(2, 1))
    with store._write_lock:
        assert not store.write_if_quick([_keyed([b"c"], [b"3"])], KvState(3, 2))
    assert store.get_many([b"a", b"b", b"c"]) == [None, b"\1\0002", None]
    assert (store.state.applied_offset, store.state.row_count) == (2, 1)
    store.close()
