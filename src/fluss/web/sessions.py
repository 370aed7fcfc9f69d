"""Who looks at the page: logins, cookies, and the connection by which each user reads tables."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from fluss.client.connection import FlussConnection, connect_inside
from fluss.config import Config
from fluss.errors import FlussError
from fluss.net.admission import address_key
from fluss.net.login import Success
from fluss.net.request_handler import Guest
from fluss.protocol.sasl import ANONYMOUS
from fluss.server.operator_view import OperatorView

COOKIE: Final = "fluss_session"
_TOKEN_BYTES: Final = 32
_SESSIONS_MAX: Final = 200
# Of one user: those of others stay, however often it logs in.
_SESSIONS_OF_USER_MAX: Final = 20
# A password that comes with every request is checked once in so long.
_BASIC_S: Final = 600.0
# Live tails of one session at a time.
_TAILS_MAX: Final = 3
_CONFIG: Final = {
    # Only a name: the sockets are made inside the process.
    "bootstrap.servers": "127.0.0.1:1",
    # What a page reads is small; memory for it is, too.
    "scanner.log.fetch.max-bytes": "2097152",
    "scanner.log.max-poll-records": "500",
    "request-timeout": "15000",
}


class Session:
    """One user of the page, and its connection, which is made when it is first needed. Belongs to the loop of HTTP."""

    def __init__(
        self, view: OperatorView, success: Success | None, host: str, expires_s: float, clock: Callable[[], float]
    ) -> None:
        self._view = view
        self._success = success
        self._expires_s = expires_s
        self._clock = clock
        principal = ANONYMOUS if success is None else success.principal
        self.guest = Guest(principal, f"{host}:0")
        self._connection: FlussConnection | None = None
        self._lock = asyncio.Lock()
        self.tail_count = 0

    @property
    def user(self) -> str | None:
        return None if self._success is None else self._success.principal.name

    @property
    def is_current(self) -> bool:
        """Whether its time is not over, and its user still has the password that it has logged in with."""
        is_outdated = self._success is not None and not self._view.is_current(self._success)
        return not is_outdated and self._clock() <= self._expires_s

    @property
    def may_tail(self) -> bool:
        return self.tail_count < _TAILS_MAX

    async def connection(self) -> FlussConnection:
        """Return the connection of this user."""
        async with self._lock:
            if self._connection is None:
                config = Config(_CONFIG)
                self._connection = await connect_inside(config, partial(self._view.dial, self.guest))
            return self._connection

    async def close(self) -> None:
        async with self._lock:
            if self._connection is not None:
                # The server may be gone already.
                with suppress(FlussError):
                    await self._connection.close()
                self._connection = None


class Sessions:
    """The sessions that are open, the most recently used last. Belongs to the loop of HTTP."""

    def __init__(self, view: OperatorView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def log_in(self, username: str, password: str, host: str) -> str:
        """Check a password and return the cookie of a new session. Raises AuthenticationError or code 51."""
        success = await self._view.log_in(username, password, host)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._add(_digest(token), self._new(success, host, self.timeout_s))
        return token

    @property
    def timeout_s(self) -> float:
        return self._view.options.http_session_ms / 1000

    def of_cookie(self, token: str) -> Session | None:
        return self._current(_digest(token))

    async def of_password(self, username: str, password: str, host: str) -> Session:
        """Return the session of a program that sends a password with every request. Raises as ``log_in`` does."""
        key = _digest("\0".join((username, password, host)))
        session = self._current(key)
        if session is None:
            success = await self._view.log_in(username, password, host)
            session = self._new(success, host, _BASIC_S)
            self._add(key, session)
        return session

    def anonymous(self, host: str) -> Session:
        """Return the session of an address where no login is asked for."""
        assert not self._view.needs_login, "users have to log in"
        key = _digest(f"\1{address_key(host)}")
        session = self._current(key)
        if session is None:
            session = self._new(None, host, self.timeout_s)
            self._add(key, session)
        return session

    def log_out(self, token: str) -> None:
        self._remove(_digest(token))

    def _current(self, key: bytes) -> Session | None:
        session = self._sessions.get(key)
        if session is None:
            return None
        if not session.is_current:
            self._remove(key)
            return None
        self._sessions.move_to_end(key)
        return session

    def _new(self, success: Success | None, host: str, timeout_s: float) -> Session:
        return Session(self._view, success, host, self._clock() + timeout_s, self._clock)

    def _add(self, key: bytes, session: Session) -> None:
        self._sessions[key] = session
        own = [] if session.user is None else [each for each, one in self._sessions.items() if one.user == session.user]
        for oldest in own[:-_SESSIONS_OF_USER_MAX]:
            self._remove(oldest)
        while len(self._sessions) > _SESSIONS_MAX:
            self._remove(next(iter(self._sessions)))

    def _remove(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            task = asyncio.get_running_loop().create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for key in list(self._sessions):
            self._remove(key)
        if self._closing:
            await asyncio.wait(self._closing)


def _digest(token: str) -> bytes:
    """Return what a session is kept by, so that neither memory nor timing tells a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
