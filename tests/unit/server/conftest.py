"""Clusters for tests: a coordinator over the test's own directory, with a clock that the test moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest

from fluss.net.listener import ListenerSettings
from fluss.server.authorizer import Authorizer
from fluss.server.coordinator.settings import CoordinatorSettings
from tests.unit.server.coordinator.support import Cluster, FakeClock, RecordingHost


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_cluster(tmp_path, clock) -> Callable[..., Cluster]:
    """Return a function that makes a cluster over the test's directory; entering it starts the cluster."""

    def make(
        *,
        settings: dict[str, Any] | None = None,
        authorizer: Authorizer | None = None,
        initial_configs: dict[str, str] | None = None,
        listener: ListenerSettings | None = None,
        host: RecordingHost | None = None,
        rng: random.Random | None = None,
    ) -> Cluster:
        cluster = Cluster(
            tmp_path,
            replace(CoordinatorSettings(time_zone=UTC), **(settings or {})),
            authorizer or Authorizer.disabled(),
            initial_configs or {},
            clock,
            listener or ListenerSettings(),
        )
        cluster.host = host or cluster.host
        cluster.rng = rng or cluster.rng
        return cluster

    return make
