"""The merge engine ``versioned``: a row replaces another one of its key unless its version is lower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow
from fluss.server.kv.batch_rows import BatchReader, BatchRows
from fluss.server.kv.changes import Changes, KvInput, NextIds
from fluss.server.kv.key_fold import KeyFold
from fluss.server.kv.last_row import last_row_changes
from fluss.server.table_options import ChangelogImage, DeleteBehavior

# A null is the lowest version.
_VERSION_LOWEST = np.iinfo(np.int64).min


class VersionedMerger:
    """Compares rows by one column of type INT, BIGINT or TIMESTAMP. Deletes are ignored or refused."""

    def __init__(
        self, reader: BatchReader, image: ChangelogImage, deletes: DeleteBehavior, version_column: int
    ) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a delete has no version"
        self._reader = reader
        self._image = image
        self._deletes = deletes
        self._version_column = version_column

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: KvInput, next_ids: NextIds | None) -> Changes:
        rows = self._reader.read(batch, self._deletes)
        wins = self._wins(rows)
        return last_row_changes(rows.only(np.flatnonzero(wins)), self._image)

    def _wins(self, rows: BatchRows) -> BoolArray:
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
