"""The lake at the beginning of a stream: what its files have comes first, then the log behind them.

A stream that begins with everything (``scan.startup.mode`` full) reads the files of the lake's readable snapshot, and
goes on in the log of each bucket at the offset up to which that snapshot has it. Its offset says which of the files a
batch has read, by their numbers: all files of a snapshot always come in the same order, whatever a query filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluss import FlussTable
from fluss.client.bulk import checked_choices, lake_rows_of, union_plan_of
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket, TableInfo
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.planner import Split, matching_buckets, matching_partitions
from fluss.spark.read.stream_offsets import BucketPosition, LakeFiles, StreamOffset

if TYPE_CHECKING:
    from fluss.client.bulk import UnionPlan
    from fluss.filter.row_filter import RowFilter
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile


def begins_with_lake(options: ReadOptions) -> bool:
    """Whether a stream that begins now begins with what the lake has, if there is one."""
    return options.startup_mode == "full" and options.mode == "union" and not options.view


@dataclass(frozen=True)
class LakeBeginning:
    """Where a stream begins that reads a lake first."""

    files: LakeFiles
    positions: dict[TableBucket, BucketPosition]


@dataclass
class StreamLake:
    """The lake of one stream, as far as it is still to be read. Belongs to the driver."""

    options: ReadOptions
    columns: Sequence[str]
    row_filter: RowFilter | None
    _opened: tuple[int, LakeRows, list[LakeFile], frozenset[str]] | None = None

    def beginning(self, table: FlussTable) -> LakeBeginning | None:
        """Return where a stream begins; None if the lake has nothing, or nothing that Fluss does not have."""
        info = table.get_table_info()
        plan = union_plan_of(table, self.columns, self.row_filter, checked_choices(info, self.options.partitions))
        if plan is None:
            return None
        _, _, files, _ = self._open(table, plan.snapshot_id)
        return LakeBeginning(
            LakeFiles(plan.snapshot_id, 0, 0, len(files)), _positions(plan, matching_buckets(info, self.row_filter))
        )

    def file_rows(self, table: FlussTable, files: LakeFiles) -> list[int]:
        """Return how many rows each of the files has that are still to be read."""
        _, _, found, _ = self._open(table, files.snapshot_id)
        return [file.data.record_count for file in found[files.stop :]]

    def rows(self, table: FlussTable, files: LakeFiles) -> LakeRows:
        """Return what tasks read the files with."""
        return self._open(table, files.snapshot_id)[1]

    def splits(self, table: FlussTable, end: StreamOffset) -> list[Split]:
        """Return the files that the batch reads which ends at an offset: those that the query wants."""
        info, files = table.get_table_info(), end.lake
        assert files is not None, "it is a batch of the lake"
        _, _, found, matching = self._open(table, files.snapshot_id)
        bucket_ids = set(matching_buckets(info, self.row_filter))
        # Their rows come from Fluss, a little later.
        in_fluss = {
            (end.names.get(bucket.partition_id) if bucket.partition_id is not None else None, bucket.bucket_id)
            for bucket, position in end.positions.items()
            if position.has_rows
        }
        splits = []
        for file in found[files.first : files.stop]:
            name = "$".join(file.partition_values) or None
            is_wanted = file.data.file_path in matching and file.bucket_id in bucket_ids
            if is_wanted and (name, file.bucket_id) not in in_fluss and self._is_chosen(info, file):
                splits.append(Split(None, name, file.bucket_id, 0, 0, "lake", file.data.record_count, (file,)))
        return splits

    def _is_chosen(self, info: TableInfo, file: LakeFile) -> bool:
        from fluss.schema.table import PartitionInfo, PartitionSpec

        if not info.is_partitioned():
            return True
        keys = info.partition_keys
        spec = PartitionSpec(dict(zip(keys, file.partition_values, strict=True)))
        try:
            return bool(
                matching_partitions(
                    info, [PartitionInfo._create(-1, spec, keys)], self.options.partitions, self.row_filter
                )
            )
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            return False

    def _open(self, table: FlussTable, snapshot_id: int) -> tuple[int, LakeRows, list[LakeFile], frozenset[str]]:
        """Return the files of a snapshot, what reads them, and the paths of those that a filter does not rule out."""
        if self._opened is None or self._opened[0] != snapshot_id:
            try:
                everything = lake_rows_of(table, snapshot_id, self.columns)
                lake = lake_rows_of(table, snapshot_id, self.columns, self.row_filter)
            except FlussError as error:
                if error.error_code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                    raise
                raise FlussError(
                    f"The stream has not read all of the lake's snapshot {snapshot_id}, and cannot read it any more: "
                    f"{error.message}; begin with a new checkpoint",
                    error.error_code,
                ) from error
            matching = frozenset(file.data.file_path for file in lake.files())
            self._opened = snapshot_id, lake, everything.files(), matching
        return self._opened


def _positions(plan: UnionPlan, bucket_ids: Sequence[int]) -> dict[TableBucket, BucketPosition]:
    """Return where logs go on behind the lake; buckets that are not in it begin with their rows, if they have keys."""
    in_fluss = set(plan.in_fluss)
    return {
        bucket: BucketPosition(latest, has_rows=latest > 0)
        if bucket in in_fluss
        else BucketPosition(plan.tails.get(bucket, (latest, latest))[0])
        for bucket, latest in plan.latest.items()
        if bucket.bucket_id in bucket_ids
    }
