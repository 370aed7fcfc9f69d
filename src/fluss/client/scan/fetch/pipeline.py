"""A scan at work: everything between the servers and the consumer of one scanner, and how it is put together.

    servers -> Fetcher -> ScanBuffer -> BufferReader (with decoders) -> Poller -> consumer
               event loop               the consumer's thread, or a worker

A bounded read goes from where a scanner stands up to the latest offsets at its beginning. A bucket is done when its
position has reached its stop, whether or not the last records before the stop were ever delivered: batches may be
empty, or left out by a filter. A bucket that begins with the rows of a snapshot is not done before the last of them;
the snapshot may well be beyond the stop.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import BatchDecoder, ScanColumns, ValueDecoder
from fluss.client.kernel.runtime import Runtime, run_blocking
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT, ScanBuffer, Subscription, Subscriptions
from fluss.client.scan.fetch.fetch_messages import FetchRequests
from fluss.client.scan.fetch.fetcher import Fetcher
from fluss.client.scan.fetch.polling import BufferReader, Poller, Runs
from fluss.client.scan.fetch.remote import RemoteLog
from fluss.client.scan.records import RecordRun
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.schema.offsets import EARLIEST_OFFSET, OffsetSpec
from fluss.schema.predicate import BoundPredicate
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo, TablePath
from fluss.schema.table_options import LogFormat

# How long one poll of a bounded read waits before it looks whether there is still hope.
_POLL_TIMEOUT_S: Final = 0.5
# What does not come back is not waited for any longer than servers need to tell each other what there is.
_GONE_AFTER_S: Final = 1.0
_GONE_CODES: Final = frozenset({ErrorCode.TABLE_NOT_EXIST, ErrorCode.PARTITION_NOT_EXISTS})
# A reader that waits for so long is told what for, and again after as much more.
_PROGRESS_INTERVAL_S: Final = 10.0
# What one step returns at most, so that a read in batches needs no more memory.
BATCHES_PER_POLL_MAX: Final = 100
BYTES_PER_POLL_MAX: Final = 64 * 1024 * 1024

logger = logging.getLogger(__name__)


class ScanPipeline:
    """The parts of one scanner. When it is dropped, everything stops: nothing in the background refers to it.

    Rows are filtered by the filter of ``columns``; ``predicate`` only tells servers which batches they may skip.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        columns: ScanColumns,
        *,
        predicate: BoundPredicate | None = None,
        rows_only: bool = False,
        row_limit: int | None = None,
        from_files: bool = False,
    ) -> None:
        """``from_files`` reads rows by key from their last snapshot in remote storage, whatever servers can do."""
        requests = FetchRequests(
            cluster.config,
            info.table_id,
            # Only batches of columns can be cut.
            pushdown=columns.pushdown if info.log_format is LogFormat.ARROW else (),
            predicate=predicate,
            schema_id=info.schema_id,
        )
        buffer = ScanBuffer(cluster.config.scanner_log_fetch_max_bytes, lambda: fetcher.resume())
        fetcher = Fetcher(
            cluster,
            info,
            requests,
            buffer,
            RemoteLog(buffer, cluster.config, cluster.remote_storage, cluster.storage_token),
            loop=runtime.loop,
            rows_only=rows_only,
            row_limit=row_limit,
            from_files=from_files,
        )
        load_schema = _schema_loader(cluster, runtime, info)
        self._idle_timeout_s = cluster.config.request_timeout_ms / 1000
        self.buffer = buffer
        self.fetcher = fetcher
        self.reader = BufferReader(
            buffer,
            BatchDecoder(columns, info.log_format, load_schema),
            ValueDecoder(columns, info.kv_format, load_schema),
            on_damage=lambda damaged: fetcher.change((), [damaged]),
        )
        self.subscriptions = Subscriptions(partial(_change_subscriptions, fetcher, buffer))
        self.poller = Poller(runtime, buffer, self.reader, fetcher, self.subscriptions)
        self._stop = weakref.finalize(self, _stop_fetching, runtime, fetcher)
        self._stop.atexit = False

    def begin_bounded(
        self,
        found: Mapping[TableBucket, tuple[int, int]],
        on_done: Callable[[list[Subscription]], None] | None = None,
        *,
        idle_timeout_s: float | None = None,
    ) -> BoundedRead:
        """Subscribe to buckets from where to where they are to be read, and return the read.

        Without ``on_done`` the subscription of a bucket ends when it is done. The read fails when nothing has come for
        ``idle_timeout_s``, by default ``request-timeout``.
        """
        begun = self.subscriptions.begin(
            {bucket: start for bucket, (start, _) in found.items()},
            {bucket: stop for bucket, (start, stop) in found.items() if start != FROM_SNAPSHOT},
        )
        stops = {subscription: found[subscription.bucket][1] for subscription in begun}
        end = on_done or partial(_end_subscriptions, self.subscriptions)
        timeout_s = self._idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        return BoundedRead(self.poller, self.reader, stops, end, idle_timeout_s=timeout_s)

    def close(self) -> None:
        """Stop fetching and let go of what was fetched. May be called again."""
        self.buffer.close()
        self._stop()


def _end_subscriptions(subscriptions: Subscriptions, done: list[Subscription]) -> None:
    subscriptions.end([subscription.bucket for subscription in done])


def _change_subscriptions(
    fetcher: Fetcher, buffer: ScanBuffer, begun: Sequence[Subscription], ended: Sequence[Subscription]
) -> None:
    fetcher.change(begun, ended)
    if ended:
        buffer.drop_ended()


