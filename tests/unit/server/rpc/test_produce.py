"""What is produced is in the log, in order and as safe as asked for; what cannot be is refused and leaves no trace.

A real server on a real socket writes real files; some tests make the disk fail or fill up.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.record.arrow_ipc import build_metadata, parse_message
from fluss.record.log_batch import (
    MAGIC_V0,
    build_batch,
    encode_row_body,
    iter_batches,
    read_batch,
    sealed_header,
    verify_crc,
)
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Schema
from fluss.server.model import Partition
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    NOW_MS,
    SCHEMA,
    Clock,
    HeldFiles,
    MemoryCatalog,
    Server,
    arrow_batch,
    batch_with_statistics,
    decoded,
    ids,
    make_table,
    rows,
    serving,
    with_schema,
)

QUICK = TabletSettings(retry_answer_delay_ms=1)


async def _all_ids(server: Server, bucket: int = 0) -> list[int]:
    (answer,) = await server.fetch((bucket, 0), bucket_bytes=1 << 24)
    return ids(answer.records_view)


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_every_kind_of_acknowledgement_is_answered_with_the_first_offset(tmp_path, acks):
    async with serving(tmp_path, make_table()) as server:
        assert await server.append(rows(0, 3), acks=acks) == 0
        assert await server.append(rows(3, 2), acks=acks) == 3
        await server.append(rows(5, 1))
        assert await _all_ids(server) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("acks", [-2, 2, 100])
async def test_other_acks_are_refused_for_every_bucket(tmp_path, acks):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        entries = [bulk_messages.BucketRecords(bucket, arrow_batch(rows(0, 1))) for bucket in (0, 1)]
        request = bulk_messages.ProduceLogRequest(acks, 1, 1000, entries)
        answers = (await server.request(apis.PRODUCE_LOG, request)).buckets_resp
        assert [(a.bucket_id, a.error_code) for a in answers] == [(0, 18), (1, 18)]
        assert "-1" in answers[0].error_message
        assert await _all_ids(server) == []


async def test_a_failed_bucket_does_not_stop_the_others(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        damaged = arrow_batch(rows(0, 1))
        damaged[-1] ^= 1
        payloads = [(0, arrow_batch(rows(0, 2))), (7, arrow_batch(rows(0, 1))), (1, damaged)]
        entries = [bulk_messages.BucketRecords(bucket, payload) for bucket, payload in payloads]
        answers = (
            await server.request(apis.PRODUCE_LOG, bulk_messages.ProduceLogRequest(-1, 1, 1000, entries))
        ).buckets_resp
        assert [a.bucket_id for a in answers] == [0, 7, 1]
        assert (answers[0].HasField("error_code"), answers[0].base_offset) == (False, 0)
        assert answers[1].error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert "Unknown table or bucket: TableBucket{tableId=1, bucket=7}" in answers[1].error_message
        assert answers[2].error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert not answers[2].HasField("base_offset")
        assert [await _all_ids(server, 0), await _all_ids(server, 1)] == [[0, 1], []]


async def test_a_bucket_that_is_named_twice_is_answered_twice_in_order(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        entries = [bulk_messages.BucketRecords(0, arrow_batch(rows(first, 2))) for first in (0, 2)]
        request = bulk_messages.ProduceLogRequest(-1, 1, 1000, entries)
        answers = (await server.request(apis.PRODUCE_LOG, request)).buckets_resp
        assert [a.base_offset for a in answers] == [0, 2]
        assert await _all_ids(server) == [0, 1, 2, 3]


async def test_partitions_are_told_apart_and_named_in_the_answer(tmp_path):
    schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    table = make_table(schema=schema, partition_keys=["name"])
    catalog = MemoryCatalog(table)
    catalog.add_partition(Partition(11, 1, "a"))
    catalog.add_partition(Partition(12, 1, "b"))
    async with serving(tmp_path, catalog=catalog, settings=QUICK) as server:
        answer = await server.produce(arrow_batch(rows(0, 1)), partition_id=12)
        assert (answer.partition_id, answer.base_offset) == (12, 0)
        assert (tmp_path / "db/t-1/b-p12/log-0").is_dir()
        for partition_id in (None, 99):
            answer = await server.produce(arrow_batch(rows(0, 1)), partition_id=partition_id)
            assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
            assert answer.HasField("partition_id") == (partition_id is not None)
        assert "TableBucket{tableId=1, partitionId=99, bucket=0}" in answer.error_message


async def test_offset_and_time_are_written_into_the_batch_and_the_checksum_stays_right(tmp_path):
    clock = Clock()
    async with serving(tmp_path, make_table(), clock=clock) as server:
        await server.append(rows(0, 3))
        clock.now_ms -= 1000  # The wall clock may go back; commit times must not.
        await server.append(rows(3, 1))
        clock.now_ms += 5000
        await server.append(rows(4, 1))
        payload = (await server.fetch_one()).records_view
        found, position = [], 0
        while position < len(payload):
            batch = read_batch(payload, position)
            verify_crc(batch)
            found.append((batch.header.base_offset, batch.header.commit_timestamp))
            position += batch.header.size
        assert found == [(0, NOW_MS), (3, NOW_MS), (4, NOW_MS + 4000)]


class _TickingClock(Clock):
    """A clock on which time passes with every look."""

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


async def test_several_batches_of_one_append_share_their_time(tmp_path):
    async with serving(tmp_path, make_table(), clock=_TickingClock()) as server:
        answer = await server.produce(arrow_batch(rows(0, 2)) + arrow_batch(rows(2, 2)))
        assert answer.base_offset == 0
        await server.append(rows(4, 1))
        payload = (await server.fetch_one()).records_view
        assert [row["offset"] for row in decoded(payload)] == [0, 1, 2, 3, 4]
        first, second, later = (batch.header.commit_timestamp for batch in iter_batches(payload))
        assert first == second < later


async def test_a_batch_at_the_end_that_is_not_whole_is_dropped_and_nothing_is_nothing(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        whole = arrow_batch(rows(0, 2))
        assert (await server.produce(whole + whole[:-1])).base_offset == 0
        assert (await server.produce(b"")).base_offset == 2
        assert (await server.produce(b"\x00" * 11)).base_offset == 2
        assert await _all_ids(server) == [0, 1]


async def test_requests_on_one_connection_are_applied_in_the_order_they_were_sent(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        answers = await asyncio.gather(
            *(server.produce(arrow_batch(rows(n, 1), writer_id=5, sequence=n)) for n in range(50))
        )
        assert [a.base_offset for a in answers] == list(range(50))


# Idempotent writers


async def test_a_repeated_batch_is_answered_like_the_first_and_stored_once(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        for sequence in range(7):
            batch = arrow_batch(rows(2 * sequence, 2), writer_id=9, sequence=sequence)
            assert (await server.produce(batch)).base_offset == 2 * sequence
        # The last five are remembered.
        for sequence in range(2, 7):
            batch = arrow_batch(rows(2 * sequence, 2), writer_id=9, sequence=sequence)
            assert (await server.produce(batch)).base_offset == 2 * sequence
        old = await server.produce(arrow_batch(rows(2, 2), writer_id=9, sequence=1))
        assert old.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert await _all_ids(server) == list(range(14))


async def test_a_gap_in_the_sequence_is_refused_and_the_right_batch_is_accepted_after_it(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        unknown = await server.produce(arrow_batch(rows(0, 1), writer_id=9, sequence=1))
        assert unknown.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert (await server.produce(arrow_batch(rows(0, 1), writer_id=9, sequence=0))).base_offset == 0
        gap = await server.produce(arrow_batch(rows(2, 1), writer_id=9, sequence=2))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert (await server.produce(arrow_batch(rows(1, 1), writer_id=9, sequence=1))).base_offset == 1
        assert await _all_ids(server) == [0, 1]


async def test_writers_are_remembered_over_a_restart(tmp_path):
    table = make_table()
    async with serving(tmp_path, table) as server:
        await server.produce(arrow_batch(rows(0, 1), writer_id=9, sequence=0))
        await server.produce(arrow_batch(rows(1, 1), writer_id=9, sequence=1))
    async with serving(tmp_path, table) as server:
        assert (await server.produce(arrow_batch(rows(1, 1), writer_id=9, sequence=1))).base_offset == 1
        assert (await server.produce(arrow_batch(rows(2, 1), writer_id=9, sequence=2))).base_offset == 2
        assert await _all_ids(server) == [0, 1, 2]


async def test_an_empty_batch_takes_one_offset_and_harms_no_reader(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        assert await server.append(rows(0, 0)) == 0
        assert await server.append(rows(0, 2)) == 1
        answer = await server.fetch_one()
        assert [row["offset"] for row in decoded(answer.records_view)] == [1, 2]
        assert answer.high_watermark == 3


# What a table does not take


def _wrong_schema_id():
    return arrow_batch(rows(0, 1), schema_id=2)


def _wrong_columns():
    return arrow_batch(pa.record_batch({"id": pa.array([1], pa.int32())}))


def _rows_instead_of_arrow():
    row = np.zeros(8, np.uint8)
    body = encode_row_body(EncodedRows.from_offsets(row, np.array([0, 8])), np.zeros(1, np.uint8))
    return build_batch([body], schema_id=1, record_count=1, append_only=True)


def _wrong_record_count():
    message = rows(0, 2).serialize()
    return build_batch([message], schema_id=1, record_count=3, append_only=True)


def _change_types():
    message = rows(0, 1).serialize()
    change_types = np.full(1, 4, np.uint8)
    return build_batch([message], schema_id=1, record_count=1, append_only=False, change_types=change_types)


def _overlapping_buffers():
    """Columns could not be cut out of this one."""
    message = bytearray(rows(0, 1).serialize())
    parsed = parse_message(memoryview(message))
    buffers = parsed.buffers.copy()
    buffers[-1] = buffers[1]
    metadata = build_metadata(parsed.length, parsed.nodes, buffers, None, parsed.body_length)
    return build_batch([metadata, message[parsed.body_offset :]], schema_id=1, record_count=1, append_only=True)


def _too_many_offsets():
    batch = arrow_batch(rows(0, 1))
    header = replace(read_batch(batch).header, last_offset_delta=5)
    body = batch[header.header_size :]
    return bytearray(sealed_header(header, [body])) + body


MISFITS = [
    _wrong_schema_id,
    _wrong_columns,
    _rows_instead_of_arrow,
    _wrong_record_count,
    _change_types,
    _overlapping_buffers,
    _too_many_offsets,
]


@pytest.mark.parametrize("make", MISFITS, ids=[make.__name__.strip("_") for make in MISFITS])
async def test_a_batch_that_readers_could_not_decode_is_refused_for_good(tmp_path, make):
    async with serving(tmp_path, make_table()) as server:
        answer = await server.produce(make())
        assert answer.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert "db.t" in answer.error_message
        assert await server.append(rows(0, 1)) == 0
        assert await _all_ids(server) == [0]


async def test_a_misfit_whose_bytes_were_damaged_on_the_way_may_be_sent_again(tmp_path):
    async with serving(tmp_path, make_table(), settings=QUICK) as server:
        damaged = _wrong_columns()
        damaged[-1] ^= 0xFF
        assert (await server.produce(damaged)).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
async def test_row_formats_are_checked_for_their_framing(tmp_path, log_format):
    async with serving(tmp_path, make_table(log_format=log_format)) as server:
        encoded = EncodedRows.from_offsets(np.arange(12, dtype=np.uint8), np.array([0, 5, 12]))
        body = encode_row_body(encoded, np.zeros(2, np.uint8))
        good = build_batch([body], schema_id=1, record_count=2, append_only=True)
        assert (await server.produce(good)).base_offset == 0
        for bad_body, count in ((body[:-1], 2), (body, 3), (body, 1)):
            bad = build_batch([bad_body], schema_id=1, record_count=count, append_only=True)
            assert (await server.produce(bad)).error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        answer = await server.fetch_one()
        batch = read_batch(answer.records_view)
        assert (bytes(batch.records), len(answer.records_view)) == (bytes(body), batch.header.size)


async def test_writers_with_the_old_and_the_new_schema_may_take_turns(tmp_path):
    table = make_table()
    wider = Schema(pa.schema([*SCHEMA.to_arrow(), ("extra", pa.int64())]))
    async with serving(tmp_path, table, settings=QUICK) as server:
        new_rows = rows(1, 1).append_column("extra", pa.array([7], pa.int64()))
        early = await server.produce(arrow_batch(new_rows, schema_id=2))
        assert early.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        altered = with_schema(table, wider)
        server.catalog.add(altered)
        server.manager.table_altered(altered)
        assert await server.append(rows(0, 1)) == 0
        assert (await server.produce(arrow_batch(new_rows, schema_id=2))).base_offset == 1
        assert await server.append(rows(2, 1)) == 2
        payload = (await server.fetch_one()).records_view
        schema_ids, position = [], 0
        while position < len(payload):
            header = read_batch(payload, position).header
            schema_ids.append(header.schema_id)
            position += header.size
        assert schema_ids == [1, 2, 1]


async def test_a_primary_key_table_is_not_written_like_a_log(tmp_path):
    schema = Schema(SCHEMA.to_arrow(), primary_keys=["id"])
    async with serving(tmp_path, make_table(schema=schema)) as server:
        answer = await server.produce(arrow_batch(rows(0, 1)))
        assert answer.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert "PutKv" in answer.error_message


async def test_batches_with_statistics_are_taken_and_served_without_them(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        assert (await server.produce(batch_with_statistics(rows(0, 2)))).base_offset == 0
        await server.append(rows(2, 1))
        payload = (await server.fetch_one()).records_view
        first = read_batch(payload)
        verify_crc(first)
        assert first.header.magic == MAGIC_V0
        assert ids(payload) == [0, 1, 2]


# Disk


async def test_a_full_disk_refuses_writes_and_serves_reads(tmp_path):
    ratio = 0.5
    async with serving(tmp_path, make_table(), usage_ratio=lambda path: ratio, settings=QUICK) as server:
        await server.append(rows(0, 1))
        ratio = 0.9
        await server.manager.disk_guard.check()
        answer = await server.produce(arrow_batch(rows(1, 1)))
        assert answer.error_code == ErrorCode.DISK_WRITE_LOCKED
        assert "90%" in answer.error_message
        assert await _all_ids(server) == [0]
        ratio = 0.82
        await server.manager.disk_guard.check()
        assert (await server.produce(arrow_batch(rows(1, 1)))).error_code == ErrorCode.DISK_WRITE_LOCKED
        ratio = 0.8
        await server.manager.disk_guard.check()
        assert await server.append(rows(1, 1)) == 1


class _FailingFiles(OsFiles):
    """A disk on which writes to segments fail while ``error`` is set."""

    error: OSError | None = None

    def write(self, path, parts, position):
        if self.error is not None:
            raise self.error
        super().write(path, parts, position)


async def test_a_write_that_finds_no_room_locks_writes_until_there_is_some(tmp_path):
    files = _FailingFiles()
    async with serving(tmp_path, make_table(), files=files, usage_ratio=lambda path: 0.5, settings=QUICK) as server:
        await server.append(rows(0, 1))
        files.error = OSError(errno.ENOSPC, "No space left on device")
        answer = await server.produce(arrow_batch(rows(1, 1)))
        assert answer.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert "No space left" in answer.error_message
        assert (await server.produce(arrow_batch(rows(1, 1)))).error_code == ErrorCode.DISK_WRITE_LOCKED
        files.error = None
        await server.manager.disk_guard.check()
        assert await server.append(rows(1, 1)) == 1
        assert await _all_ids(server) == [0, 1]


async def test_records_are_invisible_until_they_are_durable_and_a_wait_for_that_can_time_out(tmp_path):
    files = HeldFiles()
    async with serving(tmp_path, make_table(), files=files) as server:
        assert await server.append(rows(0, 1), acks=1) == 0, "the operating system has it"
        late = await server.produce(arrow_batch(rows(1, 1)), timeout_ms=20)
        assert late.error_code == ErrorCode.REQUEST_TIME_OUT
        assert "20 ms" in late.error_message
        answer = await server.fetch_one()
        assert (answer.records_view, answer.high_watermark) == (b"", 0)
        files.may_sync.set()
        assert await server.append(rows(2, 1)) == 2
        assert await _all_ids(server) == [0, 1, 2]


async def test_an_answer_that_only_says_try_again_is_held_back(tmp_path):
    async with serving(tmp_path, make_table(), settings=TabletSettings(retry_answer_delay_ms=60_000)) as server:
        never = await server.produce(arrow_batch(rows(0, 1), schema_id=3))
        assert never.error_code == ErrorCode.INVALID_TABLE_EXCEPTION, "said at once: it will never succeed"
        held_back = asyncio.create_task(server.produce(arrow_batch(rows(0, 1)), table_id=99))
        await eventually_async(lambda: server.service.delayed_fetch_count == 1)
        server.service.drain()
        assert (await held_back).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
