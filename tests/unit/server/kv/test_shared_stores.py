"""Small stores share databases: through restarts, crashes, drops, damage and growth, as if each had one of its own.
A tablet server with many buckets over real logs and real databases."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import FlussError, KvDamagedError
from fluss.schema.descriptor import TableDescriptor
from fluss.server.kv.bucket import KvBucket, KvPut
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.model import Table
from fluss.server.tablet.buckets import open_all
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import (
    SCHEMA,
    SNAPSHOTS_DIRECTORY,
    TABLE,
    Bucket,
    crashed,
    decode_value,
    hosting,
    kv_batch,
)
from tests.unit.server.merge.merging import make_table
from tests.unit.server.tablet.support import Clock

SHARED = "kv.shared/1"
COUNT = 40


def with_buckets(count: int = COUNT, table_id: int = 1) -> Table:
    return replace(TABLE, table_id=table_id, descriptor=TableDescriptor(TABLE.descriptor.schema, bucket_count=count))


def buckets_of(bucket: Bucket) -> list[KvBucket]:
    group = bucket.manager.tables[bucket.table.table_id].group(None)
    return [group[bucket_id].key_values() for bucket_id in range(len(group))]


@asynccontextmanager
async def sharing(data_dir: Path, table: Table | None = None, **options: Any) -> AsyncIterator[Bucket]:
    """Host a table whose stores share databases, with the logs of all buckets open."""
    async with hosting(data_dir, table or with_buckets(), **{"shares": True, **options}) as bucket:
        group = bucket.manager.tables[bucket.table.table_id].group(None)
        await open_all(group[bucket_id] for bucket_id in range(len(group)))
        yield bucket


async def put(kv: KvBucket, *rows: tuple) -> None:
    await kv.put(KvPut(memoryview(kv_batch(TABLE, *rows))))


async def put_everywhere(bucket: Bucket, text: str) -> None:
    """Have a few rows in every bucket that tell which bucket it is."""
    await asyncio.gather(
        *(put(kv, *((row, f"{text} {number}") for row in range(3))) for number, kv in enumerate(buckets_of(bucket)))
    )


async def rows_everywhere(bucket: Bucket) -> list[list[tuple]]:
    found = []
    for kv in buckets_of(bucket):
        values = (await kv.store()).first_values(10**6, bytes_max=10**9)
        found.append([decode_value(TABLE, value) for value in values])
    return found


def expected(text: str, count: int = COUNT) -> list[list[tuple]]:
    return [[(row, f"{text} {number}") for row in range(3)] for number in range(count)]


async def test_more_buckets_than_databases_are_open_and_none_has_files_of_its_own(tmp_path):
    settings = KvSettings(open_stores_max=2)
    async with sharing(tmp_path, kv=settings) as bucket:
        await put_everywhere(bucket, "a")
        assert await rows_everywhere(bucket) == expected("a")
        runtime = bucket.manager.kv_runtime
        assert (len(runtime.open_stores), len(runtime.open_shared_stores)) == (0, COUNT)
        assert not list(tmp_path.rglob("kv-*"))
        assert [path.name for path in (tmp_path / "kv.shared").iterdir()] == ["1"]


async def test_restarts_and_crashes_lose_nothing(tmp_path):
    async with sharing(tmp_path / "data") as bucket:
        await put_everywhere(bucket, "a")
    async with sharing(tmp_path / "data") as bucket:
        assert await rows_everywhere(bucket) == expected("a")
        await put_everywhere(bucket, "b")
        await bucket.manager.kv_runtime.flush_all()
        for kv in buckets_of(bucket)[:10]:
            await put(kv, (0, "c"))
        left = crashed(tmp_path / "data", tmp_path / "left")
    async with sharing(left) as bucket:
        rows = expected("b")
        for number in range(10):
            rows[number][0] = (0, "c")
        assert await rows_everywhere(bucket) == rows


async def test_stores_that_were_not_used_for_long_are_closed_and_opened_again(tmp_path):
    settings = KvSettings(open_shared_stores_max=5)
    async with sharing(tmp_path, kv=settings) as bucket:
        await put_everywhere(bucket, "a")
        assert await rows_everywhere(bucket) == expected("a")
        await eventually_async(lambda: len(bucket.manager.kv_runtime.open_shared_stores) <= 5)
        await put_everywhere(bucket, "b")
        assert await rows_everywhere(bucket) == expected("b")


async def test_stores_from_before_there_were_shared_databases_stay_where_they_are(tmp_path):
    async with sharing(tmp_path, with_buckets(3), shares=False) as bucket:
        await put_everywhere(bucket, "a")
    async with sharing(tmp_path, with_buckets(3)) as bucket:
        assert await rows_everywhere(bucket) == expected("a", 3)
        runtime = bucket.manager.kv_runtime
        assert (len(runtime.open_stores), len(runtime.open_shared_stores)) == (3, 0)


async def test_a_store_that_has_become_large_moves_and_takes_one_of_the_places_for_such(tmp_path):
    store = KvStoreSettings(shared_store_bytes_max=20_000)
    async with sharing(tmp_path, with_buckets(3), kv=KvSettings(store=store)) as bucket:
        await put_everywhere(bucket, "a")
        large = buckets_of(bucket)[1]
        for first in range(0, 1000, 100):
            await put(large, *((number, "x" * 100) for number in range(first, first + 100)))
        runtime = bucket.manager.kv_runtime
        await eventually_async(lambda: len(runtime.open_stores) == 1)
        assert len(runtime.open_shared_stores) == 2
        assert (tmp_path / "db/t-1/kv-1").exists()
        await put(large, (5, "newest"))
        counts = [len(rows) for rows in await rows_everywhere(bucket)]
    assert counts == [3, 1000, 3]
    async with sharing(tmp_path, with_buckets(3), kv=KvSettings(store=store)) as bucket:
        rows = await rows_everywhere(bucket)
        assert [len(found) for found in rows] == counts
        assert (5, "newest") in rows[1]


async def test_a_dropped_table_leaves_nothing_even_if_its_stores_were_not_opened(tmp_path):
    async with sharing(tmp_path) as bucket:
        await put_everywhere(bucket, "a")
    async with sharing(tmp_path) as bucket:
        databases = bucket.manager.kv_runtime.shared_stores.databases
        assert await asyncio.to_thread(databases.partitions) == [(1, None)]
        await bucket.manager.drop_buckets(bucket.table, None)
        await eventually_async(lambda: not databases.partitions())


async def test_what_an_interrupted_drop_has_left_is_removed_at_the_next_start(tmp_path):
    # Both lie in the same database. Table 9 is not known to the servers after the first one.
    for table_id in (9, 1):
        async with sharing(tmp_path, with_buckets(3, table_id)) as bucket:
            await put_everywhere(bucket, "a")
    async with sharing(tmp_path, with_buckets(3)) as bucket:
        databases = bucket.manager.kv_runtime.shared_stores.databases
        await eventually_async(lambda: databases.partitions() == [(1, None)])
        assert await rows_everywhere(bucket) == expected("a", 3)


@pytest.mark.parametrize("harm", ["missing", "manifest", "current", "rows"])
async def test_a_damaged_shared_database_is_built_again_and_others_are_not_touched(tmp_path, harm):
    async with sharing(tmp_path) as bucket:
        await put_everywhere(bucket, "a")
        await put_everywhere(bucket, "b")
    shared = tmp_path / SHARED
    if harm == "missing":
        shutil.rmtree(shared)
    elif harm == "manifest":
        next(iter(shared.glob("MANIFEST*"))).write_bytes(b"nonsense")
    elif harm == "current":
        (shared / "CURRENT").unlink()
    else:
        for table in shared.glob("*.sst"):
            data = bytearray(table.read_bytes())
            data[: len(data) // 2] = bytes(byte ^ 0xFF for byte in data[: len(data) // 2])
            table.write_bytes(data)
    async with sharing(tmp_path, kv=KvSettings(open_retry_ms=0)) as bucket:
        await put_everywhere(bucket, "c")
        assert await rows_everywhere(bucket) == expected("c")
        assert all(kv.is_available for kv in buckets_of(bucket))


async def test_damage_that_a_reader_finds_concerns_all_stores_of_the_database(tmp_path, caplog):
    async with sharing(tmp_path, kv=KvSettings(open_retry_ms=0)) as bucket:
        await put_everywhere(bucket, "a")
        kv = buckets_of(bucket)[3]
        store = await kv.store()
        shared = store.shared
        assert shared is not None
        snapshot = (await buckets_of(bucket)[5].store()).snapshot()
        shared.is_damaged = True
        kv.store_failed(store, KvDamagedError("a reader has found damage"))
        assert await rows_everywhere(bucket) == expected("a")
        found = (await kv.store()).shared
        assert found is not None
        assert found is not shared
        with pytest.raises(FlussError, match="closed"):
            snapshot.read(100, 100)
        await put_everywhere(bucket, "b")
        assert await rows_everywhere(bucket) == expected("b")
    assert "built again from copies and changelogs" in caplog.text


async def test_a_state_that_is_damaged_concerns_one_bucket(tmp_path):
    async with sharing(tmp_path, with_buckets(3)) as bucket:
        await put_everywhere(bucket, "a")
        store = await buckets_of(bucket)[1].store()
        shared = store.shared
        assert shared is not None
        place = store._database.place
        buckets_of(bucket)[1]._life.close_soon()
        await eventually_async(lambda: len(bucket.manager.kv_runtime.open_shared_stores) == 2)
        shared.database.put(place.state_key, b"nonsense")
        assert await rows_everywhere(bucket) == expected("a", 3)
        assert not shared.is_given_up


async def test_a_changelog_expires_with_a_copy_that_comes_back_into_the_shared_database(tmp_path):
    clock, table = Clock(), make_table(SCHEMA, {"log.ttl": "7d"})
    settings = TabletSettings(log=LogSettings(segment_bytes_max=500))
    async with sharing(tmp_path, table, settings=settings, clock=clock) as bucket:
        for number in range(30):
            await bucket.put((number, "x" * 50))
        clock.now_ms += 8 * 24 * 3600 * 1000
        await bucket.manager.retention.expire_segments()
        assert bucket.log.offset_start > 0
        assert len(list((tmp_path / SNAPSHOTS_DIRECTORY).iterdir())) == 1
        await bucket.put((7, "after"))
        rows = sorted(await bucket.rows())
    shutil.rmtree(tmp_path / SHARED)
    async with sharing(tmp_path, table, settings=settings, clock=clock) as bucket:
        assert sorted(await bucket.rows()) == rows
        assert len(bucket.manager.kv_runtime.open_shared_stores) == 1
        await bucket.put((7, "again"))
        assert bucket.changelog()[-2:] == [("-U", (7, "after")), ("+U", (7, "again"))]
