"""Lookups on their way, and the way of their results back to the callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fluss.client.cluster import Cluster
from fluss.client.lookup.key_rows import Located
from fluss.client.lookup.messages import LookupWay, Place
from fluss.client.lookup.routes import TableRoutes
from fluss.client.lookup.stored_rows import StoredRows
from fluss.errors import FlussError
from fluss.schema.table import TableInfo

logger = logging.getLogger(__name__)


class LookupTable:
    """What lookups of one table have in common that see it with the same schema and look it up in the same way."""

    def __init__(self, cluster: Cluster, info: TableInfo, way: LookupWay[Any]) -> None:
        self.info = info
        self.way = way
        self.routes = TableRoutes(cluster, info)
        self.rows = StoredRows(info)


class Lookup:
    """One key on its way to its row."""

    __slots__ = (
        "attempts",
        "bucket_id",
        "deadline_s",
        "failure",
        "future",
        "key",
        "loop",
        "partition_name",
        "place",
        "table",
    )

    # Set when the bucket is known to be led by somebody.
    place: Place

    def __init__(
        self, table: LookupTable, located: Located, deadline_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.table = table
        self.partition_name, self.bucket_id, self.key = located
        self.deadline_s = deadline_s
        self.attempts = 0
        # Why the last attempt failed.
        self.failure: FlussError | None = None
        # The caller waits for it on its own loop, where alone it may be given a result.
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()


def hand_over(lookups: Iterable[Lookup], results: Iterable[Any]) -> None:
    """Give callers their results, with one call into each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for lookup, result in zip(lookups, results, strict=True):
        by_loop.setdefault(lookup.loop, []).append((lookup.future, result))
    for loop, pairs in by_loop.items():
        call_on(loop, set_results, pairs)


def fail(lookups: Iterable[Lookup], error: FlussError) -> None:
    """Tell callers that there will be no result."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    for lookup in lookups:
        by_loop.setdefault(lookup.loop, []).append(lookup.future)
    for loop, futures in by_loop.items():
        call_on(loop, _set_errors, futures, error)


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function on the loop of a caller. Must be called on the library's own loop."""
    if loop is asyncio.get_running_loop():
        function(*args)
        return
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop that waited is closed, so nobody waits any more.
        logger.debug("the event loop of a caller was closed before its lookup was finished")


def set_results(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give futures of this loop their results, except for those that were cancelled."""
    for future, result in pairs:
        if not future.done():
            future.set_result(result)


def _set_errors(futures: Sequence[asyncio.Future[Any]], error: FlussError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error.copied())
