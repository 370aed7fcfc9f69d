"""Log batches come back whole in all three layouts, rows keep their change types, and no header or length leads astray.
Random batches in both directions, every lie in every field, then every truncation and bit flip."""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ChecksumError, CorruptRecordError, FlussError, SizeLimitError
from fluss.record.log_batch import (
    HEADER_LAYOUTS,
    LogBatch,
    LogBatchHeader,
    assign_offset,
    build_batch,
    decode_row_body,
    downgrade_to_v0,
    encode_header,
    encode_row_body,
    iter_batches,
    measure_batches,
    read_batch,
    sealed_header,
    verify_crc,
)
from fluss.row.encoded import EncodedRows
from tests.damage import bit_flips, count_refusals, truncations
from tests.golden.vectors import expected_bytes, vector

CHANGES = np.array([1, 2, 3, 4], np.uint8)


def changelog_batch(**changes: Any) -> bytearray:
    facts: dict[str, Any] = {"schema_id": 1, "record_count": 4, "append_only": False, "change_types": CHANGES}
    return build_batch([b"the body", b" of the batch"], **facts | changes)


def with_field(batch: bytearray, name: str, code: str, value: int) -> bytearray:
    changed = bytearray(batch)
    struct.pack_into("<" + code, changed, HEADER_LAYOUTS[batch[12]].offsets[name], value)
    return changed


def test_the_leader_stamps_a_batch_in_place_without_touching_its_checksum() -> None:
    batch = bytearray(expected_bytes(vector("log.v0.empty.changelog")))
    padded = bytearray(5) + batch
    assign_offset(batch, 100, 1_700_000_000_000)
    assert batch == expected_bytes(vector("log.v0.empty.assigned"))
    assign_offset(padded, 100, 1_700_000_000_000, position=5)
    assert padded[5:] == batch


@pytest.mark.parametrize("magic", [0, 1, 2])
@given(data=st.data())
def test_what_is_built_is_read_back(magic: int, data: st.DataObject) -> None:
    int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
    record_count = data.draw(st.integers(0, 20))
    append_only = data.draw(st.booleans())
    change_types, body, statistics = None, [], b""
    if record_count:
        body = data.draw(st.lists(st.binary(max_size=30), max_size=4))
        statistics = data.draw(st.binary(max_size=30)) if magic else b""
    if record_count and not append_only:
        change_types = np.array(data.draw(st.lists(st.integers(0, 4), min_size=record_count, max_size=record_count)))
        change_types = change_types.astype(np.uint8)
    facts = {
        "magic": magic,
        "schema_id": data.draw(st.integers(0, 32767)),
        "writer_id": data.draw(int64),
        "batch_sequence": data.draw(int32),
        "base_offset": data.draw(int64),
        "commit_timestamp": data.draw(int64),
        "leader_epoch": data.draw(int32) if magic == 2 else -1,
        "record_count": record_count,
    }
    built = build_batch(body, append_only=append_only, change_types=change_types, statistics=statistics, **facts)
    batch = read_batch(built)
    verify_crc(batch)
    assert {name: getattr(batch.header, name) for name in facts} == facts
    assert encode_header(batch.header) == built[: batch.header.header_size]
    assert batch.header.size == len(built)
    assert batch.header.offset_next == facts["base_offset"] + max(record_count, 1)
    assert batch.statistics == statistics
    if append_only:
        assert batch.change_types is None
        assert batch.arrow_message == b"".join(body)
    elif record_count:
        assert batch.change_types.tolist() == change_types.tolist()
        assert batch.arrow_message == b"".join(body)


def test_a_batch_is_a_view_of_the_bytes_it_was_read_from() -> None:
    data = changelog_batch()
    batch = read_batch(memoryview(data))
    data[-1] ^= 0xFF
    assert batch.arrow_message[-1] == data[-1]
    assert np.shares_memory(batch.change_types, np.frombuffer(data, np.uint8))


