"""Lake tables kept small: snapshots that no reader needs, and files that belong to no snapshot, are deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.fs
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from fluss.errors import FlussError

# Writers begin with files and end with the commit; what is younger may belong to one that is still at work.
ORPHAN_AGE_MS: Final = 3 * 24 * 3600 * 1000
_HINT_FILE: Final = "version-hint.text"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expired:
    """What an expiry has removed."""

    snapshot_ids: tuple[int, ...]
    deleted_files: tuple[str, ...]


def expire_snapshots(
    table: IcebergTable, *, older_than_ms: int, keep_ids: Collection[int] = (), keep_count: int = 1
) -> Expired:
    """Remove old snapshots, and delete the files that only they had.

    Kept are the newest ``keep_count`` snapshots, those of branches and tags, those made at ``older_than_ms`` or later,
    and ``keep_ids``: the snapshots that Fluss lists, and those that readers have open. ``table`` is refreshed.
    """
    table.refresh()
    metadata = table.metadata
    by_age = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    protected = {ref.snapshot_id for ref in metadata.refs.values()} | set(keep_ids)
    protected |= {snapshot.snapshot_id for snapshot in by_age[len(by_age) - keep_count :]}
    expired = [each for each in by_age if each.snapshot_id not in protected and each.timestamp_ms < older_than_ms]
    if not expired:
        return Expired((), ())
    # Read before they are removed: afterwards nothing says any more which files they had.
    before = _Reachable(table, expired)
    with table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids([snapshot.snapshot_id for snapshot in expired])
    table.refresh()
    # A writer may have made snapshots meanwhile, which have files of the expired ones.
    kept = _Reachable(table, table.metadata.snapshots)
    deleted = _delete(table, before.only_here(kept))
    return Expired(tuple(snapshot.snapshot_id for snapshot in expired), deleted)


def remove_orphans(
    table: IcebergTable, *, age_ms: int = ORPHAN_AGE_MS, now_ms: int | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Delete files below the table's location that belong to no snapshot and are older than ``age_ms``.

    Returns them. With ``dry_run`` nothing is deleted.
    """
    table.refresh()
    io = table.io
    if not hasattr(io, "fs_by_scheme"):
        raise FlussError("Forgotten files can only be found through pyarrow's file systems; open the catalog with them")
    scheme, netloc, root = io.parse_location(table.location())
    file_system = io.fs_by_scheme(scheme, netloc)
    newest_ns = ((int(time.time() * 1000) if now_ms is None else now_ms) - age_ms) * 1_000_000
    # Listed before it is looked up what belongs to the table: what is committed meanwhile was not listed, or is found.
    infos = file_system.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
    table.refresh()
    known = {_path(io, location) for location in _Reachable(table, table.metadata.snapshots).locations()}
    known |= {_path(io, location) for location in _metadata_locations(table)}
    orphans = [
        info.path
        for info in infos
        if info.type == pyarrow.fs.FileType.File
        and info.mtime_ns is not None
        and info.mtime_ns < newest_ns
        and info.path not in known
        and info.base_name != _HINT_FILE
    ]
    if not dry_run:
        for path in orphans:
            file_system.delete_file(path)
    return tuple(orphans)


class _Reachable:
    """The files that snapshots of a table have."""

    def __init__(self, table: IcebergTable, snapshots: Iterable[Snapshot]) -> None:
        self._io = table.io
        self.lists: set[str] = set()
        self.manifests: dict[str, ManifestFile] = {}
        for snapshot in snapshots:
            self.lists.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._io):
                self.manifests[manifest.manifest_path] = manifest
        self._statistics = {each.statistics_path for each in table.metadata.statistics}

    def files(self, manifest_paths: Iterable[str] | None = None) -> set[str]:
        """Return the data and delete files that are alive in manifests, in all if none are given."""
        paths = self.manifests if manifest_paths is None else manifest_paths
        return {
            entry.data_file.file_path
            for path in paths
            for entry in self.manifests[path].fetch_manifest_entry(self._io, discard_deleted=True)
        }

    def locations(self) -> set[str]:
        return self.lists | self.manifests.keys() | self.files() | self._statistics

    def only_here(self, others: _Reachable) -> list[str]:
        """Return the files that are not among others: data first, so that an interruption leaves no unknown ones."""
        manifests = self.manifests.keys() - others.manifests.keys()
        files = self.files(manifests)
        if files:
            files -= others.files()
        return [*sorted(files), *sorted(manifests), *sorted(self.lists - others.lists)]


def _metadata_locations(table: IcebergTable) -> set[str]:
    return {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}


def _path(io: Any, location: str) -> str:
    path: str = io.parse_location(location)[2]
    return path


def _delete(table: IcebergTable, locations: Iterable[str]) -> tuple[str, ...]:
    """Delete files; one that cannot be deleted now is found as an orphan later."""
    deleted = []
    for location in locations:
        try:
            table.io.delete(location)
        except OSError as error:
            logger.warning("the file %s of an expired snapshot could not be deleted: %s", location, error)
            continue
        deleted.append(location)
    return tuple(deleted)
