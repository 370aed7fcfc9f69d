"""Event loops: uvloop where it is installed, plain asyncio otherwise. Everything above works on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the fastest loop available. Whoever creates it also closes it."""
    return _loop_factory()()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new loop, like ``asyncio.run``."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
