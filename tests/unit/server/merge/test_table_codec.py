"""Stored values of any schema of a table come back in its newest one, in their order, and rows go out as they came in.
Shown by golden bytes, by values of mixed schemas in both KV formats, and by damaged values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import CorruptRecordError, FlussError
from fluss.record.mutations import StoredValues
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Column, Schema
from fluss.schema.table_options import KvFormat
from fluss.schema.types import BigIntType, IntType, StringType
from fluss.server.merge.table_codec import TableRowCodec
from tests.unit.server.merge.merging import encode_row, make_table, rows_of, with_columns

SCHEMA = Schema.builder().column("id", IntType()).column("name", StringType()).primary_key(["id"]).build()
FORMATS = ["compacted", "indexed"]


def decoded(codec: TableRowCodec, values: list[bytes]) -> pa.RecordBatch:
    stored = StoredValues.from_list(values)
    return codec.decode_mixed(stored.rows, stored.schema_ids)


def test_a_stored_value_is_the_schema_id_and_the_row() -> None:
    rows = EncodedRows.from_list([bytes.fromhex("000a03616263")])
    assert StoredValues(rows, np.array([3], np.int16)).to_list() == [bytes.fromhex("0300000a03616263")]
    assert StoredValues(EncodedRows.from_list([]), np.empty(0, np.int16)).to_list() == []


@pytest.mark.parametrize("kv_format", FORMATS)
def test_values_of_mixed_schemas_keep_their_order_and_are_padded_with_nulls(kv_format: str) -> None:
    first = make_table(SCHEMA, kv_format=kv_format)
    second = with_columns(first, Column("n", BigIntType()))
    table = with_columns(second, Column("m", BigIntType()))
    versions = {1: (1, "a"), 2: (2, None, 7), 3: (3, "c", None, 9)}
    order = [2, 1, 3, 1, 2, 2]
    values = [i.to_bytes(2, "little") + encode_row(table, versions[i], i) for i in order]
    types = table.descriptor.schema.data_types
    padded = [versions[i] + (None,) * (4 - len(versions[i])) for i in order]
    codec = TableRowCodec(table)
    assert rows_of(decoded(codec, values), types) == padded
    assert rows_of(decoded(codec, []), types) == []
    received = EncodedRows.from_list([encode_row(table, versions[1], 1)])
    assert rows_of(codec.decode(received, 1), types) == [(1, "a", None, None)]
    assert codec.schema_id == 3
    assert codec.encode(decoded(codec, values[:1])).to_list() == [encode_row(table, padded[0], 3)]


def test_a_log_of_rows_may_have_another_format_than_the_store() -> None:
    table = make_table(SCHEMA, kv_format="compacted")
    rows = TableRowCodec(table).decode(EncodedRows.from_list([bytes.fromhex("000a03616263")]), 1)
    assert TableRowCodec(table, KvFormat.INDEXED).encode(rows).to_list() == [bytes.fromhex("00030000000a000000616263")]


@pytest.mark.parametrize(
    "value", [b"", b"\1", b"\1\0", b"\1\0\0\x0a\3ab", b"\1\0\1", b"\2\0\0\x0a\3abc", b"\1\0\0\x0a\3abc\0"]
)
def test_damaged_values_and_values_of_unknown_schemas_are_refused(value: bytes) -> None:
    codec = TableRowCodec(make_table(SCHEMA))
    good = b"\1\0\0\x0a\3abc"
    assert decoded(codec, [good, good]).num_rows == 2
    with pytest.raises(CorruptRecordError):
        decoded(codec, [good, value])


def test_a_null_in_a_column_that_allows_none_is_not_encoded() -> None:
    codec = TableRowCodec(make_table(SCHEMA))
    columns = [pa.nulls(1, pa.int32()), pa.array(["a"])]
    with pytest.raises(FlussError, match="column 0 is null"):
        codec.encode(pa.RecordBatch.from_arrays(columns, schema=SCHEMA.to_arrow()))
