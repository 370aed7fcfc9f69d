"""The server's end of one client's connection: requests in, handlers started in order, answers out, within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias, cast

from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.net.admission import Admission, address_key
from fluss.net.burst_log import BurstLog
from fluss.net.limits import ByteBudget
from fluss.net.login import Guess, Login, PasswordHashing, Success, Users, UserSource
from fluss.net.login_throttle import LoginThrottle
from fluss.net.quotas import FETCH_APIS, PRODUCE_APIS, ClientQuota, QuotaKind, Quotas
from fluss.net.tls import ServerCertificate, peer_principal
from fluss.net.tls_acceptor import TlsConnection
from fluss.net.transport import Outbox
from fluss.protocol.api import Api, ApiKey, ServerRole
from fluss.protocol.codec import Parts
from fluss.protocol.frame import REQUEST_FRAME_BYTES_MAX
from fluss.protocol.sasl import ANONYMOUS, PLAIN, Principal
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
# After so many wrong passwords a client has to connect again. Otherwise one packet could carry hundreds of guesses.
_FAILED_LOGINS_MAX = 5
# How long one connection may keep the event loop busy before others have their turn.
_TURN_S = 0.005
# What is read at once unless a large request is arriving. It can be a thousand requests.
_SMALL_READ_BYTES = 16 * 1024
_REFUSALS_LOGGED_MAX = 10
# A request may take this much longer to arrive for every byte of it: lines are slow, and requests are large.
_ARRIVAL_BYTES_PER_S_MIN = 64 * 1024
# After so long without traffic a connection has no receive buffer; the next bytes get a new one.
_BUFFER_IDLE_S = 30.0
# Answers are held back no longer than this: clients would give up waiting and ask again. Their next requests wait
# until everything is paid for.
_ANSWER_HELD_S_MAX = 10.0
# How often it is looked whether a client may go on: its quota may have been raised.
_THROTTLE_CHECK_S = 1.0
# How often it is looked whether it is a guess's turn.
_LOGIN_CHECK_S = 0.25
# When a client is told to try again, because its guess would have to wait for too long.
_TRY_AGAIN_S = 1.0
# What a refused client sends goes here.
_NOTHING_WANTED = memoryview(bytearray(4096))
_NO_BODY = memoryview(b"")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Where a request comes from."""

    api_key: ApiKey
    api_version: int
    principal: Principal
    listener_name: str
    peer_address: str
    # Whether the client is gone by now: what is kept for it alone can be dropped.
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A response whose handler wants to know when its bytes have left, or never will; both are told once."""

    response: Any
    on_sent: Callable[[], None]


# Carries out the requests of one API. It returns the response message (or an Answer), or an awaitable of it.
Handler: TypeAlias = Callable[[RequestContext, Any], Any]


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One address to listen on, who may come in, and the limits for each connection.

    limit                     what happens when it is reached
    frame_bytes_max           the client gets a server failure, and the connection is closed
    connections_max           a further client gets a server failure, and its connection is closed
    connections_per_address_max   the same for those of one address; None: half of them all, nine of ten for loopback
    in_flight_requests_max    no further request of the connection is started, then none is read
    in_flight_bytes_max       of all connections: those that have sent some of it are not read; half of it is for
                              requests that are being carried out, half for large ones that are arriving
    unsent_bytes_max          no further request of the connection is started or read
    unsent_bytes_total_max    of all connections: those that leave some of it untaken are treated in the same way
    stalled_timeout_s         a client that takes none of its waiting answers for so long is disconnected
    arrival_timeout_s         a client that takes longer to send a request, besides a second for each 64 KiB of it, is
                              disconnected
    login_timeout_s           a client that has to log in and has not done so by then is disconnected
    idle_timeout_s            a connection without traffic for so long is closed
    """

    name: str = "FLUSS"
    host: str = "127.0.0.1"
    port: int = 0
    server_type: ServerRole | None = None
    # Its users, or a function that knows their passwords; without either, all clients are anonymous.
    check_credentials: UserSource | None = field(default=None, repr=False)
    mechanisms: tuple[str, ...] = (PLAIN,)
    # With it the listener speaks TLS and nothing else. Without users, a client is whom its certificate names.
    certificate: ServerCertificate | None = field(default=None, repr=False)
    frame_bytes_max: int = REQUEST_FRAME_BYTES_MAX
    connections_max: int = 1000
    connections_per_address_max: int | None = None
    in_flight_requests_max: int = 500
    in_flight_bytes_max: int = 512 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024
    unsent_bytes_total_max: int = 512 * 1024 * 1024
    stalled_timeout_s: float = 60.0
    arrival_timeout_s: float = 30.0
    login_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of one listener have in common."""

    handlers: Mapping[ApiKey, Handler]
    served: Mapping[int, Api[Any, Any]]
    # The bytes of large requests that are arriving, of those that are being carried out, and of unsent answers.
    arriving_memory: ByteBudget
    request_memory: ByteBudget
    answer_memory: ByteBudget
    throttle: LoginThrottle
    clock: Callable[[], float]
    admission: Admission
    quotas: Quotas
    bursts: BurstLog
    hashing: PasswordHashing = field(default_factory=PasswordHashing)


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
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._handlers = shared.handlers
        self._arriving_memory = shared.arriving_memory
        self._request_memory = shared.request_memory
        self._answer_memory = shared.answer_memory
        self._throttle = shared.throttle
        self._clock = shared.clock
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._loop = asyncio.get_running_loop()
        # There is a session as soon as the connection has a place, and nothing is allocated for it before.
        self._session: ServerSession
        self._is_admitted = is_admitted
        self._is_refused = False
        self._is_being_told = False
        self._transport: asyncio.Transport
        self._outbox: Outbox
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
        self._login: Login | None = None
        if settings.check_credentials is not None:
            self._login = Login(settings.check_credentials, settings.mechanisms, shared.hashing)
        self._login_task: asyncio.Task[None] | None = None
        self._failed_login_count = 0
        # Of the password that the client has logged in with.
        self._password_version: bytes | None = None
        self._refusal_count = 0
        # What this connection has of the shared memory: of a frame that is not whole yet, of requests, of answers.
        self._partial_bytes = 0
        self._request_bytes = 0
        self._unsent_bytes = 0
        self._connected_at = self._active_at = self._clock()
        self._progressed_at = self._active_at
        # The request that is arriving: since when (None if there is none), and how much of it has come. While nothing
        # is read from the connection, its time stands still.
        self._frame_began_at: float | None = None
        self._frame_bytes = 0
        self._paused_at = self._active_at
        self._sent_bytes_seen = 0
        # Above its quota: nothing is started or read until the timer says so, and answers leave when they may.
        self._quotas = shared.quotas
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._answers_held_until = 0.0

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
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer_address = _address_text(self._transport.get_extra_info("peername"))
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
        if self._phase is not _Phase.OPEN:
            return
        turn_ends_at = time.monotonic() + _TURN_S
        events = self._session.buffer_updated(nbytes)
        self._take_events(events)
        self._count_partial_frame()
        if self._session.is_between_frames:
            self._frame_began_at = None
        elif events or self._frame_began_at is None:
            # What comes after the last whole request is the beginning of another one.
            self._frame_began_at, self._frame_bytes = now, 0
        else:
            self._frame_bytes += nbytes
        self._start_requests()
        if time.monotonic() > turn_ends_at:
            self._rest()
        self.regulate_reading()

    def _take_events(self, events: list[ServerEvent]) -> None:
        for event in events:
            if isinstance(event, RequestReceived):
                self._hold_request(len(event.body))
                self._queue.append(event)
            elif isinstance(event, AnswerReady):
                if self._quotas.is_active:
                    self._charge(QuotaKind.REQUESTS, 1)
                if event.error is not None:
                    self._log_refusal(event.error)
                self._write(event.parts)
            elif isinstance(event, TokenReceived):
                self._login_task = self._loop.create_task(self._log_in(event))
            else:
                logger.warning("gave up the connection of %s: %s", self._peer_address, event.error)
                self._end_with(event.parts)

    def pause_writing(self) -> None:
        # While it is being made, it sees for itself what the transport holds.
        if hasattr(self, "_outbox"):
            self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.SILENT
        for timer in (self._linger_timer, self._throttle_timer, self._login_task):
            if timer is not None:
                timer.cancel()
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
            events = await self._outcome(event)
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

    async def _outcome(self, event: TokenReceived) -> list[ServerEvent]:
        assert self._login is not None, "only a session that has to log in reports tokens"
        taken = self._login.take(event.mechanism, event.token)
        if not isinstance(taken, Guess):
            return self._session.challenge(event.request_id, taken)
        success = await self._checked(taken)
        if self._session.principal not in (None, success.principal):
            raise AuthenticationError("a connection has one user; log in as another one on a new connection")
        self._password_version = success.version
        return self._session.authenticated(event.request_id, success.principal, success.challenge)

    async def _checked(self, guess: Guess) -> Success:
        if self._failed_login_count >= _FAILED_LOGINS_MAX:
            raise AuthenticationError("too many failed logins; connect again")
        try:
            attempt = self._throttle.begin(self._address, guess.username)
        except FlussError:
            # At once, it would be an invitation to ask at once again.
            await asyncio.sleep(_TRY_AGAIN_S)
            raise
        try:
            while (wait_s := attempt.wait_s) > 0:
                await asyncio.sleep(min(wait_s, _LOGIN_CHECK_S))
            success = await guess.check()
        except AuthenticationError:
            self._failed_login_count += 1
            raise
        except BaseException:
            attempt.withdraw()
            raise
        attempt.succeeded()
        return success

    def end_outdated_session(self) -> None:
        """End the session if its user has another password than the one it has logged in with."""
        users = self._settings.check_credentials
        if self._password_version is None or not isinstance(users, Users) or self._session.principal is None:
            return
        if users.table.version_of(self._session.principal.name) == self._password_version:
            return
        logger.info(
            "the password of %s has changed: %s has to log in again", self._session.principal, self._peer_address
        )
        self._password_version = None
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
            if self._quotas.is_active and not self._may_start_by_quota():
                return
            if self._start(self._queue.popleft()) or time.monotonic() > turn_ends_at:
                # The new task takes its first step before this callback is called.
                self._is_start_scheduled = True
                self._loop.call_soon(self._continue_starting)

    def _continue_starting(self) -> None:
        self._is_start_scheduled = False
        self._proceed()

    def _may_start(self) -> bool:
        if self._throttle_timer is not None:
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
            self._charge(QuotaKind.REQUESTS, 1)
            if request.api.key in PRODUCE_APIS:
                self._charge(QuotaKind.PRODUCE, len(request.body))
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
                self._charge(QuotaKind.FETCH, sum(map(len, parts)))
            self._write(parts, on_sent)
        elif on_sent is not None:
            on_sent()

    def _answer_error(self, request: RequestReceived, error: BaseException) -> None:
        if self._is_silent():
            return
        if not isinstance(error, FlussError):
            logger.error("%s of %s failed", request.api.name, self._peer_address, exc_info=error)
            text = f"{request.api.name} failed inside the server ({type(error).__name__}); its log has the details"
            error = FlussError(text, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._write(self._session.error(request.request_id, error))

    def _give_up_requests(self) -> None:
        for request in self._queue:
            self._release_request(request)
        self._queue.clear()
        for task in self._tasks:
            task.cancel()

    # Quotas

    def _may_start_by_quota(self) -> bool:
        """Whether the client owes nothing, also by its other connections; if it does, come back later."""
        if self._phase is not _Phase.OPEN:
            return True
        wait_s = self._client_quota().wait_s()
        if wait_s <= 0:
            return True
        self._throttle_for(wait_s)
        return False

    def _charge(self, kind: QuotaKind, amount: float) -> None:
        """Count what the client has used; if it owes something now, hold its answers back and read nothing more."""
        quota = self._client_quota()
        wait_s = quota.charge(kind, amount)
        if wait_s <= 0 or self._phase is not _Phase.OPEN:
            return
        quota.throttled(kind, wait_s)
        limit = f"{quota.limit_of(kind):g} {kind.value} per second"
        self._shared.bursts.log(
            f"quota of {kind.value}", logging.INFO, f"{quota.name} has used up its quota of {limit}: it is slowed down"
        )
        self._answers_held_until = max(self._answers_held_until, self._loop.time() + min(wait_s, _ANSWER_HELD_S_MAX))
        self._outbox.hold()
        self._throttle_for(wait_s)

    def _client_quota(self) -> ClientQuota:
        principal = self._session.principal
        return self._quotas.client(ANONYMOUS if principal is None else principal, self._address)

    def _throttle_for(self, wait_s: float) -> None:
        if self._throttle_timer is None:
            self._throttle_timer = self._loop.call_later(min(wait_s, _THROTTLE_CHECK_S), self._check_throttle)
            self.regulate_reading()

    def _check_throttle(self) -> None:
        """Let answers leave that have waited long enough, and go on if nothing is owed any more."""
        self._throttle_timer = None
        if self._is_silent():
            return
        held_s = self._answers_held_until - self._loop.time()
        wait_s = self._client_quota().wait_s() if self._quotas.is_active else 0.0
        if held_s <= 0 or wait_s <= 0:
            self._outbox.release()
        if wait_s > 0 and self._phase is _Phase.OPEN:
            next_s = min(wait_s, held_s) if held_s > 0 else wait_s
            self._throttle_for(next_s)
            return
        self._outbox.release()
        self._proceed()

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
            if self._frame_began_at is not None:
                self._frame_began_at += self._clock() - self._paused_at
            self._transport.resume_reading()
        elif self._is_reading and not should_read:
            self._paused_at = self._clock()
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
        if self._login_task is not None or self._throttle_timer is not None or self._is_resting:
            return False
        if not self._has_memory():
            return False
        return (
            len(self._queue) + len(self._tasks) < self._settings.in_flight_requests_max
            and not self._has_too_much_unsent()
        )

    def _has_memory(self) -> bool:
        """Whether there is memory for what may arrive. Small requests of those who hold nothing are always read."""
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
        elif self._is_late_with_request(now):
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

    def _is_late_with_request(self, now: float) -> bool:
        if self._frame_began_at is None or not self._is_reading:
            return False
        allowed_s = self._settings.arrival_timeout_s + self._frame_bytes / _ARRIVAL_BYTES_PER_S_MIN
        return now - self._frame_began_at > allowed_s

    # The end

    def _is_silent(self) -> bool:
        return self._phase is _Phase.SILENT or self._transport.is_closing()

    def drain(self) -> None:
        """Take nothing more in, finish what was received, then close."""
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.DRAINING
            if self._throttle_timer is not None:
                self._throttle_timer.cancel()
                self._throttle_timer = None
            self._outbox.release()
            self._proceed()

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""
        self._transport.abort()

    def _end_with(self, last_word: Parts) -> None:
        """Write a last answer and close."""
        self._write(last_word)
        self._phase = _Phase.SILENT
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
