"""The client's end of a connection to one server: requests out, answers matched to them."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from fluss._version import __version__
from fluss.errors import (
    ErrorCode,
    FlussError,
    NetworkError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from fluss.net.request_metrics import RequestMetrics
from fluss.net.tls import ClientContext, connect_failure
from fluss.net.transport import Outbox
from fluss.protocol import api as apis
from fluss.protocol import sasl
from fluss.protocol.api import Api, ServerRole
from fluss.protocol.frame import FRAME_BYTES_MAX
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.session import (
    ClientSession,
    ConnectionFailed,
    ErrorReceived,
    ResponseReceived,
    ServerFailureReceived,
)
from fluss.retry import LOGINS

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

CLIENT_NAME = "flussbett"
# A larger answer to the first question is none: the bytes of another protocol, read as a length, are far above it.
_FIRST_FRAME_BYTES_MAX = 16 * 1024 * 1024

# Returns a Unix socket whose other end a server has. For clients in the process of a server, who need no address.
Dial: TypeAlias = Callable[[], Awaitable[socket.socket]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Limits of one connection. At a limit for requests or unsent bytes, further requests wait in order."""

    connect_timeout_s: float = 120.0
    handshake_timeout_s: float = 30.0
    in_flight_requests_max: int = 10_000
    unsent_bytes_max: int = 64 * 1024 * 1024
    response_frame_bytes_max: int = FRAME_BYTES_MAX


@dataclass(slots=True, eq=False)
class _Call:
    """A request on its way; the future gets the body of the answer."""

    api: Api[Any, Any]
    message: Any
    answer: asyncio.Future[memoryview]
    request_id: int | None = None
    # Known if requests are counted.
    sent_bytes: int = 0


