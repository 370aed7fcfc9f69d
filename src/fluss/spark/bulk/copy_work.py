"""What tasks of a copy do: copy buckets, and compare buckets.

The log of a bucket is copied in its order into the same bucket, in batches that depend on nothing but the rows: so
every attempt makes the same batches and gives them the same sequence numbers, and what two attempts write at the same
time is stored once. An attempt begins behind what the target has, which it finds by the writer id of the copy. Of a
primary-key table the rows at a fixed offset are copied, as any task writes rows exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import LogRange, SequencedWriter, read_ranges, slices, writer_batches
from fluss.row.arrow_arrays import narrowest_column
from fluss.schema.table import TableBucket, TablePath
from fluss.spark.bulk.checksums import Checksum, checksum
from fluss.spark.bulk.jobs import UnfitInputError
from fluss.spark.bulk.reports import BucketCheck
from fluss.spark.connections import open_table
from fluss.spark.naming import format_bucket
from fluss.spark.read.splits import Split, split_rows
from fluss.spark.write.exactly_once import ExactlyOnceWrite, WriterRecord

# The size of batches. Never change it: a copy that is continued must make the same ones.
_BATCH_ROWS: Final = 16_384
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024


class BucketPair(NamedTuple):
    """A part of the source, and the part of the target that it becomes or has become."""

    source: Split
    target: Split


@dataclass(frozen=True)
class TableRef:
    """A table of a cluster. It goes to the executors."""

    settings: Mapping[str, str] = field(repr=False)
    path: TablePath
    table_id: int

    def open(self) -> FlussTable:
        """Return the table, if it is still this one."""
        table = open_table(self.settings, self.path)
        if table.get_table_info().table_id != self.table_id:
            raise UnfitInputError(f"{self.path} was dropped and created again while it was copied; begin anew")
        return table


@dataclass(frozen=True, slots=True)
class CopyResult:
    """How many rows the buckets of a task have, all of which are in the target now."""

    rows: int


@dataclass(frozen=True)
class CopyWork:
    """Copies buckets."""

    source: TableRef
    target: TableRef
    writer_ids: tuple[int, ...]
    """The last one is used."""

    def __call__(self, pairs: Sequence[BucketPair]) -> CopyResult:
        source, target = self.source.open(), self.target.open()
        copy = self._copy_rows if source.has_primary_key() else self._copy_log
        return CopyResult(sum(copy(source, target, pair) for pair in pairs))

    def _copy_rows(self, source: FlussTable, target: FlussTable, pair: BucketPair) -> int:
        """Copy the rows of a bucket of a primary-key table. Keys belong to the same bucket in both tables."""
        *earlier, writer_id = self.writer_ids
        starts = {format_bucket(pair.target.partition_id, pair.target.bucket_id): 0}
        record = WriterRecord(self.target.table_id, writer_id, starts, tuple(earlier), rows_per_batch=0)
        return ExactlyOnceWrite(target, _BucketRecord(record)).write(split_rows(source, pair.source)).rows

    def _copy_log(self, source: FlussTable, target: FlussTable, pair: BucketPair) -> int:
        bucket = pair.target.bucket(self.target.table_id)
        rows, sequence = self._written(target, bucket)
        # Batches are cut out of groups of rows, so one that is half copied is read from its beginning.
        rows_again = rows % _BATCH_ROWS
        start = _offset_behind(source, pair.source, rows - rows_again)
        writer = SequencedWriter(target, self.writer_ids[-1], next_sequences={bucket: sequence})
        with writer:
            for batch in even_batches(split_rows(source, replace(pair.source, start=start))):
                if rows_again > 0:
                    rows_again -= batch.num_rows
                    if rows_again < 0:
                        raise _foreign(target, bucket)
                    continue
                writer.append(bucket, batch)
                rows += batch.num_rows
            writer.flush()
        return rows

    def _written(self, target: FlussTable, bucket: TableBucket) -> tuple[int, int]:
        """Return how many rows of a bucket are copied, and the sequence number of the next batch."""
        rows = sequence = 0
        for batch in writer_batches(target, self.writer_ids, {bucket: 0}):
            if batch.header.base_offset != rows:
                raise _foreign(target, bucket)
            rows = batch.header.offset_next
            if batch.header.writer_id == self.writer_ids[-1]:
                sequence = batch.header.batch_sequence + 1
        return rows, sequence


@dataclass(frozen=True)
class _BucketRecord:
    """Keeps the record of one bucket as it is: what the same writer has in other buckets is the matter of others."""

    record: WriterRecord

    def load(self) -> WriterRecord:
        return self.record

    def put(self, record: WriterRecord) -> bool:
        if record.writer_id != self.record.writer_id:
            raise UnfitInputError("The server has forgotten the writer of this copy; drop the target to copy anew")
        return True


def _foreign(target: FlussTable, bucket: TableBucket) -> UnfitInputError:
    return UnfitInputError(
        f"Bucket {bucket.bucket_id} of {target.table_path} has rows that the copy did not write; nobody else may write "
        "to it until the copy is finished. Drop it to copy anew"
    )


def _offset_behind(source: FlussTable, split: Split, rows: int) -> int:
    """Return the offset behind the first so many rows of a part of a log; not every offset has a row."""
    if not rows:
        return split.start
    info = source.get_table_info()
    ranges = [LogRange(split.bucket(info.table_id), split.start, split.stop)]
    left = rows
    with closing(read_ranges(source, ranges, columns=[narrowest_column(info.schema)])) as runs:
        for run in runs:
            if run.count >= left:
                return run.base_offset + left
            left -= run.count
    raise UnfitInputError(
        f"Bucket {split.bucket_id} of {info.table_path} has fewer rows than were copied of it; it is not the same table"
    )


def even_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join and cut rows to batches of a fixed number of rows; those that are too large once more, by their bytes."""
    for group in _groups(batches):
        yield from slices(group, _BATCH_BYTES_MAX)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pending: list[pa.RecordBatch] = []
    missing = _BATCH_ROWS
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, missing)
            first += part.num_rows
            missing -= part.num_rows
            pending.append(part)
            if not missing:
                yield pa.concat_batches(pending)
                pending, missing = [], _BATCH_ROWS
    if pending:
        yield pa.concat_batches(pending)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found in the buckets of a task."""

    rows: int
    checks: tuple[BucketCheck, ...]


@dataclass(frozen=True)
class CheckWork:
    """Compares buckets."""

    source: TableRef
    target: TableRef

    def __call__(self, pairs: Sequence[BucketPair]) -> CheckResult:
        source, target = self.source.open(), self.target.open()
        checks = tuple(
            BucketCheck(
                pair.source.partition_name,
                pair.source.bucket_id,
                _checksum(source, pair.source),
                _checksum(target, pair.target),
            )
            for pair in pairs
        )
        return CheckResult(sum(check.source.rows for check in checks), checks)


def _checksum(table: FlussTable, split: Split) -> Checksum:
    types = table.get_table_info().schema.data_types
    return sum((checksum(batch, types) for batch in split_rows(table, split)), Checksum())
