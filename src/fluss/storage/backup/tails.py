"""Tails of logs on their way to a backup: which bytes of a log are shipped, and how many buckets share an object.

Everything here blocks and belongs into a thread. Bytes go from the files of the log to the store in pieces of a few
megabytes; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.record.framing import crc32c
from fluss.schema.table import TableBucket
from fluss.storage.backup.points import TAILS, TailChain, TailPiece, new_path
from fluss.storage.log.committer import LogEnd
from fluss.storage.log.file_names import LogFileKind, LogFileName, damaged
from fluss.storage.log.local_log import StoredRange
from fluss.storage.log.tablet import LogTablet
from fluss.storage.log.writer_state import decode_writer_snapshot
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore
from fluss.storage.vfs import Files

# Up to here pieces are shipped again together with what follows, and share objects with those of other buckets.
SMALL_BYTES: Final = 8 * 1024 * 1024


class UnreadableTailError(FlussError):
    """The files of a log lack what is to be shipped: it was dropped meanwhile, segments have expired, or damage."""

    def __init__(self, bucket: TableBucket, reason: str) -> None:
        super().__init__(reason, ErrorCode.LOG_STORAGE_EXCEPTION)
        self.bucket = bucket


@dataclass(frozen=True, slots=True)
class PlannedTail:
    """What is to be shipped of a log, and what its chain is then."""

    bucket: TableBucket
    # The pieces before it that stay.
    kept: tuple[TailPiece, ...]
    start_offset: int
    end_offset: int
    ranges: Sequence[StoredRange | TailPiece]
    # A writer snapshot that goes with it, and its offset; and one that was shipped before.
    snapshot: tuple[int, bytes] | None = None
    writers: TailPiece | None = None
    # The pieces behind it, if it replaces some in the middle.
    behind: tuple[TailPiece, ...] = ()
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = (part.size_bytes if isinstance(part, TailPiece) else part.byte_count for part in self.ranges)
        object.__setattr__(self, "size_bytes", sum(sizes))

    def chain(self, piece: TailPiece, writers: TailPiece | None) -> TailChain:
        return TailChain((*self.kept, piece, *self.behind), writers or self.writers)


def plan_tail(
    log: LogTablet, files: Files, chain: TailChain | None, start_offset: int, end: LogEnd, *, has_remote_writers: bool
) -> PlannedTail:
    """Say how a log is shipped from an offset, where its chain ends, to an end that readers see.

    The last pieces are shipped again if they are not larger than what follows them. Unless remote storage knows what
    writers had sent before the chain (``has_remote_writers``), a writer snapshot goes with it.
    """
    kept = [] if chain is None else list(chain.pieces)
    ranges = log.ranges(start_offset, end)
    size_bytes = sum(part.byte_count for part in ranges)
    first_offset = start_offset
    while kept and kept[-1].size_bytes <= size_bytes and kept[-1].start_offset >= log.offset_start:
        if size_bytes + kept[-1].size_bytes > SMALL_BYTES:
            break
        size_bytes += kept[-1].size_bytes
        first_offset = kept.pop().start_offset
    if first_offset != start_offset:
        ranges = log.ranges(first_offset, end)
    snapshot, writers = None, None
    if not has_remote_writers and (kept[0].start_offset if kept else first_offset) > 0:
        writers = None if chain is None else chain.writers
        snapshot = _newest_snapshot(log, files, end.offset_next, -1 if writers is None else writers.start_offset)
    return PlannedTail(log.bucket, tuple(kept), first_offset, end.offset_next, ranges, snapshot, writers)


def _newest_snapshot(log: LogTablet, files: Files, offset_end: int, offset_known: int) -> tuple[int, bytes] | None:
    names = map(LogFileName.parse, files.names(log.directory))
    offsets = [
        name.offset for name in names if name and name.kind is LogFileKind.WRITER_SNAPSHOT and not name.is_deleted
    ]
    for offset in sorted(offsets, reverse=True):
        if offset_known < offset <= offset_end:
            path = log.directory / str(LogFileName(offset, LogFileKind.WRITER_SNAPSHOT))
            with suppress(FlussError, OSError):
                data = bytes(files.read(path, 0, files.size(path)))
                decode_writer_snapshot(data)
                return offset, data
    return None


def packs(plans: Iterable[PlannedTail]) -> list[list[PlannedTail]]:
    """Put tails together that share an object: small ones until there are enough, a large one alone."""
    found: list[list[PlannedTail]] = []
    collected_bytes = SMALL_BYTES
    for plan in plans:
        if plan.size_bytes >= SMALL_BYTES:
            found.append([plan])
            continue
        if collected_bytes + plan.size_bytes > SMALL_BYTES:
            found.append([])
            collected_bytes = 0
        # Behind a large one, the pack that is filled is not the last.
        target = next(pack for pack in reversed(found) if not pack or pack[0].size_bytes < SMALL_BYTES)
        target.append(plan)
        collected_bytes += plan.size_bytes
    return found


def ship_pack(store: RemoteStore, files: Files, plans: Sequence[PlannedTail]) -> list[tuple[TableBucket, TailChain]]:
    """Write tails to one new object and return their chains. UnreadableTailError: one of the logs is to blame."""
    path = new_path(TAILS, ".tail")
    checksums: list[int] = []

    def parts() -> Iterator[BytesLike]:
        checksums.clear()
        for plan in plans:
            checksum = 0
            for part in _bytes_of(store, files, plan):
                checksum = crc32c(part, checksum)
                yield part
            checksums.append(checksum)
            if plan.snapshot is not None:
                yield plan.snapshot[1]

    sizes = (plan.size_bytes + (0 if plan.snapshot is None else len(plan.snapshot[1])) for plan in plans)
    store.put_parts(path, parts, sum(sizes))
    position, chains = 0, []
    for plan, checksum in zip(plans, checksums, strict=True):
        piece = TailPiece(path, position, plan.size_bytes, checksum, plan.start_offset, plan.end_offset)
        position += plan.size_bytes
        writers = None
        if plan.snapshot is not None:
            offset, data = plan.snapshot
            writers = TailPiece(path, position, len(data), crc32c(data), offset, offset)
            position += len(data)
        chains.append((plan.bucket, plan.chain(piece, writers)))
    return chains


def _bytes_of(store: RemoteStore, files: Files, plan: PlannedTail) -> Iterator[BytesLike]:
    for part in plan.ranges:
        if isinstance(part, TailPiece):
            yield from read_piece(store, part)
            continue
        for position in range(part.position, part.position + part.byte_count, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, part.position + part.byte_count - position)
            try:
                data = files.read(part.path, position, wanted)
            except OSError as error:
                raise UnreadableTailError(plan.bucket, f"{part.path} cannot be read: {error.strerror}") from error
            if len(data) != wanted:
                reason = f"{part.path} has less than the {position + wanted} bytes that it should have"
                raise UnreadableTailError(plan.bucket, reason)
            yield data


def read_piece(store: RemoteStore, piece: TailPiece) -> Iterator[BytesLike]:
    """Yield the bytes of a piece, some megabytes at a time.

    A piece that is missing, or at its end turns out not to be what was shipped, raises a FlussError.
    """
    name = f"{store.location}/{piece.path}"
    byte_count = checksum = 0
    try:
        for position in range(piece.position, piece.position + piece.size_bytes, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, piece.position + piece.size_bytes - position)
            part = store.read(piece.path, position, wanted)
            byte_count += len(part)
            checksum = crc32c(part, checksum)
            yield part
    except FileNotFoundError:
        raise damaged("backup", "an object that it names is missing", name) from None
    if byte_count != piece.size_bytes:
        raise damaged("backup", f"{byte_count} bytes are there, {piece.size_bytes} were shipped", name)
    if checksum != piece.crc:
        raise damaged("backup", f"the checksum of what is at byte {piece.position} is wrong", name)
