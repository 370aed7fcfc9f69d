"""A log on the disk, made from its tail in a backup. Everything here blocks and belongs into a thread.

The log begins where the remote segments of its bucket end, or where its tail begins if there are none. It gets its
name when it is whole: a server that is interrupted finds no log, and makes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.buffers import BytesLike, byte_view
from fluss.record.log_batch import HEADER_BYTES_MAX
from fluss.storage.backup.points import TailChain
from fluss.storage.backup.tails import read_piece
from fluss.storage.log.file_names import LogFileKind, damaged, log_file_name
from fluss.storage.log.scan import read_stored_batch
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore
from fluss.storage.vfs import Files

_UNFINISHED_SUFFIX: Final = ".restoring"
_CUT_FILE: Final = "cut"


@dataclass(frozen=True, slots=True)
class LostLog:
    """What is known of a log that is to be made: its tail, and what remote storage has of it."""

    chain: TailChain | None
    # Where the remote segments end, and the writer snapshot of that offset if there is one.
    remote_end: int = 0
    writer_snapshot: bytes | None = None

    @property
    def start_offset(self) -> int:
        return self.remote_end if self.chain is None else max(self.remote_end, self.chain.start_offset)

    @property
    def end_offset(self) -> int:
        return self.remote_end if self.chain is None else max(self.remote_end, self.chain.end_offset)


def make_log(store: RemoteStore, files: Files, directory: Path, lost: LostLog, *, segment_bytes_max: int) -> int:
    """Make the directory of a log, unless it is there; return how many bytes were fetched. Damage is a FlussError."""
    if files.exists(directory):
        return 0
    unfinished = directory.with_name(directory.name + _UNFINISHED_SUFFIX)
    files.remove_tree(unfinished)
    files.make_directory(unfinished)
    byte_count = _write_segments(store, files, unfinished, lost, segment_bytes_max)
    if lost.writer_snapshot is not None and lost.start_offset == lost.remote_end:
        _write_snapshot(files, unfinished, lost.start_offset, lost.writer_snapshot)
    chain = lost.chain
    if chain is not None and chain.writers is not None and chain.writers.start_offset >= lost.start_offset:
        data = b"".join(read_piece(store, chain.writers))
        _write_snapshot(files, unfinished, chain.writers.start_offset, data)
    files.sync_directory(unfinished)
    files.forget(unfinished)
    files.rename(unfinished, directory)
    files.sync_directory(directory.parent)
    return byte_count


def _write_segments(store: RemoteStore, files: Files, directory: Path, lost: LostLog, segment_bytes_max: int) -> int:
    start_offset = lost.start_offset
    chain = None if lost.chain is None else lost.chain.since(start_offset)
    path, position, byte_count = _segment_path(directory, start_offset), 0, 0
    files.write(path, (b"",), 0)
    for piece in () if chain is None else chain.pieces:
        if position and position + piece.size_bytes > segment_bytes_max:
            files.sync(path)
            path, position = _segment_path(directory, piece.start_offset), 0
        parts = read_piece(store, piece)
        if piece.start_offset < start_offset:
            parts = _cut_before(files, directory / _CUT_FILE, parts, start_offset)
        for part in parts:
            files.write(path, (part,), position)
            position += len(part)
        byte_count += piece.size_bytes
    files.sync(path)
    files.remove(directory / _CUT_FILE)
    return byte_count


def _segment_path(directory: Path, offset: int) -> Path:
    return directory / log_file_name(offset, LogFileKind.SEGMENT)


def _write_snapshot(files: Files, directory: Path, offset: int, data: bytes) -> None:
    files.replace(directory / log_file_name(offset, LogFileKind.WRITER_SNAPSHOT), data)


def _cut_before(files: Files, path: Path, parts: Iterator[BytesLike], offset: int) -> Iterator[BytesLike]:
    """Yield batches from the one on that begins with an offset. They go through a file: they may be large."""
    size_bytes = 0
    files.remove(path)
    for part in parts:
        files.write(path, (part,), size_bytes)
        size_bytes += len(part)
    position = 0
    while position < size_bytes:
        batch = read_stored_batch(byte_view(files.read(path, position, HEADER_BYTES_MAX)), 0, position)
        if batch is None:
            raise damaged("backup", f"a tail is cut off at byte {position}", None)
        if batch.base_offset >= offset:
            break
        position += batch.size
    while position < size_bytes:
        part = files.read(path, position, CHUNK_BYTES)
        yield part
        position += len(part)
