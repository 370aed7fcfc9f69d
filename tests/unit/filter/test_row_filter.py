"""A filter keeps exactly the rows for which SQL says that its condition is true, and nothing that it tells others
makes them miss one. Shown by random conditions on random rows, evaluated a second time row by row in plain Python."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import DataTypes, FlussError, Schema
from fluss.filter.row_filter import RowFilter
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row.partition_names import format_partition_value
from fluss.row.values import internal_from_arrow
from tests.unit.record.statistics_model import filter_keeps

NEW_YORK = ZoneInfo("America/New_York")
EPOCH = dt.datetime(1970, 1, 1)

SCHEMA = (
    Schema.builder()
    .column("tiny", DataTypes.tinyint())
    .column("big", DataTypes.bigint().not_null())
    .column("amount", DataTypes.decimal(4, 2))
    .column("single", DataTypes.float())
    .column("double", DataTypes.double())
    .column("flag", DataTypes.boolean())
    .column("name", DataTypes.string())
    .column("code", DataTypes.char(2))
    .column("raw", DataTypes.bytes())
    .column("fixed", DataTypes.binary(2))
    .column("day", DataTypes.date())
    .column("clock", DataTypes.time(3))
    .column("local time", DataTypes.timestamp(3))
    .column("instant", DataTypes.timestamp_ltz(9))
    .column("items", DataTypes.array(DataTypes.int()))
    .build()
)
ARROW = SCHEMA.to_arrow()


# A second opinion: plain values, plain comparisons


@dataclass(frozen=True)
class Literal:
    """A value as it is written, and what it is to be compared as; None is NULL."""

    text: str
    value: Any


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _single(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _seconds(moment: dt.datetime) -> Fraction:
    return Fraction((moment - EPOCH) // dt.timedelta(microseconds=1), 10**6)


def _moment_literals(zone: dt.tzinfo | None) -> list[Literal]:
    literals = []
    for moment, fraction in product(MOMENTS, FRACTIONS):
        whole = moment.replace(microsecond=0)
        since = whole.replace(tzinfo=zone) - EPOCH.replace(tzinfo=dt.UTC) if zone else whole - EPOCH
        seconds = Fraction(since // dt.timedelta(seconds=1)) + Fraction("0" + fraction)
        literals.append(Literal(f"TIMESTAMP '{whole.isoformat(' ')}{fraction}'", seconds))
    return literals


TEXTS = ["", "a", "ab", "aba", "a%", "%", "_", "\\", "a'b", "é", "😀a", "a\n", "\nb", "b"]
PATTERNS = [*TEXTS, "a%", "%a", "%b%", "%", "%%", "_", "a_", "_%", "%_b", "a%a", "\\%", "a\\%", "\\_%", "\\\\", "%\n%"]
BYTES = [b"", b"\0", b"\1", b"\0\1", b"\1\0", b"\1\1", b"\1\0\0"]
FLOATS = [0.0, -0.0, 1.5, -2.25, 0.1, math.inf, -math.inf, math.nan]
DAYS = [dt.date(2026, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1)]
CLOCKS = [dt.time(0, 0), dt.time(12, 30, 0, 1_000), dt.time(23, 59, 59, 999_000)]
MOMENTS = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_000),
    dt.datetime(2026, 3, 29, 12, 0, 0, 1_000),
    dt.datetime(2026, 3, 29, 12, 0),
]
FRACTIONS = ["", ".5", ".001", ".0005", ".999999999"]
NUMBERS = [
    Literal(text, Fraction(text))
    for text in (
        "0",
        "1",
        "-1",
        "1.5",
        "-1.5",
        "127",
        "127.5",
        "128",
        "-128.5",
        "1e30",
        "-1e30",
        "0.001",
        "99.99",
        "100",
    )
]
FLOAT_LITERALS = [Literal(text, float(text)) for text in ("0", "-0.0", "1.5", "0.1", "-3", "1e400")]
TEXT_LITERALS = [Literal(_quoted(text), text) for text in TEXTS]
BYTE_LITERALS = [Literal(f"X'{data.hex()}'", data) for data in BYTES]


@dataclass(frozen=True)
class Kind:
    """Values and literals of a column. ``comparable`` makes of a value what literals are compared with."""

    values: Sequence[Any]
    literals: Sequence[Literal]
    comparable: Callable[[Any], Any] = lambda value: value


KINDS: dict[str, Kind] = {
    "tiny": Kind([-128, -1, 0, 1, 127], NUMBERS, Fraction),
    "big": Kind([-(2**63), 0, 1, 2**63 - 1], NUMBERS, Fraction),
    "amount": Kind([Decimal(text) for text in ("-99.99", "0.00", "1.50", "99.99")], NUMBERS, Fraction),
    "single": Kind(list(map(_single, FLOATS)), FLOAT_LITERALS),
    "double": Kind(FLOATS, FLOAT_LITERALS),
    "flag": Kind([True, False], [Literal(str(truth), truth) for truth in (True, False)]),
    "name": Kind(TEXTS, TEXT_LITERALS, str.encode),
    "code": Kind(TEXTS, TEXT_LITERALS, str.encode),
    "raw": Kind(BYTES, BYTE_LITERALS),
    "fixed": Kind([data for data in BYTES if len(data) == 2], BYTE_LITERALS),
    "day": Kind(DAYS, [Literal(f"DATE '{day}'", day) for day in DAYS]),
    "clock": Kind(
        CLOCKS,
        [
            Literal(
                f"TIME '{clock.replace(microsecond=0)}{fraction}'",
                _seconds(dt.datetime.combine(EPOCH, clock.replace(microsecond=0))) + Fraction("0" + fraction),
            )
            for clock, fraction in product(CLOCKS, FRACTIONS)
        ],
        lambda clock: _seconds(dt.datetime.combine(EPOCH, clock)),
    ),
    "local time": Kind(MOMENTS, _moment_literals(None), _seconds),
    "instant": Kind(MOMENTS, _moment_literals(NEW_YORK), _seconds),
    "items": Kind([[1]], []),
}
OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


def _compare(left: Any, operator: str, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(right, str):
        right = right.encode()
    if isinstance(left, float) and math.isnan(left):
        return operator in ("<>", ">", ">=")
    outcomes: dict[str, bool] = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return outcomes[operator]


def _all(truths: list[bool | None]) -> bool | None:
    return False if False in truths else (None if None in truths else True)


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _any(truths: list[bool | None]) -> bool | None:
    return _not(_all([_not(truth) for truth in truths]))


def _looks_like(text: str | None, pattern: str) -> bool | None:
    if text is None:
        return None
    expression = ""
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\" and position + 1 < len(pattern):
            position += 1
            expression += re.escape(pattern[position])
        else:
            expression += {"%": ".*", "_": "."}.get(character, re.escape(character))
        position += 1
    return re.fullmatch(expression, text, re.DOTALL) is not None


Row = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A condition as text, and what it is for a row."""

    text: str
    truth: Callable[[Row], bool | None]


