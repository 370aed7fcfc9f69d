"""What tasks of a copy do: copy buckets, and compare buckets.

The log of a bucket is copied in its order into the same bucket, in batches that depend on nothing but the rows: so
every attempt makes the same batches and gives them the same sequence numbers, and what two attempts write at the same
time is stored once. An attempt begins behind what the target has, which it finds by the writer id of the copy. Of a
primary-key table the rows at a fixed offset are copied, as any task writes rows exactly once.

Buckets are compared by checksums of rows in any order: every row has a hash of 64 bits over its values, and the
checksum is the sum of the hashes. Equal rows have equal hashes in every process and on every machine. Columns are
hashed one by one: numbers as they are, texts and bytes where they are, everything nested by its encoding as a row. It
is a check against loss and damage, not against forgery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from fluss import FlussTable
from fluss.client.bulk import LogRange, SequencedWriter, read_ranges, slices, writer_batches
from fluss.row.arrow_arrays import narrowest_column
from fluss.row.compacted_columns import encode_rows
from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableBucket, TablePath
from fluss.schema.types import DataType
from fluss.spark.bulk.reports import BucketCheck, Checksum
from fluss.spark.bulk.task_results import UnfitInputError
from fluss.spark.connections import await_table
from fluss.spark.naming import format_bucket
from fluss.spark.read.planner import Split
from fluss.spark.read.split_rows import split_rows
from fluss.spark.write.keyed_write import KeyedWrite
from fluss.spark.write.row_hashes import UInt64Array, row_hashes
from fluss.spark.write.sink_rows import SinkRows
from fluss.spark.write.writer_record import Attempt, WriterRecord

# The size of batches. Never change it: a copy that is continued must make the same ones.
_BATCH_ROWS: Final = 16_384
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_SEED: Final = 0x6A09_E667_F3BC_C909
_NULL_HASH: Final = np.uint64(0x9B05_688C_2B3E_6C1F)
_COLUMN_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FACTOR_1: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_FACTOR_2: Final = np.uint64(0x94D0_49BB_1331_11EB)
# Rows that are hashed at once; more would leave the processor's cache.
_ROWS_MAX: Final = 8192


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
        table = await_table(self.settings, self.path)
        if table.get_table_info().table_id != self.table_id:
            raise UnfitInputError(f"{self.path} was dropped and created again while it was copied; begin anew")
        return table


# Copying


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
        write = KeyedWrite(target, Attempt(target, _BucketRecord(record)))
        return write.write(SinkRows(batch) for batch in split_rows(source, pair.source)).rows

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


# Comparing


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


def checksum(batch: pa.RecordBatch, types: Sequence[DataType]) -> Checksum:
    """Return the checksum of some rows, whose columns have the Arrow types of these types."""
    total = Checksum()
    for first in range(0, batch.num_rows, _ROWS_MAX):
        part = batch.slice(first, _ROWS_MAX)
        hashes: UInt64Array = np.zeros(part.num_rows, np.uint64)
        for column, data_type in zip(part.columns, types, strict=True):
            # The order of the columns counts, too.
            hashes *= _COLUMN_FACTOR
            hashes += _column_hashes(column, data_type)
            _mix(hashes)
        total += Checksum(part.num_rows, int(hashes.sum(dtype=np.uint64)))
    return total


def _column_hashes(column: pa.Array, data_type: DataType) -> UInt64Array:
    hashes = _value_hashes(column, data_type)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL_HASH
    return hashes


def _value_hashes(column: pa.Array, data_type: DataType) -> UInt64Array:
    """Hash values; where a value is null, the hash is anything."""
    arrow_type = column.type
    if pat.is_nested(arrow_type):
        return row_hashes(encode_rows([column], [data_type.with_nullable(True)]), _SEED)
    if pat.is_string(arrow_type) or pat.is_binary(arrow_type):
        offsets = _numbers(column.buffers()[1], np.int32, column.offset, len(column) + 1).astype(np.int64)
        return row_hashes(EncodedRows.from_offsets(_content(column.buffers()[2], offsets), offsets - offsets[0]), _SEED)
    if pat.is_boolean(arrow_type):
        column = column.cast(pa.uint8())
    if pat.is_fixed_size_binary(arrow_type):
        offsets = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * arrow_type.byte_width
        return row_hashes(EncodedRows.from_offsets(_content(column.buffers()[1], offsets), offsets - offsets[0]), _SEED)
    if pat.is_decimal(arrow_type):
        halves = _numbers(column.buffers()[1], np.uint64, column.offset * 2, len(column) * 2)
        return _mix(_mix(halves[::2].copy()) ^ halves[1::2])
    number_type = np.dtype(f"u{column.type.bit_width // 8}")
    return _mix(_numbers(column.buffers()[1], number_type, column.offset, len(column)).astype(np.uint64))


def _numbers(buffer: pa.Buffer, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
    """View a part of a buffer as numbers."""
    return np.frombuffer(buffer, dtype, count, first * np.dtype(dtype).itemsize)


def _content(buffer: pa.Buffer | None, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """View the bytes between the first and the last offset; there need not be a buffer for nothing."""
    if buffer is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _mix(numbers: UInt64Array) -> UInt64Array:
    """Spread every bit over all bits of its number, in place."""
    numbers ^= numbers >> np.uint64(32)
    numbers *= _FACTOR_1
    numbers ^= numbers >> np.uint64(29)
    numbers *= _FACTOR_2
    numbers ^= numbers >> np.uint64(32)
    return numbers
