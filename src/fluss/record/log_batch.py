"""Log batches: the header, its checks, and batches side by side in one buffer.

A log (a produce payload, a fetch payload, a segment file) is a plain concatenation of batches. All integers are
little-endian. ``magic`` chooses one of three layouts:

    field               type    V0  V1  V2  meaning
    base_offset         int64    0   0   0  offset of the first record; set by the leader
    length              int32    8   8   8  bytes after this field
    magic               int8    12  12  12  0, 1 or 2
    commit_timestamp    int64   13  13  13  epoch milliseconds; set by the leader
    leader_epoch        int32            21  -1: nothing sets it
    crc                 uint32  21  21  25  CRC-32C of everything from schema_id to the end of the batch
    schema_id           int16   25  25  29  schema of the records
    attributes          int8    27  27  31  bit 0: append-only; the others are 0 and ignored
    last_offset_delta   int32   28  28  32  last offset - base_offset
    writer_id           int64   32  32  36  idempotent writer, -1: none
    batch_sequence      int32   40  40  44  per writer and bucket, -1: none
    record_count        int32   44  44  48
    statistics_length   int32       48  52  0: no statistics
    (header size)               48  52  56

Then follow the statistics, for ARROW batches that are not append-only one change type byte per record, and the body.
What the leader sets is outside the checksum, so a produced batch is stored after patching two fields.

A batch without records has no body. It still takes one offset and carries a writer's sequence.
We write V0, which every client can read; V1 and V2 are read, and rewritten where a V0 reader is served.

In INDEXED and COMPACTED batches the body is records, each with its own change type; record ``i`` has the offset
``base_offset + i``. Rows stay encoded here, their columns are a matter of ``fluss.row``:

    field          type    meaning
    length         int32   bytes after this field: 1 + size of the row
    change_type    uint8   0 +A · 1 +I · 2 -U · 3 +U · 4 -D
    row            bytes   IndexedRow or CompactedRow of the batch's schema

The body of ARROW batches is described in ``fluss.record.arrow_ipc``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, UInt8Array, byte_array, byte_view
from fluss.errors import ChecksumError, CorruptRecordError, FlussError, SizeLimitError
from fluss.record.framing import (
    LENGTH_PREFIX_BYTES,
    crc32c,
    crc32c_chain,
    fixed_width_rows,
    join_length_prefixed,
    split_length_prefixed,
)
from fluss.row.encoded import EncodedRows
from fluss.schema.offsets import ChangeType

MAGIC_V0, MAGIC_V1, MAGIC_V2 = 0, 1, 2
MAGIC_NEWEST = MAGIC_V2

NO_WRITER_ID = -1
NO_BATCH_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# What an int32 counts. Other implementations have the same limit.
BATCH_BYTES_MAX = 2**31 - 1
SCHEMA_ID_MAX = 2**15 - 1

ATTRIBUTE_APPEND_ONLY = 0x01
CHANGE_TYPE_BYTES = 1
# As a number: numpy takes long to find out what a member of an enum is.
_CHANGE_TYPE_MAX = int(ChangeType.Delete)
_CHANGE_TYPES = bytes(range(_CHANGE_TYPE_MAX + 1))

# Field name, struct code, first magic that has the field. Everything else about the layout follows from this table.
_FIELDS = (
    ("base_offset", "q", MAGIC_V0),
    ("length", "i", MAGIC_V0),
    ("magic", "b", MAGIC_V0),
    ("commit_timestamp", "q", MAGIC_V0),
    ("leader_epoch", "i", MAGIC_V2),
    ("crc", "I", MAGIC_V0),
    ("schema_id", "h", MAGIC_V0),
    ("attributes", "b", MAGIC_V0),
    ("last_offset_delta", "i", MAGIC_V0),
    ("writer_id", "q", MAGIC_V0),
    ("batch_sequence", "i", MAGIC_V0),
    ("record_count", "i", MAGIC_V0),
    ("statistics_length", "i", MAGIC_V1),
)


@dataclass(frozen=True, slots=True)
class HeaderLayout:
    """Where the fields of one magic lie."""

    magic: int
    packer: struct.Struct
    offsets: Mapping[str, int]
    # Returns the fields of a header, in their order.
    fields_of: Callable[[LogBatchHeader], tuple[int, ...]]
    # Where the checksum is, and where what it covers begins.
    crc_start: int
    crc_end: int

    @classmethod
    def of(cls, magic: int) -> HeaderLayout:
        packer, offsets = struct.Struct("<"), {}
        for name, code, first_magic in _FIELDS:
            if first_magic <= magic:
                offsets[name] = packer.size
                packer = struct.Struct(packer.format + code)
        return cls(magic, packer, MappingProxyType(offsets), attrgetter(*offsets), offsets["crc"], offsets["schema_id"])

    @property
    def size(self) -> int:
        return self.packer.size


HEADER_LAYOUTS: tuple[HeaderLayout, ...] = tuple(HeaderLayout.of(magic) for magic in range(MAGIC_NEWEST + 1))

# The fields before the epoch lie at the same place in every layout, so any batch can be measured and stamped.
_V0_OFFSETS = HEADER_LAYOUTS[MAGIC_V0].offsets
LENGTH_END = _V0_OFFSETS["magic"]
HEADER_BYTES_MIN = HEADER_LAYOUTS[MAGIC_V0].size
HEADER_BYTES_MAX = HEADER_LAYOUTS[MAGIC_NEWEST].size
_LENGTH = struct.Struct("<i")
_CRC = struct.Struct("<I")
_INT64 = struct.Struct("<q")
# Fields that lie side by side in every layout: last_offset_delta, writer_id, batch_sequence.
_OUTLINE = struct.Struct("<iqi")


@dataclass(slots=True, kw_only=True)
class LogBatchHeader:
    """The facts about a batch, named as in the table above. Never changed; not frozen, which takes three times as long
    to make, and one is made of every batch that arrives.
    """

    base_offset: int = 0
    length: int = 0
    magic: int = MAGIC_V0
    commit_timestamp: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    crc: int = 0
    schema_id: int
    attributes: int = 0
    last_offset_delta: int = 0
    writer_id: int = NO_WRITER_ID
    batch_sequence: int = NO_BATCH_SEQUENCE
    record_count: int = 0
    statistics_length: int = 0

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_END + self.length

    @property
    def header_size(self) -> int:
        """Bytes before the statistics."""
        return HEADER_LAYOUTS[self.magic].size

    @property
    def is_append_only(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_APPEND_ONLY)

    @property
    def offset_last(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def offset_next(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def encode_header(header: LogBatchHeader) -> bytes:
    """Pack a header as it is, without checking that its facts belong together."""
    layout = HEADER_LAYOUTS[header.magic]
    return layout.packer.pack(*layout.fields_of(header))


@dataclass(frozen=True, slots=True, eq=False)
class LogBatch:
    """One batch in place: its decoded header and a view of all its bytes. Nothing is copied.

    The header has been checked against the size of the batch. The checksum has not: see ``verify_crc``.
    """

    header: LogBatchHeader
    data: memoryview = field(repr=False)

    @property
    def statistics(self) -> memoryview:
        """The statistics block, empty when there is none."""
        start = self.header.header_size
        return self.data[start : start + self.header.statistics_length]

    @property
    def records(self) -> memoryview:
        """Everything after the statistics: rows, or change types and Arrow message."""
        return self.data[self.header.header_size + self.header.statistics_length :]

    @property
    def change_type_bytes(self) -> memoryview:
        """The change type vector of an ARROW batch as it is; empty for append-only batches."""
        if self.header.is_append_only:
            return self.data[:0]
        records = self.records
        if len(records) < self.header.record_count:
            raise CorruptRecordError(
                f"A log batch at offset {self.header.base_offset} announces {self.header.record_count} change types, "
                f"but only {len(records)} bytes follow its header"
            )
        return records[: self.header.record_count]

    @property
    def change_types(self) -> UInt8Array | None:
        """One change type per record of an ARROW batch, in place; None when all records are append-only."""
        if self.header.is_append_only:
            return None
        change_types = byte_array(self.change_type_bytes)
        if change_types.max(initial=0) > _CHANGE_TYPE_MAX:
            index = int(np.argmax(change_types > _CHANGE_TYPE_MAX))
            raise CorruptRecordError(
                f"Record {index} of the log batch at offset {self.header.base_offset} has the change type "
                f"{change_types[index]}, only 0 to {_CHANGE_TYPE_MAX} exist"
            )
        return change_types

    @property
    def arrow_message(self) -> memoryview:
        """The Arrow message of an ARROW batch: what follows the change types."""
        return self.records[len(self.change_type_bytes) :]


def read_header(data: BytesLike, position: int = 0, size_max: int = BATCH_BYTES_MAX) -> LogBatchHeader:
    """Return the header of the batch that starts at ``position``; the rest of the batch need not be there.

    A batch larger than ``size_max`` bytes is refused with ``SizeLimitError``.
    """
    view = byte_view(data)
    assert 0 <= position <= len(view), "the position must lie in the data"
    remaining = len(view) - position
    if remaining < HEADER_BYTES_MIN:
        raise CorruptRecordError(
            f"A log batch needs at least {HEADER_BYTES_MIN} bytes, only {remaining} follow at byte {position}"
        )
    size = _batch_size(view, position, size_max)
    magic = view[position + _V0_OFFSETS["magic"]]
    if magic > MAGIC_NEWEST:
        raise CorruptRecordError(
            f"The log batch at byte {position} has the magic {magic}, this version reads 0 to {MAGIC_NEWEST}"
        )
    layout = HEADER_LAYOUTS[magic]
    if min(size, remaining) < layout.size:
        raise CorruptRecordError(
            f"The log batch at byte {position} has {min(size, remaining)} bytes, "
            f"a header of magic {magic} alone has {layout.size}"
        )
    header = LogBatchHeader(**dict(zip(layout.offsets, layout.packer.unpack_from(view, position), strict=True)))
    _check_header(header, position)
    return header


def read_batch(data: BytesLike, position: int = 0, size_max: int = BATCH_BYTES_MAX) -> LogBatch:
    """Return a view of the batch that starts at ``position``; a batch that is not whole is an error.

    A batch larger than ``size_max`` bytes is refused with ``SizeLimitError``.
    """
    view = byte_view(data)
    header = read_header(view, position, size_max)
    remaining = len(view) - position
    if header.size > remaining:
        raise CorruptRecordError(f"The log batch at byte {position} has {header.size} bytes, only {remaining} follow")
    return LogBatch(header, view[position : position + header.size])


def iter_batches(data: BytesLike, size_max: int = BATCH_BYTES_MAX) -> Iterator[LogBatch]:
    """Yield the batches of a concatenation in order.

    A fetch may end in the middle of a batch: the last batch is left out when it is not whole. What was consumed is
    the sum of the sizes of the batches. Damage is raised when its batch is reached; so is a size over ``size_max``,
    also of a batch that is not whole.
    """
    view = byte_view(data)
    position = 0
    while len(view) - position >= LENGTH_END and _batch_size(view, position, size_max) <= len(view) - position:
        batch = read_batch(view, position, size_max)
        yield batch
        position += batch.header.size


class BatchRun(NamedTuple):
    """The batches at the start of a buffer that are whole."""

    byte_count: int
    offset_next: int | None  # the offset after the last of them; None when there are none


def measure_batches(data: BytesLike, size_max: int = BATCH_BYTES_MAX) -> BatchRun:
    """Find where the whole batches end and which offset follows, looking at no header but the last.

    Damage and sizes over ``size_max`` are raised as by ``iter_batches``, as far as they show in the lengths.
    """
    view = byte_view(data)
    last, position = None, 0
    while len(view) - position >= LENGTH_END:
        size = _batch_size(view, position, size_max)
        if size > len(view) - position:
            break
        last, position = position, position + size
    return BatchRun(position, None if last is None else read_batch(view, last, size_max).header.offset_next)


def verify_crc(batch: LogBatch) -> None:
    """Raise ``ChecksumError`` unless the bytes of the batch are the ones its checksum was computed from."""
    start = HEADER_LAYOUTS[batch.header.magic].offsets["schema_id"]
    found = crc32c(batch.data[start:])
    if found != batch.header.crc:
        raise ChecksumError(
            f"The log batch at offset {batch.header.base_offset} has the checksum {batch.header.crc:#010x}, "
            f"its bytes give {found:#010x}"
        )


def assign_offset(buffer: bytearray | memoryview, base_offset: int, commit_timestamp: int, position: int = 0) -> None:
    """Stamp the batch at ``position`` with what only the leader knows. The checksum stays valid."""
    assert len(buffer) - position >= HEADER_BYTES_MIN, "the buffer must hold the header of a batch"
    _INT64.pack_into(buffer, position + _V0_OFFSETS["base_offset"], base_offset)
    _INT64.pack_into(buffer, position + _V0_OFFSETS["commit_timestamp"], commit_timestamp)


def build_batch(
    body: Sequence[BytesLike | UInt8Array | pa.Buffer] = (),
    *,
    schema_id: int,
    record_count: int,
    append_only: bool,
    change_types: UInt8Array | None = None,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    base_offset: int = 0,
    commit_timestamp: int = 0,
    magic: int = MAGIC_V0,
    leader_epoch: int = NO_LEADER_EPOCH,
    statistics: BytesLike = b"",
) -> bytearray:
    """Join header, statistics, change types and the parts of a body into one batch, copying each once.

    ``change_types`` is for ARROW batches that are not append-only; row formats keep change types in their body. A
    batch without records has neither statistics nor body.
    """
    if not 0 <= schema_id <= SCHEMA_ID_MAX:
        raise FlussError(f"The schema id {schema_id} does not fit a log batch, ids go from 0 to {SCHEMA_ID_MAX}")
    parts = [byte_view(part) for part in (statistics, *body)]
    assert magic >= MAGIC_V1 or not parts[0], "V0 batches have no statistics"
    if change_types is not None:
        assert not append_only, "append-only batches have no change types"
        assert len(change_types) == record_count, "every record needs a change type"
        assert change_types.dtype == np.uint8, "change types are bytes"
        # Bytes are looked through sooner than an array, and so are many of them.
        assert not change_types.tobytes().translate(None, _CHANGE_TYPES), "change types are 0 to 4"
        parts.insert(1, byte_view(change_types))
    assert record_count or not any(parts), "a batch without records has no body"
    layout = HEADER_LAYOUTS[magic]
    size = layout.size + sum(map(len, parts))
    _check_size(size, record_count)
    packed = _packed_fields(
        layout,
        size,
        schema_id=schema_id,
        attributes=ATTRIBUTE_APPEND_ONLY if append_only else 0,
        record_count=record_count,
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        statistics_length=len(parts[0]),
        base_offset=base_offset,
        commit_timestamp=commit_timestamp,
        leader_epoch=leader_epoch,
    )
    batch = bytearray().join((packed, *parts))
    _CRC.pack_into(batch, layout.crc_start, crc32c(memoryview(batch)[layout.crc_end :]))
    return batch


def _packed_fields(
    layout: HeaderLayout,
    size: int,
    *,
    schema_id: int,
    attributes: int,
    record_count: int,
    writer_id: int,
    batch_sequence: int,
    statistics_length: int = 0,
    base_offset: int = 0,
    commit_timestamp: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Pack a header without its checksum. A ``LogBatchHeader`` would cost as much as the rest of a small batch."""
    magic = layout.magic
    # In the order of the fields.
    return layout.packer.pack(
        *(base_offset, size - LENGTH_END, magic, commit_timestamp),
        *((leader_epoch, 0) if magic >= MAGIC_V2 else (0,)),
        *(schema_id, attributes, record_count - 1 if record_count else 0),
        *(writer_id, batch_sequence, record_count),
        *((statistics_length,) if magic >= MAGIC_V1 else ()),
    )


