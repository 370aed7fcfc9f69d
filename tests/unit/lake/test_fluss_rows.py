"""Rows of a lake as Fluss has them, whoever deleted some of them, and whatever columns are called."""

import pickle

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile

from fluss.filter.row_filter import RowFilter
from fluss.lake import manifest_cache
from fluss.lake.commits import commit_files
from fluss.lake.data_files import FileLayout, positions_table, write_equality_deletes, write_position_deletes
from fluss.lake.fluss_rows import LakeRows
from tests.unit.lake.lakes import PATH, key_descriptor, open_lake, rows, written


def read(table, *, names=("id", "name")) -> list[tuple]:
    descriptor = key_descriptor()
    schema = descriptor.schema.to_arrow()
    fields = pa.schema([schema.field(name) for name in names])
    lake = LakeRows(table, table.current_snapshot().snapshot_id, descriptor.schema, fields)
    sent, files = pickle.loads(pickle.dumps((lake, lake.files())))
    found = pa.Table.from_batches(sent.batches(files), fields)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_deletes_by_key_and_by_position_are_applied(tmp_path):
    lake = open_lake(tmp_path)
    table = lake.create(PATH, key_descriptor())
    files = written(table, rows(range(10)))
    commit_files(table, added=files)
    layout = FileLayout.of(table)
    partition = layout.partition((), 0)
    by_key = write_equality_deletes(layout, partition, pa.table({"id": pa.array([1, 2], pa.int64())}))
    commit_files(table, added=written(table, rows([2], "new"), first_offset=10), deletes=by_key)
    assert read(table) == sorted([(n, f"row {n}") for n in (0, *range(3, 10))] + [(2, "new 2")])
    assert read(table, names=("name",)) == sorted([(f"row {n}",) for n in (0, *range(3, 10))] + [("new 2",)])
    positions = positions_table(files[0].file_path, pa.array([0, 9]).to_numpy())
    commit_files(table, deletes=write_position_deletes(layout, partition, positions))
    assert read(lake.load(PATH)) == sorted([(n, f"row {n}") for n in range(3, 9)] + [(2, "new 2")])


def test_columns_that_were_renamed_in_the_lake_are_found_by_their_ids(tmp_path):
    lake = open_lake(tmp_path)
    table = lake.create(PATH, key_descriptor())
    commit_files(table, added=written(table, rows(range(3))))
    with table.update_schema() as update:
        update.rename_column("name", "former")
    with table.update_schema() as update:
        update.rename_column("former", "name")
    assert read(lake.load(PATH)) == [(n, f"row {n}") for n in range(3)]


def lake_rows(table, *, names=("id", "name"), predicate=None) -> LakeRows:
    schema = key_descriptor().schema
    fields = pa.schema([schema.to_arrow().field(name) for name in names])
    return LakeRows(table, table.current_snapshot().snapshot_id, schema, fields, predicate)


@pytest.mark.parametrize("condition", [None, "id < 25 AND name IS NOT NULL"])
def test_files_are_read_together_whether_or_not_rows_are_deleted_from_them(tmp_path, condition):
    table = open_lake(tmp_path).create(PATH, key_descriptor())
    files = [
        written(table, rows(range(at, at + 10)), bucket_id=at // 20, first_offset=at)[0] for at in range(0, 40, 10)
    ]
    commit_files(table, added=files)
    layout = FileLayout.of(table)
    for bucket_id, file, positions in ((0, files[1], [0, 3]), (1, files[2], [9])):
        positions = positions_table(file.file_path, pa.array(positions).to_numpy())
        commit_files(table, deletes=write_position_deletes(layout, layout.partition((), bucket_id), positions))
    predicate = None if condition is None else RowFilter.of([condition], key_descriptor().schema).bound_predicate()
    lake = lake_rows(table, names=("id",), predicate=predicate)
    found = [(file.data.file_path, batch["id"].to_pylist()) for file, batch in lake.file_batches(lake.files())]
    gone = {10, 13, 29}
    below = 40 if condition is None else 25
    expected = [
        (file.file_path, [each for each in range(at * 10, at * 10 + 10) if each not in gone and each < below])
        for at, file in enumerate(files)
    ]
    assert [pair for pair in found if pair[1]] == [pair for pair in expected if pair[1]]


def test_columns_can_be_left_out_afterwards(tmp_path):
    table = open_lake(tmp_path).create(PATH, key_descriptor())
    commit_files(table, added=written(table, rows(range(3, 6))))
    lake = lake_rows(table)
    (batch,) = lake.select(["name", "another"]).batches(lake.files())
    assert batch.to_pydict() == {"name": ["row 3", "row 4", "row 5"]}
    (batch,) = lake.batches(lake.files())
    assert batch.schema.names == ["id", "name"]


def test_bounds_of_numbers_are_known(tmp_path):
    table = open_lake(tmp_path).create(PATH, key_descriptor())
    commit_files(table, added=written(table, rows([-7, 3, 900])))
    lake = lake_rows(table)
    (file,) = lake.files()
    assert lake.number_bounds(file, "id") == (-7, 900)
    assert lake.number_bounds(file, "name") is None
    assert lake.number_bounds(file, "another") is None


def test_manifests_are_read_once(tmp_path, monkeypatch):
    table = open_lake(tmp_path).create(PATH, key_descriptor())
    read = []
    fetch = ManifestFile.fetch_manifest_entry

    def fetched(self, *arguments, **more):
        read.append(self.manifest_path)
        return fetch(self, *arguments, **more)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetched)
    for number in range(3):
        commit_files(table, added=written(table, rows([number])))
        for _ in range(3):
            assert len(lake_rows(table).files()) == number + 1
    assert len(read) == len(set(read)) == 3


def test_few_manifests_are_kept(monkeypatch):
    monkeypatch.setattr(manifest_cache, "_ENTRIES_MAX", 5)
    known = manifest_cache._KnownFiles()
    read = []

    def get(path):
        return known.get(path, lambda: read.append(path) or [path] * 2)

    for path in ("a", "b", "a", "c", "a", "b"):
        assert get(path) == [path] * 2
    assert read == ["a", "b", "c", "b"]
    assert known.get("large", lambda: [1] * 6) == [1] * 6
    assert get("a") == ["a"] * 2
