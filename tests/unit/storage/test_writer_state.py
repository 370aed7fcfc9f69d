"""A log recognises the last five batches of a writer, wants the next one, and can forget what was not written.
Every rule by itself, and random histories against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.record.log_batch import LogBatchHeader, read_header
from fluss.storage.log.writer_state import (
    BATCHES_REMEMBERED,
    WriterEntry,
    WriterState,
    decode_writer_snapshot,
    encode_writer_snapshot,
)
from tests.unit.storage.support import make_batch

SEQUENCE_MAX = 2**31 - 1


def header(writer: int, sequence: int) -> LogBatchHeader:
    return read_header(make_batch(writer=writer, sequence=sequence))


def entry(writer: int, sequence: int, offset: int, *, time_ms: int = 0) -> WriterEntry:
    return WriterEntry(writer, sequence, offset, 0, time_ms)


def state_of(*entries: WriterEntry) -> WriterState:
    state = WriterState()
    for each in entries:
        state.add(each)
    return state


def accepts(state: WriterState, writer: int, sequence: int) -> bool:
    """Tell whether a batch is the next of its writer; a repetition is a failure of the test."""
    try:
        duplicate = state.find_duplicate([header(writer, sequence)])
    except FlussError as error:
        if error.error_code != ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:
            raise
        return False
    assert duplicate is None
    return True


def test_an_unknown_writer_begins_with_zero() -> None:
    state = WriterState()
    assert accepts(state, 7, 0)
    assert not accepts(state, 7, 1)
    assert not accepts(state, 7, SEQUENCE_MAX)
    assert not accepts(state, 7, -1)
    assert len(state) == 0, "asking leaves no trace"


def test_a_known_writer_goes_on_by_one() -> None:
    state = state_of(entry(7, 0, 10), entry(7, 1, 11))
    assert accepts(state, 7, 2)
    assert not accepts(state, 7, 3)
    assert accepts(state, 8, 0), "writers have nothing to do with each other"


def test_after_the_largest_sequence_comes_zero() -> None:
    state = state_of(entry(7, SEQUENCE_MAX - 1, 10))
    assert accepts(state, 7, SEQUENCE_MAX)
    state.add(entry(7, SEQUENCE_MAX, 11))
    assert accepts(state, 7, 0)
    assert not accepts(state, 7, 1)
    state.add(entry(7, 0, 12))
    assert accepts(state, 7, 1)
    assert state.find_duplicate([header(7, SEQUENCE_MAX)]) == entry(7, SEQUENCE_MAX, 11)


def test_the_last_five_batches_are_recognised_and_no_older_one() -> None:
    state = state_of(*(entry(7, sequence, 100 + sequence) for sequence in range(10)))
    for sequence in range(5, 10):
        assert state.find_duplicate([header(7, sequence)]) == entry(7, sequence, 100 + sequence)
    for sequence in range(5):
        assert not accepts(state, 7, sequence)


def test_batches_from_before_a_gap_are_other_batches() -> None:
    state = state_of(entry(7, 5, 10), entry(7, 6, 11), entry(7, 0, 12), entry(7, 1, 13))
    assert state.find_duplicate([header(7, 0)]) == entry(7, 0, 12)
    assert not accepts(state, 7, 5)
    assert not accepts(state, 7, 6)
    assert accepts(state, 7, 2)


def test_writers_without_an_id_are_never_checked() -> None:
    state = WriterState()
    assert accepts(state, -1, -1)
    assert accepts(state, -1, 5)


def test_several_batches_of_one_append_follow_each_other() -> None:
    state = state_of(entry(7, 0, 10))
    assert state.find_duplicate([header(7, 1), header(8, 0), header(7, 2), header(-1, -1), header(8, 1)]) is None
    with pytest.raises(FlussError, match="Out of order batch sequence 3 of writer 7, which wrote 1 last"):
        state.find_duplicate([header(7, 1), header(7, 3)])
    with pytest.raises(FlussError, match="Out of order batch sequence 1 of writer 7"):
        state.find_duplicate([header(7, 1), header(7, 1)])


def test_one_known_batch_makes_a_whole_append_a_repetition() -> None:
    state = state_of(entry(7, 0, 10), entry(7, 1, 11))
    assert state.find_duplicate([header(9, 0), header(7, 1)]) == entry(7, 1, 11)


def test_what_was_not_written_is_forgotten_and_what_was_before_it_is_known_again() -> None:
    state = WriterState()
    for sequence in range(8):
        state.add(entry(7, sequence, sequence), offset_durable=8)
    for sequence in range(8, 30):
        state.add(entry(7, sequence, sequence), offset_durable=8)
    state.add(entry(9, 0, 30), offset_durable=8)
    state.undo_from(8)
    assert len(state) == 1
    assert [state.find_duplicate([header(7, sequence)]) for sequence in range(3, 8)] == [
        entry(7, sequence, sequence) for sequence in range(3, 8)
    ]
    assert accepts(state, 7, 8)
    assert accepts(state, 9, 0)


def test_writers_that_were_silent_for_long_are_forgotten() -> None:
    state = state_of(entry(7, 0, 1, time_ms=100), entry(7, 1, 2, time_ms=300), entry(8, 0, 3, time_ms=200))
    assert state.expire(200) == 0
    assert state.expire(201) == 1
    assert accepts(state, 8, 0)
    assert accepts(state, 7, 2)
    assert state.expire(301) == 1
    assert len(state) == 0


def test_a_snapshot_keeps_five_batches_per_writer() -> None:
    state = state_of(*(entry(7, sequence, sequence) for sequence in range(9)), entry(8, 0, 9))
    data = encode_writer_snapshot(state.entries())
    restored = state_of(*decode_writer_snapshot(data))
    assert restored.entries() == state.entries()
    assert len(restored.entries()) == BATCHES_REMEMBERED + 1
    assert restored.find_duplicate([header(7, 4)]) == entry(7, 4, 4)
    assert not accepts(restored, 7, 3)


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_undo_is_as_if_the_rest_had_never_been_added(writers: list[int], durable: int, cut: int) -> None:
    cut, durable = min(cut, len(writers)), min(durable, cut, len(writers))
    sequences = {0: 0, 1: 0, 2: 0}
    entries = []
    for offset, writer in enumerate(writers):
        entries.append(entry(writer, sequences[writer], offset))
        sequences[writer] += 1
    state = WriterState()
    for each in entries:
        state.add(each, offset_durable=min(durable, each.offset_last))
    state.undo_from(cut)
    expected = state_of(*entries[:cut])
    assert sorted(state.entries(), key=lambda each: each.offset_last) == sorted(
        expected.entries(), key=lambda each: each.offset_last
    )
