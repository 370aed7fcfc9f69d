"""Remote storage of a chaos run: it is away for a while, and at the end it has what is named, and nothing else."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from fluss.server.coordinator.metadata.metadata_backup import remote_logs
from fluss.storage.kv.snapshots.completed_snapshot import METADATA_NAME, snapshot_name
from fluss.storage.kv.snapshots.remote_snapshot import load_snapshot
from fluss.storage.log.file_names import LogFileKind
from fluss.storage.log.remote_log import get_manifest
from fluss.storage.log.remote_manifest import remote_file_path
from fluss.storage.remote.objects import DirectoryObjects
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import OsFiles

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_KINDS: Final = (LogFileKind.SEGMENT, LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX)


@contextmanager
def away(remote: Path) -> Iterator[None]:
    """Have a remote directory out of reach: under its name is a file, with which no request succeeds."""
    other = remote.with_name(f"{remote.name}.away")
    other.touch()
    _exchange(remote, other)
    try:
        yield
    finally:
        _exchange(remote, other)
        other.unlink()


def _exchange(one: Path, other: Path) -> None:
    """Give each of two paths what the other one has, in one step: nobody may make the directory anew in between."""
    paths = os.fsencode(one), os.fsencode(other)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


class RemoteObjects:
    """What remote storage has, compared with what the metadata of a server name."""

    def __init__(self, metadata: Path, remote: Path) -> None:
        self._metadata = metadata
        self._remote = remote

    def difference(self) -> str | None:
        """Say which objects of logs and snapshots are named by nothing, or missing; None if all is in order."""
        named = self._named()
        found = {
            str(path.relative_to(self._remote))
            for place in ("log", "kv")
            for path in (self._remote / place).rglob("*")
            if path.is_file()
        }
        if named == found:
            return None
        return f"orphans in remote storage: {sorted(found - named)[:5]}; missing there: {sorted(named - found)[:5]}"

    def _named(self) -> set[str]:
        files = OsFiles()
        store = RemoteStore(DirectoryObjects(self._remote, files), RemoteTraffic())
        named: set[str] = set()
        try:
            for entry in remote_logs(self._metadata):
                if entry.manifest_path is None:
                    continue
                named.add(entry.manifest_path)
                for segment in get_manifest(store, entry.manifest_path).segments:
                    offsets = [(kind, segment.start_offset) for kind in _KINDS]
                    offsets.append((LogFileKind.WRITER_SNAPSHOT, segment.end_offset))
                    for kind, offset in offsets:
                        named.add(f"{entry.directory}/{remote_file_path(segment.segment_id, offset, kind)}")
            for directory, snapshot_id in self._snapshots():
                named.add(f"{directory}/{snapshot_name(snapshot_id)}/{METADATA_NAME}")
                named.update(path for path, _ in load_snapshot(store, directory, snapshot_id).paths(directory))
        finally:
            files.forget(self._remote)
        return named

    def _snapshots(self) -> list[tuple[str, int]]:
        """Return all snapshots, also those that are retired and wait for a backup."""
        with closing(sqlite3.connect(self._metadata)) as connection:
            return connection.execute("SELECT directory, snapshot_id FROM kv_snapshots").fetchall()
