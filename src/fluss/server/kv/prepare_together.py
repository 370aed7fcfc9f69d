"""Small batches of one bucket that wait together, worked out in one go.

What a batch of one row costs is nearly all the beginning of things: hundreds of operations on arrays with one element.
Several batches are merged as if they were one, and the changes are taken apart again. That is possible if no key comes
twice: then what becomes of one batch does not depend on the others, not even on whether they are written at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluss.record.kv_batch import KvBatch, KvRecords, joined_records
from fluss.row.plain_arrays import number_array
from fluss.server.kv.changes import Changes, row_count_delta
from fluss.server.kv.key_fold import KeyFold


class JoinedBatches:
    """The records of several batches, all keys different. Made by ``join``."""

    __slots__ = ("_batch_by_key", "_batch_count", "fold", "records")

    def __init__(self, records: KvRecords, fold: KeyFold, record_counts: Sequence[int]) -> None:
        self.records = records
        self.fold = fold
        self._batch_count = len(record_counts)
        numbers = np.repeat(np.arange(len(record_counts)), record_counts).tolist()
        self._batch_by_key = dict(zip(fold.unique_keys, numbers, strict=True))

    @classmethod
    def join(cls, batches: Sequence[KvBatch]) -> JoinedBatches | None:
        """Put batches of one schema together; None if a key comes twice, or a batch is not what it should be."""
        records = joined_records(batches)
        if records is None:
            return None
        fold = KeyFold.of(records.keys)
        return cls(records, fold, [batch.record_count for batch in batches]) if fold.is_unique else None

    def split(self, changes: Changes, entry_keys: Sequence[bytes]) -> list[Changes] | None:
        """Return the changes of each batch; ``entry_keys`` has the key of each row of the changelog.

        None if they cannot be told apart: a row of the changelog has another key than the record it comes from.
        """
        try:
            entry_batches = np.array([self._batch_by_key[key] for key in entry_keys], np.int64)
        except KeyError:
            return None
        if bool((np.diff(entry_batches) < 0).any()):
            return None
        ends = np.searchsorted(entry_batches, np.arange(self._batch_count), side="right").tolist()
        keys: list[list[bytes]] = [[] for _ in range(self._batch_count)]
        values: list[list[bytes | None]] = [[] for _ in range(self._batch_count)]
        for key, value in zip(changes.keys, changes.values, strict=True):
            number = self._batch_by_key[key]
            keys[number].append(key)
            values[number].append(value)
        return [
            _part(changes, start, end, keys[number], values[number])
            for number, (start, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True))
        ]


def _part(changes: Changes, start: int, end: int, keys: list[bytes], values: list[bytes | None]) -> Changes:
    change_types = changes.change_types[start:end]
    count_delta = None if changes.row_count_delta is None else row_count_delta(change_types)
    # Copied: Arrow writes up to 64 bytes of what lies around a slice, too.
    rows = changes.rows.take(number_array(np.arange(start, end)))
    return Changes(keys, values, rows, change_types, count_delta)
