"""What unfinished loads, copies and exports leave behind is found again, and never taken for something else.

Real files in a temporary directory; no session and no server.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from fluss import Schema, TableDescriptor, TablePath
from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.spark.bulk.export import MANIFEST_NAME, ExportTarget, ParquetLayout, ParquetOutput, WrittenFile
from fluss.spark.bulk.files import DataFile, FilePiece, find_files
from fluss.spark.bulk.states import BATCH_BYTES, CopyState, LoadPlan, LoadState, LoadTask, LoadTaskResult

SCHEMA = pa.schema([("id", pa.int64())])


def table_info(table_id: int = 7, name: str = "orders") -> TableInfo:
    descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2)
    return TableInfo._create(TablePath("sales", name), table_id, 1, descriptor, 1000, 2000)


# Loads


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("id\n1\n")
    return find_files([tmp_path / "a.csv", tmp_path / "b.csv"])


def plan_of(files: list[DataFile]) -> LoadPlan:
    tasks = tuple(LoadTask((FilePiece(file, ("id",), 3, 5, 2, None, 3),), 40 + n) for n, file in enumerate(files))
    return LoadPlan(7, {":0": 5, ":1": 6}, tasks)


def test_a_plan_and_the_results_of_a_load_are_found_again(tmp_path: Path, files: list[DataFile]) -> None:
    state = LoadState(str(tmp_path / "state"))
    assert state.plan(table_info(), files, {"x": (1,)}) is None
    plan = plan_of(files)
    state.save(plan, table_info(), files, {"x": (1,)})
    state.task_ended(1, LoadTaskResult(10, 2))
    again = LoadState(str(tmp_path / "state"))
    assert again.plan(table_info(), files, {"x": (1,)}) == plan
    assert again.results() == {1: LoadTaskResult(10, 2)}


def test_a_plan_for_something_else_is_refused(tmp_path: Path, files: list[DataFile]) -> None:
    state = LoadState(str(tmp_path / "state"))
    state.save(plan_of(files), table_info(), files, {})
    with pytest.raises(FlussError, match=r"is about sales\.orders with the table id 7; give another resume_dir"):
        state.plan(table_info(table_id=8), files, {})
    with pytest.raises(FlussError, match="about other files, or they have changed"):
        state.plan(table_info(), files[:1], {})
    with pytest.raises(FlussError, match="about other files, or they have changed"):
        state.plan(table_info(), [replace(files[0], size_bytes=99), files[1]], {})
    with pytest.raises(FlussError, match="with other columns"):
        state.plan(table_info(), files, {"ignore_extra": True})
    (tmp_path / "state" / "plan.json").write_text("{")
    with pytest.raises(FlussError, match="is damaged"):
        state.plan(table_info(), files, {})


def test_a_load_does_not_go_on_with_batches_of_another_size(tmp_path: Path, files: list[DataFile]) -> None:
    plan, state = plan_of(files), LoadState(str(tmp_path / "state"))
    state.save(plan, table_info(), files, {BATCH_BYTES: 80})
    assert state.plan(table_info(), files, {BATCH_BYTES: 80}) == plan
    with pytest.raises(FlussError, match="another 'writer"):
        state.plan(table_info(), files, {BATCH_BYTES: 4000})
    # An earlier release has not noted it.
    state.save(plan, table_info(), files, {})
    assert state.plan(table_info(), files, {BATCH_BYTES: 4000}) == plan


def test_rows_are_known_if_every_piece_knows_its_own(files: list[DataFile]) -> None:
    plan = plan_of(files)
    assert plan.rows_known is None
    counted = [replace(task, pieces=(replace(task.pieces[0], rows=5),)) for task in plan.tasks]
    assert replace(plan, tasks=tuple(counted)).rows_known == 10


# Copies


def test_the_state_of_a_copy_survives_as_text() -> None:
    state = CopyState.begin(table_info(), {"mon": ((0, 5), (2, 9))}).with_writer(3, 100).with_writer(4, 200)
    assert (state.writer_ids, state.writer_since_ms) == ((3, 4), 200)
    assert CopyState.from_text(state.to_text(), "b.x") == state
    finished = CopyState.from_text(state.finished(12).to_text(), "b.x")
    assert (finished.is_finished, finished.rows_finished, finished.ranges) == (True, 12, {})


def test_a_copy_does_not_go_on_with_another_source() -> None:
    state = CopyState.begin(table_info(), {})
    state.check_source(table_info(), "b.x")
    with pytest.raises(FlussError, match=r"unfinished copy of sales\.orders \(table id 7\), which is not the table"):
        state.check_source(table_info(table_id=8), "b.x")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "[]", '{"version": 1, "writer_ids": 3}'])
def test_a_damaged_state_of_a_copy_is_refused(text: str) -> None:
    with pytest.raises(FlussError, match=r"'bulk\.copy\.state' of b\.x is damaged"):
        CopyState.from_text(text, "b.x")


def test_a_state_that_is_too_long_for_a_property_is_refused() -> None:
    ranges = {f"partition-{number}": ((0, 10**12),) * 16 for number in range(2000)}
    with pytest.raises(FlussError, match="2000 partitions, which are too many"):
        CopyState.begin(table_info(), ranges).to_text()


# Exports


def written(target: ExportTarget, place: str) -> WrittenFile:
    """Write a file as a task does."""
    path = Path(target.temporary) / "task" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(place)
    return WrittenFile(str(path), place, 1, len(place))


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_files_are_in_their_places_when_an_export_is_complete(tmp_path: Path) -> None:
    target = ExportTarget.at(str(tmp_path / "out"), overwrite=False)
    with target:
        files = [written(target, "day=1/a.parquet"), written(target, "b.parquet")]
        target.complete(files, {"rows": 2})
    assert names(tmp_path / "out") == [MANIFEST_NAME, "b.parquet", "day=1/a.parquet"]
    assert json.loads((tmp_path / "out" / MANIFEST_NAME).read_text()) == {"rows": 2}


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    target = ExportTarget.at(str(tmp_path / "out"), overwrite=False)
    with contextlib.suppress(RuntimeError), target:
        written(target, "a.parquet")
        raise RuntimeError
    assert list((tmp_path / "out").iterdir()) == []


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    for name in ("exported/a.parquet", "killed/_temporary-123/a.parquet", "home/letter.txt", "home/a.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(FlussError, match=r"There is an export in .*overwrite=True"):
        ExportTarget.at(str(tmp_path / "exported"), overwrite=False)
    with pytest.raises(FlussError, match="an export that was not finished"):
        ExportTarget.at(str(tmp_path / "killed"), overwrite=False)
    with pytest.raises(FlussError, match="is a file"):
        ExportTarget.at(str(tmp_path / "home/letter.txt"), overwrite=True)


def test_what_is_of_no_export_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("mine")
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(FlussError, match=r"'letter\.txt' in .*which is of no export"):
        ExportTarget.at(str(tmp_path), overwrite=True)


def test_overwriting_replaces_everything_but_only_when_the_new_files_are_there(tmp_path: Path) -> None:
    for name in (MANIFEST_NAME, "old.parquet", "day=1/old.parquet", "day=2/old.parquet", "_temporary-1/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    before = names(tmp_path)
    failing = ExportTarget.at(str(tmp_path), overwrite=True)
    with pytest.raises(RuntimeError), failing:
        raise RuntimeError
    assert names(tmp_path) == before
    target = ExportTarget.at(str(tmp_path), overwrite=True)
    with target:
        target.complete([written(target, "day=1/new.parquet")], {})
    assert names(tmp_path) == [MANIFEST_NAME, "day=1/new.parquet"]


def test_files_and_row_groups_have_the_wanted_size(tmp_path: Path) -> None:
    layout = ParquetLayout("snappy", row_group_rows=100, file_bytes=2400)
    output = ParquetOutput(fs.LocalFileSystem(), str(tmp_path), "day=1/", "part", SCHEMA, layout)
    rows = pa.record_batch({"id": pa.array(range(1000), pa.int64())})
    for first in range(0, 1000, 70):
        output.write(rows.slice(first, 70))
    output.close()
    assert [file.place for file in output.files] == [f"day=1/part-{number}.parquet" for number in range(4)]
    assert [file.rows for file in output.files] == [300, 300, 300, 100]
    metadata = pq.read_metadata(tmp_path / "part-0.parquet")
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [100, 100, 100]
    assert metadata.row_group(0).column(0).compression == "SNAPPY"
    assert pq.read_table(tmp_path)["id"].to_pylist() == list(range(1000))


def test_a_layout_that_cannot_be_is_refused() -> None:
    with pytest.raises(FlussError, match="compression must be one of zstd"):
        ParquetLayout("zip")
    with pytest.raises(FlussError, match="row_group_rows must be at least 1"):
        ParquetLayout(row_group_rows=0)
