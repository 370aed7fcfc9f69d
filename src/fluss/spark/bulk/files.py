"""Files to load: found by path, directory, pattern or address, cut into pieces, and the pieces packed into tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from fluss.errors import FlussError
from fluss.file_formats import FORMATS, FileFormat, format_by_name, is_compressed
from fluss.spark.bulk.task_results import UnfitInputError
from fluss.spark.read.planner import balanced

_ADDRESS: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_WILDCARD: Final = re.compile(r"[*?\[]")
_PATTERN_PART: Final = re.compile(r"\*\*/|\*\*|\[!?[^\]]+\]|.")
_PATTERN_WORDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PATH_VALUE: Final = re.compile(r"([^=/]+)=([^/]*)")
# What other writers of directories call a missing value.
_NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
# Opening a smaller piece would cost more than reading it.
_PIECE_BYTES_MIN: Final = 4 * 1024 * 1024
# So that the last tasks end at about the same time.
_TASKS_PER_CORE: Final = 2
# Rows of a batch: enough to make up for what a batch costs, few enough to stay in the processor's cache.
BATCH_ROWS: Final = 32_768


@dataclass(frozen=True)
class DataFile:
    """One file. It goes to the executors, which must be able to open it under the same path."""

    path: str
    size_bytes: int
    format: FileFormat
    filesystem: fs.FileSystem = field(repr=False)

    @property
    def is_compressed(self) -> bool:
        """Whether the file as a whole is compressed, so that it can only be read from its beginning."""
        return is_compressed(self.path)

    @property
    def path_values(self) -> Mapping[str, str | None]:
        """The values that the directories of the path state, as in ``day=2026-01-01``."""
        found = (_PATH_VALUE.fullmatch(part) for part in self.path.split("/")[:-1])
        values = {unquote(match[1]): unquote(match[2]) for match in found if match is not None}
        return {name: None if value == _NULL_VALUE else value for name, value in values.items()}

    def open(self) -> pa.NativeFile:
        """Open the file for reading anywhere in it. A file that has changed its size since it was found is refused."""
        opened = self.filesystem.open_input_file(self.path)
        size_bytes = opened.size()
        if size_bytes != self.size_bytes:
            opened.close()
            raise UnfitInputError(
                f"{self.path} has {size_bytes} bytes, but had {self.size_bytes} when the load began; do not change "
                "files while they are loaded"
            )
        return opened

    def open_stream(self) -> pa.NativeFile:
        """Open the file for reading from its beginning on, decompressed."""
        return self.filesystem.open_input_stream(self.path, compression="detect")


def find_files(paths: str | Path | Sequence[str | Path], file_format: str | None = None) -> list[DataFile]:
    """Find files by their names, sorted; every file once.

    A path is one of a file, of a directory (with everything below it), or a pattern with ``*``, ``?``, ``[...]`` and
    ``**`` for any number of directories; or the address of one, such as ``s3://bucket/orders/*.parquet``. In
    directories and patterns, names that begin with ``_`` or ``.`` are left out. Without ``file_format`` the suffix of
    each name says what it is. FlussError if a path leads to nothing.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise FlussError("There is nothing to load: no path was given")
    wanted = None if file_format is None else _format_named(file_format)
    found: dict[str, DataFile] = {}
    for path in given:
        for filesystem, info in _resolve(str(path)):
            found.setdefault(info.path, DataFile(info.path, info.size, wanted or _format_of(info.path), filesystem))
    return [found[path] for path in sorted(found)]


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or address, and the path in it; local paths become absolute."""
    if not _ADDRESS.match(path):
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path))
    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowException, ValueError) as error:
        raise FlussError(f"The address '{path}' cannot be used: {error}") from error
    return filesystem, inner


def _resolve(path: str) -> Iterator[tuple[fs.FileSystem, fs.FileInfo]]:
    """Find the files of one path."""
    wildcard = None if os.path.exists(path) else _WILDCARD.search(path)
    # Everything up to the last slash before the first wildcard is a directory. Addresses know no wildcards.
    base_chars = len(path) if wildcard is None else path.rfind("/", 0, wildcard.start()) + 1
    filesystem, base = file_system(path[:base_chars] or ".")
    info = filesystem.get_file_info(base)
    if wildcard is None and info.is_file:
        yield filesystem, info
        return
    if info.type is not fs.FileType.Directory:
        raise FlussError(f"There is no file or directory '{path if wildcard is None else base}'")
    pattern = None if wildcard is None else _pattern(path[base_chars:])
    selector = fs.FileSelector(base, recursive=True)
    is_found = False
    for info in filesystem.get_file_info(selector):
        inner = info.path[len(base) :].lstrip("/")
        if info.is_file and not _is_hidden(inner) and (pattern is None or pattern.fullmatch(inner)):
            is_found = True
            yield filesystem, info
    if not is_found:
        raise FlussError(f"There are no files in '{path}'" if pattern is None else f"No file matches '{path}'")


def _is_hidden(inner_path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in inner_path.split("/"))


def _pattern(text: str) -> re.Pattern[str]:
    """Translate a pattern for paths: only ``**`` goes beyond a slash."""
    return re.compile("".join(_pattern_part(part[0]) for part in _PATTERN_PART.finditer(text)))


def _pattern_part(part: str) -> str:
    if part in _PATTERN_WORDS:
        return _PATTERN_WORDS[part]
    if len(part) == 1:
        return re.escape(part)
    chars = re.escape(part[1:-1].removeprefix("!")).replace(r"\-", "-")
    return f"[^{chars}]" if part[1] == "!" else f"[{chars}]"


def _format_named(name: str) -> FileFormat:
    aliases = {suffix[1:]: file_format for suffix, file_format in FORMATS.items()}
    found = aliases.get(name.lower())
    if found is None:
        raise FlussError(f"The format '{name}' is not known; there are {', '.join(FileFormat)}")
    return found


def _format_of(path: str) -> FileFormat:
    found = format_by_name(path)
    if found is None:
        raise FlussError(
            f"What is in '{path}'? Its name does not say; give the format: {', '.join(FileFormat)}",
        )
    return found


# Pieces of files


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
