"""All addresses of the site, who may have what, and what every answer carries.

| address | what | who |
|---|---|---|
| ``/`` and ``/static/...`` | the page itself, which holds no data | everybody |
| ``/health``, ``/health/live``, ``/health/ready`` | whether the server works | everybody; reasons as metrics |
| ``/metrics`` | the Prometheus text format | by ``http.monitoring.access`` |
| ``/api/login``, ``/api/logout``, ``/api/session`` | logging in and out | everybody |
| ``/api/...`` | everything else as JSON, read only | users, by their rights |

Users log in with a form, which gives a cookie, or send their password with each request (HTTP Basic), as programs do.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from fluss._version import __version__
from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.net.admission import is_loopback
from fluss.net.burst_log import BurstLog
from fluss.server.operator_view import OperatorView
from fluss.server.options.http_options import MonitoringAccess
from fluss.web.http_connections import connection_of
from fluss.web.load_history import LoadHistory
from fluss.web.log_lines import LogLines
from fluss.web.page_files import PageFiles
from fluss.web.prometheus import CONTENT_TYPE, exposition
from fluss.web.server_api import ServerApi
from fluss.web.sessions import COOKIE, Session, Sessions
from fluss.web.table_api import TAIL_PATH, TableApi

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BODY_BYTES_MAX: Final = 16 * 1024
_BODY_S: Final = 15.0
_SHOWN_PATH_CHARACTERS: Final = 200
# The event loop of a server that does not answer for so long is not alive.
_ALIVE_S: Final = 5.0
# No request takes longer, but for a live tail.
_REQUEST_S: Final = 30.0
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Server": "Flussbett",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# What the codes of the protocol are in HTTP; all others are 400.
_STATUS_BY_CODE: Final = {
    ErrorCode.DATABASE_NOT_EXIST: 404,
    ErrorCode.TABLE_NOT_EXIST: 404,
    ErrorCode.PARTITION_NOT_EXISTS: 404,
    ErrorCode.AUTHENTICATE_EXCEPTION: 401,
    ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION: 429,
    ErrorCode.AUTHORIZATION_EXCEPTION: 403,
    ErrorCode.NETWORK_EXCEPTION: 503,
    ErrorCode.REQUEST_TIME_OUT: 504,
    ErrorCode.UNKNOWN_SERVER_ERROR: 500,
}
_JSON: Final = "application/json"
# What proxies add to requests of others.
_FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Application:
    """The application of aiohttp. Belongs to the loop of HTTP."""

    def __init__(self, view: OperatorView, bursts: BurstLog, *, is_tls: bool) -> None:
        self._view = view
        self._bursts = bursts
        self._is_tls = is_tls
        self._sessions = Sessions(view)
        self._history = LoadHistory(view)
        self._lines = LogLines()
        self._hosts = _known_hosts() | view.options.http_hosts
        self._tables = TableApi(view)
        server = ServerApi(view, self._history, self._lines)
        files = PageFiles()
        self.app = web.Application(middlewares=[self._guarded], client_max_size=_BODY_BYTES_MAX)
        add = self.app.router.add_route
        add("GET", "/", files.index)
        add("GET", "/static/{name}", files.file)
        add("GET", "/favicon.ico", files.icon)
        add("GET", "/metrics", self._metrics)
        add("GET", "/health", self._health)
        add("GET", "/health/{kind:live|ready}", self._health)
        add("GET", "/api/session", self._session_info)
        add("POST", "/api/login", self._log_in)
        add("POST", "/api/logout", self._log_out)
        for path, answer in (*server.routes().items(), *self._tables.routes().items()):
            add("GET", f"/api/{path}", self._for_users(answer))
        add("GET", f"/api/{TAIL_PATH}", self._tail)
        self.app.cleanup_ctx.append(self._running)
        self.app.on_response_prepare.append(_add_headers)

    async def _running(self, _app: web.Application) -> Any:
        self._lines.start()
        self._history.start()
        yield
        self._lines.stop()
        await self._history.stop()
        await self._sessions.close()

    def end_tails(self) -> None:
        """End answers that would go on for ever."""
        self._tables.end_tails()

    # What holds for every request

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        if connection is not None:
            connection.request_began()
        try:
            return await self._answer(request, handler)
        finally:
            if connection is not None:
                connection.request_ended()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            self._check_host(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except AuthenticationError as error:
            response = _problem(401, error.message)
        except FlussError as error:
            response = _problem(_STATUS_BY_CODE.get(ErrorCode(error.error_code), 400), error.message, error.error_code)
        except TimeoutError:
            response = _problem(504, "this took too long; ask for less")
        except (ConnectionError, asyncio.CancelledError):
            raise
        except web.RequestPayloadError:
            response = _problem(400, "the body of this request cannot be read")
        except Exception:
            # A client that has found a request that fails can repeat it a thousand times a second.
            path = repr(request.path[:_SHOWN_PATH_CHARACTERS])
            text = f"{request.method} {path} failed\n{traceback.format_exc().rstrip()}"
            self._bursts.log("requests failed", logging.ERROR, text)
            response = _problem(500, "this failed inside the server; its log has the details")
        return response

    def _check_host(self, request: web.Request) -> None:
        """Refuse names under which a foreign page could reach this one from a browser; a cookie protects from that."""
        if self._view.needs_login:
            return
        if not self._is_own_name(request):
            shown = request.headers.get("Host", "")[:_SHOWN_PATH_CHARACTERS]
            raise FlussError(f"'{shown}' is no name of this server; add it to 'http.hosts' if it is one")

    def _is_own_name(self, request: web.Request) -> bool:
        host = _host_in(f"//{request.headers.get('Host', '')}")
        return host in self._hosts or _is_address(host)

    # Who is asking

    async def _session(self, request: web.Request) -> Session:
        """Return the session of a request. Raises AuthenticationError."""
        host = _host(request)
        if not self._view.needs_login:
            return self._sessions.anonymous(host)
        token = request.cookies.get(COOKIE)
        session = None if token is None else self._sessions.of_cookie(token)
        if session is None:
            name, password = _basic_credentials(request)
            session = await self._sessions.of_password(name, password, host)
        return session

    def _for_users(self, answer: Callable[[web.Request, Session], Awaitable[Any]]) -> Handler:
        """Return a handler that answers users with JSON."""

        async def handle(request: web.Request) -> web.StreamResponse:
            session = await self._session(request)
            async with asyncio.timeout(_REQUEST_S):
                found = await answer(request, session)
            body = await asyncio.to_thread(_json_bytes, found)
            return web.Response(body=body, content_type=_JSON)

        return handle

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        return await self._tables.tail(request, await self._session(request))

    async def _session_info(self, request: web.Request) -> web.Response:
        """Say which user is logged in, if any, without refusing the request."""
        user, is_open = None, not self._view.needs_login
        token = request.cookies.get(COOKIE)
        if not is_open and token is not None:
            session = self._sessions.of_cookie(token)
            user, is_open = (None, False) if session is None else (session.user, True)
        facts = {"needs_login": self._view.needs_login, "is_open": is_open, "user": user, "version": __version__}
        return web.Response(body=_json_bytes(facts), content_type=_JSON)

    async def _log_in(self, request: web.Request) -> web.Response:
        _check_origin(request)
        if not self._view.needs_login:
            raise FlussError("nobody has to log in here")
        body = await _json_body(request)
        if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("user", "password")):
            raise FlussError('expected {"user": ..., "password": ...}')
        token = await self._sessions.log_in(body["user"], body["password"], _host(request))
        response = web.Response(body=_json_bytes({"user": body["user"]}), content_type=_JSON)
        response.set_cookie(
            *(COOKIE, token),
            httponly=True,
            samesite="Strict",
            secure=self._is_tls,
            path="/",
            max_age=int(self._sessions.timeout_s),
        )
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        _check_origin(request)
        token = request.cookies.get(COOKIE)
        if token is not None:
            self._sessions.log_out(token)
        response = web.Response(body=b"{}", content_type=_JSON)
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=self._is_tls)
        return response

    # Monitoring

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._check_monitoring(request)
        families = [*await self._view.families(), *self._history.families()]
        body = await asyncio.to_thread(exposition, families)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        facts: dict[str, Any]
        try:
            async with asyncio.timeout(_ALIVE_S):
                report = await self._view.health()
        except TimeoutError:
            facts = {"status": "red", "alive": False, "ready": False}
            reasons = [f"the event loop of the server has not answered for {_ALIVE_S:g} s"]
        else:
            facts = {"status": report.status, "alive": True, "ready": report.is_ready}
            reasons = list(report.reasons)
        try:
            await self._check_monitoring(request)
            facts["reasons"] = reasons
        except FlussError:
            # Probes of containers and balancers need to know whether, not why.
            pass
        is_well = facts["alive"] if request.match_info.get("kind") == "live" else facts["ready"]
        return web.Response(body=_json_bytes(facts), content_type=_JSON, status=200 if is_well else 503)

    async def _check_monitoring(self, request: web.Request) -> None:
        access = self._view.options.http_monitoring_access
        if not self._view.needs_login or access is MonitoringAccess.OPEN:
            return
        if access is MonitoringAccess.LOCAL and self._is_local(request):
            return
        session = await self._session(request)
        await self._view.check_operator(session.guest)

    def _is_local(self, request: web.Request) -> bool:
        """Whether a program on this machine asks for itself, and not a proxy for others or a page in a browser."""
        is_forwarded = any(name in request.headers for name in _FORWARDED)
        return is_loopback(_host(request)) and not is_forwarded and self._is_own_name(request)


def _known_hosts() -> frozenset[str]:
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, f"{name}.local"})


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _host(request: web.Request) -> str:
    return request.remote or "unknown"


def _host_in(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


async def _json_body(request: web.Request) -> Any:
    """Return the body of a request; None if it is not JSON. Raises TimeoutError if it comes too slowly."""
    if request.content_type != _JSON:
        return None
    async with asyncio.timeout(_BODY_S):
        body = await request.read()
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def _check_origin(request: web.Request) -> None:
    """Refuse forms of foreign pages. Programs send no origin."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
        raise FlussError("this request comes from another site", ErrorCode.AUTHORIZATION_EXCEPTION)


def _basic_credentials(request: web.Request) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise AuthenticationError("log in first")
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise AuthenticationError("the header Authorization cannot be read")
    return name, password


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _problem(status: int, message: str, code: int | None = None) -> web.Response:
    body = _json_bytes({"error": message, "code": code})
    return web.Response(body=body, content_type=_JSON, status=status)
