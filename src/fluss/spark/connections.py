"""The connections of this process to clusters: one for each set of settings, made when it is first needed.

Spark keeps its Python workers, so that most tasks find a connection that is open already.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from fluss import FlussConnection, FlussTable
from fluss.client.bulk import JOBS, wait_for
from fluss.config import Config
from fluss.errors import FlussError
from fluss.schema.table import TablePath

# With more settings than this, the connection that was asked for the longest time ago is closed.
_CONNECTIONS_MAX: Final = 64
# A user who waits wants to know for what. A single failure may be no more than a connection that was closed meanwhile.
_FAILURES_TO_TELL: Final = 2
# And that the job is still there.
_PROGRESS_INTERVAL_S: Final = 10.0

T = TypeVar("T")

logger = logging.getLogger(__name__)

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


def await_table(settings: Mapping[str, str], path: TablePath) -> FlussTable:
    """Return a table as it is now, also if no server answers for a moment."""
    return await_answer(settings, lambda: open_table(settings, path))


def await_answer(settings: Mapping[str, str], question: Callable[[], T]) -> T:
    """Return the answer to a question to a cluster that may be away for a moment, such as at the start of a query.

    It is waited for as long as ``wait_limit`` says. What asking again does not help against is raised at once: a
    wrong password, a host that does not exist, a table that is missing. The question may be asked several times, so it
    must change nothing.
    """
    servers = settings.get(Config.bootstrap_servers.key, "")
    limit_s, limit_key = wait_limit(settings)
    return Retry(f"The cluster at {servers}", limit_s, limit_key=limit_key).call(lambda _: question())


def wait_limit(settings: Mapping[str, str]) -> tuple[float, str]:
    """Return how long a job waits for servers that are away, in seconds, and which option says so."""
    config = Config(dict(settings))
    option = Config.job_wait_timeout_ms
    if option.key not in settings and Config.request_timeout_ms.key in settings:
        option = Config.request_timeout_ms
    return getattr(config, option.property_name) / 1000, option.key


class Retry:
    """Repeats calls while servers are away, for ``limit_s`` seconds.

    ``what`` is what is called, and ``limit_key`` the option that has the limit, for messages.
    """

    def __init__(
        self,
        what: str,
        limit_s: float,
        *,
        limit_key: str = Config.request_timeout_ms.key,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._limit_s = limit_s
        self._limit_key = limit_key
        self._clock = clock
        self._sleep = sleep

    def call(self, function: Callable[[bool], T], retriable_codes: Collection[int] = ()) -> T:
        """Return what a function returns that is told whether this is a repetition.

        Raises errors that are not retriable, unless they have one of ``retriable_codes``. A retriable one that does not
        go away is raised with how long it was waited for.
        """
        begun_s = told_s = self._clock()
        deadline_s = begun_s + self._limit_s
        pauses_s = JOBS.pauses_s()
        failures = 0
        while True:
            try:
                return function(failures > 0)
            except FlussError as error:
                if not (error.is_retriable or error.error_code in retriable_codes):
                    raise
                if self._clock() >= deadline_s:
                    raise FlussError(
                        f"{self._what} could not be reached for {self._limit_s:g} s ('{self._limit_key}'): "
                        f"{error.message}",
                        error.error_code,
                    ) from error
                failures += 1
                now_s = self._clock()
                if failures == _FAILURES_TO_TELL and error.is_retriable:
                    logger.warning("%s does not answer; waiting up to %g s for it", self._what, self._limit_s)
                    told_s = now_s
                elif failures > _FAILURES_TO_TELL and now_s - told_s >= _PROGRESS_INTERVAL_S:
                    waited_s = now_s - begun_s
                    logger.warning(
                        "%s does not answer for %d of %g s: %s", self._what, waited_s, self._limit_s, error.message
                    )
                    told_s = now_s
            self._sleep(next(pauses_s))

    def wait_until(self, is_done: Callable[[], bool]) -> bool:
        """Look again and again until something is done; return whether it was in time."""
        deadline_s = self._clock() + self._limit_s
        pauses_s = JOBS.pauses_s()
        while not is_done():
            if self._clock() >= deadline_s:
                return False
            self._sleep(next(pauses_s))
        return True


def _forget_parents_connections() -> None:
    global _lock
    # The parent may have held the lock in a thread that does not exist here. Its sockets stay its own.
    _lock = threading.Lock()
    _inherited.extend(_connections.values())
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_connections)
