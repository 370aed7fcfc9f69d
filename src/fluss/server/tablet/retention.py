"""Retention: what expires are records that have outlived their table's TTL, and writers that have fallen silent.

The changelog of a primary-key table expires only if the table names a TTL: some clients know no other way to all of its
rows than all of its changes. And it expires only as far as a copy of the rows is on the disk, which is made right
before: otherwise a lost store could not be built again.

Where logs are copied to remote storage, only what was copied leaves the disk, and with backups only what a backup has
named since; the copies expire there. Records of a table with a lake expire only where the lake has them, whatever their
age.

Logs that are not open are not opened to be looked at. When the first segment of each of them ends is read once, in a
thread, and kept: nothing is written to a log that is not open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from fluss.errors import FlussError
from fluss.schema.table_options import LAKE_ENABLED, LOG_LOCAL_TTL, LOG_TTL
from fluss.server.model import Clock, TieredOffsets
from fluss.server.tablet.buckets import NOTHING_ON_DISK, BucketGroup, HostedBucket, HostedTable
from fluss.server.tablet.log_opener import LOGS_PER_JOB, LogOpener

# Logs that are looked at before others get their turn on the event loop.
_LOGS_PER_TURN = 256
# When a first segment ends of which that is not known.
_UNKNOWN = -1

logger = logging.getLogger(__name__)


class Retention:
    """Expires segments and writers of all hosted tables. Belongs to the event loop; files are removed in threads.

    A table's properties are read anew each time, so a changed TTL holds from the next check on.
    """

    def __init__(
        self,
        tables: Mapping[int, HostedTable],
        clock: Clock,
        opener: LogOpener,
        *,
        rolls_active_segment: bool,
        copied_end: Callable[[HostedBucket], int] | None = None,
        tiered: TieredOffsets | None = None,
    ) -> None:
        """``copied_end`` tells up to which offset a log may leave the disk because its copies are in remote storage.

        It is None where segments are not copied before they leave the disk.
        """
        self._tiered = tiered
        self._tables = tables
        self._clock = clock
        self._opener = opener
        self._copied_end = copied_end
        self.rolls_active_segment = rolls_active_segment
        # Which of them the known ends of first segments hold for.
        self._looked_with_rolls = rolls_active_segment
        self._is_stopping = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._is_stopping = True

    async def expire_segments(self) -> None:
        """Remove the segments in which everything is older than the TTL of the table."""
        if self._looked_with_rolls != self.rolls_active_segment:
            self._looked_with_rolls = self.rolls_active_segment
            for table in self._tables.values():
                for group in table.groups.values():
                    group.first_times = None
        for table in list(self._tables.values()):
            await self._expire_table(table)

    async def expire_writers(self) -> None:
        """Forget writers that have been silent for too long. Opening a log does the same."""
        buckets = [bucket for table in self._tables.values() for bucket in table]
        for index, bucket in enumerate(buckets):
            if bucket.tablet is not None and bucket.tablet.failure is None:
                bucket.tablet.expire_writers()
            if index % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _expire_table(self, table: HostedTable) -> None:
        """Expire what is old in one table; what fails is reported, and the others go on."""
        if table.table.has_primary_key and LOG_TTL.key not in table.table.descriptor.properties:
            return
        try:
            ttl_ms = self._ttl_ms(table.table.descriptor.properties)
        except FlussError as error:
            logger.error("nothing of table %s expires: %s", table.table.path, error.message)
            return
        if ttl_ms <= 0:
            return
        expired_before_ms = self._clock() - ttl_ms
        for group in list(table.groups.values()):
            for bucket_id in await self._expired_unopened(group, expired_before_ms):
                if self._is_stopping:
                    return
                await group[bucket_id].open()
            for bucket in list(group.in_use.values()):
                await self._expire_bucket(bucket, expired_before_ms)
            await asyncio.sleep(0)

    def _ttl_ms(self, properties: Mapping[str, str]) -> int:
        """Return how long records stay on the disk."""
        local_ttl_ms = LOG_LOCAL_TTL.of(properties) if self._copied_end is not None else None
        return LOG_TTL.of(properties) if local_ttl_ms is None else local_ttl_ms

    async def _expire_bucket(self, bucket: HostedBucket, expired_before_ms: int) -> None:
        log = bucket.tablet
        if self._is_stopping or log is None or log.failure is not None or log.segment_count == 0:
            return
        try:
            count = await log.expire_segments(
                expired_before_ms,
                roll_active=self.rolls_active_segment,
                protect=partial(self._protect, bucket),
            )
        except (FlussError, OSError) as error:
            logger.error("expired segments of %s could not be removed: %s", log.directory, error)
        else:
            if count:
                logger.info("removed %d expired segments of %s", count, log.directory)

    # Logs that are not open

    async def _expired_unopened(self, group: BucketGroup, expired_before_ms: int) -> Collection[int]:
        """Return the buckets that are not in use and have something expired."""
        if group.found is None:
            group.take_found(await asyncio.to_thread(self._opener.found_in, group))
        assert group.found is not None, "it was looked up"
        if not any(group.found):
            return ()
        if group.first_times is None:
            group.first_times = group.new_numbers(_UNKNOWN)
        # A time that is known may be that of a log that was written to in the meantime; see ``note_closed``.
        idle = [id for id, state in enumerate(group.found) if state != NOTHING_ON_DISK and id not in group.in_use]
        unknown = [bucket_id for bucket_id in idle if group.first_times[bucket_id] == _UNKNOWN]
        for first in range(0, len(unknown), LOGS_PER_JOB):
            if self._is_stopping:
                return ()
            bucket_ids = unknown[first : first + LOGS_PER_JOB]
            directories = [group.log_directory(bucket_id) for bucket_id in bucket_ids]
            times_ms = await asyncio.to_thread(self._first_times, directories)
            for bucket_id, time_ms in zip(bucket_ids, times_ms, strict=True):
                group.first_times[bucket_id] = time_ms
        return [id for id in idle if _UNKNOWN < group.first_times[id] < expired_before_ms and id not in group.in_use]

    def _first_times(self, directories: Sequence[Path]) -> list[int]:
        return [self._opener.first_segment_time(directory, self._looked_with_rolls) for directory in directories]

    async def _protect(self, bucket: HostedBucket, offset: int) -> int:
        """Return up to which offset the first segments of a log may go; they would go up to the one given."""
        if self._copied_end is not None:
            offset = min(offset, self._copied_end(bucket))
        else:
            offset = await in_lake(self._tiered, bucket, offset)
        if bucket.group.table.has_primary_key and offset > 0:
            return await bucket.key_values().protect(offset)
        return offset


async def in_lake(tiered: TieredOffsets | None, bucket: HostedBucket, offset: int) -> int:
    """Return up to which offset records may expire for good, which the lake of their table must have before.

    They would expire up to the one given. Raises FlussError if it cannot be said what the lake has.
    """
    table = bucket.group.table
    if tiered is None or not LAKE_ENABLED.of(table.descriptor.properties):
        return offset
    return min(offset, await tiered.tiered_offset(table, bucket.bucket))
