"""The way into a cluster: ``bootstrap.servers``, asked in order until one answers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from fluss.errors import FlussError, NetworkError
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb

# With a single address there is nobody else to ask, so it gets another chance after these pauses.
RETRY_DELAYS_S: Final = (0.1, 0.2, 0.4)
_PORT_MAX: Final = 65535
_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})")

logger = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[str, int], Awaitable[Channel]]


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
    ) -> None:
        self._addresses = split_addresses(bootstrap_servers)
        self._connect = connect
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._sleep = sleep

    async def ask(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        """Return the first answer. Raises the last failure to connect, or why no address is one."""
        pauses_s = [*RETRY_DELAYS_S] if len(self._addresses) == 1 else []
        while True:
            try:
                return await self._ask_in_order(request)
            except FlussError as error:
                if not pauses_s or not error.is_retriable:
                    raise
                logger.info("%s does not answer (%s); trying again", self._addresses[0], error.message)
            await self._sleep(pauses_s.pop(0))

    async def _ask_in_order(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        failures: list[FlussError] = []
        for text in self._addresses:
            try:
                return await self._ask_one(text, request)
            except FlussError as error:
                logger.info("bootstrap server %s: %s", text, error.message)
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
        """Tell a name that does not exist, which is a mistake, from a server that is down."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.get_running_loop().getaddrinfo(*address)
        except TimeoutError:
            raise NetworkError(f"{text} was not resolved within {self._connect_timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise _InvalidAddressError(f"Invalid bootstrap address '{text}': cannot resolve it: {error}") from None
