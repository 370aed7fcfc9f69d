"""Simple expressions of pyarrow are evaluated call by call, and mean what they mean to pyarrow."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.filter.arrow_calls import evaluation

MOMENT = dt.datetime(2026, 3, 1, 12, 30)
ODD_NAME = "it's\nend: 'equal'"
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array([1, 2, -3, None, 2_000_000_000], pa.int32()),
        pa.array([0.5, math.nan, -0.0, None, math.inf], pa.float64()),
        pa.array([0.1, math.nan, 2.0, None, -1.0], pa.float32()),
        pa.array(["a", "it's", "", None, "b"], pa.string()),
        pa.array([True, False, True, None, False], pa.bool_()),
        pa.array([Decimal("1.50"), Decimal("-2.25"), Decimal(0), None, Decimal(7)], pa.decimal128(6, 2)),
        pa.array([MOMENT, MOMENT, None, None, MOMENT + dt.timedelta(days=1)], pa.timestamp("us")),
        pa.array([1, 2, 3, None, 5], pa.int64()),
    ],
    names=["whole", "double", "float", "text", "flag", "amount", "at", ODD_NAME],
)
field = pc.field
SIMPLE = [
    field("whole") < 2,
    field("whole") == 2_000_000_000,
    field("double") > 0,
    field("double") >= 0.0,
    field("double") != math.nan,
    field("text") == "it's",
    field("flag"),
    field("at") <= pa.scalar(MOMENT, pa.timestamp("us")),
    field("text").is_null(),
    field("double").is_null(),
    field("amount").is_valid(),
    field("text") > pa.scalar(None, pa.string()),
]
# Casts that are not exact, options, names that make the form ambiguous, and what is no function of a column.
OTHERS = [
    field("whole") < 2**40,
    field("whole") < 1.5,
    field("float") > 0.1,
    field("double").is_null(nan_is_null=True),
    field("text").isin(["a", None]),
    field("whole") + 1 > 2,
    field("whole") == field("double"),
    pc.scalar("a") < field("text"),
    field(ODD_NAME) == 3,
    pc.scalar(True),
    pc.starts_with(field("text"), "i"),
]


def expected(expression: pc.Expression) -> list[int | None]:
    kept: list[int | None] = ROWS.filter(expression)[ODD_NAME].to_pylist()
    return kept


@pytest.mark.parametrize("expression", SIMPLE, ids=str)
def test_simple_expressions_keep_what_pyarrow_keeps(expression: pc.Expression) -> None:
    evaluate = evaluation(expression, ROWS.schema)
    assert evaluate is not None
    assert ROWS.filter(evaluate(columns()))[ODD_NAME].to_pylist() == expected(expression)


@pytest.mark.parametrize("expression", OTHERS, ids=repr)
def test_other_expressions_are_left_to_pyarrow(expression: pc.Expression) -> None:
    assert evaluation(expression, ROWS.schema) is None
    assert evaluation((field("whole") == 1) & expression, ROWS.schema) is None


@given(
    st.recursive(
        st.sampled_from(SIMPLE),
        lambda parts: (
            st.builds(lambda a, b: a & b, parts, parts)
            | st.builds(lambda a, b: a | b, parts, parts)
            | st.builds(lambda a: ~a, parts)
        ),
        max_leaves=8,
    )
)
def test_any_combination_keeps_what_pyarrow_keeps(expression: pc.Expression) -> None:
    evaluate = evaluation(expression, ROWS.schema)
    assert evaluate is not None
    assert ROWS.filter(evaluate(columns()))[ODD_NAME].to_pylist() == expected(expression)


def columns() -> dict[str, Any]:
    return dict(zip(ROWS.schema.names, ROWS.columns, strict=True))
