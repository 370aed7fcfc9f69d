"""Where the logs of buckets begin and end, asked of their leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from fluss.client.admin_offsets import leader_offsets
from fluss.client.cluster import Cluster
from fluss.client.leader_calls import ask_leaders
from fluss.errors import ErrorCode, FlussError
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket, TablePath

# A question is about one partition; so many are asked at once.
_QUESTIONS_MAX: Final = 16


async def bucket_offsets(
    cluster: Cluster, path: TablePath, buckets: Iterable[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Look up an offset in each bucket of a table, also across partitions. Runs on the loop of the cluster.

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
