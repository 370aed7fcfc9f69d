"""Writes batches whose writer id and sequence numbers the caller chooses, so that the caller can go on after a crash.

A normal writer gets an id for itself and numbers its batches as they are sent. A job that has to know after a crash
what has been stored keeps the id somewhere safe, makes the same batches again, finds out which numbers the log has
(``writer_batches``), and sends the others. A server takes the batches of a writer and a bucket only in the order
of their numbers, and each number once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.client.bulk.table_splitter import TableSplitter
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.write.accumulator import MemoryPool
from fluss.client.write.batch import Batch, GivenSequences, allocate_writer_id
from fluss.client.write.encoders import EncodedBatch, EncodedLogBatch, KvEncoder, LogEncoder
from fluss.client.write.sender import Sender, SenderSettings
from fluss.client.write.target_columns import checked_targets
from fluss.errors import FlussError, RequestTimeoutError
from fluss.record.kv_batch import RECORDS_MAX
from fluss.record.log_batch import BATCH_BYTES_MAX, MAGIC_V0
from fluss.retry import JOBS, retried
from fluss.schema.normalize import normalize_batch
from fluss.schema.table import TableBucket

# What servers remember of a writer, and so what may be on the way to a bucket at once.
IN_FLIGHT_MAX: Final = 5
_ACKS_ALL: Final = -1


def new_writer_id(table: FlussTable) -> int:
    """Ask a server for a new writer id; while none answers or its disk is full, no longer than ``request-timeout``."""
    context = context_of(table)

    def ask() -> int:
        return context.runtime.run(allocate_writer_id(context.cluster, [table.table_path]))

    return retried(ask, JOBS, context.cluster.config.request_timeout_ms / 1000)


def append_encoder(table: FlussTable) -> LogEncoder:
    """Return the encoder of a log table."""
    context = context_of(table)
    return context.writer_client().log_encoder(context.info)


def upsert_encoder(table: FlussTable, target_columns: Sequence[str] | None = None) -> KvEncoder:
    """Return an encoder of whole rows of a table with a primary key, or of some of their columns.

    Unlike those of normal writers it has no limit for the size of a batch but that of the format.
    """
    context = context_of(table)
    targets = checked_targets(context.info, target_columns)
    hash_variant = context.writer_client().hash_variant
    return KvEncoder(context.info, hash_variant, targets=targets, batch_bytes_max=BATCH_BYTES_MAX)


class SequencedWriter:
    """Writes to one table under a given writer id. Belongs to one thread.

    One call is one batch with one sequence number. The numbers of a bucket begin with the one in ``next_sequences``,
    or with 0. Calls encode the rows, wait while ``writer.buffer.memory-size`` bytes are unsent, and return; batches are
    sent in the background, again when an answer is lost. After the first failure nothing more is sent, and every call
    raises it: the number of a batch that was not stored is not given to another one.

    ``target_columns`` are for partial updates: calls take these columns only. ``idle_timeout_s`` is how long a call
    waits while not a single batch is stored.
    """

    def __init__(
        self,
        table: FlussTable,
        writer_id: int,
        *,
        next_sequences: Mapping[TableBucket, int] | None = None,
        target_columns: Sequence[str] | None = None,
        idle_timeout_s: float = 300.0,
    ) -> None:
        context = context_of(table)
        config = context.cluster.config
        self._cluster = context.cluster
        self._client = context.writer_client()
        self._runtime = context.runtime
        self._info = info = context.info
        self._idle_timeout_s = idle_timeout_s
        # Nothing has to be done for memory to become free: everything has been handed to the sender.
        self._memory = MemoryPool(config.writer_buffer_memory_size, idle_timeout_s, lambda: None)
        self._encoder: LogEncoder | KvEncoder
        if info.has_primary_key():
            self._encoder = upsert_encoder(table, target_columns)
        else:
            assert target_columns is None, "only rows with a primary key can be updated"
            self._encoder = append_encoder(table)
        self._splitter = TableSplitter.of(table)
        sequences = GivenSequences(writer_id, next_sequences or {}, in_flight_max=IN_FLIGHT_MAX)
        # A number stands for one batch, for ever, so batches are not joined.
        settings = replace(
            SenderSettings.of(config),
            acks=_ACKS_ALL,
            is_idempotent=True,
            in_flight_max=IN_FLIGHT_MAX,
            joined_bytes_max=0,
        )
        self._sender = self._runtime.run(self._open(settings, sequences))
        # Shared with the event loop, under the condition.
        self._changed = threading.Condition(threading.Lock())
        self._unsent_count = 0
        self._ended_count = 0
        self._failure: FlussError | None = None
        self._failed_bucket: TableBucket | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def _open(self, settings: SenderSettings, sequences: GivenSequences) -> Sender:
        return Sender(self._cluster, settings, sequences)

    # Batches

    def append(self, bucket: TableBucket, rows: pa.RecordBatch) -> None:
        """Append rows to a bucket of a log table, as one batch; the columns are those of the table."""
        assert isinstance(self._encoder, LogEncoder), "a table with a primary key takes upserts"
        checked = normalize_batch(rows, self._info.schema)
        self._encoder.check_keys(checked)
        self._send(bucket, self._encoder.encode_batch(checked))

    def append_nothing(self, bucket: TableBucket) -> None:
        """Use up a sequence number of a bucket of a log table: a batch without rows, which takes one offset."""
        assert isinstance(self._encoder, LogEncoder), "a table with a primary key takes upserts"
        self._send(bucket, EncodedLogBatch(self._info.schema_id, 0, MAGIC_V0, b"", b""))

    def upsert(self, bucket: TableBucket, rows: pa.RecordBatch, is_delete: npt.NDArray[np.bool_] | None = None) -> None:
        """Upsert rows of a bucket of a table with a primary key, as one batch; ``is_delete`` marks keys to delete.

        The columns are those of the table, or the target columns. Of a delete only the key counts.
        """
        encoder = self._keyed()
        if rows.num_rows > RECORDS_MAX:
            raise FlussError(f"A batch has {rows.num_rows} rows, it may have {RECORDS_MAX}; write fewer at a time")
        for _, records in encoder.encode(encoder.checked(rows, is_delete), bucket.bucket_id):
            self._send(bucket, records)

    def put(self, bucket: TableBucket, records: memoryview, record_count: int) -> None:
        """Upsert records that ``KvEncoder.encode_records`` has made, back to back, as one batch."""
        self._send(bucket, self._keyed().batch_of(records, record_count))

    def _keyed(self) -> KvEncoder:
        assert isinstance(self._encoder, KvEncoder), "a log table takes appends"
        return self._encoder

    def _send(self, bucket: TableBucket, records: EncodedBatch) -> None:
        self._raise_failure()
        table = self._client.physical_table(self._encoder, self._splitter.partition_name(bucket))
        batch = Batch(records, bucket.bucket_id, partial(self._ended, bucket))
        self._reserve(batch.size_bytes)
        with self._changed:
            self._unsent_count += 1
        self._runtime.loop.call_soon_threadsafe(self._sender.add, table, batch)

    def _reserve(self, byte_count: int) -> None:
        try:
            self._memory.reserve(byte_count)
        except FlussError:
            # That nothing became free may have a reason.
            self._raise_failure()
            raise

    # On the event loop

    def _ended(self, bucket: TableBucket, batch: Batch, error: FlussError | None) -> None:
        self._memory.release(batch.size_bytes)
        with self._changed:
            self._unsent_count -= 1
            self._ended_count += 1
            is_first_failure = error is not None and self._failure is None
            if is_first_failure:
                self._failure, self._failed_bucket = error, bucket
            self._changed.notify_all()
        if is_first_failure and error is not None:
            # What comes behind it would only be refused, again and again.
            self._closing = self._runtime.loop.create_task(self._sender.close(error))

    @property
    def failed_bucket(self) -> TableBucket | None:
        """The bucket whose batch failed first; None as long as none has."""
        return self._failed_bucket

    # The end

    def flush(self) -> None:
        """Wait until everything is stored. Raises the first failure."""
        with self._changed:
            waited_from_s, seen_count = monotonic(), self._ended_count
            while self._unsent_count and self._failure is None:
                left_s = waited_from_s + self._idle_timeout_s - monotonic()
                if left_s <= 0:
                    raise RequestTimeoutError(
                        f"{self._unsent_count} batches for {self._info.table_path} are not stored, and none was for "
                        f"{self._idle_timeout_s:g} s; the server may be slow or away"
                    )
                self._changed.wait(left_s)
                if self._ended_count != seen_count:
                    waited_from_s, seen_count = monotonic(), self._ended_count
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.copied()
        if self._is_closed:
            raise FlussError("this writer is closed; make a new one")

    def close(self) -> None:
        """Stop at once. What has not been stored may or may not be. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runtime.run(self._sender.close(FlussError("the writer was closed before the batch was stored")))
        self._memory.close()

    def __enter__(self) -> SequencedWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
