"""What goes into a merge and what comes out of it: one KV batch, and the changes it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows
from fluss.server.kv.key_fold import KeyFold
from fluss.server.kv.transitions import DELETE, INSERT
from fluss.storage.kv.keyed_rows import FoundRows, KeyedRows

# Hands out so many ids for new rows of a table with an auto-increment column, in order.
NextIds: TypeAlias = Callable[[int], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class KvInput:
    """One KV batch, taken apart, and the rows its keys have now.

    Its checksum and its schema id have been verified, its targets have passed ``check_targets``.
    """

    keys: EncodedRows
    # The row of a delete is empty.
    rows: EncodedRows
    is_delete: BoolArray
    # Of all rows.
    schema_id: int
    fold: KeyFold
    # What is stored under the unique keys, by their slots. Nothing if the merger said that it does not need it.
    old: FoundRows
    # The columns a partial update writes, empty for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the writer asked to bypass the merge engine of the table.
    is_overwrite: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What a batch does to its bucket: to the stored rows, and in the changelog."""

    # The row of each changed key after the batch; an empty one removes the key.
    changed: KeyedRows
    # The changelog in the newest schema, in the order of its offsets, and what each row is.
    rows: pa.RecordBatch
    change_types: UInt8Array
    # Keys that were added minus keys that were removed; None if the table does not count.
    row_count_delta: int | None


def row_count_delta(change_types: UInt8Array) -> int:
    """Return how many more keys there are after changes of a FULL changelog."""
    return int(np.count_nonzero(change_types == INSERT)) - int(np.count_nonzero(change_types == DELETE))
