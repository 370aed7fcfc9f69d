"""The keys of KV batches, each different key once: which records belong together, and in which order they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys, are_equal

NO_RECORD = -1
# Odd, with bits everywhere: the hashes of equal keys in different spaces become different.
_SPACE_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class KeyRuns(NamedTuple):
    """The records of a batch sorted by key, those of one key in their order.

    Key by key: ``order[starts[i] : starts[i + 1]]`` are the records of one key, and ``starts`` ends with their number.
    """

    order: Int64Array
    starts: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class KeyFold:
    """Records numbered from 0, each with the index of its key in ``unique_keys`` (its slot). Never changes."""

    unique_keys: HashedKeys
    # Record -> index into ``unique_keys``.
    slots: Int64Array
    # Record -> the last record before it with the same key, or NO_RECORD.
    previous: Int64Array
    # Whether no later record has the same key.
    is_last: BoolArray
    # Whether no key comes twice.
    is_unique: bool

    @classmethod
    def of(cls, keys: EncodedRows, spaces: Int64Array | None = None) -> KeyFold:
        """Find the records of each key. Keys keep the order in which they first appear.

        ``spaces`` are the key spaces of the records: equal keys in two of them are different.
        """
        return cls.of_hashed(HashedKeys.of(keys), spaces)

    @classmethod
    def of_hashed(cls, keys: HashedKeys, spaces: Int64Array | None = None) -> KeyFold:
        """Find the records of each key, like ``of``, by hashes that are there already."""
        hashes = keys.hashes if spaces is None else keys.hashes + spaces.astype(np.uint64) * _SPACE_FACTOR
        in_order = np.sort(hashes)
        if not bool((in_order[1:] == in_order[:-1]).any()):
            return cls._of_unique(keys, np.arange(len(keys)))
        # Equal keys have equal hashes, so they are neighbours in this order; those of one hash are in theirs.
        order = np.argsort(hashes, kind="stable")
        in_order = hashes[order]
        is_first = np.append(True, in_order[1:] != in_order[:-1])
        later = np.flatnonzero(~is_first)
        are_same = are_equal(keys.keys.some(order[later]), keys.keys.some(order[later - 1]))
        if spaces is not None:
            are_same &= spaces[order[later]] == spaces[order[later - 1]]
        if not bool(are_same.all()):
            return cls._of_colliding(keys, spaces)
        first_records = order[is_first]
        begins = np.zeros(len(keys), np.bool_)
        begins[first_records] = True
        # Record with which a key begins -> how many keys began before it.
        slot_by_first = np.cumsum(begins) - 1
        slots = np.empty(len(keys), np.int64)
        slots[order] = slot_by_first[first_records][np.cumsum(is_first) - 1]
        return cls._linked(keys.some(np.flatnonzero(begins)), slots, order[later - 1], order[later])

    @classmethod
    def _of_colliding(cls, keys: HashedKeys, spaces: Int64Array | None) -> KeyFold:
        """Look at the keys one by one: different ones have the same hash, which nearly never happens."""
        slot_by_key: dict[tuple[int, bytes], int] = {}
        numbers = [0] * len(keys) if spaces is None else spaces.tolist()
        spaced = zip(numbers, keys.keys.to_list(), strict=True)
        slots = np.array([slot_by_key.setdefault(key, len(slot_by_key)) for key in spaced], np.int64)
        first_records = np.unique(slots, return_index=True)[1]
        return cls._of_slots(keys.some(first_records), slots)

    @classmethod
    def _of_unique(cls, unique_keys: HashedKeys, slots: Int64Array) -> KeyFold:
        return cls(unique_keys, slots, np.full(len(slots), NO_RECORD), np.ones(len(slots), np.bool_), True)

    @classmethod
    def _of_slots(cls, unique_keys: HashedKeys, slots: Int64Array) -> KeyFold:
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        same_key = in_order[1:] == in_order[:-1]
        return cls._linked(unique_keys, slots, order[:-1][same_key], order[1:][same_key])

    @classmethod
    def _linked(cls, unique_keys: HashedKeys, slots: Int64Array, earlier: Int64Array, later: Int64Array) -> KeyFold:
        """Take pairs of records of one key that follow each other."""
        previous = np.full(len(slots), NO_RECORD)
        previous[later] = earlier
        is_last = np.ones(len(slots), np.bool_)
        is_last[earlier] = False
        return cls(unique_keys, slots, previous, is_last, not len(later))

    def __len__(self) -> int:
        """The number of records."""
        return len(self.slots)

    def only(self, records: Int64Array) -> KeyFold:
        """Return the fold of some of the records, ascending, numbered anew. Slots stay what they are."""
        if len(records) == len(self):
            return self
        slots = self.slots[records]
        return self._of_unique(self.unique_keys, slots) if self.is_unique else self._of_slots(self.unique_keys, slots)

    def runs(self) -> KeyRuns:
        """Sort the records by key, for merges that look at all records of a key at once."""
        order = np.argsort(self.slots, kind="stable")
        if self.is_unique:
            return KeyRuns(order, np.arange(len(self) + 1))
        in_order = self.slots[order]
        first = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
        return KeyRuns(order, np.append(first, len(order)))
