"""The ids of writers: each one is given out once, for ever."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fluss.errors import FlussError
from fluss.server.coordinator.metadata_store import MetadataStore

# So many ids cost one write to the disk. After a crash the unused rest is lost; a clean stop gives it back.
_BLOCK_SIZE: Final = 1000

logger = logging.getLogger(__name__)


class WriterIds:
    """Gives out consecutive ids. They are reserved on disk in blocks before the first of a block is used."""

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
        """Return an id that nobody has had before."""
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
