"""The thread and the event loop of HTTP, from start to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from fluss.errors import ErrorCode, FlussError
from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.listener import bind_problem
from fluss.net.tls import ServerCertificate
from fluss.net.tls_acceptor import TlsAcceptor
from fluss.server.operator_view import OperatorView
from fluss.server.options.http_options import HttpAddress
from fluss.web.application import Application
from fluss.web.http_connections import HttpConnections

_NAME: Final = "http"
_BACKLOG: Final = 64
# How long answers that are under way may take when the server stops; live tails are ended at once.
_GRACE_S: Final = 2.0
_START_TIMEOUT_S: Final = 60.0
# A connection that is kept open for further requests.
_KEEP_ALIVE_S: Final = 75.0
# How long what nobody wanted of a request is read.
_LINGER_S: Final = 2.0
_SHOWN_CHARACTERS: Final = 200
_SPEAK_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 26\r\nConnection: close\r\n\r\n"
    b"this port speaks https://\n"
)

logger = logging.getLogger(__name__)


class HttpSite:
    """A thread that speaks HTTP. Nothing of it runs on the event loop of the server."""

    def __init__(self, view: OperatorView, address: HttpAddress, certificate: ServerCertificate | None) -> None:
        self._view = view
        self._address = address
        self._certificate = certificate
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="fluss-http", daemon=True)

    @property
    def url(self) -> str:
        """Where the page is."""
        port = self._ready.result(0)
        return HttpAddress(self._address.host, port, self._address.is_tls).url

    def start(self) -> None:
        """Bind, and answer from now on. Raises FlussError if the address cannot be had. Blocking."""
        self._thread.start()
        self._ready.result(_START_TIMEOUT_S)

    def stop(self) -> None:
        """End everything. Blocking; may be called again."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_TIMEOUT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                logger.exception("HTTP has ended; the server goes on without it")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        bursts = BurstLog(logger)
        application = Application(self._view, bursts, is_tls=self._address.is_tls)
        runner = web.AppRunner(
            application.app,
            handle_signals=False,
            access_log=None,
            logger=_quiet_logger(bursts),
            keepalive_timeout=_KEEP_ALIVE_S,
            lingering_time=_LINGER_S,
            shutdown_timeout=_GRACE_S,
            # A browser has no reason to compress a password.
            auto_decompress=False,
        )
        await runner.setup()
        assert runner.server is not None, "the runner is set up"
        connections = HttpConnections(runner.server, Admission(self._view.http_connection_count_max), bursts)
        try:
            server = await self._listen(connections, bursts)
            connections.start()
            self._ready.set_result(server.sockets[0].getsockname()[1])
            await self._stop.wait()
            server.close()
            application.end_tails()
        finally:
            await runner.cleanup()
            connections.stop()
            bursts.close()

    async def _listen(self, connections: HttpConnections, bursts: BurstLog) -> asyncio.Server | TlsAcceptor:
        host, port, certificate = self._address.host, self._address.port, self._certificate
        try:
            if certificate is None:
                return await asyncio.get_running_loop().create_server(connections.new, host, port, backlog=_BACKLOG)
            acceptor = TlsAcceptor(
                _NAME,
                # The files may have been renewed since the start.
                context=lambda: certificate.context,
                new_connection=connections.new_admitted,
                admission=connections.admission,
                bursts=bursts,
                handshake_timeout_s=certificate.tls.handshake_timeout_s,
                plaintext_answer=_SPEAK_TLS,
            )
            await acceptor.start(host, port, backlog=_BACKLOG)
        except (OSError, OverflowError, UnicodeError) as error:
            raise FlussError(
                f"HTTP cannot be had on {self._address.url}: {bind_problem(error, 'http.listener or --http')}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            ) from error
        return acceptor


def _quiet_logger(bursts: BurstLog) -> logging.Logger:
    """Return what the library logs to: one line for many requests that are none, everything else as it comes."""
    quiet = logging.Logger(logger.name)
    quiet.parent = logger

    def is_kept(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        reason = str(error.message).strip().partition("\n")[0]
        bursts.log("bad requests", logging.INFO, f"{record.getMessage()}: {reason[:_SHOWN_CHARACTERS]!r}")
        return False

    quiet.addFilter(is_kept)
    return quiet


def start(view: OperatorView, address: HttpAddress, certificate: ServerCertificate | None) -> HttpSite:
    """Start the site of a server. Blocking."""
    site = HttpSite(view, address, certificate)
    site.start()
    return site
