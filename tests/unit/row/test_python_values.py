"""Which Python objects each column type takes, what becomes of them, and what users get back, singly and by column.
A table of accepted and refused objects per type, numpy and pandas included, and columns against single values."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.python_values import from_internal, python_column, python_rows, to_internal
from fluss.row.values import Timestamp, arrow_from_internal
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.testing.strategies import data_types, internal_values

INFINITY = float("inf")


class Index:
    def __index__(self) -> int:
        return 7


class Shouting(str):
    def __str__(self) -> str:
        return self.upper() + "!"


def convert(text: str, value: Any) -> Any:
    return to_internal(value, parse_type(text), "c")


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("BOOLEAN", True, True),
    ("BOOLEAN", np.bool_(False), False),
    ("TINYINT", -128, -128),
    ("SMALLINT", np.int64(32767), 32767),
    ("INT", Index(), 7),
    ("BIGINT", np.uint8(255), 255),
    ("FLOAT", 13.2, float(np.float32(13.2))),
    ("FLOAT", 1e300, INFINITY),
    ("FLOAT", -1e300, -INFINITY),
    ("FLOAT", True, 1.0),
    ("DOUBLE", 2**53 + 1, float(2**53)),
    ("DOUBLE", Decimal("0.5"), 0.5),
    ("DOUBLE", np.float32(0.5), 0.5),
    ("DOUBLE", Fraction(1, 4), 0.25),
    ("DOUBLE", Index(), 7.0),
    ("STRING", "", ""),
    ("STRING", "a\0b", "a\0b"),
    ("STRING", np.str_("x"), "x"),
    ("STRING", Shouting("red"), "red"),
    ("CHAR(2)", "longer", "longer"),
    ("BYTES", bytearray(b"ab"), b"ab"),
    ("BYTES", memoryview(b"abcd")[::2], b"ac"),
    ("BYTES", np.bytes_(b"ab"), b"ab"),
    ("BINARY(2)", b"ab", b"ab"),
    ("DECIMAL(5,2)", Decimal("12.345"), 1235),
    ("DECIMAL(5,2)", Decimal("-12.345"), -1235),
    ("DECIMAL(5,2)", Decimal("12.3449999999999999999999999999999999999999"), 1234),
    ("DECIMAL(5,2)", Decimal("-0.001"), 0),
    ("DECIMAL(5,2)", Decimal("1E-999999"), 0),
    ("DECIMAL(5,2)", Decimal("0E+50"), 0),
    ("DECIMAL(38,0)", Decimal("9" * 38), 10**38 - 1),
    ("DECIMAL(38,38)", Decimal("0." + "9" * 38), 10**38 - 1),
    ("DATE", date(1, 1, 1), -719162),
    ("DATE", np.datetime64("1970-01-02"), 1),
    ("TIME(0)", time(1, 2, 3), 3_723_000),
    ("TIME(3)", time(23, 59, 59, 999_000), 86_399_999),
    ("TIME(3)", time(1, tzinfo=UTC), 3_600_000),
    ("TIMESTAMP(6)", datetime(1969, 12, 31, 23, 59, 59, 999_999), Timestamp(-1, 999_000)),
    ("TIMESTAMP(6)", datetime.max, Timestamp(253_402_300_799_999, 999_000)),
    ("TIMESTAMP(6)", datetime.min, Timestamp(-62_135_596_800_000)),
    ("TIMESTAMP(0)", datetime(1969, 12, 31, 23, 59, 59, 1), Timestamp(-1000)),
    ("TIMESTAMP(3)", datetime(1970, 1, 1, 0, 0, 0, 1999), Timestamp(1)),
    ("TIMESTAMP(9)", pd.Timestamp("1970-01-01T00:00:00.000001234"), Timestamp(0, 1234)),
    ("TIMESTAMP(6)", pd.Timestamp("1970-01-01T00:00:00.000001234"), Timestamp(0, 1000)),
    ("TIMESTAMP(9)", np.datetime64("1969-12-31T23:59:59.999999999"), Timestamp(-1, 999_999)),
    ("TIMESTAMP(6)", np.datetime64("1970-01-02"), Timestamp(86_400_000)),
    ("TIMESTAMP(6)", np.datetime64("1971"), Timestamp(31_536_000_000)),
    ("TIMESTAMP(6)", np.datetime64(3, ("s", 25)), Timestamp(75_000)),
    ("TIMESTAMP_LTZ(6)", datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), Timestamp(0)),
    ("TIMESTAMP_LTZ(6)", datetime(1970, 1, 1), Timestamp(0)),
    ("TIMESTAMP_LTZ(9)", pd.Timestamp("1970-01-01T01:00:00.000000001", tz="Europe/Berlin"), Timestamp(0, 1)),
    ("ARRAY<INT>", range(3), [0, 1, 2]),
    ("ARRAY<INT>", (1, None), [1, None]),
    ("ARRAY<DOUBLE>", np.array([1.5, math.inf]), [1.5, INFINITY]),
    ("ARRAY<ARRAY<INT>>", np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ("MAP<STRING,INT>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    ("MAP<STRING,INT>", [["a", 1], ("a", 2)], [("a", 1), ("a", 2)]),
    ("ROW<a INT,b STRING>", {"b": "x"}, (None, "x")),
    ("ROW<a INT,b STRING>", [1, None], (1, None)),
    ("ROW<a INT,b STRING>", OrderedDict(a=1), (1, None)),
]


@pytest.mark.parametrize(("text", "value", "expected"), ACCEPTED)
def test_accepted_objects_become_internal_values(text: str, value: Any, expected: Any) -> None:
    converted = convert(text, value)
    assert converted == expected
    assert type(converted) is type(expected)


REFUSED: list[tuple[str, Any, str]] = [
    ("BOOLEAN", 1, "expected bool, got int"),
    ("BOOLEAN", "true", "expected bool, got str"),
    ("INT", True, "got bool"),
    ("INT", np.bool_(True), "got bool"),
    ("INT", 1.0, "got float"),
    ("INT", "1", "expected int, got str '1'"),
    ("INT", Decimal(1), "got Decimal"),
    ("TINYINT", 128, "128 is out of range for tinyint"),
    ("BIGINT", 2**63, "out of range for bigint"),
    ("DOUBLE", "1.5", "expected a number, got str"),
    ("DOUBLE", np.str_("1.5"), "expected a number"),
    ("DOUBLE", 10**400, "out of range for double"),
    ("DOUBLE", 1j, "expected a number"),
    ("DOUBLE", np.complex128(1), "expected a number"),
    ("DOUBLE", np.array([1.0]), "expected a number"),
    ("DOUBLE", [1.0], "expected a number"),
    ("FLOAT", Decimal("sNaN"), "expected a number"),
    ("STRING", b"x", "expected str, got bytes"),
    ("STRING", 1, "expected str, got int"),
    ("STRING", "\udc80", "cannot be stored as UTF-8"),
    ("BYTES", "x", "expected bytes, got str"),
    ("BYTES", [1], "expected bytes, got list"),
    ("BINARY(2)", b"abc", "exactly 2 bytes for binary.2., got 3"),
    ("DECIMAL(5,2)", 1, "Expected decimal.Decimal, got int 1"),
    ("DECIMAL(5,2)", "1", "Expected decimal.Decimal, got str"),
    ("DECIMAL(5,2)", Decimal("NaN"), "NaN has no place"),
    ("DECIMAL(5,2)", Decimal("-Infinity"), "-Infinity has no place"),
    ("DECIMAL(5,2)", Decimal("1000"), "precision overflow"),
    ("DECIMAL(5,2)", Decimal("999.995"), "precision overflow"),
    ("DECIMAL(5,2)", Decimal("1E+999999"), "precision overflow"),
    ("DECIMAL(38,0)", Decimal("9" * 38 + ".5"), "precision overflow"),
    ("DATE", datetime(2024, 1, 1), "TIMESTAMP column"),
    ("DATE", pd.Timestamp("2024-01-01"), "TIMESTAMP column"),
    ("DATE", np.datetime64("2024-01-01T00"), "TIMESTAMP column"),
    ("DATE", np.datetime64(10**7, "D"), "outside the years 1 to 9999"),
    ("DATE", "2024-01-01", "expected date, got str"),
    ("TIME(3)", time(0, 0, 0, 1), "sub-millisecond"),
    ("TIME(0)", time(0, 0, 0, 1000), "sub-second"),
    ("TIME(3)", datetime(2024, 1, 1), "expected time, got datetime"),
    ("TIMESTAMP(6)", datetime(2024, 1, 1, tzinfo=UTC), "TIMESTAMP_LTZ"),
    ("TIMESTAMP(6)", date(2024, 1, 1), "expected datetime, got date"),
    ("TIMESTAMP(6)", 0, "expected datetime, got int"),
    ("TIMESTAMP(6)", np.datetime64(9000, "Y"), "outside the years 1 to 9999"),
    ("TIMESTAMP(6)", np.datetime64(0, "ps"), "a unit from years to nanoseconds, got ps"),
    ("TIMESTAMP(9)", datetime(2263, 1, 1), "1677 to 2262"),
    ("TIMESTAMP_LTZ(7)", datetime(1600, 1, 1), "1677 to 2262"),
    ("TIMESTAMP_LTZ(6)", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "outside the years 1 to 9999"),
    ("ARRAY<INT>", "12", "Expected sequence for Array column, got str"),
    ("ARRAY<INT>", b"12", "Expected sequence for Array column, got bytes"),
    ("ARRAY<INT>", {1}, "Expected sequence for Array column, got set"),
    ("ARRAY<INT>", {1: 1}, "Expected sequence for Array column, got dict"),
    ("ARRAY<INT>", iter([1]), "Expected sequence for Array column"),
    ("ARRAY<INT>", pd.Series([1]), "Expected sequence for Array column, got Series"),
    ("ARRAY<INT>", np.array(1), "Expected sequence for Array column, got ndarray"),
    ("ARRAY<INT NOT NULL>", [1, None], "element 1: null is not allowed"),
    ("ARRAY<INT>", [1, "x"], "element 1: expected int"),
    ("MAP<STRING,INT>", "ab", "Expected dict or pairs for Map column, got str"),
    ("MAP<STRING,INT>", [("a", 1, 2)], "entry 0: expected a key and a value, got 3 items"),
    ("MAP<STRING,INT>", ["ab"], "entry 0: expected a key and a value, got str"),
    ("MAP<STRING,INT>", {None: 1}, "key of entry 0: null is not allowed"),
    ("MAP<STRING,INT NOT NULL>", {"a": None}, "value of entry 0: null is not allowed"),
    ("ROW<a INT>", 1, "got int"),
    ("ROW<a INT>", "a", "got str"),
    ("ROW<a INT>", {"b": 1}, "Unknown row field 'b'"),
    ("ROW<a INT>", (1, 2), "Expected 1 row fields, got 2"),
    ("ROW<a INT NOT NULL>", {}, "Missing value for non-nullable row field 'a'"),
    ("ROW<a INT NOT NULL>", {"a": None}, "Row field 'a': null is not allowed"),
    ("ROW<a ROW<b INT>>", [["x"]], "Row field 'a': Row field 'b': expected int"),
    ("INT NOT NULL", None, "null is not allowed, the type is int NOT NULL"),
    ("INT NOT NULL", pd.NaT, "null is not allowed"),
]


@pytest.mark.parametrize(("text", "value", "reason"), REFUSED)
def test_refused_objects_name_the_column_and_the_reason(text: str, value: Any, reason: str) -> None:
    with pytest.raises(FlussError, match=reason) as caught:
        convert(text, value)
    assert caught.value.error_code == -2
    assert caught.value.message.startswith("Field 'c': ")


@pytest.mark.parametrize("missing", [None, pd.NaT, pd.NA, np.datetime64("NaT"), np.timedelta64("NaT")], ids=repr)
@pytest.mark.parametrize("text", ["INT", "STRING", "TIMESTAMP(6)", "TIMESTAMP_LTZ(9)", "DATE", "ARRAY<INT>"])
def test_every_way_to_say_null_is_null_for_every_type(text: str, missing: Any) -> None:
    assert convert(text, missing) is None


def test_nan_is_a_number() -> None:
    assert math.isnan(convert("FLOAT", float("nan")))
    assert math.isnan(convert("DOUBLE NOT NULL", np.float64("nan")))


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("DECIMAL(5,2)", 0, "Decimal('0.00')"),
        ("DECIMAL(38,10)", 10**38 - 1, "Decimal('9999999999999999999999999999.9999999999')"),
        ("DECIMAL(38,38)", -1, "Decimal('-1E-38')"),
        ("DATE", -719162, "datetime.date(1, 1, 1)"),
        ("TIME(9)", 86_399_999, "datetime.time(23, 59, 59, 999000)"),
        ("TIMESTAMP(9)", Timestamp(-1, 999_999), "datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)"),
        ("TIMESTAMP_LTZ(3)", Timestamp(0), "datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"),
        ("ARRAY<DATE>", [0, None], "[datetime.date(1970, 1, 1), None]"),
        ("MAP<STRING,DATE>", [("a", 0)], "[('a', datetime.date(1970, 1, 1))]"),
        ("ROW<x INT,y ROW<z TIME>>", (1, (0,)), "{'x': 1, 'y': {'z': datetime.time(0, 0)}}"),
    ],
)
def test_users_get_plain_python_objects(text: str, value: Any, expected: str) -> None:
    assert repr(from_internal(value, parse_type(text))) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("DATE", 2_932_897),
        ("DATE", -(2**31)),
        ("TIME(0)", 86_400_000),
        ("TIME(0)", -1),
        ("TIMESTAMP(6)", Timestamp(253_402_300_800_000)),
        ("TIMESTAMP_LTZ(3)", Timestamp(-(2**63))),
    ],
)
def test_values_that_python_cannot_show_are_an_error_that_says_so(text: str, value: Any) -> None:
    with pytest.raises(FlussError, match="outside the"):
        from_internal(value, parse_type(text))


@given(data_types().filter(lambda t: "timestamp" not in str(t)), st.data())
def test_what_users_get_can_be_written_again(data_type: DataType, data: st.DataObject) -> None:
    value = data.draw(internal_values(data_type))
    assert to_internal(from_internal(value, data_type), data_type, "c") == value


def test_pandas_may_be_imported_by_another_thread_right_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert to_internal(7, parse_type("INT"), "c") == 7
    assert to_internal(None, parse_type("INT"), "c") is None


@given(st.data())
def test_a_column_converts_as_its_values_do(data: st.DataObject) -> None:
    data_type = data.draw(data_types())
    values = data.draw(st.lists(internal_values(data_type), max_size=12))
    array = arrow_from_internal(values, data_type)
    start = data.draw(st.integers(0, len(values)))
    expected = [from_internal(value, data_type) for value in values]
    assert python_column(array, data_type) == expected
    converted = python_column(array.slice(start), data_type)
    assert converted == expected[start:]
    assert [type(value) for value in converted] == [type(value) for value in expected[start:]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_are_datetimes_in_utc_or_without_a_zone(unit: str, zone: str | None) -> None:
    precision = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    data_type = parse_type(f"timestamp{'' if zone is None else '_ltz'}({precision})")
    array = pa.array([-1, None, 1], pa.timestamp(unit, zone))
    first, null, last = python_column(array, data_type)
    assert null is None
    assert first.tzinfo is last.tzinfo is (None if zone is None else dt.UTC)
    epoch = dt.datetime(1970, 1, 1, tzinfo=first.tzinfo)
    # Digits below the microsecond are cut off towards the past.
    step_us = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}[unit]
    assert first == epoch - dt.timedelta(microseconds=max(step_us, 1))
    assert last == epoch + dt.timedelta(microseconds=step_us)


@pytest.mark.parametrize("text", ["timestamp(0)", "timestamp(3)", "timestamp_ltz(6)"])
def test_a_year_that_python_does_not_have_is_an_error(text: str) -> None:
    data_type = parse_type(text)
    unit = {"timestamp(0)": "s", "timestamp(3)": "ms", "timestamp_ltz(6)": "us"}[text]
    array = pa.array([0, 2**62], pa.int64()).view(pa.timestamp(unit, "UTC" if "ltz" in text else None))
    with pytest.raises(FlussError):
        python_column(array, data_type)


def test_bytes_that_are_not_text_are_damage() -> None:
    array = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(CorruptRecordError, match="not UTF-8"):
        python_column(array, parse_type("string"))


@given(st.lists(st.text(max_size=8), max_size=6), st.integers(0, 4))
def test_rows_have_a_key_per_name_whatever_the_names_contain(names: list[str], count: int) -> None:
    columns = [[f"{index}/{row}" for row in range(count)] for index in range(len(names))]
    expected = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    rows = python_rows(names, columns)
    assert rows == expected
    assert [list(row) for row in rows] == [list(row) for row in expected]


def test_columns_of_different_lengths_are_no_rows() -> None:
    with pytest.raises(ValueError, match="shorter"):
        python_rows(["a", "b"], [[1, 2], [1]])
