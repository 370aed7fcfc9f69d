"""Stored values: what the server keeps under a key, what a lookup returns, and many of them in one batch.

A value:

| field     | type  | meaning                                      |
|-----------|-------|----------------------------------------------|
| schema_id | int16 | the schema the row was written with          |
| row       | bytes | in the KV format of the table                |

A value batch, the answer to a limited or full scan of a primary-key table:

| field        | type  | byte | meaning                                    |
|--------------|-------|------|--------------------------------------------|
| length       | int32 | 0    | bytes after this field                     |
| magic        | int8  | 4    | 0, the only version                        |
| record_count | int32 | 5    |                                            |
| records      |       | 9    | each an int32 length and a value           |

Integers are little-endian. There are no keys and no checksum; values come in the order of their key bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import BytesLike, byte_array, byte_view
from fluss.errors import CorruptRecordError, FlussError, SizeLimitError
from fluss.record.framing import (
    LENGTH_PREFIX_BYTES,
    concat_rows,
    fixed_width_rows,
    join_length_prefixed,
    split_length_prefixed,
)
from fluss.row.arrow_arrays import number_array
from fluss.row.encoded import EncodedRows, unaligned

MAGIC = 0
BATCH_BYTES_MAX = 2**31 - 1

_SCHEMA_ID = struct.Struct("<h")
SCHEMA_ID_BYTES = _SCHEMA_ID.size
_HEADER = struct.Struct(
    "<i"  # length          bytes after this field
    "b"  # magic
    "i"  # record_count
)
HEADER_BYTES = _HEADER.size


def encode_value(schema_id: int, row: BytesLike) -> bytes:
    """Put the schema id in front of one row."""
    return b"".join((_SCHEMA_ID.pack(schema_id), row))


def decode_value(value: BytesLike) -> tuple[int, memoryview]:
    """Split one value into its schema id and its row, without copying the row."""
    view = byte_view(value)
    if len(view) < SCHEMA_ID_BYTES:
        raise CorruptRecordError(f"A stored value of {len(view)} bytes is too short for its schema id")
    return _SCHEMA_ID.unpack_from(view)[0], view[SCHEMA_ID_BYTES:]


def prefix_schema_id(rows: EncodedRows, schema_id: int | npt.NDArray[np.int16]) -> EncodedRows:
    """Put the schema id, of all or of each, in front of every row: ``encode_value`` for columns."""
    return concat_rows(fixed_width_rows(np.broadcast_to(np.asarray(schema_id, "<i2"), len(rows))), rows)


def split_values(values: EncodedRows) -> tuple[npt.NDArray[np.int16], EncodedRows]:
    """Split all values into schema ids and rows in place: ``decode_value`` for columns."""
    too_short = np.flatnonzero(values.lengths < SCHEMA_ID_BYTES)
    if len(too_short):
        index = int(too_short[0])
        length = int(values.lengths[index])
        raise CorruptRecordError(f"The stored value {index}, of {length} bytes, is too short for its schema id")
    schema_ids: npt.NDArray[np.int16] = unaligned(values.data, "<i2")[values.starts].astype(np.int16, copy=False)
    return schema_ids, EncodedRows(values.data, values.starts + SCHEMA_ID_BYTES, values.ends)


def decode_by_schema(
    rows: EncodedRows, schema_ids: npt.NDArray[np.int16], decode: Callable[[EncodedRows, int], pa.RecordBatch]
) -> pa.RecordBatch:
    """Decode rows, of which there are some, one schema at a time, and return them in the order they have.

    ``decode`` takes rows of one schema and returns them with columns that are the same for every schema.
    """
    if bool((schema_ids == schema_ids[0]).all()):
        return decode(rows, int(schema_ids[0]))
    order = np.argsort(schema_ids, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(schema_ids[order])) + 1)
    decoded = pa.concat_batches(
        [
            decode(EncodedRows(rows.data, rows.starts[group], rows.ends[group]), int(schema_ids[group[0]]))
            for group in groups
        ]
    )
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return decoded.take(number_array(places))


def encode_value_batch(values: EncodedRows) -> bytearray:
    """Build a batch of values that already carry their schema ids."""
    size = HEADER_BYTES + LENGTH_PREFIX_BYTES * len(values) + int(values.lengths.sum())
    if size > BATCH_BYTES_MAX:
        raise FlussError(f"A value batch of {size} bytes is too large, the limit is {BATCH_BYTES_MAX}: scan fewer rows")
    batch = bytearray(size)
    _HEADER.pack_into(batch, 0, size - LENGTH_PREFIX_BYTES, MAGIC, len(values))
    byte_view(batch)[HEADER_BYTES:] = byte_view(join_length_prefixed(values).data)
    return batch


def decode_value_batch(data: BytesLike, *, size_max: int = BATCH_BYTES_MAX) -> EncodedRows:
    """Find the values of a batch in place. ``data`` must be exactly one batch of at most ``size_max`` bytes."""
    view = byte_view(data)
    if len(view) < HEADER_BYTES:
        raise CorruptRecordError(f"A value batch of {len(view)} bytes is shorter than its {HEADER_BYTES}-byte header")
    length, magic, record_count = _HEADER.unpack_from(view)
    size = length + LENGTH_PREFIX_BYTES
    if magic != MAGIC:
        raise CorruptRecordError(f"The value batch has the format version {magic}, this version reads only {MAGIC}")
    if size > size_max:
        raise SizeLimitError(f"The value batch announces {size} bytes, the limit is {size_max}")
    if size != len(view):
        raise CorruptRecordError(f"The value batch announces {size} bytes, {len(view)} were received")
    body = byte_array(view[HEADER_BYTES:])
    starts, ends = split_length_prefixed(body, record_count, what="stored value", payload_bytes_min=SCHEMA_ID_BYTES)
    return EncodedRows(body, starts, ends)
