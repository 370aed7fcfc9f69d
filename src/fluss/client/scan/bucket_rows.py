"""Rows that were read and are kept: by bucket, so that those of one can be forgotten and read again."""

from __future__ import annotations

import pyarrow as pa

from fluss.client.scan.records import RecordRun
from fluss.schema.table import TableBucket


class BucketRows:
    """Keeps at most ``row_limit`` rows, in the order of the buckets and not of their arrival."""

    def __init__(self, buckets: list[TableBucket], row_limit: int | None) -> None:
        self._batches: dict[TableBucket, list[pa.RecordBatch]] = {bucket: [] for bucket in buckets}
        self._rows_left = row_limit

    @property
    def is_full(self) -> bool:
        return self._rows_left == 0

    def add(self, run: RecordRun) -> None:
        """Take in further rows of a bucket; nothing if it is full."""
        batch = run.batch
        assert batch is not None
        if self._rows_left is not None:
            batch = batch.slice(0, self._rows_left)
            self._rows_left -= batch.num_rows
        if batch.num_rows:
            self._batches[run.bucket].append(batch)

    def forget(self, bucket: TableBucket) -> None:
        """Let go of the rows of a bucket."""
        if self._rows_left is not None:
            self._rows_left += sum(batch.num_rows for batch in self._batches[bucket])
        self._batches[bucket].clear()

    def take(self) -> list[pa.RecordBatch]:
        """Return what has been kept, and keep it no longer."""
        taken = [batch for batches in self._batches.values() for batch in batches]
        for batches in self._batches.values():
            batches.clear()
        return taken