def test_batches_are_iterated_until_the_last_whole_one_wherever_the_bytes_end() -> None:
    sizes_and_bytes = [changelog_batch(base_offset=n, magic=n % 3) for n in range(4)]
    whole = b"".join(sizes_and_bytes)
    ends = np.cumsum([len(b) for b in sizes_and_bytes]).tolist()
    for length in range(len(whole) + 1):
        offsets = [batch.header.base_offset for batch in iter_batches(whole[:length])]
        assert offsets == list(range(sum(end <= length for end in ends)))
        run = measure_batches(whole[:length])
        assert run.byte_count == max((end for end in ends if end <= length), default=0)
        assert run.offset_next == (offsets[-1] + len(CHANGES) if offsets else None)


def test_a_batch_that_is_not_whole_cannot_be_read_alone() -> None:
    data = bytes(changelog_batch())
    for damaged in truncations(data):
        with pytest.raises(CorruptRecordError):
            read_batch(damaged)
    assert read_batch(b"before" + data + b"after", position=6).data == data


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 35])
def test_a_length_without_room_for_a_header_never_makes_a_reader_loop(length: int) -> None:
    data = with_field(changelog_batch(), "length", "i", length)
    with pytest.raises(CorruptRecordError, match=f"has the length {length}"):
        list(iter_batches(data))
    with pytest.raises(CorruptRecordError, match=f"has the length {length}"):
        measure_batches(data)
    with pytest.raises(CorruptRecordError, match=f"has the length {length}"):
        read_batch(data)


def test_sizes_over_the_limit_are_refused_even_when_the_batch_is_not_whole() -> None:
    data = changelog_batch()
    assert len(list(iter_batches(data, size_max=len(data)))) == 1
    for part in (data, data[:20]):
        with pytest.raises(SizeLimitError, match=f"at most {len(data) - 1}"):
            list(iter_batches(part, size_max=len(data) - 1))
        with pytest.raises(SizeLimitError, match=f"at most {len(data) - 1}"):
            measure_batches(part, size_max=len(data) - 1)
    with pytest.raises(SizeLimitError):
        read_batch(with_field(data, "length", "i", 2**31 - 1))


