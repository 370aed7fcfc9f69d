"""KV batches: puts and deletes of a primary-key table on their way to the server.

| field          | type   | byte | meaning                                        |
|----------------|--------|------|------------------------------------------------|
| length         | int32  | 0    | bytes after this field                         |
| magic          | int8   | 4    | 0, the only version                            |
| crc            | uint32 | 5    | CRC-32C of everything from schema_id on        |
| schema_id      | int16  | 9    | schema of all rows in the batch                |
| attributes     | int8   | 11   | 0, ignored by readers                          |
| writer_id      | int64  | 12   | -1 = none                                      |
| batch_sequence | int32  | 20   | -1 = none                                      |
| record_count   | int32  | 24   |                                                |
| records        |        | 28   |                                                |

A record, with nothing between records:

| field      | type     | meaning                                                             |
|------------|----------|---------------------------------------------------------------------|
| length     | int32    | bytes after this field                                              |
| key_length | varint32 | 7 bits per byte, lowest first, the high bit set on all but the last |
| key        | bytes    | never empty                                                         |
| row        | bytes    | the rest of the record; no bytes at all = delete the key            |

Integers are little-endian. Order matters: a later record of the same key wins.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_array, byte_view
from fluss.errors import ChecksumError, CorruptRecordError, FlussError, SizeLimitError
from fluss.record.framing import LENGTH_PREFIX_BYTES, crc32c, crc32c_chain, join_length_prefixed, split_length_prefixed
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID
from fluss.row.encoded import EncodedRows, offsets_of
from fluss.row.varint import WORD_BYTES, read_varints, varint_lengths, write_varints

MAGIC = 0
BATCH_BYTES_MAX = 2**31 - 1
# What servers take in one batch. A record costs them objects of many times its bytes, and a key is held in indexes.
RECORDS_MAX = 524_288
KEY_BYTES_MAX = 65_535

_HEADER = struct.Struct(
    "<i"  # length          bytes after this field
    "b"  # magic
    "I"  # crc              over schema_id .. end
    "h"  # schema_id
    "b"  # attributes
    "q"  # writer_id
    "i"  # batch_sequence
    "i"  # record_count
)
HEADER_BYTES = _HEADER.size
_CRC = struct.Struct("<I")
# The last field of the header.
_RECORD_COUNT_AT = _HEADER.size - struct.calcsize("<i")
_CRC_POSITION = struct.calcsize("<ib")
_CRC_START = struct.calcsize("<ibI")

_RECORD_PAYLOAD_BYTES_MIN = 2  # a key length and one byte of key


class KvRecords(NamedTuple):
    """The records of a batch, column by column and in place. The row of a delete is empty."""

    keys: EncodedRows
    rows: EncodedRows
    is_delete: npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class KvBatch:
    """One received batch: the facts of its header, and its records on demand.

    ``parse`` looks at the header only. Call ``verify_crc`` before trusting anything else.
    """

    data: memoryview
    schema_id: int
    writer_id: int
    batch_sequence: int
    record_count: int
    crc: int

    @classmethod
    def parse(cls, data: BytesLike, *, size_max: int = BATCH_BYTES_MAX) -> KvBatch:
        """Read the header of ``data``, which must be exactly one batch of at most ``size_max`` bytes."""
        view = byte_view(data)
        if len(view) < HEADER_BYTES:
            raise CorruptRecordError(f"A KV batch of {len(view)} bytes is shorter than its {HEADER_BYTES}-byte header")
        header = _HEADER.unpack_from(view)
        length, magic, crc, schema_id, _attributes, writer_id, batch_sequence, record_count = header
        size = length + LENGTH_PREFIX_BYTES
        if magic != MAGIC:
            raise CorruptRecordError(f"The KV batch has the format version {magic}, this version reads only {MAGIC}")
        if size < HEADER_BYTES:
            raise CorruptRecordError(f"The KV batch announces {size} bytes, its header alone has {HEADER_BYTES}")
        if size > size_max:
            raise SizeLimitError(f"The KV batch announces {size} bytes, the limit is {size_max}")
        if size != len(view):
            raise CorruptRecordError(f"The KV batch announces {size} bytes, {len(view)} were received")
        if record_count < 0:
            raise CorruptRecordError(f"The KV batch announces {record_count} records")
        return cls(view, schema_id, writer_id, batch_sequence, record_count, crc)

    def verify_crc(self) -> None:
        """Raise ``ChecksumError`` unless the bytes are the ones that were written."""
        computed = crc32c(self.data[_CRC_START:])
        if computed != self.crc:
            raise ChecksumError(f"The KV batch has the checksum {self.crc:#010x}, its bytes give {computed:#010x}")

    def records(self) -> KvRecords:
        """Find the keys and rows. Every boundary is checked; nothing is copied."""
        return _records(self.data[HEADER_BYTES:], self.record_count)


def announced_record_count(batch: memoryview) -> int:
    """Return how many records a batch says to have, without looking at anything else of it."""
    return int.from_bytes(batch[_RECORD_COUNT_AT:HEADER_BYTES], "little")


def joined_records(batches: Sequence[KvBatch]) -> KvRecords:
    """Find the keys and rows of several small batches at once; the records of the first come first.

    They are copied. CorruptRecordError if there is anything wrong with any of them: ``KvBatch.records`` of each says
    what.
    """
    bodies = [batch.data[HEADER_BYTES:] for batch in batches]
    records = _records(b"".join(bodies), sum(batch.record_count for batch in batches))
    ends = np.append(0, records.rows.ends)[np.cumsum([batch.record_count for batch in batches])]
    if not np.array_equal(ends, np.cumsum([len(body) for body in bodies])):
        raise CorruptRecordError("The records of one of the KV batches are not as many as it announces")
    return records


def _records(body: BytesLike, record_count: int) -> KvRecords:
    data = byte_array(body)
    starts, ends = split_length_prefixed(
        data, record_count, what="KV record", payload_bytes_min=_RECORD_PAYLOAD_BYTES_MIN
    )
    key_starts, key_ends = _key_bounds(data, starts, ends)
    return KvRecords(
        EncodedRows(data, key_starts, key_ends), EncodedRows(data, key_ends, ends), np.equal(key_ends, ends)
    )


def encode_kv_batch(
    keys: EncodedRows,
    rows: EncodedRows | None,
    deletes: npt.NDArray[np.bool_] | None = None,
    *,
    schema_id: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
) -> bytearray:
    """Build a batch of whole columns, as ``encode_kv_records`` takes them."""
    body = byte_view(encode_kv_records(keys, rows, deletes).data)
    header = sealed_kv_header(
        body, schema_id=schema_id, writer_id=writer_id, batch_sequence=batch_sequence, record_count=len(keys)
    )
    return bytearray().join((header, body))


def encode_kv_records(
    keys: EncodedRows, rows: EncodedRows | None, deletes: npt.NDArray[np.bool_] | None = None
) -> EncodedRows:
    """Build the records of a batch; they lie back to back, so ``data`` as a whole, or cut between records, is a body.

    Where ``deletes`` is set the key is deleted, whatever its row holds; no rows at all means that every key is.
    """
    if deletes is None:
        deletes = np.full(len(keys), rows is None)
    if rows is None:
        rows = EncodedRows(keys.data, keys.starts, keys.starts)
    assert len(keys) == len(rows) == len(deletes), "every key needs a row; that of a delete may be empty"
    assert bool((deletes | (rows.lengths > 0)).all()), "an empty row is a delete"
    rows = EncodedRows(rows.data, rows.starts, np.where(deletes, rows.starts, rows.ends))
    key_lengths = keys.lengths
    assert bool(key_lengths.all()), "keys cannot be empty"
    length_rows = _varint_rows(key_lengths)
    size = (
        HEADER_BYTES
        + LENGTH_PREFIX_BYTES * len(keys)
        + sum(int(part.lengths.sum()) for part in (length_rows, keys, rows))
    )
    if size > BATCH_BYTES_MAX:
        raise FlussError(f"A KV batch of {size} bytes is too large, the limit is {BATCH_BYTES_MAX}: write fewer rows")
    return join_length_prefixed(length_rows, keys, rows)


def sealed_kv_header(
    body: BytesLike, *, schema_id: int, writer_id: int, batch_sequence: int, record_count: int
) -> bytes:
    """Pack the header of the batch whose records are ``body``, with its length and its checksum."""
    assert 0 <= schema_id < 2**15, f"the schema id {schema_id} does not fit"
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(header, 0, length, MAGIC, 0, schema_id, 0, writer_id, batch_sequence, record_count)
    _CRC.pack_into(header, _CRC_POSITION, crc32c_chain((header[_CRC_START:], body)))
    return bytes(header)


def _key_bounds(data: UInt8Array, starts: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Decode the key lengths at the start of all records at once."""
    words = data if len(data) >= WORD_BYTES else np.concatenate((data, np.zeros(WORD_BYTES, np.uint8)))
    varints, varint_bytes = read_varints(words, starts, bits=32)
    key_starts = starts + varint_bytes
    unreadable = (varint_bytes == 0) | (key_starts > ends)
    if bool(unreadable.any()):
        _raise_bad_key(unreadable, starts, "has no readable key length")
    key_lengths = varints.astype(np.int64)
    key_ends = key_starts + key_lengths
    too_long = key_ends > ends
    if bool(too_long.any()):
        index = int(too_long.argmax())
        found = f"has a key of {key_lengths[index]} bytes, only {ends[index] - key_starts[index]} follow"
        _raise_bad_key(too_long, starts, found)
    if not bool(key_lengths.all()):
        _raise_bad_key(key_lengths == 0, starts, "has no key")
    return key_starts, key_ends


def _raise_bad_key(is_bad: npt.NDArray[np.bool_], starts: Int64Array, found: str) -> NoReturn:
    index = int(is_bad.argmax())
    position = int(starts[index]) - LENGTH_PREFIX_BYTES + HEADER_BYTES
    raise CorruptRecordError(f"The KV record {index} of {len(starts)}, at byte {position} of its batch, {found}")


def _varint_rows(values: Int64Array) -> EncodedRows:
    """Encode every value as a varint row; values are not negative and fit 32 bits."""
    sizes = varint_lengths(values.astype(np.uint32))
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    write_varints(out, offsets[:-1], values.astype(np.uint32), sizes)
    return EncodedRows.from_offsets(out, offsets)
