"""Rows of a lake whose keys have changed are left out, and no others: what a set of Python's would say.
Shown with random keys of every kind that is looked up in its own way, in batches of any size."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss.client.kernel.decode import ScanColumns
from fluss.client.scan.changed_rows import ChangedRows, key_numbers
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.records import RecordRun
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket

INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
BUCKET = TableBucket(7, 0)
Draw = Callable[[random.Random], Any]


def number(rng: random.Random) -> int:
    return rng.choice([rng.randrange(-50, 50), rng.randrange(0, 1 << 40, 1 << 33)])


KEYS: dict[str, list[tuple[pa.DataType, Draw]]] = {
    "bigint": [(pa.int64(), number)],
    "int": [(pa.int32(), lambda rng: rng.randrange(-(1 << 31), 1 << 31, 1 << 25))],
    "tinyint": [(pa.int8(), lambda rng: rng.randrange(-128, 128))],
    "date": [(pa.date32(), lambda rng: date(2020, 1, 1) + timedelta(rng.randrange(90)))],
    "timestamp": [(pa.timestamp("ms"), lambda rng: datetime(2020, 1, 1) + timedelta(hours=rng.randrange(90)))],
    "string": [(pa.string(), lambda rng: rng.choice("abc") * rng.randrange(30))],
    "double": [(pa.float64(), lambda rng: rng.choice([0.0, -0.0, 1.5, float(rng.randrange(90))]))],
    "several": [(pa.int64(), number), (pa.string(), lambda rng: rng.choice(["", "x"]))],
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", range(6))
def test_rows_that_have_changed_are_left_out(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"k{at}" for at in range(len(KEYS[kind]))]
    fields = [pa.field(name, type_, nullable=False) for name, (type_, _) in zip(names, KEYS[kind], strict=True)]
    schema = Schema(pa.schema([pa.field("v", pa.int64()), *fields]), primary_keys=names)
    wanted = ScanColumns(0, schema, [0])
    with_keys = wanted.with_columns(names)

    def drawn(count: int) -> list[tuple[Any, ...]]:
        # Zero and minus zero are two keys.
        keys = {repr(key): key for key in (tuple(draw(rng) for _, draw in KEYS[kind]) for _ in range(count))}
        return list(keys.values())

    def batch(keys: list[tuple[Any, ...]], first: int) -> pa.RecordBatch:
        columns = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(fields)]
        return pa.RecordBatch.from_arrays(
            [pa.array(range(first, first + len(keys)), pa.int64()), *columns], schema=with_keys.arrow_schema
        )

    fold = ChangelogFold(wanted, with_keys, names, keeps_deletes=True)
    changes = [(rng.choice([INSERT, BEFORE, AFTER, DELETE]), key) for key in drawn(rng.choice([0, 1, 60]))]
    if changes:
        rows = batch([key for _, key in changes], 1_000)
        types = np.array([each for each, _ in changes], np.uint8)
        column_types = tuple(column.data_type for column in with_keys.columns)
        fold.add(RecordRun(BUCKET, 0, 0, rows, column_types, types))
    changed = ChangedRows(fold, BUCKET, with_keys, names)
    lake = drawn(200)
    gone = {repr(key) for each, key in changes if each != BEFORE}
    expected = [at for at, key in enumerate(lake) if repr(key) not in gone]
    size = rng.choice([1, 7, 1000])
    batches = [batch(lake[at : at + size], at) for at in range(0, len(lake), size)]
    found = pa.Table.from_batches(changed.unchanged(iter(batches), wanted), wanted.arrow_schema)
    assert found["v"].to_pylist() == expected
    if changed.number_key is not None:
        places = [changed.find(each) for each in batches]
        left = [np.delete(each["v"].to_numpy(), at) for each, at in zip(batches, places, strict=True)]
        assert np.concatenate(left).tolist() == expected
        ascending = sorted(key for (key,) in lake)
        numbers = key_numbers(pa.array(ascending, fields[0].type))
        gone_keys = [at for at, key in enumerate(ascending) if repr((key,)) in gone]
        assert changed.find_among(numbers, is_ascending=True).tolist() == gone_keys
    now = pa.Table.from_batches(changed.rows(wanted), wanted.arrow_schema)
    there = [1_000 + at for at, (each, _) in enumerate(changes) if each in (INSERT, AFTER)]
    assert sorted(now["v"].to_pylist()) == there


def test_the_range_of_keys_is_known_for_numbers() -> None:
    schema = Schema(pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.string())]), primary_keys=["id"])
    columns = ScanColumns(0, schema, None)
    fold = ChangelogFold(columns, columns, ["id"], keeps_deletes=True)
    assert ChangedRows(fold, BUCKET, columns, ["id"]).number_range("id") is None
    rows = pa.RecordBatch.from_arrays([pa.array([5, -3, 9]), pa.array(["a", "b", "c"])], schema=columns.arrow_schema)
    types = tuple(column.data_type for column in columns.columns)
    fold.add(RecordRun(BUCKET, 0, 0, rows, types, np.array([INSERT, DELETE, AFTER], np.uint8)))
    changed = ChangedRows(fold, BUCKET, columns, ["id"])
    assert changed.number_range("id") == (-3, 9)
    assert changed.number_range("n") is None


@pytest.mark.parametrize("seed", range(20))
def test_positions_of_changed_keys_are_found_in_any_order_of_the_keys(seed: int) -> None:
    rng = random.Random(seed)
    schema = Schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_keys=["id"])
    columns = ScanColumns(0, schema, None)
    fold = ChangelogFold(columns, columns, ["id"], keeps_deletes=True)
    keys = rng.sample(range(-100, 100), rng.choice([1, 10, 200]))
    rows = pa.RecordBatch.from_arrays([pa.array(keys)], schema=columns.arrow_schema)
    types = tuple(column.data_type for column in columns.columns)
    fold.add(RecordRun(BUCKET, 0, 0, rows, types, np.full(len(keys), AFTER, np.uint8)))
    changed = ChangedRows(fold, BUCKET, columns, ["id"])
    assert changed.number_key == "id"
    numbers = np.array(rng.sample(range(-150, 150), rng.choice([0, 1, 100])), np.int64)
    expected = [at for at, number in enumerate(numbers) if number in keys]
    assert changed.find_among(numbers, is_ascending=False).tolist() == expected
    ascending = np.sort(numbers)
    expected = [at for at, number in enumerate(ascending) if number in keys]
    assert changed.find_among(ascending, is_ascending=True).tolist() == expected
