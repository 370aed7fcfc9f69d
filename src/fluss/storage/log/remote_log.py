"""Segments in remote storage: written as copies of closed segments, read like segments of the disk.

Everything here blocks and belongs into a thread. Paths are those of ``remote_manifest``, below the directory of the
bucket's remote log. What is damaged is not copied: a segment is read from one end to the other before it is sent, and
this also makes its indexes and the state of its writers, which the disk keeps only for the newest segments.
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.integers import INT32_MAX
from fluss.record.log_batch import NO_WRITER_ID
from fluss.storage.log.file_names import LogFileKind, LogFileName, TabletKind, TabletLocation
from fluss.storage.log.index import SparseIndex, StoredIndex
from fluss.storage.log.remote_manifest import (
    RemoteManifest,
    RemoteSegment,
    decode_manifest,
    encode_manifest,
    is_uuid,
    manifest_path,
    remote_file_path,
)
from fluss.storage.log.scan import StoredBatch, damage_at
from fluss.storage.log.segment import Segment
from fluss.storage.log.writer_state import WriterEntry, WriterState, decode_writer_snapshot, encode_writer_snapshot
from fluss.storage.remote.store import RemoteStore
from fluss.storage.vfs import Files

ROOT: Final = "log"
_METADATA: Final = "metadata"
_INDEX_KINDS: Final = (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX)


def remote_directory(location: TabletLocation) -> str:
    """Return where the remote log of a bucket is, below the directory of remote storage."""
    return f"{ROOT}/{location.path(TabletKind.REMOTE_LOG)}"


# Copying


class SegmentCopier:
    """Copies consecutive segments of one log, oldest first."""

    def __init__(self, store: RemoteStore, directory: str, files: Files, *, interval_bytes: int) -> None:
        """``files`` are those of the local log."""
        self._store = store
        self._directory = directory
        self._files = files
        self._interval_bytes = interval_bytes
        # Of all batches before the next segment; None as long as it is not known.
        self._writers: WriterState | None = None

    def copy(self, segment: Segment, before: Sequence[RemoteSegment]) -> RemoteSegment:
        """Copy a segment with its indexes and the state of its writers; ``before`` are those copied so far.

        Returns what a manifest says of it. Raises CorruptRecordError for damage, FlussError for a store that fails.
        """
        if self._writers is None:
            self._writers = self._writers_before(segment, before)
        index = SparseIndex(segment.base_offset, self._interval_bytes)
        writers = self._writers

        def visit(batch: StoredBatch) -> None:
            index.add(
                offset_base=batch.base_offset,
                offset_last=batch.offset_last,
                position=batch.position,
                byte_count=batch.size,
                timestamp_ms=batch.commit_timestamp_ms,
            )
            if batch.writer_id != NO_WRITER_ID:
                entry = (batch.writer_id, batch.batch_sequence, batch.offset_last, batch.last_offset_delta)
                writers.add(WriterEntry(*entry, batch.commit_timestamp_ms))

        result = segment.scan(visit)
        if result.problem is not None:
            raise result.problem
        if result.offset_next != segment.offset_next:
            raise damage_at(segment.path, result.position_end, f"the log goes on at offset {segment.offset_next}")
        # A copy must not be ahead of what a machine that loses its power still has.
        self._files.sync(segment.path)
        self._files.sync_directory(segment.path.parent)
        copied = RemoteSegment(
            str(uuid.uuid4()), segment.base_offset, segment.offset_next, result.timestamp_max_ms, segment.size_bytes
        )
        self._put(copied, LogFileKind.OFFSET_INDEX, index.offset_file())
        self._put(copied, LogFileKind.TIME_INDEX, index.time_file())
        self._put(copied, LogFileKind.WRITER_SNAPSHOT, encode_writer_snapshot(writers.entries()))
        path = f"{self._directory}/{remote_file_path(copied.segment_id, copied.start_offset, LogFileKind.SEGMENT)}"
        self._store.put_file(path, self._files, segment.path, segment.size_bytes)
        return copied

    def _put(self, copied: RemoteSegment, kind: LogFileKind, data: bytes) -> None:
        offset = copied.end_offset if kind is LogFileKind.WRITER_SNAPSHOT else copied.start_offset
        self._store.put(f"{self._directory}/{remote_file_path(copied.segment_id, offset, kind)}", data)

    def _writers_before(self, segment: Segment, before: Sequence[RemoteSegment]) -> WriterState:
        """Return the state of the writers where a segment begins, as far as it is known.

        After a gap, or if the copy of the last one is gone, only what follows is known.
        """
        writers = WriterState()
        if before and before[-1].end_offset == segment.base_offset:
            last = before[-1]
            name = remote_file_path(last.segment_id, last.end_offset, LogFileKind.WRITER_SNAPSHOT)
            try:
                for entry in decode_writer_snapshot(self._store.get(f"{self._directory}/{name}"), name):
                    writers.add(entry)
            except FileNotFoundError:
                pass
        return writers


def put_manifest(store: RemoteStore, directory: str, manifest: RemoteManifest) -> str:
    """Write a manifest under a new name, and return its path below the directory of remote storage."""
    path = f"{directory}/{manifest_path(str(uuid.uuid4()))}"
    store.put(path, encode_manifest(manifest))
    return path


def get_manifest(store: RemoteStore, path: str) -> RemoteManifest:
    """Read a manifest. Damage, and one that is missing, is a FlussError."""
    try:
        return decode_manifest(store.get(path), path)
    except FileNotFoundError as error:
        raise FlussError(
            f"the manifest {store.location}/{path} is missing from remote storage; restore it, or drop the table"
        ) from error


def remove_orphans(
    store: RemoteStore,
    directory: str,
    manifest: RemoteManifest | None,
    path: str | None,
    *,
    check: Callable[[], None] | None = None,
) -> int:
    """Remove what lies in the directory of a remote log and is not named by its manifest; return how much it was.

    ``path`` is where the manifest is. Only for the one who writes to the directory, while it does not; ``check`` raises
    if that is another one by now, and is called before anything is removed.
    """
    named = {segment.segment_id for segment in manifest.segments} if manifest is not None else set()
    segments = [name for name in store.names(directory) if is_uuid(name) and name not in named]
    current = None if path is None else path.rpartition("/")[2]
    manifests = [name for name in store.names(f"{directory}/{_METADATA}") if name != current]
    if check is not None:
        check()
    for name in segments:
        store.remove_all(f"{directory}/{name}")
    for name in manifests:
        store.remove(f"{directory}/{_METADATA}/{name}")
    return len(segments) + len(manifests)


# Reading


class IndexCache:
    """Index files of remote segments, kept on the disk: ``{start offset}_{segment id}.index`` and ``.timeindex``.

    The ones used last stay, up to a number of bytes. It begins empty. May be used from any thread.
    """

    def __init__(self, files: Files, directory: Path, bytes_max: int) -> None:
        self._files = files
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._is_begun = False

    @property
    def byte_count(self) -> int:
        return sum(self._sizes.values())

    def path(self, store: RemoteStore, remote_path: str, name: LogFileName, segment_id: str) -> Path:
        """Return where an index is on the disk; it is fetched if need be. A missing one raises FileNotFoundError."""
        key = f"{name.offset}_{segment_id}{name.kind}"
        path = self._directory / key
        with self._lock:
            if not self._is_begun:
                self._files.remove_tree(self._directory)
                self._files.make_directory(self._directory)
                self._is_begun = True
            if key in self._sizes:
                self._sizes.move_to_end(key)
                return path
        data = bytes(store.get(remote_path))
        self._files.replace(path, data, durably=False)
        with self._lock:
            self._sizes[key] = len(data)
            self._make_room(key)
        return path

    def _make_room(self, key: str) -> None:
        while sum(self._sizes.values()) > self._bytes_max and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            if oldest == key:
                self._sizes.move_to_end(oldest)
                continue
            del self._sizes[oldest]
            self._files.remove(self._directory / oldest)


class _RemoteFiles:
    """What a ``Segment`` needs of files, from remote storage: indexes by way of the cache, and no writes."""

    def __init__(self, store: RemoteStore, cache: IndexCache, files: Files) -> None:
        self._store = store
        self._cache = cache
        self._files = files

    def size(self, path: Path) -> int:
        local = self._index(path)
        return self._store.size(path.as_posix()) if local is None else self._files.size(local)

    def read(self, path: Path, position: int, byte_count: int) -> BytesLike:
        local = self._index(path)
        if local is None:
            return self._store.read(path.as_posix(), position, byte_count)
        return self._files.read(local, position, byte_count)

    def replace(self, path: Path, data: bytes, *, durably: bool = True) -> None:
        raise OSError(errno.EROFS, "segments in remote storage are not written to", str(path))

    def _index(self, path: Path) -> Path | None:
        name = LogFileName.parse(path.name)
        if name is None or name.kind not in _INDEX_KINDS:
            return None
        return self._cache.path(self._store, path.as_posix(), name, path.parent.name)


class RemoteReader:
    """Looks into the segments of one remote log. May be used from any thread."""

    def __init__(self, store: RemoteStore, directory: str, cache: IndexCache, files: Files) -> None:
        """``files`` are those of the cache."""
        self._directory = Path(directory)
        self._files = cast(Files, _RemoteFiles(store, cache, files))

    def position_before(self, segment: RemoteSegment, offset: int) -> int:
        """Return a position at or before the batch with an offset; without an index that is the beginning."""
        if offset <= segment.start_offset:
            return 0
        try:
            index = StoredIndex(self._files, self._directory / segment.segment_id, segment.start_offset)
            return index.lookup(offset).position
        except FileNotFoundError:
            return 0

    def offset_for_timestamp(self, segment: RemoteSegment, timestamp_ms: int) -> int:
        """Return the first offset of the first batch with that commit time or a later one; there must be one."""
        return self._segment(segment).find_time(timestamp_ms, segment.size_bytes).base_offset

    def read(self, segment: RemoteSegment, offset: int, bytes_max: int) -> memoryview:
        """Return checked bytes from the batch with an offset on, at least one batch; the last one may be cut off."""
        found = self._segment(segment)
        first = found.find(offset, segment.size_bytes)
        byte_count = min(max(bytes_max, first.size), segment.size_bytes - first.position)
        return memoryview(found.read(first, byte_count))

    def _segment(self, segment: RemoteSegment) -> Segment:
        found = Segment.found(
            self._files,
            self._directory / segment.segment_id,
            segment.start_offset,
            # How dense its index is was decided when it was copied.
            interval_bytes=INT32_MAX,
        )
        found.offset_next = segment.end_offset
        found.timestamp_max_ms = segment.timestamp_ms_max
        return found
