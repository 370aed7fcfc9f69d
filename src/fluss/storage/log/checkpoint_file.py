"""Checkpoint files: one offset per bucket, as text that people can read.

| line | content                                                                                             |
|------|-----------------------------------------------------------------------------------------------------|
| 1    | ``0``, the version                                                                                    |
| 2    | number of entries                                                                                   |
| 3..  | ``table_id bucket offset``, or ``table_id partition_id bucket offset`` for a partition, in any order      |

UTF-8; every line ends with a line feed. A server may have a million of these lines, so they are read into arrays, and a
file as this module writes it, table by table and in the order of the buckets, is read without a step for each line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from fluss.buffers import BytesLike, Int64Array
from fluss.integers import INT32_MAX, INT64_MAX
from fluss.schema.table import TableBucket
from fluss.storage.log.file_names import damaged

# A table and a partition of it, None for a table without partitions.
GroupId: TypeAlias = tuple[int, int | None]

VERSION = 0
_WHAT = "checkpoint file"
_NUMBER = re.compile(r"[0-9]{1,19}")
# Numbers with more digits may be too large for 64 bits.
_QUICK_DIGITS_MAX: Final = 18
_NO_PARTITION: Final = -1
_LINE_FEED, _SPACE, _ZERO, _NINE = b"\n 09"


def encode_checkpoint(offsets: Mapping[TableBucket, int]) -> bytes:
    """Write the offsets in the order of the mapping."""
    lines = []
    for bucket, offset in offsets.items():
        assert 0 <= offset <= INT64_MAX, f"{offset} is not an offset"
        numbers = (bucket.table_id, bucket.partition_id, bucket.bucket_id, offset)
        lines.append(" ".join(str(number) for number in numbers if number is not None))
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines)).encode("ascii")


def encode_checkpoint_groups(groups: Iterable[tuple[GroupId, array[int] | None]]) -> bytes:
    """Write the offsets of tables and partitions, by number of the bucket; those that are 0 are left out."""
    count, parts = 0, []
    for (table_id, partition_id), offsets in groups:
        if offsets is not None:
            prefix = f"{table_id} " if partition_id is None else f"{table_id} {partition_id} "
            lines = [f"{prefix}{bucket} {offset}\n" for bucket, offset in enumerate(offsets.tolist()) if offset]
            count += len(lines)
            parts.append("".join(lines))
    return f"{VERSION}\n{count}\n{''.join(parts)}".encode("ascii")


@dataclass(frozen=True, slots=True)
class CheckpointColumns:
    """The entries of a checkpoint file: those of a table or partition behind each other, none twice."""

    table_ids: Int64Array
    # -1 for a table without partitions.
    partition_ids: Int64Array
    bucket_ids: Int64Array
    offsets: Int64Array

    def groups(self, bucket_counts: Callable[[GroupId], int | None]) -> Iterator[tuple[GroupId, array[int]]]:
        """Yield the offsets of each group by number of the bucket, 0 for those without an entry.

        ``bucket_counts`` tells how many buckets a group has, None for groups that are not wanted. Buckets beyond that
        are left out.
        """
        starts = _starts(self.table_ids, self.partition_ids)
        for start, end in pairwise([*starts.tolist(), len(self.offsets)]):
            group_id = self._group_id(start)
            bucket_count = bucket_counts(group_id)
            if bucket_count is not None:
                offsets = np.zeros(bucket_count, np.int64)
                bucket_ids = self.bucket_ids[start:end]
                is_there = bucket_ids < bucket_count
                offsets[bucket_ids[is_there]] = self.offsets[start:end][is_there]
                yield group_id, array("q", offsets.tobytes())

    def _group_id(self, index: int) -> GroupId:
        partition_id = int(self.partition_ids[index])
        return int(self.table_ids[index]), None if partition_id == _NO_PARTITION else partition_id


def decode_checkpoint_columns(data: BytesLike, file_name: str | None = None) -> CheckpointColumns:
    """Read the offsets into arrays. Damage raises a FlussError with the log storage code."""
    columns = _quickly_decoded(bytes(data))
    if columns is not None:
        return columns
    # It was not written by this module, or it is damaged, which is told about the line.
    entries = sorted(
        (
            bucket.table_id,
            _NO_PARTITION if bucket.partition_id is None else bucket.partition_id,
            bucket.bucket_id,
            offset,
        )
        for bucket, offset in decode_checkpoint(data, file_name).items()
    )
    return CheckpointColumns(*np.array(entries, np.int64).reshape(-1, 4).T)


def _quickly_decoded(text: bytes) -> CheckpointColumns | None:
    """Read a file whose entries are in order, with the whole file in each step; None if it cannot be read like this."""
    body_start = text.find(b"\n", text.find(b"\n") + 1) + 1
    header, body = text[:body_start], np.frombuffer(text, np.uint8, offset=body_start)
    is_end = (body == _SPACE) | (body == _LINE_FEED)
    ends = np.flatnonzero(is_end)
    if not body.size or body[-1] != _LINE_FEED or not (is_end | ((body >= _ZERO) & (body <= _NINE))).all():
        return None
    digits = np.diff(ends, prepend=-1) - 1
    last_numbers = np.flatnonzero(body[ends] == _LINE_FEED)
    counts = np.diff(last_numbers, prepend=-1)
    if digits.min() < 1 or digits.max() > _QUICK_DIGITS_MAX or counts.min() < 3 or counts.max() > 4:
        return None
    if header != b"%d\n%d\n" % (VERSION, len(counts)):
        return None
    numbers = np.fromstring(body.tobytes().decode("ascii"), np.int64, sep=" ")
    partition_ids = np.where(counts == 4, numbers[last_numbers - 2], _NO_PARTITION)
    table_ids = numbers[last_numbers - counts + 1]
    bucket_ids, offsets = numbers[last_numbers - 1], numbers[last_numbers]
    starts = _starts(table_ids, partition_ids)
    is_ascending = np.diff(bucket_ids) > 0
    is_ascending[starts[1:] - 1] = True
    groups = set(zip(table_ids[starts].tolist(), partition_ids[starts].tolist(), strict=True))
    if not is_ascending.all() or len(groups) != len(starts) or bucket_ids.max() > INT32_MAX:
        return None
    return CheckpointColumns(table_ids, partition_ids, bucket_ids, offsets)


def _starts(table_ids: Int64Array, partition_ids: Int64Array) -> Int64Array:
    """Return where another table or partition begins."""
    if not len(table_ids):
        return np.zeros(0, np.int64)
    is_start = np.ones(len(table_ids), bool)
    is_start[1:] = (np.diff(table_ids) != 0) | (np.diff(partition_ids) != 0)
    return np.flatnonzero(is_start)


def decode_checkpoint(data: BytesLike, file_name: str | None = None) -> dict[TableBucket, int]:
    """Read the offsets. Damage raises a FlussError with the log storage code."""
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(_WHAT, f"it is not text ({error})", file_name) from error
    lines = text.split("\n")
    # A file that does not end with a line feed was cut off, perhaps in the middle of a number.
    if len(lines) < 3 or lines.pop():
        raise damaged(_WHAT, "its last line is not complete", file_name)
    if lines[0] != str(VERSION):
        raise damaged(_WHAT, f"its version is {lines[0][:20]!r}, this version reads only {VERSION}", file_name)
    count = len(lines) - 2
    if lines[1] != str(count):
        raise damaged(_WHAT, f"it announces {lines[1][:20]!r} entries and has {count}", file_name)
    offsets: dict[TableBucket, int] = {}
    for line_number, line in enumerate(lines[2:], start=3):
        bucket, offset = _entry(line, line_number, file_name)
        if bucket in offsets:
            raise damaged(_WHAT, f"line {line_number} is about a bucket that was there before: {line!r}", file_name)
        offsets[bucket] = offset
    return offsets


def _entry(line: str, line_number: int, file_name: str | None) -> tuple[TableBucket, int]:
    parts = line.split(" ")
    numbers = [int(part) for part in parts if _NUMBER.fullmatch(part)]
    if not 3 <= len(numbers) == len(parts) <= 4 or max(numbers) > INT64_MAX or numbers[-2] > INT32_MAX:
        reason = f"line {line_number} is {line[:80]!r}, not the ids of a bucket and an offset"
        raise damaged(_WHAT, reason, file_name)
    partition_id = numbers[1] if len(numbers) == 4 else None
    return TableBucket.new_with_partition(numbers[0], partition_id, numbers[-2]), numbers[-1]
