"""Writer snapshots read back, their misnamed field is understood, and damage is refused by name.
Random entries in both directions, and texts that are almost right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.writer_state import WriterEntry, decode_writer_snapshot, encode_writer_snapshot
from tests.damage import count_refusals

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
@settings(max_examples=50)
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
