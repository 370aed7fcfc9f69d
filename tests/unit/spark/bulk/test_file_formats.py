"""Files of every format become batches in the form of a table, and rows that do not fit are named.

Real files in a temporary directory, written by pyarrow or by hand; no session.
"""

from __future__ import annotations

import datetime
import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, feather
from pyarrow import parquet as pq

from fluss import Schema
from fluss.errors import FlussError
from fluss.spark.bulk.file_formats import CsvFormat
from fluss.spark.bulk.files import cut, find_files
from fluss.spark.bulk.fitting import ColumnChoice
from fluss.spark.bulk.load import FileReading
from fluss.spark.bulk.task_results import UnfitInputError

SCHEMA = Schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(15, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("day", pa.date32()),
            pa.field("name", pa.string()),
        ]
    )
)
UTC = datetime.UTC
ROWS = [
    {
        "id": number,
        "price": Decimal(number) / 4 if number % 4 else None,
        "at": datetime.datetime(2026, 1, 1, tzinfo=UTC) + datetime.timedelta(seconds=number),
        "day": datetime.date(2026, 1, 1) + datetime.timedelta(days=number % 28),
        "name": f"näme {number}" if number % 3 else None,
    }
    for number in range(1000)
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA.to_arrow())


def load(
    path: Path,
    *,
    schema: Schema = SCHEMA,
    columns: object = None,
    ignore_extra: bool = False,
    csv_format: CsvFormat | None = None,
    piece_bytes: int = 1 << 20,
) -> pa.Table:
    """Read everything below a path as a load does: look at the files, cut them, read the pieces."""
    choice = ColumnChoice.of(columns, schema, ignore_extra=ignore_extra)  # type: ignore[arg-type]  # any form
    reading = FileReading(schema, choice, csv_format or CsvFormat())
    pieces = [piece for facts in reading.examine(find_files(path)) for piece in cut(facts, piece_bytes)]
    batches = [batch for piece in pieces for batch in reading.read(piece)]
    return pa.Table.from_batches(batches, schema.to_arrow())


def write_parquet(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=100)


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)


def write_feather(path: Path) -> None:
    feather.write_feather(TABLE, str(path), compression="lz4")


def write_csv(path: Path) -> None:
    csv.write_csv(TABLE, path)


def write_csv_gz(path: Path) -> None:
    plain = path.with_suffix("")
    csv.write_csv(TABLE, plain)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def write_json(path: Path) -> None:
    path.write_text("".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in ROWS))


WAYS: list[tuple[str, Callable[[Path], None]]] = [
    ("a.parquet", write_parquet),
    ("a.arrow", write_arrow),
    ("a.arrows", write_stream),
    ("a.feather", write_feather),
    ("a.csv", write_csv),
    ("a.csv.gz", write_csv_gz),
    ("a.jsonl", write_json),
]


@pytest.mark.parametrize(("name", "write"), WAYS)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 5000])
def test_every_format_gives_the_same_rows_in_the_same_order_however_it_is_cut(
    tmp_path: Path, name: str, write: Callable[[Path], None], piece_bytes: int
) -> None:
    write(tmp_path / name)
    assert load(tmp_path, piece_bytes=piece_bytes).equals(TABLE)


# Columns


def parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path / "a.parquet")
    return path


def test_names_are_found_as_they_are_and_then_in_any_case(tmp_path: Path) -> None:
    parquet(tmp_path, ID=pa.array([1, 2]), Name=pa.array(["a", "b"]))
    assert load(tmp_path).select(["id", "name"]).to_pydict() == {"id": [1, 2], "name": ["a", "b"]}


def test_a_column_in_two_cases_is_no_guess(tmp_path: Path) -> None:
    parquet(tmp_path, id=pa.array([1]), NAME=pa.array(["a"]), Name=pa.array(["b"]))
    with pytest.raises(UnfitInputError, match="two columns for 'name'"):
        load(tmp_path)


def test_columns_can_be_renamed_and_left_out(tmp_path: Path) -> None:
    parquet(tmp_path, number=pa.array([1]), title=pa.array(["a"]), name=pa.array(["b"]), other=pa.array([0]))
    loaded = load(tmp_path, columns={"number": "id", "title": "name"})
    assert loaded.select(["id", "name", "price"]).to_pylist() == [{"id": 1, "name": "a", "price": None}]


