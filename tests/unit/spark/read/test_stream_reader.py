"""Shows that a stream reads every row once: from any start, under any limit, with restarts, on a table that changes.

By calling the reader in the order in which Spark calls it, with a checkpoint that outlives it, against a real server.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss import FlussError, blocking, embedded
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME
from fluss.spark.query_options import read_options
from fluss.spark.read.offset_json import parse_offset
from fluss.spark.read.stream_lag import backlog, lags
from fluss.spark.read.stream_reader import LatestStreamReader
from fluss.spark.session import has_read_limits
from fluss.spark.type_mapping import view_schema
from fluss.testing.cluster import ServerProcess
from tests.unit.spark.read.day_table import DayTable
from tests.unit.spark.read.earlier_offsets import version_1

if not has_read_limits():
    pytest.skip("Spark before 4.2 asks readers for nothing but the latest offset", allow_module_level=True)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from fluss.spark.read.limited_stream_reader import LimitedStreamReader

Row = dict[str, Any]

# Segments that hold a few batches and go at once, so that logs lose their oldest records.
_SERVER_OPTIONS = {
    "durability": "os",
    "log.retention.check-interval": "50ms",
    "log.retention.roll-active-segment.enabled": "true",
}


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(_SERVER_OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def connection(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": server.bootstrap_servers})) as opened:
        yield opened


@dataclass
class _Query:
    """Does with readers what Spark does: one at a time, and a checkpoint that outlives them."""

    table: DayTable
    servers: str
    options: dict[str, str] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    # The offsets at which batches end, and how many of these batches are done.
    planned: list[str] = field(default_factory=list)
    done_count: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, **options: str) -> None:
        self.options |= {key.replace("_", "."): value for key, value in options.items()}
        given = {"bootstrap.servers": self.servers, "table": str(self.table.path), **self.options}
        parsed = read_options(given, is_stream=True)
        info = self.table.admin.get_table_info(self.table.path)
        self.reader = LimitedStreamReader(parsed, view_schema(info.schema, parsed.view, self.columns))

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write into the checkpoint where the next batch ends; say whether there is one."""
        start = self.planned[-1] if self.planned else json.dumps(self.reader.initialOffset())
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        if self.planned and end == start:
            return False
        self.planned.append(end)
        return True

    def run(self) -> list[Row]:
        """Read the batch that is in the checkpoint and not done, as tasks do."""
        ends = self.planned
        start = ends[self.done_count - 1] if self.done_count else json.dumps(self.reader.initialOffset())
        parts = self.reader.partitions(json.loads(start), json.loads(ends[self.done_count]))
        task_reader: LimitedStreamReader = pickle.loads(pickle.dumps(self.reader))
        batches = [batch for part in pickle.loads(pickle.dumps(parts)) for batch in task_reader.read(part)]
        self.done_count += 1
        return [row for batch in batches for row in batch.to_pylist()]

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """Read the next batch, or the one that was not done before a restart."""
        return self.run() if self.done_count < len(self.planned) or self.plan(limit) else []

    def drain(self, limit: ReadLimit | None = None) -> list[list[Row]]:
        """Read batch after batch until there is nothing new."""
        batches = []
        while self.done_count < len(self.planned) or self.plan(limit):
            batches.append(self.run())
        return batches

    def available_now(self, limit: ReadLimit | None = None) -> list[list[Row]]:
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        return self.drain(limit)


class _EarlierQuery:
    """Does with readers what Spark does before 4.2: asks for the end of a batch without saying where it begins."""

    def __init__(self, query: _Query) -> None:
        self._query = query
        self.planned: list[str] = []
        self.done_count = 0
        self.restart()

    def restart(self) -> None:
        self._query.restart()
        self.reader = LatestStreamReader(self._query.reader._options, self._query.reader._schema)
        if self.planned:
            # This is how Spark shows a source that has been made anew the offset that it has seen last.
            assert self.reader.partitions(json.loads(self.planned[-1]), json.loads(self.planned[-1])) == []

    def plan(self) -> bool:
        end = json.dumps(self.reader.latestOffset())
        if self.planned and end == self.planned[-1]:
            return False
        self.planned.append(end)
        return True

    def run(self) -> list[int]:
        """Read the batch that is planned and not done."""
        start = self.planned[self.done_count - 1] if self.done_count else json.dumps(self.reader.initialOffset())
        parts = self.reader.partitions(json.loads(start), json.loads(self.planned[self.done_count]))
        batches = [batch for part in parts for batch in self.reader.read(part)]
        self.done_count += 1
        return sorted(row["id"] for batch in batches for row in batch.to_pylist())


