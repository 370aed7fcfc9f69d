"""Shows that a limit per micro-batch is never exceeded, always lets a stream move on, and leaves no bucket behind.

By giving random backlogs to the divider, once and over many rounds during which the backlogs grow.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluss.spark.read.stream_batches import Admission, rows_within, take_whole

_BACKLOGS = st.dictionaries(st.integers(0, 50), st.integers(0, 10**12), max_size=12)


@given(backlogs=_BACKLOGS, rows_max=st.one_of(st.none(), st.integers(1, 10**12)))
def test_shares_are_within_the_limit_and_within_the_backlogs(backlogs: dict[int, int], rows_max: int | None) -> None:
    shares = Admission[int]().divide(backlogs, rows_max)
    assert all(0 < share <= backlogs[bucket] for bucket, share in shares.items())
    total = sum(backlogs.values())
    assert sum(shares.values()) == (total if rows_max is None else min(total, rows_max))


@given(backlogs=_BACKLOGS, rows_max=st.integers(1, 10**12))
def test_shares_are_in_proportion_to_the_backlogs(backlogs: dict[int, int], rows_max: int) -> None:
    total = sum(backlogs.values())
    shares = Admission[int]().divide(backlogs, rows_max)
    for bucket, backlog in backlogs.items():
        fair = backlog if total <= rows_max else backlog * rows_max / total
        assert abs(shares.get(bucket, 0) - fair) <= 1 + fair * 1e-9


@given(
    starts=st.lists(st.integers(0, 1_000), min_size=1, max_size=8),
    growths=st.lists(st.integers(0, 1_000_000), min_size=8, max_size=8),
    rows_max=st.integers(1, 20),
)
def test_no_bucket_with_a_backlog_waits_for_more_rounds_than_there_are_buckets(
    starts: list[int], growths: list[int], rows_max: int
) -> None:
    admission = Admission[int]()
    backlogs = dict(enumerate(starts))
    waits = dict.fromkeys(backlogs, 0)
    for _ in range(5 * len(starts)):
        shares = admission.divide(backlogs, rows_max)
        for bucket, backlog in backlogs.items():
            share = shares.get(bucket, 0)
            waits[bucket] = 0 if share or not backlog else waits[bucket] + 1
            assert waits[bucket] < len(starts)
            backlogs[bucket] = backlog - share + growths[bucket]


def test_a_trickle_beside_a_flood_is_served() -> None:
    admission = Admission[str]()
    served = [admission.divide({"flood": 1_000_000, "trickle": 1}, 10) for _ in range(2)]
    assert served == [{"flood": 10}, {"flood": 9, "trickle": 1}]


def test_of_equal_claims_the_oldest_bucket_is_first() -> None:
    assert Admission[str]().divide({"old": 5, "new": 5}, 1) == {"old": 1}


@given(sizes=st.lists(st.integers(0, 1_000), max_size=10), rows_max=st.one_of(st.none(), st.integers(1, 3_000)))
def test_whole_things_are_taken_in_order_up_to_the_limit_and_at_least_one(
    sizes: list[int], rows_max: int | None
) -> None:
    taken = take_whole(enumerate(sizes), rows_max)
    assert list(taken) == list(range(len(taken)))
    assert bool(taken) == bool(sizes)
    if rows_max is None:
        assert len(taken) == len(sizes)
    else:
        assert len(taken) <= 1 or sum(taken.values()) <= rows_max
        assert len(taken) == len(sizes) or sum(sizes[: len(taken) + 1]) > rows_max


def test_a_limit_of_bytes_is_a_number_of_rows_and_never_none() -> None:
    assert rows_within(1_000, 100.0) == 10
    assert rows_within(1, 100.0) == 1
    assert rows_within(1_000, 0.0) == 1_000
