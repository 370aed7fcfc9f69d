"""A consumer with a memory: reads a table from where it stopped, alone or as one of several processes of a name.

poll       join the group if need be -> commit what earlier polls returned -> release what others shall read
           -> begin with buckets that were given to this member -> records
commit     positions -> the log of the group -> there, whether this member was the owner of the buckets
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa

from fluss.client.consume.group import NO_PARTITION, BucketKey
from fluss.client.consume.stored_positions import StoredPositions
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime, run_as_called, run_blocking
from fluss.client.kernel.table_calls import bucket_offsets, partitions_of
from fluss.client.scan.fetch.fetcher import OffsetOutOfRangeError
from fluss.client.scan.log_scanner import LogScanner
from fluss.client.scan.records import RecordBatches, ScanRecord, ScanRecords
from fluss.client.scan.table_scan import TableScan
from fluss.errors import ConsumerFencedError, ErrorCode, FlussError
from fluss.integers import int64
from fluss.retry import checked_timeout_s
from fluss.schema.offsets import EARLIEST_OFFSET, OffsetSpec, OffsetType
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    # Loaded by the first consumer: it writes, looks up and scans, which most programs do not all do.
    from fluss.client.consume.membership import Assignment, Membership, MembershipSettings

T = TypeVar("T")
# What a consumer does when records behind its position are no longer there.
IfLost: TypeAlias = Literal["fail", "earliest", "latest"]
OnAssign: TypeAlias = Callable[[TableBucket, int], "int | Awaitable[int | None] | None"]
OnRevoke: TypeAlias = Callable[[list[TableBucket]], "Awaitable[None] | None"]

# How long a poll waits before it looks at the group again.
_SLICE_S: Final = 0.2
# How long one poll of an iteration waits; the loop then polls again.
_ITERATION_POLL_MS: Final = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What a user says about a consumer; see ``FlussTable.consumer``."""

    start: OffsetSpec
    auto_commit: bool
    if_lost: IfLost
    on_assign: OnAssign | None
    on_revoke: OnRevoke | None


