"""``GET /metrics``: the metrics of a server as text, over plain HTTP, for monitoring systems that come and read it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import bind_problem

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
