"""Batches in a segment file: one header at a time, or a range of the file from one end to the other.

A ``StoredBatch`` has no more of a header than storing it needs. What the server wrote to a file was checked when it was
appended. All that can be wrong with it now is that bytes have changed, which the checksum tells. So this reads a
fraction of what ``LogBatchHeader`` has, many times faster.

A scan trusts nothing. It accepts a batch when its header makes sense, its checksum is right, its offset follows the one
before it, and its commit time is not before the one before it. Base offset and commit time are set by the server and
lie outside the checksum: the order of its neighbours is what protects them. A changed commit time that keeps the order
goes unnoticed; a changed row does not. The magic lies outside as well: a batch of version 1 that was changed into one
of version 0 shows only when its rows are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from fluss.buffers import BytesLike, byte_view
from fluss.errors import ChecksumError, CorruptRecordError, FlussError
from fluss.record.framing import crc32c
from fluss.record.log_batch import HEADER_LAYOUTS, LENGTH_END, MAGIC_NEWEST, MAGIC_V1
from fluss.storage.vfs import FileReads

# The end of the year 9999. A later commit time is damage: if it were believed, no later batch could be earlier.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_UNPACK: Final = tuple(layout.packer.unpack_from for layout in HEADER_LAYOUTS)
_HEADER_BYTES: Final = tuple(layout.size for layout in HEADER_LAYOUTS)
# The checksum covers everything from here on.
_CHECKED_FROM: Final = tuple(layout.offsets["schema_id"] for layout in HEADER_LAYOUTS)
# The indexes of fields in what is unpacked; a later layout has one more before them.
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


Visit = Callable[[StoredBatch], None]


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


@dataclass(frozen=True, slots=True)
class ScanResult:
    """How far a file is good."""

    position_end: int
    offset_next: int
    timestamp_max_ms: int
    # Why the scan ended before the end of the file. Names the file and the position.
    problem: FlussError | None


class BatchChain:
    """The batches of a file one after the other, from a place on; each must follow from the one before."""

    __slots__ = ("offset_next", "path", "position", "timestamp_ms")

    def __init__(self, path: Path, position: int, offset_next: int, timestamp_min_ms: int) -> None:
        self.path = path
        self.position = position
        self.offset_next = offset_next
        self.timestamp_ms = timestamp_min_ms

    def follow(self, data: BytesLike) -> Iterator[StoredBatch]:
        """Yield the whole batches in bytes that begin at the current position, which moves on behind each of them.

        Raises CorruptRecordError with file and byte; the position is then that of the bad batch.
        """
        view, start = byte_view(data), self.position
        while True:
            try:
                batch = self._next(view, self.position - start)
            except FlussError as error:
                raise self.damage(error.message) from error
            if batch is None:
                return
            yield batch
            self.position += batch.size
            self.offset_next = batch.offset_next
            self.timestamp_ms = batch.commit_timestamp_ms

    def damage(self, reason: str) -> CorruptRecordError:
        """Build the error for the current position."""
        return damage_at(self.path, self.position, f"offset {self.offset_next}: {reason}")

    def _next(self, view: memoryview, start: int) -> StoredBatch | None:
        batch = read_stored_batch(view, start, self.position)
        if batch is None or start + batch.size > len(view):
            return None
        verify_stored_batch(batch, view, start)
        if batch.base_offset != self.offset_next:
            raise CorruptRecordError(f"the batch starts at offset {batch.base_offset}")
        if not self.timestamp_ms <= batch.commit_timestamp_ms <= TIMESTAMP_MS_MAX:
            raise CorruptRecordError(
                f"the commit time {batch.commit_timestamp_ms} is not between that of the batch before, "
                f"{self.timestamp_ms}, and {TIMESTAMP_MS_MAX}"
            )
        return batch


def damage_at(path: Path, position: int, reason: str) -> CorruptRecordError:
    """Build the error for a bad place in a segment file."""
    return CorruptRecordError(f"{path}, byte {position}, {reason}")


def scan(
    files: FileReads,
    path: Path,
    *,
    start: int,
    end: int,
    offset_next: int,
    visit: Visit,
    timestamp_min_ms: int = 0,
    read_bytes: int = _CHUNK_BYTES,
) -> ScanResult:
    """Check the batches in a range of bytes, ``read_bytes`` at a time, and hand each good one to ``visit``.

    ``offset_next`` is what the first batch must start with.
    """
    chain = BatchChain(path, start, offset_next, timestamp_min_ms)
    problem: FlussError | None = None
    chunk_bytes = read_bytes
    while chain.position < end and problem is None:
        chunk_start = chain.position
        chunk = files.read(path, chunk_start, min(chunk_bytes, end - chunk_start))
        try:
            for batch in chain.follow(chunk):
                visit(batch)
        except CorruptRecordError as error:
            problem = error
            continue
        if chain.position > chunk_start:
            chunk_bytes = read_bytes
        elif len(chunk) == chunk_bytes:
            # The batch is longer than that.
            chunk_bytes *= 4
        else:
            problem = chain.damage(f"the last {end - chunk_start} bytes are not a whole batch")
    return ScanResult(chain.position, chain.offset_next, chain.timestamp_ms, problem)
