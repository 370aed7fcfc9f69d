"""How far producers had come: offsets that a producer registers once and finds again after a failure."""

from __future__ import annotations

import asyncio

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT64_MAX
from fluss.schema.names import name_problem
from fluss.server.coordinator.entities import BucketOffset, ProducerOffsets
from fluss.server.coordinator.metadata_store import MetadataStore
from fluss.server.model import Clock


def check_producer_id(producer_id: str) -> None:
    """Refuse an id that no producer can have (code 63)."""
    problem = name_problem(producer_id)
    if problem is not None:
        raise FlussError(f"The producer id is invalid: {problem}", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION)


class ProducerRegistry:
    """Keeps offsets by producer until they expire. The first registration wins."""

    def __init__(self, store: MetadataStore, producers: list[ProducerOffsets], clock: Clock, ttl_ms: int) -> None:
        self._store = store
        self._producers = {producer.producer_id: producer for producer in producers}
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: MetadataStore, *, clock: Clock, ttl_ms: int) -> ProducerRegistry:
        return cls(store, await store.load_producer_offsets(), clock, ttl_ms)

    def get(self, producer_id: str) -> ProducerOffsets | None:
        """Return what a producer registered, unless it has expired."""
        producer = self._producers.get(producer_id)
        return None if producer is None or producer.expires_ms <= self._clock() else producer

    async def register(self, producer_id: str, offsets: tuple[BucketOffset, ...], ttl_ms: int | None) -> bool:
        """Keep offsets for a while. Returns False, and keeps what is there, if the producer has registered before."""
        async with self._lock:
            if self.get(producer_id) is not None:
                return False
            ttl_ms = self._ttl_ms if ttl_ms is None else ttl_ms
            producer = ProducerOffsets(producer_id, min(self._clock() + ttl_ms, INT64_MAX), offsets)
            await self._store.put_producer_offsets(producer)
            self._producers[producer_id] = producer
            return True

    async def delete(self, producer_id: str) -> None:
        """Forget a producer; one that is not known changes nothing."""
        async with self._lock:
            await self._delete([producer_id] if producer_id in self._producers else [])

    async def remove_expired(self) -> None:
        async with self._lock:
            await self._delete([producer_id for producer_id in self._producers if self.get(producer_id) is None])

    async def _delete(self, producer_ids: list[str]) -> None:
        if producer_ids:
            await self._store.delete_producer_offsets(producer_ids)
            for producer_id in producer_ids:
                del self._producers[producer_id]
