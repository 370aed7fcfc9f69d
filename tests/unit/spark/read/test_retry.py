"""Shows how long calls are repeated while servers are away, and how often a stream polls while there is nothing.

With a clock that moves only in sleep.
"""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode, FlussError, NetworkError
from fluss.spark.connections import Retry, wait_limit
from fluss.spark.read.stream_batches import PollBackoff


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.sleeps_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps_s.append(seconds)


def _retry(clock: _Clock, limit_s: float = 30.0) -> Retry:
    return Retry("The cluster of a.b", limit_s, clock=clock, sleep=clock.sleep)


def test_a_question_is_asked_again_until_it_is_answered() -> None:
    clock = _Clock()
    asked: list[bool] = []

    def ask(is_again: bool) -> str:
        asked.append(is_again)
        if len(asked) < 4:
            raise NetworkError("no answer")
        return "here"

    assert _retry(clock).call(ask) == "here"
    assert asked == [False, True, True, True]
    assert clock.sleeps_s == [0.0, 0.1, 0.2]


def test_after_the_limit_the_error_says_who_was_away_how_long_and_why() -> None:
    clock = _Clock()

    def ask(_: bool) -> None:
        raise NetworkError("127.0.0.1:9 refused")

    with pytest.raises(
        FlussError, match=r"The cluster of a\.b could not be reached for 30 s .*127\.0\.0\.1:9"
    ) as error:
        _retry(clock).call(ask)
    assert error.value.error_code == ErrorCode.NETWORK_EXCEPTION
    assert 30 <= clock.now_s - 100 <= 31


def test_who_waits_for_long_is_told_so_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = _Clock()

    def ask(_: bool) -> str:
        if clock.now_s < 145:
            raise NetworkError("127.0.0.1:9 refused")
        return "here"

    with caplog.at_level("WARNING", logger="fluss.spark.connections"):
        assert _retry(clock, limit_s=600.0).call(ask) == "here"
    first, *further = [record.getMessage() for record in caplog.records]
    assert first == "The cluster of a.b does not answer; waiting up to 600 s for it"
    assert [text.split(" of 600 s")[0] for text in further] == [
        f"The cluster of a.b does not answer for {seconds}" for seconds in (10, 20, 30, 40)
    ]
    assert further[0].endswith("of 600 s: 127.0.0.1:9 refused")


def test_jobs_wait_for_minutes_unless_an_option_says_otherwise() -> None:
    assert wait_limit({}) == (600.0, "job.wait-timeout")
    assert wait_limit({"request-timeout": "2000"}) == (2.0, "request-timeout")
    assert wait_limit({"request-timeout": "2000", "job.wait-timeout": "90000"}) == (90.0, "job.wait-timeout")


def test_a_question_that_took_the_whole_time_is_not_asked_again() -> None:
    clock = _Clock()
    count = 0

    def ask(_: bool) -> None:
        nonlocal count
        count += 1
        clock.now_s += 30
        raise FlussError("no answer", ErrorCode.REQUEST_TIME_OUT)

    with pytest.raises(FlussError, match="no answer"):
        _retry(clock).call(ask)
    assert count == 1


def test_an_error_that_does_not_pass_is_raised_at_once_unless_it_is_one_that_may() -> None:
    clock = _Clock()
    errors = iter([FlussError("no leader"), FlussError("no such column")])

    def ask(_: bool) -> str:
        raise next(errors)

    with pytest.raises(FlussError, match="no leader"):
        _retry(clock).call(ask)
    errors = iter([FlussError("no leader"), FlussError("no access", ErrorCode.AUTHORIZATION_EXCEPTION)])
    with pytest.raises(FlussError, match="no access"):
        _retry(clock).call(ask, {ErrorCode.CLIENT_ERROR})
    assert clock.sleeps_s == [0.0]


def test_waiting_ends_when_it_is_done_or_after_the_limit() -> None:
    clock = _Clock()
    assert _retry(clock).wait_until(lambda: clock.now_s > 105)
    assert clock.now_s < 107
    assert not _retry(clock).wait_until(lambda: False)
    assert 30 <= clock.now_s - 106 <= 32


def _look(pauses: PollBackoff, clock: _Clock, *, found: bool, took_s: float = 0.001) -> None:
    pauses.before_poll()
    clock.now_s += took_s
    pauses.after_poll(found=found)
    # What Spark waits between two looks.
    clock.now_s += 0.01


def test_who_finds_something_every_time_never_pauses() -> None:
    clock = _Clock()
    pauses = PollBackoff(clock=clock, sleep=clock.sleep)
    for _ in range(20):
        _look(pauses, clock, found=True)
    assert clock.sleeps_s == []


def test_pauses_grow_with_the_time_for_which_nothing_came_up_to_a_limit() -> None:
    clock = _Clock()
    pauses = PollBackoff(clock=clock, sleep=clock.sleep)
    for _ in range(60):
        _look(pauses, clock, found=False)
    assert clock.sleeps_s == sorted(clock.sleeps_s)
    assert clock.sleeps_s[-1] == pytest.approx(0.09)
    _look(pauses, clock, found=True)
    clock.sleeps_s.clear()
    _look(pauses, clock, found=False)
    assert clock.sleeps_s == []


def test_looking_takes_a_share_of_the_time_however_long_a_look_takes() -> None:
    clock = _Clock()
    pauses = PollBackoff(clock=clock, sleep=clock.sleep)
    begun_s = clock.now_s
    for _ in range(50):
        _look(pauses, clock, found=False, took_s=0.5)
    assert 50 * 0.5 / (clock.now_s - begun_s) == pytest.approx(0.2, rel=0.05)