def test_a_column_that_the_table_does_not_have_is_refused_or_ignored(tmp_path: Path) -> None:
    parquet(tmp_path, id=pa.array([1]), nme=pa.array(["a"]))
    with pytest.raises(UnfitInputError, match="a column 'nme', which the table does not have; did you mean 'name'"):
        load(tmp_path)
    assert load(tmp_path, ignore_extra=True).to_pylist()[0]["name"] is None


def test_a_column_that_is_not_null_must_be_there(tmp_path: Path) -> None:
    parquet(tmp_path, name=pa.array(["a"]))
    with pytest.raises(UnfitInputError, match="no column 'id', which is NOT NULL"):
        load(tmp_path)


def test_a_chosen_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path, id=pa.array([1]))
    with pytest.raises(FlussError, match="has no column 'nmae' to load"):
        load(tmp_path, columns=["id", "nmae"])
    with pytest.raises(UnfitInputError, match="has no column for 'name'"):
        load(tmp_path, columns=["id", "name"])


def test_what_directories_state_becomes_a_column(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / f"day={day}").mkdir()
        parquet(tmp_path / f"day={day}", id=pa.array([1]))
    assert load(tmp_path)["day"].to_pylist() == [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]
    (tmp_path / "day=soon").mkdir()
    parquet(tmp_path / "day=soon", id=pa.array([1]))
    with pytest.raises(UnfitInputError, match="'day=soon', which is no date"):
        load(tmp_path)


def test_values_are_converted_as_long_as_they_stay_the_same(tmp_path: Path) -> None:
    parquet(
        tmp_path,
        id=pa.array([1, 2], pa.uint8()),
        price=pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal128(10, 1)),
        at=pa.array([0, 1_000_000_000], pa.timestamp("ns", tz="Europe/Berlin")),
        name=pa.array(["a", "a"]).dictionary_encode(),
    )
    expected = {
        "id": [1, 2],
        "price": [Decimal("1.50"), Decimal("2.50")],
        "at": [datetime.datetime(1970, 1, 1, tzinfo=UTC), datetime.datetime(1970, 1, 1, second=1, tzinfo=UTC)],
        "name": ["a", "a"],
    }
    assert load(tmp_path).select(list(expected)).to_pydict() == expected


def test_a_type_that_can_never_fit_is_found_before_anything_is_read(tmp_path: Path) -> None:
    parquet(tmp_path, id=pa.array(["1"]))
    reading = FileReading(SCHEMA, ColumnChoice(), CsvFormat())
    with pytest.raises(UnfitInputError, match=r"a\.parquet: Column 'id' holds string"):
        reading.examine(find_files(tmp_path))


# Rows that do not fit


def test_a_row_of_a_row_group_is_named(tmp_path: Path) -> None:
    ids = [*range(250), None, *range(50)]
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / "a.parquet", row_group_size=100)
    with pytest.raises(UnfitInputError, match=r"a\.parquet, row group 2, row 50: Column 'id' is non-nullable"):
        load(tmp_path)


def test_a_time_that_would_lose_digits_is_named(tmp_path: Path) -> None:
    parquet(tmp_path, id=pa.array([1, 2]), at=pa.array([1000, 1001], pa.timestamp("ns", tz="UTC")))
    with pytest.raises(UnfitInputError, match="row group 0, row 1: Column 'at' has a time that does not fit"):
        load(tmp_path)


def test_a_row_of_a_record_batch_is_named(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": pa.array([1, 2])}), pa.record_batch({"id": pa.array([3, None])})]
    with pa.ipc.new_file(tmp_path / "a.arrow", batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pytest.raises(UnfitInputError, match=r"a\.arrow, record batch 1, row 1: Column 'id'"):
        load(tmp_path)


@pytest.mark.parametrize("piece_bytes", [1 << 20, 30])
@pytest.mark.parametrize(
    ("line", "problem"),
    [("x,y", "invalid value 'x'"), ("1,2,3", "Expected 2 columns, got 3"), (",a", "Column 'id' is non-nullable")],
)
def test_a_line_of_a_csv_file_is_named(tmp_path: Path, line: str, problem: str, piece_bytes: int) -> None:
    lines = ["id,name", *(f"{number},name" for number in range(20)), "", line, *("5,six",) * 10]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UnfitInputError, match=rf"a\.csv, line 23: .*{problem}"):
        load(tmp_path, piece_bytes=piece_bytes)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "x"}', "Column"),
        ('{"id": 1', "JSON parse error"),
        ('{"id": 1, "nam": 2}', "no column 'nam'"),
        ('{"name": "x"}', "Column 'id' is non-nullable"),
        ('{"id": 1, "day": "soon"}', "soon"),
    ],
)
def test_a_line_of_a_json_file_is_named(tmp_path: Path, line: str, problem: str) -> None:
    lines = [*(json.dumps({"id": number}) for number in range(20)), "", line, *('{"id": 5}',) * 10]
    (tmp_path / "a.json").write_text("\n".join(lines))
    with pytest.raises(UnfitInputError, match=rf"a\.json, line 22: .*{problem}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "problem"), [("a.parquet", "no Parquet file"), ("a.arrow", "no Arrow file"), ("a.json", "first line")]
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / name).write_bytes(b"something else that is long enough to have a footer")
    with pytest.raises(UnfitInputError, match=problem):
        load(tmp_path)


