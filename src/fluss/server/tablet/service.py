"""The APIs of a tablet server, each with the object that answers it."""

from __future__ import annotations

import random

from fluss.net.listener import Handler
from fluss.protocol.api import ApiKey
from fluss.server.authorizer import Authorizer
from fluss.server.model import CatalogView, Clock
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.fetch import LogFetcher
from fluss.server.tablet.fetch_memory import FetchMemory
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.limit_scan import LimitScanner
from fluss.server.tablet.manager import TabletManager
from fluss.server.tablet.offsets import OffsetLister
from fluss.server.tablet.produce import LogProducer
from fluss.server.tablet.table_stats import TableStats

# How long a fetch waits for memory that others hold before it goes on with one batch.
_MEMORY_TURN_TIMEOUT_S = 0.5


class TabletService:
    """Answers requests about the logs of a manager. Belongs to the manager's event loop."""

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
        self._producer = LogProducer(access, manager.disk_guard, self._park, settings)
        self._fetcher = LogFetcher(access, self._memory, self._park, readers, settings, rng or random.Random())
        self._offsets = OffsetLister(access, self._park, readers, settings, clock)
        self._limit_scanner = LimitScanner(access, self._memory, self._park, readers, settings)
        self._stats = TableStats(access)

    @property
    def parked_fetch_count(self) -> int:
        """Fetches that wait for records."""
        return self._park.parked_count

    @property
    def fetch_memory(self) -> FetchMemory:
        return self._memory

    def handlers(self) -> dict[ApiKey, Handler]:
        """Return what a listener needs. Several listeners may share it."""
        return {
            ApiKey.PRODUCE_LOG: self._producer.produce,
            ApiKey.FETCH_LOG: self._fetcher.fetch,
            ApiKey.LIST_OFFSETS: self._offsets.list_offsets,
            ApiKey.LIMIT_SCAN: self._limit_scanner.limit_scan,
            ApiKey.GET_TABLE_STATS: self._stats.get_table_stats,
        }

    def drain(self) -> None:
        """Answer everybody who waits for records, now and from now on: the server is shutting down."""
        self._park.close()
