"""Arrow arrays made of buffers are those that pyarrow makes, without pandas, and what nulls would take is known before.
Against pyarrow.array and the sizes of real arrays, in a process without pandas, by rows that would become gigabytes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from fluss.errors import SizeLimitError
from fluss.row import compacted, compacted_columns, indexed
from fluss.row.arrow_arrays import (
    bool_array,
    empty_batch,
    number_array,
    slot_bits,
    slots_bytes,
    string_array,
    true_indexes,
    without_rows,
)
from fluss.row.encoded import EncodedRows
from fluss.schema.arrow import arrow_type
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.testing.strategies import data_types


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("step", [1, -3])
def test_numbers_are_those_of_pyarrow(dtype: type[np.generic], step: int) -> None:
    numbers = np.arange(20).astype(dtype)[::step]
    is_null = np.arange(len(numbers)) % 3 == 0
    assert number_array(numbers).equals(pa.array(numbers))
    assert number_array(numbers, is_null).equals(pa.array(numbers, mask=is_null))


@pytest.mark.parametrize("count", [0, 1, 8, 19])
def test_booleans_are_those_of_pyarrow(count: int) -> None:
    values = np.arange(count) % 3 == 0
    assert bool_array(values).equals(pa.array(values, pa.bool_()))


@pytest.mark.parametrize("start", [0, 3, 8])
@pytest.mark.parametrize("values", [[True, False, None] * 7, [True] * 20, [False] * 9, [None] * 9, []])
def test_what_is_true_is_found_also_in_slices(values: list[bool | None], start: int) -> None:
    expected = [index for index, value in enumerate(values[start:]) if value]
    assert true_indexes(pa.array(values, pa.bool_())[start:]).tolist() == expected


def test_texts_are_those_of_pyarrow() -> None:
    for texts in ([], ["", "grüße", "x"]):
        assert string_array(texts).equals(pa.array(texts, pa.string()))


def test_an_empty_batch_has_its_schema() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.list_(pa.string()))])
    assert empty_batch(schema).equals(pa.RecordBatch.from_pylist([], schema=schema))


@pytest.mark.parametrize("gone", [[], [0], [3, 4, 5], [1, 8], list(range(9))])
def test_rows_without_some_are_those_of_pyarrow(gone: list[int]) -> None:
    columns = {
        "a": pa.array(range(10), pa.int64()),
        "b": pa.array([None, "x", "yy"] * 3 + ["z"]),
        "c": pa.array([[at] * at for at in range(10)]),
        "d": pa.array([{"e": at, "f": None} for at in range(10)]),
        "g": pa.nulls(10),
    }
    rows = pa.RecordBatch.from_pydict(columns).slice(1)
    kept = [at for at in range(9) if at not in gone]
    assert without_rows(rows, np.array(gone, np.int64)).equals(rows.take(pa.array(kept, pa.int64())))


def test_pandas_is_not_imported() -> None:
    program = """
import sys
import numpy as np
import pyarrow as pa
from fluss.row.arrow_arrays import bool_array, empty_batch, number_array, string_array
number_array(np.arange(3)), bool_array(np.arange(3) > 1), string_array(["a"])
empty_batch(pa.schema([("a", pa.int8())]))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


CODECS = [(compacted, compacted_columns), (indexed, indexed)]
MIB = 1024 * 1024


@given(data_types())
def test_a_column_of_nulls_takes_what_was_told(data_type: DataType) -> None:
    row_count = 8 * 1024
    nulls = pa.nulls(row_count, arrow_type(data_type))
    told = slots_bytes([data_type], row_count)
    # Arrow counts no validity for what it knows to be null, and one offset more than there are values.
    assert told - row_count <= nulls.nbytes <= told + 4096


@pytest.mark.parametrize(("scalar", "columnar"), CODECS)
def test_wide_rows_of_nulls_are_refused_before_they_are_decoded(scalar: object, columnar: object) -> None:
    types = [parse_type("DECIMAL(38, 2)")] * 1000
    row = scalar.encode_row(types, (None,) * 1000)  # type: ignore[attr-defined]  # one of two modules
    rows = EncodedRows.from_list([row] * 2000)
    decode = columnar.decode_rows  # type: ignore[attr-defined]  # one of two modules
    assert len(decode(rows, types)) == 1000
    assert len(decode(rows, types, arrays_bytes_max=31 * MIB)) == 1000
    with pytest.raises(SizeLimitError, match="2000 rows would take"):
        decode(rows, types, arrays_bytes_max=30 * MIB)


def test_what_arrays_take_together_is_limited() -> None:
    types = [parse_type("ARRAY<ROW<a DECIMAL(38, 2), b DECIMAL(38, 2), c DECIMAL(38, 2)>>")]
    row = compacted.encode_row(types, ([None] * 10_000,))
    rows = EncodedRows.from_list([row] * 60)
    (column,) = compacted_columns.decode_rows(rows, types)
    assert column.nbytes > 25 * MIB
    with pytest.raises(SizeLimitError, match="60 rows would take"):
        compacted_columns.decode_rows(rows, types, arrays_bytes_max=20 * MIB)


def test_an_array_of_nulls_that_would_take_gigabytes_is_refused() -> None:
    fields = ", ".join(f"f{number} DECIMAL(38, 2)" for number in range(500))
    for text in (f"ARRAY<ROW<{fields}>>", "ARRAY<BINARY(10000)>", f"MAP<INT, ROW<{fields}>>"):
        data_type = parse_type(text)
        nulls = [(key, None) for key in range(100_000)] if text.startswith("MAP") else [None] * 100_000
        row = compacted.encode_row([data_type], (nulls,))
        assert len(row) < 2 * MIB
        with pytest.raises(SizeLimitError, match="100000 elements"):
            compacted.decode_row([data_type], row)


def test_rows_of_many_large_arrays_are_decoded_piece_by_piece() -> None:
    types = [parse_type("INT NOT NULL"), parse_type("ARRAY<INT>")]
    values = [(number, None if number % 7 == 3 else list(range(number, number + 30_000))) for number in range(50)]
    rows = EncodedRows.from_list([compacted.encode_row(types, row) for row in values])
    numbers, arrays = compacted_columns.decode_rows(rows, types)
    assert list(zip(numbers.to_pylist(), arrays.to_pylist(), strict=True)) == values


def test_structs_take_what_their_fields_take() -> None:
    assert slot_bits(parse_type("ROW<a INT, b ROW<c BIGINT>>")) == 1 + 33 + (1 + 65)
    assert slot_bits(parse_type("BINARY(10)")) == 81
