"""From the buffer to the consumer: batches are decoded, and handed out exactly once.

``BufferReader`` takes batches out of the buffer, decodes them on the calling thread and moves the consumer's positions.
``Poller`` waits for them, on a thread or on an event loop, and gives back what a cancelled poll has read.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.client.kernel.decode import BatchDecoder, DecodedBatch, ValueDecoder
from fluss.client.kernel.runtime import Runtime, is_blocking, outcome
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT, Chunk, ScanBuffer, Subscription, Subscriptions
from fluss.client.scan.fetch.decoding_ahead import DecodingAhead
from fluss.client.scan.fetch.fetcher import Fetcher
from fluss.client.scan.records import RecordRun
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.log_batch import LogBatch, iter_batches
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket

# Records, each run with the subscription they were read for.
Runs: TypeAlias = list[tuple[Subscription, RecordRun]]
# Reads from the buffer, without waiting, and appends to the list what it has read. True if that is all there will be.
Collect: TypeAlias = Callable[[Runs], bool]
# How often a long wait tells the fetcher that the consumer is still there.
_NOTE_POLL_INTERVAL_S: Final = 10.0


class Poller:
    """Runs one poll after the other; polls of several threads or tasks take turns.

    A poll returns as soon as there are records. An error that comes up when some have been read already is raised by
    the next poll. What was read for a poll that was cancelled in the meantime is read again by the next one.
    """

    def __init__(
        self,
        runtime: Runtime,
        buffer: ScanBuffer,
        reader: BufferReader,
        fetcher: Fetcher,
        subscriptions: Subscriptions,
    ) -> None:
        self._runtime = runtime
        self._buffer = buffer
        self._reader = reader
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._turn = threading.Lock()
        self._is_error_next = False

    async def poll(self, collect: Collect, timeout_s: float) -> Runs:
        """Wait until there are records, at most for ``timeout_s``; then the result is empty.

        On an event loop, records are decoded on a worker thread; in ``run_blocking``, the calling thread does that.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._fetcher.note_poll()
            news_count = self._buffer.news_count
            runs = self._step(collect) if is_blocking() else await self._step_on_worker(collect)
            remaining_s = deadline_s - time.monotonic()
            if runs is not None or remaining_s <= 0:
                return runs or []
            if self._reader.is_reading:
                # The step has looked at many batches of which a filter wants nothing, and there are more.
                continue
            await self._buffer.wait(news_count, min(remaining_s, _NOTE_POLL_INTERVAL_S))

    def _step(self, collect: Collect, claim: Delivery | None = None) -> Runs | None:
        """Return what can be had without waiting, None if it is worth waiting, or raise what is to be raised."""
        with self._turn:
            if claim is None:
                return self._collected(collect)
            # A later poll may have read on meanwhile. What comes behind its records must not be given back before they
            # are: a bucket would go on behind them.
            with claim.reading() as is_wanted:
                runs = self._collected(collect) if is_wanted else None
                if runs:
                    claim.settle(runs)
                return runs

    def _collected(self, collect: Collect) -> Runs | None:
        if self._buffer.is_closed:
            raise FlussError("The scanner is closed; create a new one")
        if self._is_error_next:
            self._raise_failure()
        runs: Runs = []
        is_all = False
        try:
            is_all = collect(runs)
        except FlussError:
            # Nothing was skipped: the next poll comes to the same point.
            if not runs:
                raise
        except BaseException:
            self._go_back(runs)
            raise
        if runs:
            self._is_error_next = self._buffer.failure() is not None
        else:
            self._raise_failure()
        return runs if runs or is_all else None

    def _raise_failure(self) -> None:
        self._is_error_next = False
        failure = self._buffer.failure()
        if failure is not None:
            raise failure

    def give_back(self, runs: Runs) -> None:
        """Let the next poll read again what an earlier one has returned, if nothing was read since."""
        with self._turn:
            self._go_back(runs)

    def _go_back(self, runs: Runs) -> None:
        """Let the next poll read again what did not reach the consumer."""
        offsets: dict[TableBucket, int] = {}
        snapshots: dict[Subscription, list[RecordRun]] = {}
        for subscription, run in runs:
            if not subscription.is_active:
                continue
            if run.is_snapshot:
                snapshots.setdefault(subscription, []).append(run)
            else:
                offsets.setdefault(subscription.bucket, run.base_offset)
        begun = {each.bucket: each for each in self._subscriptions.begin(offsets)} if offsets else {}
        # A server does not send rows of a snapshot a second time. They stay before the changes that follow them.
        for subscription, rows in snapshots.items():
            self._reader.give_back(begun.get(subscription.bucket, subscription), rows)

    async def _step_on_worker(self, collect: Collect) -> Runs | None:
        if not (self._buffer.has_something or self._reader.is_reading):
            return None
        claim = Delivery(self._go_back)
        try:
            return await self._runtime.on_worker(self._step, collect, claim)
        except asyncio.CancelledError:
            # Positions must not be where the worker still is: whoever was cancelled may go on to commit them.
            await outcome(claim.abandon())
            raise


