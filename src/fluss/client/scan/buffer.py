"""What has been fetched and not been read yet: filled by the fetcher on the event loop, emptied by polls.

Bytes are counted by received frame: a frame stays in memory until the last of its chunks is read or dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluss.client.kernel.runtime import is_blocking
from fluss.client.scan.subscription import Subscription
from fluss.errors import FlussError


@dataclass(slots=True, eq=False)
class Frame:
    """Received memory that several chunks share."""

    byte_count: int
    chunk_count: int = 0


@dataclass(slots=True, eq=False)
class Chunk:
    """The records of one bucket in one frame: log batches, of which the last may be cut off, or one value batch."""

    subscription: Subscription
    frame: Frame
    records: memoryview
    # Where to go on after this chunk, which may be behind its last record when a filter has left records out. After
    # rows of a snapshot it is FROM_SNAPSHOT, except after the last ones: there it is the offset of the snapshot.
    offset_next: int
    # Whether the server has cut columns out.
    is_projected: bool
    # Whether these are rows of a snapshot.
    is_values: bool = False


class ScanBuffer:
    """Chunks in the order of their arrival, and the failures of buckets that have nothing to read because of them.

    Safe for use by several threads. ``has_room`` turns False at ``bytes_max``: it is up to the fetcher to stop then,
    so what was already on its way comes on top. When there is room again, ``on_room`` is called once, on the thread
    that made room.
    """

    def __init__(self, bytes_max: int, on_room: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._condition = threading.Condition(threading.Lock())
        self._chunks: deque[Chunk] = deque()
        self._failures: dict[Subscription, FlussError] = {}
        self._bytes_held = 0
        self._is_room_wanted = False
        self._is_closed = False
        # Counts everything a waiting poll should look at.
        self._news_count = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    # The fetcher's side

    def hold(self, frame: Frame) -> None:
        """Count a frame whose chunks are about to be put."""
        with self._condition:
            self._bytes_held += frame.byte_count

    def put(self, chunks: Sequence[Chunk]) -> None:
        """Add the chunks of one frame that is held, all of them at once."""
        with self._condition:
            chunks[0].frame.chunk_count = len(chunks)
            self._chunks.extend(chunks)
            self._announce()

    def fail(self, subscription: Subscription, error: FlussError) -> None:
        """Have polls raise an error until ``recover`` or the end of the subscription."""
        with self._condition:
            if subscription.is_active:
                self._failures[subscription] = error
                self._announce()

    def recover(self, subscription: Subscription) -> None:
        with self._condition:
            self._failures.pop(subscription, None)

    def has_room(self) -> bool:
        """Whether more may be fetched; if not, ``on_room`` will tell when."""
        with self._condition:
            self._is_room_wanted = self._bytes_held >= self._bytes_max
            return not self._is_room_wanted

    def close(self) -> None:
        """Drop everything and end every wait."""
        with self._condition:
            self._is_closed = True
            self._chunks.clear()
            self._failures.clear()
            self._bytes_held = 0
            self._announce()

    def _announce(self) -> None:
        self._news_count += 1
        self._condition.notify_all()
        for loop, waiter in self._waiters:
            _settle_on(loop, waiter)
        self._waiters.clear()

    # The consumer's side

    @property
    def bytes_held(self) -> int:
        return self._bytes_held

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def news_count(self) -> int:
        """How much has happened so far. Read it before looking for data, and give it to ``wait`` if there was none."""
        return self._news_count

    @property
    def has_something(self) -> bool:
        """Whether there is anything to read, or to raise."""
        return bool(self._chunks or self._failures or self._is_closed)

    def take(self) -> Chunk | None:
        """Remove the first chunk. The caller calls ``release`` when it has read the chunk."""
        with self._condition:
            return self._chunks.popleft() if self._chunks else None

    def release(self, chunk: Chunk) -> None:
        with self._condition:
            has_made_room = self._release(chunk)
        if has_made_room:
            self._on_room()

    def _release(self, chunk: Chunk) -> bool:
        chunk.frame.chunk_count -= 1
        if chunk.frame.chunk_count or self._is_closed:
            return False
        self._bytes_held -= chunk.frame.byte_count
        if not self._is_room_wanted or self._bytes_held >= self._bytes_max:
            return False
        self._is_room_wanted = False
        return True

    def drop_ended(self) -> None:
        """Drop what belongs to subscriptions that have ended."""
        with self._condition:
            dropped = [chunk for chunk in self._chunks if not chunk.subscription.is_active]
            if dropped:
                self._chunks = deque(chunk for chunk in self._chunks if chunk.subscription.is_active)
            self._failures = {key: error for key, error in self._failures.items() if key.is_active}
            has_made_room = sum(map(self._release, dropped)) > 0
        if has_made_room:
            self._on_room()

    def failure(self) -> FlussError | None:
        """Return a copy of the oldest failure, to be raised."""
        with self._condition:
            for error in self._failures.values():
                return error.copied()
        return None

    async def wait(self, news_count: int, timeout_s: float | None) -> bool:
        """Wait until there is more than ``news_count`` news; False if that takes longer than ``timeout_s``."""
        if is_blocking():
            return self.block(news_count, timeout_s)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._condition:
            if self._news_count != news_count or self._is_closed:
                return True
            self._waiters.add((loop, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            with self._condition:
                self._waiters.discard((loop, waiter))
        return True

    def block(self, news_count: int, timeout_s: float | None) -> bool:
        """Like ``wait``, for the calling thread."""
        with self._condition:
            return self._condition.wait_for(lambda: self._news_count != news_count or self._is_closed, timeout_s)


def _settle_on(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def settle() -> None:
        if not waiter.done():
            waiter.set_result(None)

    # A loop may be closed while something waits on it; then there is nothing left to wake.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
