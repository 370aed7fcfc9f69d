"""The ids of rows in auto-increment columns: one counter per table and column, shared by all its buckets."""

from __future__ import annotations

from fluss.server.coordinator.metadata_store import MetadataStore


class RowIds:
    """Reserves ids for whoever numbers rows. Implements IdSource."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def reserve(self, table_id: int, column_id: int, count: int) -> int:
        assert count > 0, "nothing was asked for"
        return await self._store.reserve_row_ids(table_id, column_id, count)
