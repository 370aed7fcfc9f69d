"""Stored values become the rows that were written, singly and in columns, with the columns of the reader's schema.
Hypothesis draws schemas and rows of all types; the conversion of single values is the oracle."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.lookup.keys_and_rows import LookupKeys, ValueReader
from fluss.errors import ErrorCode, FlussError
from fluss.record.value_batch import encode_value
from fluss.row import compacted, indexed
from fluss.row.encoded import EncodedRows
from fluss.row.python_values import from_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.table_options import KvFormat
from fluss.schema.types import DataType, DataTypes
from fluss.testing.strategies import internal_rows, row_types

INT, STRING = DataTypes.int(), DataTypes.string()


def info_of(schema: Schema, schema_id: int = 1, kv_format: KvFormat = KvFormat.COMPACTED) -> TableInfo:
    descriptor = TableDescriptor(schema, bucket_count=1, kv_format=kv_format)
    return TableInfo._create(TablePath("fluss", "t"), 1, schema_id, descriptor, 0, 0)


def schema_of(types: list[DataType]) -> Schema:
    columns = [Column("id", INT), *(Column(f"c{i}", t) for i, t in enumerate(types))]
    return schema_from_columns(columns, ["id"])


def as_python(row: tuple[Any, ...], schema: Schema) -> dict[str, Any] | None:
    """Convert a row value by value; None if Python cannot show it."""
    try:
        return {c.name: from_internal(v, c.data_type) for c, v in zip(schema.columns, row, strict=True)}
    except FlussError:
        return None


@given(data=st.data(), types=row_types(columns_max=5), kv_format=st.sampled_from(list(KvFormat)))
def test_rows_of_all_types_come_back_singly_and_in_columns(
    data: st.DataObject, types: list[DataType], kv_format: KvFormat
) -> None:
    schema = schema_of(types)
    drawn = data.draw(st.lists(internal_rows(schema.data_types), min_size=1, max_size=4))
    expected = [as_python(row, schema) for row in drawn]
    encode = compacted.encode_row if kv_format is KvFormat.COMPACTED else indexed.encode_row
    try:
        stored = [encode_value(1, encode(schema.data_types, row)) for row in drawn]
    except FlussError:
        # An indexed CHAR has a limit in bytes that the drawn text exceeds.
        return
    if None in expected:
        return
    rows = ValueReader(info_of(schema, kv_format=kv_format))
    assert not rows.unknown_schemas(stored)
    # repr, because a NaN is not equal to itself.
    assert repr(rows.rows(stored)) == repr(expected)
    assert repr(rows.rows(stored * 40)) == repr(expected * 40)
    assert rows.arrow(EncodedRows.from_list(stored)).schema == schema.to_arrow()


def test_rows_older_than_a_column_have_none_and_newer_columns_are_left_out() -> None:
    old = schema_of([STRING])
    new = old.with_added_columns([Column("added", STRING), Column("last", INT)])
    values = [
        encode_value(1, compacted.encode_row(old.data_types, (1, "a"))),
        encode_value(2, compacted.encode_row(new.data_types, (2, "b", "x", 9))),
    ]
    of_new, of_old = ValueReader(info_of(new, 2)), ValueReader(info_of(old, 1))
    assert (of_new.unknown_schemas(values), of_old.unknown_schemas(values)) == ([1], [2])
    many = EncodedRows.from_list(values)
    assert (of_new.unknown_schemas_of(many), of_old.unknown_schemas_of(many)) == ([1], [2])
    of_new.add_schema(1, old)
    of_old.add_schema(2, new)
    for count in (1, 50):
        first, second = of_new.rows(values * count)[-2:]
        assert first == {"id": 1, "c0": "a", "added": None, "last": None}
        assert second == {"id": 2, "c0": "b", "added": "x", "last": 9}
        assert of_old.rows(values * count)[-2:] == [{"id": 1, "c0": "a"}, {"id": 2, "c0": "b"}]
    assert of_new.arrow(EncodedRows.from_list(values)).to_pylist() == of_new.rows(values)


def test_some_columns_in_any_order() -> None:
    schema = schema_of([STRING, INT])
    values = [encode_value(1, compacted.encode_row(schema.data_types, (1, "a", 5)))]
    batch = ValueReader(info_of(schema), [2, 0]).arrow(EncodedRows.from_list(values))
    assert batch.schema.names == ["c1", "id"]
    assert batch.to_pylist() == [{"c1": 5, "id": 1}]


def test_no_values_are_no_rows() -> None:
    rows = ValueReader(info_of(schema_of([STRING])))
    assert rows.rows([]) == []
    assert rows.arrow(EncodedRows.from_list([])) == pa.RecordBatch.from_pylist([], schema=rows.arrow_schema)


@pytest.mark.parametrize("value", [b"\x01", b"\x01\x00", b"\x01\x00\x00\xff", b"\x01\x00\x00\x01\x05ab"])
@pytest.mark.parametrize("count", [1, 50])
def test_damage_is_an_error_of_the_client(value: bytes, count: int) -> None:
    rows = ValueReader(info_of(schema_of([STRING])))
    values = [value] * count
    for read in (partial(rows.rows, values), partial(rows.arrow, EncodedRows.from_list(values))):
        with pytest.raises(FlussError, match=r"A stored row of fluss.t cannot be read") as caught:
            read()
        assert caught.value.error_code == ErrorCode.CLIENT_ERROR


def test_a_required_column_that_a_row_does_not_have_is_damage() -> None:
    schema = schema_of([STRING.not_null()])
    only_key = schema_from_columns([Column("id", INT)], ["id"])
    rows = ValueReader(info_of(schema, 2))
    rows.add_schema(1, only_key)
    value = encode_value(1, compacted.encode_row(only_key.data_types, (1,)))
    for count in (1, 50):
        with pytest.raises(FlussError, match="c0"):
            rows.rows([value] * count)


def test_reading_rows_does_not_import_pandas() -> None:
    # That takes longer than a thousand lookups, and would happen on the event loop.
    code = """
import sys
from fluss import DataTypes, Schema, TableDescriptor, TableInfo, TablePath
from fluss.client.lookup.keys_and_rows import LookupKeys, ValueReader
from fluss.row.compacted import encode_row
columns = Schema.builder().column("id", DataTypes.int()).column("name", DataTypes.string())
schema = columns.column("at", DataTypes.timestamp(6)).column("score", DataTypes.double()).primary_key(["id"]).build()
info = TableInfo._create(TablePath("d", "t"), 1, 1, TableDescriptor(schema, bucket_count=1), 0, 0)
value = bytes([1, 0]) + encode_row(schema.data_types, (1, "a", None, 0.5))
print(len(ValueReader(info).rows([value] * 100)), "pandas" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "100 False\n"


def test_pandas_may_be_imported_by_another_thread_while_keys_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    keys = LookupKeys(info_of(schema_of([STRING])), ["id"], "java")
    for form in ([[1], {"id": 2}], pa.table({"id": pa.array([1, 2], pa.int32())})):
        (batch,) = keys.batches(form, 10)
        assert batch.column(0).to_pylist() == [1, 2]
