"""Bounded reads return everything up to the latest offsets of their beginning, end, and can be repeated.
Shown on logs that grow meanwhile, end in empty batches, or stop answering; and on readers that are left half way."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss import EARLIEST_OFFSET, ErrorCode, FlussError
from fluss.client.kernel.runtime import runtime
from fluss.protocol.bulk_messages import FetchedBucket
from fluss.record.log_batch import build_batch
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually, eventually_async
from tests.fakes.scan_cluster import Client, ScanCluster, client_of, poll_rows, scan_cluster
from tests.unit.client.scan.test_log_scanner import rows


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    """Two buckets: one with 12 rows in batches of three, one without."""
    with scan_cluster(bucket_count=2) as servers:
        for number in range(4):
            servers.append(rows(3 * number), bucket=0)
        yield servers


@pytest.fixture
def client(servers: ScanCluster) -> Iterator[Client]:
    with client_of(servers) as client:
        yield client


def test_everything_is_read_and_reading_again_gives_the_same(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe_buckets({0: EARLIEST_OFFSET, 1: EARLIEST_OFFSET})
    for _ in range(3):
        assert scanner.to_arrow().to_pylist() == rows(0, 12)
        assert scanner.to_pandas()["id"].tolist() == list(range(12))
    servers.append(rows(100), bucket=1)
    assert sorted(scanner.to_arrow()["id"].to_pylist()) == [*range(12), 100, 101, 102]
    assert len(scanner.get_subscribed_buckets()) == 2


def test_a_poll_goes_on_behind_a_bounded_read_and_the_next_one_begins_there(
    client: Client, servers: ScanCluster
) -> None:
    scanner = client.batches()
    scanner.subscribe(0, 4)
    assert scanner.to_arrow().to_pylist() == rows(4, 8)
    assert scanner.get_subscribed_buckets() == [(client.bucket(0), 12)]
    servers.append(rows(12))
    assert scanner.poll_arrow(120_000).to_pylist() == rows(12)
    servers.append(rows(15))
    assert scanner.to_arrow().to_pylist() == rows(15)
    # Subscribing says where to begin, too.
    scanner.subscribe(0, 10)
    assert scanner.to_arrow().to_pylist() == rows(10, 8)


def test_nothing_to_read_is_a_table_without_rows(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe_buckets({0: 12, 1: EARLIEST_OFFSET})
    table = scanner.to_arrow()
    assert (table.num_rows, table.schema) == (0, client.info.schema.to_arrow())
    assert list(scanner.to_pandas().columns) == ["id", "name"]
    assert scanner.to_arrow_batch_reader().read_all().num_rows == 0
    assert servers.call(lambda: servers.fetches) == [], "what is empty is not fetched"


def test_a_log_whose_records_are_all_gone_is_empty(client: Client, servers: ScanCluster) -> None:
    def expire() -> None:
        servers.offsets_start[None, 0] = 12
        servers.logs[None, 0].clear()

    servers.call(expire)
    scanner = client.batches()
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow().num_rows == 0


def test_what_comes_after_the_beginning_of_the_read_is_left_for_later(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe(0, EARLIEST_OFFSET)
    # The log grows between the question for its end and the first fetch: the fetch returns more than was asked for.
    grown = False
    answer = servers._list_offsets

    def grow(context: Any, request: Any) -> Any:
        nonlocal grown
        response = answer(context, request)
        if not grown:
            grown = True
            servers.append_encoded(servers.encode(rows(12, 5)), (None, 0))
        return response

    servers.call(lambda: setattr(servers, "list_offsets", grow))
    assert scanner.to_arrow().to_pylist() == rows(0, 12)
    assert scanner.poll_arrow(120_000).to_pylist() == rows(12, 5)


def test_a_batch_across_the_end_is_cut(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe(0, EARLIEST_OFFSET)
    servers.call(lambda: servers.latest_answers.update({(None, 0): 7}))
    assert scanner.to_arrow().to_pylist() == rows(0, 7)
    assert scanner.get_subscribed_buckets() == [(client.bucket(0), 7)]
    servers.call(servers.latest_answers.clear)
    assert scanner.poll_arrow(120_000).to_pylist() == rows(7, 5)


def test_empty_and_filtered_batches_at_the_end_end_the_read(client: Client, servers: ScanCluster) -> None:
    for _ in range(2):
        empty = build_batch(schema_id=1, record_count=0, append_only=True)
        servers.call(lambda empty=empty: servers.append_encoded(empty))
    servers.answers[None, 0] = deque([FetchedBucket(0, high_watermark=14, records=b"", filtered_end_offset=14)])
    scanner = client.batches()
    scanner.subscribe(0, 3)
    assert scanner.to_arrow().num_rows == 0
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow().to_pylist() == rows(0, 12)
    scanner.subscribe(0, 12)
    assert scanner.to_arrow().num_rows == 0


def test_an_error_is_raised_and_nothing_has_moved(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe_buckets({0: 2, 1: 0})
    servers.call(lambda: servers.standing_answers.update({(None, 0): FetchedBucket(0, error_code=48)}))
    with pytest.raises(FlussError) as error:
        scanner.to_arrow()
    assert error.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    assert dict(scanner.get_subscribed_buckets()) == {client.bucket(0): 2, client.bucket(1): 0}
    servers.call(servers.standing_answers.clear)
    assert scanner.to_arrow().to_pylist() == rows(2, 10)


def test_a_server_that_never_has_the_records_is_given_up(servers: ScanCluster) -> None:
    servers.append(rows(0), bucket=1)
    servers.standing_answers[None, 0] = FetchedBucket(0, error_code=10, error_message="disk trouble")
    with client_of(servers, request__timeout=3000) as client:
        scanner = client.batches()
        scanner.subscribe(0, 0)
        with pytest.raises(FlussError, match="disk trouble") as error:
            scanner.to_arrow()
        assert error.value.error_code == 10
        servers.call(lambda: servers.standing_answers.update({(None, 0): FetchedBucket(0, records=b"")}))
        with pytest.raises(FlussError, match="it is at offset 0 and should reach 12") as timeout:
            scanner.to_arrow()
        assert timeout.value.error_code == ErrorCode.REQUEST_TIME_OUT


def test_partitions_are_read_to_their_ends_and_one_that_vanished_is_named() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    with scan_cluster(schema, partition_keys=["name"]) as servers:
        servers.partitions = {11: "a", 12: "b"}
        servers.call(servers.publish)
        servers.append(rows(0), partition=11)
        servers.append(rows(10), partition=12)
        with client_of(servers) as client:
            scanner = client.batches()
            scanner.subscribe_partition_buckets({(11, 0): 0, (12, 0): 1})
            assert sorted(scanner.to_arrow()["id"].to_pylist()) == [0, 1, 2, 11, 12]

            def drop() -> None:
                del servers.partitions[12]
                servers.leaders[12, 0] = 77
                servers.publish()

            servers.call(drop)
            client.cluster.forget_leaders(client.info.table_id, 12)
            with pytest.raises(FlussError, match="Unknown partition_id 12") as error:
                scanner.to_arrow()
            assert error.value.error_code == ErrorCode.CLIENT_ERROR


async def test_the_async_twins_read_the_same_and_leave_nothing_behind_when_cancelled(
    client: Client, servers: ScanCluster
) -> None:
    scanner = client.batches()
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert (await scanner.to_arrow_async()).to_pylist() == rows(0, 12)
    assert (await scanner.to_pandas_async())["id"].tolist() == list(range(12))
    silence = FetchedBucket(0, high_watermark=12, records=b"")
    servers.call(lambda: servers.standing_answers.update({(None, 0): silence}))
    fetch_count = len(servers.fetches)
    reading = asyncio.ensure_future(scanner.to_arrow_async())
    await eventually_async(lambda: len(servers.fetches) > fetch_count)
    with pytest.raises(FlussError, match=r"to_arrow\(\) is under way"):
        scanner.poll_arrow(0)
    with pytest.raises(FlussError, match=r"to_arrow\(\) is under way"):
        scanner.subscribe(0, 0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    servers.call(servers.standing_answers.clear)
    assert (await scanner.poll_arrow_async(120_000)).to_pylist() == rows(0, 12)


def test_a_poll_that_is_under_way_does_not_take_records_from_a_bounded_read(client: Client) -> None:
    scanner = client.batches()
    scanner.subscribe(1, EARLIEST_OFFSET)
    outcomes: list[object] = []

    def poll() -> None:
        try:
            # One that begins when all is read finds nothing, and should not look for long.
            outcomes.append(scanner.poll_arrow(2_000))
        except FlussError as error:
            outcomes.append(error.message)

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.05)
    scanner.subscribe(0, EARLIEST_OFFSET)
    # The poll may have been faster.
    table = scanner.to_arrow()
    thread.join(120)
    (outcome,) = outcomes
    if isinstance(outcome, pa.Table):
        assert outcome.num_rows + table.num_rows == 12
    else:
        assert "is under way" in str(outcome)
        assert table.to_pylist() == rows(0, 12)


# Readers


def test_a_reader_returns_all_batches_and_unsubscribes(client: Client) -> None:
    scanner = client.batches()
    scanner.subscribe_buckets({0: 1, 1: 0})
    reader = scanner.to_arrow_batch_reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == client.info.schema.to_arrow()
    assert reader.read_all().to_pylist() == rows(1, 11)
    assert scanner.get_subscribed_buckets() == []
    with pytest.raises(FlussError, match="No buckets subscribed"):
        scanner.to_arrow_batch_reader()
    scanner.subscribe(0, 0)
    assert scanner.to_arrow().num_rows == 12


def test_while_a_reader_lives_the_scanner_is_reserved(client: Client) -> None:
    scanner = client.batches()
    scanner.subscribe(0, 0)
    reader = scanner.to_arrow_batch_reader()
    assert reader.read_next_batch().to_pylist() == rows(0)
    for call in (
        lambda: scanner.subscribe(1, 0),
        lambda: scanner.unsubscribe(0),
        lambda: scanner.poll_arrow(0),
        lambda: scanner.to_arrow(),
        lambda: scanner.to_arrow_batch_reader(),
    ):
        with pytest.raises(FlussError, match=r"RecordBatchLogReader is active.*already active"):
            call()
    # Dropping it half way unsubscribes what it has not finished.
    del reader
    gc.collect()
    assert scanner.get_subscribed_buckets() == []
    scanner.subscribe(0, 0)
    reader = scanner.to_arrow_batch_reader()
    assert sum(batch.num_rows for batch in reader) == 12
    scanner.subscribe(0, 0)


def test_a_reader_that_was_never_read_is_dropped_like_any_other(client: Client) -> None:
    scanner = client.batches()
    scanner.subscribe(0, 0)
    scanner.to_arrow_batch_reader()
    gc.collect()
    scanner.subscribe(0, 11)
    assert scanner.to_arrow().to_pylist() == rows(11, 1)


def test_a_scanner_that_is_dropped_with_its_reader_stops_at_once(client: Client) -> None:
    scanner = client.batches()
    scanner.subscribe(0, 0)
    reader = scanner.to_arrow_batch_reader()
    reader.read_next_batch()
    pipeline = weakref.ref(scanner._pipeline)
    gc.disable()
    try:
        del reader, scanner
        assert pipeline() is None
    finally:
        gc.enable()


def test_an_error_ends_a_reader(client: Client, servers: ScanCluster) -> None:
    scanner = client.batches()
    scanner.subscribe(0, 0)
    reader = scanner.to_arrow_batch_reader()
    servers.call(lambda: servers.standing_answers.update({(None, 0): FetchedBucket(0, error_code=48)}))
    with pytest.raises(FlussError) as error:
        reader.read_all()
    assert error.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
    assert scanner.get_subscribed_buckets() == []
    servers.call(servers.standing_answers.clear)
    scanner.subscribe(0, 9)
    assert scanner.to_arrow().to_pylist() == rows(9)


def test_a_projected_bounded_read_has_the_chosen_columns(client: Client) -> None:
    scanner = runtime().run(client.scan().project_by_name(["name"]).create_batch_scanner())
    scanner.subscribe(0, 10)
    assert scanner.to_arrow().to_pylist() == [{"name": "n10"}, {"name": "n11"}]


def test_memory_stays_bounded_when_nobody_reads(servers: ScanCluster) -> None:
    payload = "x" * 1000
    for number in range(40):
        servers.append([{"id": number, "name": payload}], bucket=1)
    options: dict[str, Any] = {
        "scanner_log_fetch_max__bytes": 5000,
        "scanner_log_fetch_max__bytes__for__bucket": 2000,
    }
    servers.batches_per_answer_max = 2
    with client_of(servers, **options) as client:
        scanner = client.records()
        scanner.subscribe(1, 0)
        scanner.poll(0)
        buffer = scanner._pipeline.buffer
        eventually(lambda: buffer.bytes_held >= 5000)
        held = []
        for _ in range(20):
            time.sleep(0.01)
            held.append(buffer.bytes_held)
        # Full, and one response on top of it.
        assert 5000 <= max(held) < 5000 + 3000
        fetches = servers.call(lambda: len(servers.fetches))
        assert [row["id"] for row in poll_rows(scanner, 40)] == list(range(40))
        assert servers.call(lambda: len(servers.fetches)) > fetches
