"""What a task does with its rows: write them at least once or exactly once, and say what was written.

Exactly once, however often and wherever the task is tried, is made in three modules: ``writer_record`` (what attempts
must know of each other), ``log_write`` and ``keyed_write`` (what they do with it). Batch and streaming writes differ
only in where the record is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import CountedWriter
from fluss.spark.naming import format_bucket
from fluss.spark.write.keyed_write import KeyedWrite
from fluss.spark.write.log_write import LogWrite
from fluss.spark.write.sink import SinkPlan, SinkRows, WriteSummary
from fluss.spark.write.writer_record import Attempt, DriverRecord, RecordStore, WriterRecord


def write_at_least_once(table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows]) -> WriteSummary:
    """Write rows, and return when they are stored. If the task is tried again, all of them are written again."""
    writer = CountedWriter(table, target_columns=plan.target_columns)
    for batch in rows:
        writer.write(batch.rows, batch.is_delete)
    writer.flush()
    counts = writer.row_counts
    summary = WriteSummary(rows=counts.total())
    for (partition_name, bucket_id), row_count in counts.items():
        summary.rows_by_bucket[format_bucket(partition_name, bucket_id)] = row_count
    return summary


def write_exactly_once(
    table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows], records: RecordStore
) -> WriteSummary:
    """Write the rows that no attempt of the task has written before, and return when all of them are stored."""
    return ExactlyOnceWrite(table, records, target_columns=plan.target_columns).write_rows(rows)


class ExactlyOnceWrite:
    """One attempt to write the rows of one task. To be used once, by one thread.

    The record of the task is kept in a store, or was made by the driver, which gives the same one to all attempts;
    ``is_fresh`` says that this is the first of them, which need not look for what others have written. With
    ``target_columns``, for a primary-key table, only these columns are written.
    """

    def __init__(
        self,
        table: FlussTable,
        record: WriterRecord | RecordStore,
        *,
        is_fresh: bool = False,
        target_columns: Sequence[str] | None = None,
    ) -> None:
        self._table = table
        self._target_columns = target_columns
        store = DriverRecord(record) if isinstance(record, WriterRecord) else record
        self._attempt = Attempt(table, store, is_resumed=not is_fresh)

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
        """Append or upsert all rows, which have the form of the table, and return when they are stored.

        In all attempts the rows must be the same. They may come in another order, except that in a primary-key table
        those of one key should not. An error leaves a state with which the next attempt goes on.
        """
        return self.write_rows(SinkRows(batch) for batch in batches)

    def write_rows(self, batches: Iterable[SinkRows]) -> WriteSummary:
        """Write rows, and delete those that are marked; otherwise like ``write``."""
        if self._table.has_primary_key():
            return KeyedWrite(self._table, self._attempt, self._target_columns).write(batches)
        return LogWrite(self._table, self._attempt).write(batch.rows for batch in batches)
