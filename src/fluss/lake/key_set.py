"""Keys of one or several columns, and which rows of a batch have one of them. Null is a value like others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BoolArray = npt.NDArray[np.bool_]


class KeySet:
    """A set of keys. What is asked about must have columns of the same names, in types that can be cast."""

    def __init__(self, keys: pa.Table) -> None:
        self.names: Sequence[str] = keys.schema.names
        self._values: list[pa.Array] = []
        # After each column but the last: the pairs of (number of the key so far, number of the value) that there are.
        self._pairs: list[npt.NDArray[np.int64]] = []
        codes = np.zeros(keys.num_rows, np.int64)
        for column in keys.columns:
            values = pc.unique(column)
            numbers = _numbers(column, values)
            self._values.append(values)
            pairs, codes = np.unique(codes * (len(values) + 1) + numbers, return_inverse=True)
            self._pairs.append(pairs)

    def contains(self, rows: pa.Table | pa.RecordBatch) -> BoolArray:
        """Return for each row whether its key is in the set."""
        found: BoolArray = np.ones(rows.num_rows, bool)
        codes = np.zeros(rows.num_rows, np.int64)
        for name, values, pairs in zip(self.names, self._values, self._pairs, strict=True):
            if len(values) == 0:
                return np.zeros(rows.num_rows, bool)
            numbers = _numbers(rows.column(name), values)
            wanted = codes * (len(values) + 1) + numbers
            codes = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            found &= (numbers >= 0) & (pairs[codes] == wanted)
        return found


def _numbers(column: Any, values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the place of each value among ``values``, -1 for those that are not there."""
    if not column.type.equals(values.type):
        column = column.cast(values.type)
    indexes = pc.fill_null(pc.index_in(column, value_set=values), -1)
    if isinstance(indexes, pa.ChunkedArray):
        indexes = indexes.combine_chunks()
    return indexes.to_numpy(zero_copy_only=False).astype(np.int64)
