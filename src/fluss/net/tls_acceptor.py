"""Accepts the connections of a TLS listener: a place first, then the handshake, then the connection.

    accept   ->  place?  ->  first byte  ->  turn  ->  handshake  ->  connection
                 no: closed  none: deadline           failed: closed, the place is free again
                             not TLS: told so

All that a client can have before it has finished the handshake is a descriptor and a task, for a limited time. What the
server computes for handshakes is limited as well: they take turns, a limited number in a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from fluss.errors import AuthenticationError
from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.token_bucket import TokenBucket
from fluss.protocol.frame import LENGTH_BYTES, REQUEST_FIELDS_BYTES
from fluss.protocol.session import error_parts, failure_parts

# A handshake is one to two milliseconds of work with a common RSA key: so many leave the loop most of its time.
_HANDSHAKES_PER_S: Final = 250
_FIRST_BYTE_OF_TLS: Final = 0x16
_REQUEST_HEAD_BYTES: Final = LENGTH_BYTES + REQUEST_FIELDS_BYTES
_REQUEST_ID_BYTES: Final = 4
# How long a client that does not speak TLS may take to read why it is refused.
_LINGER_S: Final = 1.0
_ACCEPTS_PER_TURN: Final = 64
# Without descriptors, accepting is tried again after a while.
_ACCEPT_PAUSE_S: Final = 1.0
_SHUTDOWN_TIMEOUT_S: Final = 5.0
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger(__name__)


class TlsConnection(asyncio.BaseProtocol, ABC):
    """What a connection is made of after its handshake."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether it has been told of its transport: from then on its place is its own."""


class TlsAcceptor:
    """Listens on one address; has the part of ``asyncio.Server`` that a listener needs. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        *,
        context: Callable[[], ssl.SSLContext],
        new_connection: Callable[[], TlsConnection],
        admission: Admission,
        bursts: BurstLog,
        handshake_timeout_s: float,
        plaintext_answer: bytes | None = None,
    ) -> None:
        """``plaintext_answer`` is for clients that do not speak TLS; without it they are told in this protocol."""
        self._name = name
        self._context = context
        self._new_connection = new_connection
        self._admission = admission
        self._bursts = bursts
        self._handshake_timeout_s = handshake_timeout_s
        self._plaintext_answer = plaintext_answer
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = TokenBucket(_HANDSHAKES_PER_S, 1, self._loop.time())
        self.sockets: tuple[socket.socket, ...] = ()

    async def start(self, host: str, port: int, *, backlog: int) -> None:
        """Bind to all addresses of a host, and accept. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
                bound.append(socket.create_server(address, family=family, backlog=backlog))
        except BaseException:
            for listening in bound:
                listening.close()
            raise
        self.sockets = tuple(bound)
        for listening in bound:
            listening.setblocking(False)
            self._loop.add_reader(listening, self._accept, listening)

    @property
    def pending_count(self) -> int:
        """Clients that have not finished their handshake."""
        return len(self._tasks)

    def close(self) -> None:
        """Accept no more, and give up handshakes. May be called again."""
        sockets, self.sockets = self.sockets, ()
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                logger.error("listener %s cannot accept connections: %s", self._name, error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listening)
                return
            host = str(address[0])
            refusal = self._admission.admit(host)
            if refusal is not None:
                # Telling it in TLS would cost a handshake, and there is no place.
                self._log("connections refused", f"refused the connection of {host}: {refusal}", logging.WARNING)
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._take_in(accepted, host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _log(self, kind: str, text: str, level: int = logging.INFO) -> None:
        self._bursts.log(kind, level, text)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _take_in(self, accepted: socket.socket, host: str) -> None:
        connection: TlsConnection | None = None
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                first = await self._first_byte(accepted)
                if first == _FIRST_BYTE_OF_TLS:
                    await self._wait_for_turn()
                    # From here on the socket is the transport's, which closes it.
                    connection = self._new_connection()
                    await self._shake_hands(accepted, connection)
                elif first is not None:
                    await self._refuse_plaintext(accepted, host)
        except TimeoutError:
            self._log("handshakes given up", f"gave up the handshake of {host} after {self._handshake_timeout_s:g} s")
        except OSError as error:
            self._log("handshakes failed", f"the TLS handshake of {host} failed: {str(error) or type(error).__name__}")
        finally:
            if connection is None:
                accepted.close()
            if connection is None or not connection.is_connected:
                self._admission.release(host)

    async def _shake_hands(self, accepted: socket.socket, connection: TlsConnection) -> None:
        await self._loop.connect_accepted_socket(
            lambda: connection,
            accepted,
            ssl=self._context(),
            ssl_handshake_timeout=self._handshake_timeout_s,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    async def _first_byte(self, accepted: socket.socket) -> int | None:
        """Wait until there is something to read, and look at it without taking it. None at the end of the stream."""
        await self._readable(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        return first[0] if first else None

    async def _readable(self, accepted: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted)

    async def _wait_for_turn(self) -> None:
        wait_s = self._turns.take(1, self._loop.time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _refuse_plaintext(self, accepted: socket.socket, host: str) -> None:
        """Tell a client that it has to speak TLS, in words that it understands."""
        self._log("plaintext refused", f"refused {host}: it does not speak TLS, and listener {self._name} does")
        head = accepted.recv(_REQUEST_HEAD_BYTES)
        accepted.send(self._protocol_refusal(head) if self._plaintext_answer is None else self._plaintext_answer)
        accepted.shutdown(socket.SHUT_WR)
        # Closing while there are bytes to read would have the system throw away what was sent.
        try:
            async with asyncio.timeout(_LINGER_S):
                while await self._has_more(accepted):
                    pass
        except TimeoutError:
            pass

    def _protocol_refusal(self, head: bytes) -> bytes:
        refusal = AuthenticationError(
            f"the listener {self._name} speaks TLS; set 'security.protocol' to ssl or sasl_ssl, or use the address of "
            "a plaintext listener"
        )
        # Some clients look at nothing but answers to their requests.
        is_whole = len(head) == _REQUEST_HEAD_BYTES
        answer = error_parts(int.from_bytes(head[-_REQUEST_ID_BYTES:]), refusal) if is_whole else []
        return b"".join([*answer, *failure_parts(refusal)])

    async def _has_more(self, accepted: socket.socket) -> bool:
        await self._readable(accepted)
        return bool(accepted.recv(16 * 1024))
