"""The server's end of one client's connection: requests in, handlers started in order, answers out, within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, cast

from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.net.admission import address_key
from fluss.net.arrival import Arrival
from fluss.net.connection_login import ConnectionLogin
from fluss.net.listener_settings import ListenerSettings
from fluss.net.listener_state import Shared
from fluss.net.quota_throttle import QuotaThrottle
from fluss.net.quotas import FETCH_APIS, PRODUCE_APIS, ClientQuota, QuotaKind
from fluss.net.request_handler import Answer, Guest, RequestContext
from fluss.net.tls import peer_principal
from fluss.net.tls_acceptor import TlsConnection
from fluss.net.transport import Outbox
from fluss.protocol.codec import Parts
from fluss.protocol.sasl import ANONYMOUS, Principal
from fluss.protocol.session import (
    AnswerReady,
    RequestReceived,
    ServerEvent,
    ServerSession,
    TokenReceived,
    failure_parts,
)

# How long a client may take to read the last word and to close its side.
_LINGER_S = 1.0
# How long one connection may keep the event loop busy before others have their turn.
_TURN_S = 0.005
# What is read at once unless a large request is arriving. It can be a thousand requests.
_SMALL_READ_BYTES = 16 * 1024
_REFUSALS_LOGGED_MAX = 10
# After so long without traffic a connection has no receive buffer; the next bytes get a new one.
_BUFFER_IDLE_S = 30.0
# What a refused client sends goes here.
_NOTHING_WANTED = memoryview(bytearray(4096))
_NO_BODY = memoryview(b"")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """One connection, as operators see it."""

    listener_name: str
    peer_address: str
    # None: it has not logged in.
    principal: Principal | None
    connected_s: float
    idle_s: float
    request_count: int
    in_flight_count: int
    received_bytes: int
    sent_bytes: int


class _Phase(Enum):
    OPEN = auto()
    DRAINING = auto()  # Nothing more is read; what was received is carried out and answered.
    SILENT = auto()  # Nothing more is written; what still arrives is thrown away until the client closes its side.


class ServerConnection(asyncio.BufferedProtocol, TlsConnection):
    """Reads requests, calls their handlers, and writes the answers in the order in which they are ready.

    Handlers are started in the order of arrival, one at a time: each has run up to its first ``await``, or to its end
    if it is a plain function, before the next one is started. So the work of handlers before they first wait is in
    order, and a handler that waits holds up no other request. The waiting part of a handler is cancelled when the
    client disconnects; work that must not be left half done belongs before it or into a task of its own.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        shared: Shared,
        on_connected: Callable[[ServerConnection], FlussError | None],
        on_disconnected: Callable[[ServerConnection], None],
        *,
        is_admitted: bool = False,
        guest: Guest | None = None,
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._handlers = shared.handlers
        self._arriving_memory = shared.arriving_memory
        self._request_memory = shared.request_memory
        self._answer_memory = shared.answer_memory
        self._clock = shared.clock
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._loop = asyncio.get_running_loop()
        # There is a session as soon as the connection has a place, and nothing is allocated for it before.
        self._session: ServerSession
        self._is_admitted = is_admitted
        self._guest = guest
        self._is_refused = False
        self._is_being_told = False
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._quota_throttle: QuotaThrottle
        self._is_connected = False
        self._peer_address = "unknown"
        self._address = "unknown"
        self._phase = _Phase.OPEN
        self._queue: deque[RequestReceived] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_start_scheduled = False
        self._is_reading = True
        self._is_resting = False
        self._linger_timer: asyncio.TimerHandle | None = None
        # Logging in: while a token is checked, nothing is read.
        self._login: ConnectionLogin | None = None
        if settings.check_credentials is not None:
            self._login = ConnectionLogin(
                settings.check_credentials, settings.mechanisms, shared.hashing, shared.throttle
            )
        self._login_task: asyncio.Task[None] | None = None
        self._refusal_count = 0
        # What this connection has of the shared memory: of a frame that is not whole yet, of requests, of answers.
        self._partial_bytes = 0
        self._request_bytes = 0
        self._unsent_bytes = 0
        self._connected_at = self._active_at = self._clock()
        self._progressed_at = self._active_at
        self._arrival = Arrival(settings.arrival_timeout_s)
        self._sent_bytes_seen = 0
        self._quotas = shared.quotas
        self._request_metrics = shared.request_metrics
        self._received_bytes = 0
        self._request_count = 0

    def facts(self) -> ConnectionFacts:
        """Say who it is and what it has done."""
        session = getattr(self, "_session", None)
        return ConnectionFacts(
            *(self._settings.name, self._peer_address, None if session is None else session.principal),
            connected_s=self._clock() - self._connected_at,
            idle_s=self._clock() - self._active_at,
            request_count=self._request_count,
            in_flight_count=len(self._tasks) + len(self._queue),
            received_bytes=self._received_bytes,
            sent_bytes=self._outbox.sent_bytes,
        )

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """The handlers that wait for something."""
        return frozenset(self._tasks)

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._is_connected = True
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._loop, self._transport, self._proceed)
        self._quota_throttle = QuotaThrottle(
            self._outbox,
            self._shared.bursts,
            self._client_quota,
            on_throttled=self.regulate_reading,
            on_released=self._proceed,
        )
        if self._guest is None:
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer_address = _address_text(self._transport.get_extra_info("peername"))
        else:
            self._peer_address = self._guest.peer_address
        host = self._peer_address.rpartition(":")[0]
        self._address = address_key(host)
        refusal = self._on_connected(self)
        if refusal is None and not self._is_admitted:
            refusal = self._shared.admission.admit(host)
            self._is_admitted = refusal is None
        if refusal is not None:
            self._refuse(refusal)
            return
        self._session = ServerSession(
            self._shared.served,
            server_type=self._settings.server_type,
            needs_login=self._login is not None,
            frame_bytes_max=self._settings.frame_bytes_max,
            http_page=self._settings.http_page,
        )
        refusal = self._identify()
        if refusal is not None:
            self._refuse(refusal)

    def _refuse(self, refusal: FlussError) -> None:
        self._is_refused = True
        self._shared.bursts.log(
            "connections refused", logging.WARNING, f"refused the connection of {self._peer_address}: {refusal}"
        )
        if self._shared.admission.may_tell():
            self._is_being_told = True
            self._end_with(failure_parts(refusal))
        else:
            self._phase = _Phase.SILENT
            self.abort()

    def _identify(self) -> FlussError | None:
        """Look at the client's certificate where the listener asks for one; return why the client cannot stay."""
        if self._guest is not None:
            self._session.identify(self._guest.principal)
            return None
        certificate = self._settings.certificate
        if certificate is None:
            return None
        try:
            principal = peer_principal(self._transport, certificate.tls)
        except AuthenticationError as error:
            return error
        if self._settings.check_credentials is None:
            self._session.identify(principal)
        return None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._phase is _Phase.SILENT:
            return _NOTHING_WANTED
        buffer = self._session.get_buffer()
        return buffer if self._partial_bytes else buffer[:_SMALL_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = now = self._clock()
        self._received_bytes += nbytes
        if self._phase is not _Phase.OPEN:
            return
        turn_ends_at = time.monotonic() + _TURN_S
        events = self._session.buffer_updated(nbytes)
        self._take_events(events)
        self._count_partial_frame()
        if self._session.is_between_frames:
            self._arrival.ended()
        else:
            # What comes after the last whole request is the beginning of another one.
            self._arrival.received(nbytes, now, is_new=bool(events))
        self._start_requests()
        if time.monotonic() > turn_ends_at:
            self._rest()
        self.regulate_reading()

    def _take_events(self, events: list[ServerEvent]) -> None:
        for event in events:
            if isinstance(event, RequestReceived):
                event.received_at, event.received_bytes = self._active_at, len(event.body)
                self._request_count += 1
                self._hold_request(event.received_bytes)
                self._queue.append(event)
            elif isinstance(event, AnswerReady):
                if self._quotas.is_active:
                    self._quota_throttle.charge(QuotaKind.REQUESTS, 1)
                if event.error is not None:
                    self._log_refusal(event.error)
                self._write(event.parts)
            elif isinstance(event, TokenReceived):
                self._login_task = self._loop.create_task(self._log_in(event))
            else:
                text = f"gave up the connection of {self._peer_address}: {event.error}"
                self._shared.bursts.log("connections given up", logging.WARNING, text)
                self._end_with(event.parts)

    def pause_writing(self) -> None:
        # While it is being made, it sees for itself what the transport holds.
        if hasattr(self, "_outbox"):
            self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.SILENT
        for timer in (self._linger_timer, self._login_task):
            if timer is not None:
                timer.cancel()
        self._quota_throttle.end()
        self._outbox.clear()
        self._answer_memory.give_back(self._unsent_bytes)
        self._request_memory.leave(self.regulate_reading)
        self._arriving_memory.leave(self.regulate_reading)
        self._arriving_memory.give_back(self._partial_bytes)
        self._unsent_bytes = self._partial_bytes = 0
        if self._is_admitted:
            self._shared.admission.release(self._peer_address.rpartition(":")[0])
        if self._is_being_told:
            self._shared.admission.told()
        if not self._is_refused:
            # This object is in cycles of references, which can stay for long after the connection is gone.
            self._session.release()
        self._give_up_requests()
        self._on_disconnected(self)

    def _log_refusal(self, error: FlussError) -> None:
        """Log the first refusals; what a client repeats for ever must not fill the log."""
        text = f"refused a request of {self._peer_address}: {error}"
        if self._session.principal is None:
            # As many clients as there are addresses can be refused before they have said who they are.
            self._shared.bursts.log("requests before logging in", logging.INFO, text)
            return
        self._refusal_count += 1
        if self._refusal_count <= _REFUSALS_LOGGED_MAX:
            logger.info("%s", text)
            if self._refusal_count == _REFUSALS_LOGGED_MAX:
                logger.info("further requests of %s that are refused are not logged", self._peer_address)

    # Logging in

    async def _log_in(self, event: TokenReceived) -> None:
        """Check a token when it is its turn, then go on with what has arrived meanwhile."""
        try:
            assert self._login is not None, "only a session that has to log in reports tokens"
            events = await self._login.outcome(self._session, self._address, event)
        except FlussError as error:
            events = self._session.authentication_failed(event.request_id, error)
            if self._session.principal is not None and isinstance(error, AuthenticationError):
                # A client that logs in again, and cannot, is not who it was.
                self._log_refusal(error)
                self._end_with(events[0].parts if isinstance(events[0], AnswerReady) else [])
                return
        except Exception:
            # Only a function that knows the passwords is foreign code in there.
            logger.exception("checking the credentials of %s failed", self._peer_address)
            self.abort()
            return
        finally:
            self._login_task = None
        if self._phase is not _Phase.OPEN:
            return
        self._take_events(events)
        self._start_requests()
        self.regulate_reading()

    def end_outdated_session(self) -> None:
        """End the session if its user has another password than the one it has logged in with."""
        principal = None if self._login is None else self._login.take_outdated()
        if principal is None:
            return
        logger.info("the password of %s has changed: %s has to log in again", principal, self._peer_address)
        # What was received is answered: it may be the very change.
        self.drain()
        self._loop.call_later(_LINGER_S, self.abort)

    # Carrying out requests

    def _start_requests(self) -> None:
        """Start requests until a handler waits for something; the next one follows when that handler has started.

        Handlers that wait for nothing are called one after the other, until it is time to let others have their turn.
        """
        turn_ends_at = time.monotonic() + _TURN_S
        while self._queue and not self._is_start_scheduled and self._may_start():
            if self._quotas.is_active and not self._quota_throttle.may_start():
                return
            if self._start(self._queue.popleft()) or time.monotonic() > turn_ends_at:
                # The new task takes its first step before this callback is called.
                self._is_start_scheduled = True
                self._loop.call_soon(self._continue_starting)

    def _continue_starting(self) -> None:
        self._is_start_scheduled = False
        self._proceed()

    def _may_start(self) -> bool:
        if self._quota_throttle.is_throttled:
            return False
        return len(self._tasks) < self._settings.in_flight_requests_max and not self._has_too_much_unsent()

    def _has_too_much_unsent(self) -> bool:
        unsent_bytes = self._outbox.unsent_bytes
        if self._answer_memory.is_exhausted:
            return unsent_bytes > 0
        return unsent_bytes >= self._settings.unsent_bytes_max

    def _start(self, request: RequestReceived) -> bool:
        """Call the handler; return whether it goes on in a task."""
        if self._quotas.is_active:
            self._quota_throttle.charge(QuotaKind.REQUESTS, 1)
            if request.api.key in PRODUCE_APIS:
                self._quota_throttle.charge(QuotaKind.PRODUCE, len(request.body))
        try:
            message = request.decode()
            if not request.api.request.keeps_body:
                # While the handler waits, only its message is in memory, not the encoded request.
                self._release_request(request)
            result = self._handlers[request.api.key](self._context(request), message)
        except Exception as error:
            self._answer_error(request, error)
        else:
            if isinstance(result, Awaitable):
                task = self._loop.create_task(self._finish(request, result))
                self._tasks.add(task)
                task.add_done_callback(partial(self._finished, request, result))
                return True
            self._answer(request, result)
        self._release_request(request)
        return False

    async def _finish(self, request: RequestReceived, result: Awaitable[Any]) -> None:
        try:
            response = await result
        except asyncio.CancelledError as error:
            if self._is_silent():
                raise
            # Not this task was cancelled, but something the handler waited for.
            self._answer_error(request, error)
        except Exception as error:
            self._answer_error(request, error)
        else:
            self._answer(request, response)

    def _finished(self, request: RequestReceived, result: Awaitable[Any], task: asyncio.Task[None]) -> None:
        if isinstance(result, Coroutine):
            # A task that is cancelled before its first step leaves the handler's coroutine untouched.
            result.close()
        self._tasks.discard(task)
        self._release_request(request)
        self._proceed()

    def _context(self, request: RequestReceived) -> RequestContext:
        principal = self._session.principal
        assert principal is not None, "the session refuses requests of clients that have not authenticated"
        return RequestContext(
            *(request.api.key, request.api_version, principal, self._settings.name, self._peer_address),
            is_gone=self._is_silent,
        )

    def _answer(self, request: RequestReceived, response: Any) -> None:
        on_sent = None
        if isinstance(response, Answer):
            response, on_sent = response.response, response.on_sent
        try:
            parts = [] if self._is_silent() else self._session.response(request, response)
        except Exception as error:
            self._answer_error(request, error)
            parts = []
        if parts:
            if self._quotas.is_active and request.api.key in FETCH_APIS:
                self._quota_throttle.charge(QuotaKind.FETCH, sum(map(len, parts)))
            self._write(parts, on_sent)
            if self._request_metrics is not None:
                self._request_metrics.of(request.api).answered(
                    request.received_bytes, sum(map(len, parts)), self._clock() - request.received_at
                )
        elif on_sent is not None:
            on_sent()

    def _answer_error(self, request: RequestReceived, error: BaseException) -> None:
        if self._is_silent():
            return
        if not isinstance(error, FlussError):
            logger.error("%s of %s failed", request.api.name, self._peer_address, exc_info=error)
            text = f"{request.api.name} failed inside the server ({type(error).__name__}); its log has the details"
            error = FlussError(text, ErrorCode.UNKNOWN_SERVER_ERROR)
        if self._request_metrics is not None:
            self._request_metrics.of(request.api).failed(
                self._clock() - request.received_at, received_bytes=request.received_bytes, sent_bytes=0
            )
        self._write(self._session.error(request.request_id, error))

    def _give_up_requests(self) -> None:
        for request in self._queue:
            self._release_request(request)
        self._queue.clear()
        for task in self._tasks:
            task.cancel()

    def _client_quota(self) -> ClientQuota | None:
        if not self._quotas.is_active:
            return None
        principal = self._session.principal
        return self._quotas.client(ANONYMOUS if principal is None else principal, self._address)

    # Memory

    def _hold_request(self, byte_count: int) -> None:
        self._request_memory.take(byte_count)
        self._request_bytes += byte_count

    def _release_request(self, request: RequestReceived) -> None:
        """Let go of the encoded request. May be called again."""
        byte_count = len(request.body)
        request.body = _NO_BODY
        self._request_bytes -= byte_count
        self._request_memory.give_back(byte_count)

    def _count_partial_frame(self) -> None:
        byte_count = self._session.partial_frame_bytes
        if byte_count == self._partial_bytes:
            return
        self._arriving_memory.replace(self._partial_bytes, byte_count)
        self._partial_bytes = byte_count
        if not byte_count:
            self._arriving_memory.leave(self.regulate_reading)

    def _write(self, parts: Parts, on_sent: Callable[[], None] | None = None) -> None:
        self._outbox.write(parts, on_sent)
        self._count_unsent()

    def _count_unsent(self) -> None:
        unsent_bytes = self._outbox.unsent_bytes
        self._answer_memory.replace(self._unsent_bytes, unsent_bytes)
        self._unsent_bytes = unsent_bytes

    # Flow

    def _proceed(self) -> None:
        """Something has been finished or sent: see what can go on."""
        if not self._transport.is_closing():
            self._count_unsent()
        self._start_requests()
        self.regulate_reading()
        if self._phase is _Phase.DRAINING and not self._queue and not self._tasks:
            self._outbox.when_empty(self._half_close)

    def regulate_reading(self) -> None:
        """Read from the socket only while there is room for more."""
        if self._transport.is_closing():
            return
        should_read = self._phase is _Phase.SILENT or (self._phase is _Phase.OPEN and self._has_room())
        if should_read and not self._is_reading:
            self._arrival.resumed(self._clock())
            self._transport.resume_reading()
        elif self._is_reading and not should_read:
            self._arrival.paused(self._clock())
            self._transport.pause_reading()
        self._is_reading = should_read

    def _rest(self) -> None:
        """Read nothing until others had their turn: some loops read one socket many times in a row."""
        if not self._is_resting:
            self._is_resting = True
            self._loop.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self.regulate_reading()

    def _has_room(self) -> bool:
        if self._login_task is not None or self._quota_throttle.is_throttled or self._is_resting:
            return False
        if not self._has_memory():
            return False
        return (
            len(self._queue) + len(self._tasks) < self._settings.in_flight_requests_max
            and not self._has_too_much_unsent()
        )

    def _has_memory(self) -> bool:
        """Whether there is memory for what may arrive. A small request is always read if its client holds none."""
        if self._request_memory.is_exhausted and self._partial_bytes + self._request_bytes > 0:
            self._request_memory.wait(self.regulate_reading)
            return False
        if not self._partial_bytes or not self._arriving_memory.is_exhausted:
            return True
        if self._arriving_memory.may_be_first(self.regulate_reading):
            return True
        self._arriving_memory.wait(self.regulate_reading)
        return False

    def check_time(self) -> None:
        """Disconnect a client that is idle or too slow. The listener calls this now and then."""
        if self._is_refused:
            return
        now = self._clock()
        if self._outbox.sent_bytes > self._sent_bytes_seen:
            self._sent_bytes_seen = self._outbox.sent_bytes
            self._active_at = self._progressed_at = now
        elif self._outbox.unsent_bytes == 0 or self._outbox.is_held:
            self._progressed_at = now
        if now - self._progressed_at > self._settings.stalled_timeout_s:
            self._disconnect("disconnected {}: it does not take its answers", logging.WARNING)
        elif self._arrival.is_late(now):
            self._disconnect("disconnected {}: it takes too long to send a request", logging.WARNING)
        elif self._is_late_with_login(now):
            self._disconnect("disconnected {}: it has not logged in", logging.INFO)
        elif now - self._active_at > self._settings.idle_timeout_s:
            self._disconnect("closed the idle connection of {}", logging.INFO)
        elif now - self._active_at > _BUFFER_IDLE_S and self._session.is_between_frames:
            self._session.release()

    def _disconnect(self, reason: str, level: int) -> None:
        self._shared.bursts.log(reason, level, reason.format(self._peer_address))
        self.abort()

    def _is_late_with_login(self, now: float) -> bool:
        if self._session.principal is not None or self._login_task is not None:
            return False
        return now - self._connected_at > self._settings.login_timeout_s

    # The end

    def _is_silent(self) -> bool:
        return self._phase is _Phase.SILENT or self._transport.is_closing()

    def drain(self) -> None:
        """Take nothing more in, finish what was received, then close."""
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.DRAINING
            self._quota_throttle.end()
            self._proceed()

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""
        self._transport.abort()

    def _end_with(self, last_word: Parts) -> None:
        """Write a last answer and close."""
        self._write(last_word)
        self._phase = _Phase.SILENT
        self._quota_throttle.end()
        self._give_up_requests()
        self._outbox.when_empty(self._half_close)

    def _half_close(self) -> None:
        """Say that nothing more will come, and leave the client a moment to read it.

        Closing a socket on which bytes have arrived unread would make the system throw away our last bytes too.
        """
        self._phase = _Phase.SILENT
        if self._transport.is_closing():
            return
        if not self._transport.can_write_eof():
            # TLS has a last word of its own, and waits for that of the client.
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The client has reset the connection, and the loop is about to find out.
            self.abort()
            return
        self.regulate_reading()
        self._linger_timer = self._loop.call_later(_LINGER_S, self.abort)


def _address_text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else "unknown"
