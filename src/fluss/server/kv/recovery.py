"""How a store is opened: as it is, or built again, and then brought up to date from the changelog.

| what is found                                       | what is done                                           |
|-----------------------------------------------------|--------------------------------------------------------|
| a store that the changelog continues                | the rest of the changelog is replayed                  |
| none, or one that is damaged or ahead of its log    | it is removed and built again, see below               |

It is built from the first of these that can be used, and then the rest of the changelog is replayed:

1. the newest snapshot in remote storage that the log continues, or a newer copy beside the store if the beginning of
   the changelog is gone;
2. an older one of these, if there was damage in the newer ones;
3. the whole changelog;
4. if its beginning is nowhere any more, a damaged copy that can at least be opened, for the rows that can be read;
5. otherwise code 26: what is missing has to be restored.

What the log has no longer and remote storage still has is read from there. A snapshot that is ahead of the log is
forgotten for good, before the log goes on.

Replaying may be interrupted at any point: how far it has come is written together with the rows.

Copies are what lets old changelog go. Before its first segments expire, ``make_checkpoint`` makes a copy of the store
beside it, with hard links and so at little cost, or of its rows if it is small and shares a database. Then the log is
brought to the disk as far as the copy goes, and ``keep_checkpoint`` gives the copy its name; from then on it and the
rest of the changelog are as good as the whole. One copy is kept, named by its offset:

    kv-snapshots-{bucket}/00000000000000001234/

The SST files of a copy are read from one end to the other before it is used: with hard links it has those of the
store, and damage in them may be why it is built again. A damaged copy goes as soon as the store was built without it.
One that is ahead of the log all the same, because the log was damaged or restored, goes when the store is opened,
before the log goes on: grown past it with other rows, it would seem to continue the copy.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.record.log_batch import LogBatch, iter_batches, verify_crc
from fluss.record.mutations import Mutations
from fluss.schema.table_options import CHANGELOG_IMAGE, ChangelogImage
from fluss.server.kv.auto_increment import AutoIncrement
from fluss.server.kv.snapshot_source import SnapshotSource
from fluss.server.merge.changelog import decode_changelog, store_entries
from fluss.server.merge.changes import row_count_delta
from fluss.server.model import KvSnapshotEntry, LogArchive, Table
from fluss.storage.kv.rocks import DISK
from fluss.storage.kv.shared_database import SharedDatabases
from fluss.storage.kv.snapshots.remote_snapshot import check_sst
from fluss.storage.kv.snapshots.store_export import adopt_export, database_files
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.kv.store import KvResources, KvStore, remove_store
from fluss.storage.kv.store_home import StoreHome
from fluss.storage.log.file_names import OFFSET_DIGITS, TabletKind
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import is_passing

# Rows that are written to the store at once, at least while there are any.
_ROWS_PER_WRITE: Final = 8192
# How often a recovery that takes long says how far it is.
_PROGRESS_INTERVAL_S: Final = 5.0
_OFFSET_NAME: Final = re.compile(rf"[0-9]{{{OFFSET_DIGITS}}}")
# A copy that is not complete, or may be ahead of what of its log is on the disk.
_UNFINISHED_NAME: Final = "unfinished"
# One that is being fetched from remote storage, or exported to it.
_FETCHED_NAME: Final = "fetched"
_EXPORTED_NAME: Final = "exported"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvDirectories:
    """Where the key-value side of a bucket lies."""

    store: Path
    snapshots: Path

    @classmethod
    def beside(cls, log_directory: Path) -> KvDirectories:
        bucket = log_directory.name.removeprefix(TabletKind.LOG)
        return cls(
            log_directory.with_name(f"{TabletKind.KV}{bucket}"),
            log_directory.with_name(f"{TabletKind.KV_SNAPSHOTS}{bucket}"),
        )

    @property
    def fetched(self) -> Path:
        """Where a snapshot of remote storage is brought to. Of no use when nothing is being done."""
        return self.snapshots / _FETCHED_NAME

    @property
    def exported(self) -> Path:
        """Where the store is copied to, to be brought to remote storage. Of no use when nothing is being done."""
        return self.snapshots / _EXPORTED_NAME

    @property
    def unfinished(self) -> Path:
        """Where the store is copied to before it is known that its log is on the disk as far as the copy goes."""
        return self.snapshots / _UNFINISHED_NAME

    def checkpoint(self, offset: int) -> Path:
        """Return where the copy with an offset is."""
        return self.snapshots / f"{offset:0{OFFSET_DIGITS}d}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Return the copies with their offsets, newest first. Blocking."""
        names = sorted(filter(_OFFSET_NAME.fullmatch, DISK.names(self.snapshots)), reverse=True)
        return [(int(name), self.snapshots / name) for name in names]

    def remove(self) -> None:
        """Remove all of it; what is missing is not an error. Blocking."""
        for directory in (self.store, self.snapshots):
            if DISK.exists(directory):
                remove_store(directory)


