"""One connection per server, made when it is first needed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

from fluss.client.shared_calls import SharedCalls
from fluss.config import Config
from fluss.net.channel import Channel, ChannelSettings
from fluss.protocol import sasl
from fluss.protocol.api import ServerRole
from fluss.schema.cluster import ServerNode, ServerType

_ROLES = {
    ServerType.COORDINATOR_SERVER.value: ServerRole.COORDINATOR,
    ServerType.TABLET_SERVER.value: ServerRole.TABLET_SERVER,
}


class ServerPool:
    """Channels to servers, by server uid. Belongs to one event loop.

    A server gets one channel for each of its roles. A channel that has failed, or leads to an address where the
    server is no longer, is replaced at the next use; callers who need it at the same time share one attempt.
    """

    def __init__(
        self,
        config: Config,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = ChannelSettings(
            connect_timeout_s=config.connect_timeout_ms / 1000, handshake_timeout_s=config.request_timeout_ms / 1000
        )
        self._credentials = _credentials(config)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._channels: dict[str, tuple[ServerNode, Channel]] = {}
        self._connects = SharedCalls()

    async def channel(self, node: ServerNode) -> Channel:
        """Return an open channel. Raises NetworkError, AuthenticationError or the like."""
        known = self._channels.get(node.uid)
        if known is not None and known[0] == node and known[1].is_open:
            return known[1]
        return await self._connects.join(node, partial(self._replace, node))

    async def connect(self, host: str, port: int, role: ServerRole | None = None) -> Channel:
        """Make a channel that is not part of the pool."""
        return await Channel.connect(
            host,
            port,
            settings=self._settings,
            credentials=self._credentials,
            expected_server_type=role,
            rng=self._rng,
            sleep=self._sleep,
        )

    async def _replace(self, node: ServerNode) -> Channel:
        channel = await self.connect(node.host, node.port, _ROLES.get(node.server_type))
        previous = self._channels.pop(node.uid, None)
        # Servers come and go; those that have gone must not pile up here.
        self._channels = {uid: known for uid, known in self._channels.items() if known[1].is_open}
        self._channels[node.uid] = (node, channel)
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


def _credentials(config: Config) -> sasl.Credentials | None:
    if config.security_protocol.lower() != "sasl":
        return None
    return sasl.Credentials(config.security_sasl_username, config.security_sasl_password)
