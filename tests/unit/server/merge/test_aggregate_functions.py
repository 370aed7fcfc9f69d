"""Each aggregate function, for each type it takes, gives the states that merging value by value gives.
Shown against a plain model with random values and nulls, and with the borders of each type by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.schema import AGG_FUNCTION_NAMES, AggFunction, Column
from fluss.schema.types import (
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataField,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.server.merge import aggregate_functions
from fluss.server.merge.aggregate_functions import states_function
from fluss.server.merge.segments import Segments
from fluss.testing.strategies import internal_values
from tests.unit.server.merge.aggregation_model import BITMAP_BITS, merged, shown_value
from tests.unit.server.merge.bitmap_samples import serialized

TYPES: list[DataType] = [
    BooleanType(),
    TinyIntType(),
    SmallIntType(),
    IntType(),
    BigIntType(),
    FloatType(),
    DoubleType(),
    DecimalType(4, 1),
    DecimalType(18, 0),
    DecimalType(19, 3),
    DecimalType(38, 10),
    CharType(5),
    StringType(),
    BinaryType(3),
    BytesType(),
    DateType(),
    TimeType(0),
    TimeType(3),
    TimeType(9),
    TimestampType(0),
    TimestampType(3),
    TimestampType(9),
    TimestampLtzType(6),
    ArrayType(IntType()),
    MapType(StringType(), IntType()),
    RowType((DataField("a", IntType()), DataField("b", StringType()))),
]


def is_taken(function: AggFunction, data_type: DataType) -> bool:
    try:
        function.check_column("c", data_type)
    except FlussError:
        return False
    return True


PAIRS = [
    (function, data_type)
    for function in map(AggFunction, AGG_FUNCTION_NAMES)
    for data_type in TYPES
    if is_taken(function, data_type)
]
# Functions of any type do not look at values, so that some types stand for all.
TELLING_PAIRS = [
    (function, data_type)
    for function, data_type in PAIRS
    if "_value" not in function.name
    or isinstance(data_type, BooleanType | DoubleType | StringType | BinaryType | ArrayType | MapType | RowType)
]


def each_of(pairs: list[tuple[AggFunction, DataType]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("function", "data_type"), pairs, ids=[f"{f.name} of {t}" for f, t in pairs])


_NUMBERS_BY_BITS = {32: st.integers(0, 2**32 - 1), 64: st.integers(0, 2**64 - 1)}


def values_of(function: AggFunction, data_type: DataType) -> SearchStrategy[Any]:
    """Draw values and nulls, among them those close to the borders and equal ones."""
    if function.name in BITMAP_BITS:
        bits = BITMAP_BITS[function.name]
        few = st.sets(st.one_of(st.integers(0, 20), _NUMBERS_BY_BITS[bits]), max_size=5)
        return st.one_of(st.none(), few.map(lambda numbers: serialized(bits, numbers)))
    near = {
        FloatType: st.sampled_from([0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 2.0**127]),
        DoubleType: st.sampled_from([0.0, -0.0, 0.1, -0.1, math.nan, math.inf, -math.inf, 2.0**1023]),
        DecimalType: st.integers(-99, 99),
        StringType: st.sampled_from(["", "a", "ä", "\U00010000", "\uffff", "z"]),
    }.get(type(data_type), st.nothing())
    return st.one_of(internal_values(data_type.with_nullable(True)), near)


def states_of(
    function: AggFunction, data_type: DataType, values: Sequence[Any], lengths: Sequence[int] | None = None
) -> list[Any]:
    """Return the states after each value; ``lengths`` cuts them into segments."""
    is_first = np.zeros(len(values), np.bool_)
    is_first[np.cumsum([0, *(lengths or [len(values)])[:-1]])] = True
    states_function_of_column = states_function(Column("c", data_type, aggregation=function))
    states = states_function_of_column(arrow_from_internal(list(values), data_type), Segments(is_first))
    states.validate(full=True)
    return [shown_value(function, state) for state in internal_from_arrow(states, data_type)]


@each_of(TELLING_PAIRS)
@settings(max_examples=6)
@given(data=st.data())
def test_states_are_those_of_merging_value_by_value(
    data: st.DataObject, function: AggFunction, data_type: DataType
) -> None:
    value_lists = data.draw(
        st.lists(st.lists(values_of(function, data_type), min_size=1, max_size=7), min_size=1, max_size=5)
    )
    values = [value for value_list in value_lists for value in value_list]
    expected = []
    for value_list in value_lists:
        plain = value_list if function.name not in BITMAP_BITS else [shown_value(function, v) for v in value_list]
        states = accumulate(plain, lambda state, value: merged(function, data_type, state, value))
        expected += [shown_value(None, state) for state in states]
    assert states_of(function, data_type, values, [len(value_list) for value_list in value_lists]) == expected


@each_of(PAIRS)
def test_a_null_on_either_side_yields_the_other_side(function: AggFunction, data_type: DataType) -> None:
    value = _ANY_VALUE[type(data_type)] if function.name not in BITMAP_BITS else serialized(64, [1, 2])
    if function.name == "rbm32":
        value = serialized(32, [1, 2])
    seen = shown_value(function, value)
    after_null = None if function.name == "last_value" else seen
    assert states_of(function, data_type, [None, None, value]) == [None, None, seen]
    assert states_of(function, data_type, [value, None]) == [seen, after_null]


_ANY_VALUE: dict[type[DataType], Any] = {
    BooleanType: True,
    TinyIntType: -7,
    SmallIntType: 7,
    IntType: 7,
    BigIntType: -7,
    FloatType: -0.0,
    DoubleType: 0.1,
    DecimalType: -123,
    CharType: "abc",
    StringType: "",
    BinaryType: b"abc",
    BytesType: b"",
    DateType: 19_000,
    TimeType: 1000,
    TimestampType: Timestamp(-1000, 0),
    TimestampLtzType: Timestamp(1000, 0),
    ArrayType: [1, None],
    MapType: [("a", 1)],
    RowType: (1, None),
}


@pytest.mark.parametrize(
    ("data_type", "highest"),
    [(TinyIntType(), 2**7 - 1), (SmallIntType(), 2**15 - 1), (IntType(), 2**31 - 1), (BigIntType(), 2**63 - 1)],
)
@pytest.mark.parametrize("repeats", [1, 40])
def test_integers_wrap_around(data_type: DataType, highest: int, repeats: int) -> None:
    # One segment is walked along, forty are folded together.
    sums = states_of(AggFunction("sum"), data_type, [highest, 1, 1] * repeats, [3] * repeats)
    assert sums == [highest, -highest - 1, -highest] * repeats
    products = states_of(AggFunction("product"), data_type, [highest, 2, 3] * repeats, [3] * repeats)
    assert products == [highest, -2, -6] * repeats


def test_float_sums_have_32_bits() -> None:
    assert states_of(AggFunction("sum"), FloatType(), [2.0**24, 1.0, 1.0])[-1] == repr(2.0**24)
    assert states_of(AggFunction("sum"), DoubleType(), [2.0**24, 1.0, 1.0])[-1] == repr(2.0**24 + 2)
    assert states_of(AggFunction("product"), FloatType(), [2.0**127, 4.0])[-1] == "inf"


def test_nan_is_the_largest_number_and_minus_zero_is_below_zero() -> None:
    with_sign = -math.nan
    for data_type in (FloatType(), DoubleType()):
        assert states_of(AggFunction("max"), data_type, [math.inf, with_sign, 1.0]) == ["inf", "nan", "nan"]
        assert states_of(AggFunction("min"), data_type, [with_sign, math.inf, -math.inf]) == ["nan", "inf", "-inf"]
        assert states_of(AggFunction("max"), data_type, [-0.0, 0.0, -0.0]) == ["-0.0", "0.0", "0.0"]
        assert states_of(AggFunction("min"), data_type, [0.0, -0.0, 0.0]) == ["0.0", "-0.0", "-0.0"]


def test_strings_compare_as_utf8_bytes() -> None:
    # In UTF-16 the second one would be lower.
    assert states_of(AggFunction("max"), StringType(), ["\uffff", "\U00010000"])[-1] == "\U00010000"
    assert states_of(AggFunction("max"), StringType(), ["z", "ä", "é"])[-1] == "é"
    assert states_of(AggFunction("min"), CharType(3), ["b", "", "a"])[-1] == ""


@pytest.mark.parametrize("precision", [4, 18, 19, 38])
def test_a_decimal_that_does_not_fit_is_null_and_the_next_value_starts_again(precision: int) -> None:
    highest, data_type = 10**precision - 1, DecimalType(precision, 2)
    assert states_of(AggFunction("sum"), data_type, [highest, 1, 5, 7]) == [highest, None, 5, 12]
    assert states_of(AggFunction("sum"), data_type, [-highest, -1, 5]) == [-highest, None, 5]
    assert states_of(AggFunction("product"), data_type, [highest, 200, 5]) == [highest, None, 5]
    assert states_of(AggFunction("sum"), data_type, [highest, -highest, 1]) == [highest, 0, 1]


def test_products_of_decimals_round_halves_away_from_zero() -> None:
    product = AggFunction("product")
    assert states_of(product, DecimalType(10, 1), [5, 1])[-1] == 1
    assert states_of(product, DecimalType(10, 1), [-5, 1])[-1] == -1
    assert states_of(product, DecimalType(10, 1), [4, 1])[-1] == 0
    assert states_of(product, DecimalType(10, 2), [333, 333])[-1] == 1109
    assert states_of(product, DecimalType(10, 0), [3, 4])[-1] == 12


def test_listagg_uses_its_delimiter() -> None:
    values = ["a", None, "", "ü"]
    assert states_of(AggFunction.of("listagg", delimiter="--"), StringType(), values)[-1] == "a----ü"
    assert states_of(AggFunction.of("string_agg"), CharType(1), values)[-1] == "a,,ü"


def test_states_of_texts_and_bitmaps_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_functions, "STATES_BYTES_MAX", 1200)
    text, bitmap = "x" * 100, serialized(32, range(0, 100, 2))
    for function, data_type, value in (("listagg", StringType(), text), ("rbm32", BytesType(), bitmap)):
        assert len(states_of(AggFunction(function), data_type, [value] * 4)) == 4
        with pytest.raises(FlussError, match="fewer records") as refusal:
            states_of(AggFunction(function), data_type, [value] * 12)
        assert refusal.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_a_damaged_stored_bitmap_is_damage_of_the_store() -> None:
    for name in BITMAP_BITS:
        with pytest.raises(KvDamagedError, match="stored bitmap"):
            states_of(AggFunction(name), BytesType(), [b"\1\2\3", serialized(BITMAP_BITS[name], [1])])


def test_slices_of_arrays_are_read_at_their_place() -> None:
    for function, data_type in PAIRS:
        if function.name in BITMAP_BITS:
            continue
        value = _ANY_VALUE[type(data_type)]
        column = arrow_from_internal([None, value, None, value], data_type)
        states_function_of_column = states_function(Column("c", data_type, aggregation=function))
        segments = Segments(np.array([True, True, False]))
        whole = pa.concat_arrays([column.slice(1)])
        assert states_function_of_column(column.slice(1), segments).equals(states_function_of_column(whole, segments))
