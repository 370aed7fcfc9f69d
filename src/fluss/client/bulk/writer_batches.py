"""What one writer has written: the batches of a log that carry its id, found by their headers.

Batches of others are fetched and passed over without being decoded. A batch without records counts, too: that is what
upserts that change nothing leave in a changelog.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.client.bulk.ranges import scan_columns
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.kernel.decode import BatchDecoder, ScanColumns
from fluss.client.scan.fetch.buffer import Chunk, Subscription
from fluss.client.scan.fetch.pipeline import ScanPipeline, bounds, no_progress
from fluss.record.log_batch import LogBatchHeader, iter_batches
from fluss.row.arrow_arrays import narrowest_column
from fluss.schema.table import TableBucket, TableInfo

# How long one wait for more takes before it is looked whether there is still hope.
_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class WrittenBatch:
    """One batch of a writer: where it is, what its header says, and its records if they were asked for."""

    bucket: TableBucket
    header: LogBatchHeader
    # None for a batch without records, and if no columns were asked for.
    rows: pa.RecordBatch | None
    # None in the log of a log table.
    change_types: UInt8Array | None


def writer_batches(
    table: FlussTable,
    writer_ids: Collection[int],
    starts: Mapping[TableBucket, int],
    *,
    columns: Sequence[str] | None = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[WrittenBatch]:
    """Yield the batches of some writers from offsets on, up to the latest offsets of now; per bucket in their order.

    With ``columns`` the records are decoded: these columns of them, in the schema of the table as it is now, or with
    None all columns. Blocks. An offset that is no longer there, or not yet, is a FlussError.
    """
    context = context_of(table)
    cluster, runtime, info = context.cluster, context.runtime, context.info
    wanted = frozenset(writer_ids)
    found = runtime.run(bounds(cluster, info.table_path, starts))
    has_rows = columns is None or len(columns) > 0
    chosen = _scan_columns(info, columns)
    decoder = BatchDecoder(
        chosen, info.log_format, lambda schema_id: runtime.run(cluster.schema(info.table_path, schema_id))
    )
    pipeline = ScanPipeline(cluster, runtime, info, chosen)
    with contextlib.closing(pipeline):
        idle_timeout_s = cluster.config.request_timeout_ms / 1000
        for chunk, stop in _chunks(pipeline, found, idle_timeout_s, clock):
            for batch in iter_batches(chunk.records):
                header = batch.header
                if header.writer_id not in wanted or not found[chunk.subscription.bucket][0] <= header.offset_last:
                    continue
                if header.base_offset >= stop:
                    break
                decoded = None
                if has_rows and header.record_count:
                    decoded = decoder.decode(batch, is_projected=chunk.is_projected)
                yield WrittenBatch(
                    chunk.subscription.bucket,
                    header,
                    None if decoded is None else decoded.rows,
                    None if decoded is None else decoded.change_types,
                )


def _chunks(
    pipeline: ScanPipeline,
    found: Mapping[TableBucket, tuple[int, int]],
    idle_timeout_s: float,
    clock: Callable[[], float],
) -> Iterator[tuple[Chunk, int]]:
    """Yield what was fetched of buckets, each with where its bucket is to stop, until all of them are there."""
    buffer, subscriptions = pipeline.buffer, pipeline.subscriptions
    starts = {bucket: start for bucket, (start, _) in found.items()}
    stops = {bucket: stop for bucket, (_, stop) in found.items()}
    left: dict[Subscription, int] = {each: stops[each.bucket] for each in subscriptions.begin(starts, stops)}
    waits_until_s = clock() + idle_timeout_s
    while left:
        pipeline.fetcher.note_poll()
        news_count = buffer.news_count
        chunk = buffer.take()
        if chunk is None:
            failure = buffer.failure()
            if failure is not None:
                raise failure
            if not buffer.block(news_count, _WAIT_S) and clock() > waits_until_s:
                raise no_progress(left, idle_timeout_s)
            continue
        waits_until_s = clock() + idle_timeout_s
        subscription = chunk.subscription
        try:
            if subscription in left:
                yield chunk, left[subscription]
                subscription.position = chunk.offset_next
                if chunk.offset_next >= left[subscription]:
                    del left[subscription]
                    subscriptions.end([subscription.bucket])
        finally:
            buffer.release(chunk)


def _scan_columns(info: TableInfo, columns: Sequence[str] | None) -> ScanColumns:
    if columns is not None and not columns:
        # There must be one.
        columns = [narrowest_column(info.schema)]
    return scan_columns(info, columns)
