"""Whole batches are encoded to, and decoded from, the same bytes as row by row, and damage gets the same verdict.
Shown by comparing with the scalar codec: random batches, every bit flip and every cut of a row, random bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, ErrorCode, FlussError, SizeLimitError
from fluss.row import compacted
from fluss.row.compacted_columns import decode_keys, decode_rows, encode_keys, encode_rows
from fluss.row.encoded import EncodedRows
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.arrow import arrow_type
from fluss.schema.type_parser import parse_type
from fluss.schema.types import (
    BigIntType,
    BinaryType,
    BytesType,
    DataType,
    DecimalType,
    DoubleType,
    IntType,
    SmallIntType,
    StringType,
    TimestampType,
    TimeType,
)
from fluss.testing.strategies import arrow_batches, internal_values, row_types
from tests.damage import bit_flips, truncations

Decoder = Callable[[EncodedRows, Sequence[DataType]], list[pa.Array]]
ScalarDecoder = Callable[[Sequence[DataType], bytes], tuple[Any, ...]]

ALL_TYPES = [
    parse_type(text)
    for text in (
        *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(3)", "STRING", "BINARY(2)"),
        *("BYTES", "DATE", "TIME(0)", "TIME(6)", "DECIMAL(18,2)", "DECIMAL(38,0)", "TIMESTAMP(0)", "TIMESTAMP(3)"),
        *("TIMESTAMP(9)", "TIMESTAMP_LTZ(6)", "ARRAY<STRING>", "MAP<INT,BIGINT>", "ROW<a INT,b STRING>"),
    )
]
ALL_VALUES: list[Any] = [
    *(True, -5, 300, -70000, 1 << 60, 1.5, -2.25, "aé", "h你", b"\x00\xff", b"bytes", -1, 34_200_000, 34_200_123),
    *(-(10**17), -(10**37), Timestamp(-1000), Timestamp(1_698_235_273_182)),
    *(Timestamp(-1, 999_999), Timestamp(1_698_235_273_182, 123_000)),
    *(["a", None, "longer than seven"], [(1, None), (2, 3)], (None, "x")),
]


def columns_of(rows: Sequence[Sequence[Any]], types: Sequence[DataType]) -> list[pa.Array]:
    return [arrow_from_internal([row[i] for row in rows], data_type) for i, data_type in enumerate(types)]


def rows_of(columns: Sequence[pa.Array], types: Sequence[DataType]) -> list[tuple[Any, ...]]:
    return list(zip(*(internal_from_arrow(c, t) for c, t in zip(columns, types, strict=True)), strict=True))


def assert_same_arrays(found: Sequence[pa.Array], expected: Sequence[pa.Array], types: Sequence[DataType]) -> None:
    """Compare arrays; NaN is equal to NaN."""
    for i, data_type in enumerate(types):
        assert found[i].type == expected[i].type
        found[i].validate(full=True)
        if not found[i].equals(expected[i]):
            assert found[i].is_valid().equals(expected[i].is_valid())
            if pa.types.is_floating(found[i].type):
                np.testing.assert_array_equal(found[i].fill_null(0).to_numpy(), expected[i].fill_null(0).to_numpy())
            else:
                # Equal bytes mean equal values, NaN inside nested values included.
                nullable = [data_type.with_nullable(True)]
                found_bytes, expected_bytes = (encode_rows([x[i]], nullable).to_list() for x in (found, expected))
                assert found_bytes == expected_bytes


def assert_same_verdict(
    rows: Sequence[bytes],
    types: Sequence[DataType],
    decode: Decoder = decode_rows,
    decode_one: ScalarDecoder = compacted.decode_row,
) -> bool:
    """Check that both decoders accept the same values, or both refuse; return whether they accept."""
    try:
        expected = columns_of([decode_one(types, row) for row in rows], types)
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError):
            decode(EncodedRows.from_list(rows), types)
        return False
    assert_same_arrays(decode(EncodedRows.from_list(rows), types), expected, types)
    return True


# The scalar codec as the oracle


@given(row_types(columns_max=6).flatmap(arrow_batches), st.data())
def test_a_batch_is_encoded_like_its_rows_and_decodes_to_itself(
    types_and_batch: tuple[list[DataType], pa.RecordBatch], data: st.DataObject
) -> None:
    types, batch = types_and_batch
    start = data.draw(st.integers(0, batch.num_rows))
    batch = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))
    rows = encode_rows(batch.columns, types)
    assert rows.to_list() == [compacted.encode_row(types, row) for row in rows_of(batch.columns, types)]
    assert_same_arrays(decode_rows(rows, types), batch.columns, types)


@given(row_types(columns_max=5, nullable=False), st.data())
def test_keys_are_encoded_like_single_keys_and_decode_to_themselves(types: list[DataType], data: st.DataObject) -> None:
    _, batch = data.draw(arrow_batches(types))
    keys = encode_keys(batch.columns, types)
    assert keys.to_list() == [compacted.encode_fields(types, row) for row in rows_of(batch.columns, types)]
    assert_same_arrays(decode_keys(keys, types), batch.columns, types)


@given(arrow_batches(nested=False), st.data())
def test_rows_may_lie_in_any_order_overlap_and_have_bytes_between_them(
    types_and_batch: tuple[list[DataType], pa.RecordBatch], data: st.DataObject
) -> None:
    types, batch = types_and_batch
    encoded = encode_rows(batch.columns, types).to_list()
    picks = data.draw(st.lists(st.integers(0, len(encoded) - 1), max_size=8)) if encoded else []
    gap = data.draw(st.binary(max_size=3))
    spaced = EncodedRows.from_list([piece for row in encoded for piece in (gap, row)])
    rows = EncodedRows(
        spaced.data, spaced.starts[1::2][np.array(picks, np.intp)], spaced.ends[1::2][np.array(picks, np.intp)]
    )
    expected = [column.take(pa.array(picks, pa.int64())) for column in batch.columns]
    assert_same_arrays(decode_rows(rows, types), expected, types)


def test_ten_thousand_rows_of_all_types_are_encoded_like_each_row() -> None:
    rng = np.random.default_rng(11)
    scalars = [(t, v) for t, v in zip(ALL_TYPES, ALL_VALUES, strict=True) if not t.is_nested]
    types = [t for t, _ in scalars]
    patterns = [tuple(v if rng.random() < 0.8 else None for _, v in scalars) for _ in range(50)]
    batch = [patterns[i] for i in rng.integers(0, len(patterns), 10_000)]
    columns = columns_of(batch, types)
    rows = encode_rows(columns, types)
    expected = {pattern: compacted.encode_row(types, pattern) for pattern in patterns}
    assert rows.to_list() == [expected[row] for row in batch]
    assert_same_arrays(decode_rows(rows, types), columns, types)


# Shapes of arrays


def test_arrays_without_a_validity_buffer_and_with_an_offset_are_read_in_place() -> None:
    numbers = pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(np.arange(5, dtype=np.int32))], offset=2)
    assert encode_rows([numbers], [IntType()]).to_list() == [b"\0\2", b"\0\3", b"\0\4"]
    odd_sized = pa.py_buffer(np.arange(3, dtype=np.int32).tobytes() + b"?")
    assert encode_rows([pa.Array.from_buffers(pa.int32(), 2, [None, odd_sized])], [IntType()]).to_list() == [
        b"\0\0",
        b"\0\1",
    ]
    texts = pa.array([None, "skipped", "a", None, "bc", "skipped"]).slice(2, 3)
    assert encode_rows([texts], [StringType()]).to_list() == [b"\0\1a", b"\1", b"\0\2bc"]


@pytest.mark.parametrize("data_type", ALL_TYPES, ids=str)
def test_a_column_of_nulls_takes_only_its_bits(data_type: DataType) -> None:
    nulls = pa.nulls(5, arrow_type(data_type))
    rows = encode_rows([nulls, pa.array([1] * 5, pa.int32())], [data_type, IntType()])
    assert rows.to_list() == [b"\1\1"] * 5
    assert_same_arrays(decode_rows(rows, [data_type, IntType()])[:1], [nulls], [data_type])


@pytest.mark.parametrize("data_type", ALL_TYPES, ids=str)
def test_an_empty_batch_is_no_rows(data_type: DataType) -> None:
    empty = pa.array([], arrow_type(data_type))
    for encode, decode in ((encode_rows, decode_rows), (encode_keys, decode_keys)):
        rows = encode([empty], [data_type])
        assert len(rows) == 0
        assert_same_arrays(decode(rows, [data_type]), [empty], [data_type])


def test_no_columns_are_empty_rows() -> None:
    assert len(encode_rows([], [])) == len(encode_keys([], [])) == 0
    assert decode_rows(EncodedRows.from_list([b"", b""]), []) == []
    with pytest.raises(CorruptRecordError, match="Row 1 has 1 bytes behind its last field"):
        decode_keys(EncodedRows.from_list([b"", b"x"]), [])


def test_null_bits_of_more_than_eight_columns_follow_each_other() -> None:
    types: list[DataType] = [IntType()] * 18
    row = tuple(None if i % 3 == 0 else i for i in range(18))
    columns = columns_of([row, (1,) * 18], types)
    rows = encode_rows(columns, types)
    assert rows.row(0)[:3] == bytes((0b01001001, 0b10010010, 0b00))
    assert rows.to_list() == [compacted.encode_row(types, row), bytes(3) + bytes([1]) * 18]
    assert_same_arrays(decode_rows(rows, types), columns, types)


# What cannot be encoded


def test_null_in_a_key_names_the_column() -> None:
    columns = [pa.array([1, 2], pa.int32()), pa.array(["a", None])]
    with pytest.raises(FlussError, match="key column 1 is null in row 1") as caught:
        encode_keys(columns, [IntType(), StringType()])
    assert caught.value.error_code == ErrorCode.CLIENT_ERROR


def test_null_in_a_not_null_column_is_refused_both_ways() -> None:
    columns = [pa.array([1, None], pa.int32())]
    with pytest.raises(FlussError, match="column 0 is null in row 1, but its type is int NOT NULL"):
        encode_rows(columns, [IntType(nullable=False)])
    rows = encode_rows(columns, [IntType()])
    with pytest.raises(CorruptRecordError, match=r"Column 0 \(int NOT NULL\) is null in row 1"):
        decode_rows(rows, [IntType(nullable=False)])


def raw_array(target: pa.DataType, content: np.ndarray[Any, Any], valid: list[bool] | None = None) -> pa.Array:
    """Build an array whose content is not checked."""
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    count = content.nbytes * 8 // target.bit_width
    return pa.Array.from_buffers(target, count, [validity, pa.py_buffer(content)])


@pytest.mark.parametrize(
    ("data_type", "content", "message"),
    [
        (TimeType(0), np.array([0, 86_400], np.int32), "outside the day: 86400"),
        (TimeType(3), np.array([0, -1], np.int32), "outside the day: -1"),
        (TimeType(9), np.array([0, 86_400 * 10**9]), "outside the day"),
        (TimestampType(0), np.array([0, 2**63 - 1]), "beyond the 64-bit range of milliseconds"),
        (DecimalType(5, 2), np.array([99_999, 0, 100_000, 0]), "too many digits"),
        (DecimalType(5, 2), np.array([-99_999, -1, -100_000, -1]), "too many digits"),
        (DecimalType(19, 2), np.array([0, 0, 0, 1]), "too many digits"),
    ],
)
def test_values_outside_of_their_type_are_refused_unless_they_lie_under_a_null(
    data_type: DataType, content: np.ndarray[Any, Any], message: str
) -> None:
    with pytest.raises(FlussError, match=f"Column 0 cannot be encoded: The .* of row 1 .*{message}") as caught:
        encode_rows([raw_array(arrow_type(data_type), content)], [data_type])
    assert caught.value.error_code == ErrorCode.CLIENT_ERROR
    rows = encode_rows([raw_array(arrow_type(data_type), content, [True, False])], [data_type])
    assert rows.row(1) == b"\1"


def test_text_that_is_not_utf8_is_not_encoded_unless_it_lies_under_a_null() -> None:
    damaged = pa.array([b"ok", b"\xff"]).view(pa.string())
    with pytest.raises(FlussError, match="Column 0 cannot be encoded: The text is not UTF-8") as caught:
        encode_rows([damaged], [StringType()])
    assert caught.value.error_code == ErrorCode.CLIENT_ERROR
    assert encode_rows([damaged.slice(0, 1)], [StringType()]).to_list() == [b"\0\2ok"]
    validity = pa.py_buffer(b"\x01")
    hidden = pa.Array.from_buffers(pa.string(), 2, [validity, *damaged.buffers()[1:]])
    assert encode_rows([hidden], [StringType()]).to_list() == [b"\0\2ok", b"\1"]


def test_the_wrong_arrow_type_and_uneven_columns_are_programming_errors() -> None:
    with pytest.raises(TypeError, match="int columns are Arrow arrays of type int32, got int64"):
        encode_rows([pa.array([1])], [IntType()])
    with pytest.raises(AssertionError, match="different lengths"):
        encode_rows([pa.array([1]), pa.array([1, 2])], [BigIntType(), BigIntType()])


# Digits that Arrow's unit cannot show, and others that it must


def test_times_and_timestamps_are_cut_towards_the_past() -> None:
    types: list[DataType] = [TimeType(6), TimestampType(6), TimestampType(9)]
    columns = [
        pa.array([1_999], pa.time64("us")),
        pa.array([-1], pa.timestamp("us")),
        pa.array([-1], pa.timestamp("ns")),
    ]
    rows = encode_rows(columns, types)
    assert compacted.decode_row(types, rows.row(0)) == (1, Timestamp(-1, 999_000), Timestamp(-1, 999_999))
    row = compacted.encode_row(types[1:], (Timestamp(-1, 999_999), Timestamp(-1, 1)))
    micros, nanos = decode_rows(EncodedRows.from_list([row]), types[1:])
    assert (micros.cast(pa.int64()).to_pylist(), nanos.cast(pa.int64()).to_pylist()) == ([-1], [-999_999])


@pytest.mark.parametrize("millis", [2**63 // 10**6, -(2**63) // 10**6 - 1, 2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_the_range_of_its_arrow_unit_is_refused(millis: int) -> None:
    types: list[DataType] = [TimestampType(9)]
    row = compacted.encode_row(types, (Timestamp(millis, 999_999 if millis > 0 else 0),))
    assert not assert_same_verdict([row], types)


@pytest.mark.parametrize("precision", [1, 17, 18, 19, 20, 37, 38])
def test_decimals_at_the_edge_of_their_digits_survive_and_those_beyond_do_not(precision: int) -> None:
    data_type, wider = DecimalType(precision, 0), DecimalType(18 if precision < 18 else 38, 0)
    edge = 10**precision - 1
    powers = [sign * 2**bits + step for bits in range(127) for sign in (1, -1) for step in (-1, 0)]
    values = [(value,) for value in (edge, -edge, *powers) if abs(value) <= edge]
    columns = columns_of(values, [data_type])
    rows = encode_rows(columns, [data_type])
    assert rows.to_list() == [compacted.encode_row([data_type], value) for value in values]
    assert decode_rows(rows, [data_type])[0].equals(columns[0])
    if precision not in (18, 38):
        for value in (edge + 1, -edge - 1):
            assert not assert_same_verdict([compacted.encode_row([wider], (value,))], [data_type])


# Damage


@pytest.mark.parametrize("first", range(len(ALL_TYPES)), ids=lambda first: str(ALL_TYPES[first]))
def test_every_bit_flip_of_a_row_gets_the_same_verdict_as_in_the_scalar_codec(first: int) -> None:
    # Two columns behind the first, because a length that is read wrongly moves what follows it.
    types, values = (2 * ALL_TYPES)[first : first + 3], (2 * ALL_VALUES)[first : first + 3]
    row = compacted.encode_row(types, values)
    verdicts = {assert_same_verdict([row, damaged], types) for damaged in bit_flips(row)}
    assert verdicts == {True, False}


def test_every_null_bit_and_every_cut_of_a_wide_row_gets_the_same_verdict_as_in_the_scalar_codec() -> None:
    row = compacted.encode_row(ALL_TYPES, ALL_VALUES)
    assert assert_same_verdict([row, row], ALL_TYPES)
    null_bits = -(-len(ALL_TYPES) // 8) * 8
    for damaged in islice(bit_flips(row), null_bits):
        assert_same_verdict([row, damaged], ALL_TYPES)
    for damaged in truncations(row):
        assert not assert_same_verdict([damaged, row], ALL_TYPES)


def test_damaged_keys_get_the_same_verdict_as_in_the_scalar_codec() -> None:
    key = compacted.encode_fields(ALL_TYPES, ALL_VALUES)
    highest_bits = islice(bit_flips(key), 7, None, 8)
    verdicts = {
        assert_same_verdict([damaged], ALL_TYPES, decode_keys, compacted.decode_fields) for damaged in highest_bits
    }
    assert verdicts == {True, False}
    for damaged in truncations(key):
        assert not assert_same_verdict([damaged, key], ALL_TYPES, decode_keys, compacted.decode_fields)


@given(row_types(columns_max=5), st.data())
def test_damaged_batches_get_the_same_verdict_as_in_the_scalar_codec(
    types: list[DataType], data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.tuples(*map(internal_values, types)), min_size=1, max_size=4))
    rows = [bytearray(compacted.encode_row(types, value)) for value in values]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from(rows))
        position = data.draw(st.integers(0, len(row)))
        match data.draw(st.sampled_from(["set", "insert", "remove"])):
            case "set" if position < len(row):
                row[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "insert":
                row[position:position] = data.draw(st.binary(min_size=1, max_size=10))
            case _:
                del row[position : position + 2]
    assert_same_verdict([bytes(row) for row in rows], types)


@given(row_types(columns_max=4), st.lists(st.binary(max_size=30), max_size=3))
@example([BigIntType()], [b"\0" + b"\xff" * 9 + b"\x02"])
@example([BigIntType()], [b"\0" + b"\xff" * 10 + b"\x01"])
@example([BigIntType()], [b"\0" + b"\x80" * 9 + b"\x00"])
@example([BigIntType()], [b"\0" + b"\x80" * 8])
@example([BigIntType()], [b"\0" + b"\x80" * 9, b"\0\1"])
@example([IntType()], [b"\0\xff\xff\xff\xff\x10"])
@example([IntType()], [b"\0\x80\x80\x80\x80\x80\x00"])
@example([IntType()], [b"\0\x80\x00"])
@example([IntType()], [b"\0\x80", b"\0\x01"])
@example([BytesType()], [b"\0\xff\xff\xff\xff\x0f"])
@example([BytesType()], [b"\0\xff\xff\xff\xff\x07"])
@example([DecimalType(38, 0)], [b"\0\0"])
@example([DecimalType(38, 0)], [b"\0\x11" + bytes(17)])
@example([IntType()], [b"\xfe\1"])
@example([TimestampType(9)], [b"\0\0\xbf\x84\x3d"])
@example([TimestampType(9)], [b"\0\0\xc0\x84\x3d"])
@example([DoubleType()], [bytes(9), b"\1"])
@example([SmallIntType()], [b"\0\1\2", b"\0\1\2", b"\0\1\2", b"\1"])
def test_random_bytes_get_the_same_verdict_as_in_the_scalar_codec(types: list[DataType], rows: list[bytes]) -> None:
    assert_same_verdict(rows, types)


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"ab\xe4\xbd"])
def test_text_that_is_not_utf8_is_refused(text: bytes) -> None:
    row = bytes((0, len(text))) + text
    assert not assert_same_verdict([b"\0\2ok", row, b"\0\1\xa0"], [StringType()])
    assert assert_same_verdict([b"\0\2ok", row], [BytesType()])


def test_a_value_shorter_than_its_binary_type_is_refused() -> None:
    rows = EncodedRows.from_list([b"\0\2ab"])
    with pytest.raises(CorruptRecordError, match=r"Column 0 \(binary\(4\)\) has 2 bytes in row 0"):
        decode_rows(rows, [BinaryType(4)])


def test_a_character_split_between_two_rows_is_refused() -> None:
    assert not assert_same_verdict([b"\0\2\xe4\xbd", b"\0\1\xa0"], [StringType()])


@pytest.mark.parametrize(("starts", "ends"), [([-1], [1]), ([0], [3]), ([2], [1]), ([0, 1], [1, 9])])
def test_row_boundaries_outside_of_the_data_are_refused(starts: list[int], ends: list[int]) -> None:
    rows = EncodedRows(np.zeros(2, np.uint8), np.array(starts), np.array(ends))
    with pytest.raises(CorruptRecordError, match="boundaries"):
        decode_rows(rows, [IntType()])


def test_the_error_names_row_and_column() -> None:
    rows = EncodedRows.from_list([b"\0\1\1a", b"\0\1\5abc"])
    with pytest.raises(CorruptRecordError, match=r"Column 1 \(string\) needs 5 bytes where only 3 are left, in row 1"):
        decode_rows(rows, [IntType(), StringType()])


# Sizes


def test_more_text_than_one_arrow_array_holds_is_refused_before_it_is_copied() -> None:
    row = compacted.encode_row([StringType()], ("x" * (1 << 20),))
    count = 2048
    same_row = EncodedRows(np.frombuffer(row, np.uint8), np.zeros(count, np.int64), np.full(count, len(row)))
    with pytest.raises(SizeLimitError, match="2147483648 bytes"):
        decode_rows(same_row, [StringType()])


def test_more_fixed_size_slots_than_one_arrow_array_holds_are_refused_before_they_are_allocated() -> None:
    nulls = EncodedRows.from_list([b"\1"] * 2048)
    with pytest.raises(SizeLimitError, match="decode fewer rows"):
        decode_rows(nulls, [BinaryType(1 << 20)])
