"""Stored rows become the columns of a scan, in their order, whatever schemas they were written with.
Shown with value batches in both formats, rows of several schemas in any order, chosen columns, and damage."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.kernel.decode import ScanColumns, ValueDecoder
from fluss.errors import CorruptRecordError
from fluss.record.value_batch import encode_value, encode_value_batch
from fluss.row import compacted, indexed
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Column, Schema
from fluss.schema.table_options import KvFormat
from fluss.schema.types import DataTypes

OLD = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
MIDDLE = OLD.with_added_columns([Column("price", DataTypes.double())])
NEW = MIDDLE.with_added_columns([Column("tags", DataTypes.array(DataTypes.string()))])
SCHEMAS = {1: OLD, 2: MIDDLE, 3: NEW}
FORMATS = {KvFormat.COMPACTED: compacted.encode_row, KvFormat.INDEXED: indexed.encode_row}


def value(kv_format: KvFormat, schema_id: int, row: tuple[Any, ...]) -> bytes:
    types = SCHEMAS[schema_id].data_types
    return encode_value(schema_id, FORMATS[kv_format](types, row[: len(types)]))


def batch_of(values: list[bytes]) -> memoryview:
    return memoryview(encode_value_batch(EncodedRows.from_list(values)))


def decoder(
    kv_format: KvFormat = KvFormat.COMPACTED, positions: list[int] | None = None, schema_id: int = 2
) -> ValueDecoder:
    return ValueDecoder(ScanColumns(schema_id, SCHEMAS[schema_id], positions), kv_format, SCHEMAS.__getitem__)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("positions", [None, [0], [2, 0], [1, 1]], ids=str)
def test_rows_of_all_schemas_keep_their_order(kv_format: KvFormat, positions: list[int] | None) -> None:
    rng = random.Random(f"{kv_format} {positions}")
    for count in (1, 2, 50):
        schema_ids = rng.choices([1, 2, 3], k=count)
        values, expected = [], []
        for number, schema_id in enumerate(schema_ids):
            price = rng.choice([None, number / 2])
            values.append(value(kv_format, schema_id, (number, f"n{number}", price, ["t"])))
            row = (number, f"n{number}", price if schema_id > 1 else None)
            expected.append(row if positions is None else tuple(row[position] for position in positions))
        rows = decoder(kv_format, positions).decode(batch_of(values))
        assert list(zip(*(column.to_pylist() for column in rows.columns), strict=True)) == expected
        assert rows.schema == ScanColumns(2, MIDDLE, positions).arrow_schema


def test_one_schema_needs_no_other_and_nothing_is_no_rows() -> None:
    def load(schema_id: int) -> Schema:
        raise AssertionError(f"schema {schema_id} is not needed")

    ours = ValueDecoder(ScanColumns(2, MIDDLE), KvFormat.COMPACTED, load)
    assert ours.decode(batch_of([value(KvFormat.COMPACTED, 2, (1, "a", 0.5))])).num_rows == 1
    for nothing in (memoryview(b""), batch_of([])):
        rows = ours.decode(nothing)
        assert (rows.num_rows, rows.schema) == (0, MIDDLE.to_arrow())
    assert ours.data_types == tuple(MIDDLE.data_types)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_damage_is_told(kv_format: KvFormat) -> None:
    whole = batch_of([value(kv_format, 2, (1, "abc", 0.5))])
    for damaged in (whole[:-1], whole[:5], bytes(whole[:-1]) + b"\0\0"):
        with pytest.raises(CorruptRecordError):
            decoder(kv_format).decode(memoryview(damaged))
    with pytest.raises(CorruptRecordError):
        decoder(kv_format).decode(batch_of([value(kv_format, 2, (1, "abc", 0.5))[:-2]]))
