"""Scanners follow the leaders of their buckets: to other servers, through restarts, and until a table is gone.
Shown with several servers on real sockets that share one log, and lead what the test wants them to."""

from __future__ import annotations

import pyarrow as pa

from fluss import EARLIEST_OFFSET, ErrorCode
from fluss.client.kernel.runtime import runtime
from fluss.net.listener import keep_port
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import (
    PATH,
    ScanCluster,
    client_of,
    poll_patiently,
    poll_rows,
    poll_until_it_fails,
    scan_cluster,
)
from tests.unit.client.scan.test_log_scanner import rows

BUCKETS = 4


def lead(servers: ScanCluster, leaders: dict[int, int]) -> None:
    def change() -> None:
        servers.leaders = {(None, bucket): server_id for bucket, server_id in leaders.items()}
        servers.publish()

    servers.call(change)


def fetched_buckets(servers: ScanCluster) -> list[set[int]]:
    return servers.call(lambda: [{b.bucket_id for b in f.tables_req[0].buckets_req} for f in servers.fetches])


def test_every_leader_is_asked_for_all_its_buckets_at_once() -> None:
    with scan_cluster(bucket_count=BUCKETS) as servers:
        servers.start_server(1)
        lead(servers, {0: 0, 1: 1, 2: 0, 3: 1})
        for bucket in range(BUCKETS):
            servers.append(rows(10 * bucket), bucket=bucket)
        with client_of(servers) as client:
            scanner = client.records()
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), EARLIEST_OFFSET))
            assert len(poll_rows(scanner, 3 * BUCKETS)) == 3 * BUCKETS
            assert {frozenset(buckets) for buckets in fetched_buckets(servers)} == {
                frozenset({0, 2}),
                frozenset({1, 3}),
            }


def test_a_leader_that_moved_is_found_and_nothing_is_lost_or_doubled() -> None:
    with scan_cluster(bucket_count=2) as servers:
        servers.start_server(1)
        with client_of(servers) as client:
            scanner = client.records()
            scanner.subscribe_buckets({0: 0, 1: 0})
            seen = []
            for number in range(6):
                lead(servers, {0: number % 2, 1: (number // 2) % 2})
                for bucket in range(2):
                    servers.append(rows(1000 * bucket + 3 * number), bucket=bucket)
                seen += poll_rows(scanner, 6)
            assert sorted(row["id"] for row in seen) == [*range(18), *range(1000, 1018)]


def test_a_server_may_restart_under_a_scanner() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        port = servers.servers[0].port
        for number in range(3):
            servers.append(rows(3 * number))
            assert poll_rows(scanner, 3) == rows(3 * number)
            servers.stop_server(0)
            with keep_port("127.0.0.1", port):
                assert scanner.poll(50).is_empty()
                servers.start_server(0, port)


def test_the_buckets_of_a_dead_server_are_read_from_the_next_one() -> None:
    with scan_cluster(bucket_count=2) as servers:
        servers.start_server(1)
        lead(servers, {0: 0, 1: 1})
        with client_of(servers) as client:
            scanner = client.records()
            scanner.subscribe_buckets({0: 0, 1: 0})
            servers.append(rows(0), bucket=1)
            assert poll_rows(scanner, 3) == rows(0)
            servers.stop_server(1)
            lead(servers, {0: 0, 1: 0})
            servers.append(rows(3), bucket=1)
            assert poll_rows(scanner, 3) == rows(3)


def test_a_bucket_without_a_leader_is_waited_for_without_a_storm_of_questions() -> None:
    with scan_cluster(bucket_count=2) as servers, client_of(servers) as client:
        lead(servers, {0: 0, 1: 77})
        runtime().run(client.cluster.refresh([PATH]))
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 0})
        servers.append(rows(0), bucket=0)
        servers.append(rows(10), bucket=1)
        assert poll_rows(scanner, 3) == rows(0)
        scanner.poll(300)
        assert servers.call(lambda: len(servers.servers[0].metadata_requests)) < 15
        lead(servers, {0: 0, 1: 0})
        assert poll_rows(scanner, 3) == rows(10)


def test_a_table_that_was_dropped_is_an_error_and_so_is_its_successor() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append(rows(0))
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert poll_rows(scanner, 3) == rows(0)

        def drop() -> None:
            servers.leaders[None, 0] = 77
            servers.servers[0].tables.clear()

        servers.call(drop)
        assert poll_until_it_fails(scanner.poll).error_code == ErrorCode.TABLE_NOT_EXIST

        def create_again() -> None:
            servers.servers[0].add_table(PATH, 8, leaders=[0])

        servers.call(create_again)
        error = poll_until_it_fails(scanner.poll, "dropped and created again")
        assert error.error_code == ErrorCode.TABLE_NOT_EXIST


def test_a_partition_that_was_dropped_is_an_error_of_its_buckets_alone() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    with scan_cluster(schema, partition_keys=["name"]) as servers:
        servers.partitions = {11: "a", 12: "b", 13: "c"}
        servers.call(servers.publish)
        with client_of(servers) as client:
            scanner = client.records()
            scanner.subscribe_partition_buckets({(partition, 0): 0 for partition in servers.partitions})
            scanner.poll(50)

            def drop() -> None:
                # The server does not know the partitions any more, but may be told of one of them again.
                servers.leaders = {(partition, 0): 77 for partition in servers.partitions}
                del servers.partitions[12]
                servers.publish()

            servers.call(drop)
            assert poll_until_it_fails(scanner.poll).error_code == ErrorCode.PARTITION_NOT_EXISTS

            def recover() -> None:
                servers.leaders.clear()
                servers.publish()

            servers.call(recover)
            servers.append(rows(0), partition=13)
            polled = poll_patiently(scanner.poll, 3, passing_code=ErrorCode.PARTITION_NOT_EXISTS)
            assert [record.row for record in polled] == rows(0)


def test_buckets_take_turns_when_a_response_cannot_hold_all() -> None:
    with scan_cluster(bucket_count=3) as servers, client_of(servers) as client:
        for bucket in range(3):
            for number in range(5):
                servers.append(rows(100 * bucket + 3 * number), bucket=bucket)
        servers.batches_per_answer_max = 1
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 15, 2: 0})
        assert len(poll_rows(scanner, 30)) == 30
        orders = servers.call(lambda: [[b.bucket_id for b in f.tables_req[0].buckets_req] for f in servers.fetches])
        # The bucket without records moves to the front, those that had some go behind it.
        assert orders[0] == [0, 1, 2]
        assert orders[1][0] == 1


def test_idle_buckets_are_asked_for_with_the_same_bytes_again() -> None:
    with (
        scan_cluster(bucket_count=3) as servers,
        client_of(servers, scanner_log_fetch_wait__max__time__ms=40) as client,
    ):
        scanner = client.records()
        scanner.subscribe_buckets({0: 0, 1: 0, 2: 0})
        scanner.poll(80)
        (entry, *_) = scanner._pipeline.fetcher._by_key.values()
        group = eventually(lambda: entry.group, "the first fetch")
        assert group is not None
        request = group.request(scanner._pipeline.fetcher._requests)
        scanner.poll(80)
        assert group.request(scanner._pipeline.fetcher._requests) is request
        servers.append(rows(0), bucket=1)
        assert poll_rows(scanner, 3) == rows(0)
        assert group.request(scanner._pipeline.fetcher._requests) is not request
