"""All stores together keep to the limit of what is not on the disk, by flushing the fullest; no write waits for ever.
Real stores with a small limit."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.kv.write_buffers import BufferOwner, WriteBuffers
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import find, get_many, open_store, rows_of, write

MIB = 1 << 20
LIMIT = 16 * MIB
ROW = bytes(1000)


def fill(store: KvStore, mib: int, together: int = 10**6) -> None:
    keys = [b"%06d" % number for number in range(mib * 1000)]
    for start in range(0, len(keys), together):
        some = keys[start : start + together]
        write(store, some, [ROW] * len(some), KvState(store.state.applied_offset + 1, None))


@pytest.mark.parametrize("together", [1000, 100], ids=["recent", "in the write buffer"])
def test_the_fullest_store_is_flushed_whichever_is_written_to(tmp_path: Path, together: int) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=LIMIT))
    with ExitStack() as stores:
        busy, full, other = (stores.enter_context(open_store(tmp_path / name, resources)) for name in ("1", "2", "3"))
        fill(full, 5, together)
        fill(other, 3, together)
        assert full.buffered_bytes() > 5 * 1000 * 1000
        assert other.buffered_bytes() > 3 * 1000 * 1000
        while resources.write_buffers.has_room():
            assert (full.flushed_offset, other.flushed_offset, busy.flushed_offset) == (0, 0, 0)
            write(busy, [b"%06d" % number for number in range(together)], [ROW] * together, KvState(1, None))
        write(busy, [b"a"], [b"1"], KvState(2, None))
        eventually(lambda: full.flushed_offset == full.state.applied_offset)
        eventually(lambda: full.buffered_bytes() < MIB)
        eventually(resources.write_buffers.has_room)
        assert (busy.flushed_offset, other.flushed_offset) == (0, 0)


def test_a_few_rows_make_room_as_well(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=LIMIT))
    with open_store(tmp_path / "1", resources) as busy, open_store(tmp_path / "2", resources) as full:
        fill(full, 13)
        assert full.flushed_offset == 0
        write(busy, [b"a"], [b"1"], KvState(1, 1))
        eventually(lambda: full.flushed_offset == 1)
        assert get_many(busy, [b"a"]) == [b"1"]


def test_many_stores_stay_below_the_limit_together(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=LIMIT))
    most = 0
    with ExitStack() as stores:
        opened = [stores.enter_context(open_store(tmp_path / str(number), resources)) for number in range(8)]

        def write_on(mine: list[KvStore]) -> None:
            nonlocal most
            for number in range(12):
                fill(mine[number % len(mine)], 1)
                most = max(most, resources.buffered_bytes)

        threads = [threading.Thread(target=write_on, args=(opened[first::4],)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # 48 MiB were written. Idle buffers and one write of each thread come on top of the limit.
    assert most < LIMIT + 4 * 2 * MIB + 8 * MIB // 2


def test_what_was_closed_or_released_is_no_longer_counted(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings())
    empty = resources.buffered_bytes
    with open_store(tmp_path / "1", resources) as store:
        fill(store, 3)
        assert resources.buffered_bytes > empty + 3 * 1000 * 1000
        store.release()
        assert resources.buffered_bytes < empty + MIB
        fill(store, 3)
        fill(store, 2)
        assert resources.buffered_bytes > empty + 5 * 1000 * 1000
        assert store.buffered_bytes() > 5 * 1000 * 1000
    assert resources.buffered_bytes <= empty


def test_idle_stores_are_left_alone(tmp_path: Path) -> None:
    resources = KvResources(KvStoreSettings(write_buffers_bytes_max=4 * MIB))
    with ExitStack() as stores:
        opened = [stores.enter_context(open_store(tmp_path / str(number), resources)) for number in range(14)]
        for store in opened:
            write(store, [b"a"], [b"1"], KvState(1, 1))
        # More than the limit, and yet none has enough for a flush.
        assert resources.buffered_bytes > 4 * MIB
        write(opened[0], [b"b"], [b"2"], KvState(2, 2))
        assert [store.flushed_offset for store in opened] == [0] * 14


class Store:
    """A store that has some bytes until it is flushed."""

    def __init__(self, byte_count: int) -> None:
        self.byte_count = byte_count
        self.release_count = 0

    def buffered_bytes(self) -> int:
        return self.byte_count

    def release(self) -> None:
        self.release_count += 1
        self.byte_count = 0


class FullDisk(Store):
    def release(self) -> None:
        self.release_count += 1
        raise FlussError("full", ErrorCode.KV_STORAGE_EXCEPTION)


class ClosedStore:
    def buffered_bytes(self) -> int:
        raise FlussError("closed", ErrorCode.KV_STORAGE_EXCEPTION)

    def release(self) -> None:
        raise AssertionError("nothing can be flushed here")


class SlowStore(Store):
    """Its flush takes until the test says so."""

    def __init__(self, byte_count: int) -> None:
        super().__init__(byte_count)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def release(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(120)
        super().release()


def test_the_fullest_are_flushed_one_by_one_until_there_is_room() -> None:
    owners = [Store(size * MIB) for size in (1, 5, 3, 4)] + [Store(MIB - 1)]
    # Three quarters of it are eight MiB.
    buffers = WriteBuffers(LIMIT * 2 // 3, lambda: sum(owner.byte_count for owner in owners))
    for owner in owners:
        buffers.add(owner)
    assert not buffers.has_room()
    buffers.make_room()
    eventually(buffers.has_room)
    # The largest leaves nine of fourteen MiB, the next one five.
    assert [owner.release_count for owner in owners] == [0, 1, 0, 1, 0]
    buffers.make_room()
    assert [owner.release_count for owner in owners] == [0, 1, 0, 1, 0]


def test_stores_that_cannot_be_flushed_hold_up_no_write() -> None:
    full_disk, closed, other, small = FullDisk(9 * MIB), ClosedStore(), Store(2 * MIB), Store(MIB - 1)
    buffers = WriteBuffers(LIMIT, lambda: 2 * LIMIT)
    owners: list[BufferOwner] = [full_disk, closed, other, small]
    for owner in owners:
        buffers.add(owner)
    buffers.make_room()
    assert (full_disk.release_count, other.release_count, small.release_count) == (1, 1, 0)
    buffers.remove(full_disk)
    other.byte_count = 2 * MIB
    buffers.make_room()
    assert (full_disk.release_count, other.release_count, small.release_count) == (1, 2, 0)


def test_below_the_limit_no_write_waits_for_a_flush_and_beyond_it_all_do() -> None:
    slow = SlowStore(13 * MIB)
    buffers = WriteBuffers(LIMIT, lambda: slow.byte_count)
    buffers.add(slow)
    flusher = threading.Thread(target=buffers.make_room)
    flusher.start()
    assert slow.has_begun.wait(120)
    # More than three quarters: a thread is at it, and this returns.
    buffers.make_room()
    buffers.note(7 * MIB)
    waiting = threading.Thread(target=buffers.make_room)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    buffers.note(-7 * MIB)
    slow.may_end.set()
    flusher.join(120)
    waiting.join(120)
    assert not flusher.is_alive()
    assert not waiting.is_alive()
    assert slow.release_count == 1


def test_when_no_thread_can_be_started_the_next_write_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Store(13 * MIB)
    buffers = WriteBuffers(LIMIT, lambda: owner.byte_count)
    buffers.add(owner)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, suppress(RuntimeError):
        patch.setattr(threading.Thread, "start", fail)
        buffers.make_room()
    buffers.make_room()
    eventually(buffers.has_room)
    assert owner.release_count == 1


def test_a_write_that_flushes_cannot_follow_waits_and_then_fails(tmp_path: Path) -> None:
    # There is no real sleep: a store with the smallest buffers is behind at once.
    pauses: list[float] = []
    settings = KvStoreSettings(write_buffer_bytes=64 * 1024, stall_ms_max=20)
    with open_store(tmp_path, KvResources(settings, sleep=pauses.append)) as store:
        keys = [b"%06d" % number for number in range(200)]
        offset = 0

        def write_until_behind() -> None:
            nonlocal offset
            for _ in range(2000):
                pauses.clear()
                write(store, keys, [b"%d %s" % (offset + 1, ROW)] * len(keys), KvState(offset + 1, 200))
                offset += 1

        with pytest.raises(FlussError, match="waited 20 ms for the disk to catch up") as caught:
            write_until_behind()
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert sum(pause for pause in pauses if pause > 1e-3) == pytest.approx(0.02)
        assert store.state.applied_offset == offset
        assert not store.has_failed
        # Nothing of the write that failed is there, and nothing of the others is lost.
        assert get_many(store, keys) == find(store, keys) == [b"%d %s" % (offset, ROW)] * 200

        def is_flushed() -> bool:
            with suppress(FlussError):
                store.flush()
                return True
            return False

        # As soon as the disk has caught up.
        eventually(is_flushed)

        def is_written() -> bool:
            with suppress(FlussError):
                write(store, [b"a"], [b"1"], KvState(offset + 1, 201))
            return store.state.applied_offset == offset + 1

        eventually(is_written)
        assert get_many(store, [b"a"]) == [b"1"]
        assert rows_of(store) == [b"%d %s" % (offset, ROW)] * 200 + [b"1"]
