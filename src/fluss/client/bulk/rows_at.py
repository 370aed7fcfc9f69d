"""The rows that one bucket of a primary-key table had at an offset: after all changes before it, and none from it on.

Servers return the rows of now. What has changed since is undone with the changelog, which has each row as it was before
its change; so the same offset gives the same rows, whenever they are read, as long as the changelog behind it is kept:

    changes since the offset -> undone: of each key the first one says what was there before, or that nothing was
    rows of the server at an offset L -> without the keys that were undone -> and what these keys were

A server may also be behind: at an L before the offset. Then the changes between are done, the last one of each key
counting. The changes are kept in memory, at most one for each key, and the rows pass by.

Where the rows of now cannot be read (servers before 1.0), or where changes cannot be undone because the changelog does
not say what was there before (``table.changelog.image`` is WAL), the rows are folded from all changes before the
offset, if the changelog still has them from the beginning. If it has not, servers before 1.0 have a snapshot of the
rows in remote storage, and what lies between it and the offset is done or undone. Others have such snapshots, too, and
``scanner.kv.read-preference`` says whether to begin with those.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.bulk.ranges import LogRange, read_ranges, scan_columns
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.kernel.decode import ScanColumns
from fluss.client.kernel.runtime import run_blocking
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.changelog_fold import ChangelogFold, change_types, encoded_keys, is_end_of_key, keyed_changes
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT
from fluss.client.scan.fetch.pipeline import BoundedRead, ScanPipeline
from fluss.client.scan.records import RecordRun
from fluss.client.scan.table_buckets import can_scan_rows
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import bool_array, joined_batches
from fluss.schema.offsets import ChangeType, OffsetSpec
from fluss.schema.table import TableBucket

T = TypeVar("T")

# Changes that do not say what was there before them.
_UNKNOWN_BEFORE: Final = (ChangeType.AppendOnly, ChangeType.UpdateAfter)
# Changes that are gathered before they are reduced to one for each key.
_PENDING_ROWS_MIN: Final = 262_144
_REMOTE_FIRST: Final = "remote_first"

logger = logging.getLogger(__name__)


def rows_at(
    table: FlussTable,
    bucket: TableBucket,
    offset: int,
    *,
    columns: Sequence[str] | None = None,
    idle_timeout_s: float | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a bucket after all changes before ``offset``, in no useful order, blocking.

    A FlussError says that they cannot be told any more; or that the server has lost them before their end (code 66), or
    that nothing came for ``idle_timeout_s`` (code 25): then they may be read again. Closing the iterator ends all
    fetching.
    """
    if not table.has_primary_key():
        raise FlussError(f"{table.table_path} is a log table, which has no rows at an offset; read a range of its log")
    return _BucketAt(table, bucket, offset, scan_columns(table.get_table_info(), columns), idle_timeout_s).rows()


class _CannotUndoError(Exception):
    """The changelog does not say what a row was before its change."""


