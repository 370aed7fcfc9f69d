"""Scanners poll what was appended: exactly from the offset on, in order, as much as fits, and as soon as it is there.
Shown against servers on real sockets whose logs the tests fill batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss import EARLIEST_OFFSET, LATEST_OFFSET, FlussError
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.log_scanner import LogScanner
from fluss.net.transport import run
from fluss.record.log_batch import build_batch
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually, eventually_async
from tests.fakes.scan_cluster import Client, ScanCluster, client_of, poll_records, poll_rows, scan_cluster


def rows(first: int, count: int = 3) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in range(first, first + count)]


@pytest.fixture(scope="module")
def shared() -> Iterator[ScanCluster]:
    """A table of three buckets with 9 rows each, in batches of three; nothing is added to it."""
    with scan_cluster(bucket_count=3) as servers:
        for bucket in range(3):
            for batch in range(3):
                servers.append(rows(100 * bucket + 3 * batch), bucket=bucket, timestamp_ms=1000 + batch)
        yield servers


@pytest.fixture(scope="module")
def reader(shared: ScanCluster) -> Iterator[Client]:
    with client_of(shared) as client:
        yield client


# Records


def test_records_have_rows_offsets_times_and_buckets(reader: Client) -> None:
    scanner = reader.records()
    scanner.subscribe(1, EARLIEST_OFFSET)
    records = poll_records(scanner, 9)
    assert [record.row for record in records] == rows(100, 9)
    assert [record.offset for record in records] == list(range(9))
    assert {record.bucket for record in records} == {reader.bucket(1)}
    assert [record.timestamp for record in records] == [1000] * 3 + [1001] * 3 + [1002] * 3
    assert {record.change_type for record in records} == {ChangeType.AppendOnly}
    assert repr(scanner) == "LogScanner(table=fluss.events)"


def test_reading_starts_exactly_at_the_offset(reader: Client) -> None:
    scanner = reader.records()
    scanner.subscribe_buckets({0: 4, 1: 9, 2: EARLIEST_OFFSET})
    assert poll_rows(scanner, 14) == [*rows(4, 5), *rows(200, 9)]
    positions = {reader.bucket(number): 9 for number in range(3)}
    assert dict(scanner.get_subscribed_buckets()) == positions


def test_one_poll_returns_at_most_so_many_records_and_the_next_goes_on(shared: ScanCluster) -> None:
    with client_of(shared, scanner_log_max__poll__records=4) as client:
        scanner = client.records()
        scanner.subscribe(0, 1)
        sizes, polled = [], []
        while len(polled) < 8:
            records = scanner.poll(120_000)
            sizes.append(len(records))
            polled += [record.row for record in records]
            assert scanner.get_subscribed_buckets() == [(client.bucket(0), 1 + len(polled))]
        assert polled == rows(1, 8)
        assert max(sizes) == 4


def test_poll_returns_what_comes_as_soon_as_it_comes() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.poll(0).is_empty()
        started_s = time.monotonic()
        assert len(scanner.poll(50)) == 0
        assert time.monotonic() - started_s > 0.04
        # A poll that may take an hour ends when something comes.
        threading.Timer(0.05, servers.append, [rows(0)]).start()
        assert [record.row for record in scanner.poll(3_600_000)] == rows(0)
        # What was fetched in the meantime is returned without waiting.
        servers.append(rows(3))
        assert [record.row for record in eventually(lambda: scanner.poll(0))] == rows(3)


def test_nothing_subscribed_waits_out_the_timeout(reader: Client) -> None:
    scanner = reader.records()
    started_s = time.monotonic()
    assert scanner.poll(30).is_empty()
    assert time.monotonic() - started_s >= 0.03


def test_subscribing_again_moves_and_drops_what_was_fetched(reader: Client) -> None:
    scanner = reader.records()
    scanner.subscribe(0, 0)
    assert poll_rows(scanner, 1)
    scanner.subscribe(0, 7)
    assert poll_rows(scanner, 2) == rows(7, 2)
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert poll_rows(scanner, 9) == rows(0, 9)


def test_moving_does_not_wait_for_the_fetch_that_is_under_way(shared: ScanCluster) -> None:
    # The fetch under way is answered after an hour, long after the test has been given up.
    with client_of(shared, scanner_log_fetch_wait__max__time__ms=3_600_000) as client:
        scanner = client.records()
        scanner.subscribe(0, 9)
        assert scanner.poll(50).is_empty()
        scanner.subscribe(0, 0)
        scanner.subscribe(1, 8)
        assert len(poll_rows(scanner, 10)) == 10


def test_unsubscribed_buckets_give_nothing_more() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 0})
        servers.append(rows(0), bucket=0)
        servers.append(rows(10), bucket=1)
        assert len(poll_records(scanner, 6)) == 6
        scanner.unsubscribe(0)
        scanner.unsubscribe(0)
        servers.append(rows(3), bucket=0)
        servers.append(rows(13), bucket=1)
        assert poll_rows(scanner, 3) == rows(13)
        assert scanner.poll(50).is_empty()
        assert scanner.get_subscribed_buckets() == [(client.bucket(1), 6)]


def test_the_latest_offset_is_looked_up_when_it_is_subscribed_to() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        scanner = client.records()
        scanner.subscribe(0, LATEST_OFFSET)
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 3)]
        servers.append(rows(3))
        assert poll_rows(scanner, 3) == rows(3)


def test_a_batch_cut_off_at_the_end_of_a_response_comes_whole_later() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        for number in range(10):
            servers.append(rows(3 * number))
        servers.cuts_batches = True
        scanner = client.records()
        scanner.subscribe(0, 2)
        assert poll_rows(scanner, 28) == rows(2, 28)


def test_batches_without_records_are_passed_over() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        for _ in range(3):
            empty = build_batch(schema_id=1, record_count=0, append_only=False)
            servers.call(lambda empty=empty: servers.append_encoded(empty))
        servers.append(rows(3))
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        records = poll_records(scanner, 6)
        assert [record.offset for record in records] == [0, 1, 2, 6, 7, 8]
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 9)]


def test_the_two_halves_of_an_update_stay_together() -> None:
    key_schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
    with scan_cluster(key_schema) as servers, client_of(servers, scanner_log_max__poll__records=2) as client:
        # Insert, update, update, delete: a limit of two cuts the first update apart.
        servers.append(rows(0, 6), change_types=[1, 2, 3, 2, 3, 4])
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        polls = []
        while sum(map(len, polls)) < 6:
            polls.append([str(record.change_type) for record in scanner.poll(120_000)])
        assert polls == [["+I", "-U", "+U"], ["-U", "+U"], ["-D"]]


def test_several_threads_take_turns_and_share_the_records() -> None:
    with scan_cluster() as servers, client_of(servers, scanner_log_max__poll__records=3) as client:
        for number in range(50):
            servers.append(rows(4 * number, 4))
        scanner = client.records()
        scanner.subscribe(0, 0)
        polled: list[int] = []

        def consume() -> None:
            while len(polled) < 200:
                polled.extend(record.row["id"] for record in scanner.poll(20))

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(polled) == list(range(200))


# Batches


def test_batches_come_as_they_were_written_cut_to_the_offset(reader: Client) -> None:
    scanner = reader.batches()
    scanner.subscribe(2, 4)
    batches: list[Any] = []
    while sum(map(len, batches)) < 5:
        batches += scanner.poll_record_batch(120_000)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(4, 5), (6, 8)]
    assert [row for batch in batches for row in batch.batch.to_pylist()] == rows(204, 5)
    assert {batch.bucket for batch in batches} == {reader.bucket(2)}


def test_tables_have_the_schema_of_the_scan_also_without_rows(reader: Client) -> None:
    scanner = reader.batches()
    scanner.subscribe(0, 9)
    empty = scanner.poll_arrow(10)
    assert (empty.num_rows, empty.schema) == (0, reader.info.schema.to_arrow())
    scanner.subscribe(0, 0)
    polled = []
    while len(polled) < 9:
        polled += scanner.poll_arrow(120_000).to_pylist()
    assert polled == rows(0, 9)
    assert scanner.poll_batches(0) == []


def test_one_poll_returns_at_most_a_hundred_batches() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        for number in range(130):
            servers.append(rows(number, 1))
        scanner = client.batches()
        scanner.subscribe(0, 0)
        first = scanner.poll_record_batch(120_000)
        while len(first) < 100:
            first = scanner.poll_record_batch(120_000)
            scanner.subscribe(0, 0)
        assert len(first) == 100


def test_projected_batches_are_cut_by_the_server(shared: ScanCluster, reader: Client) -> None:
    scan = reader.scan().project([1, 0, 1])
    scanner = runtime().run(scan.create_record_batch_log_scanner())
    scanner.subscribe(0, 0)
    (first, *_) = scanner.poll_record_batch(120_000)
    assert first.batch.schema.names == ["name", "id", "name"]
    assert first.batch.column(1).to_pylist() == [0, 1, 2]
    fetches = shared.call(lambda: [request.tables_req[0] for request in shared.fetches])
    assert [0, 1] in [list(table.projected_fields) for table in fetches if table.projection_pushdown_enabled]


# Coroutines


def test_twins_do_not_block_the_event_loop() -> None:
    async def main(client: Client, servers: ScanCluster) -> None:
        records, batches = client.records(), client.batches()
        records.subscribe(0, 0)
        batches.subscribe(0, 0)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.ensure_future(tick())
        waiting = asyncio.ensure_future(records.poll_async(3_600_000))
        await eventually_async(lambda: ticks > 3)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        asyncio.get_running_loop().call_later(
            0.02, lambda: threading.Thread(target=servers.append, args=[rows(0)]).start()
        )
        polled = await records.poll_async(120_000)
        assert [record.row for record in polled] == rows(0)
        assert [batch.batch.to_pylist() for batch in await batches.poll_record_batch_async(120_000)] == [rows(0)]
        await asyncio.to_thread(servers.append, rows(3))
        assert (await batches.poll_arrow_async(120_000)).to_pylist() == rows(3)
        assert await batches.poll_batches_async(0) == []
        ticking.cancel()

    with scan_cluster() as servers, client_of(servers) as client:
        run(main(client, servers))


async def test_iteration_is_endless_and_may_be_left(reader: Client) -> None:
    scanner = reader.records()
    scanner.subscribe_buckets({0: 0, 1: 0})
    seen = []
    async for record in scanner:
        seen.append(record.row)
        if len(seen) == 18:
            break
    assert sorted(seen, key=lambda row: row["id"]) == [*rows(0, 9), *rows(100, 9)]
    assert (await scanner.poll_async(20)).is_empty()
    batches = reader.batches()
    batches.subscribe(2, 0)
    async for batch in batches:
        assert batch.batch.to_pylist() == rows(200)
        break


def test_a_cancelled_poll_loses_nothing() -> None:
    async def main(client: Client, servers: ScanCluster) -> None:
        scanner = client.records()
        scanner.subscribe(0, 0)
        seen: list[int] = []
        for number in range(40):
            servers.append(rows(3 * number))
            # Most of these end while records are being decoded for them.
            task = asyncio.ensure_future(scanner.poll_async(120_000))
            await asyncio.sleep(0.0002 * (number % 20))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                seen += [record.row["id"] for record in await task]
        while len(seen) < 120:
            records = await scanner.poll_async(120_000)
            assert records
            seen += [record.row["id"] for record in records]
        assert seen == list(range(120))

    with scan_cluster() as servers, client_of(servers) as client:
        run(main(client, servers))


# Partitions


def test_partitions_are_read_by_their_ids() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("region", pa.string())]))
    with scan_cluster(schema, bucket_count=2, partition_keys=["region"]) as servers:
        servers.partitions = {11: "US", 12: "EU"}
        servers.call(servers.publish)
        for partition, region in servers.partitions.items():
            servers.append([{"id": partition, "region": region}], partition=partition, bucket=1)
        with client_of(servers) as client:
            scanner = client.records()
            assert scanner.is_partitioned()
            scanner.subscribe_partition(11, 1, EARLIEST_OFFSET)
            assert poll_rows(scanner, 1) == [{"id": 11, "region": "US"}]
            scanner.subscribe_partition_buckets({(11, 1): 0, (12, 1): 0})
            records = poll_records(scanner, 2)
            assert {(r.bucket.partition_id, r.row["region"]) for r in records} == {(11, "US"), (12, "EU")}
            scanner.unsubscribe_partition(12, 1)
            assert scanner.get_subscribed_buckets() == [(client.bucket(1, 11), 1)]
            with pytest.raises(FlussError, match="partition") as missing:
                scanner.subscribe_partition(99, 0, 0)
            assert missing.value.error_code == 36
            for wrong in (lambda: scanner.subscribe(0, 0), lambda: scanner.unsubscribe(0)):
                with pytest.raises(FlussError, match=r"is a partitioned table; use .*subscribe_partition"):
                    wrong()


# Misuse and the end


def test_misuse_is_refused_with_the_way_out(reader: Client) -> None:
    records, batches = reader.records(), reader.batches()
    with pytest.raises(FlussError, match=r"requires a record-based scanner.*create_log_scanner"):
        batches.poll(0)
    for method in ("poll_arrow", "poll_record_batch", "poll_batches"):
        with pytest.raises(FlussError, match="requires a batch-based scanner"):
            getattr(records, method)(0)
    for method in ("to_arrow", "to_pandas", "to_arrow_batch_reader"):
        with pytest.raises(FlussError, match="requires a batch-based scanner"):
            getattr(records, method)()
    with pytest.raises(FlussError, match="timeout_ms must be non-negative, got: -1"):
        records.poll(-1)
    with pytest.raises(TypeError):
        records.poll("1")
    with pytest.raises(TypeError):
        records.poll(1.5)
    with pytest.raises(FlussError, match="not a partitioned table; use subscribe"):
        records.subscribe_partition(1, 0, 0)
    with pytest.raises(FlussError, match="not a partitioned table; use unsubscribe"):
        records.unsubscribe_partition(1, 0)
    with pytest.raises(FlussError, match="Bucket offsets are empty"):
        records.subscribe_buckets({})
    with pytest.raises(TypeError, match="must be a dict"):
        records.subscribe_buckets([0])
    for bucket in (-1, 3):
        with pytest.raises(FlussError, match=f"Bucket {bucket} does not exist"):
            records.subscribe(bucket, 0)
    with pytest.raises(FlussError, match="start_offset must not be negative"):
        records.subscribe(0, -3)
    with pytest.raises(TypeError):
        records.subscribe("0", 0)
    with pytest.raises(OverflowError):
        records.subscribe(0, 2**63)
    with pytest.raises(TypeError, match="cannot be constructed"):
        LogScanner()
    assert records.get_subscribed_buckets() == []


async def test_a_closed_scanner_says_so_and_ends_waiting_polls(reader: Client) -> None:
    with reader.records() as scanner:
        scanner.subscribe(0, 9)
        threading.Timer(0.05, scanner.close).start()
        with pytest.raises(FlussError, match="scanner is closed"):
            scanner.poll(120_000)
    scanner.close()
    for call in (lambda: scanner.poll(0), lambda: scanner.subscribe(0, 0), lambda: scanner.unsubscribe(0)):
        with pytest.raises(FlussError, match="scanner is closed"):
            call()
    async with reader.batches() as batches:
        batches.subscribe(0, 0)
    with pytest.raises(FlussError, match="scanner is closed"):
        await batches.poll_arrow_async(120_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_cannot_use_the_scanner_of_its_parent(reader: Client) -> None:
    scanner = reader.records()
    scanner.subscribe(0, 0)
    child = os.fork()
    if child == 0:
        try:
            scanner.poll(120_000)
        except FlussError as error:
            os._exit(42 if "forked" in error.message else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert poll_rows(scanner, 9) == rows(0, 9)


def test_polls_raise_when_the_connection_is_closed(shared: ScanCluster) -> None:
    with client_of(shared) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert poll_rows(scanner, 9)
    with pytest.raises(FlussError, match="connection is closed"):
        scanner.poll(120_000)


def test_a_dropped_scanner_stops_fetching(shared: ScanCluster) -> None:
    with client_of(shared, scanner_log_fetch_wait__max__time__ms=10) as client:
        scanner = client.records()
        scanner.subscribe(0, 9)
        scanner.poll(30)
        fetcher = weakref.ref(scanner._pipeline.fetcher)
        del scanner
        gc.collect()
        eventually(lambda: gc.collect() >= 0 and fetcher() is None)


def test_nothing_is_fetched_before_the_first_poll_nor_long_after_the_last(
    shared: ScanCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(shared, scanner_log_fetch_wait__max__time__ms=10) as client:
        scanner = client.records()
        scanner.subscribe(0, 9)
        time.sleep(0.05)
        fetches = shared.call(lambda: len(shared.fetches))
        eventually(lambda: scanner.poll(50).is_empty() and shared.call(lambda: len(shared.fetches)) > fetches)
        now_s = time.monotonic()
        monkeypatch.setattr(scanner._pipeline.fetcher, "_clock", lambda: now_s + 3600)
        eventually(lambda: not scanner._pipeline.fetcher._tasks)
        fetches = shared.call(lambda: len(shared.fetches))
        time.sleep(0.1)
        assert shared.call(lambda: len(shared.fetches)) == fetches
        eventually(lambda: scanner.poll(50).is_empty() and shared.call(lambda: len(shared.fetches)) > fetches)
