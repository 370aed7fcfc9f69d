"""Changelogs as Arrow: tables with leading columns that say what each row means, and batches with change types.
Shown against a server on a real socket: polls, bounded reads, projections, batches without records, limits of polls."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss import EARLIEST_OFFSET, FlussError
from fluss.net.transport import run
from fluss.record.log_batch import build_batch
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import Client, ScanCluster, client_of, poll_records, scan_cluster

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
TIME_MS = 1_700_000_000_123
TIME = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC) + datetime.timedelta(milliseconds=123)
NAMES = ["insert", "insert", "update_before", "update_after", "delete"]


def row(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "name": name}


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    with scan_cluster(KEYED, bucket_count=2) as servers:
        servers.append([row(1, "a"), row(2, "b")], change_types=[INSERT] * 2, timestamp_ms=TIME_MS)
        servers.append([row(1, "a"), row(1, "A")], change_types=[BEFORE, AFTER], timestamp_ms=TIME_MS + 1)
        servers.append([row(2, "b")], change_types=[DELETE], timestamp_ms=TIME_MS + 2)
        yield servers


@pytest.fixture
def client(servers: ScanCluster) -> Iterator[Client]:
    with client_of(servers) as client:
        yield client


def append_empty_batch(servers: ScanCluster, bucket: int = 0) -> None:
    """Append what a write without effect leaves: a batch without records that takes one offset."""
    empty = build_batch(schema_id=1, record_count=0, append_only=False)
    servers.call(lambda: servers.append_encoded(empty, (None, bucket)))


def poll_table(scanner: Any, row_count: int) -> pa.Table:
    tables, deadline_s = [], time.monotonic() + 120
    while sum(table.num_rows for table in tables) < row_count and time.monotonic() < deadline_s:
        tables.append(scanner.poll_arrow(200))
    return pa.concat_tables(tables)


def test_tables_say_what_each_row_means(client: Client) -> None:
    scanner = client.changes()
    scanner.subscribe(0, EARLIEST_OFFSET)
    table = poll_table(scanner, 5)
    assert table.schema == pa.schema(
        [
            pa.field("_change_type", pa.string(), nullable=False),
            pa.field("_log_offset", pa.int64(), nullable=False),
            pa.field("_commit_timestamp", pa.timestamp("ms", "UTC")),
            *KEYED.to_arrow(),
        ]
    )
    assert table["_change_type"].to_pylist() == NAMES
    assert table["_log_offset"].to_pylist() == [0, 1, 2, 3, 4]
    after_ms = [(time - TIME) // datetime.timedelta(milliseconds=1) for time in table["_commit_timestamp"].to_pylist()]
    assert after_ms == [0, 0, 1, 1, 2]
    assert table.select(["id", "name"]).to_pylist() == [row(1, "a"), row(2, "b"), row(1, "a"), row(1, "A"), row(2, "b")]
    empty = scanner.poll_arrow(0)
    assert (empty.num_rows, empty.schema) == (0, table.schema)


def test_a_changelog_from_the_middle_of_a_batch(client: Client) -> None:
    scanner = client.changes()
    scanner.subscribe(0, 3)
    table = poll_table(scanner, 2)
    assert table["_log_offset"].to_pylist() == [3, 4]
    assert table["_change_type"].to_pylist() == ["update_after", "delete"]


def test_batches_have_change_types(client: Client, servers: ScanCluster) -> None:
    scanner = client.changes()
    scanner.subscribe(0, 1)
    batches: list[Any] = []
    while len(batches) < 3:
        batches += scanner.poll_record_batch(120_000)
    assert [batch.change_types.to_pylist() for batch in batches] == [[NAMES[1]], NAMES[2:4], [NAMES[4]]]
    assert batches[0].change_types.type == pa.string()
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(1, 1), (2, 3), (4, 4)]
    after = batches[1].batch.filter(pc.equal(batches[1].change_types, "update_after"))
    assert after.to_pylist() == [row(1, "A")]
    servers.put_rows([row(1, "A")])
    scanner.subscribe_from_snapshot()
    (snapshot,) = scanner.poll_record_batch(120_000)
    assert (snapshot.base_offset, snapshot.last_offset, len(snapshot)) == (-1, -1, 1)
    assert snapshot.change_types.to_pylist() == ["insert"]


def test_bounded_reads_are_repeatable_and_polls_go_on_behind_them(client: Client, servers: ScanCluster) -> None:
    scanner = client.changes()
    scanner.subscribe_buckets({0: EARLIEST_OFFSET, 1: EARLIEST_OFFSET})
    for _ in range(2):
        assert scanner.to_arrow()["_change_type"].to_pylist() == NAMES
    assert list(run(scanner.to_pandas_async())["_log_offset"]) == [0, 1, 2, 3, 4]
    servers.append([row(3, "c")], change_types=[INSERT])
    assert poll_table(scanner, 1)["_log_offset"].to_pylist() == [5]
    scanner.subscribe(0, 4)
    assert scanner.to_arrow_batch_reader().read_all()["_log_offset"].to_pylist() == [4, 5]


def test_rows_of_a_snapshot_have_no_time_and_no_offset(client: Client, servers: ScanCluster) -> None:
    servers.put_rows([row(1, "A")])
    scanner = client.changes()
    scanner.subscribe_from_snapshot()
    (found,) = poll_table(scanner, 1).to_pylist()
    assert found == {"_change_type": "insert", "_log_offset": -1, "_commit_timestamp": None, **row(1, "A")}
    servers.append([row(1, "A")], change_types=[DELETE], timestamp_ms=TIME_MS)
    (found,) = poll_table(scanner, 1).to_pylist()
    assert found == {"_change_type": "delete", "_log_offset": 5, "_commit_timestamp": TIME, **row(1, "A")}


def test_columns_are_chosen_behind_the_leading_ones(client: Client) -> None:
    scanner = run(client.scan().project_by_name(["name"]).create_changelog_scanner())
    scanner.subscribe(0, EARLIEST_OFFSET)
    table = scanner.to_arrow()
    assert table.column_names == ["_change_type", "_log_offset", "_commit_timestamp", "name"]
    assert table["name"].to_pylist() == ["a", "b", "a", "A", "b"]


def test_a_column_with_a_leading_name_is_refused_unless_it_is_left_out() -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("_log_offset", pa.int64())]), primary_keys=["id"])
    with scan_cluster(schema) as servers, client_of(servers) as client:
        with pytest.raises(FlussError, match="'_log_offset' of its own"):
            client.changes()
        scanner = run(client.scan().project([0]).create_changelog_scanner())
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.to_arrow().num_rows == 0


def test_rows_of_older_schemas_get_the_columns_of_the_table(servers: ScanCluster) -> None:
    def add_column() -> None:
        servers.schemas[2] = KEYED.with_added_columns([Column("price", DataTypes.double())])
        servers.schema_id = 2
        servers.descriptor = type(servers.descriptor)(servers.schemas[2], bucket_count=2)
        servers.publish()

    servers.call(add_column)
    servers.append([{"id": 5, "name": "e", "price": 2.5}], schema_id=2, change_types=[INSERT])
    with client_of(servers) as client:
        scanner = client.changes()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.to_arrow()["price"].to_pylist() == [None] * 5 + [2.5]


@pytest.mark.parametrize("log_format", ["indexed", "compacted"])
def test_changelogs_of_rows_are_read_as_well(log_format: str) -> None:
    with scan_cluster(KEYED, log_format=log_format) as servers, client_of(servers) as client:
        servers.append([row(1, "a"), row(1, "A")], change_types=[BEFORE, AFTER])
        scanner = client.changes()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.to_arrow()["_change_type"].to_pylist() == ["update_before", "update_after"]


def test_all_rows_of_a_log_table_are_inserts() -> None:
    with scan_cluster() as servers, client_of(servers) as client:
        servers.append([row(1, "a"), row(2, "b")])
        scanner = client.changes()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.to_arrow()["_change_type"].to_pylist() == ["insert"] * 2


def test_scanners_of_another_kind_say_so(client: Client) -> None:
    with pytest.raises(FlussError, match="record-based"):
        client.changes().poll(0)
    with pytest.raises(FlussError, match=r"batch-based scanner; make one with create_changelog_scanner\(\)"):
        client.records().poll_arrow(0)
    with pytest.raises(FlussError, match=r"unsupported .*create_changelog_scanner\(\)"):
        client.batches()


# Batches without records


def test_batches_without_records_move_positions_in_polls_and_bounded_reads(
    client: Client, servers: ScanCluster
) -> None:
    for _ in range(3):
        append_empty_batch(servers)
    append_empty_batch(servers, bucket=1)
    records, changes = client.records(), client.changes()
    for scanner in (records, changes):
        scanner.subscribe_buckets({0: EARLIEST_OFFSET, 1: EARLIEST_OFFSET})
    assert changes.to_arrow()["_log_offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert [record.offset for record in poll_records(records, 5)] == [0, 1, 2, 3, 4]

    def positions() -> list[int]:
        assert records.poll(50).is_empty()
        return [offset for _, offset in records.get_subscribed_buckets()]

    eventually(lambda: positions() == [8, 1])
    servers.append([row(9, "i")], change_types=[INSERT])
    assert [record.offset for record in poll_records(records, 1)] == [8]


def test_a_poll_does_not_spin_while_only_batches_without_records_come(client: Client, servers: ScanCluster) -> None:
    scanner = client.records()
    scanner.subscribe(0, 5)
    scanner.poll(0)
    fetch_count = len(servers.fetches)
    started_s = time.monotonic()
    for _ in range(5):
        append_empty_batch(servers)
        assert scanner.poll(100).is_empty()
    assert time.monotonic() - started_s >= 0.5
    eventually(lambda: scanner.poll(0).is_empty() and scanner.get_subscribed_buckets() == [(client.bucket(0), 10)])
    # One fetch for each batch, and one whenever a fetch has waited for its whole time without news (200 ms).
    waited_count = (time.monotonic() - started_s) / 0.2
    assert len(servers.fetches) - fetch_count <= 5 + 1 + waited_count


# Limits


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_both_rows_of_an_update_come_with_the_same_poll(servers: ScanCluster, limit: int) -> None:
    with client_of(servers, scanner_log_max__poll__records=limit) as client:
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        polls: list[list[str]] = []
        deadline_s = time.monotonic() + 120
        while sum(map(len, polls)) < 5 and time.monotonic() < deadline_s:
            polls.append([str(record.change_type) for record in scanner.poll(100)])
        assert list(chain.from_iterable(polls)) == ["+I", "+I", "-U", "+U", "-D"]
        assert all(poll[-1] != "-U" for poll in polls if poll)
        assert max(map(len, polls)) <= limit + 1