class Channel:
    """Sends requests to one server and matches its answers, any number at a time.

    Requests are written in the order in which ``request`` was entered. Answers may come in any order. A request that
    times out or is cancelled is forgotten: its answer, if one still comes, is dropped, and the connection stays usable.
    When the connection fails, every waiting request fails with NetworkError, and so does every later one: a channel
    never reconnects. It belongs to one event loop and may be shared by all tasks of it.
    """

    def __init__(self, name: str, settings: ChannelSettings, metrics: RequestMetrics | None = None) -> None:
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._session = ClientSession(
            frame_bytes_max=settings.response_frame_bytes_max,
            first_frame_bytes_max=min(settings.response_frame_bytes_max, _FIRST_FRAME_BYTES_MAX),
        )
        self._protocol = _ChannelProtocol(self)
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._in_flight: dict[int, _Call] = {}
        self._waiting: deque[_Call] = deque()
        # Why the channel cannot be used (any more).
        self._failure: FlussError | None = NetworkError(f"{name} is not connected")
        self._is_disconnected = asyncio.Event()
        self._is_disconnected.set()
        self._server_type: ServerRole | None = None
        self._is_tls = False
        self._is_inside = False
        self._has_received = False
        # Called once, when the channel can be used no more.
        self.on_lost: Callable[[], None] = _do_nothing

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        settings: ChannelSettings | None = None,
        credentials: sasl.Credentials | None = None,
        tls: ClientContext | None = None,
        expected_server_type: ServerRole | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dial: Dial | None = None,
        metrics: RequestMetrics | None = None,
    ) -> Channel:
        """Connect, agree on versions, and authenticate if there are credentials. Speaks TLS if ``tls`` is given.

        A server that is temporarily unable to check credentials is asked again without end; ``sleep`` and ``rng``
        govern the pauses. A server that says to be of another type than expected is refused. With ``dial`` the address
        is only a name.
        """
        channel = cls(f"{host}:{port}", settings or ChannelSettings(), metrics)
        if dial is None:
            await channel._open(host, port, tls)
        else:
            await channel._open_inside(dial)
        try:
            await channel._agree_on_versions(expected_server_type)
            if credentials is not None:
                await channel._authenticate(credentials, rng or random.Random(), sleep)
        except BaseException:
            await channel.close()
            raise
        return channel

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent, as far as this side knows."""
        return self._failure is None

    @property
    def server_type(self) -> ServerRole | None:
        """What the server said to be; None if it serves both roles."""
        return self._server_type

    def offers(self, api: Api[Any, Any]) -> bool:
        """Whether the server knows an API, in a version that this side speaks."""
        try:
            self._session.version_of(api)
        except UnsupportedVersionError:
            return False
        return True

    @property
    def in_flight_count(self) -> int:
        """Requests that were sent and are not answered."""
        return len(self._in_flight)

    def __repr__(self) -> str:
        return f"Channel({self._name}, {'open' if self.is_open else 'closed'}, {len(self._in_flight)} in flight)"

    async def request(self, api: Api[RequestT, ResponseT], message: RequestT, *, timeout_s: float) -> ResponseT:
        """Send a request and return its answer, or raise what the server answered instead.

        ``timeout_s`` covers everything from now on, also waiting for other requests to be sent. Raises
        RequestTimeoutError, NetworkError, UnsupportedVersionError, or the server's error.
        """
        call = _Call(api, message, self._loop.create_future())
        if self._waiting or not self._has_room():
            self._check_usable()
            self._waiting.append(call)
        else:
            self._send(call)
        timer = self._loop.call_later(timeout_s, self._expire, call, timeout_s)
        asked_at = self._loop.time()
        try:
            body = await call.answer
        except FlussError:
            if self._metrics is not None:
                self._metrics.of(api).failed(self._loop.time() - asked_at, received_bytes=0, sent_bytes=call.sent_bytes)
            raise
        finally:
            timer.cancel()
            self._forget(call)
        if self._metrics is not None:
            self._metrics.of(api).answered(len(body), call.sent_bytes, self._loop.time() - asked_at)
        return api.response.decode(body)

    async def close(self) -> None:
        """Close the connection; requests that wait for an answer fail with NetworkError. May be called again."""
        self._fail(NetworkError(f"the connection to {self._name} was closed by this side"))
        await self._is_disconnected.wait()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Opening

    async def _open(self, host: str, port: int, tls: ClientContext | None) -> None:
        timeout_s = self._settings.connect_timeout_s
        options: dict[str, Any] = {}
        if tls is not None:
            options = {
                "ssl": tls.context,
                "server_hostname": tls.server_name or host,
                "ssl_handshake_timeout": self._settings.handshake_timeout_s,
            }
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect_to_first(await self._resolve(host, port), port, options)
        except TimeoutError:
            raise NetworkError(f"no connection to {self._name} within {timeout_s:g} s") from None
        except ConnectionRefusedError as error:
            raise NetworkError(
                f"no connection to {self._name}: connection refused. Does a server run there? This starts one: "
                f"python -m fluss.server --data-dir ./data --port {port}"
            ) from error
        except ConnectionAbortedError as error:
            # What asyncio raises when the handshake of TLS takes too long.
            raise self._silence() from error
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
            raise connect_failure(self._name, error) from error
        except (OSError, UnicodeError) as error:
            raise NetworkError(f"no connection to {self._name}: {error}") from error

    async def _open_inside(self, dial: Dial) -> None:
        self._is_inside = True
        sock = await dial()
        try:
            await self._loop.create_unix_connection(lambda: self._protocol, sock=sock)
        except BaseException:
            sock.close()
            raise

    async def _resolve(self, host: str, port: int) -> list[str]:
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # Servers that listen on all interfaces often do so for IPv4 only.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        return [cast("str", entry[4][0]) for entry in found]

    async def _connect_to_first(self, addresses: list[str], port: int, options: dict[str, Any]) -> None:
        for position, address in enumerate(addresses, start=1):
            try:
                await self._loop.create_connection(lambda: self._protocol, address, port, **options)
            except OSError:
                if position == len(addresses):
                    raise
            else:
                return

    async def _agree_on_versions(self, expected_server_type: ServerRole | None) -> None:
        request = pb.ApiVersionsRequest(client_software_name=CLIENT_NAME, client_software_version=__version__)
        try:
            response = await self.request(apis.API_VERSIONS, request, timeout_s=self._settings.handshake_timeout_s)
        except RequestTimeoutError as error:
            raise self._silence() from error
        self._server_type = self._session.accept_api_versions(response)
        if None not in (expected_server_type, self._server_type) and expected_server_type != self._server_type:
            raise NetworkError(
                f"the server at {self._name} is a {_spoken(self._server_type)}, not a {_spoken(expected_server_type)}; "
                "the address is out of date or belongs to another server"
            )

    def _silence(self) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"{self._name} took the connection and has said nothing for {self._settings.handshake_timeout_s:g} s. "
            "It is probably not a Fluss server but another program, a forwarded port with nothing behind it, or a "
            "server that hangs; look what listens there"
        )

    async def _authenticate(
        self, credentials: sasl.Credentials, rng: random.Random, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        for delay_s in LOGINS.pauses_s(rng):
            try:
                await self._exchange_tokens(credentials)
            except FlussError as error:
                if error.error_code != ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION:
                    raise
                logger.info("%s cannot authenticate right now; trying again in %.1f s", self._name, delay_s)
                await sleep(delay_s)
            else:
                return

    async def _exchange_tokens(self, credentials: sasl.Credentials) -> None:
        exchange = sasl.client_exchange(credentials)
        request: pb.AuthenticateRequest | None = next(exchange)
        while request is not None:
            response = await self.request(apis.AUTHENTICATE, request, timeout_s=self._settings.handshake_timeout_s)
            if credentials.takes_long:
                request = await asyncio.to_thread(sasl.next_request, exchange, response)
            else:
                request = sasl.next_request(exchange, response)

    # Sending

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure.copied()

    def _has_room(self) -> bool:
        return (
            self._outbox is not None
            and len(self._in_flight) < self._settings.in_flight_requests_max
            and self._outbox.unsent_bytes < self._settings.unsent_bytes_max
        )

    def _send(self, call: _Call) -> None:
        self._check_usable()
        assert self._outbox is not None
        call.request_id, parts = self._session.request(call.api, call.message)
        call.message = None
        self._in_flight[call.request_id] = call
        if self._metrics is not None:
            call.sent_bytes = sum(map(len, parts))
        self._outbox.write(parts)

    def _send_waiting(self) -> None:
        while self._waiting and self._has_room():
            call = self._waiting.popleft()
            if call.answer.done():
                continue
            try:
                self._send(call)
            except Exception as error:
                call.answer.set_exception(error)

    def _forget(self, call: _Call) -> None:
        """Stop waiting for an answer, if it has not come yet."""
        if call.request_id is None:
            if call in self._waiting:
                self._waiting.remove(call)
        elif self._in_flight.pop(call.request_id, None) is not None:
            self._session.forget(call.request_id)
            self._send_waiting()

    def _expire(self, call: _Call, timeout_s: float) -> None:
        if not call.answer.done():
            state = "answer to" if call.request_id is not None else "room to send"
            call.answer.set_exception(
                RequestTimeoutError(
                    f"{call.api.name} timed out: no {state} it from {self._name} within {timeout_s:g} s"
                )
            )

    # What the transport reports

    def _connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._outbox = Outbox(self._loop, transport, self._send_waiting)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        connection = transport.get_extra_info("socket")
        if not self._is_inside:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_disconnected.clear()
        self._failure = None

    def _received(self, byte_count: int) -> None:
        self._has_received = True
        for event in self._session.buffer_updated(byte_count):
            if isinstance(event, ResponseReceived | ErrorReceived):
                self._answered(event)
            elif isinstance(event, ServerFailureReceived):
                self._fail(event.error)
            elif isinstance(event, ConnectionFailed):
                self._fail(NetworkError(f"the connection to {self._name} was given up: {event.error.message}"))
            else:
                logger.debug("dropped a late answer from %s to request %d", self._name, event.request_id)

    def _answered(self, event: ResponseReceived | ErrorReceived) -> None:
        call = self._in_flight.pop(event.request_id, None)
        if call is None or call.answer.done():
            return
        if isinstance(event, ErrorReceived):
            call.answer.set_exception(event.error)
        else:
            call.answer.set_result(event.body)
        self._send_waiting()

    def _disconnected(self, error: Exception | None) -> None:
        reason = f": {error}" if error is not None else " by the server"
        if self._is_tls and not self._has_received:
            # The server's end of the handshake comes last: by then the client believes to be connected.
            reason += "; a TLS listener does so if it does not trust the client's certificate, or has too many clients"
        self._fail(NetworkError(f"the connection to {self._name} was closed{reason}"))
        self._is_disconnected.set()

    def _fail(self, failure: FlussError) -> None:
        """Give every waiting request the same reason, and take no more of them."""
        if self._failure is not None:
            return
        self._failure = failure
        calls = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(failure.copied())
        assert self._outbox is not None
        assert self._transport is not None
        self._outbox.clear()
        self._transport.abort()
        self.on_lost()


class _ChannelProtocol(asyncio.BufferedProtocol):
    """What asyncio calls; the socket writes straight into the session's memory."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channel._connected(cast("asyncio.Transport", transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._channel._session.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._channel._received(nbytes)

    def pause_writing(self) -> None:
        # While it is being made, it sees for itself what the transport holds.
        if self._channel._outbox is not None:
            self._channel._outbox.pause()

    def resume_writing(self) -> None:
        assert self._channel._outbox is not None
        self._channel._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._disconnected(exc)


def _do_nothing() -> None:
    """Take note of nothing."""


def _spoken(server_type: ServerRole | None) -> str:
    return "server of unknown type" if server_type is None else server_type.name.lower().replace("_", " ")