class Delivery:
    """Makes sure that what was read either reaches the caller or is given back, never both, never neither."""

    def __init__(self, give_back: Callable[[Runs], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()
        self._runs: Runs | None = None
        self._is_abandoned = False
        # Resolved as long as nothing is being read.
        self._at_rest: Future[None] = Future()
        self._at_rest.set_result(None)

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Read, in the thread that does so; False if nothing is to be read any more, since the caller has gone."""
        with self._lock:
            is_wanted = not self._is_abandoned
            self._at_rest = Future()
        try:
            yield is_wanted
        finally:
            self._at_rest.set_result(None)

    def settle(self, runs: Runs) -> None:
        """Something was read. If the caller has gone, it is given back."""
        with self._lock:
            self._runs = runs
            if self._is_abandoned:
                self._give_back(runs)

    def abandon(self) -> Future[None]:
        """The caller has gone. Returns what is resolved when what was read has been given back."""
        with self._lock:
            self._is_abandoned = True
            if self._runs:
                self._give_back(self._runs)
            return self._at_rest


class BufferReader:
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
        self._ahead = DecodingAhead(buffer, decoder) if decoder.is_filtered else None
        self._value_decoder = value_decoder
        self._on_damage = on_damage
        # Rows of snapshots that a cancelled poll has read, each with the position behind them.
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
        """Have rows of a snapshot read again, before anything else. Any thread may call this."""
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
        """Return the chunk being read, or begin the next one. Chunks of ended subscriptions are passed over."""
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
                self._decoded = self._decode(chunk, self._batch, aligned)
                return True
            subscription.position = max(subscription.position, header.offset_next)
            self._batch = None

    def _decode(self, chunk: Chunk, batch: LogBatch, aligned: bool) -> DecodedBatch:
        decoded = None if self._ahead is None else self._ahead.decoded(chunk, batch, aligned=aligned)
        if decoded is None:
            decoded = self._decoder.decode(batch, is_projected=chunk.is_projected, aligned=aligned)
        return decoded

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
        count = row_stop = decoded.rows.num_rows
        offset_end = batch.header.offset_next
        if offset_stop is not None:
            offset_end = min(offset_end, offset_stop(subscription))
            row_stop = _row_at(decoded, offset_end)
        start = _row_at(decoded, subscription.position)
        end = row_stop if records_max is None else min(start + records_max, row_stop)
        change_types = decoded.change_types
        if start < end < row_stop and change_types is not None and change_types[end - 1] == ChangeType.UpdateBefore:
            # The old and the new row of an update stay together.
            end += 1
        if end == count and offset_end == batch.header.offset_next:
            self._batch = self._decoded = None
        # What a filter has left out behind the last row counts as read.
        position = offset_end if end == row_stop else _offset_at(decoded, end - 1) + 1
        subscription.position = max(subscription.position, position)
        if end <= start:
            return None
        is_whole = start == 0 and end == count
        return RecordRun(
            bucket=subscription.bucket,
            base_offset=_offset_at(decoded, start),
            timestamp_ms=decoded.timestamp_ms,
            batch=decoded.rows if is_whole else decoded.rows.slice(start, end - start),
            data_types=decoded.data_types,
            change_types=None if change_types is None else change_types[start:end],
            offsets=None if decoded.offsets is None else decoded.offsets[start:end],
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


def _row_at(decoded: DecodedBatch, offset: int) -> int:
    """Return the number of the first row of a batch that does not stand before an offset."""
    if decoded.offsets is not None:
        return int(np.searchsorted(decoded.offsets, offset))
    row_count: int = decoded.rows.num_rows
    return min(max(offset - decoded.base_offset, 0), row_count)


def _offset_at(decoded: DecodedBatch, row: int) -> int:
    return decoded.base_offset + row if decoded.offsets is None else int(decoded.offsets[row])
