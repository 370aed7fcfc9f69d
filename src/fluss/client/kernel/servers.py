"""Connections to servers: first to those of ``bootstrap.servers``, then one to each server of the cluster."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from fluss.client.kernel.shared_calls import SharedCalls
from fluss.config import Config
from fluss.errors import FlussError, NetworkError, RequestTimeoutError
from fluss.metrics import Metrics
from fluss.net.channel import Channel, ChannelSettings, Dial
from fluss.net.request_metrics import RequestMetrics
from fluss.net.tls import ClientContext, ClientTls
from fluss.protocol import api as apis
from fluss.protocol import sasl
from fluss.protocol.api import ServerRole
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import BOOTSTRAP
from fluss.schema.cluster_info import ServerNode, ServerType

_PORT_MAX: Final = 65535
# Servers that come and go under other addresses must not pile up.
_LOST_MAX: Final = 1000
# Why a name cannot be resolved at the moment, as far as the resolver says.
_UNRESOLVED_NOW: Final = frozenset({socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY})
_ADDRESS: Final = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})")
_ROLES: Final = {
    ServerType.COORDINATOR_SERVER.value: ServerRole.COORDINATOR,
    ServerType.TABLET_SERVER.value: ServerRole.TABLET_SERVER,
}

logger = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[str, int], Awaitable[Channel]]
Resolve: TypeAlias = Callable[[str, int], Awaitable[object]]


class Address(NamedTuple):
    host: str
    port: int


class _InvalidAddressError(FlussError):
    """No connection was tried, because the address cannot be one."""


def split_addresses(bootstrap_servers: str) -> list[str]:
    """Take the option apart: comma separated, blanks and empty items do not count."""
    addresses = [item.strip() for item in bootstrap_servers.split(",")]
    addresses = [address for address in addresses if address]
    if not addresses:
        raise FlussError("No bootstrap servers configured; set 'bootstrap.servers' to host:port")
    return addresses


def parse_address(text: str) -> Address:
    """Read ``host:port`` or ``[ipv6]:port``."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise _InvalidAddressError(f"Invalid bootstrap address '{text}': expected host:port")
    port = int(match["port"])
    if not 0 < port <= _PORT_MAX:
        raise _InvalidAddressError(f"Invalid bootstrap address '{text}': the port must be between 1 and {_PORT_MAX}")
    return Address(match["bracketed"] or match["host"], port)


