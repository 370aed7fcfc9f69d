"""What tests of remote storage share."""

from __future__ import annotations

from typing import Any

from fluss import embedded
from fluss.net.channel import Channel
from fluss.net.transport import run


def ask(server: embedded.EmbeddedServer, api: Any, request: Any) -> Any:
    """Send one request of the protocol and return its answer."""
    host, _, port = server.bootstrap_servers.rpartition(":")

    async def exchange() -> Any:
        async with await Channel.connect(host, int(port)) as channel:
            return await channel.request(api, request, timeout_s=60)

    return run(exchange())
