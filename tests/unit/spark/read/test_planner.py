"""Plans of reads: which partitions, buckets and offsets are read, decided once, and never more than is asked for.
Shown with the tables of a server inside the test, and without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, embedded
from fluss.client.bulk import LogRange, SequencedWriter, new_writer_id, read_ranges, table_facts
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.row.arrow_arrays import estimated_row_bytes
from fluss.schema.offsets import LakeSnapshot
from fluss.schema.table import TableBucket
from fluss.schema.types import DataTypes
from fluss.spark.query_options import ReadOptions, read_options
from fluss.spark.read import lake_part, planner
from fluss.spark.read.past import version_of
from fluss.spark.read.planner import Split, TablePlan, matching_buckets, plan_batch, planned_buckets, read_view
from fluss.spark.read.snapshot import Snapshot
from fluss.spark.read.split_read import SplitRead
from fluss.spark.type_mapping import spark_schema
from tests.integration.keyed_tables import Tables, upsert

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("region", pa.string())])


class PlannedTables(Tables):
    """Makes tables of one server, and plans reads of them."""

    def create(self, schema: pa.Schema = ROWS, keys: tuple[str, ...] = (), **descriptor: Any) -> fluss.FlussTable:
        return super().create(schema, keys, **descriptor)

    def options(self, table: fluss.FlussTable, view: str = "", **options: str) -> ReadOptions:
        given = {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
        return read_options(
            {"bootstrap.servers": self.server.bootstrap_servers, "table": f"{table.table_path}{view}", **given},
            is_stream=False,
        )

    def plan(self, table: fluss.FlussTable, view: str = "", **options: str) -> TablePlan:
        read = self.options(table, view, **options)
        info = table.get_table_info()
        return plan_batch(table, read, info.schema.column_names, read.row_filter(info.schema))


@pytest.fixture(scope="module")
def tables(fluss_server: embedded.EmbeddedServer) -> Iterator[PlannedTables]:
    made = PlannedTables(fluss_server)
    yield made
    made.close()


def append(table: fluss.FlussTable, rows: list[list[Any]]) -> None:
    writer = table.new_append().create_writer()
    for row in rows:
        writer.append(row)
    wait_for(writer.flush())


def splits(plan: TablePlan) -> list[Split]:
    return [split for task in plan.tasks for split in task]


def row_count(plan: TablePlan) -> int:
    """How many rows the tasks read, if every offset has one."""
    return sum(split.weight for split in splits(plan))


def by_partition(tables: PlannedTables) -> fluss.FlussTable:
    table = tables.create(bucket_count=2, partition_keys=["day", "region"])
    for day in ("2026-01-01", "2026-01-02"):
        for region in ("eu", "us"):
            wait_for(tables.admin.create_partition(table.table_path, {"day": day, "region": region}))
    rows = [
        [each, day, region] for each in range(10) for day in ("2026-01-01", "2026-01-02") for region in ("eu", "us")
    ]
    append(table, rows)
    return table


# Which parts


def test_all_of_a_log_is_planned_up_to_where_it_ends_now(tables: PlannedTables) -> None:
    table = tables.create(bucket_count=3)
    append(table, [[each, "d", "r"] for each in range(30)])
    plan = tables.plan(table)
    append(table, [[each, "d", "r"] for each in range(30, 50)])
    assert (plan.view, plan.table_id) == ("log", table.get_table_info().table_id)
    assert sum(split.weight for split in splits(plan)) == 30
    assert {(split.kind, split.start, split.partition_name) for split in splits(plan)} == {("log", 0, None)}
    assert sum(split.weight for split in splits(tables.plan(table))) == 50


def test_an_empty_table_has_no_tasks(tables: PlannedTables) -> None:
    assert tables.plan(tables.create(bucket_count=3)).tasks == ()
    assert tables.plan(tables.create(keys=("id",), bucket_count=3)).tasks == ()
    assert tables.plan(tables.create(bucket_count=3, partition_keys=["day"])).tasks == ()


def test_partitions_are_chosen_by_name_by_values_and_by_the_filter(tables: PlannedTables) -> None:
    table = by_partition(tables)

    def names(**options: str) -> set[str | None]:
        return {split.partition_name for split in splits(tables.plan(table, **options))}

    everything = {"2026-01-01$eu", "2026-01-01$us", "2026-01-02$eu", "2026-01-02$us"}
    assert names() == everything
    assert names(scan__partitions="2026-01-01$eu") == {"2026-01-01$eu"}
    assert names(scan__partitions="day=2026-01-01") == {"2026-01-01$eu", "2026-01-01$us"}
    assert names(scan__partitions="day=2026-01-01/region=us") == {"2026-01-01$us"}
    assert names(scan__partitions="day=2026-01-01/region=us; region=eu") == everything - {"2026-01-02$us"}
    assert names(scan__filter="day = '2026-01-02' AND id > 3") == {"2026-01-02$eu", "2026-01-02$us"}
    assert names(scan__filter="day IN ('2026-01-02', 'x') AND region LIKE 'u%'") == {"2026-01-02$us"}
    assert names(scan__filter="day = '2026-01-02' OR id > 3") == everything
    assert names(scan__filter="day = '1999-01-01'") == set()
    assert names(scan__partitions="region=eu", scan__filter="day < '2026-01-02'") == {"2026-01-01$eu"}


def test_partitions_that_do_not_exist_are_an_error(tables: PlannedTables) -> None:
    table = by_partition(tables)
    for choice, code in (("day=1999-01-01", 36), ("1999-01-01$eu", 36), ("hour=3", 43)):
        with pytest.raises(FlussError) as caught:
            tables.plan(table, scan__partitions=choice)
        assert caught.value.error_code == code
    with pytest.raises(FlussError, match="has no partitions to choose from"):
        tables.plan(tables.create(), scan__partitions="day=1999-01-01")


def test_a_partition_that_is_dropped_meanwhile_is_planned_without(
    tables: PlannedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = by_partition(tables)
    existing = table_facts.partitions_of(table)
    found = [existing]
    monkeypatch.setattr(planner, "partitions_of", lambda of: found.pop() if found else table_facts.partitions_of(of))
    wait_for(tables.admin.drop_partition(table.table_path, {"day": "2026-01-01", "region": "eu"}))
    names = {split.partition_name for split in splits(tables.plan(table))}
    assert found == []
    assert names == {"2026-01-01$us", "2026-01-02$eu", "2026-01-02$us"}


def test_only_buckets_that_a_key_can_be_in_are_read(tables: PlannedTables) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])
    table = tables.create(schema, ("id", "name"), bucket_count=16)
    info = table.get_table_info()

    def buckets(text: str, of: fluss.FlussTable = table) -> list[int]:
        read = tables.options(of, scan__filter=text)
        return matching_buckets(of.get_table_info(), read.row_filter(of.get_table_info().schema))

    everywhere = list(range(16))
    assert buckets("id = 5") == everywhere
    assert buckets("id = 5 OR name = 'a'") == everywhere
    assert buckets("price = 3.0") == everywhere
    for number, name in ((1, "a"), (7, "ü"), (-3, "")):
        upsert(table, [[number, name, 1.0]])
        found = buckets(f"id = {number} AND name = '{name}' AND price > 0")
        assert 1 <= len(found) <= 2
        planned = planned_buckets(
            table,
            tables.options(table),
            tables.options(table, scan__filter=f"id = {number} AND name = '{name}'").row_filter(info.schema),
        )
        assert [each.bucket.bucket_id for each in planned] == found
        plan = tables.plan(table, scan__filter=f"id = {number} AND name = '{name}'")
        assert len(splits(plan)) == 1, "the row is in a bucket that is read"
    # Clients that hash such letters differently put the row elsewhere.
    assert any(len(buckets(f"id = 7 AND name = '{name}'")) == 2 for name in ("ü", "éé", "ßß", "öö"))
    several = buckets("id IN (1, 2, 3) AND name IN ('a', 'b')")
    assert set(buckets("id = 1 AND name = 'a'")) <= set(several) < set(everywhere)
    # Rows of a log table without a bucket key may be anywhere.
    assert buckets("id = 5", tables.create(schema, bucket_count=16)) == everywhere
    assert len(buckets("id = 5", tables.create(schema, bucket_count=16, bucket_keys=["id"]))) <= 2


def test_rows_of_a_primary_key_table_are_planned_by_bucket_and_counted(tables: PlannedTables) -> None:
    table = tables.create(keys=("id",), bucket_count=4)
    upsert(table, [[each, "d", "r"] for each in range(100)])
    upsert(table, [[each, "e", "r"] for each in range(100)])
    plan = tables.plan(table, scan__target_task_bytes="1b")
    assert plan.view == "rows"
    found = splits(plan)
    assert [split.bucket_id for split in sorted(found, key=lambda split: split.bucket_id)] == [0, 1, 2, 3]
    assert sum(split.row_count or 0 for split in found) == 100
    ends = wait_for(tables.admin.list_offsets(table.table_path, range(4), "latest"))
    assert {split.bucket_id: split.stop for split in found} == ends
    assert len(plan.tasks) == 4
    # A changelog of the image WAL is not counted; then the offsets have to do.
    wal = tables.create(keys=("id",), properties={"table.changelog.image": "WAL"})
    upsert(wal, [[each, "d", "r"] for each in range(10)])
    assert [(split.row_count, split.weight) for split in splits(tables.plan(wal))] == [(None, 10)]


@pytest.mark.parametrize(
    ("view", "options", "expected"),
    [
        ("", {}, "rows"),
        ("", {"scan__incremental__start__timestamp": "0"}, "upserts"),
        ("$changelog", {}, "changelog"),
        ("", {"scan__changelog": "true"}, "changelog"),
        ("$binlog", {}, "binlog"),
    ],
)
def test_what_is_read_of_a_table_with_a_primary_key(
    tables: PlannedTables, view: str, options: dict[str, str], expected: str
) -> None:
    table = tables.create(keys=("id",), bucket_count=1)
    upsert(table, [[1, "d", "r"], [1, "e", "r"]])
    assert read_view(table.get_table_info(), tables.options(table, view, **options)) == expected
    (split,) = splits(tables.plan(table, view, **options))
    assert (split.kind, split.stop) == ("rows" if expected == "rows" else "log", 3)


def test_a_log_table_has_a_changelog_and_no_binlog(tables: PlannedTables) -> None:
    table = tables.create()
    assert read_view(table.get_table_info(), tables.options(table, "$changelog")) == "changelog"
    with pytest.raises(FlussError, match="is a log table: its rows never change"):
        tables.plan(table, "$binlog")


# Time ranges


def test_a_time_range_begins_and_ends_at_the_records_of_these_times(tables: PlannedTables) -> None:
    table = tables.create(bucket_count=1)
    times_ms = []
    for each in range(4):
        append(table, [[each, "d", "r"]])
        times_ms.append(commit_time(table, each))
        time.sleep(0.005)

    def planned(start_ms: int, end_ms: int | None = None) -> list[tuple[int, int]]:
        options = {"scan__incremental__start__timestamp": str(start_ms)}
        if end_ms is not None:
            options["scan__incremental__end__timestamp"] = str(end_ms)
        return [(split.start, split.stop) for split in splits(tables.plan(table, **options))]

    assert planned(0) == [(0, 4)]
    assert planned(times_ms[1]) == [(1, 4)]
    assert planned(times_ms[1], times_ms[3]) == [(1, 3)]
    assert planned(times_ms[1] + 1, times_ms[2]) == []
    assert planned(times_ms[2], times_ms[3] + 86_400_000) == [(2, 4)]
    with pytest.raises(FlussError, match="in the future") as caught:
        planned(times_ms[3] + 86_400_000)
    assert caught.value.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION


def commit_time(table: fluss.FlussTable, offset: int) -> int:
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe(0, offset)
    records = scanner.poll(120_000)
    scanner.close()
    return next(iter(records)).timestamp


def test_an_end_that_a_server_has_found_too_early_is_moved_to_the_end_of_the_log(
    tables: PlannedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.create(bucket_count=1)
    for each in range(4):
        append(table, [[each, "d", "r"]])
        time.sleep(0.005)
    end_ms = commit_time(table, 2)
    exact = table_facts.offsets_of

    def coarse(of: Any, buckets: Any, spec: Any) -> dict[TableBucket, int]:
        found = exact(of, buckets, spec)
        return {bucket: max(offset - 1, 0) if spec.timestamp_ms else offset for bucket, offset in found.items()}

    options = {"scan__incremental__start__timestamp": "1", "scan__incremental__end__timestamp": str(end_ms)}
    assert [(split.start, split.stop) for split in splits(tables.plan(table, **options))] == [(0, 2)]
    monkeypatch.setattr(planner, "offsets_of", coarse)
    # Tasks leave out what is too late.
    assert [(split.start, split.stop) for split in splits(tables.plan(table, **options))] == [(0, 4)]


def test_a_time_range_that_is_older_than_records_are_kept_is_warned_of(
    tables: PlannedTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = tables.create(properties={"table.log.ttl": "1 h"})
    now_ms = int(time.time() * 1000)
    with caplog.at_level(logging.WARNING):
        tables.plan(table, scan__incremental__start__timestamp=str(now_ms - 1_800_000))
        assert caplog.text == ""
        tables.plan(table, scan__incremental__start__timestamp=str(now_ms - 7_200_000))
    assert "some may be gone" in caplog.text


# Lakes


@pytest.mark.parametrize(
    ("view", "options", "problem"),
    [
        ("$lake", {}, "The lake has nothing of"),
        ("", {"scan__mode": "lake"}, "The lake has nothing of"),
        ("", {"read__optimized": "true"}, "which cannot be read yet"),
    ],
)
def test_what_is_not_there_is_refused(tables: PlannedTables, view: str, options: dict[str, str], problem: str) -> None:
    for table in (tables.create(), tables.create(partition_keys=["day"])):
        with pytest.raises(FlussError, match=problem):
            tables.plan(table, view, **options)


def test_the_past_of_a_table_whose_oldest_records_are_only_in_its_lake_is_refused(
    tables: PlannedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.create(bucket_count=1)
    append(table, [[each, "d", "r"] for each in range(10)])
    bucket = TableBucket(table.get_table_info().table_id, 0)
    exact = table_facts.offsets_of

    def expired(of: Any, buckets: Any, spec: Any) -> dict[TableBucket, int]:
        found = exact(of, buckets, spec)
        return dict.fromkeys(found, 4) if spec.offset_type == "earliest" else found

    monkeypatch.setattr(planner, "offsets_of", expired)
    # Records that have expired are gone, and that is that.
    assert [(split.start, split.stop) for split in splits(tables.plan(table))] == [(4, 10)]
    monkeypatch.setattr(lake_part, "lake_snapshot_of", lambda of: LakeSnapshot._create(1, {bucket: 6}))
    past = {"scan__as_of__offsets": '{":0": 9}'}
    with pytest.raises(FlussError, match=r"has the oldest records of .* in its lake only.*'scan.mode'=fluss"):
        tables.plan(table, **past)
    assert [(split.start, split.stop) for split in splits(tables.plan(table, scan__mode="fluss", **past))] == [(4, 9)]
    ranged = tables.plan(table, scan__incremental__start__timestamp="1")
    assert [split.stop for split in splits(ranged)] == [10], "a time range is never read from a lake"
    assert [split.start for split in splits(tables.plan(table, "$changelog"))] == [4]


def test_the_past_of_a_table_with_partitions_that_only_its_lake_has_is_refused(
    tables: PlannedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = by_partition(tables)
    gone = TableBucket.with_partition(table.get_table_info().table_id, 123_456, 0)
    monkeypatch.setattr(lake_part, "lake_snapshot_of", lambda of: LakeSnapshot._create(1, {gone: 6}))
    # Writers of logs without bucket keys choose buckets at random.
    partition, latest = "2026-01-01$eu", fluss.OffsetSpec.latest()
    ends = wait_for(tables.admin.list_partition_offsets(table.table_path, partition, [0, 1], latest))
    filled = next(bucket_id for bucket_id, end in ends.items() if end)
    past = {"scan__as_of__offsets": f'{{"{partition}:{filled}": 1}}'}
    with pytest.raises(FlussError, match="has partition 123456 in its lake only"):
        tables.plan(table, **past)
    assert len(splits(tables.plan(table, scan__partitions="region=eu", **past))) == 1


def test_a_table_of_which_the_lake_has_nothing_is_read_from_fluss(tables: PlannedTables) -> None:
    assert table_facts.lake_snapshot_of(tables.create()) is None
    with embedded.start({"durability": "os", "datalake.format": "paimon"}) as server:
        with_lake = PlannedTables(server)
        table = with_lake.create(properties={"table.datalake.enabled": "true"})
        append(table, [[1, "d", "r"]])
        assert table_facts.lake_snapshot_of(table) is None
        assert len(splits(with_lake.plan(table))) == 1
        with_lake.close()


# Sizes


def test_more_columns_make_more_tasks_and_options_limit_them(tables: PlannedTables) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = tables.create(schema, bucket_count=2)
    writer = table.new_append().create_writer()
    batch = pa.RecordBatch.from_arrays([pa.array(range(2000)), pa.array(["x" * 1000] * 2000)], schema=schema)
    for _ in range(4):
        writer.write_arrow_batch(batch)
    wait_for(writer.flush())

    def task_count(columns: list[str], **options: str) -> int:
        return len(plan_batch(table, tables.options(table, scan__cores="2", **options), columns).tasks)

    assert task_count(["id"], scan__target_task_bytes="1mb") == 1
    # The text is measured: by its type nobody could tell that it takes 1,000 bytes.
    assert task_count(["id", "text"], scan__target_task_bytes="1mb") == 8
    assert task_count(["id", "text"], scan__target_task_bytes="1mb", scan__max_tasks="3") == 3
    assert task_count(["id"], scan__maxRecordsPerPartition="1000") == 8
    assert task_count(["id"], scan__maxRecordsPerPartition="1000", scan__max_tasks="5") == 5


def test_tasks_are_even_in_bytes_and_as_many_as_cores_want(tables: PlannedTables) -> None:
    schema = pa.schema([("day", pa.string()), ("text", pa.string())])
    table = tables.create(schema, bucket_count=1, partition_keys=["day"])
    row_bytes = {"small": 200, "large": 2000}
    for day, size in row_bytes.items():
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.table({"day": [day] * 3000, "text": ["x" * size] * 3000}, schema=schema))
        wait_for(writer.flush())

    def sizes(**options: str) -> list[int]:
        found = plan_batch(table, tables.options(table, **options), ["day", "text"])
        return [sum(split.weight * row_bytes[split.partition_name or ""] for split in task) for task in found.tasks]

    for cores, count in ((2, 8), (4, 8), (5, 10)):
        even = sizes(scan__target_task_bytes="1mb", scan__cores=str(cores))
        assert len(even) == count, "seven times the target, or the next multiple of the cores"
        assert max(even) < 1.2 * min(even)
    # With a limit of rows, it is rows that count.
    assert len(sizes(scan__maxRecordsPerPartition="1000", scan__cores="2")) == 6


def test_types_tell_how_large_rows_may_be() -> None:
    schema = (
        fluss.Schema.builder()
        .column("id", DataTypes.bigint())
        .column("text", DataTypes.string())
        .column("list", DataTypes.array(DataTypes.bigint()))
        .column("map", DataTypes.map(DataTypes.string(), DataTypes.int()))
        .build()
    )
    assert 8 <= estimated_row_bytes(schema, ["id"]) <= 9
    sizes = [estimated_row_bytes(schema, [name]) for name in ("id", "text", "list", "map")]
    assert sizes == sorted(sizes)
    assert estimated_row_bytes(schema, []) == 1


# What Spark has told


def test_a_hint_leaves_out_tasks_and_not_what_the_snapshot_has(tables: PlannedTables) -> None:
    table = by_partition(tables)
    info = table.get_table_info()
    columns = info.schema.column_names
    read = replace(tables.options(table), hinted_filter="`region` = 'eu' AND `day` > '2026-01-01' AND `no` = 1")
    hint = read.row_hint(info.schema)
    first = plan_batch(table, read, columns, hint=hint)
    assert {split.partition_name for split in splits(first)} == {"2026-01-02$eu"}
    assert first.row_count is None
    # Another read of the same DataFrame, after more was written: other partitions, the same moment.
    append(table, [[each, "2026-01-01", "us"] for each in range(100)])
    again = Snapshot.from_text(first.snapshot.to_text(), info)
    assert again == first.snapshot
    second = plan_batch(table, tables.options(table), columns, snapshot=again)
    assert sum(split.weight for split in splits(second)) == 40
    assert sum(split.weight for split in splits(tables.plan(table))) == 140


def test_a_hint_of_a_key_leaves_one_bucket_of_the_snapshot(tables: PlannedTables) -> None:
    table = tables.create(keys=("id",), bucket_count=8)
    upsert(table, [[each, "d", "r"] for each in range(100)])
    info = table.get_table_info()
    read = replace(tables.options(table), hinted_filter="`id` = 7")
    plan = plan_batch(table, read, info.schema.column_names, hint=read.row_hint(info.schema))
    assert {split.bucket_id for split in splits(plan)} == set(matching_buckets(info, read.row_hint(info.schema)))
    assert len(plan.snapshot.ranges) == 8
    # Offsets are changes, not rows.
    assert plan.row_count is None


def test_offsets_are_not_taken_for_rows(tables: PlannedTables) -> None:
    table = tables.create(bucket_count=1)
    assert tables.plan(table).row_count == 0
    bucket = TableBucket(table.get_table_info().table_id, 0)
    rows = pa.record_batch({"id": [1, 2, 3], "day": ["d"] * 3, "region": ["r"] * 3}, ROWS)
    with SequencedWriter(table, new_writer_id(table)) as writer:
        # As a task that is tried again keeps an earlier attempt from writing on.
        for _ in range(10):
            writer.append_nothing(bucket)
        writer.append(bucket, rows)
        writer.flush()
    columns = table.get_table_info().schema.column_names
    for limit in (None, 2):
        read = replace(tables.options(table), hinted_limit=limit)
        plan = plan_batch(table, read, columns)
        assert plan.row_count is None
        found = SplitRead(read, spark_schema(table.get_table_info().schema), plan.view)
        batches = [batch for task in plan.tasks for batch in found.read(task)]
        assert sum(batch.num_rows for batch in batches) == (3 if limit is None else limit)


def test_a_snapshot_is_of_one_table_and_not_of_the_next_with_its_name(tables: PlannedTables) -> None:
    table, other = tables.create(bucket_count=1), tables.create(bucket_count=1)
    text = tables.plan(table).snapshot.to_text()
    with pytest.raises(FlussError, match="was dropped and created again since the read was planned"):
        Snapshot.from_text(text, other.get_table_info())


# The past


def test_a_table_is_planned_as_it_was_at_offsets_and_at_a_time(tables: PlannedTables) -> None:
    table = tables.create(bucket_count=1)
    append(table, [[each, "d", "r"] for each in range(10)])
    version = version_of(table)
    (run,) = read_ranges(table, [LogRange(TableBucket(table.get_table_info().table_id, 0), 0, 10)], columns=["id"])
    while int(time.time() * 1000) <= run.timestamp_ms:
        time.sleep(0.001)
    append(table, [[each, "d", "r"] for each in range(5)])
    assert version == '{":0": 10}'
    assert row_count(tables.plan(table, scan__as_of__offsets=version)) == 10
    assert row_count(tables.plan(table, scan__as_of__offsets='{":0": 3}')) == 3
    assert row_count(tables.plan(table, scan__as_of__offsets="{}")) == 0
    assert row_count(tables.plan(table, scan__as_of__timestamp=str(run.timestamp_ms))) == 10
    assert row_count(tables.plan(table, scan__as_of__timestamp=str(run.timestamp_ms - 1))) == 0
    assert row_count(tables.plan(table)) == 15
    with pytest.raises(FlussError, match="ends at 15, before the offset 16"):
        tables.plan(table, scan__as_of__offsets='{":0": 16}')
    with pytest.raises(FlussError, match="is not known yet"):
        tables.plan(table, scan__as_of__timestamp=str(int(time.time() * 1000) + 3_600_000))


def test_offsets_of_buckets_that_a_table_does_not_have_are_refused(tables: PlannedTables) -> None:
    table = by_partition(tables)
    version = version_of(table)
    # Buckets that are not read, because of their partition or of the filter, are no mistake.
    assert row_count(tables.plan(table, scan__as_of__offsets=version)) == 40
    chosen = {"scan__partitions": "day=2026-01-01,region=eu", "scan__as_of__offsets": version}
    assert sum(split.weight for split in splits(tables.plan(table, **chosen))) == 10
    filtered = {"scan__filter": "region = 'us'", "scan__as_of__offsets": version}
    assert sum(split.weight for split in splits(tables.plan(table, **filtered))) == 20
    for offsets, reason in (
        ('{"2026-01-09$eu:0": 1}', r"no bucket '2026-01-09\$eu:0' .* no partition '2026-01-09\$eu' \(any more\)"),
        ('{"2026-01-01$eu:2": 1}', "buckets are written '<partition>:<bucket>' and numbered from 0 to 1"),
        ('{":0": 1}', "no partition '' "),
    ):
        with pytest.raises(FlussError, match=reason):
            tables.plan(table, scan__as_of__offsets=offsets)
    wait_for(tables.admin.drop_partition(table.table_path, {"day": "2026-01-01", "region": "eu"}))
    with pytest.raises(FlussError, match=r"no partition '2026-01-01\$eu' \(any more\)"):
        tables.plan(table, scan__as_of__offsets=version)
    plain = tables.create(bucket_count=2)
    with pytest.raises(FlussError, match="no bucket 'p:0' to be read at an offset: buckets are written ':<bucket>'"):
        tables.plan(plain, scan__as_of__offsets='{"p:0": 1}')
