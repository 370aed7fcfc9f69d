"""Errors of buckets are raised or ridden out, never swallowed; records that came before them are returned first.
Servers on real sockets answer with every code, with damage, and with nonsense; both kinds of scanner are polled."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from fluss import EARLIEST_OFFSET, ErrorCode, FlussError, col
from fluss.client.kernel.runtime import runtime
from fluss.protocol.bulk_messages import FetchedBucket
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.framing import crc32c
from fluss.record.log_batch import read_batch
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import (
    Client,
    ScanCluster,
    client_of,
    poll_patiently,
    poll_rows,
    poll_until_it_fails,
    scan_cluster,
)
from tests.unit.client.scan.test_log_scanner import rows

PASSING = [-1, 10, 11, 12, 21, 24, 26, 44]
# The code a poll raises: problems of the request itself are the client's, everything else keeps the server's code.
RAISED = [
    (19, -2, "out of range"),
    (3, -2, "corrupt message"),
    (48, 48, "no"),
    (36, 36, "no"),
    (23, 23, "no"),
    (99, 99, "no"),
]


def failing(code: int) -> FetchedBucket:
    return FetchedBucket(0, error_code=code, error_message="no")


def poll_anything(scanner: Any, kind: str, timeout_ms: int) -> list[dict[str, Any]]:
    if kind == "records":
        return [record.row for record in scanner.poll(timeout_ms)]
    return [row for batch in scanner.poll_record_batch(timeout_ms) for row in batch.batch.to_pylist()]


@pytest.mark.parametrize("code", PASSING)
def test_errors_that_pass_are_ridden_out(code: int) -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        servers.answers[None, 0] = deque([failing(code)] * 2)
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert poll_rows(scanner, 3) == rows(0)


@pytest.mark.parametrize("kind", ["records", "batches"])
@pytest.mark.parametrize(("code", "raised", "text"), RAISED)
def test_other_errors_are_raised_by_every_poll_until_they_are_over(
    kind: str, code: int, raised: int, text: str
) -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        servers.standing_answers[None, 0] = failing(code)
        scanner = getattr(client, kind)()
        scanner.subscribe(0, 1)
        for _ in range(3):
            with pytest.raises(FlussError, match=text) as error:
                poll_anything(scanner, kind, 5000)
            assert error.value.error_code == raised
            assert str(client.bucket(0)) in error.value.message
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 1)]
        servers.call(servers.standing_answers.clear)
        assert poll_patiently(partial(poll_anything, scanner, kind), 2, passing_code=raised) == rows(1, 2)


def test_an_offset_outside_the_log_is_named() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        servers.append(rows(3))
        servers.call(lambda: servers.offsets_start.update({(None, 0): 3}))
        for offset in (1, 7, 1000):
            scanner = client.batches()
            scanner.subscribe(0, offset)
            for read in (partial(scanner.poll_arrow, 5000), scanner.to_arrow):
                with pytest.raises(FlussError, match=f"Offset {offset} of .* is out of range") as error:
                    read()
                assert error.value.error_code == ErrorCode.CLIENT_ERROR
            # Subscribing elsewhere is the way out.
            scanner.subscribe(0, EARLIEST_OFFSET)
            assert scanner.poll_arrow(120_000).to_pylist() == rows(3)


def test_records_are_returned_before_the_error_of_another_bucket() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        servers.append(rows(0), bucket=1)
        servers.standing_answers[None, 0] = failing(48)
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 0})
        outcomes = []
        for number in range(1, 6):
            try:
                outcomes.append(len(scanner.poll(120_000)))
            except FlussError as error:
                outcomes.append(-error.error_code)
            servers.append(rows(3 * number), bucket=1)
            # Both are there before the next poll: bytes are counted before their records can be read.
            eventually(lambda: scanner._pipeline.buffer._chunks and scanner._pipeline.buffer.failure())
        # Neither starves the other: an error at every other poll, and all records in between.
        assert outcomes.count(-48) >= 2
        assert sum(outcome for outcome in outcomes if outcome > 0) >= 6
        assert all((first < 0) != (second < 0) for first, second in pairwise(outcomes))


def test_unsubscribing_the_bucket_in_trouble_ends_the_trouble() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        servers.standing_answers[None, 0] = failing(48)
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 0})
        with pytest.raises(FlussError, match="no"):
            scanner.poll(120_000)
        scanner.unsubscribe(0)
        assert scanner.poll(50).is_empty()


# Damage


def damaged_third_batch(servers: ScanCluster, position: int) -> None:
    for number in range(4):
        servers.append(rows(3 * number))

    def damage() -> None:
        log = servers.logs[None, 0]
        batch = bytearray(log[2].data)
        batch[position] ^= 0x40
        log[2] = log[2]._replace(data=bytes(batch))

    servers.call(damage)


@pytest.mark.parametrize("kind", ["records", "batches"])
@pytest.mark.parametrize(("position", "reason"), [(-1, "checksum"), (12, "magic"), (11, "length")])
def test_damage_is_raised_where_it_is_and_again_by_every_poll(kind: str, position: int, reason: str) -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        damaged_third_batch(servers, position)
        # A length that lies can look like a batch that is not whole yet, unless something has to be behind it.
        scanner = getattr(client, kind)()
        scanner.subscribe(0, EARLIEST_OFFSET)
        good: list[dict[str, Any]] = []
        while len(good) < 6:
            good += poll_anything(scanner, kind, 5000)
        assert good == rows(0, 6)
        if reason == "length":
            # The third batch claims to be larger than anything that is left: it never becomes whole.
            assert poll_anything(scanner, kind, 50) == []
            return
        for _ in range(3):
            with pytest.raises(FlussError, match=f"offset 6 cannot be read: .*{reason}") as error:
                poll_anything(scanner, kind, 5000)
            assert error.value.error_code == ErrorCode.CLIENT_ERROR
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 6)]
        scanner.subscribe(0, 9)
        assert poll_anything(scanner, kind, 5000) == rows(9)


def test_records_behind_damage_that_were_fetched_ahead_are_not_returned() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        damaged_third_batch(servers, -1)
        servers.batches_per_answer_max = 1
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert poll_rows(scanner, 6) == rows(0, 6)
        for _ in range(5):
            assert "cannot be read" in poll_until_it_fails(scanner.poll).message
            time.sleep(0.02)
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 6)]


def test_damage_in_one_bucket_does_not_stop_the_others() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        damaged_third_batch(servers, -1)
        servers.append(rows(100), bucket=1)
        scanner = client.records()
        scanner.subscribe_buckets({0: 8, 1: 0})
        polled, errors = [], 0
        while len(polled) < 3 or errors < 3:
            try:
                polled += [record.row for record in scanner.poll(120_000)]
            except FlussError:
                errors += 1
        assert polled == rows(100)


def test_text_that_is_not_text_is_damage_for_whoever_looks_at_it() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        batch = read_batch(servers.encode(rows(0)))
        encoded = bytearray(batch.data)
        place = bytes(encoded).index(b"n0n1n2")
        encoded[place] = 0xFF
        encoded[21:25] = _checksum(encoded)
        servers.call(lambda: servers.append_encoded(encoded))
        scanner = client.records()
        scanner.subscribe(0, 0)
        with pytest.raises(FlussError, match=r"cannot be read: .*(UTF8|UTF-8)"):
            scanner.poll(120_000)


def _checksum(batch: bytearray) -> bytes:
    return crc32c(bytes(batch[25:])).to_bytes(4, "little")


# Nonsense


def test_a_request_that_is_refused_as_a_whole_is_raised_or_retried_by_its_code() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        scanner = client.records()
        scanner.subscribe(0, 0)
        servers.call(
            lambda: setattr(servers, "request_error", FlussError("not you", ErrorCode.AUTHORIZATION_EXCEPTION))
        )
        with pytest.raises(FlussError, match="not you") as error:
            scanner.poll(120_000)
        assert error.value.error_code == 48
        servers.call(lambda: setattr(servers, "request_error", FlussError("oops", ErrorCode.UNKNOWN_SERVER_ERROR)))
        time.sleep(0.2)
        servers.call(lambda: setattr(servers, "request_error", None))
        polled = poll_patiently(scanner.poll, 3, passing_code=48)
        assert [record.row for record in polled] == rows(0)


def test_a_server_that_does_not_wait_is_not_asked_all_the_time() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.waits = False
        scanner = client.records()
        scanner.subscribe(0, 0)
        began_s = time.monotonic()
        scanner.poll(300)
        fetches = servers.call(lambda: len(servers.fetches))
        # One for each pause of 20 ms, and it goes on while nobody looks.
        assert fetches < 5 + (time.monotonic() - began_s) / 0.02


def test_answers_for_buckets_that_nobody_asked_for_are_ignored() -> None:
    with scan_cluster(bucket_count=3) as servers, client_of(servers) as client:
        servers.append(rows(0))
        stray = FetchedBucket(2, records=servers.logs[None, 0][0].data, high_watermark=3)
        servers.answers[None, 0] = deque([stray])
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert poll_rows(scanner, 3) == rows(0)


def test_records_before_the_offset_and_filtered_ends_move_on() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        for number in range(4):
            servers.append(rows(3 * number))
        first = servers.logs[None, 0][0].data
        servers.answers[None, 0] = deque(
            [
                # A filter left the first two batches out.
                FetchedBucket(0, high_watermark=12, records=b"", filtered_end_offset=6),
                # A filtered end that is behind the reader is of no interest; the batch is too old altogether.
                FetchedBucket(0, high_watermark=12, records=first, filtered_end_offset=2),
            ]
        )
        scanner = client.batches()
        scanner.subscribe(0, 0)
        batches = []
        while sum(map(len, batches)) < 6:
            batches += scanner.poll_record_batch(120_000)
        assert [batch.base_offset for batch in batches] == [6, 9]
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 12)]


def test_a_predicate_travels_with_every_fetch() -> None:
    properties = {"table.statistics.columns": "id"}
    with scan_cluster(properties=properties) as servers, client_of(servers) as client:
        servers.append(rows(0))
        scanner = runtime().run(client.scan().filter(col("id") > 1).create_log_scanner())
        scanner.subscribe(0, 0)
        # Servers leave out whole batches only, the client the other rows.
        assert poll_rows(scanner, 1) == rows(2, 1)
        (table,) = servers.call(lambda: servers.fetches[0]).tables_req
        predicate = pb.PbPredicate.FromString(table.filter_predicate)
        assert (table.filter_schema_id, predicate.leaf.function) == (1, 4)


def test_two_clients_do_not_disturb_each_other() -> None:
    with scan_cluster() as servers:
        servers.append(rows(0))
        clients = [Client(servers) for _ in range(2)]
        scanners = [client.records() for client in clients]
        for scanner in scanners:
            scanner.subscribe(0, 0)
            assert poll_rows(scanner, 3) == rows(0)
        clients[0].close()
        servers.append(rows(3))
        assert poll_rows(scanners[1], 3) == rows(3)
        clients[1].close()