@pytest.mark.parametrize(
    ("name", "code", "value", "message"),
    [
        ("magic", "b", 3, "magic 3"),
        ("magic", "b", -1, "magic 255"),
        ("schema_id", "h", -1, "schema id -1"),
        ("record_count", "i", -1, "-1 records"),
        ("record_count", "i", 5, "5 records and the last offset delta 3"),
        ("last_offset_delta", "i", 2, "4 records and the last offset delta 2"),
        ("last_offset_delta", "i", -1, "last offset delta -1"),
        ("statistics_length", "i", -1, "-1 bytes of statistics"),
        ("statistics_length", "i", 26, "26 bytes of statistics, 25 bytes follow"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(name: str, code: str, value: int, message: str) -> None:
    with pytest.raises(CorruptRecordError, match=message):
        read_batch(with_field(changelog_batch(magic=1), name, code, value))


def test_a_header_cut_short_by_its_own_magic_is_refused() -> None:
    empty = build_batch(schema_id=1, record_count=0, append_only=True)
    with pytest.raises(CorruptRecordError, match="header of magic 1 alone has 52"):
        read_batch(with_field(empty, "magic", "b", 1))


def test_a_batch_may_span_more_offsets_than_it_has_records() -> None:
    header = LogBatchHeader(schema_id=1, attributes=1, base_offset=40, last_offset_delta=9, record_count=2)
    batch = read_batch(sealed_header(header, [b"body"]) + b"body")
    verify_crc(batch)
    assert (batch.header.offset_last, batch.header.offset_next) == (49, 50)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_checksum_guards_every_bit_from_the_schema_id_on_and_none_before(magic: int) -> None:
    data = bytes(changelog_batch(magic=magic))
    for damaged in islice(bit_flips(data), 8 * HEADER_LAYOUTS[magic].offsets["schema_id"], None):
        with pytest.raises(ChecksumError, match="checksum"):
            verify_crc(LogBatch(read_batch(data).header, memoryview(damaged)))
    patched = bytearray(data)
    assign_offset(patched, 77, 99)
    verify_crc(read_batch(patched))


def test_change_types_are_checked_when_they_are_asked_for() -> None:
    data = changelog_batch()
    data[48 + 2] = 5
    with pytest.raises(CorruptRecordError, match=r"Record 2 .* change type 5"):
        _ = read_batch(data).change_types
    header = LogBatchHeader(schema_id=1, record_count=4, last_offset_delta=3)
    batch = read_batch(sealed_header(header, [b"\1\1\1"]) + b"\1\1\1")
    with pytest.raises(CorruptRecordError, match="4 change types, but only 3 bytes"):
        _ = batch.change_types
    with pytest.raises(CorruptRecordError, match="4 change types, but only 3 bytes"):
        _ = batch.arrow_message


@pytest.mark.parametrize("magic", [1, 2])
def test_newer_batches_become_v0_for_old_readers(magic: int) -> None:
    facts: dict[str, Any] = {"base_offset": 7, "commit_timestamp": 8, "writer_id": 9, "batch_sequence": 10}
    newer = read_batch(changelog_batch(magic=magic, statistics=b"statistics", **facts))
    assert newer.statistics == b"statistics"
    assert downgrade_to_v0(newer) == changelog_batch(**facts)


def test_v0_batches_are_not_copied_for_old_readers() -> None:
    batch = read_batch(changelog_batch())
    assert downgrade_to_v0(batch) is batch.data


def test_facts_that_do_not_fit_the_format_are_refused_before_anything_is_copied() -> None:
    with pytest.raises(FlussError, match="schema id 32768"):
        changelog_batch(schema_id=32768)
    huge = memoryview(np.zeros(2**31 - 48, np.uint8))
    with pytest.raises(FlussError, match="write fewer records"):
        sealed_header(LogBatchHeader(schema_id=1, record_count=1), [huge])


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_any_damage_is_a_refusal_or_a_batch(magic: int) -> None:
    def read_all(data: bytes) -> None:
        for batch in iter_batches(data):
            _ = batch.statistics, batch.records, batch.change_types, batch.arrow_message
        verify_crc(read_batch(data))

    valid = bytes(changelog_batch(magic=magic, statistics=b"stats" if magic else b""))
    # Only the fields outside the checksum can change unnoticed: offset, timestamp and leader epoch.
    unguarded_bits = 8 * (8 + 8 + (4 if magic == 2 else 0))
    assert count_refusals(read_all, valid, damage=truncations) == len(valid)
    assert count_refusals(read_all, valid, damage=bit_flips) == 8 * len(valid) - unguarded_bits


def change_types(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=200)), max_size=20))
def test_bodies_are_what_a_plain_loop_writes_and_read_back(records: list[tuple[int, bytes]]) -> None:
    rows = EncodedRows.from_list([row for _, row in records])
    types = change_types(*(change_type for change_type, _ in records))
    body = encode_row_body(rows, types)
    assert bytes(body) == b"".join(struct.pack("<iB", 1 + len(row), kind) + row for kind, row in records)
    rows_read, types_read = decode_row_body(body, len(records))
    assert rows_read.to_list() == [row for _, row in records]
    assert types_read.tolist() == types.tolist()


def test_rows_are_described_in_place() -> None:
    body = bytes(encode_row_body(EncodedRows.from_list([b"first", b"second"]), change_types(1, 4)))
    rows, _ = decode_row_body(body, 2)
    assert np.shares_memory(rows.data, np.frombuffer(body, np.uint8))
    assert rows.data[rows.starts[1] : rows.ends[1]].tobytes() == b"second"


def test_an_unknown_change_type_is_refused() -> None:
    body = bytearray(encode_row_body(EncodedRows.from_list([b"a", b"b"]), change_types(0, 0)))
    body[10] = 5
    with pytest.raises(CorruptRecordError, match="record 1 of 2, at byte 6, has the change type 5, only 0 to 4"):
        decode_row_body(body, 2)


def test_a_record_without_a_change_type_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="has the length 0, at least 1"):
        decode_row_body(struct.pack("<i", 0) + struct.pack("<iB", 2, 1) + b"x", 2)


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    body = bytes(encode_row_body(EncodedRows.from_list([b"abc", b"", b"defgh"]), change_types(0, 2, 3)))
    assert count_refusals(lambda data: decode_row_body(data, 3), body) > 100
