"""Current rows first, then the changes from exactly there: nothing is missing, nothing comes twice.
Shown against servers on real sockets whose sessions are slow, lost, refused, moved or left alone half way."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pytest

from fluss import EARLIEST_OFFSET, ChangeType, ErrorCode, FlussError, col
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.fetch.polling import Delivery
from fluss.client.scan.fetch.snapshot_fetcher import SnapshotLostError
from fluss.net.listener import keep_port
from fluss.net.transport import run
from fluss.protocol.bulk_messages import ScanKvResponse
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import (
    TABLE_ID,
    Client,
    ScanCluster,
    client_of,
    poll_patiently,
    poll_records,
    poll_until_it_fails,
    scan_cluster,
)

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4


def row(number: int, name: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name or f"n{number}"}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [row(number) for number in range(first, first + count)]


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    """One bucket: ten rows after four changes, three rows per answer; then a row is updated and one is deleted."""
    with scan_cluster(KEYED) as servers:
        servers.append(rows(0, 4), change_types=[INSERT] * 4)
        servers.put_rows(rows(0, 10))
        servers.rows_per_scan_max = 3
        yield servers


@pytest.fixture
def client(servers: ScanCluster) -> Iterator[Client]:
    with client_of(servers) as client:
        yield client


def small_buffer(servers: ScanCluster, byte_count: int) -> AbstractContextManager[Client]:
    options = dict.fromkeys(("max-bytes", "max-bytes-for-bucket"), byte_count)
    return client_of(servers, **{f"scanner.log.fetch.{name}": value for name, value in options.items()})


def append_changes(servers: ScanCluster) -> None:
    changes = [row(1), row(1, "new"), row(2)]
    servers.append(changes, change_types=[BEFORE, AFTER, DELETE], timestamp_ms=77)


def test_rows_come_first_and_the_changes_from_exactly_there(client: Client, servers: ScanCluster) -> None:
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert scanner.get_subscribed_buckets() == [(client.bucket(), EARLIEST_OFFSET)]
    assert servers.scans == []
    snapshot = poll_records(scanner, 10)
    assert [record.row for record in snapshot] == rows(0, 10)
    assert {(r.change_type, r.offset, r.timestamp, r.bucket) for r in snapshot} == {
        (ChangeType.Insert, -1, -1, client.bucket())
    }
    assert scanner.get_subscribed_buckets() == [(client.bucket(), 4)]
    append_changes(servers)
    changes = poll_records(scanner, 3)
    assert [(r.offset, str(r.change_type), r.row, r.timestamp) for r in changes] == [
        (4, "-U", row(1), 77),
        (5, "+U", row(1, "new"), 77),
        (6, "-D", row(2), 77),
    ]
    assert scanner.poll(50).is_empty()
    assert servers.sessions == {}


def test_rows_are_cut_to_the_poll_limit(servers: ScanCluster) -> None:
    with client_of(servers, scanner_log_max__poll__records=2) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        seen: list[Any] = []
        while len(seen) < 10:
            polled = scanner.poll(120_000)
            assert len(polled) <= 2
            seen += polled
            position = 4 if len(seen) == 10 else EARLIEST_OFFSET
            assert scanner.get_subscribed_buckets() == [(client.bucket(), position)]
        assert [record.row for record in seen] == rows(0, 10)


def test_an_empty_bucket_goes_on_with_its_changes() -> None:
    with scan_cluster(KEYED, bucket_count=3) as servers, client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()

        def positions() -> list[int]:
            assert scanner.poll(100).is_empty()
            return [offset for _, offset in scanner.get_subscribed_buckets()]

        eventually(lambda: positions() == [0, 0, 0])
        servers.append([row(7)], bucket=1, change_types=[INSERT])
        (record,) = poll_records(scanner, 1)
        assert (record.row, record.offset, record.bucket.bucket_id) == (row(7), 0, 1)


def test_columns_are_chosen_in_rows_and_changes(client: Client, servers: ScanCluster) -> None:
    scanner = run(client.scan().project_by_name(["name"]).create_log_scanner())
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == [{"name": f"n{number}"} for number in range(10)]
    append_changes(servers)
    assert [record.row["name"] for record in poll_records(scanner, 3)] == ["n1", "new", "n2"]


def test_rows_of_older_schemas_have_all_columns_of_the_table(servers: ScanCluster) -> None:
    def add_column() -> None:
        servers.schemas[2] = KEYED.with_added_columns([Column("price", DataTypes.double())])
        servers.schema_id = 2
        servers.descriptor = type(servers.descriptor)(servers.schemas[2], bucket_count=1)
        servers.publish()

    servers.call(add_column)
    servers.put_rows([{"id": 10, "name": "ten", "price": 1.5}], schema_id=2)
    with client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        found = {record.row["id"]: record.row for record in poll_records(scanner, 11)}
        assert found[3] == {"id": 3, "name": "n3", "price": None}
        assert found[10] == {"id": 10, "name": "ten", "price": 1.5}


def test_rows_of_the_indexed_format() -> None:
    with scan_cluster(KEYED, kv_format="indexed") as servers, client_of(servers) as client:
        servers.put_rows(rows(0, 5))
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        assert [record.row for record in poll_records(scanner, 5)] == rows(0, 5)


def test_a_log_table_is_read_from_its_beginning() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        for bucket in range(2):
            servers.append(rows(bucket, 1), bucket=bucket)
        scanner = client.batches()
        scanner.subscribe_from_snapshot()
        assert sorted(scanner.to_arrow()["id"].to_pylist()) == [0, 1]
        assert servers.scans == []


def test_rows_are_fetched_as_polls_take_them(servers: ScanCluster) -> None:
    servers.put_rows(rows(10, 390))
    servers.rows_per_scan_max = 10
    # Room for about five answers.
    with small_buffer(servers, 700) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        first = scanner.poll(120_000)
        time.sleep(0.2)
        assert servers.call(lambda: len(servers.scans)) < 20
        rest = poll_records(scanner, 400 - len(first))
        assert [record.row["id"] for record in [*first, *rest]] == list(range(400))


def test_unsubscribing_half_way_ends_the_session(servers: ScanCluster) -> None:
    servers.put_rows(rows(10, 390))
    with small_buffer(servers, 100) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        assert len(scanner.poll(120_000)) > 0
        assert servers.call(lambda: len(servers.sessions)) == 1
        scanner.unsubscribe(0)
        eventually(lambda: servers.call(lambda: not servers.sessions))
        assert scanner.poll(100).is_empty()
        assert scanner.get_subscribed_buckets() == []
        # Subscribing again begins again.
        scanner.subscribe_from_snapshot()
        assert len(poll_records(scanner, 400)) == 400


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_scanner_that_ends_half_way_leaves_no_session(servers: ScanCluster, how: str) -> None:
    servers.put_rows(rows(10, 390))
    with small_buffer(servers, 100) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        assert len(scanner.poll(120_000)) > 0
        assert servers.call(lambda: len(servers.sessions)) == 1
        if how == "close":
            scanner.close()
        del scanner
        gc.collect()
        eventually(lambda: servers.call(lambda: not servers.sessions))


def test_unsubscribing_while_the_session_is_opened_closes_it(client: Client, servers: ScanCluster) -> None:
    servers.call(servers.scan_gate.clear)
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert scanner.poll(50).is_empty()
    eventually(lambda: len(servers.scans) == 1)
    scanner.unsubscribe(0)
    time.sleep(0.05)
    servers.call(servers.scan_gate.set)
    eventually(lambda: servers.call(lambda: [scan.close_scanner for scan in servers.scans] == [False, True]))
    assert servers.sessions == {}


@pytest.mark.parametrize("code", [66, 67, 68, 12, 1])
def test_a_session_that_is_lost_before_anybody_has_seen_its_rows_is_opened_again(
    client: Client, servers: ScanCluster, code: int
) -> None:
    lost = ScanKvResponse(error_code=code, error_message="lost")
    servers.call(lambda: servers.scan_answers.extend([lost, None, lost]))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == rows(0, 10)
    assert scanner.poll(50).is_empty()


@pytest.mark.parametrize("code", [66, 67, 68, 12, 48])
def test_a_session_that_is_lost_later_is_an_error_until_somebody_subscribes_again(
    client: Client, servers: ScanCluster, code: int
) -> None:
    servers.call(
        lambda: servers.scan_answers.extend([None, None, ScanKvResponse(error_code=code, error_message="why")])
    )
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    seen = [record.row for record in poll_records(scanner, 3)]
    assert seen == rows(0, 3)
    for _ in range(2):
        error = poll_until_it_fails(scanner.poll)
        assert isinstance(error, SnapshotLostError)
        assert error.error_code == ErrorCode.SCANNER_EXPIRED
        assert "why" in error.message
        assert error.bucket == client.bucket()
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == rows(0, 10)


@pytest.mark.parametrize("code", [25, 72])
def test_a_server_without_memory_for_an_answer_is_asked_for_it_again(
    client: Client, servers: ScanCluster, code: int
) -> None:
    busy = ScanKvResponse(error_code=code, error_message="no memory")
    servers.call(lambda: servers.scan_answers.extend([busy, None, busy, None, busy, busy]))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == rows(0, 10)
    assert sum(scan.HasField("bucket_scan_req") for scan in servers.scans) == 2


def test_too_many_sessions_pass(client: Client, servers: ScanCluster) -> None:
    refused = ScanKvResponse(error_code=ErrorCode.TOO_MANY_SCANNERS, error_message="too many")
    servers.call(lambda: servers.scan_answers.extend([refused] * 3))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert len(poll_records(scanner, 10)) == 10


def test_an_error_that_does_not_pass_is_raised_and_tried_again(client: Client, servers: ScanCluster) -> None:
    forbidden = ScanKvResponse(error_code=ErrorCode.AUTHORIZATION_EXCEPTION, error_message="not you")
    servers.call(lambda: servers.scan_answers.append(forbidden))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert poll_until_it_fails(scanner.poll, "not you").error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    assert len(poll_patiently(scanner.poll, 10, passing_code=ErrorCode.AUTHORIZATION_EXCEPTION)) == 10


def test_a_bucket_that_moves_is_read_at_its_new_leader(client: Client, servers: ScanCluster) -> None:
    servers.start_server(1)

    def move() -> None:
        servers.leaders[None, 0] = 1
        servers.publish()

    servers.call(move)
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == rows(0, 10)


def test_a_server_that_restarts_half_way_is_an_error_and_doubles_nothing(servers: ScanCluster) -> None:
    servers.put_rows(rows(10, 390))
    with small_buffer(servers, 100) as client:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        seen = [record.row["id"] for record in scanner.poll(120_000)]
        assert seen
        port = servers.servers[0].port
        servers.stop_server()
        with keep_port("127.0.0.1", port):
            servers.start_server(port=port)

        def poll() -> bool:
            seen.extend(record.row["id"] for record in scanner.poll(100))
            return False

        with pytest.raises(SnapshotLostError):
            eventually(poll)
        assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    "answer",
    [
        ScanKvResponse(has_more_results=True, records=b"\5\0\0\0\0\0\0\0\0", log_offset=0),
        ScanKvResponse(has_more_results=True, scanner_id=b"x", log_offset=0),
        ScanKvResponse(has_more_results=False),
        ScanKvResponse(has_more_results=False, log_offset=-5),
    ],
    ids=["more without an id", "more without rows", "no offset", "an impossible offset"],
)
def test_answers_that_make_no_sense_are_not_believed(
    client: Client, servers: ScanCluster, answer: ScanKvResponse
) -> None:
    servers.call(lambda: servers.scan_answers.append(answer))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    assert [record.row for record in poll_records(scanner, 10)] == rows(0, 10)


def test_damaged_rows_are_an_error(client: Client, servers: ScanCluster) -> None:
    answer = ScanKvResponse(has_more_results=False, records=b"\5\0\0\0\0\xff\0\0\0", log_offset=0)
    servers.call(lambda: servers.scan_answers.append(answer))
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    for _ in range(2):
        error = poll_until_it_fails(scanner.poll, "cannot be read")
        assert error.error_code == ErrorCode.CLIENT_ERROR


def test_a_filter_is_refused_where_changes_do_not_say_what_a_row_was() -> None:
    with (
        scan_cluster(KEYED, properties={"table.changelog.image": "WAL"}) as servers,
        client_of(servers) as client,
    ):
        scanner = run(client.scan().filter(col("id") > 3).create_log_scanner())
        with pytest.raises(FlussError, match="cannot be filtered: its changelog has no rows before updates"):
            scanner.subscribe_from_snapshot()


# Polls that nobody waits for any more


def test_rows_read_for_a_cancelled_poll_come_with_the_next_one(client: Client, servers: ScanCluster) -> None:
    append_changes(servers)

    async def main() -> list[Any]:
        scanner = client.records()
        scanner.subscribe_from_snapshot()
        seen: list[Any] = []
        delay_s = 0.0
        while len(seen) < 10:
            poll = asyncio.create_task(scanner.poll_async(120_000))
            await asyncio.sleep(delay_s)
            delay_s += 0.0002
            if poll.cancel():
                try:
                    seen += await poll
                except asyncio.CancelledError:
                    continue
            else:
                seen += await poll
        return seen

    seen = run(main())
    assert [record.row for record in seen] == rows(0, 10)


def test_rows_that_are_given_back_stay_before_the_changes_behind_them(client: Client, servers: ScanCluster) -> None:
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    poller, reader = scanner._pipeline.poller, scanner._pipeline.reader
    servers.rows_per_scan_max = 1000
    scanner.poll(0)
    eventually(lambda: scanner._pipeline.buffer.has_something)
    news_count = scanner._pipeline.buffer.news_count
    append_changes(servers)
    assert scanner._pipeline.buffer.block(news_count, 120)
    runs: Any = []
    scanner._collect_records(runs)
    assert [run.is_snapshot for _, run in runs] == [True, False]
    poller._go_back(runs)
    assert reader.is_reading
    assert scanner.get_subscribed_buckets() == [(client.bucket(), EARLIEST_OFFSET)]
    again = poll_records(scanner, 13)
    assert [record.row for record in again[:10]] == rows(0, 10)
    assert [record.offset for record in again[10:]] == [4, 5, 6]
    assert scanner.poll(50).is_empty()


def test_a_poll_that_was_cancelled_before_its_turn_reads_nothing(client: Client, servers: ScanCluster) -> None:
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    poller = scanner._pipeline.poller
    servers.rows_per_scan_max = 1000
    scanner.poll(0)
    eventually(lambda: scanner._pipeline.buffer.has_something)
    news_count = scanner._pipeline.buffer.news_count
    append_changes(servers)
    assert scanner._pipeline.buffer.block(news_count, 120)

    def collect_some(runs: Any) -> bool:
        step = scanner._pipeline.reader.next_run(records_max=4)
        assert step is not None
        runs.append(step)
        return False

    # Three polls in turn: the first is cancelled while no worker thread has time for it, so it comes after the second,
    # which is cancelled when it has read rows.
    first, second = Delivery(poller._go_back), Delivery(poller._go_back)
    first.abandon()
    assert poller._step(collect_some, second)
    assert poller._step(scanner._collect_records, first) is None
    second.abandon()
    records = poll_records(scanner, 13)
    assert [record.row for record in records[:10]] == rows(0, 10)
    assert [record.offset for record in records[10:]] == [4, 5, 6]


def test_rows_that_are_given_back_and_unsubscribed_are_dropped(client: Client) -> None:
    scanner = client.records()
    scanner.subscribe_from_snapshot()
    scanner.poll(0)
    eventually(lambda: scanner._pipeline.buffer.has_something)
    runs: Any = []
    scanner._collect_records(runs)
    scanner._pipeline.poller._go_back(runs)
    scanner.unsubscribe(0)
    assert scanner.poll(50).is_empty()


# Bounded reads


def test_a_bounded_read_is_the_snapshot_and_the_changes_up_to_now(client: Client, servers: ScanCluster) -> None:
    scanner = client.changes()
    scanner.subscribe_from_snapshot()
    for _ in range(2):
        table = scanner.to_arrow()
        assert table["id"].to_pylist() == list(range(10))
        assert set(table["_change_type"].to_pylist()) == {"insert"}
    # A snapshot that is older than the log, as on a server that applies changes late.
    append_changes(servers)
    assert scanner.to_arrow()["id"].to_pylist() == list(range(10))
    late = {"log_offset": 4}
    values = servers.call(lambda: servers.values[None, 0])
    assert len(values) == 10

    original = servers._open_scan

    def open_late(server_id: int, request: Any) -> ScanKvResponse:
        response = original(server_id, request)
        response.log_offset = late["log_offset"]
        return response

    servers._open_scan = open_late  # type: ignore[method-assign]  # the answer of a server that lags behind
    table = scanner.to_arrow()
    assert table["_log_offset"].to_pylist() == [-1] * 10 + [4, 5, 6]
    assert scanner.poll_arrow(50).num_rows == 0
    assert scanner.to_arrow_batch_reader().read_all().num_rows == 0


def test_a_bounded_read_does_not_begin_in_the_middle_of_a_snapshot(servers: ScanCluster) -> None:
    servers.put_rows(rows(10, 390))
    with small_buffer(servers, 100) as client:
        scanner = client.changes()
        scanner.subscribe_from_snapshot()
        assert 0 < scanner.poll_arrow(120_000).num_rows < 400
        with pytest.raises(FlussError, match="Some of the current rows"):
            scanner.to_arrow()
        scanner.subscribe_from_snapshot()
        assert scanner.to_arrow().num_rows == 400


def test_a_bounded_read_that_gets_no_rows_says_why(servers: ScanCluster) -> None:
    refused = ScanKvResponse(error_code=ErrorCode.TOO_MANY_SCANNERS, error_message="too many sessions")
    servers.call(lambda: servers.scan_answers.extend([refused] * 1000))
    with client_of(servers, request__timeout=3000) as client:
        scanner = client.changes()
        scanner.subscribe_from_snapshot()
        with pytest.raises(FlussError, match="too many sessions"):
            scanner.to_arrow()


# Servers that cannot scan


def test_a_server_without_scans_gives_all_changes_instead() -> None:
    servers = ScanCluster(KEYED)
    servers.offers_scans = False
    try:
        servers.start_server()
        servers.append(rows(0, 2), change_types=[INSERT] * 2)
        append_changes(servers)
        with client_of(servers) as client:
            scanner = client.records()
            scanner.subscribe_from_snapshot()
            assert [(r.offset, str(r.change_type)) for r in poll_records(scanner, 5)] == [
                (0, "+I"),
                (1, "+I"),
                (2, "-U"),
                (3, "+U"),
                (4, "-D"),
            ]
            servers.call(lambda: servers.offsets_start.update({(None, 0): 2}))
            scanner.subscribe_from_snapshot()
            with pytest.raises(FlussError, match=r"no longer has all changes.*there is none"):
                poll_records(scanner, 1)
    finally:
        servers.close()


# Partitions


def test_chosen_partitions_are_subscribed() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("region", pa.string())]), primary_keys=["id", "region"])
    with scan_cluster(schema, bucket_count=2, partition_keys=["region"]) as servers:
        servers.call(lambda: servers.partitions.update({11: "EU", 12: "US"}))
        servers.call(servers.publish)
        for partition, region in servers.partitions.items():
            servers.put_rows([{"id": 1, "region": region}], partition=partition, bucket=1)
        with client_of(servers) as client:

            def regions(partitions: Any) -> list[str]:
                scanner = client.changes()
                scanner.subscribe_from_snapshot(partitions)
                return sorted(scanner.to_arrow()["region"].to_pylist())

            assert regions(None) == ["EU", "US"]
            assert regions("EU") == regions({"region": "EU"}) == regions(["EU"]) == ["EU"]
            assert regions(["EU", {"region": "US"}]) == ["EU", "US"]
            with pytest.raises(FlussError, match="no partition 'XX'") as missing:
                regions("XX")
            assert missing.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
            with pytest.raises(FlussError, match="partitioned by") as unknown:
                regions({"day": "EU"})
            assert unknown.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
            with pytest.raises(TypeError, match="names or specs"):
                regions(7)


def test_partitions_of_a_table_without_any_are_refused(client: Client) -> None:
    with pytest.raises(FlussError, match="no partitions to choose from") as error:
        client.records().subscribe_from_snapshot("EU")
    assert error.value.error_code == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    assert client.info.table_id == TABLE_ID
    assert runtime().loop.is_running()
