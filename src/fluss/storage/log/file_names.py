"""Names of files and directories: where a tablet's bytes are, in local and in remote storage.

Below a data directory, and below ``log`` in remote storage:

| path                                                        | content                          |
|-------------------------------------------------------------|----------------------------------|
| ``{db}/{table}-{table_id}/log-{bucket}``                      | log tablet                       |
| ``{db}/{table}-{table_id}/{partition}-p{partition_id}/log-{bucket}`` | log tablet of a partition |
| the same with ``kv-{bucket}``                                 | its key-value store              |
| the same with ``kv-snapshots-{bucket}``                       | copies of its key-value store    |
| the same with ``{bucket}`` alone                              | its remote log                   |

In a log tablet, ``N`` being an offset as 20 decimal digits; see ``remote_manifest`` for a remote log:

| file                      | content                                                              |
|---------------------------|----------------------------------------------------------------------|
| ``N.log``                   | batches; N is the offset of the first                                |
| ``N.index``, ``N.timeindex``  | where to start reading for an offset or a time                       |
| ``N.writer_snapshot``       | what is known about writers; N is the first offset that is not covered |
| any of them + ``.deleted``  | waits for its deletion                                               |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.json_object import JsonObject, parse_object
from fluss.schema.table import TableBucket

OFFSET_DIGITS = 20
OFFSET_MAX = 2**63 - 1
DELETED_SUFFIX = ".deleted"

# Files directly in a data directory.
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "high-watermark-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".fluss_cleanshutdown"
# Where logs ended in the backup that the directory was made from.
RESTORED_CHECKPOINT = "restored.checkpoint"


class LogFileKind(StrEnum):
    """What a file of a log tablet holds; the value is the end of its name."""

    SEGMENT = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    WRITER_SNAPSHOT = ".writer_snapshot"


class TabletKind(StrEnum):
    """Which of a bucket's directories is meant; the value is the start of its name."""

    LOG = "log-"
    KV = "kv-"
    KV_SNAPSHOTS = "kv-snapshots-"
    REMOTE_LOG = ""


_LOG_FILE = re.compile(
    rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})"
    rf"(?P<kind>{'|'.join(re.escape(kind) for kind in LogFileKind)})"
    rf"(?P<deleted>{re.escape(DELETED_SUFFIX)})?"
)
_NUMBER = r"(0|[1-9][0-9]{0,18})"
_TABLE_DIRECTORY = re.compile(rf"([A-Za-z0-9_-]+)-{_NUMBER}")
_PARTITION_DIRECTORY = re.compile(rf"([A-Za-z0-9_$-]+)-p{_NUMBER}")
_BUCKET_DIRECTORY = re.compile(rf"(log-|kv-|kv-snapshots-|){_NUMBER}")
_DATABASE_DIRECTORY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class LogFileName:
    """The name of a file in a log tablet, taken apart."""

    offset: int
    kind: LogFileKind
    is_deleted: bool = False

    def __str__(self) -> str:
        return log_file_name(self.offset, self.kind) + (DELETED_SUFFIX if self.is_deleted else "")

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Take a name apart, or return None if it is not that of a log file."""
        match = _LOG_FILE.fullmatch(name)
        if match is None or int(match["offset"]) > OFFSET_MAX:
            return None
        return cls(int(match["offset"]), LogFileKind(match["kind"]), match["deleted"] is not None)


def log_file_name(offset: int, kind: LogFileKind) -> str:
    """Return ``00000000000000000123.log`` for a segment that starts at offset 123."""
    assert 0 <= offset <= OFFSET_MAX, f"{offset} is not an offset"
    return f"{offset:0{OFFSET_DIGITS}d}{kind}"


@dataclass(frozen=True, slots=True)
class TabletLocation:
    """Whose bytes a tablet directory holds. Both partition fields are given, or neither."""

    database: str
    table: str
    table_id: int
    bucket_id: int
    partition_name: str | None = None
    partition_id: int | None = None

    def __post_init__(self) -> None:
        assert (self.partition_name is None) == (self.partition_id is None), "a partition has a name and an id"

    def path(self, kind: TabletKind) -> str:
        """Return the directory, relative and with forward slashes."""
        parts = [self.database, f"{self.table}-{self.table_id}"]
        if self.partition_name is not None:
            parts.append(f"{self.partition_name}-p{self.partition_id}")
        parts.append(f"{kind}{self.bucket_id}")
        return "/".join(parts)

    @classmethod
    def parse(cls, path: str) -> tuple[Self, TabletKind] | None:
        """Read a relative directory, or return None if it is not that of a tablet."""
        parts = path.split("/")
        if not 3 <= len(parts) <= 4 or _DATABASE_DIRECTORY.fullmatch(parts[0]) is None:
            return None
        table = _TABLE_DIRECTORY.fullmatch(parts[1])
        bucket = _BUCKET_DIRECTORY.fullmatch(parts[-1])
        if table is None or bucket is None:
            return None
        location = cls(parts[0], table[1], int(table[2]), int(bucket[2]))
        kind = TabletKind(bucket[1])
        if len(parts) == 3:
            return location, kind
        partition = _PARTITION_DIRECTORY.fullmatch(parts[2])
        if partition is None:
            return None
        return cls(parts[0], table[1], int(table[2]), int(bucket[2]), partition[1], int(partition[2])), kind


def is_tablet_name(name: str) -> bool:
    """Tell whether a directory is named like one of a bucket's local directories."""
    match = _BUCKET_DIRECTORY.fullmatch(name)
    return match is not None and match[1] != TabletKind.REMOTE_LOG


def group_ids(path: str) -> tuple[int, int | None] | None:
    """Read the relative directory of a table or a partition: the id of the table, and that of the partition if any.

    Returns None for any other directory.
    """
    parts = path.split("/")
    if not 2 <= len(parts) <= 3 or _DATABASE_DIRECTORY.fullmatch(parts[0]) is None:
        return None
    table = _TABLE_DIRECTORY.fullmatch(parts[1])
    if table is None:
        return None
    if len(parts) == 2:
        return int(table[2]), None
    partition = _PARTITION_DIRECTORY.fullmatch(parts[2])
    return None if partition is None else (int(table[2]), int(partition[2]))


def directories_above(directory: Path, bucket: TableBucket) -> Sequence[Path]:
    """Return the directories that must be durable for a tablet directory to be found, that of all data last."""
    return directory.parents[: 3 if bucket.partition_id is None else 4]


# What is in files


def damaged(what: str, reason: str, file_name: str | None) -> FlussError:
    """Build the error for a file that does not hold what it should: a ``what``, and which one, where that is known."""
    which = f"{what} {file_name}" if file_name else what
    return FlussError(f"The {which} is damaged: {reason}", ErrorCode.LOG_STORAGE_EXCEPTION)


@contextmanager
def json_file(data: BytesLike, what: str, file_name: str | None, *, version: int) -> Iterator[JsonObject]:
    """Read a JSON file of a version. Every complaint about its content becomes the error of ``damaged``."""
    try:
        file = parse_object(data)
        found = file.integer("version", lowest=0, highest=INT32_MAX)
        if found != version:
            raise FlussError(f"its version is {found}, this version reads only {version}")
        yield file
    except FlussError as error:
        raise damaged(what, error.message, file_name) from error
