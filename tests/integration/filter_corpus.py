"""Random rows of many types, and random conditions on them in the language of filters, which others read, too."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

CORPUS_SCHEMA = pa.schema(
    [
        ("row", pa.int32()),
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("amount", pa.decimal128(10, 2)),
        ("ratio", pa.float64()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("data", pa.binary()),
    ]
)
_DAY = dt.date(2026, 2, 28)
_MOMENT = dt.datetime(2026, 2, 28, 23, 59, 59, 999_999)
VALUES: dict[str, list[Any]] = {
    "number": [-(2**63), -1, 0, 1, 2, 3, 2**63 - 1],
    "small": [-(2**15), -1, 0, 1, 7, 2**15 - 1],
    "amount": [Decimal(text) for text in ("-99999999.99", "-0.01", "0.00", "1.50", "1.51", "99999999.99")],
    "ratio": [-math.inf, -1.5, -0.0, 0.0, 0.1, 1.5, math.inf, math.nan],
    "name": ["", "a", "ab", "abc", "b", "é", "z%", "A", "a\nb"],
    "flag": [True, False],
    "day": [_DAY + dt.timedelta(days=days) for days in (-400, -1, 0, 1, 400)],
    "moment": [_MOMENT + dt.timedelta(microseconds=micros) for micros in (-1_000_000, -1, 0, 1, 10**9)],
    "data": [b"", b"\0", b"\0\1", b"a", b"\xff"],
}
_NUMBERS = ("-1", "0", "1", "1.5", "2.25", "100000", "-1e3")
LITERALS: dict[str, tuple[str, ...]] = {
    "number": _NUMBERS,
    "small": _NUMBERS,
    "amount": ("-0.01", "0", "1.5", "1.505", "99999999.99", "1e9"),
    "ratio": ("-1.5", "0.0", "0.1", "1.5", "1e300"),
    "name": ("''", "'a'", "'ab'", "'b'", "'é'", "'z%'"),
    "flag": ("TRUE", "FALSE"),
    "day": tuple(f"DATE '{day}'" for day in VALUES["day"]),
    "moment": tuple(f"TIMESTAMP '{at}'" for at in VALUES["moment"]),
    "data": ("X''", "X'00'", "X'61'"),
}
PATTERNS = ("'%'", "'a%'", "'%b'", "'%b%'", "'a_'", "'_'", "'a%c'", "''")


def random_rows(seed: int, count: int) -> pa.Table:
    numbers = random.Random(seed)
    columns = {
        name: [None if numbers.random() < 0.15 else numbers.choice(values) for _ in range(count)]
        for name, values in VALUES.items()
    }
    return pa.table({"row": list(range(count)), **columns}, schema=CORPUS_SCHEMA)


@st.composite
def _tests(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(VALUES)))
    literal = st.sampled_from([*LITERALS[name], "NULL"])
    form = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "like"]))
    negation = draw(st.sampled_from(["", "NOT "]))
    match form:
        case "in":
            return f"{name} {negation}IN ({', '.join(draw(st.lists(literal, min_size=1, max_size=4)))})"
        case "between":
            return f"{name} {negation}BETWEEN {draw(literal)} AND {draw(literal)}"
        case "null":
            return f"{name} IS {negation}NULL"
        case "like":
            return f"name {negation}LIKE {draw(st.sampled_from(PATTERNS))}"
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return f"{name} {operator} {draw(literal)}"


def _junction(parts: list[str], word: str) -> str:
    return f" {word} ".join(f"({part})" for part in parts)


conditions = st.recursive(
    _tests(),
    lambda inner: st.one_of(
        inner.map(lambda condition: f"NOT ({condition})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: _junction(parts, "AND")),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: _junction(parts, "OR")),
    ),
    max_leaves=6,
)


def duckdb_text(condition: str) -> str:
    """Bytes have another literal there."""
    for text in LITERALS["data"]:
        escaped = "".join(f"\\x{text[index : index + 2]}" for index in range(2, len(text) - 1, 2))
        condition = condition.replace(text, f"'{escaped}'::BLOB")
    return condition
