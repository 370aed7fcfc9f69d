"""How many connections a server may have without taking the descriptors that its files need."""

from __future__ import annotations

import resource
import sys
from typing import Final

from fluss.storage.vfs import DESCRIPTORS_MAX

# Of all descriptors, what stores of rows by key may have open.
_STORES_SHARE: Final = 1 / 4
# The metadata, the event loop, the log, sockets that listen, libraries.
_OTHERS: Final = 32
# Connections that have been accepted and are about to be refused.
_ARRIVALS: Final = 64
# With fewer a server is of no use, whatever the limit.
_CONNECTIONS_MIN: Final = 32


def connections_possible(limit: int | None = None) -> int:
    """Return how many connections the limit of descriptors of this process leaves beside files."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    left = limit - DESCRIPTORS_MAX - int(limit * _STORES_SHARE) - _OTHERS - _ARRIVALS
    return max(_CONNECTIONS_MIN, left)
