"""What there is to know about the consumers of a table: who reads what, where they are, how much is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fluss.client.consume.group import NO_PARTITION, Group
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.table_buckets import table_buckets
from fluss.client.scan.table_scan import TableScan
from fluss.errors import FlussError
from fluss.schema.offsets import OffsetSpec
from fluss.schema.predicate import col
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.value_objects import ServerMade


@dataclass(frozen=True, slots=True, init=False)
class ConsumerBucket(ServerMade):
    """A bucket as a consumer sees it. Made by ``FlussTable.consumers``."""

    bucket: TableBucket
    # Who reads it; None if the consumer has no members.
    member: str | None
    # The committed offset; None if there is none yet.
    position: int | None
    # Where the log ends, and how many records are left to it from the position, or from the beginning of the log.
    end: int
    lag: int


@dataclass(frozen=True, slots=True, init=False)
class ConsumerInfo(ServerMade):
    """A consumer of a table: its members, and its buckets with positions and lags. Made by ``FlussTable.consumers``."""

    name: str
    members: tuple[str, ...]
    buckets: tuple[ConsumerBucket, ...]

    @classmethod
    def _create(
        cls,
        name: str,
        group: Group,
        starts: Mapping[TableBucket, int],
        ends: Mapping[TableBucket, int],
    ) -> ConsumerInfo:
        positions = {_bucket(group, *key): position for key, position in group.positions.items()}
        owners = {_bucket(group, *key): owner.member for key, owner in group.owners.items()}
        buckets = []
        for bucket, end in ends.items():
            position = positions.get(bucket)
            at = starts[bucket] if position is None or position < 0 else position
            buckets.append(
                ConsumerBucket._with_fields(
                    bucket=bucket,
                    member=owners.get(bucket),
                    position=None if position is None or position < 0 else position,
                    end=end,
                    lag=max(end - max(at, starts[bucket]), 0),
                )
            )
        return cls._with_fields(name=name, members=tuple(group.members), buckets=tuple(buckets))

    @property
    def lag(self) -> int:
        """How many records of all buckets are left to be read, counted from what is committed."""
        return sum(bucket.lag for bucket in self.buckets)

    @property
    def positions(self) -> dict[TableBucket, int]:
        """The committed offsets."""
        return {each.bucket: each.position for each in self.buckets if each.position is not None}

    def __repr__(self) -> str:
        return (
            f"ConsumerInfo(name={self.name!r}, members={len(self.members)}, buckets={len(self.buckets)}, "
            f"lag={self.lag})"
        )


def _bucket(group: Group, partition_id: int, bucket_id: int) -> TableBucket:
    return TableBucket.new_with_partition(
        group.table_id, None if partition_id == NO_PARTITION else partition_id, bucket_id
    )


async def consumer_infos(cluster: Cluster, runtime: Runtime, info: TableInfo) -> list[ConsumerInfo]:
    """Return all consumers of a table, by name. On the loop of the cluster."""
    from fluss.client.consume.group_table import GroupName, group_table_info
    from fluss.client.consume.membership import group_table_path, read_group

    rows_info = await group_table_info(cluster, runtime, group_table_path(cluster.config), creates=False)
    if rows_info is None:
        return []
    table_name = str(info.table_path)
    scan = TableScan(cluster, runtime, rows_info).project_by_name(["consumer"])
    scan.filter((col("table_name") == table_name) & (col("entry") == "group"))
    names = sorted((await scan.to_arrow_async())["consumer"].to_pylist())
    groups = [(name, await read_group(cluster, runtime, rows_info, GroupName(table_name, name))) for name in names]
    buckets = await table_buckets(cluster, info, None)
    starts = await bucket_offsets(cluster, info.table_path, buckets, OffsetSpec.earliest())
    ends = await bucket_offsets(cluster, info.table_path, buckets, OffsetSpec.latest())
    ordered = {bucket: ends[bucket] for bucket in buckets}
    # What belongs to an earlier table of the same name begins anew with the next poll.
    return [
        ConsumerInfo._create(
            name, group if group.table_id == info.table_id else Group(rows_info.table_id, 0), starts, ordered
        )
        for name, group in groups
    ]


async def drop_consumer(cluster: Cluster, runtime: Runtime, info: TableInfo, name: str, *, force: bool) -> None:
    """Forget the positions of a consumer; it must have no members, unless ``force``. On the loop of the cluster."""
    from fluss.client.consume.group_table import GroupName, GroupRows, group_table_info
    from fluss.client.consume.membership import group_table_path, read_group

    rows_info = await group_table_info(cluster, runtime, group_table_path(cluster.config), creates=False)
    if rows_info is None:
        return
    group_name = GroupName(str(info.table_path), name)
    if not force:
        group = await read_group(cluster, runtime, rows_info, group_name)
        if group.members and group.table_id == info.table_id:
            raise FlussError(
                f"The consumer '{name}' of {info.table_path} has members: {', '.join(group.members)}. Close them "
                "first; force=True is for those that were killed"
            )
    rows = GroupRows(cluster, runtime, rows_info, group_name)
    try:
        await rows.delete_all()
    finally:
        await rows.close()