def append_header(
    parts: Sequence[BytesLike],
    *,
    magic: int,
    schema_id: int,
    record_count: int,
    writer_id: int,
    batch_sequence: int,
    statistics_length: int,
) -> bytes:
    """Pack the header of a new append-only batch whose other bytes are ``parts``; the leader will give its offset."""
    layout = HEADER_LAYOUTS[magic]
    size = layout.size + sum(map(len, parts))
    _check_size(size, record_count)
    packed = _packed_fields(
        layout,
        size,
        schema_id=schema_id,
        attributes=ATTRIBUTE_APPEND_ONLY,
        record_count=record_count,
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        statistics_length=statistics_length,
    )
    crc = crc32c_chain((packed[layout.crc_end :], *parts))
    return b"".join((packed[: layout.crc_start], _CRC.pack(crc), packed[layout.crc_end :]))


class BatchOutline(NamedTuple):
    """What a log has to know of a batch, named as in a header."""

    size: int
    last_offset_delta: int
    writer_id: int
    batch_sequence: int

    @classmethod
    def of_built(cls, batch: bytearray) -> BatchOutline:
        """Return the outline of what ``build_batch`` has returned. Nothing is checked."""
        layout = HEADER_LAYOUTS[batch[_V0_OFFSETS["magic"]]]
        return cls(len(batch), *_OUTLINE.unpack_from(batch, layout.offsets["last_offset_delta"]))


