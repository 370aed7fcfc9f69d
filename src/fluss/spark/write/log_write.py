"""Rows of one task into a log table, each exactly once over all attempts.

An attempt that is the first one just writes. A later one

1. reads back what was written before it;
2. fences off other writers: an attempt that is believed to be dead, or its requests that are still on the way. Servers
   take a writer's batches in sequence and remember the last five, so behind ten batches without rows everything that
   was sent before is too late. What arrived up to then is read, too;
3. takes what is there away from its own rows, equal rows as often as they are there. If something is left over, the
   input is not the same as before: an error, and nothing is written;
4. writes the rest.

So neither the order of rows nor the batches have to be the same in all attempts, only the rows.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import Final

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import IN_FLIGHT_MAX, SequencedWriter, TableSplitter, append_encoder, slices, writer_batch_bytes
from fluss.errors import FlussError
from fluss.row import compacted_columns
from fluss.row.arrow_arrays import bool_array
from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableBucket
from fluss.schema.types import DataType
from fluss.spark.naming import format_bucket
from fluss.spark.write.row_hashes import RowCounts
from fluss.spark.write.sink_rows import WriteSummary
from fluss.spark.write.task_failure import refusing_rows
from fluss.spark.write.writer_record import LOST_TRACK, NOT_REPEATABLE, Attempt, concurrent_attempt

# Rows of a bucket wait until there are so many times the bytes of a batch, most of which compression will save; and
# those of all buckets until there are so many bytes.
_BATCH_EXPANSION: Final = 2
_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
# Servers remember the last batches of a writer, as many as it may have on the way. Behind twice as many batches without
# rows, a batch that was sent before is either there already or refused.
_FENCE_BATCHES: Final = 2 * IN_FLIGHT_MAX
_FENCES_MAX: Final = 5
_MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024


class LogWrite:
    """Writes the rows of one task to a log table. To be used once."""

    def __init__(self, table: FlussTable, attempt: Attempt) -> None:
        self._table = table
        self._attempt = attempt
        self._schema = table.get_table_info().schema
        self._encoder = append_encoder(table)
        self._places = TableSplitter.of(table)
        self._written = _Written(table, attempt, self._places)
        self._summary = WriteSummary()

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
        """Write all rows, and return when they are stored."""
        rows = (self._checked(batch) for batch in batches if batch.num_rows)
        first = list(islice(rows, 1))
        if not first and not self._attempt.is_begun():
            return self._summary
        self._attempt.open({bucket.partition_id for batch in first for bucket, _ in self._places.groups(batch)})
        everything = chain(first, rows)
        if not self._attempt.is_resumed:
            self._send(everything)
            return self._summary
        self._written.read()
        self._written.fence()
        with Spool(self._schema.to_arrow()) as rest:
            for batch in everything:
                left = self._missing(batch)
                if left.num_rows:
                    rest.add(left)
            self._check_nothing_left_over()
            self._send(rest.batches())
        return self._summary

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse rows that belong nowhere."""
        with refusing_rows():
            self._encoder.check_keys(batch)
        return batch

    def _missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have not been written."""
        is_written = self._written.rows.subtract(_encoded(self._schema.data_types, batch))
        found = int(is_written.sum())
        self._summary.rows += found
        self._summary.rows_found += found
        return batch.filter(bool_array(~is_written)) if found else batch

    def _check_nothing_left_over(self) -> None:
        if self._written.rows.count:
            raise FlussError(
                f"{self._written.rows.count} rows that an earlier attempt of this task wrote to "
                f"{self._table.table_path} are not among its rows now: {NOT_REPEATABLE}"
            )
        self._summary.rows_by_bucket += self._written.rows_by_bucket

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        attempt, names = self._attempt, self._places.partition_name
        by_bucket = self._summary.rows_by_bucket
        waiting = _Waiting(_BATCH_EXPANSION * writer_batch_bytes(self._table))
        with SequencedWriter(
            self._table, attempt.record.writer_id, next_sequences=self._written.next_sequences
        ) as writer:
            for batch in batches:
                groups = self._places.split(batch)
                attempt.cover({bucket.partition_id for bucket, _, _ in groups})
                for bucket, rows, _ in groups:
                    for piece in slices(rows, waiting.batch_bytes):
                        for full in waiting.add(bucket, piece):
                            writer.append(full, waiting.take(full))
                    self._summary.rows += rows.num_rows
                    by_bucket[format_bucket(names(bucket), bucket.bucket_id)] += rows.num_rows
            for bucket in waiting.buckets:
                writer.append(bucket, waiting.take(bucket))
            writer.flush()


class _Waiting:
    """Rows of buckets until there are enough for a batch."""

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self._rows: dict[TableBucket, list[pa.RecordBatch]] = {}
        self._bytes: dict[TableBucket, int] = {}
        self._bytes_total = 0

    @property
    def buckets(self) -> list[TableBucket]:
        return list(self._rows)

    def add(self, bucket: TableBucket, rows: pa.RecordBatch) -> Iterator[TableBucket]:
        """Add rows of a bucket, and yield the buckets whose rows should be taken now."""
        self._rows.setdefault(bucket, []).append(rows)
        self._bytes[bucket] = self._bytes.get(bucket, 0) + rows.nbytes
        self._bytes_total += rows.nbytes
        if self._bytes[bucket] >= self.batch_bytes:
            yield bucket
        while self._bytes_total > _WAITING_BYTES_MAX:
            yield max(self._bytes, key=self._bytes.__getitem__)

    def take(self, bucket: TableBucket) -> pa.RecordBatch:
        self._bytes_total -= self._bytes.pop(bucket)
        parts = self._rows.pop(bucket)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class _Written:
    """What the log has of a task."""

    def __init__(self, table: FlussTable, attempt: Attempt, places: TableSplitter) -> None:
        self._table = table
        self._attempt = attempt
        self._places = places
        self._types = table.get_table_info().schema.data_types
        # Rows count as equal if their hashes are. The seed is random: such rows cannot be made up.
        self.rows = RowCounts(secrets.randbits(63))
        self.rows_by_bucket: Counter[str] = Counter()
        # By bucket: the next sequence number, the offset to read on from, and how many fences the log ends with.
        self.next_sequences: dict[TableBucket, int] = {}
        self._offsets: dict[TableBucket, int] = {}
        self._fences: dict[TableBucket, int] = {}

    def read(self) -> None:
        """Read on."""
        writer_id = self._attempt.record.writer_id
        for batch in self._attempt.written(None, self._offsets):
            bucket, header = batch.bucket, batch.header
            self._offsets[bucket] = header.offset_next
            if header.writer_id == writer_id:
                self.next_sequences[bucket] = header.batch_sequence + 1
            self._fences[bucket] = 0 if batch.rows else self._fences.get(bucket, 0) + 1
            if batch.rows:
                self.rows.add(_encoded(self._types, batch.rows))
                text = format_bucket(self._places.partition_name(bucket), bucket.bucket_id)
                self.rows_by_bucket[text] += batch.rows.num_rows

    def fence(self) -> None:
        """Make sure that nothing comes any more that was sent before."""
        left = self._attempt.buckets()
        for _ in range(_FENCES_MAX):
            writer = SequencedWriter(self._table, self._attempt.record.writer_id, next_sequences=self.next_sequences)
            try:
                with writer:
                    for bucket in left:
                        for _ in range(_FENCE_BATCHES):
                            writer.append_nothing(bucket)
                    writer.flush()
            except FlussError as error:
                if error.error_code not in LOST_TRACK or writer.failed_bucket is None:
                    raise
                self._replace_forgotten(writer.failed_bucket, error)
                return
            self.read()
            # Rows of another attempt may have arrived between the fences.
            left = [bucket for bucket in left if self._fences.get(bucket, 0) < _FENCE_BATCHES]
            if not left:
                return
        raise concurrent_attempt(self._table)

    def _replace_forgotten(self, bucket: TableBucket, error: FlussError) -> None:
        """Go on under another writer id if the server has forgotten the one that it refused in this bucket."""
        before = self._offsets.get(bucket)
        self.read()
        if self._offsets.get(bucket) != before:
            raise concurrent_attempt(self._table) from error
        # No attempt has written anything there, and still the numbers are wrong: the server has forgotten the writer.
        # Then no other attempt can use its numbers either. Buckets that it never wrote to have taken fences.
        self._attempt.renew()
        self.next_sequences.clear()


def _encoded(types: Sequence[DataType], rows: pa.RecordBatch) -> EncodedRows:
    return compacted_columns.encode_rows(rows.columns, types)


class Spool:
    """Batches of one schema, read in the order in which they were added. A context manager that deletes its file."""

    def __init__(self, schema: pa.Schema, *, memory_bytes_max: int = _MEMORY_BYTES_MAX) -> None:
        self._schema = schema
        self._bytes_left = memory_bytes_max
        self._in_memory: list[pa.RecordBatch] = []
        self._cleanup = ExitStack()
        self._path: str | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._bytes_left -= batch.nbytes
        if self._bytes_left >= 0:
            self._in_memory.append(batch)
            return
        if self._writer is None:
            self._path = self._cleanup.enter_context(_temporary_path())
            self._writer = self._cleanup.enter_context(pa.ipc.new_stream(self._path, self._schema))
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches, and keep them no longer: this can be done once, when no more are added."""
        self._in_memory.reverse()
        while self._in_memory:
            yield self._in_memory.pop()
        if self._writer is not None and self._path is not None:
            self._writer.close()
            self._writer = None
            with pa.ipc.open_stream(self._path) as reader:
                yield from reader

    def close(self) -> None:
        self._in_memory.clear()
        self._cleanup.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _temporary_path() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="fluss-sink-") as file:
        yield file.name
