"""Scans find what they ask for, in whatever pieces it comes: projections, predicates, small fetches, the end of a log.

Both official clients and ours scan tables of a real server.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.interop.client import READ_TIMEOUT_S, Client, refused
from tests.interop.conftest import OURS
from tests.interop.remote import RemoteFlussError
from tests.interop.samples import EVENTS, NESTED, batch_of, event_batch, events, rows_of, schema_of

# Projection


@pytest.mark.parametrize("columns", [["score", "id"], [2, 0], ["name"], [0, 1, 2]])
def test_a_projection_keeps_the_order_that_was_asked_for(client: Client, table: str, columns: list[Any]) -> None:
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 9))
    names = [column if isinstance(column, str) else EVENTS.names[column] for column in columns]
    expected = [{name: row[name] for name in names} for row in events(0, 9)]

    rows = client.read_rows(table, 10, columns=columns)
    assert rows == expected
    assert [list(row) for row in rows] == [names] * 10
    found = client.read_table(table, columns=columns)
    assert found.column_names == names
    assert found.to_pylist() == expected


def test_nested_columns_can_be_projected_and_reordered(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, schema_of(NESTED))
    newer_client.write_batches(table, batch_of(NESTED))
    names = ["points", "id", "counts", "matrix"]
    assert newer_client.read_table(table, columns=names) == pa.Table.from_batches([batch_of(NESTED)]).select(names)
    assert newer_client.read_rows(table, 4, columns=names) == [{n: row[n] for n in names} for row in rows_of(NESTED)]


@pytest.mark.parametrize(
    ("columns", "text"),
    [(["nobody"], "Column 'nobody' not found"), ([3], "out of range")],
)
def test_a_projection_of_columns_that_are_not_there_is_refused(
    client: Client, table: str, columns: list[Any], text: str
) -> None:
    client.create_table(table, EVENTS)
    with refused(-2, text):
        client.batch_scanner(table, columns=columns)


# Pieces


def test_fetches_smaller_than_a_batch_get_on(new_client: Any, any_name: str, table: str) -> None:
    client = new_client(
        any_name,
        scanner_log_fetch_max_bytes=2000,
        scanner_log_fetch_max_bytes_for_bucket=500,
        writer_batch_timeout_ms=1,
    )
    client.create_table(table, EVENTS, bucket_count=3, properties={"table.log.arrow.compression.type": "NONE"})
    for first in range(0, 300, 50):
        client.write_batches(table, event_batch(first, first + 49))
    assert sorted(row["id"] for row in client.read_rows(table, 300)) == list(range(300))
    assert sorted(client.read_table(table)["id"].to_pylist()) == list(range(300))


def test_a_fetch_that_wants_much_is_answered_with_little_in_the_end(new_client: Any, any_name: str, table: str) -> None:
    client = new_client(any_name, scanner_log_fetch_min_bytes=1_000_000, scanner_log_fetch_wait_max_time_ms=150)
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 4))
    assert client.read_rows(table, 5) == events(0, 4)


# Following a log


def test_a_scanner_at_the_end_gets_only_what_is_written_later(client: Client, reader: Client, table: str) -> None:
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 4))
    scanner = reader.record_scanner(table, start=reader.latest(table)[0])
    assert reader.tools.records(scanner.poll(50)) == []
    client.append_rows(table, events(5, 6))
    records = reader.tools.poll_records(scanner, 2, READ_TIMEOUT_S)
    assert [(offset, change, row["id"]) for _, offset, _, change, row in records] == [(5, "+A", 5), (6, "+A", 6)]


def test_an_offset_beyond_the_end_is_refused_by_the_record_scanner(client: Client, table: str) -> None:
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 4))
    scanner = client.record_scanner(table, start=100)
    with refused(-2, "out of range"):
        client.tools.poll_records(scanner, 1, READ_TIMEOUT_S)


def test_the_rows_of_a_new_table_never_reach_a_scanner_of_the_dropped_one(client: Client, table: str) -> None:
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 2))
    scanner = client.record_scanner(table)
    assert len(client.tools.poll_records(scanner, 3, READ_TIMEOUT_S)) == 3
    old_id = client.admin.get_table_info(client.path(table)).table_id

    client.admin.drop_table(client.path(table))
    client.create_table(table, EVENTS)
    client.append_rows(table, events(1000, 1004))

    assert client.admin.get_table_info(client.path(table)).table_id != old_id
    try:
        late = client.tools.records(scanner.poll(700))
    except RemoteFlussError:
        # Which error the scanner of a dropped table gets is its client's affair.
        late = []
    assert late == []
    assert client.read_rows(table, 5) == events(1000, 1004)


# Predicates


def test_batches_that_cannot_match_are_left_out(newer_client: Client, newer_reader: Client, table: str) -> None:
    newer_client.create_table(table, EVENTS, properties={"table.statistics.columns": "*"})
    for first in range(0, 50, 10):
        newer_client.write_batches(table, event_batch(first, first + 9))
    predicate = newer_reader.fluss.col("id") >= 42
    scanner = newer_reader.table(table).new_scan().filter(predicate).create_record_batch_log_scanner()
    scanner.subscribe(0, -2)
    wanted = list(range(42, 50)) if newer_reader.api.name == OURS else list(range(40, 50))
    ids = newer_reader.tools.poll_tables(scanner, len(wanted), READ_TIMEOUT_S)["id"].to_pylist()
    # Servers leave out whole batches only: the official client returns the rest of a matching one, too.
    assert ids == wanted


@pytest.mark.parametrize(
    ("build", "in_batches", "exactly"),
    [
        (lambda col: col("id").equal(12), range(10, 20), [12]),
        (lambda col: col("name").starts_with("name-3"), {*range(0, 10), *range(30, 40)}, {3, *range(30, 40)}),
        (lambda col: col("id").is_in([5, 45]), {*range(0, 10), *range(40, 50)}, {5, 45}),
        (lambda col: col("score").is_null(), set(), set()),
        (lambda col: (col("id") >= 20) & (col("score") < 7.5), range(20, 30), range(20, 30)),
        (lambda col: (col("id") < 3) | (col("id") > 47), {*range(0, 10), *range(40, 50)}, {0, 1, 2, 48, 49}),
    ],
    ids=["equal", "prefix", "in", "null", "and", "or"],
)
def test_predicates_mean_the_same_to_both_clients(
    newer_client: Client, table: str, build: Any, in_batches: Any, exactly: Any
) -> None:
    expected = exactly if newer_client.api.name == OURS else in_batches
    newer_client.create_table(table, EVENTS, properties={"table.statistics.columns": "*"})
    for first in range(0, 50, 10):
        newer_client.write_batches(table, event_batch(first, first + 9))
    predicate = build(newer_client.fluss.col)
    scanner = newer_client.table(table).new_scan().filter(predicate).create_record_batch_log_scanner()
    scanner.subscribe(0, -2)
    found = newer_client.tools.poll_tables(scanner, len(expected), READ_TIMEOUT_S if expected else 1.0)
    assert set(found["id"].to_pylist()) == set(expected)


def test_a_filter_beyond_the_limits_of_the_server_is_an_error(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, EVENTS, properties={"table.statistics.columns": "*"})
    newer_client.append_rows(table, events(0, 9))
    predicate = newer_client.fluss.col("id").is_in(list(range(20_000)))
    scanner = newer_client.table(table).new_scan().filter(predicate).create_log_scanner()
    scanner.subscribe(0, -2)
    # The official client has a word of its own for codes that it does not expect; its batch scanners say nothing.
    if newer_client.api.name == OURS:
        # Ours keeps such a filter to itself.
        assert len(newer_client.tools.poll_records(scanner, 10, READ_TIMEOUT_S)) == 10
        return
    with pytest.raises(RemoteFlussError, match=r"20000 values or more, this server takes 16384|Unexpected error"):
        scanner.poll(int(READ_TIMEOUT_S * 1000))
