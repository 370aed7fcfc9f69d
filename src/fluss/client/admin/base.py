"""What all parts of the admin share: asking the coordinator, and checking arguments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.errors import FlussError
from fluss.protocol.api import Api
from fluss.schema.table import TablePath
from fluss.schema.value_objects import ServerMade

T = TypeVar("T")
P = ParamSpec("P")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class AdminCalls(ServerMade):
    """Base of the parts of the admin. All calls may be made from any thread and any event loop."""

    _cluster: Cluster
    _runtime: Runtime

    async def _ask(self, api: Api[RequestT, ResponseT], message: RequestT) -> ResponseT:
        return await self._runtime.bridge(self._cluster.request_coordinator(api, message))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._runtime.bridge(work)


def also_named(
    second_name: str, parameter: str
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Let a parameter of a coroutine function be given by a second name, since guides and releases differ."""

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if second_name not in kwargs:
                return await function(*args, **kwargs)
            if parameter in kwargs:
                raise TypeError(f"{function.__name__}() needs one {parameter}, got it as '{second_name}', too")
            named: dict[str, Any] = {parameter if name == second_name else name: kwargs[name] for name in kwargs}
            return await function(*args, **named)

        return call

    return decorate


def checked(what: str, value: object, expected: type[T]) -> T:
    """Return an argument that has to be of a class; another class is a TypeError."""
    if not isinstance(value, expected):
        raise TypeError(f"{what} must be {expected.__name__}, got {type(value).__name__}")
    return value


def checked_text(what: str, value: object) -> str:
    """Return an argument that has to be text the protocol can carry."""
    text = checked(what, value, str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FlussError(f"{what} contains a character that UTF-8 cannot encode") from None
    return text


def checked_path(value: TablePath | str) -> TablePath:
    """Return the path of a table that is given as such or as ``"database.table"``, if the protocol can carry it."""
    path = TablePath.of(value)
    checked_text("database_name", path.database_name)
    checked_text("table_name", path.table_name)
    return path
