"""Column projection of stored ARROW batches: the buffers of some columns under a new header, nothing decoded.

    stored     header | statistics | change types | metadata | a0 a1 | b0 b1 b2 | c0 c1 | d0 d1
    projected  header'             | change types | metadata'| a0 a1 |            c0 c1 | d0 d1      columns 0, 2, 3

Buffers keep their padding and move together in runs: here two, ``a0 a1`` and ``c0 .. d1``. Only the length of the
batch, the length of its statistics (dropped) and its checksum change in the header. The codec in the metadata stays
that of the stored batch, since the buffers are still compressed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_ipc import ColumnLayout, RecordBatchMessage, build_metadata, column_layout, parse_message
from fluss.record.log_batch import MAGIC_V0, LogBatch, downgrade_to_v0, sealed_header


@dataclass(frozen=True, slots=True, eq=False)
class ColumnProjection:
    """Which nodes and buffers to keep for some columns of a schema: made once, used for every batch of that schema."""

    layout: ColumnLayout
    nodes: Int64Array
    buffers: Int64Array
    # The kept buffers as runs of neighbours: run ``i`` is ``run_starts[i]:run_ends[i]``.
    run_starts: Int64Array
    run_ends: Int64Array

    @classmethod
    def of(cls, schema: pa.Schema, wanted: Sequence[int]) -> ColumnProjection:
        """Prepare the projection to the columns at the positions ``wanted``: ascending, each once, at least one."""
        layout = column_layout(schema)
        _check_wanted(wanted, layout.column_count)
        columns = np.array(wanted, np.int64)
        node_starts, node_ends = layout.node_starts[columns], layout.node_starts[columns + 1]
        buffer_starts, buffer_ends = layout.buffer_starts[columns], layout.buffer_starts[columns + 1]
        breaks = np.flatnonzero(buffer_ends[:-1] != buffer_starts[1:])
        return cls(
            layout,
            _ranges(node_starts, node_ends),
            _ranges(buffer_starts, buffer_ends),
            buffer_starts[np.concatenate(([0], breaks + 1))],
            buffer_ends[np.concatenate((breaks, [len(columns) - 1]))],
        )


def project_batch(
    batch: LogBatch, projection: ColumnProjection, *, recompute_crc: bool = True, as_v0: bool = False
) -> list[BytesLike]:
    """Return the projected batch in parts, to be sent or joined in order. Buffers are views of the stored batch.

    Without ``recompute_crc`` the checksum stays that of the stored batch and does not match. A batch without records
    is returned as it is. ``as_v0`` is for readers that know no other layout of the header.
    """
    if not batch.header.record_count:
        return [downgrade_to_v0(batch) if as_v0 else batch.data]
    view = batch.arrow_message
    message = parse_message(view)
    projection.layout.check(message)

    bounds = buffer_bounds(message)
    kept = (bounds[1:] - bounds[:-1])[projection.buffers]
    ends = np.cumsum(kept)
    buffers = np.stack((ends - kept, message.buffers[projection.buffers, 1]), axis=1)
    nodes = message.nodes[projection.nodes]
    metadata = build_metadata(message.length, nodes, buffers, message.codec, int(ends[-1]))

    body = view[message.body_offset :]
    runs = zip(bounds[projection.run_starts].tolist(), bounds[projection.run_ends].tolist(), strict=True)
    parts: list[BytesLike] = [batch.change_type_bytes, metadata, *(body[start:end] for start, end in runs)]
    header = replace(batch.header, statistics_length=0, magic=MAGIC_V0 if as_v0 else batch.header.magic)
    return [sealed_header(header, parts, keep_crc=not recompute_crc), *parts]


def buffer_bounds(message: RecordBatchMessage) -> Int64Array:
    """Return where each buffer starts, and where the body ends; the padding belongs to the buffer before it.

    Columns can only be cut out of a body whose buffers follow each other: others are a ``CorruptRecordError``.
    """
    bounds = np.append(message.buffers[:, 0], message.body_length)
    overlaps = bounds[1:] - bounds[:-1] < message.buffers[:, 1]
    if overlaps.any():
        index = int(np.argmax(overlaps))
        raise CorruptRecordError(
            f"Buffers {index} and {index + 1} of an Arrow body overlap, columns cannot be cut out of it"
        )
    return bounds


def _ranges(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the numbers of all ranges, one range after the other."""
    return np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])


def _check_wanted(wanted: Sequence[int], column_count: int) -> None:
    problem = None
    if not wanted:
        problem = "no column is selected"
    elif any(later <= earlier for earlier, later in pairwise(wanted)):
        problem = "positions must be ascending and distinct"
    elif wanted[0] < 0 or wanted[-1] >= column_count:
        problem = f"the schema of the batch has {column_count} columns, positions go from 0 to {column_count - 1}"
    if problem:
        raise FlussError(f"Invalid projection {list(wanted)}: {problem}", ErrorCode.INVALID_COLUMN_PROJECTION)