def sealed_header(header: LogBatchHeader, parts: Sequence[BytesLike], *, keep_crc: bool = False) -> bytes:
    """Pack a header with the length and the checksum of the batch whose other bytes are ``parts``.

    ``keep_crc`` leaves the checksum as it is in ``header``.
    """
    layout = HEADER_LAYOUTS[header.magic]
    size = layout.size + sum(map(len, parts))
    _check_size(size, header.record_count)
    packed = bytearray(layout.packer.pack(*layout.fields_of(header)))
    offsets = layout.offsets
    _LENGTH.pack_into(packed, offsets["length"], size - LENGTH_END)
    if not keep_crc:
        _CRC.pack_into(packed, offsets["crc"], crc32c_chain((packed[offsets["schema_id"] :], *parts)))
    return bytes(packed)


def _check_size(size: int, record_count: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise FlussError(
            f"A log batch of {record_count} records needs {size} bytes, the format allows {BATCH_BYTES_MAX}: "
            f"write fewer records at a time"
        )


def downgrade_to_v0(batch: LogBatch) -> BytesLike:
    """Return the batch for readers that know V0 only: without statistics and epoch, with a checksum of its own.

    Offsets and timestamp stay. A V0 batch is returned as it is, without a copy.
    """
    parts = parts_of_v0(batch)
    return parts[0] if len(parts) == 1 else bytearray().join(parts)


def parts_of_v0(batch: LogBatch) -> Sequence[BytesLike]:
    """Return what ``downgrade_to_v0`` does in parts, without a copy of the records."""
    if batch.header.magic == MAGIC_V0:
        return (batch.data,)
    header = replace(batch.header, magic=MAGIC_V0, statistics_length=0)
    return sealed_header(header, (batch.records,)), batch.records


def _batch_size(view: memoryview, position: int, size_max: int) -> int:
    """Read the size of a batch. It is at least that of a header, so a walk over batches always moves on."""
    length: int = _LENGTH.unpack_from(view, position + _V0_OFFSETS["length"])[0]
    if LENGTH_END + length < HEADER_BYTES_MIN:
        raise CorruptRecordError(
            f"The log batch at byte {position} has the length {length}, "
            f"at least {HEADER_BYTES_MIN - LENGTH_END} is needed for its header"
        )
    if LENGTH_END + length > size_max:
        raise SizeLimitError(
            f"The log batch at byte {position} has {LENGTH_END + length} bytes, at most {size_max} are allowed"
        )
    return LENGTH_END + length


def _check_header(header: LogBatchHeader, position: int) -> None:
    """Refuse facts that cannot be true together."""
    where = f"The log batch at byte {position}"
    if header.schema_id < 0:
        raise CorruptRecordError(f"{where} has the schema id {header.schema_id}, ids start at 0")
    if header.record_count < 0:
        raise CorruptRecordError(f"{where} has {header.record_count} records, a count cannot be negative")
    # A batch may span more offsets than it has records, never fewer.
    if header.last_offset_delta < max(header.record_count - 1, 0):
        raise CorruptRecordError(
            f"{where} has {header.record_count} records and the last offset delta {header.last_offset_delta}"
        )
    if not 0 <= header.statistics_length <= header.size - header.header_size:
        raise CorruptRecordError(
            f"{where} has {header.statistics_length} bytes of statistics, "
            f"{header.size - header.header_size} bytes follow its header"
        )


# The body of row formats


def encode_row_body(rows: EncodedRows, change_types: UInt8Array) -> memoryview:
    """Frame the rows, each behind its change type."""
    assert len(rows) == len(change_types), "every row needs a change type"
    assert change_types.dtype == np.uint8, "change types are bytes"
    assert change_types.max(initial=0) <= _CHANGE_TYPE_MAX, "change types are 0 to 4"
    return byte_view(join_length_prefixed(fixed_width_rows(change_types), rows).data)


def decode_row_body(body: BytesLike, record_count: int) -> tuple[EncodedRows, UInt8Array]:
    """Find the rows of a body, in place, and their change types."""
    data = byte_array(body)
    starts, ends = split_length_prefixed(data, record_count, what="log record", payload_bytes_min=CHANGE_TYPE_BYTES)
    change_types = data[starts]
    unknown = np.flatnonzero(change_types > _CHANGE_TYPE_MAX)
    if len(unknown):
        index = int(unknown[0])
        raise CorruptRecordError(
            f"The log record {index} of {record_count}, at byte {starts[index] - LENGTH_PREFIX_BYTES}, has the change "
            f"type {change_types[index]}, only 0 to {_CHANGE_TYPE_MAX} exist"
        )
    return EncodedRows(data, starts + CHANGE_TYPE_BYTES, ends), change_types
