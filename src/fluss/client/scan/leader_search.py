"""Finds the leaders of buckets, and says why some have none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from fluss.client.cluster import Cluster
from fluss.client.scan.subscription import Subscription
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableInfo

# Partitions that are asked for one by one at the same time, after a question for all of them has failed.
_QUESTIONS_MAX: Final = 16


class LeaderSearch:
    """Reads the metadata of one table. Runs on the loop of the cluster."""

    def __init__(self, cluster: Cluster, table_info: TableInfo) -> None:
        self._cluster = cluster
        self._path = table_info.table_path
        self._table_id = table_info.table_id

    async def find(self, subscriptions: Sequence[Subscription]) -> dict[Subscription, FlussError]:
        """Have the cluster know the leaders of these buckets; return what is wrong with those that have none."""
        partition_ids = {subscription.bucket.partition_id for subscription in subscriptions}
        found = await self._refresh([partition_id for partition_id in partition_ids if partition_id is not None])
        errors = {}
        for subscription in subscriptions:
            error = found.get(subscription.bucket.partition_id) or found.get(None)
            if error is None and self._cluster.leader_of(subscription.bucket) is None:
                error = self._no_leader(subscription)
            if error is not None:
                errors[subscription] = error
        return errors

    async def _refresh(self, partition_ids: Collection[int]) -> dict[int | None, FlussError]:
        """Read metadata; return what went wrong by partition, under None if it concerns all of them."""
        wanted = [(self._path, partition_id) for partition_id in partition_ids]
        try:
            await self._cluster.refresh([self._path], partition_ids=wanted)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS or not wanted:
                return {None: error}
            if len(wanted) == 1:
                return {wanted[0][1]: error}
            # One missing partition spoils the question for all of them.
            return await self._refresh_one_by_one(partition_ids)
        return {}

    async def _refresh_one_by_one(self, partition_ids: Collection[int]) -> dict[int | None, FlussError]:
        found: dict[int | None, FlussError] = {}
        limit = asyncio.Semaphore(_QUESTIONS_MAX)

        async def refresh(partition_id: int) -> None:
            async with limit:
                found.update(await self._refresh([partition_id]))

        await asyncio.gather(*(refresh(partition_id) for partition_id in partition_ids))
        return found

    def _no_leader(self, subscription: Subscription) -> FlussError:
        info = self._cluster.table_info(self._path)
        if info is not None and info.table_id != self._table_id:
            return FlussError(
                f"{self._path} was dropped and created again; get the table again to read the new one",
                ErrorCode.TABLE_NOT_EXIST,
            )
        return FlussError(
            f"No leader found for table bucket {subscription.bucket} of {self._path}",
            ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        )
