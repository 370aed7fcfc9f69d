"""Rows that were taken together, and the tables that they wait for.

A ``Block`` fills up in the caller's hands, is encoded at once, and ends with all its rows. It belongs to one bucket of
one ``PhysicalTable``, or, if the bucket depends on the key of each row, to all of them; then it becomes a batch, or
several, per bucket that it touches. A ``RowDestination`` is where the next row of a writer goes.

Appending must cost next to nothing, so it takes no lock. What makes that safe:

- ``list.append`` is one step: two threads never lose a row to each other.
- A block is closed by setting ``limit_bytes`` below zero. An appender looks at the limit before it adds a row, and
  again afterwards. If the block is still open then, the row was there before the block was closed, so the thread that
  takes the rows finds it.
- If the block has been closed by then, the row may have come too late. Taking the rows and finding out happen under
  the accumulator's lock: a late row is still in the list, and moves to another block.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from fluss.client.write.encoders import BY_KEY, Encoded, TableEncoder
from fluss.errors import FlussError
from fluss.schema.table import TablePath

CLOSED: Final = -1

# The value of ``writer.bucket.no-key-assigner`` that is not the default.
ROUND_ROBIN: Final = "round_robin"

# A batch counts as full a little below its target, so that the estimate may be a little too low.
FULL_RATIO: Final = 0.95

_GROWS_ABOVE: Final = 0.8
_GROWTH: Final = 1.1
_SHRINKS_BELOW: Final = 0.5
_SHRINKAGE: Final = 0.95

_RATIO_STEP_UP: Final = 0.05
_RATIO_STEP_DOWN: Final = 0.005
# However well a table compresses, a batch never holds more than this many times its target: rows wait uncompressed.
_EXPANSION_MAX: Final = 4.0


class Block:
    """Rows on their way to the server, and how that ended for them. Implements ``PendingWrite``."""

    __slots__ = (
        "_errors_by_bucket",
        "_is_taken",
        "_parts_left",
        "arrow",
        "bucket_id",
        "done",
        "encoded",
        "encoder",
        "error",
        "full_bytes_max",
        "limit_bytes",
        "opened_at_s",
        "owners",
        "reserved_bytes",
        "row_counts",
        "rows",
        "size_bytes",
        "table",
        "told",
    )

    def __init__(
        self,
        table: PhysicalTable,
        encoder: TableEncoder,
        bucket_id: int | None,
        *,
        arrow: pa.RecordBatch | None = None,
    ) -> None:
        """Make a block that takes no rows, until it is opened. ``bucket_id`` None is by key."""
        self.table = table
        self.encoder = encoder
        self.bucket_id = bucket_id
        # Packed rows, or an Arrow batch.
        self.rows: list[bytes] = []
        self.arrow = arrow
        # Memory of the rows in the list, up to which limit rows may be added, and what the pool knows of.
        self.size_bytes = 0
        self.limit_bytes = CLOSED
        self.reserved_bytes = 0
        # The block is full with so many bytes of rows at the latest.
        self.full_bytes_max: int | None = None
        self.opened_at_s = 0.0
        self._is_taken = False
        # What became of the rows, between the worker and the event loop.
        self.encoded: Encoded | FlussError | None = None
        # The bucket and the number of rows of each batch, once they are known.
        self.row_counts: list[tuple[int, int]] = []
        self.done: Future[None] = Future()
        self.error: FlussError | None = None
        # The writers of its rows, under the accumulator's lock until the block is closed; and those of them that have
        # been told of a failure.
        self.owners: set[object] = set()
        self.told: set[object] = set()
        self._parts_left = 1
        self._errors_by_bucket: dict[int, FlussError] | None = None

    @property
    def is_open(self) -> bool:
        return self.limit_bytes >= 0

    # Under the accumulator's lock

    def open(self, now_s: float) -> None:
        """Take rows, as soon as there is memory for some."""
        self.limit_bytes = 0
        self.opened_at_s = now_s

    def close(self) -> None:
        self.limit_bytes = CLOSED

    def take_rows(self) -> list[bytes]:
        """Take all rows out of a closed block."""
        assert not self.is_open
        self._is_taken = True
        taken = self.rows[:]
        # Rows that are added between these two lines, too late, stay.
        del self.rows[: len(taken)]
        return taken

    def take_late_row(self, packed_row: bytes) -> bool:
        """Take back a row that came after the others had been taken; False if it was taken with them, or will be."""
        if self._is_taken:
            for index, row in enumerate(self.rows):
                if row is packed_row:
                    del self.rows[index]
                    return True
        return False

    # On the event loop

    def expect_parts(self, count: int) -> None:
        """The block has become so many batches; ``part_done`` is called for each."""
        self._parts_left = count
        if not count:
            self.done.set_result(None)

    def part_done(self, bucket_id: int, error: FlussError | None) -> None:
        """One of the batches has ended."""
        if error is not None:
            self.error = self.error or error
            if self._errors_by_bucket is None:
                self._errors_by_bucket = {}
            self._errors_by_bucket[bucket_id] = error
        self._parts_left -= 1
        if self._parts_left == 0:
            self.done.set_result(None)

    def fail(self, error: FlussError) -> None:
        """End a block that never became batches."""
        self.error = error
        self.done.set_result(None)

    # Anywhere

    def error_of(self, packed_row: bytes | None) -> FlussError | None:
        if self._errors_by_bucket is None or packed_row is None:
            return self.error
        return self._errors_by_bucket.get(self.encoder.bucket_of(packed_row))

    def mark_reported(self) -> None:
        # A handle does not say whose it is. If there are several writers, all of them learn of the failure by a flush.
        if len(self.owners) == 1:
            self.told |= self.owners


def raise_first(blocks: Iterable[Block], owner: object | None = None) -> None:
    """Raise the first failure, to one of the writers of the rows, which is then told of none of them again, or to all.

    A writer calls this where its caller waits: a flush that was cancelled before has told nobody.
    """
    failed = [block for block in blocks if block.error is not None]
    if owner is not None:
        for block in failed:
            block.told.add(owner)
    if failed:
        error = failed[0].error
        assert error is not None
        raise error.copied()


class PhysicalTable:
    """What is open and what is on its way for one table or partition, in all its buckets.

    Shared by all writers of the table on one connection, whatever schema they write.
    """

    def __init__(
        self,
        encoder: TableEncoder,
        partition_name: str | None,
        *,
        assigner_name: str,
        batch_size: BatchSize,
        ratio: CompressionRatio,
        rng: random.Random,
    ) -> None:
        self.info = info = encoder.info
        self.path: TablePath = info.table_path
        self.table_id = info.table_id
        self.bucket_count = info.num_buckets
        self.has_primary_key = info.has_primary_key()
        self.partition_name = partition_name
        # Whether it was a partition that there was not any more when the coordinator was asked.
        self.is_gone = False
        self.batch_size = batch_size
        self.ratio = ratio
        self.assigner: StickyAssigner | RoundRobinAssigner | None = None
        if not encoder.has_rows_by_key:
            assigner = RoundRobinAssigner if assigner_name == ROUND_ROBIN else StickyAssigner
            self.assigner = assigner(info.num_buckets, rng)
        # Blocks that take rows, by bucket or ``BY_KEY``. Under the accumulator's lock.
        self.open: dict[int | None, Block] = {}
        # Blocks that take no more rows and are not encoded yet, or wait for one before them, in the order in which
        # their batches are to be sent.
        self.closed: deque[Block] = deque()

    @property
    def name(self) -> str:
        return str(self.path) if self.partition_name is None else f"{self.path} partition '{self.partition_name}'"

    def prefer_buckets(self, buckets: Collection[int]) -> None:
        """Put rows that may go anywhere into these buckets, as long as there are any."""
        if isinstance(self.assigner, StickyAssigner):
            self.assigner.prefer(buckets)

    def bucket_for_arrow(self) -> int | None:
        """Choose the bucket of a whole Arrow batch."""
        match self.assigner:
            case StickyAssigner():
                return self.assigner.move()
            case RoundRobinAssigner():
                return self.assigner.take()
        return BY_KEY

    def destination(self, encoder: TableEncoder, owner: object) -> RowDestination:
        """Return where rows of one schema go, of the writer that ``owner`` stands for."""
        if isinstance(self.assigner, RoundRobinAssigner):
            return RoundRobinDestination(self, encoder, owner, self.assigner)
        return RowDestination(self, encoder, owner)


class RowDestination:
    """Where rows of one schema go in one physical table.

    ``block`` is where the next row probably goes: a writer that finds it closed or full asks the accumulator.
    """

    __slots__ = ("block", "encoder", "owner", "table")

    def __init__(self, table: PhysicalTable, encoder: TableEncoder, owner: object) -> None:
        self.table = table
        self.encoder = encoder
        self.owner = owner
        # A closed block stands for none.
        self.block = Block(table, encoder, BY_KEY)

    def remember(self, block: Block) -> None:
        """Note which block has taken a row, and will take more. Under the accumulator's lock."""
        block.owners.add(self.owner)
        self.block = block