class Recovery:
    """One recovery. ``run`` blocks and belongs into a thread; ``cancel`` and ``progress_text`` are for all."""

    def __init__(
        self,
        log: LogTablet,
        table: Table,
        directories: KvDirectories,
        resources: KvResources,
        *,
        read_bytes: int,
        databases: SharedDatabases | None = None,
        archive: LogArchive | None = None,
        snapshots: SnapshotSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``databases`` are those that small stores share; None if every store has one of its own.

        ``archive`` is what remote storage has of the changelog, ``snapshots`` what it has of the rows.
        """
        self._log = log
        self._table = table
        self._directories = directories
        bucket = log.bucket
        self._home = StoreHome(
            directories.store,
            resources,
            databases,
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
        )
        self._read_bytes = read_bytes
        self._archive = archive
        self._snapshots = snapshots
        self._resources = resources
        self._clock = clock
        self._is_cancelled = threading.Event()
        # What is replayed ends where readers see it. A store may have come further: as far as the log is durable.
        self._offset_end = log.offset_high_watermark
        self._offset_durable = log.offset_durable
        self._offset: int | None = None
        # Changelog bytes that were replayed, whether what was there could not be used, and whether it was begun with a
        # snapshot of remote storage.
        self.replayed_bytes = 0
        self.is_rebuilt = False
        self.is_from_snapshot = False
        # Copies beside the store that were found damaged.
        self._damaged_copies: list[Path] = []

    @property
    def progress_text(self) -> str:
        if self._offset is None:
            return f"the changelog goes to offset {self._offset_end}"
        return f"offset {self._offset} of {self._offset_end} has been replayed"

    def cancel(self) -> None:
        """Have ``run`` end with an error at its next step. What it has done is not lost."""
        self._is_cancelled.set()

    def run(self, *, is_damaged: bool) -> KvStore:
        """Return the store, up to date; ``is_damaged`` says that the one that is there is known not to be usable.

        Raises KvDamagedError if that which was built is damaged, too, or if a whole shared database is; GivenUpError if
        that is about to be opened again; and the error of log or disk.
        """
        store = self._run(is_damaged=is_damaged, may_open_own=True)
        assert store is not None, "any store may be opened"
        return store

    def run_unless_own(self, *, is_damaged: bool) -> KvStore | None:
        """Do what ``run`` does if the store shares a database. If it has one of its own, that is left to ``run``.

        What is damaged is removed by then, and a copy is in its place.
        """
        return self._run(is_damaged=is_damaged, may_open_own=False)

    def _run(self, *, is_damaged: bool, may_open_own: bool) -> KvStore | None:
        if not is_damaged and not (self._snapshots is not None and self._home.is_missing):
            try:
                return self._opened_and_replayed(may_open_own=may_open_own)
            except KvDamagedError as error:
                if self._home.is_shared_damaged:
                    raise
                logger.warning("%s; it is built again", error.message)
        self.is_rebuilt = True
        self._home.remove()
        self._restore_copy()
        return self._opened_and_replayed(may_open_own=may_open_own)

    def _opened_and_replayed(self, *, may_open_own: bool) -> KvStore | None:
        store = self._home.open(may_open_own=may_open_own)
        if store is None:
            return None
        try:
            applied_offset = store.state.applied_offset
            if not self._has_changes_from(applied_offset):
                raise KvDamagedError(
                    f"The key-value store {store.directory} ends at offset {applied_offset}, its changelog has "
                    f"{self._log.offset_start} to {self._offset_durable}"
                )
            self._replay(store)
            self._remove_useless_copies()
        except BaseException:
            _close(store)
            raise
        return store

    def _has_changes_from(self, offset: int) -> bool:
        """Tell whether all changes from an offset on are there, in the log or in remote storage."""
        if self._log.offset_start <= offset <= self._offset_durable:
            return True
        return self._archive is not None and self._archive.offset_start() <= offset <= self._offset_durable

    def can_be_built(self) -> bool:
        """Tell whether the store could be built if it were not there. Reads copies beside it if nothing else will do.

        Blocking. Raises FlussError and OSError if it cannot be said now.
        """
        if self._has_changes_from(0):
            return True
        entries = () if self._snapshots is None else self._snapshots.entries()
        if any(self._has_changes_from(entry.log_offset) for entry in entries):
            return True
        checkpoints = self._directories.checkpoints()
        return any(self._is_sound(directory) for offset, directory in checkpoints if self._has_changes_from(offset))

    def _is_sound(self, directory: Path) -> bool:
        try:
            self._check_files(directory)
        except KvDamagedError:
            return False
        return True

    # Copies

    def _restore_copy(self) -> None:
        """Begin with the newest copy that the changelog continues; without one the changelog has to be whole."""
        problems: list[str] = []
        for copy in self._copies(problems):
            try:
                self._restore(copy)
            except KvDamagedError as error:
                if self._home.is_shared_damaged:
                    raise
                problems.append(error.message)
                if isinstance(copy.source, Path):
                    self._damaged_copies.append(copy.source)
                self._home.remove()
                continue
            finally:
                self._remove_fetched()
            self.is_from_snapshot = isinstance(copy.source, KvSnapshotEntry)
            logger.info("%s is built from %s", self._directories.store, copy.name)
            return
        if self._log.offset_start == 0:
            return
        if self._has_changes_from(0):
            logger.info("%s is built from remote storage, which has its whole changelog", self._directories.store)
            return
        if self._restore_damaged_copy(problems):
            return
        raise FlussError(
            f"The key-value store {self._directories.store} is lost: its changelog begins at offset "
            f"{self._log.offset_start}, and there is no usable copy of what came before in "
            f"{self._directories.snapshots} ({'; '.join(problems) or 'it has none'}). Restore one of these directories "
            "from a backup, or drop the table",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def _restore_damaged_copy(self, problems: list[str]) -> bool:
        """Begin with a damaged copy, as nothing else is left: its other rows can be read. Tell whether there is one."""
        damaged, self._damaged_copies = self._damaged_copies, []
        for directory in damaged:
            try:
                self._begin_with(directory)
            except KvDamagedError:
                if self._home.is_shared_damaged:
                    raise
                self._home.remove()
                continue
            logger.error(
                "%s is built from a damaged copy, as there is no other one (%s): what was in the damaged blocks cannot "
                "be read. Restore %s from a backup, or drop the table",
                *(self._directories.store, "; ".join(problems), directory),
            )
            return True
        return False

    def _copies(self, problems: list[str]) -> list[_Copy]:
        """Return the copies that the changelog continues, the newest first."""
        copies = []
        if self._log.offset_start > 0:
            # Otherwise the changelog is better: what has damaged the store may be in the files that they share.
            copies += [
                _Copy(offset, str(directory), directory) for offset, directory in self._directories.checkpoints()
            ]
        if self._snapshots is not None:
            entries = self._snapshots.entries()
            ahead = [entry for entry in entries if entry.log_offset > self._log.offset_next]
            if ahead:
                logger.warning(
                    "%s: %d snapshots in remote storage are ahead of the log, which ends at offset %d; they go",
                    *(self._directories.store, len(ahead), self._log.offset_next),
                )
                self._snapshots.discard(ahead)
            copies += [_Copy(entry.log_offset, _name(entry), entry) for entry in entries if entry not in ahead]
        usable = [copy for copy in copies if self._has_changes_from(copy.offset)]
        problems += [f"{copy.name} does not fit" for copy in copies if copy not in usable]
        # What is on the disk already comes first.
        return sorted(usable, key=lambda copy: (copy.offset, isinstance(copy.source, Path)), reverse=True)

    def _remove_useless_copies(self) -> None:
        """Remove the copies beside the store that are damaged, or ahead of the log: it goes on differently from here.

        Old changelog would go for their sake. As long as the store could not be built without them they stay: what is
        left in them may be all there is.
        """
        for directory in self._damaged_copies:
            logger.warning("%s is damaged, and was not needed; it goes", directory)
            remove_store(directory)
        self._damaged_copies = []
        for offset, directory in self._directories.checkpoints():
            if offset > self._log.offset_next:
                logger.warning("%s is ahead of the log, which ends at %d; it goes", directory, self._log.offset_next)
                remove_store(directory)

    def _restore(self, copy: _Copy) -> None:
        if isinstance(copy.source, Path):
            directory = copy.source
            self._check_files(directory)
        else:
            directory = self._fetched(copy.source)
        self._begin_with(directory)

    def _begin_with(self, directory: Path) -> None:
        store = self._home.open_copy(directory)
        try:
            self._home.restore(store)
        finally:
            _close(store)

    def _check_files(self, directory: Path) -> None:
        """Read the SST files of a copy beside the store. Raises KvDamagedError for damage, OSError for what passes.

        The store has the same files, and what has damaged it may be in them. Linked again without a look it would be
        found damaged by its next reader, and so on.
        """
        try:
            for path in database_files(directory)[0]:
                self._check()
                check_sst(path)
        except OSError as error:
            if is_passing(error):
                # This says nothing about the file. It is tried again.
                raise
            raise KvDamagedError(f"{error.filename or directory} cannot be read: {error.strerror}") from error
        finally:
            DISK.forget(directory)

    def _fetched(self, entry: KvSnapshotEntry) -> Path:
        """Bring a snapshot to the disk, as a store."""
        assert self._snapshots is not None, "it has one"
        directory = self._directories.fetched
        DISK.make_directory(directory.parent)
        state = self._snapshots.fetch(entry, directory, self._check)
        adopt_export(directory, state, self._resources)
        return directory

    def _remove_fetched(self) -> None:
        if DISK.exists(self._directories.fetched):
            remove_store(self._directories.fetched)

    def _check(self) -> None:
        if self._is_cancelled.is_set():
            raise FlussError("the recovery was interrupted", ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Replay

    def _replay(self, store: KvStore) -> None:
        began_s = said_s = self._clock()
        offset_begin = self._offset = store.state.applied_offset
        run = _ReplayRun(self._table, store)
        for batch in self._batches(offset_begin):
            run.add(batch)
            self._offset = batch.header.offset_next
            self.replayed_bytes += batch.header.size
            if self._clock() - said_s >= _PROGRESS_INTERVAL_S:
                said_s = self._clock()
                logger.info("%s: %s", store.directory, self.progress_text)
        run.write()
        if said_s > began_s:
            logger.info("%s is up to date after %.1f s", store.directory, self._clock() - began_s)

    def _batches(self, offset: int) -> Iterator[LogBatch]:
        while offset < self._offset_end:
            self._check()
            for batch in iter_batches(self._read(offset)):
                verify_crc(batch)
                # A read begins with the batch that has the offset.
                assert batch.header.base_offset == offset, "stores end where batches do"
                yield batch
                offset = batch.header.offset_next

    def _read(self, offset: int) -> memoryview:
        if self._archive is not None and offset < self._log.offset_start:
            return self._archive.read(offset, self._read_bytes)
        return self._log.read(offset, self._read_bytes, at_least_one_batch=True)


class _Copy(NamedTuple):
    """A copy of a store: beside it, or in remote storage."""

    offset: int
    name: str
    source: Path | KvSnapshotEntry


def _name(entry: KvSnapshotEntry) -> str:
    return f"snapshot {entry.snapshot_id} in {entry.root}/{entry.directory}"


class _ReplayRun:
    """Collects what changelog batches do, and writes it when it is worth it."""

    def __init__(self, table: Table, store: KvStore) -> None:
        self._table = table
        self._store = store
        self._auto_increment = AutoIncrement.of(table)
        self._is_counted = CHANGELOG_IMAGE.of(table.descriptor.properties) is ChangelogImage.FULL
        # In the order of the changelog.
        self._changes: list[Mutations] = []
        self._row_count = 0
        self._state = store.state

    def add(self, batch: LogBatch) -> None:
        row_count, ids = self._state.row_count if self._is_counted else None, self._state.ids
        if batch.header.record_count:
            records = decode_changelog(self._table, batch)
            changes = store_entries(self._table, records)
            self._changes.append(changes)
            self._row_count += len(changes)
            ids = self._ids_after(records.rows) or ids
            if row_count is not None:
                row_count += row_count_delta(records.change_types)
        self._state = KvState(batch.header.offset_next, row_count, ids)
        if self._row_count >= _ROWS_PER_WRITE:
            self.write()

    def write(self) -> None:
        if self._state != self._store.state:
            self._store.write(self._changes, self._state)
            self._changes, self._row_count = [], 0

    def _ids_after(self, rows: pa.RecordBatch) -> IdBlock | None:
        """Return what is left of the block of ids that new rows were numbered from."""
        column, before = self._auto_increment, self._state.ids
        if column is None:
            return None
        id_last = pc.max(rows.column(column.column_index)).as_py()
        if id_last is None or (before is not None and id_last < before.id_next):
            return before
        if before is not None and id_last < before.id_end:
            return IdBlock(before.column_id, id_last + 1, before.id_end)
        return column.block_after(id_last)


def _close(store: KvStore) -> None:
    try:
        store.close()
    except FlussError as error:
        logger.warning("%s was not closed in order: %s", store.directory, error.message)


def make_checkpoint(store: KvStore, directories: KvDirectories, *, offset: int) -> int:
    """Have a copy of a store that has everything before an offset; return its own offset, for ``keep_checkpoint``.

    One that is there already will do. A store that has not come that far itself is copied as it is. Blocking.
    """
    # What was not kept: the log was not brought to the disk as far as it goes.
    unfinished = directories.unfinished
    if DISK.exists(unfinished):
        remove_store(unfinished)
    # One that is ahead of the store is not a copy of it.
    applied_offset = store.state.applied_offset
    enough = min(offset, applied_offset)
    usable = [known for known, _ in directories.checkpoints() if enough <= known <= applied_offset]
    if usable:
        return usable[0]
    return store.checkpoint(unfinished).applied_offset


def keep_checkpoint(directories: KvDirectories, offset: int) -> None:
    """Have the copy count that was made, and no other one; the log is on the disk as far as it goes. Blocking."""
    if DISK.exists(directories.unfinished):
        DISK.rename(directories.unfinished, directories.checkpoint(offset))
        DISK.sync_directory(directories.snapshots)
    for known, other in directories.checkpoints():
        if known != offset:
            remove_store(other)