def _schema_loader(cluster: Cluster, runtime: Runtime, info: TableInfo) -> Callable[[int], Schema]:
    """Return what loads another schema of the table, blocking the thread that decodes."""
    return lambda schema_id: runtime.run(cluster.schema(info.table_path, schema_id))


def _stop_fetching(runtime: Runtime, fetcher: Fetcher) -> None:
    try:
        runtime.submit(fetcher.close())
    except FlussError:
        # The loop has ended, and with it all fetching; or this is a forked process, whose loop never ran.
        return


class BoundedRead:
    """One pass over some subscriptions, each up to its own stop.

    ``on_done`` is told of subscriptions that have reached their stops and are to be ended. ``idle_timeout_s`` is how
    long the read waits while nothing at all happens before it fails; pauses of the consumer do not count.
    """

    def __init__(
        self,
        poller: Poller,
        reader: BufferReader,
        stops: Mapping[Subscription, int],
        on_done: Callable[[list[Subscription]], None],
        *,
        idle_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller = poller
        self._reader = reader
        self._stops = dict(stops)
        self._on_done = on_done
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._waited_s = 0.0
        self._has_moved = False

    @property
    def is_done(self) -> bool:
        return not self._stops

    @property
    def unfinished(self) -> list[Subscription]:
        return list(self._stops)

    def runs(self) -> Iterator[RecordRun]:
        """Yield everything, blocking."""
        while not self.is_done:
            yield from run_blocking(self.step())

    async def all_runs(self) -> list[RecordRun]:
        """Return everything."""
        runs: list[RecordRun] = []
        while not self.is_done:
            runs += await self.step()
        return runs

    async def step(self) -> list[RecordRun]:
        """Read some of it; there may be nothing for a while."""
        begun_s = self._clock()
        return self._taken(await self._poller.poll(self._collect, _POLL_TIMEOUT_S), begun_s)

    def restart(self, subscription: Subscription, stop: int) -> None:
        """Read a bucket again, with a new subscription, instead of the one it had."""
        self._stops = {other: at for other, at in self._stops.items() if other.bucket != subscription.bucket}
        self._stops[subscription] = stop

    def _collect(self, runs: Runs) -> bool:
        done: list[Subscription] = []
        try:
            self._read_some(runs, done)
        finally:
            if done:
                self._on_done(done)
        return self.is_done

    def _read_some(self, runs: Runs, done: list[Subscription]) -> None:
        byte_count = 0
        while self._stops and len(runs) < BATCHES_PER_POLL_MAX and byte_count < BYTES_PER_POLL_MAX:
            step = self._reader.next_run(offset_stop=self._stops.__getitem__)
            if step is None:
                return
            subscription, run = step
            self._has_moved = True
            if run is not None:
                assert run.batch is not None
                byte_count += run.batch.nbytes
                runs.append((subscription, run))
            if subscription.position >= self._stops[subscription]:
                del self._stops[subscription]
                # From now on the reader passes over what else has been fetched for it.
                subscription.is_active = False
                done.append(subscription)

    def _taken(self, runs: Runs, begun_s: float) -> list[RecordRun]:
        before_s = self._waited_s
        self._waited_s = 0.0 if self._has_moved else before_s + self._clock() - begun_s
        self._has_moved = False
        if self._waited_s // _PROGRESS_INTERVAL_S > before_s // _PROGRESS_INTERVAL_S and not self.is_done:
            reason = no_progress(self._stops, self._waited_s).message
            logger.warning("nothing came for %d of %g s: %s", self._waited_s, self._idle_timeout_s, reason)
        if self._waited_s > self._idle_timeout_s or (self._waited_s > _GONE_AFTER_S and _is_gone(self._stops)):
            raise no_progress(self._stops, self._idle_timeout_s)
        return [run for _, run in runs]


def _is_gone(subscriptions: Iterable[Subscription]) -> bool:
    """Whether the server says of the first subscription that there is no such table or partition."""
    first = next(iter(subscriptions), None)
    return first is not None and first.last_error is not None and first.last_error.error_code in _GONE_CODES


def no_progress(stops: Mapping[Subscription, int], idle_timeout_s: float) -> FlussError:
    """Return why subscriptions do not reach their stops, as far as that is known."""
    for subscription in stops:
        if subscription.last_error is not None:
            return subscription.last_error
    subscription, stop = next(iter(stops.items()))
    if subscription.position == FROM_SNAPSHOT:
        return RequestTimeoutError(f"No rows of {subscription.bucket} came for {idle_timeout_s:g} s")
    return RequestTimeoutError(
        f"No records of {subscription.bucket} came for {idle_timeout_s:g} s; it is at offset {subscription.position} "
        f"and should reach {stop}"
    )


async def bounds(
    cluster: Cluster, path: TablePath, starts: Mapping[TableBucket, int]
) -> dict[TableBucket, tuple[int, int]]:
    """Return where to begin and where to stop in each bucket that has something in between, or a snapshot."""
    latest = await bucket_offsets(cluster, path, starts, OffsetSpec.latest())
    for bucket, start in starts.items():
        if start > latest[bucket]:
            raise FlussError(f"Offset {start} of {bucket} of {path} is out of range: its log ends at {latest[bucket]}")
    # A log may have an end and nothing before it.
    unresolved = [bucket for bucket, start in starts.items() if start == EARLIEST_OFFSET and latest[bucket] > 0]
    earliest = await bucket_offsets(cluster, path, unresolved, OffsetSpec.earliest())
    resolved = {bucket: _resolved(start, earliest.get(bucket, 0)) for bucket, start in starts.items()}
    return {bucket: (start, latest[bucket]) for bucket, start in resolved.items() if start < latest[bucket]}


def _resolved(start: int, earliest: int) -> int:
    return earliest if start == EARLIEST_OFFSET else start
