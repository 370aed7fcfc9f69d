"""What plans for reading a table are made of: its partitions, where its logs begin and end, how many rows it has.

All functions block the calling thread, and ask for many buckets with few requests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from fluss.client.admin.admin import FlussAdmin
from fluss.client.admin.tiering_calls import TieringCalls
from fluss.client.fluss_table import FlussTable, TableContext, context_of
from fluss.client.kernel import table_calls
from fluss.client.kernel.leaders import ask_leaders, find_unknown_leaders
from fluss.client.kernel.table_calls import bucket_offsets, leader_row_counts, partitions_and_dropped
from fluss.errors import ErrorCode, FlussError
from fluss.schema.offsets import LakeSnapshot, OffsetSpec
from fluss.schema.table import DroppedPartition, PartitionInfo, TableBucket
from fluss.schema.table_options import LAKE_ENABLED

# The lake has nothing of a table: it has no lake, or nothing was written to it yet.
_NO_LAKE_CODES: Final = frozenset({ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST})

logger = logging.getLogger(__name__)


def partitions_of(table: FlussTable) -> list[PartitionInfo]:
    """Return the partitions that a partitioned table has now; code 7 if it is gone, or another one has its name."""
    context = context_of(table)
    return context.runtime.run(table_calls.partitions_of(context.cluster, context.info))


def partitions_and_dropped_of(
    table: FlussTable, first_dropped_id: int
) -> tuple[list[PartitionInfo], list[DroppedPartition]]:
    """Return the partitions that a table has now, and those that were dropped, as far as the server tells.

    The ids of the dropped ones are ``first_dropped_id`` or greater. Servers of Apache Fluss tell of none.
    """
    context = context_of(table)
    keys = context.info.partition_keys
    return context.runtime.run(partitions_and_dropped(context.cluster, table.table_path, keys, first_dropped_id))


def named_buckets_of(table: FlussTable) -> dict[TableBucket, str | None]:
    """Return all buckets that a table has now, partition by partition, with the name of theirs."""
    info = table.get_table_info()
    names: dict[int | None, str | None] = {None: None}
    if info.is_partitioned():
        names = {partition.partition_id: partition.partition_name for partition in partitions_of(table)}
    return {
        TableBucket.new_with_partition(info.table_id, partition_id, bucket_id): name
        for partition_id, name in names.items()
        for bucket_id in range(info.num_buckets)
    }


def offsets_of(table: FlussTable, buckets: Collection[TableBucket], spec: OffsetSpec) -> dict[TableBucket, int]:
    """Look up an offset in each of these buckets, in their order.

    Code 36 if a partition has been dropped meanwhile, 38 for a time to come.
    """
    context = context_of(table)
    return context.runtime.run(_offsets_of(context, buckets, spec))


async def _offsets_of(
    context: TableContext, buckets: Collection[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    cluster, path = context.cluster, context.info.table_path
    await find_unknown_leaders(cluster, path, buckets)
    try:
        found = await bucket_offsets(cluster, path, buckets, spec)
    except FlussError as error:
        cause = error.__cause__
        if isinstance(cause, FlussError) and cause.error_code == ErrorCode.PARTITION_NOT_EXISTS:
            raise FlussError(error.message, cause.error_code) from cause
        raise
    return {bucket: found[bucket] for bucket in buckets}


def row_counts_of(table: FlussTable, buckets: Collection[TableBucket]) -> dict[TableBucket, int]:
    """Return how many rows there are in each of these buckets; nothing if a server does not count them."""
    context = context_of(table)
    asking = ask_leaders(context.cluster, table.table_path, buckets, partial(leader_row_counts, context.cluster))
    try:
        return context.runtime.run(asking)
    except FlussError as error:
        logger.info("the rows of %s are not counted: %s", table.table_path, error.message)
        return {}


def lake_snapshot_of(table: FlussTable) -> LakeSnapshot | None:
    """Return how far the lake has a table, None if it has nothing of it."""
    if table.get_table_info().properties.get(LAKE_ENABLED.key, "").lower() != "true":
        return None
    try:
        return context_of(table).runtime.run(admin_of(table).get_latest_lake_snapshot(table.table_path))
    except FlussError as error:
        if error.error_code not in _NO_LAKE_CODES:
            raise
        return None


def tiering_calls_of(admin: FlussAdmin) -> TieringCalls:
    """Return the calls of a tiering service to the cluster of an admin."""
    return TieringCalls(admin._cluster, admin._runtime)


def admin_of(table: FlussTable) -> FlussAdmin:
    """Return an admin of the cluster that a table belongs to."""
    context = context_of(table)
    return FlussAdmin._create(context.cluster, context.runtime)


def reopened(table: FlussTable) -> FlussTable:
    """Return a table as the coordinator knows it now, with the properties of its lake; code 7 if it is gone.

    It is another one, with another table id, if it was dropped and created again.
    """
    context = context_of(table)
    info = context.runtime.run(admin_of(table).get_table_info(table.table_path))
    return FlussTable._create(replace(context, info=info))


def writer_batch_bytes(table: FlussTable) -> int:
    """Return how large the connection of a table makes its batches: ``writer.batch-size``."""
    return context_of(table).cluster.config.writer_batch_size
