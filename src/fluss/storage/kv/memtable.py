"""The memtable: rows by key in memory, the ones that were written last, before RocksDB gets them.

Keys and rows lie back to back in one piece of memory. Every added row is an entry, a number, and arrays say where the
bytes of each entry are. A hash table of slots (open addressing, at most half full) leads from the hash of a key to its
newest entry:

    hash -> slot -> entry -> key bytes (compared), row bytes, schema id

Thousands of keys are looked up, or added, by a few dozen operations on arrays, whatever their number.

One thread adds at a time; any number of threads look keys up meanwhile, without a lock. Three rules make that safe:

1. An entry never changes, and neither do the bytes that it leads to.
2. A slot is set only when its entry is complete. From then on it leads to this entry or to a newer one of the same key.
3. Arrays that have become too small are replaced by larger ones, all at once (``_Arrays``), and never changed again. A
   reader that took the old ones finds in them what was there when they were replaced.

So a reader finds, for each key, the newest entry that was there when it began, or a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.record.mutations import FoundGroup, Mutations, StoredValues
from fluss.record.value_batch import encode_value
from fluss.row.encoded import EncodedRows, trimmed_rows
from fluss.row.hashed_keys import HashedKeys, are_equal, hash_of
from fluss.row.varint import UInt64Array

# In a slot: it is free. As the result of a lookup: the key is not there.
NO_ENTRY: Final = -1
_HASH_BITS: Final = 64
_ENTRIES_MIN: Final = 64
_BYTES_MIN: Final = 4096
# Bytes and entries grow to so many times what is needed: memory that was never touched costs only addresses, and the
# larger it is the less often everything is copied.
_GROWTH: Final = 4
# Slots are touched as soon as they are made, all of them, so there are no more than needed.
_SLOTS_GROWTH: Final = 2
# From so many entries or bytes on there is room for really many at once: the operating system gives such pieces in
# large pages, which take a fraction of the time to touch.
_MANY_ENTRIES: Final = 2**15
_MANY_BYTES: Final = 2**20
_LARGE_ENTRIES: Final = 2**19
_LARGE_SLOTS: Final = 2**20
_LARGE_BYTES: Final = 2**24
# What large pages take beyond what is used of them, about: five arrays, each with a page of two MiB that is not full.
_LARGE_PAGES_BYTES: Final = 5 * 2**21
# Positions have 32 bits, so a memtable is full long before that.
MEMTABLE_BYTES_MAX: Final = 2**30
# Of one entry, besides its bytes: four positions, a schema id, a hash.
_ENTRY_BYTES: Final = 4 * 4 + 2 + 8

# So few entries are compared with all keys: that takes less time than making slots.
_FEW_ENTRIES: Final = 32
_NO_SLOTS: Final = np.empty(0, np.int32)
# So many entries over mutations get their arrays when a key is first looked for among them, which seldom comes to pass
# before they are in the store. Making those of more takes too long for a lookup on an event loop.
_LATE_ENTRIES_MAX: Final = 512
# So many keys are looked up, or added, one by one in the time that it takes to do it all at once.
_FEW_KEYS: Final = 16

Positions = npt.NDArray[np.uint32] | Int64Array
EntryNumbers = npt.NDArray[np.signedinteger]


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
        for new, old in zip(larger, self, strict=True):
            new[:used] = old[:used]
        return larger


@dataclass(slots=True, eq=False)
class _Arrays:
    """All arrays of a memtable, replaced together. Readers take them once and use nothing else."""

    # The same array, except in a memtable over mutations, which lie where their batch does.
    key_data: UInt8Array
    row_data: UInt8Array
    entries: _Entries
    # Slot -> its entry, NO_ENTRY if it is free. Their number is a power of two, or zero: then there are few entries.
    slots: npt.NDArray[np.int32]

    def keys(self, entries: EntryNumbers) -> EncodedRows:
        return _ranges(self.key_data, self.entries.key_starts, self.entries.key_ends, entries)

    def rows(self, entries: EntryNumbers) -> EncodedRows:
        return _ranges(self.row_data, self.entries.row_starts, self.entries.row_ends, entries)

    # Hash -> slot: the upper bits of a hash, which are its best, choose the first slot of a key, and the next free one
    # after it is taken if it belongs to another key.

    def first_slots(self, hashes: UInt64Array) -> Int64Array:
        return (hashes >> np.uint64(self.hash_shift)).astype(np.int64)

    @property
    def hash_shift(self) -> int:
        return _HASH_BITS + 1 - len(self.slots).bit_length()

    def next_slots(self, slots: Int64Array) -> Int64Array:
        return (slots + 1) & (len(self.slots) - 1)

    def slot_of(self, key: bytes, key_hash: int) -> tuple[int, int]:
        """Return the slot of one key and its entry; if the key is not there, a free slot and NO_ENTRY."""
        entries, mask = self.entries, len(self.slots) - 1
        slot = key_hash >> self.hash_shift
        # ``item`` makes an int of a number without making a number of numpy's first, which takes twice as long.
        entry_of, hash_of_entry = self.slots.item, entries.hashes.item
        while (entry := entry_of(slot)) >= 0:
            if hash_of_entry(entry) == key_hash:
                start, end = entries.key_starts.item(entry), entries.key_ends.item(entry)
                if self.key_data[start:end].tobytes() == key:
                    break
            slot = (slot + 1) & mask
        return slot, entry

    def entries_of(self, keys: HashedKeys) -> Int64Array:
        """Return the entry of each key, NO_ENTRY where there is none."""
        if not len(self.slots):
            return self._entries_among_few(keys)
        found = np.full(len(keys), NO_ENTRY)
        slots = self.first_slots(keys.hashes)
        left = np.arange(len(keys))
        while len(left) > _FEW_KEYS:
            entries = self.slots[slots]
            is_taken = entries >= 0
            if not is_taken.all():
                left, slots, entries = left[is_taken], slots[is_taken], entries[is_taken]
            is_found = self.entries.hashes[entries] == keys.hashes[left]
            candidates = np.flatnonzero(is_found)
            same = are_equal(keys.keys.some(left[candidates]), self.keys(entries[candidates]))
            if not same.all():
                is_found[candidates[~same]] = False
            found[left[is_found]] = entries[is_found]
            left, slots = left[~is_found], self.next_slots(slots[~is_found])
        for number in left.tolist():
            found[number] = self.slot_of(keys.keys.row(number), int(keys.hashes[number]))[1]
        return found

    def _entries_among_few(self, keys: HashedKeys) -> Int64Array:
        """Return the entry of each key by comparing all with all."""
        found = np.full(len(keys), NO_ENTRY)
        entries, numbers = np.nonzero(self.entries.hashes[:, np.newaxis] == keys.hashes)
        if len(entries):
            is_same = are_equal(keys.keys.some(numbers), self.keys(entries))
            found[numbers[is_same]] = entries[is_same]
        return found

    def set_slots(self, entries: npt.NDArray[np.int32]) -> None:
        """Have the keys of some complete entries, all different, lead to these entries."""
        hashes = self.entries.hashes[entries]
        slots = self.first_slots(hashes)
        while len(entries) > _FEW_KEYS:
            taken_by = self.slots[slots]
            is_free = taken_by < 0
            # Of several entries that want the same slot the last one gets it. The others find it taken in the next
            # round.
            self.slots[slots[is_free]] = entries[is_free]
            is_set = self.slots[slots] == entries
            same_hash = np.flatnonzero(~is_free & (self.entries.hashes[taken_by] == hashes))
            if len(same_hash):
                is_same = are_equal(self.keys(entries[same_hash]), self.keys(taken_by[same_hash]))
                replaced = same_hash[is_same]
                self.slots[slots[replaced]] = entries[replaced]
                is_set[replaced] = True
            slots = np.where(is_free, slots, self.next_slots(slots))[~is_set]
            entries, hashes = entries[~is_set], hashes[~is_set]
        for entry, key, key_hash in zip(entries.tolist(), self.keys(entries).to_list(), hashes.tolist(), strict=True):
            self.slots[self.slot_of(key, key_hash)[0]] = entry


_NO_ARRAYS: Final = _Arrays(np.empty(0, np.uint8), np.empty(0, np.uint8), _Entries.empty(0), _NO_SLOTS)


class Memtable:
    """What has become of some keys: their new rows, or tombstones (empty rows) where a key was removed."""

    __slots__ = ("_arrays", "_byte_end", "_entry_count", "_mutations")

    def __init__(self) -> None:
        # Most stores have no rows here most of the time.
        self._arrays = _NO_ARRAYS
        self._entry_count = 0
        self._byte_end = 0
        self._mutations: Mutations | None = None

    @classmethod
    def over(cls, mutations: Mutations) -> Memtable:
        """Make a memtable over mutations where they lie: nothing is copied, and nothing can be added."""
        memtable = cls.__new__(cls)
        memtable._arrays = _NO_ARRAYS
        memtable._entry_count = count = len(mutations)
        memtable._byte_end = mutations.byte_count
        memtable._mutations = mutations
        if count > _LATE_ENTRIES_MAX:
            memtable._make_arrays(mutations)
        return memtable

    def _make_arrays(self, mutations: Mutations) -> _Arrays:
        """Make the arrays of a memtable over mutations. If two threads do that, either result is as good."""
        keys, rows, count = mutations.keys.keys, mutations.rows, len(mutations)
        schema_ids = np.full(count, mutations.schema_id, np.int16)
        entries = _Entries(keys.starts, keys.ends, rows.starts, rows.ends, schema_ids, mutations.keys.hashes)
        slots = _free_slots(count) if count > _FEW_ENTRIES else _NO_SLOTS
        arrays = _Arrays(keys.data, rows.data, entries, slots)
        if len(slots):
            arrays.set_slots(np.arange(count, dtype=np.int32))
        self._arrays = arrays
        return arrays

    def _searchable(self) -> _Arrays:
        """Return the arrays with their hash table.

        If the first entries are added meanwhile, the arrays that were taken before have neither, which is as good.
        """
        arrays = self._arrays
        if arrays is _NO_ARRAYS and self._mutations is not None:
            return self._make_arrays(self._mutations)
        return arrays

    def __len__(self) -> int:
        """The number of entries: keys that were added twice count twice."""
        return self._entry_count

    @property
    def byte_count(self) -> int:
        """The memory that entries take."""
        if not self._entry_count:
            return 0
        has_large_pages = len(self._arrays.entries.hashes) >= _LARGE_ENTRIES
        pages_bytes = _LARGE_PAGES_BYTES if has_large_pages else 0
        slot_count = len(self._arrays.slots)
        if not slot_count and self._entry_count > _FEW_ENTRIES:
            slot_count = _slot_count(self._entry_count)
        return self._byte_end + _ENTRY_BYTES * self._entry_count + _NO_SLOTS.itemsize * slot_count + pages_bytes

    @property
    def mutations(self) -> Mutations:
        """What a memtable was made over."""
        assert self._mutations is not None, "it was not made over mutations"
        return self._mutations

    # Adding

    def add(self, mutations: Mutations) -> None:
        """Add rows; older rows of the same keys are no longer found. For one thread at a time."""
        assert self._mutations is None, "its bytes belong to a batch"
        count = len(mutations)
        if not count:
            return
        keys, rows = _packed(mutations.keys.keys, mutations.rows)
        share_data = keys.data is rows.data
        arrays = self._with_room(count, len(keys.data) + (0 if share_data else len(rows.data)))
        key_start = self._append_bytes(arrays, keys.data)
        row_start = key_start if share_data else self._append_bytes(arrays, rows.data)
        entries, new = arrays.entries, slice(self._entry_count, self._entry_count + count)
        entries.key_starts[new] = keys.starts + key_start
        entries.key_ends[new] = keys.ends + key_start
        entries.row_starts[new] = rows.starts + row_start
        entries.row_ends[new] = rows.ends + row_start
        entries.schema_ids[new] = mutations.schema_id
        entries.hashes[new] = mutations.keys.hashes
        self._entry_count = new.stop
        # Rule 2: from here on readers find them.
        arrays.set_slots(np.arange(new.start, new.stop, dtype=np.int32))

    def _append_bytes(self, arrays: _Arrays, data: UInt8Array) -> int:
        start = self._byte_end
        self._byte_end = start + len(data)
        arrays.key_data[start : self._byte_end] = data
        return start

    def _with_room(self, entry_count: int, byte_count: int) -> _Arrays:
        """Return arrays that have room for so much more."""
        arrays = self._arrays
        data, entries, slots = arrays.key_data, arrays.entries, arrays.slots
        entries_min, bytes_min = self._entry_count + entry_count, self._byte_end + byte_count
        assert bytes_min < 2**32, "more bytes than positions"
        are_many = entries_min > _MANY_ENTRIES
        if entries_min <= min(len(entries.hashes), len(slots) // 2) and bytes_min <= len(data):
            return arrays
        if bytes_min > len(data):
            size = max(_GROWTH * bytes_min, _LARGE_BYTES if bytes_min > _MANY_BYTES else _BYTES_MIN)
            data = np.empty(size, np.uint8)
            data[: self._byte_end] = arrays.key_data[: self._byte_end]
        if entries_min > len(entries.hashes):
            size = max(_GROWTH * entries_min, _LARGE_ENTRIES if are_many else _ENTRIES_MIN)
            entries = entries.grown(size, self._entry_count)
        if entries_min > len(slots) // 2:
            free_slots = _free_slots(max(_SLOTS_GROWTH * entries_min, _LARGE_SLOTS // 2 if are_many else _ENTRIES_MIN))
            larger = _Arrays(data, data, entries, free_slots)
            larger.set_slots(self.newest_entries().astype(np.int32))
        else:
            # Rule 3: a copy, because slots that are shared would lead a reader with the old arrays to entries that only
            # the new ones have.
            larger = _Arrays(data, data, entries, slots.copy())
        self._arrays = larger
        return larger

    # Looking up

    def find(self, keys: HashedKeys) -> tuple[Int64Array, StoredValues]:
        """Return the numbers of the keys that are there, and the newest row of each; tombstones are empty rows."""
        arrays = self._searchable()
        found = arrays.entries_of(keys)
        numbers = np.flatnonzero(found >= 0)
        return numbers, _values(arrays, found[numbers])

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one key, empty if it was removed, None if it is not there. The quick way for a few."""
        arrays = self._searchable()
        if len(arrays.slots):
            _, entry = arrays.slot_of(key, hash_of(key))
        else:
            entry = int(arrays.entries_of(HashedKeys.from_list([key]))[0])
        if entry < 0:
            return None
        start, end = arrays.entries.row_starts.item(entry), arrays.entries.row_ends.item(entry)
        row = arrays.row_data[start:end].tobytes()
        return encode_value(arrays.entries.schema_ids.item(entry), row) if row else b""

    # Going through everything, for a flush

    def newest_entries(self) -> Int64Array:
        """Return the entries that are found, one for each key."""
        slots = self._arrays.slots
        if not len(slots):
            return np.arange(self._entry_count)
        return slots[slots >= 0].astype(np.int64)

    def keys(self, entries: Int64Array) -> EncodedRows:
        return self._arrays.keys(entries)

    def values(self, entries: Int64Array) -> StoredValues:
        """Return the rows of entries; tombstones are empty rows."""
        return _values(self._arrays, entries)


