"""A scan returns every row of a bucket once, as they were when it began, and sessions end as they should.

A real server on a real socket over real stores; the test owns the clock, so that sessions expire when it says so.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import ScanKvResponse
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.schema.acl import AclBinding, AclOperation, AclResource
from fluss.schema.schema import Schema
from fluss.server.authorizer import Authorizer
from fluss.server.model import Partition
from fluss.server.tablet.scan_sessions import ScanSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.merge.merging import Delete, Row
from tests.unit.server.rpc.kv_server import KvServer, busy_readers, kv_table, quick, serving_kv
from tests.unit.server.tablet.support import MemoryCatalog, make_table

TTL_MS = 1000
_PARTITIONED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id", "name"])
EXPIRED, UNKNOWN, INVALID, TOO_MANY = (
    ErrorCode.SCANNER_EXPIRED,
    ErrorCode.UNKNOWN_SCANNER_ID,
    ErrorCode.INVALID_SCAN_REQUEST,
    ErrorCode.TOO_MANY_SCANNERS,
)


async def _call(server: KvServer, **fields: Any) -> ScanKvResponse:
    return await server.request(apis.SCAN_KV, pb.ScanKvRequest(**fields))


async def _open(server: KvServer, *, size: int = 1, bucket: int = 0, **fields: Any) -> ScanKvResponse:
    wanted = {"table_id": server.table.table_id, "bucket_id": bucket, **fields}
    return await _call(server, bucket_scan_req=wanted, call_seq_id=0, batch_size_bytes=size)


async def _next(server: KvServer, answer: ScanKvResponse, call: int, *, size: int = 1) -> ScanKvResponse:
    return await _call(server, scanner_id=answer.scanner_id, call_seq_id=call, batch_size_bytes=size)


async def _close(server: KvServer, scanner_id: bytes) -> ScanKvResponse:
    return await _call(server, scanner_id=scanner_id, close_scanner=True)


async def _rest(server: KvServer, answer: ScanKvResponse, *, size: int = 1) -> list[Row]:
    """Return the rows of an answer and of all that follow."""
    rows, call = server.values_of(answer.records_view), 0
    while answer.has_more_results:
        call += 1
        answer = await _next(server, answer, call, size=size)
        assert answer.error_code is None, answer
        rows += server.values_of(answer.records_view)
    return rows


@asynccontextmanager
async def _three_rows(tmp_path, **settings: Any):
    settings = {"ttl_ms": TTL_MS, **settings}
    async with serving_kv(tmp_path, settings=quick(scans=ScanSettings(**settings))) as server:
        await server.put((1, "one"), (2, "two"), (3, "three"))
        yield server


async def test_every_row_comes_once_in_key_order_whatever_the_size_of_answers(tmp_path):
    async with serving_kv(tmp_path) as server:
        rows = [(id, f"row {id}") for id in range(100)]
        end = await server.put(*reversed(rows))
        for size in (1, 300, 10_000_000, 2**31 - 1):
            answer = await _open(server, size=size)
            assert answer.log_offset == end == 100
            assert await _rest(server, answer, size=size) == rows
            assert not len(server.server.service.scan_sessions)
        await eventually_async(lambda: server.used_bytes == 0)


async def test_later_writes_are_not_seen_and_the_offset_says_where_they_begin(tmp_path):
    async with _three_rows(tmp_path) as server:
        answer = await _open(server)
        assert answer.log_offset == await server.offset_end()
        await server.put((1, "new"), (4, "four"), Delete((2,)))
        await server.put(*((id, "more") for id in range(100, 5000)))
        assert await _rest(server, answer) == [(1, "one"), (2, "two"), (3, "three")]
        later = await _open(server, limit=3)
        assert later.log_offset == await server.offset_end()
        assert [row[1] for row in await _rest(server, later)] == ["new", "three", "four"]


async def test_only_the_first_answer_has_the_offset_and_every_answer_at_least_one_row(tmp_path):
    async with _three_rows(tmp_path) as server:
        first = await _open(server)
        second = await _next(server, first, 1)
        third = await _next(server, first, 2)
        assert [answer.log_offset for answer in (first, second, third)] == [3, None, None]
        assert [answer.has_more_results for answer in (first, second, third)] == [True, True, False]
        assert len({answer.scanner_id for answer in (first, second, third)}) == 1
        assert len(first.scanner_id) == 16
        assert (await _next(server, first, 3)).error_code == UNKNOWN


async def test_an_empty_bucket_needs_no_session(tmp_path):
    async with serving_kv(tmp_path) as server:
        answer = await _open(server)
        assert answer == ScanKvResponse(has_more_results=False, log_offset=0)
        await server.put((1, "one"))
        await server.put(Delete((1,)))
        assert await _open(server) == ScanKvResponse(has_more_results=False, log_offset=2)
        assert not len(server.server.service.scan_sessions)


async def test_a_limit_ends_the_scan(tmp_path):
    async with _three_rows(tmp_path) as server:
        for limit, ids in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3]), (0, [1, 2, 3])):
            for size in (1, 10_000):
                answer = await _open(server, limit=limit, size=size)
                assert [row[0] for row in await _rest(server, answer, size=size)] == ids
            assert not len(server.server.service.scan_sessions)


async def test_answers_have_a_size_that_the_server_chooses_if_clients_want_too_much(tmp_path):
    async with serving_kv(tmp_path, settings=quick(scans=ScanSettings(answer_bytes_max=5000))) as server:
        await server.put(*((id, "x" * 1000) for id in range(20)))
        answer = await _open(server, size=10**6)
        assert len(server.values_of(answer.records_view)) == 5
        assert len(await _rest(server, answer, size=10**6)) == 20


BUCKET = {"table_id": 1, "bucket_id": 0}
SENSELESS_CALLS: list[dict[str, Any]] = [
    {},
    {"close_scanner": True},
    {"bucket_scan_req": BUCKET, "call_seq_id": 0, "batch_size_bytes": 5, "scanner_id": b"x"},
    {"bucket_scan_req": BUCKET, "call_seq_id": 0, "batch_size_bytes": 5, "close_scanner": True},
    {"bucket_scan_req": BUCKET, "call_seq_id": 0},
    {"bucket_scan_req": BUCKET, "call_seq_id": 0, "batch_size_bytes": 0},
    {"bucket_scan_req": BUCKET, "call_seq_id": 0, "batch_size_bytes": -5},
    {"bucket_scan_req": BUCKET, "call_seq_id": 1, "batch_size_bytes": 5},
    {"bucket_scan_req": BUCKET, "batch_size_bytes": 5},
]
WRONG_SECOND_CALLS: list[dict[str, Any]] = [
    {"call_seq_id": 0, "batch_size_bytes": 1},
    {"call_seq_id": 2, "batch_size_bytes": 1},
    {"batch_size_bytes": 1},
    {"call_seq_id": 1},
    {"call_seq_id": 1, "batch_size_bytes": 0},
]


async def test_calls_that_make_no_sense_are_refused(tmp_path):
    async with _three_rows(tmp_path) as server:
        for fields in SENSELESS_CALLS:
            answer = await _call(server, **fields)
            assert answer.error_code == INVALID, fields
            assert not len(server.server.service.scan_sessions)


async def test_a_wrong_call_ends_its_session(tmp_path):
    async with _three_rows(tmp_path) as server:
        for fields in WRONG_SECOND_CALLS:
            answer = await _open(server)
            wrong = await _call(server, scanner_id=answer.scanner_id, **fields)
            assert wrong.error_code == INVALID, fields
            assert (await _next(server, answer, 1)).error_code == UNKNOWN


async def test_two_calls_at_once_end_the_session(tmp_path):
    async with _three_rows(tmp_path) as server:
        answer = await _open(server)
        with busy_readers(server):
            first = asyncio.ensure_future(_next(server, answer, 1))
            await asyncio.sleep(0.02)
            second = await _next(server, answer, 2)
        assert second.error_code == INVALID
        assert "one call at a time" in second.error_message
        assert (await first).error_code == UNKNOWN
        assert (await _next(server, answer, 2)).error_code == UNKNOWN
        await eventually_async(lambda: server.used_bytes == 0)


async def test_closing_ends_a_session_and_closing_nothing_is_fine(tmp_path):
    async with _three_rows(tmp_path) as server:
        answer = await _open(server)
        for scanner_id in (answer.scanner_id, answer.scanner_id, b"never there", b""):
            assert await _close(server, scanner_id) == ScanKvResponse(has_more_results=False)
        assert (await _next(server, answer, 1)).error_code == UNKNOWN
        assert not len(server.server.service.scan_sessions)


async def test_sessions_that_are_not_used_expire_and_are_remembered_for_a_while(tmp_path):
    async with _three_rows(tmp_path) as server:
        clock = server.server.clock
        answer = await _open(server)
        clock.now_ms += TTL_MS
        assert (await _next(server, answer, 1)).error_code is None, "it is used in time"
        clock.now_ms += TTL_MS + 1
        assert (await _next(server, answer, 2)).error_code == EXPIRED
        clock.now_ms += 2 * TTL_MS - 1
        assert (await _next(server, answer, 2)).error_code == EXPIRED
        clock.now_ms += 1
        assert (await _next(server, answer, 2)).error_code == UNKNOWN


async def test_expired_sessions_let_go_of_their_snapshots_by_themselves(tmp_path):
    async with _three_rows(tmp_path, expiration_interval_ms=5) as server:
        store = await server.server.manager.tables[1].group(None)[0].key_values().store()
        answer = await _open(server)
        assert store.snapshot_count == 1
        server.server.clock.now_ms += TTL_MS + 1
        await eventually_async(lambda: not len(server.server.service.scan_sessions))
        await eventually_async(lambda: store.snapshot_count == 0)
        assert (await _next(server, answer, 1)).error_code == EXPIRED


async def test_clients_that_are_gone_do_not_keep_others_from_scanning(tmp_path):
    async def until_open(server):
        # Until the server has noticed that the other one is gone.
        while (await _open(server)).error_code == TOO_MANY:
            await asyncio.sleep(0.01)

    settings = quick(scans=ScanSettings(sessions_per_bucket_max=2))
    async with serving_kv(tmp_path, kv_table(), settings=settings) as server:
        await server.put((1, "one"), (2, "two"), (3, "three"))
        sessions = server.server.service.scan_sessions
        here = await _open(server)
        async with await server.server.connect() as channel:
            wanted = {"table_id": server.table.table_id, "bucket_id": 0}
            request = pb.ScanKvRequest(bucket_scan_req=wanted, call_seq_id=0, batch_size_bytes=1)
            there = await channel.request(apis.SCAN_KV, request, timeout_s=120)
            assert (await _open(server)).error_code == TOO_MANY
        assert len(sessions) == 2, "it could come back"
        await until_open(server)
        assert len(sessions) == 2
        assert (await _next(server, here, 1)).error_code is None, "this one was in use"
        assert (await _next(server, there, 1)).error_code == EXPIRED


async def test_sessions_that_have_expired_make_room_before_they_are_swept(tmp_path):
    async with _three_rows(tmp_path, sessions_max=1) as server:
        expired = await _open(server)
        assert (await _open(server)).error_code == TOO_MANY
        server.server.clock.now_ms += TTL_MS + 1
        assert (await _open(server)).error_code is None
        assert (await _next(server, expired, 1)).error_code == EXPIRED


async def test_there_are_limits_for_a_bucket_and_for_the_server(tmp_path):
    settings = quick(scans=ScanSettings(sessions_per_bucket_max=2, sessions_max=3))
    async with serving_kv(tmp_path, kv_table(buckets=3), settings=settings) as server:
        for bucket in range(3):
            await server.put((1, "one"), (2, "two"), bucket=bucket)
        sessions = [await _open(server, bucket=bucket) for bucket in (0, 0, 1)]
        assert [answer.error_code for answer in sessions] == [None] * 3
        refused = [await _open(server, bucket=bucket) for bucket in (0, 2)]
        assert [answer.error_code for answer in refused] == [TOO_MANY] * 2
        assert "2 scan sessions" in refused[0].error_message
        assert "3 scan sessions" in refused[1].error_message
        await _next(server, sessions[0], 1)  # That was the last row.
        assert (await _open(server, bucket=0)).error_code is None
        await _close(server, sessions[2].scanner_id)
        assert (await _open(server, bucket=2)).error_code is None
        assert (await _open(server, bucket=1, size=0)).error_code == INVALID
        assert (await _open(server, bucket=9)).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert len(server.server.service.scan_sessions) == 3


async def test_what_cannot_be_scanned_says_why(tmp_path):
    async with serving_kv(tmp_path, None, make_table(2, "log")) as server:
        log_table = await _open(server, table_id=2)
        assert log_table.error_code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
        for fields in ({"bucket": 7}, {"table_id": 9}, {"partition_id": 5}):
            answer = await _open(server, **fields)
            assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        server.server.catalog.add(make_table(4, "soon"))
        assert (await _open(server, table_id=4)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_partitions_are_scanned_by_their_ids(tmp_path):
    table = kv_table(partition_keys=["id"], schema=_PARTITIONED)
    catalog = MemoryCatalog(table)
    catalog.add_partition(Partition(5, 1, "7"))
    async with serving_kv(tmp_path, table, catalog=catalog) as server:
        await server.put((7, "a"), (7, "b"), partition_id=5)
        assert await _rest(server, await _open(server, partition_id=5)) == [(7, "a"), (7, "b")]


async def test_the_session_of_a_dropped_table_has_expired(tmp_path):
    async with _three_rows(tmp_path) as server:
        answer = await _open(server)
        (directory,) = tmp_path.rglob("log-0")
        await server.server.manager.drop_buckets(server.table, None)
        server.server.catalog.remove(server.table)
        await eventually_async(lambda: not directory.exists())
        assert (await _next(server, answer, 1)).error_code == EXPIRED
        assert (await _close(server, answer.scanner_id)).error_code is None
        assert not len(server.server.service.scan_sessions)


async def test_the_session_of_a_store_that_had_to_be_opened_again_has_expired(tmp_path):
    async with _three_rows(tmp_path) as server:
        kv = server.server.manager.tables[1].group(None)[0].key_values()
        answer = await _open(server)
        kv.store_failed(await kv.store(), FlussError("it broke", ErrorCode.KV_STORAGE_EXCEPTION))
        await kv.store()
        assert [(await _next(server, answer, call)).error_code for call in (1, 2)] == [EXPIRED, EXPIRED]
        assert len(await _rest(server, await _open(server))) == 3


async def test_a_server_stops_and_starts_again_with_open_sessions(tmp_path):
    async with _three_rows(tmp_path) as server:
        answer = await _open(server)
    async with serving_kv(tmp_path) as server:
        assert (await _next(server, answer, 1)).error_code == UNKNOWN
        assert len(await _rest(server, await _open(server))) == 3


async def test_a_client_that_leaves_during_a_call_leaves_no_session_behind(tmp_path):
    async with _three_rows(tmp_path) as server:
        store = await server.server.manager.tables[1].group(None)[0].key_values().store()
        for call in (0, 1):
            client = KvServer(server.server, server.table)
            answer = await _open(server) if call else None
            server.server.channel, other = await server.server.connect(), server.channel
            with busy_readers(server):
                leaving = asyncio.ensure_future(_next(client, answer, 1) if answer else _open(client))
                await asyncio.sleep(0.02)
                await server.channel.close()
                await asyncio.gather(leaving, return_exceptions=True)
            server.server.channel = other
            await eventually_async(lambda: store.snapshot_count == 0 and not len(server.server.service.scan_sessions))
            await eventually_async(lambda: server.used_bytes == 0)
        assert len(await _rest(server, await _open(server))) == 3


def _secured(tmp_path, *, alice: AclOperation = AclOperation.READ):
    table = kv_table()
    authorizer = Authorizer()
    grants = [("alice", alice), ("alice", AclOperation.WRITE), ("bob", AclOperation.READ)]
    authorizer.add(AclBinding(AclResource.table(table.path), f"User:{who}", operation) for who, operation in grants)
    users = UserTable({"alice": "secret", "bob": "secret"})
    serving = serving_kv(
        tmp_path,
        table,
        authorizer=authorizer,
        listener_settings=ListenerSettings(check_credentials=users),
        connect={"credentials": Credentials("alice", "secret")},
    )
    return serving, authorizer


async def test_a_session_is_of_no_use_to_others(tmp_path):
    serving, _ = _secured(tmp_path)
    async with serving as server:
        await server.put((1, "one"), (2, "two"))
        answer = await _open(server)
        alice = server.channel
        server.server.channel = await server.server.connect(credentials=Credentials("bob", "secret"))
        assert (await _next(server, answer, 1)).error_code == UNKNOWN
        assert (await _close(server, answer.scanner_id)).error_code is None
        server.server.channel = alice
        assert server.values_of((await _next(server, answer, 1)).records_view) == [(2, "two")]


async def test_who_may_not_read_does_not_scan_also_not_any_more(tmp_path):
    serving, authorizer = _secured(tmp_path)
    async with serving as server:
        await server.put((1, "one"), (2, "two"))
        answer = await _open(server)
        authorizer.remove([AclBinding(AclResource.table(server.table.path), "User:alice", AclOperation.READ)])
        assert (await _open(server)).error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        assert (await _next(server, answer, 1)).error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        assert not len(server.server.service.scan_sessions)


async def test_without_memory_a_call_may_be_made_again(tmp_path):
    async with _three_rows(tmp_path) as server:
        memory = server.server.service.fetch_memory
        answer = await _open(server)
        await eventually_async(lambda: server.used_bytes == 0)
        memory.count(10**12, "a client that does not take its answers")
        refused = await asyncio.gather(_next(server, answer, 1), _open(server))
        assert [answer.error_code for answer in refused] == [ErrorCode.REQUEST_TIME_OUT] * 2
        memory.give_back(10**12, "a client that does not take its answers")
        assert len(server.server.service.scan_sessions) == 1, "the one that could not be opened is not there"
        again = await _next(server, answer, 1)
        assert server.values_of(again.records_view) == [(2, "two")]
