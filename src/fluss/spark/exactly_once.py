"""Rows of a task into a table, exactly once, however often and wherever the task is tried.

What makes that possible is in three modules: ``writer_record`` (what attempts must know of each other), ``log_write``
and ``keyed_write`` (what they do with it). Batch and streaming writes differ only in where the record is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from fluss.client.table import FlussTable
from fluss.spark.keyed_write import KeyedWrite
from fluss.spark.log_write import LogWrite
from fluss.spark.write_summary import SinkRows, WriteSummary
from fluss.spark.writer_record import Account, GivenRecord, RecordKeeper, WriterRecord

__all__ = ["ExactlyOnceWrite", "WriteSummary", "WriterRecord"]


class ExactlyOnceWrite:
    """One attempt to write the rows of one task. To be used once, by one thread.

    The record of the task is given, or a place where it is kept. A given record must be the same in all attempts;
    ``is_fresh`` says that this is the first of them, which need not look for what others have written. With
    ``target_columns``, for a primary-key table, only these columns are written.
    """

    def __init__(
        self,
        table: FlussTable,
        record: WriterRecord | RecordKeeper,
        *,
        is_fresh: bool = False,
        target_columns: Sequence[str] | None = None,
    ) -> None:
        self._table = table
        self._target_columns = target_columns
        keeper = GivenRecord(record) if isinstance(record, WriterRecord) else record
        self._account = Account(table, keeper, is_resumed=not is_fresh)

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
        """Append or upsert all rows, which have the form of the table, and return when they are stored.

        In all attempts the rows must be the same. They may come in another order, except that in a primary-key table
        those of one key should not. An error leaves a state with which the next attempt goes on.
        """
        return self.write_rows(SinkRows(batch) for batch in batches)

    def write_rows(self, batches: Iterable[SinkRows]) -> WriteSummary:
        """Write rows, and delete those that are marked; otherwise like ``write``."""
        if self._table.has_primary_key():
            return KeyedWrite(self._table, self._account, self._target_columns).write(batches)
        return LogWrite(self._table, self._account).write(batch.rows for batch in batches)
