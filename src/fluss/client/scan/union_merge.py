"""Rows of buckets with a primary key that are in a lake and have changed since: files first, then what has changed.

Which rows have changed is known when the changes have been read. Most files can be read meanwhile: those whose keys
are wanted anyway, and those whose keys are known. Where keys would be read for the sake of the changes alone, it may
turn out that a file has none of them, so they come later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from fluss.ahead import Begun
from fluss.buffers import Int64Array
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns, filtered_rows
from fluss.client.kernel.runtime import Runtime
from fluss.client.scan.changed_rows import ChangedRows, chosen_columns, has_numbers
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.fetch.pipeline import ScanPipeline
from fluss.client.scan.known_keys import FileKeys, KnownKeys
from fluss.client.scan.union_plan import UnionPlan
from fluss.schema.arrow import arrow_type
from fluss.schema.table import TableBucket

if TYPE_CHECKING:
    from fluss.lake.scans import LakeFile

_Tagged: TypeAlias = "tuple[LakeFile, pa.RecordBatch]"


class UnionMerge:
    """One read of some buckets: files, without the rows that have changed since, and the rows that changed.

    ``tails`` says which changes that are, ``columns`` what is wanted. With ``is_early`` files are read while the
    changes come; without, nothing is read that may not be needed.
    """

    def __init__(
        self,
        plan: UnionPlan,
        tails: Mapping[TableBucket, tuple[int, int]],
        columns: ScanColumns,
        known_keys: KnownKeys,
        *,
        is_early: bool,
    ) -> None:
        self._plan = plan
        self._tails = tails
        self._columns = columns
        self._unfiltered = columns.with_filter_columns()
        self._is_early = is_early
        self._key_names = plan.info.physical_primary_keys
        self._with_keys = self._unfiltered.with_columns(self._key_names)
        self._files = [file for file in plan.files if plan.bucket_of(file) in tails]
        # The key column, if it is the only one and its values have numbers.
        key_types = [arrow_type(plan.info.schema.column(name).data_type) for name in self._key_names]
        self._number_key = self._key_names[0] if len(key_types) == 1 and has_numbers(key_types[0]) else None
        self._has_keys = set(self._key_names) <= {column.name for column in self._unfiltered.columns}
        self._known_keys = known_keys
        # Of files from which rows are left out by their positions, and which need not be read with their keys.
        self._known: Mapping[str, FileKeys] = {}
        # With a condition the lake leaves out what it need not read, and with positions it cannot.
        self._finds_positions = not (self._number_key is None or self._has_keys or plan.lake.has_condition)
        if self._finds_positions:
            assert self._number_key is not None
            self._known = known_keys.known(plan.lake, self._files, self._number_key)
        # What has changed in the bucket of each file, by its path; there when it was told.
        self._changed: dict[str, ChangedRows] = {}
        self._told: Future[None] = Future()

    def batches(self, cluster: Cluster, runtime: Runtime) -> Iterator[pa.RecordBatch]:
        """Yield all rows, blocking."""
        late = [file for file in self._files if not (self._has_keys or file.data.file_path in self._known)]
        reading = self._early()
        with contextlib.closing(Begun(reading) if self._is_early and len(late) < len(self._files) else reading) as rows:
            try:
                changed = self._changes(cluster, runtime)
                self._told.set_result(None)
            except BaseException:
                # Threads that wait for it go on, with an error.
                self._told.cancel()
                raise
            yield from self._merged(rows) if self._has_keys else self._wanted(rows)
        if late:
            yield from self._late(late)
        for of_bucket in changed:
            for batch in of_bucket.rows(self._unfiltered):
                yield filtered_rows(batch, self._columns)

    def _changes(self, cluster: Cluster, runtime: Runtime) -> list[ChangedRows]:
        """Read what has changed in Fluss, and return it by bucket."""
        fold = ChangelogFold(self._columns, self._with_keys, self._key_names, keeps_deletes=True)
        pipeline = ScanPipeline(cluster, runtime, self._plan.info, self._with_keys)
        with contextlib.closing(pipeline):
            for run in pipeline.begin_bounded(self._tails).runs():
                fold.add(run)
        changed = {bucket: ChangedRows(fold, bucket, self._with_keys, self._key_names) for bucket in self._tails}
        for file in self._files:
            bucket = self._plan.bucket_of(file)
            assert bucket is not None, "it has changes"
            self._changed[file.data.file_path] = changed[bucket]
        return list(changed.values())

    # The lake

    def _early(self) -> Generator[_Tagged, None, None]:
        """Return the rows of files that can be read before it is known what has changed."""
        if self._has_keys:
            return self._rows_with_keys(self._files)
        return self._rows_without_keys([file for file in self._files if file.data.file_path in self._known])

    def _late(self, files: Sequence[LakeFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files of which it had to be known first what has changed."""
        touched = [file for file in self._files if self._touching(file) is not None]
        if self._finds_positions:
            assert self._number_key is not None
            self._known = {**self._known, **self._known_keys.of(self._plan.lake, touched, self._number_key)}
        with_keys = {file.data.file_path for file in touched} - self._known.keys()
        yield from self._wanted(
            self._rows_without_keys([file for file in files if file.data.file_path not in with_keys])
        )
        # The files of all buckets are read at the same time, as others are.
        yield from self._merged(self._rows_with_keys([file for file in files if file.data.file_path in with_keys]))

    def _rows_with_keys(self, files: Sequence[LakeFile]) -> Generator[_Tagged, None, None]:
        """Read files with their keys; if these have numbers, without rows that have changed."""
        lake = self._plan.lake
        return lake.file_batches(files) if self._number_key is None else lake.file_batches(files, finder=self._finder)

    def _rows_without_keys(self, files: Sequence[LakeFile]) -> Generator[_Tagged, None, None]:
        """Read files, of which keys are known or have not changed, with no more columns than are wanted."""
        lake = self._plan.lake.select([column.name for column in self._unfiltered.columns])
        return lake.file_batches(files, finder=self._finder)

    def _finder(self, file: LakeFile) -> Callable[[pa.RecordBatch, int], Int64Array] | None:
        """Return what finds rows of a file that have changed, as soon as that is known; None if it has none."""
        self._told.result()
        changed = self._touching(file)
        if changed is None:
            return None
        keys = self._known.get(file.data.file_path)
        if keys is None:
            return lambda rows, _: changed.find(rows)
        return lambda rows, first: changed.find_among(
            keys.numbers[first : first + rows.num_rows], is_ascending=keys.is_ascending
        )

    def _wanted(self, rows: Iterable[_Tagged]) -> Iterator[pa.RecordBatch]:
        """Yield rows without columns that only a merge needs."""
        return (filtered_rows(chosen_columns(batch, self._unfiltered), self._columns) for _, batch in rows)

    def _merged(self, rows: Iterable[_Tagged]) -> Iterator[pa.RecordBatch]:
        """Yield rows that have not changed of those of files that were read with their keys."""
        if self._number_key is not None:
            yield from self._wanted(rows)
            return
        touching = {file.data.file_path: self._touching(file) for file in self._files}
        for changed, of_bucket in groupby(rows, lambda pair: touching[pair[0].data.file_path]):
            if changed is None:
                yield from self._wanted(of_bucket)
                continue
            for batch in changed.unchanged((batch for _, batch in of_bucket), self._unfiltered):
                yield filtered_rows(batch, self._columns)

    def _touching(self, file: LakeFile) -> ChangedRows | None:
        """Return what has changed in the bucket of a file; None if the bounds of its keys say it has none of it."""
        changed = self._changed[file.data.file_path]
        for name in self._key_names:
            keys, bounds = changed.number_range(name), self._plan.lake.number_bounds(file, name)
            if keys is not None and bounds is not None and (keys[1] < bounds[0] or bounds[1] < keys[0]):
                return None
        return changed
