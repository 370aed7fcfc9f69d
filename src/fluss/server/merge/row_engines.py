"""Merge engines that choose among whole rows of a key: the last, the first, or the one with the highest version.

| engine        | which row of a key stays                                        |
|---------------|-----------------------------------------------------------------|
| default       | the last one                                                    |
| ``first_row`` | the first one; later ones vanish                                |
| ``versioned`` | the last one, unless its version is lower than that of another  |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow, take_rows
from fluss.schema.table_options import ChangelogImage, DeleteBehavior
from fluss.server.merge.changes import Changes, MergeInput, NextIds, Transitions
from fluss.server.merge.decoded_batch import BatchDecoder, DecodedBatch
from fluss.server.merge.key_fold import KeyFold


class LastRowMerger:
    """Puts replace, deletes remove. Rows are stored as they were received."""

    def __init__(self, decoder: BatchDecoder, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        self._decoder = decoder
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        if self._image is ChangelogImage.FULL:
            return True
        # A WAL image shows what was there only when it goes.
        return has_deletes and self._deletes is DeleteBehavior.ALLOW

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        rows = self._decoder.decode(batch, self._deletes)
        # Whether a key is new is known only if the stored values are, so a WAL image says +U for both.
        return last_row_changes(rows, self._image, inserts_are_updates=self._image is ChangelogImage.WAL)


def last_row_changes(rows: DecodedBatch, image: ChangelogImage, *, inserts_are_updates: bool = False) -> Changes:
    """Return the changes if every record takes effect: each received row replaces what was there."""
    fold = rows.fold
    before = rows.stored[fold.slots]
    if not fold.is_unique:
        # A delete has received no row: its key is absent for the next record.
        before = np.where(fold.previous >= 0, rows.received[fold.previous], before)
    transitions = Transitions(before, rows.received)
    entries = transitions.log_entries(image, inserts_are_updates=inserts_are_updates)
    keys, records = rows.final_state(transitions.has_effect)
    return Changes(
        changed=Mutations(keys, rows.received_rows(records), rows.schema_id),
        rows=take_rows(rows.rows, entries.rows),
        change_types=entries.change_types,
        row_count_delta=transitions.row_count_delta if image is ChangelogImage.FULL else None,
    )


class FirstRowMerger:
    """Writes the rows of new keys. Deletes are ignored or refused."""

    def __init__(self, decoder: BatchDecoder, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a first row cannot be deleted"
        self._decoder = decoder
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        # Only whether a key has a row matters, not what it is.
        is_stored = np.zeros(len(batch.fold.unique_keys), np.bool_)
        is_stored[batch.old.numbers] = True
        rows = self._decoder.decode(batch, self._deletes, with_stored_rows=False)
        is_first = (rows.fold.previous < 0) & ~is_stored[rows.fold.slots]
        return last_row_changes(rows.only(np.flatnonzero(is_first)), self._image)


# A null is the lowest version.
_VERSION_LOWEST = np.iinfo(np.int64).min


class VersionedMerger:
    """Compares rows by one column of type INT, BIGINT or TIMESTAMP. Deletes are ignored or refused."""

    def __init__(
        self, decoder: BatchDecoder, image: ChangelogImage, deletes: DeleteBehavior, version_column: int
    ) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a delete has no version"
        self._decoder = decoder
        self._image = image
        self._deletes = deletes
        self._version_column = version_column

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        rows = self._decoder.decode(batch, self._deletes)
        wins = self._wins(rows)
        return last_row_changes(rows.only(np.flatnonzero(wins)), self._image)

    def _wins(self, rows: DecodedBatch) -> BoolArray:
        """Return which rows replace the ones before them."""
        # One more version at the end is what the number of no row, -1, leads to.
        versions = np.append(_versions(rows.rows.column(self._version_column)), _VERSION_LOWEST)
        received, stored = versions[rows.received], versions[rows.stored[rows.fold.slots]]
        return received >= stored if rows.fold.is_unique else _is_highest_so_far(rows.fold, received, stored)


def _versions(column: pa.Array) -> Int64Array:
    numbers = np.frombuffer(column.buffers()[1] or b"", f"<i{column.type.bit_width // 8}")
    versions = numbers[column.offset :][: len(column)].astype(np.int64, copy=False)
    valid = mask_from_arrow(column)
    return versions if valid is None else np.where(valid, versions, _VERSION_LOWEST)


def _is_highest_so_far(fold: KeyFold, received: Int64Array, stored: Int64Array) -> BoolArray:
    """Return which records have a version that no earlier one of their key exceeds, nor the stored one.

    Ranks instead of versions leave room to lift the records of each key above those of all keys before it. One running
    maximum over all records then starts anew with every key.
    """
    order, starts = fold.runs()
    firsts = starts[:-1]
    versions = np.concatenate((received[order], stored[order[firsts]]))
    ranks = np.unique(versions, return_inverse=True)[1]
    lift = np.arange(len(firsts)) * len(ranks)
    own = ranks[: len(order)] + np.repeat(lift, np.diff(starts))
    first_before = ranks[len(order) :] + lift
    so_far = own.copy()
    so_far[firsts] = np.maximum(so_far[firsts], first_before)
    before = np.empty_like(own)
    before[1:] = np.maximum.accumulate(so_far)[:-1]
    before[firsts] = first_before
    wins = np.empty(len(order), np.bool_)
    wins[order] = own >= before
    return wins
