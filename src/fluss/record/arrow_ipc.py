"""The metadata of Arrow record batch messages, read and built without touching the body.

An ARROW log batch holds one encapsulated message: a prefix, a flatbuffer and the body. This is what is built here
(all positions are fixed; k field nodes, m buffers; integers are little-endian; readers accept any flatbuffer):

    byte      type    content
    0         int32   -1: continuation
    4         int32   size of the flatbuffer: everything up to the body, a multiple of 8
    ---- flatbuffer, positions count from here
    0         uint32  position of the table Message: 16
    4         vtable  Message: 0 version · 1 header type · 2 header · 3 body length
    16        table   int32 distance to vtable · uint32 to RecordBatch · int64 body length · int16 version 4 (called V5)
                      · uint8 header type 3 (RecordBatch) · 1 byte padding
    36        vtable  RecordBatch: 0 length · 1 nodes · 2 buffers · 3 compression, 0 when there is none
    48        table   int32 distance to vtable · uint32 to nodes · int64 length · uint32 to buffers
                      · uint32 to BodyCompression
    72        vtable  BodyCompression: 0 codec · 1 method
    80        table   int32 distance to vtable · int8 codec (0 LZ4_FRAME, 1 ZSTD) · int8 method 0 · 6 bytes padding
    92        vector  uint32 k, then k nodes: int64 length, int64 null count
    100+16k   vector  uint32 m, then m buffers: int64 offset in the body, int64 length without padding
    ---- end of the flatbuffer
    112+16k+16m       body

Nodes and buffers are listed depth first over the columns: a node per column and child, and per node its validity,
then int32 offsets (utf8, binary, list, map), then data (all but list, map, struct). A flatbuffer points with unsigned
32-bit distances forwards and finds its fields through a vtable of 16-bit distances that may lie anywhere; nothing of
that is trusted without a bounds check.

Writers make one flatbuffer after the other of the same structure: all that differs are the numbers in it. So where the
numbers lie is remembered together with all other bytes, and a flatbuffer that has the same other bytes is read at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, FlussError
from fluss.schema.types import check_nesting_depth

PREFIX_BYTES = 8
BUFFER_ALIGNMENT_BYTES = 8

_CONTINUATION = -1
_METADATA_VERSION_V5 = 4
_HEADER_TYPE_RECORD_BATCH = 3
_METHOD_BUFFER = 0
# Nodes and buffers are both pairs of int64.
_PAIR_BYTES = 16
_PAIR_DTYPE = np.dtype("<i8")
_VALIDITY_BITS = 1
_OFFSET_BITS = 32

_PREFIX = struct.Struct("<ii")
_HEAD = struct.Struct(
    "<ii"  # continuation, metadata size
    "I"  # position of Message
    "6H"  # vtable of Message
    "iIqhBx"  # Message
    "6H"  # vtable of RecordBatch
    "iIqII"  # RecordBatch
    "4H"  # vtable of BodyCompression
    "ibb6x"  # BodyCompression
    "I"  # number of nodes
)
_BUFFER_COUNT = struct.Struct("<4xI")

_UINT8 = struct.Struct("<B")
_INT8 = struct.Struct("<b")
_UINT16 = struct.Struct("<H")
_INT16 = struct.Struct("<h")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
_INT64 = struct.Struct("<q")

_FIXED_WIDTH_TESTS = (
    pat.is_boolean,
    pat.is_int8,
    pat.is_int16,
    pat.is_int32,
    pat.is_int64,
    pat.is_float32,
    pat.is_float64,
    pat.is_decimal128,
    pat.is_date32,
    pat.is_time,
    pat.is_timestamp,
    pat.is_fixed_size_binary,
)


class BodyCodec(IntEnum):
    """How the buffers of a body are compressed, with the numbers of the Arrow format."""

    LZ4_FRAME = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatchMessage:
    """What the metadata of a message says. ``nodes`` and ``buffers`` are views of it.

    Checked: every buffer starts on a multiple of 8 and lies inside the body, the body lies inside the message, null
    counts are not larger than lengths, nothing is negative.
    """

    length: int
    nodes: Int64Array  # [k, 2]: length, null count
    buffers: Int64Array  # [m, 2]: offset in the body, length
    codec: BodyCodec | None
    body_offset: int
    body_length: int


def parse_message(message: memoryview) -> RecordBatchMessage:
    """Read the metadata of an encapsulated record batch message; bytes after the body are ignored."""
    if len(message) < PREFIX_BYTES:
        raise CorruptRecordError(f"An Arrow message needs at least {PREFIX_BYTES} bytes, found {len(message)}")
    continuation, metadata_size = _PREFIX.unpack_from(message)
    if continuation != _CONTINUATION:
        raise CorruptRecordError(f"An Arrow message starts with ffffffff, found {bytes(message[:4]).hex()}")
    if not 0 < metadata_size <= len(message) - PREFIX_BYTES:
        raise CorruptRecordError(
            f"Arrow metadata of {metadata_size} bytes does not fit a message of {len(message)} bytes"
        )
    body_offset = PREFIX_BYTES + metadata_size
    metadata = message[PREFIX_BYTES:body_offset]
    structure = _structures.get(metadata_size)
    if structure is None or not structure.is_that_of(metadata):
        structure = _structure_of(metadata)
        if structure.is_rigid:
            _remember(metadata_size, structure)
    parsed = RecordBatchMessage(
        length=structure.length(metadata),
        nodes=structure.nodes(metadata),
        buffers=structure.buffers(metadata),
        codec=structure.codec,
        body_offset=body_offset,
        body_length=structure.body_length(metadata),
    )
    _check_message(parsed, len(message))
    return parsed


def build_metadata(
    length: int, nodes: Int64Array, buffers: Int64Array, codec: BodyCodec | None, body_length: int
) -> bytes:
    """Build everything of a message that comes before its body, a multiple of 8 bytes long."""
    return b"".join(
        (
            _metadata_head(length, len(nodes), len(buffers), codec, body_length),
            nodes.astype(_PAIR_DTYPE, copy=False).tobytes(),
            _BUFFER_COUNT.pack(len(buffers)),
            buffers.astype(_PAIR_DTYPE, copy=False).tobytes(),
        )
    )


def build_small_metadata(
    length: int, nodes: Sequence[int], buffers: Sequence[int], codec: BodyCodec | None, body_length: int
) -> bytes:
    """Build the same from plain numbers, two for each node and buffer: for a few of them arrays take longer."""
    return b"".join(
        (
            _metadata_head(length, len(nodes) // 2, len(buffers) // 2, codec, body_length),
            struct.pack(f"<{len(nodes)}q", *nodes),
            _BUFFER_COUNT.pack(len(buffers) // 2),
            struct.pack(f"<{len(buffers)}q", *buffers),
        )
    )


def _metadata_head(length: int, node_count: int, buffer_count: int, codec: BodyCodec | None, body_length: int) -> bytes:
    pairs_bytes = _PAIR_BYTES * node_count
    size = _HEAD.size + pairs_bytes + _BUFFER_COUNT.size + _PAIR_BYTES * buffer_count
    # The bare numbers are the positions and distances of the table above; a vtable starts with two sizes.
    return _HEAD.pack(
        *(_CONTINUATION, size - PREFIX_BYTES, 16),
        *(12, 20, 16, 18, 4, 8),
        *(12, 28, body_length, _METADATA_VERSION_V5, _HEADER_TYPE_RECORD_BATCH),
        *(12, 24, 8, 4, 16, 0 if codec is None else 20),
        *(12, 40, length, 36 + pairs_bytes, 12),
        *(8, 8, 4, 5),
        *(8, codec or 0, _METHOD_BUFFER),
        node_count,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ColumnLayout:
    """Which nodes and buffers of a message belong to which column of a schema.

    Column ``i`` has the nodes ``node_starts[i]:node_starts[i + 1]`` and the buffers
    ``buffer_starts[i]:buffer_starts[i + 1]``. Made by ``column_layout``, never changed, shared freely.
    """

    node_starts: Int64Array
    buffer_starts: Int64Array
    # Per node, counted within its column: the first buffer, and whether the second one holds offsets.
    node_buffers: tuple[tuple[tuple[int, bool], ...], ...]
    # Per buffer: its node, the bits of one entry (0 where that varies), and entries beyond one per value.
    _buffer_nodes: Int64Array
    _entry_bits: Int64Array
    _extra_entries: Int64Array
    # Where the buffers of each node start, over all columns: its validity.
    _validity_buffers: Int64Array
    # The children of structs with their parents: [n, 2].
    _struct_children: Int64Array

    @property
    def column_count(self) -> int:
        return len(self.node_starts) - 1

    @property
    def node_count(self) -> int:
        return int(self.node_starts[-1])

    @property
    def buffer_count(self) -> int:
        return int(self.buffer_starts[-1])

    def check(self, message: RecordBatchMessage) -> None:
        """Refuse a message that cannot be one of this schema."""
        if len(message.nodes) != self.node_count or len(message.buffers) != self.buffer_count:
            raise CorruptRecordError(
                f"An Arrow message of this schema has {self.node_count} nodes and {self.buffer_count} buffers, "
                f"found {len(message.nodes)} nodes and {len(message.buffers)} buffers"
            )
        column_lengths = message.nodes[self.node_starts[:-1], 0]
        if (column_lengths != message.length).any():
            column = int(np.argmax(column_lengths != message.length))
            raise CorruptRecordError(
                f"Column {column} of an Arrow message has {column_lengths[column]} values for {message.length} records"
            )

    def check_sizes(self, nodes: Int64Array, buffer_lengths: Int64Array) -> None:
        """Refuse buffers that are too short for the values of their nodes, and structs that are too short.

        ``nodes`` has passed ``check``; ``buffer_lengths`` are without compression. What the buffers hold is not
        looked at, so offsets may still point anywhere.
        """
        values = nodes[:, 0]
        too_short = self.bits_needed(nodes) > buffer_lengths * 8.0
        if too_short.any():
            index = int(np.argmax(too_short))
            raise CorruptRecordError(
                f"Buffer {index} of an Arrow body holds {buffer_lengths[index]} bytes, "
                f"too few for {values[self._buffer_nodes[index]]} values"
            )
        children, parents = self._struct_children[:, 0], self._struct_children[:, 1]
        if (values[children] < values[parents]).any():
            raise CorruptRecordError("A struct in an Arrow message has more values than one of its fields")

    def bits_needed(self, nodes: Int64Array) -> npt.NDArray[np.float64]:
        """Return how many bits each buffer has at least, without compression, if it holds the values of its node."""
        values, nulls = nodes[:, 0], nodes[:, 1]
        # As floating point numbers: the message may claim any number of values in a list, and products must not wrap.
        entries = values[self._buffer_nodes].astype(np.float64)
        entries[entries > 0] += self._extra_entries[entries > 0]
        # Without nulls a validity buffer may be left out.
        entries[self._validity_buffers[nulls == 0]] = 0
        needed: npt.NDArray[np.float64] = entries * self._entry_bits
        return needed


@dataclass(frozen=True, slots=True)
class _Node:
    """The shape of one node: the bits of an entry for each of its buffers, 0 where that varies."""

    entry_bits: tuple[int, ...]
    has_offsets: bool
    struct_parent: int | None


@lru_cache(maxsize=1024)
def column_layout(schema: pa.Schema) -> ColumnLayout:
    """Return the layout of a schema; types that no log batch contains are a ``FlussError``."""
    nodes: list[_Node] = []
    node_starts = [0]
    for column in schema:
        _add_nodes(nodes, column.type, column.name, 1, None)
        node_starts.append(len(nodes))
    buffer_counts = [len(node.entry_bits) for node in nodes]
    first_buffers = np.cumsum([0, *buffer_counts])
    buffer_starts = first_buffers[node_starts]
    node_buffers = tuple(
        tuple((int(first_buffers[node] - first_buffers[start]), nodes[node].has_offsets) for node in range(start, end))
        for start, end in pairwise(node_starts)
    )
    extra_entries = [
        (0, 1, 0)[: len(node.entry_bits)] if node.has_offsets else (0,) * len(node.entry_bits) for node in nodes
    ]
    struct_children = [
        (child, node.struct_parent) for child, node in enumerate(nodes) if node.struct_parent is not None
    ]
    return ColumnLayout(
        np.array(node_starts),
        buffer_starts,
        node_buffers,
        np.repeat(np.arange(len(nodes)), buffer_counts),
        np.array([bits for node in nodes for bits in node.entry_bits], np.int64),
        np.array([extra for node in extra_entries for extra in node], np.int64),
        first_buffers[:-1],
        np.array(struct_children, np.int64).reshape(-1, 2),
    )


def _add_nodes(
    nodes: list[_Node], pa_type: pa.DataType, column_name: str, depth: int, struct_parent: int | None
) -> None:
    """Add the node of a type and those of its children."""
    check_nesting_depth(depth)
    position = len(nodes)
    is_struct = pat.is_struct(pa_type)
    if pat.is_string(pa_type) or pat.is_binary(pa_type):
        nodes.append(_Node((_VALIDITY_BITS, _OFFSET_BITS, 0), True, struct_parent))
    elif pat.is_list(pa_type) or pat.is_map(pa_type):
        nodes.append(_Node((_VALIDITY_BITS, _OFFSET_BITS), True, struct_parent))
    elif is_struct:
        nodes.append(_Node((_VALIDITY_BITS,), False, struct_parent))
    elif any(is_fixed_width(pa_type) for is_fixed_width in _FIXED_WIDTH_TESTS):
        nodes.append(_Node((_VALIDITY_BITS, pa_type.bit_width), False, struct_parent))
    else:
        raise FlussError(
            f"Column {column_name!r} contains the Arrow type {pa_type}, which log batches cannot hold: "
            f"cast it to the Arrow type of its column first"
        )
    for index in range(pa_type.num_fields):
        _add_nodes(nodes, pa_type.field(index).type, column_name, depth + 1, position if is_struct else None)


class _Span(NamedTuple):
    """Some bytes of a flatbuffer."""

    start: int
    end: int

    def overlaps(self, other: _Span) -> bool:
        return self.start < other.end and other.start < self.end


_NOWHERE: Final = _Span(0, 0)


class _Structure:
    """Where the numbers of a flatbuffer lie, and all its other bytes."""

    __slots__ = ("_body_length", "_buffers", "_length", "_nodes", "_rest", "codec", "is_rigid")

    def __init__(
        self,
        metadata: memoryview,
        numbers: tuple[_Span, _Span, _Span, _Span],
        codec: BodyCodec | None,
        structural: Sequence[_Span],
    ) -> None:
        self._length, self._nodes, self._buffers, self._body_length = numbers
        self.codec = codec
        present = sorted(span for span in numbers if span.end > span.start)
        # Whether other numbers cannot change what was read on the way to them: a hostile writer can mix both.
        self.is_rigid = not any(first.overlaps(second) for first, second in pairwise(present)) and not any(
            number.overlaps(span) for number in present for span in structural
        )
        edges = [0, *(edge for span in present for edge in span), len(metadata)]
        data = bytes(metadata)
        self._rest = [(start, end, data[start:end]) for start, end in zip(edges[::2], edges[1::2], strict=True)]

    def is_that_of(self, metadata: memoryview) -> bool:
        data = bytes(metadata)
        return all(data[start:end] == rest for start, end, rest in self._rest)

    def length(self, metadata: memoryview) -> int:
        return _int64_at(metadata, self._length)

    def body_length(self, metadata: memoryview) -> int:
        return _int64_at(metadata, self._body_length)

    def nodes(self, metadata: memoryview) -> Int64Array:
        return _pairs_at(metadata, self._nodes)

    def buffers(self, metadata: memoryview) -> Int64Array:
        return _pairs_at(metadata, self._buffers)


# By the size of the flatbuffer: the structure of the last one.
_structures: dict[int, _Structure] = {}
_STRUCTURES_MAX: Final = 256


def _remember(metadata_size: int, structure: _Structure) -> None:
    if len(_structures) >= _STRUCTURES_MAX:
        _structures.clear()
    _structures[metadata_size] = structure


def _structure_of(metadata: memoryview) -> _Structure:
    reader = _Reader(metadata)
    head = _Table(reader, reader.unpack(_UINT32, 0))
    version, header_type = head.number(0, _INT16), head.number(1, _UINT8)
    if version != _METADATA_VERSION_V5 or header_type != _HEADER_TYPE_RECORD_BATCH:
        raise CorruptRecordError(
            f"An Arrow record batch of metadata version {_METADATA_VERSION_V5} has the header type "
            f"{_HEADER_TYPE_RECORD_BATCH}, found version {version} and header type {header_type}"
        )
    record_batch = head.table(2)
    if record_batch is None:
        raise CorruptRecordError("An Arrow message has no record batch in it")
    numbers = (record_batch.int64(0), record_batch.pairs(1), record_batch.pairs(2), head.int64(3))
    return _Structure(metadata, numbers, _parse_codec(record_batch.table(3)), reader.spans)


class _Reader:
    """Reads a flatbuffer that is not trusted: every read is checked, and noted."""

    __slots__ = ("metadata", "spans")

    def __init__(self, metadata: memoryview) -> None:
        self.metadata = metadata
        self.spans: list[_Span] = []

    def span(self, position: int, size: int) -> _Span:
        if not 0 <= position <= len(self.metadata) - size:
            raise CorruptRecordError(f"Arrow metadata of {len(self.metadata)} bytes points to its byte {position}")
        return _Span(position, position + size)

    def unpack(self, packer: struct.Struct, position: int) -> int:
        self.spans.append(self.span(position, packer.size))
        value: int = packer.unpack_from(self.metadata, position)[0]
        return value


class _Table:
    """A flatbuffer table. Nothing here loops or recurses."""

    __slots__ = ("_position", "_reader", "_vtable", "_vtable_size")

    def __init__(self, reader: _Reader, position: int) -> None:
        self._reader = reader
        self._position = position
        self._vtable = position - reader.unpack(_INT32, position)
        self._vtable_size = reader.unpack(_UINT16, self._vtable)

    def number(self, field_id: int, packer: struct.Struct) -> int:
        """Return an integer field, 0 when it is absent."""
        position = self._field_position(field_id)
        return 0 if position is None else self._reader.unpack(packer, position)

    def int64(self, field_id: int) -> _Span:
        """Return where an integer field lies, nowhere when it is absent."""
        position = self._field_position(field_id)
        return _NOWHERE if position is None else self._reader.span(position, _INT64.size)

    def table(self, field_id: int) -> _Table | None:
        """Return the table a field points to."""
        position = self._field_position(field_id)
        return None if position is None else _Table(self._reader, position + self._reader.unpack(_UINT32, position))

    def pairs(self, field_id: int) -> _Span:
        """Return where a vector of pairs of int64 lies, nowhere when it is absent."""
        position = self._field_position(field_id)
        if position is None:
            return _NOWHERE
        position += self._reader.unpack(_UINT32, position)
        count = self._reader.unpack(_UINT32, position)
        start = position + _UINT32.size
        metadata_size = len(self._reader.metadata)
        if count * _PAIR_BYTES > metadata_size - start:
            raise CorruptRecordError(
                f"A list of {count} entries at byte {position} of Arrow metadata does not fit its {metadata_size} bytes"
            )
        return _Span(start, start + count * _PAIR_BYTES)

    def _field_position(self, field_id: int) -> int | None:
        entry = 4 + 2 * field_id  # The vtable starts with its own size and that of the table.
        if entry + 2 > self._vtable_size:
            return None
        distance = self._reader.unpack(_UINT16, self._vtable + entry)
        return self._position + distance if distance else None


def _int64_at(metadata: memoryview, span: _Span) -> int:
    value: int = _INT64.unpack_from(metadata, span.start)[0] if span is not _NOWHERE else 0
    return value


def _pairs_at(metadata: memoryview, span: _Span) -> Int64Array:
    pairs: Int64Array = np.frombuffer(metadata, _PAIR_DTYPE, (span.end - span.start) // 8, span.start)
    return pairs.reshape(-1, 2)


def _parse_codec(compression: _Table | None) -> BodyCodec | None:
    if compression is None:
        return None
    codec, method = compression.number(0, _INT8), compression.number(1, _INT8)
    if method != _METHOD_BUFFER or codec not in (BodyCodec.LZ4_FRAME, BodyCodec.ZSTD):
        raise CorruptRecordError(f"An Arrow body is compressed in an unknown way: codec {codec}, method {method}")
    return BodyCodec(codec)


def _check_message(message: RecordBatchMessage, message_size: int) -> None:
    body_length = message.body_length
    if not 0 <= body_length <= message_size - message.body_offset or body_length % BUFFER_ALIGNMENT_BYTES:
        raise CorruptRecordError(
            f"An Arrow body has the length {body_length}, which must be a multiple of {BUFFER_ALIGNMENT_BYTES} "
            f"and not more than the {message_size - message.body_offset} bytes after its metadata"
        )
    offsets, lengths = message.buffers[:, 0], message.buffers[:, 1]
    # What must not be negative, in one pass: a small batch is all overhead. The last difference can only wrap where
    # one of the others is negative.
    room = body_length - offsets
    signs = offsets | lengths | room | (room - lengths) | -(offsets & (BUFFER_ALIGNMENT_BYTES - 1))
    if signs.min(initial=0) < 0:
        index = int(np.argmax(signs < 0))
        raise CorruptRecordError(
            f"Buffer {index} of an Arrow body of {body_length} bytes starts at byte {offsets[index]} "
            f"and has {lengths[index]} bytes"
        )
    value_counts, null_counts = message.nodes[:, 0], message.nodes[:, 1]
    signs = value_counts | null_counts | (value_counts - null_counts)
    if message.length < 0 or signs.min(initial=0) < 0:
        index = int(np.argmax(signs < 0)) if len(signs) else 0
        raise CorruptRecordError(
            f"Node {index} of an Arrow message of {message.length} records has an impossible number of values or nulls"
        )
