"""Log records as rows: the body of INDEXED and COMPACTED log batches.

| field       | type  | meaning                                            |
|-------------|-------|----------------------------------------------------|
| length      | int32 | bytes after this field: 1 + size of the row         |
| change_type | uint8 | 0 +A · 1 +I · 2 -U · 3 +U · 4 -D                     |
| row         | bytes | IndexedRow or CompactedRow of the batch's schema    |

The header in front of the body is that of every log batch (``fluss.record.log_batch``); record ``i`` has the offset
``base_offset + i``. Rows stay encoded here: their columns are the business of ``fluss.row``.
"""

from __future__ import annotations

import numpy as np

from fluss.buffers import BytesLike, UInt8Array, byte_array, byte_view
from fluss.errors import CorruptRecordError
from fluss.record.framing import LENGTH_PREFIX_BYTES, fixed_width_rows, join_length_prefixed, split_length_prefixed
from fluss.row.encoded import EncodedRows
from fluss.schema.offsets import ChangeType

CHANGE_TYPE_BYTES = 1


def encode_row_body(rows: EncodedRows, change_types: UInt8Array) -> memoryview:
    """Frame the rows, each behind its change type."""
    assert len(rows) == len(change_types), "every row needs a change type"
    assert change_types.dtype == np.uint8, "change types are bytes"
    assert change_types.max(initial=0) <= ChangeType.Delete, "change types are 0 to 4"
    return byte_view(join_length_prefixed(fixed_width_rows(change_types), rows).data)


def decode_row_body(body: BytesLike, record_count: int) -> tuple[EncodedRows, UInt8Array]:
    """Find the rows of a body, in place, and their change types."""
    data = byte_array(body)
    starts, ends = split_length_prefixed(data, record_count, what="log record", payload_bytes_min=CHANGE_TYPE_BYTES)
    change_types = data[starts]
    unknown = np.flatnonzero(change_types > ChangeType.Delete)
    if len(unknown):
        index = int(unknown[0])
        raise CorruptRecordError(
            f"The log record {index} of {record_count}, at byte {starts[index] - LENGTH_PREFIX_BYTES}, has the change "
            f"type {change_types[index]}, only 0 to {int(ChangeType.Delete)} exist"
        )
    return EncodedRows(data, starts + CHANGE_TYPE_BYTES, ends), change_types
