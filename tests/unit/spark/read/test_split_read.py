"""What tasks of Spark read: the same rows, however a table is divided into parts, in batches of a useful size.
Shown without Spark: with made-up changes, and with the tables of a server inside the test."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluss
from fluss import ChangeType, FlussError, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.client.scan.records import RecordRun
from fluss.errors import ErrorCode, NetworkError
from fluss.filter import row_filter
from fluss.schema.table import TableBucket
from fluss.schema.types import DataTypes
from fluss.spark import connections
from fluss.spark.query_options import read_options
from fluss.spark.read import split_read
from fluss.spark.read.planner import Split, plan_batch, read_view
from fluss.spark.read.split_read import SplitRead, _resized, binlog_batch, table_columns, view_filter
from fluss.spark.type_mapping import view_schema
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Tables, delete, upsert
from tests.open_files import lasting_threads, open_files

# Sizes of batches


def numbers(start: int, count: int, width: int = 1) -> pa.RecordBatch:
    ids = pa.array(np.arange(start, start + count))
    return pa.RecordBatch.from_arrays([ids, pa.repeat("x" * width, count)], names=["id", "text"])


@given(st.lists(st.integers(0, 40_000), max_size=20))
def test_small_batches_are_joined_and_nothing_is_lost(sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    batches = [numbers(start, size) for start, size in zip(starts, sizes, strict=False)]
    resized = list(_resized(batches))
    ids = [batch.column("id").to_numpy() for batch in resized]
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *ids]), np.arange(starts[-1]))
    assert all(batch.num_rows >= 16_384 for batch in resized[:-1])
    assert all(batch.num_rows > 0 for batch in resized)


def test_large_batches_are_cut_by_rows_and_by_bytes() -> None:
    assert [batch.num_rows for batch in _resized([numbers(0, 300_000)])] == [131_072, 131_072, 37_856]
    wide = list(_resized([numbers(0, 1000, width=100_000)]))
    assert max(batch.nbytes for batch in wide) <= 17 * 1024 * 1024
    assert sum(batch.num_rows for batch in wide) == 1000
    # Rows that are large are not gathered until there are many.
    gathered = _resized(numbers(each, 10, width=1_000_000) for each in range(100))
    assert next(gathered).num_rows <= 20


def test_a_batch_that_fits_is_passed_on_as_it_is() -> None:
    batch = numbers(0, 50_000)
    (same,) = _resized([batch])
    assert same is batch


# Changes as events

INSERT, BEFORE, AFTER, DELETE = (
    ChangeType.Insert,
    ChangeType.UpdateBefore,
    ChangeType.UpdateAfter,
    ChangeType.Delete,
)
STEPS = {"insert": [INSERT], "update": [BEFORE, AFTER], "blind update": [AFTER], "delete": [DELETE]}
BUCKET = TableBucket(1, 0)


class Log:
    """A changelog whose rows are their offsets."""

    def __init__(self, steps: list[str]) -> None:
        self.types = np.array([each for step in steps for each in STEPS[step]], np.uint8)

    def run(self, start: int, stop: int) -> RecordRun:
        rows = pa.RecordBatch.from_arrays([pa.array(range(start, stop), pa.int64())], names=["n"])
        return RecordRun(BUCKET, start, 1234, rows, (DataTypes.bigint(),), self.types[start:stop])

    def events(self, start: int, stop: int) -> list[tuple[str, int, int | None, int | None]]:
        batch = binlog_batch(self.run(start, stop), start=start, stop=stop, read_record=lambda at: self.run(at, at + 1))
        batch.validate(full=True)
        return [
            (
                row["_change_type"],
                row["_log_offset"],
                row["before"] and row["before"]["n"],
                row["after"] and row["after"]["n"],
            )
            for row in batch.to_pylist()
        ]


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=30), st.data())
def test_events_are_the_same_wherever_a_changelog_is_cut(steps: list[str], data: st.DataObject) -> None:
    log = Log(steps)
    count = len(log.types)
    expected: list[tuple[str, int, int | None, int | None]] = []
    offset = 0
    for step in steps:
        match step:
            case "insert":
                expected.append(("insert", offset, None, offset))
            case "update":
                expected.append(("update", offset, offset, offset + 1))
            case "blind update":
                expected.append(("update", offset, None, offset))
            case "delete":
                expected.append(("delete", offset, offset, None))
        offset += len(STEPS[step])
    assert log.events(0, count) == expected
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=5))})
    pieces = [event for start, stop in pairwise(cuts) for event in log.events(start, stop)]
    assert pieces == expected


# Tables

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.int64())])


class Reads(Tables):
    """Makes tables of one server, and reads them as tasks do."""

    def create(self, *keys: str, **descriptor: Any) -> fluss.FlussTable:  # type: ignore[override] # one schema for all
        return super().create(ROWS, keys, **descriptor)

    def planned(self, table: fluss.FlussTable, view: str = "", **options: str) -> tuple[SplitRead, list[Split]]:
        given_options = {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
        read = read_options(
            {"bootstrap.servers": self.server.bootstrap_servers, "table": f"{table.table_path}{view}", **given_options},
            is_stream=False,
        )
        info = table.get_table_info()
        shown = view_schema(info.schema, read.view, read.columns)
        kind = read_view(info, read)
        row_filter = view_filter(read, info, kind)
        plan = plan_batch(table, read, table_columns(shown, kind, row_filter, info))
        made = SplitRead(read, shown, plan.view, plan.table_id)
        return pickle.loads(pickle.dumps(made)), [split for task in plan.tasks for split in task]

    def rows(self, table: fluss.FlussTable, view: str = "", **options: str) -> list[dict[str, Any]]:
        read, splits = self.planned(table, view, **options)
        return [row for batch in read.read(splits) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def reads(fluss_server: embedded.EmbeddedServer) -> Iterator[Reads]:
    made = Reads(fluss_server)
    yield made
    made.close()


def append(table: fluss.FlussTable, ids: range) -> None:
    columns = {"id": list(ids), "name": [f"n{each}" for each in ids], "price": [each % 7 for each in ids]}
    writer = table.new_append().create_writer()
    writer.write_arrow_batch(pa.RecordBatch.from_pydict(columns, schema=table.arrow_schema))
    wait_for(writer.flush())


def test_filters_use_columns_that_are_not_returned(reads: Reads) -> None:
    table = reads.create(bucket_count=2)
    append(table, range(100))
    found = reads.rows(table, scan__columns="name", scan__filter="price = 3 AND id < 20")
    assert sorted(row["name"] for row in found) == ["n10", "n17", "n3"]
    assert all(list(row) == ["name"] for row in found)


def test_batches_that_a_filter_rules_out_are_not_fetched(reads: Reads) -> None:
    table = reads.create(bucket_count=1, properties={"table.statistics.columns": "*"})
    for begin in range(0, 100, 10):
        append(table, range(begin, begin + 10))
    read, splits = reads.planned(table, scan__filter="id = 42", scan__columns="id")
    sizes: list[int] = []
    filter_batch = row_filter.RowFilter.filter

    def noted_filter(self: row_filter.RowFilter, batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return filter_batch(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_filter.RowFilter, "filter", noted_filter)
        (batch,) = read.read(splits)
    assert batch.to_pylist() == [{"id": 42}]
    assert sizes == [10]


def test_no_columns_leave_the_number_of_rows(reads: Reads) -> None:
    table = reads.create(bucket_count=2)
    append(table, range(1000))
    read, splits = reads.planned(table)
    nothing = SplitRead(read.options, type(read.schema)([]), read.view)
    batches = list(nothing.read(splits))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert all(batch.num_columns == 0 for batch in batches)


def test_the_last_state_of_changed_keys_is_what_upserts_are(reads: Reads) -> None:
    table = reads.create("id", bucket_count=1)
    upsert(table, [[1, "a", 1], [2, "b", 1], [3, "c", 1]])
    read, _ = reads.planned(table)
    upserts = SplitRead(read.options, read.schema, "upserts")
    upsert(table, [[2, "b", 2], [4, "d", 2]])
    upsert(table, [[2, "b", 3]])
    delete(table, [{"id": 3}, {"id": 4}])

    def between(start: int, stop: int) -> list[dict[str, Any]]:
        found = [row for batch in upserts.read([Split(None, None, 0, start, stop)]) for row in batch.to_pylist()]
        return sorted(found, key=lambda row: row["id"])

    end = wait_for(reads.admin.list_offsets(table.table_path, [0], "latest"))[0]
    assert [row["id"] for row in between(0, 3)] == [1, 2, 3]
    assert between(3, end) == [{"id": 2, "name": "b", "price": 3}]
    assert between(0, end) == [{"id": 1, "name": "a", "price": 1}, {"id": 2, "name": "b", "price": 3}]


def test_times_are_exact_even_where_the_plan_is_not(reads: Reads) -> None:
    table = reads.create(bucket_count=1)
    append(table, range(10))
    time.sleep(0.01)
    start_ms = int(time.time() * 1000)
    append(table, range(10, 20))
    time.sleep(0.01)
    end_ms = int(time.time() * 1000)
    append(table, range(20, 30))
    options = {
        "scan__incremental__start__timestamp": str(start_ms),
        "scan__incremental__end__timestamp": str(end_ms),
    }
    read, splits = reads.planned(table, **options)
    assert [(split.start, split.stop) for split in splits] == [(10, 20)]
    everything = [Split(None, None, 0, 0, 30)]
    for parts in (splits, everything):
        assert [row["id"] for batch in read.read(parts) for row in batch.to_pylist()] == list(range(10, 20))


def test_a_task_that_is_stopped_leaves_nothing_behind(reads: Reads) -> None:
    table = reads.create(bucket_count=2)
    for begin in range(0, 100_000, 20_000):
        append(table, range(begin, begin + 20_000))
    read, splits = reads.planned(table)
    assert sum(batch.num_rows for batch in read.read(splits)) == 100_000
    threads, files = lasting_threads(), len(open_files())
    for _ in range(3):
        batches = read.read(splits)
        next(batches)
        batches.close()
    eventually(lambda: lasting_threads() <= threads and len(open_files()) <= files)


def test_rows_that_do_not_come_are_an_error_that_names_the_option(reads: Reads) -> None:
    table = reads.create(bucket_count=1)
    append(table, range(5))
    read, _ = reads.planned(table, scan__poll__timeout="100ms")
    with pytest.raises(FlussError, match=r"came for 0.1 s.*'scan.poll.timeout'") as caught:
        list(read.read([Split(None, None, 0, 0, 6)]))
    assert caught.value.error_code == ErrorCode.REQUEST_TIME_OUT


def test_a_table_that_was_replaced_is_an_error(reads: Reads) -> None:
    table = reads.create()
    append(table, range(5))
    read, splits = reads.planned(table)
    wait_for(reads.admin.drop_table(table.table_path))
    wait_for(reads.admin.create_table(table.table_path, fluss.TableDescriptor(fluss.Schema(ROWS))))
    append(reads.again(table), range(9))
    with pytest.raises(FlussError, match="was dropped and created again"):
        list(read.read(splits))


def test_a_server_that_is_away_is_waited_for(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    table = reads.create()
    append(table, range(5))
    read, splits = reads.planned(table, scan__poll__timeout="5s")
    failures = [NetworkError("no answer"), NetworkError("still no answer")]
    opened = connections.open_table

    def open_table(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*args)

    monkeypatch.setattr(split_read, "open_table", open_table)
    assert sum(batch.num_rows for batch in read.read(splits)) == 5
    assert failures == []


def test_a_filter_cannot_look_into_the_rows_of_a_binlog(reads: Reads) -> None:
    table = reads.create("id")
    with pytest.raises(FlussError, match=r"cannot be used with \$binlog"):
        reads.rows(table, "$binlog", scan__filter="id = 1")
