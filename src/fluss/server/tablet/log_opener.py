"""Opens logs when requests first ask for them: in threads, many at a time, each of them once.

A log of which nothing is on the disk is made at once. Whether there is something is looked up once per partition, by
listing its directory; from then on all directories in it are the work of this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT64_MAX
from fluss.memory import LongLived
from fluss.server.model import Clock, format_bucket
from fluss.server.tablet.buckets import CLOSED_IN_ORDER, LEFT_BEHIND, NOTHING_ON_DISK, BucketGroup, HostedBucket
from fluss.storage.log.committer import Committer
from fluss.storage.log.file_names import TabletKind
from fluss.storage.log.local_log import first_segment_time
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import Files, is_passing

# Logs that are opened by one job of a thread.
LOGS_PER_JOB: Final = 64
_THREADS: Final = 4
# Logs of which nothing is on the disk that are made in one turn of the event loop: some milliseconds.
_NEW_PER_TURN: Final = 256

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    """A bucket that is to be opened, and what is known of its log."""

    bucket: HostedBucket
    directory: Path
    recovery_offset: int
    was_clean: bool


class LogOpener:
    """Opens the logs of buckets. Belongs to the event loop; implements Opener."""

    def __init__(
        self,
        data_dir: Path,
        settings: LogSettings,
        *,
        files: Files,
        committer: Committer,
        clock: Clock,
        long_lived: LongLived,
    ) -> None:
        self.data_dir = data_dir
        # Whether the last run of the server has closed its logs in order. To be set before any is opened.
        self.was_clean = False
        # Sees to it that logs are on the disk after a restore, and returns those that are not; None if all are.
        self.bring: Callable[[Sequence[HostedBucket]], Awaitable[Sequence[HostedBucket]]] | None = None
        # Of when the backup was from which the server was restored, as epoch milliseconds.
        self.restored_ms: int | None = None
        self._settings = settings
        self._files = files
        self._committer = committer
        self._clock = clock
        self._long_lived = long_lived
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-open")
        # New logs that may still be made in this turn of the event loop.
        self._new_left = _NEW_PER_TURN
        self._wanted: list[HostedBucket] = []
        self._jobs: set[asyncio.Task[None]] = set()

    def open_new(self, bucket: HostedBucket) -> None:
        found = bucket.group.found
        if found is None or self._state_of(bucket, found) != NOTHING_ON_DISK or self._new_left == 0:
            return
        if self._new_left == _NEW_PER_TURN:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._new_left -= 1
        self._hand_over(bucket, self._new_log(bucket))

    def _hand_over(self, bucket: HostedBucket, log: LogTablet | FlussError) -> None:
        bucket.opened(log)
        self._long_lived.added()

    def _begin_turn(self) -> None:
        self._new_left = _NEW_PER_TURN

    def open(self, bucket: HostedBucket) -> None:
        self.open_new(bucket)
        if bucket.is_settled:
            return
        if not self._wanted:
            # Whatever is asked for in this turn of the loop is opened together.
            asyncio.get_running_loop().call_soon(self._begin_job)
        self._wanted.append(bucket)

    async def settle(self) -> None:
        """Wait until everything that is being opened is open."""
        while self._jobs or self._wanted:
            if self._jobs:
                await asyncio.wait(set(self._jobs))
            else:
                await asyncio.sleep(0)

    async def stop(self) -> None:
        """End the threads. Nothing is opened any more."""
        await self.settle()
        await asyncio.to_thread(self._threads.shutdown)

    def found_in(self, group: BucketGroup) -> bytearray:
        """Look which buckets of a group have a log on the disk. Blocking; may be called from any thread."""
        found = bytearray(group.bucket_count)
        for name in self._files.names(group.directory):
            number = name.removeprefix(TabletKind.LOG)
            if number != name and number.isdecimal() and int(number) < len(found):
                found[int(number)] = LEFT_BEHIND
        return found

    def first_segment_time(self, directory: Path, is_only_one_wanted: bool) -> int:
        """Return the commit time of the last batch in the first segment of a log that is not open. Blocking.

        Of a log with a single segment it is the end of all times, unless that is wanted, too. Damage is found when the
        log is opened.
        """
        try:
            time_ms = first_segment_time(
                self._files,
                directory,
                interval_bytes=self._settings.index_interval_bytes,
                is_only_one_wanted=is_only_one_wanted,
            )
        except (FlussError, OSError) as error:
            logger.debug("it is not known what of %s has expired: %s", directory, error)
            time_ms = None
        return INT64_MAX if time_ms is None else time_ms

    def _state_of(self, bucket: HostedBucket, found: bytearray) -> int:
        """Return what is on the disk. A log that is missing though something was written is not nothing."""
        bucket_id = bucket.bucket.bucket_id
        return found[bucket_id] or (LEFT_BEHIND if bucket.group.recovery_offset(bucket_id) else NOTHING_ON_DISK)

    def _new_log(self, bucket: HostedBucket) -> LogTablet:
        return LogTablet.new(
            bucket.directory,
            bucket.bucket,
            self._settings,
            files=self._files,
            committer=self._committer,
            clock=self._clock,
        )

    def _begin_job(self) -> None:
        wanted, self._wanted = self._wanted, []
        job = asyncio.get_running_loop().create_task(self._open_all(wanted))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _open_all(self, buckets: Sequence[HostedBucket]) -> None:
        for group in {bucket.group: None for bucket in buckets if bucket.group.found is None}:
            await self._look_up(group)
        new, places = [], []
        for bucket in buckets:
            assert bucket.group.found is not None, "it has just been looked up"
            state = self._state_of(bucket, bucket.group.found)
            if state == NOTHING_ON_DISK:
                new.append(bucket)
                continue
            was_clean = state == CLOSED_IN_ORDER or (state == LEFT_BEHIND and self.was_clean)
            recovery_offset = bucket.group.recovery_offset(bucket.bucket.bucket_id)
            places.append(_Place(bucket, bucket.directory, recovery_offset, was_clean))
        opening = [self._open(places[first : first + LOGS_PER_JOB]) for first in range(0, len(places), LOGS_PER_JOB)]
        await asyncio.gather(self._open_new_ones(new), *opening)

    async def _look_up(self, group: BucketGroup) -> None:
        loop = asyncio.get_running_loop()
        try:
            group.take_found(await loop.run_in_executor(self._threads, self.found_in, group))
        except OSError as error:
            logger.error("%s cannot be listed: %s", group.directory, error)
            # Its logs are looked for one by one.
            group.take_found(bytearray([LEFT_BEHIND]) * group.bucket_count)

    async def _open_new_ones(self, buckets: Sequence[HostedBucket]) -> None:
        """Make logs of which nothing is on the disk, some in each turn of the event loop."""
        for first in range(0, len(buckets), LOGS_PER_JOB):
            for bucket in buckets[first : first + LOGS_PER_JOB]:
                self._hand_over(bucket, self._new_log(bucket))
            await asyncio.sleep(0)

    async def _open(self, places: Sequence[_Place]) -> None:
        if self.bring is not None:
            missing = set(await self.bring([place.bucket for place in places]))
            for bucket in missing:
                bucket.not_opened()
            places = [place for place in places if place.bucket not in missing]
        logs = await asyncio.get_running_loop().run_in_executor(self._threads, self._open_logs, places)
        for place, log in zip(places, logs, strict=True):
            if log is None:
                place.bucket.not_opened()
            else:
                self._hand_over(place.bucket, log)

    def _open_logs(self, places: Sequence[_Place]) -> list[LogTablet | FlussError | None]:
        return [self._open_log(place) for place in places]

    def _open_log(self, place: _Place) -> LogTablet | FlussError | None:
        """Open one log; what cannot be opened becomes the reason why, or None if that will pass. Blocking."""
        bucket = place.bucket.bucket
        try:
            log, result = LogTablet.open(
                place.directory,
                bucket,
                self._settings,
                files=self._files,
                committer=self._committer,
                clock=self._clock,
                recovery_offset=place.recovery_offset,
                was_clean=place.was_clean,
            )
        except (FlussError, OSError) as error:
            if isinstance(error, OSError) and is_passing(error):
                # The bucket stays what it was, and requests for it are told to try again.
                logger.warning("the log in %s cannot be opened now: %s", place.directory, error)
                return None
            reason = error.message if isinstance(error, FlussError) else str(error)
            text = f"{format_bucket(bucket)} is offline, its log in {place.directory} cannot be used: {reason}"
            logger.error("%s. Repair or restore the files and start the server again, or drop the table", text)
            return FlussError(text, ErrorCode.STORAGE_EXCEPTION)
        if result.bytes_dropped:
            logger.warning(
                "%s: cut off %d bytes that were not written completely when the server was interrupted; the log goes "
                "on at offset %d",
                place.directory,
                result.bytes_dropped,
                result.offset_next,
            )
        return log
