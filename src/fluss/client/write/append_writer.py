"""Appends rows and Arrow data to a log table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from fluss.client.awaitables import AwaitsItself
from fluss.client.write import arrow_input
from fluss.client.write.block import Block
from fluss.client.write.physical_table import BY_KEY, Lane
from fluss.client.write.result import CompletedWrite, JoinedWrites, WriteResultHandle
from fluss.client.write.row_compiler import RowWays
from fluss.client.write.writer_client import WriterClient
from fluss.errors import FlussError
from fluss.schema.normalize import normalize_batch
from fluss.schema.table import TableInfo
from fluss.schema.types import TypeRoot

# Partitions that a writer finds by the values of its last rows. More than this many are looked up by name.
_LANES_MAX: Final = 10_000
# Equal values of these types can have different texts (0.0 and -0.0), so values do not lead to partitions.
_UNEQUAL_ROOTS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


class AppendWriter(AwaitsItself):
    """Appends to one log table. May be shared by threads and event loops; it may also be awaited.

    Calls return as soon as the rows are taken; they are sent in the background, in batches. Rows of one thread stay in
    order within their bucket. When the memory for unsent rows is full, calls wait. A row that does not fit the table is
    refused, and does not affect others.
    """

    def __init__(self, client: WriterClient, table_info: TableInfo) -> None:
        self._client = client
        self._info = table_info
        self._encoder = client.encoder(table_info)
        self._layout = self._encoder.layout
        # The way in, or the ways into the partitions that rows were written to, by name and by partition values.
        self._lane = None if table_info.is_partitioned() else client.lane(self._encoder, None)
        self._lanes_by_name: dict[str, Lane] = {}
        self._lanes_by_values: dict[Any, Lane] = {}
        key_roots = [table_info.schema.column(name).data_type.root for name in table_info.partition_keys]
        self._values_lead_to_lanes = not any(root in _UNEQUAL_ROOTS for root in key_roots)
        self._failures_seen = client.failure_count
        self._append = self._layout.append_function(
            RowWays(
                lane=self._lane,
                lanes=self._lanes_by_values,
                find_lane=self._find_lane,
                append_any=self._append_any,
                append_packed=self._append_packed,
                append_late=self._append_late,
            )
        )
        # The same as the method below, with a call less per row.
        self.append = self._append  # type: ignore[method-assign,assignment]  # it hides the method on purpose

    # Rows

    def append(self, row: Any) -> WriteResultHandle:
        """Append a row: a dict by column name, or a list or tuple in the order of the columns.

        Columns that may be null can be left out of a dict. A row that does not fit is a FlussError, and nothing is
        written.
        """
        return self._append(row)

    def _append_any(self, row: Any) -> WriteResultHandle:
        packed_row, partition_name = self._layout.pack_any(row)
        lane = self._lane if partition_name is None else self._lane_of(partition_name)
        assert lane is not None, "a row has a partition, or the table has none"
        return self._append_packed(lane, packed_row, lane.block)

    def _append_packed(self, lane: Lane, packed_row: bytes, hint: Block) -> WriteResultHandle:
        return _row_handle(self._client.accumulator.append(lane, packed_row, hint), packed_row)

    def _append_late(self, lane: Lane, packed_row: bytes, block: Block) -> WriteResultHandle:
        """Go on with a row that was added to a block while somebody closed it."""
        if self._client.accumulator.take_back_late(block, packed_row):
            return self._append_packed(lane, packed_row, block)
        return _row_handle(block, packed_row)

    def _find_lane(self, values: Any) -> Lane:
        """Find the way into the partition of a row by its partition values."""
        lane = self._lane_of(self._layout.partition_name(values))
        if self._values_lead_to_lanes:
            if len(self._lanes_by_values) >= _LANES_MAX:
                self._lanes_by_values.clear()
            self._lanes_by_values[values] = lane
        return lane

    def _lane_of(self, partition_name: str) -> Lane:
        lane = self._lanes_by_name.get(partition_name)
        if lane is None:
            if len(self._lanes_by_name) >= _LANES_MAX:
                self._lanes_by_name.clear()
            lane = self._lanes_by_name[partition_name] = self._client.lane(self._encoder, partition_name)
        return lane

    # Arrow

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Append an Arrow batch, whose columns must be those of the table, in name, order and type.

        Large batches are sent in pieces; the handle waits for all of them. A batch that does not fit is a FlussError,
        and nothing is written.
        """
        blocks = self._write(self._checked(arrow_input.record_batch(batch)))
        if not blocks:
            return WriteResultHandle(CompletedWrite())
        return WriteResultHandle(blocks[0] if len(blocks) == 1 else JoinedWrites(blocks))

    def append_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Append an Arrow batch: another name of ``write_arrow_batch``."""
        return self.write_arrow_batch(batch)

    def write_arrow(self, table: Any) -> None:
        """Append Arrow data: a Table, a RecordBatch, a RecordBatchReader, or what polars, duckdb and others have.

        Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` will do. Data that is all there, such as a table
        or a data frame, is checked before the first row is written. Of a stream only the schema can be; its batches
        are checked one by one, so that those before a bad one have been written.
        """
        if not arrow_input.is_stream(table):
            self._write(self._checked(arrow_input.record_batches(table)))
            return
        with arrow_input.record_batch_stream(table) as reader:
            self._checked([arrow_input.empty_batch(reader.schema)])
            for batch in reader:
                self._write(self._checked([batch]))

    def write_pandas(self, df: Any) -> None:
        """Append a pandas data frame. Columns are found by name and converted as long as no value changes.

        The index and columns that the table does not have are left out. pyarrow's own errors say what does not fit;
        nothing is written then.
        """
        self.write_arrow(pa.Table.from_pandas(df, schema=self._info.schema.to_arrow(), preserve_index=False))

    def _checked(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the batches in the physical form of the table, or refuse all of them."""
        checked = [normalize_batch(batch, self._info.schema) for batch in batches]
        for batch in checked:
            self._encoder.check_keys(batch)
        return checked

    def _write(self, batches: Sequence[pa.RecordBatch]) -> list[Block]:
        return [block for batch in batches for block in self._client.write_arrow(self._encoder, batch)]

    # The end

    async def flush(self) -> None:
        """Send everything that was written on this connection, and wait until it is stored.

        Raises the first failure, also of rows of this table whose handles nobody asked; it waits for all rows even
        so. Rows that are written in the meantime are not waited for.
        """
        flush = self._client.flush(self._info.table_id, self._failures_seen)
        self._failures_seen = self._client.failure_count
        await self._client.runtime.bridge(flush)

    async def __aenter__(self) -> AppendWriter:
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> bool:
        try:
            await self.flush()
        except FlussError:
            if exception_type is None:
                raise
        return False

    def __repr__(self) -> str:
        return "AppendWriter()"


def _row_handle(block: Block, packed_row: bytes) -> WriteResultHandle:
    handle = WriteResultHandle(block)
    if block.bucket_id is BY_KEY:
        # The block has rows of several buckets, and each of them can fail alone.
        handle._packed_row = packed_row
    return handle
