"""Questions about buckets that only their leaders can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from fluss.client.cluster import Cluster
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket, TablePath

T = TypeVar("T")

# Leaders may be missing or move while they are asked; then the metadata is read again after these pauses.
_PAUSES_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8)


async def ask_leaders(
    cluster: Cluster,
    path: TablePath,
    buckets: Collection[TableBucket],
    ask: Callable[[int, list[TableBucket]], Awaitable[Mapping[TableBucket, T]]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[TableBucket, T]:
    """Ask every leader about its buckets, all at once, and put the answers together; the first error wins.

    Runs on the loop of the cluster. Buckets whose leader is unknown or has moved are looked up again a few times.
    """
    pauses_s = iter(_PAUSES_S)
    while True:
        error = _missing_leader(cluster, path, buckets)
        if error is None:
            try:
                by_leader = _by_leader(cluster, buckets)
                answers = await asyncio.gather(*(ask(leader_id, group) for leader_id, group in by_leader.items()))
                return _put_together(path, buckets, answers)
            except FlussError as failure:
                if not failure.stale_metadata:
                    raise
                error = failure
        pause_s = next(pauses_s, None)
        if pause_s is None:
            raise error
        await sleep(pause_s)
        partition_ids = {(path, bucket.partition_id) for bucket in buckets if bucket.partition_id is not None}
        await cluster.refresh([path], partition_ids=partition_ids)


def _put_together(
    path: TablePath, buckets: Collection[TableBucket], answers: Iterable[Mapping[TableBucket, T]]
) -> dict[TableBucket, T]:
    results = {bucket: value for answer in answers for bucket, value in answer.items()}
    missing = [bucket for bucket in buckets if bucket not in results]
    if missing:
        raise FlussError(f"the server did not answer about {missing[0]} of {path}", ErrorCode.UNKNOWN_SERVER_ERROR)
    return results


def _missing_leader(cluster: Cluster, path: TablePath, buckets: Collection[TableBucket]) -> FlussError | None:
    for bucket in buckets:
        if cluster.leader_of(bucket) is None:
            return FlussError(f"No leader found for table bucket {bucket} of {path}; it may be starting, try again")
    return None


def _by_leader(cluster: Cluster, buckets: Collection[TableBucket]) -> dict[int, list[TableBucket]]:
    by_leader: dict[int, list[TableBucket]] = {}
    for bucket in buckets:
        leader_id = cluster.leader_of(bucket)
        assert leader_id is not None, "looked for right before"
        by_leader.setdefault(leader_id, []).append(bucket)
    return by_leader
