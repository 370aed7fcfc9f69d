"""The reader of streaming queries for Spark 4.2 and newer, which says how much a micro-batch may be."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fluss.spark.read.offset_json import Json, format_offset
from fluss.spark.read.stream_reader import FlussStreamReader
from fluss.spark.session.noise import ShortTracebacks


class LimitedStreamReader(FlussStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as it grows, within limits, and as far as its logs go at a moment (``availableNow``)."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's names
        with ShortTracebacks():
            self._batches.fix_targets()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        with ShortTracebacks():
            begin = self.parsed(start)
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            end = self._batches.next(begin, rows_max=rows_max, bytes_max=bytes_max)
            # Spark compares texts, and takes the same one for nothing new.
            return start if end is begin else self.formatted(end)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return what Spark shows in the progress of the query: where the logs end, and how far it is behind."""
        with ShortTracebacks():
            latest = self._batches.latest()
            return None if latest is None else {**format_offset(latest), "lag": self._batches.lag()}
