"""The connections of HTTP: who gets a place, and how long a client may take to ask and to read.

The library that speaks HTTP has limits for one request (its lines, its headers, how many may wait), and none for how
many connections there are and how slow they are. So each of them is inside one of these:

    accept  ->  place?  ->  request within a deadline  ->  answer, which is read within a deadline  ->  next request
                no: 503     no: closed                     no: closed                                   none: closed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web

from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.tls_acceptor import TlsConnection

# From the first byte of a request to the last one of its headers.
_HEADERS_S: Final = 15.0
# How long a client may leave an answer unread, and how long it may take to read the last one.
_UNREAD_S: Final = 30.0
_CLOSING_S: Final = 10.0
_CHECK_S: Final = 1.0
_NO_PLACE: Final = (
    f"HTTP/1.1 {HTTPStatus.SERVICE_UNAVAILABLE} {HTTPStatus.SERVICE_UNAVAILABLE.phrase}\r\n"
    "Content-Length: 0\r\nConnection: close\r\nRetry-After: 5\r\n\r\n"
).encode()


class HttpConnection(TlsConnection, asyncio.Protocol):
    """One connection: all that it is told, the protocol inside is told, as long as it keeps to the limits."""

    def __init__(self, connections: HttpConnections, *, is_admitted: bool) -> None:
        self._connections = connections
        self._is_admitted = is_admitted
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._host = ""
        # When bytes came that belong to no request yet.
        self._asking_since_s: float | None = None
        self._is_in_request = False
        self._has_more = False
        self._unread_since_s: float | None = None
        self._closing_since_s: float | None = None

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        # A client that has gone already has no address.
        self._host = str(peer[0]) if peer else "unknown"
        if not self._is_admitted and not self._connections.admit(self._host):
            self._connections.tell_refused(self._transport)
            return
        self._is_admitted = True
        self._inner = self._connections.add(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._is_in_request:
            self._has_more = True
        elif self._asking_since_s is None:
            self._asking_since_s = self._connections.clock()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)
        if self._is_admitted:
            self._connections.remove(self, self._host)

    def pause_writing(self) -> None:
        self._unread_since_s = self._connections.clock()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        if self._inner is not None:
            self._inner.resume_writing()

    # What the application reports

    def request_began(self) -> None:
        """The headers of a request are there."""
        self._asking_since_s = None
        self._is_in_request, self._has_more = True, False

    def request_ended(self) -> None:
        """There is an answer."""
        self._is_in_request = False
        if self._has_more:
            # The rest of this request, or the beginning of another one.
            self._asking_since_s = self._connections.clock()

    def check(self, now_s: float) -> str | None:
        """Return why this connection has to end, if it has."""
        assert self._transport is not None, "the connection was not made"
        if self._closing_since_s is None and self._transport.is_closing():
            self._closing_since_s = now_s
        for since_s, limit_s, reason in (
            (self._asking_since_s, _HEADERS_S, "its request did not become whole"),
            (self._unread_since_s, _UNREAD_S, "it did not read its answer"),
            (self._closing_since_s, _CLOSING_S, "it did not read its last answer"),
        ):
            if since_s is not None and now_s - since_s > limit_s:
                return f"ended the connection of {self._host}: {reason} within {limit_s:g} s"
        return None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class HttpConnections:
    """All connections of a site. Belongs to the loop of HTTP; ``start`` it there."""

    def __init__(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        admission: Admission,
        bursts: BurstLog,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._new_protocol = new_protocol
        self.admission = admission
        self._bursts = bursts
        self.clock = clock or asyncio.get_running_loop().time
        self._connections: set[HttpConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def new(self) -> HttpConnection:
        """Return a connection that has no place yet."""
        return HttpConnection(self, is_admitted=False)

    def new_admitted(self) -> HttpConnection:
        """Return a connection that was given a place before its handshake."""
        return HttpConnection(self, is_admitted=True)

    def start(self) -> None:
        """Look for slow clients from now on."""
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self.start()
        self.end_slow()

    def end_slow(self) -> None:
        """End the connections of clients that are too slow."""
        now_s = self.clock()
        for connection in tuple(self._connections):
            reason = connection.check(now_s)
            if reason is not None:
                self._bursts.log("slow clients", logging.INFO, reason)
                connection.abort()

    def admit(self, host: str) -> bool:
        refusal = self.admission.admit(host)
        if refusal is not None:
            self._bursts.log(
                "connections refused", logging.WARNING, f"refused the connection of {host}: HTTP has no place for it"
            )
        return refusal is None

    def tell_refused(self, transport: asyncio.Transport) -> None:
        """Say that there is no place, in a few bytes whose arrival the server does not wait for."""
        transport.write(_NO_PLACE)
        transport.close()

    def add(self, connection: HttpConnection) -> asyncio.Protocol:
        self._connections.add(connection)
        return self._new_protocol()

    def remove(self, connection: HttpConnection, host: str) -> None:
        self._connections.discard(connection)
        self.admission.release(host)


def connection_of(request: web.BaseRequest) -> HttpConnection | None:
    """Return the connection that a request came by; None if it has gone."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, HttpConnection) else None
