"""Writes Arrow batches with the writer of the connection, and counts what was stored where."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from time import monotonic
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.client.bulk.table_splitter import ExistingPartitions
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.write.blocks import Block
from fluss.client.write.encoders import KvEncoder, LogEncoder
from fluss.client.write.target_columns import checked_targets
from fluss.errors import RequestTimeoutError
from fluss.schema.normalize import normalize_batch

IDLE_TIMEOUT_S: Final = 300.0


class CountedWriter:
    """One job's rows for one table. Belongs to one thread; others may use the connection at the same time.

    Calls check the rows, and wait while half of ``writer.buffer.memory-size`` is full of them. A failure is raised by
    the next call, and the last time by ``flush``; rows of other jobs on the connection do not matter. With
    ``target_columns``, for a table with a primary key, only these columns are written. ``idle_timeout_s`` is how long a
    call waits while nothing is stored.
    """

    def __init__(
        self,
        table: FlussTable,
        *,
        target_columns: Sequence[str] | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        context = context_of(table)
        info = context.info
        self._client = context.writer_client()
        self._partitions = ExistingPartitions(context.cluster, context.runtime, info)
        self._path = info.table_path
        self._idle_timeout_s = idle_timeout_s
        self._encoder: LogEncoder | KvEncoder
        if info.has_primary_key():
            targets = checked_targets(info, target_columns)
            self._encoder = self._client.kv_encoder(info, targets)
        else:
            self._encoder = self._client.log_encoder(info)
        # It stands for this writer.
        self._owner = object()
        # Blocks that are not known to be stored, each with its part of the bytes.
        self._under_way: deque[tuple[Block, int]] = deque()
        self._bytes_under_way = 0
        # Rows that are stored, by the name of the partition (None if the table has none) and the bucket.
        self.row_counts: Counter[tuple[str | None, int]] = Counter()

    def write(self, rows: pa.RecordBatch, is_delete: npt.NDArray[np.bool_] | None = None) -> None:
        """Append rows to a log, or upsert them; ``is_delete`` marks rows whose keys are to be deleted, in their order.

        The columns are those of the table, or the target columns. Rows that do not fit are a FlussError, and nothing
        of the batch is written; so are rows of partitions that do not exist (code 36).
        """
        bytes_max = self._client.memory.bytes_max // 2
        self._collect(bytes_left_max=max(bytes_max - rows.nbytes, 0))
        if isinstance(self._encoder, KvEncoder):
            checked = self._encoder.checked(rows, is_delete)
        else:
            assert is_delete is None, "a log has no deletes"
            checked = normalize_batch(rows, self._encoder.info.schema)
            self._encoder.check_keys(checked)
        self._client.check_sizes(checked)
        blocks = self._client.write_arrow(self._encoder, checked, self._owner, self._partitions.check)
        for block in blocks:
            byte_count = checked.nbytes // len(blocks)
            self._under_way.append((block, byte_count))
            self._bytes_under_way += byte_count

    def flush(self) -> None:
        """Wait until everything is stored. Raises the first failure."""
        self._collect(bytes_left_max=-1)

    def _collect(self, *, bytes_left_max: int) -> None:
        """Look at blocks that are done, the oldest first, and wait for them until so few bytes are left."""
        while self._under_way and (self._bytes_under_way > bytes_left_max or self._under_way[0][0].done.done()):
            block, byte_count = self._under_way[0]
            self._wait_for(block)
            if block.error is not None:
                block.mark_reported()
                raise block.error.copied()
            self._under_way.popleft()
            self._bytes_under_way -= byte_count
            for bucket_id, row_count in block.row_counts:
                self.row_counts[block.table.partition_name, bucket_id] += row_count

    def _wait_for(self, block: Block) -> None:
        """Wait for one block, as long as any of the others make progress."""
        waited_from_s, done_count = monotonic(), -1
        while not block.done.done():
            done_now = self._done_count()
            if done_now != done_count:
                waited_from_s, done_count = monotonic(), done_now
            try:
                block.done.result(waited_from_s + self._idle_timeout_s - monotonic())
            except TimeoutError:
                if self._done_count() == done_count:
                    raise RequestTimeoutError(
                        f"Rows for {self._path} are not stored, and none were for {self._idle_timeout_s:g} s; the "
                        "server may be slow or away"
                    ) from None

    def _done_count(self) -> int:
        return sum(block.done.done() for block, _ in self._under_way)
