"""Batches that are merged as one: of one bucket, or of many.

A batch of a few rows costs hundreds of operations on arrays with a few elements, whose cost does not depend on the
number of elements. So the records of several batches are merged as if they were one batch, and the changes are split up
again. The keys of each bucket are a space of their own.

Batches of one bucket must not have a key in common. Then what becomes of one of them does not depend on the others, not
even on whether they are written at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from fluss.buffers import Int64Array
from fluss.record.kv_batch import KvBatch, KvRecords, joined_records
from fluss.server.merge.changes import Changes, row_count_deltas
from fluss.server.merge.key_fold import KeyFold


class NotJoinableError(Exception):
    """Batches of one bucket depend on each other."""


class JoinedBatches:
    """The records of one or more batches, bucket by bucket. Never changes."""

    __slots__ = ("_key_ends", "fold", "records")

    def __init__(self, batches: Sequence[KvBatch], batch_counts: Sequence[int]) -> None:
        """Take batches of one schema: so many of the first bucket, so many of the second, and so on.

        CorruptRecordError if the records of a batch are not what they should be, NotJoinableError if batches of one
        bucket have a key in common.
        """
        self.records: KvRecords
        if len(batches) == 1:
            self.records = batches[0].records()
            self.fold = KeyFold.of(self.records.keys)
            self._key_ends = np.array([len(self.fold.unique_keys)])
            return
        self.records = joined_records(batches)
        record_counts = [batch.record_count for batch in batches]
        buckets = np.repeat(np.arange(len(batch_counts)), batch_counts)
        self.fold = KeyFold.of(self.records.keys, np.repeat(buckets, record_counts))
        slots = self.fold.slots
        # Slots are numbered as keys first appear, so those of a batch come before those of the next one.
        self._key_ends = np.append(0, np.maximum.accumulate(slots) + 1)[np.cumsum(record_counts)]
        batch_by_record = np.repeat(np.arange(len(batches)), record_counts)
        if not self.fold.is_unique and bool((self._batches_of(slots) != batch_by_record).any()):
            raise NotJoinableError

    def _batches_of(self, slots: Int64Array) -> Int64Array:
        """Return the batches that keys first appear in, by their slots."""
        return np.searchsorted(self._key_ends, slots, side="right")

    def key_ends(self, batch_counts: Sequence[int]) -> list[int]:
        """Return where the unique keys of each bucket end."""
        ends: list[int] = self._key_ends[np.cumsum(batch_counts) - 1].tolist()
        return ends

    def split(self, changes: Changes) -> Iterator[Changes]:
        """Yield the changes of each batch, in their order: slices of the changes of all."""
        if len(self._key_ends) == 1:
            yield changes
            return
        changed, rows = changes.changed, changes.rows
        changed_ends, row_ends = self._ends(changes.changed_slots), self._ends(changes.row_slots)
        deltas: Sequence[int | None] = [None] * len(row_ends)
        if changes.row_count_delta is not None:
            deltas = row_count_deltas(changes.change_types, row_ends).tolist()
        keys = pairwise([0, *changed_ends.tolist()])
        entries = pairwise([0, *row_ends.tolist()])
        for some, mutations, shown, delta in zip(keys, changed.split(changed_ends), entries, deltas, strict=True):
            first, end = shown
            yield Changes(
                mutations,
                rows.slice(first, end - first),
                changes.change_types[first:end],
                delta,
                changes.changed_slots[slice(*some)],
                changes.row_slots[first:end],
            )

    def _ends(self, slots: Int64Array) -> Int64Array:
        """Return where what belongs to each batch ends; ``slots`` are in the order of their records."""
        return np.searchsorted(self._batches_of(slots), np.arange(len(self._key_ends)), side="right")
