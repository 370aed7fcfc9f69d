"""One encoded batch on its way to one bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluss.buffers import BytesLike
from fluss.client.write.table_encoder import EncodedRecords
from fluss.errors import FlussError
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID

if TYPE_CHECKING:
    from fluss.client.write.idempotence import BucketSequences


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

    def __init__(self, records: EncodedRecords, bucket_id: int, on_done: Callable[[Batch, FlussError | None], None]):
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