def _value(row: Row, column: str) -> Any:
    value = row[column]
    return None if value is None else KINDS[column].comparable(value)


@st.composite
def _leaves(draw: st.DrawFn, columns: tuple[str, ...]) -> Drawn:
    column = draw(st.sampled_from(columns))
    name = f"`{column}`"
    forms = ["is null"] if column == "items" else ["is null", "compare", "in", "between"]
    form = draw(st.sampled_from([*forms, "like"] if column in ("name", "code") else forms))
    literal = st.sampled_from([*KINDS[column].literals, Literal("NULL", None)])
    if form == "is null":
        return Drawn(f"{name} IS NULL", lambda row: row[column] is None)
    if form == "compare":
        operator, right = draw(st.sampled_from(OPERATORS)), draw(literal)
        return Drawn(
            f"{name} {operator} {right.text}", lambda row: _compare(_value(row, column), operator, right.value)
        )
    if form == "in":
        members = draw(st.lists(literal, min_size=1, max_size=3))
        return Drawn(
            f"{name} IN ({', '.join(member.text for member in members)})",
            lambda row: _any([_compare(_value(row, column), "=", member.value) for member in members]),
        )
    if form == "like":
        pattern = draw(st.sampled_from(PATTERNS))
        return Drawn(f"{name} LIKE {_quoted(pattern)}", lambda row: _looks_like(row[column], pattern))
    low, high = draw(literal), draw(literal)
    return Drawn(
        f"{name} BETWEEN {low.text} AND {high.text}",
        lambda row: _all(
            [_compare(_value(row, column), ">=", low.value), _compare(_value(row, column), "<=", high.value)]
        ),
    )


