"""Waiting for records, on a thread or on an event loop, and handing them out exactly once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from fluss.client.kernel.runtime import Runtime
from fluss.client.scan.buffer import ScanBuffer
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.reader import BatchReader
from fluss.client.scan.records import RecordRun
from fluss.client.scan.subscription import Subscription, Subscriptions
from fluss.errors import FlussError
from fluss.schema.table import TableBucket

# Records, each run with the subscription they were read for.
Runs: TypeAlias = list[tuple[Subscription, RecordRun]]
# Reads from the buffer, without waiting, and appends to the list what it has read. True if that is all there will be.
Collect: TypeAlias = Callable[[Runs], bool]

# How often a long wait reminds the fetcher that somebody is there.
_ATTEND_INTERVAL_S: Final = 10.0


class Poller:
    """Runs one poll after the other; polls of several threads or tasks take turns.

    A poll returns as soon as there are records. An error that comes up when some have been read already is raised by
    the next poll. What was read for a poll that was cancelled in the meantime is read again by the next one.
    """

    def __init__(
        self,
        runtime: Runtime,
        buffer: ScanBuffer,
        reader: BatchReader,
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

    def poll(self, collect: Collect, timeout_s: float) -> Runs:
        """Block until there are records, at most for ``timeout_s``; then the result is empty."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._fetcher.attend()
            news_count = self._buffer.news_count
            runs = self._step(collect)
            remaining_s = deadline_s - time.monotonic()
            if runs is not None or remaining_s <= 0:
                return runs or []
            self._buffer.wait(news_count, min(remaining_s, _ATTEND_INTERVAL_S))

    async def poll_async(self, collect: Collect, timeout_s: float) -> Runs:
        """Like ``poll``, for the event loop of the caller. Records are decoded on a worker thread."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._fetcher.attend()
            news_count = self._buffer.news_count
            runs = await self._step_on_worker(collect) if self._has_something() else None
            remaining_s = deadline_s - time.monotonic()
            if runs is not None or remaining_s <= 0:
                return runs or []
            await self._buffer.wait_async(news_count, min(remaining_s, _ATTEND_INTERVAL_S))

    def _has_something(self) -> bool:
        return self._buffer.has_something or self._reader.is_reading

    def _step(self, collect: Collect, claim: _Claim | None = None) -> Runs | None:
        """Return what can be had without waiting, None if it is worth waiting, or raise what is to be raised."""
        with self._turn:
            if self._buffer.is_closed:
                raise FlussError("The scanner is closed; create a new one")
            runs = self._collected(collect)
            if claim is not None and runs:
                claim.settle(runs)
            return runs

    def _collected(self, collect: Collect) -> Runs | None:
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

    def _go_back(self, runs: Runs) -> None:
        """Let the next poll read again what nobody got."""
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
        # Nobody could read rows of a snapshot a second time; they stay before the changes that follow them.
        for subscription, rows in snapshots.items():
            self._reader.give_back(begun.get(subscription.bucket, subscription), rows)

    async def _step_on_worker(self, collect: Collect) -> Runs | None:
        claim = _Claim(self._go_back)
        try:
            return await self._runtime.bridge(self._runtime.offload(self._step, collect, claim))
        except asyncio.CancelledError:
            claim.abandon()
            raise


class _Claim:
    """Makes sure that what was read either reaches the caller or is given back, never both, never neither."""

    def __init__(self, give_back: Callable[[Runs], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()
        self._runs: Runs | None = None
        self._is_abandoned = False

    def settle(self, runs: Runs) -> None:
        with self._lock:
            self._runs = runs
            if self._is_abandoned:
                self._give_back(runs)

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if self._runs:
                self._give_back(self._runs)
