"""What lies in the data directory besides the logs in use: notes for the next start, directories of dropped tables.

| file in the data directory             | content                                                            |
|----------------------------------------|--------------------------------------------------------------------|
| ``recovery-point-offset-checkpoint``     | per bucket: everything below this offset is on the disk for certain |
| ``high-watermark-checkpoint``            | per bucket: everything below this offset was visible to readers     |
| ``.fluss_cleanshutdown``                 | all logs were closed in order, there is nothing to recover          |

All three may be missing or damaged: then more is looked at than necessary, and nothing is lost.

A table or partition is dropped when the catalog has forgotten it; its directories are deleted afterwards. A server that
was stopped in between finds them at its next start, and deletes them then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.server.model import CatalogView
from fluss.storage.log.checkpoint_file import decode_checkpoint, encode_checkpoint
from fluss.storage.log.file_names import (
    CLEAN_SHUTDOWN_MARKER,
    DELETED_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    TabletKind,
    TabletLocation,
)
from fluss.storage.vfs import Files

logger = logging.getLogger(__name__)


class Checkpoints:
    """Reads and writes the notes for the next start. All methods block."""

    def __init__(self, data_dir: Path, files: Files) -> None:
        self._data_dir = data_dir
        self._files = files

    def take_clean_shutdown_marker(self) -> bool:
        """Tell whether the last shutdown was clean. From now on it was not, until the next one is."""
        marker = self._data_dir / CLEAN_SHUTDOWN_MARKER
        if not self._files.exists(marker):
            return False
        self._files.remove(marker)
        self._files.sync_directory(self._data_dir)
        return True

    def write_clean_shutdown_marker(self) -> None:
        self._files.replace(self._data_dir / CLEAN_SHUTDOWN_MARKER, b"")

    def read_recovery_offsets(self) -> dict[TableBucket, int]:
        """Return the recovery offsets; none if they are not known."""
        path = self._data_dir / RECOVERY_POINT_CHECKPOINT
        if not self._files.exists(path):
            return {}
        try:
            return decode_checkpoint(self._files.read(path, 0, self._files.size(path)), str(path))
        except (FlussError, OSError) as error:
            logger.warning("the recovery offsets are not known, all logs are read from their start: %s", error)
            return {}

    def write(self, recovery_offsets: Mapping[TableBucket, int], high_watermarks: Mapping[TableBucket, int]) -> None:
        """Replace both checkpoints, each of them all or nothing."""
        self._files.replace(self._data_dir / RECOVERY_POINT_CHECKPOINT, encode_checkpoint(recovery_offsets))
        self._files.replace(self._data_dir / HIGH_WATERMARK_CHECKPOINT, encode_checkpoint(high_watermarks))


class TabletDirectory(NamedTuple):
    """A directory that is named like a log or a key-value tablet."""

    path: Path
    location: TabletLocation
    # Whether its deletion had been begun.
    is_deleted: bool


def tablet_directories(data_dir: Path) -> list[TabletDirectory]:
    """Return the tablets in a data directory; whatever has another name is not ours. Blocking."""
    found = []
    for pattern in ("*/*/*", "*/*/*/*"):
        for path in data_dir.glob(pattern):
            name = path.relative_to(data_dir).as_posix()
            parsed = TabletLocation.parse(name.removesuffix(DELETED_SUFFIX))
            if parsed is not None and parsed[1] is not TabletKind.REMOTE_LOG and path.is_dir():
                found.append(TabletDirectory(path, parsed[0], name.endswith(DELETED_SUFFIX)))
    return found


def find_residue(directories: Sequence[TabletDirectory], catalog: CatalogView) -> list[Path]:
    """Return those tablet directories that belong to nothing in the catalog.

    If the catalog has no tables at all, only those are residue whose deletion was begun: more likely than not the
    catalog was lost, and the logs are all that is left.
    """
    residue = [directory.path for directory in directories if directory.is_deleted]
    unknown = [
        directory.path
        for directory in directories
        if not directory.is_deleted
        and not is_known(catalog, directory.location.table_id, directory.location.partition_id)
    ]
    if not unknown or catalog.tables():
        return residue + unknown
    logger.warning(
        "%d tablets belong to no table, and there is no table at all. They are left alone in case the metadata was "
        "lost; delete them by hand if they are not needed: %s, ...",
        len(unknown),
        unknown[0],
    )
    return residue


def remove_residue(directories: Sequence[Path], data_dir: Path, files: Files) -> None:
    """Delete tablet directories, and those above them that are empty then. Blocking."""
    for directory in directories:
        logger.warning("removing %s: its table or partition was dropped", directory)
        files.remove_tree(directory)
    for parent in {directory.parent for directory in directories}:
        remove_empty_directories(parent, data_dir)


def remove_empty_directories(directory: Path, data_dir: Path) -> None:
    """Remove a directory and those above it, as long as they are empty, up to the data directory. Blocking."""
    while directory != data_dir and data_dir in directory.parents:
        try:
            directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        directory = directory.parent


def is_known(catalog: CatalogView, table_id: int, partition_id: int | None) -> bool:
    """Tell whether there is such a partition, or such a table without partitions."""
    table = catalog.table_by_id(table_id)
    if table is None:
        return False
    if partition_id is None:
        return not table.is_partitioned
    partition = catalog.partition_by_id(partition_id)
    return partition is not None and partition.table_id == table_id
