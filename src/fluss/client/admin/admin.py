"""Administration of a cluster: what ``FlussConnection.get_admin()`` returns.

Databases, tables and partitions are in ``catalog``; servers, options and rights in ``cluster``; offsets are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from fluss.client.admin.base import checked, checked_path, checked_text
from fluss.client.admin.catalog_calls import CatalogAdmin, check_partitioned
from fluss.client.admin.cluster_calls import ClusterAdmin
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import ask_leaders
from fluss.client.kernel.runtime import AwaitsItself, Runtime
from fluss.client.kernel.table_calls import leader_offsets
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int32, int64
from fluss.protocol import api as apis
from fluss.protocol.convert import lake_snapshot, pb_producer_offsets, pb_table_path, producer_offsets
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import LakeSnapshot, OffsetSpec, ProducerOffsets
from fluss.schema.table import TableBucket, TableInfo, TablePath

# What a server says when it has kept the offsets of a producer.
_REGISTERED = 0


class FlussAdmin(CatalogAdmin, ClusterAdmin, AwaitsItself):
    """Creates, describes and drops whatever a cluster holds. Get it from ``FlussConnection.get_admin()``.

    Every method is a coroutine that may be awaited on any event loop. What the server refuses is a ``FlussError``
    with the server's code. A coordinator that has moved or restarted is found again.
    """

    @classmethod
    def _create(cls, cluster: Cluster, runtime: Runtime) -> FlussAdmin:
        return cls._with_fields(_cluster=cluster, _runtime=runtime)

    # Offsets

    async def list_offsets(
        self,
        table_path: TablePath | str,
        bucket_ids: Iterable[int],
        offset_spec: OffsetSpec | str | None = None,
        *,
        offset_type: OffsetSpec | str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Look up an offset in each bucket of a table without partitions; code 7, and 38 for a time to come.

        Older programs write ``offset_type="latest"``, or ``offset_type="timestamp", timestamp=<epoch ms>``.
        """
        path, ids = checked_path(table_path), _checked_bucket_ids(bucket_ids)
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        return await self._run(self._offsets(path, None, ids, spec))

    async def list_partition_offsets(
        self,
        table_path: TablePath | str,
        partition_name: str,
        bucket_ids: Iterable[int],
        offset_spec: OffsetSpec | str | None = None,
        *,
        offset_type: OffsetSpec | str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Look up an offset in each bucket of a partition, such as ``2024-01-15$EMEA``; codes 7, 36, 37 and 38."""
        path, ids = checked_path(table_path), _checked_bucket_ids(bucket_ids)
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        return await self._run(self._offsets(path, checked_text("partition_name", partition_name), ids, spec))

    async def _offsets(
        self, path: TablePath, partition_name: str | None, bucket_ids: list[int], spec: OffsetSpec
    ) -> dict[int, int]:
        await self._cluster.refresh([path])
        info = self._cluster.table_info(path)
        if info is None:
            raise FlussError(f"Table '{path}' does not exist or may not be seen", ErrorCode.TABLE_NOT_EXIST)
        partition_id = None
        if partition_name is not None:
            check_partitioned(info)
            await self._cluster.refresh([path], partitions=[(path, partition_name)])
            partition_id = await self._cluster.partition_id(path, partition_name)
        buckets = _buckets(info, partition_id, bucket_ids)
        ask = partial(leader_offsets, self._cluster, spec=spec)
        answers = await ask_leaders(self._cluster, path, buckets, ask)
        return {bucket.bucket_id: offset for bucket, offset in answers.items()}

    async def get_latest_lake_snapshot(self, table_path: TablePath | str) -> LakeSnapshot:
        """Say how far the lake has the records of a table; code 40 if there is no lake, 53 if it has nothing yet."""
        request = pb.GetLakeSnapshotRequest(table_path=pb_table_path(checked_path(table_path)))
        response = await self._ask(apis.GET_LAKE_SNAPSHOT, request)
        return lake_snapshot(response)

    # Producer offsets

    async def register_producer_offsets(
        self, producer_id: str, offsets: Mapping[TableBucket, int], ttl_ms: int | None = None
    ) -> bool:
        """Keep positions under the name of a producer, by default for a day; code 63 for a bad name.

        Returns False, and changes nothing, if the producer has registered positions that have not expired.
        """
        request = pb.RegisterProducerOffsetsRequest(
            producer_id=checked_text("producer_id", producer_id),
            table_offsets=pb_producer_offsets(
                (checked("a bucket", bucket, TableBucket), int64("an offset", offset))
                for bucket, offset in offsets.items()
            ),
            ttl_ms=None if ttl_ms is None else int64("ttl_ms", ttl_ms),
        )
        response = await self._ask(apis.REGISTER_PRODUCER_OFFSETS, request)
        return response.result == _REGISTERED

    async def get_producer_offsets(self, producer_id: str) -> ProducerOffsets | None:
        """Return what a producer has registered, or None if there is nothing or it has expired."""
        request = pb.GetProducerOffsetsRequest(producer_id=checked_text("producer_id", producer_id))
        return producer_offsets(await self._ask(apis.GET_PRODUCER_OFFSETS, request))

    async def delete_producer_offsets(self, producer_id: str) -> None:
        """Forget what a producer has registered, if anything."""
        request = pb.DeleteProducerOffsetsRequest(producer_id=checked_text("producer_id", producer_id))
        await self._ask(apis.DELETE_PRODUCER_OFFSETS, request)

    def __repr__(self) -> str:
        return "FlussAdmin()"


def _checked_bucket_ids(bucket_ids: Iterable[int]) -> list[int]:
    if isinstance(bucket_ids, str | bytes) or not isinstance(bucket_ids, Iterable):
        raise TypeError(f"bucket_ids must be a sequence of int, got {type(bucket_ids).__name__}")
    ids = [int32("a bucket id", bucket_id) for bucket_id in bucket_ids]
    if not ids:
        raise FlussError("Buckets are empty; name at least one bucket id")
    for bucket_id in ids:
        if bucket_id < 0:
            raise FlussError(f"Invalid bucket_id: {bucket_id}; ids begin with 0")
    return list(dict.fromkeys(ids))


def _buckets(info: TableInfo, partition_id: int | None, bucket_ids: list[int]) -> list[TableBucket]:
    if partition_id is None and info.is_partitioned():
        raise FlussError(
            f"No leader found for table bucket: {info.table_path} is partitioned, and buckets belong to its "
            "partitions; use list_partition_offsets"
        )
    for bucket_id in bucket_ids:
        if bucket_id >= info.num_buckets:
            raise FlussError(
                f"No leader found for table bucket {bucket_id}: {info.table_path} has {info.num_buckets} buckets"
            )
    return [TableBucket.new_with_partition(info.table_id, partition_id, bucket_id) for bucket_id in bucket_ids]


def _offset_spec(
    offset_spec: OffsetSpec | str | None, offset_type: OffsetSpec | str | None, timestamp: int | None
) -> OffsetSpec:
    wanted = offset_type if offset_spec is None else offset_spec
    if wanted is None or (offset_spec is not None and offset_type is not None):
        raise TypeError("say which offset is wanted: one of offset_spec and offset_type")
    return OffsetSpec.of(wanted, timestamp)
