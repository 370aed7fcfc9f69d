"""Runs tests that are coroutines on each kind of event loop, and has a transport without a socket."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

LOOP_FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
try:
    import uvloop

    LOOP_FACTORIES["uvloop"] = uvloop.new_event_loop
except ImportError:
    # Part of the development tools, but not of every environment the library must work in.
    pass


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are coroutines on each kind of event loop."""
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("loop_factory", LOOP_FACTORIES.values(), ids=LOOP_FACTORIES.keys())


class ScriptedTransport(asyncio.Transport):
    """Keeps what is written; the test says how much of it is still unsent."""

    def __init__(self, protocol: asyncio.BaseProtocol | None = None) -> None:
        super().__init__()
        self.written: list[Any] = []
        self.unsent_bytes = 0
        self.is_aborted = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self.written.append(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _ScriptedSocket() if name == "socket" else default

    def pause_reading(self) -> None:
        """Nothing is read but what a test hands over: a busy machine may have the connection rest for a turn."""

    def resume_reading(self) -> None:
        """The same."""

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True
        if self._protocol is not None:
            self._protocol.connection_lost(None)


class _ScriptedSocket:
    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Take any option, like a socket."""


@pytest.fixture(scope="session")
def scripted_transport() -> type[ScriptedTransport]:
    return ScriptedTransport
