"""What the handlers of the coordinator share: their shape, and the resource that a table id stands for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, Resource
from fluss.server.model import CatalogView

# Carries out a request that changes something.
ChangeHandler: TypeAlias = Callable[[RequestContext, Any], Coroutine[Any, Any, Any]]


class HandlerGroup(Protocol):
    """The handlers for one noun. Those that change something run to their end even if the client has gone."""

    def readers(self) -> Mapping[ApiKey, Handler]: ...

    def changers(self) -> Mapping[ApiKey, ChangeHandler]: ...


def check_table_id(
    authorizer: Authorizer, catalog: CatalogView, context: RequestContext, operation: Operation, table_id: int
) -> None:
    """Refuse a request (code 48) whose sender may not do something with the table that a number stands for.

    Tables that the sender may not see are refused in the same words as numbers that stand for none.
    """
    table = catalog.table_by_id(table_id)
    if table is None or not authorizer.finds(context, operation, Resource.table(table.path)):
        authorizer.check(context, operation, CLUSTER)


def resource_of_table_id(catalog: CatalogView, table_id: int) -> Resource:
    """Return the table that a number stands for. One that does not exist counts as a matter of the whole cluster."""
    table = catalog.table_by_id(table_id)
    return CLUSTER if table is None else Resource.table(table.path)
