"""The APIs of a tablet server, each with the object that answers it."""

from __future__ import annotations

import random

from fluss.net.listener import Handler
from fluss.protocol.api import ApiKey
from fluss.server.authorizer import Authorizer
from fluss.server.model import CatalogView, Clock
from fluss.server.rpc.access import BucketAccess
from fluss.server.rpc.bucket_info import OffsetLister, TableStats
from fluss.server.rpc.fetch_log import LogFetcher
from fluss.server.rpc.lookups import BucketReads, KeyInsertion, KvLookup, KvPrefixLookup
from fluss.server.rpc.scans import KvScanner, LimitScanner
from fluss.server.rpc.writes import KvPutter, LogProducer, Writes
from fluss.server.tablet.fetch_memory import FetchMemory, ReadTurns
from fluss.server.tablet.manager import TabletManager
from fluss.server.tablet.purgatory import FetchPark
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
        self._park = FetchPark(settings.parked_buckets_max)
        self._memory = FetchMemory(settings.fetch_memory_bytes_max, turn_timeout_s=_MEMORY_TURN_TIMEOUT_S)
        writes = Writes(access, manager.disk_guard, self._park, settings)
        self._producer = LogProducer(writes)
        self._putter = KvPutter(writes)
        self._fetcher = LogFetcher(access, self._memory, self._park, readers, settings, rng or random.Random())
        self._offsets = OffsetLister(access, self._park, readers, settings, clock)
        turns = ReadTurns(self._memory, settings.reader_threads)
        self._limit_scanner = LimitScanner(access, self._memory, turns, self._park, readers, settings)
        self._stats = TableStats(access, self._park, settings)
        reads = BucketReads(access, self._memory, turns, self._park, readers, settings)
        self._lookup = KvLookup(reads, KeyInsertion(catalog, manager.disk_guard, readers))
        self._prefix_lookup = KvPrefixLookup(reads)
        self._sessions = ScanSessions(settings.kv, readers, clock=clock)
        self._scanner = KvScanner(access, self._sessions, self._memory, self._park, readers, settings)

    @property
    def parked_fetch_count(self) -> int:
        """Fetches that wait for records."""
        return self._park.parked_count

    @property
    def fetch_memory(self) -> FetchMemory:
        return self._memory

    @property
    def scan_sessions(self) -> ScanSessions:
        return self._sessions

    def handlers(self) -> dict[ApiKey, Handler]:
        """Return what a listener needs. Several listeners may share it."""
        return {
            ApiKey.PRODUCE_LOG: self._producer.produce,
            ApiKey.PUT_KV: self._putter.put_kv,
            ApiKey.FETCH_LOG: self._fetcher.fetch,
            ApiKey.LIST_OFFSETS: self._offsets.list_offsets,
            ApiKey.LIMIT_SCAN: self._limit_scanner.limit_scan,
            ApiKey.GET_TABLE_STATS: self._stats.get_table_stats,
            ApiKey.LOOKUP: self._lookup.lookup,
            ApiKey.PREFIX_LOOKUP: self._prefix_lookup.prefix_lookup,
            ApiKey.SCAN_KV: self._scanner.scan_kv,
        }

    def start(self) -> None:
        """Begin to look after what clients leave behind."""
        self._sessions.start()

    def drain(self) -> None:
        """Answer everybody who waits for records, now and from now on: the server is shutting down."""
        self._park.close()

    async def stop(self) -> None:
        """Let go of everything that is kept for clients. No more requests come. May be called again."""
        await self._sessions.stop()

    async def __aenter__(self) -> TabletService:
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()