def _conditions(columns: tuple[str, ...] = tuple(KINDS)) -> st.SearchStrategy[Drawn]:
    constants = st.sampled_from([Drawn("TRUE", lambda _: True), Drawn("NULL", lambda _: None)])

    def extend(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
        several = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            inner.map(lambda one: Drawn(f"NOT ({one.text})", lambda row: _not(one.truth(row)))),
            several.map(
                lambda parts: Drawn(
                    " AND ".join(f"({part.text})" for part in parts),
                    lambda row: _all([part.truth(row) for part in parts]),
                )
            ),
            several.map(
                lambda parts: Drawn(
                    " OR ".join(f"({part.text})" for part in parts),
                    lambda row: _any([part.truth(row) for part in parts]),
                )
            ),
        )

    return st.recursive(st.one_of(_leaves(columns), constants), extend, max_leaves=5)


_full_rows = st.fixed_dictionaries({name: st.sampled_from(kind.values) for name, kind in KINDS.items()})
_rows = st.lists(
    st.fixed_dictionaries(
        {name: st.sampled_from(kind.values if name == "big" else [None, *kind.values]) for name, kind in KINDS.items()}
    ),
    max_size=5,
)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    arrays = [
        pa.array(
            [_instant(row[field.name]) if field.name == "instant" else row[field.name] for row in rows], field.type
        )
        for field in ARROW
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def _instant(moment: dt.datetime | None) -> dt.datetime | None:
    return None if moment is None else moment.replace(tzinfo=dt.UTC)


def _parsed(text: str) -> RowFilter:
    return RowFilter.parse(text, SCHEMA, time_zone=NEW_YORK)


def _numbered(rows: list[Row]) -> pa.RecordBatch:
    return _batch(rows).append_column("number", pa.array(range(len(rows)), pa.int64()))


def _column(name: str) -> tuple[list[Any], pa.RecordBatch]:
    """Return all values of a column and null, as a list and as a batch."""
    values = [*KINDS[name].values, *([] if name == "big" else [None])]
    given = [_instant(value) for value in values] if name == "instant" else values
    numbers = pa.array(range(len(values)), pa.int64())
    return values, pa.RecordBatch.from_arrays(
        [pa.array(given, ARROW.field(name).type), numbers], names=[name, "number"]
    )


def _kept(text: str, batch: pa.RecordBatch) -> list[int]:
    kept: list[int] = _parsed(text).filter(batch)["number"].to_pylist()
    return kept


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].literals])
def test_every_comparison_of_every_type_is_right(name: str) -> None:
    values, batch = _column(name)
    rows: list[Row] = [{name: value} for value in values]
    for literal, operator in product(KINDS[name].literals, OPERATORS):
        truths = [_compare(_value(row, name), operator, literal.value) for row in rows]
        text = f"`{name}` {operator} {literal.text}"
        assert _kept(text, batch) == [number for number, truth in enumerate(truths) if truth is True], text
        assert _kept(f"NOT {text}", batch) == [number for number, truth in enumerate(truths) if truth is False], text
    for literal in KINDS[name].literals:
        equal = [_compare(_value(row, name), "=", literal.value) for row in rows]
        text = f"`{name}` IN ({literal.text})"
        assert _kept(text, batch) == [number for number, truth in enumerate(equal) if truth is True], text
        assert _kept(f"NOT {text}", batch) == [number for number, truth in enumerate(equal) if truth is False], text
        assert _kept(f"`{name}` NOT IN ({literal.text}, NULL)", batch) == []