class _BucketAt:
    """One read of one bucket."""

    def __init__(
        self, table: FlussTable, bucket: TableBucket, offset: int, columns: ScanColumns, idle_timeout_s: float | None
    ) -> None:
        self._table = table
        self._context = context_of(table)
        self._bucket = bucket
        self._offset = offset
        self._columns = columns
        self._idle_timeout_s = idle_timeout_s
        info = self._context.info
        self._with_keys = columns.with_columns(info.physical_primary_keys)
        names = [column.name for column in self._with_keys.columns]
        self._names = names
        self._key_positions = [names.index(name) for name in info.physical_primary_keys]
        self._key_types = [self._with_keys.columns[position].data_type for position in self._key_positions]

    def rows(self) -> Generator[pa.RecordBatch, None, None]:
        if not self._run(can_scan_rows(self._context.cluster, self._table.table_path, [self._bucket])):
            reason = "its server cannot return rows (that takes version 1.0)"
            yield from self._from_files(reason) if self._bucket_offset(OffsetSpec.earliest()) else self._folded(reason)
            return
        if self._context.cluster.config.scanner_kv_read_preference == _REMOTE_FIRST:
            rows = self._from_files("its snapshot does not fit", prefers_files=True)
            try:
                first = next(rows, None)
            except FlussError:
                # Before the first row: the server can be asked as well.
                logger.info("the server is asked for the rows of %s: no snapshot of them can be used", self._bucket)
            else:
                yield from () if first is None else chain((first,), rows)
                return
        try:
            yield from self._undone()
        except _CannotUndoError:
            # Raised before the first row.
            yield from self._folded("its changelog does not say what rows were before they changed")

    # From the rows of now

    def _undone(self) -> Iterator[pa.RecordBatch]:
        """Read the rows of now, and undo what has changed since the offset."""
        undo = _KeyChanges(self, is_first=True)
        # Most of it before the server pins the rows: it does not keep them for ever.
        latest = max(self._offset, self._bucket_offset(OffsetSpec.latest()))
        undo.read(self._offset, latest)
        with contextlib.closing(self._pipeline()) as pipeline:
            read = pipeline.begin_bounded({self._bucket: (FROM_SNAPSHOT, 0)}, idle_timeout_s=self._idle_timeout_s)
            (subscription,) = read.unfinished
            runs = _first_rows(read)
            snapshot_offset = subscription.snapshot_offset
            assert snapshot_offset is not None, "known before the first rows"
            undo.read(latest, snapshot_offset)
            changed = undo.rows()
            if snapshot_offset < self._offset:
                changed = self._with_missed(changed, snapshot_offset)
            yield from self._replaced(_batches(runs, read), changed)

    def _from_files(self, reason: str, *, prefers_files: bool = False) -> Iterator[pa.RecordBatch]:
        """Read the rows of the last snapshot in remote storage, and do or undo what lies between it and the offset.

        Unless ``prefers_files`` a server that can return rows of now is asked for them.
        """
        with contextlib.closing(self._pipeline(rows_only=False, from_files=prefers_files)) as pipeline:
            read = pipeline.begin_bounded({self._bucket: (FROM_SNAPSHOT, 0)}, idle_timeout_s=self._idle_timeout_s)
            (subscription,) = read.unfinished
            runs = _first_rows(read)
            snapshot_offset = subscription.snapshot_offset
            assert snapshot_offset is not None, "known before the first rows"
            changes = _KeyChanges(self, is_first=snapshot_offset > self._offset)
            changes.read(*sorted((snapshot_offset, self._offset)))
            try:
                changed = changes.rows()
            except _CannotUndoError:
                raise self._untold(reason) from None
            yield from self._replaced(_batches(runs, read), changed)

    def _with_missed(self, undone: pa.Table | None, snapshot_offset: int) -> pa.Table | None:
        """Add the changes that the server has not put into its rows, except of keys that have changed again since."""
        missed = _KeyChanges(self, is_first=False)
        missed.read(snapshot_offset, self._offset)
        rows = missed.rows()
        if rows is None or undone is None:
            return undone if rows is None else rows
        is_undone = pc.is_in(rows["key"], value_set=undone["key"].combine_chunks())
        return pa.concat_tables([undone, rows.filter(pc.invert(is_undone))])

    def _replaced(self, batches: Iterable[pa.RecordBatch], changed: pa.Table | None) -> Iterator[pa.RecordBatch]:
        """Pass rows on, except those of changed keys; then what these keys were."""
        if changed is None:
            yield from map(self._chosen, batches)
            return
        keys = changed["key"].combine_chunks()
        # A search begins with an index of all keys, so it is made for as many rows as there are keys.
        for rows in joined_batches(batches, changed.num_rows):
            is_changed = pc.is_in(encoded_keys(rows, self._key_positions, self._key_types), value_set=keys)
            yield self._chosen(rows.filter(pc.invert(is_changed)))
        there = changed.filter(changed["is_there"]).select(range(len(self._names)))
        for batch in there.to_batches():
            yield self._chosen(batch)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = rows.columns[: len(self._columns.columns)]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns.arrow_schema)

    def _pipeline(self, *, rows_only: bool = True, from_files: bool = False) -> ScanPipeline:
        context = self._context
        return ScanPipeline(
            *(context.cluster, context.runtime, context.info, self._with_keys),
            rows_only=rows_only,
            from_files=from_files,
        )

    # From all changes

    def _folded(self, reason: str) -> Iterator[pa.RecordBatch]:
        """Fold all changes before the offset."""
        if self._bucket_offset(OffsetSpec.earliest()) > 0:
            raise self._untold(reason)
        fold = ChangelogFold(self._columns, self._with_keys, self._context.info.physical_primary_keys)
        for run in self.changes(0, self._offset):
            fold.add(run)
        for run in fold.rows():
            yield run.batch

    # Common

    def _untold(self, reason: str) -> FlussError:
        earliest = self._bucket_offset(OffsetSpec.earliest())
        return FlussError(
            f"The rows of {self._bucket} of {self._table.table_path} at offset {self._offset} cannot be told: "
            f"{reason}, and the changes before offset {earliest} are no longer there; read the table again"
        )

    def changes(self, start: int, stop: int) -> Iterator[RecordRun]:
        """Read a part of the changelog, with the columns and the keys."""
        ranges = [LogRange(self._bucket, start, stop)]
        try:
            yield from read_ranges(self._table, ranges, columns=self._names, idle_timeout_s=self._idle_timeout_s)
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                raise
            raise FlussError(
                f"The rows of {self._bucket} of {self._table.table_path} at offset {self._offset} cannot be told any "
                f"more: the changes since then are no longer complete ({error.message}); read the table again",
                error.error_code,
            ) from error

    def keyed(self, run: RecordRun) -> pa.Table:
        """Return changes with the bytes of their keys."""
        return keyed_changes(run, self._key_positions, self._key_types)

    def _bucket_offset(self, spec: OffsetSpec) -> int:
        asking = bucket_offsets(self._context.cluster, self._table.table_path, [self._bucket], spec)
        return self._run(asking)[self._bucket]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._context.runtime.run(coroutine)


