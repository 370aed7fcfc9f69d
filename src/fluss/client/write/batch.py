"""An encoded batch on its way to its bucket, and the queue of those that wait to be sent to the same bucket."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from fluss.buffers import BytesLike
from fluss.client.kernel.retry import Backoff, RetryPolicy
from fluss.client.write.blocks import PhysicalTable
from fluss.client.write.encoders import EncodedBatch
from fluss.errors import FlussError
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID

_BY_ORDER = attrgetter("order")


class BucketSequences:
    """The numbers of one writer in one bucket."""

    __slots__ = ("acknowledged", "in_flight", "next")

    def __init__(self) -> None:
        self.next = 0
        self.acknowledged = NO_BATCH_SEQUENCE
        # Batches that have a number and no end yet, by number: those on their way, and those to be sent again.
        self.in_flight: list[Batch] = []


class Batch:
    """Bytes to be written, and what the sender knows about them. Belongs to the event loop.

    The header names writer and sequence, and its checksum covers everything, so it is made when the batch is sent;
    and again when a failure before it has changed the sequence.
    """

    __slots__ = (
        "_on_done",
        "_sealed_as",
        "attempts",
        "bucket_id",
        "is_reset",
        "order",
        "parts",
        "queued_at_s",
        "records",
        "sequence",
        "sequences",
        "size_bytes",
        "targets",
        "writer_id",
    )

    def __init__(self, records: EncodedBatch, bucket_id: int, on_done: Callable[[Batch, FlussError | None], None]):
        self.records = records
        self.bucket_id = bucket_id
        # What its request must say about the columns that are written; None for a log.
        self.targets = records.targets
        self._on_done = on_done
        self.size_bytes = records.size_bytes
        # The bytes as they are sent; valid after ``seal``.
        self.parts: list[BytesLike] = []
        # The place among the batches of its bucket, also when it comes back.
        self.order = 0
        self.queued_at_s = 0.0
        # How often the batch was put back after a failure.
        self.attempts = 0
        self.writer_id = NO_WRITER_ID
        self.sequence = NO_BATCH_SEQUENCE
        # The sequence numbers it was counted with; None before it was first sent.
        self.sequences: BucketSequences | None = None
        # Whether the sequence has been changed since the server last saw it.
        self.is_reset = False
        self._sealed_as: tuple[int, int] | None = None

    def seal(self) -> None:
        """Make the header for the current writer and sequence."""
        if self._sealed_as == (self.writer_id, self.sequence):
            return
        self._sealed_as = self.writer_id, self.sequence
        self.is_reset = False
        self.parts = self.records.sealed(self.writer_id, self.sequence)

    def end(self, error: FlussError | None = None) -> None:
        """Report the end to the owner of the rows, once."""
        self._on_done(self, error)


class BucketQueue:
    """The batches of one bucket in the order in which they must arrive. Belongs to the event loop."""

    __slots__ = ("_order_next", "backoff", "bucket_id", "table", "waiting")

    def __init__(self, table: PhysicalTable, bucket_id: int, retry: RetryPolicy) -> None:
        self.table = table
        self.bucket_id = bucket_id
        self.waiting: list[Batch] = []
        self.backoff = Backoff(retry)
        self._order_next = 0

    def add(self, batch: Batch, now_s: float) -> None:
        """Put a new batch at the end."""
        batch.order = self._order_next
        batch.queued_at_s = now_s
        self._order_next += 1
        self.waiting.append(batch)

    def put_back(self, batch: Batch) -> None:
        """Put a batch that has to be sent again where it was, before all that came after it."""
        insort(self.waiting, batch, key=_BY_ORDER)
