"""A lookup returns what was acknowledged, key by key, from memory or from the disk, and says what is wrong.

A real server on a real socket over real stores; a dict is the model of what must be found.
"""

from __future__ import annotations

import asyncio
import random
import socket
from dataclasses import replace

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.protocol.session import ClientSession
from fluss.schema.acl import AclBinding, AclOperation, AclResource
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from fluss.server.authorizer import Authorizer
from fluss.server.model import Partition
from fluss.testing.waiting import eventually_async
from tests.unit.server.merge.merging import Delete, with_columns
from tests.unit.server.rpc.kv_server import KvServer, busy_readers, kv_table, quick, serving_kv
from tests.unit.server.tablet.support import LOCALHOST, MemoryCatalog, make_table


async def test_values_come_in_the_order_of_the_keys_and_missing_ones_are_empty(tmp_path):
    async with serving_kv(tmp_path) as server:
        assert await server.lookup((1,), (2,)) == [None, None]
        await server.put((1, "one"), (2, "two"), (3, None))
        assert await server.lookup((3,), (9,), (1,), (1,), (2,)) == [
            (3, None),
            None,
            (1, "one"),
            (1, "one"),
            (2, "two"),
        ]
        await server.put((1, "uno"), Delete((2,)))
        assert await server.lookup((1,), (2,)) == [(1, "uno"), None]
        (answer,) = await server.lookup_answers({0: [b"", server.key((1,)), b"\xff" * 40]})
        assert [value.HasField("values") for value in answer.values] == [False, True, False]
        (answer,) = await server.lookup_answers({0: []})
        assert not answer.values
        assert await server.lookup_answers({}) == []


async def test_lookups_agree_with_a_dict_in_memory_on_the_disk_and_after_a_restart(tmp_path):
    rng = random.Random(5)
    model: dict[int, tuple[int, str]] = {}

    async def write(server: KvServer, count: int) -> None:
        rows = []
        for _ in range(count):
            id = rng.randrange(2000)
            if rng.random() < 0.3:
                rows.append(Delete((id,)))
                model.pop(id, None)
            else:
                rows.append((id, rng.randbytes(rng.randrange(30)).hex()))
                model[id] = rows[-1]
        await server.put(*rows)

    async def compare(server: KvServer, count: int) -> None:
        ids = [rng.randrange(2100) for _ in range(count)]
        assert await server.lookup(*((id,) for id in ids)) == [model.get(id) for id in ids]

    async with serving_kv(tmp_path) as server:
        for _ in range(3):
            await write(server, 600)
            for count in (1, 100, 1000):
                await compare(server, count)
            await server.server.manager.tables[1].group(None)[0].key_values().flush()
            for count in (1, 100, 1000):
                await compare(server, count)
    async with serving_kv(tmp_path) as server:
        await asyncio.gather(*(compare(server, count) for count in (1, 1, 100, 1000)))
        await compare(server, 1000)


async def test_what_is_in_memory_is_answered_without_a_thread(tmp_path):
    async with serving_kv(tmp_path) as server:
        await server.put(*((id, "x") for id in range(200)))
        with busy_readers(server):
            assert await server.lookup((7,), (999,)) == [(7, "x"), None]
            assert await server.lookup(*((id,) for id in range(100))) == [(id, "x") for id in range(100)]
            many = asyncio.ensure_future(server.lookup(*((id,) for id in range(200))))
            assert not (await asyncio.wait((many,), timeout=0.05))[0], "a thread is needed for that many"
        assert len(await many) == 200


async def test_large_values_take_the_way_on_which_memory_is_counted(tmp_path):
    async with serving_kv(tmp_path) as server:
        await server.put((1, "x" * 300_000))
        with busy_readers(server):
            large = asyncio.ensure_future(server.lookup((1,)))
            await eventually_async(lambda: server.used_bytes > 0)
            assert not (await asyncio.wait((large,), timeout=0.05))[0]
        assert (await large)[0] == (1, "x" * 300_000)
        await eventually_async(lambda: server.used_bytes == 0)


