"""Stores are open while they are needed: opened by the first request, closed when there are too many.
Tablet servers with many buckets; what is open is counted by the threads and files of this process."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace

import pytest

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.schema.descriptor import TableDescriptor
from fluss.server.kv.bucket import KvBucket, KvPut
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.model import Table
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.kv import rocks
from fluss.storage.log.tablet import LogTablet
from fluss.testing.waiting import eventually_async
from tests.open_files import open_below
from tests.unit.server.kv.bucket_support import TABLE, Bucket, hosting, kv_batch


def with_buckets(count: int) -> Table:
    return replace(TABLE, descriptor=TableDescriptor(TABLE.descriptor.schema, bucket_count=count))


def buckets_of(bucket: Bucket) -> list[KvBucket]:
    group = bucket.manager.tables[1].group(None)
    return [group[bucket_id].key_values() for bucket_id in range(len(group))]


async def put(kv: KvBucket, *rows: tuple) -> None:
    await kv.put(KvPut(memoryview(kv_batch(TABLE, *rows))))


def kv_buckets() -> set[KvBucket]:
    return {thing for thing in gc.get_objects() if isinstance(thing, KvBucket)}


async def test_thousands_of_buckets_cost_nothing_until_they_are_used(tmp_path):
    # The test run may have a server of its own, and other tests may have left something behind.
    threads_before, buckets_before = set(threading.enumerate()), kv_buckets()
    async with hosting(tmp_path, with_buckets(3000)) as bucket:
        started = set(threading.enumerate()) - threads_before
        assert not [thread for thread in started if thread.name.startswith("fluss-kv")]
        assert not bucket.manager.kv_runtime.open_stores
        assert kv_buckets() <= buckets_before
        await put(bucket.manager.tables[1].group(None)[1234].key_values(), (1, "a"))
        assert len(bucket.manager.kv_runtime.open_stores) == 1
        assert len(list((tmp_path / "db/t-1").iterdir())) == 2


async def test_those_who_come_together_open_a_store_once(tmp_path):
    async with hosting(tmp_path) as bucket:
        stores = await asyncio.gather(*(bucket.kv.store() for _ in range(20)))
        assert len({id(store) for store in stores}) == 1


async def test_of_too_many_open_stores_those_that_were_used_least_recently_are_closed(tmp_path):
    async with hosting(tmp_path, with_buckets(6), kv=KvSettings(open_stores_max=3)) as bucket:
        kvs, runtime = buckets_of(bucket), bucket.manager.kv_runtime
        for number, kv in enumerate(kvs):
            await put(kv, (number, "a"))
        await eventually_async(lambda: len(runtime.open_stores) == 3)
        assert [kv._life.current is not None for kv in kvs] == [False] * 3 + [True] * 3
        first = await kvs[3].store()
        assert await kvs[0].row_count() == 1, "it is opened again, with everything in it"
        await eventually_async(lambda: len(runtime.open_stores) == 3)
        assert first is kvs[3]._life.current, "it was used a moment ago"
        assert kvs[4]._life.current is None
        for number, kv in enumerate(kvs):
            await put(kv, (number, "b"))
            assert await kv.row_count() == 1


async def test_a_store_that_is_in_use_is_not_closed(tmp_path):
    async with hosting(tmp_path, with_buckets(3), kv=KvSettings(open_stores_max=1, open_slot_wait_ms=50)) as bucket:
        scanned, read, other = buckets_of(bucket)
        await put(scanned, (1, "a"))
        snapshot = (await scanned.store()).snapshot()
        loop, may_end, started = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

        def slow(store):
            loop.call_soon_threadsafe(started.set)
            assert may_end.wait(120)
            return store.state.row_count

        reading = asyncio.create_task(read.read(bucket.manager.readers, slow))
        await started.wait()
        await put(other, (1, "a"))
        assert len(bucket.manager.kv_runtime.open_stores) == 3
        may_end.set()
        assert await reading == 0
        assert len(snapshot.read(1000, 10)) == 1
        snapshot.close()
        del snapshot
        await put(other, (2, "b"))
        await eventually_async(lambda: len(bucket.manager.kv_runtime.open_stores) == 1)


async def test_a_store_that_was_closed_while_a_reader_had_it_says_so(tmp_path):
    async with hosting(tmp_path, with_buckets(2), kv=KvSettings(open_stores_max=1)) as bucket:
        one, other = buckets_of(bucket)
        store = await one.store()
        await put(other, (1, "a"))
        await eventually_async(lambda: one._life.current is None and one._life._changing is None)
        with pytest.raises(FlussError, match="closed") as error:
            store.get_many([b"x"])
        assert error.value.is_retriable


async def test_a_rush_on_all_stores_opens_few_of_them_at_the_same_time(tmp_path):
    # Without a limit for the wait, after which a store is opened all the same.
    patient = KvSettings(open_stores_max=4, open_slot_wait_ms=600_000)
    async with hosting(tmp_path, with_buckets(40), kv=patient) as bucket:
        kvs, runtime = buckets_of(bucket), bucket.manager.kv_runtime
        counting = asyncio.gather(*(kv.row_count() for kv in kvs))
        open_at_once = 0
        while not counting.done():
            open_at_once = max(open_at_once, len(locks_held(tmp_path)))
            await asyncio.sleep(0)
        assert await counting == [0] * 40
        assert 1 <= open_at_once <= 4
        assert len(runtime.open_stores) <= 4
        # Requests that wait for a slot when the server stops do not keep it from stopping.
        rush = [asyncio.create_task(kv.row_count()) for kv in kvs]
        await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.wait(rush), 120)
    assert not locks_held(tmp_path)


def locks_held(directory):
    return [path for path in open_below(directory) if path.endswith("/LOCK")]


async def test_a_store_that_is_being_built_again_does_not_keep_others_from_being_opened(tmp_path, monkeypatch):
    async with hosting(tmp_path, with_buckets(3), kv=KvSettings(open_stores_max=1, open_slot_wait_ms=50)) as bucket:
        slow, other, third = buckets_of(bucket)
        await put(slow, (1, "a"))
        may_read, read = threading.Event(), bucket.log.read

        def held(*arguments, **options):
            assert may_read.wait(120)
            return read(*arguments, **options)

        monkeypatch.setattr(LogTablet, "read", lambda log, *arguments, **options: held(*arguments, **options))
        slow.store_failed(await slow.store(), KvDamagedError("the test says so"))
        assert await other.row_count() == 0
        assert await third.row_count() == 0, "for this one the other is closed"
        may_read.set()
        assert await slow.row_count() == 1


async def test_without_rocksdb_writers_are_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(rocks, "_IS_INSTALLED", False)
    async with hosting(tmp_path) as bucket:
        with pytest.raises(FlussError, match=r"pip install .*flussbett\[server\]") as error:
            await bucket.put((1, "a"))
        assert not error.value.is_retriable


async def test_a_store_that_is_opened_while_the_server_stops_is_closed_again(tmp_path):
    async with hosting(tmp_path, with_buckets(20)) as bucket:
        opening = [asyncio.create_task(kv.row_count()) for kv in buckets_of(bucket)]
        await eventually_async(lambda: len(locks_held(tmp_path)) > 0)
    await asyncio.wait(opening)
    assert not locks_held(tmp_path)


async def test_a_bucket_whose_store_is_closed_is_forgotten_and_comes_back_with_its_rows(tmp_path):
    async with hosting(tmp_path, settings=TabletSettings(open_logs_max=0)) as bucket:
        await bucket.put((1, "a"))
        kv, group = bucket.kv, bucket.hosted.group
        for _ in range(3):
            await bucket.manager._upkeep.close_idle()
        assert group.in_use, "its store is open"
        kv._life.close_soon()
        await eventually_async(lambda: kv.is_closable)
        for _ in range(2):
            await bucket.manager._upkeep.close_idle()
        assert not group.in_use
        # A request that still knows the old one is told to come again, and cannot open the store a second time.
        with pytest.raises(FlussError) as refusal:
            await kv.store()
        assert refusal.value.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await bucket.hosted.open()
        assert await bucket.rows() == [(1, "a")]
        assert await bucket.put((1, "b"), (2, "c")) == 4
        assert await bucket.rows() == [(1, "b"), (2, "c")]