class RoundRobinDestination(RowDestination):
    """Where rows go that are put into the buckets in turn."""

    __slots__ = ("_assigner", "_blocks")

    def __init__(
        self, table: PhysicalTable, encoder: TableEncoder, owner: object, assigner: RoundRobinAssigner
    ) -> None:
        self.table = table
        self.encoder = encoder
        self.owner = owner
        self._assigner = assigner
        self._blocks = [Block(table, encoder, bucket_id) for bucket_id in range(table.bucket_count)]

    @property
    def block(self) -> Block:  # type: ignore[override]  # read only, and another one each time
        return self._blocks[self._assigner.take()]

    def remember(self, block: Block) -> None:
        assert block.bucket_id is not None, "every row has been given a bucket"
        block.owners.add(self.owner)
        self._blocks[block.bucket_id] = block


class StickyAssigner:
    """Stays with a bucket until its batch is closed, so that batches get full; then another one, at random."""

    def __init__(self, bucket_count: int, rng: random.Random) -> None:
        self._rng = rng
        self._all_buckets = range(bucket_count)
        self._available: Collection[int] = self._all_buckets
        self.bucket_id = rng.randrange(bucket_count)

    def prefer(self, buckets: Collection[int]) -> None:
        """Choose from these buckets, because the others have no leader. If there are none, choose from all."""
        self._available = buckets or self._all_buckets

    def move(self) -> int:
        """Choose another bucket, if there is another one to choose."""
        others = [bucket_id for bucket_id in self._available if bucket_id != self.bucket_id]
        self.bucket_id = self._rng.choice(others or list(self._available))
        return self.bucket_id


