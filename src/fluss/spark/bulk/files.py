"""Files to load: found by path, directory, pattern or address, and what is in them by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from fluss.errors import FlussError
from fluss.spark.bulk.unfit import UnfitInputError

_ADDRESS: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_WILDCARD: Final = re.compile(r"[*?\[]")
_PATTERN_PART: Final = re.compile(r"\*\*/|\*\*|\[!?[^\]]+\]|.")
_PATTERN_WORDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PATH_VALUE: Final = re.compile(r"([^=/]+)=([^/]*)")
# What other writers of directories call a missing value.
_NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_COMPRESSED_SUFFIXES: Final = (".gz", ".bz2", ".zst", ".lz4", ".br")


class FileFormat(StrEnum):
    """What a file consists of."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_FORMATS: Final = {
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
}


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
        return self.path.endswith(_COMPRESSED_SUFFIXES)

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
    aliases = {suffix[1:]: file_format for suffix, file_format in _FORMATS.items()}
    found = aliases.get(name.lower())
    if found is None:
        raise FlussError(f"The format '{name}' is not known; there are {', '.join(FileFormat)}")
    return found


def _format_of(path: str) -> FileFormat:
    name = path
    for suffix in _COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _FORMATS:
        raise FlussError(
            f"What is in '{path}'? Its name does not say; give the format: {', '.join(FileFormat)}",
        )
    return _FORMATS[suffix]
