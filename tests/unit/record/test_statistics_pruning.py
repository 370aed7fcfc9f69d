"""No batch that holds a matching row is ever skipped, and batches that cannot hold one are.
Random batches and filters against a plain evaluation of every row; then the rules of each function one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError
from fluss.record.pruning import BatchFilter
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.predicate import BoundCompound, BoundLeaf, BoundPredicate, CompoundFunction, LeafFunction
from fluss.schema.type_parser import parse_type
from fluss.schema.types import BooleanType, CharType, DataType, DoubleType, FloatType, IntType, StringType
from fluss.testing.strategies import internal_values, scalar_types
from tests.damage import injuries
from tests.unit.record.statistics_model import (
    BatchStatistics,
    ColumnStatistics,
    block_of,
    decode_statistics,
    filter_keeps,
    heads_with,
    may_match,
)

AND, OR = CompoundFunction.AND, CompoundFunction.OR
F = LeafFunction
TEXT_FUNCTIONS = (F.STARTS_WITH, F.CONTAINS, F.ENDS_WITH)
SET_FUNCTIONS = (F.IN, F.NOT_IN)
NULL_FUNCTIONS = (F.IS_NULL, F.IS_NOT_NULL)

# Rows of few different values meet the literals often; the whole range of a type is drawn as well.
SMALL_VALUES: dict[type[DataType], list[Any]] = {
    IntType: [-1, 0, 1, 2],
    StringType: ["", "a", "ab", "b", "\uffff", "\U0001f600"],
    DoubleType: [-0.0, 0.0, 1.5, -math.inf, math.nan],
    FloatType: [-0.0, 0.0, 1.5, math.inf, math.nan],
    BooleanType: [False, True],
    CharType: ["a", "b"],
}
ROW_TESTS: dict[LeafFunction, Callable[[Any, Any], bool]] = {
    F.EQUAL: lambda value, literal: value == literal,
    F.NOT_EQUAL: lambda value, literal: value != literal,
    F.LESS_THAN: lambda value, literal: value < literal,
    F.LESS_OR_EQUAL: lambda value, literal: value <= literal,
    F.GREATER_THAN: lambda value, literal: value > literal,
    F.GREATER_OR_EQUAL: lambda value, literal: value >= literal,
    F.STARTS_WITH: lambda value, literal: value.startswith(literal),
    F.CONTAINS: lambda value, literal: literal in value,
    F.ENDS_WITH: lambda value, literal: value.endswith(literal),
}


def total_order(value: Any) -> Any:
    """Order floats as readers do that put -0.0 before 0.0 and NaN after everything."""
    if not isinstance(value, float):
        return value
    return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))


# Readers compare in one way or the other; a row that matches in either must be found.
ORDERS: list[Callable[[Any], Any]] = [lambda value: value, total_order]


def row_matches(predicate: BoundPredicate, row: tuple[Any, ...], key: Callable[[Any], Any]) -> bool:
    """Evaluate one row by the book; ``key`` says how values are compared."""
    if isinstance(predicate, BoundCompound):
        answers = [row_matches(child, row, key) for child in predicate.children]
        return all(answers) if predicate.function is AND else any(answers)
    value = row[predicate.column_index]
    if predicate.function in NULL_FUNCTIONS:
        return (value is None) == (predicate.function is F.IS_NULL)
    if value is None:
        return False
    if predicate.function is F.NOT_IN:
        return None not in predicate.literals and all(key(value) != key(literal) for literal in predicate.literals)
    if predicate.function is F.IN:
        return any(literal is not None and key(value) == key(literal) for literal in predicate.literals)
    (literal,) = predicate.literals
    return literal is not None and ROW_TESTS[predicate.function](key(value), key(literal))


def values_of(data_type: DataType) -> st.SearchStrategy[Any]:
    present = internal_values(data_type.not_null())
    small = SMALL_VALUES.get(type(data_type))
    return present if small is None else st.sampled_from(small) | present


@st.composite
def leaves(draw: st.DrawFn, types: list[DataType]) -> BoundLeaf:
    index = draw(st.integers(0, len(types) - 1))
    is_text = isinstance(types[index], StringType | CharType)
    function = draw(st.sampled_from([f for f in F if is_text or f not in TEXT_FUNCTIONS]))
    literals: list[Any] = []
    if function in SET_FUNCTIONS:
        literals = draw(st.lists(st.none() | values_of(types[index]), max_size=3))
    elif function not in NULL_FUNCTIONS:
        literals = [draw(values_of(types[index]))]
    return BoundLeaf(function, index, index, types[index], tuple(literals))


def predicates(types: list[DataType]) -> st.SearchStrategy[BoundPredicate]:
    return st.recursive(
        leaves(types),
        lambda inner: st.builds(
            BoundCompound, st.sampled_from(CompoundFunction), st.lists(inner, min_size=1, max_size=3).map(tuple)
        ),
        max_leaves=4,
    )


@st.composite
def filtered_batches(draw: st.DrawFn) -> tuple[list[DataType], pa.RecordBatch, BoundPredicate]:
    types = draw(st.lists(scalar_types().filter(supports_statistics), min_size=1, max_size=3))
    row_count = draw(st.integers(1, 6))
    columns = []
    for data_type in types:
        values = values_of(data_type) | st.none() if data_type.nullable else values_of(data_type)
        columns.append(arrow_from_internal(draw(st.lists(values, min_size=row_count, max_size=row_count)), data_type))
    batch = pa.RecordBatch.from_arrays(columns, [f"c{index}" for index in range(len(columns))])
    return types, batch, draw(predicates(types))


@given(filtered_batches())
def test_a_batch_with_a_matching_row_is_never_skipped(
    drawn: tuple[list[DataType], pa.RecordBatch, BoundPredicate],
) -> None:
    types, batch, predicate = drawn
    block = collect_statistics(batch, types, range(len(types)))
    columns = [internal_from_arrow(batch.column(index), types[index]) for index in range(len(types))]
    if any(row_matches(predicate, row, key) for row in zip(*columns, strict=True) for key in ORDERS):
        assert filter_keeps(predicate, block, types, batch.num_rows)


def all_leaves(data_type: DataType) -> Iterator[BoundLeaf]:
    """Yield every question that can be asked with the small values of a type."""
    for function in F:
        choices: list[tuple[Any, ...]] = [(value,) for value in SMALL_VALUES[type(data_type)]]
        if function in NULL_FUNCTIONS:
            choices = [()]
        elif function in SET_FUNCTIONS:
            choices += [(), *product([*SMALL_VALUES[type(data_type)], None], repeat=2)]
        elif function in TEXT_FUNCTIONS and not isinstance(data_type, StringType | CharType):
            continue
        for literals in choices:
            yield BoundLeaf(function, 0, 0, data_type, literals)


@pytest.mark.parametrize("data_type", [*(t() for t in SMALL_VALUES if t is not CharType), CharType(3)], ids=str)
def test_every_small_batch_is_kept_by_every_filter_that_matches(data_type: DataType) -> None:
    questions = list(all_leaves(data_type))
    skipped = 0
    for values in product([*SMALL_VALUES[type(data_type)], None], repeat=2):
        batch = pa.RecordBatch.from_arrays([arrow_from_internal(values, data_type)], ["c0"])
        heads = heads_with([collect_statistics(batch, [data_type], [0])], [2], [1])
        for leaf in questions:
            matches = any(row_matches(leaf, (value,), key) for value in values for key in ORDERS)
            is_kept = BatchFilter(leaf).may_match(heads, lambda _: [data_type])[0]
            assert is_kept or not matches, (values, leaf)
            skipped += not is_kept
    assert skipped > 20, "the filters are of some use"


INT, STRING, DOUBLE = parse_type("INT"), parse_type("STRING"), parse_type("DOUBLE")


def kept(
    data_type: DataType, bounds: tuple[Any, Any], function: LeafFunction, *literals: Any, null_count: int = 0
) -> bool:
    """Ask about a batch of 10 rows whose only column has these bounds."""
    column = ColumnStatistics(data_type, null_count, *bounds)
    leaf = BoundLeaf(function, 0, 0, data_type, literals)
    answer = filter_keeps(leaf, block_of({0: column}), [data_type], 10)
    assert answer == may_match(leaf, BatchStatistics({0: column}), 10), "the model says the same"
    return answer


@pytest.mark.parametrize(
    ("function", "kept_literals", "skipped_literals"),
    [
        (F.EQUAL, [3, 5, 7], [2, 8]),
        (F.NOT_EQUAL, [2, 3, 5, 7], []),
        (F.LESS_THAN, [4, 100], [3, -100]),
        (F.LESS_OR_EQUAL, [3, 4], [2]),
        (F.GREATER_THAN, [6, -100], [7, 100]),
        (F.GREATER_OR_EQUAL, [7, 6], [8]),
        (F.IN, [3, 5, 7], [2, 8]),
        (F.NOT_IN, [2, 3, 5], []),
    ],
)
def test_comparisons_with_a_batch_of_3_to_7(
    function: LeafFunction, kept_literals: list[int], skipped_literals: list[int]
) -> None:
    assert all(kept(INT, (3, 7), function, literal) for literal in kept_literals)
    assert not any(kept(INT, (3, 7), function, literal) for literal in skipped_literals)


def test_a_batch_of_one_value_is_skipped_when_that_value_is_excluded() -> None:
    assert not kept(INT, (5, 5), F.NOT_EQUAL, 5)
    assert kept(INT, (5, 5), F.NOT_EQUAL, 6)
    assert not kept(INT, (5, 5), F.NOT_IN, 4, 5)
    assert kept(INT, (5, 5), F.NOT_IN, 4, 6)


def test_a_set_needs_one_literal_inside_the_bounds() -> None:
    assert kept(INT, (3, 7), F.IN, 1, 4)
    assert not kept(INT, (3, 7), F.IN, 1, 8)
    assert not kept(INT, (3, 7), F.IN)
    assert kept(INT, (3, 7), F.NOT_IN)


@pytest.mark.parametrize(
    ("prefix", "is_kept"),
    [
        ("", True),
        ("b", True),
        ("bc", True),
        ("m", True),
        ("ma", False),
        ("l", True),
        ("bb", False),
        ("n", False),
        ("a", False),
    ],
)
def test_a_prefix_must_overlap_the_bounds(prefix: str, is_kept: bool) -> None:
    assert kept(STRING, ("bcd", "m"), F.STARTS_WITH, prefix) == is_kept


def test_texts_are_ordered_by_their_bytes() -> None:
    # In UTF-16 units, which other languages compare, the emoji would come before U+FFFF.
    assert kept(STRING, ("\uffff", "\U0001f600"), F.EQUAL, "\U0001f5ff")
    assert not kept(STRING, ("\uffff", "\U0001f600"), F.LESS_THAN, "\ufffe")


@pytest.mark.parametrize("function", [F.CONTAINS, F.ENDS_WITH])
def test_parts_and_suffixes_say_nothing_about_bounds(function: LeafFunction) -> None:
    assert kept(STRING, ("a", "b"), function, "zzz")
    assert not kept(STRING, (None, None), function, "zzz", null_count=10)


def test_nulls_are_counted() -> None:
    assert not kept(INT, (3, 7), F.IS_NULL, null_count=0)
    assert kept(INT, (3, 7), F.IS_NULL, null_count=1)
    assert kept(INT, (3, 7), F.IS_NOT_NULL, null_count=9)
    assert not kept(INT, (None, None), F.IS_NOT_NULL, null_count=10)


@pytest.mark.parametrize("function", [f for f in F if f is not F.IS_NULL])
def test_a_column_of_nulls_matches_nothing_but_is_null(function: LeafFunction) -> None:
    assert not kept(STRING, (None, None), function, "a", null_count=10)
    assert kept(STRING, (None, None), F.IS_NULL, null_count=10)


@pytest.mark.parametrize("function", [f for f in F if f not in (*NULL_FUNCTIONS, F.CONTAINS, F.ENDS_WITH, F.NOT_IN)])
def test_a_null_literal_matches_nothing(function: LeafFunction) -> None:
    assert not kept(STRING, ("a", "z"), function, None)


@pytest.mark.parametrize("function", F)
@pytest.mark.parametrize("bounds", [(None, None), (None, "b"), ("a", None)])
def test_unknown_bounds_keep_the_batch(function: LeafFunction, bounds: tuple[Any, Any]) -> None:
    assert kept(STRING, bounds, function, "zzz", null_count=1)


@pytest.mark.parametrize("function", F)
def test_an_impossible_null_count_keeps_the_batch(function: LeafFunction) -> None:
    assert kept(INT, (3, 7), function, 100, null_count=11)


@pytest.mark.parametrize("function", [f for f in F if f not in (*NULL_FUNCTIONS, *TEXT_FUNCTIONS)])
def test_nan_keeps_the_batch(function: LeafFunction) -> None:
    assert kept(DOUBLE, (1.0, 2.0), function, math.nan)
    assert kept(DOUBLE, (math.nan, 2.0), function, 1.0)
    assert kept(DOUBLE, (1.0, math.nan), function, 9.0)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_is_compared_with_care(zero: float) -> None:
    assert kept(DOUBLE, (0.0, 1.0), F.LESS_THAN, zero)
    assert kept(DOUBLE, (-1.0, 0.0), F.GREATER_THAN, zero)
    assert kept(DOUBLE, (-0.0, 0.0), F.NOT_EQUAL, zero)
    assert not kept(DOUBLE, (0.5, 1.0), F.LESS_THAN, zero)


def test_timestamps_are_compared_to_the_nanosecond() -> None:
    bounds = (Timestamp(5, 100), Timestamp(5, 200))
    data_type = parse_type("TIMESTAMP(9)")
    assert kept(data_type, bounds, F.EQUAL, (5, 150))
    assert not kept(data_type, bounds, F.LESS_THAN, (5, 100))
    assert not kept(data_type, bounds, F.GREATER_THAN, (5, 200))


def test_all_and_any_combine_the_answers() -> None:
    block = block_of({0: ColumnStatistics(INT, 0, 3, 7), 1: ColumnStatistics(STRING, 0, "a", "c")})
    holds = BoundLeaf(F.EQUAL, 0, 0, INT, (5,))
    fails = BoundLeaf(F.EQUAL, 1, 1, STRING, ("x",))

    def keeps(function: CompoundFunction, *children: BoundPredicate) -> bool:
        return filter_keeps(BoundCompound(function, children), block, [INT, STRING], 10)

    assert not keeps(AND, holds, fails)
    assert keeps(OR, fails, holds)
    assert not keeps(OR, fails, fails)
    assert keeps(AND, holds, BoundCompound(OR, (fails, holds)))


def test_what_is_not_known_keeps_the_batch() -> None:
    block = block_of({0: ColumnStatistics(INT, 0, 3, 7)})

    def keeps(leaf: BoundLeaf, block: bytes = block) -> bool:
        return filter_keeps(leaf, block, [INT, INT], 10)

    assert keeps(BoundLeaf(F.EQUAL, 0, 0, INT, (100,)), b"")
    assert keeps(BoundLeaf(F.EQUAL, 1, 1, INT, (100,))), "no statistics of this column"
    assert keeps(BoundLeaf(F.EQUAL, 0, 0, parse_type("BIGINT"), (100,))), "another type"
    assert keeps(BoundLeaf(F.EQUAL, 0, 0, INT, ("text",))), "a literal of another type"
    assert keeps(BoundLeaf(F.STARTS_WITH, 0, 0, INT, (1,))), "a function of another type"
    assert not keeps(BoundLeaf(F.EQUAL, 0, 0, INT.not_null(), (100,))), "nullability does not matter"


# Many batches at once, against one after the other


@st.composite
def column_statistics(draw: st.DrawFn, data_type: DataType) -> ColumnStatistics:
    """Anything a block can say, also what no rows could be like."""
    bound = st.none() | values_of(data_type)
    return ColumnStatistics(data_type, draw(st.integers(0, 11)), draw(bound), draw(bound))


@st.composite
def many_batches(draw: st.DrawFn) -> tuple[dict[int, list[DataType]], list[tuple[int, int, bytes]], BoundPredicate]:
    """Schemas by id, of which later ones have more columns; batches with schema id, rows and block; a filter."""
    types = draw(st.lists(scalar_types().filter(supports_statistics), min_size=1, max_size=4))
    schemas = {1: types[: draw(st.integers(1, len(types)))], 2: types}
    batches = []
    for _ in range(draw(st.integers(1, 12))):
        schema_id = draw(st.sampled_from([1, 2, 2, 2]))
        known = draw(st.lists(st.sampled_from(range(len(schemas[schema_id]))), unique=True, max_size=4))
        block = block_of({index: draw(column_statistics(types[index])) for index in known})
        batches.append((schema_id, draw(st.integers(1, 10)), block))
    return schemas, batches, draw(predicates(types))


def _answers(
    schemas: dict[int, list[DataType]], batches: list[tuple[int, int, bytes]], predicate: BoundPredicate
) -> list[bool]:
    schema_ids, record_counts, blocks = zip(*batches, strict=True)
    answers: list[bool] = (
        BatchFilter(predicate).may_match(heads_with(blocks, record_counts, schema_ids), schemas.get).tolist()
    )
    return answers


@given(many_batches())
def test_many_batches_at_once_are_judged_as_one_after_the_other(
    drawn: tuple[dict[int, list[DataType]], list[tuple[int, int, bytes]], BoundPredicate],
) -> None:
    schemas, batches, predicate = drawn
    expected = [
        may_match(predicate, decode_statistics(block, schemas[schema_id]), record_count)
        for schema_id, record_count, block in batches
    ]
    assert _answers(schemas, batches, predicate) == expected


WIDE = [parse_type(text) for text in ("DECIMAL(30,2)", "TIMESTAMP(9)", "STRING", "TIME(3)", "FLOAT", "DECIMAL(5,1)")]


def test_damaged_blocks_keep_their_batch_and_disturb_no_other() -> None:
    sound = ColumnStatistics
    bounds = [
        (10**28, 10**29 - 1),
        (Timestamp(5, 6), Timestamp(7, 8)),
        ("longer than seven", "m"),
        (7, 9),
        (1.5, 2.0),
        (1, 9),
    ]
    block = block_of({index: sound(data_type, 0, *bounds[index]) for index, data_type in enumerate(WIDE)})
    # Nothing of it matches; every column is asked.
    nowhere: list[Any] = [0, (0, 0), "a", 1, 0.5, -5]
    predicate = BoundCompound(
        OR, tuple(BoundLeaf(F.EQUAL, i, i, data_type, (nowhere[i],)) for i, data_type in enumerate(WIDE))
    )
    assert _answers({1: WIDE}, [(1, 5, block)], predicate) == [False]
    damaged = list(injuries(block))
    answers = _answers({1: WIDE}, [(1, 5, each) for each in (*damaged, block)], predicate)
    assert answers[-1] is False
    refused = 0
    for copy, is_kept in zip(damaged, answers, strict=False):
        try:
            expected = may_match(predicate, decode_statistics(copy, WIDE), 5)
        except CorruptRecordError:
            expected = True
            refused += 1
        assert is_kept or not expected, copy.hex()
        assert is_kept == expected or refused, copy.hex()
    assert refused > 100


def test_a_batch_of_an_unknown_schema_is_kept() -> None:
    block = block_of({0: ColumnStatistics(INT, 0, 3, 7)})
    assert _answers({1: [INT]}, [(1, 5, block), (9, 5, block)], BoundLeaf(F.EQUAL, 0, 0, INT, (8,))) == [False, True]
