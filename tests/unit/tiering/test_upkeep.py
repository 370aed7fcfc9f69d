"""Lake tables kept in shape: compaction, expiry, forgotten files, and the verification that finds what is wrong."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss import FlussTable
from fluss.client.bulk import admin_of, lake_snapshot_of, tiering_calls_of, wait_for
from fluss.errors import FlussError
from fluss.lake.commits import commit_files, tiering_properties
from fluss.lake.scans import LakeScan
from fluss.schema.offsets import LakeSnapshot
from fluss.tiering import compaction as compaction_module
from fluss.tiering.compaction import compact
from fluss.tiering.rounds import tier
from fluss.tiering.upkeep import UpkeepOptions, after_round, expire, remove_orphans
from fluss.tiering.verification import verify
from tests.unit.tiering.lakes import LakeCluster, lake_rows, lake_table, ordered
from tests.unit.tiering.test_key_rounds import COLUMNS, Pickled, row
from tests.unit.tiering.test_log_rounds import EVENTS, append, events


def test_small_files_of_a_log_become_one_in_the_order_of_offsets(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    assert compact(table).snapshot_id is None
    for first in range(0, 50, 10):
        append(lake_cluster, name, first, 10)
        tier(table)
    known = lake_snapshot_of(table)
    report = compact(table, run_tasks=Pickled())
    assert (report.files_before, report.files_after, report.rows) == (5, 1, 50)
    assert str(report).startswith(f"{name}: 5 files (")
    (file,) = LakeScan(lake_table(table)).files()
    assert [each["__offset"] for each in rows_of_file(file.data.file_path)] == list(range(50))
    now = lake_snapshot_of(table)
    assert known is not None
    assert now is not None
    assert now.table_buckets_offset == known.table_buckets_offset, "the offsets are those of before"
    assert now.snapshot_id == report.snapshot_id
    assert lake_rows(table) == ordered(events(0, 50))
    assert compact(table).snapshot_id is None
    append(lake_cluster, name, 50, 10)
    assert tier(table).rows == 10
    assert verify(table).is_right


def rows_of_file(location: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(location.removeprefix("file://"), partitioning=None).to_pylist()
    return rows


def test_deleted_rows_are_left_out_and_delete_files_go(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=2)
    for version in range(4):
        lake_cluster.upsert(name, [row(n, version) for n in range(version * 5, 40)], deletes=[{"id": version}])
        tier(table)
    before = lake_rows(table)
    assert any(file.has_deletes for file in LakeScan(lake_table(table)).files())
    report = compact(table)
    assert report.delete_files > 0
    assert (report.files_after, report.rows) == (2, len(before))
    files = LakeScan(lake_table(table)).files()
    assert not any(file.has_deletes for file in files)
    summary = lake_table(table).metadata.current_snapshot().summary  # type: ignore[union-attr]
    assert (summary["total-delete-files"], summary["total-data-files"]) == ("0", "2")  # type: ignore[index]
    assert lake_rows(table) == before
    lake_cluster.upsert(name, [row(39, 9)])
    assert tier(table).deleted_rows == 1
    assert verify(table).is_right


def test_a_reader_of_an_older_snapshot_goes_on_until_it_expires(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    for version in range(3):
        lake_cluster.upsert(name, [row(n, version) for n in range(20)])
        tier(table)
    pinned = LakeScan(lake_table(table))
    files = pinned.files()
    rows_before = pinned.to_table().num_rows
    compact(table)
    assert expire(table, min_age_s=3600).snapshots == 0, "they are younger"
    assert sum(batch.num_rows for batch in pinned.read(files)) == rows_before
    expired = expire(table, min_age_s=0, at_least=2)
    assert (expired.snapshots, expired.files > 0) == (3, True)
    assert "3 snapshots expired" in str(expired)
    assert len(lake_table(table).metadata.snapshots) == 1
    with pytest.raises(OSError):
        list(pinned.read(files))
    assert lake_rows(table) == ordered([row(n, 2) for n in range(20)])
    lake_cluster.upsert(name, [row(1, 5)])
    tier(table)
    assert verify(table).is_right


def test_a_round_that_was_planned_before_a_compaction_begins_again(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    for version in range(3):
        lake_cluster.upsert(name, [row(n, version) for n in range(10)])
        tier(table)
    lake_cluster.upsert(name, [row(n, 7) for n in range(5)])
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if step == "written" and steps.count("written") == 1:
            # Its deletes name positions in files that are not there any more.
            assert compact(table).snapshot_id is not None

    assert tier(table, on_step=on_step).rows == 5
    assert steps.count("planned") == 2
    assert lake_rows(table) == ordered([row(n, 7 if n < 5 else 2) for n in range(10)])


def test_a_compaction_that_was_overtaken_by_a_round_begins_again(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    for first in range(0, 30, 10):
        append(lake_cluster, name, first, 10)
        tier(table)
    asked: list[int] = []

    def still_ours() -> None:
        asked.append(1)
        if len(asked) == 1:
            append(lake_cluster, name, 30, 10)
            tier(table)

    assert compact(table, still_ours=still_ours).files_before == 4
    assert lake_rows(table) == ordered(events(0, 40))


def test_a_round_that_commits_while_a_compaction_looks_at_the_lake_does_not_make_the_lake_a_wrong_one(
    lake_cluster: LakeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    for first in range(0, 30, 10):
        append(lake_cluster, name, first, 10)
        tier(table)

    def answered_late(asked: FlussTable) -> LakeSnapshot | None:
        if len(asked.to_arrow()) == 30:
            append(lake_cluster, name, 30, 10)
            tier(asked)
        return lake_snapshot_of(asked)

    monkeypatch.setattr(compaction_module, "lake_snapshot_of", answered_late)
    assert compact(table).files_before == 4
    assert lake_rows(table) == ordered(events(0, 40))


def test_a_compaction_that_died_before_fluss_knew_of_it_is_taken_over(
    lake_cluster: LakeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    for first in range(0, 30, 10):
        append(lake_cluster, name, first, 10)
        tier(table)

    class DiedError(Exception):
        pass

    class Calls:
        def commit(self, *_: object) -> None:
            raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(compaction_module, "tiering_calls_of", lambda admin: Calls())
        patch.setattr(compaction_module, "recovered", lambda *_: False)
        with pytest.raises(DiedError):
            compact(table)
    append(lake_cluster, name, 30, 10)
    assert tier(table).rows == 10
    assert lake_rows(table) == ordered(events(0, 40))


def test_what_options_of_a_table_ask_for_is_done_after_rounds(lake_cluster: LakeCluster, name: str) -> None:
    properties = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
    table = lake_cluster.create(name, EVENTS, buckets=1, properties=properties)
    done = []
    for first in range(0, 30, 10):
        append(lake_cluster, name, first, 10)
        tier(table)
        report = after_round(table, UpkeepOptions())
        assert report is not None
        done.append(report.files_before)
    assert done == [0, 0, 3]


def test_forgotten_files_are_found_and_old_ones_deleted(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    append(lake_cluster, name, 0, 10)
    tier(table)
    (file,) = LakeScan(lake_table(table)).files()
    forgotten = file.data.file_path.removeprefix("file://").replace(".parquet", "-forgotten.parquet")
    with open(forgotten, "wb") as output:
        output.write(b"x")
    time.sleep(0.01)
    assert remove_orphans(table, min_age_s=0, dry_run=True).files == (forgotten,)
    with pytest.raises(FlussError, match="younger files may belong to a round"):
        remove_orphans(table, min_age_s=10)
    assert str(remove_orphans(table)) == f"{name}: 0 forgotten files deleted"
    assert verify(table).is_right


# Verification


def test_right_tables_are_right(lake_cluster: LakeCluster, name: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.string()), ("x", pa.float64())])
    table = lake_cluster.create(name, columns, partition_keys=["day"], buckets=2)
    assert verify(table).snapshot_id is None
    for day in ("1", "2"):
        wait_for(lake_cluster.admin.create_partition(name, {"day": day}))
    for _ in range(2):
        rows = {"id": range(100), "day": ["1", "2"] * 50, "x": [float("nan"), None] * 50}
        lake_cluster.append(name, pa.table(rows))
        tier(table)
    lake_cluster.append(name, pa.table({"id": [1], "day": ["1"], "x": [1.0]}))
    wait_for(lake_cluster.admin.drop_partition(name, {"day": "2"}))
    report = verify(table, run_tasks=Pickled())
    assert report.is_right, report.problems
    assert (report.lake_rows, report.compared_rows) == (200, 100)
    assert "200 rows of the lake" in str(report)
    assert str(report).endswith("all right")


def test_lost_and_repeated_records_and_changed_rows_are_found(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS, buckets=1)
    for first in range(0, 40, 10):
        append(lake_cluster, name, first, 10)
        tier(table)
    lake = lake_table(table)
    tiered = lake.metadata.current_snapshot()
    middle = sorted(LakeScan(lake).files(), key=lambda each: each.sequence_number)[1]
    assert tiered is not None
    assert tiered.summary is not None
    path = tiered.summary["fluss-offsets"]
    commit_and_register(table, lake, path, replaced=[middle.data])
    assert "offset 20 follows 9: records are missing, or there twice" in verify(table).problems[0]
    commit_and_register(table, lake, path, added=[middle.data, middle.data])
    assert "records are missing, or there twice" in verify(table).problems[0]


def commit_and_register(table: Any, lake: Any, offsets_path: str, **files: Any) -> None:
    snapshot_id = commit_files(lake, properties=tiering_properties(offsets_path), **files)
    tiering_calls_of(admin_of(table)).commit(table.get_table_info().table_id, snapshot_id, offsets_path)


def test_keys_that_are_there_twice_and_rows_that_are_missing_are_found(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, COLUMNS, primary_keys=["id"], buckets=1)
    lake_cluster.upsert(name, [row(n, 1) for n in range(10)])
    tier(table)
    lake_cluster.upsert(name, [row(n, 2) for n in range(5)])
    tier(table)
    assert verify(table).is_right
    lake = lake_table(table)
    tiered = lake.metadata.current_snapshot()
    assert tiered is not None
    assert tiered.summary is not None
    path = tiered.summary["fluss-offsets"]
    first, _ = sorted(LakeScan(lake).files(), key=lambda each: each.sequence_number)
    commit_and_register(table, lake, path, replaced=list(first.position_deletes))
    assert verify(table).problems == ("bucket 0: 15 rows have 10 keys",)
    commit_and_register(table, lake, path, replaced=[first.data])
    assert verify(table).problems == ("bucket 0: the lake has 5 rows, and Fluss had 10 at offset 20",)
