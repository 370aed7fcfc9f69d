"""What the coordinator keeps for writers: their ids, ids of rows, and the offsets that producers register."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT64_MAX
from fluss.schema.table import TableBucket, name_problem
from fluss.server.coordinator.metadata.metadata_store import MetadataStore, RegisteredOffsets
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.model import Clock

# So many ids cost one write to the disk. After a crash the unused rest is lost; a clean stop gives it back.
_BLOCK_SIZE: Final = 1000

logger = logging.getLogger(__name__)


class WriterIds:
    """Gives out the ids of writers, each one once. A block of them is reserved on disk before any of it is used."""

    def __init__(self, store: MetadataStore, id_next: int) -> None:
        self._store = store
        self._id_next = id_next
        # Ids below this are reserved.
        self._id_limit = id_next
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: MetadataStore) -> WriterIds:
        return cls(store, await store.load_writer_id_next())

    async def next(self) -> int:
        """Return an id that no writer has had before."""
        async with self._lock:
            if self._id_next == self._id_limit:
                await self._store.set_writer_id_next(self._id_limit + _BLOCK_SIZE)
                self._id_limit += _BLOCK_SIZE
            self._id_next += 1
            return self._id_next - 1

    async def close(self) -> None:
        """Give back what was reserved and not used. May be called again."""
        async with self._lock:
            if self._id_next == self._id_limit:
                return
            try:
                await self._store.set_writer_id_next(self._id_next)
            except FlussError as error:
                # As after a crash, some ids will never be used; there are enough.
                logger.warning("%d writer ids were not given back: %s", self._id_limit - self._id_next, error)
            else:
                self._id_limit = self._id_next


class RowIds:
    """Reserves ids for rows in auto-increment columns, for all buckets of a table. Implements IdSource."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def reserve(self, table_id: int, column_id: int, count: int) -> int:
        assert count > 0, "nothing was asked for"
        return await self._store.reserve_row_ids(table_id, column_id, count)


def check_producer_id(producer_id: str) -> None:
    """Refuse an id that no producer can have (code 63)."""
    problem = name_problem(producer_id)
    if problem is not None:
        raise FlussError(f"The producer id is invalid: {problem}", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION)


class ProducerRegistry:
    """Keeps how far producers had come, for them to find after a failure. It expires. The first registration wins.

    Who registered an id is its owner. Whom else it may be shown to is a question of rights, which is not asked here.
    """

    def __init__(
        self, store: MetadataStore, producers: list[RegisteredOffsets], settings: CoordinatorSettings, clock: Clock
    ) -> None:
        self._store = store
        self._settings = settings
        self._producers = {producer.producer_id: producer for producer in producers}
        self._count_by_owner = Counter(producer.owner for producer in producers)
        self._weight = sum(map(_weight, producers))
        self._clock = clock
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: MetadataStore, settings: CoordinatorSettings, *, clock: Clock) -> ProducerRegistry:
        return cls(store, await store.load_producer_offsets(), settings, clock)

    def get(self, producer_id: str) -> RegisteredOffsets | None:
        """Return what a producer registered, unless it has expired."""
        producer = self._producers.get(producer_id)
        return None if producer is None or producer.expires_ms <= self._clock() else producer

    async def register(
        self, producer_id: str, owner: str, offsets: Iterable[tuple[TableBucket, int | None]], ttl_ms: int | None
    ) -> tuple[RegisteredOffsets, bool]:
        """Keep offsets for a while. Returns what is kept under the id from now on, and whether it is new.

        What was registered before stays. Raises code 63 if the owner has too many producers, or all together have.
        """
        async with self._lock:
            kept = self.get(producer_id)
            if kept is not None:
                return kept, False
            settings = self._settings
            if ttl_ms is None:
                ttl_ms = settings.producer_offsets_ttl_ms
            else:
                ttl_ms = min(ttl_ms, max(settings.producer_offsets_ttl_ms, settings.producer_offsets_ttl_ms_max))
            producer = RegisteredOffsets(producer_id, min(self._clock() + ttl_ms, INT64_MAX), tuple(offsets), owner)
            if self._why_full(producer) is not None or producer_id in self._producers:
                await self._remove_expired()
            failure = self._why_full(producer)
            if failure is not None:
                raise failure
            await self._store.put_producer_offsets(producer)
            self._producers[producer_id] = producer
            self._count_by_owner[owner] += 1
            self._weight += _weight(producer)
            return producer, True

    def _why_full(self, producer: RegisteredOffsets) -> FlussError | None:
        settings = self._settings
        if self._count_by_owner[producer.owner] >= settings.producers_per_user_max:
            return FlussError(
                f"{producer.owner} has its limit of {settings.producers_per_user_max} registered producers; delete "
                "some, or wait until others expire",
                ErrorCode.INVALID_PRODUCER_ID_EXCEPTION,
            )
        if self._weight + _weight(producer) > settings.producer_offsets_count_max:
            return FlussError(
                f"The server keeps at most {settings.producer_offsets_count_max} offsets of producers, and there is no "
                f"room for {len(producer.offsets)} more; delete some, or wait until others expire",
                ErrorCode.INVALID_PRODUCER_ID_EXCEPTION,
            )
        return None

    async def delete(self, producer_id: str) -> None:
        """Forget a producer; one that is not known changes nothing."""
        async with self._lock:
            await self._delete([producer_id] if producer_id in self._producers else [])

    async def remove_expired(self) -> None:
        async with self._lock:
            await self._remove_expired()

    async def _remove_expired(self) -> None:
        await self._delete([producer_id for producer_id in self._producers if self.get(producer_id) is None])

    async def _delete(self, producer_ids: list[str]) -> None:
        if producer_ids:
            await self._store.delete_producer_offsets(producer_ids)
            for producer_id in producer_ids:
                producer = self._producers.pop(producer_id)
                self._weight -= _weight(producer)
                self._count_by_owner[producer.owner] -= 1
                if not self._count_by_owner[producer.owner]:
                    del self._count_by_owner[producer.owner]


def _weight(producer: RegisteredOffsets) -> int:
    """Return how much a producer counts against the limit of offsets."""
    return 1 + len(producer.offsets)
