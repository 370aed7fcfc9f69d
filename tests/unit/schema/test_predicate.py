"""Filters are written with col(), and bound to a table only where a literal means exactly one value of the column.
Shown with every operator and literal class, tables of exact and inexact literals, and drawn values."""

import datetime as dt
import pickle
from decimal import Context, Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import ColumnRef, FlussError, Predicate, Schema, col
from fluss.schema.predicate import PREDICATE_DEPTH_MAX, BoundCompound, BoundLeaf, CompoundFunction, LeafFunction
from fluss.schema.type_parser import parse_type


def schema_for(type_text: str) -> Schema:
    """A table whose second column, ``c``, has the type; its id is not its position."""
    return Schema.builder().column("r", parse_type("row<x int>")).column("c", parse_type(type_text)).build()


def bound(predicate: Predicate, type_text: str) -> BoundLeaf:
    leaf = predicate.bind(schema_for(type_text))
    assert isinstance(leaf, BoundLeaf)
    return leaf


OPERATORS = [
    (col("c") == 1, LeafFunction.EQUAL, "col('c') == 1"),
    (col("c") != 1, LeafFunction.NOT_EQUAL, "col('c') != 1"),
    (col("c") < 1, LeafFunction.LESS_THAN, "col('c') < 1"),
    (col("c") <= 1, LeafFunction.LESS_OR_EQUAL, "col('c') <= 1"),
    (col("c") > 1, LeafFunction.GREATER_THAN, "col('c') > 1"),
    (col("c") >= 1, LeafFunction.GREATER_OR_EQUAL, "col('c') >= 1"),
    (1 < col("c"), LeafFunction.GREATER_THAN, "col('c') > 1"),  # noqa: SIM300 - reflected on purpose
    (1 == col("c"), LeafFunction.EQUAL, "col('c') == 1"),  # noqa: SIM300 - reflected on purpose
    (col("c").equal(1), LeafFunction.EQUAL, "col('c') == 1"),
    (col("c").not_equal(1), LeafFunction.NOT_EQUAL, "col('c') != 1"),
    (col("c").less_than(1), LeafFunction.LESS_THAN, "col('c') < 1"),
    (col("c").less_or_equal(1), LeafFunction.LESS_OR_EQUAL, "col('c') <= 1"),
    (col("c").greater_than(1), LeafFunction.GREATER_THAN, "col('c') > 1"),
    (col("c").greater_or_equal(1), LeafFunction.GREATER_OR_EQUAL, "col('c') >= 1"),
    (col("c").is_null(), LeafFunction.IS_NULL, "col('c').is_null()"),
    (col("c").is_not_null(), LeafFunction.IS_NOT_NULL, "col('c').is_not_null()"),
    (col("c").is_in([1, None]), LeafFunction.IN, "col('c').is_in([1, None])"),
    (col("c").not_in((1,)), LeafFunction.NOT_IN, "col('c').not_in([1])"),
]


@pytest.mark.parametrize(("predicate", "function", "text"), OPERATORS)
def test_every_operator_makes_a_leaf(predicate: Predicate, function: LeafFunction, text: str) -> None:
    leaf = bound(predicate, "int")
    assert (leaf.function, leaf.field_id, leaf.column_index) == (function, 2, 1)
    assert leaf.data_type == parse_type("int")
    assert repr(predicate) == text
    assert pickle.loads(pickle.dumps(predicate)) == predicate


def test_text_functions_take_text_columns() -> None:
    for predicate, function in (
        (col("c").starts_with("a"), LeafFunction.STARTS_WITH),
        (col("c").ends_with("a"), LeafFunction.ENDS_WITH),
        (col("c").contains("a"), LeafFunction.CONTAINS),
    ):
        for type_text in ("string", "char(5)"):
            assert bound(predicate, type_text).function is function
        assert bound(predicate, "string").literals == ("a",)
        with pytest.raises(FlussError, match="requires a character string column"):
            bound(predicate, "int")


