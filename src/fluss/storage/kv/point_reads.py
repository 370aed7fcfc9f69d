"""The newest rows of some keys: from memtables, newest first, and from RocksDB behind them.

Callers take the memtables before they ask the database: what has left them by then is in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.record.mutations import FoundGroup
from fluss.row.hashed_keys import HashedKeys, row_words
from fluss.storage.kv import rocks
from fluss.storage.kv.memtable import Memtable, find_in_memtables
from fluss.storage.kv.place import Place

# So many keys are looked up in memtables one by one in the time that it takes to do it all at once.
_FEW_KEYS: Final = 16
# Keys of one call of RocksDB; between the calls values become Python objects, which needs the GIL.
_GET_KEYS_MAX: Final = 1000
# Reading so many keys in their order saves more than ordering them takes.
ORDERED_KEYS_MIN: Final = 100


def get_from_database(
    database: rocks.Rdict, keys: list[bytes], *, bytes_max: int, value_bytes_max: int
) -> list[bytes | None]:
    """Return what the database has under keys. Values are no longer than ``value_bytes_max``."""
    values: list[bytes | None] = []
    bytes_left = bytes_max
    while len(values) < len(keys):
        # One call returns no more than fits, or a single value.
        count = max(1, min(_GET_KEYS_MAX, bytes_left // max(1, value_bytes_max)))
        # Its stub asks for keys of mixed types, and knows nothing of lists of values.
        found: list[bytes | None] = database.get(keys[len(values) : len(values) + count])  # type: ignore[arg-type,assignment]
        bytes_left -= sum(map(len, filter(None, found)))
        if bytes_left < 0:
            raise _too_many_bytes(len(keys), bytes_max)
        values += found
    return values


def get_from_memtables(memtables: Sequence[Memtable], keys: list[bytes], *, bytes_max: int) -> list[bytes | None]:
    """Return the values of keys, empty ones where a key was removed, None where no memtable has the key."""
    if len(keys) <= _FEW_KEYS:
        return [get_one(memtables, key) for key in keys]
    groups, left = find_in_memtables(memtables, HashedKeys.from_list(keys))
    # Before they are copied.
    checked_bytes(groups, len(keys), bytes_max)
    values: list[bytes | None] = [b""] * len(keys)
    for number in left.tolist():
        values[number] = None
    for numbers, stored in groups:
        for number, value in zip(numbers.tolist(), stored.to_list(), strict=True):
            values[number] = value
    return values


def get_one(memtables: Iterable[Memtable], key: bytes) -> bytes | None:
    """Return the value of a key in the newest memtable that has it, empty if it was removed there."""
    for memtable in memtables:
        value = memtable.get(key)
        if value is not None:
            return value
    return None


def get_newest(
    memtables: Sequence[Memtable], place: Place, keys: list[bytes], *, bytes_max: int, value_bytes_max: int
) -> list[bytes | None]:
    """Return the values of keys in memtables, or in the database where no memtable has a key; None for no value."""
    if not any(map(len, memtables)):
        return get_from_database(place.database, place.keys(keys), bytes_max=bytes_max, value_bytes_max=value_bytes_max)
    values = get_from_memtables(memtables, keys, bytes_max=bytes_max)
    bytes_left = bytes_max - sum(map(len, filter(None, values)))
    if bytes_left < 0:
        raise _too_many_bytes(len(keys), bytes_max)
    numbers = [number for number, value in enumerate(values) if value is None]
    left = place.keys([keys[number] for number in numbers])
    stored = get_from_database(place.database, left, bytes_max=bytes_left, value_bytes_max=value_bytes_max)
    for number, value in zip(numbers, stored, strict=True):
        values[number] = value
    return [value or None for value in values]


def in_key_order(keys: HashedKeys, numbers: Int64Array) -> Int64Array:
    """Return the numbers of keys in nearly the order of their bytes, in which RocksDB finds them faster."""
    if len(numbers) < ORDERED_KEYS_MIN:
        return numbers
    # The first bytes will do: keys that share them are neighbours anyway.
    return numbers[np.argsort(row_words(keys.keys.some(numbers), 0).byteswap(), kind="stable")]


def checked_bytes(groups: Iterable[FoundGroup], key_count: int, bytes_max: int) -> int:
    """Return how many bytes the values have that were found; too many are a FlussError (13)."""
    byte_count = sum(stored.byte_count for _, stored in groups)
    if byte_count > bytes_max:
        raise _too_many_bytes(key_count, bytes_max)
    return byte_count


def _too_many_bytes(key_count: int, bytes_max: int) -> FlussError:
    return FlussError(
        f"The rows of these {key_count} keys have more than {bytes_max} bytes, which is the most that may be read for "
        "one request; look up or write fewer keys at once",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )
