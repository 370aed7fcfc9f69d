"""Batches of a bucket are carried out once, in order, and visible when they are answered; failed ones leave nothing.
A tablet server without a network, over a real log and a real store, with a disk that can be held."""

from __future__ import annotations

import asyncio
import struct

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.record.framing import crc32c
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from fluss.server.kv.bucket import KvPut
from fluss.server.kv.kv_runtime import KvSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import TABLE, HeldDisk, hosting, kv_batch
from tests.unit.server.merge.merging import Delete, make_table, with_columns


def code_of(error: pytest.ExceptionInfo[FlussError]) -> ErrorCode:
    return ErrorCode(error.value.error_code)


async def test_an_update_takes_two_offsets_an_insert_and_a_delete_one(tmp_path):
    async with hosting(tmp_path) as bucket:
        ends = [await bucket.put(change) for change in ((1, "a"), (2, "b"), (1, "c"), Delete((1, None)))]
        assert ends == [1, 2, 4, 5]
        assert bucket.changelog() == [
            ("+I", (1, "a")),
            ("+I", (2, "b")),
            ("-U", (1, "a")),
            ("+U", (1, "c")),
            ("-D", (1, "c")),
        ]
        assert await bucket.rows() == [(2, "b")]
        assert await bucket.kv.row_count() == 1


async def test_batches_without_effect_take_one_offset_each(tmp_path):
    async with hosting(tmp_path) as bucket:
        for sequence in range(10):
            assert await bucket.put(Delete((7, None)), writer=1, sequence=sequence) == sequence + 1
        assert bucket.changelog() == []
        assert await bucket.put((7, "a"), writer=1, sequence=10) == 11
        assert bucket.changelog() == [("+I", (7, "a"))]


async def test_a_batch_out_of_order_leaves_neither_changelog_nor_values_behind(tmp_path):
    async with hosting(tmp_path) as bucket:
        await bucket.put((1, "a"), writer=1, sequence=0)
        with pytest.raises(FlussError, match="Out of order") as error:
            await bucket.put((1, "lost"), writer=1, sequence=2)
        assert code_of(error) == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert await bucket.put((1, "b"), writer=1, sequence=1) == 3
        assert bucket.changelog() == [("+I", (1, "a")), ("-U", (1, "a")), ("+U", (1, "b"))]


async def test_a_batch_that_is_sent_again_is_answered_like_the_first_time(tmp_path):
    async with hosting(tmp_path) as bucket:
        batches = [bucket.begin((1, f"v{sequence}"), writer=1, sequence=sequence) for sequence in range(3)]
        again = [bucket.begin((1, f"v{sequence}"), writer=1, sequence=sequence) for sequence in range(3)]
        assert [(await answer).log_end_offset for answer in batches] == [1, 3, 5]
        assert [(await answer).log_end_offset for answer in again] == [1, 3, 5]
        for _ in range(3):
            assert await bucket.put((1, "v2"), writer=1, sequence=2) == 5
        assert bucket.log.offset_next == 5
        assert await bucket.rows() == [(1, "v2")]


async def test_a_batch_that_is_sent_again_is_not_answered_before_the_first_is_visible(tmp_path):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"), writer=1, sequence=0)
        disk.hold()
        first = bucket.begin((1, "b"), writer=1, sequence=1)
        await eventually_async(lambda: bucket.log.offset_next >= 3)
        again = bucket.begin((1, "b"), writer=1, sequence=1)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not again.done()
        assert await bucket.rows() == [(1, "a")], "what is not on the disk is not visible"
        disk.release()
        assert (await first).log_end_offset == (await again).log_end_offset == 3
        assert await bucket.rows() == [(1, "b")]


async def test_batches_are_carried_out_in_the_order_of_their_arrival(tmp_path):
    async with hosting(tmp_path) as bucket:
        answers = [bucket.begin((number % 3, f"{number}"), (9, f"{number}")) for number in range(30)]
        ends = [(await answer).log_end_offset for answer in answers]
        assert ends == sorted(set(ends))
        assert await bucket.rows() == [(0, "27"), (1, "28"), (2, "29"), (9, "29")]
        nines = [row[1] for kind, row in bucket.changelog() if row[0] == 9 and kind != "-U"]
        assert nines == [f"{number}" for number in range(30)]