def test_every_pattern_is_right() -> None:
    values, batch = _column("name")
    for pattern in PATTERNS:
        truths = [_looks_like(value, pattern) for value in values]
        text = f"name LIKE {_quoted(pattern)}"
        assert _kept(text, batch) == [number for number, truth in enumerate(truths) if truth is True], text
        assert _kept(f"NOT {text}", batch) == [number for number, truth in enumerate(truths) if truth is False], text


@given(_conditions(), _rows)
def test_a_filter_keeps_the_rows_for_which_its_condition_is_true(condition: Drawn, rows: list[Row]) -> None:
    batch = _numbered(rows)
    row_filter = _parsed(condition.text)
    expected = [number for number, row in enumerate(rows) if condition.truth(row) is True]
    assert row_filter.filter(batch)["number"].to_pylist() == expected


@given(_conditions(), _rows.filter(bool))
def test_servers_never_skip_a_batch_with_a_row_that_is_kept(condition: Drawn, rows: list[Row]) -> None:
    predicate = _parsed(condition.text).predicate()
    if predicate is None:
        return
    batch, types = _batch(rows), list(SCHEMA.data_types)
    indexes = [index for index, data_type in enumerate(types) if supports_statistics(data_type)]
    block = collect_statistics(batch, types, indexes)
    if any(condition.truth(row) is True for row in rows):
        assert filter_keeps(predicate.bind(SCHEMA), block, types, len(rows))


PARTITION_COLUMNS = tuple(name for name in KINDS if name not in ("amount", "items"))


def _partition(row: Row, columns: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name in columns:
        data_type = SCHEMA.column(name).data_type
        (internal,) = internal_from_arrow(_batch([row])[name], data_type)
        values[name] = format_partition_value(internal, data_type)
    return values


@given(_conditions(PARTITION_COLUMNS), _full_rows)
def test_a_partition_is_read_exactly_if_its_rows_are_kept_when_its_name_says_everything(
    condition: Drawn, row: Row
) -> None:
    may = _parsed(condition.text).may_match(_partition(row, PARTITION_COLUMNS))
    assert may is (condition.truth(row) is True)


@given(_conditions(), _full_rows, st.sets(st.sampled_from(PARTITION_COLUMNS), max_size=3))
def test_a_partition_with_a_row_that_is_kept_is_read(condition: Drawn, row: Row, columns: set[str]) -> None:
    if condition.truth(row) is True:
        assert _parsed(condition.text).may_match(_partition(row, tuple(columns)))


@given(_conditions(), _rows)
def test_kept_rows_have_one_of_the_values_that_a_filter_leaves_to_choose_from(
    condition: Drawn, rows: list[Row]
) -> None:
    row_filter = _parsed(condition.text)
    kept = row_filter.filter(_batch(rows))
    for column, values in row_filter.choices().items():
        assert values.type == ARROW.field(column).type
        assert set(kept[column].to_pylist()) <= set(values.to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("big = 5", "col('big') == 5"),
        ("big > 5.5", "col('big') > 5"),
        ("big >= 5.5", "col('big') > 5"),
        ("big < 5.5", "col('big') <= 5"),
        ("NOT big < 5", "col('big') >= 5"),
        ("tiny > 300", "None"),
        ("amount <= 1.5", "col('amount') <= Decimal('1.50')"),
        ("double < 0.1", "col('double') < 0.1"),
        ("double > 0.1", "None"),
        ("NOT double < 0.1", "None"),
        ("single < 0.1", "None"),
        ("single < 0.5", "col('single') < 0.5"),
        ("name LIKE 'a%'", "col('name').starts_with('a')"),
        ("name LIKE '%a'", "col('name').ends_with('a')"),
        ("name LIKE '%a%'", "col('name').contains('a')"),
        ("name LIKE 'a\\%'", "col('name') == 'a%'"),
        ("name LIKE 'a_'", "None"),
        ("name NOT LIKE 'a%'", "None"),
        ("day >= '2026-01-01'", "col('day') >= datetime.date(2026, 1, 1)"),
        ("clock > '10:00:00'", "None"),
        ("big IN (1, 2)", "col('big').is_in([1, 2])"),
        ("big IN (1, NULL)", "col('big').is_in([1])"),
        ("big NOT IN (1, 2)", "col('big').not_in([1, 2])"),
        ("big NOT IN (1, NULL)", "None"),
        ("items IS NULL", "None"),
        ("name IS NOT NULL", "col('name').is_not_null()"),
        ("big = 1 AND clock > '10:00:00'", "col('big') == 1"),
        ("big = 1 OR clock > '10:00:00'", "None"),
        ("NOT (big = 1 OR tiny = 2)", "(col('big') != 1) & (col('tiny') != 2)"),
    ],
)
def test_servers_are_told_what_they_can_use(text: str, expected: str) -> None:
    assert str(_parsed(text).predicate()) == expected


