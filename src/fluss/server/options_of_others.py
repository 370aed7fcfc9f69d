"""Options of other servers of this protocol that have no meaning, or no effect, in this one.

They are about a coordination service, replication, tiering, and a runtime with its threads. A configuration that was
made for such a server starts here, too.
"""

from __future__ import annotations

from typing import Final

_PREFIXES: Final = (
    "client.",
    "coordinator.",
    "env.",
    "fs.",
    "kafka.",
    "kv.",
    "lake.",
    "log.replica.",
    "metrics.",
    "oss.",
    "plugin.",
    "remote.",
    "s3.",
    "server.historical-partition.",
    "tablet-server.controlled-shutdown.",
    "zookeeper.",
)
_KEYS: Final = frozenset(
    {
        "acl.notification.expiration-time",
        "log.file-preallocate",
        "log.flush.interval-messages",
        "netty.client.num-network-threads",
        "netty.server.max-queued-historical-requests",
        "netty.server.num-network-threads",
        "netty.server.num-worker-threads",
        "server.background.threads",
        "server.buffer.page-size",
        "server.buffer.per-request-memory-size",
        "server.buffer.wait-timeout",
        "server.io-pool.size",
        "tablet-server.host",
        "tablet-server.port",
    }
)


def is_of_other_servers(key: str) -> bool:
    """Whether a key is known to be none of ours."""
    return key in _KEYS or key.startswith(_PREFIXES)
