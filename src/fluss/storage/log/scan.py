"""Reading batches from one end of a file to the other, believing nothing.

A batch is accepted when its header makes sense, its checksum is right, its offset follows the one before it, and its
commit time is not before the one before it. Base offset and commit time are set by the server and lie outside the
checksum: the order of its neighbours is what protects them. A changed commit time that keeps the order goes unnoticed;
a changed row never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.log_batch import LENGTH_END, LogBatch, iter_batches, verify_crc
from fluss.storage.vfs import Files

# The end of the year 9999. A later commit time is damage; taken seriously, it would date everything after it.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
_CHUNK_BYTES: Final = 4 * 1024 * 1024

Visit = Callable[[int, LogBatch], None]


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

    def follow(self, data: BytesLike) -> Iterator[LogBatch]:
        """Yield the whole batches in bytes that begin at the current position, which moves on behind each of them.

        Raises CorruptRecordError with file and byte; the position is then that of the bad batch.
        """
        try:
            for batch in iter_batches(data):
                self._check(batch)
                yield batch
                self.position += batch.header.size
                self.offset_next = batch.header.offset_next
                self.timestamp_ms = batch.header.commit_timestamp
        except FlussError as error:
            raise self.damage(error.message) from error

    def damage(self, reason: str) -> CorruptRecordError:
        """Build the error for the current position."""
        return damage_at(self.path, self.position, f"offset {self.offset_next}: {reason}")

    def _check(self, batch: LogBatch) -> None:
        header = batch.header
        verify_crc(batch)
        if header.base_offset != self.offset_next:
            raise CorruptRecordError(f"the batch starts at offset {header.base_offset}")
        if not self.timestamp_ms <= header.commit_timestamp <= TIMESTAMP_MS_MAX:
            raise CorruptRecordError(
                f"the commit time {header.commit_timestamp} is not between that of the batch before, "
                f"{self.timestamp_ms}, and {TIMESTAMP_MS_MAX}"
            )


def damage_at(path: Path, position: int, reason: str) -> CorruptRecordError:
    """Build the error for a bad place in a segment file."""
    return CorruptRecordError(f"{path}, byte {position}, {reason}")


def scan(
    files: Files, path: Path, *, start: int, end: int, offset_next: int, visit: Visit, timestamp_min_ms: int = 0
) -> ScanResult:
    """Check the batches in a range of bytes, and hand each good one to ``visit`` with its position.

    ``offset_next`` is what the first batch must start with. The view of a batch is valid during the visit only.
    """
    chain = BatchChain(path, start, offset_next, timestamp_min_ms)
    problem: FlussError | None = None
    while chain.position < end and problem is None:
        chunk_start = chain.position
        chunk = files.read(path, chunk_start, _chunk_bytes(files, path, chunk_start, end))
        try:
            for batch in chain.follow(chunk):
                visit(chain.position, batch)
            if chain.position == chunk_start:
                raise chain.damage(f"the last {end - chunk_start} bytes are not a whole batch")
        except CorruptRecordError as error:
            problem = error
    return ScanResult(chain.position, chain.offset_next, chain.timestamp_ms, problem)


def _chunk_bytes(files: Files, path: Path, position: int, end: int) -> int:
    """Return how much to read next: enough for the next batch, however long it is."""
    prefix = files.read(path, position, LENGTH_END)
    length = int.from_bytes(prefix[LENGTH_END - 4 :], "little", signed=True) if len(prefix) == LENGTH_END else 0
    return min(max(_CHUNK_BYTES, LENGTH_END + length), end - position)
