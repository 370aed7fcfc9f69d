"""Writes that replace what a table has: ``mode("overwrite")`` and ``INSERT OVERWRITE``.

A log has no way to take rows back, so a log table can only be appended to. A primary-key table is overwritten by
writing the new rows, and then deleting the rows of all other keys. Tasks note the keys that they write, as hashes of
128 bits; when all of them are done, the driver reads the keys of the table and deletes those that no task has written.
Readers see the table change row by row, first the new rows, then the deletes. If the write fails in between, the old
rows that were not updated are still there; it may just be repeated. Rows that only the lake has cannot be deleted: a
table with such rows is not overwritten.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import wait_for
from fluss.errors import FlussError
from fluss.row import compacted_columns
from fluss.row.arrow_arrays import bool_array
from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableInfo
from fluss.schema.table_options import DELETE_BEHAVIOR, MERGE_ENGINE, DeleteBehavior
from fluss.spark.write.only_in_lake import check_replaceable_rows
from fluss.spark.write.row_hashes import Hashes, RowCounts
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.sink_rows import SinkRows

# The hashes of all rows must fit into the memory of the driver: 16 bytes each.
ROWS_MAX: Final = 10_000_000


@dataclass(frozen=True)
class Overwrite:
    """One write that replaces the rows of a primary-key table. Made on the driver, sent to tasks."""

    # A random seed: keys with equal hashes cannot be made up.
    seed: int

    @classmethod
    def of(cls, plan: SinkPlan) -> Overwrite | None:
        """Check that a table can be overwritten. None if the rows are to be appended nevertheless."""
        info = plan.open_table().get_table_info()
        if info.has_primary_key():
            _check_replaceable(plan, info)
            check_replaceable_rows(plan.open_table())
            return cls(secrets.randbits(63))
        if plan.options.allow_overwrite:
            return None
        raise FlussError(
            f"{info.table_path} is a log table, whose rows cannot be taken back, so it cannot be overwritten. Write "
            "with mode append; or set 'sink.allow-overwrite' to true, which lets an overwrite append its rows and "
            "keeps those that are there"
        )

    def delete_others(self, table: FlussTable, tasks: Sequence[Hashes]) -> None:
        """Delete the rows whose keys no task has written."""
        info = table.get_table_info()
        # A partition may have been dropped meanwhile.
        check_replaceable_rows(table)
        written = RowCounts(self.seed)
        for hashes in tasks:
            written.add_hashes(hashes)
        _check_count(info, written.count)
        writer = table.new_upsert().create_writer()
        with table.new_scan().project_by_name(info.primary_keys).to_arrow_batch_reader() as reader:
            for batch in reader:
                is_written = written.subtract(_encoded_keys(info, batch))
                writer.delete_arrow_batch(batch.filter(bool_array(~is_written)))
        wait_for(writer.flush())


class WrittenKeys:
    """Notes the keys that one task writes."""

    def __init__(self, overwrite: Overwrite, info: TableInfo) -> None:
        self._info = info
        self._counts = RowCounts(overwrite.seed)

    def noted(self, batches: Iterable[SinkRows]) -> Iterator[SinkRows]:
        """Hand on batches, and note their keys."""
        for batch in batches:
            self._counts.add(_encoded_keys(self._info, batch.rows))
            _check_count(self._info, self._counts.count)
            yield batch

    def hashes(self) -> Hashes:
        return self._counts.hashes()


def check_complete_output(plan: SinkPlan) -> None:
    """Check that a stream may write with output mode complete: all its groups in every micro-batch.

    Groups never vanish, so writing them all is the same as replacing them all, if rows have keys.
    """
    info = plan.open_table().get_table_info()
    if not info.has_primary_key():
        raise FlussError(
            f"{info.table_path} is a log table: with output mode complete every micro-batch would append all rows "
            "again. Write to a table with a primary key, or use output mode append or update"
        )
    _check_replaceable(plan, info)


def _check_replaceable(plan: SinkPlan, info: TableInfo) -> None:
    """Check that a row that is written replaces the one of its key, and that rows can be deleted."""
    reason = None
    if MERGE_ENGINE.key in info.properties:
        reason = f"its merge engine {info.properties[MERGE_ENGINE.key]} merges rows with those that are there"
    elif info.properties.get(DELETE_BEHAVIOR.key, DeleteBehavior.ALLOW).lower() != DeleteBehavior.ALLOW:
        reason = f"its rows cannot be deleted ('{DELETE_BEHAVIOR.key}' is {info.properties[DELETE_BEHAVIOR.key]})"
    elif info.schema.get_auto_increment_columns():
        reason = "rows with an auto increment column cannot be replaced or deleted as a whole"
    elif plan.options.target_columns is not None:
        reason = "'sink.target-columns' leaves the other columns as they are"
    elif plan.options.change_type_column is not None:
        reason = "'sink.change-type-column' says row by row what to do"
    if reason is not None:
        raise FlussError(f"{info.table_path} cannot be overwritten: {reason}. Write with mode append")


def _check_count(info: TableInfo, count: int) -> None:
    if count > ROWS_MAX:
        raise FlussError(
            f"More than {ROWS_MAX} rows cannot overwrite {info.table_path}, because the driver has to know all their "
            "keys. Write them to a new table, or with mode append and delete the others by yourself"
        )


def _encoded_keys(info: TableInfo, batch: pa.RecordBatch) -> EncodedRows:
    names = info.primary_keys
    types = [info.schema.column(name).data_type for name in names]
    return compacted_columns.encode_rows([batch.column(name) for name in names], types)
