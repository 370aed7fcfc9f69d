"""The part of a scanner that says what it reads: which buckets, and from where on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.pipeline import ScanPipeline
from fluss.client.scan.subscription import FROM_SNAPSHOT
from fluss.client.scan.table_buckets import (
    PartitionChoices,
    can_scan_rows,
    check_complete_changelogs,
    checked_choices,
    table_buckets,
)
from fluss.errors import ErrorCode, FlussError
from fluss.schema.integers import int32, int64
from fluss.schema.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.schema.partition import PartitionSpec
from fluss.schema.server_made import ServerMade
from fluss.schema.table import TableBucket, TableInfo


class Subscribing(ServerMade, ABC):
    """Base of scanners: subscribes to buckets of one table. May be used from any thread; calls take turns."""

    _cluster: Cluster
    _runtime: Runtime
    _info: TableInfo
    _pipeline: ScanPipeline
    _is_filtered: bool
    # Guards what follows. Whatever may not happen during a bounded read checks and acts under it.
    _lock: threading.RLock
    # Where the last bounded read began, if nothing has happened since.
    _repeat_starts: dict[TableBucket, int] | None

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise if the scanner is closed, or reserved for a bounded read."""

    @abstractmethod
    def _forget_dropped_reader(self) -> None:
        """Unsubscribe what a reader was dropped in the middle of."""

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Read a bucket from an offset on: EARLIEST_OFFSET, LATEST_OFFSET or a number.

        Subscribing again moves to the new offset; records that were fetched but not polled yet are dropped.
        """
        self.subscribe_buckets({bucket_id: start_offset})

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Read several buckets: ``{bucket: offset}``."""
        self._check_partitioned(False, "subscribe_partition() or subscribe_partition_buckets()")
        offsets = {
            self._bucket(None, bucket_id): _start_offset(offset)
            for bucket_id, offset in _mapping("bucket_offsets", bucket_offsets).items()
        }
        self._subscribe(offsets)

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a partition; code 36 if there is no such partition."""
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset})

    def subscribe_partition_buckets(self, partition_bucket_offsets: Mapping[tuple[int, int], int]) -> None:
        """Read several buckets of partitions: ``{(partition id, bucket): offset}``."""
        self._check_partitioned(True, "subscribe() or subscribe_buckets()")
        offsets = {}
        for key, offset in _mapping("partition_bucket_offsets", partition_bucket_offsets).items():
            if not isinstance(key, tuple) or len(key) != 2:
                raise TypeError(f"keys of partition_bucket_offsets must be (partition_id, bucket_id), got {key!r}")
            offsets[self._bucket(int64("partition_id", key[0]), key[1])] = _start_offset(offset)
        self._subscribe(offsets)

    def subscribe_from_snapshot(self, partitions: PartitionChoices = None) -> None:
        """Read the whole table: first the rows it has now, then every change from exactly there.

        This is for every bucket, also of every partition that exists now; ``partitions`` chooses some of them, by name
        or by values of partition columns. The rows come first in each bucket: they are inserts (``+I``) with offset
        and timestamp -1. No change is left out between them and the changes that follow, and none comes twice:
        whoever applies everything in order has the table. A log table is read from its beginning.

        A snapshot is taken when its bucket is first read; nothing happens before the first poll. A server keeps it for
        some minutes while nobody polls. If it is gone before its end, because of that or of a restart, polls raise
        code 66, and it takes another call of this method to begin again.

        Servers before 1.0 have no snapshots. There, all changes come instead, from the first one on; if the oldest
        changes are no longer there, that is an error.
        """
        choices = checked_choices(self._info, partitions)
        self._check_usable()
        if self._is_filtered:
            raise FlussError("A snapshot and its changes cannot be filtered: changes left out would be missed")
        self._begin(self._runtime.run(self._snapshot_offsets(choices)))

    async def _snapshot_offsets(self, choices: list[str | PartitionSpec] | None) -> dict[TableBucket, int]:
        buckets = await table_buckets(self._cluster, self._info, choices)
        if not self._info.has_primary_key():
            return dict.fromkeys(buckets, EARLIEST_OFFSET)
        if await can_scan_rows(self._cluster, self._info.table_path, buckets):
            return dict.fromkeys(buckets, FROM_SNAPSHOT)
        await check_complete_changelogs(self._cluster, self._info.table_path, buckets)
        return dict.fromkeys(buckets, 0)

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket, if it is read at all."""
        self._check_partitioned(False, "unsubscribe_partition()")
        self._unsubscribe(TableBucket(self._info.table_id, int32("bucket_id", bucket_id)))

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition, if it is read at all."""
        self._check_partitioned(True, "unsubscribe()")
        self._unsubscribe(TableBucket.with_partition(self._info.table_id, partition_id, int32("bucket_id", bucket_id)))

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """Return every bucket with the offset of the next record it will give.

        EARLIEST_OFFSET stands for itself until the first records have been read. It also stands for rows of a snapshot
        as long as some are to come.
        """
        self._forget_dropped_reader()
        positions = self._pipeline.subscriptions.positions()
        return [
            (bucket, EARLIEST_OFFSET if position == FROM_SNAPSHOT else position)
            for bucket, position in positions.items()
        ]

    def is_partitioned(self) -> bool:
        """Whether the table has partitions, whose buckets are subscribed to by partition id."""
        return self._info.is_partitioned()

    def _subscribe(self, offsets: dict[TableBucket, int]) -> None:
        self._check_usable()
        partition_ids = {bucket.partition_id for bucket in offsets if bucket.partition_id is not None}
        latest = [bucket for bucket, offset in offsets.items() if offset == LATEST_OFFSET]
        if partition_ids or latest:
            offsets |= self._runtime.run(self._prepare(partition_ids, latest))
        self._begin(offsets)

    def _begin(self, offsets: Mapping[TableBucket, int]) -> None:
        with self._lock:
            self._check_usable()
            self._repeat_starts = None
            self._pipeline.subscriptions.begin(offsets)

    async def _prepare(self, partition_ids: set[int], latest: list[TableBucket]) -> dict[TableBucket, int]:
        """Make sure that partitions exist, and return the latest offsets of buckets."""
        path = self._info.table_path
        unknown = [id_ for id_ in partition_ids if self._cluster.partition_name(id_) is None]
        if unknown:
            await self._cluster.refresh([path], partition_ids=[(path, id_) for id_ in unknown])
        for partition_id in unknown:
            if self._cluster.partition_name(partition_id) is None:
                raise FlussError(f"{path} has no partition with the id {partition_id}", ErrorCode.PARTITION_NOT_EXISTS)
        return await bucket_offsets(self._cluster, path, latest, OffsetSpec.latest())

    def _unsubscribe(self, bucket: TableBucket) -> None:
        with self._lock:
            self._check_usable()
            self._repeat_starts = None
            self._pipeline.subscriptions.end([bucket])

    def _bucket(self, partition_id: int | None, bucket_id: int) -> TableBucket:
        number = int32("bucket_id", bucket_id)
        if not 0 <= number < self._info.num_buckets:
            raise FlussError(
                f"Bucket {number} does not exist: {self._info.table_path} has the buckets 0 to "
                f"{self._info.num_buckets - 1}"
            )
        return TableBucket.new_with_partition(self._info.table_id, partition_id, number)

    def _check_partitioned(self, is_expected: bool, right_method: str) -> None:
        if self.is_partitioned() is is_expected:
            return
        negation = "" if self.is_partitioned() else "not "
        raise FlussError(f"{self._info.table_path} is {negation}a partitioned table; use {right_method} instead")


def _mapping(what: str, offsets: Mapping[Any, int]) -> Mapping[Any, int]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"{what} must be a dict, got {type(offsets).__name__}")
    if not offsets:
        raise FlussError("Bucket offsets are empty; name at least one bucket")
    return offsets


def _start_offset(offset: int) -> int:
    number = int64("start_offset", offset)
    if number < 0 and number not in (EARLIEST_OFFSET, LATEST_OFFSET):
        raise FlussError(
            f"start_offset must not be negative, except for EARLIEST_OFFSET ({EARLIEST_OFFSET}) and LATEST_OFFSET "
            f"({LATEST_OFFSET}), got {number}"
        )
    return number
