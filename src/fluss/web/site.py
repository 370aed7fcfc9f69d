"""The thread and the event loop of HTTP, from start to stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from concurrent.futures import Future
from typing import Any, Final

from aiohttp import web

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import bind_problem
from fluss.net.tls import ServerCertificate
from fluss.server.operator_view import OperatorView
from fluss.server.options.http_options import HttpAddress
from fluss.web.application import Application

_BACKLOG: Final = 64
# How long answers that are under way may take when the server stops; live tails are ended at once.
_GRACE_S: Final = 2.0
_START_TIMEOUT_S: Final = 60.0
# A connection that is kept open for further requests.
_KEEP_ALIVE_S: Final = 75.0

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
        application = Application(self._view, is_tls=self._address.is_tls)
        runner = web.AppRunner(
            application.app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_S,
            shutdown_timeout=_GRACE_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, self._address.host, self._address.port, ssl_context=self._tls_context(), backlog=_BACKLOG
            )
            try:
                await site.start()
            except (OSError, OverflowError, UnicodeError) as error:
                raise FlussError(
                    f"HTTP cannot be had on {self._address.url}: {bind_problem(error, 'http.listener or --http')}",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                ) from error
            self._ready.set_result(runner.addresses[0][1])
            await self._stop.wait()
            application.end_tails()
        finally:
            await runner.cleanup()

    def _tls_context(self) -> ssl.SSLContext | None:
        certificate = self._certificate
        if certificate is None:
            return None
        context = certificate.context

        def newest(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            # The files may have been renewed since the start.
            connection.context = certificate.context

        context.sni_callback = newest
        return context


def start(view: OperatorView, address: HttpAddress, certificate: ServerCertificate | None) -> HttpSite:
    """Start the site of a server. Blocking."""
    site = HttpSite(view, address, certificate)
    site.start()
    return site
