"""A few rows become the same Arrow message, whether it is made by Arrow or without it.
Shown with rows of every type and every pattern of nulls, read back by pyarrow; and with rows that are too many."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from fluss.client.write.few_rows import FewRows
from fluss.client.write.row_layout import RowLayout
from fluss.record.arrow_ipc import column_layout, parse_message
from fluss.record.compression import ArrowCompression
from fluss.schema.schema import schema_from_columns
from fluss.schema.table_options import CompressionType
from fluss.schema.types import DataTypes
from tests.integration.every_type import COLUMNS, FULL_ROW

SCALARS = [column for column in COLUMNS if not column.data_type.is_nested]
LAYOUT = RowLayout.of(schema_from_columns(SCALARS, []))
FULL = [FULL_ROW[column.name] for column in SCALARS]
# Half of the values, and the other half.
HALVES = [[value if index % 2 == which else None for index, value in enumerate(FULL)] for which in (0, 1)]
NULLS = [None] * len(FULL)


@pytest.mark.parametrize("compression", CompressionType)
def test_rows_of_every_type_are_those_of_arrow(compression: CompressionType) -> None:
    few = FewRows(LAYOUT.form, ArrowCompression(compression))
    patterns = [[row] for row in (FULL, *HALVES, NULLS)] + list(product((FULL, *HALVES, NULLS), repeat=2))
    for pattern in patterns:
        rows = [LAYOUT.pack_any(row)[0] for row in pattern]
        message = few.message(rows)
        assert message is not None
        expected = LAYOUT.to_arrow(rows)
        found = pa.ipc.read_record_batch(pa.py_buffer(message), expected.schema)
        found.validate(full=True)
        assert found.equals(expected)
        # As a server looks at it.
        column_layout(expected.schema).check(parse_message(memoryview(message)))


@pytest.mark.parametrize("compression", CompressionType)
def test_single_rows_with_the_same_nulls_and_lengths_share_a_pattern(compression: CompressionType) -> None:
    columns = [
        SCALARS[0].__class__(name, data_type)
        for name, data_type in (("flag", DataTypes.boolean()), ("text", DataTypes.string()), ("n", DataTypes.bigint()))
    ]
    layout = RowLayout.of(schema_from_columns(columns, []))
    few = FewRows(layout.form, ArrowCompression(compression))
    for row in (
        [True, "abc", 1],
        [False, "xyz", -1],
        [None, "abc", 2],
        [True, None, 3],
        [True, "", 4],
        [True, "ab", 5],
    ):
        packed = layout.pack_any(row)[0]
        message = few.message([packed])
        assert message == few._message_of_many([packed]) == few.message([packed])
        assert message is not None
        expected = layout.to_arrow([packed])
        assert pa.ipc.read_record_batch(pa.py_buffer(message), expected.schema).equals(expected)
    assert len(few._patterns) == 5


@pytest.mark.parametrize(("column_count", "patterns_max"), [(1, 256), (4, 256), (5, 204), (64, 16)])
def test_patterns_of_wide_rows_are_fewer(column_count: int, patterns_max: int) -> None:
    columns = [SCALARS[0].__class__(f"c{number}", DataTypes.string()) for number in range(column_count)]
    layout = RowLayout.of(schema_from_columns(columns, []))
    few = FewRows(layout.form, ArrowCompression())
    counts = set()
    for length in range(300):
        packed = layout.pack_any(["x" * length, *[None] * (column_count - 1)])[0]
        assert few.message([packed]) == few._message_of_many([packed])
        counts.add(len(few._patterns))
    assert max(counts) == patterns_max


def test_many_or_large_rows_are_left_to_arrow() -> None:
    layout = RowLayout.of(schema_from_columns([SCALARS[0].__class__("text", DataTypes.string())], []))
    row, long_row, huge_row = (layout.pack_any(["x" * length])[0] for length in (1, 300, 5000))
    plain, compressed = (
        FewRows(layout.form, ArrowCompression(kind)) for kind in (CompressionType.NONE, CompressionType.ZSTD)
    )
    assert plain.message([row] * 64) is not None
    assert plain.message([row] * 65) is None
    assert plain.message([]) is None
    assert plain.message([huge_row]) is None
    # It would be compressed.
    assert plain.message([long_row]) is not None
    assert compressed.message([row]) is not None
    assert compressed.message([long_row]) is None


def test_nested_values_are_left_to_arrow() -> None:
    layout = RowLayout.of(schema_from_columns([SCALARS[0].__class__("list", DataTypes.array(DataTypes.int()))], []))
    assert FewRows(layout.form, ArrowCompression()).message([layout.pack_any([[1, 2]])[0]]) is None