async def test_a_client_that_takes_no_answers_does_not_fill_the_memory(tmp_path):
    async with serving_kv(tmp_path, settings=replace(quick(), fetch_memory_bytes_max=2_000_000)) as server:
        row = (1, "x" * 300_000)
        await server.put(row)
        request = pb.LookupRequest(table_id=1, buckets_req=[{"bucket_id": 0, "keys": [server.key(row)]}])
        session = ClientSession()
        with socket.create_connection((LOCALHOST, server.server.listener.port)) as client:
            client.sendall(b"".join(b"".join(session.request(apis.LOOKUP, request)[1]) for _ in range(100)))
            most_bytes = 0
            await eventually_async(lambda: server.used_bytes > 2_000_000)
            for _ in range(100):
                most_bytes = max(most_bytes, server.used_bytes)
                await asyncio.sleep(0.001)
            assert most_bytes <= 2_000_000 + server.server.manager.settings.reader_threads * 310_000
            assert await server.lookup((1,)) == [row], "others have their turn all the same"
        await eventually_async(lambda: server.used_bytes == 0)


async def test_large_answers_take_turns_when_memory_is_short(tmp_path):
    async with serving_kv(tmp_path, settings=replace(quick(), fetch_memory_bytes_max=500_000)) as server:
        row = (1, "x" * 300_000)
        await server.put(row)
        assert await asyncio.gather(*(server.lookup((1,)) for _ in range(20))) == [[row]] * 20
        await eventually_async(lambda: server.used_bytes == 0)


async def test_buckets_and_partitions_are_answered_by_themselves(tmp_path):
    schema = Schema(pa.schema([("id", pa.int32()), ("day", pa.string())]), primary_keys=["id", "day"])
    table = kv_table(schema, buckets=2, partition_keys=["day"])
    catalog = MemoryCatalog(table)
    for id, name in ((5, "monday"), (6, "tuesday")):
        catalog.add_partition(Partition(id, 1, name))
    async with serving_kv(tmp_path, table, catalog=catalog) as server:
        await server.put((1, "monday"), bucket=0, partition_id=5)
        await server.put((2, "monday"), bucket=1, partition_id=5)
        await server.put((1, "tuesday"), bucket=0, partition_id=6)
        key = server.key((1, ""))
        answers = await server.lookup_answers({1: [key], 7: [key], 0: [key]}, partition_id=5)
        assert [(a.bucket_id, a.partition_id, a.error_code) for a in answers] == [(1, 5, 0), (7, 5, 21), (0, 5, 0)]
        assert [[server.row(v.values) for v in a.values if v.HasField("values")] for a in answers] == [
            [],
            [],
            [(1, "monday")],
        ]
        assert await server.lookup((1, ""), (2, ""), partition_id=6) == [(1, "tuesday"), None]
        (answer,) = await server.lookup_answers({0: [key]}, partition_id=9)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_rows_written_before_a_column_was_added_are_found(tmp_path):
    async with serving_kv(tmp_path) as server:
        await server.put((1, "old"))
        altered = with_columns(server.table, Column("more", DataTypes.bigint()))
        server.server.catalog.add(altered)
        server.server.manager.table_altered(altered)
        server.table = altered
        await server.put((2, "new", 5))
        assert await server.lookup((1,), (2,)) == [(1, "old", None), (2, "new", 5)]


