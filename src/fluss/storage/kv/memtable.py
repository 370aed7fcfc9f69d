"""Rows by key in memory: those that were written last, before RocksDB gets them.

Keys and rows lie back to back in one piece of memory; every added row is an entry, a number, and arrays say where its
bytes are. A table of places (open addressing, at most half full) leads from the hash of a key to its newest entry:

    hash -> place -> entry -> key bytes (compared), row bytes, schema id

Thousands of keys are looked up, or added, by a few dozen operations on arrays, whatever their number.

One thread adds at a time; any number may look keys up meanwhile, without a lock. Entries never change, a place is set
when its entry is complete, and memory that has become too small is replaced, not changed, so whoever still has the old
one finds in it what was there before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.record.mutations import Mutations, StoredValues
from fluss.record.value_batch import encode_value
from fluss.row.encoded import EncodedRows, packed_rows
from fluss.row.hashed_keys import HashedKeys, are_equal, hash_of
from fluss.row.varint import UInt64Array

NO_ENTRY: Final = -1
_HASH_BITS: Final = 64
_ENTRIES_MIN: Final = 64
_BYTES_MIN: Final = 4096
# Memory grows to so many times what is needed: what is not used costs nothing but addresses, copying what is does.
_GROWTH: Final = 4
# Places are used all over, whatever their number.
_PLACES_GROWTH: Final = 2
# For many rows there is room for really many at once. The system gives so much memory in large pages, and that takes a
# fraction of the time.
_MANY_ENTRIES: Final = 2**15
_MANY_BYTES: Final = 2**20
_LARGE_ENTRIES: Final = 2**19
_LARGE_PLACES: Final = 2**20
_LARGE_BYTES: Final = 2**24
# What large pages take beyond what is used of them, about: there are five of two MiB that have just been begun.
_LARGE_PAGES_BYTES: Final = 5 * 2**21
# Positions are kept as numbers of 32 bits. That much must not lie in one of these, by far.
RECENT_BYTES_MAX: Final = 2**30
# Of one entry, besides its bytes: four positions, a schema id, a hash.
_ENTRY_BYTES: Final = 4 * 4 + 2 + 8

# So few entries are looked through: a table of places would take longer to make.
_FEW_ENTRIES: Final = 32
_NO_PLACES: Final = np.empty(0, np.int32)
# So many keys are looked up, or added, one by one in the time that it takes to do it all at once.
_FEW_KEYS: Final = 16

Part = tuple[Int64Array, StoredValues]
Positions = npt.NDArray[np.uint32] | Int64Array


class _Entries(NamedTuple):
    """Per entry: where its bytes are, and what they are."""

    key_starts: Positions
    key_ends: Positions
    row_starts: Positions
    row_ends: Positions
    schema_ids: npt.NDArray[np.int16]
    hashes: UInt64Array

    @classmethod
    def empty(cls, count: int) -> _Entries:
        key_starts, key_ends, row_starts, row_ends = np.empty((4, count), np.uint32)
        return cls(key_starts, key_ends, row_starts, row_ends, np.empty(count, np.int16), np.empty(count, np.uint64))

    def grown(self, count: int, used: int) -> _Entries:
        """Return entries with room for so many, of which some are used."""
        larger = self.empty(count)
        for new, old in ((getattr(larger, name), getattr(self, name)) for name in self._fields):
            new[:used] = old[:used]
        return larger


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Where everything is."""

    # The same memory, unless both are somebody else's.
    key_data: UInt8Array
    row_data: UInt8Array
    entries: _Entries
    # Place -> its entry, NO_ENTRY if it is free. Their number is a power of two.
    places: npt.NDArray[np.int32]

    def keys(self, entries: npt.NDArray[np.signedinteger]) -> EncodedRows:
        return _some(self.key_data, self.entries.key_starts, self.entries.key_ends, entries)

    def rows(self, entries: npt.NDArray[np.signedinteger]) -> EncodedRows:
        return _some(self.row_data, self.entries.row_starts, self.entries.row_ends, entries)

    def first_places(self, hashes: UInt64Array) -> Int64Array:
        """Return where to begin to look. The upper bits of a hash are the better ones."""
        return (hashes >> np.uint64(self.hash_shift)).astype(np.int64)

    @property
    def hash_shift(self) -> int:
        return _HASH_BITS + 1 - len(self.places).bit_length()

    def next_places(self, places: Int64Array) -> Int64Array:
        return (places + 1) & (len(self.places) - 1)

    def place_of(self, key: bytes, key_hash: int) -> tuple[int, int]:
        """Return the place of one key and its entry; if the key is not there, a free place and NO_ENTRY."""
        entries, mask = self.entries, len(self.places) - 1
        place = key_hash >> self.hash_shift
        while (entry := int(self.places[place])) >= 0:
            if int(entries.hashes[entry]) == key_hash:
                start, end = int(entries.key_starts[entry]), int(entries.key_ends[entry])
                if self.key_data[start:end].tobytes() == key:
                    break
            place = (place + 1) & mask
        return place, entry


