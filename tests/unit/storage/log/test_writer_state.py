"""A log recognises the last five batches of a writer and wants the next; snapshots of that read back or are refused.
Every rule by itself, random histories against a plain list, random entries in both directions, texts almost right."""

from __future__ import annotations

import json
from typing import Any

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
from tests.damage import count_refusals
from tests.unit.storage.log.support import make_batch

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


FILE = "00000000000000000100.writer_snapshot"
ENTRY = {
    "writer_id": 1,
    "last_batch_sequence": 2,
    "last_batch_base_offset": 30,
    "offset_delta": 4,
    "last_batch_timestamp": 5,
}
int32s, int64s = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)


def text_of(entries: Any, version: Any = 1) -> bytes:
    return json.dumps({"version": version, "writer_id_entries": entries}).encode()


@given(st.lists(st.builds(WriterEntry, int64s, int32s, int64s, int32s, int64s), max_size=5))
def test_every_snapshot_reads_back(entries: list[WriterEntry]) -> None:
    assert decode_writer_snapshot(encode_writer_snapshot(entries)) == entries


def test_the_field_called_base_offset_holds_the_last_offset() -> None:
    (entry,) = decode_writer_snapshot(text_of([ENTRY]))
    assert (entry.offset_last, entry.offset_base) == (30, 26)


def test_fields_of_a_later_version_of_the_software_are_left_alone() -> None:
    assert decode_writer_snapshot(text_of([ENTRY | {"new": [1, {"a": None}]}])) == decode_writer_snapshot(
        text_of([ENTRY])
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is not valid JSON"),
        (b"\xff\xfe", "it is not valid JSON"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
        (b'{"version":' + b"9" * 5000 + b"}", "it is not valid JSON"),
        (b'{"version":1,"version":1}', "a key is given twice in one object"),
        (b"[1]", "the JSON must be an object, found a list"),
        (b"{}", "version is missing"),
        (text_of([], version=2), "its version is 2, this version reads only 1"),
        (text_of([], version=True), "version must be an integer, found True"),
        (text_of(None), "writer_id_entries must be a list of objects, found None"),
        (text_of({}), "writer_id_entries must be a list of objects, found an object"),
        (text_of([7]), "writer_id_entries must be a list of objects, found a list"),
        (text_of([{}]), "writer_id_entries.0..writer_id is missing"),
        (text_of([ENTRY | {"writer_id": "1"}]), "writer_id must be an integer, found '1'"),
        (text_of([ENTRY | {"writer_id": 1.0}]), "writer_id must be an integer, found '1.0'"),
        (text_of([ENTRY | {"writer_id": 2**63}]), "writer_id must be between 0 and 9223372036854775807"),
        (text_of([ENTRY | {"offset_delta": -1}]), "offset_delta must be between 0 and 2147483647"),
        (text_of([ENTRY | {"last_batch_sequence": 2**31}]), "last_batch_sequence must be between -1 and 2147483647"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The writer snapshot {FILE} is damaged: .*{message}") as refusal:
        decode_writer_snapshot(data, FILE)
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    valid = encode_writer_snapshot([WriterEntry(1001, 23, 100, 10, 2000)])
    assert count_refusals(decode_writer_snapshot, valid, FlussError) > len(valid)
