"""The keys that callers look up: rows of key columns, and where in the cluster the rows they stand for are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluss.client.given_rows import internal_values
from fluss.client.table_keys import TableKeys
from fluss.row.partition_names import row_partition_name
from fluss.schema.table import TableInfo


class Located(NamedTuple):
    """Where a key is looked for: a partition, if the table has some, one of its buckets, and the bytes there."""

    partition_name: str | None
    bucket_id: int
    key: bytes


class KeyRows:
    """Takes apart the keys of one table. Has no state: it may be shared by threads.

    Callers give the columns ``names``, in this order: all partition columns, and all columns of ``keys``.
    """

    def __init__(self, info: TableInfo, names: Sequence[str], keys: TableKeys) -> None:
        self.columns = [info.schema.column(name) for name in names]
        self.keys = keys
        self.key_indexes = [names.index(name) for name in keys.key_names]
        self._partition_indexes = [names.index(name) for name in info.partition_keys]
        self._partition_types = [self.columns[index].data_type for index in self._partition_indexes]

    def locate(self, row: Any) -> Located:
        """Find out where a key is: a dict by column name, or a list or tuple. What does not fit is a FlussError."""
        values = internal_values(row, self.columns)
        partition_name = None
        if self._partition_indexes:
            partition_name = row_partition_name(
                self._partition_types, [values[index] for index in self._partition_indexes]
            )
        key_values = [values[index] for index in self.key_indexes]
        key = self.keys.encode_row(key_values)
        return Located(partition_name, self.keys.bucket(key_values, key), key)
