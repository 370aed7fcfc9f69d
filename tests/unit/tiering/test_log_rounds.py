"""Rounds of log tables in this process: every record is in the lake once, whatever happens to a round on its way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pyarrow.fs
import pytest

from fluss import FlussTable
from fluss.client.bulk import admin_of, lake_snapshot_of, tiering_calls_of, wait_for
from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.tiering.progress import RoundProgress, TieringReport
from fluss.tiering.round_commit import RoundLostError, Step
from fluss.tiering.round_plan import TieringSplit, lake_tables_of, packed
from fluss.tiering.rounds import tier
from fluss.tiering.split_result import Deadline
from fluss.tiering.task_runners import RunHere
from tests.unit.tiering.lakes import LakeCluster, lake_rows, lake_table, ordered

EVENTS = pa.schema([("id", pa.int64()), ("text", pa.string())])


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"event {number}"} for number in range(first, first + count)]


def append(cluster: LakeCluster, name: str, first: int, count: int) -> None:
    cluster.append(name, pa.Table.from_pylist(events(first, count), EVENTS))


def offsets_in_lake(table: FlussTable) -> list[tuple[int, int]]:
    return sorted((row["__bucket"], row["__offset"]) for row in lake_rows(table, system=True))


def known_offsets(table: FlussTable) -> dict[int, int]:
    snapshot = lake_snapshot_of(table)
    return {} if snapshot is None else {b.bucket_id: o for b, o in snapshot.table_buckets_offset.items()}


def test_each_round_brings_what_is_new(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    nothing = tier(table)
    assert (nothing.snapshot_id, nothing.rows, nothing.splits) == (None, 0, 0)
    for first in (0, 500):
        append(lake_cluster, name, first, 500)
        report = tier(table)
        assert (report.rows, report.lag_rows, report.is_complete) == (500, 0, True)
        assert report.bytes > 0
        assert report.lag_s is not None
    assert lake_rows(table) == ordered(events(0, 1000))
    known = known_offsets(table)
    assert offsets_in_lake(table) == [(bucket, offset) for bucket in sorted(known) for offset in range(known[bucket])]
    snapshot = lake_snapshot_of(table)
    assert snapshot is not None
    assert snapshot.snapshot_id == report.snapshot_id == lake_table(table).metadata.current_snapshot_id
    assert tier(table).snapshot_id is None


def test_partitions_columns_that_came_later_and_partitions_that_are_gone(lake_cluster: LakeCluster, name: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = lake_cluster.create(name, columns, partition_keys=["day"], buckets=1)
    for day in ("1", "2", "3"):
        wait_for(lake_cluster.admin.create_partition(name, {"day": day}))
    lake_cluster.append(name, pa.table({"id": [1, 2, 3], "day": ["1", "2", "3"]}))
    assert tier(table).rows == 3
    wait_for(lake_cluster.admin.drop_partition(name, {"day": "1"}))
    lake_cluster.append(name, pa.table({"id": [4, 5], "day": ["2", "3"]}))
    wait_for(lake_cluster.admin.alter_table(name, add_columns=[pa.field("note", pa.string())]))
    lake_cluster.append(name, pa.table({"id": [6], "day": ["2"], "note": ["new"]}))

    class Late(RunHere):
        def __call__(self, *tasks: Any) -> Any:
            # Planned, and dropped before it is read: the rest of the round goes on.
            wait_for(lake_cluster.admin.drop_partition(name, {"day": "3"}))
            return super().__call__(*tasks)

    report = tier(table, run_tasks=Late())
    assert report.rows == 2
    rows = sorted((row["id"], row["day"], row["note"]) for row in lake_rows(table))
    assert rows == [(1, "1", None), (2, "2", None), (3, "3", None), (4, "2", None), (6, "2", "new")]
    assert tier(table).snapshot_id is None


def test_every_type_arrives_as_it_was_written(lake_cluster: LakeCluster, name: str) -> None:
    values: dict[str, tuple[pa.DataType, Any]] = {
        "bool": (pa.bool_(), True),
        "tiny": (pa.int8(), -7),
        "small": (pa.int16(), -700),
        "int": (pa.int32(), 70000),
        "big": (pa.int64(), -(1 << 60)),
        "float": (pa.float32(), 1.5),
        "double": (pa.float64(), -2.25),
        "decimal": (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
        "text": (pa.string(), "Grüße"),
        "bytes": (pa.binary(), b"\x00\xff"),
        "fixed": (pa.binary(3), b"abc"),
        "date": (pa.date32(), date(1969, 7, 20)),
        "time": (pa.time32("ms"), time(23, 59, 59, 999000)),
        "plain": (pa.timestamp("us"), datetime(1960, 2, 29, 12, 30, 0, 123456)),
        "zoned": (pa.timestamp("us", "UTC"), datetime(2026, 11, 16, 1, 2, 3, 4, UTC)),
        "list": (pa.list_(pa.int32()), [1, None, 3]),
        "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
        "row": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}),
    }
    columns = pa.schema([(column, arrow_type) for column, (arrow_type, _) in values.items()])
    table = lake_cluster.create(name, columns, buckets=1)
    full = {column: value for column, (_, value) in values.items()}
    lake_cluster.append(name, pa.Table.from_pylist([full, dict.fromkeys(values)], columns))
    assert tier(table).rows == 2
    assert lake_rows(table) == ordered([full, dict.fromkeys(values)])


# Failures


class Crash(BaseException):
    """The process dies."""


def crash_after(step: Step) -> Callable[[Step], None]:
    def on_step(done: Step) -> None:
        if done == step:
            raise Crash

    return on_step


@pytest.mark.parametrize("step", get_args(Step))
def test_a_service_may_die_after_any_step(lake_cluster: LakeCluster, name: str, step: Step) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 100)
    tier(table)
    append(lake_cluster, name, 100, 100)
    with pytest.raises(Crash):
        tier(table, on_step=crash_after(step))
    append(lake_cluster, name, 200, 100)
    report = tier(table)
    assert report.rows == (100 if step in ("committed", "registered") else 200)
    assert lake_rows(table) == ordered(events(0, 300))
    known = known_offsets(table)
    assert offsets_in_lake(table) == [(bucket, offset) for bucket in sorted(known) for offset in range(known[bucket])]


def test_the_first_round_may_die_before_fluss_knows_of_it(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    with pytest.raises(Crash):
        tier(table, on_step=crash_after("committed"))
    assert lake_snapshot_of(table) is None
    assert tier(table).snapshot_id is None, "what is there is registered, and nothing is new"
    assert known_offsets(table)
    assert lake_rows(table) == ordered(events(0, 10))


@pytest.mark.parametrize("paused_at", ["planned", "written", "checked", "prepared"])
def test_of_two_services_with_the_same_table_one_gives_up(
    lake_cluster: LakeCluster, name: str, paused_at: Step
) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 100)
    planned: list[Step] = []

    def on_step(step: Step) -> None:
        planned.append(step)
        if step == paused_at and planned.count(step) == 1:
            # It was silent for too long, and another service has tiered the table since.
            assert tier(table).rows == 100

    def still_ours() -> None:
        if planned.count("planned") == 1 and paused_at in planned:
            return
        if planned.count("planned") > 1:
            raise RoundLostError("another service has the table")

    with pytest.raises(RoundLostError):
        tier(table, on_step=on_step, still_ours=still_ours)
    assert lake_rows(table) == ordered(events(0, 100))
    data = {task.file.file_path for task in lake_table(table).scan().plan_files()}
    io = lake_table(table).io
    scheme, netloc, root = io.parse_location(f"{lake_table(table).location()}/data")
    found = io.fs_by_scheme(scheme, netloc).get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    assert len([info for info in found if info.is_file]) == len(data), "what was given up is deleted"


def test_a_round_whose_writer_was_overtaken_by_another_engine_is_planned_again(
    lake_cluster: LakeCluster, name: str
) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    steps: list[Step] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        if steps == ["planned"]:
            foreign = lake_table(table)
            foreign.append(foreign.schema().as_arrow().empty_table())

    report = tier(table, on_step=on_step)
    assert report.rows == 10
    assert steps.count("planned") == 2
    assert lake_rows(table) == ordered(events(0, 10))


def test_a_table_that_was_made_anew_is_not_given_the_old_rows(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)

    def on_step(step: Step) -> None:
        if step == "written":
            wait_for(lake_cluster.admin.drop_table(name, False))

    with pytest.raises(RoundLostError, match="was dropped while it was tiered"):
        tier(table, on_step=on_step)
    assert lake_table_of_path_is_empty(lake_cluster, table)


def lake_table_of_path_is_empty(cluster: LakeCluster, table: FlussTable) -> bool:
    other = cluster.create(f"{table.table_path}_other", EVENTS)
    lake = lake_tables_of(wait_for(admin_of(other).get_table_info(other.table_path)))
    return lake.load(table.table_path).metadata.current_snapshot() is None


def test_a_round_stops_at_its_limit_and_the_next_goes_on(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    for first in range(0, 600, 100):
        append(lake_cluster, name, first, 100)

    class FirstIsLate(RunHere):
        def __call__(self, what: str, planned: FlussTable, work: Any, tasks: Any, weights: Any) -> Any:
            # The first piece of the log is late at once; what the second has written is behind a gap.
            ((split,),) = tasks
            middle = split.start + 300
            first = TieringSplit(split.bucket, (), split.start, middle)
            second = TieringSplit(split.bucket, (), middle, split.stop)
            late = replace(work, deadline=Deadline(0.0))
            return [late.run(planned, (first,)), work.run(planned, (second,))]

    report = tier(table, run_tasks=FirstIsLate())
    assert not report.is_complete
    assert 0 < report.rows < 300
    assert report.lag_rows == 600 - report.rows
    assert tier(table).rows == 600 - report.rows
    assert lake_rows(table) == ordered(events(0, 600))


def test_tables_without_a_lake_say_so(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, properties={"table.datalake.enabled": "false"})
    with pytest.raises(FlussError, match=r"has no lake; set its property 'table\.datalake\.enabled' to true"):
        tier(table)


# What is told


def test_progress_is_a_line_and_json(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    append(lake_cluster, name, 0, 1500)
    tiered = RoundProgress.of(tier(table))
    idle = RoundProgress.of(tier(table))
    failed = RoundProgress.of_error(name, FlussError("the lake is away"))
    assert str(tiered).startswith(f"{name}: 1,500 rows in 1 file (")
    assert ", behind: 0 rows" in str(tiered)
    assert str(idle) == f"{name}: nothing new"
    assert str(failed) == f"{name}: failed: the lake is away"
    fields = json.loads(tiered.json)
    assert (fields["numOutputRows"], fields["dataFiles"], fields["state"]) == (1500, 1, "tiered")
    assert json.loads(failed.prettyJson)["error"] == "the lake is away"
    report = TieringReport.of([tiered, idle, failed], 2.0)
    assert (report.rows, report.errors) == (1500, (f"{name}: the lake is away",))
    assert str(report).endswith("tiered 1,500 rows of 1 table in 2.0 s, 750 rows/s")
    assert report.to_dict()["tables"][0]["failures"] == 1


def test_heartbeats_hand_tables_out_and_fence_older_rounds(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, properties={"table.datalake.freshness": "1 ms"})
    calls = tiering_calls_of(lake_cluster.admin)
    handed = None
    while handed is None or handed.table_path != table.table_path:
        handed = calls.heartbeat(request_table=True).assignment
    assert handed.table_id == table.get_table_info().table_id
    assert not calls.heartbeat(tiering=[handed]).refused
    answer = calls.heartbeat(failed=[handed], request_table=True)
    assert not answer.refused
    refused = calls.heartbeat(tiering=[handed]).refused
    assert refused[handed.table_id].error_code == 50
    with pytest.raises(FlussError) as caught:
        calls.commit(handed.table_id, 1, "/etc/passwd")
    assert caught.value.error_code == 53


def test_small_splits_share_a_task_and_large_ones_are_cut() -> None:
    def split(bucket: int, rows: int, **more: Any) -> TieringSplit:
        return TieringSplit(TableBucket(1, bucket), (), 10, 10 + rows, **more)

    assert packed([], 4, task_rows=1000) == []
    assert packed([split(0, 10), split(1, 10)], 4, task_rows=1_000_000) == [(split(0, 10), split(1, 10))]
    cut = packed([split(0, 300_000), split(1, 100_000)], 2, task_rows=1_000_000)
    assert [[(each.bucket.bucket_id, each.start, each.stop) for each in task] for task in cut] == [
        [(0, 10, 200_010)],
        [(0, 200_010, 300_010), (1, 10, 100_010)],
    ]
    whole = packed([split(n, 100_000 * (n + 1), kind="changes") for n in range(3)], 2, task_rows=1_000_000)
    assert [[each.bucket.bucket_id for each in task] for task in whole] == [[2], [1, 0]]
