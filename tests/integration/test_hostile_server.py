"""Whatever a server answers, a client's calls end in time, with a result or with a FlussError, and it can be closed.
Shown by a server that answers everything with random messages, damaged ones, errors, noise or nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fluss
from fluss.client.kernel.runtime import wait_for
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.testing.waiting import eventually
from tests.integration.hostile_server import (
    BUCKETS,
    KEYS_ID,
    KEYS_NAME,
    Answer,
    HostileServer,
    value,
    value_batch,
)
from tests.integration.lying_batches import rows

PATH = fluss.TablePath("fluss", "t")
KEYS_PATH = fluss.TablePath("fluss", KEYS_NAME)
# Requests time out after a tenth of a second; calls that repeat them a few times take a multiple of it.
CALL_SECONDS_MAX = 100.0
# For answers that are right, however long they take.
PATIENCE_MS = 300_000


def connect(port: int, request_timeout_ms: int = 100) -> fluss.FlussConnection:
    options = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "request-timeout": str(request_timeout_ms),
        "writer.retries": "2",
        "scanner.log.fetch.wait-max-time-ms": "10",
    }
    return wait_for(fluss.FlussConnection.create(fluss.Config(options)))


def ends_well(call: Callable[[], object]) -> bool:
    """Whether a call has a result; anything but a FlussError in time fails the test."""
    begun = time.monotonic()
    try:
        call()
        return True
    except fluss.FlussError:
        return False
    finally:
        assert time.monotonic() - begun < CALL_SECONDS_MAX


def ask_everything(connection: fluss.FlussConnection) -> list[bool]:
    admin = connection.get_admin()
    calls: list[Callable[[], object]] = [
        lambda: wait_for(admin.list_databases()),
        lambda: wait_for(admin.get_database_info("fluss")),
        lambda: wait_for(admin.list_tables("fluss")),
        lambda: wait_for(admin.get_table_info(PATH)),
        lambda: wait_for(admin.get_table_schema(PATH)),
        lambda: wait_for(admin.list_partition_infos(PATH)),
        lambda: wait_for(admin.list_offsets(PATH, [0, 1], fluss.OffsetSpec.latest())),
        lambda: wait_for(admin.get_server_nodes()),
        lambda: wait_for(admin.describe_cluster_configs()),
        lambda: wait_for(admin.create_database("x")),
    ]
    return [ends_well(call) for call in calls]


def use_table(connection: fluss.FlussConnection) -> list[bool]:
    table = wait_for(connection.get_table(PATH))

    def write() -> None:
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(rows())
        wait_for(writer.flush())

    def scan() -> None:
        scanner = wait_for(table.new_scan().create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        for _ in range(3):
            for record in scanner.poll(30):
                assert len(repr(dict(record.row))) > 0

    def scan_newest() -> None:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        wait_for(table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow())

    return [ends_well(call) for call in (write, scan, scan_newest)]


def use_keys(connection: fluss.FlussConnection) -> list[bool]:
    table = wait_for(connection.get_table(KEYS_PATH))
    keys = [{"id": number, "part": 0} for number in range(50)]

    def upsert() -> None:
        writer = table.new_upsert().create_writer()
        writer.upsert({"id": 1, "part": 0, "name": "a"})
        writer.delete({"id": 2, "part": 0})
        wait_for(writer.flush())

    def scan_changes() -> None:
        scanner = wait_for(table.new_scan().create_log_scanner())
        scanner.subscribe_from_snapshot()
        for _ in range(3):
            for record in scanner.poll(30):
                assert len(repr(dict(record.row))) > 0

    def scan_some() -> None:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        wait_for(table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow())

    calls: list[Callable[[], object]] = [
        upsert,
        lambda: wait_for(table.new_lookup().create_lookuper().lookup(keys[0])),
        lambda: wait_for(table.new_lookup().create_lookuper().lookup_many(keys)),
        lambda: wait_for(table.new_lookup().lookup_by(["id"]).create_lookuper().lookup({"id": 1})),
        scan_changes,
        scan_some,
        table.to_arrow,
    ]
    return [ends_well(call) for call in calls]


@pytest.mark.parametrize("honesty", [0.7, 0.9, 1.0])
def test_calls_end_with_a_result_or_a_typed_error(honesty: float, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[bool] = []
    with caplog.at_level(logging.INFO):
        for seed in range(4):
            with HostileServer(seed, honesty) as server:
                try:
                    connection = connect(server.port)
                except fluss.FlussError:
                    outcomes.append(False)
                    continue
                outcomes += ask_everything(connection)
                # Reads of rows by key are patient with a server, and take their time.
                for use in (use_table, use_keys) if seed < 2 else (use_table,):
                    try:
                        outcomes += use(connection)
                    except fluss.FlussError:
                        outcomes.append(False)
                # Rows that a liar did not take are lost, and closing says so.
                ends_well(lambda opened=connection: opened.close(timeout_ms=200))
    assert set(outcomes) == {True, False}, "something worked, and something did not"
    unexpected = [(record.getMessage(), record.exc_info) for record in caplog.records if record.exc_info]
    assert unexpected == []


# Lies that are chosen


def lookups(change: Callable[[pb.PbLookupRespForBucket], object]) -> Answer:
    """Answer lookups of the keys 1 and 2 with their rows, and change something."""

    def answer(body: bytes) -> pb.LookupResponse:
        response = pb.LookupResponse()
        for wanted in pb.LookupRequest.FromString(body).buckets_req:
            bucket = response.buckets_resp.add(bucket_id=wanted.bucket_id)
            for key in wanted.keys:
                bucket.values.add(values=value(key[0]))
            change(bucket)
        return response

    return answer


def replaced(stored: bytes) -> Callable[[pb.PbLookupRespForBucket], object]:
    def change(bucket: pb.PbLookupRespForBucket) -> None:
        bucket.values[0].values = stored

    return change


LOOKUP_LIES: dict[str, Callable[[pb.PbLookupRespForBucket], object]] = {
    "nothing": lambda bucket: bucket.ClearField("values"),
    "one more": lambda bucket: bucket.values.add(values=value(9)),
    "one less": lambda bucket: bucket.values.pop(),
    "another bucket": lambda bucket: setattr(bucket, "bucket_id", bucket.bucket_id + 1),
    "a bucket of a partition": lambda bucket: setattr(bucket, "partition_id", 3),
    "a code that nobody knows": lambda bucket: setattr(bucket, "error_code", 999),
    "half a row": replaced(value(1)[:-1]),
    "more than a row": replaced(value(1) + b"\0"),
    "one byte": replaced(b"\1"),
    "no row": replaced(b"\1\0"),
    "noise": replaced(b"\1\0" + bytes(range(100))),
    "text that is not UTF-8": replaced(value(1, 0, "aa").replace(b"aa", b"\xff\xff")),
    "null for a key": replaced(b"\1\0\1\0\1a"),
    "a schema that does not exist": replaced(value(1, schema_id=5)),
    "a negative schema": replaced(value(1, schema_id=-1)),
}


@contextmanager
def liar(answers: dict[int, Answer], request_timeout_ms: int = 100) -> Iterator[fluss.FlussTable]:
    """A table of a server with these answers; the time for a request is also what ends its repetitions."""
    no_schema = pb.GetTableSchemaResponse(schema_id=5, schema_json=b"{}")
    with HostileServer(0, 1.0, {ApiKey.GET_TABLE_SCHEMA: lambda body: no_schema, **answers}) as server:
        # A busy machine may take longer for honest answers.
        found = eventually(lambda: opened(server.port, request_timeout_ms), "getting the table")
        assert found
        connection, table = found
        yield table
        ends_well(lambda: connection.close(timeout_ms=200))


def opened(port: int, request_timeout_ms: int) -> tuple[fluss.FlussConnection, fluss.FlussTable] | None:
    try:
        connection = connect(port, request_timeout_ms)
    except fluss.FlussError:
        return None
    try:
        return connection, wait_for(connection.get_table(KEYS_PATH))
    except fluss.FlussError:
        connection.close()
        return None


@pytest.mark.parametrize("lie", LOOKUP_LIES)
def test_a_lookup_that_is_answered_with_a_lie_is_an_error(lie: str) -> None:
    with liar({ApiKey.LOOKUP: lookups(LOOKUP_LIES[lie])}) as table:
        lookuper = table.new_lookup().create_lookuper()
        assert not ends_well(lambda: wait_for(lookuper.lookup({"id": 1, "part": 0})))
        assert not ends_well(lambda: wait_for(lookuper.lookup_many([{"id": 1, "part": 0}])))


def test_rows_of_other_keys_are_no_answer() -> None:
    with liar({ApiKey.LOOKUP: lookups(replaced(value(3)))}, PATIENCE_MS) as table:
        lookuper = table.new_lookup().create_lookuper()
        with pytest.raises(fluss.FlussError, match="rows of other keys"):
            wait_for(lookuper.lookup_many([{"id": 1, "part": 0}]))


def test_a_damaged_row_is_an_error_only_for_who_asked_for_it() -> None:
    def damage(bucket: pb.PbLookupRespForBucket) -> None:
        for found in bucket.values:
            if found.values == value(2):
                found.values = b"\1\0\xff"

    with liar({ApiKey.LOOKUP: lookups(damage)}, PATIENCE_MS) as table:
        lookuper = table.new_lookup().create_lookuper()

        async def look_up_all() -> list[Any]:
            keys = [{"id": id, "part": 0} for id in range(1, 6)]
            return await asyncio.gather(*map(lookuper.lookup, keys), return_exceptions=True)

        found = wait_for(look_up_all())
        assert isinstance(found[1], fluss.FlussError)
        assert [found[0], *found[2:]] == [{"id": id, "part": 0, "name": "a"} for id in (1, 3, 4, 5)]


def prefix_lookups(*lists: list[bytes]) -> Answer:
    def answer(body: bytes) -> pb.PrefixLookupResponse:
        response = pb.PrefixLookupResponse()
        for wanted in pb.PrefixLookupRequest.FromString(body).buckets_req:
            bucket = response.buckets_resp.add(bucket_id=wanted.bucket_id)
            for values in lists:
                bucket.value_lists.add(values=values)
        return response

    return answer


@pytest.mark.parametrize(
    "lists", [[], [[value(1)], [value(1)]], [[b""]], [[value(1), value(1)[:-1]]], [[value(1, schema_id=5)]]]
)
def test_a_prefix_lookup_that_is_answered_with_a_lie_is_an_error(lists: list[list[bytes]]) -> None:
    with liar({ApiKey.PREFIX_LOOKUP: prefix_lookups(*lists)}) as table:
        lookuper = table.new_lookup().lookup_by(["id"]).create_lookuper()
        assert not ends_well(lambda: wait_for(lookuper.lookup({"id": 1})))


def scans(**changed: Any) -> Answer:
    fields = {"scanner_id": b"1", "has_more_results": False, "log_offset": 4, "records": value_batch(value(1))}
    fields |= changed
    return lambda body: pb.ScanKvResponse(**{name: field for name, field in fields.items() if field is not None})


SCAN_LIES: dict[str, dict[str, Any]] = {
    "more rows for ever, and none": {"has_more_results": True, "records": b""},
    "more rows of nobody": {"has_more_results": True, "scanner_id": None},
    "no offset": {"log_offset": None},
    "negative offset": {"log_offset": -5},
    "half a batch": {"records": value_batch(value(1))[:-1]},
    "damaged rows": {"records": value_batch(value(1), value(2)[:-1])},
    "rows of another schema": {"records": value_batch(value(1), value(2, schema_id=5))},
    "no rows but noise": {"records": bytes(range(200))},
    "no place": {"error_code": 69, "error_message": "full"},
}


@pytest.mark.parametrize("lie", SCAN_LIES)
def test_a_scan_that_is_answered_with_a_lie_is_an_error(lie: str) -> None:
    with liar({ApiKey.SCAN_KV: scans(**SCAN_LIES[lie])}) as table:
        assert not ends_well(table.to_arrow)


def test_a_limited_scan_has_no_more_rows_than_its_limit() -> None:
    many = pb.LimitScanResponse(is_log_table=False, records=value_batch(*map(value, range(50))))
    damaged = pb.LimitScanResponse(is_log_table=False, records=value_batch(value(1))[:-1])
    for answer, row_count in ((many, 3), (damaged, None)):
        with liar({ApiKey.LIMIT_SCAN: lambda body, answer=answer: answer}, PATIENCE_MS) as table:
            scanner = table.new_scan().limit(3).create_bucket_batch_scanner(fluss.TableBucket(KEYS_ID, 0))
            if row_count is None:
                assert not ends_well(lambda scanner=scanner: wait_for(scanner.to_arrow()))
            else:
                assert wait_for(scanner.to_arrow()).num_rows == row_count


@pytest.mark.parametrize(
    "response",
    [
        pb.PutKvResponse(),
        pb.PutKvResponse(buckets_resp=[pb.PbPutKvRespForBucket(bucket_id=9, log_end_offset=1)]),
        pb.PutKvResponse(buckets_resp=[pb.PbPutKvRespForBucket(bucket_id=0, partition_id=1, log_end_offset=1)] * 2),
        pb.PutKvResponse(buckets_resp=[pb.PbPutKvRespForBucket(bucket_id=n, error_code=999) for n in range(BUCKETS)]),
    ],
)
def test_a_write_is_acknowledged_only_for_its_own_bucket(response: pb.PutKvResponse) -> None:
    with liar({ApiKey.PUT_KV: lambda body: response}) as table:
        writer = table.new_upsert().create_writer()
        handle = writer.upsert({"id": 1, "part": 0, "name": "a"})
        assert not ends_well(lambda: wait_for(handle.wait()))


def test_pressure_without_measure_does_not_stop_a_writer() -> None:
    entries = [pb.PbPutKvRespForBucket(bucket_id=n, log_end_offset=1, pressure=pressure) for n, pressure in PRESSURES]
    with liar({ApiKey.PUT_KV: lambda body: pb.PutKvResponse(buckets_resp=entries)}, PATIENCE_MS) as table:
        writer = table.new_upsert().create_writer()
        for id in range(20):
            writer.upsert({"id": id, "part": 0, "name": "a"})
        assert ends_well(lambda: wait_for(writer.flush()))


PRESSURES = [(0, float("nan")), (1, float("inf"))]
