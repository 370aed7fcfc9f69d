"""What all tests share: how hypothesis runs, and how the tests are shared out to the processes of ``pytest -n``."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

# A loaded machine is no bug, so there is no deadline per example; the timeout per test stands. In CI the examples are
# always the same: what a change is judged by must not depend on luck. Elsewhere every run looks at new ones.
settings.register_profile("flussbett", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("flussbett")

# The groups that take longest begin first, so that no process is left alone with one of them at the end.
_FIRST = ("tests/spark/", "tests/crash/", "tests/interop/", "tests/fuzz/", "tests/integration/", "tests/test_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, name in enumerate(_FIRST) if item.nodeid.startswith(name)), len(_FIRST)))


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
