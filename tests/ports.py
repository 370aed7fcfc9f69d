"""Ports for servers of tests that need to know the number before they listen."""

from __future__ import annotations

import atexit
import socket
from contextlib import ExitStack
from typing import Final

from fluss.net.listener import keep_port

LOCALHOST: Final = "127.0.0.1"

_kept: Final = ExitStack()
atexit.register(_kept.close)


def free_port() -> int:
    """Return a port that nobody else is given until this process ends; clients are refused until a server listens.

    One that was only free a moment ago may be taken: other tests, in this process and beside it, ask for any free
    port all the time.
    """
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asked.bind((LOCALHOST, 0))
        port: int = asked.getsockname()[1]
        _kept.enter_context(keep_port(LOCALHOST, port))
    return port
