"""A bad network for tests: a TCP proxy in front of one server that delays, cuts and stalls what passes through it.

    with FaultProxy(seed=1) as proxy:
        # The server tells its clients to connect to the proxy.
        with ServerProcess(directory, "-D", f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}") as server:
            proxy.upstream_port = server.port
            proxy.faults = Faults(cut_after_bytes=(1, 50_000))

Bytes are never changed, repeated or reordered: TCP does not do that either. Where a connection is cut depends only on
the seed and on how many connections there were before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Final, Self

_LOCALHOST: Final = "127.0.0.1"
# What is passed on at once, and after one delay.
_PIECE_BYTES_MAX: Final = 64 * 1024
_STALL_CHECK_S: Final = 0.01
_BACKLOG: Final = 512
# Closing with this option set is a reset: what was sent and not read is lost.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Ranges have both ends included; each connection draws its own numbers from them."""

    # A connection is cut after so many bytes in both directions together, by a reset or an orderly end.
    cut_after_bytes: tuple[int, int] | None = None
    # Every piece waits for so long before it is passed on.
    delay_s: tuple[float, float] = (0.0, 0.0)
    # New connections are accepted and reset at once.
    refuses: bool = False
    # Nothing passes, and neither end is told. What was sent meanwhile arrives when this ends, as when a network heals.
    stalls: bool = False


class FaultProxy:
    """Passes connections on to ``upstream_port`` of this machine. A context manager with a thread of its own.

    ``faults`` and ``upstream_port`` may be set at any time, from any thread: new connections follow them at once, and
    open ones from their next piece on, except that they keep the place at which they are cut.
    """

    def __init__(self, *, seed: int, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.upstream_port = 0
        self._seed = seed
        self._links: set[_Link] = set()
        self._link_count = 0
        self._cut_count = 0
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Listen on a free port."""
        assert self._thread is None, "the proxy is running already"
        listening = socket.create_server((_LOCALHOST, 0), backlog=_BACKLOG)
        self._port = listening.getsockname()[1]
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(listening, is_ready)), name="fault-proxy", daemon=True
        )
        self._thread.start()
        is_ready.wait()
        return self

    def stop(self) -> None:
        """Cut all connections and listen no more. May be called again."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Where clients connect to."""
        assert self._port, "the proxy was not started"
        return self._port

    @property
    def connection_count(self) -> int:
        """Connections that were accepted so far."""
        return self._link_count

    @property
    def cut_count(self) -> int:
        """Connections that were cut so far at the place they had drawn."""
        return self._cut_count

    def cut_all(self) -> None:
        """Reset all open connections; return when that is done."""
        assert self._loop is not None, "the proxy was not started"
        asyncio.run_coroutine_threadsafe(self._cut_all(), self._loop).result()

    async def _cut_all(self) -> None:
        for link in list(self._links):
            link.cut(reset=True)

    async def _main(self, listening: socket.socket, is_ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accepted, sock=listening, limit=_PIECE_BYTES_MAX)
        is_ready.set()
        async with server:
            await self._stop.wait()
            await self._cut_all()
            while self._links:
                await asyncio.sleep(_STALL_CHECK_S)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link_count += 1
        # Each connection has its own numbers, so that they do not depend on what others do meanwhile.
        link = _Link(random.Random(f"{self._seed}/{self._link_count}"), self.faults.cut_after_bytes)
        self._links.add(link)
        try:
            await self._serve(link, reader, link.attached(writer))
        except OSError:
            # The server takes no connections.
            link.cut(reset=True)
        finally:
            link.cut(reset=False)
            self._links.discard(link)

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the server, and pass on in both directions until both have ended."""
        if self.faults.refuses:
            link.cut(reset=True)
            return
        server_reader, server_writer = await asyncio.open_connection(
            _LOCALHOST, self.upstream_port, limit=_PIECE_BYTES_MAX
        )
        link.attached(server_writer)
        await asyncio.gather(self._pass_on(link, reader, server_writer), self._pass_on(link, server_reader, writer))

    async def _pass_on(self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_PIECE_BYTES_MAX):
                while self.faults.stalls and not link.is_cut:
                    await asyncio.sleep(_STALL_CHECK_S)
                await asyncio.sleep(link.rng.uniform(*self.faults.delay_s))
                if link.is_cut:
                    return
                target.write(link.taken(data))
                await target.drain()
                if link.is_used_up:
                    self._cut_count += 1
                    link.cut(reset=link.rng.random() < 0.5)
            if not target.is_closing():
                target.write_eof()
        except OSError:
            link.cut(reset=True)


class _Link:
    """One connection, with a transport to the client and one to the server."""

    def __init__(self, rng: random.Random, cut_after_bytes: tuple[int, int] | None) -> None:
        self.rng = rng
        self.is_cut = False
        self._writers: list[asyncio.StreamWriter] = []
        self._bytes_left = None if cut_after_bytes is None else rng.randint(*cut_after_bytes)

    def attached(self, writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
        # What was written has left when ``drain`` returns, so a cut takes place where it should.
        writer.transport.set_write_buffer_limits(0)
        self._writers.append(writer)
        if self.is_cut:
            writer.close()
        return writer

    @property
    def is_used_up(self) -> bool:
        return self._bytes_left == 0 and not self.is_cut

    def taken(self, data: bytes) -> bytes:
        """Return as much of the data as may still pass."""
        if self._bytes_left is None:
            return data
        data = data[: self._bytes_left]
        self._bytes_left -= len(data)
        return data

    def cut(self, *, reset: bool) -> None:
        """Close both ends, if they are not. Their readers see an end or an error."""
        if self.is_cut:
            return
        self.is_cut = True
        for writer in self._writers:
            if reset:
                # A transport whose peer was faster has closed its socket already; the other one must still be closed.
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            writer.close()
