"""A client without the right is told so bucket by bucket, one that may not even see the table that there is none, and a
client that has the right is served.

Clients log in with names and passwords; rights are entries of the real authorizer.
"""

from __future__ import annotations

import asyncio

import pytest

from fluss.errors import ErrorCode
from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, Principal, UserTable
from fluss.schema.acl import AclBinding, AclOperation, AclResource
from fluss.server.authorizer import Authorizer
from fluss.server.tablet.manager import TabletSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import Server, arrow_batch, make_table, rows, serving

DENIED = ErrorCode.AUTHORIZATION_EXCEPTION
UNKNOWN = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
QUICK = TabletSettings(retry_answer_delay_ms=1)


def _serving(tmp_path, *operations: AclOperation):
    """Serve a table to alice, who has these rights."""
    table = make_table(buckets=2)
    authorizer = Authorizer(super_users=[Principal("User", "admin")])
    authorizer.add(AclBinding(AclResource.table(table.path), "User:alice", operation) for operation in operations)
    users = UserTable({"alice": "secret", "admin": "secret"})
    return serving(
        tmp_path,
        table,
        authorizer=authorizer,
        settings=QUICK,
        listener_settings=ListenerSettings(check_credentials=users),
        connect={"credentials": Credentials("alice", "secret")},
    )


async def _codes(server: Server) -> dict[str, list[int]]:
    """Return what every API says about two buckets of the table."""
    stats = pb.GetTableStatsRequest(table_id=1)
    for bucket in (0, 1):
        stats.buckets_req.add(bucket_id=bucket)
    scan = pb.LimitScanRequest(table_id=1, bucket_id=0, limit=1)
    return {
        "produce": [(await server.produce(arrow_batch(rows(0, 1)), bucket)).error_code for bucket in (0, 1)],
        "fetch": [answer.error_code or 0 for answer in await server.fetch((0, 0), (1, 0), min_bytes=1)],
        "offsets": [answer.error_code for answer in await server.offsets(0, 1, type=1)],
        "stats": [a.error_code for a in (await server.request(apis.GET_TABLE_STATS, stats)).buckets_resp],
        "scan": [(await server.request(apis.LIMIT_SCAN, scan)).error_code or 0],
    }


@pytest.mark.parametrize(
    ("operations", "allowed"),
    [
        ([AclOperation.WRITE], {"produce", "offsets"}),
        ([AclOperation.READ], {"fetch", "offsets", "stats", "scan"}),
        ([AclOperation.DESCRIBE], {"offsets"}),
        ([AclOperation.ALL], {"produce", "fetch", "offsets", "stats", "scan"}),
    ],
)
async def test_each_api_needs_its_right(tmp_path, operations, allowed):
    async with _serving(tmp_path, *operations) as server:
        for name, codes in (await _codes(server)).items():
            assert set(codes) == {0 if name in allowed else DENIED}, name


async def test_a_table_that_may_not_be_seen_is_unknown_in_the_same_words_as_one_that_does_not_exist(tmp_path):
    async with _serving(tmp_path) as server:
        assert {code for codes in (await _codes(server)).values() for code in codes} == {UNKNOWN}
        texts = []
        for table_id in (1, 2):
            written = await server.produce(arrow_batch(rows(0, 1)), table_id=table_id)
            (read,) = await server.fetch((0, 0), table_id=table_id)
            texts.append((written.error_message, read.error_message.replace(f"tableId={table_id}", "tableId=N")))
        assert texts[0][0].replace("tableId=1", "tableId=N") == texts[1][0].replace("tableId=2", "tableId=N")
        assert texts[0][1] == texts[1][1]


async def test_a_reader_who_loses_the_right_while_waiting_gets_no_more_records(tmp_path):
    table = make_table()
    right = AclBinding(AclResource.table(table.path), "User:alice", AclOperation.READ)
    for is_seen, code in ((True, DENIED), (False, UNKNOWN)):
        authorizer = Authorizer(super_users=[Principal("User", "admin")])
        authorizer.add([right])
        if is_seen:
            authorizer.add([AclBinding(right.resource, "User:alice", AclOperation.DESCRIBE)])
        options = {
            "authorizer": authorizer,
            "listener_settings": ListenerSettings(check_credentials=UserTable({"alice": "secret", "admin": "secret"})),
            "connect": {"credentials": Credentials("alice", "secret")},
        }
        async with serving(tmp_path / str(is_seen), table, **options) as server:
            waiting = asyncio.create_task(server.fetch((0, 0), min_bytes=1, max_wait_ms=3_600_000))
            await eventually_async(lambda server=server: server.service.delayed_fetch_count == 1)
            authorizer.remove([right])
            server.channel = await server.connect(credentials=Credentials("admin", "secret"))
            await server.append(rows(0, 1))
            (answer,) = await waiting
            assert answer.error_code == code
            assert not answer.records


async def test_super_users_may_do_everything(tmp_path):
    async with _serving(tmp_path) as server:
        server.channel = await server.connect(credentials=Credentials("admin", "secret"))
        assert {code for codes in (await _codes(server)).values() for code in codes} == {0}


async def test_a_table_that_does_not_exist_is_unknown_and_not_forbidden(tmp_path):
    async with _serving(tmp_path) as server:
        answer = await server.produce(arrow_batch(rows(0, 1)), table_id=5)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        (answer,) = await server.fetch((0, 0), table_id=5)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
