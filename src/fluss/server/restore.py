"""Backups, after their server is gone: a new data directory is made of one, or it is checked that one could be.

``backup.restore-from`` restores:

| step                                                       | what a crash before the next one leaves             |
|------------------------------------------------------------|-----------------------------------------------------|
| 1. the newest point is read, and the metadata are fetched   | nothing that counts; the restore begins anew        |
| 2. the remote directory is claimed: the other server, if it | a claim that is not used; the restore begins anew   |
|    runs after all, takes no more writes; if it has made     |                                                     |
|    another point meanwhile, 1 is done again                 |                                                     |
| 3. it is noted which logs there have to be, and from where  | the same                                            |
| 4. the metadata get their name                              | a restored server: see ``tablet.restoration``       |

Logs follow when the server runs. Everything here blocks and belongs into a thread.

``--verify-backup`` looks at everything that the newest point names: sizes and checksums of metadata, indexes and tails,
the metadata as SQLite checks them, manifests of remote logs, descriptions of snapshots of rows by key, and the sizes of
all segments and files that they name. Of what is in those, only the last state of writers of each log is read.
"""

from __future__ import annotations

import logging
import platform
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
from fluss.record.framing import crc32c
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_backup import (
    adapt,
    check_metadata,
    kv_snapshots,
    remote_logs,
    table_count,
)
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME as METADATA_FILE
from fluss.server.model import Clock, KvSnapshotEntry, RemoteLogEntry, format_bucket
from fluss.storage.backup.ownership import claim
from fluss.storage.backup.points import BackupPoint, TailChain, TailPiece, get_chains, newest_point, no_backup
from fluss.storage.backup.restore_note import RestoreNote
from fluss.storage.backup.tails import read_piece
from fluss.storage.kv.snapshots.remote_snapshot import load_snapshot
from fluss.storage.log.checkpoint_file import encode_checkpoint
from fluss.storage.log.file_names import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    RESTORED_CHECKPOINT,
    LogFileKind,
    damaged,
)
from fluss.storage.log.remote_log import get_manifest
from fluss.storage.log.remote_manifest import RemoteSegment, remote_file_path
from fluss.storage.log.writer_state import decode_writer_snapshot
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files, OsFiles

_FETCHED: Final = "metadata.restoring"

logger = logging.getLogger(__name__)


def restore(source: str, options: FileSystemOptions, data_dir: Path, files: Files, clock: Clock) -> None:
    """Make a data directory from the newest point of a backup, unless it was made from there before.

    Raises FlussError if there is no backup, if it is damaged, or if the directory has data of its own.
    """
    location = check_location(source)
    note = RestoreNote.load(files, data_dir)
    if files.exists(data_dir / METADATA_FILE):
        if note is None or note.location != location:
            raise FlussError(
                f"{data_dir} has data of its own, nothing is restored into it: give a new --data-dir, or start the "
                "server without --restore-from"
            )
        logger.info("%s was restored from %s before, and goes on", data_dir, location)
        return
    store = RemoteStore(open_objects(location, options, files), RemoteTraffic())
    fetched = data_dir / _FETCHED
    looked_at = _fetch_newest(store, fetched, files)
    # Not before it is known that the backup can be used: from here on the other server takes no more writes.
    claimed = claim(store, files, data_dir, platform.node(), clock())
    point = newest_point(store)
    if point is None or point.path != looked_at.path:
        # The other server runs, and has made another one until now.
        point = _fetch_newest(store, fetched, files)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(point.time_ms / 1000))
    logger.info("restoring the backup of %s from %s", when, location)
    adapt(fetched, moved={} if point.location == location else {point.location: location})
    files.sync(fetched)
    _note_logs(store, point, fetched, data_dir, files)
    RestoreNote(location, point.path, claimed.epoch, point.time_ms).save(files, data_dir)
    files.rename(fetched, data_dir / METADATA_FILE)
    files.sync_directory(data_dir)


def _fetch_newest(store: RemoteStore, target: Path, files: Files) -> BackupPoint:
    """Fetch the metadata of the newest point, and look whether it is whole. Blocking; raises FlussError."""
    while True:
        point = newest_point(store)
        if point is None:
            raise no_backup(store.location)
        try:
            fetch_metadata(store, point, target, files)
            check_metadata(target)
            get_chains(store, point)
        except FlussError:
            newer = newest_point(store)
            if newer is None or newer.path == point.path:
                raise
            # A server that runs has removed it meanwhile.
            continue
        return point


def refuse_half_restored(data_dir: Path, files: Files) -> None:
    """Raise if a restore into a directory was not finished: it is no empty one."""
    note = RestoreNote.load(files, data_dir)
    if note is not None and not files.exists(data_dir / METADATA_FILE):
        raise FlussError(
            f"the restore into {data_dir} was interrupted before the metadata were there; start the server again with "
            f"--restore-from {note.location}"
        )


def fetch_metadata(store: RemoteStore, point: BackupPoint, target: Path, files: Files) -> None:
    """Fetch the metadata of a point into a file. One that is missing or damaged is a FlussError."""
    stored, checksum = point.metadata, 0
    name = f"{store.location}/{stored.path}"
    files.remove(target)
    files.write(target, (b"",), 0)
    try:
        if store.size(stored.path) != stored.size_bytes:
            raise damaged("backup", f"it should have {stored.size_bytes} bytes", name)
        for position in range(0, stored.size_bytes, CHUNK_BYTES):
            part = store.read(stored.path, position, min(CHUNK_BYTES, stored.size_bytes - position))
            checksum = crc32c(part, checksum)
            files.write(target, (part,), position)
    except FileNotFoundError:
        raise damaged("backup", "an object that it names is missing", name) from None
    if checksum != stored.crc:
        raise damaged("backup", "its checksum is wrong", name)
    files.sync(target)
    files.forget(target)


def _note_logs(store: RemoteStore, point: BackupPoint, metadata: Path, data_dir: Path, files: Files) -> None:
    """Write down which logs there have to be, and where they end."""
    ends: dict[TableBucket, int] = {entry.bucket: entry.end_offset for entry in remote_logs(metadata)}
    for bucket, chain in get_chains(store, point).items():
        ends[bucket] = max(chain.end_offset, ends.get(bucket, 0))
    ordered = sorted(
        (entry for entry in ends.items() if entry[1]),
        key=lambda entry: (entry[0].table_id, entry[0].partition_id or -1, entry[0].bucket_id),
    )
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, RESTORED_CHECKPOINT):
        files.replace(data_dir / name, encode_checkpoint(dict(ordered)))


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


def verify_backup(location: str, options: FileSystemOptions, others: Iterable[str] = ()) -> int:
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
        store = self._store_at(entry.root, f"{entry.segment_count} segments of {format_bucket(entry.bucket)} were")
        if store is None:
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
        store = self._store_at(entry.root, f"snapshot of {format_bucket(entry.bucket)} was")
        if store is None:
            return
        self._count(1, 0)
        for path, file in load_snapshot(store, entry.directory, entry.snapshot_id).paths(entry.directory):
            self._check_size(store, path, file.size_bytes)

    def _store_at(self, root: str, what: str) -> RemoteStore | None:
        """Return the store of a place; None if it is another one than those of the backup, which is a problem."""
        store = self._stores.get(root)
        if store is None:
            self._found.problems.append(f"{root} is another place, whose {what} not looked at{_HINT}")
        return store

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
