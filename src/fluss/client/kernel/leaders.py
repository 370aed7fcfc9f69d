"""Which servers lead the buckets of a table: whatever is asked of a bucket is asked of its leader.

``Cluster.leader_of`` says what is known. The rest of this module finds out what is not, each in its way:

- ``ask_leaders`` for a question to some buckets, which is asked again when leaders move.
- ``TableLeaders`` for writers and lookups, which know partitions by name and keep coming back.
- ``find_leaders`` for scanners, which know partitions by id and want to hear about each bucket that has no leader.

Everything here runs on the loop of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from fluss.client.kernel.cluster import Cluster
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import LEADER_CALLS, METADATA
from fluss.schema.table import TableBucket, TableInfo, TablePath

T = TypeVar("T")

# How requests and answers name a bucket of their table: by the id of its partition, or None, and its own id.
BucketKey: TypeAlias = tuple[int | None, int]

# A bucket that has been without a leader for so long is worth a warning.
LEADERLESS_S_MAX: Final = 5.0
# Partitions that are asked for one by one at the same time, after a question for all of them has failed.
_QUESTIONS_MAX: Final = 16
# Partitions whose leaders are asked for with one request, and so many requests at the same time: each takes a server
# milliseconds, in which it answers no other client.
_PARTITIONS_PER_REQUEST: Final = 500
_METADATA_REQUESTS_MAX: Final = 4
# What a table is to be got anew for, by readers.
_READING: Final = "read it"

logger = logging.getLogger(__name__)


async def ask_leaders(
    cluster: Cluster,
    path: TablePath,
    buckets: Collection[TableBucket],
    ask: Callable[[int, list[TableBucket]], Awaitable[Mapping[TableBucket, T]]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[TableBucket, T]:
    """Ask every leader about its buckets, all at once, and put the answers together; the first error wins.

    Leaders that are unknown, away or have moved are looked up again and waited for, at most ``request-timeout``: those
    of a new table are still being chosen, and after a crash a cluster takes a while to choose others.
    """
    wait = _LeaderWait(cluster, path, sleep)
    while True:
        by_leader: dict[int | None, list[TableBucket]] = {}
        for bucket in buckets:
            by_leader.setdefault(cluster.leader_of(bucket), []).append(bucket)
        leaderless = by_leader.pop(None, [])
        if leaderless:
            error = _no_leader(cluster, path, leaderless[0])
        else:
            try:
                answers = await asyncio.gather(
                    *(ask(leader, group) for leader, group in by_leader.items() if leader is not None)
                )
                return _put_together(path, buckets, answers)
            except FlussError as failure:
                if not failure.stale_metadata:
                    raise
                error = failure
        await wait.pause(error)
        await _refresh(cluster, path, buckets)
        _check_possible(cluster, path, buckets)


class _LeaderWait:
    """The pauses of a question that leaders could not answer yet, and a warning when it takes long."""

    def __init__(self, cluster: Cluster, path: TablePath, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._path = path
        self._sleep = sleep
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._began_s = time.monotonic()
        self._pauses_s = LEADER_CALLS.pauses_s()
        self._is_told = False

    async def pause(self, error: FlussError) -> None:
        """Wait before the next attempt; raises the error of the last one when the time is over."""
        waited_s = time.monotonic() - self._began_s
        if waited_s >= self._timeout_s:
            raise error
        if waited_s >= LEADERLESS_S_MAX and not self._is_told:
            self._is_told = True
            logger.warning(
                "a question about %s has waited for %.0f of %g s: %s",
                self._path,
                waited_s,
                self._timeout_s,
                error.message,
            )
        await self._sleep(min(next(self._pauses_s), max(self._timeout_s - waited_s, 0.0)))


def _check_possible(cluster: Cluster, path: TablePath, buckets: Iterable[TableBucket]) -> None:
    """Refuse buckets that will never have a leader: of a table that has been created again, or with a wrong number."""
    info = cluster.table_info(path)
    if info is None:
        return
    for bucket in buckets:
        if bucket.table_id != info.table_id:
            raise _created_again(path, _READING)
        if bucket.bucket_id >= info.num_buckets:
            raise FlussError(
                f"No leader found for table bucket {bucket}: {path} has the buckets 0 to {info.num_buckets - 1}"
            )


def _put_together(
    path: TablePath, buckets: Collection[TableBucket], answers: Iterable[Mapping[TableBucket, T]]
) -> dict[TableBucket, T]:
    results = {bucket: value for answer in answers for bucket, value in answer.items()}
    missing = [bucket for bucket in buckets if bucket not in results]
    if missing:
        raise FlussError(f"the server did not answer about {missing[0]} of {path}", ErrorCode.UNKNOWN_SERVER_ERROR)
    return results


async def _refresh(cluster: Cluster, path: TablePath, buckets: Collection[TableBucket]) -> None:
    """Read the metadata of a table, and of the partitions of these buckets, with few requests."""
    ids = sorted({bucket.partition_id for bucket in buckets if bucket.partition_id is not None})
    begins = range(0, len(ids), _PARTITIONS_PER_REQUEST) if ids else (0,)
    limit = asyncio.Semaphore(_METADATA_REQUESTS_MAX)

    async def refresh(wanted: Sequence[int]) -> None:
        async with limit:
            await cluster.refresh([path], partition_ids=[(path, id_) for id_ in wanted])

    await asyncio.gather(*(refresh(ids[begin : begin + _PARTITIONS_PER_REQUEST]) for begin in begins))


async def find_unknown_leaders(cluster: Cluster, path: TablePath, buckets: Collection[TableBucket]) -> None:
    """Have the cluster know the leaders of many buckets, as far as they have any: one look before they are asked."""
    unknown = [bucket for bucket in buckets if cluster.leader_of(bucket) is None]
    if unknown:
        await _refresh(cluster, path, unknown)


async def retries_until(timeout_s: float) -> AsyncIterator[bool]:
    """Yield True for each further try after a pause, as long as the time lasts."""
    deadline_s = time.monotonic() + timeout_s
    for pause_s in METADATA.pauses_s():
        if time.monotonic() >= deadline_s:
            return
        await asyncio.sleep(pause_s)
        yield True


def _no_leader(cluster: Cluster, path: TablePath, bucket: TableBucket) -> FlussError:
    return FlussError(
        f"No leader found for table bucket {bucket} of {path}: {_why_leaderless(cluster, bucket)}",
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    )


def _why_leaderless(cluster: Cluster, bucket: TableBucket | None) -> str:
    named_id = None if bucket is None else cluster.named_leader_of(bucket)
    if named_id is None:
        return "the cluster names none, its replicas may be starting or away"
    return f"it would be tablet server {named_id}, which is not among the servers of the cluster"


def _created_again(path: TablePath, purpose: str) -> FlussError:
    return FlussError(
        f"Table '{path}' was dropped and created again; get it anew to {purpose}", ErrorCode.TABLE_NOT_EXIST
    )


async def check_same_table(cluster: Cluster, path: TablePath, table_id: int, *, purpose: str = _READING) -> None:
    """Ask the coordinator for a table by its name; code 7 if there is none, or if another one has the name by now.

    Partitions are asked for by the name of their table. That one is missing, or that there are none, says nothing about
    the table that a caller has unless it is still the one with the name. While the coordinator cannot be asked the
    table counts as the same.
    """
    request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
    try:
        response = await cluster.request_coordinator(apis.GET_TABLE_INFO, request)
    except FlussError as error:
        if error.error_code == ErrorCode.TABLE_NOT_EXIST:
            raise
        logger.debug("whether %s is still the same table is not known: %s", path, error.message)
        return
    if response.table_id != table_id:
        raise _created_again(path, purpose)


async def find_leaders(
    cluster: Cluster, info: TableInfo, buckets: Collection[TableBucket]
) -> dict[TableBucket, FlussError]:
    """Have the cluster know the leaders of some buckets of a table; return what is wrong with those that have none."""
    path = info.table_path
    partition_ids = {bucket.partition_id for bucket in buckets if bucket.partition_id is not None}
    found = await _refresh_partitions(cluster, path, partition_ids)
    if any(error.error_code == ErrorCode.PARTITION_NOT_EXISTS for error in found.values()):
        try:
            await check_same_table(cluster, path, info.table_id)
        except FlussError as reason:
            found[None] = reason
    errors = {}
    for bucket in buckets:
        error = found.get(None) or found.get(bucket.partition_id)
        if error is None and cluster.leader_of(bucket) is None:
            error = _leaderless_error(cluster, info, bucket)
        if error is not None:
            errors[bucket] = error
    return errors


async def _refresh_partitions(
    cluster: Cluster, path: TablePath, partition_ids: Collection[int]
) -> dict[int | None, FlussError]:
    """Read metadata; return what went wrong by partition, under None if it concerns all of them."""
    try:
        await cluster.refresh([path], partition_ids=[(path, partition_id) for partition_id in partition_ids])
    except FlussError as error:
        if error.error_code != ErrorCode.PARTITION_NOT_EXISTS or not partition_ids:
            return {None: error}
        if len(partition_ids) == 1:
            return dict.fromkeys(partition_ids, error)
    else:
        return {}
    # One missing partition spoils the question for all of them, so each is asked for alone.
    found: dict[int | None, FlussError] = {}
    limit = asyncio.Semaphore(_QUESTIONS_MAX)

    async def refresh(partition_id: int) -> None:
        async with limit:
            found.update(await _refresh_partitions(cluster, path, [partition_id]))

    await asyncio.gather(*map(refresh, partition_ids))
    return found


def _leaderless_error(cluster: Cluster, info: TableInfo, bucket: TableBucket) -> FlussError:
    known = cluster.table_info(info.table_path)
    if known is not None and known.table_id != info.table_id:
        return _created_again(info.table_path, _READING)
    return _no_leader(cluster, info.table_path, bucket)


class TableLeaders:
    """The leaders of the buckets of one table, or of one of its partitions, which is known by name.

    A partition that does not exist, or a table that has been created again, is found out anew each time: it may be
    created any moment.
    """

    __slots__ = ("_cluster", "_info", "_purpose", "bucket_keys", "buckets", "partition_name")

    def __init__(self, cluster: Cluster, info: TableInfo, partition_name: str | None, *, purpose: str) -> None:
        """``purpose`` ends the advice to get a table anew that was created again."""
        self._cluster = cluster
        self._info = info
        self._purpose = purpose
        self.partition_name = partition_name
        # By bucket id; empty until the id of the partition is known.
        self.buckets: list[TableBucket] = []
        self.bucket_keys: list[BucketKey] = []
        if partition_name is None:
            self._set_partition(None)

    def leader_of(self, bucket_id: int) -> int | None:
        """Return the server that leads a bucket, or None if that has to be found out."""
        return self._cluster.leader_of(self.buckets[bucket_id]) if self.buckets else None

    async def find(self, bucket_ids: Iterable[int]) -> None:
        """Find out about the partition, and about the leaders of these buckets if one is not known.

        Afterwards some leaders may still be unknown. Raises code 36 if there is no such partition, 7 if the table is
        gone or another one, and what asking failed with.
        """
        path, table_id = self._info.table_path, self._info.table_id
        try:
            await self._find(bucket_ids)
        except FlussError as error:
            if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
                await check_same_table(self._cluster, path, table_id, purpose=self._purpose)
            raise
        known = self._cluster.table_info(path)
        if known is None or known.table_id != table_id:
            raise _created_again(path, self._purpose)

    async def _find(self, bucket_ids: Iterable[int]) -> None:
        path, name = self._info.table_path, self.partition_name
        if name is not None:
            # Known already, if another part of the client has asked for it.
            self._set_partition(await self._cluster.partition_id(path, name))
        if any(self.leader_of(bucket_id) is None for bucket_id in bucket_ids):
            await self._cluster.refresh([path], partitions=[] if name is None else [(path, name)])
            if name is not None:
                self._set_partition(await self._cluster.partition_id(path, name))

    def _set_partition(self, partition_id: int | None) -> None:
        """Note which partition it is now; one that was created again has another id."""
        if not self.buckets or self.buckets[0].partition_id != partition_id:
            ids = range(self._info.num_buckets)
            self.buckets = [TableBucket.new_with_partition(self._info.table_id, partition_id, id_) for id_ in ids]
            self.bucket_keys = [(partition_id, id_) for id_ in ids]

    def no_leader(self, bucket_id: int) -> FlussError:
        """Return the error of a bucket without a known leader; trying again later can help."""
        partition = "" if self.partition_name is None else f" partition '{self.partition_name}'"
        return FlussError(
            f"bucket {bucket_id} of {self._info.table_path}{partition} has no leader at the moment: "
            f"{_why_leaderless(self._cluster, self.buckets[bucket_id] if self.buckets else None)}",
            ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        )