@pytest.fixture
def make(
    connection: blocking.FlussConnection, server: embedded.EmbeddedServer
) -> Callable[..., tuple[DayTable, Callable[..., _Query]]]:
    """Return what makes a table, and queries on it."""

    def made(**arguments: Any) -> tuple[DayTable, Callable[..., _Query]]:
        table = DayTable(connection, **arguments)

        def query(columns: Sequence[str] | None = None, **options: str) -> _Query:
            return _Query(
                table, server.bootstrap_servers, {key.replace("_", "."): text for key, text in options.items()}, columns
            )

        return table, query

    return made


Make = Callable[..., tuple[DayTable, Callable[..., _Query]]]


def _ids(rows: Sequence[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


def test_a_log_table_is_read_from_its_first_row_and_then_as_it_grows(make: Make) -> None:
    table, start = make()
    table.write(range(100))
    query = start()
    assert _ids(query.trigger()) == list(range(100))
    assert query.trigger() == []
    table.write(range(100, 130))
    assert _ids(query.trigger()) == list(range(100, 130))


def test_an_empty_table_is_waited_for(make: Make) -> None:
    table, start = make()
    query = start()
    assert query.trigger() == []
    query.restart()
    table.write([1])
    assert _ids(query.trigger()) == [1]


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
def test_no_batch_is_larger_than_the_limit_of_rows(make: Make, rows_max: int) -> None:
    table, start = make(bucket_count=3)
    table.write(range(20))
    batches = start().drain(ReadMaxRows(rows_max))
    assert all(0 < len(rows) <= rows_max for rows in batches)
    assert _ids([row for rows in batches for row in rows]) == list(range(20))


def test_a_limit_of_bytes_is_kept_about(make: Make) -> None:
    table, start = make()
    table.write(range(1000), "x" * 100)
    batches = start().drain(ReadMaxBytes(30_000))
    assert 3 < len(batches) < 12
    assert _ids([row for rows in batches for row in rows]) == list(range(1000))


def test_limits_come_from_the_options(make: Make) -> None:
    _, start = make()
    assert start().reader.getDefaultReadLimit() == ReadAllAvailable()
    assert start(maxRowsPerTrigger="5").reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert start(maxBytesPerTrigger="1kb").reader.getDefaultReadLimit() == ReadMaxBytes(1024)


@pytest.mark.parametrize("mode", ["full", "earliest", "latest", "timestamp", "offsets"])
def test_the_first_batch_is_the_same_after_a_restart_in_the_middle_of_it(make: Make, mode: str) -> None:
    table, start = make(bucket_count=1)
    table.write(range(5))
    time.sleep(0.01)
    now_ms = int(time.time() * 1000)
    more = {"timestamp": {"scan_startup_timestamp": str(now_ms)}, "offsets": {"scan_startup_offsets": '{":0": 3}'}}
    query = start(scan_startup_mode=mode, **more.get(mode, {}))
    initial = query.reader.initialOffset()
    table.write(range(5, 8))
    query.planned.append(json.dumps(query.reader.latestOffset(initial, ReadAllAvailable())))
    table.write(range(8, 10))
    query.restart()
    first = {"full": 0, "earliest": 0, "latest": 5, "timestamp": 5, "offsets": 3}[mode]
    assert _ids(query.trigger()) == list(range(first, 8))
    assert _ids(query.trigger()) == [8, 9]


def test_a_first_batch_with_nothing_in_it_does_not_move_the_start(make: Make) -> None:
    table, start = make()
    table.write(range(5))
    query = start(scan_startup_mode="latest")
    query.plan()
    table.write(range(5, 8))
    query.restart()
    assert query.trigger() == []
    assert _ids(query.trigger()) == [5, 6, 7]


def test_a_restart_with_other_options_goes_on_where_the_checkpoint_is(make: Make) -> None:
    table, start = make()
    table.write(range(10))
    query = start(maxRowsPerTrigger="4")
    seen = query.trigger()
    query.restart(scan_startup_mode="latest", maxRowsPerTrigger="3")
    for batch in query.drain():
        assert len(batch) <= 3
        seen += batch
    assert _ids(seen) == list(range(10))


def test_available_now_ends_with_what_was_there_when_it_began(make: Make) -> None:
    table, start = make(days=["a"])
    table.write(range(10), day="a")
    query = start()
    query.reader.prepareForTriggerAvailableNow()
    table.write(range(10, 20), day="a")
    table.add_day("b")
    table.write(range(20, 25), day="b")
    first = query.drain(ReadMaxRows(4))
    assert _ids([row for rows in first for row in rows]) == list(range(10))
    assert len(first) == 3
    rest = query.available_now(ReadMaxRows(100))
    assert _ids([row for rows in rest for row in rows]) == list(range(10, 25))
    assert query.available_now() == []


# Partitions


def test_new_partitions_are_found_and_read_from_their_beginning(make: Make) -> None:
    table, start = make(days=["a"])
    table.write([1, 2], day="a")
    query = start(**{"scan_startup_mode": "latest", "scan_partition_discovery_interval": "0s"})
    assert query.trigger() == []
    table.add_day("b")
    table.write([3, 4], day="b")
    assert _ids(query.trigger()) == [3, 4]
    table.add_day("c")
    table.write([5], day="c")
    query.restart()
    table.write([6], day="a")
    assert _ids(query.trigger()) == [5, 6]


def test_partitions_are_looked_for_at_intervals(make: Make) -> None:
    table, start = make(days=["a"])
    query = start(scan_partition_discovery_interval="1h")
    query.trigger()
    table.add_day("b")
    table.write([1], day="b")
    assert query.trigger() == []
    query.restart()
    assert _ids(query.trigger()) == [1]


def test_a_dropped_partition_that_was_read_does_not_disturb(make: Make) -> None:
    table, start = make(days=["a", "b"])
    table.write([1], day="a")
    table.write([2], day="b")
    query = start()
    assert _ids(query.trigger()) == [1, 2]
    table.drop_day("a")
    table.write([3], day="b")
    assert _ids(query.trigger()) == [3]
    dropped = json.loads(query.planned[0])["b"].keys() - json.loads(query.planned[-1])["b"].keys()
    assert len(dropped) == 2
    query.restart()
    table.write([4], day="b")
    assert _ids(query.trigger()) == [4]


def test_a_dropped_partition_that_was_not_read_is_a_loss_and_can_be_skipped(make: Make) -> None:
    table, start = make(days=["a", "b"])
    table.write(range(10), day="a")
    table.write([100], day="b")
    query = start(maxRowsPerTrigger="3")
    first = query.trigger()
    table.drop_day("a")
    with pytest.raises(FlussError, match=r"bucket . of partition a: .* is gone, because its partition was dropped"):
        query.drain()
    query.restart()
    with pytest.raises(FlussError, match=r"partition a: .* is gone.* Set 'scan\.on-data-loss'=skip"):
        query.drain()
    query.restart(**{"scan.on-data-loss": "skip"})
    later = [row for batch in query.drain() for row in batch]
    assert _ids(later) == sorted({100} - set(_ids(first)))


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_rows_written_after_the_last_batch_and_lost_with_their_partition_are_a_loss(
    make: Make, keys: Sequence[str]
) -> None:
    table, start = make(days=["a", "b"], keys=keys, bucket_count=1)
    table.write([1], day="a")
    table.write([2], day="b")
    query = start()
    assert _ids(query.trigger()) == [1, 2]
    table.write([3, 4], day="b")
    table.drop_day("b")
    for _ in range(2):
        query.restart()
        with pytest.raises(FlussError, match=r"partition b: .* from offset 1 up to 3, is gone, because its partition"):
            query.drain()
    query.restart(**{"scan.on-data-loss": "fail-if-known"})
    with pytest.raises(FlussError, match=r"partition b: .* is gone"):
        query.drain()
    query.restart(**{"scan.on-data-loss": "skip"})
    table.write([5], day="a")
    assert _ids([row for batch in query.drain() for row in batch]) == [5]


def test_a_partition_that_is_created_again_is_a_new_one(make: Make) -> None:
    table, start = make(days=["a"], bucket_count=1)
    table.write([1], day="a")
    query = start()
    assert _ids(query.trigger()) == [1]
    table.drop_day("a")
    table.add_day("a")
    table.write([2], day="a")
    query.restart()
    assert _ids(query.trigger()) == [2]
    table.write([3], day="a")
    table.drop_day("a")
    table.add_day("a")
    query.restart()
    with pytest.raises(FlussError, match="partition a: what was not read yet, from offset 1 up to 2, is gone"):
        query.trigger()


def test_partitions_that_came_and_went_unseen_are_a_loss_if_they_had_rows(make: Make) -> None:
    table, start = make(days=["earlier", "a"], bucket_count=1)
    table.write([0], day="earlier")
    table.drop_day("earlier")
    query = start()
    table.write([1], day="a")
    assert _ids(query.trigger()) == [1]
    table.add_day("empty")
    table.drop_day("empty")
    query.restart()
    table.write([2], day="a")
    assert _ids(query.trigger()) == [2]
    table.add_day("full")
    table.write([3], day="full")
    table.drop_day("full")
    query.restart()
    with pytest.raises(FlussError, match=r"partition full: .* from offset 0 up to 1, is gone, .* created and dropped"):
        query.trigger()
    query.restart(scan_partitions="a")
    assert query.trigger() == []
    del query.options["scan.partitions"]
    query.restart(**{"scan.on-data-loss": "skip"})
    table.write([4], day="a")
    assert _ids(query.trigger()) == [4]
    query.restart(**{"scan.on-data-loss": "fail"})
    assert query.trigger() == []


def test_a_dropped_partition_whose_end_nobody_knows_is_an_error_unless_that_is_accepted(tmp_path: Path) -> None:
    # As with the servers of Apache Fluss, which do not tell.
    with ServerProcess(tmp_path, "-D", "durability=os") as server:
        config = blocking.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as opened:
            table = DayTable(opened, days=["a", "b"], bucket_count=1)
            table.write([1], day="a")
            table.write([2], day="b")
            query = _Query(table, server.bootstrap_servers)
            assert _ids(query.trigger()) == [1, 2]
            table.drop_day("b")
            server.stop()
            with closing(sqlite3.connect(tmp_path / FILE_NAME)) as metadata, metadata:
                metadata.execute("DELETE FROM dropped_partitions")
            server.restart()
            query.restart()
            table.write([3], day="a")
            with pytest.raises(
                FlussError,
                match=r"partition b: its partition was dropped, and the server does not tell .* up to offset 1, .* "
                r"'scan\.on-data-loss'=fail-if-known .*, or skip",
            ):
                query.trigger()
            query.restart(**{"scan.on-data-loss": "fail-if-known"})
            assert _ids(query.trigger()) == [3]


def test_the_checkpoint_of_another_table_is_named_as_such(make: Make) -> None:
    table, start = make()
    other, _ = make()
    table.write([1])
    query = start()
    query.trigger()
    query.table = other
    query.restart()
    with pytest.raises(FlussError, match=rf"that of a stream from {table.path}, and this one reads {other.path}"):
        query.trigger()
    # Checkpoints of earlier releases do not have the name.
    query.planned = [json.dumps({k: v for k, v in json.loads(text).items() if k != "table"}) for text in query.planned]
    query.restart()
    with pytest.raises(FlussError, match=r"it belongs to another table, or .* was dropped and created again"):
        query.trigger()


def test_a_checkpoint_of_an_earlier_release_goes_on(make: Make) -> None:
    table, start = make(days=["a", "b"])
    table.write([1], day="a")
    query = start()
    assert _ids(query.trigger()) == [1]
    offsets = [parse_offset(json.loads(text)) for text in query.planned]
    query.planned = [json.dumps(version_1(offset, has_names=False)) for offset in offsets]
    table.drop_day("b")
    table.write([2], day="a")
    query.restart()
    assert _ids(query.trigger()) == [2]


def test_a_batch_that_was_planned_before_its_partition_was_dropped_does_not_fail_for_ever(make: Make) -> None:
    table, start = make(days=["a", "b"])
    table.write([1], day="a")
    table.write([2], day="b")
    query = start()
    query.plan()
    table.drop_day("a")
    with pytest.raises(FlussError, match="its partition was dropped"):
        query.run()
    query.restart()
    with pytest.raises(FlussError, match="its partition was dropped"):
        query.run()
    query.restart(**{"scan.on-data-loss": "skip"})
    assert _ids(query.run()) == [2]


def test_partitions_that_are_not_chosen_any_more_stay_where_they_were(make: Make) -> None:
    table, start = make(days=["a", "b"])
    table.write([1], day="a")
    table.write([2], day="b")
    query = start()
    query.trigger()
    table.write([3], day="a")
    table.write([4], day="b")
    query.restart(scan_partitions="a;later")
    assert _ids(query.trigger()) == [3]
    del query.options["scan.partitions"]
    query.restart()
    assert _ids(query.trigger()) == [4]


# Losses


def test_records_deleted_before_they_were_read_are_an_error_or_skipped(make: Make) -> None:
    table, start = make(bucket_count=1)
    table.write(range(10))
    query = start(maxRowsPerTrigger="3")
    assert len(query.trigger()) == 3
    query.plan()
    table.expire()
    table.write(range(10, 13))
    query.restart()
    with pytest.raises(
        FlussError, match=r"bucket 0: what was not read yet, from offset 3 up to 6, is gone.*begins at 10"
    ):
        query.trigger()
    query.restart(**{"scan.on-data-loss": "skip"})
    assert query.trigger() == []
    assert _ids(query.trigger()) == [10, 11, 12]


def test_a_gap_found_between_two_batches_is_an_error_or_skipped(make: Make) -> None:
    table, start = make(bucket_count=1)
    table.write(range(10))
    query = start(maxRowsPerTrigger="3")
    assert len(query.trigger()) == 3
    table.expire()
    table.write(range(10, 13))
    query.restart()
    with pytest.raises(FlussError, match="from offset 3 up to 10, is gone"):
        query.trigger()
    query.restart(**{"scan.on-data-loss": "skip"})
    assert _ids(query.trigger()) == [10, 11, 12]


def test_records_deleted_between_plan_and_task_are_skipped_by_the_task(make: Make) -> None:
    table, start = make(bucket_count=1)
    table.write(range(10))
    query = start(**{"scan_on-data-loss": "skip"})
    assert query.plan()
    parts = query.reader.partitions(query.reader.initialOffset(), json.loads(query.planned[0]))
    table.expire()
    assert [batch for part in parts for batch in query.reader.read(part)] == []


def test_a_log_that_ends_before_what_was_read_is_an_error_or_begun_again_at_its_end(make: Make) -> None:
    table, start = make(bucket_count=1)
    table.write(range(10))
    query = start(**{"request-timeout": "2000"})
    query.trigger()
    # As if the last five records had been lost with a server.
    query.planned[0] = query.planned[0].replace('":0": 10', '":0": 15')
    query.restart()
    with pytest.raises(FlussError, match="from offset 10 up to 15, is gone, because its log ends at 10 now"):
        query.trigger()
    query.restart(**{"scan.on-data-loss": "skip"})
    query.trigger()
    table.write([10])
    assert _ids(query.trigger()) == [10]


def test_a_table_that_was_created_again_is_an_error(make: Make) -> None:
    table, start = make()
    table.write(range(5))
    query = start()
    query.trigger()
    query.plan()
    table.admin.drop_table(table.path)
    with pytest.raises(FlussError, match="does not exist"):
        query.trigger()
    table.create()
    table.write(range(5))
    with pytest.raises(FlussError, match="was dropped and created again"):
        query.trigger()
    query.restart()
    with pytest.raises(FlussError, match="begin with a new checkpoint"):
        query.trigger()


def test_a_column_added_while_the_stream_runs_is_not_seen_before_a_restart(make: Make) -> None:
    table, start = make()
    table.write([1])
    query = start()
    assert query.trigger() == [{"id": 1, "text": "x"}]
    table.admin.alter_table(table.path, add_columns=[pa.field("more", pa.int32())])
    table_now = table._connection.get_table(table.path)
    writer = table_now.new_append().create_writer()
    writer.write_arrow_batch(
        pa.RecordBatch.from_pydict({"id": [2], "text": ["y"], "more": [3]}, table_now.arrow_schema)
    )
    writer.flush()
    assert query.trigger() == [{"id": 2, "text": "y"}]
    query.restart()
    writer.write_arrow_batch(
        pa.RecordBatch.from_pydict({"id": [4], "text": ["z"], "more": [5]}, table_now.arrow_schema)
    )
    writer.flush()
    assert query.trigger() == [{"id": 4, "text": "z", "more": 5}]


# Primary keys


def test_a_table_with_keys_begins_with_its_rows_and_goes_on_with_what_changes(make: Make) -> None:
    table, start = make(keys=["id"])
    table.write(range(6), "old")
    table.write([1], "new")
    table.delete([0])
    query = start()
    first = query.trigger()
    assert {row["id"]: row["text"] for row in first} == {1: "new", 2: "old", 3: "old", 4: "old", 5: "old"}
    table.write([2, 2, 7], "newer")
    table.delete([3])
    assert sorted((row["id"], row["text"]) for row in query.trigger()) == [(2, "newer"), (7, "newer")]


def test_the_rows_of_the_first_batch_are_the_same_when_they_are_read_later(make: Make) -> None:
    table, start = make(keys=["id"])
    table.write(range(6), "old")
    query = start()
    query.plan()
    table.write([1, 9], "new")
    table.delete([0])
    query.restart()
    assert {row["id"]: row["text"] for row in query.trigger()} == dict.fromkeys(range(6), "old")
    assert {row["id"]: row["text"] for row in query.trigger()} == {1: "new", 9: "new"}


def test_rows_are_read_bucket_by_bucket_under_a_limit(make: Make) -> None:
    table, start = make(keys=["id"], bucket_count=4)
    table.write(range(40), "old")
    query = start(maxRowsPerTrigger="15")
    batches = [query.trigger()]
    assert json.loads(query.planned[-1])["phase"] == "snapshot"
    table.write([0], "new")
    query.restart()
    batches += query.drain()
    assert json.loads(query.planned[-1])["phase"] == "log"
    assert sorted((row["id"], row["text"]) for rows in batches for row in rows) == sorted(
        [(id_, "old") for id_ in range(40)] + [(0, "new")]
    )
    assert 3 <= len(batches) <= 5
    assert max(map(len, batches)) <= 15


def test_every_change_is_seen_with_the_changelog(make: Make) -> None:
    table, start = make(keys=["id"], bucket_count=1)
    table.write([1, 2], "old")
    query = start(scan_changelog="true")
    first = query.trigger()
    assert [(row["_change_type"], row["_log_offset"], row["_commit_timestamp"]) for row in first] == [
        ("insert", -1, None)
    ] * 2
    assert _ids(first) == [1, 2]
    table.write([1], "new")
    table.delete([2])
    rows = query.trigger()
    assert [(row["_change_type"], row["id"], row["text"]) for row in rows] == [
        ("update_before", 1, "old"),
        ("update_after", 1, "new"),
        ("delete", 2, "old"),
    ]
    assert [row["_log_offset"] for row in rows] == [2, 3, 4]
    assert all(row["_commit_timestamp"] is not None for row in rows)


def test_events_begin_with_the_rows_as_inserts(make: Make) -> None:
    table, start = make(keys=["id"], bucket_count=1)
    table.write([1], "old")
    query = start(table=f"{table.path}$binlog")
    old, new = {"id": 1, "text": "old"}, {"id": 1, "text": "new"}
    (row,) = query.trigger()
    assert row == {"_change_type": "insert", "_log_offset": -1, "_commit_timestamp": None, "before": None, "after": old}
    table.write([1], "new")
    (row,) = query.trigger()
    assert (row["_change_type"], row["before"], row["after"]) == ("update", old, new)


@pytest.mark.parametrize(("mode", "first"), [("earliest", ["insert"] * 2), ("latest", [])])
def test_other_startup_modes_of_a_table_with_keys_read_changes_only(make: Make, mode: str, first: list[str]) -> None:
    table, start = make(keys=["id"])
    table.write([1, 2])
    query = start(scan_changelog="true", scan_startup_mode=mode)
    assert [row["_change_type"] for row in query.trigger()] == first
    table.delete([1])
    assert [(row["_change_type"], row["id"]) for row in query.trigger()] == [("delete", 1)]


def test_new_partitions_of_a_table_with_keys_are_read_as_a_whole(make: Make) -> None:
    table, start = make(keys=["id"], days=["a"])
    table.write([1], day="a")
    query = start()
    query.trigger()
    table.add_day("b")
    table.write([1, 2], "old", day="b")
    table.write([2], "new", day="b")
    query.restart()
    assert sorted((row["id"], row["text"], row["day"]) for row in query.trigger()) == [(1, "old", "b"), (2, "new", "b")]


# Before Spark 4.2


def test_a_reader_that_is_not_told_where_a_batch_begins_misses_and_repeats_nothing(make: Make) -> None:
    table, start = make(days=["a"])
    table.write(range(5), day="a")
    query = _EarlierQuery(start(scan_partition_discovery_interval="0 s"))
    assert query.plan()
    table.write([5], day="a")
    query.restart()
    assert query.run() == list(range(5)), "the first batch, whatever the initial offset is now"
    assert query.plan()
    assert query.run() == [5]
    assert not query.plan()
    query.restart()
    assert not query.plan(), "started again with nothing new"
    table.add_day("b")
    table.write([6, 7], day="b")
    assert query.plan()
    table.write([8], day="b")
    query.restart()
    assert query.run() == [6, 7]
    query.restart()
    assert query.plan()
    assert query.run() == [8]


def test_limits_need_a_newer_spark(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, start = make()
    monkeypatch.setattr("fluss.spark.query_options.has_read_limits", lambda: False)
    start()
    with pytest.raises(FlussError, match=r"need Spark 4\.2 or newer"):
        start(maxRowsPerTrigger="4")


# Reports and waiting


def test_progress_tells_how_many_rows_a_query_is_behind(make: Make) -> None:
    table, start = make()
    table.write(range(10))
    query = start(maxRowsPerTrigger="4")
    query.trigger()
    latest = query.reader.reportLatestOffset()
    assert backlog({"sources": [{"endOffset": query.planned[-1], "latestOffset": json.dumps(latest)}]}) == 6


def test_progress_names_the_partitions_in_which_rows_wait_and_for_how_long(make: Make) -> None:
    table, start = make(days=["a", "b"], bucket_count=1)
    table.write(range(90), day="b")
    table.write(range(10), day="a")
    written_s = time.time()
    query = start(maxRowsPerTrigger="10")
    query.trigger()
    assert json.loads(query.planned[-1])["b"] == {"a:0": 1, "b:0": 9}
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    assert latest["b"] == {"a:0": 10, "b:0": 90}
    assert (latest["lag"]["table"], latest["lag"]["rows"]) == (str(table.path), 90)
    (worst, next_worst) = latest["lag"]["worst"].items()
    assert (worst[0], worst[1]["rows"]) == ("b:0", 81)
    assert (next_worst[0], next_worst[1]["rows"]) == ("a:0", 9)
    (lag,) = lags({"sources": [{"endOffset": query.planned[-1], "latestOffset": json.dumps(latest)}]})
    assert lag.seconds == max(each.seconds or 0 for each in lag.worst)
    assert 0 <= lag.seconds <= time.time() - written_s + 60
    while query.trigger():
        pass
    done = query.reader.reportLatestOffset()
    assert done is not None
    assert done["lag"] == {"table": str(table.path), "rows": 0, "seconds": 0.0, "worst": {}}


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_is_waited_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "-D", "durability=os") as mortal:
        config = blocking.Config({"bootstrap.servers": mortal.bootstrap_servers})
        with blocking.FlussConnection.create(config) as opened:
            table = DayTable(opened)
            table.write(range(5))
            query = _Query(table, mortal.bootstrap_servers)
            assert _ids(query.trigger()) == list(range(5))
            table.write(range(5, 8))
            back = threading.Timer(0.5, mortal.restart)
            mortal.kill()
            back.start()
            assert query.plan()
            back.join()
            mortal.kill()
            back = threading.Timer(0.5, mortal.restart)
            back.start()
            assert _ids(query.run()) == [5, 6, 7]
            back.join()
            query.restart(**{"request-timeout": "2000"})
            assert query.trigger() == []
            mortal.kill()
            with pytest.raises(FlussError, match=rf"could not be reached for 2(\.0)? s .*127.0.0.1:{mortal.port}"):
                query.trigger()
            mortal.restart()
            table.write([8])
            query.restart()
            assert _ids(query.trigger()) == [8]


def test_startup_offsets_that_cannot_be_are_refused(make: Make) -> None:
    table, start = make(bucket_count=1)
    table.write(range(3))
    for offsets, complaint in (('{":1": 0}', "no such bucket"), ('{"a:0": 0}', "no such"), ('{":0": 4}', "ends at 3")):
        query = start(scan_startup_mode="offsets", scan_startup_offsets=offsets)
        with pytest.raises(FlussError, match=complaint):
            query.trigger()


def test_mistakes_in_options_are_reported_at_once(make: Make) -> None:
    _, start = make()
    query = start(scan_filter="id > 'x'")
    begun_s = time.monotonic()
    with pytest.raises(FlussError, match="id"):
        query.trigger()
    assert time.monotonic() - begun_s < 20


def test_the_lake_alone_is_no_stream_also_after_a_restart(make: Make) -> None:
    table, start = make()
    table.write([1])
    query = start()
    query.trigger()
    query.restart(**{"scan.mode": "lake"})
    with pytest.raises(FlussError, match="The lake alone is no stream"):
        query.trigger()


def test_filters_and_columns_are_applied(make: Make) -> None:
    table, start = make()
    table.write(range(10))
    rows = start(["id"], scan_filter="id >= 7").trigger()
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": 7}, {"id": 8}, {"id": 9}]


def test_a_batch_that_is_repeated_has_the_same_tasks_whatever_else_has_changed(make: Any) -> None:
    # Every task of a sink knows what it has written itself, and nothing of the others.
    table, query = make(bucket_count=2)
    table.write(range(200), "x" * 100)
    reading = query(**{"scan.startup.mode": "earliest", "scan.target-task-bytes": "4000"})
    first = reading.reader.initialOffset()
    assert reading.plan()

    def tasks() -> list[Any]:
        return [part.value for part in reading.reader.partitions(first, json.loads(reading.planned[0]))]

    before = tasks()
    assert len(before) > 1
    reading.restart(**{"scan.target-task-bytes": "1000000", "scan.max-tasks": "1"})
    assert tasks() == before
    assert sorted(row["id"] for row in reading.run()) == list(range(200))
