"""``--verify-backup``: whether a backup is complete, without restoring it.

Everything that the newest point names is looked at: sizes and checksums of metadata, indexes and tails, the metadata as
SQLite checks them, manifests of remote logs, descriptions of snapshots of rows by key, and the sizes of all segments
and files that they name. What is in those is not read: only their sizes are compared; but for the last state of writers
of each log.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_backup import check_metadata, kv_snapshots, remote_logs, table_count
from fluss.server.model import KvSnapshotEntry, RemoteLogEntry, format_bucket
from fluss.server.restore import fetch_metadata
from fluss.storage.backup.points import BackupPoint, TailChain, TailPiece, get_chains, newest_point, no_backup
from fluss.storage.backup.tails import read_piece
from fluss.storage.kv.snapshots.remote_snapshot import load_snapshot
from fluss.storage.log.file_names import LogFileKind
from fluss.storage.log.remote_log import get_manifest
from fluss.storage.log.remote_manifest import RemoteSegment, remote_file_path
from fluss.storage.log.writer_state import decode_writer_snapshot
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import OsFiles

_PROGRESS_INTERVAL_S: Final = 1.0
# How many findings are told; there may be one for every object.
_TOLD_MAX: Final = 20
_HINT: Final = "; give all places, as the server has them: -D remote.data.dirs=..."
_SEGMENT_FILES: Final = (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX, LogFileKind.WRITER_SNAPSHOT)


@dataclass(slots=True)
class Verification:
    """What was looked at, and what was found wrong."""

    point: BackupPoint
    table_count: int = 0
    log_count: int = 0
    object_count: int = 0
    byte_count: int = 0
    problems: list[str] = field(default_factory=list)

    def verdict(self, location: str) -> str:
        """Return one line."""
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.point.time_ms / 1000))
        what = (
            f"the backup of {when} in {location}: {self.table_count} tables, {self.log_count} logs, "
            f"{self.object_count} objects, {self.byte_count} bytes"
        )
        return f"complete: {what}" if not self.problems else f"NOT COMPLETE, {len(self.problems)} problems: {what}"


def main(location: str, options: FileSystemOptions, others: Iterable[str] = ()) -> int:
    """Verify the newest backup in a place, say on standard output what came out, and return the exit code.

    ``others`` are further places where segments and snapshots may be.
    """
    location = check_location(location)
    files, traffic = OsFiles(), RemoteTraffic()
    store, *stores = (
        RemoteStore(open_objects(place, options, files), traffic)
        for place in dict.fromkeys((location, *map(check_location, others)))
    )
    try:
        found = verify(store, stores, progress=lambda text: print(text, file=sys.stderr, flush=True))
    except FlussError:
        # Without a point there is nothing to look at; what is wrong with it is said on standard error.
        print(f"NOT COMPLETE: there is no backup in {location} that can be read", flush=True)
        raise
    for problem in found.problems[:_TOLD_MAX]:
        print(problem, file=sys.stderr)
    if len(found.problems) > _TOLD_MAX:
        print(f"and {len(found.problems) - _TOLD_MAX} more", file=sys.stderr)
    print(found.verdict(location), flush=True)
    return 1 if found.problems else 0


def verify(
    store: RemoteStore, others: Iterable[RemoteStore] = (), *, progress: Callable[[str], None] = lambda text: None
) -> Verification:
    """Look at everything that the newest point of a backup names. No backup at all is a FlussError."""
    point = newest_point(store)
    if point is None:
        raise no_backup(store.location)
    return _Verifier(store, others, point, progress).run()


class _Verifier:
    """One verification."""

    def __init__(
        self, store: RemoteStore, others: Iterable[RemoteStore], point: BackupPoint, progress: Callable[[str], None]
    ) -> None:
        self._store = store
        self._found = Verification(point)
        self._progress = progress
        self._said_s = time.monotonic()
        self._snapshots: list[KvSnapshotEntry] = []
        self._stores: dict[str, RemoteStore] = {other.location: other for other in others}
        self._stores |= {point.location: store, store.location: store}

    def run(self) -> Verification:
        found, point = self._found, self._found.point
        chains: dict[TableBucket, TailChain] = {}
        self._look(lambda: chains.update(get_chains(self._store, point)))
        self._count(len(point.indexes), sum(stored.size_bytes for stored in point.indexes.values()))
        entries: list[RemoteLogEntry] = []
        self._look(lambda: entries.extend(self._metadata()))
        for number, entry in enumerate(entries, 1):
            self._say(f"remote logs: {number} of {len(entries)}")
            self._look(partial(self._remote_log, entry, chains.get(entry.bucket)))
        for number, snapshot in enumerate(self._snapshots, 1):
            self._say(f"snapshots of rows by key: {number} of {len(self._snapshots)}")
            self._look(partial(self._snapshot, snapshot))
        objects: set[str] = set()
        for number, (bucket, chain) in enumerate(chains.items(), 1):
            self._say(f"tails: {number} of {len(chains)}")
            for piece in chain.all_pieces():
                self._look(partial(self._read, piece), bucket)
                self._count(piece.path not in objects, piece.size_bytes)
                objects.add(piece.path)
        found.log_count = len({entry.bucket for entry in entries if entry.end_offset} | chains.keys())
        return found

    def _read(self, piece: TailPiece) -> None:
        for _ in read_piece(self._store, piece):
            pass

    def _metadata(self) -> list[RemoteLogEntry]:
        with tempfile.TemporaryDirectory(prefix="fluss-verify-") as directory:
            path = Path(directory, "metadata.sqlite")
            fetch_metadata(self._store, self._found.point, path, OsFiles())
            check_metadata(path)
            self._found.table_count = table_count(path)
            self._count(1, self._found.point.metadata.size_bytes)
            self._snapshots = kv_snapshots(path)
            return remote_logs(path)

    def _remote_log(self, entry: RemoteLogEntry, chain: TailChain | None) -> None:
        if entry.manifest_path is None:
            return
        store = self._stores.get(entry.root)
        if store is None:
            self._found.problems.append(
                f"{entry.root} is another place, whose {entry.segment_count} segments of {format_bucket(entry.bucket)} "
                f"were not looked at{_HINT}"
            )
            return
        manifest = get_manifest(store, entry.manifest_path)
        self._count(1, 0)
        for segment in manifest.segments:
            self._segment(store, entry, segment)
        if manifest.segments:
            self._writers(store, entry, manifest.segments[-1])
        if chain is not None and manifest.segments and chain.start_offset > entry.end_offset:
            self._found.problems.append(
                f"{format_bucket(entry.bucket)} has no records from {entry.end_offset} to {chain.start_offset}"
            )

    def _snapshot(self, entry: KvSnapshotEntry) -> None:
        store = self._stores.get(entry.root)
        if store is None:
            self._found.problems.append(
                f"{entry.root} is another place, whose snapshot of {format_bucket(entry.bucket)} was not looked "
                f"at{_HINT}"
            )
            return
        self._count(1, 0)
        for path, file in load_snapshot(store, entry.directory, entry.snapshot_id).paths(entry.directory):
            self._check_size(store, path, file.size_bytes)

    def _segment(self, store: RemoteStore, entry: RemoteLogEntry, segment: RemoteSegment) -> None:
        self._say(f"segments of {entry.directory}")
        path = remote_file_path(segment.segment_id, segment.start_offset, LogFileKind.SEGMENT)
        self._check_size(store, f"{entry.directory}/{path}", segment.size_bytes)
        for kind in _SEGMENT_FILES:
            offset = segment.end_offset if kind is LogFileKind.WRITER_SNAPSHOT else segment.start_offset
            self._check_size(store, f"{entry.directory}/{remote_file_path(segment.segment_id, offset, kind)}", None)

    def _writers(self, store: RemoteStore, entry: RemoteLogEntry, last: RemoteSegment) -> None:
        """Read what a restored log knows of its writers: it is small, and batches would be taken twice without it."""
        name = remote_file_path(last.segment_id, last.end_offset, LogFileKind.WRITER_SNAPSHOT)
        # One that is missing was told with the other files.
        with suppress(FileNotFoundError):
            try:
                decode_writer_snapshot(bytes(store.get(f"{entry.directory}/{name}")))
            except FlussError as error:
                self._found.problems.append(f"{store.location}/{entry.directory}/{name}: {error.message}")

    def _check_size(self, store: RemoteStore, path: str, expected: int | None) -> None:
        try:
            size_bytes = store.size(path)
        except FileNotFoundError:
            self._found.problems.append(f"{store.location}/{path} is missing")
            return
        if expected is not None and size_bytes != expected:
            self._found.problems.append(f"{store.location}/{path} has {size_bytes} bytes, it should have {expected}")
        self._count(1, size_bytes)

    def _count(self, object_count: int, byte_count: int) -> None:
        self._found.object_count += object_count
        self._found.byte_count += byte_count

    def _look(self, act: Callable[[], None], bucket: TableBucket | None = None) -> None:
        """Do something; what is wrong then is noted."""
        try:
            act()
        except (FlussError, OSError) as error:
            message = error.message if isinstance(error, FlussError) else str(error)
            self._found.problems.append(message if bucket is None else f"{format_bucket(bucket)}: {message}")

    def _say(self, text: str) -> None:
        if time.monotonic() - self._said_s >= _PROGRESS_INTERVAL_S:
            self._said_s = time.monotonic()
            self._progress(f"{text}; {self._found.object_count} objects, {self._found.byte_count} bytes so far")
