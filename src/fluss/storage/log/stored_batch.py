"""A batch in a segment file, with no more of its header than storing it needs.

What the server wrote to a file was checked when it was appended. All that can be wrong with it now is that bytes have
changed, which the checksum tells. So this reads a fraction of what ``LogBatchHeader`` has, many times faster.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluss.errors import ChecksumError, CorruptRecordError
from fluss.record.crc import crc32c
from fluss.record.log_batch import HEADER_LAYOUTS, LENGTH_END, MAGIC_NEWEST, MAGIC_V1

_UNPACK: Final = tuple(layout.packer.unpack_from for layout in HEADER_LAYOUTS)
_HEADER_BYTES: Final = tuple(layout.size for layout in HEADER_LAYOUTS)
# The checksum covers everything from here on.
_CHECKED_FROM: Final = tuple(layout.offsets["schema_id"] for layout in HEADER_LAYOUTS)
# Where fields are in what is unpacked; a later layout has one more before them.
_FIELDS: Final = tuple(
    tuple(list(layout.offsets).index(name) for name in ("crc", "last_offset_delta", "writer_id", "batch_sequence"))
    for layout in HEADER_LAYOUTS
)


class StoredBatch(NamedTuple):
    """Where a batch lies in its segment, and the facts of its header."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset_delta: int
    commit_timestamp_ms: int
    writer_id: int
    batch_sequence: int
    crc: int

    @property
    def offset_last(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def offset_next(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def read_stored_batch(window: memoryview, start: int, position: int) -> StoredBatch | None:
    """Read the header at ``start`` of a window; ``position`` is where that is in the file. None: it is not whole.

    A header that cannot be one raises CorruptRecordError.
    """
    remaining = len(window) - start
    if remaining <= LENGTH_END:
        return None
    magic = window[start + LENGTH_END]
    if magic > MAGIC_NEWEST:
        raise CorruptRecordError(f"the batch has the magic {magic}, this version reads 0 to {MAGIC_NEWEST}")
    if remaining < _HEADER_BYTES[magic]:
        return None
    fields = _UNPACK[magic](window, start)
    size = LENGTH_END + fields[1]
    if size < _HEADER_BYTES[magic]:
        raise CorruptRecordError(f"the batch has {size} bytes, a header alone has {_HEADER_BYTES[magic]}")
    # The magic lies outside the checksum. This is what gives away a changed one, as far as anything does.
    if magic >= MAGIC_V1 and not 0 <= fields[-1] <= size - _HEADER_BYTES[magic]:
        raise CorruptRecordError(f"the batch has {fields[-1]} bytes of statistics, more than follow its header")
    crc, delta, writer_id, batch_sequence = _FIELDS[magic]
    return StoredBatch(
        position,
        size,
        magic,
        fields[0],
        fields[delta],
        fields[3],
        fields[writer_id],
        fields[batch_sequence],
        fields[crc],
    )


def verify_stored_batch(batch: StoredBatch, window: memoryview, start: int) -> None:
    """Raise ``ChecksumError`` unless the bytes of a batch, which are whole in the window, are the right ones."""
    found = crc32c(window[start + _CHECKED_FROM[batch.magic] : start + batch.size])
    if found != batch.crc:
        raise ChecksumError(f"the batch has the checksum {batch.crc:#010x}, its bytes give {found:#010x}")
