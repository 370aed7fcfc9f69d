"""Whatever happens between client and server, rows are neither duplicated nor reordered, and handles tell the truth.
Shown over real sockets: a server loses connections, answers late, wrongly or not at all, and moves its buckets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fluss.client.write.result import WriteResultHandle
from fluss.client.write.writers import AppendWriter
from fluss.errors import ErrorCode, FlussError
from fluss.retry import WRITES, RetryPolicy
from fluss.schema.table import TablePath
from fluss.testing.waiting import eventually
from tests.fakes.faulty_server import Fault
from tests.fakes.write_server import PATH, Client, WriteServer
from tests.fakes.write_server import client_of as write_client_of


@contextmanager
def client_of(server: WriteServer, retry: RetryPolicy | None = None, **options: str | int | bool) -> Iterator[Client]:
    """Connect a client whose pauses are short, or those of a policy for batches."""
    quick = RetryPolicy(0.002, 0.01)
    with write_client_of(server, **options) as client:
        client.writes.sender_settings = replace(
            client.writes.sender_settings,
            batch_retry=retry or quick,
            leader_retry=quick,
        )
        yield client


def write_batches(client: Client, writer: AppendWriter, count: int, first: int = 0) -> list[WriteResultHandle]:
    """Write rows so that each becomes a batch of its own."""
    handles = []
    for i in range(first, first + count):
        handles.append(writer.append([i, "x"]))
        client.writes.accumulator.close_all()
    return handles


def outcome_of(handle: WriteResultHandle) -> int:
    """Return 0 for success, or the error code."""
    try:
        handle.result(120)
    except FlussError as error:
        return error.error_code
    return 0


def test_several_batches_are_in_flight_and_stay_in_order(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        handles = write_batches(client, writer, 30)
        eventually(lambda: server.in_progress == 5)
        server.release()
        client.flush(writer)
        assert [outcome_of(handle) for handle in handles] == [0] * 30
    assert server.ids() == list(range(30))
    assert server.in_progress_max == 5
    assert [header.batch_sequence for header in server.headers[1, None, 0]] == list(range(30))


def test_the_number_of_batches_in_flight_is_an_option(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server, writer__max_inflight_requests_per_bucket=2) as client:
        writer = client.writer()
        write_batches(client, writer, 8)
        eventually(lambda: server.in_progress == 2)
        server.release()
        client.flush(writer)
    assert server.in_progress_max == 2


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("cut_request", [0, 2])
def test_a_connection_cut_under_requests_neither_loses_nor_duplicates_nor_reorders(
    server: WriteServer, is_stored: bool, cut_request: int
) -> None:
    server.add_table()
    server.faults.extend([*[Fault()] * cut_request, Fault(is_stored=is_stored, is_cut=True)])
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        handles = write_batches(client, writer, 12)
        eventually(lambda: server.in_progress == 5)
        server.release()
        client.flush(writer)
        assert [outcome_of(handle) for handle in handles] == [0] * 12
    assert server.ids() == list(range(12))


def test_a_server_that_goes_away_and_comes_back_gets_everything_once(server: WriteServer) -> None:
    server.add_table(bucket_count=2)
    with client_of(server, writer__bucket__no_key_assigner="round_robin") as client:
        writer = client.writer()
        handles = write_batches(client, writer, 20)
        eventually(lambda: len(server.requests) > 3)
        server.stop_listening()
        handles += write_batches(client, writer, 20, first=20)
        time.sleep(0.1)
        server.listen_again()
        client.flush(writer)
        assert [outcome_of(handle) for handle in handles] == [0] * 40
    first, second = server.ids(0), server.ids(1)
    assert sorted(first + second) == list(range(40))
    assert first == sorted(first)
    assert second == sorted(second)


@pytest.mark.parametrize("code", [3, 14, 26, 29, 70])
def test_errors_that_may_pass_are_tried_again(server: WriteServer, code: int) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=code))
    with client_of(server) as client:
        handle = client.writer().append([1, "x"])
        assert outcome_of(handle) == 0
        assert not client.writes._failures
    assert server.ids() == [1]
    assert len(server.requests) == 2


def test_an_answer_that_was_late_is_not_stored_twice(server: WriteServer) -> None:
    server.add_table()
    # The server stores the rows and then says that it took too long.
    server.faults.append(Fault(bucket_code=25, is_stored=True))
    with client_of(server) as client:
        assert outcome_of(client.writer().append([1, "x"])) == 0
    assert server.ids() == [1]


def test_a_request_without_an_answer_is_sent_again_after_the_request_timeout(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server, request_timeout=3000) as client:
        writer = client.writer()
        handle = writer.append([1, "x"])
        eventually(lambda: len(server.requests) >= 2)
        server.release()
        assert outcome_of(handle) == 0
        assert outcome_of(writer.append([2, "x"])) == 0
        assert server.requests[0].timeout_ms == 3000
        eventually(lambda: server.in_progress == 0)
    assert server.ids() == [1, 2]


@pytest.mark.parametrize("code", [13, 48, 15, -1, 999])
def test_final_errors_reach_every_handle_of_the_batch_and_no_other(server: WriteServer, code: int) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=code))
    server.hold()
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer = client.writer()
        failing = [writer.append([i, "x"]) for i in range(3)]
        client.writes.accumulator.close_all()
        fine = write_batches(client, writer, 4, first=10)
        eventually(lambda: server.in_progress == 5)
        server.release()
        assert [outcome_of(handle) for handle in failing] == [code] * 3
        # They were sent behind the failing one, and their numbers have moved down since.
        assert [outcome_of(handle) for handle in fine] == [0] * 4
        with pytest.raises(FlussError, match=f"refused with {code}"):
            failing[0].result()
    assert server.ids() == [10, 11, 12, 13]
    assert [header.batch_sequence for header in server.headers[1, None, 0]] == [0, 1, 2, 3]


def test_an_error_for_the_whole_request_counts_with_its_own_code(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(request_code=26), Fault(request_code=48)])
    with client_of(server) as client:
        writer = client.writer()
        assert outcome_of(writer.append([1, "x"])) == 48
        assert len(server.requests) == 2, "26 may pass, 48 does not"
        assert outcome_of(writer.append([2, "x"])) == 0


def test_a_bucket_that_is_missing_in_the_answer_has_failed(server: WriteServer) -> None:
    server.add_table()
    server.faults.append(Fault(is_omitted=True))
    with client_of(server) as client:
        assert outcome_of(client.writer().append([1, "x"])) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_retries_are_counted(server: WriteServer) -> None:
    server.add_table()
    server.default_fault = Fault(bucket_code=10)
    with client_of(server, writer__retries=2) as client:
        assert outcome_of(client.writer().append([1, "x"])) == 10
    assert len(server.requests) == 3


def test_pauses_between_retries_grow(server: WriteServer) -> None:
    assert RetryPolicy(0.1, 1.0) == WRITES
    server.add_table()
    server.faults.extend([Fault(bucket_code=26)] * 2)
    with client_of(server, WRITES) as client:
        began_s = time.monotonic()
        assert outcome_of(client.writer().append([1, "x"])) == 0
        # 100 and 200 ms.
        assert time.monotonic() - began_s >= 0.3


def test_a_bucket_that_pauses_delays_no_other(server: WriteServer) -> None:
    server.add_table(table_id=1)
    other = TablePath("fluss", "other")
    server.add_table(other, table_id=2)
    server.faults.append(Fault(table_id=1, bucket_code=26))
    with client_of(server, RetryPolicy(3600.0, 3600.0)) as client:
        writer, other_writer = client.writer(), client.writer(other)
        failing = write_batches(client, writer, 1)[0]
        eventually(lambda: len(server.requests) == 1)
        assert outcome_of(write_batches(client, other_writer, 1)[0]) == 0
        assert not failing.done()
        assert [request.table_id for request in server.requests] == [1, 2]
        with pytest.raises(FlussError, match="writer closed"):
            client.close(0.1)


@pytest.mark.parametrize("code", [12, 21, 44])
def test_a_leader_that_moved_is_looked_up_and_followed(server: WriteServer, code: int) -> None:
    server.add_table()
    with WriteServer() as second:
        second.add_table()
        peers = {0: server.scripted.port, 1: second.scripted.port}
        server.scripted.peers = second.scripted.peers = peers
        with client_of(server) as client:
            writer = client.writer()
            assert outcome_of(writer.append([1, "x"])) == 0
            server.faults.append(Fault(bucket_code=code))
            # The new leader has the log of the old one.
            second.rows, second._writers = server.rows, server._writers
            for running in (server, second):
                running.add_table(leaders=[1])
            handles = write_batches(client, writer, 5, first=2)
            assert [outcome_of(handle) for handle in handles] == [0] * 5
        assert server.ids() == [1, 2, 3, 4, 5, 6]
        assert second.requests


def test_a_bucket_without_a_leader_waits_for_one(server: WriteServer) -> None:
    server.add_table(bucket_count=1, leaders=[None])
    with client_of(server) as client:
        handle = client.writer().append([1, "x"])
        eventually(lambda: len(server.scripted.metadata_requests) >= 3)
        assert not handle.done()
        server.add_table()
        assert outcome_of(handle) == 0


def test_a_bucket_that_never_gets_a_leader_fails_after_the_retries(server: WriteServer) -> None:
    server.add_table(bucket_count=1, leaders=[None])
    with client_of(server, writer__retries=1) as client:
        assert outcome_of(client.writer().append([1, "x"])) == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION


# Partitions


def test_a_partition_that_is_created_late_still_gets_its_rows(server: WriteServer) -> None:
    server.add_table(partition_keys=("name",))
    server.add_partition("EU", 11)
    with client_of(server) as client:
        writer = client.writer()
        known, unknown = writer.append([1, "EU"]), writer.append([2, "US"])
        assert outcome_of(known) == 0
        eventually(lambda: len(server.scripted.metadata_requests) >= 4)
        assert not unknown.done()
        server.add_partition("US", 12)
        assert outcome_of(unknown) == 0
    assert server.ids(partition_id=11) == [1]
    assert server.ids(partition_id=12) == [2]


def test_a_partition_that_only_tablet_servers_deny_fails_after_the_request_timeout(server: WriteServer) -> None:
    server.add_table(partition_keys=("name",))
    with client_of(server, request_timeout=3000) as client:
        began_s = time.monotonic()
        assert outcome_of(client.writer().append([1, "US"])) == ErrorCode.PARTITION_NOT_EXISTS
        assert time.monotonic() - began_s >= 3.0


def test_a_partition_that_was_dropped_and_created_again_is_written_from_the_start(server: WriteServer) -> None:
    server.add_table(partition_keys=("name",))
    server.add_partition("EU", 11)
    with client_of(server) as client:
        writer = client.writer()
        assert outcome_of(writer.append([1, "EU"])) == 0
        server.add_partition("EU", 12)
        server.faults.append(Fault(bucket_code=21))
        assert [outcome_of(handle) for handle in (writer.append([2, "EU"]), writer.append([3, "EU"]))] == [0, 0]
    assert server.ids(partition_id=12) == [2, 3]
    assert server.headers[1, 12, 0][0].batch_sequence == 0


def test_a_table_that_was_dropped_fails_after_the_request_timeout(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, request_timeout=3000) as client:
        writer = client.writer()
        del server.scripted.tables[PATH]
        server.default_fault = Fault(bucket_code=21)
        assert outcome_of(writer.append([1, "x"])) == ErrorCode.TABLE_NOT_EXIST


def test_a_table_that_was_created_again_is_another_table(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, request_timeout=3000) as client:
        writer = client.writer()
        server.add_table(table_id=2)
        server.default_fault = Fault(bucket_code=21)
        with pytest.raises(FlussError, match="was dropped and created again") as caught:
            writer.append([1, "x"]).result(120)
        assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
        server.default_fault = Fault()
        assert outcome_of(client.writer().append([2, "x"])) == 0


# Writer ids


def test_a_writer_id_is_asked_for_once_and_names_the_tables(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        write_batches(client, writer, 5)
        client.flush(writer)
        write_batches(client, writer, 1)
        client.flush(writer)
    assert len(server.init_writer_requests) == 1
    (path,) = server.init_writer_requests[0].table_path
    assert (path.database_name, path.table_name) == ("fluss", "events")


def test_a_writer_id_that_is_refused_for_a_moment_is_asked_for_again(server: WriteServer) -> None:
    server.add_table()
    server.init_writer_codes.extend([26, 26])
    with client_of(server) as client:
        assert outcome_of(client.writer().append([1, "x"])) == 0
    assert len(server.init_writer_requests) == 3


def test_without_a_writer_id_pending_rows_fail_and_later_ones_try_again(server: WriteServer) -> None:
    server.add_table()
    server.init_writer_codes.append(48)
    with client_of(server) as client:
        writer = client.writer()
        with pytest.raises(FlussError, match="Writer ID allocation failed") as caught:
            writer.append([1, "x"]).result(120)
        assert caught.value.error_code == 48
        assert outcome_of(writer.append([2, "x"])) == 0
    assert server.ids() == [2]


def test_a_server_that_has_forgotten_the_writer_gets_a_new_one(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        assert outcome_of(writer.append([1, "x"])) == 0
        server.faults.append(Fault(bucket_code=33))
        assert outcome_of(writer.append([2, "x"])) == 33
        assert outcome_of(writer.append([3, "x"])) == 0
    assert server.ids() == [1, 3]
    assert len({header.writer_id for header in server.headers[1, None, 0]}) == 2
    assert server.headers[1, None, 0][1].batch_sequence == 0


def test_batches_behind_one_of_a_forgotten_writer_get_the_new_id(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(bucket_code=33), Fault(bucket_code=26)])
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        first, second = write_batches(client, writer, 2)
        eventually(lambda: server.in_progress == 2)
        server.release()
        assert outcome_of(first) == 33
        assert outcome_of(second) == 0
        assert outcome_of(writer.append([2, "x"])) == 0
    assert server.ids() == [1, 2]
    assert [header.batch_sequence for header in server.headers[1, None, 0]] == [0, 1]


# After a batch that has failed for good


@pytest.mark.parametrize("lost", [Fault(bucket_code=25, is_stored=True), Fault(is_cut=True, is_stored=True)])
@pytest.mark.parametrize("code", [46, 48, 13])
def test_a_number_that_may_have_been_stored_is_not_given_to_other_rows(
    server: WriteServer, lost: Fault, code: int
) -> None:
    server.add_table()
    # The row is stored, its answer is lost, and the next attempt is refused: a right was taken away meanwhile.
    server.faults.extend([lost, Fault(bucket_code=code)])
    with client_of(server) as client:
        writer = client.writer()
        assert outcome_of(writer.append([1, "x"])) == code
        assert outcome_of(writer.append([2, "x"])) == 0
        assert outcome_of(writer.append([3, "x"])) == 0
    assert server.ids() == [1, 2, 3]


def test_after_retries_are_used_up_the_next_batch_is_stored(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(bucket_code=25)] * 3)
    with client_of(server, writer__retries=2) as client:
        writer = client.writer()
        assert outcome_of(writer.append([1, "x"])) == 25
        assert outcome_of(writer.append([2, "x"])) == 0
        assert len(server.requests) == 4
    assert server.ids() == [2]


def test_a_batch_that_fails_while_it_waits_for_a_leader_leaves_nothing_stuck(server: WriteServer) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=12))
    with client_of(server, writer__retries=3) as client:
        writer = client.writer()
        # The first answer comes when the bucket has no leader any more.
        server.hold()
        (first,) = write_batches(client, writer, 1)
        eventually(lambda: server.in_progress == 1)
        server.add_table(leaders=[None])
        server.release()
        assert outcome_of(first) == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        server.add_table()
        assert outcome_of(writer.append([2, "x"])) == 0
    assert server.ids() == [2]
    assert len(server.requests) == 2


@pytest.mark.parametrize("is_stored", [True, False])
def test_batches_behind_one_of_unknown_fate_are_stored_once_and_in_order(server: WriteServer, is_stored: bool) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=-1, is_stored=is_stored))
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        first, *behind = write_batches(client, writer, 8)
        eventually(lambda: server.in_progress == 5)
        server.release()
        assert outcome_of(first) == -1
        assert [outcome_of(handle) for handle in behind] == [0] * 7
    assert server.ids() == [*([0] if is_stored else []), *range(1, 8)]
    ids = [header.writer_id for header in server.headers[1, None, 0]]
    # Those that were out end under the id under which they began.
    assert ids == ([101] * 5 + [102] * 3 if is_stored else [102] * 7)


def test_a_batch_that_may_come_late_fails_and_those_behind_it_go_on(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(bucket_code=-1), Fault(bucket_code=25)])
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        first, second, *behind = write_batches(client, writer, 5)
        eventually(lambda: server.in_progress == 5)
        server.release()
        assert outcome_of(first) == -1
        with pytest.raises(FlussError, match="was given up while a batch was out") as caught:
            second.result(120)
        assert caught.value.error_code == 33
        assert [outcome_of(handle) for handle in behind] == [0] * 3
    assert server.ids() == [2, 3, 4]


def test_a_request_that_comes_late_behind_a_gap_is_neither_stored_nor_taken_for_another(server: WriteServer) -> None:
    server.add_table()
    # The second one is on its way for longer than the client waits.
    arrival = asyncio.Event()
    server.faults.extend([Fault(bucket_code=48), Fault(gate=arrival)])
    server.hold()
    with client_of(server, request_timeout=3000) as client:
        writer = client.writer()
        first, second = write_batches(client, writer, 2)
        eventually(lambda: server.in_progress == 2)
        server.release()
        assert outcome_of(first) == 48
        assert outcome_of(second) == 0
        assert server.in_progress == 1, "its first request has not come yet"
        server.call(arrival.set)
        eventually(lambda: server.in_progress == 0)
        assert outcome_of(writer.append([2, "x"])) == 0
    assert server.ids() == [1, 2]


def test_other_buckets_keep_the_writer_id(server: WriteServer) -> None:
    server.add_table(bucket_count=2)
    with client_of(server, writer__bucket__no_key_assigner="round_robin") as client:
        writer = client.writer()
        assert [outcome_of(handle) for handle in write_batches(client, writer, 2)] == [0, 0]
        server.default_fault = Fault(bucket_id=0, bucket_code=-1)
        outcomes = [outcome_of(handle) for handle in write_batches(client, writer, 2, first=2)]
        assert sorted(outcomes) == [-1, 0]
        # The next id is refused, which is of no concern to the bucket that has one.
        server.default_fault = Fault()
        server.init_writer_codes.append(48)
        outcomes = [outcome_of(handle) for handle in write_batches(client, writer, 2, first=4)]
        assert sorted(outcomes) == [0, 48]
        outcomes = [outcome_of(handle) for handle in write_batches(client, writer, 2, first=6)]
        assert outcomes == [0, 0]
    assert [header.writer_id for header in server.headers[1, None, 0]] == [101, 102]
    assert [header.writer_id for header in server.headers[1, None, 1]] == [101] * 4


def test_the_server_says_duplicate_and_the_row_is_stored(server: WriteServer) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=32, is_stored=True))
    with client_of(server) as client:
        assert outcome_of(client.writer().append([1, "x"])) == 0
    assert server.ids() == [1]
    assert len(server.requests) == 1


# Without idempotence


def test_without_idempotence_batches_carry_no_writer_and_retries_keep_their_order(server: WriteServer) -> None:
    server.add_table()
    # All that are on the way together are lost together.
    server.faults.extend([Fault(is_cut=True), *[Fault(is_lost=True)] * 4])
    server.hold()
    with client_of(server, writer__enable_idempotence=False) as client:
        writer = client.writer()
        handles = write_batches(client, writer, 6)
        eventually(lambda: server.in_progress == 5)
        server.release()
        assert [outcome_of(handle) for handle in handles] == [0] * 6
    assert server.ids() == list(range(6))
    assert server.init_writer_requests == []
    assert {header.writer_id for header in server.headers[1, None, 0]} == {-1}


@pytest.mark.parametrize(("acks", "number"), [("0", 0), ("1", 1), ("all", -1)])
def test_acks_reach_the_server(server: WriteServer, acks: str, number: int) -> None:
    server.add_table()
    with client_of(server, writer__enable_idempotence=False, writer__acks=acks) as client:
        assert outcome_of(client.writer().append([1, "x"])) == 0
    assert server.requests[0].acks == number


# Requests


def test_one_request_carries_a_batch_of_every_bucket_that_is_ready(server: WriteServer) -> None:
    server.add_table(bucket_count=8)
    options = {"writer__bucket__no_key_assigner": "round_robin", "writer__batch_timeout_ms": 3_600_000}
    with client_of(server, **options) as client:
        writer = client.writer()
        for i in range(80):
            writer.append([i, "x"])
        client.flush(writer)
    assert len(server.requests) == 1
    assert [len(server.ids(bucket_id)) for bucket_id in range(8)] == [10] * 8


def test_requests_stay_below_their_limit_but_a_large_batch_goes_alone(server: WriteServer) -> None:
    server.add_table(bucket_count=4)
    options = {"writer__bucket__no_key_assigner": "round_robin", "writer__batch_size": 20_000}
    with client_of(server, writer__request_max_size=20_000, writer__batch_timeout_ms=3_600_000, **options) as client:
        writer = client.writer()
        for i in range(40):
            writer.append([i, "x" * 900])
        writer.append([40, "y" * 50_000])
        client.flush(writer)
    sizes = [
        (sum(len(bucket.records_view) for bucket in request.buckets), len(request.buckets))
        for request in server.requests
    ]
    assert all(size <= 20_000 for size, bucket_count in sizes if bucket_count > 1)
    assert any(size > 50_000 for size, _ in sizes)
    assert any(bucket_count > 1 for _, bucket_count in sizes)
    assert sum(len(server.ids(bucket_id)) for bucket_id in range(4)) == 41


def test_backpressure_of_the_server_pauses_its_bucket(server: WriteServer) -> None:
    server.add_table()
    server.faults.append(Fault(bucket_code=72))
    with client_of(server, writer__kv_backpressure__max_throttle_ms=300) as client:
        began_s = time.monotonic()
        assert outcome_of(write_batches(client, client.writer(), 1)[0]) == 0
        assert time.monotonic() - began_s >= 0.25


# Everything at once


@pytest.mark.parametrize("seed", range(6))
def test_no_mixture_of_faults_loses_duplicates_or_reorders_rows(server: WriteServer, seed: int) -> None:
    rng = random.Random(seed)
    faults = [
        Fault(),
        Fault(delay_s=0.01),
        Fault(is_cut=True),
        Fault(is_cut=True, is_stored=True),
        Fault(bucket_code=26),
        Fault(bucket_code=25, is_stored=True),
        Fault(bucket_code=12),
        Fault(request_code=26),
        Fault(request_code=1, is_stored=True),
    ]
    server.add_table(bucket_count=3)
    server.faults.extend(rng.choice(faults) for _ in range(60))
    options = {"writer__bucket__no_key_assigner": "round_robin", "writer__batch_size": 500}
    with client_of(server, writer__dynamic_batch_size__enabled=False, **options) as client:
        writer = client.writer()
        for i in range(1500):
            writer.append([i, "x" * rng.randrange(20)])
        client.flush(writer)
        assert not client.writes._failures
    for bucket_id in range(3):
        ids = server.ids(bucket_id)
        assert ids == list(range(ids[0], 1500, 3)), f"seed {seed}"
    assert sum(len(server.ids(bucket_id)) for bucket_id in range(3)) == 1500


@pytest.mark.parametrize("seed", range(6))
def test_no_mixture_with_final_errors_loses_what_was_acknowledged(server: WriteServer, seed: int) -> None:
    rng = random.Random(seed)
    faults = [
        Fault(delay_s=0.01),
        Fault(is_cut=True),
        Fault(is_cut=True, is_stored=True),
        Fault(bucket_code=25),
        Fault(bucket_code=25, is_stored=True),
        Fault(bucket_code=-1),
        Fault(bucket_code=-1, is_stored=True),
        Fault(bucket_code=48),
        Fault(bucket_code=72),
        Fault(bucket_code=33),
        Fault(is_omitted=True, is_stored=True),
        Fault(request_code=13),
    ]
    server.add_table(bucket_count=3)
    server.faults.extend(rng.choice([*faults, *[Fault()] * 10]) for _ in range(200))
    options = {"writer__bucket__no_key_assigner": "round_robin", "writer__kv_backpressure__max_throttle_ms": 1}
    with client_of(server, writer__retries=3, **options) as client:
        writer = client.writer()
        handles = []
        for number in range(0, 1000, 10):
            handles += write_batches(client, writer, 10, first=number)
            if rng.random() < 0.3:
                outcome_of(handles[-1])
        outcomes = [outcome_of(handle) for handle in handles]
        # When all is well again, nothing is left of it.
        server.faults.clear()
        assert [outcome_of(handle) for handle in write_batches(client, writer, 30, first=1000)] == [0] * 30
    stored = [server.ids(bucket_id) for bucket_id in range(3)]
    everything = [number for ids in stored for number in ids]
    acknowledged = {number for number, code in enumerate(outcomes) if not code}
    assert 0 < len(acknowledged) < 1000
    assert len(everything) == len(set(everything)), f"seed {seed}"
    assert acknowledged <= set(everything), f"seed {seed}"
    assert all(ids == sorted(ids) for ids in stored), f"seed {seed}"
