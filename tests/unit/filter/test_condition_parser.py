"""The language of scan.filter: what its texts mean, and where wrong ones are said to be wrong.
Shown by comparing trees with each other, and by the messages for texts that cannot be read."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.filter.condition_parser import (
    DEPTH_MAX,
    Comparison,
    Condition,
    Constant,
    InList,
    Junction,
    Negation,
    NullTest,
    Operator,
    PatternTest,
    parse_condition,
)


def outline(condition: Condition) -> object:
    """Return a condition without the positions, as nested tuples."""
    match condition:
        case Constant(truth):
            return truth
        case Comparison(column, operator, value):
            return column.name, operator.value, value.value
        case InList(column, values):
            return column.name, "in", *(value.value for value in values)
        case NullTest(column):
            return column.name, "is null"
        case PatternTest(column, pattern):
            return column.name, "like", pattern.value
        case Negation(inner):
            return "not", outline(inner)
        case Junction(conditions, is_any):
            return "or" if is_any else "and", *map(outline, conditions)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", ("a", "=", 1)),
        ("a == -2.50", ("a", "=", Decimal("-2.50"))),
        ("a <> +.5", ("a", "<>", Decimal("0.5"))),
        ("a != 1e3", ("a", "<>", 1000)),
        ("5 < a", ("a", ">", 5)),
        ("5 >= a", ("a", "<=", 5)),
        ("a = 'it''s'", ("a", "=", "it's")),
        ("a = ''", ("a", "=", "")),
        ("a = X'0aFF'", ("a", "=", b"\x0a\xff")),
        ("a = x''", ("a", "=", b"")),
        ("a = DATE '2026-01-01'", ("a", "=", "2026-01-01")),
        ("a = timestamp '2026-01-01 10:00:00'", ("a", "=", "2026-01-01 10:00:00")),
        ("date > DATE '2026-01-01'", ("date", ">", "2026-01-01")),
        ("time = TIME '10:00:00'", ("time", "=", "10:00:00")),
        ("`a b` = 1", ("a b", "=", 1)),
        ("`a``b` = 1", ("a`b", "=", 1)),
        ("`and` = 1 AND größe = 2", ("and", ("and", "=", 1), ("größe", "=", 2))),
        ("a = NULL", ("a", "=", None)),
        ("flag", ("flag", "=", True)),
        ("NOT flag", ("not", ("flag", "=", True))),
        ("a IN (1)", ("a", "in", 1)),
        ("a in (1, NULL, 3)", ("a", "in", 1, None, 3)),
        ("a NOT IN ('x')", ("not", ("a", "in", "x"))),
        ("a IS NULL", ("a", "is null")),
        ("a is not null", ("not", ("a", "is null"))),
        ("a LIKE 'x%'", ("a", "like", "x%")),
        ("a not like '%x'", ("not", ("a", "like", "%x"))),
        ("a BETWEEN 1 AND 2", ("and", ("a", ">=", 1), ("a", "<=", 2))),
        ("a NOT BETWEEN 1 AND 2", ("not", ("and", ("a", ">=", 1), ("a", "<=", 2)))),
        ("a BETWEEN 1 AND 2 AND b = 3", ("and", ("and", ("a", ">=", 1), ("a", "<=", 2)), ("b", "=", 3))),
        ("a OR b AND c", ("or", ("a", "=", True), ("and", ("b", "=", True), ("c", "=", True)))),
        ("(a OR b) AND c", ("and", ("or", ("a", "=", True), ("b", "=", True)), ("c", "=", True))),
        ("a OR b OR c", ("or", ("a", "=", True), ("b", "=", True), ("c", "=", True))),
        ("NOT a AND b", ("and", ("not", ("a", "=", True)), ("b", "=", True))),
        ("NOT NOT a", ("not", ("not", ("a", "=", True)))),
        ("TRUE", True),
        ("(((FALSE)))", False),
        ("NULL OR a", ("or", None, ("a", "=", True))),
        ("  a\n=\t1  ", ("a", "=", 1)),
    ],
)
def test_a_text_means_a_condition(text: str, expected: object) -> None:
    assert outline(parse_condition(text)) == expected


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", 1, "expected the name of a column, found the end of the filter"),
        ("a =", 4, "expected a value"),
        ("a = 1 b = 2", 7, "expected AND, OR, or the end, found b"),
        ('"a" = 1', 1, "texts stand in single quotes, names in backquotes"),
        ("a = 'x", 5, "the closing ' is missing"),
        ("`a = 1", 1, "the closing ` is missing"),
        ("a = 12x", 5, "means nothing here"),
        ("a.b = 1", 2, "'.' means nothing here"),
        ("a ~ 1", 3, "'~' means nothing here"),
        ("a = b", 5, "expected a value"),
        ("1 = 1", 5, "expected the name of a column"),
        ("1", 2, "expected a comparison"),
        ("a = -", 6, "expected a number after -"),
        ("a = X'0g'", 5, "expected pairs of hexadecimal digits"),
        ("a IN ()", 7, "expected a value"),
        ("a IN (1", 8, "expected ), found the end"),
        ("a IN 1", 6, "expected (, found 1"),
        ("(a = 1", 7, "expected ), found the end"),
        ("a IS 1", 6, "expected NULL, found 1"),
        ("a NOT 1", 7, "expected IN, BETWEEN or LIKE after NOT"),
        ("a BETWEEN 1 OR 2", 13, "expected AND"),
        ("a LIKE 1", 8, "expected a pattern in single quotes"),
        ("and = 1", 1, "expected the name of a column, found and"),
        ("a = 1e501", 5, "so many digits"),
        ("a = " + "1" * 501, 5, "so many digits"),
        ("a = 1e" + "0" * 600 + "1", 5, "so many digits"),
    ],
)
def test_a_wrong_text_is_refused_at_its_first_wrong_character(text: str, place: int, problem: str) -> None:
    with pytest.raises(FlussError) as error:
        parse_condition(text)
    assert f"at character {place}, " in error.value.message
    assert problem in error.value.message


def test_nesting_has_a_limit_but_length_has_none() -> None:
    parse_condition("(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1))
    for text in ("(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX, "NOT " * 1000 + "a"):
        with pytest.raises(FlussError, match=f"at most {DEPTH_MAX} levels deep"):
            parse_condition(text)
    long = parse_condition(" OR ".join(["a = 1"] * 10_000))
    assert isinstance(long, Junction)
    assert len(long.conditions) == 10_000


def test_texts_of_any_length_are_not_taken() -> None:
    with pytest.raises(FlussError, match="1000000 characters"):
        parse_condition("a = '" + "x" * 1_000_000 + "'")


@given(st.text(alphabet=" abANDORNOTIN()=<>'`-.1x", max_size=30))
def test_any_text_is_a_condition_or_a_fluss_error(text: str) -> None:
    with suppress(FlussError):
        parse_condition(text)


@pytest.mark.parametrize("operator", list(Operator))
def test_mirroring_and_negating_a_comparison_twice_changes_nothing(operator: Operator) -> None:
    assert operator.mirrored.mirrored is operator
    assert operator.opposite.opposite is operator
