"""The APIs of a tablet server, each with the object that answers it."""

from __future__ import annotations

import random

from fluss.metrics import Metrics
from fluss.net.request_handler import Handler
from fluss.protocol.api import ApiKey
from fluss.server.authorizer import Authorizer
from fluss.server.model import CatalogView, Clock
from fluss.server.rpc.bucket_access import BucketAccess, ReadResources
from fluss.server.rpc.bucket_info import OffsetLister, RowCounter
from fluss.server.rpc.fetch_filters import FetchFilters
from fluss.server.rpc.fetch_log import LogFetcher
from fluss.server.rpc.key_lookups import KeyInsertion, KeyReads, KvLookup, KvPrefixLookup
from fluss.server.rpc.scans import KvScanner, LimitScanner
from fluss.server.rpc.writes import KvPutter, LogProducer, Writes
from fluss.server.tablet.fetch_memory import FetchMemory, ReadTurns
from fluss.server.tablet.filter_turns import FilterTurns
from fluss.server.tablet.manager import TabletManager
from fluss.server.tablet.purgatory import FetchPurgatory
from fluss.server.tablet.scan_sessions import ScanSessions

# How long a fetch waits for memory that others hold before it goes on with one batch.
_MEMORY_TURN_TIMEOUT_S = 0.5


class TabletService:
    """Answers requests about the buckets of a manager. Belongs to the manager's event loop, and stops before it."""

    def __init__(
        self,
        manager: TabletManager,
        catalog: CatalogView,
        authorizer: Authorizer,
        *,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        settings, readers = manager.settings, manager.readers
        access = BucketAccess(manager.tables, catalog, authorizer)
        self._purgatory = FetchPurgatory(
            settings.delayed_buckets_max, retry_answer_delay_ms=settings.retry_answer_delay_ms
        )
        self._memory = FetchMemory(settings.fetch_memory_bytes_max, turn_timeout_s=_MEMORY_TURN_TIMEOUT_S)
        self._filter_turns = FilterTurns(
            readers, turns_max=settings.filter_threads, bytes_max=settings.filter_memory_bytes_max
        )
        self._filters = FetchFilters()
        self._sessions = ScanSessions(settings.scans, readers, clock=clock)
        purgatory, memory = self._purgatory, self._memory
        resources = ReadResources(access, memory, ReadTurns(memory, settings.reader_threads), purgatory, readers)
        writes = self._writes = Writes(access, manager.disk_guard, purgatory)
        reads = KeyReads(resources, settings.lookup_bytes_max)
        self._handlers: dict[ApiKey, Handler] = {
            ApiKey.PRODUCE_LOG: LogProducer(writes).produce,
            ApiKey.PUT_KV: KvPutter(writes).put_kv,
            ApiKey.FETCH_LOG: LogFetcher(
                *(access, memory, purgatory, readers, self._filter_turns, rng or random.Random()),
                filters=self._filters,
                response_bytes_max=settings.fetch_response_bytes_max,
                filter_limits=settings.filters,
                filter_batches_max=settings.filter_batches_max,
                remote=manager.remote,
            ).fetch,
            ApiKey.LIST_OFFSETS: OffsetLister(access, purgatory, readers, clock, manager.remote).list_offsets,
            ApiKey.LIMIT_SCAN: LimitScanner(resources, settings.limit_scan_bytes_max, manager.remote).limit_scan,
            ApiKey.GET_TABLE_STATS: RowCounter(access, purgatory).get_table_stats,
            ApiKey.LOOKUP: KvLookup(reads, KeyInsertion(catalog, manager.disk_guard, readers)).lookup,
            ApiKey.PREFIX_LOOKUP: KvPrefixLookup(reads).prefix_lookup,
            ApiKey.SCAN_KV: KvScanner(resources, self._sessions, settings.scans.answer_bytes_max).scan_kv,
        }

    def show(self, metrics: Metrics) -> None:
        """Have what fetches wait for, and what their filters do, shown among the metrics."""
        metrics.gauge("fluss_delayed_fetches", "Fetches that wait for records.", lambda: self.delayed_fetch_count)
        metrics.gauge(
            "fluss_waiting_filters",
            "Fetches whose filters wait for their turn.",
            lambda: self._filter_turns.waiting_count,
        )
        self._filters.counts.show(metrics)
        for kind, rows in (("append", self._writes.appended_rows), ("put", self._writes.put_rows)):
            metrics.show_counter("fluss_written_rows_total", "Rows that writers have sent.", rows, kind=kind)

    @property
    def delayed_fetch_count(self) -> int:
        """Fetches that wait for records."""
        return self._purgatory.delayed_count

    @property
    def written_row_count(self) -> int:
        """Rows that writers have sent since the start."""
        return int(self._writes.appended_rows.value + self._writes.put_rows.value)

    @property
    def fetch_memory(self) -> FetchMemory:
        return self._memory

    @property
    def filter_turns(self) -> FilterTurns:
        return self._filter_turns

    @property
    def scan_sessions(self) -> ScanSessions:
        return self._sessions

    def handlers(self) -> dict[ApiKey, Handler]:
        """Return what a listener needs. Several listeners may share it."""
        return self._handlers

    def start(self) -> None:
        """Begin to look for scan sessions that clients have left behind."""
        self._sessions.start()

    def drain(self) -> None:
        """Answer all fetches that wait for records, now and from now on: the server is shutting down."""
        self._purgatory.close()

    async def stop(self) -> None:
        """Close the scan sessions of clients. No more requests come. May be called again."""
        await self._sessions.stop()

    async def __aenter__(self) -> TabletService:
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()
