"""What ``connect`` returns in the two modules where connecting is awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar

from fluss.config import Config


class Closes(Protocol):
    """A connection, as far as leaving it goes."""

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]: ...


ConnectionT = TypeVar("ConnectionT", bound=Closes)


class Connecting(Generic[ConnectionT]):
    """A connection that opens when it is awaited, or by ``async with``, which closes it again.

    It may be used once.
    """

    def __init__(self, config: Config, create: Callable[[Config], Coroutine[Any, Any, ConnectionT]]) -> None:
        self._config = config
        self._create = create
        self._connection: ConnectionT | None = None

    def __await__(self) -> Generator[Any, Any, ConnectionT]:
        return self._create(self._config).__await__()

    async def __aenter__(self) -> ConnectionT:
        self._connection = await self
        return self._connection

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]:
        assert self._connection is not None, "it has been entered"
        return await self._connection.__aexit__(exception_type, *exception)

    def __repr__(self) -> str:
        return f"<a connection to {self._config.bootstrap_servers} that is not open yet: await it>"

    if not TYPE_CHECKING:
        # Type checkers find out by themselves.
        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the connection is not open yet, so it has no {name!r}: write `await connect(...)` or `async with "
                "connect(...) as connection`, or use fluss.blocking, where nothing is awaited"
            )
