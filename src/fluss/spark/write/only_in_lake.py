"""Rows that only the lake of a table has: they are read with the table, and cannot be changed through Fluss.

Fluss forgets the partitions that are dropped, or expire, and the lake keeps them. A delete of such a row has nothing to
delete, and an update would begin the partition anew. So both are refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from fluss import FlussTable
from fluss.client.bulk import only_in_lake_of
from fluss.errors import FlussError
from fluss.schema.schema import shown_names


def check_replaceable_rows(table: FlussTable) -> None:
    """Refuse to replace all rows of a table with a primary key if some of them are in its lake only."""
    missing = only_in_lake_of(table)
    if missing:
        raise FlussError(
            f"{table.table_path} cannot be overwritten: it has {missing} in its lake only, where they cannot be "
            "deleted. Set 'client.lake.read' to off to overwrite what Fluss has, and leave what is in the lake"
        )


def check_changeable_rows(table: FlussTable, changed: Callable[[Sequence[str]], DataFrame]) -> None:
    """Refuse to change rows that are in the lake only; ``changed`` returns those that change in some partitions."""
    names = only_in_lake_of(table).partitions
    if names and changed(names).take(1):
        keys = shown_names(table.get_table_info().partition_keys)
        raise FlussError(
            f"{table.table_path} has rows that would change in its lake only, in partitions that Fluss does not have: "
            f"{shown_names(names)}. Leave them out by a condition on {keys}, or set 'scan.mode' to fluss for all that "
            "is read, as in FlussSpark(..., scan_mode='fluss'), to change what Fluss has"
        )
