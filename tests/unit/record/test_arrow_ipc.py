"""Arrow metadata is read and built without a flatbuffer library, and no flatbuffer can lead the reader astray.
pyarrow judges what is built; foreign and hostile metadata is read, down to every bit flip."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.record import arrow_ipc
from fluss.record.arrow_ipc import BodyCodec, RecordBatchMessage, build_metadata, column_layout, parse_message
from fluss.testing.strategies import arrow_batches
from tests.damage import count_refusals
from tests.unit.record.arrow_support import nested_batch, pyarrow_message

# Where the fields that the hostile tests change lie in what ``build_metadata`` makes, prefix included.
ROOT, MESSAGE_VTABLE_DISTANCE, TO_RECORD_BATCH, BODY_LENGTH, VERSION, HEADER_TYPE = 8, 24, 28, 32, 40, 42
RECORD_BATCH_VTABLE_DISTANCE, TO_NODES, LENGTH, TO_BUFFERS, TO_COMPRESSION = 56, 60, 64, 72, 76
CODEC, METHOD, NODE_COUNT, NODES = 92, 93, 100, 104


def small_message() -> bytearray:
    """Return a message of one column with two nodes and four buffers."""
    nodes = np.array([[3, 1], [2, 0]])
    buffers = np.array([[0, 1], [8, 16], [24, 0], [24, 8]])
    return bytearray(build_metadata(3, nodes, buffers, BodyCodec.ZSTD, 32) + bytes(32))


def same(left: RecordBatchMessage, right: RecordBatchMessage) -> bool:
    return (
        (left.length, left.codec, left.body_length) == (right.length, right.codec, right.body_length)
        and np.array_equal(left.nodes, right.nodes)
        and np.array_equal(left.buffers, right.buffers)
    )


@given(arrow_batches(rows_max=6))
def test_pyarrow_reads_its_own_body_behind_metadata_built_here(drawn: tuple[object, pa.RecordBatch]) -> None:
    _, batch = drawn
    message = memoryview(batch.serialize())
    parsed = parse_message(message)
    column_layout(batch.schema).check(parsed)
    built = build_metadata(parsed.length, parsed.nodes, parsed.buffers, parsed.codec, parsed.body_length)
    assert len(built) % 8 == 0
    rebuilt = built + message[parsed.body_offset :]
    assert same(parse_message(memoryview(rebuilt)), parsed)
    read = pa.ipc.read_record_batch(pa.py_buffer(rebuilt), batch.schema)
    read.validate(full=True)
    assert read.equals(batch)


@given(arrow_batches(rows_max=6))
def test_what_pyarrow_lays_out_is_large_enough(drawn: tuple[object, pa.RecordBatch]) -> None:
    _, batch = drawn
    parsed = parse_message(memoryview(batch.serialize()))
    column_layout(batch.schema).check_sizes(parsed.nodes, parsed.buffers[:, 1])


def is_large_enough(batch: pa.RecordBatch, parsed: RecordBatchMessage) -> bool:
    try:
        column_layout(batch.schema).check_sizes(parsed.nodes, parsed.buffers[:, 1])
    except CorruptRecordError:
        return False
    return True


def is_valid_for_pyarrow(batch: pa.RecordBatch, parsed: RecordBatchMessage, body: bytes) -> bool:
    message = build_metadata(parsed.length, parsed.nodes, parsed.buffers, None, parsed.body_length) + body
    try:
        pa.ipc.read_record_batch(pa.py_buffer(message), batch.schema).validate()
    except (pa.ArrowException, OSError):
        return False
    return True


def test_buffers_are_too_short_exactly_when_pyarrow_says_so() -> None:
    batch = nested_batch()
    message = memoryview(batch.serialize())
    parsed = parse_message(message)
    body = bytes(message[parsed.body_offset :])
    # How long a buffer of text or bytes must be is written in its offsets, which are not looked at.
    of_varying_length = {4, 10, 20}
    refused = 0
    for index, size in enumerate(parsed.buffers[:, 1].tolist()):
        for shorter in range(size):
            shortened = parsed.buffers.copy()
            shortened[index, 1] = shorter
            lying = replace(parsed, buffers=shortened)
            expected = index in of_varying_length or is_valid_for_pyarrow(batch, lying, body)
            assert is_large_enough(batch, lying) == expected, (index, shorter)
            refused += not expected
    assert refused > 50


@pytest.mark.parametrize(
    ("node", "values", "nulls"),
    [
        (0, 3, 2**62),  # More nulls than there are bits for is found elsewhere; it must not overflow here.
        (4, 2**62, 0),  # The keys of a map.
        (8, 2, 1),  # The first field of a struct of three.
        (7, 2**62, 2**62),
    ],
)
def test_nodes_that_do_not_fit_their_buffers_or_parents_are_refused(node: int, values: int, nulls: int) -> None:
    batch = nested_batch()
    parsed = parse_message(memoryview(batch.serialize()))
    nodes = parsed.nodes.copy()
    assert is_large_enough(batch, parsed)
    nodes[node] = (values, nulls)
    assert is_large_enough(batch, replace(parsed, nodes=nodes)) == (node == 0)


@pytest.mark.parametrize("codec", BodyCodec)
def test_the_codec_is_understood_in_both_directions(codec: BodyCodec) -> None:
    batch = nested_batch()
    message = pyarrow_message(batch, codec)
    parsed = parse_message(message)
    assert parsed.codec == codec
    built = build_metadata(parsed.length, parsed.nodes, parsed.buffers, codec, parsed.body_length)
    assert pa.ipc.read_record_batch(pa.py_buffer(built + message[parsed.body_offset :]), batch.schema).equals(batch)


@given(
    length=st.integers(0, 2**31),
    nodes=st.lists(st.integers(0, 2**62), max_size=8),
    sizes=st.lists(st.integers(0, 40), max_size=8),
    codec=st.sampled_from([None, *BodyCodec]),
)
def test_what_is_built_is_read_back(length: int, nodes: list[int], sizes: list[int], codec: BodyCodec | None) -> None:
    padded = np.array([-(-size // 8) * 8 for size in sizes], np.int64)
    buffers = np.stack((np.cumsum(padded) - padded, np.array(sizes, np.int64)), axis=1)
    node_pairs = np.array([[n, n // 3] for n in nodes], np.int64).reshape(-1, 2)
    body_length = int(padded.sum())
    built = build_metadata(length, node_pairs, buffers, codec, body_length) + bytes(body_length)
    expected = RecordBatchMessage(length, node_pairs, buffers, codec, len(built) - body_length, body_length)
    parsed = parse_message(memoryview(built))
    assert same(parsed, expected)
    assert parsed.body_offset == expected.body_offset


def test_nodes_and_buffers_are_views_of_the_metadata() -> None:
    message = small_message()
    parsed = parse_message(memoryview(message))
    assert np.shares_memory(parsed.buffers, np.frombuffer(message, np.uint8))
    assert np.shares_memory(parsed.nodes, np.frombuffer(message, np.uint8))


def test_columns_own_the_nodes_and_buffers_of_all_their_children() -> None:
    layout = column_layout(nested_batch().schema)
    # number; text; map: map, entries, key, list, item; row: row, flag, bytes.
    assert layout.node_starts.tolist() == [0, 1, 2, 7, 10]
    assert layout.buffer_starts.tolist() == [0, 2, 5, 5 + 2 + 1 + 3 + 2 + 2, 15 + 1 + 2 + 3]
    assert layout.node_buffers[2] == ((0, True), (2, False), (3, True), (6, True), (8, False))
    assert (layout.column_count, layout.node_count, layout.buffer_count) == (4, 10, 21)


@pytest.mark.parametrize(
    "pa_type",
    [
        pa.large_string(),
        pa.string_view(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.null(),
        pa.uint8(),
        pa.float16(),
        pa.decimal256(40, 1),
        pa.date64(),
        pa.duration("s"),
        pa.large_list(pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.list_(pa.struct([("x", pa.large_string())])),
        pa.dense_union([pa.field("x", pa.int8())]),
    ],
    ids=str,
)
def test_types_that_no_log_batch_contains_are_refused(pa_type: pa.DataType) -> None:
    with pytest.raises(FlussError, match=r"Column 'bad' .* cast it"):
        column_layout(pa.schema([("good", pa.int8()), ("bad", pa_type)]))


def test_types_nested_too_deeply_are_refused() -> None:
    pa_type = pa.int8()
    for _ in range(100):
        pa_type = pa.list_(pa_type)
    with pytest.raises(FlussError, match="nested"):
        column_layout(pa.schema([("deep", pa_type)]))


def test_a_message_of_another_schema_is_refused() -> None:
    batch = nested_batch()
    parsed = parse_message(memoryview(batch.serialize()))
    with pytest.raises(CorruptRecordError, match="has 9 nodes and 19 buffers, found 10 nodes and 21 buffers"):
        column_layout(batch.schema.remove(0)).check(parsed)
    nodes = parsed.nodes.copy()
    nodes[2, 0] = 4
    lying = RecordBatchMessage(3, nodes, parsed.buffers, None, parsed.body_offset, parsed.body_length)
    with pytest.raises(CorruptRecordError, match="Column 2 of an Arrow message has 4 values for 3 records"):
        column_layout(batch.schema).check(lying)


@pytest.mark.parametrize(
    ("position", "code", "value", "message"),
    [
        (0, "I", 0, "starts with ffffffff"),
        (4, "i", -1, "metadata of -1 bytes"),
        (4, "i", 2**31 - 1, "does not fit"),
        (ROOT, "I", 2**32 - 1, "points to its byte 4294967295"),
        (MESSAGE_VTABLE_DISTANCE, "i", -(2**31), "points to its byte 2147483664"),
        (MESSAGE_VTABLE_DISTANCE, "i", 2**31 - 1, "points to its byte -2147483631"),
        (TO_RECORD_BATCH, "I", 2**31, "points to its byte"),
        (RECORD_BATCH_VTABLE_DISTANCE, "i", 1000, "points to its byte -952"),
        (TO_NODES, "I", 2**32 - 1, "points to its byte"),
        (TO_BUFFERS, "I", 2**32 - 64, "points to its byte"),
        (TO_COMPRESSION, "I", 2**30, "points to its byte"),
        (VERSION, "h", 3, "found version 3"),
        (HEADER_TYPE, "B", 1, "header type 1"),
        (CODEC, "b", 2, "codec 2"),
        (CODEC, "b", -1, "codec -1"),
        (METHOD, "b", 1, "method 1"),
        (NODE_COUNT, "I", 2**32 - 1, "list of 4294967295 entries"),
        (BODY_LENGTH, "q", -8, "length -8"),
        (BODY_LENGTH, "q", 31, "length 31"),
        (BODY_LENGTH, "q", 40, "length 40"),
        (BODY_LENGTH, "q", 24, "Buffer 3"),
        (LENGTH, "q", -1, "-1 records"),
        (NODES, "q", -1, "Node 0"),
        (NODES + 8, "q", 4, "Node 0"),
        (NODES + 24, "q", -1, "Node 1"),
        (NODES + 40, "q", -8, "Buffer 0"),
        (NODES + 40, "q", 4, "Buffer 0"),
        (NODES + 40, "q", 2**63 - 8, "Buffer 0"),
        (NODES + 40, "q", -(2**63), "Buffer 0"),
        (NODES + 48, "q", 33, "Buffer 0"),
        (NODES + 48, "q", -1, "Buffer 0"),
        (NODES + 48, "q", 2**63 - 1, "Buffer 0"),
    ],
)
def test_metadata_that_lies_is_refused(position: int, code: str, value: int, message: str) -> None:
    hostile = small_message()
    parse_message(memoryview(hostile))
    struct.pack_into("<" + code, hostile, position, value)
    with pytest.raises(CorruptRecordError, match=message):
        parse_message(memoryview(hostile))


def test_tables_that_point_at_themselves_are_read_once() -> None:
    hostile = small_message()
    struct.pack_into("<I", hostile, TO_RECORD_BATCH, 0)
    struct.pack_into("<I", hostile, TO_COMPRESSION, 0)
    with pytest.raises(CorruptRecordError, match="found 0 nodes"):
        column_layout(pa.schema([("x", pa.list_(pa.int64()))])).check(parse_message(memoryview(hostile)))


def test_a_message_without_a_record_batch_is_refused() -> None:
    hostile = small_message()
    struct.pack_into("<H", hostile, 8 + 4 + 4 + 2 * 2, 0)
    with pytest.raises(CorruptRecordError, match="no record batch"):
        parse_message(memoryview(hostile))


def test_absent_lists_are_empty() -> None:
    message = bytearray(build_metadata(0, np.empty((0, 2), np.int64), np.empty((0, 2), np.int64), None, 0))
    struct.pack_into("<2H", message, 8 + 36 + 4 + 2, 0, 0)
    parsed = parse_message(memoryview(message))
    assert parsed.nodes.shape == parsed.buffers.shape == (0, 2)


@pytest.mark.parametrize("message", [bytes(small_message()), bytes(nested_batch().serialize())], ids=["own", "pyarrow"])
def test_any_damage_is_a_refusal_or_a_message(message: bytes) -> None:
    assert count_refusals(lambda damaged: parse_message(memoryview(damaged)), message) > 2 * len(message)


def outcome(message: bytes) -> tuple[object, ...]:
    try:
        parsed = parse_message(memoryview(message))
    except CorruptRecordError as error:
        return (error.message,)
    return parsed.length, parsed.nodes.tolist(), parsed.buffers.tolist(), parsed.codec, parsed.body_length


changes = st.lists(st.tuples(st.integers(8, len(small_message()) - 33), st.integers(0, 255)), max_size=6)


@given(first=changes, second=changes)
def test_what_was_read_before_makes_no_difference(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    # Also after metadata whose parts overlap, so that another number is another structure.
    earlier = small_message()
    for position, value in first:
        earlier[position] = value
    later = earlier[:]
    for position, value in second:
        later[position] = value
    arrow_ipc._structures.clear()
    alone = outcome(later)
    arrow_ipc._structures.clear()
    outcome(earlier)
    assert outcome(later) == alone


def test_numbers_that_lie_in_their_own_structure_are_read_anew_each_time() -> None:
    hostile = small_message()
    # One node, which begins with what says where the buffers are.
    struct.pack_into("<I", hostile, TO_NODES, TO_BUFFERS - 4 - TO_NODES)
    struct.pack_into("<I", hostile, TO_BUFFERS - 4, 1)
    arrow_ipc._structures.clear()
    outcome(bytes(hostile))
    assert not arrow_ipc._structures


def test_few_structures_are_remembered() -> None:
    for count in range(2000):
        parse_message(
            memoryview(build_metadata(0, np.zeros((count, 2), np.int64), np.empty((0, 2), np.int64), None, 0))
        )
    assert 0 < len(arrow_ipc._structures) <= 256
