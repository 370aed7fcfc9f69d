"""The keys of one KV batch, each different key once: which records belong together, and in which order they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fluss.buffers import Int64Array
from fluss.row.encoded import EncodedRows
from fluss.row.null_columns import BoolArray

NO_RECORD = -1


class KeyRuns(NamedTuple):
    """The records of a batch sorted by key, those of one key in their order.

    Key by key: ``order[starts[i] : starts[i + 1]]`` are the records of one key, and ``starts`` ends with their number.
    """

    order: Int64Array
    starts: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class KeyFold:
    """Records numbered from 0, each with the place of its key in ``unique_keys`` (its slot). Never changes."""

    unique_keys: list[bytes]
    # Record -> index into ``unique_keys``.
    slots: Int64Array
    # Record -> the last record before it with the same key, or NO_RECORD.
    previous: Int64Array
    # Whether no later record has the same key.
    is_last: BoolArray
    # Whether no key comes twice.
    is_unique: bool

    @classmethod
    def of(cls, keys: EncodedRows) -> KeyFold:
        """Find the records of each key. Keys keep the order in which they first appear."""
        record_keys = keys.to_list()
        first_slots = dict.fromkeys(record_keys)
        if len(first_slots) == len(record_keys):
            return cls._of_unique(record_keys, np.arange(len(record_keys)))
        unique_keys = list(first_slots)
        slot_by_key = dict(zip(unique_keys, range(len(unique_keys)), strict=True))
        slots = np.fromiter(map(slot_by_key.__getitem__, record_keys), np.int64, len(record_keys))
        return cls._of_slots(unique_keys, slots)

    @classmethod
    def _of_unique(cls, unique_keys: list[bytes], slots: Int64Array) -> KeyFold:
        return cls(unique_keys, slots, np.full(len(slots), NO_RECORD), np.ones(len(slots), np.bool_), True)

    @classmethod
    def _of_slots(cls, unique_keys: list[bytes], slots: Int64Array) -> KeyFold:
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        same_key = in_order[1:] == in_order[:-1]
        earlier, later = order[:-1][same_key], order[1:][same_key]
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
