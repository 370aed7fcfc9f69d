"""The connections of this process to clusters: one for each set of settings, made when it is first needed.

Spark keeps its Python workers, so that most tasks find a connection that is open already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from fluss import FlussConnection, FlussTable
from fluss.client.bulk import JOBS, retried, wait_for
from fluss.config import Config
from fluss.errors import FlussError
from fluss.schema.table import TablePath

# With more settings than this, the connection that was asked for the longest time ago is closed.
_CONNECTIONS_MAX: Final = 64

_Settings = frozenset[tuple[str, str]]

_lock = threading.Lock()
_connections: dict[_Settings, FlussConnection] = {}
# Connections of the parent process, kept so that nothing here ever closes them.
_inherited: list[FlussConnection] = []


def open_connection(settings: Mapping[str, str]) -> FlussConnection:
    """Return the connection of this process with these settings. It is shared, and closed when the process ends."""
    key = frozenset(settings.items())
    with _lock:
        connection = _connections.pop(key, None)
        if connection is not None:
            # The one that was used last stands at the end.
            _connections[key] = connection
            return connection
    # Without the lock: other threads need not wait until this cluster answers.
    opened = wait_for(FlussConnection.create(Config(dict(settings))))
    needless: list[FlussConnection] = []
    with _lock:
        connection = _connections.setdefault(key, opened)
        if connection is not opened:
            needless.append(opened)
        if len(_connections) > _CONNECTIONS_MAX:
            needless.append(_connections.pop(next(iter(_connections))))
    for unused in needless:
        # The connection logs what it could not send.
        with suppress(FlussError):
            unused.close()
    return connection


def open_table(settings: Mapping[str, str], path: TablePath) -> FlussTable:
    """Return a table as it is now; code 7 if it does not exist."""
    return wait_for(open_connection(settings).get_table(path))


def await_table(settings: Mapping[str, str], path: TablePath, limit_s: float | None = None) -> FlussTable:
    """Return a table as it is now, also if no server answers for a moment: for queries that are under way.

    The limit is ``request-timeout`` unless given. Afterwards, and if asking again does not help, it raises what the
    last attempt said.
    """
    if limit_s is None:
        limit_s = Config(dict(settings)).request_timeout_ms / 1000
    return retried(lambda: open_table(settings, path), JOBS, limit_s)


def _forget_parents_connections() -> None:
    global _lock
    # The parent may have held the lock in a thread that does not exist here. Its sockets stay its own.
    _lock = threading.Lock()
    _inherited.extend(_connections.values())
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_connections)
