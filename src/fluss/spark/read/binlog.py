"""Changes as events: one for each insert, update and delete, with the row before it and the row after it.

| column            | meaning                                                                                  |
|-------------------|------------------------------------------------------------------------------------------|
| _change_type      | insert, update or delete                                                                 |
| _log_offset       | the position in the log of the bucket; of an update, that of the row before it           |
| _commit_timestamp | when the server appended it                                                              |
| before            | the row before an update or a delete; null for an insert                                 |
| after             | the row after an insert or an update; null for a delete                                  |

Columns and values are those of the virtual ``$binlog`` tables of Flink SQL. A changelog with the image WAL does not
have the rows before updates: there ``before`` is null, and what is called an update may be an insert.

In the log an update is two records, the row before and the row after it, which follow each other in one batch. A range
of offsets has an update if it has its first record. So one that ends between the two needs the record behind its end,
and one that begins between them leaves its first record out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.client.bulk import NOT_IN_LOG, RecordRun, changelog_schema
from fluss.row.arrow_arrays import number_array, string_array
from fluss.schema.offsets import ChangeType
from fluss.spark.type_mapping import AFTER, BEFORE

_INSERT, _UPDATE, _DELETE = range(3)
_EVENT_NAMES: Final = ("insert", "update", "delete")
_EVENTS: Final = {ChangeType.Insert: _INSERT, ChangeType.UpdateAfter: _UPDATE, ChangeType.Delete: _DELETE}
_NOTHING: Final = -1
_TIMESTAMP: Final = pa.timestamp("ms", "UTC")

# Reads the record at an offset of a bucket; None if there is no such record (any more).
ReadRecord = Callable[[int], "RecordRun | None"]


def binlog_batch(run: RecordRun, *, start: int, stop: int, read_record: ReadRecord) -> pa.RecordBatch:
    """Return the events of consecutive changes inside the range from ``start`` to ``stop``."""
    rows, types = run.batch, run.change_types
    assert rows is not None
    if types is None:
        types = np.full(run.count, ChangeType.Insert, np.uint8)
    if run.base_offset + run.count == stop and types[-1] == ChangeType.UpdateBefore:
        after = read_record(stop)
        if after is not None and after.change_types is not None:
            rows = pa.concat_batches([rows, after.batch])
            types = np.concatenate([types, after.change_types])
    positions = np.flatnonzero(types != ChangeType.UpdateBefore)
    if run.base_offset == start > 0 and types[0] == ChangeType.UpdateAfter:
        before = read_record(start - 1)
        if before is not None and before.change_types is not None and before.change_types[0] == ChangeType.UpdateBefore:
            positions = positions[1:]
    return _events(rows, types, positions, run.base_offset, run.timestamp_ms)


def _events(
    rows: pa.RecordBatch, types: UInt8Array, positions: Int64Array, base_offset: int, timestamp_ms: int
) -> pa.RecordBatch:
    own_types = types[positions]
    previous = positions - 1
    has_before = (own_types == ChangeType.UpdateAfter) & (previous >= 0)
    has_before &= types[np.maximum(previous, 0)] == ChangeType.UpdateBefore
    is_delete = own_types == ChangeType.Delete
    before = np.where(has_before, previous, np.where(is_delete, positions, _NOTHING))
    after = np.where(is_delete, _NOTHING, positions)
    offsets = base_offset + np.where(has_before, previous, positions)
    events = np.full(len(types), _INSERT, np.int32)
    for change_type, event in _EVENTS.items():
        events[types == change_type] = event
    timestamps = number_array(np.full(len(positions), timestamp_ms, np.int64)).view(_TIMESTAMP)
    return _batch(rows, events[positions], offsets, timestamps, before, after)


def inserted_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that were not read from a log as events: inserts without a place in it, and without a time."""
    count = rows.num_rows
    offsets, before = np.full(count, NOT_IN_LOG, np.int64), np.full(count, _NOTHING, np.int64)
    inserts = np.full(count, _INSERT, np.int32)
    return _batch(rows, inserts, offsets, pa.nulls(count, _TIMESTAMP), before, np.arange(count))


def _batch(
    rows: pa.RecordBatch,
    events: npt.NDArray[np.int32],
    offsets: Int64Array,
    timestamps: pa.Array,
    before: Int64Array,
    after: Int64Array,
) -> pa.RecordBatch:
    arrays = [
        string_array(_EVENT_NAMES).take(number_array(events)),
        number_array(offsets.astype(np.int64)),
        timestamps,
        _images(rows, before),
        _images(rows, after),
    ]
    image = _image_type(rows.schema)
    schema = pa.schema([*changelog_schema(pa.schema([])), (BEFORE, image), (AFTER, image)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _images(rows: pa.RecordBatch, positions: Int64Array) -> pa.Array:
    """Return rows as structs, null where there is no position."""
    is_null = positions == _NOTHING
    taken = rows.take(number_array(positions, is_null))
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    buffers = [validity if is_null.any() else None]
    return pa.Array.from_buffers(_image_type(rows.schema), len(positions), buffers, children=taken.columns)


def _image_type(rows: pa.Schema) -> pa.DataType:
    """Return the type of a row inside another: where there is none, none of its columns has a value."""
    return pa.struct([field.with_nullable(True) for field in rows])
