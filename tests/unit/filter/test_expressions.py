"""Conditions mean the same in all forms: objects, texts, expressions of pyarrow, polars and pyiceberg.
Shown by the rows that they keep, and by what is told about those that cannot be."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss import DataTypes, FlussError, Schema, col
from fluss.filter.row_filter import RowFilter, check_filter

SCHEMA = (
    Schema.builder()
    .column("id", DataTypes.int())
    .column("name", DataTypes.string())
    .column("amount", DataTypes.decimal(6, 2))
    .column("ratio", DataTypes.double())
    .column("flag", DataTypes.boolean())
    .column("day", DataTypes.date())
    .column("clock", DataTypes.time(6))
    .column("at", DataTypes.timestamp(3))
    .column("instant", DataTypes.timestamp_ltz(6))
    .column("data", DataTypes.bytes())
    .build()
)
MOMENT = dt.datetime(2026, 3, 1, 12, 30, 15, 250_000)
ROWS = pa.RecordBatch.from_pydict(
    {
        "id": [1, 2, 3, None],
        "name": ["a", "a%b", "b_c", None],
        "amount": [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00"), None],
        "ratio": [0.5, math.nan, -1.0, None],
        "flag": [True, False, True, None],
        "day": [dt.date(2026, 3, day) for day in (1, 2, 3)] + [None],
        "clock": [dt.time(1, 2, 3, micros) for micros in (4, 5, 6)] + [None],
        "at": [MOMENT + dt.timedelta(hours=hours) for hours in (0, 1, 2)] + [None],
        "instant": [(MOMENT + dt.timedelta(hours=hours)).replace(tzinfo=dt.UTC) for hours in (0, 1, 2)] + [None],
        "data": [b"a", b"", b"\xff", None],
    },
    schema=SCHEMA.to_arrow(),
)


def kept(*conditions: Any) -> list[int | None]:
    """Return the numbers of the rows that are kept, counted from one."""
    row_filter = RowFilter.of(conditions, SCHEMA)
    found: list[int | None] = row_filter.filter(ROWS)["id"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        (col("name").starts_with("a"), [1, 2]),
        (col("name").starts_with("a%"), [2]),
        (col("name").contains("_"), [3]),
        (col("name").ends_with("%b"), [2]),
        (col("name").starts_with("\\"), []),
        (col("amount") == Decimal("1.5"), [1]),
        (col("amount").is_in([0, Decimal("-2.25")]), [2, 3]),
        (col("flag") == True, [1, 3]),  # noqa: E712 - a condition, not an answer
        (col("day") > dt.date(2026, 3, 1), [2, 3]),
        (col("clock") == dt.time(1, 2, 3, 5), [2]),
        (col("clock") <= dt.time(1, 2, 3, 5), [1, 2]),
        (col("at") == MOMENT, [1]),
        (col("at") > MOMENT + dt.timedelta(microseconds=1), [2, 3]),
        (col("at").is_in([MOMENT, MOMENT + dt.timedelta(microseconds=1)]), [1]),
        (col("instant") == MOMENT.replace(tzinfo=dt.UTC), [1]),
        (col("data") == b"", [2]),
        (col("id").is_null(), [None]),
        ((col("id") > 1) & (col("ratio") < 0), [3]),
        ((col("id") == 1) | (col("ratio") > 1e300), [1, 2]),
    ],
    ids=str,
)
def test_objects(condition: Any, numbers: list[int | None]) -> None:
    assert kept(condition) == numbers


@pytest.mark.parametrize(
    ("condition", "may_match"),
    [
        (pc.field("day") == dt.date(2026, 3, 1), True),
        (pc.field("day") == dt.date(2026, 3, 2), False),
        ((pc.field("day") > dt.date(2026, 3, 1)) & (pc.field("id") == 1), False),
        ((pc.field("day") > dt.date(2026, 3, 1)) | (pc.field("id") == 1), True),
        (pc.field("day").isin([dt.date(2026, 3, 2), dt.date(2026, 3, 3)]) & (pc.field("ratio") > 0), False),
        (pc.field("ratio") > 2, True),
        (pc.field("name") == "a", True),
        (pc.field("name") == "b", False),
        (pc.field("id") == pc.year(pc.field("day")), True),
    ],
    ids=str,
)
def test_expressions_of_pyarrow_leave_out_partitions(condition: pc.Expression, may_match: bool) -> None:
    known = {"day": "2026-03-01", "name": "a", "ratio": "1.5"}
    assert RowFilter.of([condition], SCHEMA).may_match(known) is may_match


@pytest.mark.parametrize(
    ("condition", "numbers", "columns"),
    [
        (pc.field("id") > 1, [2, 3], ["id"]),
        (pc.field("ratio") > 0.0, [1], ["ratio"]),
        (pc.starts_with(pc.field("name"), "a") & (pc.field("id") == 2), [2], ["id", "name"]),
        (pc.field("id") == pc.year(pc.field("day")) - 2024, [2], ["day", "id"]),
        (pc.field("id").isin([1, 3]), [1, 3], ["id"]),
        (~pc.field("flag"), [2], ["flag"]),
        (pc.field("id").is_null(), [None], ["id"]),
        (pc.scalar(True), [1, 2, 3, None], []),
    ],
    ids=str,
)
def test_expressions_of_pyarrow(condition: pc.Expression, numbers: list[int | None], columns: list[str]) -> None:
    assert kept(condition) == numbers
    row_filter = RowFilter.of([condition], SCHEMA)
    assert sorted(row_filter.columns) == columns
    assert row_filter.predicate() is None


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        (pl.col("id") > 1, [2, 3]),
        (pl.col("ratio") > 1, [2]),
        ((pl.col("name").str.starts_with("a") & (pl.col("id") == 2)) | pl.col("id").is_null(), [2, None]),
        (pl.col("name").is_in(["a", "b_c"]), [1, 3]),
        (~pl.col("flag"), [2]),
        (pl.col("day").is_between(dt.date(2026, 3, 2), dt.date(2026, 3, 9)), [2, 3]),
    ],
    ids=str,
)
def test_expressions_of_polars(condition: pl.Expr, numbers: list[int | None]) -> None:
    assert kept(condition) == numbers


def test_decimals_are_compared_with_the_digits_of_floats_as_polars_compares_them() -> None:
    schema = Schema.builder().column("price", DataTypes.decimal(6, 2)).column("ratio", DataTypes.double()).build()
    prices = [Decimal("1.09"), Decimal("1.10"), Decimal("1.11")]
    rows = pa.record_batch({"price": prices, "ratio": [1.09, 1.1, 1.11]}, schema=schema.to_arrow())
    for condition in (
        pl.col("price") == 1.1,
        pl.col("price") < 1.1,
        pl.col("price") >= 1.1,
        pl.col("price").is_between(1.09, 1.1),
        pl.col("ratio") == 1.1,
        pl.col("ratio") > 1.1,
    ):
        wanted = pl.DataFrame(rows).filter(condition)["price"].to_list()
        assert RowFilter.of([condition], schema).filter(rows)["price"].to_pylist() == wanted, condition


def test_expressions_of_polars_without_a_counterpart() -> None:
    for condition in (pl.col("name").str.len_chars() == 2, pl.col("id") > pl.col("ratio"), pl.col("id") + 1 == 2):
        with pytest.raises(FlussError, match=r"a part without a counterpart here; .* or use scan_polars\(\)"):
            kept(condition)
    with pytest.raises(FlussError, match="there is no column 'nam'; did you mean 'name'"):
        kept(pl.col("nam") == "a")


def test_expressions_of_pyarrow_that_do_not_fit() -> None:
    for condition in (pc.field("nope") == 1, pc.field("id") == "x", pc.field("id") + 1):
        with pytest.raises(FlussError, match=r"The filter .* does not fit the columns 'id', 'name'"):
            kept(condition)


def test_several_conditions_must_all_hold_and_servers_learn_what_they_can_use() -> None:
    conditions = [col("id") > 1, "name LIKE 'a%'", pc.field("ratio") != 3.0]
    assert kept(*conditions) == [2]
    assert str(RowFilter.of(conditions, SCHEMA).predicate()) == "(col('id') > 1) & (col('name').starts_with('a'))"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5])
def test_servers_are_not_told_of_nan(value: float) -> None:
    """Bounds of batches pass over NaN, so no batch may be left out by them that has one which is wanted."""
    column = col("ratio")
    for condition in (column > value, column >= value, column != value, column.not_in([value])):
        assert RowFilter.of([condition], SCHEMA).predicate() is None
    for condition in (column == value, column <= value, column < value, column.is_in([value])):
        assert (RowFilter.of([condition], SCHEMA).predicate() is None) is math.isnan(value)


def test_expressions_of_pyiceberg() -> None:
    ice = pytest.importorskip("pyiceberg.expressions")
    for condition, numbers in [
        (ice.EqualTo("id", 2), [2]),
        (ice.NotEqualTo("id", 2), [1, 3]),
        (ice.LessThan("id", 2.5), [1, 2]),
        (ice.LessThanOrEqual("amount", 0), [2, 3]),
        (ice.GreaterThan("amount", 0.25), [1]),
        (ice.GreaterThanOrEqual("day", dt.date(2026, 3, 2)), [2, 3]),
        (ice.GreaterThanOrEqual("day", "2026-03-02"), [2, 3]),
        (ice.EqualTo("clock", dt.time(1, 2, 3, 5)), [2]),
        (ice.EqualTo("at", MOMENT), [1]),
        (ice.EqualTo("instant", MOMENT.replace(tzinfo=dt.UTC)), [1]),
        (ice.EqualTo("data", b"\xff"), [3]),
        (ice.EqualTo("flag", False), [2]),
        (ice.In("name", ["a", "b_c"]), [1, 3]),
        (ice.NotIn("name", ["a", "b_c"]), [2]),
        (ice.StartsWith("name", "a%"), [2]),
        (ice.NotStartsWith("name", "a%"), [1, 3]),
        (ice.IsNull("id"), [None]),
        (ice.NotNull("id"), [1, 2, 3]),
        (ice.IsNaN("ratio"), [2]),
        (ice.NotNaN("ratio"), [1, 3]),
        (ice.And(ice.EqualTo("flag", True), ice.Not(ice.EqualTo("id", 1))), [3]),
        (ice.Or(ice.EqualTo("id", 1), ice.EqualTo("id", 3)), [1, 3]),
        (ice.AlwaysTrue(), [1, 2, 3, None]),
        (ice.AlwaysFalse(), []),
    ]:
        check_filter(condition)
        assert kept(condition) == numbers, condition
    for condition, problem in [
        (ice.EqualTo("idd", 1), r"The filter EqualTo\(.*\) is wrong: there is no column 'idd'; did you mean 'id'"),
        (ice.EqualTo("id", "x"), "column 'id' is int, it takes a number"),
        (ice.EqualTo("id", math.inf), "it takes a finite number"),
        (ice.StartsWith("id", "x"), "only texts can look like a pattern"),
    ]:
        with pytest.raises(FlussError, match=problem):
            kept(condition)


@pytest.mark.parametrize("condition", [None, 1, ["id = 1"], {"id": 1}, col("id")])
def test_what_is_no_condition_is_refused(condition: Any) -> None:
    with pytest.raises(TypeError, match="must be a Predicate such as"):
        check_filter(condition)
