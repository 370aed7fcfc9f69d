"""Requests about one table that several parts of the client make: its partitions, its offsets, its row counts.

Everything here runs on the loop of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import ask_leaders
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import (
    dropped_partition,
    partition_info,
    pb_partition_spec,
    pb_table_path,
    raise_failure,
    table_bucket,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import OffsetSpec, OffsetType
from fluss.schema.table import DroppedPartition, PartitionInfo, PartitionSpec, TableBucket, TablePath

# The server id of a request that does not come from a replica.
_NO_FOLLOWER: Final = -1
_OFFSET_TYPES: Final = {OffsetType.EARLIEST: 0, OffsetType.LATEST: 1, OffsetType.TIMESTAMP: 2}
# A question about offsets is about one partition; so many are asked at once.
_QUESTIONS_MAX: Final = 16


async def partition_infos(cluster: Cluster, path: TablePath, spec: PartitionSpec | None = None) -> list[PartitionInfo]:
    """Ask for the partitions of a table, all or those with the given values."""
    request = pb.ListPartitionInfosRequest(table_path=pb_table_path(path))
    if spec is not None:
        request.partial_partition_spec.CopyFrom(pb_partition_spec(spec))
    response = await cluster.request_coordinator(apis.LIST_PARTITION_INFOS, request)
    return [partition_info(message) for message in response.partitions_info]


async def partitions_and_dropped(
    cluster: Cluster, path: TablePath, partition_keys: Sequence[str], first_dropped_id: int
) -> tuple[list[PartitionInfo], list[DroppedPartition]]:
    """Ask for the partitions of a table, and for those that were dropped, from an id on, in one answer.

    Servers of Apache Fluss do not tell which were dropped.
    """
    request = pb.ListPartitionInfosRequest(table_path=pb_table_path(path), dropped_from_id=first_dropped_id)
    response = await cluster.request_coordinator(apis.LIST_PARTITION_INFOS, request)
    existing = [partition_info(message) for message in response.partitions_info]
    dropped = [dropped_partition(message, partition_keys) for message in response.dropped_partitions]
    return existing, dropped


async def bucket_offsets(
    cluster: Cluster, path: TablePath, buckets: Iterable[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Look up an offset in each bucket of a table, also across partitions.

    A partition that has vanished is a FlussError that names its id.
    """
    by_partition: dict[int | None, list[TableBucket]] = {}
    for bucket in buckets:
        by_partition.setdefault(bucket.partition_id, []).append(bucket)
    limit = asyncio.Semaphore(_QUESTIONS_MAX)

    async def ask(partition_id: int | None, members: list[TableBucket]) -> dict[TableBucket, int]:
        async with limit:
            try:
                return await ask_leaders(cluster, path, members, partial(leader_offsets, cluster, spec=spec))
            except FlussError as error:
                if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                    raise
                raise FlussError(f"Unknown partition_id {partition_id} of {path}; it may have been dropped") from error

    answers = await asyncio.gather(*(ask(*group) for group in by_partition.items()))
    return {bucket: offset for answer in answers for bucket, offset in answer.items()}


async def leader_offsets(
    cluster: Cluster, leader_id: int, buckets: list[TableBucket], *, spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Ask one leader for offsets of its buckets, which all belong to one table and one partition."""
    first = buckets[0]
    request = pb.ListOffsetsRequest(
        follower_server_id=_NO_FOLLOWER,
        offset_type=_OFFSET_TYPES[spec.offset_type],
        table_id=first.table_id,
        partition_id=first.partition_id,
        bucket_id=[bucket.bucket_id for bucket in buckets],
        startTimestamp=spec.timestamp_ms,
    )
    response = await cluster.request(leader_id, apis.LIST_OFFSETS, request)
    offsets = {}
    for answer in response.buckets_resp:
        raise_failure(answer)
        bucket = TableBucket.new_with_partition(first.table_id, first.partition_id, answer.bucket_id)
        offsets[bucket] = answer.offset
    return offsets


async def leader_row_counts(cluster: Cluster, leader_id: int, buckets: list[TableBucket]) -> dict[TableBucket, int]:
    """Ask one leader how many rows there are in its buckets, which all belong to one table."""
    table_id = buckets[0].table_id
    request = pb.GetTableStatsRequest(
        table_id=table_id,
        buckets_req=[
            pb.PbTableStatsReqForBucket(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id)
            for bucket in buckets
        ],
    )
    response = await cluster.request(leader_id, apis.GET_TABLE_STATS, request)
    counts = {}
    for answer in response.buckets_resp:
        raise_failure(answer)
        counts[table_bucket(table_id, answer)] = answer.row_count
    return counts
