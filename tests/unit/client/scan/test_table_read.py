"""One call reads a whole table: its current rows, from a scan of them or from all its changes, or a whole log.
Shown against servers on real sockets, with all three ways, and with sessions that are lost half way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from fluss import ErrorCode, FlussError, col
from fluss.client.scan.fetch.snapshot_fetcher import SnapshotLostError
from fluss.net.transport import run
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import ScanKvResponse
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import Client, ScanCluster, client_of, scan_cluster

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
BUCKETS = 6
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in range(first, first + count)]


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    """Buckets with twenty rows each, three per answer, except the last one, which is empty."""
    with scan_cluster(KEYED, bucket_count=BUCKETS) as servers:
        for bucket in range(BUCKETS - 1):
            servers.put_rows(rows(100 * bucket, 20), bucket=bucket)
        servers.rows_per_scan_max = 3
        yield servers


@pytest.fixture
def client(servers: ScanCluster) -> Iterator[Client]:
    with client_of(servers) as client:
        yield client


EXPECTED = [row for bucket in range(BUCKETS - 1) for row in rows(100 * bucket, 20)]


def test_all_current_rows_come_in_the_order_of_the_buckets(client: Client, servers: ScanCluster) -> None:
    table = client.scan().to_arrow()
    assert table.schema == KEYED.to_arrow()
    assert table.to_pylist() == EXPECTED
    assert run(client.scan().to_arrow_async()) == table
    assert client.scan().to_pandas().to_dict("records") == EXPECTED
    assert run(client.scan().to_pandas_async()).to_dict("records") == EXPECTED
    assert sorted(client.scan().to_arrow_batch_reader().read_all()["id"].to_pylist()) == table["id"].to_pylist()
    assert servers.sessions == {}
    assert servers.fetches == []


def test_every_bucket_is_opened_before_any_is_read(client: Client, servers: ScanCluster) -> None:
    client.scan().to_arrow()
    opened = [scan.HasField("bucket_scan_req") for scan in servers.scans]
    # Buckets that are opened may be read while the last ones are.
    assert sum(opened[: BUCKETS + 4]) == BUCKETS
    assert {scan.batch_size_bytes for scan in servers.scans if scan.HasField("bucket_scan_req")} == {64 * 1024}


def test_columns_are_chosen_and_may_leave_the_key_out(client: Client) -> None:
    assert client.scan().project_by_name(["name"]).to_arrow().to_pylist() == [{"name": r["name"]} for r in EXPECTED]
    twice = client.scan().project([1, 0, 1]).to_arrow()
    assert twice.column_names == ["name", "id", "name"]
    assert twice.column(1).to_pylist() == [row["id"] for row in EXPECTED]


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_a_limit_stops_the_read(client: Client, servers: ScanCluster, limit: int) -> None:
    expected = min(limit, len(EXPECTED))
    assert client.scan().limit(limit).to_arrow().num_rows == expected
    assert run(client.scan().limit(limit).to_arrow_async()).num_rows == expected
    assert client.scan().limit(limit).to_arrow_batch_reader().read_all().num_rows == expected
    assert {s.bucket_scan_req.limit for s in servers.scans if s.HasField("bucket_scan_req")} == {limit}
    eventually(lambda: servers.call(lambda: not servers.sessions))


def test_a_bucket_that_is_lost_half_way_is_read_again_and_doubles_nothing(client: Client, servers: ScanCluster) -> None:
    lost = ScanKvResponse(error_code=ErrorCode.SCANNER_EXPIRED, error_message="gone")
    for read in (lambda: client.scan().to_arrow(), lambda: run(client.scan().to_arrow_async())):
        servers.call(lambda: servers.scan_answers.extend([None] * (BUCKETS + 12) + [lost, None, None, lost]))
        assert read().to_pylist() == EXPECTED
        assert not servers.scan_answers


def test_a_bucket_that_is_lost_again_and_again_is_an_error(client: Client, servers: ScanCluster) -> None:
    original = servers._next_rows

    def lose(session_id: bytes, session: Any) -> ScanKvResponse:
        if session.read_count > 6:
            return ScanKvResponse(error_code=ErrorCode.SCANNER_EXPIRED, error_message="gone")
        return original(session_id, session)

    servers._next_rows = lose  # type: ignore[method-assign]  # a server that keeps no session for long
    with pytest.raises(SnapshotLostError, match="gone"):
        client.scan().to_arrow()


def test_a_reader_does_not_hide_that_rows_are_lost(client: Client, servers: ScanCluster) -> None:
    lost = ScanKvResponse(error_code=ErrorCode.SCANNER_EXPIRED, error_message="gone")
    servers.call(lambda: servers.scan_answers.extend([None] * (BUCKETS + 12) + [lost]))
    with pytest.raises(FlussError, match="gone"):
        client.scan().to_arrow_batch_reader().read_all()


def test_a_reader_that_is_dropped_leaves_no_session(servers: ScanCluster) -> None:
    small = {"scanner.log.fetch.max-bytes": 100, "scanner.log.fetch.max-bytes-for-bucket": 100}
    with client_of(servers, **small) as client:
        reader = client.scan().to_arrow_batch_reader()
        assert reader.read_next_batch().num_rows > 0
        assert servers.call(lambda: len(servers.sessions)) > 0
        del reader
        eventually(lambda: servers.call(lambda: not servers.sessions))


def test_a_whole_log_is_read_and_may_be_filtered() -> None:
    properties = {"table.statistics.columns": "*"}
    with scan_cluster(bucket_count=2, properties=properties) as servers, client_of(servers) as client:
        for number in range(4):
            servers.append(rows(10 * number, 10), bucket=number % 2)
        table = client.scan().to_arrow()
        assert [table["id"][:20].to_pylist(), table["id"][20:].to_pylist()] == [
            [*range(10), *range(20, 30)],
            [*range(10, 20), *range(30, 40)],
        ]
        assert client.scan().limit(15).to_arrow().num_rows == 15
        assert client.scan().project_by_name(["name"]).to_arrow().column_names == ["name"]
        assert client.scan().filter(col("id") > 37).to_arrow()["id"].to_pylist() == [38, 39]
        assert servers.fetches[-1].tables_req[0].HasField("filter_predicate")
        # What they cannot decide by bounds servers are not told.
        assert client.scan().filter("name LIKE '%9_'").to_arrow().num_rows == 0
        assert not servers.fetches[-1].tables_req[0].HasField("filter_predicate")
        assert servers.scans == []


def test_chosen_partitions_are_read() -> None:
    schema = Schema(
        pa.schema([("id", pa.int32()), ("day", pa.string()), ("region", pa.string())]),
        primary_keys=["id", "day", "region"],
    )
    with scan_cluster(schema, bucket_count=2, partition_keys=["day", "region"]) as servers:
        names = ["mon$EU", "mon$US", "tue$EU"]
        servers.call(lambda: servers.partitions.update(enumerate(names, 10)))
        servers.call(servers.publish)
        for partition, name in servers.partitions.items():
            day, region = name.split("$")
            servers.put_rows([{"id": 1, "day": day, "region": region}], partition=partition)
        with client_of(servers) as client:

            def found(partitions: Any) -> list[str]:
                return [f"{row['day']}${row['region']}" for row in client.scan().to_arrow(partitions).to_pylist()]

            assert found(None) == names
            assert found("mon$US") == ["mon$US"]
            assert found({"region": "EU"}) == ["mon$EU", "tue$EU"]
            assert found([{"day": "tue"}, "mon$EU", {"region": "EU"}]) == ["mon$EU", "tue$EU"]
            assert found([]) == []
            with pytest.raises(FlussError, match="no partition"):
                found("wed$EU")
            reader = client.scan().to_arrow_batch_reader({"day": "mon"})
            assert reader.read_all().num_rows == 2


# Servers that cannot scan


@pytest.fixture
def old_servers() -> Iterator[ScanCluster]:
    servers = ScanCluster(KEYED, bucket_count=2)
    servers.offers_scans = False
    try:
        servers.start_server()
        servers.append(rows(0, 4), change_types=[INSERT] * 4)
        changed = [{"id": 1, "name": "n1"}, {"id": 1, "name": "new"}, {"id": 2, "name": "n2"}]
        servers.append(changed, change_types=[BEFORE, AFTER, DELETE])
        servers.append(rows(2, 1), change_types=[INSERT])
        servers.append(rows(3, 1), change_types=[DELETE])
        # The same key in another bucket is another row.
        servers.append(rows(1, 1), bucket=1, change_types=[INSERT])
        yield servers
    finally:
        servers.close()


def test_all_changes_give_the_same_rows(old_servers: ScanCluster) -> None:
    expected = [{"id": 0, "name": "n0"}, {"id": 1, "name": "new"}, {"id": 2, "name": "n2"}, {"id": 1, "name": "n1"}]
    with client_of(old_servers) as client:
        table = client.scan().to_arrow()
        assert table.schema == KEYED.to_arrow()
        assert table.to_pylist() == expected
        assert run(client.scan().to_arrow_async()).to_pylist() == expected
        assert client.scan().to_arrow_batch_reader().read_all().to_pylist() == expected
        assert client.scan().limit(3).to_arrow().to_pylist() == expected[:3]
        names = client.scan().project_by_name(["name"]).to_arrow()
        assert names.to_pylist() == [{"name": row["name"]} for row in expected]
        # Of the changes, too, only what is needed was asked for.
        assert list(old_servers.fetches[-1].tables_req[0].projected_fields) == [0, 1]
        assert old_servers.servers[0].requests[ApiKey.SCAN_KV] == 0


def test_changes_that_are_no_longer_there_are_an_error(old_servers: ScanCluster) -> None:
    """Unless there is a snapshot in remote storage: see ``test_kv_files``."""
    old_servers.call(lambda: old_servers.offsets_start.update({(None, 1): 1}))
    with client_of(old_servers) as client, pytest.raises(FlussError, match=r"no longer has all.*there is none"):
        client.scan().to_arrow()


def test_a_table_whose_leaders_are_not_chosen_yet_is_read_by_its_changes(old_servers: ScanCluster) -> None:
    """Nobody has said that the servers can scan, so they are asked; and the leaders are waited for."""
    nobody = 9
    old_servers.call(lambda: old_servers.leaders.update({(None, 0): nobody, (None, 1): nobody}))
    old_servers.call(old_servers.publish)
    questions = old_servers.servers[0].requests

    def choose_leaders() -> None:
        asked = questions[ApiKey.GET_METADATA]
        eventually(lambda: questions[ApiKey.GET_METADATA] > asked + 1, "questions for the leaders")
        old_servers.call(old_servers.leaders.clear)
        old_servers.call(old_servers.publish)

    with client_of(old_servers) as client, ThreadPoolExecutor(1) as thread:
        chosen = thread.submit(choose_leaders)
        assert client.scan().to_arrow().num_rows == 4
        chosen.result()
    assert questions[ApiKey.SCAN_KV] == 0


def test_a_table_without_leaders_is_an_error_in_the_end(old_servers: ScanCluster) -> None:
    old_servers.call(lambda: old_servers.leaders.update({(None, 1): 9}))
    old_servers.call(old_servers.publish)
    with (
        client_of(old_servers, request__timeout=3000) as client,
        pytest.raises(FlussError, match=r"No leader found for table bucket .*bucket=1") as caught,
    ):
        client.scan().to_arrow()
    assert caught.value.error_code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION


def test_an_empty_table_has_its_columns_either_way() -> None:
    for offers_scans in (True, False):
        servers = ScanCluster(KEYED, bucket_count=2)
        servers.offers_scans = offers_scans
        try:
            servers.start_server()
            with client_of(servers) as client:
                table = client.scan().to_arrow()
                assert (table.num_rows, table.schema) == (0, KEYED.to_arrow())
        finally:
            servers.close()
