"""Folding all changes of a table leaves exactly the rows that a dict would have after applying them one by one.
Shown with random changes of several buckets, cut into batches anywhere, folded often and seldom."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss.client.kernel.decode import ScanColumns
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.records import RecordRun
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket

INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
SCHEMA = Schema(
    pa.schema([("name", pa.string()), ("a", pa.int64()), ("b", pa.string()), ("tags", pa.list_(pa.string()))]),
    primary_keys=["b", "a"],
)
KEY = ["b", "a"]
BUCKETS = [TableBucket(7, number) for number in range(3)]


def random_changes(rng: random.Random, count: int) -> tuple[list[tuple[int, int, dict[str, Any]]], dict[Any, Any]]:
    """Return changes as (bucket, change type, row), and the rows they leave."""
    state: dict[Any, dict[str, Any]] = {}
    changes = []
    for _ in range(count):
        bucket, a, b = rng.randrange(3), rng.randrange(-2, 3), rng.choice(["", "x", "yy"])
        row = {"name": rng.choice(["n", None]), "a": a, "b": b, "tags": rng.choice([None, [], ["t"]])}
        old = state.get((bucket, b, a))
        if old is not None and rng.random() < 0.3:
            changes.append((bucket, DELETE, old))
            del state[bucket, b, a]
            continue
        if old is None:
            changes.append((bucket, INSERT, row))
        else:
            # Some changelogs leave the row before the change out.
            changes += [(bucket, BEFORE, old)] * rng.randrange(2) + [(bucket, AFTER, row)]
        state[bucket, b, a] = row
    return changes, state


def runs(changes: list[tuple[int, int, dict[str, Any]]], columns: ScanColumns, rng: random.Random) -> list[RecordRun]:
    """Cut the changes into batches, each of one bucket, in an order in which they could arrive."""
    by_bucket = [[change for change in changes if change[0] == number] for number in range(3)]
    made = []
    names = [column.name for column in columns.columns]
    while any(by_bucket):
        number = rng.choice([number for number in range(3) if by_bucket[number]])
        size = rng.randrange(1, 6)
        batch, by_bucket[number] = by_bucket[number][:size], by_bucket[number][size:]
        arrays = [
            pa.array([row[name] for _, _, row in batch], field.type)
            for name, field in zip(names, columns.arrow_schema, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=columns.arrow_schema)
        types = tuple(column.data_type for column in columns.columns)
        kinds = np.array([kind for _, kind, _ in batch], np.uint8)
        made.append(RecordRun(BUCKETS[number], 0, 0, rows, types, kinds))
    return made


@pytest.mark.parametrize("pending_rows_min", [1, 16, 262_144])
@pytest.mark.parametrize("positions", [None, [0], [1, 0, 1], [3, 2]], ids=str)
def test_the_last_change_of_each_key_counts(pending_rows_min: int, positions: list[int] | None) -> None:
    rng = random.Random(f"{pending_rows_min} {positions}")
    columns = ScanColumns(1, SCHEMA, positions)
    with_keys = columns.with_columns(KEY)
    for count in (0, 1, 5, 300):
        changes, state = random_changes(rng, count)
        fold = ChangelogFold(columns, with_keys, KEY, pending_rows_min=pending_rows_min)
        for run in runs(changes, with_keys, rng):
            fold.add(run)
        found = []
        for run in fold.rows():
            assert run.batch is not None
            assert run.batch.schema == columns.arrow_schema
            assert run.is_snapshot
            found += [(run.bucket.bucket_id, row) for row in zip(*run.batch.to_pydict().values(), strict=True)]
        names = list(dict.fromkeys(column.name for column in columns.columns))
        expected = [(key[0], tuple(row[name] for name in names)) for key, row in state.items()]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_columns_that_are_chosen_already_are_not_read_twice() -> None:
    assert ScanColumns(1, SCHEMA, None).with_columns(KEY).positions is None
    assert ScanColumns(1, SCHEMA, [1, 0]).with_columns(KEY).positions == (1, 0, 2)
    assert ScanColumns(1, SCHEMA, [2, 1]).with_columns(KEY).positions == (2, 1)
