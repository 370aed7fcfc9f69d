"""What a consumer takes for stored: only what is stored for certain may be left out of a commit."""

from __future__ import annotations

from concurrent.futures import Future

from fluss import TableBucket
from fluss.client.consume.stored_positions import StoredPositions

FIRST, SECOND = TableBucket(7, 0), TableBucket(7, 1)


def test_what_is_stored_is_not_committed_again() -> None:
    stored = StoredPositions()
    stored.note({FIRST: 5})
    assert stored.not_stored({FIRST: 5, SECOND: 2}) == {SECOND: 2}
    assert stored.not_stored({FIRST: 6}) == {FIRST: 6}


def test_a_commit_counts_when_it_has_succeeded() -> None:
    stored, commit = StoredPositions(), Future[None]()
    stored.begin_commit(commit, {FIRST: 5})
    assert stored.is_commit_under_way()
    assert stored.known() == {}
    commit.set_result(None)
    assert not stored.is_commit_under_way()
    assert stored.end_commit() is None
    assert stored.known() == {FIRST: 5}
    assert stored.end_commit() is None


def test_what_a_commit_under_way_may_replace_is_committed_again() -> None:
    stored = StoredPositions()
    stored.note({FIRST: 3})
    stored.begin_commit(Future(), {FIRST: 5})
    assert stored.not_stored({FIRST: 3}) == {FIRST: 3}


def test_a_commit_that_failed_may_be_stored_all_the_same() -> None:
    stored, commit = StoredPositions(), Future[None]()
    stored.note({FIRST: 3, SECOND: 1})
    stored.begin_commit(commit, {FIRST: 5})
    error = ConnectionError("no answer")
    commit.set_exception(error)
    assert stored.end_commit() is error
    assert stored.known() == {SECOND: 1}
    assert stored.not_stored({FIRST: 3, SECOND: 1}) == {FIRST: 3}


def test_what_was_forgotten_does_not_come_back_with_a_commit_that_was_under_way() -> None:
    stored, commit = StoredPositions(), Future[None]()
    stored.begin_commit(commit, {FIRST: 5, SECOND: 1})
    stored.forget([FIRST])
    commit.set_result(None)
    assert stored.end_commit() is None
    assert stored.known() == {SECOND: 1}


def test_nothing_is_known_after_a_membership_has_ended() -> None:
    stored = StoredPositions()
    stored.note({FIRST: 3})
    stored.begin_commit(Future(), {SECOND: 1})
    stored.clear()
    assert stored.known() == {}
    assert not stored.is_commit_under_way()
    assert stored.not_stored({SECOND: 1}) == {SECOND: 1}