async def test_a_batch_sees_the_one_before_it_that_is_not_on_the_disk_yet(tmp_path):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"), (2, "a"), (3, "a"))
        disk.hold()
        answers = [bucket.begin((1, "b"), Delete((2, None))), bucket.begin((1, "c"), (2, "c"), (3, "c"))]
        await eventually_async(lambda: bucket.log.offset_next == 11)
        assert await bucket.rows() == [(1, "a"), (2, "a"), (3, "a")]
        disk.release()
        await asyncio.gather(*answers)
        assert bucket.changelog()[3:] == [
            ("-U", (1, "a")),
            ("+U", (1, "b")),
            ("-D", (2, "a")),
            ("-U", (1, "b")),
            ("+U", (1, "c")),
            ("+I", (2, "c")),
            ("-U", (3, "a")),
            ("+U", (3, "c")),
        ]
        assert await bucket.rows() == [(1, "c"), (2, "c"), (3, "c")]
        assert await bucket.kv.row_count() == 3


@pytest.mark.parametrize("acks", [0, 1])
async def test_with_fewer_acks_a_batch_is_answered_when_it_is_written_and_visible_when_it_is_on_the_disk(
    tmp_path, acks
):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"))
        disk.hold()
        assert await bucket.put((1, "b"), acks=acks) == 3
        assert await bucket.rows() == [(1, "a")]
        disk.release()
        await bucket.put((2, "c"))
        assert await bucket.rows() == [(1, "b"), (2, "c")]


async def test_what_is_wrong_with_a_batch_itself_is_said_at_once(tmp_path):
    async with hosting(tmp_path) as bucket:
        good = kv_batch(TABLE, (1, "a"))
        for batch, targets, code in (
            (good[:-1], (), ErrorCode.CORRUPT_RECORD_EXCEPTION),
            (good[:-1] + b"x", (), ErrorCode.CORRUPT_RECORD_EXCEPTION),
            (good, (7,), ErrorCode.INVALID_TARGET_COLUMN),
        ):
            with pytest.raises(FlussError) as error:
                bucket.kv.put(KvPut(memoryview(batch), targets))
            assert code_of(error) == code
        altered = with_columns(TABLE, Column("more", DataTypes.int()))
        with pytest.raises(FlussError, match="no schema of id 2") as error:
            bucket.kv.put(KvPut(memoryview(kv_batch(altered, (1, "a", 3)))))
        assert code_of(error) == ErrorCode.SCHEMA_NOT_EXIST
        assert bucket.log.offset_next == 0


async def test_a_batch_whose_rows_are_refused_does_not_disturb_those_around_it(tmp_path):
    table = make_table(TABLE.descriptor.schema, {"delete.behavior": "disable"})
    async with hosting(tmp_path, table) as bucket:
        before = bucket.begin((1, "a"), writer=1, sequence=0)
        refused = bucket.begin((1, "no"), Delete((1, None)), writer=1, sequence=1)
        behind = bucket.begin((1, "b"), writer=1, sequence=1)
        assert (await before).log_end_offset == 1
        with pytest.raises(FlussError) as error:
            await refused
        assert code_of(error) == ErrorCode.DELETION_DISABLED_EXCEPTION
        assert (await behind).log_end_offset == 3
        assert bucket.changelog() == [("+I", (1, "a")), ("-U", (1, "a")), ("+U", (1, "b"))]


async def test_batches_of_several_schemas_follow_each_other(tmp_path):
    async with hosting(tmp_path) as bucket:
        old = bucket.begin((1, "a"), (2, "b"))
        altered = with_columns(TABLE, Column("more", DataTypes.int()))
        bucket.manager.table_altered(altered)
        bucket.table = altered
        answers = [old, bucket.begin((1, "c", 5)), bucket.begin((2, "d"), schema_id=1)]
        await asyncio.gather(*answers)
        assert await bucket.rows() == [(1, "c", 5), (2, "d", None)]
        assert bucket.changelog() == [
            ("+I", (1, "a", None)),
            ("+I", (2, "b", None)),
            ("-U", (1, "a", None)),
            ("+U", (1, "c", 5)),
            ("-U", (2, "b", None)),
            ("+U", (2, "d", None)),
        ]


