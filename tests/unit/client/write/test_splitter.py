"""Arrow batches fall apart by partition and by bucket exactly as their rows would, one by one.
Hypothesis draws batches; the encoders of single rows are the oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.client.kernel.placement import BucketSplitter, PartitionSplitter
from fluss.errors import FlussError
from fluss.row.bucketing import bucket_for
from fluss.row.key import bucket_key_encoder
from fluss.row.partition_names import row_partition_name
from fluss.row.values import arrow_from_internal
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataType, DataTypes
from fluss.testing.strategies import internal_values, scalar_types

KEY_TYPES = scalar_types(nullable=False)
# Small ranges, so that partitions come again.
PARTITION_TYPES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (DataTypes.string(), st.sampled_from(["US", "EU", ""])),
    (DataTypes.int(), st.integers(-1, 1)),
    (DataTypes.boolean(), st.booleans()),
    (DataTypes.date(), st.integers(0, 2)),
    (DataTypes.double(), st.sampled_from([0.0, -0.0, 1.5])),
    (DataTypes.bytes(), st.sampled_from([b"", b"\xff"])),
]


def batch_of(types: list[DataType], rows: list[tuple[Any, ...]]) -> tuple[Schema, pa.RecordBatch]:
    schema = Schema._create([Column(f"c{i}", t) for i, t in enumerate(types)])
    columns = [arrow_from_internal([row[i] for row in rows], t) for i, t in enumerate(types)]
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())


@settings(max_examples=60)
@given(st.data())
def test_partitions_are_those_of_the_single_rows_in_their_order(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(PARTITION_TYPES), min_size=1, max_size=3))
    keys = data.draw(st.lists(st.tuples(*(values for _, values in chosen)), min_size=1, max_size=40))
    types = [t for t, _ in chosen]
    rows = [(*key, index) for index, key in enumerate(keys)]
    schema, batch = batch_of([*types, DataTypes.int()], rows)
    expected: dict[str, list[int]] = {}
    for row in rows:
        expected.setdefault(row_partition_name(types, row[:-1]), []).append(row[-1])
    parts = PartitionSplitter(schema, [f"c{i}" for i in range(len(types))]).split(batch)
    found: dict[str, list[int]] = {}
    for name, part in parts:
        found.setdefault(name, []).extend(part.column(len(types)).to_pylist())
    assert list(found.items()) == list(expected.items())


@settings(max_examples=60)
@given(st.data())
def test_buckets_are_those_of_the_single_rows(data: st.DataObject) -> None:
    types = data.draw(st.lists(KEY_TYPES, min_size=1, max_size=3))
    lake_format = data.draw(st.sampled_from([None, "lance", "paimon"]))
    variant = data.draw(st.sampled_from(["java", "rust"]))
    keys = data.draw(st.lists(st.tuples(*map(internal_values, types)), min_size=1, max_size=40))
    bucket_count = data.draw(st.integers(1, 7))
    rows = [(index, *key) for index, key in enumerate(keys)]
    schema, batch = batch_of([DataTypes.int(), *types], rows)
    names = [f"c{i + 1}" for i in range(len(types))]
    splitter = BucketSplitter(schema, names, bucket_count, lake_format, variant)
    encoder = bucket_key_encoder(types, lake_format)
    expected: dict[int, list[int]] = {}
    for row in rows:
        bucket_id = bucket_for(encoder.encode(row[1:]), bucket_count, lake_format, variant)
        expected.setdefault(bucket_id, []).append(row[0])
    assert {bucket_id: part.column(0).to_pylist() for bucket_id, part in splitter.split(batch)} == expected


def test_a_batch_of_one_partition_comes_back_as_it_is_and_a_sorted_one_in_slices() -> None:
    schema, batch = batch_of([DataTypes.string(), DataTypes.int()], [("US", 1), ("US", 2)])
    splitter = PartitionSplitter(schema, ["c0"])
    ((name, part),) = splitter.split(batch)
    assert name == "US"
    assert part is batch
    _, batch = batch_of([DataTypes.string(), DataTypes.int()], [("US", 1), ("US", 2), ("EU", 3)])
    slices = splitter.split(batch)
    assert [(name, part.column(1).to_pylist()) for name, part in slices] == [("US", [1, 2]), ("EU", [3])]
    for _, part in slices:
        assert part.column(1).buffers()[1].address == batch.column(1).buffers()[1].address


def test_nulls_in_keys_are_refused() -> None:
    schema, batch = batch_of([DataTypes.string(), DataTypes.int()], [("US", 1), (None, None)])
    with pytest.raises(FlussError, match="Partition value shouldn't be null"):
        PartitionSplitter(schema, ["c0"]).check_keys(batch)
    with pytest.raises(FlussError, match="Bucket key column 'c1' contains null"):
        BucketSplitter(schema, ["c1"], 2, None, "java").check_keys(batch)
    # Paimon hashes nulls, too.
    BucketSplitter(schema, ["c1"], 2, "paimon", "java").check_keys(batch)
