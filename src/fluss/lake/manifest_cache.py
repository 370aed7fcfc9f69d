"""Manifests that this process has read, and the lists of them: they never change, and take longer to read than to use.

Tables are read again and again between two commits, and a commit leaves most manifests as they are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Snapshot

# Data files, delete files and manifests that are kept, of which each takes a few kilobytes.
_ENTRIES_MAX: Final = 4096


class _KnownFiles:
    """What is in the manifests and lists that were used last, by their paths."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: OrderedDict[str, Sequence[Any]] = OrderedDict()
        self._count = 0

    def get(self, path: str, read: Callable[[], Sequence[Any]]) -> list[Any]:
        """Return what is in a file, which is read if it is not known."""
        with self._lock:
            entries = self._by_path.get(path)
            if entries is not None:
                self._by_path.move_to_end(path)
                return list(entries)
        entries = read()
        with self._lock:
            if path not in self._by_path:
                self._by_path[path] = entries
                self._count += len(entries)
            while self._count > _ENTRIES_MAX:
                self._count -= len(self._by_path.popitem(last=False)[1])
        return list(entries)


_known_files: Final = _KnownFiles()


class CachedManifest:
    """A manifest for pyiceberg's planner. Its entries are shared, so that they must not be changed."""

    def __init__(self, manifest: ManifestFile) -> None:
        self._manifest = manifest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manifest, name)

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Return the entries of files that are there."""
        assert discard_deleted, "only those are kept"
        manifest = self._manifest
        return _known_files.get(manifest.manifest_path, lambda: manifest.fetch_manifest_entry(io, discard_deleted=True))


def cached_manifests(snapshot: Snapshot, io: FileIO) -> list[CachedManifest]:
    """Return the manifests of a snapshot."""
    manifests = _known_files.get(snapshot.manifest_list, lambda: snapshot.manifests(io))
    return [CachedManifest(manifest) for manifest in manifests]
