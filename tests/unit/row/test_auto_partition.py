"""Shows how the clock names partitions: default and custom patterns, written and read, around year ends and clock
changes. Round trips of every unit and custom patterns; the time is always an argument."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.row.partition_names import TimePattern, auto_partition_value
from fluss.schema.table_options import TimeUnit

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
