"""How far the lake has each table: snapshots that the tiering service registers, and their offsets.

A round of the service has its offsets written to a file first (``prepare``), commits to the lake with the path of that
file, and registers the new snapshot (``commit``). What is registered is what readers and retention go by.

An offsets file is JSON in remote storage, written once and never changed:

    {location}/lake/{database}/{table}-{table id}/metadata/{uuid}.offsets
    {"version":1,"table_id":7,"bucket_offsets":[120,-1,98]}
    {"version":1,"table_id":7,"partition_offsets":[{"partition_id":3,"bucket_offsets":[5]}]}

The index is the bucket; -1 says that the lake knows nothing of it. A server that was restored from a backup adds the
number of its history: ``"history":123``. Files of the time before its restore are registered only if their offsets are
not behind the ends that logs had in the backup: what the lake has there is in no log, and its offsets are given out
anew.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.json_object import parse_object, write_json
from fluss.schema.table import TableBucket, TablePath
from fluss.schema.table_options import LAKE_ENABLED
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.metadata.metadata_store import LakeEntry, LakeSnapshotTable
from fluss.server.model import Table, format_bucket
from fluss.storage.log.checkpoint_file import decode_checkpoint_columns
from fluss.storage.log.file_names import RESTORED_CHECKPOINT
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.removal_gate import RemovalGate
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files, OsFiles

# Files of a table that were prepared and that no commit has named: those of rounds that failed. One that a snapshot of
# the lake names is registered by the next round, long before there are so many others.
_PREPARED_MAX: Final = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """The history that a server writes, since it was restored from a backup, and the one that it goes on from.

    Both are 0 for one that was not restored.
    """

    number: int
    before: int
    data_dir: Path
    files: Files = field(default_factory=OsFiles)

    def ends(self, table: Table) -> dict[TableBucket, int]:
        """Return where the logs of a table ended in the backup; those that were empty are left out. Blocking."""
        path = self.data_dir / RESTORED_CHECKPOINT
        if not self.files.exists(path):
            return {}
        columns = decode_checkpoint_columns(self.files.read(path, 0, self.files.size(path)), str(path))
        self.files.forget(path)
        return {
            TableBucket.new_with_partition(table.table_id, partition_id, bucket_id): end
            for (_, partition_id), ends in columns.groups(
                lambda group_id: table.bucket_count if group_id[0] == table.table_id else None
            )
            for bucket_id, end in enumerate(ends)
            if end
        }


class LakeSnapshots:
    """The snapshots of all lake tables. Belongs to one event loop; files are read and written in threads."""

    def __init__(
        self,
        catalog: Catalog,
        table: LakeSnapshotTable,
        files: LakeOffsetsFiles,
        entries: Mapping[int, Sequence[LakeEntry]],
        history: LakeHistory,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._files = files
        self._history = history
        self._entries: dict[int, list[LakeEntry]] = {table_id: list(each) for table_id, each in entries.items()}
        # The paths of tables with files, to find these when they have been dropped.
        self._paths: dict[int, TablePath] = {}
        # Files that no commit has named, of this run of the server, the oldest first.
        self._prepared: dict[int, list[str]] = {}
        # Files that were registered and are not any more, and tables that were dropped: they are removed when no backup
        # names them, see RemovalGate. A server that is restored from one that does reads them.
        self._gate = RemovalGate()
        self._unnamed: list[tuple[int, TablePath, int, str]] = []
        self._dropped: dict[int, tuple[int, TablePath]] = {}
        # Of the newest entries only: what retention asks for, and every round.
        self._newest: dict[int, tuple[LakeEntry, dict[TableBucket, int]]] = {}
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, catalog: Catalog, table: LakeSnapshotTable, files: LakeOffsetsFiles, history: LakeHistory
    ) -> LakeSnapshots:
        return cls(catalog, table, files, await table.load(), history)

    def attach(self, gate: RemovalGate) -> None:
        """Say when files may be removed. Without it, that is as soon as nothing names them."""
        self._gate = gate

    # Reading

    async def newest(self, table: Table) -> tuple[LakeEntry, dict[TableBucket, int]] | None:
        """Return the newest snapshot and its offsets; None if there is none."""
        entries = self._entries.get(table.table_id)
        if not entries:
            return None
        known = self._newest.get(table.table_id)
        if known is not None and known[0] == entries[-1]:
            return known
        entry = entries[-1]
        offsets = await self._read(table, entry.tiered_offsets_path)
        self._newest[table.table_id] = entry, offsets
        return entry, offsets

    async def find(
        self, table: Table, *, snapshot_id: int | None = None, readable: bool = False
    ) -> tuple[int, dict[TableBucket, int]]:
        """Return a snapshot's id and offsets: the newest, the newest that is readable, or that of an id.

        Raises code 53 if there is none.
        """
        entries = self._entries.get(table.table_id, [])
        if readable:
            for entry in reversed(entries):
                if entry.readable_offsets_path is not None:
                    return entry.snapshot_id, await self._read(table, entry.readable_offsets_path)
        elif snapshot_id is not None:
            for entry in entries:
                if entry.snapshot_id == snapshot_id:
                    return snapshot_id, await self._read(table, entry.tiered_offsets_path)
        else:
            newest = await self.newest(table)
            if newest is not None:
                return newest[0].snapshot_id, newest[1]
        wanted = "lake snapshot" if snapshot_id is None else f"lake snapshot {snapshot_id}"
        raise FlussError(
            f"Table {table.path} has no {'readable ' if readable else ''}{wanted}", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
        )

    async def tiered_offset(self, table: Table, bucket: TableBucket) -> int:
        """Return the offset up to which the lake has a bucket, 0 if it has nothing. Implements TieredOffsets."""
        newest = await self.newest(table)
        return 0 if newest is None else newest[1].get(bucket, 0)

    async def _read(self, table: Table, file_path: str) -> dict[TableBucket, int]:
        return await asyncio.to_thread(self._files.read, table.path, table.table_id, file_path)

    # Changing

    async def prepare(self, table: Table, offsets: Mapping[TableBucket, int], *, ignore_previous: bool = False) -> str:
        """Write the offsets of a round to a file, over those of the newest snapshot, and return where it is.

        Partitions that have been dropped since are left out. Raises code 15 for buckets that the table does not have.
        """
        for bucket in offsets:
            if not 0 <= bucket.bucket_id < table.bucket_count or (bucket.partition_id is None) == table.is_partitioned:
                raise FlussError(
                    f"Table {table.path} has no bucket {bucket.bucket_id}"
                    f"{'' if bucket.partition_id is None else f' of partition {bucket.partition_id}'}; offsets need "
                    f"the id of a partition exactly if a table is partitioned, and a bucket below {table.bucket_count}",
                    ErrorCode.INVALID_TABLE_EXCEPTION,
                )
        previous = None if ignore_previous else await self.newest(table)
        merged = {**({} if previous is None else previous[1]), **offsets}
        if table.is_partitioned:
            ids = {partition.partition_id for partition in self._catalog.partitions_of(table.table_id).values()}
            merged = {bucket: offset for bucket, offset in merged.items() if bucket.partition_id in ids}
        file_path = await asyncio.to_thread(self._files.write, table.path, table.table_id, merged, self._history.number)
        self._paths[table.table_id] = table.path
        prepared = self._prepared.setdefault(table.table_id, [])
        prepared.append(file_path)
        unused = prepared[:-_PREPARED_MAX]
        del prepared[:-_PREPARED_MAX]
        await self._remove_files(table, unused)
        return file_path

    async def commit(self, table: Table, entry: LakeEntry, *, earliest_id_to_keep: int | None = None) -> None:
        """Register a snapshot as the newest of a table, unless it is there already and others came after it.

        Without ``earliest_id_to_keep`` older ones are forgotten; with the id of one, those before it are; with any
        other id none is. Raises code 53 if a file of offsets is not one of this table, or if it is of the time before
        this server was restored from a backup and has offsets that no log had there.
        """
        async with self._lock:
            before = self._entries.get(table.table_id, [])
            offsets = await asyncio.to_thread(self._read_new, table, entry, entry.tiered_offsets_path, before)
            if entry.readable_offsets_path not in (None, entry.tiered_offsets_path):
                await asyncio.to_thread(self._read_new, table, entry, entry.readable_offsets_path, before)
            if any(_is_repeated(entry, each) for each in before[:-1]):
                # From a service that was away while another one went on from there.
                return
            # The same snapshot again: the answer to the first commit was lost.
            older = [each for each in before if each.snapshot_id != entry.snapshot_id]
            entries = [*_kept(older, earliest_id_to_keep), entry]
            await self._table.replace(table.table_id, entries, offsets)
            self._entries[table.table_id] = entries
            self._paths[table.table_id] = table.path
            self._newest[table.table_id] = entry, offsets
            paths = _paths_of(entries)
            prepared = self._prepared.get(table.table_id, [])
            prepared[:] = [path for path in prepared if path not in paths]
        await self._remove_unnamed(table, _paths_of(before) - paths)

    def _read_new(
        self, table: Table, entry: LakeEntry, file_path: str, before: Sequence[LakeEntry]
    ) -> dict[TableBucket, int]:
        """Read a file that is to be registered. Blocking; raises what ``commit`` does."""
        if not self._history.number or file_path in _paths_of(before):
            return self._files.read(table.path, table.table_id, file_path)
        try:
            history, offsets = self._files.load(table.path, table.table_id, file_path)
        except FlussError as error:
            if error.error_code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                raise
            # Of a directory that was somewhere else when the lost server wrote it, or written after it was copied.
            raise _of_lost_server(table, entry, before, f"{error.message}. It may be one of the lost server") from None
        if history == self._history.number:
            return offsets
        ends = self._history.ends(table)
        for bucket, offset in offsets.items():
            if offset > (end := ends.get(bucket, 0)):
                raise _of_lost_server(
                    *(table, entry, before),
                    f"The lake has records of {format_bucket(bucket)} up to offset {offset}, and the log in the backup "
                    f"ended at {end}",
                )
        if history != self._history.before:
            raise _of_lost_server(table, entry, before, "It was made before an earlier restore")
        return offsets

    async def forget(self, table: Table) -> None:
        """Forget all snapshots of a table: its lake begins anew."""
        async with self._lock:
            before = self._entries.get(table.table_id, [])
            if not before:
                return
            await self._table.replace(table.table_id, ())
            del self._entries[table.table_id]
            self._newest.pop(table.table_id, None)
        await self._remove_unnamed(table, _paths_of(before))

    async def _remove_unnamed(self, table: Table, paths: Collection[str]) -> None:
        """Remove files that have been registered, as soon as no backup names them."""
        if paths:
            mark = self._gate.mark()
            self._unnamed += [(mark, table.path, table.table_id, file_path) for file_path in sorted(paths)]
        await self._remove_released()

    async def _remove_released(self) -> None:
        released = [each for each in self._unnamed if self._gate.is_released(each[0])]
        if released:
            self._unnamed = [each for each in self._unnamed if not self._gate.is_released(each[0])]
            await asyncio.to_thread(self._remove_all, released)

    def _remove_all(self, released: Iterable[tuple[int, TablePath, int, str]]) -> None:
        """Remove files. Blocking."""
        try:
            # If another server has taken the directory over, they may be its own.
            self._gate.check_owner()
            for _, path, table_id, file_path in released:
                self._files.remove(path, table_id, file_path)
        except FlussError as error:
            logger.warning("offsets files of lakes could not be removed: %s", error.message)

    async def _remove_files(self, table: Table, paths: Iterable[str]) -> None:
        for file_path in sorted(paths):
            try:
                await asyncio.to_thread(self._files.remove, table.path, table.table_id, file_path)
            except FlussError as error:
                logger.warning("the offsets file %s could not be removed: %s", file_path, error.message)

    async def forget_dropped(self) -> None:
        """Remove the files of tables that have been dropped, and others, as soon as no backup knows of them."""
        await self._remove_released()
        for table_id in [
            each for each in {**self._entries, **self._prepared} if self._catalog.table_by_id(each) is None
        ]:
            self._entries.pop(table_id, None)
            self._prepared.pop(table_id, None)
            self._newest.pop(table_id, None)
            path = self._paths.pop(table_id, None)
            if path is not None:
                self._dropped[table_id] = self._gate.mark(), path
        for table_id, (mark, path) in list(self._dropped.items()):
            if self._gate.is_released(mark):
                await asyncio.to_thread(self._remove_table, path, table_id)
                del self._dropped[table_id]
        for table_id in self._entries.keys() - self._paths.keys():
            table = self._catalog.table_by_id(table_id)
            if table is not None:
                self._paths[table_id] = table.path

    def _remove_table(self, path: TablePath, table_id: int) -> None:
        self._gate.check_owner()
        self._files.remove_table(path, table_id)


def _is_repeated(entry: LakeEntry, before: LakeEntry) -> bool:
    return (entry.snapshot_id, entry.tiered_offsets_path) == (before.snapshot_id, before.tiered_offsets_path)


def _kept(entries: Sequence[LakeEntry], earliest_id_to_keep: int | None) -> Sequence[LakeEntry]:
    """Return the entries to keep beside a new one. Ids have no order; places in the list have."""
    if earliest_id_to_keep is None:
        return ()
    ids = [entry.snapshot_id for entry in entries]
    return entries[ids.index(earliest_id_to_keep) :] if earliest_id_to_keep in ids else entries


def _paths_of(entries: Sequence[LakeEntry]) -> set[str]:
    paths = {entry.tiered_offsets_path for entry in entries}
    return paths | {entry.readable_offsets_path for entry in entries if entry.readable_offsets_path is not None}


def _of_lost_server(table: Table, entry: LakeEntry, before: Sequence[LakeEntry], reason: str) -> FlussError:
    """Return the error of a snapshot that cannot be registered after a restore; see ``LakeHistory``."""
    back = ""
    if before:
        back = f"set the branch main of the lake table back to the snapshot {before[-1].snapshot_id}, or "
    return _invalid(
        f"The lake snapshot {entry.snapshot_id} of {table.path} is not taken over: this server was restored from a "
        f"backup that is older. {reason}. Readers keep what Fluss knows of the lake, and nothing more is tiered. To "
        f"go on without what only the lake has, {back}move the lake table away, then switch '{LAKE_ENABLED.key}' off "
        "and on"
    )


_UNKNOWN: Final = -1
_VERSION: Final = 1
# No name of a database: those have no dots.
_LOCAL_DIRECTORY: Final = "lake.offsets"
_FILE_NAME: Final = re.compile(r"[0-9a-f-]{1,64}\.offsets")


class LakeOffsetsFiles:
    """The offsets files of all tables. Methods block: they are for threads."""

    def __init__(self, locations: Sequence[str], open_store: Callable[[str], RemoteStore]) -> None:
        """``locations``: where files may be; new ones are written to the first."""
        self._locations = tuple(locations)
        self._open_store = open_store
        self._stores: dict[str, RemoteStore] = {}

    @classmethod
    def open(
        cls, locations: Sequence[str], options: FileSystemOptions, data_dir: Path, files: Files | None = None
    ) -> LakeOffsetsFiles:
        """Keep files at the locations of remote storage, or, if there are none, in a directory beside the data."""
        places = [check_location(location) for location in dict.fromkeys(locations)] or [
            str(data_dir / _LOCAL_DIRECTORY)
        ]
        of_machine = files or OsFiles()
        return cls(places, lambda place: RemoteStore(open_objects(place, options, of_machine), RemoteTraffic()))

    def write(self, path: TablePath, table_id: int, offsets: Mapping[TableBucket, int], history: int = 0) -> str:
        """Write a new file, and return where it is."""
        location = self._locations[0]
        name = f"{_directory(path, table_id)}/metadata/{uuid4()}.offsets"
        self._store(location).put(name, _to_json(table_id, offsets, history))
        return f"{location}/{name}"

    def read(self, path: TablePath, table_id: int, file_path: str) -> dict[TableBucket, int]:
        """Read a file of this table. Anything that is none is a FlussError, and is not looked at."""
        return self.load(path, table_id, file_path)[1]

    def load(self, path: TablePath, table_id: int, file_path: str) -> tuple[int, dict[TableBucket, int]]:
        """Read a file with the number of its history, see ``LakeHistory``."""
        location, name = self._split(path, table_id, file_path)
        try:
            data = self._store(location).get(name)
        except FileNotFoundError:
            raise _invalid(f"There is no offsets file {file_path} of table {path}") from None
        try:
            return _from_json(table_id, data)
        except FlussError as error:
            raise _invalid(f"The offsets file {file_path} cannot be read: {error.message}") from None

    def remove(self, path: TablePath, table_id: int, file_path: str) -> None:
        """Remove a file; a missing one is not an error."""
        location, name = self._split(path, table_id, file_path)
        self._store(location).remove(name)

    def remove_table(self, path: TablePath, table_id: int) -> None:
        """Remove all files of a table that was dropped."""
        for location in self._locations:
            self._store(location).remove_all(_directory(path, table_id))

    def _split(self, path: TablePath, table_id: int, file_path: str) -> tuple[str, str]:
        """Return location and name of a file, which must be one that ``write`` has made for this table.

        Paths come from clients: nothing else of the storage may be read, or removed, by them.
        """
        for location in self._locations:
            prefix = f"{location}/{_directory(path, table_id)}/metadata/"
            if file_path.startswith(prefix) and _FILE_NAME.fullmatch(file_path.removeprefix(prefix)):
                return location, file_path.removeprefix(f"{location}/")
        raise _invalid(
            f"{file_path} is no offsets file of table {path}; commit the path that was returned when it was prepared"
        )

    def _store(self, location: str) -> RemoteStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = self._open_store(location)
        return store


def _directory(path: TablePath, table_id: int) -> str:
    return f"lake/{path.database_name}/{path.table_name}-{table_id}"


def _to_json(table_id: int, offsets: Mapping[TableBucket, int], history: int) -> bytes:
    groups: defaultdict[int | None, dict[int, int]] = defaultdict(dict)
    for bucket, offset in offsets.items():
        groups[bucket.partition_id][bucket.bucket_id] = offset
    value: dict[str, Any] = {"version": _VERSION, "table_id": table_id}
    if history:
        value["history"] = history
    if None in groups:
        value["bucket_offsets"] = _array(groups[None])
    elif groups:
        value["partition_offsets"] = [
            {"partition_id": partition_id, "bucket_offsets": _array(by_bucket)}
            for partition_id, by_bucket in sorted(groups.items(), key=lambda item: item[0] or 0)
        ]
    return write_json(value)


def _array(by_bucket: Mapping[int, int]) -> list[int]:
    return [by_bucket.get(bucket_id, _UNKNOWN) for bucket_id in range(max(by_bucket) + 1)]


def _from_json(table_id: int, data: BytesLike) -> tuple[int, dict[TableBucket, int]]:
    fields = parse_object(data)
    if (version := fields.integer("version")) != _VERSION:
        raise FlussError(f"it has version {version}")
    if (other_id := fields.integer("table_id")) != table_id:
        raise FlussError(f"it is of the table of id {other_id}")
    groups: list[tuple[int | None, list[int]]] = []
    if fields.has("partition_offsets"):
        partitions = fields.objects("partition_offsets")
        groups += [(each.integer("partition_id"), each.integers("bucket_offsets")) for each in partitions]
    if fields.has("bucket_offsets"):
        groups.append((None, fields.integers("bucket_offsets")))
    return fields.integer("history", lowest=0) if fields.has("history") else 0, {
        TableBucket.new_with_partition(table_id, partition_id, bucket_id): offset
        for partition_id, offsets in groups
        for bucket_id, offset in enumerate(offsets)
        if offset != _UNKNOWN
    }


def _invalid(text: str) -> FlussError:
    return FlussError(text, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)
