"""The server's side of the network: accepts connections and hands requests to handlers."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Metrics, Sample
from fluss.net.admission import Admission, Places
from fluss.net.burst_log import BurstLog
from fluss.net.limits import ByteBudget
from fluss.net.listener_settings import ListenerSettings
from fluss.net.listener_state import Shared
from fluss.net.login_throttle import LoginThrottle
from fluss.net.quotas import Quotas
from fluss.net.request_handler import Answer, Guest, Handler, RequestContext
from fluss.net.request_metrics import RequestMetrics
from fluss.net.server_connection import ConnectionFacts, ServerConnection
from fluss.net.tls import ServerCertificate
from fluss.net.tls_acceptor import TlsAcceptor
from fluss.protocol.api import APIS, UNAUTHENTICATED_APIS, Api, ApiKey

__all__ = ["Answer", "Handler", "Listener", "ListenerSettings", "RequestContext"]

# Connections that plain asyncio takes at once; each has a descriptor before it can be refused.
_BACKLOG = 128
# How precisely idle and slow clients are found: a fraction of the shortest timeout, and a bound.
_CHECKS_PER_TIMEOUT = 4
_CHECK_INTERVAL_S_MAX = 15.0
# How long cancelled handlers may take to clean up before the listener no longer waits for them.
_CANCEL_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class Listener:
    """Listens on one address. Several listeners may share one table of handlers.

    A handler is called with a RequestContext and the decoded request, in the order in which requests arrive on a
    connection. It returns the response, or an awaitable of it when it has to wait; see ServerConnection for what is
    guaranteed. A response inside an Answer reports when it has been sent. FlussErrors are answered with their code and
    text. Anything else a handler raises is logged and answered with code -1.

    ApiVersions and Authenticate need no handlers. ApiVersions announces exactly the APIs that have one.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        handlers: Mapping[ApiKey, Handler],
        *,
        clock: Callable[[], float] | None = None,
        places: Places | None = None,
        quotas: Quotas | None = None,
        throttle: LoginThrottle | None = None,
        request_metrics: RequestMetrics | None = None,
    ) -> None:
        own = UNAUTHENTICATED_APIS & handlers.keys()
        assert not own, f"{sorted(own)} are answered by the connection itself"
        self._settings = settings
        served: dict[int, Api[Any, Any]] = {key: APIS[key] for key in handlers}
        given_places = () if places is None else (places,)
        self._shared = Shared(
            handlers,
            served,
            arriving_memory=ByteBudget(settings.in_flight_bytes_max // 2),
            request_memory=ByteBudget(settings.in_flight_bytes_max // 2),
            answer_memory=ByteBudget(settings.unsent_bytes_total_max),
            throttle=throttle or LoginThrottle(clock or time.monotonic),
            clock=clock or time.monotonic,
            admission=Admission(settings.connections_max, settings.connections_per_address_max, *given_places),
            quotas=quotas or Quotas(clock or time.monotonic),
            bursts=BurstLog(logger),
            request_metrics=request_metrics,
        )
        self._connections: set[ServerConnection] = set()
        self._all_disconnected = asyncio.Event()
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._port: int | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    @property
    def settings(self) -> ListenerSettings:
        return self._settings

    @property
    def shared(self) -> Shared:
        """What its connections share, the memory they hold among it."""
        return self._shared

    @property
    def port(self) -> int:
        """The port that is listened on; useful when 0 was asked for."""
        assert self._port is not None, "the listener was not started"
        return self._port

    @property
    def admission(self) -> Admission:
        """The places of this listener. Whatever accepts sockets for it may ask before there is a connection."""
        return self._shared.admission

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections(self) -> list[ConnectionFacts]:
        """Say who is connected."""
        return [connection.facts() for connection in self._connections if connection.is_connected]

    def end_outdated_sessions(self) -> None:
        """End sessions whose users have other passwords by now. To be called when users have changed."""
        for connection in tuple(self._connections):
            connection.end_outdated_session()

    def show(self, metrics: Metrics) -> None:
        """Have the connections of this listener shown among the metrics."""
        name, shared = self._settings.name, self._shared
        metrics.gauge("fluss_connections", "Connections.", lambda: self.connection_count, listener=name)
        metrics.gauge(
            "fluss_connection_addresses",
            "Addresses with connections.",
            lambda: shared.admission.address_count,
            listener=name,
        )
        metrics.counters(
            "fluss_connections_refused_total",
            "Connections for which there was no place.",
            lambda: (Sample(shared.admission.refused_total, (("listener", name),)),),
        )
        metrics.gauge(
            "fluss_request_memory_bytes",
            "What requests hold that are arriving or being carried out.",
            lambda: shared.arriving_memory.used_bytes + shared.request_memory.used_bytes,
            listener=name,
        )
        metrics.gauge(
            "fluss_unsent_bytes",
            "Answers that clients have not taken.",
            lambda: shared.answer_memory.used_bytes,
            listener=name,
        )

    async def start(self) -> None:
        """Bind and accept. Raises FlussError if the address cannot be bound."""
        assert self._server is None, "a listener is started once"
        loop = asyncio.get_running_loop()
        host, port = self._settings.host, self._settings.port
        try:
            if self._settings.certificate is None:
                self._server = await loop.create_server(self._new_connection, host, port, backlog=_BACKLOG)
            else:
                self._server = await self._accept_tls(self._settings.certificate)
        except (OSError, OverflowError, UnicodeError) as error:
            problem = bind_problem(error, "--port (0 takes a free one) or bind.listeners")
            raise FlussError(f"listener {self._settings.name} cannot listen on {host}:{port}: {problem}") from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._schedule_check(loop)

    async def adopt(self, sock: socket.socket, guest: Guest) -> None:
        """Take in a client whose end of a pair of Unix sockets is inside this process. Needs no ``start``."""
        loop = asyncio.get_running_loop()
        if self._check_timer is None:
            self._schedule_check(loop)
        await loop.connect_accepted_socket(partial(self._new_connection, guest), sock)

    async def _accept_tls(self, certificate: ServerCertificate) -> TlsAcceptor:
        acceptor = TlsAcceptor(
            self._settings.name,
            context=lambda: certificate.context,
            new_connection=self._new_connection,
            admission=self._shared.admission,
            bursts=self._shared.bursts,
            handshake_timeout_s=certificate.tls.handshake_timeout_s,
        )
        await acceptor.start(self._settings.host, self._settings.port, backlog=_BACKLOG)
        return acceptor

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """Stop accepting, let received requests finish for at most ``grace_s``, and close. May be called again."""
        if self._server is None and self._check_timer is None:
            return
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        if self._check_timer is not None:
            self._check_timer.cancel()
        for connection in list(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._wait_for_disconnects()
        except TimeoutError:
            await self._abort_connections()
        self._shared.bursts.close()
        if self._server is not None:
            await self._server.wait_closed()
        self._shared.hashing.close()

    async def __aenter__(self) -> Listener:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _wait_for_disconnects(self) -> None:
        while self._connections:
            self._all_disconnected.clear()
            await self._all_disconnected.wait()

    async def _abort_connections(self) -> None:
        logger.warning("listener %s cuts off %d connections", self._settings.name, len(self._connections))
        tasks = {task for connection in self._connections for task in connection.tasks}
        for connection in list(self._connections):
            connection.abort()
        await self._wait_for_disconnects()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)

    def _new_connection(self, guest: Guest | None = None) -> ServerConnection:
        # Over TLS a client has its place before the handshake.
        is_admitted = self._settings.certificate is not None
        return ServerConnection(
            *(self._settings, self._shared, self._connected, self._disconnected),
            is_admitted=is_admitted,
            guest=guest,
        )

    def _connected(self, connection: ServerConnection) -> FlussError | None:
        """Take a new connection in; return why it cannot stay, if it cannot."""
        self._connections.add(connection)
        if self._is_stopping:
            return FlussError("the server is shutting down", ErrorCode.NETWORK_EXCEPTION)
        return None

    def _disconnected(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_disconnected.set()

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = self._settings
        shortest_s = min(
            settings.idle_timeout_s, settings.stalled_timeout_s, settings.arrival_timeout_s, settings.login_timeout_s
        )
        interval_s = min(shortest_s / _CHECKS_PER_TIMEOUT, _CHECK_INTERVAL_S_MAX)
        self._check_timer = loop.call_later(interval_s, self._check_connections, loop)

    def _check_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self._connections):
            connection.check_time()
        self._schedule_check(loop)


def keep_port(host: str, port: int) -> ExitStack:
    """Keep the port of a server that comes back from those who ask for any free one; closing gives it up.

    Nobody listens there: clients are refused as without it. Only Linux lets a server listen on a port that is kept by
    a socket of its own; elsewhere nothing is kept. Nor is what cannot be: the server will say why when it is back.
    """
    kept = ExitStack()
    if sys.platform == "linux":
        with suppress(OSError):
            for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                place = kept.enter_context(socket.socket(family, kind))
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                place.bind(address)
    return kept


def bind_problem(error: Exception, option: str) -> str:
    """Say why an address cannot be listened on; ``option`` chooses another port."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"the port is in use, perhaps by another server; stop it, or choose another port with {option}"
    return str(error)
