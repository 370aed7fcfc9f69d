"""Data of callers fits by name, and is converted as long as no value changes; a refusal says where and why.
Shown for every pair of types that has a conversion, by examples and by random values."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import DataField, DataTypes, FlussError, Schema
from fluss.schema.arrow import arrow_type
from fluss.schema.fitting import DataFitter, fit_column
from fluss.schema.normalize import normalize_batch
from fluss.schema.types import DataType

NOON = dt.datetime(2026, 1, 1, 12)
MIDNIGHT = dt.datetime(2026, 1, 1)
DAY = MIDNIGHT.date()
UTC_NOON = NOON.replace(tzinfo=dt.UTC)


def row(**fields: DataType) -> DataType:
    return DataTypes.row([DataField(name, data_type) for name, data_type in fields.items()])


@pytest.mark.parametrize(
    ("given", "data_type", "values"),
    [
        # Integers
        (pa.array([-128, 127, None], pa.int64()), DataTypes.tinyint(), [-128, 127, None]),
        (pa.array([1], pa.int8()), DataTypes.bigint(), [1]),
        (pa.array([127], pa.uint8()), DataTypes.tinyint(), [127]),
        (pa.array([2**63 - 1], pa.uint64()), DataTypes.bigint(), [2**63 - 1]),
        (pa.array([1.0, None]), DataTypes.int(), [1, None]),
        (pa.array(np.array([2.0], np.float16)), DataTypes.int(), [2]),
        (pa.array([Decimal("3.00")]), DataTypes.smallint(), [3]),
        (pa.array(["12", "-7", None]), DataTypes.int(), [12, -7, None]),
        # Floats
        (pa.array([2**60, 1]), DataTypes.double(), [2.0**60, 1.0]),
        (pa.array([2**24]), DataTypes.float(), [2.0**24]),
        (pa.array([0.5], pa.float32()), DataTypes.double(), [0.5]),
        (pa.array([0.1, math.inf, None]), DataTypes.float(), [np.float32(0.1), math.inf, None]),
        (pa.array([Decimal("0.10"), Decimal("-2.50")]), DataTypes.double(), [0.1, -2.5]),
        (pa.array([Decimal("0.25")], pa.decimal128(24, 13)), DataTypes.double(), [0.25]),
        (pa.array(["1.5", "-inf"]), DataTypes.double(), [1.5, -math.inf]),
        # Decimals
        (pa.array([Decimal("1.50")], pa.decimal128(20, 10)), DataTypes.decimal(3, 2), [Decimal("1.50")]),
        (pa.array([Decimal("1.5")], pa.decimal256(60, 1)), DataTypes.decimal(3, 2), [Decimal("1.50")]),
        (pa.array([5, -3]), DataTypes.decimal(3, 2), [Decimal("5.00"), Decimal("-3.00")]),
        (pa.array([7], pa.int8()), DataTypes.decimal(38, 30), [Decimal(7)]),
        (pa.array([0.1, 2.25]), DataTypes.decimal(5, 2), [Decimal("0.10"), Decimal("2.25")]),
        (pa.array([0.1, 1e-7, 1e17]), DataTypes.decimal(38, 18), [Decimal("0.1"), Decimal("1e-7"), Decimal("1e17")]),
        (pa.array(["1.5"], pa.string_view()), DataTypes.decimal(5, 2), [Decimal("1.50")]),
        # Texts and bytes
        (pa.array(["true", "FALSE", None]), DataTypes.boolean(), [True, False, None]),
        (pa.array(["a"], pa.string_view()), DataTypes.string(), ["a"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), DataTypes.char(3), ["a", "b", "a"]),
        (pa.array([b"ab"]), DataTypes.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.large_binary()), DataTypes.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.binary_view()), DataTypes.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.binary(2)), DataTypes.bytes(), [b"ab"]),
        # Dates and times
        (pa.array([DAY], pa.date64()), DataTypes.date(), [DAY]),
        (pa.array([MIDNIGHT], pa.timestamp("ns")), DataTypes.date(), [DAY]),
        (pa.array(["2026-01-01"]), DataTypes.date(), [DAY]),
        (pa.array([dt.time(1, 2, 3)], pa.time64("ns")), DataTypes.time(0), [dt.time(1, 2, 3)]),
        (pa.array([dt.time(1, 2, 3)], pa.time32("s")), DataTypes.time(6), [dt.time(1, 2, 3)]),
        (pa.array(["01:02:03", None, "23:59"]), DataTypes.time(3), [dt.time(1, 2, 3), None, dt.time(23, 59)]),
        (pa.array([NOON], pa.timestamp("ns")), DataTypes.timestamp(3), [NOON]),
        (pa.array([NOON], pa.timestamp("s")), DataTypes.timestamp(6), [NOON]),
        (pa.array([DAY]), DataTypes.timestamp(6), [MIDNIGHT]),
        (pa.array(["2026-01-01 12:00:00"]), DataTypes.timestamp(6), [NOON]),
        (pa.array([NOON], pa.timestamp("ms")), DataTypes.timestamp_ltz(6), [UTC_NOON]),
        (pa.array([UTC_NOON], pa.timestamp("ns", "Asia/Tokyo")), DataTypes.timestamp_ltz(3), [UTC_NOON]),
        (pa.array(["2026-01-01T14:00:00+02:00"]), DataTypes.timestamp_ltz(6), [UTC_NOON]),
        # What holds values
        (pa.nulls(2), DataTypes.int(), [None, None]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]), DataTypes.tinyint(), [7, 7, 8]),
        (pa.array([300, 5, 300]).dictionary_encode().slice(1, 1), DataTypes.tinyint(), [5]),
        (pa.array([[1, None], [], None]), DataTypes.array(DataTypes.tinyint()), [[1, None], [], None]),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), DataTypes.array(DataTypes.int()), [[1, 2]]),
        (pa.array([[1, 2]], pa.list_view(pa.int64())), DataTypes.array(DataTypes.int()), [[1, 2]]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), DataTypes.array(DataTypes.int()), [[1, 2], None]),
        (
            pa.array([[1], None, [2, 3]], pa.large_list_view(pa.int8())),
            DataTypes.array(DataTypes.int()),
            [[1], None, [2, 3]],
        ),
        (pa.array([["1"]], pa.large_list(pa.string_view())), DataTypes.array(DataTypes.int()), [[1]]),
        (
            pa.array([{"b": 1, "a": "x"}, None]),
            row(a=DataTypes.string(), b=DataTypes.tinyint(), c=DataTypes.date()),
            [{"a": "x", "b": 1, "c": None}, None],
        ),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int64())),
            DataTypes.map(DataTypes.string(), DataTypes.tinyint()),
            [[("k", 1)], None],
        ),
        (
            pa.array([[{"key": "k", "value": 1}]]),
            DataTypes.map(DataTypes.string(), DataTypes.tinyint()),
            [[("k", 1)]],
        ),
        (pa.array([None, {"a": 1}]), row(a=DataTypes.int().not_null()), [None, {"a": 1}]),
    ],
    ids=lambda value: str(getattr(value, "type", value))[:40],
)
def test_values_that_stay_the_same_are_converted(given: pa.Array, data_type: DataType, values: list[Any]) -> None:
    fitted = fit_column(given, data_type, "x")
    assert fitted.type == arrow_type(data_type)
    fitted.validate(full=True)
    assert fitted.to_pylist() == values
    # Slices, too, which begin somewhere.
    assert fit_column(given.slice(len(given) - 1), data_type, "x").to_pylist() == values[-1:]
    assert fit_column(given.slice(0, 0), data_type, "x").type == arrow_type(data_type)


@pytest.mark.parametrize(
    ("given", "data_type", "value", "row_number"),
    [
        (pa.array([1, 128]), DataTypes.tinyint(), "128", 1),
        (pa.array([200], pa.uint8()), DataTypes.tinyint(), "200", 0),
        (pa.array([1, 2**63], pa.uint64()), DataTypes.bigint(), "9223372036854775808", 1),
        (pa.array([1.0, 1.5]), DataTypes.int(), "1.5", 1),
        (pa.array([math.nan]), DataTypes.int(), "nan", 0),
        (pa.array([Decimal("1.00"), Decimal("1.01")]), DataTypes.int(), "Decimal('1.01')", 1),
        (pa.array(["1", "", "2"]), DataTypes.int(), "''", 1),
        (pa.array(["1 "]), DataTypes.int(), "'1 '", 0),
        (pa.array([0, 2**53 + 1]), DataTypes.double(), "9007199254740993", 1),
        (pa.array([2**63 - 1]), DataTypes.double(), "9223372036854775807", 0),
        (pa.array([2**64 - 1], pa.uint64()), DataTypes.float(), "18446744073709551615", 0),
        (pa.array([1.0, 1e300]), DataTypes.float(), "1e+300", 1),
        (pa.array(["1e400"]), DataTypes.double(), "'1e400'", 0),
        (pa.array([Decimal("1.12345678901234567890")]), DataTypes.double(), "Decimal('1.12345678901234567890')", 0),
        (pa.array([Decimal("1.50"), Decimal("1.55")]), DataTypes.decimal(5, 1), "Decimal('1.55')", 1),
        (pa.array([99, 100]), DataTypes.decimal(4, 2), "100", 1),
        (pa.array([0.123]), DataTypes.decimal(4, 2), "0.123", 0),
        (pa.array([math.inf]), DataTypes.decimal(4, 2), "inf", 0),
        (pa.array(["1.505"]), DataTypes.decimal(4, 2), "'1.505'", 0),
        (pa.array(["true", "yes"]), DataTypes.boolean(), "'yes'", 1),
        (pa.array([b"ab", b"abc"]), DataTypes.binary(2), "b'abc'", 1),
        (pa.array([MIDNIGHT, NOON]), DataTypes.date(), "datetime.datetime(2026, 1, 1, 12, 0)", 1),
        (pa.array(["2026-01-01", "2026-99-01"]), DataTypes.date(), "'2026-99-01'", 1),
        (pa.array([dt.time(0, 0, 0, 1)], pa.time64("us")), DataTypes.time(3), "datetime.time(0, 0, 0, 1)", 0),
        (pa.array(["25:00:00"]), DataTypes.time(3), "'25:00:00'", 0),
        (pa.array([NOON, NOON + dt.timedelta(microseconds=1)]), DataTypes.timestamp(3), "datetime.datetime", 1),
        (pa.array([2**62], pa.timestamp("s")), DataTypes.timestamp(9), "4611686018427387904", 0),
        (pa.array(["2026-01-01 12:00:00Z"]), DataTypes.timestamp(6), "'2026-01-01 12:00:00Z'", 0),
        (pa.array(["2026-01-01 12:00:00"]), DataTypes.timestamp_ltz(6), "'2026-01-01 12:00:00'", 0),
        (pa.array([[1], [2, 300]]), DataTypes.array(DataTypes.tinyint()), "[2, 300]", 1),
        (pa.array([[1], [None]]), DataTypes.array(DataTypes.int().not_null()), "[None]", 1),
        (pa.array([{"a": 1}, {"a": None}]), row(a=DataTypes.int().not_null()), "{'a': None}", 1),
        (pa.array([{"a": 1}, {"a": 300}]), row(a=DataTypes.tinyint()), "{'a': 300}", 1),
        (
            pa.array([[("k", 1)], [("k", 300)]], pa.map_(pa.string(), pa.int64())),
            DataTypes.map(DataTypes.string(), DataTypes.tinyint()),
            "[('k', 300)]",
            1,
        ),
    ],
    ids=lambda value: str(getattr(value, "type", value))[:40],
)
def test_a_value_that_would_change_is_named(given: pa.Array, data_type: DataType, value: str, row_number: int) -> None:
    with pytest.raises(FlussError) as caught:
        fit_column(given, data_type, "x", 1000)
    message = caught.value.message
    assert message.startswith(f"Row {1000 + row_number} has {value}"), message
    assert f"in column 'x', which does not fit {data_type}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "data_type", "reason"),
    [
        (pa.array([True]), DataTypes.int(), "takes no bool, such as True in row 5"),
        (pa.array([1]), DataTypes.boolean(), "takes no int64, such as 1 in row 5"),
        (pa.array([1]), DataTypes.string(), "takes no int64"),
        (pa.array([b"a"]), DataTypes.string(), "takes no binary"),
        (pa.array(["a"]), DataTypes.bytes(), "takes no string"),
        (pa.array([1]), DataTypes.date(), "takes no int64"),
        (pa.array([1], pa.duration("s")), DataTypes.time(0), "takes no duration"),
        (pa.array([UTC_NOON]), DataTypes.timestamp(6), "a TIMESTAMP has no zone; use a TIMESTAMP_LTZ column"),
        (pa.array([1]), DataTypes.array(DataTypes.int()), "it takes lists"),
        (pa.array([1]), DataTypes.map(DataTypes.int(), DataTypes.int()), "it takes maps"),
        (pa.array([[1]]), DataTypes.map(DataTypes.int(), DataTypes.int()), "structs of 'key', 'value'"),
        (pa.array([[1]]), row(a=DataTypes.int()), "it takes structs"),
        (pa.array([{"b": 1}]), row(a=DataTypes.int()), "a column 'b', which the row does not have"),
    ],
    ids=str,
)
def test_types_without_a_conversion_are_refused(given: pa.Array, data_type: DataType, reason: str) -> None:
    for array in (given, given.slice(0, 0)):
        with pytest.raises(FlussError) as caught:
            fit_column(array, data_type, "x", 5)
        assert caught.value.message.startswith(f"Column 'x' is {data_type} and takes no {given.type}")
        assert len(array) == 0 or reason in caught.value.message


def test_nulls_where_none_may_be() -> None:
    for array in (pa.array([1, None]), pa.array(["1", None]), pa.array([1, None]).dictionary_encode()):
        with pytest.raises(FlussError, match="Column 'x' is non-nullable but contains null in row 8;"):
            fit_column(array, DataTypes.int().not_null(), "x", 7)


# Whole batches

SCHEMA = (
    Schema.builder()
    .column("id", DataTypes.int().not_null())
    .column("name", DataTypes.string())
    .column("price", DataTypes.decimal(6, 2))
    .build()
)


def fitted(data: dict[str, Any], fitter: DataFitter | None = None) -> list[dict[str, Any]]:
    batch = (fitter or DataFitter(SCHEMA)).fit(pa.RecordBatch.from_pydict(data))
    rows: list[dict[str, Any]] = normalize_batch(batch, SCHEMA).to_pylist()
    return rows


def test_columns_are_found_by_name() -> None:
    full = {"id": 1, "name": "a", "price": Decimal("2.00")}
    assert fitted({"price": [2], "id": [1], "name": ["a"]}) == [full]
    assert fitted({"id": [1]}) == [{"id": 1, "name": None, "price": None}]
    with pytest.raises(FlussError, match="The data has no column 'id', which is int NOT NULL; it has 'name'"):
        fitted({"name": ["a"]})
    with pytest.raises(FlussError, match="a column 'nmae', which the table does not have; did you mean 'name'"):
        fitted({"id": [1], "nmae": ["a"]})
    with pytest.raises(FlussError, match="which the partial update does not have; columns are 'id', 'name', 'price'"):
        fitted({"id": [1], "other": [1]}, DataFitter(SCHEMA, "the partial update"))


def test_data_that_fits_is_returned_as_it_is() -> None:
    fitter = DataFitter(SCHEMA)
    exact = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"], "price": [None]}, schema=SCHEMA.to_arrow())
    spelled = pa.RecordBatch.from_pydict(
        {"id": pa.array([1], pa.int32()), "name": pa.array(["a"], pa.large_string()), "price": exact["price"]}
    )
    for batch in (exact, spelled, exact, exact.slice(0, 0)):
        assert fitter.fit(batch) is batch
    # Schemas come in turns, and each is remembered until the next.
    for number in range(3):
        assert fitted({"id": [number]}, fitter)[0]["id"] == number
        assert fitter.fit(exact) is exact


# Random values

SOURCES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{
        str(type_): (type_, st.integers(0 if lowest == 0 else -(2 ** (bits - 1)), 2 ** (bits - (lowest != 0)) - 1))
        for type_, bits, lowest in [
            (pa.int8(), 8, -1),
            (pa.int16(), 16, -1),
            (pa.int32(), 32, -1),
            (pa.int64(), 64, -1),
            (pa.uint8(), 8, 0),
            (pa.uint16(), 16, 0),
            (pa.uint32(), 32, 0),
            (pa.uint64(), 64, 0),
        ]
    },
    "double": (pa.float64(), st.one_of(st.floats(), st.integers(-(2**40), 2**40).map(float))),
    "float": (pa.float32(), st.floats(width=32)),
    "decimal": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "long decimal": (pa.decimal128(38, 13), st.decimals(-1000, 1000, places=13)),
    "date64": (pa.date64(), st.dates()),
    "date32": (pa.date32(), st.dates()),
    "timestamp ns": (pa.timestamp("ns"), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
    "timestamp s": (pa.timestamp("s"), st.datetimes().map(lambda moment: moment.replace(microsecond=0))),
    "time ns": (pa.time64("ns"), st.times()),
    "dictionary": (pa.dictionary(pa.int32(), pa.int64()), st.integers(-(2**63), 2**63 - 1)),
}
TARGETS = [
    DataTypes.tinyint(),
    DataTypes.smallint(),
    DataTypes.int(),
    DataTypes.bigint(),
    DataTypes.double(),
    DataTypes.decimal(10, 2),
    DataTypes.decimal(38, 20),
    DataTypes.date(),
    DataTypes.time(0),
    DataTypes.time(6),
    DataTypes.timestamp(0),
    DataTypes.timestamp(3),
    DataTypes.timestamp(6),
]


def _same(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return before is after
    if isinstance(before, dt.datetime) and not isinstance(after, dt.datetime):
        return before == dt.datetime.combine(after, dt.time())
    if isinstance(after, dt.datetime) and not isinstance(before, dt.datetime):
        return after == dt.datetime.combine(before, dt.time())
    if isinstance(before, float) and math.isnan(before):
        return isinstance(after, float) and math.isnan(after)
    # A float stands for the shortest decimal that it is the nearest to.
    if isinstance(before, float) and isinstance(after, Decimal):
        return float(after) == before or float(np.float32(after)) == before
    if isinstance(before, Decimal) and isinstance(after, float):
        return Decimal(repr(after)) == before
    return bool(before == after)


@given(st.data())
def test_whatever_is_taken_is_the_same_afterwards(data: st.DataObject) -> None:
    source, values = SOURCES[data.draw(st.sampled_from(sorted(SOURCES)))]
    data_type = data.draw(st.sampled_from(TARGETS))
    drawn = data.draw(st.lists(st.one_of(st.none(), values), max_size=4))
    array = pa.array(drawn, source)
    try:
        found = fit_column(array, data_type, "x")
    except FlussError:
        return
    assert found.type == arrow_type(data_type)
    for before, after in zip(array.to_pylist(), found.to_pylist(), strict=True):
        assert _same(before, after), (before, after)


@given(st.lists(st.one_of(st.none(), st.integers(-300, 300)), min_size=1, max_size=50), st.integers(0, 10**6))
def test_the_first_row_that_does_not_fit_is_named(numbers: list[int | None], row_first: int) -> None:
    unfit = [index for index, number in enumerate(numbers) if number is not None and not -128 <= number <= 127]
    if not unfit:
        assert fit_column(pa.array(numbers, pa.int64()), DataTypes.tinyint(), "x", row_first).to_pylist() == numbers
        return
    with pytest.raises(FlussError) as caught:
        fit_column(pa.array(numbers, pa.int64()), DataTypes.tinyint(), "x", row_first)
    assert caught.value.message.startswith(f"Row {row_first + unfit[0]} has {numbers[unfit[0]]} in column 'x'")
