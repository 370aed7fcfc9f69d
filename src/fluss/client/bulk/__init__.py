"""The door for pipelines, such as those of Spark: exact reads and exact writes of large parts of tables.

It is public inside the library only: users have the tables, scans and writers of ``fluss``. Everything here works on
tables that a connection returned, and blocks the calling thread.

| for | there are |
|---|---|
| plans | partitions, offsets, row counts and the lake snapshot of a table (``table_facts``) |
| reads | exact ranges of logs (``ranges``), the rows of a key table at an offset (``rows_at``) |
| changes | runs of records, the leading columns of a changelog, folding changes to rows (``scan``, ``LastChanges``) |
| writes | counted rows (``CountedWriter``), batches with chosen sequence numbers (``SequencedWriter``) |
| lakes | which tables are to be tiered, and registering what was (``TieringCalls``); reading them (``lake_reads``) |
| recovery | what a writer has written (``writer_batches``), where rows belong (``TableSplitter``) |
"""

from fluss.client.admin.tiering_calls import FinishedRound, HeartbeatAnswer, TieringAssignment, TieringCalls
from fluss.client.bulk.counted_writer import CountedWriter
from fluss.client.bulk.lake_reads import (
    OnlyInLake,
    lake_rows_of,
    lake_snapshot_at,
    last_rows,
    only_in_lake_of,
    rows_with_changes,
    union_plan_of,
)
from fluss.client.bulk.last_changes import KeyChanges, LastChanges
from fluss.client.bulk.ranges import LogRange, read_ranges, scan_columns
from fluss.client.bulk.rows_at import rows_at
from fluss.client.bulk.sequenced_writer import (
    IN_FLIGHT_MAX,
    SequencedWriter,
    append_encoder,
    new_writer_id,
    upsert_encoder,
)
from fluss.client.bulk.table_facts import (
    admin_of,
    lake_snapshot_of,
    named_buckets_of,
    offsets_of,
    partitions_and_dropped_of,
    partitions_of,
    reopened,
    row_counts_of,
    tiering_calls_of,
    writer_batch_bytes,
)
from fluss.client.bulk.table_splitter import TableSplitter
from fluss.client.bulk.writer_batches import WrittenBatch, writer_batches
from fluss.client.kernel.placement import PartitionSplitter, lake_format
from fluss.client.kernel.runtime import wait_for
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.records import NOT_IN_LOG, RecordRun, changelog_batch, changelog_schema
from fluss.client.scan.table_buckets import checked_choices, chosen_partitions
from fluss.client.scan.union_plan import UnionPlan
from fluss.client.write.arrow_input import slices
from fluss.client.write.encoders import gathered
from fluss.retry import JOBS, retried

__all__ = [
    "IN_FLIGHT_MAX",
    "JOBS",
    "NOT_IN_LOG",
    "ChangelogFold",
    "CountedWriter",
    "FinishedRound",
    "HeartbeatAnswer",
    "KeyChanges",
    "LastChanges",
    "LogRange",
    "OnlyInLake",
    "PartitionSplitter",
    "RecordRun",
    "SequencedWriter",
    "TableSplitter",
    "TieringAssignment",
    "TieringCalls",
    "UnionPlan",
    "WrittenBatch",
    "admin_of",
    "append_encoder",
    "changelog_batch",
    "changelog_schema",
    "checked_choices",
    "chosen_partitions",
    "gathered",
    "lake_format",
    "lake_rows_of",
    "lake_snapshot_at",
    "lake_snapshot_of",
    "last_rows",
    "named_buckets_of",
    "new_writer_id",
    "offsets_of",
    "only_in_lake_of",
    "partitions_and_dropped_of",
    "partitions_of",
    "read_ranges",
    "reopened",
    "retried",
    "row_counts_of",
    "rows_at",
    "rows_with_changes",
    "scan_columns",
    "slices",
    "tiering_calls_of",
    "union_plan_of",
    "upsert_encoder",
    "wait_for",
    "writer_batch_bytes",
    "writer_batches",
]
