"""What writers of all tables have in common: the ways of rows and of Arrow data into the writer of the connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa

from fluss.client.write import arrow_input
from fluss.client.write.block import Block
from fluss.client.write.physical_table import Lane
from fluss.client.write.result import CompletedWrite, JoinedWrites, WriteResultHandle
from fluss.client.write.row_compiler import RowWays
from fluss.client.write.table_encoder import BY_KEY, TableEncoder
from fluss.client.write.writer_client import WriterClient
from fluss.errors import FlussError
from fluss.row.arrow_arrays import empty_batch
from fluss.schema.types import TypeRoot

# Partitions that a writer finds by the values of its last rows. More than this many are looked up by name.
_LANES_MAX: Final = 10_000
# Equal values of these types can have different texts (0.0 and -0.0), so values do not lead to partitions.
_UNEQUAL_ROOTS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


class TableWriter:
    """Base of the writers of one table. May be shared by threads and event loops."""

    def __init__(self, client: WriterClient, encoder: TableEncoder) -> None:
        self._client = client
        self._info = info = encoder.info
        self._encoder = encoder
        # The way in, or the ways into the partitions that rows were written to, by name and by partition values.
        self._lane = None if info.is_partitioned() else client.lane(encoder, None)
        self._lanes_by_name: dict[str, Lane] = {}
        self._lanes_by_values: dict[Any, Lane] = {}
        key_roots = [info.schema.column(name).data_type.root for name in info.partition_keys]
        self._values_lead_to_lanes = not any(root in _UNEQUAL_ROOTS for root in key_roots)
        self._failures_seen = client.failure_count

    # Rows

    def _row_ways(self, pack_any: Callable[[Any], tuple[bytes, str | None]]) -> RowWays:
        """Return where a compiled function leads; ``pack_any`` is the plain way for its rows."""
        return RowWays(
            lane=self._lane,
            lanes=self._lanes_by_values,
            find_lane=self._find_lane,
            append_any=partial(self._append_any, pack_any),
            append_packed=self._append_packed,
            append_late=self._append_late,
        )

    def _append_any(self, pack_any: Callable[[Any], tuple[bytes, str | None]], row: Any) -> WriteResultHandle:
        packed_row, partition_name = pack_any(row)
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
        lane = self._lane_of(self._encoder.layout.partition_name(values))
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

    def _write_batch(self, batch: Any, checked: Callable[[pa.RecordBatch], pa.RecordBatch]) -> WriteResultHandle:
        """Write one batch, if ``checked`` can bring it into the form that the encoder takes."""
        blocks = self._write([checked(part) for part in arrow_input.record_batch(batch)])
        if not blocks:
            return WriteResultHandle(CompletedWrite())
        return WriteResultHandle(blocks[0] if len(blocks) == 1 else JoinedWrites(blocks))

    def _write_data(self, data: Any, checked: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Write Arrow data of any kind. What is all there is checked before the first row is written."""
        if not arrow_input.is_stream(data):
            self._write([checked(batch) for batch in arrow_input.record_batches(data)])
            return
        with arrow_input.record_batch_stream(data) as reader:
            checked(empty_batch(reader.schema))
            for batch in reader:
                self._write([checked(batch)])

    def _write(self, batches: Sequence[pa.RecordBatch]) -> list[Block]:
        for batch in batches:
            self._client.check_sizes(batch)
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> bool:
        try:
            await self.flush()
        except FlussError:
            if exception_type is None:
                raise
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _row_handle(block: Block, packed_row: bytes) -> WriteResultHandle:
    handle = WriteResultHandle(block)
    if block.bucket_id is BY_KEY:
        # The block has rows of several buckets, and each of them can fail alone.
        handle._packed_row = packed_row
    return handle
