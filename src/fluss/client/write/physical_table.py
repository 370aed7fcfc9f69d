"""A table, or one partition of it, as the writer sees it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection

from fluss.client.write.assigner import ROUND_ROBIN, RoundRobinAssigner, StickyAssigner
from fluss.client.write.batch_size import BatchSize, CompressionRatio
from fluss.client.write.block import Block
from fluss.client.write.table_encoder import BY_KEY, TableEncoder
from fluss.schema.table import TablePath


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
        info = encoder.info
        self.path: TablePath = info.table_path
        self.table_id = info.table_id
        self.bucket_count = info.num_buckets
        self.has_primary_key = info.has_primary_key()
        self.partition_name = partition_name
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

    def lane(self, encoder: TableEncoder) -> Lane:
        """Return the way in for rows of one schema."""
        if isinstance(self.assigner, RoundRobinAssigner):
            return RoundRobinLane(self, encoder, self.assigner)
        return Lane(self, encoder)


class Lane:
    """The way of rows of one schema into one physical table.

    ``block`` is where the next row probably goes: whoever finds it closed, or of no room, asks the accumulator.
    """

    __slots__ = ("block", "encoder", "table")

    def __init__(self, table: PhysicalTable, encoder: TableEncoder) -> None:
        self.table = table
        self.encoder = encoder
        # A closed block stands for none.
        self.block = Block(table, encoder, BY_KEY)

    def remember(self, block: Block) -> None:
        self.block = block


class RoundRobinLane(Lane):
    """The way of rows that go to the buckets in turn."""

    __slots__ = ("_assigner", "_blocks")

    def __init__(self, table: PhysicalTable, encoder: TableEncoder, assigner: RoundRobinAssigner) -> None:
        self.table = table
        self.encoder = encoder
        self._assigner = assigner
        self._blocks = [Block(table, encoder, bucket_id) for bucket_id in range(table.bucket_count)]

    @property
    def block(self) -> Block:  # type: ignore[override]  # read only, and another one each time
        return self._blocks[self._assigner.take()]

    def remember(self, block: Block) -> None:
        assert block.bucket_id is not None, "every row has been given a bucket"
        self._blocks[block.bucket_id] = block
