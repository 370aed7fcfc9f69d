"""ARROW log batches: Arrow record batches as log batches, back, and some of their columns.

Encoding lets pyarrow lay the columns out (it cuts slices down to what they show), compresses the buffers, and puts
header and change types in front. Decoding hands the message to pyarrow, which takes uncompressed buffers in place,
between two rounds of checks, because Arrow trusts what it reads, and a batch with wrong sizes could make it touch
memory outside its buffers:

    before  counts of nodes and buffers fit the schema, every column has as many values as the batch has records,
            every buffer lies inside the body, decompression stays within a limit
    after   buffers are as large as their type and length need, offsets rise and stay inside their data, null counts
            are true; unless the batch is trusted, text is UTF-8 and decimals and times are in their range

Trusting a large batch saves most of the cost of these checks and none of the memory safety.

Projection takes the buffers of some columns of a stored batch and puts them under a new header; nothing is decoded:

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

from fluss.buffers import BytesLike, Int64Array, UInt8Array, copied
from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_ipc import (
    BUFFER_ALIGNMENT_BYTES,
    BodyCodec,
    ColumnLayout,
    RecordBatchMessage,
    build_metadata,
    column_layout,
    parse_message,
)
from fluss.record.compression import LENGTH_PREFIX, ArrowCompression, BufferContents, compress_message, examine_buffers
from fluss.record.log_batch import (
    MAGIC_V0,
    NO_BATCH_SEQUENCE,
    NO_WRITER_ID,
    LogBatch,
    build_batch,
    downgrade_to_v0,
    sealed_header,
)
from fluss.row.arrow_arrays import empty_batch

# Far more than a writer puts into a batch, far less than a few hostile bytes could ask for.
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
# Below this many bytes of columns the checks of trusted batches take longer than all checks, so all are made.
TRUSTED_BYTES_MIN = 512 * 1024


def encode_arrow_batch(
    batch: pa.RecordBatch,
    schema_id: int,
    compression: ArrowCompression,
    *,
    compressed_bytes_min: int = 0,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    change_types: UInt8Array | None = None,
    base_offset: int = 0,
    commit_timestamp: int = 0,
    is_layout_known: bool = False,
) -> bytearray:
    """Encode a record batch as a log batch. Without ``change_types`` it is append-only.

    The columns must have the Arrow types of the table's columns, in their order. A batch without rows becomes a
    batch without records, which has no body. A message of fewer than ``compressed_bytes_min`` bytes is left as it is:
    every message says by itself how its body is compressed. ``is_layout_known`` is for a caller that has asked
    ``column_layout`` about these columns before.
    """
    if not is_layout_known:
        column_layout(batch.schema)  # Refuses types that no log batch can hold.
    body: list[pa.Buffer | bytes] = []
    if batch.num_rows:
        try:
            message = batch.serialize()
        except pa.ArrowException as error:
            raise FlussError(f"Arrow cannot encode this record batch: {error}") from error
        body.append(compress_message(message, compression) if message.size >= compressed_bytes_min else message)
    return build_batch(
        body,
        schema_id=schema_id,
        record_count=batch.num_rows,
        append_only=change_types is None,
        change_types=change_types,
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        base_offset=base_offset,
        commit_timestamp=commit_timestamp,
    )


def decode_arrow_batch(
    batch: LogBatch,
    schema: pa.Schema,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    trusted: bool = False,
    trusted_bytes_min: int = TRUSTED_BYTES_MIN,
) -> pa.RecordBatch:
    """Return the rows of an ARROW log batch; ``schema`` has the columns of the table, or those fetched of it.

    Uncompressed columns are views of the batch's memory, which must not change afterwards. Only a message that does
    not start on a multiple of 8 is copied. Decompression to more than ``bytes_max`` bytes is a ``SizeLimitError``.
    ``trusted`` is for batches with a verified checksum from a server whose writers are known to send valid text.
    """
    if not batch.header.record_count:
        return empty_batch(schema)
    view = batch.arrow_message
    layout = column_layout(schema)
    message = checked_message(batch, layout, view)
    contents = examine_buffers(view, message, bytes_max)
    check_quickly = trusted and contents.lengths.sum() >= trusted_bytes_min
    try:
        decoded = pa.ipc.read_record_batch(_readable(view, message, contents), schema)
        decoded.validate(full=not check_quickly)
    except (pa.ArrowException, OSError) as error:
        raise damaged_message(batch, error) from error
    if check_quickly:
        for index, column in enumerate(decoded.columns):
            check_memory(column, index, layout, message.nodes)
    return decoded


def checked_message(batch: LogBatch, layout: ColumnLayout, view: memoryview) -> RecordBatchMessage:
    """Read the metadata of the message of a batch, ``view``, and check that it fits the batch and its schema."""
    message = parse_message(view)
    if message.length != batch.header.record_count:
        raise CorruptRecordError(
            f"The log batch at offset {batch.header.base_offset} has {batch.header.record_count} records, "
            f"its Arrow message has {message.length}"
        )
    layout.check(message)
    return message


def damaged_message(batch: LogBatch, reason: Exception | str) -> CorruptRecordError:
    """Return what is raised when Arrow finds damage."""
    return CorruptRecordError(
        f"The Arrow message of the log batch at offset {batch.header.base_offset} is damaged: {reason}"
    )


def _readable(view: memoryview, message: RecordBatchMessage, contents: BufferContents) -> pa.Buffer:
    """Return the message as pyarrow reads it best: with frames where it expects them, and aligned.

    Some writers give empty buffers a length prefix and no frame, which is an error for pyarrow. And when no buffer
    is worth compressing, as in most small batches, the threads that decompress them cost more than all the rest.
    """
    if message.codec is not None:
        offsets, sizes = message.buffers[:, 0], np.where(contents.lengths > 0, message.buffers[:, 1], 0)
        codec: BodyCodec | None = message.codec
        if not contents.framed.any():
            offsets, sizes, codec = offsets + LENGTH_PREFIX.size * (sizes > 0), contents.lengths, None
        if codec is None or (sizes != message.buffers[:, 1]).any():
            buffers = np.stack((offsets, sizes), axis=1)
            metadata = build_metadata(message.length, message.nodes, buffers, codec, message.body_length)
            return pa.py_buffer(b"".join((metadata, view[message.body_offset :])))
    buffer = pa.py_buffer(view)
    return copied(view) if buffer.address % BUFFER_ALIGNMENT_BYTES else buffer


def check_memory(column: pa.Array, index: int, layout: ColumnLayout, nodes: Int64Array) -> None:
    """Check what a quick validation of a column leaves open and kernels rely on: offsets and null counts."""
    buffers = column.buffers()
    column_nodes = nodes[layout.node_starts[index] : layout.node_starts[index + 1]].tolist()
    for (first, has_offsets), (length, null_count) in zip(layout.node_buffers[index], column_nodes, strict=True):
        if null_count and null_count != _count_nulls(buffers[first], length):
            raise CorruptRecordError(f"Column {index} of an Arrow message has a wrong null count: {null_count}")
        if has_offsets and length:
            offsets = np.frombuffer(buffers[first + 1], "<i4", length + 1)
            if (offsets[1:] < offsets[:-1]).any():
                raise CorruptRecordError(f"Column {index} of an Arrow message has offsets that go backwards")


def _count_nulls(validity: pa.Buffer, length: int) -> int:
    whole_bytes, bits = divmod(length, 8)
    bitmap: UInt8Array = np.frombuffer(validity, np.uint8, whole_bytes + bool(bits))
    ones = int(np.bitwise_count(bitmap[:whole_bytes]).sum(dtype=np.int64))
    if bits:
        ones += (int(bitmap[-1]) & ((1 << bits) - 1)).bit_count()
    return length - ones


# Projection


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
