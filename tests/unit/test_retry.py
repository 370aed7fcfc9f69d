"""What has failed is tried again after pauses that double up to a limit, and are short again after a success.
Shown on the policies and on backoffs alone, with times that the test makes up."""

from __future__ import annotations

from itertools import islice

import pytest

from fluss import retry
from fluss.retry import Backoff, RetryPolicy


@pytest.mark.parametrize(
    ("policy", "pauses_s"),
    [
        (retry.BOOTSTRAP, [0.1, 0.2, 0.4]),
        (RetryPolicy(0.1, 1.0, retries_max=5, is_first_immediate=True), [0.0, 0.1, 0.2, 0.4, 0.8]),
        (RetryPolicy(1.0, 1.0, retries_max=0), []),
    ],
)
def test_a_policy_with_a_limit_has_so_many_pauses(policy: RetryPolicy, pauses_s: list[float]) -> None:
    assert list(policy.pauses_s()) == pytest.approx(pauses_s)


def test_a_policy_without_a_limit_stays_with_its_longest_pause() -> None:
    assert list(islice(retry.JOBS.pauses_s(), 8)) == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    assert [retry.LOOKUPS.pause_s(failures) for failures in (1, 2, 7, 100_000)] == pytest.approx([0.02, 0.04, 1.0, 1.0])


def test_a_backoff_grows_with_each_failure_and_not_with_those_during_its_pause() -> None:
    backoff = Backoff(RetryPolicy(1.0, 3.0))
    assert backoff.until_s == 0.0
    backoff.failed(10.0)
    backoff.failed(10.5)
    assert backoff.until_s == 11.0
    backoff.failed(11.0)
    assert backoff.until_s == 13.0
    backoff.failed(20.0)
    assert backoff.until_s == 23.0
    backoff.hold(30.0)
    backoff.hold(25.0)
    assert backoff.until_s == 30.0
    backoff.succeeded()
    assert backoff.until_s == 0.0
    backoff.failed(40.0)
    assert backoff.until_s == 41.0