class _KeyChanges:
    """One change of every key in a part of the changelog: the first one, or the last one."""

    def __init__(self, bucket_at: _BucketAt, *, is_first: bool) -> None:
        self._bucket_at = bucket_at
        self._is_first = is_first
        self._reduced: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def read(self, start: int, stop: int) -> None:
        """Add the changes of a range, which follows those before."""
        if start >= stop:
            return
        for run in self._bucket_at.changes(start, stop):
            self._pending.append(self._bucket_at.keyed(run))
            self._pending_rows += run.count
            if self._pending_rows >= max(_PENDING_ROWS_MIN, 0 if self._reduced is None else self._reduced.num_rows):
                self._reduce()

    def rows(self) -> pa.Table | None:
        """Return the columns of the changes, their ``key`` and whether there is (or was) such a row, ``is_there``."""
        self._reduce()
        rows = self._reduced
        if rows is None:
            return None
        types = change_types(rows)
        if self._is_first:
            is_there = (types == ChangeType.UpdateBefore) | (types == ChangeType.Delete)
        else:
            is_there = types != ChangeType.Delete
        return rows.append_column("is_there", bool_array(is_there))

    def _reduce(self) -> None:
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending if self._reduced is None else [self._reduced, *self._pending])
        self._pending, self._pending_rows = [], 0
        if not self._is_first:
            rows = rows.filter(bool_array(change_types(rows) != ChangeType.UpdateBefore))
        rows = rows.filter(bool_array(is_end_of_key(rows, is_first=self._is_first))).combine_chunks()
        if self._is_first and bool(np.isin(change_types(rows), _UNKNOWN_BEFORE).any()):
            raise _CannotUndoError
        self._reduced = rows


def _first_rows(read: BoundedRead) -> list[RecordRun]:
    """Return the first rows of a snapshot, none if it has none."""
    runs: list[RecordRun] = []
    while not runs and not read.is_done:
        runs = run_blocking(read.step())
    return runs


def _batches(runs: Iterable[RecordRun], read: BoundedRead) -> Iterator[pa.RecordBatch]:
    for run in chain(runs, read.runs()):
        yield run.batch
