"""Ids for the rows of auto-increment columns are reserved once, for ever, and go with their table.

Coordinators with their metadata in a real file, restarted, and files of the version before there were such ids.
"""

from __future__ import annotations

import asyncio

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.coordinator.metadata.migrations import MIGRATIONS
from fluss.server.coordinator.metadata.sqlite_file import SqliteFile
from fluss.server.coordinator.producers import RowIds
from tests.unit.server.coordinator.support import descriptor


async def _reserve(cluster, name: str, count: int, column_id: int = 1) -> int:
    return await RowIds(cluster.coordinator.store).reserve(cluster.table(name).table_id, column_id, count)


async def test_ids_begin_at_one_for_every_table_and_column_and_go_on_after_a_restart(make_cluster):
    async with make_cluster() as cluster:
        for name in ("d.a", "d.b"):
            if cluster.coordinator.catalog.database("d") is None:
                await cluster.create_database("d")
            await cluster.create(name, descriptor())
        assert [await _reserve(cluster, "d.a", 5) for _ in range(3)] == [1, 6, 11]
        assert await _reserve(cluster, "d.a", 100, column_id=2) == 1
        assert await _reserve(cluster, "d.b", 1) == 1
    async with make_cluster() as cluster:
        assert await _reserve(cluster, "d.a", 1) == 16
        assert await _reserve(cluster, "d.a", 1, column_id=2) == 101
        assert await _reserve(cluster, "d.b", 1) == 2


async def test_ids_that_are_asked_for_at_once_are_different(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        await cluster.create("d.a", descriptor())
        firsts = await asyncio.gather(*(_reserve(cluster, "d.a", 10) for _ in range(50)))
        assert sorted(firsts) == list(range(1, 500, 10))


async def test_a_table_that_was_dropped_has_no_ids(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        table = await cluster.create("d.a", descriptor())
        await _reserve(cluster, "d.a", 5)
        await cluster.coordinator.store.drop_table(table.table_id)
        with pytest.raises(FlussError) as error:
            await RowIds(cluster.coordinator.store).reserve(table.table_id, 1, 5)
        assert error.value.error_code == ErrorCode.TABLE_NOT_EXIST
        rows = await cluster.coordinator.store._file.read(
            lambda connection: connection.execute("SELECT * FROM row_ids").fetchall()
        )
        assert rows == []


async def test_a_file_without_row_ids_gets_them(tmp_path):
    file = await SqliteFile.open(tmp_path / "metadata.sqlite", MIGRATIONS[:1])
    await file.close()
    store = await MetadataStore.open(tmp_path / "metadata.sqlite")
    with pytest.raises(FlussError, match="does not exist"):
        await store.reserve_row_ids(1, 1, 1)
    await store.close()
