"""The buckets of a whole table: of all partitions there are now, or of those that were chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import find_unknown_leaders, retries_until
from fluss.client.kernel.missing_partitions import shown_partitions
from fluss.client.kernel.table_calls import bucket_offsets, partitions_of
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import PartitionInfo, PartitionSpec, TableBucket, TableInfo, TablePath

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter

# One partition by name, or those with some values of the partition columns.
PartitionChoice: TypeAlias = str | PartitionSpec | Mapping[str, str]
# None stands for all.
PartitionChoices: TypeAlias = PartitionChoice | Iterable[PartitionChoice] | None


def check_bucket_id(info: TableInfo, bucket_id: int) -> None:
    """Refuse the number of a bucket that a table does not have."""
    if not 0 <= bucket_id < info.num_buckets:
        raise FlussError(
            f"Bucket {bucket_id} does not exist: {info.table_path} has the buckets 0 to {info.num_buckets - 1}"
        )


def checked_choices(info: TableInfo, partitions: PartitionChoices) -> list[str | PartitionSpec] | None:
    """Return choices in their plain forms; TypeError, code 37 for a table without partitions, or 43 for wrong keys."""
    if partitions is None:
        return None
    if not info.is_partitioned():
        raise FlussError(
            f"{info.table_path} has no partitions to choose from; leave partitions out",
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION,
        )
    if isinstance(partitions, str | PartitionSpec | Mapping):
        partitions = [partitions]
    if not isinstance(partitions, Iterable):
        raise TypeError(f"partitions must be names or specs, got {type(partitions).__name__}")
    choices = [choice if isinstance(choice, str) else PartitionSpec.of(choice) for choice in partitions]
    for choice in choices:
        unknown = [] if isinstance(choice, str) else [key for key in choice.spec_map if key not in info.partition_keys]
        if unknown:
            raise FlussError(
                f"{info.table_path} is partitioned by {info.partition_keys}, not by {unknown}",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
    return choices


async def table_buckets(
    cluster: Cluster,
    info: TableInfo,
    choices: Collection[str | PartitionSpec] | None,
    row_filter: RowFilter | None = None,
) -> list[TableBucket]:
    """Return every bucket, partition by partition; code 36 for a choice that fits none. On the loop of the cluster.

    Partitions whose names say that a filter keeps none of their rows are left out.
    """
    partition_ids: list[int | None] = [None]
    if info.is_partitioned():
        existing = await partitions_of(cluster, info)
        partition_ids = [
            partition.partition_id
            for partition in chosen_partitions(info, existing, choices)
            if row_filter is None or row_filter.may_match(partition.get_partition_spec().spec_map)
        ]
    return [
        TableBucket.new_with_partition(info.table_id, partition_id, bucket_id)
        for partition_id in partition_ids
        for bucket_id in range(info.num_buckets)
    ]


def chosen_partitions(
    info: TableInfo, existing: Collection[PartitionInfo], choices: Collection[str | PartitionSpec] | None
) -> list[PartitionInfo]:
    """Return the partitions that choices fit, None fitting all of them; code 36 for a choice that fits none."""
    if choices is None:
        return list(existing)
    chosen: set[int] = set()
    for choice in choices:
        fitting = {partition.partition_id for partition in existing if _fits(partition, choice)}
        if not fitting:
            names = shown_partitions([partition.partition_name for partition in existing])
            raise FlussError(f"{info.table_path} has no partition {choice!r}. {names}", ErrorCode.PARTITION_NOT_EXISTS)
        chosen |= fitting
    return [partition for partition in existing if partition.partition_id in chosen]


def _fits(partition: PartitionInfo, choice: str | PartitionSpec) -> bool:
    if isinstance(choice, str):
        return partition.partition_name == choice
    return choice.is_contained_in(partition.get_partition_spec())


async def can_scan_rows(cluster: Cluster, path: TablePath, buckets: Collection[TableBucket]) -> bool:
    """Whether the leaders of these buckets can return their current rows. Servers before 1.0 cannot.

    For a leader that is unknown or away all other servers answer, whose versions are hardly ever different. While none
    of them can be asked either this waits, at most ``request-timeout``.
    """
    asking = retries_until(cluster.config.request_timeout_ms / 1000)
    while True:
        try:
            await find_unknown_leaders(cluster, path, buckets)
            leader_ids = {cluster.leader_of(bucket) for bucket in buckets}
            answers = await _offers(cluster, leader_ids)
            if None in answers:
                answers += await _offers(cluster, {node.id for node in cluster.tablet_servers} - leader_ids)
            known = [answer for answer in answers if answer is not None]
            if known or not buckets:
                return all(known)
            error = FlussError(f"No server of {path} can be asked", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)
        except FlussError as failure:
            if not failure.is_retriable:
                raise
            error = failure
        if not await anext(asking, False):
            raise error


async def incomplete_changelogs(
    cluster: Cluster, path: TablePath, buckets: Collection[TableBucket]
) -> dict[TableBucket, int]:
    """Return the buckets whose changelogs no longer begin with the first change, and where they begin."""
    found = await bucket_offsets(cluster, path, buckets, OffsetSpec.earliest())
    return {bucket: offset for bucket, offset in found.items() if offset > 0}


async def _offers(cluster: Cluster, server_ids: Collection[int | None]) -> list[bool | None]:
    """Return which of these servers can return rows, None for one that is unknown or cannot be asked."""

    async def offers(server_id: int | None) -> bool | None:
        if server_id is None:
            return None
        try:
            return await cluster.offers(server_id, apis.SCAN_KV)
        except FlussError as error:
            if not error.is_retriable:
                raise
            return None

    return list(await asyncio.gather(*map(offers, server_ids)))
