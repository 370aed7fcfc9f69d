"""Checksums are the same for the same rows in any order and any batches, and different for anything else.

Random rows of all types, against a comparison of the rows as Python values; no session.
"""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.values import arrow_from_internal, internal_from_arrow
from fluss.schema.types import BigIntType, DataType, StringType
from fluss.spark.bulk.copy_work import checksum
from fluss.spark.bulk.reports import Checksum
from fluss.testing.strategies import internal_rows, row_types


@st.composite
def rows_of_a_type(draw: st.DrawFn) -> tuple[list[DataType], list[tuple[object, ...]]]:
    types = draw(row_types())
    return types, draw(st.lists(internal_rows(types), min_size=1, max_size=12))


def batch_of(types: list[DataType], rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = [arrow_from_internal([row[index] for row in rows], data_type) for index, data_type in enumerate(types)]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{index}" for index in range(len(columns))])


@given(rows_of_a_type(), st.randoms(use_true_random=False))
def test_order_and_batches_do_not_matter(
    given_rows: tuple[list[DataType], list[tuple[object, ...]]], rng: random.Random
) -> None:
    types, rows = given_rows
    whole = checksum(batch_of(types, rows), types)
    shuffled = list(rows)
    rng.shuffle(shuffled)
    batch = batch_of(types, shuffled)
    middle = rng.randrange(len(rows) + 1)
    parts = (batch.slice(0, middle), batch.slice(middle))
    assert sum((checksum(part, types) for part in parts), Checksum()) == whole


@given(rows_of_a_type())
def test_rows_have_the_same_checksum_if_and_only_if_they_are_the_same(
    given_rows: tuple[list[DataType], list[tuple[object, ...]]],
) -> None:
    types, rows = given_rows
    batch = batch_of(types, rows)
    totals = [checksum(batch.slice(number, 1), types).total for number in range(len(rows))]
    columns = [internal_from_arrow(column, t) for column, t in zip(batch.columns, types, strict=True)]
    # Zeros of both signs are equal, but not the same.
    values = [repr(row) for row in zip(*columns, strict=True)]
    assert [totals.index(each) for each in totals] == [values.index(each) for each in values]


def test_rows_that_swap_a_value_have_another_checksum() -> None:
    types = [BigIntType(), StringType()]
    rows = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["x", "y"])})
    swapped = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["y", "x"])})
    assert checksum(rows, types) != checksum(swapped, types)


def test_a_row_twice_is_not_the_row_once() -> None:
    types = [BigIntType()]
    once = pa.record_batch({"a": pa.array([1])})
    twice = pa.record_batch({"a": pa.array([1, 1])})
    thrice = pa.record_batch({"a": pa.array([1, 1, 1])})
    assert len({checksum(batch, types).total for batch in (once, twice, thrice)}) == 3


def test_hashes_do_not_depend_on_the_process_that_makes_them() -> None:
    batch = pa.record_batch({"a": pa.array([1, None]), "b": pa.array(["fluss", "x" * 300])})
    assert checksum(batch, [BigIntType(), StringType()]) == Checksum(2, 14_869_258_701_180_826_248)