def find_in_memtables(
    memtables: Iterable[Memtable], keys: HashedKeys, left: Int64Array | None = None
) -> tuple[list[FoundGroup], Int64Array]:
    """Look keys up in several memtables, newest first: all of them, or those with some numbers.

    Returns the rows that were found with the numbers of their keys, and the numbers of the keys that no memtable has. A
    key that was removed is in neither.
    """
    groups: list[FoundGroup] = []
    left = np.arange(len(keys)) if left is None else left
    for memtable in memtables:
        if not len(left) or not len(memtable):
            continue
        found, stored = memtable.find(keys if len(left) == len(keys) else keys.some(left))
        if not len(found):
            continue
        numbers = left[found]
        left = np.delete(left, found)
        has_row = np.flatnonzero(stored.rows.lengths)
        if len(has_row) < len(numbers):
            numbers, stored = numbers[has_row], StoredValues(stored.rows.some(has_row), stored.schema_ids[has_row])
        if len(numbers):
            groups.append((numbers, stored))
    return groups, left


def _values(arrays: _Arrays, entries: Int64Array) -> StoredValues:
    return StoredValues(arrays.rows(entries), arrays.entries.schema_ids[entries])


def _free_slots(entry_count: int) -> npt.NDArray[np.int32]:
    return np.full(_slot_count(entry_count), NO_ENTRY, np.int32)


def _slot_count(entry_count: int) -> int:
    """Return so many slots that half of them stay free; at least two, so that a hash can choose."""
    return max(2, 1 << (2 * entry_count - 1).bit_length())


def _ranges(data: UInt8Array, starts: Positions, ends: Positions, numbers: EntryNumbers) -> EncodedRows:
    return EncodedRows(data, starts[numbers].astype(np.int64, copy=False), ends[numbers].astype(np.int64, copy=False))


def _packed(keys: EncodedRows, rows: EncodedRows) -> tuple[EncodedRows, EncodedRows]:
    """Return keys and rows with little else between them, in one array if they are in one already."""
    if keys.data is not rows.data:
        return trimmed_rows(keys), trimmed_rows(rows)
    both = EncodedRows(keys.data, np.concatenate((keys.starts, rows.starts)), np.concatenate((keys.ends, rows.ends)))
    both, count = trimmed_rows(both), len(keys)
    return both.some(slice(count)), both.some(slice(count, None))