async def test_tables_without_a_key_and_unknown_ones_are_told_apart(tmp_path):
    log_table = make_table(2, "log")
    async with serving_kv(tmp_path, None, log_table) as server:
        key = server.key((1,))
        codes = {id: (await server.lookup_answers({0: [key]}, table_id=id))[0].error_code for id in (1, 2, 3)}
        assert codes == {
            1: 0,
            2: ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            3: ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        }
        insert = {"insert_if_not_exists": True, "acks": -1, "timeout_ms": 5000}
        (answer,) = await server.lookup_answers({0: [key]}, table_id=2, **insert)
        assert answer.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
        server.server.catalog.add(make_table(4, "soon"))
        (answer,) = await server.lookup_answers({0: [key]}, table_id=4)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await server.put((1, "x"))
        await server.server.manager.drop_buckets(server.table, None)
        server.server.catalog.remove(server.table)
        (answer,) = await server.lookup_answers({0: [key]})
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_an_answer_that_only_says_try_again_is_held_back(tmp_path):
    settings = replace(quick(), retry_answer_delay_ms=80)
    async with serving_kv(tmp_path, settings=settings) as server:
        await server.put((1, "x"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await server.lookup_answers({9: [b"k"]})
        assert loop.time() - began >= 0.07


async def test_an_answer_with_something_in_it_is_not_held_back(tmp_path):
    # It would not come.
    settings = replace(quick(), retry_answer_delay_ms=3_600_000)
    async with serving_kv(tmp_path, settings=settings) as server:
        await server.put((1, "x"))
        missing, found = await server.lookup_answers({9: [b"k"], 0: [server.key((1,))]})
        assert missing.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert server.row(found.values[0].values) == (1, "x")


async def test_more_than_an_answer_may_hold_is_refused_and_the_rest_is_answered(tmp_path):
    settings = quick(lookup_bytes_max=1_000_000)
    async with serving_kv(tmp_path, kv_table(buckets=2), settings=settings) as server:
        for id in range(4):
            await server.put((id, "x" * 300_000))
        await server.put((1, "small"), bucket=1)
        keys = [server.key((id,)) for id in range(4)]
        answers = await server.lookup_answers({0: keys, 1: [keys[1]]})
        assert [answer.error_code for answer in answers] == [ErrorCode.RECORD_TOO_LARGE_EXCEPTION, 0]
        assert "fewer keys" in answers[0].error_message
        assert server.row(answers[1].values[0].values) == (1, "small")
        # The same where the keys of both buckets are looked up at once.
        answers = await server.lookup_answers({0: keys * 20, 1: [keys[1], keys[2]] * 20})
        assert [answer.error_code for answer in answers] == [ErrorCode.RECORD_TOO_LARGE_EXCEPTION, 0]
        assert [value.HasField("values") for value in answers[1].values] == [True, False] * 20
        assert len(await server.lookup((0,), (1,), (2,))) == 3
        (answer,) = await server.lookup_answers({0: keys[:1] * 1000})
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        await eventually_async(lambda: server.used_bytes == 0)


async def test_a_store_that_turns_out_to_be_damaged_is_built_again(tmp_path):
    rows = [(id, f"row {id}") for id in range(3000)]
    async with serving_kv(tmp_path) as server:
        await server.put(*rows)
    for table_file in tmp_path.rglob("*.sst"):
        content = bytearray(table_file.read_bytes())
        content[100:1000] = bytes(900)
        table_file.write_bytes(content)
    async with serving_kv(tmp_path) as server:
        keys = [server.key(row) for row in rows]
        (answer,) = await server.lookup_answers({0: keys})
        while answer.error_code:
            assert answer.error_code == ErrorCode.KV_STORAGE_EXCEPTION
            (answer,) = await server.lookup_answers({0: keys})
        assert [server.row(value.values) for value in answer.values] == rows


@pytest.mark.parametrize(
    ("operations", "lookup_code", "insert_code"),
    [
        # Not even seeing it.
        ([], ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
        ([AclOperation.READ], 0, ErrorCode.AUTHORIZATION_EXCEPTION),
        ([AclOperation.WRITE], ErrorCode.AUTHORIZATION_EXCEPTION, ErrorCode.AUTHORIZATION_EXCEPTION),
        ([AclOperation.READ, AclOperation.WRITE], 0, 0),
    ],
)
async def test_reading_needs_one_right_and_inserting_two(tmp_path, operations, lookup_code, insert_code):
    table = kv_table()
    authorizer = Authorizer()
    authorizer.add(AclBinding(AclResource.table(table.path), "User:alice", operation) for operation in operations)
    login = {
        "authorizer": authorizer,
        "listener_settings": ListenerSettings(check_credentials=UserTable({"alice": "secret"})),
        "connect": {"credentials": Credentials("alice", "secret")},
    }
    async with serving_kv(tmp_path, table, **login) as server:
        keys = {0: [server.key((1,))], 1: []}
        codes = [answer.error_code for answer in await server.lookup_answers(keys)]
        assert codes[0] == lookup_code
        (answer, _) = await server.lookup_answers(keys, insert_if_not_exists=True, acks=-1, timeout_ms=5000)
        assert answer.error_code == insert_code


@pytest.mark.parametrize(
    ("properties", "is_refused"),
    [
        ({}, False),
        ({"table.datalake.format": "paimon", "table.kv.format-version": "2"}, True),
        ({"table.datalake.format": "paimon", "table.kv.format-version": "1"}, False),
    ],
)
async def test_clients_that_would_encode_keys_wrongly_are_refused(tmp_path, properties, is_refused):
    schema = Schema(pa.schema([("a", pa.int32()), ("b", pa.int32())]), primary_keys=["a", "b"])
    table = kv_table(schema, properties=properties, bucket_keys=["a"])
    async with serving_kv(tmp_path, table) as server:
        for version, expected in ((1, 0), (0, ErrorCode.UNSUPPORTED_VERSION if is_refused else 0)):
            (answer,) = await server.lookup_answers({0: [b"key"]}, version=version)
            assert answer.error_code == expected
