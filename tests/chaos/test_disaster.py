"""What was backed up survives the loss of a server and its disk; nothing else comes back.
Shown with writers that keep a ledger, servers that are killed at random moments, and others that are restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.testing.forked_servers import ServerForks
from tests.chaos.disaster import Disaster


@pytest.fixture(scope="module")
def forks() -> Iterator[ServerForks]:
    with ServerForks() as forks:
        yield forks


@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_is_replaced_by_another_one(forks: ServerForks, tmp_path: Path, seed: int) -> None:
    assert Disaster(forks, tmp_path / "round", seed).run(generations=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_the_replacement_is_lost_as_well_and_restores_are_killed(forks: ServerForks, tmp_path: Path, seed: int) -> None:
    assert Disaster(forks, tmp_path / "round", seed).run(generations=3) > 0
