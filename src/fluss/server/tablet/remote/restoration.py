"""Brings logs back from a backup after a restore: each when it is first asked for, the others in the background.

A restored server begins with the metadata and nothing else. Which logs there have to be it knows from the checkpoints
that were written with them; a log that is not on the disk is made from its tail and begins where its remote segments
end. As after a crash all logs are looked through in the background, and so all of them come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss.errors import FlussError
from fluss.metrics import Metrics
from fluss.schema.table import TableBucket
from fluss.server.model import format_bucket
from fluss.server.tablet.buckets import LEFT_BEHIND, BucketGroup, HostedBucket, HostedTable
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.backup.points import TailChain, get_chains, get_point
from fluss.storage.backup.restore_note import RestoreNote
from fluss.storage.backup.restored_log import LostLog, make_log
from fluss.storage.log.file_names import LogFileKind
from fluss.storage.log.remote_manifest import remote_file_path
from fluss.storage.remote.store import RemoteStoppedError
from fluss.storage.vfs import Files

T = TypeVar("T")

# Logs that are made at the same time.
_THREADS: Final = 4
_LOGS_PER_STEP: Final = 64
_PROGRESS_INTERVAL_S: Final = 5.0
# How long it is waited before logs are tried again that could not be fetched.
_RETRY_INTERVAL_S: Final = 5.0

logger = logging.getLogger(__name__)


class Restoration:
    """Makes the logs that a restored server does not have yet. Belongs to the event loop."""

    def __init__(
        self,
        note: RestoreNote,
        remote: RemoteLogs,
        tables: Mapping[int, HostedTable],
        data_dir: Path,
        files: Files,
        *,
        segment_bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note = note
        self._remote = remote
        self._tables = tables
        self._data_dir = data_dir
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-restore")
        # The logs that are not on the disk, as far as that is known, with their tails.
        self._pending: dict[TableBucket, TailChain | None] = {}
        self._making: dict[TableBucket, asyncio.Task[bool]] = {}
        # Why logs could not be made the last time.
        self._failures: dict[TableBucket, str] = {}
        self._is_stopping = asyncio.Event()
        self._log_count = 0
        self._fetched_bytes = 0
        self._began_s = self._said_s = clock()

    def show(self, metrics: Metrics) -> None:
        """Show how much is left to do."""
        metrics.gauge("fluss_restore_pending_logs", "Logs that are still to be restored.", lambda: len(self._pending))

    @property
    def pending_count(self) -> int:
        """How many logs are still to be made."""
        return len(self._pending)

    @property
    def problem(self) -> str | None:
        """What an operator should know of logs that cannot be had, in a sentence; None if there are none."""
        if not self._failures:
            return None
        bucket, reason = next(iter(self._failures.items()))
        return f"{len(self._failures)} logs cannot be restored now, such as that of {format_bucket(bucket)}: {reason}"

    async def load_chains(self) -> Mapping[TableBucket, TailChain]:
        """Read where the tails are, for a server that makes no backups itself. Raises FlussError."""
        store = self._remote.store(self._remote.first_location)
        point = await self._in_thread(get_point, store, self._note.point_path)
        return await self._in_thread(get_chains, store, point)

    def start(self, chains: Mapping[TableBucket, TailChain]) -> None:
        """Take the tails of the backup. The tables are hosted by then, and what is remote is known."""
        for table in self._tables.values():
            for group in table.groups.values():
                offsets = group.recovery_offsets
                for bucket_id, offset in enumerate(() if offsets is None else offsets):
                    if offset:
                        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
                        self._pending[bucket] = chains.get(bucket)
        self._log_count = len(self._pending)
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._note.time_ms / 1000))
        logger.info(
            "restored the metadata of %s from %s; %d logs follow, in the background and when they are asked for",
            *(when, self._note.location, self._log_count),
        )

    async def stop(self) -> None:
        """End what is going on; the next start goes on with it."""
        self._is_stopping.set()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)

    def dropped(self, group: BucketGroup) -> None:
        """Forget the logs of a table or partition that was dropped."""
        for bucket_id in range(group.bucket_count):
            bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
            self._pending.pop(bucket, None)
            self._failures.pop(bucket, None)

    async def bring(self, buckets: Sequence[HostedBucket]) -> Sequence[HostedBucket]:
        """See to it that the logs of buckets are on the disk; return those that cannot be had now."""
        wanted = [hosted for hosted in buckets if hosted.bucket in self._pending]
        if not wanted:
            return ()
        outcomes = await asyncio.gather(*(self._brought(hosted.group, hosted.bucket) for hosted in wanted))
        await self._say_progress()
        return [hosted for hosted, is_there in zip(wanted, outcomes, strict=True) if not is_there]

    async def bring_all(self) -> None:
        """Have all logs on the disk, however often it has to be tried, or end when the server stops."""
        while self._pending and not self._is_stopping.is_set():
            for some in _slices(list(self._pending)):
                if self._is_stopping.is_set():
                    return
                outcomes = await asyncio.gather(*map(self._brought_in_background, some))
                await self._say_progress()
                if not all(outcomes):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._is_stopping.wait(), _RETRY_INTERVAL_S)
        await self._say_progress()

    async def _brought_in_background(self, bucket: TableBucket) -> bool:
        table = self._tables.get(bucket.table_id)
        group = None if table is None else table.groups.get(bucket.partition_id)
        if group is None:
            self._pending.pop(bucket, None)
            return True
        return await self._brought(group, bucket)

    async def _brought(self, group: BucketGroup, bucket: TableBucket) -> bool:
        if bucket not in self._pending:
            return True
        task = self._making.get(bucket)
        if task is None:
            task = self._making[bucket] = asyncio.get_running_loop().create_task(self._make(group, bucket))
            task.add_done_callback(lambda _: self._making.pop(bucket, None))
        return await asyncio.shield(task)

    async def _make(self, group: BucketGroup, bucket: TableBucket) -> bool:
        try:
            lost, store = await self._lost(bucket), self._remote.store(self._remote.first_location)
            make = partial(make_log, segment_bytes_max=self._segment_bytes_max)
            directory = group.log_directory(bucket.bucket_id)
            self._fetched_bytes += await self._in_thread(make, store, self._files, directory, lost)
        except RemoteStoppedError:
            return False
        except (FlussError, OSError) as error:
            if not group.is_dropped:
                self._note_failure(bucket, error)
            return group.is_dropped
        finally:
            if group.is_dropped:
                # It was dropped meanwhile, and its directory may have been made again.
                await self._in_thread(self._files.remove_tree, group.directory)
        self._pending.pop(bucket, None)
        self._failures.pop(bucket, None)
        if group.found is not None:
            group.found[bucket.bucket_id] = LEFT_BEHIND
        return True

    def _note_failure(self, bucket: TableBucket, error: FlussError | OSError) -> None:
        text = error.message if isinstance(error, FlussError) else str(error)
        if self._failures.get(bucket) != text:
            logger.error("%s cannot be restored now, it is tried again: %s", format_bucket(bucket), text)
        self._failures[bucket] = text

    async def _lost(self, bucket: TableBucket) -> LostLog:
        chain = self._pending.get(bucket)
        known = await self._remote.manifest(bucket)
        if known is None:
            return LostLog(chain)
        entry, manifest = known
        snapshot = None
        if manifest.segments and manifest.segments[-1].end_offset == entry.end_offset:
            last = manifest.segments[-1]
            name = remote_file_path(last.segment_id, last.end_offset, LogFileKind.WRITER_SNAPSHOT)
            snapshot = bytes(await self._in_thread(self._remote.store(entry.root).get, f"{entry.directory}/{name}"))
        return LostLog(chain, entry.end_offset, snapshot)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))

    async def _say_progress(self) -> None:
        if not self._pending and not self._note.is_complete:
            self._note = self._note.completed()
            await asyncio.to_thread(self._note.save, self._files, self._data_dir)
            logger.info(
                "the restore is complete: %d logs, %d bytes, %.1f s",
                *(self._log_count, self._fetched_bytes, self._clock() - self._began_s),
            )
        elif self._pending and self._clock() - self._said_s >= _PROGRESS_INTERVAL_S:
            self._said_s = self._clock()
            done = self._log_count - len(self._pending)
            logger.info("restored %d of %d logs, %d bytes", done, self._log_count, self._fetched_bytes)


def _slices(buckets: Sequence[TableBucket]) -> Iterator[Sequence[TableBucket]]:
    return (buckets[first : first + _LOGS_PER_STEP] for first in range(0, len(buckets), _LOGS_PER_STEP))