class RoundRobinAssigner:
    """Takes the next bucket for every row, or for every Arrow batch; the first one is random."""

    def __init__(self, bucket_count: int, rng: random.Random) -> None:
        self._bucket_count = bucket_count
        self._next = rng.randrange(bucket_count)

    def take(self) -> int:
        bucket_id = self._next
        self._next = (bucket_id + 1) % self._bucket_count
        return bucket_id


class BatchSize:
    """The size in bytes at which batches of one table, or of one partition of it, are sent.

    Batches that leave half empty make it smaller, full ones larger again, between the two limits.
    """

    def __init__(self, bytes_min: int, bytes_max: int, *, is_dynamic: bool) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._is_dynamic = is_dynamic
        self.target_bytes = bytes_max

    def observe(self, fill_ratio: float) -> None:
        """A batch was closed that had reached so much of its target."""
        if not self._is_dynamic:
            return
        if fill_ratio > _GROWS_ABOVE:
            self.target_bytes = min(int(self.target_bytes * _GROWTH), self._bytes_max)
        elif fill_ratio < _SHRINKS_BELOW:
            self.target_bytes = max(int(self.target_bytes * _SHRINKAGE), self._bytes_min)


class CompressionRatio:
    """How many bytes are left of one byte in the batches of a table; careful to believe in good news."""

    def __init__(self) -> None:
        self.ratio = 1.0

    def observe(self, bytes_before: int, bytes_after: int) -> None:
        """A batch was compressed."""
        observed = bytes_after / max(bytes_before, 1)
        if observed > self.ratio:
            self.ratio = max(observed, self.ratio + _RATIO_STEP_UP)
        else:
            self.ratio = max(observed, self.ratio - _RATIO_STEP_DOWN)

    def uncompressed(self, byte_count: int) -> int:
        """Estimate how many bytes become so many."""
        return int(byte_count * min(1 / max(self.ratio, 1e-6), _EXPANSION_MAX))
