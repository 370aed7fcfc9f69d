"""Scrubbing: sealed segments and SST files are read again, all of them in turns, so that damage is found early.

A disk loses bits in files that are not read for months. A reader that meets the damage is too late: by then the backup
that still had the file may be gone. So a thread reads everything once per interval, at a rate that work does not
notice, and checks:

- segments that take no more appends: checksums, offsets, order (``check_segment``). A bucket with a damaged one counts
  as one that does not work in the health of the server, until the file is good again.
- their indexes, against the batches they speak of. A damaged one is removed, and made again when it is needed.
- SST files of stores: checksums of all blocks (``SstCheck``). The store is built again from its changelog.
- SST files of copies of stores. The copy is replaced by a new one.

What may still change is left alone: the last segment of a log, segments that a crash could cut, SST files that were
written to a moment ago. Damage counts when it is found twice.

Where the pass is, and which files are damaged, is in ``scrub.json`` of the data directory, so that a restart begins
where it was, and looks at damaged files first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol, TypeVar

from fluss.errors import FlussError, KvDamagedError
from fluss.metrics import Metrics, Sample
from fluss.schema.table import TableBucket
from fluss.server.model import Clock
from fluss.storage.background_reads import BackgroundReads, ReadsStoppedError
from fluss.storage.kv.snapshots.sst_check import SstCheck, UnknownFormatError
from fluss.storage.log.file_names import (
    DELETED_SUFFIX,
    LogFileKind,
    LogFileName,
    TabletKind,
    TabletLocation,
    log_file_name,
)
from fluss.storage.log.segment_check import IndexDamagedError, check_segment
from fluss.storage.vfs import Files, is_passing

T = TypeVar("T")

FILE_NAME: Final = "scrub.json"
# Databases of several stores lie below this directory.
_SHARED_STORES: Final = "kv.shared"
# Tablets that are looked for in one turn of the thread, and what looking at a directory costs, in bytes of the rate.
_TABLETS_PER_TURN: Final = 64
_DIRECTORY_BYTES: Final = 4096
# An SST file that was written to more recently may not be complete.
_SETTLED_AGE_S: Final = 60.0
# How long damage has to last to be believed.
_SECOND_LOOK_S: Final = 1.0
# How often progress is written down.
_SAVE_INTERVAL_S: Final = 60.0
_START_DELAY_S: Final = 10.0
_MS: Final = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How scrubbing is done. A rate or an interval of 0 turns it off."""

    bytes_per_second: int = 8 * 1024 * 1024
    interval_ms: int = 7 * 24 * 3600 * 1000

    @property
    def is_enabled(self) -> bool:
        return self.bytes_per_second > 0 and self.interval_ms > 0


class ScrubbedHost(Protocol):
    """What scrubbing asks of the server. Called on the event loop."""

    def settled_offset(self, bucket: TableBucket) -> int | None:
        """Return the offset before which the log is known to be on the disk; None if there is no such bucket."""
        ...

    async def store_damaged(self, bucket: TableBucket | None, paths: Sequence[Path], error: KvDamagedError) -> bool:
        """Have a store built again that has damaged files; return whether that is possible.

        Without a bucket it is a database that several of them share.
        """
        ...

    async def copy_damaged(self, bucket: TableBucket, paths: Sequence[Path]) -> bool:
        """Replace a copy of a store that has damaged files; return whether that was possible."""
        ...


@dataclass(frozen=True, slots=True)
class Tablet:
    """A directory with files to read, and whose it is: a log, a store, a copy of one, or a database of several."""

    directory: Path
    kind: TabletKind
    bucket: TableBucket | None


@dataclass(slots=True)
class ScrubCounts:
    """What has been done since the start of the server. Written by the scrubber only."""

    files_checked: int = 0
    segments_damaged: int = 0
    indexes_damaged: int = 0
    stores_damaged: int = 0
    passes: int = 0


