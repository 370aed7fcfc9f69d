"""Columns of Parquet files that are read as numbers of dictionary entries give the rows that their strings would.
Shown with random files, from which rows are left out in every way there is, and with what decides about columns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from fluss.filter.row_filter import RowFilter
from fluss.lake import dictionaries
from fluss.lake.arrow_conversion import lake_batch
from fluss.lake.commits import commit_files
from fluss.lake.data_files import DataFileWriter, FileLayout, positions_table, write_position_deletes
from fluss.lake.dictionaries import dictionary_columns, without_dictionaries
from fluss.lake.fluss_rows import LakeRows, RowFinder
from fluss.lake.scans import LakeFile
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.types import DataTypes
from tests.unit.lake.lakes import PATH, open_lake

SCHEMA = (
    Schema.builder()
    .column("id", DataTypes.bigint().not_null())
    .column("word", DataTypes.string())
    .column("bits", DataTypes.bytes())
    .column("words", DataTypes.array(DataTypes.string()))
    .column("other", DataTypes.string())
    .primary_key(["id"])
    .build()
)
FIELDS = SCHEMA.to_arrow()


def drawn(rng: random.Random, first: int, count: int) -> pa.RecordBatch:
    """Return rows of which most columns have few values; of ``other`` some rows have one each."""
    words = [None, "", "one", "two", "a longer word", "é" * rng.randint(1, 40)]
    few = rng.random() < 0.5
    columns: list[list[Any]] = [
        list(range(first, first + count)),
        [rng.choice(words) for _ in range(count)],
        [rng.choice([None, b"", b"\x00\xff", b"xyz"]) for _ in range(count)],
        [rng.choice([None, [], ["one", None]]) for _ in range(count)],
        [rng.choice(["few", None]) if few else f"other {row}" for row in range(count)],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def written(table: Table, batches: list[pa.RecordBatch]) -> list[Any]:
    """Write a file of several row groups."""
    layout = FileLayout.of(table)
    with DataFileWriter(layout, layout.partition((), 0)) as writer:
        for batch in batches:
            first = batch["id"][0].as_py()
            writer.write(lake_batch(batch, layout.arrow_schema, bucket_id=0, offsets=first, timestamps_ms=1_000))
            writer.flush()
    return writer.files


@pytest.fixture(params=[None, "id >= 40", "word = 'one' AND id < 700"])
def condition(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_the_same_as_when_strings_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str | None, seed: int
) -> None:
    rng = random.Random(seed)
    table = open_lake(tmp_path).create(PATH, TableDescriptor(SCHEMA, bucket_count=1))
    first, every_file = 0, []
    for _ in range(3):
        groups = []
        for _ in range(rng.randint(1, 3)):
            groups.append(drawn(rng, first, rng.randint(1, 200)))
            first += groups[-1].num_rows
        files = written(table, groups)
        commit_files(table, added=files)
        every_file += [(files[0].file_path, groups)]
    layout = FileLayout.of(table)
    path, groups = rng.choice(every_file)
    deleted = np.array(sorted(rng.sample(range(sum(group.num_rows for group in groups)), 1)))
    deletes = write_position_deletes(layout, layout.partition((), 0), positions_table(path, deleted))
    commit_files(table, deletes=deletes)

    predicate = None if condition is None else RowFilter.of([condition], SCHEMA).bound_predicate()
    others = [FIELDS.field(name) for name in rng.sample(["word", "words", "other"], rng.randint(0, 3))]
    fields = pa.schema([FIELDS.field("bits"), *others, FIELDS.field("id")])
    lake = LakeRows(table, table.current_snapshot().snapshot_id, SCHEMA, fields, predicate)
    files = lake.files()

    def by_value(rows: pa.RecordBatch, _first: int) -> np.ndarray:
        return np.flatnonzero(np.asarray(rows["id"]) % 13 == 0)

    def by_position(rows: pa.RecordBatch, first: int) -> np.ndarray:
        return np.flatnonzero(np.arange(first, first + rows.num_rows) % 7 == 0)

    def finder(file: LakeFile) -> RowFinder | None:
        if file is files[0]:
            return None
        return by_value if file is files[-1] or condition is not None else by_position

    def read() -> list[tuple[str, list[dict[str, Any]]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for file, batch in lake.file_batches(files, finder=finder):
            assert batch.schema.equals(fields)
            batch.validate(full=True)
            found.setdefault(file.data.file_path, []).extend(batch.to_pylist())
        return list(found.items())

    monkeypatch.setattr(dictionaries, "_ROWS_MIN", 1 << 40)
    expected = read()
    assert sum(len(rows) for _, rows in expected) > 0 or condition is not None
    dictionaries._known.clear()
    monkeypatch.setattr(dictionaries, "_ROWS_MIN", 0)
    monkeypatch.setattr(dictionaries, "_LENGTH_BYTES", 1 << 20)
    assert read() == expected
    assert any({"word", "bits"} <= columns for columns in dictionaries._known.values())


def test_columns_are_read_as_numbers_whose_values_are_in_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 70_000
    table = pa.table(
        {
            "few": pa.array([f"value {row % 10}" for row in range(count)]),
            "nulls": pa.nulls(count, pa.string()),
            # More than fits into a dictionary: the writer goes on without it.
            "unique": pa.array([f"a value that is there once: {row}" for row in range(count)]),
            "number": pa.array(range(count), pa.int64()),
        }
    )
    path = str(tmp_path / "file.parquet")
    pq.write_table(table, path)
    assert dictionary_columns(path, pa_fs.LocalFileSystem()) == {"few", "nulls"}
    small = str(tmp_path / "small.parquet")
    pq.write_table(table.slice(0, 1000), small)
    assert dictionary_columns(small, pa_fs.LocalFileSystem()) == set()
    # What is known of a file is not read again, and only of so many files.
    (tmp_path / "file.parquet").unlink()
    assert dictionary_columns(path, pa_fs.LocalFileSystem()) == {"few", "nulls"}
    monkeypatch.setattr(dictionaries, "_FILES_MAX", 1)
    pq.write_table(table.slice(0, 1000), str(tmp_path / "third.parquet"))
    dictionary_columns(str(tmp_path / "third.parquet"), pa_fs.LocalFileSystem())
    assert len(dictionaries._known) == 1


def test_strings_that_are_too_long_for_one_batch_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionaries, "_STRING_BYTES_MAX", 100)
    entries = pa.array(["short", None, "x" * 30])
    indices = pa.array([0, 2, None, 2, 1, 0, 2], pa.int32())
    encoded = pa.DictionaryArray.from_arrays(indices, entries)
    rows = pa.RecordBatch.from_arrays([encoded, pa.array(range(7))], names=["s", "n"])
    schema = pa.schema([("s", pa.string()), ("n", pa.int64())])
    parts = without_dictionaries(rows, schema)
    assert [part.num_rows for part in parts] == [3, 3, 1]
    found = pa.Table.from_batches(parts, schema)
    assert found["s"].to_pylist() == encoded.to_pylist()
    assert found["n"].to_pylist() == list(range(7))
    assert [part.num_rows for part in without_dictionaries(rows.slice(0, 0), schema)] == [0]


def test_a_dictionary_without_entries_is_one_of_nulls() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.nulls(3, pa.int32()), pa.array([], pa.string()))
    rows = pa.RecordBatch.from_arrays([encoded], names=["s"])
    (found,) = without_dictionaries(rows, pa.schema([("s", pa.string())]))
    assert found["s"].to_pylist() == [None, None, None]
