"""Which rows of a batch belong to which partition and bucket, chosen as all writers choose them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.missing_partitions import MissingPartitions
from fluss.client.kernel.placement import BucketSplitter, PartitionSplitter, TableKeys, lake_format
from fluss.client.kernel.runtime import Runtime
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import take_rows
from fluss.row.bucketing import HashVariant, Int32Array, split_by_bucket
from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableBucket, TableInfo

_MISSING_PAUSE_S: Final = 0.5


class TableSplitter:
    """Takes batches of one table apart. Partitions are looked up once, and remembered. Belongs to one thread.

    The rows are in the form of the table, and their keys have been checked. Rows without a bucket key go to one bucket
    per batch and partition, another one each time.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        hash_variant: HashVariant,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._info = info
        self._partitions = PartitionSplitter(info.schema, info.partition_keys) if info.is_partitioned() else None
        self._existing = ExistingPartitions(cluster, runtime, info)
        self._partition_names: dict[int, str] = {}
        self._keys = TableKeys(info, hash_variant) if info.has_primary_key() else None
        self._buckets: BucketSplitter | None = None
        if info.bucket_keys and self._keys is None:
            self._buckets = BucketSplitter(
                info.schema, info.bucket_keys, info.num_buckets, lake_format(info), hash_variant
            )
        # Writers that begin at the same time begin with different buckets.
        self._turn = (rng or random.Random()).randrange(info.num_buckets)

    @classmethod
    def of(cls, table: FlussTable) -> TableSplitter:
        context = context_of(table)
        return cls(context.cluster, context.runtime, context.info, context.writer_client().hash_variant)

    def split(self, rows: pa.RecordBatch) -> list[tuple[TableBucket, pa.RecordBatch, Int64Array]]:
        """Return the rows of each bucket in their order, with their numbers in the batch.

        A partition that does not exist is a FlussError (code 36).
        """
        return [(bucket, take_rows(rows, numbers), numbers) for bucket, numbers in self.groups(rows)]

    def groups(self, rows: pa.RecordBatch, keys: EncodedRows | None = None) -> list[tuple[TableBucket, Int64Array]]:
        """Return the numbers of the rows of each bucket, ascending; ``keys`` are the encoded primary keys, if known."""
        if not rows.num_rows:
            return []
        buckets = self._bucket_numbers(rows, keys)
        if self._partitions is None:
            return self._groups_of(None, buckets, np.arange(rows.num_rows))
        return [
            group
            for name, numbers in self._partitions.groups(rows)
            for group in self._groups_of(self._partition_id(name), buckets, numbers)
        ]

    def _groups_of(
        self, partition_id: int | None, buckets: Int32Array | None, numbers: Int64Array
    ) -> list[tuple[TableBucket, Int64Array]]:
        """Group rows of one partition by their buckets, or put all of them into the next bucket."""
        if buckets is None:
            self._turn = (self._turn + 1) % self._info.num_buckets
            return [(self._bucket(partition_id, self._turn), numbers)]
        return [
            (self._bucket(partition_id, bucket), numbers[chosen])
            for bucket, chosen in split_by_bucket(buckets[numbers], self._info.num_buckets)
        ]

    def _bucket_numbers(self, rows: pa.RecordBatch, keys: EncodedRows | None) -> Int32Array | None:
        if self._keys is not None:
            if self._info.num_buckets == 1:
                return np.zeros(rows.num_rows, np.int32)
            columns = [rows.column(name) for name in self._keys.key_names]
            return self._keys.buckets(columns, self._keys.encode(columns) if keys is None else keys)
        return None if self._buckets is None else self._buckets.buckets(rows)

    def _bucket(self, partition_id: int | None, number: int) -> TableBucket:
        return TableBucket.new_with_partition(self._info.table_id, partition_id, number)

    def _partition_id(self, name: str) -> int:
        partition_id = self._existing.id_of(name)
        self._partition_names[partition_id] = name
        return partition_id

    def partition_name(self, bucket: TableBucket) -> str | None:
        """Return the name of the partition of a bucket, None if the table has no partitions; code 36 if it is gone."""
        partition_id = bucket.partition_id
        if partition_id is None:
            return None
        name = self._partition_names.get(partition_id)
        if name is None:
            name = self._partition_names[partition_id] = self._runtime.run(self._find_name(partition_id))
        return name

    async def _find_name(self, partition_id: int) -> str:
        path = self._info.table_path
        if self._cluster.partition_name(partition_id) is None:
            await self._cluster.refresh([path], partition_ids=[(path, partition_id)])
        name = self._cluster.partition_name(partition_id)
        if name is None:
            raise FlussError(
                f"{path} has no partition with the id {partition_id}; it may have been dropped",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return name


class ExistingPartitions:
    """The partitions of a table that rows are written to. They are looked up once, and remembered.

    One that a server does not know, but the coordinator does, is asked for again a moment later: a new one may not have
    reached every server yet.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, info: TableInfo) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._info = info
        self._ids: dict[str, int] = {}

    def check(self, names: Iterable[str]) -> None:
        """Refuse a partition that does not exist (code 36)."""
        for name in names:
            self.id_of(name)

    def id_of(self, name: str) -> int:
        """Return the id of a partition; code 36 if it does not exist."""
        partition_id = self._ids.get(name)
        if partition_id is None:
            partition_id = self._ids[name] = self._runtime.run(self._look_up(name))
        return partition_id

    async def _look_up(self, name: str) -> int:
        try:
            return await self._cluster.partition_id(self._info.table_path, name)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
        missing = await MissingPartitions(self._cluster).require(self._info, name)
        if missing is not None:
            raise missing
        try:
            return await self._cluster.partition_id(self._info.table_path, name)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
        await asyncio.sleep(_MISSING_PAUSE_S)
        return await self._cluster.partition_id(self._info.table_path, name)
