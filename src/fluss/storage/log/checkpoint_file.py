"""Checkpoint files: one offset per bucket, as text that people can read.

| line | content                                                                                             |
|------|-----------------------------------------------------------------------------------------------------|
| 1    | ``0``, the version                                                                                    |
| 2    | number of entries                                                                                   |
| 3..  | ``table_id bucket offset``, or ``table_id partition_id bucket offset`` for a partition, in any order      |

UTF-8; every line ends with a line feed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fluss.buffers import BytesLike
from fluss.integers import INT32_MAX, INT64_MAX
from fluss.schema.table import TableBucket
from fluss.storage.log.file_names import damaged

VERSION = 0
_WHAT = "checkpoint file"
_NUMBER = re.compile(r"[0-9]{1,19}")


def encode_checkpoint(offsets: Mapping[TableBucket, int]) -> bytes:
    """Write the offsets in the order of the mapping."""
    lines = [str(VERSION), str(len(offsets))]
    for bucket, offset in offsets.items():
        assert 0 <= offset <= INT64_MAX, f"{offset} is not an offset"
        numbers = (bucket.table_id, bucket.partition_id, bucket.bucket_id, offset)
        lines.append(" ".join(str(number) for number in numbers if number is not None))
    return "".join(f"{line}\n" for line in lines).encode("ascii")


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
