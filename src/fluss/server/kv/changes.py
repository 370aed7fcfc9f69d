"""What goes into a merge and what comes out of it: one KV batch, and the changes it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.row.encoded import EncodedRows
from fluss.row.null_columns import BoolArray
from fluss.schema.change_type import ChangeType
from fluss.server.kv.key_fold import KeyFold

# Hands out so many ids for new rows of a table with an auto-increment column, in order.
NextIds: TypeAlias = Callable[[int], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class KvInput:
    """One KV batch, taken apart, and the values its keys have now.

    Its checksum and its schema id have been verified, its targets have passed ``check_targets``.
    """

    keys: EncodedRows
    # The row of a delete is empty.
    rows: EncodedRows
    is_delete: BoolArray
    # Of all rows.
    schema_id: int
    fold: KeyFold
    # The stored value (schema id and row) of each unique key, None where there is none. All None when the merger said
    # that it does not need them.
    old_values: Sequence[bytes | None]
    # The columns a partial update writes, empty for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the writer asked to bypass the merge engine of the table.
    is_overwrite: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What a batch does to its bucket: to the stored values, and in the changelog."""

    # The state of each changed key after the batch; None removes it. No key comes twice.
    keys: list[bytes]
    values: list[bytes | None]
    # The changelog in the newest schema, in the order of its offsets, and what each row is.
    rows: pa.RecordBatch
    change_types: UInt8Array
    # Keys that were added minus keys that were removed; None if the table does not count.
    row_count_delta: int | None


def row_count_delta(change_types: UInt8Array) -> int:
    """Return how many more keys there are after changes of a FULL changelog."""
    added = np.count_nonzero(change_types == ChangeType.Insert)
    return int(added) - int(np.count_nonzero(change_types == ChangeType.Delete))