class Bootstrap:
    """Asks the bootstrap servers for metadata. The real addresses are in the answer, so the connection ends with it."""

    def __init__(
        self,
        bootstrap_servers: str,
        connect: Connect,
        *,
        connect_timeout_s: float,
        request_timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resolve: Resolve | None = None,
    ) -> None:
        self._addresses = split_addresses(bootstrap_servers)
        self._connect = connect
        self._resolve = resolve or asyncio.get_running_loop().getaddrinfo
        # Names that were found before.
        self._resolved: set[Address] = set()
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._sleep = sleep

    async def ask(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        """Return the first answer. Raises the last failure to connect, or why no address is one."""
        pauses_s = BOOTSTRAP.pauses_s() if len(self._addresses) == 1 else iter(())
        while True:
            try:
                return await self._ask_in_order(request)
            except FlussError as error:
                pause_s = next(pauses_s, None)
                # A server that has had its time would only take it once more.
                if pause_s is None or not error.is_retriable or isinstance(error, RequestTimeoutError):
                    raise
                logger.debug("%s does not answer (%s); trying again", self._addresses[0], error.message)
            await self._sleep(pause_s)

    async def _ask_in_order(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        failures: list[FlussError] = []
        for text in self._addresses:
            try:
                return await self._ask_one(text, request)
            except FlussError as error:
                logger.debug("bootstrap server %s: %s", text, error.message)
                failures.append(error)
        for failure in reversed(failures):
            if not isinstance(failure, _InvalidAddressError):
                raise failure
        raise FlussError("; ".join(failure.message for failure in failures))

    async def _ask_one(self, text: str, request: pb.MetadataRequest) -> pb.MetadataResponse:
        address = parse_address(text)
        await self._check_resolvable(text, address)
        async with await self._connect(*address) as channel:
            return await channel.request(apis.GET_METADATA, request, timeout_s=self._request_timeout_s)

    async def _check_resolvable(self, text: str, address: Address) -> None:
        """Tell a name that does not exist, which is a mistake, from a server that is down.

        A name that was found before is none: without a network, or while its server starts anew, it may be unknown.
        """
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._resolve(*address)
        except TimeoutError:
            raise NetworkError(f"{text} was not resolved within {self._connect_timeout_s:g} s") from None
        except UnicodeError as error:
            raise _unresolvable(text, error) from None
        except OSError as error:
            is_unknown = isinstance(error, socket.gaierror) and error.errno not in _UNRESOLVED_NOW
            if is_unknown and address not in self._resolved:
                raise _unresolvable(text, error.strerror) from None
            raise NetworkError(f"{text} cannot be resolved at the moment: {error.strerror}") from None
        self._resolved.add(address)


def _unresolvable(text: str, reason: object) -> _InvalidAddressError:
    return _InvalidAddressError(f"Invalid bootstrap address '{text}': cannot resolve it: {reason}")


class ServerPool:
    """Channels to servers, by server uid. Belongs to one event loop.

    A server gets one channel for each of its roles. A channel that has failed, or leads to an address where the
    server is no longer, is replaced at the next use; callers that need it at the same time share one attempt.
    """

    def __init__(
        self,
        config: Config,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dial: Dial | None = None,
        on_lost: Callable[[ServerNode], None] | None = None,
    ) -> None:
        """``on_lost`` is told the node of each channel that ends, in whatever way."""
        self._dial = dial
        self._on_lost = on_lost
        self._metrics = RequestMetrics("fluss_client")
        self._settings = ChannelSettings(
            connect_timeout_s=config.connect_timeout_ms / 1000, handshake_timeout_s=config.request_timeout_ms / 1000
        )
        self._credentials = _credentials(config)
        self._tls = _client_tls(config)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._channels: dict[str, tuple[ServerNode, Channel]] = {}
        self._connects = SharedCalls()
        self._lost = _LostServers()

    def show(self, metrics: Metrics) -> None:
        """Have connections and requests shown among the metrics."""
        self._metrics.show(metrics)
        metrics.gauge(
            "fluss_client_connections",
            "Open connections to servers.",
            lambda: sum(channel.is_open for _, channel in tuple(self._channels.values())),
        )
        metrics.gauge(
            "fluss_client_requests_in_flight",
            "Requests that were sent and are not answered.",
            lambda: sum(channel.in_flight_count for _, channel in tuple(self._channels.values())),
        )

    async def channel(self, node: ServerNode) -> Channel:
        """Return an open channel. Raises NetworkError, AuthenticationError or the like."""
        known = self._open_channel(node)
        return known if known is not None else await self._connects.join(node, partial(self._replace, node))

    def check(self, node: ServerNode) -> None:
        """Find out, in the background, whether a server that is asked no more is lost, and say so in the log."""
        if self._open_channel(node) is None and not self._lost.has(node):
            self._connects.start(node, partial(self._replace, node))

    def _open_channel(self, node: ServerNode) -> Channel | None:
        known = self._channels.get(node.uid)
        return known[1] if known is not None and known[0] == node and known[1].is_open else None

    async def connect(self, host: str, port: int, role: ServerRole | None = None) -> Channel:
        """Make a channel that is not part of the pool."""
        return await Channel.connect(
            host,
            port,
            settings=self._settings,
            credentials=self._credentials,
            tls=self._tls,
            expected_server_type=role,
            rng=self._rng,
            sleep=self._sleep,
            dial=self._dial,
            metrics=self._metrics,
        )

    async def _replace(self, node: ServerNode) -> Channel:
        try:
            channel = await self.connect(node.host, node.port, _ROLES.get(node.server_type))
        except (NetworkError, RequestTimeoutError) as error:
            self._lost.lost(node, error)
            raise
        self._lost.reached(node)
        previous = self._channels.pop(node.uid, None)
        # Servers come and go; those that have gone must not pile up here.
        self._channels = {uid: known for uid, known in self._channels.items() if known[1].is_open}
        self._channels[node.uid] = (node, channel)
        if self._on_lost is not None:
            channel.on_lost = partial(self._on_lost, node)
        if previous is not None:
            await previous[1].close()
        return channel

    async def close(self) -> None:
        """Close all channels; requests that wait on them fail."""
        await self._connects.close()
        channels = [channel for _, channel in self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close()


class _LostServers:
    """Logs that a server cannot be reached, once, and that it is back. Belongs to one event loop.

    A server has a node for each of its roles, at the same address.
    """

    def __init__(self) -> None:
        # By address: since when, and which nodes.
        self._lost: dict[Address, tuple[float, set[str]]] = {}

    def has(self, node: ServerNode) -> bool:
        """Whether the server at the address of this node is known to be lost."""
        return Address(node.host, node.port) in self._lost

    def lost(self, node: ServerNode, error: FlussError) -> None:
        """A connection could not be made."""
        address = Address(node.host, node.port)
        if address in self._lost:
            self._lost[address][1].add(node.uid)
            return
        while len(self._lost) >= _LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost[address] = asyncio.get_running_loop().time(), {node.uid}
        logger.warning("lost the server at %s:%d: %s", *address, error.message)

    def reached(self, node: ServerNode) -> None:
        """A connection was made. A server may be back at another address."""
        address = Address(node.host, node.port)
        for known, (since_s, uids) in list(self._lost.items()):
            if known == address or node.uid in uids:
                del self._lost[known]
                lost_s = asyncio.get_running_loop().time() - since_s
                logger.warning("the server at %s:%d is back, after %.1f s", *address, lost_s)


def _credentials(config: Config) -> sasl.Credentials | None:
    if not config.uses_sasl:
        return None
    return sasl.Credentials(
        config.security_sasl_username, config.security_sasl_password, config.security_sasl_mechanism.upper()
    )


def _client_tls(config: Config) -> ClientContext | None:
    """Read certificates once, for all connections. What is wrong with them is known before the first is made."""
    if not config.uses_tls:
        return None
    return ClientTls(
        ca=config.security_ssl_ca,
        certificate=config.security_ssl_certificate,
        key=config.security_ssl_key,
        key_password=config.security_ssl_key_password,
        verify_hostname=config.security_ssl_verify_hostname,
        server_name=config.security_ssl_server_name,
    ).load()
