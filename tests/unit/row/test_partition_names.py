"""Partition values are formatted as other clients do, in both styles, and the clock names partitions by patterns.
The corners of every type, round trips of every unit and custom pattern, around year ends and clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.row.partition_names import (
    PartitionStyle,
    TimePattern,
    auto_partition_value,
    format_partition_value,
    parse_partition_value,
    row_partition_name,
)
from fluss.row.values import Timestamp
from fluss.schema.table_options import TimeUnit
from fluss.schema.type_parser import parse_type
from fluss.schema.types import TypeRoot
from fluss.testing.strategies import internal_values, scalar_types


@pytest.mark.parametrize(
    ("text", "value", "java", "rust"),
    [
        ("BOOLEAN", False, "false", "false"),
        ("BIGINT", -(2**63), "-9223372036854775808", "-9223372036854775808"),
        ("BYTES", b"", "", ""),
        ("DATE", -719162, "0001-01-01", "0001-01-01"),
        ("DATE", 2932897, "10000-01-01", "10000-01-01"),
        ("TIME", 0, "00-00-00_000", "00-00-00_000"),
        ("TIME", 86_399_999, "23-59-59_999", "23-59-59_999"),
        ("DOUBLE", 0.0, "0_0", "0"),
        ("DOUBLE", -0.5, "-0_5", "-0_5"),
        ("DOUBLE", 1e22, "1_0E22", "10000000000000000000000"),
        ("FLOAT", 0.1, "0_1", "0_1"),
        ("DOUBLE", float("-inf"), "-Inf", "-Inf"),
        ("TIMESTAMP(6)", Timestamp(0, 1000), "1970-01-01-00-00-00_000001", "1970-01-01-00-00-00_000001000"),
        ("TIMESTAMP(3)", Timestamp(100), "1970-01-01-00-00-00_1", "1970-01-01-00-00-00_100"),
        ("TIMESTAMP(3)", Timestamp(-1), "1969-12-31-23-59-59_999", "1969-12-31-23-59-59_999"),
    ],
)
def test_values_at_the_corners(text: str, value: Any, java: str, rust: str) -> None:
    data_type = parse_type(text)
    assert format_partition_value(value, data_type) == java
    assert format_partition_value(value, data_type, style="rust") == rust
    if text != "FLOAT":
        assert {parse_partition_value(written, data_type) for written in (java, rust)} == {value}


def test_the_partition_of_a_row_joins_its_values_in_order() -> None:
    types = [parse_type("DATE"), parse_type("STRING"), parse_type("DOUBLE")]
    assert row_partition_name(types, [19737, "US", 1.0]) == "2024-01-15$US$1_0"
    assert row_partition_name(types, [19737, "US", 1.0], style="rust") == "2024-01-15$US$1"


def test_null_is_no_partition_value() -> None:
    with pytest.raises(FlussError, match="Partition value shouldn't be null") as caught:
        format_partition_value(None, parse_type("INT"))
    assert caught.value.error_code == -2


@pytest.mark.parametrize("text", ["DECIMAL(5,2)", "ARRAY<INT>", "MAP<INT,INT>", "ROW<a INT>"])
def test_other_types_are_no_partition_columns(text: str) -> None:
    with pytest.raises(FlussError, match="cannot be a partition column"):
        format_partition_value(0, parse_type(text))


def test_timestamps_outside_four_digit_years_are_refused() -> None:
    for millis in (253_402_300_800_000, -62_135_596_800_001, -(2**63)):
        with pytest.raises(FlussError, match="years 1 to 9999"):
            format_partition_value(Timestamp(millis), parse_type("TIMESTAMP(3)"))


@pytest.mark.parametrize("style", ["java", "rust"])
@given(st.data())
def test_the_text_of_a_value_is_read_back_in_both_styles(style: PartitionStyle, data: st.DataObject) -> None:
    data_type = data.draw(scalar_types(nullable=False).filter(lambda data_type: data_type.root != TypeRoot.DECIMAL))
    value = data.draw(internal_values(data_type))
    try:
        text = format_partition_value(value, data_type, style=style)
    except FlussError:
        assume(False)
    read = parse_partition_value(text, data_type)
    assert read == value or (value != value and read != read), "NaN is not equal to itself"


def test_floats_are_read_as_the_nearest_of_their_kind() -> None:
    assert parse_partition_value("0_1", parse_type("FLOAT")) == float(np.float32(0.1))
    assert parse_partition_value("0_1", parse_type("DOUBLE")) == 0.1


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        ("INT", "seven"),
        ("INT", "07"),
        ("INT", "2147483648"),
        ("TINYINT", "-129"),
        ("BINARY(2)", "0aff00"),
        ("BOOLEAN", "yes"),
        ("BYTES", "xyz"),
        ("DATE", "20240115"),
        ("DATE", "2024-02-30"),
        ("TIME", "10-00-00"),
        ("TIMESTAMP(3)", "2024-01-15"),
        ("TIMESTAMP(3)", "2024-01-15-25-00-00_"),
        ("DOUBLE", "1_5_0"),
        ("DECIMAL(5, 2)", "1_25"),
    ],
)
def test_texts_that_no_value_has_are_refused(data_type: str, text: str) -> None:
    with pytest.raises(FlussError):
        parse_partition_value(text, parse_type(data_type))


CUSTOM = [
    (TimeUnit.YEAR, "uuuu", "2024"),
    (TimeUnit.QUARTER, "yyyy-'Q'Q", "2024-Q4"),
    (TimeUnit.QUARTER, "uuuu_q", "2024_4"),
    (TimeUnit.MONTH, "yyyy-LL", "2024-11"),
    (TimeUnit.DAY, "yyyy-MM-dd", "2024-11-09"),
    (TimeUnit.DAY, "'day_'yyyyMMdd", "day_20241109"),
    (TimeUnit.HOUR, "yyyy-MM-dd-HH", "2024-11-09-07"),
]


@pytest.mark.parametrize(("unit", "text", "value"), CUSTOM)
def test_custom_patterns_write_fields_of_fixed_width(unit: TimeUnit, text: str, value: str) -> None:
    assert TimePattern.of(unit, text).format(datetime(2024, 11, 9, 7, 59)) == value


@given(st.sampled_from([*CUSTOM, *((unit, None, "") for unit in TimeUnit)]), st.datetimes())
def test_values_are_read_back_as_the_start_of_their_span(
    custom: tuple[TimeUnit, str | None, str], now: datetime
) -> None:
    pattern = TimePattern.of(custom[0], custom[1])
    start = pattern.parse(pattern.format(now))
    assert start <= now
    assert pattern.format(start) == pattern.format(now)


@given(st.sampled_from(list(TimeUnit)), st.datetimes(datetime(1000, 1, 1), datetime(3000, 1, 1)), st.integers(1, 99))
def test_values_sort_like_their_times(unit: TimeUnit, now: datetime, offset: int) -> None:
    pattern = TimePattern.of(unit)
    assert auto_partition_value(now, -offset, pattern) < auto_partition_value(now, 0, pattern)
    assert auto_partition_value(now, 0, pattern) < auto_partition_value(now, offset, pattern)


def test_months_are_counted_from_any_day() -> None:
    last_of_january = datetime(2024, 1, 31)
    assert auto_partition_value(last_of_january, 1, TimePattern.of(TimeUnit.MONTH)) == "202402"
    assert auto_partition_value(datetime(2024, 2, 29), 1, TimePattern.of(TimeUnit.YEAR)) == "2025"
    assert auto_partition_value(last_of_january, -1, TimePattern.of(TimeUnit.QUARTER)) == "20234"


def test_hours_follow_the_world_and_days_the_local_clock() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    before_spring = datetime(2024, 3, 31, 1, 30, tzinfo=berlin)
    hours = TimePattern.of(TimeUnit.HOUR)
    assert auto_partition_value(before_spring, 1, hours) == "2024033103"
    in_autumn = datetime(2024, 10, 27, 0, 30, tzinfo=UTC).astimezone(berlin)
    assert [auto_partition_value(in_autumn, offset, hours) for offset in (0, 1, 2)] == [
        "2024102702",
        "2024102702",
        "2024102703",
    ]
    assert auto_partition_value(before_spring, 1, TimePattern.of(TimeUnit.DAY)) == "20240401"


def test_there_is_no_partition_outside_the_calendar() -> None:
    for unit in TimeUnit:
        with pytest.raises(FlussError, match="outside the years 1 to 9999"):
            auto_partition_value(datetime(9999, 12, 31, 23), 1, TimePattern.of(unit))


@pytest.mark.parametrize(
    ("unit", "text", "reason"),
    [
        (TimeUnit.DAY, "", "must not be empty"),
        (TimeUnit.DAY, "  ", "must not be empty"),
        (TimeUnit.DAY, "yyyy-MM", "must show year, month, day"),
        (TimeUnit.DAY, "yyyyMMddHH", "must show year, month, day"),
        (TimeUnit.MONTH, "MM-yyyy", "in this order"),
        (TimeUnit.DAY, "yyyy-M-dd", "'M' must be 'MM'"),
        (TimeUnit.YEAR, "yy", "'yy' must be 'yyyy'"),
        (TimeUnit.QUARTER, "yyyyQQ", "'QQ' must be 'Q'"),
        (TimeUnit.HOUR, "yyyyMMddhh", "'hh' is not a field"),
        (TimeUnit.YEAR, "yyyyyyyy", "must be 'yyyy'"),
        (TimeUnit.DAY, "yyyy[MM]dd", "'\\[' is not allowed"),
        (TimeUnit.YEAR, "yyyy'x", "a quote is not closed"),
        (TimeUnit.DAY, "yyyy/MM/dd", "no partition value"),
        (TimeUnit.YEAR, "yyyy''", "no partition value"),
        (TimeUnit.YEAR, "__yyyy", "reserved"),
        (TimeUnit.YEAR, "'" + "x" * 200 + "'yyyy", "at most 200"),
    ],
)
def test_patterns_that_cannot_name_partitions_are_refused(unit: TimeUnit, text: str, reason: str) -> None:
    with pytest.raises(FlussError, match=reason) as caught:
        TimePattern.of(unit, text)
    assert caught.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        (TimeUnit.DAY, "2024-11-11"),
        (TimeUnit.DAY, "202411111"),
        (TimeUnit.DAY, "20241131"),
        (TimeUnit.DAY, "2024111\uff11"),
        (TimeUnit.DAY, "20241111\n"),
        (TimeUnit.MONTH, "202413"),
        (TimeUnit.MONTH, "202400"),
        (TimeUnit.QUARTER, "20245"),
        (TimeUnit.QUARTER, "20240"),
        (TimeUnit.YEAR, "0000"),
        (TimeUnit.YEAR, ""),
        (TimeUnit.HOUR, "2024111124"),
    ],
)
def test_texts_that_are_no_time_of_the_pattern_are_refused(unit: TimeUnit, value: str) -> None:
    with pytest.raises(FlussError, match="is not a time of the form") as caught:
        TimePattern.of(unit).parse(value)
    assert caught.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
