"""What becomes of stores that scrubbing finds damaged: they are built again, as when a reader had met the damage.

A store whose changelog still begins at its first offset, on the disk or in remote storage, can always be built again.
Otherwise that takes a snapshot in remote storage or a copy, which consists of hard links to the same files: one that
has the damaged file, too, is of no use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from fluss.errors import KvDamagedError
from fluss.schema.table import TableBucket
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.recovery import KvDirectories
from fluss.server.tablet.buckets import BucketGroup, HostedTable
from fluss.storage.kv.store import remove_store
from fluss.storage.log.tablet import LogTablet


class ScrubRepairs:
    """Answers the questions of the scrubber about buckets, and has stores mended. Belongs to the event loop."""

    def __init__(
        self,
        tables: Mapping[int, HostedTable],
        shared_damaged: Callable[[Path, KvDamagedError], Awaitable[None]] | None = None,
    ) -> None:
        """``shared_damaged`` has a database built again that several stores share; None if there are none."""
        self._tables = tables
        self._shared_damaged = shared_damaged

    def settled_offset(self, bucket: TableBucket) -> int | None:
        group = self._group(bucket)
        if group is None:
            return None
        hosted = group.in_use.get(bucket.bucket_id)
        log = None if hosted is None else hosted.tablet
        return group.recovery_offset(bucket.bucket_id) if log is None else log.recovery_offset

    async def store_damaged(self, bucket: TableBucket | None, paths: Sequence[Path], error: KvDamagedError) -> bool:
        if bucket is None and self._shared_damaged is not None:
            await self._shared_damaged(paths[0].parent, error)
            return True
        store = await self._store_of(bucket)
        if store is None:
            return False
        _, kv = store
        if not await kv.can_be_built():
            return False
        kv.store_failed(await kv.store(), error)
        return True

    async def copy_damaged(self, bucket: TableBucket, paths: Sequence[Path]) -> bool:
        store = await self._store_of(bucket)
        if store is None:
            return False
        log, kv = store
        # A store that is being built may need what is left of the copy, and so may an operator if it cannot be built.
        await kv.store()
        current = KvDirectories.beside(log.directory).store
        if await asyncio.to_thread(_are_in, paths, current):
            # Another copy would have the same damage.
            return False
        await asyncio.to_thread(remove_store, paths[0].parent)
        if log.offset_start > 0:
            await kv.protect(log.offset_start)
        return True

    async def _store_of(self, bucket: TableBucket | None) -> tuple[LogTablet, KvBucket] | None:
        """Return the log and the store of a bucket, opened if need be; None if it has none, or not any more."""
        group = None if bucket is None else self._group(bucket)
        if bucket is None or group is None:
            return None
        hosted = await group[bucket.bucket_id].open()
        log, kv = hosted.tablet, hosted.kv
        return None if log is None or kv is None else (log, kv)

    def _group(self, bucket: TableBucket) -> BucketGroup | None:
        table = self._tables.get(bucket.table_id)
        group = None if table is None else table.groups.get(bucket.partition_id)
        return group if group is not None and bucket.bucket_id < group.bucket_count else None


def _are_in(paths: Sequence[Path], directory: Path) -> bool:
    """Whether one of these files, under its name, is the same file in another directory. Blocking."""
    for path in paths:
        try:
            if os.path.samefile(path, directory / path.name):
                return True
        except FileNotFoundError:
            continue
    return False
