"""Rows that were taken together: they fill up in the caller's hands, are encoded at once, and end together.

A block of rows belongs to one bucket of one table, or, if the bucket depends on the key of each row, to all of them;
then it becomes a batch, or several, per bucket that it touches.

Appending must cost next to nothing, so it takes no lock. What makes that safe:

- ``list.append`` is one step: two threads never lose a row to each other.
- A block is closed by setting ``limit_bytes`` below zero. An appender looks at the limit before it adds a row, and
  again afterwards. If the block is still open then, the row was there before the block was closed, so whoever takes
  the rows finds it.
- If the block has been closed by then, the row may have come too late. Taking the rows and finding out happen under
  the accumulator's lock: a late row is still in the list, and moves to another block.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fluss.client.write.table_encoder import Encoded, TableEncoder
from fluss.errors import FlussError

if TYPE_CHECKING:
    from fluss.client.write.physical_table import PhysicalTable

CLOSED: Final = -1


class Block:
    """Rows on their way to the server, and how that ended for them. Implements ``Write``."""

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
        "is_reported",
        "limit_bytes",
        "opened_at_s",
        "reserved_bytes",
        "row_counts",
        "rows",
        "size_bytes",
        "table",
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
        self.is_reported = False
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
        """Take all rows out of a closed block, once."""
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
        self.is_reported = True
