"""What of the logs is in remote storage: where readers find it, and what other parts of the server read of it.

Which offsets are there is kept in memory for all buckets, in a few bytes each. Which segments, the manifests say: they
are loaded when they are first needed, and those used last are kept. Clients read the segments themselves.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Metrics, Sample
from fluss.schema.table import TableBucket
from fluss.server.model import LogArchive, RemoteLogEntry, RemoteLogRegistry, format_bucket
from fluss.server.tablet.buckets import BucketGroup, HostedBucket, HostedTable, RemoteOffsets
from fluss.storage.backup.ownership import check_place, load_claims
from fluss.storage.log.remote_log import IndexCache, RemoteReader, get_manifest, remote_directory
from fluss.storage.log.remote_manifest import RemoteManifest, RemoteSegment
from fluss.storage.log.tablet import LogTablet
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.removal_gate import RemovalGate
from fluss.storage.remote.store import RemoteStoppedError, RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files

T = TypeVar("T")

INDEX_CACHE_DIRECTORY: Final = "remote-log-index-cache"
# Segments of all manifests that are kept in memory, at about 300 bytes each.
_SEGMENTS_KEPT_MAX: Final = 65_536
# Segments that one answer names of one bucket, and of all its buckets together, but at least one of each. A client that
# has read them asks for the next ones.
_SEGMENTS_TOLD_MAX: Final = 256
_SEGMENTS_TOLD_TOGETHER_MAX: Final = 16_384
_READER_THREADS: Final = 4
# How often a manifest is asked for that is replaced while it is being loaded.
_LOAD_ATTEMPTS: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """What can be said about remote storage."""

    # Where it is; a place that is there twice gets twice as many tables and partitions. Empty: there is none.
    locations: Sequence[str] = ()
    file_systems: FileSystemOptions = field(default_factory=lambda: FileSystemOptions({}))
    # 0: nothing is copied, and nothing expires.
    task_interval_ms: int = 60_000
    segments_per_task: int = 5
    index_cache_bytes: int = 1024 * 1024 * 1024
    # 0: no limit.
    upload_bytes_per_second: int = 0
    # How often a backup point is made; 0: never.
    backup_interval_ms: int = 0
    backup_points_kept: int = 3


class RemoteRange(NamedTuple):
    """Consecutive segments in remote storage, and where to begin in the first one."""

    directory: str
    partition_name: str | None
    segments: Sequence[RemoteSegment]
    first_position: int


class _Known(NamedTuple):
    entry: RemoteLogEntry
    manifest: RemoteManifest


class RemoteLogs:
    """The remote logs of all hosted tables. Belongs to the event loop; storage is reached by threads of its own."""

    def __init__(
        self,
        settings: RemoteSettings,
        registry: RemoteLogRegistry,
        tables: Mapping[int, HostedTable],
        data_dir: Path,
        files: Files,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.traffic = RemoteTraffic(settings.upload_bytes_per_second)
        # When objects that are not named any more may be removed.
        self.gate = RemovalGate()
        # Buckets whose remote log has changed since the backup last asked, and where it ended before.
        self.changed: dict[TableBucket, int] = {}
        self._tables = tables
        self._data_dir = data_dir
        self._files = files
        self._locations = [check_location(location) for location in settings.locations]
        self._stores: dict[str, RemoteStore] = {}
        self._cache = IndexCache(files, data_dir / INDEX_CACHE_DIRECTORY, settings.index_cache_bytes)
        self._threads = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="fluss-remote-read")
        self._known: OrderedDict[TableBucket, _Known] = OrderedDict()
        self._segments_known = 0
        # Buckets whose remote logs may have objects that no manifest names.
        self.dirty: set[TableBucket] = set()
        # Buckets whose remote logs are in directories that are not configured any more, and were not found to be still
        # those of this server: their copies may go at any time.
        self.uncertain: set[TableBucket] = set()
        # Where backups are shipped: tells when the oldest one began that is kept, 0 as long as there is none. What only
        # an earlier backup names may be removed.
        self.shipped_ms: Callable[[], int] | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there is remote storage."""
        return bool(self._locations)

    @property
    def is_copying(self) -> bool:
        """Whether closed segments are copied to it."""
        return self.is_enabled and self.settings.task_interval_ms > 0

    async def start(self) -> None:
        """Take what is registered. The tables are hosted by then."""
        self._check_locations()
        entries = await self.registry.load()
        if entries and not self.is_enabled:
            logger.warning(
                "%d logs have been copied to remote storage, such as %s/%s, which is not configured any more: what is "
                "only there cannot be read until remote.data.dir is set again",
                *(len(entries), entries[0].root, entries[0].directory),
            )
            return
        for entry in entries:
            self._note(entry)
            if entry.is_dirty:
                self.dirty.add(entry.bucket)
            if entry.root not in self._locations:
                self.uncertain.add(entry.bucket)
        await asyncio.gather(*(self._in_thread(self.store, root) for root in dict.fromkeys(self._locations)))

    def _check_locations(self) -> None:
        """Refuse the data directory itself, whose files would be mixed with others, and warn of a place inside it."""
        data_dir = self._data_dir.resolve()
        for path in (Path(location).resolve() for location in self._locations if location.startswith("/")):
            if path == data_dir:
                raise FlussError(
                    f"remote storage cannot be at {path}, which is the data directory: give a directory of its own, on "
                    "another disk",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
            if data_dir in path.parents:
                logger.warning("remote storage at %s is in the data directory, and is lost with it", path)

    async def stop(self) -> None:
        """End all transfers and the threads."""
        self.traffic.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def show(self, metrics: Metrics) -> None:
        """Show how much is in remote storage, and what goes there."""
        if not self.is_enabled:
            return
        traffic = self.traffic
        for name, meaning, read in (
            ("fluss_remote_log_size_bytes", "Bytes of segments in remote storage.", lambda: self._total("sizes")),
            ("fluss_remote_log_segments", "Segments in remote storage.", lambda: self._total("segment_counts")),
            ("fluss_remote_log_dirty_buckets", "Buckets whose remote log may have orphans.", lambda: len(self.dirty)),
        ):
            metrics.gauge(name, meaning, read)
        for name, meaning, count in (
            ("fluss_remote_log_copy_bytes_total", "Bytes sent to remote storage.", lambda: traffic.sent_bytes),
            ("fluss_remote_log_copy_requests_total", "Objects sent to it.", lambda: traffic.sent_objects),
            ("fluss_remote_log_delete_requests_total", "Objects removed from it.", lambda: traffic.removed_objects),
            (
                "fluss_remote_log_errors_total",
                "Requests to it that failed, and were retried.",
                lambda: traffic.failures,
            ),
        ):
            metrics.counters(name, meaning, _one(count))

    def _total(self, column: str) -> int:
        groups = (group for table in self._tables.values() for group in table.groups.values())
        return sum(sum(getattr(group.remote, column)) for group in groups if group.remote is not None)

    # Where it is

    @property
    def first_location(self) -> str:
        """Where a backup is shipped to."""
        return self._locations[0]

    def store(self, root: str) -> RemoteStore:
        """Return the store at a directory of remote storage. The first time this takes a moment."""
        store = self._stores.get(root)
        if store is None:
            objects = open_objects(root, self.settings.file_systems, self._files)
            store = self._stores.setdefault(root, RemoteStore(objects, self.traffic))
        return store

    def check_owner(self, root: str) -> None:
        """Raise FencedError if a directory of remote storage is another server's by now. Blocking."""
        self.gate.check_owner()
        self.check_place(root)

    def check_place(self, root: str) -> None:
        """Do so for a directory that is not the first one, to which backups are shipped. Blocking.

        Only first directories are claimed. So what is in one that is not configured any more is this server's as long
        as it was replaced in none that it has ever claimed.
        """
        if root == self.first_location:
            return
        claims = load_claims(self._files, self._data_dir)
        for place in {root} if root in self._locations else {root, *claims} - {self.first_location}:
            check_place(self.store(place), claims.get(place))

    def root_of(self, group: BucketGroup) -> str:
        """Return in which directory of remote storage something new of a group is put."""
        # Ids count up, so this is each of them in turn.
        number = group.table_id if group.partition_id is None else group.partition_id
        return self._locations[number % len(self._locations)]

    def new_entry(self, group: BucketGroup, bucket_id: int) -> RemoteLogEntry:
        """Return what to register before the first segment of a bucket is copied."""
        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        return RemoteLogEntry(bucket, self.root_of(group), remote_directory(group.location(bucket_id)))

    # What is there

    def _group(self, bucket: TableBucket) -> BucketGroup | None:
        table = self._tables.get(bucket.table_id)
        return None if table is None else table.groups.get(bucket.partition_id)

    def _note(self, entry: RemoteLogEntry) -> None:
        group, bucket_id = self._group(entry.bucket), entry.bucket.bucket_id
        if group is None or not bucket_id < group.bucket_count:
            return
        if group.remote is None:
            group.remote = RemoteOffsets(group.bucket_count)
        remote = group.remote
        remote.starts[bucket_id], remote.ends[bucket_id] = entry.start_offset, entry.end_offset
        remote.first_times[bucket_id] = entry.first_time_ms
        remote.sizes[bucket_id], remote.segment_counts[bucket_id] = entry.size_bytes, entry.segment_count

    def committed(self, entry: RemoteLogEntry, manifest: RemoteManifest) -> None:
        """Take a manifest that counts from now on."""
        group = self._group(entry.bucket)
        if self.settings.backup_interval_ms:
            end = 0 if group is None or group.remote is None else group.remote.ends[entry.bucket.bucket_id]
            self.changed.setdefault(entry.bucket, end)
        self._note(entry)
        self._keep(entry, manifest)

    def forget(self, bucket: TableBucket) -> None:
        """Let go of what is known of a bucket that was dropped."""
        self.dirty.discard(bucket)
        self.uncertain.discard(bucket)
        self.changed.pop(bucket, None)
        known = self._known.pop(bucket, None)
        if known is not None:
            self._segments_known -= len(known.manifest.segments)

    def _keep(self, entry: RemoteLogEntry, manifest: RemoteManifest) -> None:
        before = self._known.pop(entry.bucket, None)
        self._known[entry.bucket] = _Known(entry, manifest)
        self._segments_known += len(manifest.segments) - (0 if before is None else len(before.manifest.segments))
        while self._segments_known > _SEGMENTS_KEPT_MAX and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._segments_known -= len(oldest.manifest.segments)

    async def manifest(self, bucket: TableBucket) -> tuple[RemoteLogEntry, RemoteManifest] | None:
        """Return the current manifest of a bucket and its entry; None if there is none. Raises FlussError."""
        known = self._known.get(bucket)
        if known is not None:
            self._known.move_to_end(bucket)
            return known
        for attempt in range(_LOAD_ATTEMPTS):
            entry = await self.registry.find(bucket)
            if entry is None or entry.manifest_path is None:
                return None
            try:
                manifest = await self._in_thread(self._load, entry)
            except FlussError:
                # It may have been replaced meanwhile, and is gone.
                newer = await self.registry.find(bucket)
                if newer == entry or attempt == _LOAD_ATTEMPTS - 1:
                    raise
                continue
            group = self._group(bucket)
            if group is None or group.remote is None:
                return None
            span = group.remote.starts[bucket.bucket_id], group.remote.ends[bucket.bucket_id]
            if span == (entry.start_offset, entry.end_offset):
                self._keep(entry, manifest)
                return entry, manifest
        raise FlussError(
            f"the remote log of {format_bucket(bucket)} changes all the time; try again",
            ErrorCode.LOG_STORAGE_EXCEPTION,
        )

    def _load(self, entry: RemoteLogEntry) -> RemoteManifest:
        assert entry.manifest_path is not None, "it has one"
        return get_manifest(self.store(entry.root), entry.manifest_path)

    # What readers are told

    async def find(
        self, hosted: HostedBucket, offset: int, *, is_remote_first: bool, bucket_count: int = 1
    ) -> RemoteRange | None:
        """Return where an offset and what follows is in remote storage; None if it is not there.

        Unless ``is_remote_first``, what the log has itself is left out. The answer is about ``bucket_count`` buckets.
        Raises FlussError.
        """
        known = await self.manifest(hosted.bucket)
        if known is None:
            return None
        entry, manifest = known
        local_start = hosted.log().offset_start
        first = bisect_right(manifest.segments, offset, key=_start_offset) - 1
        if first < 0 or offset >= manifest.segments[first].logical_end_offset:
            return None
        segments = [manifest.segments[first]]
        told_max = max(1, min(_SEGMENTS_TOLD_MAX, _SEGMENTS_TOLD_TOGETHER_MAX // bucket_count))
        for segment in manifest.segments[first + 1 : first + told_max]:
            is_local = segment.start_offset >= local_start and not is_remote_first
            if is_local or segment.start_offset != segments[-1].end_offset:
                break
            segments.append(segment)
        position = await self._in_thread(self._reader(entry).position_before, segments[0], offset)
        directory = f"{self.store(entry.root).location}/{entry.directory}"
        return RemoteRange(directory, manifest.location.partition_name, segments, position)

    async def offset_for_timestamp(self, hosted: HostedBucket, timestamp_ms: int) -> int | None:
        """Return the offset of the first batch with that commit time or a later one, if the log has it no longer.

        None: the log itself knows. Raises FlussError.
        """
        known = await self.manifest(hosted.bucket)
        if known is None:
            return None
        entry, manifest = known
        local_start = hosted.log().offset_start
        for segment in manifest.segments:
            if segment.logical_start_offset >= local_start:
                break
            if segment.timestamp_ms_max >= timestamp_ms:
                return await self._in_thread(self._reader(entry).offset_for_timestamp, segment, timestamp_ms)
        return None

    # What stores are built from

    def archive(self, log: LogTablet) -> LogArchive | None:
        """Return what remote storage has of a changelog; None if that is nothing."""
        group, bucket_id = self._group(log.bucket), log.bucket.bucket_id
        if group is None or group.remote is None or group.remote.starts[bucket_id] >= group.remote.ends[bucket_id]:
            return None
        return _BucketArchive(self, log, asyncio.get_running_loop())

    def _reader(self, entry: RemoteLogEntry) -> RemoteReader:
        return RemoteReader(self.store(entry.root), entry.directory, self._cache, self._files)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        except RemoteStoppedError:
            raise FlussError("the server is stopping", ErrorCode.NOT_LEADER_OR_FOLLOWER) from None
        except OSError as error:
            raise FlussError(f"remote storage cannot be read: {error}", ErrorCode.LOG_STORAGE_EXCEPTION) from error


class _BucketArchive:
    """The remote log of one bucket, for threads. Implements LogArchive."""

    def __init__(self, logs: RemoteLogs, log: LogTablet, loop: asyncio.AbstractEventLoop) -> None:
        self._logs = logs
        self._log = log
        self._loop = loop

    def offset_start(self) -> int:
        offset = self._log.offset_start
        for segment in reversed(self._manifest()[1].segments):
            if segment.end_offset < offset:
                break
            offset = min(offset, segment.logical_start_offset)
        return offset

    def read(self, offset: int, bytes_max: int) -> memoryview:
        entry, manifest = self._manifest()
        index = bisect_right(manifest.segments, offset, key=_start_offset) - 1
        if index < 0 or offset >= manifest.segments[index].end_offset:
            raise FlussError(
                f"offset {offset} of {format_bucket(self._log.bucket)} is neither in its log nor in remote storage",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
        return self._logs._reader(entry).read(manifest.segments[index], offset, bytes_max)

    def _manifest(self) -> tuple[RemoteLogEntry, RemoteManifest]:
        known = asyncio.run_coroutine_threadsafe(self._logs.manifest(self._log.bucket), self._loop).result()
        if known is None:
            raise FlussError(
                f"the remote log of {format_bucket(self._log.bucket)} is gone", ErrorCode.LOG_STORAGE_EXCEPTION
            )
        return known


def _start_offset(segment: RemoteSegment) -> int:
    return segment.start_offset


def _one(read: Callable[[], float]) -> Callable[[], Iterable[Sample]]:
    return lambda: (Sample(read()),)
