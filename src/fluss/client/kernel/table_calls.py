"""Requests about one table that several parts of the client make: its partitions, its offsets, its row counts.

Everything here runs on the loop of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import ask_leaders, check_same_table
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import (
    dropped_partition,
    lake_snapshot,
    partition_info,
    pb_partition_spec,
    pb_table_path,
    raise_failure,
    table_bucket,
    table_info,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import LakeSnapshot, OffsetSpec, OffsetType
from fluss.schema.table import DroppedPartition, PartitionInfo, PartitionSpec, TableBucket, TableInfo, TablePath

# The lake has nothing of a table: it has no lake, or nothing was written to it yet.
_NO_LAKE_CODES: Final = frozenset({ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST})
# The server id of a request that does not come from a replica.
_NO_FOLLOWER: Final = -1
_OFFSET_TYPES: Final = {OffsetType.EARLIEST: 0, OffsetType.LATEST: 1, OffsetType.TIMESTAMP: 2}
# So many questions about offsets are asked at once, each about so many buckets at most. A server answers one in a few
# milliseconds, in which it answers no others; if it has to open the logs first, which takes a hundred times as long,
# all that it is asked at once still has to be answered in time.
_REQUESTS_MAX: Final = 4
_BUCKETS_PER_REQUEST: Final = 512
# The same where a question is about one partition.
_PARTITIONS_MAX: Final = 16

# Buckets by partition.
_BucketGroups: TypeAlias = list[tuple[int | None, list[int]]]


async def partition_infos(cluster: Cluster, path: TablePath, spec: PartitionSpec | None = None) -> list[PartitionInfo]:
    """Ask for the partitions of a table, all or those with the given values."""
    request = pb.ListPartitionInfosRequest(table_path=pb_table_path(path))
    if spec is not None:
        request.partial_partition_spec.CopyFrom(pb_partition_spec(spec))
    response = await cluster.request_coordinator(apis.LIST_PARTITION_INFOS, request)
    return [partition_info(message) for message in response.partitions_info]


async def partitions_of(cluster: Cluster, info: TableInfo) -> list[PartitionInfo]:
    """Ask for the partitions of a table; code 7 if it is gone, or another one has its name by now.

    The answer is by name, so it is that of the table only if the table is still there behind it.
    """
    path, table_id = info.table_path, info.table_id
    try:
        found = await partition_infos(cluster, path)
    except FlussError as error:
        if error.error_code == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION:
            await check_same_table(cluster, path, table_id)
        raise
    await check_same_table(cluster, path, table_id)
    return found


async def is_gone(cluster: Cluster, info: TableInfo) -> bool:
    """Whether the coordinator says that a table does not exist any more, or that another one has its name."""
    request = pb.GetTableInfoRequest(table_path=pb_table_path(info.table_path))
    try:
        response = await cluster.request_coordinator(apis.GET_TABLE_INFO, request)
    except FlussError as error:
        return error.error_code == ErrorCode.TABLE_NOT_EXIST
    return (response.table_id, response.created_time) != (info.table_id, info.created_time)


async def readable_lake_snapshot(cluster: Cluster, path: TablePath) -> LakeSnapshot | None:
    """Ask which snapshot of its lake a table may be read from, and how far that goes; None if there is none yet."""
    request = pb.GetLakeSnapshotRequest(table_path=pb_table_path(path), readable=True)
    try:
        return lake_snapshot(await cluster.request_coordinator(apis.GET_LAKE_SNAPSHOT, request))
    except FlussError as error:
        if error.error_code not in _NO_LAKE_CODES:
            raise
        return None


async def fresh_table_info(cluster: Cluster, path: TablePath) -> TableInfo:
    """Ask the coordinator to describe a table; the answer has the properties of its lake's catalog, too."""
    request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
    response = await cluster.request_coordinator(apis.GET_TABLE_INFO, request)
    return table_info(path, response)


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
    cluster: Cluster, path: TablePath, buckets: Collection[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Look up an offset in each bucket of a table, also across partitions, with few requests.

    A partition that has vanished is a FlussError that names its id.
    """
    try:
        return await ask_leaders(cluster, path, buckets, partial(leader_offsets, cluster, spec=spec))
    except FlussError as error:
        if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
            raise
        await check_same_table(cluster, path, next(iter(buckets)).table_id)
        missing = await _missing_partition(cluster, path, buckets)
        if missing is None:
            raise
        raise FlussError(f"Unknown partition_id {missing} of {path}; it may have been dropped") from error


async def _missing_partition(cluster: Cluster, path: TablePath, buckets: Iterable[TableBucket]) -> int | None:
    """Return the id of a partition that has some of these buckets and does not exist."""
    asked = {bucket.partition_id for bucket in buckets if bucket.partition_id is not None}
    if len(asked) == 1:
        return asked.pop()
    existing = {partition.partition_id for partition in await partition_infos(cluster, path)}
    return min(asked - existing, default=None)


async def leader_offsets(
    cluster: Cluster, leader_id: int, buckets: list[TableBucket], *, spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Ask one leader for offsets of its buckets, which all belong to one table."""
    table_id = buckets[0].table_id
    by_partition: dict[int | None, list[int]] = {}
    for bucket in buckets:
        by_partition.setdefault(bucket.partition_id, []).append(bucket.bucket_id)
    limit, limit_of_partitions = asyncio.Semaphore(_REQUESTS_MAX), asyncio.Semaphore(_PARTITIONS_MAX)
    offsets: dict[TableBucket, int] = {}

    async def ask(groups: _BucketGroups, limit: asyncio.Semaphore) -> _BucketGroups:
        """Ask about buckets, and return those about which the server said nothing."""
        async with limit:
            response = await cluster.request(leader_id, apis.LIST_OFFSETS, _offsets_request(table_id, groups, spec))
        offsets.update(_offsets_answer(table_id, groups, response))
        return groups[1 + len(response.more_partitions) :]

    unanswered = await asyncio.gather(*(ask(groups, limit) for groups in _few_buckets(by_partition)))
    # Servers of Apache Fluss answer about one partition at a time.
    left = [group for groups in unanswered for group in groups]
    await asyncio.gather(*(ask([group], limit_of_partitions) for group in left))
    return offsets


def _few_buckets(by_partition: Mapping[int | None, list[int]]) -> Iterator[_BucketGroups]:
    """Put partitions together for requests that do not keep a server from answering others."""
    groups: _BucketGroups = []
    bucket_count = 0
    for group in by_partition.items():
        if groups and bucket_count + len(group[1]) > _BUCKETS_PER_REQUEST:
            yield groups
            groups, bucket_count = [], 0
        groups.append(group)
        bucket_count += len(group[1])
    yield groups


def _offsets_request(table_id: int, groups: _BucketGroups, spec: OffsetSpec) -> pb.ListOffsetsRequest:
    (partition_id, bucket_ids), *further = groups
    return pb.ListOffsetsRequest(
        follower_server_id=_NO_FOLLOWER,
        offset_type=_OFFSET_TYPES[spec.offset_type],
        table_id=table_id,
        partition_id=partition_id,
        bucket_id=bucket_ids,
        startTimestamp=spec.timestamp_ms,
        more_partitions=[pb.PbListOffsetsReqForPartition(partition_id=id_, bucket_id=ids) for id_, ids in further],
    )


def _offsets_answer(
    table_id: int, groups: _BucketGroups, response: pb.ListOffsetsResponse
) -> Iterator[tuple[TableBucket, int]]:
    """Yield the offsets of an answer; the first bucket for which there is none is a FlussError."""
    first_id = groups[0][0]
    for answer in response.buckets_resp:
        raise_failure(answer)
        yield TableBucket.new_with_partition(table_id, first_id, answer.bucket_id), answer.offset
    for (partition_id, _), partition in zip(groups[1:], response.more_partitions, strict=False):
        for failure in partition.failures:
            raise_failure(failure)
        for bucket_id, offset in zip(partition.bucket_id, partition.offset, strict=False):
            yield TableBucket.new_with_partition(table_id, partition_id, bucket_id), offset


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
