"""Columns become the same Python objects as their values one by one, whatever the type, with nulls and in slices.
Shown with drawn columns against the plain conversion, and with the values at the edges of what Python can show."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.python_values import from_internal, python_column, python_rows
from fluss.row.values import arrow_from_internal
from fluss.schema.type_parser import parse_type
from fluss.testing.strategies import data_types, internal_values


@settings(max_examples=150)
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
