"""Servers that are forked for a test behave as those who start them expect."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from fluss.testing.forked_servers import ServerForks

# What select() can watch lies below this.
SELECTABLE = 1024


def test_a_process_with_many_open_files_starts_and_stops_servers(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, hard = before
    if hard != resource.RLIM_INFINITY and hard < 2 * SELECTABLE:
        pytest.skip("no process can have so many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * SELECTABLE, hard))
    held = [os.dup(0)]
    try:
        while held[-1] < SELECTABLE:
            held.append(os.dup(0))
        with ServerForks() as forks:
            server = forks.start(tmp_path / "data", {}).wait_until_ready()
            assert server.is_running
            assert server.stop() == 0
            assert not server.is_running
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