class Consumer(ServerMade):
    """Reads the log of a table from where the consumer of this name has come to; get one from ``FlussTable.consumer``.

    All consumers of the same name and table, in any process, form a group that shares the buckets: each bucket is read
    by one of them at a time. It joins at the first poll, and leaves when it is closed. Positions are kept by name in
    the table ``consumer.table`` of the cluster.

    **At least once.** A poll commits what earlier polls returned, at most every ``consumer.commit-interval-ms``; so
    what a program has processed is committed, and what it has not may come again: after a crash, or when this member
    was not heard of for ``consumer.lease-ms`` and others read on. Then polls and commits raise ``ConsumerFencedError``,
    once; the next poll joins again. With ``auto_commit=False`` only ``commit`` commits.

    It may be used from any thread and any event loop, by one at a time. It is a context manager: leaving it commits and
    closes, leaving it by an error closes without committing.
    """

    _cluster: Cluster
    _runtime: Runtime
    _info: TableInfo
    _scan: TableScan
    _name: str
    _options: ConsumerOptions
    _settings: MembershipSettings
    _commit_interval_s: float
    # One poll at a time.
    _turn: threading.Lock
    _is_closed: bool
    _scanner: LogScanner[Any] | None
    _membership: Membership | None
    _forget: weakref.finalize[..., Any] | None
    # The version of the group that has been acted upon.
    _version: int
    # The buckets that are read, with the epochs of their ownership.
    _epochs: dict[TableBucket, int]
    _stored: StoredPositions
    # Positions of the whole group, as far as a membership that has ended knew them.
    _seed: dict[BucketKey, int]
    _commit_due_s: float
    # What an iteration has polled and not finished; the first record is the one that the loop is at.
    _rest: deque[ScanRecord]

    @classmethod
    def _create(
        cls, cluster: Cluster, runtime: Runtime, info: TableInfo, scan: TableScan, name: str, options: ConsumerOptions
    ) -> Consumer:
        if not isinstance(name, str):
            raise TypeError(f"the name of a consumer must be str, got {type(name).__name__}")
        if not name:
            raise FlussError("A consumer needs a name, under which its positions are kept")
        from fluss.client.consume.membership import MembershipSettings

        return cls._with_fields(
            _cluster=cluster,
            _runtime=runtime,
            _info=info,
            _scan=scan,
            _name=name,
            _options=options,
            _settings=MembershipSettings.of(cluster.config),
            _commit_interval_s=cluster.config.consumer_commit_interval_ms / 1000,
            _turn=threading.Lock(),
            _is_closed=False,
            _scanner=None,
            _membership=None,
            _forget=None,
            _version=-1,
            _epochs={},
            _stored=StoredPositions(),
            _seed={},
            _commit_due_s=0.0,
            _rest=deque(),
        )

    @property
    def name(self) -> str:
        """The name under which positions are kept."""
        return self._name

    # Records

    def poll(self, timeout_ms: int) -> ScanRecords:
        """Return records as soon as there are any, or none after ``timeout_ms``. Blocks the calling thread, unless it
        is awaited.

        Calling it says that the program is done with what earlier polls have returned.
        """
        return run_as_called(self.poll_async(timeout_ms))

    async def poll_async(self, timeout_ms: int) -> ScanRecords:
        """Like ``poll``, without blocking the event loop."""
        return await self._poll(LogScanner.poll_async, timeout_ms, is_batch=False) or ScanRecords._create()

    def poll_record_batch(self, timeout_ms: int) -> RecordBatches:
        """Return Arrow batches with their buckets and offsets; otherwise like ``poll``."""
        return run_as_called(self.poll_record_batch_async(timeout_ms))

    async def poll_record_batch_async(self, timeout_ms: int) -> RecordBatches:
        """Like ``poll_record_batch``, without blocking the event loop."""
        return await self._poll(LogScanner.poll_record_batch_async, timeout_ms, is_batch=True) or RecordBatches()

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Return rows as one Arrow table, with the columns of a changelog in front if the table has a primary key."""
        return run_as_called(self.poll_arrow_async(timeout_ms))

    async def poll_arrow_async(self, timeout_ms: int) -> pa.Table:
        """Like ``poll_arrow``, without blocking the event loop."""
        polled = await self._poll(LogScanner.poll_arrow_async, timeout_ms, is_batch=True)
        return self._get_scanner(is_batch=True)._arrow_schema.empty_table() if polled is None else polled

    async def _poll(
        self, read: Callable[[LogScanner[Any], int], Awaitable[T]], timeout_ms: int, *, is_batch: bool
    ) -> T | None:
        timeout = int64("timeout_ms", timeout_ms)
        if timeout < 0:
            raise FlussError(f"timeout_ms must be non-negative, got: {timeout}")
        deadline_s = time.monotonic() + timeout / 1000
        with self._in_turn():
            scanner = self._get_scanner(is_batch=is_batch)
            self._give_back_rest()
            while True:
                remaining_s = max(deadline_s - time.monotonic(), 0.0)
                try:
                    polled = await self._step(scanner, read, deadline_s)
                except FlussError as error:
                    if not error.is_retriable:
                        raise
                    # The server is away, which the log has already. Scanners wait for it, and so does this.
                    logger.debug("%r waits: %s", self, error.message)
                    await self._runtime.bridge(asyncio.sleep(min(remaining_s, _SLICE_S)))
                    polled = None
                if polled is not None or remaining_s <= 0:
                    return polled
                self._check_open()

    async def _step(
        self, scanner: LogScanner[Any], read: Callable[[LogScanner[Any], int], Awaitable[T]], deadline_s: float
    ) -> T | None:
        """Do what the group wants, and read for a moment."""
        membership = await self._current_membership()
        await self._commit_now_and_then(membership)
        await self._follow_group(membership, scanner)
        timeout_s = min(max(deadline_s - time.monotonic(), 0.0), _SLICE_S)
        if not self._epochs or not membership.is_sure():
            await self._runtime.bridge(membership.wait_for_news(timeout_s))
            return None
        with self._going_back(scanner):
            try:
                polled = await read(scanner, int(timeout_s * 1000))
            except OffsetOutOfRangeError as error:
                await self._find_lost(scanner, error)
                return None
            except FlussError as error:
                if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                    raise
                await self._forget_dropped_partitions(scanner)
                return None
            if not len(polled):  # type: ignore[arg-type]  # Everything that is polled has a length.
                return None
            await self._make_sure(membership)
            return polled

    @contextmanager
    def _going_back(self, scanner: LogScanner[Any]) -> Iterator[None]:
        """Have the next poll read again what did not reach the program, because of Ctrl-C or a task that is cancelled.

        Otherwise it would be committed as if the program was done with it.
        """
        subscriptions = scanner._pipeline.subscriptions
        before = subscriptions.positions()
        try:
            yield
        except FlussError:
            self._rest.clear()
            raise
        except BaseException:
            self._rest.clear()
            moved = {
                bucket: before[bucket]
                for bucket, at in subscriptions.positions().items()
                if before.get(bucket, at) != at
            }
            if moved and not self._is_closed:
                scanner._begin(moved)
            raise

    async def _make_sure(self, membership: Membership) -> None:
        """See to it that what was read is still this member's: the process may have been paused meanwhile."""
        while membership.failure is None and not membership.is_sure():
            self._check_open()
            await self._runtime.bridge(membership.wait_for_news(_SLICE_S / 4))
        # Raises if it is not.
        await self._current_membership()

    def _get_scanner(self, *, is_batch: bool) -> LogScanner[Any]:
        self._check_open()
        if self._scanner is None:
            is_changelog = is_batch and self._info.has_primary_key()
            self._scanner = self._scan._log_scanner(is_batch_scanner=is_batch, is_changelog=is_changelog)
        return self._scanner

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if not self._turn.acquire(blocking=False):
            raise FlussError(f"{self!r} is being polled already; use one consumer for each thread or task")
        try:
            self._check_open()
            yield
        finally:
            self._turn.release()

    # The group

    async def _current_membership(self) -> Membership:
        membership = self._membership
        if membership is None:
            return await self._join()
        if membership.failure is not None:
            failure = membership.failure
            await self._lose()
            raise failure.copied()
        membership.note_poll()
        return membership

    async def _join(self) -> Membership:
        from fluss.client.consume.membership import Membership

        membership = Membership(self._cluster, self._runtime, self._info, self._name, self._settings)
        await self._runtime.bridge(membership.join(self._seed), cancels=True)
        self._membership = membership
        # Who drops a consumer without closing it must not keep others from its buckets.
        self._forget = weakref.finalize(self, _leave_later, self._runtime, membership)
        self._forget.atexit = False
        self._version = -1
        self._commit_due_s = time.monotonic() + self._commit_interval_s
        return membership

    async def _lose(self) -> None:
        """Let go of everything that belonged to a membership."""
        membership = self._membership
        if membership is None:
            return
        self._stop_reading(list(self._epochs))
        self._stored.clear()
        self._rest.clear()
        self._seed |= await self._runtime.bridge(membership.positions())
        if self._forget is not None:
            self._forget.detach()
        await self._runtime.bridge(membership.leave())
        # Not before: if a call is cancelled while it waits here, the next one says why the membership has ended.
        self._membership = None

    async def _follow_group(self, membership: Membership, scanner: LogScanner[Any]) -> None:
        """Release and begin with buckets, if the group has changed."""
        while membership.failure is None and membership.version != self._version:
            assignment = await self._runtime.bridge(membership.assignment())
            owned = {self._table_bucket(key): epoch for key, epoch in assignment.owned.items()}
            self._stop_reading([bucket for bucket, epoch in self._epochs.items() if owned.get(bucket) != epoch])
            if assignment.excess:
                await self._release(membership, assignment)
                continue
            await self._begin(membership, scanner, assignment)
            self._version = assignment.version

    async def _release(self, membership: Membership, assignment: Assignment) -> None:
        buckets = sorted(map(self._table_bucket, assignment.excess), key=_order)
        reading = [bucket for bucket in buckets if bucket in self._epochs]
        if reading and self._options.on_revoke is not None:
            await _awaited(self._options.on_revoke(reading))
        positions = self._delivered() if self._options.auto_commit else {}
        self._stop_reading(reading)
        released = {key: (assignment.owned[key], positions.get(self._table_bucket(key))) for key in assignment.excess}
        await self._runtime.bridge(membership.commit(released, is_release=True))

    async def _begin(self, membership: Membership, scanner: LogScanner[Any], assignment: Assignment) -> None:
        new = {
            bucket: epoch
            for key, epoch in assignment.owned.items()
            if (bucket := self._table_bucket(key)) not in self._epochs
        }
        if not new:
            return
        offsets = {self._table_bucket(key): position for key, position in assignment.positions.items()}
        starts: dict[TableBucket, int] = {}
        for bucket in sorted(new, key=_order):
            offset = offsets.get(bucket)
            if self._options.on_assign is not None:
                chosen = await _awaited(self._options.on_assign(bucket, new[bucket]))
                offset = offset if chosen is None else int64("the offset that on_assign returned", chosen)
            if offset is not None:
                starts[bucket] = offset
        without = [bucket for bucket in new if bucket not in starts]
        if without:
            starts |= await self._first_positions(membership, without, new)
        try:
            scanner._begin(starts)
            self._stored.note({bucket: offset for bucket, offset in offsets.items() if bucket in new})
            self._epochs |= new
        except BaseException:
            # Ctrl-C: the next poll begins with them once more, if they are still this member's.
            self._stop_reading(list(new))
            raise

    async def _first_positions(
        self, membership: Membership, buckets: list[TableBucket], epochs: Mapping[TableBucket, int]
    ) -> dict[TableBucket, int]:
        """Return where to begin with buckets that the consumer has never read."""
        if self._options.start.offset_type == OffsetType.EARLIEST:
            return dict.fromkeys(buckets, EARLIEST_OFFSET)
        found = await self._offsets(buckets, self._options.start)
        # Otherwise a crash before the first commit would leave out what comes until then.
        await self._runtime.bridge(
            membership.commit({_key(bucket): (epochs[bucket], offset) for bucket, offset in found.items()})
        )
        return found

    def _stop_reading(self, buckets: list[TableBucket]) -> None:
        for bucket in buckets:
            self._epochs.pop(bucket, None)
        self._stored.forget(buckets)
        self._rest = deque(record for record in self._rest if record.bucket in self._epochs)
        if self._scanner is not None and not self._is_closed:
            self._scanner._pipeline.subscriptions.end(buckets)

    # Positions

    def positions(self) -> dict[TableBucket, int]:
        """Return the buckets that this member reads, each with the offset of the next record that a poll returns.

        EARLIEST_OFFSET stands for itself until the first record. A sink that stores these numbers together with what
        the last poll returned, and gives them back by ``on_assign``, has every record exactly once.
        """
        self._check_open()
        return {bucket: position for bucket, position in self._all_positions().items() if bucket in self._epochs}

    def epochs(self) -> dict[TableBucket, int]:
        """Return the buckets that this member reads, each with the epoch of its ownership: a fencing token.

        The next reader of the bucket has a greater one. A sink that refuses smaller ones than it has seen cannot be
        changed by a process that does not know yet that it was replaced.
        """
        self._check_open()
        return dict(self._epochs)

    def committed(self) -> dict[TableBucket, int]:
        """Return the buckets that this member reads and that have a committed position, with that position."""
        self._check_open()
        return self._stored.known()

    def seek(self, bucket: TableBucket, offset: int) -> None:
        """Have polls go on at another offset of a bucket that this member reads: a number or EARLIEST_OFFSET."""
        self._check_open()
        if not isinstance(bucket, TableBucket):
            raise TypeError(f"bucket must be a TableBucket, got {type(bucket).__name__}")
        if bucket not in self._epochs or self._scanner is None:
            raise FlussError(f"{bucket} is not read by this member; positions() has those that are")
        if int64("offset", offset) < 0 and offset != EARLIEST_OFFSET:
            raise FlussError(f"The offset must be EARLIEST_OFFSET or not negative, got {offset}")
        self._rest = deque(record for record in self._rest if record.bucket != bucket)
        self._scanner._begin({bucket: offset})
        self._stored.forget([bucket])

    def commit(self, positions: Mapping[TableBucket, int] | None = None) -> None:
        """Commit what polls have returned so far, or these offsets: of each bucket the one to go on at.

        When it returns, the positions are stored, and the next owner of the buckets begins there. Raises
        ConsumerFencedError if this member was no longer the owner, and nothing has changed then.
        """
        run_blocking(self.commit_async(positions))

    async def commit_async(self, positions: Mapping[TableBucket, int] | None = None) -> None:
        """Like ``commit``, without blocking the event loop."""
        await self._commit(positions)

    async def _commit(
        self, positions: Mapping[TableBucket, int] | None = None, *, timeout_s: float | None = None
    ) -> None:
        self._check_open()
        if positions is not None:
            self._check_positions(positions)
        membership = self._membership
        if membership is None:
            if positions:
                raise FlussError("The consumer reads nothing yet; poll first")
            return
        chosen = self._delivered() if positions is None else dict(positions)
        changed = self._stored.not_stored(chosen)
        # These come behind what is under way, and are stored last. If this fails, it is not known which are.
        self._stored.forget(changed)
        try:
            await self._runtime.bridge(membership.commit(self._rows(changed), timeout_s=timeout_s))
        except ConsumerFencedError:
            await self._lose()
            raise
        self._stored.note(changed)

    def _rows(self, positions: Mapping[TableBucket, int]) -> dict[BucketKey, tuple[int, int]]:
        """Return positions as the log of the group has them, with the epochs of their buckets."""
        return {_key(bucket): (self._epochs[bucket], offset) for bucket, offset in positions.items()}

    def _check_positions(self, positions: Mapping[TableBucket, int]) -> None:
        if not isinstance(positions, Mapping):
            raise TypeError(f"positions must be a dict, got {type(positions).__name__}")
        for bucket, offset in positions.items():
            if bucket not in self._epochs:
                raise ConsumerFencedError(
                    f"{bucket} is not read by this member of the consumer '{self._name}', or no longer; others may "
                    "have processed its records by now"
                )
            if int64("an offset", offset) < 0:
                raise FlussError(f"The offset of {bucket} must not be negative, got {offset}")

    async def _commit_now_and_then(self, membership: Membership) -> None:
        if self._stored.is_commit_under_way():
            return
        error = self._stored.end_commit()
        if isinstance(error, ConsumerFencedError):
            await self._lose()
            raise error.copied()
        if error is not None:
            logger.warning("positions of the consumer '%s' were not committed: %s", self._name, error)
        if not self._options.auto_commit or time.monotonic() < self._commit_due_s:
            return
        self._commit_due_s = time.monotonic() + self._commit_interval_s
        changed = self._stored.not_stored(self._delivered())
        if changed:
            self._stored.begin_commit(self._runtime.submit(membership.commit(self._rows(changed))), changed)

    def _delivered(self) -> dict[TableBucket, int]:
        """Return the positions behind what the program is done with, of buckets of which anything was returned."""
        return {
            bucket: position
            for bucket, position in self._all_positions().items()
            if position >= 0 and bucket in self._epochs
        }

    def _all_positions(self) -> dict[TableBucket, int]:
        positions = {} if self._scanner is None else self._scanner._pipeline.subscriptions.positions()
        for record in reversed(self._rest):
            if record.bucket in positions:
                positions[record.bucket] = record.offset
        return positions

    async def _offsets(self, buckets: list[TableBucket], spec: OffsetSpec) -> dict[TableBucket, int]:
        asking = bucket_offsets(self._cluster, self._info.table_path, buckets, spec)
        return await self._runtime.bridge(asking, cancels=True)

    def lag(self) -> dict[TableBucket, int]:
        """Return how many records are left to be polled of each bucket that this member reads."""
        return run_as_called(self.lag_async())

    async def lag_async(self) -> dict[TableBucket, int]:
        """Like ``lag``, without blocking the event loop."""
        positions = self.positions()
        if not positions:
            return {}
        ends = await self._offsets(list(positions), OffsetSpec.latest())
        unread = [bucket for bucket, position in positions.items() if position < 0]
        starts = await self._offsets(unread, OffsetSpec.earliest()) if unread else {}
        return {bucket: max(ends[bucket] - starts.get(bucket, at), 0) for bucket, at in positions.items()}

    # What is no longer there

    async def _find_lost(self, scanner: LogScanner[Any], error: OffsetOutOfRangeError) -> None:
        """Go on where there are records, as far as the user wants that."""
        positions = {bucket: at for bucket, at in self._all_positions().items() if at >= 0 and bucket in self._epochs}
        starts = await self._offsets(list(positions), OffsetSpec.earliest())
        ends = await self._offsets(list(positions), OffsetSpec.latest())
        lost = [bucket for bucket, at in positions.items() if not starts[bucket] <= at <= ends[bucket]]
        if not lost:
            raise error
        if self._options.if_lost == "fail":
            bucket = lost[0]
            raise FlussError(
                f"The consumer '{self._name}' is to go on at offset {positions[bucket]} of {bucket}, and its log has "
                f"{starts[bucket]} to {ends[bucket]}: records are gone that were not read. Say where to go on with "
                "seek(), or always with if_lost='earliest' or 'latest'",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            ) from error
        found = starts if self._options.if_lost == "earliest" else ends
        logger.warning("the consumer '%s' goes on at %s: records before it are gone", self._name, self._options.if_lost)
        scanner._begin({bucket: found[bucket] for bucket in lost})

    async def _forget_dropped_partitions(self, scanner: LogScanner[Any]) -> None:
        """Read no more of partitions that are gone. The group will notice, too."""
        existing = await self._runtime.bridge(partitions_of(self._cluster, self._info))
        ids = {partition.partition_id for partition in existing}
        # They stay this member's until the group says otherwise, so that they are not begun with again.
        gone = [bucket for bucket in self._epochs if bucket.partition_id not in ids]
        scanner._pipeline.subscriptions.end(gone)

    # Iterating

    def __iter__(self) -> Iterator[ScanRecord]:
        """Yield records for ever, blocking. A record counts as processed when the next one is asked for."""
        while True:
            while not self._rest:
                run_blocking(self._poll_for_loop())
            yield self._rest[0]
            self._finish_first()

    async def __aiter__(self) -> AsyncIterator[ScanRecord]:
        """Yield records for ever. A record counts as processed when the next one is asked for."""
        while True:
            while not self._rest:
                await self._poll_for_loop()
            yield self._rest[0]
            self._finish_first()

    async def _poll_for_loop(self) -> None:
        await self._poll(self._read_rest, _ITERATION_POLL_MS, is_batch=False)

    async def _read_rest(self, scanner: LogScanner[Any], timeout_ms: int) -> deque[ScanRecord]:
        self._rest = deque(await scanner.poll_async(timeout_ms))
        return self._rest

    def _finish_first(self) -> None:
        # A commit in the loop may have found out that the records belong to others.
        if self._rest:
            self._rest.popleft()

    def _give_back_rest(self) -> None:
        """Have polls return again what an iteration was left before."""
        if self._rest and self._scanner is not None:
            offsets = {record.bucket: record.offset for record in reversed(self._rest)}
            # In this order: if Ctrl-C comes in between, records may come twice, but none is lost.
            self._scanner._begin(offsets)
            self._rest.clear()

    # The end

    def close(self, *, timeout: float | None = None) -> None:
        """Commit what polls have returned, unless ``auto_commit=False``, and leave the group. May be called again.

        All of that takes at most ``timeout`` seconds, by default ``request-timeout``. The consumer is closed then, also
        if this raises that positions were not stored.
        """
        run_blocking(self.close_async(timeout=timeout))

    async def close_async(self, *, timeout: float | None = None) -> None:
        """Like ``close``, without blocking the event loop."""
        await self._close(is_committing=self._options.auto_commit, timeout=timeout)

    async def _close(self, *, is_committing: bool, timeout: float | None = None) -> None:
        timeout_s = checked_timeout_s("timeout", timeout)
        if self._is_closed:
            return
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        try:
            if is_committing and self._membership is not None and self._membership.failure is None:
                await self._commit(timeout_s=limit_s)
        finally:
            self._is_closed = True
            membership, self._membership = self._membership, None
            if self._scanner is not None:
                self._scanner.close()
            if self._forget is not None:
                self._forget.detach()
            if membership is not None:
                await self._runtime.bridge(membership.leave(max(deadline_s - time.monotonic(), 0.0)))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        run_blocking(self._exit(exception_type))

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        await self._exit(exception_type)

    async def _exit(self, exception_type: type[BaseException] | None) -> None:
        await self._close(is_committing=self._options.auto_commit and exception_type is None)

    def _check_open(self) -> None:
        self._runtime.check_process()
        if self._is_closed:
            raise FlussError("The consumer is closed; create a new one")

    def _table_bucket(self, key: BucketKey) -> TableBucket:
        partition_id = None if key.partition_id == NO_PARTITION else key.partition_id
        return TableBucket.new_with_partition(self._info.table_id, partition_id, key.bucket_id)

    def __repr__(self) -> str:
        return f"Consumer(name={self._name!r}, table={self._info.table_path})"


def _leave_later(runtime: Runtime, membership: Membership) -> None:
    try:
        runtime.submit(membership.leave())
    except FlussError:
        # The loop has ended, or this is a forked process: others find out when the lease is over.
        return


async def _awaited(result: T | Awaitable[T]) -> T:
    return await result if inspect.isawaitable(result) else result


def _key(bucket: TableBucket) -> BucketKey:
    return BucketKey(NO_PARTITION if bucket.partition_id is None else bucket.partition_id, bucket.bucket_id)


def _order(bucket: TableBucket) -> tuple[int, int]:
    return _key(bucket)