def test_a_condition_that_is_nested_too_deeply_for_a_request_is_not_sent() -> None:
    nested = "big = 1"
    for level in range(40):
        nested = f"({nested}) {'AND' if level % 2 else 'OR'} tiny = {level}"
    assert _parsed(nested).predicate() is None


def test_times_without_a_zone_are_meant_in_the_zone_of_the_session() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array([dt.datetime(2026, 7, 1, hour, tzinfo=dt.UTC) for hour in (3, 4, 5)], pa.timestamp("ns", "UTC"))],
        names=["instant"],
    )
    for text in (
        "instant >= TIMESTAMP '2026-07-01 00:00:00'",
        "instant >= '2026-07-01'",
        "instant >= TIMESTAMP '2026-07-01 04:00:00Z'",
        "instant >= TIMESTAMP '2026-07-01 06:00:00+02:00'",
    ):
        assert _parsed(text).filter(rows).num_rows == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bigg = 1", r"at character 1, at its beginning: there is no column 'bigg'; did you mean 'big'\?"),
        ("q = 1", "there is no column 'q'; columns are 'tiny', 'big'"),
        ("big = 'x'", "at character 7, after 'big =': column 'big' is bigint NOT NULL, it takes a number"),
        ("big", "column 'big' is bigint NOT NULL, it takes a number"),
        ("name > 1", "column 'name' is string, it takes a text in single quotes"),
        ("flag = 1", "it takes TRUE or FALSE"),
        ("raw = 'a'", "it takes bytes, such as X'0aff'"),
        ("day = 1", "it takes a date, such as DATE '2026-01-01'"),
        ("day = '2026-13-01'", "it takes dates such as '2026-01-01'"),
        ("clock = '25:00:00'", "it takes a time of day"),
        ("`local time` = 'x'", "it takes a date and time"),
        ("`local time` = '2026-01-01 00:00:00Z'", "it takes times without a zone"),
        ("items = 1", "such columns can only be compared with NULL, by IS NULL"),
        ("big LIKE 'x'", "and only texts can look like a pattern"),
    ],
)
def test_conditions_that_do_not_fit_the_columns_are_refused(text: str, problem: str) -> None:
    with pytest.raises(FlussError, match=problem):
        _parsed(text)


def test_a_filter_says_which_columns_it_needs() -> None:
    assert _parsed("big = 1 AND (name IS NULL OR NOT `local time` > '2026-01-01')").columns == {
        "big",
        "name",
        "local time",
    }


def test_a_partition_whose_name_cannot_be_read_is_not_left_out() -> None:
    assert _parsed("big = 1").may_match({"big": "one"})
    assert not _parsed("big = 1").may_match({"big": "2"})
