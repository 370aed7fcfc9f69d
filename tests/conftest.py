"""What all tests share: how hypothesis runs, how coroutines run as tests, and how ``pytest -n`` shares tests out."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fluss.net.transport import new_event_loop

# A loaded machine is no bug, so there is no deadline per example; the timeout per test stands. In CI the examples are
# always the same: what a change is judged by must not depend on luck. Elsewhere every run looks at ten new ones of each
# property, and `make model` at many more.
settings.register_profile(
    "flussbett",
    max_examples=int(os.environ.get("EXAMPLES", "10")),
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("flussbett")

# The groups that take longest begin first, so that no process is left alone with one of them at the end.
_FIRST = ("tests/spark/", "tests/chaos/", "tests/interop/", "tests/fuzz/", "tests/integration/", "tests/test_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--java-cluster", action="store_true", help="run integration tests against a cluster of Apache Fluss"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each process of ``pytest -n`` compile a part of the test modules first, and find the others compiled.

    In a fresh clone they would otherwise compile all of them at the same time, each for itself.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    number = int(worker["workerid"].removeprefix("gw"))
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[number :: worker["workercount"]]:
        # What is wrong with a module is said when its tests are collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, name in enumerate(_FIRST) if item.nodeid.startswith(name)), len(_FIRST)))


@pytest.fixture(scope="session", autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Make the event loop of a test that is a coroutine function. Folders may have another one."""
    return new_event_loop


def pytest_sessionfinish() -> None:
    """Let the collector have everything again that a server in this process set aside: libraries call it a leak."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs["loop_factory"]) as runner:
        runner.run(_without_leftovers(pyfuncitem.obj(**arguments)))
    return True


async def _without_leftovers(test: Coroutine[Any, Any, None]) -> None:
    """Await a test, which must neither hang nor leave tasks behind."""
    async with asyncio.timeout(120):
        await test
    # Callbacks of finished tasks need a turn, and iterators that were left in the middle are closed by tasks.
    for _ in range(3):
        await asyncio.sleep(0)
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    assert not leftovers, f"tasks were left behind: {leftovers}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together, as they share fixtures, and all tests with Spark, as they share a JVM."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]

    # In the order of collection, not by the number of tests.
    config.option.loadscopereorder = False
    return ByFile(config, log)
