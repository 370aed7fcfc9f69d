"""The keys of a bucket in a database that buckets share: a prefix for each of them, in the order of tables.

    prefix of a bucket = table id, partition id or none, bucket id
    key of a row       = prefix, key of the row in its bucket
    the prefix alone   = the state of the bucket

A number is its length in bytes plus one, and then its bytes, the most significant first; no partition is a zero. So the
order of numbers is the order of their codes, and no code begins with another one: a bucket, a partition with all its
buckets and a table with all its partitions are each one range of keys, which nothing else has a key in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_NONE: Final = b"\x00"
_NUMBER_BYTES_MAX: Final = 8


class KeyRange(NamedTuple):
    """All keys from the first one to the one before the end."""

    first: bytes
    end: bytes


class PartitionKeys(NamedTuple):
    """Whose keys a range has: those of a partition, or of a table without partitions."""

    table_id: int
    partition_id: int | None


def bucket_prefix(table_id: int, partition_id: int | None, bucket_id: int) -> bytes:
    """Return what the keys of a bucket begin with."""
    return _partition_prefix(PartitionKeys(table_id, partition_id)) + _number(bucket_id)


def table_range(table_id: int) -> KeyRange:
    """Return the keys of a table with all its partitions."""
    return prefix_range(_number(table_id))


def partition_range(partition: PartitionKeys) -> KeyRange:
    """Return the keys of all buckets of a partition, or of a table without partitions."""
    return prefix_range(_partition_prefix(partition))


def partition_of(key: bytes) -> PartitionKeys | None:
    """Return whose key it is; None if it is no key of a bucket."""
    table_id, position = _read_number(key, 0)
    if table_id is None:
        return None
    if key[position : position + 1] == _NONE:
        return PartitionKeys(table_id, None)
    partition_id, _ = _read_number(key, position)
    return None if partition_id is None else PartitionKeys(table_id, partition_id)


def prefix_range(prefix: bytes) -> KeyRange:
    """Return all keys that begin with the code of a number, which is never the last one of all."""
    end = end_of_prefix(prefix)
    assert end is not None, f"{prefix!r} is not the code of a number"
    return KeyRange(prefix, end)


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all those with a prefix, None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


def _partition_prefix(partition: PartitionKeys) -> bytes:
    table_id, partition_id = partition
    return _number(table_id) + (_NONE if partition_id is None else _number(partition_id))


def _number(number: int) -> bytes:
    assert number >= 0, f"{number} is not an id"
    byte_count = (number.bit_length() + 7) // 8
    assert byte_count <= _NUMBER_BYTES_MAX, f"{number} is too large for an id"
    return bytes([1 + byte_count]) + number.to_bytes(byte_count, "big")


def _read_number(key: bytes, position: int) -> tuple[int | None, int]:
    """Return the number at a position and where it ends; None where there is no number."""
    if position >= len(key) or not 1 <= key[position] <= 1 + _NUMBER_BYTES_MAX:
        return None, position
    end = position + key[position]
    digits = key[position + 1 : end]
    if len(digits) != key[position] - 1 or digits[:1] == b"\x00":
        return None, position
    return int.from_bytes(digits, "big"), end
