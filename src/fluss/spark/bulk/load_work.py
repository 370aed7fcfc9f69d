"""What a task of a load does: reads its pieces of files, and writes their rows once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from fluss.client.bulk.table_facts import partitions_of
from fluss.client.table import FlussTable
from fluss.client.wrappers import wait_for
from fluss.client.write.splitter import PartitionSplitter
from fluss.schema.partition import spec_of_partition_name
from fluss.schema.table import TablePath
from fluss.spark.bulk.csv_files import CsvFormat
from fluss.spark.bulk.file_read import FileReading
from fluss.spark.bulk.fitting import ColumnChoice
from fluss.spark.bulk.load_state import LoadResult, LoadTask
from fluss.spark.bulk.unfit import UnfitInputError
from fluss.spark.connections import open_connection, open_table
from fluss.spark.exactly_once import ExactlyOnceWrite, WriterRecord


@dataclass(frozen=True)
class LoadWork:
    """Loads the files of a task into a table. It goes to the executors."""

    settings: Mapping[str, str] = field(repr=False)
    path: TablePath
    table_id: int
    choice: ColumnChoice
    csv_format: CsvFormat
    starts: Mapping[str, int]
    """Where the logs of all buckets ended before the load."""
    creates_partitions: bool
    is_continued: bool
    """Whether an earlier run may have written something."""

    def __call__(self, task: LoadTask) -> LoadResult:
        table = open_table(self.settings, self.path)
        info = table.get_table_info()
        if info.table_id != self.table_id:
            raise UnfitInputError(f"{self.path} was dropped and created again while files were loaded; begin anew")
        reading = FileReading(info.schema, self.choice, self.csv_format)
        batches: Iterable[pa.RecordBatch] = (batch for piece in task.pieces for batch in reading.read(piece))
        if info.is_partitioned() and self.creates_partitions:
            batches = self._with_partitions(table, batches)
        record = WriterRecord(self.table_id, task.writer_id, self.starts, rows_per_batch=0)
        write = ExactlyOnceWrite(table, record, is_fresh=self._is_first_attempt())
        summary = write.write(batches)
        return LoadResult(summary.rows, summary.rows_found)

    def _is_first_attempt(self) -> bool:
        context = TaskContext.get()
        return not self.is_continued and context is not None and context.attemptNumber() == 0

    def _with_partitions(self, table: FlussTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on when the partitions of their rows exist."""
        info = table.get_table_info()
        splitter = PartitionSplitter(info.schema, info.partition_keys)
        admin = open_connection(self.settings).get_admin()
        known = {partition.partition_name for partition in partitions_of(table)}
        for batch in batches:
            splitter.check_keys(batch)
            for name, _ in splitter.groups(batch):
                if name not in known:
                    spec = spec_of_partition_name(name, info.partition_keys)
                    wait_for(admin.create_partition(self.path, spec, ignore_if_exists=True))
                    known.add(name)
            yield batch
