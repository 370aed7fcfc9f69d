"""Deletes the bytes of dropped tables and partitions, in the background and a little at a time.

1. Requests that know a dropped bucket are told so, some buckets in each turn of the event loop.
2. When nothing is being opened or written any more, its key-value stores are closed, and what they have in shared
   databases is removed.
3. The directory of the table or partition gets a name that says that it is to go: a start after a crash knows it then.
4. A thread deletes what is in it, bucket by bucket. A server that stops does not wait for that: the next one goes on.
5. The directories above go as soon as they are empty.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fluss.memory import give_back_memory
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.kv_runtime import KvRuntime
from fluss.server.tablet.buckets import BucketGroup, HostedBucket
from fluss.server.tablet.log_opener import LogOpener
from fluss.server.tablet.tablet_files import mark_deleted, remove_group
from fluss.storage.log.committer import Committer
from fluss.storage.vfs import Files

# Buckets that are told in one turn of the event loop, and stores that are closed at the same time.
_BUCKETS_PER_TURN: Final = 64

logger = logging.getLogger(__name__)


class Reaper:
    """Takes dropped groups of buckets, one after the other. Belongs to the event loop; a thread removes the files."""

    def __init__(
        self, data_dir: Path, files: Files, opener: LogOpener, committer: Committer, kv_runtime: KvRuntime
    ) -> None:
        self._data_dir = data_dir
        self._files = files
        self._opener = opener
        self._committer = committer
        self._kv_runtime = kv_runtime
        self._dropped: deque[BucketGroup] = deque()
        self._residue: deque[Path] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = threading.Event()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to be deleted."""
        return self._task is None

    def drop(self, group: BucketGroup) -> None:
        """Delete the buckets of a group, which no request can find any more."""
        self._dropped.append(group)
        self._work()

    def remove(self, residue: Sequence[Path]) -> None:
        """Delete directories that belong to nothing."""
        self._residue.extend(residue)
        self._work()

    async def stop(self) -> None:
        """Tell all requests that wait for dropped buckets, and leave the deletion to the next start."""
        self._is_stopping.set()
        while self._task is not None:
            await asyncio.wait((self._task,))

    def _work(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reaper")

    async def _run(self) -> None:
        try:
            while self._dropped or (self._residue and not self._is_stopping.is_set()):
                try:
                    if self._dropped:
                        await self._delete(self._dropped.popleft())
                    else:
                        await asyncio.to_thread(self._remove, self._residue.popleft())
                except Exception:
                    logger.exception("a dropped table or partition could not be deleted; the next start tries again")
        finally:
            self._task = None
            give_back_memory()

    async def _delete(self, group: BucketGroup) -> None:
        stores: list[KvBucket] = []
        while group.in_use:
            # One by one, also because it takes time to let go of them.
            for _ in range(min(len(group.in_use), _BUCKETS_PER_TURN)):
                _tell(group.in_use.popitem()[1], stores)
            await asyncio.sleep(0)
        # A log that is being opened or written must not create its directory again.
        await self._opener.settle()
        await self._committer.settle()
        for first in range(0, len(stores), _BUCKETS_PER_TURN):
            closing = [store.close(is_dropped=True) for store in stores[first : first + _BUCKETS_PER_TURN]]
            await asyncio.gather(*closing)
        if group.table.has_primary_key:
            await self._kv_runtime.drop_stores(group.table_id, group.partition_id)
        await asyncio.to_thread(self._remove, group.directory)

    def _remove(self, directory: Path) -> None:
        """Delete the directory of a group, as far as the server is not stopping. Blocking."""
        try:
            self._files.forget(directory)
            remove_group(mark_deleted(directory, self._files), self._data_dir, self._files, self._is_stopping.is_set)
        except OSError as error:
            logger.error("%s could not be deleted, the next start tries again: %s", directory, error)


def _tell(bucket: HostedBucket, stores: list[KvBucket]) -> None:
    if bucket.kv_in_use is not None:
        stores.append(bucket.kv_in_use)
    bucket.drop()
