"""What all handlers share: who may do what, names out of messages, and changes that run to their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.server.authorizer import CLUSTER, Resource
from fluss.server.coordinator.catalog import CatalogImage
from fluss.server.model import Partition, Table

# Carries out a request that changes something.
ChangeHandler: TypeAlias = Callable[[RequestContext, Any], Coroutine[Any, Any, Any]]

logger = logging.getLogger(__name__)


class HandlerGroup(Protocol):
    """The handlers for one noun. Those that change something run to their end even if the client has gone."""

    def readers(self) -> Mapping[ApiKey, Handler]: ...

    def changers(self) -> Mapping[ApiKey, ChangeHandler]: ...


class RunningChanges:
    """Keeps changes going that nobody waits for any more, and waits for them at the end.

    At most ``count_max`` are under way or wait for their turn; whoever comes then is told to come back (code 25).
    """

    def __init__(self, *, count_max: int = 10_000) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._count_max = count_max

    def uninterrupted(self, handler: ChangeHandler) -> Handler:
        """Return a handler that gives up waiting when its client disconnects, while the change goes on."""

        def start(context: RequestContext, request: Any) -> Awaitable[Any]:
            if len(self._tasks) >= self._count_max:
                raise FlussError(
                    f"{len(self._tasks)} changes wait for their turn; try again later", ErrorCode.REQUEST_TIME_OUT
                )
            task = asyncio.get_running_loop().create_task(handler(context, request))
            answer = asyncio.shield(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._finished, answer))
            return answer

        return start

    async def finish(self) -> None:
        """Wait until nothing is going on."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _finished(self, answer: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if answer.cancelled() and error is not None and not isinstance(error, FlussError):
            logger.error("a change failed whose client had gone", exc_info=error)


def resource_of_table_id(catalog: CatalogImage, table_id: int) -> Resource:
    """Return the table that a number stands for. One that does not exist counts as a matter of the whole cluster."""
    table = catalog.table_by_id(table_id)
    return CLUSTER if table is None else Resource.table(table.path)


def existing_table_of_id(catalog: CatalogImage, table_id: int) -> Table:
    """Return a table, or raise code 7."""
    table = catalog.table_by_id(table_id)
    if table is None:
        raise FlussError(f"The table of id {table_id} does not exist.", ErrorCode.TABLE_NOT_EXIST)
    return table


def check_primary_key_table(table: Table) -> None:
    """Refuse a table without a primary key (code 20)."""
    if not table.has_primary_key:
        raise FlussError(
            f"Table {table.path} has no primary key, so there are no snapshots of its rows by key",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )


def check_partitioned(table: Table) -> None:
    """Refuse a table without partitions (code 37)."""
    if not table.is_partitioned:
        raise FlussError(f"Table {table.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)


def partition_of_request(table: Table, wanted: object | None, partition: Partition | None) -> Partition | None:
    """Check that a request names a partition exactly if the table has partitions.

    ``wanted`` is the name or id in the request, ``partition`` what was found under it. Raises 37 for a partition of a
    table that has none, and 36 for one that is missing.
    """
    if wanted is None and not table.is_partitioned:
        return None
    if wanted is not None:
        check_partitioned(table)
    if wanted is None or partition is None or partition.table_id != table.table_id:
        problem = "the request names none" if wanted is None else f"'{wanted}' does not exist"
        raise FlussError(f"A partition of table {table.path} is needed, but {problem}", ErrorCode.PARTITION_NOT_EXISTS)
    return partition
