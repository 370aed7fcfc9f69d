"""Rows of a lake as Fluss has them, whoever deleted some of them, and whatever columns are called."""

import pickle

import pyarrow as pa

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
