"""Which bucket a key belongs to: the hash functions, the bucket functions, and rows grouped by bucket.

| lake format | bucket of a key (n buckets) |
|---|---|
| none, lance | ``spread(byte_hash(key)) % n`` |
| paimon | ``abs(byte_hash(key)) % n`` |
| iceberg | ``(murmur3(key) & 0x7fffffff) % n`` |
| hudi | ``(the key's four bytes as a big-endian int32 & 0x7fffffff) % n`` |

``byte_hash`` is murmur3 with one difference: each of the 0..3 bytes after the last whole word is mixed in by itself,
like a word. The Java clients sign-extend these tail bytes (hash variant "java"); the released pyfluss wheels
zero-extend them ("rust"). Both agree unless a tail byte is 0x80 or more, and then the same key lands in different
buckets: all writers and readers of a table must use the same variant.

Each hash exists twice: over Python integers for single keys, and over numpy arrays for all keys of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import FlussError
from fluss.row.encoded import EncodedRows, unaligned

HashVariant: TypeAlias = Literal["java", "rust"]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
Int32Array: TypeAlias = npt.NDArray[np.int32]

BYTE_HASH_SEED = 42
BUCKET_COUNT_MAX = 2**31 - 1
_MASK = 0xFFFF_FFFF
_SIGN_MASK = 0x7FFF_FFFF
_C1, _C2 = 0xCC9E_2D51, 0x1B87_3593
_H_FACTOR, _H_TERM = 5, 0xE654_6B64
_F1, _F2 = 0x85EB_CA6B, 0xC2B2_AE35
# Once fewer keys than this have words left, operations on arrays cost more than Python integers.
_COLUMNAR_KEYS_MIN = 32


def bucket_for(
    key: BytesLike, bucket_count: int, lake_format: str | None = None, hash_variant: HashVariant = "java"
) -> int:
    """Choose the bucket of one encoded bucket key."""
    signed_tail = _check(bucket_count, lake_format, hash_variant)
    if len(key) == 0:
        raise FlussError("The bucket key is empty: it needs at least one column with a value")
    match lake_format:
        case "paimon":
            return abs(byte_hash(key, signed_tail=signed_tail)) % bucket_count
        case "iceberg":
            return (murmur3(key) & _SIGN_MASK) % bucket_count
        case "hudi":
            if len(key) != 4:
                raise FlussError(f"A Hudi bucket key is 4 bytes, got {len(key)}")
            return (int.from_bytes(key, "big") & _SIGN_MASK) % bucket_count
    return spread(byte_hash(key, signed_tail=signed_tail)) % bucket_count


def buckets_for(
    keys: EncodedRows, bucket_count: int, lake_format: str | None = None, hash_variant: HashVariant = "java"
) -> Int32Array:
    """Choose the buckets of many encoded bucket keys."""
    signed_tail = _check(bucket_count, lake_format, hash_variant)
    lengths = keys.lengths
    if (lengths <= 0).any():
        row = int((lengths <= 0).argmax())
        raise FlussError(f"The bucket key of row {row} is empty: it needs at least one column with a value")
    match lake_format:
        case "paimon":
            choice = np.abs(byte_hashes(keys, signed_tail=signed_tail).astype(np.int64)) % bucket_count
        case "iceberg":
            choice = (murmur3_hashes(keys) & _SIGN_MASK) % bucket_count
        case "hudi":
            if (lengths != 4).any():
                row = int((lengths != 4).argmax())
                raise FlussError(f"A Hudi bucket key is 4 bytes, got {lengths[row]} in row {row}")
            choice = (unaligned(keys.data, ">u4")[keys.starts] & _SIGN_MASK) % bucket_count
        case _:
            choice = spread_all(byte_hashes(keys, signed_tail=signed_tail)) % bucket_count
    return choice.astype(np.int32)


class RowsByBucket(NamedTuple):
    """Row numbers bucket by bucket, those of a bucket in their order."""

    order: Int64Array
    # The buckets that have rows, ascending, and where the rows of each end.
    bucket_ids: list[int]
    ends: list[int]


def rows_by_bucket(buckets: Int32Array, bucket_count: int) -> RowsByBucket:
    """Group row numbers by bucket."""
    if bucket_count <= 1 << 16:
        # numpy sorts 16-bit numbers by radix, several times faster.
        order = np.argsort(buckets.astype(np.uint16), kind="stable")
    else:
        order = np.argsort(buckets, kind="stable")
    ordered = buckets[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, len(order)) if len(order) else order
    return RowsByBucket(order, ordered[ends - 1].tolist(), ends.tolist())


def split_by_bucket(buckets: Int32Array, bucket_count: int) -> list[tuple[int, Int64Array]]:
    """Group row numbers by bucket: the buckets that have rows, ascending, each with its rows in their order."""
    order, bucket_ids, ends = rows_by_bucket(buckets, bucket_count)
    return [(bucket_id, order[first:end]) for bucket_id, first, end in zip(bucket_ids, [0, *ends], ends, strict=False)]


def _check(bucket_count: int, lake_format: str | None, hash_variant: HashVariant) -> bool:
    """Check the arguments and return whether tail bytes are signed."""
    if not 1 <= bucket_count <= BUCKET_COUNT_MAX:
        raise FlussError(f"The bucket count must be between 1 and {BUCKET_COUNT_MAX}, got {bucket_count}")
    if lake_format not in (None, "lance", "paimon", "iceberg", "hudi"):
        raise FlussError(f"Unknown lake format {lake_format!r}: use paimon, iceberg, lance, hudi or None")
    if hash_variant not in ("java", "rust"):
        raise FlussError(f"Unknown hash variant {hash_variant!r}: use 'java', or 'rust' for data of pyfluss")
    return hash_variant == "java"


# Single keys. All numbers are unsigned 32-bit until the end.


def byte_hash(key: BytesLike, *, seed: int = BYTE_HASH_SEED, signed_tail: bool = True) -> int:
    """Hash one key as Fluss and Paimon do; a signed 32-bit number."""
    words, tail = _split(key)
    hashed = _mix_in(seed, words)
    hashed = _mix_in(hashed, (byte - 0x100 & _MASK if signed_tail and byte >= 0x80 else byte for byte in tail))
    return _signed(_finish(hashed ^ len(key)))


def murmur3(key: BytesLike, *, seed: int = 0) -> int:
    """Hash one key with standard 32-bit murmur3; a signed number."""
    words, tail = _split(key)
    hashed = _mix_in(seed, words)
    if tail:
        hashed ^= _scramble(int.from_bytes(tail, "little"))
    return _signed(_finish(hashed ^ len(key)))


def spread(hashed: int) -> int:
    """Mix a hash once more and make it non-negative."""
    mixed = _signed(_finish(_mix_in(0, (hashed & _MASK,)) ^ 4))
    return abs(mixed) if mixed > -(2**31) else 0


def _split(key: BytesLike) -> tuple[tuple[int, ...], bytes]:
    """Return the whole little-endian words and the 0..3 bytes after them."""
    count = len(key) // 4
    return struct.unpack_from(f"<{count}I", key), bytes(key[4 * count :])


def _mix_in(hashed: int, words: Iterable[int]) -> int:
    for word in words:
        mixed = hashed ^ _scramble(word)
        hashed = (((mixed << 13 & _MASK) | mixed >> 19) * _H_FACTOR + _H_TERM) & _MASK
    return hashed


def _scramble(word: int) -> int:
    product = word * _C1 & _MASK
    return ((product << 15 & _MASK) | product >> 17) * _C2 & _MASK


def _finish(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 16) * _F1 & _MASK
    hashed = (hashed ^ hashed >> 13) * _F2 & _MASK
    return hashed ^ hashed >> 16


def _signed(number: int) -> int:
    return number - (1 << 32) if number > _SIGN_MASK else number


# Many keys. uint32 arrays wrap around by themselves.


def byte_hashes(keys: EncodedRows, *, seed: int = BYTE_HASH_SEED, signed_tail: bool = True) -> Int32Array:
    """Hash many keys as Fluss and Paimon do."""
    lengths = keys.lengths
    hashes = _mixed_words(keys, seed)
    tail_bytes = keys.data.view(np.int8) if signed_tail else keys.data
    _mix_in_all(hashes, tail_bytes, keys.starts + (lengths & ~3), lengths & 3, stride=1)
    return _finish_all(hashes ^ lengths.astype(np.uint32)).view(np.int32)


def murmur3_hashes(keys: EncodedRows, *, seed: int = 0) -> Int32Array:
    """Hash many keys with standard 32-bit murmur3."""
    lengths = keys.lengths
    hashes = _mixed_words(keys, seed)
    tail_starts = keys.starts + (lengths & ~3)
    tails = np.zeros(len(keys), dtype=np.uint32)
    for i in range(3):
        rows = np.flatnonzero((lengths & 3) > i)
        tails[rows] |= keys.data[tail_starts[rows] + i].astype(np.uint32) << np.uint32(8 * i)
    # A tail of zero bytes scrambles to zero, like no tail at all.
    return _finish_all(hashes ^ _scramble_all(tails) ^ lengths.astype(np.uint32)).view(np.int32)


def spread_all(hashes: Int32Array) -> Int64Array:
    """Mix hashes once more and make them non-negative."""
    mixed = _mix_all(np.zeros(len(hashes), dtype=np.uint32), hashes.view(np.uint32))
    signed = _finish_all(mixed ^ np.uint32(4)).view(np.int32)
    return np.where(signed == np.iinfo(np.int32).min, 0, np.abs(signed.astype(np.int64)))


def _mixed_words(keys: EncodedRows, seed: int) -> UInt32Array:
    hashes = np.full(len(keys), seed, dtype=np.uint32)
    _mix_in_all(hashes, unaligned(keys.data, "<u4"), keys.starts, keys.lengths >> 2, stride=4)
    return hashes


def _mix_in_all(
    hashes: UInt32Array, values: npt.NDArray[Any], starts: Int64Array, counts: Int64Array, *, stride: int
) -> None:
    """Mix ``counts[i]`` values into ``hashes[i]``, in place: those at ``starts[i]`` and every ``stride`` after it."""
    rows = np.flatnonzero(counts > 0)
    done = 0
    while len(rows) >= _COLUMNAR_KEYS_MIN:
        words = values[starts[rows] + done * stride].astype(np.uint32)
        hashes[rows] = _mix_all(hashes[rows], words)
        done += 1
        rows = rows[counts[rows] > done]
    # The few keys that are much longer than the others.
    for row in rows.tolist():
        first, end = int(starts[row]) + done * stride, int(starts[row]) + int(counts[row]) * stride
        rest: list[int] = values[first:end:stride].astype(np.uint32).tolist()
        hashes[row] = _mix_in(int(hashes[row]), rest)


def _mix_all(hashes: UInt32Array, words: UInt32Array) -> UInt32Array:
    mixed = hashes ^ _scramble_all(words)
    return _rotated(mixed, 13) * np.uint32(_H_FACTOR) + np.uint32(_H_TERM)


def _scramble_all(words: UInt32Array) -> UInt32Array:
    return _rotated(words * np.uint32(_C1), 15) * np.uint32(_C2)


def _rotated(words: UInt32Array, bits: int) -> UInt32Array:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _finish_all(hashes: UInt32Array) -> UInt32Array:
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(_F1)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(_F2)
    return hashes ^ (hashes >> np.uint32(16))
