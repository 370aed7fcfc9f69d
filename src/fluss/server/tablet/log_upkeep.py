"""What is done with logs in the background: look through them after a crash, close those that are idle.

After a crash a log may end in the middle of a write. Opening it repairs that, whenever it happens; but as long as a log
has not been opened, it is not known whether it is in order, and a stop of the server must not say that it is. So all
logs that are on the disk are opened one after the other, at half the speed that would be possible, and closed again if
no request uses them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from fluss.errors import FlussError
from fluss.memory import LongLived
from fluss.server.tablet.buckets import LEFT_BEHIND, BucketGroup, HostedBucket, HostedTable, open_all
from fluss.server.tablet.log_opener import LOGS_PER_JOB, LogOpener

# Logs that are looked at in one turn of the event loop.
_LOOKS_PER_TURN: Final = 2048
_PROGRESS_INTERVAL_S: Final = 5.0

T = TypeVar("T")
logger = logging.getLogger(__name__)


class LogUpkeep:
    """Looks after the logs of all hosted tables. Belongs to the event loop."""

    def __init__(
        self,
        tables: Mapping[int, HostedTable],
        opener: LogOpener,
        *,
        open_logs_max: int,
        retry_ms: int,
        long_lived: LongLived,
    ) -> None:
        self._tables = tables
        self._opener = opener
        self._open_logs_max = open_logs_max
        self._long_lived = long_lived
        self._retry_s = retry_ms / 1000
        self._stopping = asyncio.Event()
        self._is_recovered = False
        self._has_failed_to_close = False
        self._is_changed = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopping.set()

    @property
    def has_unclean(self) -> bool:
        """Whether there may be logs, among those that are not open, that the next start has to look through."""
        return self._has_failed_to_close or not (self._opener.was_clean or self._is_recovered)

    def take_is_changed(self) -> bool:
        """Tell whether logs were closed, whose offsets are noted, since this was last asked."""
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    # After a crash

    async def recover(self) -> None:
        """Open all logs that are on the disk and were not opened yet; those that are not used are closed again.

        Those that cannot be opened now, for want of file descriptors for example, are tried again until the server
        stops: it is not known whether they are in order.
        """
        while left := await self._look_through():
            logger.warning("%d logs could not be looked through yet; they are tried again", left)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._retry_s)
        self._is_recovered = not self._stopping.is_set()

    async def _look_through(self) -> int:
        """Do it once; return how many logs could not be opened. A stop ends it."""
        count, left, said_s = 0, 0, time.monotonic()
        for table in list(self._tables.values()):
            for group in list(table.groups.values()):
                for bucket_ids in _slices(await self._left_behind(group)):
                    if self._stopping.is_set():
                        return 0
                    if group.is_dropped:
                        break
                    began_s = time.monotonic()
                    left += await self._recover_some(group, bucket_ids)
                    count += len(bucket_ids)
                    if time.monotonic() - said_s > _PROGRESS_INTERVAL_S:
                        said_s = time.monotonic()
                        logger.info("looked through %d logs after the server was interrupted", count)
                    # The other half of the time belongs to requests.
                    await asyncio.sleep(time.monotonic() - began_s)
        return left

    async def _left_behind(self, group: BucketGroup) -> Sequence[int]:
        """Return the buckets of a group that the last run left behind and that were not looked at since."""
        if group.found is None:
            group.take_found(await asyncio.to_thread(self._opener.found_in, group))
        assert group.found is not None, "it was looked up"
        offsets = group.recovery_offsets
        return [
            bucket_id
            for bucket_id, state in enumerate(group.found)
            # A log that is missing though something was written has to be reported.
            if (state == LEFT_BEHIND or (offsets is not None and not state and offsets[bucket_id]))
            and _is_unknown(group, bucket_id)
        ]

    async def _recover_some(self, group: BucketGroup, bucket_ids: Sequence[int]) -> int:
        """Open some logs and close those that are not used; return how many could not be opened."""
        bucket_ids = [bucket_id for bucket_id in bucket_ids if _is_unknown(group, bucket_id)]
        new = {bucket_id for bucket_id in bucket_ids if bucket_id not in group.in_use}
        buckets = [group[bucket_id] for bucket_id in bucket_ids]
        for bucket in buckets:
            if bucket.bucket.bucket_id in new:
                # No request has asked for it yet.
                bucket.is_used = False
        await open_all(buckets, is_use=False)
        left = sum(not bucket.is_settled for bucket in buckets)
        await self._close_unused(buckets)
        return left

    # Idle logs

    async def close_idle(self) -> None:
        """Close logs that nothing has asked for since the last call, as far as there are too many of them."""
        idle: list[HostedBucket] = []
        open_count = 0
        for index, bucket in enumerate([bucket for table in self._tables.values() for bucket in table]):
            if bucket.tablet is not None:
                open_count += 1
                if not bucket.is_used and bucket.is_closable:
                    idle.append(bucket)
                bucket.is_used = False
            if index % _LOOKS_PER_TURN == _LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._long_lived.counted(open_count)
        excess = max(0, open_count - self._open_logs_max)
        for buckets in _slices(idle[:excess]):
            if self._stopping.is_set():
                return
            await self._close_unused(buckets)

    async def _close_unused(self, buckets: Sequence[HostedBucket]) -> None:
        """Close the logs that no request has asked for.

        Those that ask for them meanwhile wait until they are closed and have them opened again.
        """
        closing = [_close_if_unused(bucket) for bucket in buckets]
        for bucket, outcome in zip(buckets, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(outcome, FlussError | OSError):
                logger.error("the log of %s could not be closed in order: %s", bucket, outcome)
                self._has_failed_to_close = True
            elif outcome is not None:
                raise outcome
        self._is_changed = True


def _is_unknown(group: BucketGroup, bucket_id: int) -> bool:
    """Whether a log has not been opened, and it is not known either why it cannot be."""
    hosted = group.in_use.get(bucket_id)
    return hosted is None or not hosted.is_settled


async def _close_if_unused(bucket: HostedBucket) -> None:
    """Close a log, unless a request has come since it was decided."""
    if not bucket.is_used:
        await bucket.close()


def _slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + LOGS_PER_JOB] for first in range(0, len(items), LOGS_PER_JOB))
