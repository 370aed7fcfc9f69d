"""Shows that numbers and times are written exactly as Java's toString writes them.
Expected texts were printed by a Java virtual machine."""

from __future__ import annotations

import struct
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.values import Timestamp, civil_date, format_date_time, format_float, format_instant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (123456.0, "123456.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.0, "1.2345678E7"),
        (0.001, "0.001"),
        (0.0009999, "9.999E-4"),
        (0.012, "0.012"),
        (-5.73, "-5.73"),
        (1e23, "1.0E23"),
        (5e-324, "4.9E-324"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert format_float(value, bits=64) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (13.2, "13.2"),
        (1e10, "1.0E10"),
        (16777216.0, "1.6777216E7"),
        (2.0**-149, "1.4E-45"),
        (float.fromhex("0x1.fffffep127"), "3.4028235E38"),
        (0.1, "0.1"),
    ],
)
def test_floats_show_only_the_digits_of_32_bits(value: float, text: str) -> None:
    assert format_float(value, bits=32) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_texts_of_numbers_identify_them(double: float, single: float) -> None:
    assert float(format_float(double, bits=64)) == double
    assert struct.pack("<f", float(format_float(single, bits=32))) == struct.pack("<f", single)


@pytest.mark.parametrize(
    ("value", "local", "instant"),
    [
        (Timestamp(0), "1970-01-01T00:00", "1970-01-01T00:00:00Z"),
        (Timestamp(1000), "1970-01-01T00:00:01", "1970-01-01T00:00:01Z"),
        (Timestamp(1), "1970-01-01T00:00:00.001", "1970-01-01T00:00:00.001Z"),
        (Timestamp(-1, 1000), "1969-12-31T23:59:59.999001", "1969-12-31T23:59:59.999001Z"),
        (Timestamp(0, 1), "1970-01-01T00:00:00.000000001", "1970-01-01T00:00:00.000000001Z"),
        (Timestamp(253_402_300_800_000), "+10000-01-01T00:00", "+10000-01-01T00:00:00Z"),
        (Timestamp(-62_167_219_200_000), "0000-01-01T00:00", "0000-01-01T00:00:00Z"),
        (Timestamp(-62_198_755_200_000), "-0001-01-01T00:00", "-0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_written_as_java_does(value: Timestamp, local: str, instant: str) -> None:
    assert format_date_time(value) == local
    assert format_instant(value) == instant


@given(st.dates())
def test_days_since_1970_have_their_calendar_date(day: date) -> None:
    assert civil_date(day.toordinal() - date(1970, 1, 1).toordinal()) == (day.year, day.month, day.day)
