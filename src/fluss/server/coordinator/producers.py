"""What the coordinator keeps for writers: their ids, ids of rows, and the offsets that producers register."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT64_MAX
from fluss.schema.naming_rules import name_problem
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata_store import MetadataStore, RegisteredOffsets
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
    """Keeps how far producers had come, for them to find after a failure. It expires. The first registration wins."""

    def __init__(self, store: MetadataStore, producers: list[RegisteredOffsets], clock: Clock, ttl_ms: int) -> None:
        self._store = store
        self._producers = {producer.producer_id: producer for producer in producers}
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: MetadataStore, *, clock: Clock, ttl_ms: int) -> ProducerRegistry:
        return cls(store, await store.load_producer_offsets(), clock, ttl_ms)

    def get(self, producer_id: str) -> RegisteredOffsets | None:
        """Return what a producer registered, unless it has expired."""
        producer = self._producers.get(producer_id)
        return None if producer is None or producer.expires_ms <= self._clock() else producer

    async def register(
        self, producer_id: str, offsets: Iterable[tuple[TableBucket, int | None]], ttl_ms: int | None
    ) -> bool:
        """Keep offsets for a while. Returns False, and keeps what is there, if the producer has registered before."""
        async with self._lock:
            if self.get(producer_id) is not None:
                return False
            ttl_ms = self._ttl_ms if ttl_ms is None else ttl_ms
            producer = RegisteredOffsets(producer_id, min(self._clock() + ttl_ms, INT64_MAX), tuple(offsets))
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
