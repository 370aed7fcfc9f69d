"""What buckets do together: batches of many buckets are prepared as one, and brought into their stores at once.

A bucket says that it has something to do. A turn of the event loop later all that have are asked what it is, and it is
done together: in a thread, or on the loop if it is little. So a request with a few rows for each of a thousand buckets
costs a few ways to a thread and back, and not a thousand.

Each bucket has at most one share in what is being done; the order of its batches is its own business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Protocol, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.server.kv.preparer import (
    BatchPreparer,
    BucketShare,
    MergeMode,
    NotQuickError,
    ShareOutcome,
    current_rows,
    current_rows_in_memory,
)
from fluss.storage.kv.store_writes import StoreWrite, write_to_stores, write_to_stores_if_quick

# What all buckets together may do in one turn of the event loop.
_TURN_S: Final = 0.002
# With so many batches no more are waited for.
_GATHERED_MAX: Final = 16
# What is done at once. The loop takes what comes of it in one go, and that must not take long.
_BUCKETS_AT_ONCE: Final = 128
_BYTES_AT_ONCE: Final = 1024 * 1024
# What may be brought into stores on the event loop: some hundred microseconds of work.
_QUICK_ENTRIES_MAX: Final = 128
_QUICK_BYTES_MAX: Final = 256 * 1024

T = TypeVar("T")
logger = logging.getLogger(__name__)


class _Logged:
    """Goes on after a bug: what comes next belongs to other buckets."""

    __slots__ = ()

    def __enter__(self) -> None:
        """There is nothing to be done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.error("a bucket could not go on", exc_info=error)
        return True


_LOGGED: Final = _Logged()


