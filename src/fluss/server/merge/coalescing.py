"""Small batches of one bucket that wait at the same time, merged as one.

A batch of one row costs hundreds of operations on arrays with one element, whose cost does not depend on the number of
elements. Several batches are merged as if they were one, and the changes are split up again. That is possible if no key
comes twice: then what becomes of one batch does not depend on the others, not even on whether they are written at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fluss.record.kv_batch import KvBatch, KvRecords, joined_records
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import number_array
from fluss.server.merge.changes import Changes, row_count_delta
from fluss.server.merge.key_fold import KeyFold


class CoalescedBatches:
    """The records of several batches, all keys different. Made by ``join``."""

    __slots__ = ("_batch_by_key", "_batch_count", "fold", "records")

    def __init__(self, records: KvRecords, fold: KeyFold, record_counts: Sequence[int]) -> None:
        self.records = records
        self.fold = fold
        self._batch_count = len(record_counts)
        numbers = np.repeat(np.arange(len(record_counts)), record_counts).tolist()
        self._batch_by_key = dict(zip(fold.unique_keys.keys.to_list(), numbers, strict=True))

    @classmethod
    def join(cls, batches: Sequence[KvBatch]) -> CoalescedBatches | None:
        """Join batches of one schema; None if a key comes twice, or a batch is not what it should be."""
        records = joined_records(batches)
        if records is None:
            return None
        fold = KeyFold.of(records.keys)
        return cls(records, fold, [batch.record_count for batch in batches]) if fold.is_unique else None

    def split(self, changes: Changes, entry_keys: Sequence[bytes]) -> list[Changes] | None:
        """Return the changes of each batch; ``entry_keys`` has the key of each row of the changelog.

        None if they cannot be told apart: a row of the changelog has another key than the record it comes from.
        """
        entry_ends = self._ends(entry_keys)
        # They come in the order of their records, because each of them has one.
        changed_ends = self._ends(changes.changed.keys.keys.to_list())
        if entry_ends is None or changed_ends is None:
            return None
        return [
            _slice(changes, slice(*entries), slice(*keys))
            for entries, keys in zip(pairwise(entry_ends), pairwise(changed_ends), strict=True)
        ]

    def _ends(self, keys: Sequence[bytes]) -> list[int] | None:
        """Return where the keys of each batch end, from zero on; None if they do not come batch by batch."""
        try:
            batches = [self._batch_by_key[key] for key in keys]
        except KeyError:
            return None
        if batches != sorted(batches):
            return None
        return [0, *(bisect_right(batches, number) for number in range(self._batch_count))]


def _slice(changes: Changes, entries: slice, keys: slice) -> Changes:
    """Return some entries of the changelog, and some of the changed keys."""
    change_types = changes.change_types[entries]
    count_delta = None if changes.row_count_delta is None else row_count_delta(change_types)
    # Copied: Arrow writes up to 64 bytes of what lies around a slice, too.
    rows = changes.rows.take(number_array(np.arange(entries.start, entries.stop)))
    changed = changes.changed
    changed = Mutations(changed.keys.some(keys), changed.rows.some(keys), changed.schema_id)
    return Changes(changed, rows, change_types, count_delta)
