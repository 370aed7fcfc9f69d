"""What a batch must be to be stored in a table, so that every reader can decode it."""

from __future__ import annotations

import struct
from typing import Final

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX, buffer_bounds
from fluss.record.arrow_ipc import PREFIX_BYTES, ColumnLayout, RecordBatchMessage, column_layout, parse_message
from fluss.record.compression import EXPANSION_MAX, LENGTH_PREFIX, STORED_AS_IS, examine_buffers
from fluss.record.framing import split_length_prefixed
from fluss.record.log_batch import CHANGE_TYPE_BYTES, LogBatch, iter_batches, verify_crc
from fluss.schema.table_options import LogFormat
from fluss.server.model import Table

# Shapes of small messages that are remembered for each table: writers of single rows send the same few again and again.
_SHAPES_MAX: Final = 256
_SHAPE_METADATA_BYTES_MAX: Final = 1024
_METADATA_SIZE: Final = struct.Struct("<i")
_METADATA_SIZE_AT: Final = 4


class BatchCheck:
    """Checks the batches that clients produce to one table. Made once per version of the table.

    A batch that is stored is stored for good, and one that no reader can decode stops every reader at its offset. So
    its schema must be known, and its body must have the shape of that schema: for ARROW the nodes and buffers of the
    metadata, each buffer large enough for its values, for row formats the framing of the rows. Values are not decoded;
    this costs microseconds per batch, not per record.

    Readers look at all of this again: a server cannot vouch for the bytes of a client.
    """

    def __init__(self, table: Table) -> None:
        self._path = table.path
        self._is_arrow = table.descriptor.log_format is LogFormat.ARROW
        self._schemas = table.schemas
        # By schema id, of schemas that batches have.
        self._layouts: dict[int, ColumnLayout] = {}
        # By schema and metadata.
        self._shapes: dict[tuple[int, bytes], _Shape] = {}

    def check(self, records: memoryview) -> list[LogBatch]:
        """Return the batches; refuse records that do not fit the table, with code 15: sending them again is no help.

        Bytes that were damaged on their way are another matter: for them the checksum is left to complain, whose code
        tells a client to try again. A batch at the end that is not whole is not looked at.
        """
        batches = []
        for batch in iter_batches(records):
            try:
                self._check_batch(batch)
            except CorruptRecordError as error:
                verify_crc(batch)
                raise self._misfit(error.message) from error
            except FlussError:
                verify_crc(batch)
                raise
            batches.append(batch)
        return batches

    def _layout(self, schema_id: int) -> ColumnLayout:
        layout = self._layouts.get(schema_id)
        if layout is None:
            schema = self._schemas.get(schema_id)
            if schema is None:
                raise self._misfit(f"it has the schema id {schema_id}, known are {sorted(self._schemas)}")
            layout = self._layouts[schema_id] = column_layout(schema.to_arrow())
        return layout

    def _check_batch(self, batch: LogBatch) -> None:
        header = batch.header
        layout = self._layout(header.schema_id)
        if header.last_offset_delta != max(header.record_count - 1, 0):
            raise self._misfit(f"it has {header.record_count} records and spans {header.last_offset_delta + 1} offsets")
        if not header.record_count and not len(batch.records):
            return
        # Some clients send the Arrow message of no rows as a batch without records.
        if self._is_arrow:
            self._check_arrow(batch, layout)
        else:
            split_length_prefixed(
                batch.records, header.record_count, what="log record", payload_bytes_min=CHANGE_TYPE_BYTES
            )

    def _check_arrow(self, batch: LogBatch, layout: ColumnLayout) -> None:
        if not batch.header.is_append_only:
            raise self._misfit("it has change types, and a log table takes appends only")
        view = batch.arrow_message
        key = batch.header.schema_id, _metadata(view)
        shape = self._shapes.get(key)
        if shape is not None and shape.is_fitting(view, batch.header.record_count):
            return
        message = parse_message(view)
        if message.length != batch.header.record_count:
            raise self._misfit(f"it has {batch.header.record_count} records, its Arrow message has {message.length}")
        layout.check(message)
        # Readers that ask for some columns get them cut out along these boundaries.
        buffer_bounds(message)
        contents = examine_buffers(view, message, DECOMPRESSED_BYTES_MAX)
        layout.check_sizes(message.nodes, contents.lengths)
        if key[1]:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[key] = _Shape(message, layout)

    def _misfit(self, reason: str) -> FlussError:
        return FlussError(
            f"A batch for table {self._path} was refused: {reason}; write it in the table's schema and log format",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def _metadata(view: memoryview) -> bytes:
    """Return everything of a small message that comes before its body; nothing of a large one, or of none."""
    if len(view) < PREFIX_BYTES:
        return b""
    metadata_size: int = _METADATA_SIZE.unpack_from(view, _METADATA_SIZE_AT)[0]
    return bytes(view[: PREFIX_BYTES + metadata_size]) if 0 < metadata_size <= _SHAPE_METADATA_BYTES_MAX else b""


class _Shape:
    """Metadata that has been found to be good. Of another message with the same, only the prefixes of its compressed
    buffers are left to be looked at.
    """

    __slots__ = ("_buffers", "_expansion_max", "_message_bytes", "_record_count")

    def __init__(self, message: RecordBatchMessage, layout: ColumnLayout) -> None:
        self._record_count = message.length
        self._message_bytes = message.body_offset + message.body_length
        self._expansion_max = None if message.codec is None else EXPANSION_MAX[message.codec]
        needed = layout.bits_needed(message.nodes).tolist()
        # Of each buffer that is not empty: where it begins in the message, its bytes behind the prefix, and the bits
        # that it has to hold.
        self._buffers = [
            (message.body_offset + offset, size - LENGTH_PREFIX.size, bits)
            for (offset, size), bits in zip(message.buffers.tolist(), needed, strict=True)
            if size
        ]

    def is_fitting(self, view: memoryview, record_count: int) -> bool:
        """Whether a message is good as well; if not, what is wrong with it is to be found out."""
        if record_count != self._record_count or len(view) < self._message_bytes:
            return False
        if self._expansion_max is None:
            return True
        total = 0
        for position, size, bits in self._buffers:
            length = LENGTH_PREFIX.unpack_from(view, position)[0]
            if length == STORED_AS_IS:
                length = size
            else:
                total += length
            if not 0 <= length <= size * self._expansion_max or length * 8 < bits:
                return False
        return total <= DECOMPRESSED_BYTES_MAX