async def test_writes_are_refused_while_others_hold_too_much_memory(tmp_path):
    disk = HeldDisk()
    kv = KvSettings(write_memory_bytes_max=10_000)
    async with hosting(tmp_path, kv=kv, files=disk) as bucket:
        await bucket.put((0, "a"))
        disk.hold()
        answers = [bucket.begin((number, "x" * 1000)) for number in range(4)]
        with pytest.raises(FlussError, match="more slowly") as error:
            bucket.begin((5, "x" * 1000))
        assert code_of(error) == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION
        assert bucket.kv.pressure > 0
        disk.release()
        await asyncio.gather(*answers)
        assert bucket.manager.kv_runtime.memory.held_bytes == 0
        assert bucket.kv.pressure == 0
        await bucket.put((200, "y" * 20_000))


async def test_memory_is_given_back_whatever_becomes_of_a_batch(tmp_path):
    async with hosting(tmp_path) as bucket:
        await bucket.put((1, "a"), writer=1, sequence=0)
        await bucket.put((1, "a"), writer=1, sequence=0)
        with pytest.raises(FlussError):
            await bucket.put((1, "a"), writer=1, sequence=5)
        await bucket.put((1, "a"), acks=1)
        await bucket.put((1, "a"))
        assert bucket.manager.kv_runtime.memory.held_bytes == 0


async def test_a_request_that_stops_waiting_changes_nothing(tmp_path):
    async with hosting(tmp_path) as bucket:
        answer = bucket.begin((1, "a"))
        answer.cancel()
        await bucket.put((2, "b"))
        assert await bucket.rows() == [(1, "a"), (2, "b")]


async def test_buckets_do_not_wait_for_each_other(tmp_path):
    schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
    table = make_table(schema)
    async with hosting(tmp_path, table) as bucket:
        await bucket.put((1, "a"))
        kv = bucket.kv
        started, may_end = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(store):
            loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(120)
            return store.state.row_count

        reading = asyncio.create_task(kv.read(bucket.manager.readers, slow))
        await started.wait()
        await bucket.put((2, "b"))
        may_end.set()
        assert await reading == 2


async def test_a_server_that_stops_finishes_what_is_in_the_changelog(tmp_path):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"))
        disk.hold()
        appended = bucket.begin((2, "b"))
        await eventually_async(lambda: bucket.log.offset_next == 2)
        waiting = [bucket.begin((number, "c")) for number in range(3, 6)]
        asyncio.get_running_loop().call_later(0.05, disk.release)
    assert (await appended).log_end_offset == 2
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, FlussError)]
    assert {outcome.error_code for outcome in refused} <= {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    async with hosting(tmp_path) as bucket:
        rows = await bucket.rows()
        assert rows[:2] == [(1, "a"), (2, "b")]
        assert len(rows) == 5 - len(refused)


async def test_a_table_that_is_dropped_ends_what_is_under_way(tmp_path):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"))
        kv = bucket.kv
        disk.hold()
        answers = [bucket.begin((number, "b")) for number in range(5)]
        await eventually_async(lambda: bucket.log.offset_next >= 3)
        await bucket.manager.drop_buckets(bucket.table, None)
        disk.release()
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert {outcome.error_code for outcome in outcomes} == {ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION}
        for call in (kv.store(), kv.row_count()):
            with pytest.raises(FlussError) as error:
                await call
            assert code_of(error) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await eventually_async(lambda: not (tmp_path / "db").exists())
        assert bucket.manager.kv_runtime.memory.held_bytes == 0


async def test_a_batch_with_a_wrong_framing_is_refused_for_good(tmp_path):
    async with hosting(tmp_path) as bucket:
        batch = kv_batch(TABLE, (1, "a"))
        struct.pack_into("<i", batch, 24, 2)
        struct.pack_into("<I", batch, 5, crc32c(memoryview(batch)[9:]))
        with pytest.raises(FlussError, match="KV record") as error:
            await bucket.kv.put(KvPut(memoryview(batch)))
        assert code_of(error) == ErrorCode.INVALID_TABLE_EXCEPTION
        assert not error.value.is_retriable


async def test_a_reader_that_has_seen_a_change_in_the_changelog_finds_it_by_key(tmp_path):
    async with hosting(tmp_path) as bucket:
        store = await bucket.kv.store()
        seen = []

        def advanced(log):
            seen.append((log.offset_high_watermark, store.state.applied_offset))

        bucket.log.on_advance(advanced)
        await asyncio.gather(*(bucket.begin((number, "a")) for number in range(20)))
        assert seen[-1] == (20, 20)
        assert all(shown <= applied for shown, applied in seen)
