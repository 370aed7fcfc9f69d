"""The buffer gives out chunks in order, counts memory by frame, and wakes whoever waits, thread or coroutine.
Shown with chunks made by hand, a second thread, and event loops that wait, time out and are cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fluss.client.scan.fetch.buffer import Chunk, Frame, ScanBuffer, Subscription, Subscriptions
from fluss.errors import FlussError
from fluss.schema.table import TableBucket

BUCKETS = [TableBucket(1, number) for number in range(3)]


@pytest.fixture
def room_calls() -> list[bool]:
    return []


@pytest.fixture
def buffer(room_calls: list[bool]) -> ScanBuffer:
    return ScanBuffer(100, lambda: room_calls.append(True))


def put(buffer: ScanBuffer, frame_bytes: int, *subscriptions: Subscription) -> list[Chunk]:
    frame = Frame(frame_bytes)
    chunks = [Chunk(subscription, frame, memoryview(b""), 1, False) for subscription in subscriptions]
    buffer.hold(frame)
    buffer.put(chunks)
    return chunks


def test_chunks_come_out_in_the_order_of_arrival(buffer: ScanBuffer) -> None:
    first, second = Subscription(BUCKETS[0], 0), Subscription(BUCKETS[1], 0)
    arrived = [*put(buffer, 10, first, second), *put(buffer, 10, first)]
    assert [buffer.take() for _ in range(4)] == [*arrived, None]


def test_a_frame_counts_until_its_last_chunk_is_released(buffer: ScanBuffer, room_calls: list[bool]) -> None:
    subscription = Subscription(BUCKETS[0], 0)
    assert buffer.has_room()
    put(buffer, 60, subscription, subscription)
    assert buffer.has_room()
    put(buffer, 60, subscription)
    assert buffer.bytes_held == 120
    assert not buffer.has_room()
    first, second = buffer.take(), buffer.take()
    assert first is not None
    assert second is not None
    buffer.release(first)
    assert (buffer.bytes_held, room_calls) == (120, [])
    buffer.release(second)
    assert (buffer.bytes_held, room_calls) == (60, [True])
    # Nobody has asked since, so nobody is told.
    third = buffer.take()
    assert third is not None
    buffer.release(third)
    assert (buffer.bytes_held, room_calls) == (0, [True])


def test_what_belongs_to_ended_subscriptions_is_dropped_and_makes_room(
    buffer: ScanBuffer, room_calls: list[bool]
) -> None:
    kept, ended = Subscription(BUCKETS[0], 0), Subscription(BUCKETS[1], 0)
    put(buffer, 150, ended)
    put(buffer, 10, kept)
    buffer.fail(ended, FlussError("no"))
    assert not buffer.has_room()
    ended.is_active = False
    buffer.drop_ended()
    assert (buffer.bytes_held, room_calls, buffer.failure()) == (10, [True], None)
    taken = buffer.take()
    assert taken is not None
    assert taken.subscription is kept
    buffer.fail(ended, FlussError("too late"))
    assert buffer.failure() is None


def test_subscribing_again_ends_the_first_subscription() -> None:
    changes: list[tuple[list[Subscription], list[Subscription]]] = []
    subscriptions = Subscriptions(lambda begun, ended: changes.append((list(begun), list(ended))))
    (first,) = subscriptions.begin({BUCKETS[0]: 5})
    assert (first.is_active, subscriptions.positions()) == (True, {BUCKETS[0]: 5})
    (second,) = subscriptions.begin({BUCKETS[0]: 7})
    assert (first.is_active, second.is_active) == (False, True)
    assert subscriptions.positions() == {BUCKETS[0]: 7}
    subscriptions.park({BUCKETS[0]: 8, BUCKETS[1]: 1})
    assert subscriptions.positions() == {BUCKETS[0]: 8, BUCKETS[1]: 1}
    subscriptions.end([BUCKETS[0], BUCKETS[2]])
    assert subscriptions.positions() == {BUCKETS[1]: 1}
    assert changes[:3] == [([first], []), ([second], [first]), ([], [second])]
    assert [len(ended) for _, ended in changes] == [0, 1, 1, 1]


def test_failures_stay_until_they_are_recovered_and_are_never_the_same_object(buffer: ScanBuffer) -> None:
    first, second = Subscription(BUCKETS[0], 0), Subscription(BUCKETS[1], 0)
    buffer.fail(first, FlussError("first", 48))
    buffer.fail(second, FlussError("second"))
    one, other = buffer.failure(), buffer.failure()
    assert one is not None
    assert other is not None
    assert one is not other
    assert (one.message, one.error_code) == (other.message, other.error_code) == ("first", 48)
    buffer.recover(first)
    failure = buffer.failure()
    assert failure is not None
    assert failure.message == "second"


def test_a_waiting_thread_is_woken_by_news(buffer: ScanBuffer) -> None:
    subscription = Subscription(BUCKETS[0], 0)
    news = buffer.news_count
    assert not buffer.block(news, 0.01)
    threading.Timer(0.02, put, [buffer, 1, subscription]).start()
    assert buffer.block(news, 3600)
    # News that came before the wait began count, too.
    assert buffer.block(news, 3600)
    threading.Timer(0.02, buffer.close).start()
    assert buffer.block(buffer.news_count, 3600)
    assert buffer.is_closed


async def test_a_waiting_coroutine_is_woken_by_news_from_another_thread(buffer: ScanBuffer) -> None:
    news = buffer.news_count
    assert not await buffer.wait(news, 0.01)
    threading.Timer(0.02, buffer.fail, [Subscription(BUCKETS[0], 0), FlussError("no")]).start()
    async with asyncio.timeout(120):
        assert await buffer.wait(news, None)
        assert await buffer.wait(news, None)
    cancelled = asyncio.ensure_future(buffer.wait(buffer.news_count, None))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not buffer._waiters


def test_news_for_a_loop_that_is_closed_disturb_nobody(buffer: ScanBuffer) -> None:
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(buffer.wait(buffer.news_count, None))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert len(buffer._waiters) == 1
    (entry,) = buffer._waiters
    loop.close()
    buffer.close()
    assert not buffer._waiters
    # Keeps asyncio from complaining about the task that was left alone.
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del entry
