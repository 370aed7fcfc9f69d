"""A scan is put together step by step and checked when a scanner is made of it; it sees tables through their changes.
Shown with every mistake of a builder, logs in all formats, and columns that come after the scan or before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss import EARLIEST_OFFSET, FlussError, col
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.table_scan import TableScan
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from tests.fakes.scan_cluster import SCHEMA, Client, ScanCluster, client_of, poll_rows, scan_cluster
from tests.unit.client.scan.test_log_scanner import rows

LATER = SCHEMA.with_added_columns([Column("price", DataTypes.double())])
KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with scan_cluster() as servers, client_of(servers) as client:
        yield client


def create(scan: TableScan) -> Any:
    return runtime().run(scan.create_record_batch_log_scanner())


def test_every_step_returns_the_scan(client: Client) -> None:
    scan = client.scan()
    assert scan.project([0]) is scan.project_by_name(["id"]) is scan.filter(col("id") > 1) is scan
    assert scan.limit(1) is scan.with_fixed_schema(True) is scan
    assert repr(scan) == "TableScan(table=fluss.events)"


def test_the_last_projection_counts(client: Client) -> None:
    scanner = create(client.scan().project([0]).project_by_name(["name"]))
    assert scanner._arrow_schema.names == ["name"]
    scanner = create(client.scan().project_by_name(["name"]).project((1, 0)))
    assert scanner._arrow_schema.names == ["name", "id"]


def test_projections_are_checked_when_a_scanner_is_created(client: Client) -> None:
    for scan, reason in [
        (client.scan().project([]), "Column indices cannot be empty"),
        (client.scan().project([0, 2]), "Column index 2 out of range"),
        (client.scan().project_by_name([]), "Column names cannot be empty"),
        (client.scan().project_by_name(["id", "nope"]), "Column 'nope' not found"),
    ]:
        for method in ("create_log_scanner", "create_record_batch_log_scanner", "create_batch_scanner"):
            with pytest.raises(FlussError, match=reason) as error:
                runtime().run(getattr(scan, method)())
            assert error.value.error_code == -2


def test_arguments_of_the_wrong_kind_are_refused_at_the_call(client: Client) -> None:
    scan: Any = client.scan()
    for call in (
        lambda: scan.project("01"),
        lambda: scan.project(1),
        lambda: scan.project(["id"]),
        lambda: scan.project_by_name("name"),
        lambda: scan.project_by_name(None),
        lambda: scan.project_by_name([1]),
        lambda: scan.filter(1),
        lambda: scan.filter(["id > 1"]),
        lambda: scan.with_fixed_schema(1),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(OverflowError):
        scan.project([-1])


def test_filters_are_checked_when_a_scanner_is_created(client: Client) -> None:
    for predicate, reason in [
        (col("nope") > 1, "filter column"),
        (col("id") > 1.5, "filter literal"),
        (col("id") == None, "cannot take a null literal"),  # noqa: E711 - a condition, not an answer
        (col("id").starts_with("x"), "requires a character string column"),
        ("nope > 1", "there is no column 'nope'"),
        ("id > 'x'", "it takes a number"),
        ("id >", "expected a value"),
        (pc.field("nope") > 1, "does not fit the columns 'id', 'name'"),
        (pc.field("name") > 1, "does not fit the columns"),
    ]:
        with pytest.raises(FlussError, match=reason):
            create(client.scan().filter(predicate))


def test_a_limit_is_not_for_log_scanners(client: Client) -> None:
    for method in ("create_log_scanner", "create_record_batch_log_scanner"):
        with pytest.raises(FlussError, match="limit pushdown"):
            runtime().run(getattr(client.scan().limit(3), method)())


def test_a_table_with_a_primary_key_has_records_but_no_batches() -> None:
    with scan_cluster(KEYED) as servers, client_of(servers) as client:
        servers.append(rows(0, 2), change_types=[1, 4])
        with pytest.raises(FlussError, match=r"unsupported.*primary key"):
            create(client.scan())
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert poll_rows(scanner, 2) == rows(0, 2)


@pytest.mark.parametrize("log_format", ["indexed", "compacted"])
def test_logs_of_rows_are_read_with_their_columns_chosen_here(log_format: str) -> None:
    properties = {"table.log.format": log_format.upper()}
    with scan_cluster(SCHEMA, properties=properties) as servers, client_of(servers) as client:
        servers.append(rows(0))
        servers.append([{"id": None, "name": None}])
        records = client.records()
        records.subscribe(0, 1)
        assert poll_rows(records, 3) == [*rows(1, 2), {"id": None, "name": None}]
        scanner = create(client.scan().project([1, 0]))
        scanner.subscribe(0, 0)
        assert scanner.to_arrow().to_pydict() == {"name": ["n0", "n1", "n2", None], "id": [0, 1, 2, None]}
        assert not servers.call(lambda: servers.fetches[-1]).tables_req[0].projection_pushdown_enabled
        filtered = create(client.scan().project([1]).filter(col("id") > 1))
        filtered.subscribe(0, 0)
        assert filtered.to_arrow().to_pydict() == {"name": ["n2"]}
        assert not servers.call(lambda: servers.fetches[-1]).tables_req[0].HasField("filter_predicate")


# Schemas


@pytest.fixture
def changed() -> Iterator[ScanCluster]:
    """A table that got a column: rows before it and after it."""
    with scan_cluster() as servers:
        servers.append(rows(0))
        servers.schemas[2] = LATER
        servers.append([{"id": 3, "name": "n3", "price": 0.5}], schema_id=2)
        yield servers


def use_later_schema(servers: ScanCluster) -> None:
    def change() -> None:
        servers.descriptor = type(servers.descriptor)(LATER, bucket_count=1)
        servers.schema_id = 2
        servers.publish()

    servers.call(change)


def test_a_scan_that_knows_the_new_column_finds_it_null_in_old_rows(changed: ScanCluster) -> None:
    use_later_schema(changed)
    with client_of(changed) as client:
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        old = [{**row, "price": None} for row in rows(0)]
        assert poll_rows(scanner, 4) == [*old, {"id": 3, "name": "n3", "price": 0.5}]
        assert changed.call(lambda: changed.schema_requests) == [1]


def test_a_scan_from_before_does_not_see_the_new_column(changed: ScanCluster) -> None:
    with client_of(changed) as client:
        scanner = create(client.scan())
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert scanner.to_arrow().to_pylist() == rows(0, 4)


def test_without_a_fixed_schema_rows_are_as_they_were_written(changed: ScanCluster) -> None:
    with client_of(changed) as client:
        records = runtime().run(client.scan().with_fixed_schema(False).create_log_scanner())
        records.subscribe(0, EARLIEST_OFFSET)
        new = {"id": 3, "name": "n3", "price": 0.5}
        assert poll_rows(records, 4) == [*rows(0), new]
        batches = create(client.scan().with_fixed_schema(False))
        batches.subscribe(0, 3)
        assert [batch.batch.to_pylist() for batch in batches.poll_record_batch(120_000)] == [[new]]
        # A table has one schema.
        batches.subscribe(0, EARLIEST_OFFSET)
        assert batches.to_arrow().to_pylist() == rows(0, 4)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_new_column_may_be_chosen_over_old_rows(changed: ScanCluster, refuses: bool) -> None:
    use_later_schema(changed)
    changed.refuses_new_columns = refuses
    with client_of(changed) as client:
        scanner = create(client.scan().project_by_name(["price", "id"]))
        scanner.subscribe(0, EARLIEST_OFFSET)
        expected = [{"price": None, "id": 0}, {"price": None, "id": 1}, {"price": None, "id": 2}]
        assert scanner.to_arrow().to_pylist() == [*expected, {"price": 0.5, "id": 3}]
        pushed = changed.call(lambda: changed.fetches[-1].tables_req[0].projection_pushdown_enabled)
        assert pushed is not refuses


def test_a_schema_that_cannot_be_loaded_is_raised_and_tried_again(changed: ScanCluster) -> None:
    use_later_schema(changed)
    old = changed.schemas.pop(1)
    with client_of(changed) as client:
        scanner = client.records()
        scanner.subscribe(0, EARLIEST_OFFSET)
        for _ in range(2):
            with pytest.raises(FlussError, match="schema 1 does not exist"):
                scanner.poll(120_000)
        changed.call(lambda: changed.schemas.update({1: old}))
        assert len(poll_rows(scanner, 4)) == 4


@pytest.mark.parametrize(
    ("columns", "is_sent"), [(None, False), ("name", False), ("name, id", True), ("*", True), ("id", True)]
)
def test_filters_are_sent_where_batches_have_bounds_to_decide_by(columns: str | None, is_sent: bool) -> None:
    properties = {} if columns is None else {"table.statistics.columns": columns}
    with scan_cluster(SCHEMA, properties=properties) as servers, client_of(servers) as client:
        servers.append(rows(0))
        assert client.scan().filter(col("id") > 1).to_arrow()["id"].to_pylist() == [2]
        assert servers.call(lambda: servers.fetches[-1]).tables_req[0].HasField("filter_predicate") is is_sent
