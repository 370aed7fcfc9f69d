"""PutKv answers every bucket by itself: where a batch ends in the changelog, or a code that says what to do.
A real tablet server behind a real socket, asked with raw requests of every version."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.api import VersionRange
from fluss.protocol.bulk_messages import BucketRecords, PutKvRequest
from fluss.protocol.sasl import Credentials, UserTable
from fluss.schema.acl import AclBinding, AclOperation, AclResource
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.server.authorizer import Authorizer
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.model import Partition, Table
from fluss.server.tablet.manager import TabletSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import TABLE, HeldDisk, kv_batch
from tests.unit.server.merge.merging import Delete, Row, decode_value
from tests.unit.server.tablet import support
from tests.unit.server.tablet.support import MemoryCatalog, Server

QUICK = TabletSettings(retry_answer_delay_ms=1)


class Client:
    """Puts rows into one table."""

    def __init__(self, server: Server, table: Table) -> None:
        self.server = server
        self.table = table

    async def send(self, *buckets: BucketRecords, version: int = 2, **options: Any) -> list[Any]:
        """Send a request and return the answers of its buckets."""
        fields = {"acks": -1, "table_id": self.table.table_id, "timeout_ms": 30_000, **options}
        api = replace(apis.PUT_KV, versions=VersionRange(0, version))
        return list((await self.server.request(api, PutKvRequest(buckets=buckets, **fields))).buckets_resp)

    async def put(
        self,
        *rows: Row | Delete,
        bucket: int = 0,
        partition: int | None = None,
        writer: int = -1,
        sequence: int = -1,
        **options: Any,
    ) -> Any:
        """Send rows to one bucket and return its answer."""
        batch = kv_batch(self.table, *rows, writer=writer, sequence=sequence)
        (answer,) = await self.send(BucketRecords(bucket, batch, partition), **options)
        return answer

    async def rows(self, bucket: int = 0, partition: int | None = None) -> list[Row]:
        hosted = self.server.manager.tables[self.table.table_id].group(partition)[bucket]
        store = await hosted.key_values().store()
        return [decode_value(self.table, value) for value in store.first_values(1000, bytes_max=10**6)]


@asynccontextmanager
async def serving(tmp_path: Any, table: Table = TABLE, *, kv: KvSettings | None = None, **options: Any):
    settings = options.pop("settings", None) or replace(QUICK, kv=kv or KvSettings())
    async with support.serving(tmp_path, table, settings=settings, **options) as server:
        yield Client(server, table)


def with_buckets(table: Table, count: int) -> Table:
    return replace(table, descriptor=TableDescriptor(table.descriptor.schema, bucket_count=count))


async def test_a_batch_is_answered_with_its_end_and_is_visible_then(tmp_path):
    async with serving(tmp_path) as client:
        ends = [
            (await client.put(change)).log_end_offset for change in ((1, "a"), (2, "b"), (1, "c"), Delete((1, None)))
        ]
        assert ends == [1, 2, 4, 5]
        assert await client.rows() == [(2, "b")]


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_every_kind_of_acknowledgement_is_answered(tmp_path, acks):
    async with serving(tmp_path) as client:
        answer = await client.put((1, "a"), acks=acks)
        assert (answer.error_code, answer.log_end_offset) == (0, 1)


async def test_requests_on_one_connection_are_carried_out_in_the_order_they_were_sent(tmp_path):
    async with serving(tmp_path) as client:
        answers = await asyncio.gather(
            *(client.put((1, f"{sequence}"), writer=9, sequence=sequence) for sequence in range(20))
        )
        assert [answer.log_end_offset for answer in answers] == [1 + 2 * number for number in range(20)]
        assert await client.rows() == [(1, "19")]


async def test_a_failed_bucket_does_not_stop_the_others(tmp_path):
    async with serving(tmp_path, with_buckets(TABLE, 3)) as client:
        good, damaged = kv_batch(TABLE, (1, "a")), kv_batch(TABLE, (1, "a"))
        damaged[-1] ^= 1
        answers = await client.send(
            BucketRecords(0, good),
            BucketRecords(1, damaged),
            BucketRecords(7, good),
            BucketRecords(2, kv_batch(TABLE, (1, "b"), writer=1, sequence=5)),
            BucketRecords(1, good),
        )
        assert [answer.bucket_id for answer in answers] == [0, 1, 7, 2, 1]
        assert [answer.error_code for answer in answers] == [
            0,
            ErrorCode.CORRUPT_RECORD_EXCEPTION,
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
            0,
        ]
        assert [await client.rows(bucket) for bucket in range(3)] == [[(1, "a")], [(1, "a")], []]


async def test_partitions_are_told_apart_and_named_in_the_answer(tmp_path):
    schema = Schema(pa.schema([("day", pa.string()), ("id", pa.int32())]), primary_keys=["day", "id"])
    descriptor = TableDescriptor(schema, bucket_count=1, partition_keys=["day"])
    table = replace(TABLE, descriptor=descriptor, schemas={1: schema})
    catalog = MemoryCatalog(table)
    for partition in (Partition(5, 1, "mon"), Partition(6, 1, "tue")):
        catalog.add_partition(partition)
    async with serving(tmp_path, table, catalog=catalog) as client:
        for partition, row in ((5, ("mon", 1)), (6, ("tue", 1))):
            answer = await client.put(row, partition=partition)
            assert (answer.partition_id, answer.log_end_offset) == (partition, 1)
            assert await client.rows(partition=partition) == [row]
        assert (await client.put(("wed", 1), partition=7)).error_code == 21


async def test_what_a_request_asks_of_the_merge_reaches_it(tmp_path):
    schema = (
        Schema.builder()
        .column("id", TABLE.descriptor.schema.columns[0].data_type)
        .column("a", TABLE.descriptor.schema.columns[1].data_type)
        .column("b", TABLE.descriptor.schema.columns[1].data_type)
        .primary_key(["id"])
        .build()
    )
    properties = {"table.merge-engine": "aggregation", "table.delete.behavior": "allow"}
    table = replace(
        TABLE, descriptor=TableDescriptor(schema, bucket_count=1, properties=properties), schemas={1: schema}
    )
    async with serving(tmp_path, table) as client:
        await client.put((1, "x", "y"))
        await client.put((1, None, "z"), agg_mode=0)
        assert await client.rows() == [(1, "x", "z")], "aggregated: nulls are ignored"
        await client.put((1, "v", None), target_columns=[0, 1])
        assert await client.rows() == [(1, "v", "z")]
        await client.put((1, None, "w"), agg_mode=1)
        assert await client.rows() == [(1, None, "w")], "overwritten"
        await client.put((1, "u", None), agg_mode=7)
        assert await client.rows() == [(1, "u", "w")], "other modes aggregate"
        assert (await client.put((1, "u", None), target_columns=[1])).error_code == ErrorCode.INVALID_TARGET_COLUMN


async def test_what_holds_for_all_buckets_is_said_to_each(tmp_path):
    async with serving(tmp_path, with_buckets(TABLE, 2)) as client:
        batch = kv_batch(TABLE, (1, "a"))
        for options, code in (
            ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
            ({"table_id": 99}, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
        ):
            answers = await client.send(BucketRecords(0, batch), BucketRecords(1, batch), **options)
            assert [answer.error_code for answer in answers] == [code, code]
        assert await client.send() == []


async def test_a_log_table_is_not_written_by_key(tmp_path):
    table = support.make_table()
    async with serving(tmp_path, table) as client:
        (answer,) = await client.send(BucketRecords(0, kv_batch(TABLE, (1, "a"))))
        assert answer.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
        assert "ProduceLog" in answer.error_message


async def test_a_bucket_that_is_not_ready_yet_may_be_tried_again(tmp_path):
    other = replace(TABLE, table_id=2)
    catalog = MemoryCatalog(TABLE)
    async with serving(tmp_path, catalog=catalog) as client:
        catalog.add(other)
        assert (await client.put((1, "a"), table_id=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("lake_format", "version", "bucket_key", "codes"),
    [
        ("paimon", "2", ["a"], [2, 0, 0]),
        ("paimon", "2", ["a", "b"], [0, 0, 0]),
        ("paimon", "1", ["a"], [0, 0, 0]),
        (None, "2", ["a"], [0, 0, 0]),
    ],
)
async def test_clients_that_do_not_know_the_keys_of_a_table_are_refused(
    tmp_path, lake_format, version, bucket_key, codes
):
    schema = Schema(pa.schema([("a", pa.int32()), ("b", pa.int32())]), primary_keys=["a", "b"])
    properties = {"table.kv.format-version": version}
    if lake_format is not None:
        properties["table.datalake.format"] = lake_format
    descriptor = TableDescriptor(schema, bucket_count=1, bucket_keys=bucket_key, properties=properties)
    table = replace(TABLE, descriptor=descriptor, schemas={1: schema})
    async with serving(tmp_path, table) as client:
        found = [(await client.put((1, 2), version=version)).error_code for version in (0, 1, 2)]
        assert found == codes


async def test_writing_needs_the_right_to_write(tmp_path):
    for operation, code in ((AclOperation.READ, ErrorCode.AUTHORIZATION_EXCEPTION), (AclOperation.WRITE, 0)):
        authorizer = Authorizer()
        authorizer.add([AclBinding(AclResource.table(TABLE.path), "User:alice", operation)])
        async with serving(
            tmp_path / str(code),
            authorizer=authorizer,
            listener_settings=ListenerSettings(check_credentials=UserTable({"alice": "secret"})),
            connect={"credentials": Credentials("alice", "secret")},
        ) as client:
            assert (await client.put((1, "a"))).error_code == code


async def test_a_full_disk_refuses_writes(tmp_path):
    async with serving(tmp_path, usage_ratio=lambda path: 0.99) as client:
        answer = await client.put((1, "a"))
        assert answer.error_code == ErrorCode.DISK_WRITE_LOCKED
        assert await client.rows() == []


async def test_a_batch_that_takes_too_long_is_answered_and_still_written(tmp_path):
    disk = HeldDisk()
    async with serving(tmp_path, files=disk) as client:
        await client.put((1, "a"), writer=1, sequence=0)
        disk.hold()
        answer = await client.put((1, "b"), writer=1, sequence=1, timeout_ms=30)
        assert answer.error_code == ErrorCode.REQUEST_TIME_OUT
        assert "may still be written" in answer.error_message
        disk.release()
        answer = await client.put((1, "b"), writer=1, sequence=1)
        assert (answer.error_code, answer.log_end_offset) == (0, 3)
        assert await client.rows() == [(1, "b")]


async def test_writers_are_asked_to_slow_down_in_words_that_they_know(tmp_path):
    disk = HeldDisk()
    async with serving(tmp_path, kv=KvSettings(write_memory_bytes_max=8000), files=disk) as client:
        assert not (await client.put((0, "a"))).HasField("pressure")
        disk.hold()
        text = random.Random(7).randbytes(1000).hex()
        held = [asyncio.create_task(client.put((number, text))) for number in (1, 2)]
        log = client.server.manager.tables[1].group(None)[0].log()
        await eventually_async(lambda: log.offset_next == 3)
        for version, code in ((0, 11), (1, 11), (2, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION)):
            answer = await client.put((3, text), version=version)
            assert answer.error_code == code
            assert 0 < answer.pressure <= 1
        disk.release()
        assert [answer.error_code for answer in await asyncio.gather(*held)] == [0, 0]


async def test_an_answer_that_only_says_try_again_is_held_back(tmp_path):
    settings = TabletSettings(retry_answer_delay_ms=60)
    async with serving(tmp_path, settings=settings) as client:
        (tmp_path / "db/t-1").mkdir(parents=True)
        (tmp_path / "db/t-1/kv-0").write_bytes(b"a file where the store should be")
        for _ in range(2):
            begun_s = time.monotonic()
            answer = await client.put((1, "a"))
            assert answer.error_code == ErrorCode.KV_STORAGE_EXCEPTION
            assert time.monotonic() - begun_s >= 0.06
