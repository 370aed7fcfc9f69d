"""Event loops, and the bytes of one connection on their way into its transport.

Loops are those of uvloop where it is installed, of plain asyncio otherwise. Everything above works on both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fluss.buffers import BytesLike, byte_view
from fluss.protocol.codec import Parts

T = TypeVar("T")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the fastest loop available; it is the caller's to close."""
    return _loop_factory()()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new loop, like ``asyncio.run``."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


# What the transport gets in one turn of the event loop, and only while it has nothing left to send: a transport of
# plain asyncio copies what the socket does not take at once, and others have to get their turn. Measured on the
# loopback, where both ends share a loop, this is also the fastest: the bytes are still in the cache when they are read.
_TURN_BYTES_MAX = 512 * 1024

# Smaller parts that wait together are joined: one system call instead of many.
_JOINED_BYTES_MAX = 64 * 1024


class Outbox:
    """The unsent bytes of one connection.

    Parts are kept as they are until the socket takes them, so their memory must not change before ``unsent_bytes`` is
    back at zero. Small parts that are written in one turn of the event loop leave together. Nothing limits the amount:
    owners look at ``unsent_bytes`` and stop writing; ``on_progress`` tells them to look again. A writer that owns the
    memory of its parts passes ``on_sent``, which is called exactly once: when they have left, or when they never will.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, on_progress: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._on_progress = on_progress
        self._parts: deque[BytesLike] = deque()
        self._queued_bytes = 0
        self._written_bytes = 0
        self._is_paused = False
        self._is_held = False
        self._is_flush_scheduled = False
        self._on_empty: Callable[[], None] | None = None
        # What to call when so many bytes have been sent since the beginning.
        self._on_sent: deque[tuple[int, Callable[[], None]]] = deque()
        self._ask_for_reports()

    def _ask_for_reports(self) -> None:
        """Have the transport say when it holds any byte back, and again when it has got rid of all."""
        if self._transport.get_extra_info("ssl_object") is None:
            self._transport.set_write_buffer_limits(high=0)
            return
        # One of TLS says so from the limit on, others beyond it. It may hold the end of its handshake already.
        self._is_paused = self._transport.get_write_buffer_size() > 0
        self._transport.set_write_buffer_limits(high=1, low=0)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        return self._queued_bytes + self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the operating system has taken since the beginning."""
        return self._written_bytes - self.unsent_bytes

    def write(self, parts: Parts, on_sent: Callable[[], None] | None = None) -> None:
        """Add parts to the end."""
        for part in parts:
            byte_count = len(part)
            if byte_count > 0:
                self._parts.append(part)
                self._queued_bytes += byte_count
                self._written_bytes += byte_count
        if on_sent is not None:
            self._on_sent.append((self._written_bytes, on_sent))
        self._schedule_flush()

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as the transport has everything."""
        self._on_empty = callback
        self._schedule_flush()

    @property
    def is_held(self) -> bool:
        return self._is_held

    def hold(self) -> None:
        """Let nothing leave until ``release``, which may be long after the transport could take more."""
        self._is_held = True

    def release(self) -> None:
        """Let everything leave that was held. May be called when nothing is."""
        if self._is_held:
            self._is_held = False
            self._schedule_flush()

    def pause(self) -> None:
        """The transport holds bytes back: give it no more."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport has sent everything it had."""
        self._is_paused = False
        self._flush()

    def clear(self) -> None:
        """Forget what is unsent; the connection is gone."""
        self._parts.clear()
        self._queued_bytes = 0
        self._on_empty = None
        while self._on_sent:
            self._on_sent.popleft()[1]()

    def _schedule_flush(self) -> None:
        # A paused transport asks for more by itself.
        if not self._is_flush_scheduled and not self._is_paused and not self._is_held:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._is_held:
            return
        bytes_left = _TURN_BYTES_MAX
        while self._parts and not self._is_paused and bytes_left > 0:
            piece = self._next_piece(bytes_left)
            bytes_left -= len(piece)
            self._queued_bytes -= len(piece)
            self._transport.write(piece)
        if self._parts:
            self._schedule_flush()
        elif self._on_empty is not None:
            callback, self._on_empty = self._on_empty, None
            callback()
        sent_bytes = self.sent_bytes
        while self._on_sent and self._on_sent[0][0] <= sent_bytes:
            self._on_sent.popleft()[1]()
        self._on_progress()

    def _next_piece(self, bytes_max: int) -> BytesLike:
        """Take bytes from the front: some small parts joined, or as much of a large one as is wanted."""
        first = self._parts.popleft()
        if len(first) > bytes_max:
            view = byte_view(first)
            self._parts.appendleft(view[bytes_max:])
            return view[:bytes_max]
        byte_count = len(first)
        joined: list[BytesLike] = [first]
        while self._parts and byte_count + len(self._parts[0]) <= min(bytes_max, _JOINED_BYTES_MAX):
            byte_count += len(self._parts[0])
            joined.append(self._parts.popleft())
        return first if len(joined) == 1 else b"".join(joined)