# CSV and JSON


def test_csv_files_come_in_dialects(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\t'a\tb'\n2\tNA\n3\t'NA'\n")
    csv_format = CsvFormat(quote="'", has_header=False, null_values=("NA",))
    loaded = load(tmp_path, columns=["id", "name"], csv_format=csv_format)
    assert loaded.select(["id", "name"]).to_pydict() == {"id": [1, 2, 3], "name": ["a\tb", None, "NA"]}


def test_an_empty_value_is_null_and_an_empty_quoted_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,name\n1,\n2,""\n')
    assert load(tmp_path)["name"].to_pylist() == [None, ""]


def test_line_ends_in_values_need_to_be_announced(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,name\n1,"a\nb"\n2,c\n')
    with pytest.raises(UnfitInputError, match="give multiline=True"):
        load(tmp_path, piece_bytes=3)
    assert load(tmp_path, csv_format=CsvFormat(is_multiline=True))["name"].to_pylist() == ["a\nb", "c"]


def test_a_value_that_goes_on_behind_the_end_of_a_block_is_no_two_values(tmp_path: Path) -> None:
    # As texts, both halves of a row have as many values as a row.
    rows = [f'user{number},"dear customer {number}\ncall back, thank you"\n' for number in range(3)]
    schema = Schema(pa.schema([("name", pa.string()), ("note", pa.string())]))
    (tmp_path / "a.csv").write_text("name,note\n" + "".join(rows))
    for piece_bytes in range(1, sum(map(len, rows)) + 1):
        with pytest.raises(UnfitInputError, match=r"a\.csv, line [2-7]: .*give multiline=True"):
            load(tmp_path, schema=schema, piece_bytes=piece_bytes)
    loaded = load(tmp_path, schema=schema, csv_format=CsvFormat(is_multiline=True))
    assert loaded["note"].to_pylist() == [f"dear customer {number}\ncall back, thank you" for number in range(3)]


def test_a_csv_file_of_names_only_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name")
    (tmp_path / "b.csv").write_text("")
    assert load(tmp_path).num_rows == 0
    assert load(tmp_path, csv_format=CsvFormat(is_multiline=True)).num_rows == 0


def test_json_lines_may_lack_fields_and_have_them_later(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ID": 1}\n{"name": "b", "ID": 2}\n')
    assert load(tmp_path).select(["id", "name"]).to_pydict() == {"id": [1, 2], "name": [None, "b"]}


def test_nested_values_are_read_from_json_but_not_from_csv(tmp_path: Path) -> None:
    inner = pa.struct([("on", pa.date32()), ("n", pa.int32())])
    schema = Schema(pa.schema([("tags", pa.list_(pa.string())), ("inner", inner)]))
    (tmp_path / "a.json").write_text('{"tags": ["a"], "inner": {"on": "2026-01-02", "n": 1}}\n')
    assert load(tmp_path, schema=schema).to_pylist() == [
        {"tags": ["a"], "inner": {"on": datetime.date(2026, 1, 2), "n": 1}}
    ]
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.csv").write_text("tags\na\n")
    with pytest.raises(UnfitInputError, match="which CSV files cannot hold"):
        load(tmp_path, schema=schema)


def test_maps_are_not_read_from_json(tmp_path: Path) -> None:
    schema = Schema(pa.schema([("counts", pa.map_(pa.string(), pa.int32()))]))
    (tmp_path / "a.json").write_text('{"counts": {"a": 1}}\n')
    with pytest.raises(UnfitInputError, match="maps cannot be read from JSON"):
        load(tmp_path, schema=schema)