class LoopBudget:
    """Time of the event loop for work that is too little to be worth the way to a thread and back.

    A thread would keep the loop waiting just as long, because both need the interpreter; the way there and back costs
    more than the work. But any number of buckets may be called in one turn of the loop, so all of them together have a
    limited time per turn. Belongs to the event loop.
    """

    __slots__ = ("_clock", "_is_counting", "_left_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left_s = _TURN_S
        self._is_counting = False

    @property
    def is_left(self) -> bool:
        """Whether something short may be done in this turn."""
        return self._left_s > 0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Count what is done inside."""
        if not self._is_counting:
            self._is_counting = True
            # What is called soon is called in the next turn.
            asyncio.get_running_loop().call_soon(self._begin_turn)
        began_at_s = self._clock()
        try:
            yield
        finally:
            self._left_s -= self._clock() - began_at_s

    def _begin_turn(self) -> None:
        self._left_s = _TURN_S
        self._is_counting = False


class KvThreads:
    """The threads that prepare and apply batches.

    Work for one bucket consists of a few long steps on columns, many of which leave the interpreter to other threads.
    Work for many buckets consists of thousands of short steps. Two threads with such work would hand the interpreter to
    each other at every one of them, which takes longer than the steps, so there is one thread for it.
    """

    def __init__(self, count: int) -> None:
        self.for_one_bucket: Executor = ThreadPoolExecutor(count, thread_name_prefix="fluss-kv")
        self._for_many_buckets: Executor = ThreadPoolExecutor(1, thread_name_prefix="fluss-kv-joint")

    def for_buckets(self, count: int) -> Executor:
        """Return what carries out work for so many buckets."""
        return self.for_one_bucket if count == 1 else self._for_many_buckets

    async def stop(self) -> None:
        """End the threads when they have done what they were given."""
        for executor in (self.for_one_bucket, self._for_many_buckets):
            await asyncio.to_thread(executor.shutdown)


# Preparing


class NextBatches(NamedTuple):
    """What a bucket has to prepare next, and how."""

    preparer: BatchPreparer
    mode: MergeMode
    share: BucketShare
    # Whether it may be prepared as one with those of other buckets.
    is_joinable: bool


class PreparingBucket(Protocol):
    """A bucket with batches that wait."""

    def next_batches(self) -> NextBatches | None:
        """Return what is to be prepared; None if there is nothing now."""
        ...

    def take_prepared(self, share: BucketShare, outcome: ShareOutcome) -> None:
        """Take what has become of it."""
        ...


class JointPreparation:
    """Prepares the next batches of all buckets that have any. Belongs to the event loop."""

    def __init__(self, threads: KvThreads, budget: LoopBudget) -> None:
        self._threads = threads
        self._budget = budget
        self._ready: dict[PreparingBucket, None] = {}
        # How many batches have come since the last time, about.
        self._batch_count = 0
        self._is_gathering = False

    def add(self, bucket: PreparingBucket, *, may_wait: bool) -> None:
        """Prepare the next batches of a bucket soon, or a turn later if more of them may come until then."""
        self._ready[bucket] = None
        self._batch_count += 1 if may_wait else _GATHERED_MAX
        if not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_soon(self._gather, 0)

    def _gather(self, count_before: int) -> None:
        """Let batches that have arrived already join: a connection hands over one request per turn."""
        count = self._batch_count
        if count_before < count < _GATHERED_MAX:
            asyncio.get_running_loop().call_soon(self._gather, count)
            return
        ready, self._ready, self._batch_count, self._is_gathering = self._ready, {}, 0, False
        groups: dict[tuple[BatchPreparer, MergeMode], list[tuple[PreparingBucket, BucketShare]]] = {}
        for bucket in ready:
            with _LOGGED:
                batches = bucket.next_batches()
                if batches is None:
                    continue
                member = bucket, batches.share
                if batches.is_joinable:
                    groups.setdefault((batches.preparer, batches.mode), []).append(member)
                else:
                    self._prepare(batches.preparer, batches.mode, [member])
        for (preparer, mode), members in groups.items():
            for piece in _pieces(members, [_share_bytes(share) for _, share in members]):
                self._prepare(preparer, mode, piece)

    def _prepare(
        self, preparer: BatchPreparer, mode: MergeMode, members: Sequence[tuple[PreparingBucket, BucketShare]]
    ) -> None:
        shares = [share for _, share in members]
        if preparer.are_quick(shares) and self._budget.is_left:
            outcomes = None
            with self._budget.spend(), suppress(NotQuickError):
                outcomes = preparer.prepare(mode, shares, current_rows_in_memory)
            if outcomes is not None:
                self._hand_out(members, outcomes)
                return
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(
            self._threads.for_buckets(len(shares)), preparer.prepare, mode, shares, current_rows
        )
        done.add_done_callback(partial(self._prepared, members))

    def _prepared(
        self,
        members: Sequence[tuple[PreparingBucket, BucketShare]],
        done: asyncio.Future[list[ShareOutcome]],
    ) -> None:
        self._hand_out(members, _outcomes(done, len(members)))

    def _hand_out(
        self, members: Sequence[tuple[PreparingBucket, BucketShare]], outcomes: Sequence[ShareOutcome]
    ) -> None:
        for (bucket, share), outcome in zip(members, outcomes, strict=True):
            with _LOGGED:
                bucket.take_prepared(share, outcome)


def _share_bytes(share: BucketShare) -> int:
    return sum([len(batch.data) for batch in share.batches])


# Applying


class ApplyingBucket(Protocol):
    """A bucket with batches that are in the log and not in the store."""

    def next_write(self) -> StoreWrite | None:
        """Return what is to be written to the store; None if there is nothing now."""
        ...

    def take_applied(self, write: StoreWrite, failure: FlussError | None) -> None:
        """Take what has become of it."""
        ...


class JointApplication:
    """Brings what is on the disk as changelog into the stores, of all buckets at once. Belongs to the event loop."""

    def __init__(self, threads: KvThreads, budget: LoopBudget) -> None:
        self._threads = threads
        self._budget = budget
        self._ready: dict[ApplyingBucket, None] = {}

    def add(self, bucket: ApplyingBucket) -> None:
        """Have the store of a bucket written in the next turn."""
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._apply_all)
        self._ready[bucket] = None

    def _apply_all(self) -> None:
        ready, self._ready = self._ready, {}
        members: list[tuple[ApplyingBucket, StoreWrite]] = []
        for bucket in ready:
            with _LOGGED:
                write = bucket.next_write()
                if write is not None:
                    members.append((bucket, write))
        for piece in _pieces(members, [0] * len(members)):
            self._apply(piece)

    def _apply(self, members: Sequence[tuple[ApplyingBucket, StoreWrite]]) -> None:
        writes = [write for _, write in members]
        if _are_few(writes) and self._budget.is_left:
            with self._budget.spend():
                outcomes = _write_if_quick(writes)
            left = [member for member, outcome in zip(members, outcomes, strict=True) if outcome is False]
            for (bucket, write), outcome in zip(members, outcomes, strict=True):
                if outcome is not False:
                    self._hand_out(bucket, write, outcome if isinstance(outcome, FlussError) else None)
            if not left:
                return
            members, writes = left, [write for _, write in left]
        executor = self._threads.for_buckets(len(writes))
        done = asyncio.get_running_loop().run_in_executor(executor, write_to_stores, writes)
        done.add_done_callback(partial(self._applied, members))

    def _applied(
        self,
        members: Sequence[tuple[ApplyingBucket, StoreWrite]],
        done: asyncio.Future[list[FlussError | None]],
    ) -> None:
        for (bucket, write), failure in zip(members, _outcomes(done, len(members)), strict=True):
            self._hand_out(bucket, write, failure)

    def _hand_out(self, bucket: ApplyingBucket, write: StoreWrite, failure: FlussError | None) -> None:
        with _LOGGED:
            bucket.take_applied(write, failure)


def _are_few(writes: Sequence[StoreWrite]) -> bool:
    if len(writes) > _QUICK_ENTRIES_MAX:
        return False
    changes = [mutations for write in writes for mutations in write.changes]
    return (
        sum(map(len, changes)) <= _QUICK_ENTRIES_MAX
        and sum([mutations.byte_count for mutations in changes]) <= _QUICK_BYTES_MAX
    )


def _write_if_quick(writes: Sequence[StoreWrite]) -> Sequence[FlussError | bool]:
    try:
        return write_to_stores_if_quick(writes)
    except Exception as error:
        return [_failure(error)] * len(writes)


# Both


def _pieces(members: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    """Cut what is to be done into what is done at once."""
    first, byte_count = 0, 0
    for index, size in enumerate(sizes):
        if index > first and (index - first >= _BUCKETS_AT_ONCE or byte_count + size > _BYTES_AT_ONCE):
            yield members[first:index]
            first, byte_count = index, 0
        byte_count += size
    if members:
        yield members[first:]


def _outcomes(done: asyncio.Future[list[T]], count: int) -> Sequence[T | FlussError]:
    """Return what a thread has done. What is a bug there must not leave writers waiting for ever."""
    try:
        return done.result()
    except (Exception, asyncio.CancelledError) as error:
        return [_failure(error)] * count


def _failure(error: BaseException) -> FlussError:
    logger.error("batches could not be carried out", exc_info=error)
    return FlussError(f"{type(error).__name__}: {error}", ErrorCode.UNKNOWN_SERVER_ERROR)
