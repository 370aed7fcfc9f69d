"""Where scanners begin: offsets as users give them, and those of all buckets of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT
from fluss.client.scan.table_buckets import can_scan_rows, incomplete_changelogs, table_buckets
from fluss.errors import FlussError
from fluss.integers import int64
from fluss.schema.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.schema.table import PartitionSpec, TableBucket, TableInfo


def offset_mapping(what: str, offsets: Mapping[Any, int]) -> Mapping[Any, int]:
    """Check that offsets are a dict with something in it."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"{what} must be a dict, got {type(offsets).__name__}")
    if not offsets:
        raise FlussError("Bucket offsets are empty; name at least one bucket")
    return offsets


def start_offset(offset: int) -> int:
    """Check an offset to begin at."""
    number = int64("start_offset", offset)
    if number < 0 and number not in (EARLIEST_OFFSET, LATEST_OFFSET):
        raise FlussError(
            f"start_offset must not be negative, except for EARLIEST_OFFSET ({EARLIEST_OFFSET}) and LATEST_OFFSET "
            f"({LATEST_OFFSET}), got {number}"
        )
    return number


async def whole_table_offsets(
    cluster: Cluster, info: TableInfo, choices: Collection[str | PartitionSpec] | None, offset: int
) -> dict[TableBucket, int]:
    """Return every bucket of a table, or of chosen partitions, with an offset that is good for all of them."""
    buckets = await table_buckets(cluster, info, choices)
    if offset == LATEST_OFFSET:
        return await bucket_offsets(cluster, info.table_path, buckets, OffsetSpec.latest())
    return dict.fromkeys(buckets, offset)


async def snapshot_offsets(
    cluster: Cluster, info: TableInfo, choices: Collection[str | PartitionSpec] | None
) -> dict[TableBucket, int]:
    """Return every bucket of a table, or of chosen partitions, at the place from which all of its rows are read."""
    buckets = await table_buckets(cluster, info, choices)
    if not info.has_primary_key():
        return dict.fromkeys(buckets, EARLIEST_OFFSET)
    if await can_scan_rows(cluster, info.table_path, buckets):
        return dict.fromkeys(buckets, FROM_SNAPSHOT)
    incomplete = await incomplete_changelogs(cluster, info.table_path, buckets)
    return dict.fromkeys(buckets, 0) | dict.fromkeys(incomplete, FROM_SNAPSHOT)


class FollowedPartitions:
    """The partitions of a table that is read as a whole, and where new ones begin."""

    def __init__(self, info: TableInfo, offsets: Mapping[TableBucket, int], new_start: int) -> None:
        self._info = info
        self._ids = {bucket.partition_id for bucket in offsets}
        self._new_start = new_start

    def update(
        self, existing: Collection[int], subscribed: Collection[TableBucket]
    ) -> tuple[dict[TableBucket, int], list[TableBucket]]:
        """Return the buckets of new partitions with their offsets, and those of partitions that are gone."""
        starts = {
            TableBucket.new_with_partition(self._info.table_id, partition_id, bucket_id): self._new_start
            for partition_id in sorted(set(existing) - self._ids)
            for bucket_id in range(self._info.num_buckets)
        }
        gone = [each for each in subscribed if each.partition_id in self._ids and each.partition_id not in existing]
        self._ids = set(existing)
        return starts, gone
