"""The way from a key to a server: partitions by name, buckets, and the servers that lead them."""

from __future__ import annotations

from typing import Final

from fluss.client.cluster import Cluster
from fluss.client.lookup.messages import Place
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket, TableInfo

# Partitions whose ways are remembered; beyond that many all are forgotten.
_ROUTES_MAX: Final = 10_000


class Route:
    """The way to the buckets of one table, or of one of its partitions."""

    __slots__ = ("buckets", "partition_name", "places")

    def __init__(self, partition_name: str | None) -> None:
        self.partition_name = partition_name
        # By bucket id; empty until the id of the partition is known.
        self.buckets: list[TableBucket] = []
        self.places: list[Place] = []

    def set_partition(self, info: TableInfo, partition_id: int | None) -> None:
        """Note what the partition is now; one that was created again has another id."""
        if not self.buckets or self.buckets[0].partition_id != partition_id:
            ids = range(info.num_buckets)
            self.buckets = [TableBucket.new_with_partition(info.table_id, partition_id, id_) for id_ in ids]
            self.places = [(partition_id, id_) for id_ in ids]


class TableRoutes:
    """The ways to the buckets of one table. Belongs to the event loop.

    That a partition does not exist is never remembered: somebody may create it, write a row, and expect to find it.
    """

    def __init__(self, cluster: Cluster, info: TableInfo) -> None:
        self._cluster = cluster
        self._info = info
        self._routes: dict[str | None, Route] = {}

    def route(self, partition_name: str | None) -> Route:
        """Return the way to a partition, or to the table if it has none."""
        route = self._routes.get(partition_name)
        if route is None:
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            route = self._routes[partition_name] = Route(partition_name)
            if partition_name is None:
                route.set_partition(self._info, None)
        return route

    def leader(self, route: Route, bucket_id: int) -> int | None:
        """Return the server that leads a bucket, or None if that has to be found out."""
        return self._cluster.leader_of(route.buckets[bucket_id]) if route.buckets else None

    def forget_leaders(self, place: Place) -> None:
        """Somebody has found out that what is known about a bucket is out of date."""
        self._cluster.forget_leaders(self._info.table_id, place[0])

    async def find(self, route: Route) -> bool:
        """Find out about a partition, and about leaders if one is not known; False if there is no such partition.

        Afterwards some leaders may still be unknown. Raises code 7 when the table is gone, and what asking failed with.
        """
        path, name = self._info.table_path, route.partition_name
        try:
            if name is not None:
                route.set_partition(self._info, await self._cluster.partition_id(path, name))
            if any(self._cluster.leader_of(bucket) is None for bucket in route.buckets):
                await self._cluster.refresh([path], partitions=[] if name is None else [(path, name)])
                if name is not None:
                    route.set_partition(self._info, await self._cluster.partition_id(path, name))
        except FlussError as error:
            if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
                self._routes.pop(name, None)
                return False
            raise
        self._check_table()
        return True

    def no_leader(self, route: Route, bucket_id: int) -> FlussError:
        """Return the error of a bucket that nobody leads at the moment; trying again later can help."""
        place = f"partition '{route.partition_name}' of " if route.partition_name is not None else ""
        return FlussError(
            f"bucket {bucket_id} of {place}{self._info.table_path} has no leader at the moment",
            ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        )

    def _check_table(self) -> None:
        info = self._cluster.table_info(self._info.table_path)
        if info is None or info.table_id != self._info.table_id:
            raise FlussError(
                f"Table '{self._info.table_path}' was dropped and created again; get it anew to look rows up",
                ErrorCode.TABLE_NOT_EXIST,
            )
