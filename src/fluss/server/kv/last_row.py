"""The default merge engine: the last row of a key is its row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluss.row.arrow_arrays import take_rows
from fluss.server.kv.batch_rows import BatchReader, BatchRows
from fluss.server.kv.changes import Changes, KvInput, NextIds
from fluss.server.kv.transitions import Transitions
from fluss.server.table_options import ChangelogImage, DeleteBehavior
from fluss.storage.kv.keyed_rows import KeyedRows


class LastRowMerger:
    """Puts replace, deletes remove. Rows are stored as they were received."""

    def __init__(self, reader: BatchReader, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        self._reader = reader
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        if self._image is ChangelogImage.FULL:
            return True
        # A WAL image shows what was there only when it goes.
        return has_deletes and self._deletes is DeleteBehavior.ALLOW

    def merge(self, batch: KvInput, next_ids: NextIds | None) -> Changes:
        rows = self._reader.read(batch, self._deletes)
        # Whether a key is new is known only if the stored values are, so a WAL image says +U for both.
        return last_row_changes(rows, self._image, inserts_are_updates=self._image is ChangelogImage.WAL)


def last_row_changes(rows: BatchRows, image: ChangelogImage, *, inserts_are_updates: bool = False) -> Changes:
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
        changed=KeyedRows(keys, rows.received_rows(records), rows.schema_id),
        rows=take_rows(rows.rows, entries.rows),
        change_types=entries.change_types,
        row_count_delta=transitions.row_count_delta if image is ChangelogImage.FULL else None,
    )
