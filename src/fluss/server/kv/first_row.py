"""The merge engine ``first_row``: the first row of a key stays, later ones vanish."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluss.schema.table_options import ChangelogImage, DeleteBehavior
from fluss.server.kv.batch_rows import BatchReader
from fluss.server.kv.changes import Changes, KvInput, NextIds
from fluss.server.kv.last_row import last_row_changes


class FirstRowMerger:
    """Writes the rows of new keys. Deletes are ignored or refused."""

    def __init__(self, reader: BatchReader, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a first row cannot be deleted"
        self._reader = reader
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: KvInput, next_ids: NextIds | None) -> Changes:
        # Only whether a key has a row matters, not what it is.
        is_stored = np.zeros(len(batch.fold.unique_keys), np.bool_)
        is_stored[batch.old.numbers] = True
        rows = self._reader.read(batch, self._deletes, with_stored_rows=False)
        is_first = (rows.fold.previous < 0) & ~is_stored[rows.fold.slots]
        return last_row_changes(rows.only(np.flatnonzero(is_first)), self._image)
