"""Everything that is written on one connection, from the callers' rows to the acknowledged batches.

    caller       row -> packed row -> block (``blocks``, ``accumulator``); waits when memory is full;
                 full block -> Arrow columns (``row_layout``); with keys also encoded batches (``encoders``)
    worker       columns -> encoded batches per bucket (``encoders``); the event loop, if the rows are few
    event loop   batches in order -> requests -> answers (``sender``) -> the block has ended

Workers are few threads: most of their time they are in pyarrow and compression libraries, which run beside Python.
Blocks may be encoded out of order, so they are lined up again before their batches are sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime, outcome
from fluss.client.write.accumulator import Accumulator, Callbacks, MemoryPool
from fluss.client.write.arrow_input import slices
from fluss.client.write.batch import Batch
from fluss.client.write.blocks import BatchSize, Block, CompressionRatio, PhysicalTable, RowDestination, raise_first
from fluss.client.write.encoders import Encoded, KvEncoder, LogEncoder, TableEncoder
from fluss.client.write.gone_partitions import GonePartitions
from fluss.client.write.sender import Sender, SenderSettings
from fluss.errors import FlussError, RequestTimeoutError
from fluss.record.framing import load_crc32c
from fluss.row.bucketing import HashVariant
from fluss.schema.table import TableInfo

# As pyarrow.compute above: the first write would have to load it. This module is loaded when a writer is made.
load_crc32c()

K = TypeVar("K")
E = TypeVar("E", bound=TableEncoder)

_WORKERS_MAX: Final = 4
# Rows of so few bytes are encoded on the event loop: a worker would take longer to wake up.
_QUICK_BYTES_MAX: Final = 4 * 1024
# Blocks of so many bytes together are encoded in one go.
_GROUP_BYTES_MAX: Final = 1024 * 1024
# Failures that were not reported to any caller; beyond this many per table, the oldest are forgotten.
_FAILURES_MAX: Final = 1000
# Failures of one kind are logged so often, and of so many kinds.
_WARNING_INTERVAL_S: Final = 60.0
_WARNINGS_MAX: Final = 1000
# Tables that an error names.
_TABLES_SHOWN_MAX: Final = 3
# Schemas and choices of columns whose writers share batches.
_ENCODERS_MAX: Final = 1000
# Event loops do not like timers that are years away.
_TIMER_S_MAX: Final = 86_400.0

logger = logging.getLogger(__name__)


class WriterClient:
    """The one writer of a connection, shared by all writers of all its tables and by all threads."""

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.runtime = runtime
        self._cluster = cluster
        self._config = cluster.config
        self.hash_variant = cast("HashVariant", self._config.client_bucket_hash)
        # Read when the first batch is sent.
        self.sender_settings = SenderSettings.of(self._config)
        self._rng = rng or random.Random()
        self._clock = clock
        self._process_id = os.getpid()
        self.memory = MemoryPool(
            self._config.writer_buffer_memory_size,
            self._config.writer_buffer_wait_timeout_ms / 1000,
            self._close_blocks,
            clock=clock,
        )
        self.accumulator = Accumulator(
            self.memory,
            self._config.writer_batch_timeout_ms / 1000,
            Callbacks(closed=self._blocks_closed, timer_needed=self._ask_for_timer),
            clock=clock,
        )
        # Shared by threads, under the lock.
        self._lock = threading.Lock()
        self._log_encoders: dict[tuple[int, int, int], LogEncoder] = {}
        self._kv_encoders: dict[tuple[int, int, int, tuple[int, ...]], KvEncoder] = {}
        # As long as somebody has one, all others get the same.
        self._tables: WeakValueDictionary[tuple[int, str | None], PhysicalTable] = WeakValueDictionary()
        self._gone_partitions = GonePartitions(cluster, self._get_sender, self._partitions_of)
        self._ratios: dict[int, CompressionRatio] = {}
        self._workers: ThreadPoolExecutor | None = None
        # Belongs to the event loop.
        self._sender: Sender | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures: dict[int, deque[Block]] = {}
        # How many blocks have failed.
        self.failure_count = 0
        # When the next failure of a table and an error code is worth a warning.
        self._warning_due_at_s: dict[tuple[int, int], float] = {}
        self._is_closed = False

    # For writers, in any thread

    def log_encoder(self, info: TableInfo) -> LogEncoder:
        """Return the encoder of a log table; all writers of the same schema share one, and with it their batches."""
        key = info.table_id, info.schema_id, info.modified_time
        with self._lock:
            encoder = self._log_encoders.get(key)
            if encoder is None:
                encoder = LogEncoder(info, self.hash_variant)
                _keep(self._log_encoders, key, encoder)
            return encoder

    def kv_encoder(self, info: TableInfo, targets: tuple[int, ...]) -> KvEncoder:
        """Return the encoder of a table with a primary key; writers of the same columns share one."""
        key = info.table_id, info.schema_id, info.modified_time, targets
        with self._lock:
            encoder = self._kv_encoders.get(key)
            if encoder is None:
                encoder = KvEncoder(
                    info, self.hash_variant, targets=targets, batch_bytes_max=self._config.writer_batch_size
                )
                _keep(self._kv_encoders, key, encoder)
            return encoder

    def destination(self, encoder: TableEncoder, partition_name: str | None, owner: object) -> RowDestination:
        """Return where rows of a table go, or of one of its partitions, of the writer that ``owner`` stands for."""
        return self.physical_table(encoder, partition_name).destination(encoder, owner)

    def check_sizes(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that are larger than all memory there is."""
        for piece in slices(batch, self.memory.bytes_max):
            self.memory.check_possible(piece.nbytes)

    def write_arrow(
        self,
        encoder: TableEncoder,
        batch: pa.RecordBatch,
        owner: object,
        check_partitions: Callable[[Iterable[str]], None] | None = None,
    ) -> list[Block]:
        """Write an Arrow batch that has been checked; waits while memory is full. Without rows there are no blocks.

        ``owner`` stands for the writer. ``check_partitions`` may refuse the partitions of the rows, by name, before
        anything is written.
        """
        if not batch.num_rows:
            return []
        parts: Sequence[tuple[str | None, pa.RecordBatch]] = [(None, batch)]
        if encoder.partitions is not None:
            parts = split = encoder.partitions.split(batch)
            if check_partitions is not None:
                check_partitions(name for name, _ in split)
        blocks: list[Block] = []
        for partition_name, part in parts:
            table = self.physical_table(encoder, partition_name)
            bucket_id = table.bucket_for_arrow()
            blocks += (
                self.accumulator.append_arrow(table, encoder, piece, bucket_id, owner)
                for piece in slices(part, self.accumulator.full_bytes(table, bucket_id, full_ratio=1.0))
            )
        return blocks

    def physical_table(self, encoder: TableEncoder, partition_name: str | None) -> PhysicalTable:
        """Return what everything on this connection knows about a table, or about one of its partitions."""
        table_id = encoder.info.table_id
        with self._lock:
            table = self._tables.get((table_id, partition_name))
            is_new = table is None
            if table is None:
                config = self._config
                batch_size = BatchSize(
                    config.effective_dynamic_batch_size_min,
                    config.writer_batch_size,
                    is_dynamic=config.writer_dynamic_batch_size_enabled,
                )
                table = self._tables[table_id, partition_name] = PhysicalTable(
                    encoder,
                    partition_name,
                    assigner_name=config.writer_bucket_no_key_assigner,
                    batch_size=batch_size,
                    ratio=self._ratios.setdefault(table_id, CompressionRatio()),
                    rng=self._rng,
                )
        if is_new and partition_name is not None and self._gone_partitions.is_due(table_id):
            self._call_on_loop(self._gone_partitions.look, encoder.info)
        return table

    @property
    def forgotten_count(self) -> int:
        """How often partitions were found to be gone, which writers need not keep either."""
        return self._gone_partitions.forgotten_count

    def _partitions_of(self, table_id: int) -> list[PhysicalTable]:
        with self._lock:
            return [table for table in self._tables.values() if table.table_id == table_id and table.partition_name]

    # From the accumulator, in any thread

    def _close_blocks(self) -> None:
        self.accumulator.close_all()

    def _blocks_closed(self, blocks: list[Block]) -> None:
        """Have blocks encoded. Small ones that were closed together stay together, and so do their batches."""
        # Those that neither are encoded nor wait for a worker.
        left = dict.fromkeys(blocks)
        try:
            self._hand_on(left)
        except BaseException:
            # For instance Ctrl-C. Their rows were taken, and all rows that come later would wait for them.
            self._submit(list(left))
            raise

    def _hand_on(self, left: dict[Block, None]) -> None:
        """Encode blocks or leave that to workers, and take them out of ``left``.

        Turning rows into columns takes many short steps under the interpreter's lock, and so does encoding them with
        their keys. The thread that filled the block does that best: a worker would have to wait for it at each of them.
        The rest runs beside Python.
        """
        if not self._is_on_loop():
            stepwise = [block for block in left if block.arrow is None and block.encoder.is_stepwise]
            if stepwise:
                self._encode(stepwise)
                _remove(left, stepwise)
            for block in left:
                self._make_columns(block)
        while left:
            group: list[Block] = []
            group_bytes = 0
            for block in left:
                if group and group_bytes + block.reserved_bytes > _GROUP_BYTES_MAX:
                    break
                group.append(block)
                group_bytes += block.reserved_bytes
            self._work_on(group)
            _remove(left, group)

    def _make_columns(self, block: Block) -> None:
        """Turn the rows of a block into columns, or a few of them into a batch at once."""
        if block.arrow is None and block.encoded is None:
            rows = self.accumulator.take_rows(block)
            try:
                block.encoded = block.encoder.encode_few(rows, block.bucket_id)
                if block.encoded is None:
                    block.arrow = block.encoder.layout.to_arrow(rows)
            except Exception as error:
                block.encoded = _encoding_failure(block, error)
            except BaseException:
                # A worker makes them.
                self.accumulator.put_rows_back(block, rows)
                raise

    def _work_on(self, blocks: list[Block]) -> None:
        if self._is_on_loop():
            is_quick = (
                all(block.arrow is None for block in blocks)
                and sum(block.size_bytes for block in blocks) <= _QUICK_BYTES_MAX
            )
        else:
            # One copy of the rows.
            is_quick = not any(block.encoder.is_slow for block in blocks)
        if is_quick:
            # Sooner done than handed over.
            self._encode(blocks)
            return
        self._submit(blocks)

    def _submit(self, blocks: list[Block]) -> None:
        try:
            self._worker_pool().submit(self._encode, blocks)
        except RuntimeError:
            # The interpreter is about to end and has no threads any more.
            self._encode(blocks)

    def _worker_pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._workers is None:
                count = min(_WORKERS_MAX, os.cpu_count() or 1)
                self._workers = ThreadPoolExecutor(count, thread_name_prefix="fluss-writer")
            return self._workers

    def _ask_for_timer(self) -> None:
        self._call_on_loop(self._check_time)

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.runtime.loop
        except RuntimeError:
            return False

    def _call_on_loop(self, function: Callable[..., Any], *args: Any) -> None:
        if self._process_id != os.getpid():
            raise FlussError(
                "this writer was made before the process forked and cannot be used in the child; "
                "create a new connection here"
            )
        try:
            self.runtime.loop.call_soon_threadsafe(function, *args)
        except RuntimeError as error:
            raise FlussError("the writer cannot be used any more: the interpreter is shutting down") from error

    # In a worker, or where the rows came from

    def _encode(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._make_columns(block)
            if block.encoded is None:
                block.encoded = self._encoded_batches(block)
            block.arrow = None
        tables = {block.table: None for block in blocks}
        if self._is_on_loop():
            self._blocks_encoded(tables)
        else:
            self._call_on_loop(self._blocks_encoded, tables)

    def _encoded_batches(self, block: Block) -> Encoded | FlussError:
        batch = block.arrow
        assert batch is not None
        try:
            encoded = block.encoder.encode(batch, block.bucket_id)
        except Exception as error:
            return _encoding_failure(block, error)
        block.table.ratio.observe(batch.nbytes, sum(records.size_bytes for _, records in encoded))
        return encoded

    # On the event loop

    def _check_time(self) -> None:
        """Close the blocks whose time is over, and come back when the next one's is."""
        if self._timer is None:
            self._next_timer()

    def _next_timer(self) -> None:
        self._timer = None
        now_s = self._clock()
        due_at_s = self.accumulator.close_expired(now_s)
        if due_at_s is not None:
            self._timer = self.runtime.loop.call_later(min(due_at_s - now_s, _TIMER_S_MAX), self._next_timer)

    def _blocks_encoded(self, tables: Iterable[PhysicalTable]) -> None:
        """Send the batches of the blocks that are encoded, of each table up to the first one that is not."""
        for table in tables:
            while table.closed and table.closed[0].encoded is not None:
                self._send(table.closed.popleft())

    def _send(self, block: Block) -> None:
        encoded = block.encoded
        if isinstance(encoded, FlussError):
            block.fail(encoded)
            self._block_ended(block)
            return
        assert encoded is not None
        # The bytes that are left belong to the block until they are stored.
        on_done = partial(self._batch_ended, block)
        batches = [Batch(records, bucket_id, on_done) for bucket_id, records in encoded]
        block.row_counts = [(bucket_id, records.record_count) for bucket_id, records in encoded]
        bytes_kept = sum(batch.size_bytes for batch in batches)
        self._release(block, block.reserved_bytes - bytes_kept)
        block.encoded = None
        block.expect_parts(len(batches))
        if not batches:
            self._block_ended(block)
        for batch in batches:
            self._get_sender().add(block.table, batch)

    def _batch_ended(self, block: Block, batch: Batch, error: FlussError | None) -> None:
        self._release(block, batch.size_bytes)
        block.part_done(batch.bucket_id, error)
        if block.done.done():
            self._block_ended(block)

    def _block_ended(self, block: Block) -> None:
        self._release(block, block.reserved_bytes)
        self.accumulator.forget(block)
        if block.error is not None:
            self._log_failure(block, block.error)
            self.failure_count += 1
            self._failures.setdefault(block.table.table_id, deque(maxlen=_FAILURES_MAX)).append(block)

    def _log_failure(self, block: Block, error: FlussError) -> None:
        """Say what became of rows, once in a while for each kind of failure: every handle and flush says it, too."""
        kind = block.table.table_id, error.error_code
        now_s = self._clock()
        due_at_s = self._warning_due_at_s.get(kind, now_s)
        if now_s < due_at_s:
            logger.debug("rows for %s were not stored: %s", block.table.name, error)
            return
        if len(self._warning_due_at_s) >= _WARNINGS_MAX:
            self._warning_due_at_s.clear()
        self._warning_due_at_s[kind] = now_s + _WARNING_INTERVAL_S
        logger.warning("rows for %s were not stored: %s", block.table.name, error)

    def _release(self, block: Block, byte_count: int) -> None:
        # A batch that grew when it was encoded has more bytes than were reserved.
        byte_count = max(min(byte_count, block.reserved_bytes), 0)
        block.reserved_bytes -= byte_count
        self.memory.release(byte_count)

    def _get_sender(self) -> Sender:
        if self._sender is None:
            self._sender = Sender(self._cluster, self.sender_settings)
        return self._sender

    # On the event loop: the end

    async def flush(self, owner: object, table_id: int, timeout_s: float | None = None) -> list[Block]:
        """Send everything that was written before, on this connection, and wait for the rows of one writer.

        Returns the blocks of them that have failed, and those from before whose failure the writer has not been told:
        it is to ``raise_first`` of them. Without any, it raises RequestTimeoutError after ``timeout_s``; the rows are
        sent even so.
        """
        if self._is_closed:
            raise FlussError("writer closed: there is nothing left to send on this connection")
        self.accumulator.close_all()
        blocks = self.accumulator.incomplete(owner)
        is_in_time = await _ended(blocks, timeout_s)
        before = self._failures.get(table_id, ())
        untold = [block for block in before if owner in block.owners and owner not in block.told]
        failed = [block for block in blocks if block.error is not None]
        if not (failed or untold or is_in_time):
            raise RequestTimeoutError(
                f"flush timed out: {self._unfinished(blocks)} not stored within {timeout_s:g} s; the rows are still "
                "being sent, and another flush waits for them"
            )
        return [*failed, *untold]

    def _unfinished(self, blocks: Sequence[Block]) -> str:
        """Say what of some blocks has no end yet, and why."""
        left = [block for block in blocks if not block.done.done()]
        tables = {block.table: None for block in left}
        reason = None if self._sender is None else self._sender.trouble_of(tables)
        names = ", ".join(table.name for table in list(tables)[:_TABLES_SHOWN_MAX])
        more = "" if len(tables) <= _TABLES_SHOWN_MAX else f" and {len(tables) - _TABLES_SHOWN_MAX} more"
        batches = "a batch" if len(left) == 1 else f"{len(left)} batches"
        why = "" if reason is None else f" ({reason})"
        return f"{batches} of {names}{more}{why} {'was' if len(left) == 1 else 'were'}"

    async def close(self, timeout_s: float) -> None:
        """Refuse new rows, send everything that was written, and stop; what is not stored in time fails.

        Raises the first failure. Does nothing the second time.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.memory.close()
        self.accumulator.shut()
        blocks = self.accumulator.incomplete()
        too_late = FlussError("writer closed: the rows were not stored in time")
        if not await _ended(blocks, timeout_s):
            too_late = FlussError(f"writer closed: {self._unfinished(blocks)} not stored within {timeout_s:g} s")
        # Also ends the batches that are still being encoded, when they come.
        await self._get_sender().close(too_late)
        await self._gone_partitions.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._workers is not None:
            self._workers.shutdown(wait=False)
        raise_first(blocks)
        if not all(block.done.done() for block in blocks):
            raise too_late


def _keep(encoders: dict[K, E], key: K, encoder: E) -> None:
    """Remember an encoder; beyond the limit the oldest is forgotten, and new writers no longer share its batches."""
    if len(encoders) >= _ENCODERS_MAX:
        del encoders[next(iter(encoders))]
    encoders[key] = encoder


def _remove(blocks: dict[Block, None], some: Iterable[Block]) -> None:
    for block in some:
        del blocks[block]


def _encoding_failure(block: Block, error: Exception) -> FlussError:
    if isinstance(error, FlussError):
        return error
    # A fault of the client itself: the writers must not be left waiting because of it.
    logger.error("rows for %s cannot be encoded", block.table.name, exc_info=error)
    return FlussError(f"the rows cannot be encoded: {type(error).__name__}: {error}")


async def _ended(blocks: Sequence[Block], timeout_s: float | None) -> bool:
    """Wait for the end of blocks; return whether it came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            for block in blocks:
                await outcome(block.done)
    except TimeoutError:
        return False
    return True