def test_function_numbers_are_those_of_the_protocol() -> None:
    assert [int(f) for f in LeafFunction] == list(range(13))
    assert (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH, LeafFunction.IN) == (8, 9, 10, 11)
    assert (CompoundFunction.AND, CompoundFunction.OR) == (0, 1)


def test_chains_of_one_operator_are_one_compound() -> None:
    a, b, c, d = (col("c") == i for i in range(4))
    both = (a & b & c).bind(schema_for("int"))
    assert isinstance(both, BoundCompound)
    assert (both.function, len(both.children)) == (CompoundFunction.AND, 3)
    assert a & (b & c) == (a & b) & c == a.and_(b).and_(c)
    assert a | (b | c) == (a | b) | c == a.or_(b).or_(c)
    mixed = ((a | b) & (c | d)).bind(schema_for("int"))
    assert isinstance(mixed, BoundCompound)
    assert [child.function for child in mixed.children] == [CompoundFunction.OR, CompoundFunction.OR]
    assert str(a & (b | c)) == "(col('c') == 0) & ((col('c') == 1) | (col('c') == 2))"
    assert repr(a & b) == "Compound((col('c') == 0) & (col('c') == 1))"
    assert pickle.loads(pickle.dumps(a & (b | c))) == a & (b | c)


def test_filters_have_no_truth_value() -> None:
    predicate = col("c") > 1
    for attempt in (
        lambda: bool(predicate),
        lambda: predicate and predicate,
        lambda: not predicate,
        lambda: 1 < col("c") < 5,
        lambda: bool(col("c")),
        lambda: hash(col("c")),
        lambda: ~predicate,  # type: ignore[operator]
        lambda: ~col("c"),  # type: ignore[operator]
        lambda: predicate & True,  # type: ignore[operator]
        lambda: predicate | None,  # type: ignore[operator]
        lambda: predicate.and_(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            attempt()


def test_columns_are_named_by_text() -> None:
    assert ColumnRef("a").name == col("a").name == "a"
    assert repr(col("a")) == "col('a')"
    assert pickle.loads(pickle.dumps(col("a"))).name == "a"
    with pytest.raises(TypeError):
        col(5)  # type: ignore[arg-type]


UTC = dt.UTC
EXACT = [
    (True, "boolean", True),
    (np.True_, "boolean", True),
    (-128, "tinyint", -128),
    (np.int8(5), "smallint", 5),
    (2**31 - 1, "int", 2**31 - 1),
    (-(2**63), "bigint", -(2**63)),
    (1.5, "float", 1.5),
    (np.float32(0.1), "float", float(np.float32(0.1))),
    (2**24, "float", 2.0**24),
    (float("inf"), "float", float("inf")),
    (0.1, "double", 0.1),
    (2**53, "double", 2.0**53),
    ("x", "string", "x"),
    (np.str_("x"), "char(3)", "x"),
    (b"x", "bytes", b"x"),
    (b"xyz", "binary(3)", b"xyz"),
    (Decimal("1.5"), "decimal(10,2)", 150),
    (Decimal("1.5000"), "decimal(2,1)", 15),
    (Decimal("-0.05"), "decimal(2,2)", -5),
    (Decimal("1E+3"), "decimal(4,0)", 1000),
    (Decimal("0E+999999"), "decimal(1,0)", 0),
    (Decimal("1." + "0" * 6000), "decimal(1,0)", 1),
    (7, "decimal(3,2)", 700),
    (dt.date(1970, 1, 2), "date", 1),
    (dt.date(1, 1, 1), "date", -719162),
    (dt.time(0, 0, 1, 2999), "time(3)", 1002),
    (dt.datetime(1970, 1, 1, 0, 0, 1, 2003), "timestamp", (1002, 3000)),
    (dt.datetime(1969, 12, 31, 23, 59, 59, 999999), "timestamp", (-1, 999000)),
    (dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "timestamp_ltz", (0, 0)),
    (dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "timestamp_ltz(3)", (253402300799999, 999000)),
    (pd.Timestamp("1970-01-01T00:00:00.001002003"), "timestamp(9)", (1, 2003)),
    (pd.Timestamp("1970-01-01T02:00", tz="Europe/Helsinki"), "timestamp_ltz(9)", (0, 0)),
]


@pytest.mark.parametrize(("value", "type_text", "expected"), EXACT)
def test_exact_literals_become_values_of_the_column(value: object, type_text: str, expected: object) -> None:
    (literal,) = bound(col("c") == value, type_text).literals
    assert literal == expected
    assert type(literal) is type(expected)


def test_nan_is_a_float() -> None:
    for type_text in ("float", "double"):
        (literal,) = bound(col("c") == float("nan"), type_text).literals
        assert literal != literal


MISFITS = [
    (1, "boolean"),
    ("true", "boolean"),
    (128, "tinyint"),
    (-32769, "smallint"),
    (2**31, "int"),
    (1.0, "int"),
    (True, "int"),
    (Decimal(1), "int"),
    (0.1, "float"),
    (1e300, "float"),
    (2**24 + 1, "float"),
    (2**53 + 1, "double"),
    (2**63 - 1, "double"),
    (True, "double"),
    (Decimal(1), "double"),
    (b"x", "string"),
    ("\ud800", "string"),
    (1, "string"),
    ("x", "bytes"),
    (1.5, "decimal(10,2)"),
    (True, "decimal(10,2)"),
    (Decimal("1.555"), "decimal(10,2)"),
    (Decimal("123.4"), "decimal(3,1)"),
    (Decimal("1E+999999"), "decimal(38,0)"),
    (Decimal("1E-999999"), "decimal(38,38)"),
    (Decimal("1" * 6000), "decimal(38,0)"),
    (100, "decimal(3,1)"),
    (dt.datetime(1970, 1, 1), "date"),
    ("1970-01-01", "date"),
    (5, "time"),
    (dt.date(1970, 1, 1), "timestamp"),
    (dt.datetime(1970, 1, 1, tzinfo=UTC), "timestamp"),
    (dt.datetime(1970, 1, 1), "timestamp_ltz"),
    (0, "timestamp"),
]


@pytest.mark.parametrize(("value", "type_text"), MISFITS)
def test_literals_that_no_value_of_the_column_can_equal_are_refused(value: object, type_text: str) -> None:
    with pytest.raises(FlussError, match=r"The filter literal .* does not fit column 'c' of type") as caught:
        bound(col("c") == value, type_text)
    assert caught.value.error_code == -2


def test_refusals_say_whether_it_is_the_class_or_the_value() -> None:
    for condition, type_text, message in [
        (col("c") == "abc", "int", "str does not match, it takes int"),
        (col("c") == dt.datetime(2026, 1, 1), "timestamp_ltz", "datetime does not match, it takes a datetime with a"),
        (col("c") > 0.1, "float", "cannot be represented exactly"),
        (col("c") > 2**53 + 1, "double", "cannot be represented exactly"),
        (col("c") == Decimal("12.345"), "decimal(10,2)", "it has more than 2 digits after the point"),
    ]:
        with pytest.raises(FlussError, match=message):
            bound(condition, type_text)
    with pytest.raises(TypeError, match="Unsupported filter literal of type object"):
        col("c").equal(object())


@pytest.mark.parametrize(
    "value", [[1], {}, object(), bytearray(b"a"), 1j, pd.NaT, np.datetime64("2024-01-01"), col("d")]
)
def test_other_classes_are_type_errors(value: object) -> None:
    with pytest.raises(TypeError, match="supported are bool, int, float, str, bytes, Decimal"):
        col("c").equal(value)


def test_literals_have_limits() -> None:
    for too_large in (2**63, -(2**63) - 1, np.uint64(2**63)):
        with pytest.raises(OverflowError):
            col("c").equal(too_large)
    for odd in (Decimal("NaN"), Decimal("Infinity")):
        with pytest.raises(FlussError, match="must be finite"):
            col("c").equal(odd)
    for not_a_list in ({1, 2}, "abc", b"abc", iter([1]), range(2), 5, None):
        with pytest.raises(TypeError, match="must be a list or tuple"):
            col("c").is_in(not_a_list)  # type: ignore[arg-type]


def test_arrays_and_columns_are_lists() -> None:
    expected = bound(col("c").is_in([1, 2]), "int")
    for values in ((1, 2), np.array([1, 2]), pa.array([1, 2]), pd.Series([1, 2])):
        assert bound(col("c").is_in(values), "int") == bound(col("c").isin(values), "int") == expected
    days = pa.array([dt.date(2026, 11, 16)])
    assert bound(col("c").not_in(days), "date") == bound(col("c").not_in(days.to_pylist()), "date")


def test_mistakes_of_users_of_other_libraries_are_named() -> None:
    with pytest.raises(TypeError, match="put each comparison in parentheses"):
        assert col("a") == 1 & col("b") == 2  # type: ignore[comparison-overlap]  # the mistake
    with pytest.raises(TypeError, match="put each comparison in parentheses"):
        assert col("a") | col("b")
    with pytest.raises(AttributeError, match="has no method 'startswith'; did you mean 'starts_with'"):
        col("a").startswith  # type: ignore[attr-defined]  # noqa: B018 - the mistake
    assert not hasattr(col("a"), "__len__")
    assert pickle.loads(pickle.dumps(col("a"))).name == "a"


def test_null_is_for_sets_only() -> None:
    assert bound(col("c").is_in([None, 1]), "int").literals == (None, 1)
    assert bound(col("c").not_in([]), "int").literals == ()
    with pytest.raises(FlussError, match="cannot take a null literal"):
        bound(col("c") == None, "int")  # noqa: E711 - the comparison is the point


def test_unknown_and_nested_columns_are_refused() -> None:
    with pytest.raises(FlussError, match="The filter column 'x' not found"):
        (col("x") == 1).bind(schema_for("int"))
    for type_text in ("array<int>", "map<int,int>", "row<a int>"):
        with pytest.raises(FlussError, match="is not supported"):
            bound(col("c").is_null(), type_text)


@pytest.mark.parametrize("method", ["starts_with", "ends_with", "contains"])
@pytest.mark.parametrize("text", [1, None, b"a"])
def test_only_text_is_looked_for_in_text(method: str, text: object) -> None:
    with pytest.raises(TypeError, match="must be str"):
        getattr(col("c"), method)(text)


def test_filters_are_not_endlessly_deep_but_may_be_wide() -> None:
    deep: Predicate = col("c") == 0
    for i in range(PREDICATE_DEPTH_MAX - 1):
        deep = (deep & (col("c") > i)) if i % 2 else (deep | (col("c") < i))
    deep.bind(schema_for("int"))
    with pytest.raises(FlussError, match=f"nested at most {PREDICATE_DEPTH_MAX} levels"):
        deep.and_(col("c") == 0)
    wide: Predicate = col("c") == 0
    for i in range(500):
        wide = wide | (col("c") == i)
    tree = wide.bind(schema_for("int"))
    assert isinstance(tree, BoundCompound)
    assert len(tree.children) == 501


@given(st.datetimes())
def test_datetimes_keep_every_microsecond(value: dt.datetime) -> None:
    ((millis, nanos),) = bound(col("c") == value, "timestamp").literals  # type: ignore[misc]
    assert dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=millis, microseconds=nanos // 1000) == value
    assert 0 <= nanos < 1_000_000


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_exact_or_refused(value: Decimal) -> None:
    try:
        (unscaled,) = bound(col("c") == value, "decimal(38,10)").literals
    except FlussError:
        return
    assert isinstance(unscaled, int)
    # The default context would round to 28 digits.
    assert Decimal(unscaled).scaleb(-10, Context(prec=60)) == value
