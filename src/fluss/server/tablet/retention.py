"""Retention: what expires are records that have outlived their table's TTL, and writers that have fallen silent.

The changelog of a primary-key table expires only if the table names a TTL: some clients know no other way to all of its
rows than all of its changes. And it expires only as far as a copy of the rows is on the disk, which is made right
before: otherwise a lost store could not be built again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial

from fluss.errors import FlussError
from fluss.schema.table_options import LOG_TTL
from fluss.server.model import Clock
from fluss.server.tablet.buckets import HostedBucket, HostedTable
from fluss.storage.log.tablet import LogTablet

# Logs that are looked at before others get their turn on the event loop.
_LOGS_PER_TURN = 256

logger = logging.getLogger(__name__)


class Retention:
    """Expires segments and writers of all hosted tables. Belongs to the event loop; files are removed in threads.

    A table's properties are read anew each time, so a changed TTL holds from the next check on.
    """

    def __init__(self, tables: Mapping[int, HostedTable], clock: Clock, *, rolls_active_segment: bool) -> None:
        self._tables = tables
        self._clock = clock
        self.rolls_active_segment = rolls_active_segment

    async def expire_segments(self) -> None:
        """Remove the segments in which everything is older than the TTL of the table."""
        for table in list(self._tables.values()):
            await self._expire_table(table)

    async def expire_writers(self) -> None:
        """Forget writers that have been silent for too long."""
        buckets = (bucket for table in list(self._tables.values()) for bucket in self._buckets(table))
        for index, (log, _) in enumerate(buckets):
            log.expire_writers()
            if index % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _expire_table(self, table: HostedTable) -> None:
        """Expire what is old in one table; what fails is reported, and the others go on."""
        if table.table.has_primary_key and LOG_TTL.key not in table.table.descriptor.properties:
            return
        try:
            ttl_ms = LOG_TTL.of(table.table.descriptor.properties)
        except FlussError as error:
            logger.error("nothing of table %s expires: %s", table.table.path, error.message)
            return
        expired_before_ms = self._clock() - ttl_ms
        for log, bucket in self._buckets(table):
            if ttl_ms <= 0 or log.segment_count == 0:
                continue
            try:
                count = await log.expire_segments(
                    expired_before_ms,
                    roll_active=self.rolls_active_segment,
                    protect=partial(_protect, bucket) if table.table.has_primary_key else None,
                )
            except (FlussError, OSError) as error:
                logger.error("expired segments of %s could not be removed: %s", log.directory, error)
            else:
                if count:
                    logger.info("removed %d expired segments of %s", count, log.directory)

    def _buckets(self, table: HostedTable) -> Iterator[tuple[LogTablet, HostedBucket]]:
        for bucket in list(table):
            if bucket.tablet is not None and bucket.is_log_active:
                yield bucket.tablet, bucket


async def _protect(bucket: HostedBucket, offset: int) -> int:
    return await bucket.key_values().protect(offset)
