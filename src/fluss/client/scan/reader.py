"""Takes batches out of the buffer, decodes them on the calling thread, and moves the consumer's positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from fluss.client.kernel.decode import BatchDecoder, DecodedBatch, ValueDecoder
from fluss.client.scan.buffer import Chunk, ScanBuffer
from fluss.client.scan.records import RecordRun
from fluss.client.scan.subscription import FROM_SNAPSHOT, Subscription
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.log_batch import LogBatch, iter_batches
from fluss.schema.change_type import ChangeType


class BatchReader:
    """Reads what is buffered, in order, in pieces of any number of records.

    A batch is decoded once, however many pieces it is read in. Used by one thread at a time. ``on_damage`` is told
    of subscriptions whose records cannot be decoded: nothing more is to be fetched for them.
    """

    def __init__(
        self,
        buffer: ScanBuffer,
        decoder: BatchDecoder,
        value_decoder: ValueDecoder,
        on_damage: Callable[[Subscription], None],
    ) -> None:
        self._buffer = buffer
        self._decoder = decoder
        self._value_decoder = value_decoder
        self._on_damage = on_damage
        # Rows of snapshots that were read for nobody, each with the position behind them.
        self._returned: deque[tuple[Subscription, RecordRun, int]] = deque()
        # The chunk being read, its batches, the one that is next if it has been looked at, and the one being read.
        self._chunk: Chunk | None = None
        self._batches: Iterator[LogBatch] = iter(())
        self._batch: LogBatch | None = None
        self._decoded: DecodedBatch | None = None
        # Rows of a snapshot that are being read, and how many of them have been.
        self._values: pa.RecordBatch | None = None
        self._values_read = 0

    @property
    def is_reading(self) -> bool:
        """Whether there is more to read of what was taken out of the buffer."""
        return self._chunk is not None or bool(self._returned)

    def give_back(self, subscription: Subscription, runs: Sequence[RecordRun]) -> None:
        """Read rows of a snapshot again, before anything else: nobody got them. Any thread may call this."""
        behind = [FROM_SNAPSHOT] * (len(runs) - 1) + [subscription.position]
        subscription.position = FROM_SNAPSHOT
        subscription.is_snapshot_begun = True
        self._returned.extendleft(
            (subscription, run, position) for run, position in reversed(list(zip(runs, behind, strict=True)))
        )

    def next_run(
        self,
        *,
        records_max: int | None = None,
        offset_stop: Callable[[Subscription], int] | None = None,
        aligned: bool = True,
    ) -> tuple[Subscription, RecordRun | None] | None:
        """Read on in the buffer: return the next records of one batch, or None if nothing is buffered.

        The position of the subscription has moved behind the records. There may be none, when it has only moved over
        offsets without records. At most ``records_max`` records are returned, plus one that completes an update, and
        none from ``offset_stop(subscription)`` on: a subscription that is there has to be ended before the next call.

        Rows of a snapshot come before the log and have no offsets; only the last of them move the position.

        Damage becomes a failure of the bucket, for polls to raise. Anything else, such as a schema that cannot be
        loaded, is raised here and tried again by the next call.
        """
        while self._returned:
            subscription, run, position_next = self._returned.popleft()
            if subscription.is_wanted:
                subscription.position = position_next
                return subscription, run
        while (chunk := self._current_chunk()) is not None:
            subscription = chunk.subscription
            try:
                if chunk.is_values:
                    return subscription, self._next_values(chunk, records_max)
                if self._decoded is None and not self._advance(chunk, aligned):
                    return subscription, None
            except CorruptRecordError as error:
                self._give_up(chunk, error)
                continue
            return subscription, self._cut(subscription, records_max, offset_stop)
        return None

    def _current_chunk(self) -> Chunk | None:
        """Return the chunk being read, or begin the next one. Chunks that nobody wants any more are passed over."""
        while True:
            if self._chunk is None:
                self._chunk = self._buffer.take()
                if self._chunk is None:
                    return None
                if not self._chunk.is_values:
                    self._batches = iter_batches(self._chunk.records)
            if self._chunk.subscription.is_wanted:
                return self._chunk
            self._finish_chunk(self._chunk)

    def _finish_chunk(self, chunk: Chunk) -> None:
        self._chunk = self._batch = self._decoded = self._values = None
        self._batches = iter(())
        self._buffer.release(chunk)

    def _next_values(self, chunk: Chunk, records_max: int | None) -> RecordRun | None:
        """Return rows of a snapshot, None if the chunk has none."""
        subscription = chunk.subscription
        if self._values is None:
            self._values, self._values_read = self._value_decoder.decode(chunk.records), 0
        rows, start = self._values, self._values_read
        end = rows.num_rows if records_max is None else min(start + records_max, rows.num_rows)
        self._values_read = end
        if end == rows.num_rows:
            subscription.position = chunk.offset_next
            self._finish_chunk(chunk)
        if start == end:
            return None
        subscription.is_snapshot_begun = True
        return RecordRun.of_snapshot(
            subscription.bucket,
            rows if end - start == rows.num_rows else rows.slice(start, end - start),
            self._value_decoder.data_types,
        )

    def _advance(self, chunk: Chunk, aligned: bool) -> bool:
        """Decode the next batch that has records the consumer wants; False if this chunk has none."""
        subscription = chunk.subscription
        while True:
            if self._batch is None:
                self._batch = next(self._batches, None)
            if self._batch is None:
                subscription.position = max(subscription.position, chunk.offset_next)
                self._finish_chunk(chunk)
                return False
            header = self._batch.header
            if header.record_count and header.base_offset + header.record_count > subscription.position:
                self._decoded = self._decoder.decode(self._batch, is_projected=chunk.is_projected, aligned=aligned)
                return True
            subscription.position = max(subscription.position, header.offset_next)
            self._batch = None

    def _cut(
        self,
        subscription: Subscription,
        records_max: int | None,
        offset_stop: Callable[[Subscription], int] | None,
    ) -> RecordRun | None:
        """Return the records of the decoded batch from the position on, as far as they are wanted."""
        decoded, batch = self._decoded, self._batch
        assert decoded is not None
        assert batch is not None
        count = decoded.rows.num_rows
        start = max(subscription.position - decoded.base_offset, 0)
        end = count if records_max is None else min(start + records_max, count)
        change_types = decoded.change_types
        if end < count and change_types is not None and change_types[end - 1] == ChangeType.UpdateBefore:
            # The old and the new row of an update stay together.
            end += 1
        if offset_stop is not None:
            end = min(end, offset_stop(subscription) - decoded.base_offset)
        if end <= start:
            return None
        if end == count:
            self._batch = self._decoded = None
        subscription.position = batch.header.offset_next if end == count else decoded.base_offset + end
        is_whole = start == 0 and end == count
        return RecordRun(
            bucket=subscription.bucket,
            base_offset=decoded.base_offset + start,
            timestamp_ms=decoded.timestamp_ms,
            batch=decoded.rows if is_whole else decoded.rows.slice(start, end - start),
            data_types=decoded.data_types,
            change_types=None if change_types is None else change_types[start:end],
        )

    def _give_up(self, chunk: Chunk, error: CorruptRecordError) -> None:
        subscription = chunk.subscription
        failure = FlussError(
            f"The records of {subscription.bucket} at offset {subscription.position} cannot be read: {error.message}; "
            f"subscribe behind them to go on"
        )
        failure.__cause__ = error
        subscription.is_damaged = True
        self._finish_chunk(chunk)
        self._on_damage(subscription)
        self._buffer.fail(subscription, failure)
