"""Limited scans: the newest rows of a log bucket, or some rows of a bucket with a primary key, in one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import BatchDecoder, ScanColumns, ValueDecoder
from fluss.client.kernel.leaders import find_leader
from fluss.client.kernel.runtime import Runtime
from fluss.client.scan.records import RecordBatch, require_pandas
from fluss.errors import CorruptRecordError, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import raise_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import iter_batches
from fluss.row.arrow_arrays import empty_batch
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.table_options import LogFormat
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    import pandas as pd


class BatchScanner(ServerMade):
    """Reads at most ``limit`` rows of one bucket: one batch, then nothing more.

    The request is sent at the first use. A log table gives its newest rows; a table with a primary key gives rows as
    they are now, at offset 0. If the request fails, the scanner is spent.
    """

    _cluster: Cluster
    _runtime: Runtime
    _info: TableInfo
    _bucket: TableBucket
    _limit: int
    _columns: ScanColumns
    _is_spent: bool

    @classmethod
    def _create(
        cls,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        bucket: TableBucket,
        limit: int,
        columns: ScanColumns,
    ) -> BatchScanner:
        return cls._with_fields(
            _cluster=cluster,
            _runtime=runtime,
            _info=info,
            _bucket=bucket,
            _limit=limit,
            _columns=columns,
            _is_spent=False,
        )

    @property
    def bucket(self) -> TableBucket:
        """The bucket that is read."""
        return self._bucket

    async def next_batch(self) -> RecordBatch | None:
        """Return the batch, or None if there is none or it was returned before."""
        if self._is_spent:
            return None
        self._is_spent = True
        rows, base_offset = await self._runtime.bridge(self._scan())
        return RecordBatch._create(rows, self._bucket, base_offset) if rows.num_rows else None

    async def collect_all_batches(self) -> list[RecordBatch]:
        """Return what is left: one batch or none."""
        batch = await self.next_batch()
        return [] if batch is None else [batch]

    async def to_arrow(self) -> pa.Table:
        """Return what is left as a table, which has the columns of the scan also when it has no rows."""
        batches = [batch.batch for batch in await self.collect_all_batches()]
        return pa.Table.from_batches(batches, schema=self._columns.arrow_schema)

    async def to_pandas(self) -> pd.DataFrame:
        """As ``to_arrow``, as a pandas data frame."""
        require_pandas()
        return (await self.to_arrow()).to_pandas()

    def __repr__(self) -> str:
        return f"BatchScanner(bucket={self._bucket})"

    async def _scan(self) -> tuple[pa.RecordBatch, int]:
        leader_id = await find_leader(self._cluster, self._info.table_path, self._bucket)
        request = pb.LimitScanRequest(
            table_id=self._bucket.table_id,
            partition_id=self._bucket.partition_id,
            bucket_id=self._bucket.bucket_id,
            limit=self._limit,
        )
        response = await self._cluster.request(leader_id, apis.LIMIT_SCAN, request)
        raise_failure(response)
        # Blocks a worker thread, not the loop, in the rare case that a schema has to be loaded.
        decode = self._decode_values if self._info.has_primary_key() else self._decode_log
        try:
            return await self._runtime.offload(decode, response.records_view, self._load_schema)
        except CorruptRecordError as error:
            raise FlussError(f"The rows of {self._bucket} cannot be read: {error.message}") from error

    def _load_schema(self, schema_id: int) -> Schema:
        return self._runtime.run(self._cluster.schema(self._info.table_path, schema_id))

    def _decode_log(self, records: memoryview, load_schema: Callable[[int], Schema]) -> tuple[pa.RecordBatch, int]:
        """Return the newest rows of the batches, and the offset of the first of them."""
        decoder = BatchDecoder(self._columns, LogFormat.ARROW, load_schema)
        decoded = [decoder.decode(batch, is_projected=False) for batch in iter_batches(records)]
        rows = _joined([batch.rows for batch in decoded], self._columns)
        surplus = max(rows.num_rows - self._limit, 0)
        base_offset = _offset_of_row(surplus, [(batch.base_offset, batch.rows.num_rows) for batch in decoded])
        return rows.slice(surplus), base_offset

    def _decode_values(self, records: memoryview, load_schema: Callable[[int], Schema]) -> tuple[pa.RecordBatch, int]:
        """Return current rows in the order in which the server has them."""
        rows = ValueDecoder(self._columns, self._info.kv_format, load_schema).decode(records)
        return rows.slice(0, self._limit), 0


def _joined(batches: list[pa.RecordBatch], columns: ScanColumns) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches([empty_batch(columns.arrow_schema), *batches])


def _offset_of_row(row: int, runs: list[tuple[int, int]]) -> int:
    """Return the offset of a row that is counted over all batches, given their first offsets and row counts."""
    for base_offset, row_count in runs:
        if row < row_count:
            return base_offset + row
        row -= row_count
    return 0
