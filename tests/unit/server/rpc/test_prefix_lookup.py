"""A prefix lookup returns all rows whose keys begin so, in the order of their keys' bytes, one list for each prefix.

A real server on a real socket over real stores; sorted key bytes are the model.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.schema.acl import AclBinding, AclOperation, AclResource
from fluss.schema.schema import Schema
from fluss.server.authorizer import Authorizer
from fluss.testing.waiting import eventually_async
from tests.unit.server.merge.merging import Delete
from tests.unit.server.rpc.kv_server import KvServer, kv_table, quick, serving_kv
from tests.unit.server.tablet.support import make_table

SCHEMA = Schema(
    pa.schema([("user", pa.string()), ("item", pa.int32()), ("v", pa.string())]), primary_keys=["user", "item"]
)
TABLE = kv_table(SCHEMA, bucket_keys=["user"], buckets=2)


def _prefix(user: str) -> bytes:
    encoded = user.encode()
    return bytes([len(encoded)]) + encoded


async def _answers(server: KvServer, prefixes: dict[int, list[bytes]], table_id: int = 1, **options: Any) -> list[Any]:
    request = pb.PrefixLookupRequest(table_id=table_id)
    for bucket_id, wanted in prefixes.items():
        request.buckets_req.add(bucket_id=bucket_id, keys=wanted)
    return list((await server.request(apis.PREFIX_LOOKUP, request, **options)).buckets_resp)


async def _found(server: KvServer, *prefixes: bytes, bucket: int = 0) -> list[list[Any]]:
    (answer,) = await _answers(server, {bucket: list(prefixes)})
    assert not answer.HasField("error_code"), answer
    return [[server.row(value) for value in found.values] for found in answer.value_lists]


async def test_rows_come_in_key_order_and_lists_in_the_order_of_the_prefixes(tmp_path):
    async with serving_kv(tmp_path, TABLE) as server:
        assert await _found(server, _prefix("ann")) == [[]]
        await server.put(("ann", 300, "c"), ("bob", 1, "d"), ("ann", 2, "b"), ("anna", 9, "x"), ("ann", 1, "a"))
        ann = [("ann", 1, "a"), ("ann", 2, "b"), ("ann", 300, "c")]
        assert await _found(server, _prefix("bob"), _prefix("ann"), _prefix("nobody"), _prefix("ann")) == [
            [("bob", 1, "d")],
            ann,
            [],
            ann,
        ]
        await server.put(Delete(("ann", 2)))
        assert await _found(server, _prefix("ann")) == [[ann[0], ann[2]]]
        assert await _found(server, _prefix("ann"), bucket=1) == [[]]
        assert await _found(server) == []
        await eventually_async(lambda: server.used_bytes == 0)


async def test_any_bytes_are_a_prefix_as_a_sorted_list_says(tmp_path):
    schema = Schema(pa.schema([("key", pa.binary()), ("v", pa.int32())]), primary_keys=["key"])
    rng = random.Random(3)
    letters = b"\x00\x01\x7f\x80\xfe\xff"
    rows = {bytes(rng.choices(letters, k=rng.randrange(6))): n for n in range(300)}
    async with serving_kv(tmp_path, kv_table(schema)) as server:
        await server.put(*rows.items())
        by_key = sorted((server.key(row), row) for row in rows.items())
        prefixes = [bytes([size, *rng.choices(letters, k=rng.randrange(3))]) for size in range(6) for _ in range(9)]
        expected = [[row for key, row in by_key if key.startswith(prefix)] for prefix in prefixes]
        assert await _found(server, *prefixes) == expected
        assert any(len(found) > 5 for found in expected)


async def test_what_is_wrong_is_said_for_each_bucket(tmp_path):
    log_table = make_table(2, "log")
    async with serving_kv(tmp_path, TABLE, log_table) as server:
        await server.put(("ann", 1, "a"))
        answers = await _answers(server, {0: [_prefix("ann")], 1: [b"x", b""], 5: [b"x"]})
        assert [answer.error_code for answer in answers] == [
            0,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ]
        assert "scan" in answers[1].error_message
        assert len(answers[0].value_lists) == 1
        (answer,) = await _answers(server, {0: [b"x"]}, table_id=2)
        assert answer.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION


async def test_more_than_an_answer_may_hold_is_refused(tmp_path):
    async with serving_kv(tmp_path, TABLE, settings=quick(lookup_bytes_max=10_000)) as server:
        await server.put(*(("ann", item, "x" * 1000) for item in range(8)), ("bob", 1, "small"))
        assert [len(found) for found in await _found(server, _prefix("ann"))] == [8]
        (answer,) = await _answers(server, {0: [_prefix("bob"), _prefix("ann"), _prefix("ann")]})
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "fewer" in answer.error_message
        await eventually_async(lambda: server.used_bytes == 0)


@pytest.mark.parametrize(("operation", "code"), [(AclOperation.WRITE, 48), (AclOperation.READ, 0)])
async def test_prefixes_are_looked_up_for_those_who_may_read(tmp_path, operation, code):
    authorizer = Authorizer()
    authorizer.add([AclBinding(AclResource.table(TABLE.path), "User:alice", operation)])
    login = {
        "authorizer": authorizer,
        "listener_settings": ListenerSettings(check_credentials=UserTable({"alice": "secret"})),
        "connect": {"credentials": Credentials("alice", "secret")},
    }
    async with serving_kv(tmp_path, TABLE, **login) as server:
        assert [answer.error_code for answer in await _answers(server, {0: [b"a"], 1: [b"a"]})] == [code, code]


async def test_old_clients_are_refused_where_they_would_encode_prefixes_wrongly(tmp_path):
    properties = {"table.datalake.format": "paimon", "table.kv.format-version": "2"}
    table = kv_table(SCHEMA, bucket_keys=["user"], properties=properties)
    async with serving_kv(tmp_path, table) as server:
        for version, code in ((0, ErrorCode.UNSUPPORTED_VERSION), (1, 0)):
            (answer,) = await _answers(server, {0: [b"a"]}, version=version)
            assert answer.error_code == code


async def test_many_clients_at_once_get_what_is_theirs(tmp_path):
    async with serving_kv(tmp_path, TABLE) as server:
        await server.put(*((f"u{n % 10}", n, "v") for n in range(200)))
        found = await asyncio.gather(*(_found(server, _prefix(f"u{n % 10}")) for n in range(50)))
        for n, (rows,) in enumerate(found):
            assert len(rows) == 20
            assert {row[0] for row in rows} == {f"u{n % 10}"}