class Memtable:
    """What has become of some keys: their new rows, or that they were removed."""

    def __init__(self) -> None:
        data = np.empty(_BYTES_MIN, np.uint8)
        self._memory = _Memory(data, data, _Entries.empty(_ENTRIES_MIN), _free_places(_ENTRIES_MIN))
        self._entry_count = 0
        self._byte_end = 0
        self._changes: Mutations | None = None

    @classmethod
    def of(cls, changes: Mutations) -> Memtable:
        """Make what is found quickly of some changes, in place: nothing is copied, and nothing can be added."""
        keys, rows, count = changes.keys.keys, changes.rows, len(changes)
        schema_ids = np.full(count, changes.schema_id, np.int16)
        entries = _Entries(keys.starts, keys.ends, rows.starts, rows.ends, schema_ids, changes.keys.hashes)
        recent = cls.__new__(cls)
        are_few = count <= _FEW_ENTRIES
        recent._memory = _Memory(keys.data, rows.data, entries, _NO_PLACES if are_few else _free_places(count))
        recent._entry_count = count
        recent._byte_end = changes.byte_count
        recent._changes = changes
        if not are_few:
            _set_places(recent._memory, np.arange(count, dtype=np.int32))
        return recent

    def __len__(self) -> int:
        """The number of entries: keys that were added twice count twice."""
        return self._entry_count

    @property
    def byte_count(self) -> int:
        """The memory that entries take."""
        if not self._entry_count:
            return 0
        has_large_pages = len(self._memory.entries.hashes) >= _LARGE_ENTRIES
        pages_bytes = _LARGE_PAGES_BYTES if has_large_pages else 0
        return self._byte_end + _ENTRY_BYTES * self._entry_count + self._memory.places.nbytes + pages_bytes

    @property
    def changes(self) -> Mutations:
        """What it was made of."""
        assert self._changes is not None, "it was not made of anything"
        return self._changes

    def add(self, changes: Mutations) -> None:
        """Add rows; those of the same keys that are there are no longer found. For one thread at a time."""
        assert self._changes is None, "its memory is somebody else's"
        count = len(changes)
        if not count:
            return
        keys, rows = _packed(changes.keys.keys, changes.rows)
        lie_together = keys.data is rows.data
        memory = self._with_room(count, len(keys.data) + (0 if lie_together else len(rows.data)))
        key_start = self._copy_in(memory, keys.data)
        row_start = key_start if lie_together else self._copy_in(memory, rows.data)
        entries, new = memory.entries, slice(self._entry_count, self._entry_count + count)
        entries.key_starts[new] = keys.starts + key_start
        entries.key_ends[new] = keys.ends + key_start
        entries.row_starts[new] = rows.starts + row_start
        entries.row_ends[new] = rows.ends + row_start
        entries.schema_ids[new] = changes.schema_id
        entries.hashes[new] = changes.keys.hashes
        self._entry_count = new.stop
        _set_places(memory, np.arange(new.start, new.stop, dtype=np.int32))

    def find(self, keys: HashedKeys) -> Int64Array:
        """Return the newest entry of each key, NO_ENTRY where there is none."""
        memory = self._memory
        if not len(memory.places):
            return _found_among_few(memory, keys)
        found = np.full(len(keys), NO_ENTRY)
        places = memory.first_places(keys.hashes)
        left = np.arange(len(keys))
        while len(left) > _FEW_KEYS:
            entries = memory.places[places]
            is_taken = entries >= 0
            if not is_taken.all():
                left, places, entries = left[is_taken], places[is_taken], entries[is_taken]
            is_found = memory.entries.hashes[entries] == keys.hashes[left]
            candidates = np.flatnonzero(is_found)
            same = are_equal(keys.keys.some(left[candidates]), memory.keys(entries[candidates]))
            if not same.all():
                is_found[candidates[~same]] = False
            found[left[is_found]] = entries[is_found]
            left, places = left[~is_found], memory.next_places(places[~is_found])
        for number in left.tolist():
            found[number] = memory.place_of(keys.keys.row(number), int(keys.hashes[number]))[1]
        return found

    def value_of(self, key: bytes) -> bytes | None:
        """Return the value of one key, empty if it was removed, None if nothing is known. The quick way for a few."""
        memory = self._memory
        if len(memory.places):
            _, entry = memory.place_of(key, hash_of(key))
        else:
            entry = int(_found_among_few(memory, HashedKeys.from_list([key]))[0])
        if entry < 0:
            return None
        start, end = int(memory.entries.row_starts[entry]), int(memory.entries.row_ends[entry])
        row = memory.row_data[start:end].tobytes()
        return encode_value(int(memory.entries.schema_ids[entry]), row) if row else b""

    def newest_entries(self) -> Int64Array:
        """Return the entries that are found, one for each key."""
        places = self._memory.places
        if not len(places):
            return np.arange(self._entry_count)
        return places[places >= 0].astype(np.int64)

    def hashes(self) -> UInt64Array:
        """Return the hashes of all entries."""
        return self._memory.entries.hashes[: self._entry_count]

    def keys(self, entries: Int64Array) -> EncodedRows:
        return self._memory.keys(entries)

    def rows(self, entries: Int64Array) -> StoredValues:
        """Return the rows of entries; those of removed keys are empty."""
        memory = self._memory
        return StoredValues(memory.rows(entries), memory.entries.schema_ids[entries])

    def _copy_in(self, memory: _Memory, data: UInt8Array) -> int:
        start = self._byte_end
        self._byte_end = start + len(data)
        memory.key_data[start : self._byte_end] = data
        return start

    def _with_room(self, entry_count: int, byte_count: int) -> _Memory:
        """Return memory that has room for so much more."""
        memory = self._memory
        data, entries, places = memory.key_data, memory.entries, memory.places
        entries_min, bytes_min = self._entry_count + entry_count, self._byte_end + byte_count
        assert bytes_min < 2**32, "more bytes than positions"
        are_many = entries_min > _MANY_ENTRIES
        if entries_min <= min(len(entries.hashes), len(places) // 2) and bytes_min <= len(data):
            return memory
        if bytes_min > len(data):
            data = np.empty(max(_GROWTH * bytes_min, _LARGE_BYTES if bytes_min > _MANY_BYTES else 0), np.uint8)
            data[: self._byte_end] = memory.key_data[: self._byte_end]
        if entries_min > len(entries.hashes):
            size = max(_GROWTH * entries_min, _LARGE_ENTRIES if are_many else 0)
            entries = entries.grown(size, self._entry_count)
        if entries_min > len(places) // 2:
            free_places = _free_places(max(_PLACES_GROWTH * entries_min, _LARGE_PLACES // 2 if are_many else 0))
            larger = _Memory(data, data, entries, free_places)
            _set_places(larger, self.newest_entries().astype(np.int32))
        else:
            # Not the same places: whoever has the old memory must not be led to what is only in the new one.
            larger = _Memory(data, data, entries, places.copy())
        self._memory = larger
        return larger


def find_in_memtables(levels: Iterable[Memtable], keys: HashedKeys) -> tuple[list[Part], Int64Array]:
    """Look keys up in several places, newest first.

    Returns the rows that were found with the numbers of their keys, and the numbers of the keys that nothing is known
    of. A key that was removed is in neither.
    """
    parts: list[Part] = []
    left = np.arange(len(keys))
    for level in levels:
        if not len(left) or not len(level):
            continue
        entries = level.find(keys if len(left) == len(keys) else keys.some(left))
        is_known = entries >= 0
        if not is_known.any():
            continue
        numbers, stored = left[is_known], level.rows(entries[is_known])
        has_row = np.flatnonzero(stored.rows.lengths)
        if len(has_row) < len(numbers):
            numbers, stored = numbers[has_row], StoredValues(stored.rows.some(has_row), stored.schema_ids[has_row])
        if len(numbers):
            parts.append((numbers, stored))
        left = left[~is_known]
    return parts, left


def _free_places(entry_count: int) -> npt.NDArray[np.int32]:
    """Return so many places that half of them stay free; at least two, so that a hash can choose."""
    return np.full(max(2, 1 << (2 * entry_count - 1).bit_length()), NO_ENTRY, np.int32)


def _found_among_few(memory: _Memory, keys: HashedKeys) -> Int64Array:
    """Return the entry of each key by comparing all with all."""
    found = np.full(len(keys), NO_ENTRY)
    entries, numbers = np.nonzero(memory.entries.hashes[:, np.newaxis] == keys.hashes)
    if len(entries):
        is_same = are_equal(keys.keys.some(numbers), memory.keys(entries))
        found[numbers[is_same]] = entries[is_same]
    return found


def _set_places(memory: _Memory, entries: npt.NDArray[np.int32]) -> None:
    """Have the keys of some entries, all different, lead to these entries."""
    hashes = memory.entries.hashes[entries]
    places = memory.first_places(hashes)
    while len(entries) > _FEW_KEYS:
        taken_by = memory.places[places]
        is_free = taken_by < 0
        # Of those who want the same place the last gets it. The others find it taken when they look again.
        memory.places[places[is_free]] = entries[is_free]
        is_set = memory.places[places] == entries
        same_hash = np.flatnonzero(~is_free & (memory.entries.hashes[taken_by] == hashes))
        if len(same_hash):
            is_same = are_equal(memory.keys(entries[same_hash]), memory.keys(taken_by[same_hash]))
            replaced = same_hash[is_same]
            memory.places[places[replaced]] = entries[replaced]
            is_set[replaced] = True
        places = np.where(is_free, places, memory.next_places(places))[~is_set]
        entries, hashes = entries[~is_set], hashes[~is_set]
    for entry, key, key_hash in zip(entries.tolist(), memory.keys(entries).to_list(), hashes.tolist(), strict=True):
        memory.places[memory.place_of(key, key_hash)[0]] = entry


def _some(data: UInt8Array, starts: Positions, ends: Positions, numbers: npt.NDArray[np.signedinteger]) -> EncodedRows:
    return EncodedRows(data, starts[numbers].astype(np.int64, copy=False), ends[numbers].astype(np.int64, copy=False))


def _packed(keys: EncodedRows, rows: EncodedRows) -> tuple[EncodedRows, EncodedRows]:
    """Return keys and rows with little else between them; together, if they already lie together."""
    if keys.data is not rows.data:
        return _without_surroundings(keys), _without_surroundings(rows)
    both = EncodedRows(keys.data, np.concatenate((keys.starts, rows.starts)), np.concatenate((keys.ends, rows.ends)))
    both, count = _without_surroundings(both), len(keys)
    return both.some(slice(count)), both.some(slice(count, None))


def _without_surroundings(rows: EncodedRows) -> EncodedRows:
    first, end = int(rows.starts.min()), int(rows.ends.max())
    if 2 * int(rows.lengths.sum()) >= end - first:
        return EncodedRows(rows.data[first:end], rows.starts - first, rows.ends - first)
    # Most of it belongs to somebody else.
    return packed_rows(rows)
