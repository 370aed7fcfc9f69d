"""The lines of text files: of a range of bytes, in blocks that end where a line ends; and which line is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from fluss.spark.bulk.pieces import FilePiece, PlacedBatch, row_slices
from fluss.spark.bulk.unfit import UnfitInputError

_BLOCK_BYTES: Final = 8 * 1024 * 1024
_SEARCH_BYTES: Final = 64 * 1024
# A line that is longer is taken for a file that has no lines.
_LINE_BYTES_MAX: Final = 256 * 1024 * 1024


class LineBlock(NamedTuple):
    """Whole lines, and how many lines of the piece are before them."""

    data: bytes
    lines_before: int


def line_blocks(piece: FilePiece) -> Iterator[LineBlock]:
    """Read the lines that begin in the range of a piece."""
    lines_before = 0
    for data in _blocks(piece):
        yield LineBlock(data, lines_before)
        lines_before += data.count(b"\n")


def _blocks(piece: FilePiece) -> Iterator[bytes]:
    file = piece.file
    if file.is_compressed:
        with file.open_stream() as stream:
            stream.read(piece.data_start)
            yield from _whole_lines(stream, None, file.path)
        return
    with file.open() as opened:
        start = _line_start(opened, piece.start, piece)
        stop = _line_start(opened, piece.stop, piece)
        opened.seek(start)
        yield from _whole_lines(opened, stop - start, file.path)


def _line_start(opened: pa.NativeFile, position: int, piece: FilePiece) -> int:
    """Return where the first line begins that begins at a position or behind it."""
    if position in (piece.data_start, piece.file.size_bytes):
        return position
    position -= 1
    opened.seek(position)
    while data := opened.read(_SEARCH_BYTES):
        end: int = data.find(b"\n")
        if end >= 0:
            return position + end + 1
        position += len(data)
    return position


def _whole_lines(stream: pa.NativeFile, byte_count: int | None, path: str) -> Iterator[bytes]:
    """Read so many bytes, or everything, in blocks that end where a line ends."""
    parts: list[bytes] = []
    left = byte_count
    while data := stream.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
        left = None if left is None else left - len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((*parts, data[:end]))
            parts, data = [], data[end:]
        parts.append(data)
        if sum(map(len, parts)) > _LINE_BYTES_MAX:
            raise UnfitInputError(f"{path} has a line of more than {_LINE_BYTES_MAX} bytes; is it a file of lines?")
    rest = b"".join(parts)
    if rest:
        yield rest


def line_place(piece: FilePiece, number: int) -> str:
    """Say where a line of a piece is. Counts the lines before the piece, so it is for errors."""
    if piece.file.is_compressed:
        before = 1 if piece.data_start else 0
    else:
        before = _lines_before(piece)
    return f"{piece.file.path}, line {before + number + 1}"


def _lines_before(piece: FilePiece) -> int:
    with piece.file.open() as opened:
        left = _line_start(opened, piece.start, piece)
        opened.seek(0)
        count = 0
        while left and (data := opened.read(min(_BLOCK_BYTES, left))):
            count += data.count(b"\n")
            left -= len(data)
    return count


def row_lines(data: bytes) -> list[int]:
    """Return which lines have rows; parsers leave out the others."""
    return [number for number, line in enumerate(data.split(b"\n")) if line.strip()]


def blame(
    block: LineBlock, piece: FilePiece, error: Exception, parse: Callable[[bytes], object], hint: str = ""
) -> UnfitInputError:
    """Find the first line of a block that cannot be parsed, and say what is wrong with it.

    Halves of halves are parsed until one line is left; fewer, if the lines are fine by themselves.
    """
    lines = block.data.split(b"\n")
    first, end = 0, len(lines)
    while end - first > 1:
        middle = (first + end) // 2
        if _reason(lines[first:middle], parse) is not None:
            end = middle
        elif _reason(lines[middle:end], parse) is not None:
            first = middle
        else:
            break
    reason = _reason(lines[first:end], parse) or str(error)
    return UnfitInputError(f"{line_place(piece, block.lines_before + first)}: {reason}{hint}")


def _reason(lines: Sequence[bytes], parse: Callable[[bytes], object]) -> str | None:
    data = b"\n".join(lines)
    if not data.strip():
        return None
    try:
        parse(data + b"\n")
    except (pa.ArrowException, ValueError) as error:
        return str(error)
    return None


def placed_rows(table: pa.Table, piece: FilePiece, block: LineBlock) -> Iterator[PlacedBatch]:
    """Return the rows that a block of lines has become, with the lines they are from."""
    first = 0
    for batch in table.to_batches():
        for start, rows in row_slices(batch):
            yield PlacedBatch(rows, partial(_place, piece, block, first + start))
        first += batch.num_rows


def _place(piece: FilePiece, block: LineBlock, first: int, number: int) -> str:
    return line_place(piece, block.lines_before + row_lines(block.data)[first + number])
