"""Batches of a Fluss table in the Arrow types of its lake table, with the columns of the system behind their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema as LakeSchema

from fluss.lake.schema_mapping import BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN

# What rows of a snapshot by key have, which come from no place in the log.
OFFSET_OF_SNAPSHOT_ROWS = -1
TIMESTAMP_MS_OF_SNAPSHOT_ROWS = -1


def arrow_schema(schema: LakeSchema, *, with_field_ids: bool = True) -> pa.Schema:
    """Return the Arrow schema of rows, with 32-bit offsets as Fluss has them. Data files are written with field ids."""
    fields = [_small_field(field) for field in schema_to_pyarrow(schema, include_field_ids=with_field_ids)]
    return pa.schema(fields)


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(_small_type(field.type))


def _small_type(arrow_type: pa.DataType) -> pa.DataType:
    if pat.is_large_string(arrow_type):
        return pa.string()
    if pat.is_large_binary(arrow_type):
        return pa.binary()
    if pat.is_list(arrow_type) or pat.is_large_list(arrow_type):
        return pa.list_(_small_field(arrow_type.value_field))
    if pat.is_map(arrow_type):
        return pa.map_(_small_field(arrow_type.key_field), _small_field(arrow_type.item_field))
    if pat.is_struct(arrow_type):
        return pa.struct([_small_field(field) for field in arrow_type])
    return arrow_type


def lake_batch(
    rows: pa.RecordBatch,
    schema: pa.Schema,
    *,
    bucket_id: int,
    offsets: int | Any,
    timestamps_ms: int | Any,
) -> pa.RecordBatch:
    """Return rows of one bucket as the lake has them.

    ``schema`` is that of the lake table (``arrow_schema``); columns that rows were written without are null.
    ``offsets`` is the offset of the first row, which the others follow, or an array with one for each row;
    ``timestamps_ms`` the time of commit of all rows, or of each. Rows of a snapshot by key have an array of -1.
    """
    count = rows.num_rows
    offset_array = np.arange(offsets, offsets + count, dtype=np.int64) if isinstance(offsets, int) else offsets
    ms = np.full(count, timestamps_ms, np.int64) if isinstance(timestamps_ms, int) else np.asarray(timestamps_ms)
    # By name, not by place: another writer of the lake table may have added columns behind these.
    present = dict(zip(rows.schema.names, rows.columns, strict=True)) | {
        BUCKET_COLUMN: pa.array(np.full(count, bucket_id, np.int32)),
        OFFSET_COLUMN: pa.array(offset_array, pa.int64()),
        TIMESTAMP_COLUMN: pa.array(ms.astype(np.int64) * 1000).cast(pa.timestamp("us", "UTC")),
    }
    columns = [
        lake_array(present[field.name], field.type) if field.name in present else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def lake_array(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return values of a Fluss column in the type of the lake; what is the same already is not copied."""
    if values.type.equals(arrow_type):
        return values
    if pat.is_list(arrow_type):
        children = lake_array(values.values, arrow_type.value_type)
        return _rebuilt(values, arrow_type, [children])
    if pat.is_map(arrow_type):
        keys = lake_array(values.keys, arrow_type.key_type)
        items = lake_array(values.items, arrow_type.item_type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[arrow_type.key_field, arrow_type.item_field])
        return _rebuilt(values, arrow_type, [entries])
    if pat.is_struct(arrow_type):
        by_name = {field.name: values.field(index) for index, field in enumerate(values.type)}
        fields = [
            lake_array(by_name[field.name], field.type) if field.name in by_name else pa.nulls(len(values), field.type)
            for field in arrow_type
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(arrow_type), mask=mask)
    if pat.is_timestamp(arrow_type) and values.type.unit == "ns":
        # A cast would round towards 1970; earlier instants must go the same way as later ones.
        values = pc.floor_temporal(values, unit="microsecond")
    return values.cast(arrow_type, safe=False) if pat.is_temporal(arrow_type) else values.cast(arrow_type)


def _rebuilt(values: pa.Array, arrow_type: pa.DataType, children: Sequence[pa.Array]) -> pa.Array:
    """Return a list or map with other children and everything else as it is, also where it begins in them."""
    return pa.Array.from_buffers(
        arrow_type, len(values), values.buffers()[:2], values.null_count, values.offset, children=list(children)
    )
