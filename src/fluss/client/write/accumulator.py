"""Collects rows until a batch of them is worth sending, within the memory for unsent data.

Rows go into open blocks. A block is closed when it is full, when its oldest row has waited long enough, when a thread
waits for memory, and when a writer is flushed. Closed blocks are handed on, in order per bucket.

Most rows are added by their callers alone (see ``blocks``). A caller that finds no room comes here. There is one lock,
held for a few steps only: never while waiting for memory, and never during callbacks.

``MemoryPool`` counts the bytes of unsent data, for everything that writes on one connection.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from time import monotonic
from typing import Final, NamedTuple

import pyarrow as pa

from fluss.client.write.blocks import FULL_RATIO, Block, PhysicalTable, RowDestination, StickyAssigner
from fluss.client.write.encoders import BY_KEY, TableEncoder
from fluss.client.write.row_layout import PACKED_ROW_OVERHEAD_BYTES
from fluss.errors import FlussError
from fluss.record.log_batch import BATCH_BYTES_MAX

# Memory is reserved in growing steps, so that thousands of slow partitions do not hold a whole batch each.
_RESERVATION_BYTES_MIN: Final = 16 * 1024
_RESERVATION_BYTES_MAX: Final = 256 * 1024
# A block with rows of all buckets may fill a batch for several of them.
_BUCKETS_PER_BLOCK_MAX: Final = 4
# Rows with keys cost the server much more than their sender, and it should not wait for a large batch with nothing to
# do. So the first of them is this small, and each is twice as large as the one before it until that one has ended.
_FIRST_KEYED_BLOCK_BYTES: Final = 256 * 1024
# Rows that are expected to shrink, or to go to several buckets, may exceed the target; but several blocks of them must
# fit into memory.
_MEMORY_SHARE: Final = 8
# How often a waiting thread has memory made free.
_WAIT_STEP_S: Final = 0.1


class Callbacks(NamedTuple):
    """What the accumulator calls, in any thread and without the lock. They must return soon."""

    # Blocks have been closed and are to be encoded.
    closed: Callable[[list[Block]], None]
    # A block has been opened when none was: ``close_expired`` has to be called some time.
    timer_needed: Callable[[], None]


class _Events:
    """What the callbacks are to be told once the lock is released."""

    __slots__ = ("closed", "needs_timer")

    def __init__(self) -> None:
        self.closed: list[Block] = []
        self.needs_timer = False


class Accumulator:
    """The open blocks of all tables of one connection. Any thread may use it."""

    def __init__(
        self, memory: MemoryPool, linger_s: float, callbacks: Callbacks, *, clock: Callable[[], float]
    ) -> None:
        self._memory = memory
        self._linger_s = linger_s
        self._callbacks = callbacks
        self._clock = clock
        self._lock = threading.Lock()
        # In the order in which they were opened, so the first one expires first.
        self._open: dict[Block, None] = {}
        self._open_bytes = 0
        # Blocks whose rows have no end yet, in the order in which they were made.
        self._incomplete: dict[Block, None] = {}
        self._is_closed = False

    # Taking rows in

    def append(self, destination: RowDestination, packed_row: bytes, hint: Block) -> Block:
        """Add a row to the block where it belongs, which may have to be opened; wait for memory if there is none.

        ``hint`` is the block that had no room. Returns the block that has the row now.
        """
        if len(packed_row) > BATCH_BYTES_MAX:
            raise FlussError(f"A row of {len(packed_row)} bytes fits no batch: the format allows {BATCH_BYTES_MAX}")
        bytes_needed = len(packed_row) + PACKED_ROW_OVERHEAD_BYTES
        granted_bytes = 0
        try:
            while True:
                events = _Events()
                try:
                    with self._lock:
                        block = self._block_for(destination, hint.bucket_id, len(packed_row), events)
                        if block.size_bytes + bytes_needed <= block.reserved_bytes + granted_bytes:
                            block.reserved_bytes += granted_bytes
                            self._open_bytes += granted_bytes
                            granted_bytes = 0
                            self._add(destination, block, packed_row, events)
                            return block
                finally:
                    self._tell(events)
                granted_bytes += self._reserve(block, bytes_needed)
        finally:
            self._memory.release(granted_bytes)

    def _reserve(self, block: Block, bytes_needed: int) -> int:
        """Reserve memory for a block: a little for a new one, then about as much as it has.

        Waiting closes all blocks. When the server is slow and memory full of unsent batches, each of which frees just
        a little, that could end in tiny batches. So no block is begun before unsent batches leave room for a whole one.
        """
        step_bytes = min(max(block.reserved_bytes, _RESERVATION_BYTES_MIN), _RESERVATION_BYTES_MAX)
        # For small rows, the objects around them take about as much as they do.
        whole_bytes = min(2 * self._full_bytes_of(block), self._memory.bytes_max)
        unsent_bytes = self._memory.used_bytes - self._open_bytes
        granted_bytes = 0
        if block.reserved_bytes or unsent_bytes + whole_bytes <= self._memory.bytes_max:
            granted_bytes = self._memory.try_reserve(bytes_needed, bytes_needed + step_bytes)
        return granted_bytes or self._memory.reserve(
            bytes_needed, bytes_needed + step_bytes, free_bytes_min=whole_bytes
        )

    def append_arrow(
        self, table: PhysicalTable, encoder: TableEncoder, batch: pa.RecordBatch, bucket_id: int | None, owner: object
    ) -> Block:
        """Take an Arrow batch as a block of its own; wait for memory if there is none."""
        reserved_bytes = self._memory.reserve(batch.nbytes)
        events = _Events()
        try:
            with self._lock:
                self._check_open()
                # Rows that were written before must be sent before.
                earlier = table.open.get(bucket_id)
                if earlier is not None:
                    self._close(earlier, events)
                block = Block(table, encoder, bucket_id, arrow=batch)
                block.owners.add(owner)
                block.reserved_bytes, reserved_bytes = reserved_bytes, 0
                self._incomplete[block] = None
                self._hand_on(block, events)
                return block
        finally:
            self._memory.release(reserved_bytes)
            self._tell(events)

    def take_back_late(self, block: Block, packed_row: bytes) -> bool:
        """Take a row out of a block that was closed while the row was added; False if it stays in there."""
        with self._lock:
            return block.take_late_row(packed_row)

    def _block_for(self, destination: RowDestination, bucket_id: int | None, row_bytes: int, events: _Events) -> Block:
        """Return an open block that is not full."""
        self._check_open()
        table = destination.table
        sticky = table.assigner if isinstance(table.assigner, StickyAssigner) else None
        if sticky is not None:
            bucket_id = sticky.bucket_id
        block = table.open.get(bucket_id)
        if block is not None:
            is_full = block.rows and _payload_bytes(block) + row_bytes > self._full_bytes_of(block)
            if block.encoder is destination.encoder and not is_full:
                return block
            self._close(block, events)
        if sticky is not None:
            bucket_id = sticky.move()
            other = table.open.get(bucket_id)
            if other is not None:
                self._close(other, events)
        block = Block(table, destination.encoder, bucket_id)
        if table.has_primary_key:
            block.full_bytes_max = _FIRST_KEYED_BLOCK_BYTES << min(len(self._incomplete), 8)
        block.open(self._clock())
        table.open[bucket_id] = block
        events.needs_timer = not self._open
        self._open[block] = self._incomplete[block] = None
        return block

    def _add(self, destination: RowDestination, block: Block, packed_row: bytes, events: _Events) -> None:
        block.rows.append(packed_row)
        block.size_bytes += len(packed_row) + PACKED_ROW_OVERHEAD_BYTES
        # Up to here rows may be added without asking: memory is reserved, and the block cannot be full before.
        room_bytes = max(self._full_bytes_of(block) - _payload_bytes(block), 0)
        block.limit_bytes = min(block.reserved_bytes, block.size_bytes + room_bytes)
        destination.remember(block)
        if self._memory.waiting_count:
            self._close(block, events)

    def full_bytes(self, table: PhysicalTable, bucket_id: int | None, *, full_ratio: float = FULL_RATIO) -> int:
        """Return how many bytes of rows make a batch, or several for rows by key, of the size that the table wants.

        The size of rows is an estimate, for which ``full_ratio`` leaves room; that of columns is known.
        """
        target_bytes = max(int(table.batch_size.target_bytes * full_ratio), 1)
        expanded_bytes = table.ratio.uncompressed(target_bytes)
        if bucket_id is BY_KEY:
            expanded_bytes *= min(table.bucket_count, _BUCKETS_PER_BLOCK_MAX)
        return max(target_bytes, min(expanded_bytes, self._memory.bytes_max // _MEMORY_SHARE))

    def _full_bytes_of(self, block: Block) -> int:
        full_bytes = self.full_bytes(block.table, block.bucket_id)
        return full_bytes if block.full_bytes_max is None else min(full_bytes, block.full_bytes_max)

    # Closing blocks

    def close_all(self) -> None:
        """Close every open block."""
        self._close_first(lambda block: True)

    def close_expired(self, now_s: float) -> float | None:
        """Close the blocks whose time is over; return when the next one is due, or None if no block is open."""
        self._close_first(lambda block: block.opened_at_s + self._linger_s <= now_s)
        with self._lock:
            oldest = next(iter(self._open), None)
            return None if oldest is None else oldest.opened_at_s + self._linger_s

    def shut(self) -> None:
        """Refuse everything from now on, and close every open block."""
        with self._lock:
            self._is_closed = True
        self.close_all()

    def _close_first(self, is_due: Callable[[Block], bool]) -> None:
        """Close blocks, the oldest first, up to the first one that is not due."""
        events = _Events()
        with self._lock:
            for block in list(takewhile(is_due, self._open)):
                self._close(block, events)
        self._tell(events)

    def _close(self, block: Block, events: _Events) -> None:
        table = block.table
        table.batch_size.observe(_payload_bytes(block) / self._full_bytes_of(block))
        block.close()
        del table.open[block.bucket_id]
        del self._open[block]
        self._open_bytes -= block.reserved_bytes
        self._hand_on(block, events)

    def _hand_on(self, block: Block, events: _Events) -> None:
        block.table.closed.append(block)
        events.closed.append(block)

    def _tell(self, events: _Events) -> None:
        if events.closed:
            self._callbacks.closed(events.closed)
        if events.needs_timer:
            self._callbacks.timer_needed()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FlussError("writer closed: rows can no longer be written on this connection")

    # What others need of closed blocks

    def take_rows(self, block: Block) -> list[bytes]:
        """Take the rows of a closed block."""
        with self._lock:
            return block.take_rows()

    def put_rows_back(self, block: Block, rows: list[bytes]) -> None:
        """Put rows back that were taken, so that they can be taken again."""
        with self._lock:
            block.rows[:0] = rows

    def incomplete(self, owner: object | None = None) -> list[Block]:
        """Return the blocks whose rows have no end yet: all, or those with rows of one writer."""
        with self._lock:
            return [block for block in self._incomplete if owner is None or owner in block.owners]

    def forget(self, block: Block) -> None:
        """The rows of a block have come to their end."""
        with self._lock:
            self._incomplete.pop(block, None)


def _payload_bytes(block: Block) -> int:
    """Return the bytes of the rows without what it costs to hold them one by one."""
    return block.size_bytes - PACKED_ROW_OVERHEAD_BYTES * len(block.rows)


class MemoryPool:
    """Counts bytes up to a limit; threads that need more wait, first come, first served. Any thread may use it.

    It hands out no buffers: owners allocate, and the pool bounds how much they do.
    """

    def __init__(
        self,
        bytes_max: int,
        wait_timeout_s: float,
        on_wait: Callable[[], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``on_wait`` is called by threads that wait, without any lock: it must make memory become free."""
        self._bytes_max = bytes_max
        self._wait_timeout_s = wait_timeout_s
        self._on_wait = on_wait
        self._clock = clock
        self._lock = threading.Lock()
        self._free_bytes = bytes_max
        self._waiters: deque[_Waiter] = deque()
        self._is_closed = False

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @property
    def used_bytes(self) -> int:
        return self._bytes_max - self._free_bytes

    @property
    def waiting_count(self) -> int:
        """How many threads wait for memory."""
        return len(self._waiters)

    def check_possible(self, bytes_needed: int) -> None:
        """Raise FlussError if there can never be that much."""
        if bytes_needed > self._bytes_max:
            raise FlussError(
                f"{bytes_needed} bytes in one piece exceeds total buffer memory limit of {self._bytes_max} bytes; "
                "raise 'writer.buffer.memory-size' or write smaller rows"
            )

    def try_reserve(self, bytes_needed: int, bytes_wanted: int) -> int:
        """Reserve what is wanted, or less, but at least what is needed; 0 if that would take waiting."""
        with self._lock:
            self._check_open()
            if self._waiters or self._free_bytes < bytes_needed:
                return 0
            return self._take(bytes_wanted)

    def reserve(self, bytes_needed: int, bytes_wanted: int = 0, *, free_bytes_min: int = 0) -> int:
        """Reserve what is wanted, or less, but at least what is needed; return how much it is.

        Waits until that much, and at least ``free_bytes_min``, is free, so that a caller that is going to need more
        does not begin with too little. Raises FlussError when there can never be that much, when it did not become free
        in time ("buffer exhausted"), and when the writer was closed. The caller must hold no lock that others need
        in order to give memory back.
        """
        self.check_possible(bytes_needed)
        bytes_wanted = max(bytes_wanted, bytes_needed)
        free_bytes_min = max(min(free_bytes_min, self._bytes_max), bytes_needed)
        with self._lock:
            self._check_open()
            if not self._waiters and self._free_bytes >= free_bytes_min:
                return self._take(bytes_wanted)
            waiter = _Waiter(bytes_wanted, free_bytes_min)
            self._waiters.append(waiter)
        return self._wait(waiter)

    def release(self, byte_count: int) -> None:
        """Give memory back."""
        if not byte_count:
            return
        with self._lock:
            self._free_bytes += byte_count
            assert self._free_bytes <= self._bytes_max, "more memory was given back than reserved"
            self._grant()

    def close(self) -> None:
        """Refuse from now on, and end all waits."""
        with self._lock:
            self._is_closed = True
            while self._waiters:
                self._waiters.popleft().turn.release()

    def _wait(self, waiter: _Waiter) -> int:
        deadline_s = self._clock() + self._wait_timeout_s
        try:
            while waiter.granted_bytes is None and not self._is_closed and (left_s := deadline_s - self._clock()) > 0:
                # Again and again, because others may have filled batches in the meantime.
                self._on_wait()
                waiter.turn.acquire(timeout=min(left_s, _WAIT_STEP_S))
        except BaseException:
            # For instance Ctrl-C.
            with self._lock:
                self._give_up(waiter)
            raise
        with self._lock:
            if waiter.granted_bytes is not None:
                return waiter.granted_bytes
            self._check_open()
            self._give_up(waiter)
        raise FlussError(
            f"buffer exhausted: no {waiter.free_bytes_min} bytes became free within {self._wait_timeout_s:g} s; the "
            "server may be slow or away. Raise 'writer.buffer.wait-timeout-ms' or 'writer.buffer.memory-size'"
        )

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.granted_bytes is not None:
            self._free_bytes += waiter.granted_bytes
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
        # Those behind may need less.
        self._grant()

    def _grant(self) -> None:
        while self._waiters and self._waiters[0].free_bytes_min <= self._free_bytes:
            waiter = self._waiters.popleft()
            waiter.granted_bytes = self._take(waiter.bytes_wanted)
            waiter.turn.release()

    def _take(self, bytes_wanted: int) -> int:
        taken_bytes = min(bytes_wanted, self._free_bytes)
        self._free_bytes -= taken_bytes
        return taken_bytes

    def _check_open(self) -> None:
        if self._is_closed:
            raise FlussError("writer closed: rows can no longer be written on this connection")


class _Waiter:
    """A thread that waits for memory; ``turn`` is locked until it has got some, or the pool is closed."""

    __slots__ = ("bytes_wanted", "free_bytes_min", "granted_bytes", "turn")

    def __init__(self, bytes_wanted: int, free_bytes_min: int) -> None:
        self.bytes_wanted = bytes_wanted
        self.free_bytes_min = free_bytes_min
        self.granted_bytes: int | None = None
        self.turn = threading.Lock()
        self.turn.acquire()
