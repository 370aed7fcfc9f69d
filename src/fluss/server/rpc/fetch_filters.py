"""The filters of fetches: decoded within limits, kept for the next fetch of the same reader, and counted."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

from fluss.errors import CorruptMessageError
from fluss.metrics import Counter, Metrics
from fluss.protocol.predicates import FilterAllowance, decode_predicate
from fluss.record.pruning import BatchFilter
from fluss.server.tablet.buckets import HostedTable
from fluss.server.tablet.log_reads import FetchLimits, FilterYield

# Larger filters are not decoded on the event loop, and not kept.
BYTES_AT_ONCE: Final = 1024
# A reader at the end of a log sends the same filter many times in a second.
_KEPT_MAX: Final = 128

logger = logging.getLogger(__name__)


class KeptFilter(NamedTuple):
    """A filter, None if it was not understood, and what it has brought so far."""

    batch_filter: BatchFilter | None
    filter_yield: FilterYield
    condition_count: int
    literal_count: int


class FetchFilters:
    """Decodes filters. Belongs to the event loop, but for ``decoded``, which any thread may call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, bytes], KeptFilter] = OrderedDict()
        self.counts = FilterCounts()

    def kept(self, table: HostedTable, schema_id: int, encoded: bytes, allowance: FilterAllowance) -> KeptFilter:
        """Return a small filter, decoded unless it was before. It takes its part of the allowance either way."""
        key = (table.table.table_id, schema_id, encoded)
        known = self._kept.get(key)
        if known is None:
            before = allowance.condition_count, allowance.literal_count
            batch_filter = decoded(table, schema_id, encoded, allowance)
            conditions, literals = allowance.condition_count - before[0], allowance.literal_count - before[1]
            known = self._kept[key] = KeptFilter(batch_filter, FilterYield(), conditions, literals)
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
            return known
        self._kept.move_to_end(key)
        allowance.take_conditions(known.condition_count)
        allowance.take_literals(known.literal_count)
        return known


def decoded(table: HostedTable, schema_id: int, encoded: bytes, allowance: FilterAllowance) -> BatchFilter | None:
    """Decode a filter. One that is not understood is left out: the client looks at the rows it gets anyway."""
    try:
        return BatchFilter(decode_predicate(encoded, table.table.schemas[schema_id], allowance))
    except CorruptMessageError as error:
        logger.debug("a filter on table %s is not used: %s", table.table.path, error.message)
        return None


class FilterCounts:
    """What filters were asked for, and what they did. Belongs to the event loop."""

    def __init__(self) -> None:
        self.fetches = Counter()
        # By reason: beyond the limits of a fetch, no memory for it while others have theirs, not understood.
        self.refused = {reason: Counter() for reason in ("limit", "memory", "unknown")}
        self._batches = Counter()
        self._skipped_batches = Counter()
        self._seconds = Counter()

    def add(self, limits: FetchLimits) -> None:
        """Count what was looked at for one fetch."""
        self._batches.add(limits.filtered_batches)
        self._skipped_batches.add(limits.skipped_batches)
        self._seconds.add(limits.filter_seconds)

    def show(self, metrics: Metrics) -> None:
        metrics.show_counter("fluss_filtered_fetches_total", "Fetches with filters.", self.fetches)
        metrics.show_counter("fluss_filter_batches_total", "Batches that filters were asked about.", self._batches)
        metrics.show_counter(
            "fluss_filter_skipped_batches_total", "Batches that filters have skipped.", self._skipped_batches
        )
        metrics.show_counter(
            "fluss_filter_processor_seconds_total", "Processor time for looking at batches.", self._seconds
        )
        for reason, counter in self.refused.items():
            metrics.show_counter(
                "fluss_filters_refused_total", "Filters that were refused or not used.", counter, reason=reason
            )