@dataclass(slots=True)
class _Progress:
    """What is kept over restarts."""

    pass_began_ms: int = 0
    # Everything up to this directory, relative and with forward slashes, has been read; empty: the pass is over.
    read_until: str = ""
    # Why files are damaged, by their path.
    damaged: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Finding:
    """A damaged file."""

    tablet: Tablet
    path: Path
    error: FlussError


class Scrubber:
    """Reads everything, in turns. Belongs to the event loop; files are read in a thread of its own.

    The thread has the same priority as all others: if it waited for the processor while it holds the interpreter's
    lock, everything else would wait with it. What keeps it small is the rate.
    """

    def __init__(
        self, data_dir: Path, settings: ScrubSettings, host: ScrubbedHost, files: Files, *, clock: Clock
    ) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._host = host
        self._files = files
        self._clock = clock
        self._reads = BackgroundReads(max(settings.bytes_per_second, 1))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fluss-scrubber")
        self._progress = _Progress()
        self._saved_at_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = asyncio.Event()
        self.counts = ScrubCounts()
        # Buckets with a damaged segment, or a store that cannot be built again, by the path of the file.
        self._unhealthy: dict[str, TableBucket | None] = {}

    @property
    def damaged_buckets(self) -> set[TableBucket]:
        """The buckets with a file that is known to be damaged, and is not mended by itself."""
        found = {bucket for bucket in self._unhealthy.values() if bucket is not None}
        return {bucket for bucket in found if self._host.settled_offset(bucket) is not None}

    @property
    def damaged_files(self) -> dict[str, str]:
        """What is wrong with each damaged file, by its path."""
        return dict(self._progress.damaged)

    def show(self, metrics: Metrics) -> None:
        """Have the counts, and what is damaged now, shown among the metrics."""
        counts = self.counts

        def samples() -> list[Sample]:
            by_kind = {
                "segment": counts.segments_damaged,
                "index": counts.indexes_damaged,
                "store": counts.stores_damaged,
            }
            return [Sample(count, (("kind", kind),)) for kind, count in by_kind.items()]

        def one(read: Callable[[], float]) -> Callable[[], list[Sample]]:
            return lambda: [Sample(read())]

        metrics.counters("fluss_scrub_bytes_total", "Bytes read again.", one(lambda: self._reads.read_bytes))
        metrics.counters("fluss_scrub_files_total", "Files checked.", one(lambda: counts.files_checked))
        metrics.counters("fluss_scrub_passes_total", "Passes over all files.", one(lambda: counts.passes))
        metrics.counters("fluss_scrub_damaged_total", "Damaged files and stores that were found.", samples)
        metrics.gauge(
            "fluss_scrub_damaged_files", "Files that are damaged and not mended.", lambda: len(self._progress.damaged)
        )
        metrics.gauge("fluss_scrub_damaged_buckets", "Buckets with such files.", lambda: len(self.damaged_buckets))

    def start(self) -> None:
        if self._settings.is_enabled:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="scrubbing")

    async def stop(self) -> None:
        """End at the next piece of a file, and note how far it came. May be called again."""
        self._is_stopped.set()
        self._reads.stop()
        if self._task is not None:
            await self._task
            self._task = None
            await asyncio.to_thread(self._save)
        self._thread.shutdown()

    # The pass

    async def _run(self) -> None:
        try:
            await self._patiently(self._begin)
            # After a start, other work comes first.
            if await self._is_stopped_within(min(_START_DELAY_S, self._settings.interval_ms / _MS)):
                return
            await self._patiently(self._look_at_damaged)
            while not self._is_stopped.is_set():
                await self._wait_for_pass()
                await self._patiently(self._pass)
        except ReadsStoppedError:
            pass
        except Exception:
            logger.exception("scrubbing has ended; it goes on after the next start")

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that reads files. Where these cannot be opened for a while, it is begun again later."""
        while True:
            try:
                await work()
                return
            except OSError as error:
                if not is_passing(error):
                    raise
                logger.warning("scrubbing waits: %s", error)
            if await self._is_stopped_within(_SECOND_LOOK_S):
                raise ReadsStoppedError

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._is_stopped.wait()
        except TimeoutError:
            return False

    async def _wait_for_pass(self) -> None:
        """Wait until the next pass is due, unless one was interrupted."""
        progress = self._progress
        if progress.read_until:
            logger.info("scrubbing goes on behind %s", progress.read_until)
            return
        due_ms = progress.pass_began_ms + self._settings.interval_ms - self._clock()
        # A clock that was set back must not put it off for longer than an interval.
        if await self._is_stopped_within(min(max(due_ms, 0), self._settings.interval_ms) / _MS):
            raise ReadsStoppedError
        progress.pass_began_ms = self._clock()

    async def _pass(self) -> None:
        bytes_before, began_s = self._reads.read_bytes, time.monotonic()
        tablets = _tablets(self._data_dir, self._progress.read_until, self._reads)
        while group := await self._in_thread(_take, tablets, _TABLETS_PER_TURN):
            for tablet in group:
                await self._scrub(tablet)
                self._progress.read_until = tablet.directory.relative_to(self._data_dir).as_posix()
            if time.monotonic() - self._saved_at_s >= _SAVE_INTERVAL_S:
                await asyncio.to_thread(self._save)
        self._progress.read_until = ""
        self.counts.passes += 1
        await asyncio.to_thread(self._save)
        logger.info(
            "scrubbing: read %.0f MB in %.0f s; %d damaged files are known",
            (self._reads.read_bytes - bytes_before) / 1e6,
            time.monotonic() - began_s,
            len(self._progress.damaged),
        )

    async def _begin(self) -> None:
        """Go on where the last run ended. What was damaged before counts as damaged until it is looked at again."""
        self._progress = await asyncio.to_thread(self._load)
        for path in self._progress.damaged:
            tablet = _tablet(self._data_dir, (self._data_dir / path).parent)
            if tablet is not None:
                self._unhealthy[path] = tablet.bucket

    async def _look_at_damaged(self) -> None:
        """Look again at what was damaged before the start; the files may have been restored."""
        directories = {(self._data_dir / path).parent for path in self._progress.damaged}
        for directory in sorted(directories):
            tablet = _tablet(self._data_dir, directory)
            if tablet is None or not await asyncio.to_thread(directory.is_dir):
                self._forget_below(directory)
            else:
                await self._scrub(tablet)

    async def _scrub(self, tablet: Tablet) -> None:
        settled_offset = None if tablet.bucket is None else self._host.settled_offset(tablet.bucket)
        if tablet.bucket is not None and settled_offset is None:
            # Its table was dropped; the directory is about to go.
            self._forget_below(tablet.directory)
            return
        if tablet.kind is TabletKind.LOG:
            findings = await self._in_thread(self._check_log, tablet, settled_offset or 0)
        else:
            findings = await self._in_thread(self._check_store, tablet)
        known = {str(finding.path.relative_to(self._data_dir)) for finding in findings}
        for path in self._paths_below(tablet.directory) - known:
            logger.warning("scrubbing: %s is good again", path)
            self._forget(path)
        if findings:
            await self._report(tablet, findings)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # In the thread

    def _check_log(self, tablet: Tablet, settled_offset: int) -> list[_Finding]:
        names = (LogFileName.parse(name) for name in self._files.names(tablet.directory))
        bases = sorted(
            name.offset
            for name in names
            if name is not None and name.kind is LogFileKind.SEGMENT and not name.is_deleted
        )
        findings = []
        for base_offset, offset_next in pairwise(bases):
            if offset_next > settled_offset:
                break
            path = tablet.directory / log_file_name(base_offset, LogFileKind.SEGMENT)
            error = self._twice(lambda: self._check_segment(path, base_offset, offset_next))  # noqa: B023
            if error is not None:
                findings.append(_Finding(tablet, path, error))
        return findings

    def _check_segment(self, path: Path, base_offset: int, offset_next: int) -> None:
        size = self._reads.size(path)
        try:
            check_segment(self._reads, path, base_offset=base_offset, offset_next=offset_next, size=size)
        except IndexDamagedError as error:
            self.counts.indexes_damaged += 1
            logger.warning("scrubbing: %s; it is removed, and made again when it is needed", error.message)
            for kind in (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX):
                self._files.remove(path.with_name(log_file_name(base_offset, kind)))

    def _check_store(self, tablet: Tablet) -> list[_Finding]:
        findings = []
        for name in sorted(self._files.names(tablet.directory)):
            path = tablet.directory / name
            if path.suffix == ".sst":
                error = self._twice(lambda: self._check_sst(path))  # noqa: B023
                if error is not None:
                    findings.append(_Finding(tablet, path, error))
        return findings

    def _check_sst(self, path: Path) -> None:
        status = path.stat()
        if time.time() - status.st_mtime < _SETTLED_AGE_S:
            return
        # RocksDB itself looks at files of a format that only it knows, from an older version, when it reads them.
        with suppress(UnknownFormatError):
            SstCheck(path, status.st_size, lambda position, count: self._reads.read(path, position, count)).run()

    def _twice(self, check: Callable[[], None]) -> FlussError | None:
        """Return what is wrong with a file, if it is so twice. One that is gone was dropped, expired or merged.

        Raises OSError for what passes, and says nothing about the file.
        """
        error: FlussError | None = None
        for _ in range(2):
            try:
                check()
            except FileNotFoundError:
                return None
            except FlussError as failure:
                error = failure
            except OSError as failure:
                if is_passing(failure):
                    raise
                error = KvDamagedError(f"{failure.filename or 'a file'} cannot be read: {failure.strerror}")
            else:
                self.counts.files_checked += 1
                return None
            self._reads.pause(_SECOND_LOOK_S)
        return error

    # What was found

    async def _report(self, tablet: Tablet, findings: list[_Finding]) -> None:
        for finding in findings:
            path = str(finding.path.relative_to(self._data_dir))
            is_new = path not in self._progress.damaged
            self._progress.damaged[path] = finding.error.message
            if tablet.kind is TabletKind.LOG:
                self.counts.segments_damaged += is_new
                self._unhealthy[path] = tablet.bucket
                logger.error(
                    "scrubbing: %s. Rows in that batch cannot be read any more; restore the file from a backup while "
                    "the server is stopped, or copy the other rows to a new table and drop this one",
                    finding.error.message,
                )
        if tablet.kind is not TabletKind.LOG:
            await self._mend(tablet, findings)
        await asyncio.to_thread(self._save)

    async def _mend(self, tablet: Tablet, findings: list[_Finding]) -> None:
        """Have a store, or a copy of one, made again."""
        self.counts.stores_damaged += 1
        error = findings[0].error
        damage = error if isinstance(error, KvDamagedError) else KvDamagedError(error.message)
        paths = [finding.path for finding in findings]
        is_copy = tablet.kind is TabletKind.KV_SNAPSHOTS
        try:
            if is_copy and tablet.bucket is not None:
                is_mended = await self._host.copy_damaged(tablet.bucket, paths)
            else:
                is_mended = await self._host.store_damaged(tablet.bucket, paths, damage)
        except FlussError as failure:
            logger.error("scrubbing: %s is damaged and could not be mended: %s", tablet.directory, failure.message)
            is_mended = False
        if is_mended:
            what = "a new copy is made" if is_copy else "the store is built again from its changelog"
            logger.warning("scrubbing: %s; %s", damage.message, what)
            self._forget_below(tablet.directory)
            return
        logger.error(
            "scrubbing: %s. It cannot be built again from the changelog, the beginning of which has expired, or from "
            "copies; restore the directory from a backup while the server is stopped, or drop the table",
            damage.message,
        )
        for finding in findings:
            self._unhealthy[str(finding.path.relative_to(self._data_dir))] = tablet.bucket

    def _paths_below(self, directory: Path) -> set[str]:
        parent = directory.relative_to(self._data_dir)
        return {path for path in self._progress.damaged if Path(path).parent == parent}

    def _forget_below(self, directory: Path) -> None:
        for path in self._paths_below(directory):
            self._forget(path)

    def _forget(self, path: str) -> None:
        self._progress.damaged.pop(path, None)
        self._unhealthy.pop(path, None)

    # Progress

    def _load(self) -> _Progress:
        """Read the progress; a file that is missing or damaged means that everything is read from the start.

        Raises OSError for what passes.
        """
        path = self._data_dir / FILE_NAME
        try:
            fields = json.loads(bytes(self._files.read(path, 0, self._files.size(path))))
            return _Progress(
                int(fields["pass_began_ms"]),
                str(fields["read_until"]),
                {str(k): str(v) for k, v in fields["damaged"].items()},
            )
        except FileNotFoundError:
            return _Progress(pass_began_ms=self._clock() - self._settings.interval_ms)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, OSError) and is_passing(error):
                raise
            logger.warning("scrubbing begins anew: %s cannot be read: %s", path, error)
            return _Progress()

    def _save(self) -> None:
        self._saved_at_s = time.monotonic()
        progress = self._progress
        fields = {
            "pass_began_ms": progress.pass_began_ms,
            "read_until": progress.read_until,
            "damaged": progress.damaged,
        }
        try:
            self._files.replace(self._data_dir / FILE_NAME, json.dumps(fields, indent=1).encode())
        except OSError as error:
            logger.warning("how far scrubbing has come could not be noted: %s", error)


# Walking the data directory


def _take(tablets: Iterator[Tablet], count: int) -> list[Tablet]:
    return [tablet for tablet, _ in zip(tablets, range(count), strict=False)]


def _tablets(data_dir: Path, read_until: str, reads: BackgroundReads) -> Iterator[Tablet]:
    """Yield the tablets with something to read, in the order of their paths, behind one of them. Blocking.

    Of all that there may be, only the names beside those on the way down are in memory.
    """
    behind = tuple(read_until.split("/")) if read_until else ()
    for directory, names in _directories(data_dir, data_dir, behind, reads):
        tablet = _tablet(data_dir, directory)
        if tablet is None:
            continue
        if tablet.kind is TabletKind.LOG:
            # The last segment is never read.
            is_wanted = sum(name.endswith(LogFileKind.SEGMENT) for name in names) > 1
        else:
            is_wanted = any(name.endswith(".sst") for name in names)
        if is_wanted:
            yield tablet


def _directories(
    data_dir: Path, directory: Path, behind: tuple[str, ...], reads: BackgroundReads
) -> Iterator[tuple[Path, list[str]]]:
    """Yield directories with the names of their files, those below before their neighbours; ``behind`` was the last."""
    reads.charge(_DIRECTORY_BYTES)
    below: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                (below if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
    except FileNotFoundError:
        return
    for name in sorted(below):
        if name.endswith(DELETED_SUFFIX) or (behind and name < behind[0]):
            continue
        is_on_way = bool(behind) and name == behind[0]
        # The last one itself is not yielded again, and has nothing below it that was not.
        if not is_on_way or len(behind) > 1:
            yield from _directories(data_dir, directory / name, behind[1:] if is_on_way else (), reads)
    if directory != data_dir:
        yield directory, names


def _tablet(data_dir: Path, directory: Path) -> Tablet | None:
    """Return what a directory is, None if there is nothing in it to read."""
    name = directory.relative_to(data_dir).as_posix()
    if name.startswith(f"{_SHARED_STORES}/"):
        return Tablet(directory, TabletKind.KV, None)
    parsed = TabletLocation.parse(name)
    if parsed is None:
        # A copy of a store lies one level deeper.
        parsed = TabletLocation.parse(name.rpartition("/")[0])
        if parsed is None or parsed[1] is not TabletKind.KV_SNAPSHOTS:
            return None
    location, kind = parsed
    bucket = TableBucket.new_with_partition(location.table_id, location.partition_id, location.bucket_id)
    return Tablet(directory, kind, bucket)
