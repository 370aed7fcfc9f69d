"""Files cut into pieces, and pieces put together to tasks of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from fluss.spark.bulk.files import DataFile
from fluss.spark.packing import balanced

# Smaller pieces would cost more to begin than to read.
_PIECE_BYTES_MIN: Final = 4 * 1024 * 1024
# So that the last tasks end at about the same time.
_TASKS_PER_CORE: Final = 2
# Rows that are looked at together: enough to forget what a batch costs, few enough to stay in the processor's cache.
BATCH_ROWS: Final = 32_768


class Unit(NamedTuple):
    """What a file cannot be cut into smaller pieces than: a row group or a record batch. Rows may be unknown."""

    size_bytes: int
    rows: int | None


@dataclass(frozen=True)
class FileFacts:
    """What the driver finds out about a file before anything is loaded."""

    file: DataFile
    names: tuple[str, ...]
    """The columns, as the file calls them."""
    schema: pa.Schema | None = None
    """Their types, where the file states them."""
    units: tuple[Unit, ...] | None = None
    """None for a file of lines, which may be cut between any two of them."""
    data_start: int = 0
    """Where lines of values begin, in bytes."""
    is_whole: bool = False
    """Whether the file must be read in one go."""


@dataclass(frozen=True)
class FilePiece:
    """A part of a file: units, or the lines that begin in a range of bytes. It is the same rows whenever it is read."""

    file: DataFile
    names: tuple[str, ...]
    start: int
    stop: int
    size_bytes: int
    rows: int | None
    data_start: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether this is everything."""
        return self.start == self.data_start and self.stop == self.file.size_bytes


class PlacedBatch(NamedTuple):
    """Some rows of a file under the names of the table, and a way to say where in the file one of them is."""

    rows: pa.RecordBatch
    place: Callable[[int], str]


def piece_bytes_for(total_bytes: int, cores: int, task_bytes_max: int) -> int:
    """Choose the size of pieces, so that all cores have something to do and tasks are neither tiny nor endless."""
    fair_bytes = -(-total_bytes // max(cores * _TASKS_PER_CORE, 1))
    return max(min(fair_bytes, task_bytes_max), min(_PIECE_BYTES_MIN, task_bytes_max), 1)


def cut(facts: FileFacts, piece_bytes: int) -> list[FilePiece]:
    """Cut a file into pieces of about this size."""
    if facts.units is None:
        return _cut_lines(facts, piece_bytes)
    pieces: list[FilePiece] = []
    start, size_bytes, rows = 0, 0, 0
    for number, unit in enumerate(facts.units):
        size_bytes += unit.size_bytes
        rows += unit.rows or 0
        if size_bytes >= piece_bytes or number == len(facts.units) - 1:
            known_rows = None if unit.rows is None else rows
            pieces.append(FilePiece(facts.file, facts.names, start, number + 1, size_bytes, known_rows))
            start, size_bytes, rows = number + 1, 0, 0
    return pieces


def _cut_lines(facts: FileFacts, piece_bytes: int) -> list[FilePiece]:
    file, first = facts.file, facts.data_start
    byte_count = file.size_bytes - first
    if byte_count <= 0 and not facts.is_whole:
        return []
    count = 1 if facts.is_whole else max(round(byte_count / piece_bytes), 1)
    bounds = [first + byte_count * number // count for number in range(count + 1)]
    return [FilePiece(file, facts.names, start, stop, stop - start, None, first) for start, stop in pairwise(bounds)]


def pack(pieces: Sequence[FilePiece], task_bytes: int) -> list[tuple[FilePiece, ...]]:
    """Put pieces together to tasks of about this size, the largest first. Pieces of a task keep their order."""
    if not pieces:
        return []
    total_bytes = sum(piece.size_bytes for piece in pieces)
    task_count = min(max(-(-total_bytes // task_bytes), 1), len(pieces))
    shares = balanced([piece.size_bytes for piece in pieces], task_count)
    return [tuple(pieces[number] for number in sorted(share)) for share in shares]


def row_slices(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch into slices of a handy number of rows, each with the number of its first row."""
    for first in range(0, batch.num_rows, BATCH_ROWS):
        yield first, batch.slice(first, BATCH_ROWS)
