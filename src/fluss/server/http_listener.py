"""HTTP on ports of their own: the page, which is made of the client, and the metrics alone for monitoring systems.

The page (``fluss.web``) is above the server and loaded by its name, when an option asks for it: it reads tables as any
client does, through a connection that its user may have, and needs a library for HTTP that is not part of the base
install.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from fluss.errors import ErrorCode, FlussError
from fluss.memory import set_aside
from fluss.net.listener import bind_problem
from fluss.net.tls import ClientAuth, ServerCertificate, ServerTls
from fluss.server.listener_parsing import address_text
from fluss.server.listeners import HTTP_LISTENER_NAME, ListenerPlan, is_local, tls_of
from fluss.server.operator_view import OperatorView
from fluss.server.options.http_options import HttpAddress
from fluss.server.options.server_options import ServerOptions

_SITE_MODULE: Final = "fluss.web.site"


class Site(Protocol):
    """The page while it runs."""

    @property
    def url(self) -> str: ...

    def stop(self) -> None:
        """End its thread. Blocking."""
        ...


@dataclass(frozen=True, slots=True)
class HttpPlan:
    """What the options say about HTTP."""

    address: HttpAddress
    needs_login: bool
    # The listener whose own users log in; None for those of all listeners.
    users_of: ListenerPlan | None
    tls: ServerTls | None


def plan_http(options: ServerOptions, plans: Sequence[ListenerPlan]) -> HttpPlan | None:
    """Check what the options say about HTTP; None if it is off. Everything that is wrong has code 39."""
    address = options.http_address
    if address is None:
        return None
    needs_login = any(plan.is_authenticated for plan in plans)
    users_of = None
    if needs_login:
        shared = options.sasl_users or options.sasl_users_file or options.sasl_jaas_users
        internal = options.internal_listener_name
        users_of = next((plan for plan in plans if plan.own_users and plan.endpoint.name != internal), None)
        if shared:
            users_of = None
        elif users_of is None:
            raise _invalid(
                "clients show certificates here, and nobody has a password to log in to the page with; set "
                f"'{ServerOptions.sasl_users.key}' or '{ServerOptions.sasl_users_file.key}', or turn it off"
            )
    if not is_local(address.host) and not options.insecure_listeners_allowed:
        _check_reach(address, needs_login=needs_login)
    tls = None
    if address.is_tls:
        # Users of the page have names and passwords, whatever clients have.
        tls = replace(tls_of(options, HTTP_LISTENER_NAME), client_auth=ClientAuth.NONE, client_ca_file=None)
    return HttpPlan(address, needs_login, users_of, tls)


def _check_reach(address: HttpAddress, *, needs_login: bool) -> None:
    if not needs_login:
        raise _invalid(
            f"{address.url} would show everything to everybody who can reach this machine; take 127.0.0.1, ask for "
            f"passwords with '{ServerOptions.security_protocols.key}', or say --insecure if that is what you want"
        )
    if not address.is_tls:
        raise _invalid(
            f"passwords would travel to {address.url} for everybody to read; write https:// instead, take 127.0.0.1 "
            "behind a proxy that speaks TLS, or say --insecure if that is what you want"
        )


def _invalid(reason: str) -> FlussError:
    return FlussError(f"'{ServerOptions.http_address.key}': {reason}", ErrorCode.INVALID_CONFIG_EXCEPTION)


async def start_site(plan: HttpPlan, view: OperatorView, certificate: ServerCertificate | None) -> Site:
    """Bind and answer, on a thread of its own. Raises FlussError if the port is taken or a library is missing."""
    site: Site = await asyncio.to_thread(_start, plan, view, certificate)
    return site


def _start(plan: HttpPlan, view: OperatorView, certificate: ServerCertificate | None) -> Site:
    try:
        module = importlib.import_module(_SITE_MODULE)
    except ModuleNotFoundError as error:
        raise FlussError(
            f"'{ServerOptions.http_address.key}' needs {error.name}, which is not installed: "
            'pip install "flussbett[server]"'
        ) from error
    # Otherwise every collection would look at these modules, while clients wait.
    set_aside()
    site: Site = module.start(view, plan.address, certificate)
    return site


def page_sentence(options: ServerOptions) -> str:
    """Say where the page is, to a browser that looks for it on the port of a listener."""
    if options.http_address is not None:
        return f"The page of this server is at {options.http_address.url}"
    if options.metrics_port:
        return f"Metrics are at http://{address_text(options.metrics_host, options.metrics_port)}/metrics"
    return "There is a page to look at: start the server with --http"


_PATH: Final = b"/metrics"
# A monitoring system asks now and then, one connection at a time; who is slow or says too much is hung up on.
_CLIENTS_MAX: Final = 16
_REQUEST_BYTES_MAX: Final = 8 * 1024
_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


class MetricsPage:
    """Listens on one address. There is no log-in: it belongs on the loopback or into a network of one's own."""

    def __init__(self, read: Callable[[], str], host: str, port: int) -> None:
        self._read = read
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._client_count = 0

    @property
    def port(self) -> int:
        assert self._server is not None, "the page was not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Bind and answer. Raises FlussError if the address cannot be bound."""
        try:
            self._server = await asyncio.start_server(
                self._answer, self._host, self._port, limit=_REQUEST_BYTES_MAX, backlog=_CLIENTS_MAX
            )
        except (OSError, OverflowError, UnicodeError) as error:
            raise FlussError(
                f"metrics cannot be shown on {self._host}:{self._port}: "
                f"{bind_problem(error, 'metrics.reporter.prometheus.port')}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            ) from error
        logger.info("metrics on http://%s:%d%s", self._host, self.port, _PATH.decode())

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client_count += 1
        try:
            if self._client_count <= _CLIENTS_MAX:
                async with asyncio.timeout(_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(request))
                    await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # Not a request, or the client has not waited for the answer.
            pass
        finally:
            self._client_count -= 1
            writer.close()

    def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != _PATH:
            status, body = "404 Not Found", f"there is {_PATH.decode()} and nothing else\n".encode()
        elif method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b"only GET\n"
        else:
            status, body = "200 OK", self._read().encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else body)
