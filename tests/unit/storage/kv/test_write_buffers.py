"""All stores together keep to the limit of what is not on the disk, by flushing the fullest, and nobody waits for ever.
Real stores with a small limit."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.write_buffers import BufferSizes, WriteBuffers
from tests.unit.storage.kv.support import open_store

MIB = 1 << 20
LIMIT = 16 * MIB
VALUE = bytes(1000)


def fill(store: KvStore, mib: int) -> None:
    keys = [b"%06d" % number for number in range(mib * 1000)]
    store.write(keys, [VALUE] * len(keys), KvState(store.state.applied_offset + 1, None))


def test_the_fullest_store_is_flushed_whoever_writes(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=LIMIT))
    with ExitStack() as stores:
        busy, full, other = (stores.enter_context(open_store(tmp_path / name, resources)) for name in ("1", "2", "3"))
        fill(full, 5)
        fill(other, 4)
        assert (full.flushed_offset, other.flushed_offset) == (0, 0)
        fill(busy, 1)
        deadline = time.monotonic() + 10
        while full.flushed_offset < 1:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert (busy.flushed_offset, other.flushed_offset) == (0, 0)


def test_many_stores_stay_below_the_limit_together(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=LIMIT))
    most = 0
    with ExitStack() as stores:
        opened = [stores.enter_context(open_store(tmp_path / str(number), resources)) for number in range(8)]

        def write(mine: list[KvStore]) -> None:
            nonlocal most
            for number in range(12):
                fill(mine[number % len(mine)], 1)
                most = max(most, resources.buffered_bytes)

        threads = [threading.Thread(target=write, args=(opened[first::4],)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # 48 MiB were written. Idle buffers and one write of each thread come on top of the limit.
    assert most < LIMIT + 4 * 2 * MIB + 8 * MIB // 2


def test_idle_stores_are_left_alone(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=4 * MIB))
    with ExitStack() as stores:
        opened = [stores.enter_context(open_store(tmp_path / str(number), resources)) for number in range(14)]
        for store in opened:
            store.write([b"a"], [b"1"], KvState(1, 1))
        # More than the limit, and yet none has enough for a flush.
        assert resources.buffered_bytes > 4 * MIB
        opened[0].write([b"b"], [b"2"], KvState(2, 2))
        assert [store.flushed_offset for store in opened] == [0] * 14


class Store:
    """A store whose flushes never end."""

    def __init__(self, filling_bytes: int, flushing_bytes: int) -> None:
        self.sizes = BufferSizes(filling_bytes, flushing_bytes)
        self.flush_count = 0

    def buffer_sizes(self) -> BufferSizes:
        return self.sizes

    def start_flush(self) -> None:
        self.flush_count += 1


class ClosedStore:
    def buffer_sizes(self) -> BufferSizes:
        raise FlussError("closed", ErrorCode.KV_STORAGE_EXCEPTION)

    def start_flush(self) -> None:
        raise AssertionError("nothing can be flushed here")


def test_waiting_for_the_disk_ends_with_an_error() -> None:
    pauses: list[float] = []
    buffers = WriteBuffers(LIMIT, 100, lambda: 2 * LIMIT, sleep=pauses.append)
    behind, closed = Store(0, LIMIT + 1), ClosedStore()
    buffers.add(behind)
    buffers.add(closed)
    with pytest.raises(FlussError, match="The disk has been behind for 100 ms") as caught:
        buffers.make_room()
    assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
    assert sum(pauses) == pytest.approx(0.1)
    # Flushed at last.
    behind.sizes = BufferSizes(0, LIMIT)
    buffers.make_room()
    behind.sizes = BufferSizes(LIMIT // 2 + 1, 0)
    buffers.make_room()
    assert behind.flush_count == 1
    buffers.remove(behind)
    buffers.make_room()
    assert behind.flush_count == 1


def test_a_write_that_flushes_cannot_follow_waits_and_then_fails(tmp_path: Path) -> None:
    # Nobody really sleeps: a store with the smallest buffers is behind at once.
    pauses: list[float] = []
    settings = KvStoreSettings(write_buffer_bytes=64 * 1024, stall_ms_max=20)
    with open_store(tmp_path, KvResources(settings, sleep=pauses.append)) as store:
        offset = 0

        def write_until_behind() -> None:
            nonlocal offset
            keys = [b"%06d" % number for number in range(200)]
            for _ in range(2000):
                store.write(keys, [VALUE] * len(keys), KvState(offset + 1, 200))
                offset += 1

        with pytest.raises(FlussError, match="waited 20 ms for the disk to catch up") as caught:
            write_until_behind()
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert store.state.applied_offset == offset
        assert not store.has_failed
        store.flush()
        store.write([b"a"], [b"1"], KvState(offset + 1, 201))
        assert store.get_many([b"a"]) == [b"1"]
