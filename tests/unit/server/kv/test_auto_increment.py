"""Rows are numbered once, in order, without gaps that could be avoided: by duplicates, failures and restarts.
Buckets of real tables over a counter in memory; small blocks of ids, so that they end often."""

from __future__ import annotations

import asyncio
import errno
import shutil

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Schema
from fluss.server.kv.auto_increment import AutoIncrement, IdAllocation
from fluss.server.kv.bucket import KvPut
from fluss.storage.kv.state import IdBlock
from fluss.testing.faultfs import FaultFiles
from tests.unit.server.kv.bucket_support import KV_DIRECTORY, Bucket, MemoryIds, crashed, hosting, kv_batch
from tests.unit.server.merge.merging import make_table

SCHEMA = Schema(
    pa.schema([("key", pa.string()), ("id", pa.int64()), ("value", pa.string())]),
    primary_keys=["key"],
    auto_increment_column="id",
)
TABLE = make_table(SCHEMA, {"auto-increment.cache-size": "5"})
TARGETS = (0, 2)


async def put(bucket: Bucket, *keys: str, value: str = "v", **options) -> int:
    return await bucket.put(*((key, None, value) for key in keys), targets=TARGETS, **options)


async def numbers(bucket: Bucket) -> dict[str, int]:
    return {key: number for key, number, _ in await bucket.rows()}


async def test_rows_are_numbered_when_they_are_inserted_and_keep_their_number(tmp_path):
    ids = MemoryIds()
    async with hosting(tmp_path, TABLE, ids=ids) as bucket:
        await put(bucket, "a", "b", "c")
        await put(bucket, "b", "d", value="w")
        assert await numbers(bucket) == {"a": 1, "b": 2, "c": 3, "d": 4}
        assert ids.calls == [5]
        await put(bucket, *"efghijklm")
        assert await numbers(bucket) == {key: index for index, key in enumerate("abcdefghijklm", 1)}
        assert ids.calls == [5, 10], "a block and the missing ones, as many blocks as they need"


async def test_a_batch_that_is_sent_again_uses_no_numbers(tmp_path):
    async with hosting(tmp_path, TABLE, ids=MemoryIds()) as bucket:
        batch = memoryview(kv_batch(TABLE, ("a", None, "v"), ("b", None, "v"), writer=1, sequence=0))
        answers = [bucket.kv.put(KvPut(batch, TARGETS)) for _ in range(4)]
        assert {(await answer).log_end_offset for answer in answers} == {2}
        await put(bucket, "c", writer=1, sequence=1)
        assert await numbers(bucket) == {"a": 1, "b": 2, "c": 3}


async def test_a_batch_that_fails_gives_its_numbers_back(tmp_path):
    disk = FaultFiles()
    disk.make_directory(tmp_path)
    async with hosting(tmp_path, TABLE, ids=MemoryIds(), files=disk) as bucket:
        await put(bucket, "a")
        disk.fail_next("write", "log-0", number=errno.ENOSPC)
        lost = [bucket.kv.put(KvPut(memoryview(kv_batch(TABLE, (key, None, "v"))), TARGETS)) for key in "xyz"]
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert any(isinstance(outcome, FlussError) for outcome in outcomes)
        kept = sum(not isinstance(outcome, FlussError) for outcome in outcomes)
        await put(bucket, "b")
        assert (await numbers(bucket))["b"] == 2 + kept


@pytest.mark.parametrize("end", ["clean", "crash", "crash after flush", "store lost"])
async def test_numbers_go_on_without_a_gap_after_a_restart_also_at_the_end_of_a_block(tmp_path, end):
    ids = MemoryIds()
    data_dir, expected = tmp_path / "0", {}
    for run_number in range(8):
        async with hosting(data_dir, TABLE, ids=ids) as bucket:
            assert await numbers(bucket) == expected
            for key in (f"{run_number} a", f"{run_number} b"):
                await put(bucket, key)
                expected[key] = len(expected) + 1
                if end == "crash after flush":
                    await bucket.kv.flush()
            if end.startswith("crash"):
                data_dir = crashed(data_dir, tmp_path / f"{run_number + 1}")
        if end == "store lost":
            shutil.rmtree(data_dir / KV_DIRECTORY)
    assert ids.calls == [5, 5, 5, 5]


async def test_buckets_draw_their_blocks_from_one_counter(tmp_path):
    ids = MemoryIds()
    async with hosting(tmp_path / "a", TABLE, ids=ids) as one, hosting(tmp_path / "b", TABLE, ids=ids) as other:
        await put(one, "a")
        await put(other, "b")
        await put(one, "c", "d", "e", "f", "g", "h")
        await put(other, "i")
        assert await numbers(one) == {"a": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 11, "h": 12}
        assert await numbers(other) == {"b": 6, "i": 7}


async def test_a_column_that_is_full_refuses_further_rows(tmp_path):
    schema = Schema(
        pa.schema([("key", pa.string()), ("id", pa.int32()), ("value", pa.string())]),
        primary_keys=["key"],
        auto_increment_column="id",
    )
    table = make_table(schema, {"auto-increment.cache-size": "5"})
    ids = MemoryIds()
    ids.id_next = 2**31 - 2
    async with hosting(tmp_path, table, ids=ids) as bucket:
        await put(bucket, "a", "b")
        with pytest.raises(FlussError, match="run out of ids") as error:
            await put(bucket, "c")
        assert error.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        await put(bucket, "a", value="w")
        assert await numbers(bucket) == {"a": 2**31 - 2, "b": 2**31 - 1}


async def test_the_counter_of_a_table_that_cannot_be_reached_fails_the_batch_and_nothing_else(tmp_path):
    class Failing(MemoryIds):
        async def reserve(self, table_id: int, column_id: int, count: int) -> int:
            if len(self.calls) == 1:
                self.calls.append(count)
                raise FlussError("the metadata could not be changed", ErrorCode.STORAGE_EXCEPTION)
            return await super().reserve(table_id, column_id, count)

    async with hosting(tmp_path, TABLE, ids=Failing()) as bucket:
        await put(bucket, "a", "b", "c", "d")
        with pytest.raises(FlussError, match="could not be changed"):
            await put(bucket, "e", "f")
        await put(bucket, "g")
        await put(bucket, "e", "f")
        assert await numbers(bucket) == {"a": 1, "b": 2, "c": 3, "d": 4, "g": 5, "e": 6, "f": 7}


def test_what_is_left_of_a_block_is_known_from_its_last_number():
    column = AutoIncrement.of(TABLE)
    assert column is not None
    assert [column.block_after(last) for last in (1, 4, 5, 6)] == [
        IdBlock(1, 2, 6),
        IdBlock(1, 5, 6),
        IdBlock(1, 6, 6),
        IdBlock(1, 7, 11),
    ]


def test_no_numbers_cost_nothing():
    column = AutoIncrement.of(TABLE)
    assert column is not None

    def reserve(count: int) -> int:
        raise AssertionError("nothing was needed")

    run_of_ids = IdAllocation(column, None, reserve)
    assert list(run_of_ids.take(0)) == []
