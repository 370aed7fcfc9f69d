"""What a task does with its rows: write them with one of the two guarantees, and say what was written."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.bulk.counted_writer import CountedWriter
from fluss.client.table import FlussTable
from fluss.spark.bucket_texts import bucket_text
from fluss.spark.exactly_once import ExactlyOnceWrite
from fluss.spark.sink import SinkPlan
from fluss.spark.write_summary import SinkRows, WriteSummary
from fluss.spark.writer_record import RecordKeeper


def write_at_least_once(table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows]) -> WriteSummary:
    """Write rows, and return when they are stored. If the task is tried again, all of them are written again."""
    writer = CountedWriter(table, target_columns=plan.target_columns)
    for batch in rows:
        writer.write(batch.rows, batch.is_delete)
    writer.flush()
    counts = writer.row_counts
    summary = WriteSummary(rows=counts.total())
    for (partition_name, bucket_id), row_count in counts.items():
        summary.rows_by_bucket[bucket_text(partition_name, bucket_id)] = row_count
    return summary


def write_exactly_once(
    table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows], records: RecordKeeper
) -> WriteSummary:
    """Write the rows that no attempt of the task has written before, and return when all of them are stored."""
    return ExactlyOnceWrite(table, records, target_columns=plan.target_columns).write_rows(rows)
