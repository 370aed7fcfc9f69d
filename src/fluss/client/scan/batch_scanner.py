"""Limited scans: the newest rows of a log bucket, or some rows of a bucket with a primary key, in one request.

With a filter it takes several: a server that limits rows knows nothing of filters. So the rows of a bucket with a
primary key are read until enough are kept, and a log from its end towards its beginning, in ever longer pieces.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import BatchDecoder, ScanColumns, ValueDecoder
from fluss.client.kernel.leaders import ask_leaders
from fluss.client.kernel.runtime import Runtime
from fluss.client.scan.fetch.pipeline import ScanPipeline, bounds
from fluss.client.scan.records import RecordBatch, RecordRun, require_pandas, row_offsets
from fluss.client.scan.table_read import TableRead, TableReadOptions
from fluss.errors import CorruptRecordError, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import raise_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import iter_batches
from fluss.row.arrow_arrays import empty_batch
from fluss.schema.offsets import EARLIEST_OFFSET
from fluss.schema.predicate import BoundPredicate
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.table_options import LogFormat
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    import pandas as pd

# Records that a filtered scan of a log looks at first, at its end, and how much longer every further piece is.
_FIRST_PIECE_RECORDS: Final = 65_536
_PIECE_GROWTH: Final = 4


class BatchScanner(ServerMade):
    """Reads at most ``limit`` rows of one bucket: one batch, then nothing more.

    The request is sent at the first use. A log table gives its newest rows; a table with a primary key gives rows as
    they are now, at offset 0. With a filter, only rows that it keeps count. If the request fails, the scanner is spent.
    """

    _cluster: Cluster
    _runtime: Runtime
    _info: TableInfo
    _bucket: TableBucket
    _limit: int
    _columns: ScanColumns
    _predicate: BoundPredicate | None
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
        predicate: BoundPredicate | None = None,
    ) -> BatchScanner:
        return cls._with_fields(
            _cluster=cluster,
            _runtime=runtime,
            _info=info,
            _bucket=bucket,
            _limit=limit,
            _columns=columns,
            _predicate=predicate,
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
        if self._columns.row_filter is None:
            rows, base_offset = await self._runtime.bridge(self._scan())
            offsets = None
        else:
            read = self._read_rows if self._info.has_primary_key() else self._read_log
            rows, base_offset, offsets = await read()
        return RecordBatch._create(rows, self._bucket, base_offset, None, offsets) if rows.num_rows else None

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

    async def _read_rows(self) -> tuple[pa.RecordBatch, int, None]:
        """Return some of the current rows that the filter keeps."""
        options = TableReadOptions(self._columns, row_limit=self._limit, buckets=[self._bucket])
        begin = TableRead.begin(self._cluster, self._runtime, self._info, options)
        read = await self._runtime.bridge(begin, cancels=True)
        return _joined(await read.all_rows(), self._columns), 0, None

    async def _read_log(self) -> tuple[pa.RecordBatch, int, Int64Array]:
        """Return the newest rows that the filter keeps."""
        path, bucket = self._info.table_path, self._bucket
        found = bounds(self._cluster, path, {bucket: EARLIEST_OFFSET})
        earliest, stop = (await self._runtime.bridge(found, cancels=True)).get(bucket, (0, 0))
        piece = max(self._limit, _FIRST_PIECE_RECORDS)
        newest: deque[RecordRun] = deque()
        while stop > earliest and sum(run.count for run in newest) < self._limit:
            start = max(stop - piece, earliest)
            newest.extendleft(reversed(await self._newest_of(start, stop)))
            stop, piece = start, piece * _PIECE_GROWTH
        rows = _joined([run.batch for run in newest if run.batch is not None], self._columns)
        offsets = [row_offsets(run.base_offset, run.count, run.offsets) for run in newest]
        kept = np.concatenate([np.empty(0, np.int64), *offsets])[-self._limit :]
        return rows.slice(rows.num_rows - len(kept)), int(kept[0]) if len(kept) else 0, kept

    async def _newest_of(self, start: int, stop: int) -> list[RecordRun]:
        """Read a piece of the log, and return no more of its end than the limit asks for."""
        pipeline = ScanPipeline(self._cluster, self._runtime, self._info, self._columns, predicate=self._predicate)
        kept: deque[RecordRun] = deque()
        count = 0
        with contextlib.closing(pipeline):
            read = pipeline.begin_bounded({self._bucket: (start, stop)})
            while not read.is_done:
                for run in await read.step():
                    kept.append(run)
                    count += run.count
                    while count - kept[0].count >= self._limit:
                        count -= kept.popleft().count
        return list(kept)

    async def _scan(self) -> tuple[pa.RecordBatch, int]:
        bucket = self._bucket
        records = (await ask_leaders(self._cluster, self._info.table_path, [bucket], self._ask))[bucket]
        # Blocks a worker thread, not the loop, in the rare case that a schema has to be loaded.
        decode = self._decode_values if self._info.has_primary_key() else self._decode_log
        try:
            return await self._runtime.offload(decode, records, self._load_schema)
        except CorruptRecordError as error:
            raise FlussError(f"The rows of {self._bucket} cannot be read: {error.message}") from error

    async def _ask(self, leader_id: int, buckets: list[TableBucket]) -> dict[TableBucket, memoryview]:
        bucket = buckets[0]
        request = pb.LimitScanRequest(
            table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, limit=self._limit
        )
        response = await self._cluster.request(leader_id, apis.LIMIT_SCAN, request)
        raise_failure(response)
        return {bucket: response.records_view}

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
