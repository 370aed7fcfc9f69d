"""Rounds of tables with a primary key: the lake has the rows that the table had at the tiered offsets, a key once."""

from __future__ import annotations

import pickle
import random
from typing import Any, get_args

import pyarrow as pa
import pytest

from fluss import FlussTable
from fluss.client.bulk import wait_for
from fluss.tiering import round_plan
from fluss.tiering.round_commit import Step
from fluss.tiering.rounds import tier
from fluss.tiering.task_runners import RunHere
from tests.unit.tiering.lakes import LakeCluster, lake_rows, lake_table, ordered
from tests.unit.tiering.test_log_rounds import Crash, crash_after

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("n", pa.int32())])


def row(number: int, version: int) -> dict[str, Any]:
    return {"id": number, "text": f"row {number}, version {version}", "n": version}


class Pickled(RunHere):
    """Runs tasks as executors get them and return their results: as bytes."""

    def __call__(self, what: str, table: FlussTable, work: Any, items: Any, weights: Any) -> Any:
        work, items = pickle.loads(pickle.dumps((work, items)))
        return pickle.loads(pickle.dumps(super().__call__(what, table, work, items, weights)))


def test_upserts_and_deletes_replace_what_the_lake_has(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"])
    lake_cluster.upsert(name, [row(n, 1) for n in range(100)])
    first = tier(table, run_tasks=Pickled())
    assert (first.rows, first.deleted_rows, first.delete_files) == (100, 0, 0)
    assert lake_rows(table) == ordered([row(n, 1) for n in range(100)])
    lake_cluster.upsert(name, [row(n, 2) for n in range(90, 110)], deletes=[{"id": n} for n in range(5)])
    lake_cluster.upsert(name, [row(4, 3), row(200, 1)], deletes=[{"id": 200}])
    second = tier(table, run_tasks=Pickled())
    assert (second.rows, second.deleted_rows) == (21, 15)
    expected = {n: row(n, 1) for n in range(5, 90)} | {n: row(n, 2) for n in range(90, 110)} | {4: row(4, 3)}
    assert lake_rows(table) == ordered(list(expected.values()))
    assert tier(table).snapshot_id is None
    offsets = [entry["__offset"] for entry in lake_rows(table, system=True)]
    assert min(offsets) >= 0, "a short log gives rows their true offsets"


def test_only_offsets_move_if_nothing_is_left_of_what_has_changed(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    lake_cluster.upsert(name, [row(1, 1)])
    tier(table)
    lake_cluster.upsert(name, [row(2, 1)])
    lake_cluster.upsert(name, deletes=[{"id": 2}])
    report = tier(table)
    assert report.snapshot_id is not None
    assert (report.rows, report.data_files, report.delete_files, report.lag_rows) == (0, 0, 0, 0)
    assert lake_rows(table) == [row(1, 1)]


def test_a_long_log_is_not_read_if_there_are_rows(
    lake_cluster: LakeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    for version in range(3):
        lake_cluster.upsert(name, [row(n, version) for n in range(10)])
    monkeypatch.setattr(round_plan, "_SHORT_LOG", 20)
    assert tier(table, run_tasks=Pickled()).rows == 10
    assert {entry["__offset"] for entry in lake_rows(table, system=True)} == {-1}
    assert lake_rows(table) == ordered([row(n, 2) for n in range(10)])
    lake_cluster.upsert(name, [row(3, 9)])
    assert tier(table).deleted_rows == 1
    assert lake_rows(table) == ordered([row(n, 9 if n == 3 else 2) for n in range(10)])


def test_many_changes_are_taken_in_several_rounds(
    lake_cluster: LakeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    monkeypatch.setattr(round_plan, "CHANGES_MAX", 7)
    for version in range(3):
        lake_cluster.upsert(name, [row(n, version) for n in range(4)])
    reports = [tier(table)]
    while not reports[-1].is_complete:
        reports.append(tier(table))
        seen = lake_rows(table)
        assert len({entry["id"] for entry in seen}) == len(seen), "a key once"
    assert len(reports) > 2
    assert reports[0].lag_rows == 20 - 6, "an update whose second half is missing is left for the next round"
    assert lake_rows(table) == ordered([row(n, 2) for n in range(4)])


def test_partitions_that_are_dropped_and_made_again(lake_cluster: LakeCluster, name: str) -> None:
    columns = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False), ("n", pa.int32())]
    )
    table = lake_cluster.create(
        name, columns, primary_keys=["id", "day"], partition_keys=["day"], buckets=1, bucket_keys=["id"]
    )
    for day in ("a", "b"):
        wait_for(lake_cluster.admin.create_partition(name, {"day": day}))
    lake_cluster.upsert(name, [{"id": 1, "day": "a", "n": 1}, {"id": 1, "day": "b", "n": 1}])
    assert tier(table).rows == 2
    wait_for(lake_cluster.admin.drop_partition(name, {"day": "b"}))
    wait_for(lake_cluster.admin.create_partition(name, {"day": "b"}))
    lake_cluster.upsert(
        name, [{"id": 1, "day": "a", "n": 2}, {"id": 1, "day": "b", "n": 2}, {"id": 2, "day": "b", "n": 2}]
    )
    assert tier(table).rows == 3
    found = sorted((entry["day"], entry["id"], entry["n"]) for entry in lake_rows(table))
    assert found == [("a", 1, 2), ("b", 1, 2), ("b", 2, 2)]


@pytest.mark.parametrize("step", get_args(Step))
def test_a_service_may_die_after_any_step(lake_cluster: LakeCluster, name: str, step: Step) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"])
    lake_cluster.upsert(name, [row(n, 1) for n in range(20)])
    tier(table)
    lake_cluster.upsert(name, [row(n, 2) for n in range(10, 30)], deletes=[{"id": 0}])
    with pytest.raises(Crash):
        tier(table, on_step=crash_after(step))
    lake_cluster.upsert(name, [row(15, 3)], deletes=[{"id": 1}])
    tier(table)
    expected = {n: row(n, 1) for n in range(2, 10)} | {n: row(n, 2) for n in range(10, 30)} | {15: row(15, 3)}
    assert lake_rows(table) == ordered(list(expected.values()))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        pytest.param({"table.changelog.image": "wal"}, marks=pytest.mark.slow),
        pytest.param({"table.merge-engine": "first_row"}, marks=pytest.mark.slow),
        pytest.param(
            {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"}, marks=pytest.mark.slow
        ),
    ],
    ids=["last row", "wal", "first row", "versioned"],
)
def test_random_changes_tiered_at_random_points(
    lake_cluster: LakeCluster, name: str, properties: dict[str, str]
) -> None:
    keys = [pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int32(), nullable=False)]
    columns = pa.schema([*keys, ("n", pa.int32())])
    table = lake_cluster.create(name, columns, primary_keys=["a", "b"], bucket_keys=["a"], properties=properties)
    rng = random.Random(name)
    can_delete = "first_row" not in properties.values() and "versioned" not in properties.values()
    for _ in range(12):
        changed = [{"a": f"k{rng.randrange(6)}", "b": rng.randrange(4)} for _ in range(rng.randrange(1, 12))]
        deletes = [key for key in changed if can_delete and rng.random() < 0.3]
        lake_cluster.upsert(name, [{**key, "n": rng.randrange(100)} for key in changed], deletes=deletes)
        if rng.random() < 0.5:
            tier(table, run_tasks=Pickled())
    tier(table)
    now = table.to_arrow()
    assert lake_rows(table) == ordered(now.to_pylist())
    assert len(list(lake_table(table).metadata.snapshots)) > 1
