"""What lies in the data directory besides the logs in use: notes for the next start, directories of dropped tables.

| file in the data directory             | content                                                            |
|----------------------------------------|--------------------------------------------------------------------|
| ``recovery-point-offset-checkpoint``     | per bucket: everything below this offset is on the disk for certain |
| ``high-watermark-checkpoint``            | per bucket: everything below this offset was visible to readers     |
| ``.fluss_cleanshutdown``                 | all logs were closed in order, there is nothing to recover          |

All three may be missing or damaged: then more is looked at than necessary, and nothing is lost.

A table or partition is dropped when the catalog has forgotten it; its directory gets the suffix ``.deleted`` and is
deleted afterwards. A server that was stopped in between finds it at its next start, and goes on. What is looked for
then are tables and partitions, not their buckets: there may be very many of those.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fluss.errors import FlussError
from fluss.server.model import CatalogView
from fluss.storage.log.checkpoint_file import GroupId, decode_checkpoint_columns, encode_checkpoint_groups
from fluss.storage.log.file_names import (
    CLEAN_SHUTDOWN_MARKER,
    DELETED_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    group_ids,
    is_tablet_name,
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

    def read(self, sizes: Callable[[GroupId], int | None]) -> Mapping[GroupId, GroupOffsets]:
        """Return what is noted of the groups of which ``sizes`` tells how many buckets they have.

        Nothing is returned of groups without notes, of which all offsets are 0.
        """
        recovery_offsets = self._read(RECOVERY_POINT_CHECKPOINT, sizes)
        high_watermarks = self._read(HIGH_WATERMARK_CHECKPOINT, sizes)
        return {
            group_id: GroupOffsets(recovery_offsets.get(group_id), high_watermarks.get(group_id))
            for group_id in recovery_offsets.keys() | high_watermarks.keys()
        }

    def _read(self, name: str, sizes: Callable[[GroupId], int | None]) -> dict[GroupId, array[int]]:
        path = self._data_dir / name
        if not self._files.exists(path):
            return {}
        try:
            columns = decode_checkpoint_columns(self._files.read(path, 0, self._files.size(path)), str(path))
        except (FlussError, OSError) as error:
            logger.warning("recovery offsets are not known, more is read of logs than necessary: %s", error)
            return {}
        return dict(columns.groups(sizes))

    def write(self, groups: Iterable[tuple[GroupId, GroupOffsets]]) -> None:
        """Replace both checkpoints, each of them all or nothing."""
        groups = list(groups)
        recovery_offsets = [(group_id, offsets.recovery_offsets) for group_id, offsets in groups]
        high_watermarks = [(group_id, offsets.high_watermarks) for group_id, offsets in groups]
        self._files.replace(self._data_dir / RECOVERY_POINT_CHECKPOINT, encode_checkpoint_groups(recovery_offsets))
        self._files.replace(self._data_dir / HIGH_WATERMARK_CHECKPOINT, encode_checkpoint_groups(high_watermarks))


class GroupOffsets(NamedTuple):
    """What is noted of the buckets of a table or partition, by number; None if all are 0."""

    recovery_offsets: array[int] | None
    high_watermarks: array[int] | None


# Directories of what was dropped


def find_tablet(data_dir: Path) -> Path | None:
    """Return a directory that is named like a log or a key-value tablet, if there is one. Blocking."""
    for table in _table_directories(data_dir):
        for group in (table, *(path for path in _directories(table) if _ids(path, data_dir) is not None)):
            for child in _directories(group):
                if is_tablet_name(child.name):
                    return child
    return None


def is_known(catalog: CatalogView, table_id: int, partition_id: int | None) -> bool:
    """Tell whether there is such a partition, or such a table without partitions."""
    table = catalog.table_by_id(table_id)
    if table is None:
        return False
    if partition_id is None:
        return not table.is_partitioned
    partition = catalog.partition_by_id(partition_id)
    return partition is not None and partition.table_id == table_id


class Found(NamedTuple):
    """A directory that may be residue."""

    path: Path
    ids: GroupId
    # Whether its deletion had been begun.
    is_deleted: bool


def find_groups(data_dir: Path) -> list[Found]:
    """Return the directories of tables without partitions, and of partitions, as far as they are ours. Blocking.

    Whatever has another name is not ours. A bucket that was being deleted is returned, too.
    """
    found = []
    for table in _table_directories(data_dir):
        ids = _ids(table, data_dir)
        assert ids is not None, "only such directories are looked through"
        if table.name.endswith(DELETED_SUFFIX):
            found.append(Found(table, ids, is_deleted=True))
            continue
        children = _directories(table)
        partitions = [(child, ids_of) for child in children if (ids_of := _ids(child, data_dir)) is not None]
        found += [Found(child, ids_of, child.name.endswith(DELETED_SUFFIX)) for child, ids_of in partitions]
        tablets = [child for child in children if is_tablet_name(child.name.removesuffix(DELETED_SUFFIX))]
        found += [Found(child, ids, is_deleted=True) for child in tablets if child.name.endswith(DELETED_SUFFIX)]
        if tablets or not children:
            found.append(Found(table, ids, is_deleted=False))
    return found


def find_residue(groups: Iterable[Found], catalog: CatalogView) -> list[Path]:
    """Return those directories that belong to nothing in the catalog, or whose deletion was begun.

    If the catalog has no tables at all, only the latter are residue: more likely than not the catalog was lost, and the
    logs are all that is left.
    """
    residue = []
    unknown = []
    for group in groups:
        if group.is_deleted:
            residue.append(group.path)
        elif not is_known(catalog, *group.ids):
            table = catalog.table_by_id(group.ids[0])
            # Of a table with partitions that is there, only what does not belong into its directory is residue.
            unknown += [group.path] if table is None or group.ids[1] is not None else _tablets(group.path)
    if not unknown or catalog.tables():
        return residue + unknown
    logger.warning(
        "%d tables or partitions have directories but are not known, and there is no table at all. They are left alone "
        "in case the metadata was lost; delete them by hand if they are not needed: %s, ...",
        len(unknown),
        unknown[0],
    )
    return residue


def _tablets(directory: Path) -> list[Path]:
    return [child for child in _directories(directory) if is_tablet_name(child.name)]


def _table_directories(data_dir: Path) -> Iterator[Path]:
    """Yield the directories that are named like those of tables, also of tables whose deletion was begun."""
    for database in _directories(data_dir):
        for path in _directories(database):
            if _ids(path, data_dir) is not None:
                yield path


def _ids(path: Path, data_dir: Path) -> GroupId | None:
    return group_ids(path.relative_to(data_dir).as_posix().removesuffix(DELETED_SUFFIX))


def _directories(path: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir()]
    return []


def mark_deleted(directory: Path, files: Files) -> Path:
    """Give a directory that is to go its other name, and return that. One that is missing is not an error. Blocking."""
    if directory.name.endswith(DELETED_SUFFIX):
        return directory
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    if files.exists(directory):
        # What a crash may have left under that name.
        files.remove_tree(doomed)
        files.rename(directory, doomed)
    return doomed


def remove_group(directory: Path, data_dir: Path, files: Files, is_stopping: Callable[[], bool]) -> None:
    """Delete the directory of a table, a partition or a bucket, and those above it that are empty then. Blocking.

    It goes bucket by bucket, and ends early, with something left to do, as soon as ``is_stopping`` says so.
    """
    for child in _directories(directory):
        # Those of a partition, if the whole table is gone.
        for grandchild in _directories(child):
            if is_stopping():
                return
            files.remove_tree(grandchild)
        if is_stopping():
            return
        files.remove_tree(child)
    files.remove_tree(directory)
    remove_empty_directories(directory.parent, data_dir)


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
