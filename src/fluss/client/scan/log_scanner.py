"""The scanner of logs and changelogs: subscribe to buckets, then poll records or read up to now."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Self

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns
from fluss.client.kernel.runtime import Runtime, run_as_called, run_blocking
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT
from fluss.client.scan.fetch.pipeline import BATCHES_PER_POLL_MAX, BYTES_PER_POLL_MAX, BoundedRead, ScanPipeline, bounds
from fluss.client.scan.fetch.polling import Runs
from fluss.client.scan.iteration import Unused
from fluss.client.scan.partition_discovery import PartitionDiscovery
from fluss.client.scan.records import (
    RecordBatch,
    RecordBatches,
    RecordRun,
    ScanRecord,
    ScanRecords,
    changelog_schema,
    require_pandas,
)
from fluss.client.scan.start_offsets import (
    FollowedPartitions,
    offset_mapping,
    snapshot_offsets,
    whole_table_offsets,
)
from fluss.client.scan.start_offsets import start_offset as checked_start
from fluss.client.scan.table_buckets import PartitionChoices, check_bucket_id, checked_choices
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int32, int64
from fluss.schema.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.schema.predicate import BoundPredicate
from fluss.schema.table import PartitionSpec, TableBucket, TableInfo
from fluss.schema.table_options import CHANGELOG_IMAGE, ChangelogImage
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    import pandas as pd

    # Known to type checkers, and no library at run time. A plain ``LogScanner`` in an annotation is good enough, too.
    from typing_extensions import TypeVar

    ItemT = TypeVar("ItemT", default=Any)
else:
    from typing import TypeVar

    ItemT = TypeVar("ItemT")

# How long one poll of a loop waits; the loop then polls again.
_ITERATION_POLL_S: Final = 1.0
# Batches of which a filter has left nothing, in a row, before a poll looks at its time again.
_EMPTY_BATCHES_MAX: Final = 100


class LogScanner(ServerMade, Generic[ItemT]):
    """Reads the log of a table: records as they come (``poll``), or batches and bounded reads as Arrow.

    ``for record in scanner`` and ``async for record in scanner`` hand out records, or batches, one by one and without
    an end; ``position`` says how far the loop is. A scanner is of one kind, chosen when it is created: for records, for
    batches, or for batches of a changelog, whose tables have columns that say what each row means
    (``TableScan.create_changelog_scanner``). Polls and bounded reads block the calling thread, except where they are
    awaited on the spot: ``await scanner.to_arrow()`` leaves the event loop free, as ``to_arrow_async`` does. A scanner
    may be used from any thread and any event loop; calls take turns. Records are fetched ahead of the consumer, into a
    buffer of about ``scanner.log.fetch.max-bytes`` plus one response per server, and one per bucket whose current rows
    are read. Nothing is fetched before the first poll, nor when there was no poll for a minute. Closing a scanner, or
    dropping it, stops it.
    """

    _cluster: Cluster
    _runtime: Runtime
    _info: TableInfo
    _pipeline: ScanPipeline
    _arrow_schema: pa.Schema
    _is_filtered: bool
    _is_batch_scanner: bool
    _is_changelog: bool
    _is_aligned: bool
    # Guards what follows. What may not happen during a bounded read checks and acts under it.
    _lock: threading.RLock
    # Where the last bounded read began, if nothing has happened since.
    _repeat_starts: dict[TableBucket, int] | None
    # What the scanner is reserved for: a bounded read by its name, or a reader that may have been dropped.
    _bounded_call: str | None
    _open_reader: tuple[weakref.ref[_ReaderBatches], BoundedRead] | None
    # What loops have polled and not handed out.
    _unused: Unused
    # Looks for new partitions of a table that is read as a whole, and knows those that are read.
    _discovery: PartitionDiscovery | None
    _followed: FollowedPartitions | None

    @classmethod
    def _create(
        cls,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        columns: ScanColumns,
        *,
        predicate: BoundPredicate | None,
        is_batch_scanner: bool,
        is_changelog: bool = False,
        is_aligned: bool,
    ) -> LogScanner[Any]:
        return cls._with_fields(
            _cluster=cluster,
            _runtime=runtime,
            _info=info,
            _arrow_schema=changelog_schema(columns.arrow_schema) if is_changelog else columns.arrow_schema,
            _pipeline=ScanPipeline(cluster, runtime, info, columns, predicate=predicate),
            _is_filtered=columns.row_filter is not None,
            _is_batch_scanner=is_batch_scanner,
            _is_changelog=is_changelog,
            _is_aligned=is_aligned,
            _lock=threading.RLock(),
            _bounded_call=None,
            _open_reader=None,
            _repeat_starts=None,
            _unused=Unused(_batches_of_run if is_batch_scanner else ScanRecord._create_all),
            _discovery=None,
            _followed=None,
        )

    # What is read

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Read a bucket from an offset on: EARLIEST_OFFSET, LATEST_OFFSET or a number.

        Subscribing again moves to the new offset; records that were fetched but not polled yet are dropped.
        """
        self.subscribe_buckets({bucket_id: start_offset})

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Read several buckets: ``{bucket: offset}``."""
        self._check_partitioned(False, "subscribe_partition() or subscribe_partition_buckets()")
        offsets = {
            self._bucket(None, bucket_id): checked_start(offset)
            for bucket_id, offset in offset_mapping("bucket_offsets", bucket_offsets).items()
        }
        self._subscribe(offsets)

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a partition; code 36 if there is no such partition."""
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset})

    def subscribe_partition_buckets(self, partition_bucket_offsets: Mapping[tuple[int, int], int]) -> None:
        """Read several buckets of partitions: ``{(partition id, bucket): offset}``."""
        self._check_partitioned(True, "subscribe() or subscribe_buckets()")
        offsets = {}
        for key, offset in offset_mapping("partition_bucket_offsets", partition_bucket_offsets).items():
            if not isinstance(key, tuple) or len(key) != 2:
                raise TypeError(f"keys of partition_bucket_offsets must be (partition_id, bucket_id), got {key!r}")
            offsets[self._bucket(int64("partition_id", key[0]), key[1])] = checked_start(offset)
        self._subscribe(offsets)

    def subscribe_all(self, start_offset: int = EARLIEST_OFFSET, partitions: PartitionChoices = None) -> None:
        """Read every bucket from an offset on: EARLIEST_OFFSET, LATEST_OFFSET or a number that is good for all.

        These are the buckets of every partition, too. Partitions that are created later are read from their beginning:
        the scanner looks for them every ``client.scanner.partition.discovery.interval``, and lets go of those that have
        been dropped. ``partitions`` chooses some of those that exist, by name or by values of partition columns; then
        it stays with them.
        """
        choices, offset = checked_choices(self._info, partitions), checked_start(start_offset)
        self._check_usable()
        self._begin_all(
            self._runtime.run(whole_table_offsets(self._cluster, self._info, choices, offset)), choices, EARLIEST_OFFSET
        )

    def subscribe_from_snapshot(self, partitions: PartitionChoices = None) -> None:
        """Read the whole table: first the rows it has now, then every change from exactly there.

        This is for every bucket, also of every partition, and of those that are created later, as with
        ``subscribe_all``; ``partitions`` chooses some of those that exist, by name or by values of partition columns.
        The rows come first in each bucket: they are inserts (``+I``) with offset
        and timestamp -1. No change is left out between them and the changes that follow, and none comes twice:
        applying everything in order gives the table. A log table is read from its beginning.

        A snapshot is taken when its bucket is first read; nothing happens before the first poll. A server keeps it for
        some minutes without polls. If it is gone before its end, because of that or of a restart, polls raise
        code 66, and it takes another call of this method to begin again.

        Servers before 1.0 cannot return the rows of now. There, all changes come instead, from the first one on; if
        the oldest changes of a bucket are no longer there, the rows of its last snapshot in remote storage come first,
        which this machine has to be able to read and which takes RocksDB (``pip install "flussbett[server]"``).

        A filter is applied to rows and changes alike, each change being judged by its own row: a row that no longer
        matches comes as ``-U`` without its ``+U``. So the changelog must have rows before an update, which it has
        unless ``table.changelog.image`` is ``wal``.
        """
        choices = checked_choices(self._info, partitions)
        self._check_usable()
        self._check_filter_of_snapshot()
        offsets = self._runtime.run(snapshot_offsets(self._cluster, self._info, choices))
        # A new partition has all of its changes, if rows cannot be scanned.
        self._begin_all(offsets, choices, max(offsets.values(), default=EARLIEST_OFFSET))

    def _check_filter_of_snapshot(self) -> None:
        is_filtered = self._is_filtered and self._info.has_primary_key()
        if is_filtered and CHANGELOG_IMAGE.of(self._info.properties) is ChangelogImage.WAL:
            raise FlussError(
                f"A snapshot of {self._info.table_path} and its changes cannot be filtered: its changelog has no rows "
                f"before updates ({CHANGELOG_IMAGE.key} is wal), so rows that no longer match would be missed; filter "
                "the rows that you keep"
            )

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket, if it is read at all."""
        self._check_partitioned(False, "unsubscribe_partition()")
        self._unsubscribe(TableBucket(self._info.table_id, int32("bucket_id", bucket_id)))

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition, if it is read at all."""
        self._check_partitioned(True, "unsubscribe()")
        self._unsubscribe(TableBucket.with_partition(self._info.table_id, partition_id, int32("bucket_id", bucket_id)))

    def position(self) -> dict[TableBucket, int]:
        """Return the offset of the next record of every bucket that is read: where to subscribe to go on from here.

        In a loop over the scanner that is the record behind the last one that the loop has had. EARLIEST_OFFSET stands
        for itself until the first records have been read. It also stands for rows of a snapshot as long as some are to
        come.
        """
        self._forget_dropped_reader()
        positions = self._pipeline.subscriptions.positions() | self._unused.positions()
        return {bucket: EARLIEST_OFFSET if at == FROM_SNAPSHOT else at for bucket, at in positions.items()}

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """Return every bucket with the offset of the next record it will give, as ``position`` does."""
        return list(self.position().items())

    def is_partitioned(self) -> bool:
        """Whether the table has partitions, whose buckets are subscribed to by partition id."""
        return self._info.is_partitioned()

    def _subscribe(self, offsets: dict[TableBucket, int]) -> None:
        self._check_usable()
        partition_ids = {bucket.partition_id for bucket in offsets if bucket.partition_id is not None}
        latest = [bucket for bucket, offset in offsets.items() if offset == LATEST_OFFSET]
        if partition_ids or latest:
            offsets |= self._runtime.run(self._prepare(partition_ids, latest))
        self._begin(offsets)

    def _begin(self, offsets: Mapping[TableBucket, int]) -> None:
        with self._lock:
            self._check_usable()
            self._repeat_starts = None
            self._pipeline.subscriptions.begin(offsets)

    def _begin_all(
        self, offsets: Mapping[TableBucket, int], choices: list[str | PartitionSpec] | None, new_start: int
    ) -> None:
        """Read what is now the whole table, or the partitions that were chosen."""
        with self._lock:
            self._check_usable()
            self._stop_discovery()
            self._begin(offsets)
            interval_ms = self._cluster.config.scanner_partition_discovery_interval_ms
            if choices is None and self.is_partitioned() and interval_ms:
                self._followed = FollowedPartitions(self._info, offsets, new_start)
                self._discovery = PartitionDiscovery(
                    *(self._cluster, self._runtime, self._info, interval_ms / 1000),
                    on_partitions=self._follow_partitions,
                    on_gone=self._lose_table,
                )
                self._pipeline.fetcher.on_missing_partition = self._discovery.look_now

    def _stop_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.stop()
            self._discovery = self._followed = self._pipeline.fetcher.on_missing_partition = None

    def _follow_partitions(self, existing: Collection[int]) -> None:
        """Read partitions that are new, and no more those that are gone."""
        # The event loop must not wait for a thread that may wait for it. There will be another look.
        if not self._lock.acquire(blocking=False):
            return
        try:
            is_reserved = self._bounded_call is not None or self._open_reader is not None
            if self._followed is None or is_reserved or self._pipeline.buffer.is_closed:
                # A read up to now is of the partitions that it began with.
                return
            subscribed = self._pipeline.subscriptions.positions()
            starts, gone = self._followed.update(existing, subscribed)
            if self._repeat_starts is not None:
                kept = {bucket: at for bucket, at in self._repeat_starts.items() if bucket not in gone}
                self._repeat_starts = kept | starts
            if gone:
                self._pipeline.subscriptions.end(gone)
            if starts:
                self._pipeline.subscriptions.begin(starts)
        finally:
            self._lock.release()

    def _lose_table(self, error: FlussError) -> None:
        """Have polls say that the table is gone, also if it has no partition that they would notice it by."""
        self._pipeline.buffer.fail_all(error)

    async def _prepare(self, partition_ids: set[int], latest: list[TableBucket]) -> dict[TableBucket, int]:
        """Make sure that partitions exist, and return the latest offsets of buckets."""
        path = self._info.table_path
        unknown = [id_ for id_ in partition_ids if self._cluster.partition_name(id_) is None]
        if unknown:
            await self._cluster.refresh([path], partition_ids=[(path, id_) for id_ in unknown])
        for partition_id in unknown:
            if self._cluster.partition_name(partition_id) is None:
                raise FlussError(f"{path} has no partition with the id {partition_id}", ErrorCode.PARTITION_NOT_EXISTS)
        return await bucket_offsets(self._cluster, path, latest, OffsetSpec.latest())

    def _unsubscribe(self, bucket: TableBucket) -> None:
        with self._lock:
            self._check_usable()
            self._repeat_starts = None
            self._pipeline.subscriptions.end([bucket])

    def _bucket(self, partition_id: int | None, bucket_id: int) -> TableBucket:
        number = int32("bucket_id", bucket_id)
        check_bucket_id(self._info, number)
        return TableBucket.new_with_partition(self._info.table_id, partition_id, number)

    def _check_partitioned(self, is_expected: bool, right_method: str) -> None:
        if self.is_partitioned() is is_expected:
            return
        negation = "" if self.is_partitioned() else "not "
        raise FlussError(f"{self._info.table_path} is {negation}a partitioned table; use {right_method} instead")

    # Records

    def poll(self, timeout_ms: int) -> ScanRecords:
        """Return records as soon as there are any, or none after ``timeout_ms``; 0 does not wait.

        At most ``scanner.log.max-poll-records`` records are returned. Blocks the calling thread, unless it is awaited.
        """
        return run_as_called(self.poll_async(timeout_ms))

    async def poll_async(self, timeout_ms: int) -> ScanRecords:
        """Like ``poll``, without blocking the event loop."""
        timeout_s = self._begin_poll(timeout_ms, is_batch=False)
        return _scan_records(await self._pipeline.poller.poll(self._collect_records, timeout_s))

    def _collect_records(self, runs: Runs) -> bool:
        self._check_not_reserved()
        records_left = self._cluster.config.scanner_log_max_poll_records
        empty_count = 0
        while records_left > 0 and empty_count < _EMPTY_BATCHES_MAX:
            step = self._pipeline.reader.next_run(records_max=records_left, aligned=self._is_aligned)
            if step is None:
                break
            subscription, run = step
            if run is None:
                empty_count += 1
            else:
                runs.append((subscription, run))
                records_left -= run.count
        return False

    # Batches

    def poll_record_batch(self, timeout_ms: int) -> RecordBatches:
        """Return batches as soon as there are any, or none after ``timeout_ms``; at most 100 and about 64 MiB."""
        return run_as_called(self.poll_record_batch_async(timeout_ms))

    async def poll_record_batch_async(self, timeout_ms: int) -> RecordBatches:
        """Like ``poll_record_batch``, without blocking the event loop."""
        timeout_s = self._begin_poll(timeout_ms, is_batch=True)
        return _record_batches(await self._pipeline.poller.poll(self._collect_written, timeout_s))

    def poll_batches(self, timeout_ms: int) -> RecordBatches:
        """Return batches: the older name of ``poll_record_batch``."""
        return run_as_called(self.poll_batches_async(timeout_ms))

    async def poll_batches_async(self, timeout_ms: int) -> RecordBatches:
        """As ``poll_batches``, without blocking."""
        return await self.poll_record_batch_async(timeout_ms)

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Return the batches of one poll as a table, without rows after ``timeout_ms``."""
        return run_as_called(self.poll_arrow_async(timeout_ms))

    async def poll_arrow_async(self, timeout_ms: int) -> pa.Table:
        """Like ``poll_arrow``, without blocking the event loop."""
        timeout_s = self._begin_poll(timeout_ms, is_batch=True)
        return self._table(run for _, run in await self._pipeline.poller.poll(self._collect_aligned, timeout_s))

    def _collect_written(self, runs: Runs) -> bool:
        return self._collect_batches(runs, aligned=self._is_aligned)

    def _collect_aligned(self, runs: Runs) -> bool:
        # A table has one schema, also when its batches were written with several.
        return self._collect_batches(runs, aligned=True)

    def _collect_batches(self, runs: Runs, *, aligned: bool) -> bool:
        self._check_not_reserved()
        byte_count = empty_count = 0
        while len(runs) < BATCHES_PER_POLL_MAX and byte_count < BYTES_PER_POLL_MAX and empty_count < _EMPTY_BATCHES_MAX:
            step = self._pipeline.reader.next_run(aligned=aligned)
            if step is None:
                break
            subscription, run = step
            if run is None:
                empty_count += 1
            else:
                assert run.batch is not None
                runs.append((subscription, run))
                byte_count += run.batch.nbytes
        return False

    def _table(self, runs: Iterable[RecordRun]) -> pa.Table:
        return pa.Table.from_batches(map(self._batch_of, runs), schema=self._arrow_schema)

    def _batch_of(self, run: RecordRun) -> pa.RecordBatch:
        return run.with_changes() if self._is_changelog else run.batch

    # Bounded reads

    def to_arrow(self) -> pa.Table:
        """Read everything up to the latest offsets of now, and return it as one table.

        Calling this again without subscribing or polling in between reads the same records again, and newer ones.
        Polls go on behind what was read. If the read fails, nothing has moved.
        """
        return run_as_called(self.to_arrow_async())

    async def to_arrow_async(self) -> pa.Table:
        """Like ``to_arrow``, without blocking the event loop."""
        starts = self._begin_bounded("to_arrow")
        try:
            found = await self._runtime.bridge(bounds(self._cluster, self._info.table_path, starts), cancels=True)
            table = self._table(await self._bounded_read(starts, found).all_runs())
        except BaseException:
            self._end_bounded(starts, None)
            raise
        self._end_bounded(None, starts)
        return table

    def to_pandas(self) -> pd.DataFrame:
        """Read as ``to_arrow`` does, and return a pandas DataFrame."""
        return run_as_called(self.to_pandas_async())

    async def to_pandas_async(self) -> pd.DataFrame:
        """Like ``to_pandas``, without blocking the event loop."""
        require_pandas()
        return (await self.to_arrow_async()).to_pandas()

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a reader over everything up to the latest offsets of now, for reads that do not fit into memory.

        As long as it lives, the scanner cannot be used otherwise. Buckets that were read to their end are
        unsubscribed, and so are the others when the reader is dropped before its end.
        """
        starts = self._begin_bounded("to_arrow_batch_reader")
        try:
            found = self._runtime.run(bounds(self._cluster, self._info.table_path, starts))
            self._pipeline.subscriptions.end([bucket for bucket in starts if bucket not in found])
            read = self._pipeline.begin_bounded(found)
        except BaseException:
            self._end_bounded(starts, None)
            raise
        batches = _ReaderBatches(self, read)
        with self._lock:
            self._bounded_call = self._repeat_starts = None
            self._open_reader = weakref.ref(batches), read
        return pa.RecordBatchReader.from_batches(self._arrow_schema, batches)

    def _begin_bounded(self, call: str) -> dict[TableBucket, int]:
        """Reserve the scanner, and return where the read begins."""
        self._check_kind(is_batch=True)
        with self._lock:
            self._check_usable()
            self._give_back_unused()
            starts = self._repeat_starts or self._pipeline.subscriptions.positions()
            if not starts:
                raise FlussError("No buckets subscribed; subscribe to what is to be read first")
            amid = self._pipeline.subscriptions.amid_snapshot()
            if amid is not None:
                raise FlussError(
                    f"Some of the current rows of {amid} have been polled, and others not; poll until its changes "
                    "follow, or subscribe again"
                )
            self._bounded_call = call
            return starts

    def _bounded_read(
        self, starts: Mapping[TableBucket, int], found: Mapping[TableBucket, tuple[int, int]]
    ) -> BoundedRead:
        """Begin a read after which every bucket stays subscribed."""
        subscriptions = self._pipeline.subscriptions
        # Nothing is fetched for buckets without anything to read, nor beyond the stops of the others.
        subscriptions.park({bucket: start for bucket, start in starts.items() if bucket not in found})
        return self._pipeline.begin_bounded(found, on_done=subscriptions.park_read)

    def _end_bounded(
        self, offsets: Mapping[TableBucket, int] | None, repeat_starts: dict[TableBucket, int] | None
    ) -> None:
        """Let the scanner be used again, from ``offsets`` or from where it is."""
        with self._lock:
            self._bounded_call = None
            self._repeat_starts = repeat_starts
            self._pipeline.fetcher.pause()
            if not self._pipeline.buffer.is_closed:
                self._pipeline.subscriptions.begin(offsets or self._pipeline.subscriptions.positions())

    # The rest

    def __iter__(self) -> Iterator[ItemT]:
        """Yield records, or batches, for ever, blocking. What follows after leaving the loop goes on behind it."""
        # As below, without a generator for both: it would cost every record another call.
        unused = self._unused
        while True:
            while (polled := unused.first()) is not None:
                for item in polled.items:
                    if not polled.subscription.is_active:
                        break
                    yield item
            self._take(run_blocking(self._poll_for_loop()))

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        """Like ``for``, without blocking the event loop."""
        unused = self._unused
        while True:
            while (polled := unused.first()) is not None:
                for item in polled.items:
                    if not polled.subscription.is_active:
                        break
                    yield item
            self._take(await self._poll_for_loop())

    async def _poll_for_loop(self) -> Runs:
        with self._lock:
            self._check_usable()
            if not self._pipeline.subscriptions and self._discovery is None:
                raise FlussError("No buckets subscribed, so the loop would wait for ever; call subscribe_all() first")
            self._repeat_starts = None
        collect = self._collect_written if self._is_batch_scanner else self._collect_records
        return await self._pipeline.poller.poll(collect, _ITERATION_POLL_S)

    def _take(self, runs: Runs) -> None:
        """Have a loop hand out what it has polled; if Ctrl-C comes before it can, the next poll reads it again."""
        try:
            self._unused.add(runs)
        except BaseException:
            self._pipeline.poller.give_back(runs)
            raise

    def _give_back_unused(self) -> None:
        """Let polls and bounded reads begin where a loop was left."""
        if self._unused:
            self._pipeline.poller.give_back(self._unused.give_back())

    def close(self) -> None:
        """Stop fetching and let go of what was fetched. Waiting polls end with an error. May be called again."""
        self._stop_discovery()
        self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LogScanner(table={self._info.table_path})"

    def _begin_poll(self, timeout_ms: int, *, is_batch: bool) -> float:
        """Check what can be checked before a poll, and return its timeout in seconds."""
        timeout = int64("timeout_ms", timeout_ms)
        if timeout < 0:
            raise FlussError(f"timeout_ms must be non-negative, got: {timeout}")
        self._check_kind(is_batch=is_batch)
        with self._lock:
            self._check_usable()
            self._repeat_starts = None
            self._give_back_unused()
        return timeout / 1000

    def _check_kind(self, *, is_batch: bool) -> None:
        if is_batch is self._is_batch_scanner:
            return
        batches = "create_changelog_scanner()" if self._info.has_primary_key() else "create_record_batch_log_scanner()"
        wanted, create = ("batch-based", batches) if is_batch else ("record-based", "create_log_scanner()")
        raise FlussError(f"This method requires a {wanted} scanner; make one with {create}")

    def _check_usable(self) -> None:
        self._runtime.check_process()
        if self._pipeline.buffer.is_closed:
            raise FlussError("The scanner is closed; create a new one")
        self._forget_dropped_reader()
        self._check_not_reserved()

    def _check_not_reserved(self) -> None:
        if self._open_reader is not None:
            raise FlussError(
                "RecordBatchLogReader is active: a reader is already active on this scanner; "
                "read it to its end or drop it first"
            )
        if self._bounded_call is not None:
            raise FlussError(f"{self._bounded_call}() is under way on this scanner; wait until it is done")

    def _forget_dropped_reader(self) -> None:
        """Unsubscribe what a reader was dropped in the middle of."""
        # Found out here and not by a finalizer of the reader: that could run anywhere, also where a lock is held.
        with self._lock:
            if self._open_reader is not None and self._open_reader[0]() is None:
                self._close_reader(self._open_reader[1])

    def _close_reader(self, read: BoundedRead) -> None:
        with self._lock:
            self._open_reader = None
            self._pipeline.fetcher.pause()
            self._pipeline.subscriptions.end([subscription.bucket for subscription in read.unfinished])


class _ReaderBatches(Iterator[pa.RecordBatch]):
    """The batches of a reader. The scanner is reserved until they are exhausted, fail or are dropped."""

    def __init__(self, scanner: LogScanner[Any], read: BoundedRead) -> None:
        self._scanner = scanner
        self._read = read
        self._runs = read.runs()

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._scanner._batch_of(next(self._runs))
        except BaseException:
            self._scanner._close_reader(self._read)
            raise


def _scan_records(runs: Runs) -> ScanRecords:
    return ScanRecords._create(run for _, run in runs)


def _record_batches(runs: Runs) -> RecordBatches:
    return RecordBatches(_batch_of_run(run) for _, run in runs)


def _batch_of_run(run: RecordRun) -> RecordBatch:
    return RecordBatch._create(run.batch, run.bucket, run.base_offset, run.change_types, run.offsets, run.timestamp_ms)


def _batches_of_run(run: RecordRun) -> list[RecordBatch]:
    return [_batch_of_run(run)]
