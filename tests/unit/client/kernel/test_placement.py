"""Batches of rows give the keys, buckets and partitions that single rows have, also in tables of lakes.
Hypothesis draws keys and batches; the encoders of single rows are the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.kernel.placement import BucketSplitter, PartitionSplitter, TableKeys
from fluss.errors import FlussError
from fluss.row.bucketing import HashVariant, bucket_for
from fluss.row.compacted import encode_fields
from fluss.row.key import bucket_key_encoder
from fluss.row.partition_names import row_partition_name
from fluss.row.values import arrow_from_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.types import DataType, DataTypes
from fluss.testing.strategies import internal_rows, internal_values, scalar_types

INT, STRING = DataTypes.int(), DataTypes.string()


def info_of(
    types: Sequence[DataType],
    *,
    key: list[str],
    bucket_keys: list[str] | None = None,
    partition_keys: list[str] | None = None,
    bucket_count: int = 7,
    properties: dict[str, str] | None = None,
) -> TableInfo:
    """Describe a table with the columns ``c0``, ``c1``, ..."""
    schema = schema_from_columns([Column(f"c{i}", t) for i, t in enumerate(types)], key)
    descriptor = TableDescriptor(
        schema,
        bucket_count=bucket_count,
        bucket_keys=bucket_keys,
        partition_keys=partition_keys,
        properties=properties,
    )
    return TableInfo._create(TablePath("fluss", "t"), 1, 1, descriptor, 0, 0)


def columns_of(types: Sequence[DataType], rows: list[tuple[Any, ...]]) -> list[Any]:
    return [arrow_from_internal([row[i] for row in rows], t.not_null()) for i, t in enumerate(types)]


@given(data=st.data(), types=st.lists(scalar_types(nullable=False), min_size=1, max_size=4))
def test_batches_and_rows_have_the_same_keys_and_buckets(data: st.DataObject, types: list[DataType]) -> None:
    names = [f"c{i}" for i in range(len(types))]
    bucket_keys = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    variant: HashVariant = data.draw(st.sampled_from(["java", "rust"]))
    rows = data.draw(st.lists(internal_rows(types), min_size=1, max_size=8))
    keys = TableKeys(info_of(types, key=names, bucket_keys=bucket_keys), variant)
    columns = columns_of(types, rows)
    encoded = keys.encode(columns)

    indexes = [names.index(name) for name in bucket_keys]
    bucket_types = [types[index] for index in indexes]
    expected = [encode_fields(types, row) for row in rows]
    buckets = [bucket_for(encode_fields(bucket_types, [row[i] for i in indexes]), 7, None, variant) for row in rows]
    assert encoded.to_list() == expected
    assert [keys.encode_row(row) for row in rows] == expected
    assert keys.buckets(columns, encoded).tolist() == buckets
    assert [keys.bucket(row, key) for row, key in zip(rows, expected, strict=True)] == buckets


def test_partition_columns_are_no_part_of_the_key_whose_order_is_that_of_the_primary_key() -> None:
    types = [STRING, INT, STRING, INT]
    keys = TableKeys(info_of(types, key=["c3", "c0", "c2"], partition_keys=["c0"]), "java")
    assert keys.key_names == ["c3", "c2"]
    assert keys.encode_row([7, "x"]) == encode_fields([INT, STRING], [7, "x"])


def test_a_prefix_is_the_beginning_of_the_key_and_has_its_bucket() -> None:
    info = info_of([INT, STRING, INT], key=["c0", "c1"], bucket_keys=["c0"])
    whole, prefix = TableKeys(info, "java"), TableKeys(info, "java", is_prefix=True)
    assert prefix.key_names == ["c0"]
    for number in range(300):
        key, start = whole.encode_row([number, "text"]), prefix.encode_row([number])
        assert key.startswith(start)
        assert whole.bucket([number, "text"], key) == prefix.bucket([number], start)


@pytest.mark.parametrize(
    ("lake_format", "version", "bucket_keys", "is_lakes"),
    [
        ("paimon", None, ["c0", "c1"], True),
        ("Paimon", "2", ["c0", "c1"], True),
        ("paimon", "2", ["c0"], False),
        ("paimon", "1", ["c0"], True),
        ("lance", "2", ["c0"], False),
        ("hudi", "2", ["c0"], False),
    ],
)
def test_lakes_have_keys_of_their_own(
    lake_format: str, version: str | None, bucket_keys: list[str], is_lakes: bool
) -> None:
    properties = {"table.datalake.format": lake_format}
    if version is not None:
        properties["table.kv.format-version"] = version
    info = info_of([INT, STRING, INT], key=["c0", "c1"], bucket_keys=bucket_keys, properties=properties)
    keys = TableKeys(info, "java")
    rows = [(number, f"text {number}") for number in range(50)]
    types = [INT.not_null(), STRING.not_null()]
    lake_bytes = [bucket_key_encoder(types, lake_format.lower()).encode(row) for row in rows]
    plain_bytes = [encode_fields(types, row) for row in rows]
    columns = columns_of(types, rows)
    encoded = keys.encode(columns)
    assert encoded.to_list() == (lake_bytes if is_lakes else plain_bytes)
    assert [keys.encode_row(row) for row in rows] == encoded.to_list()

    bucket_encoder = bucket_key_encoder(types[: len(bucket_keys)], lake_format.lower())
    expected = [bucket_for(bucket_encoder.encode(row[: len(bucket_keys)]), 7, lake_format.lower()) for row in rows]
    assert keys.buckets(columns, encoded).tolist() == expected
    assert [keys.bucket(row, key) for row, key in zip(rows, encoded.to_list(), strict=True)] == expected


@pytest.mark.parametrize(("version", "text"), [("two", "not a number"), ("3", "not supported")])
def test_a_version_of_the_future_is_refused(version: str, text: str) -> None:
    info = info_of([INT], key=["c0"], properties={"table.kv.format-version": version})
    with pytest.raises(FlussError, match=text):
        TableKeys(info, "java")


def test_nulls_are_refused() -> None:
    keys = TableKeys(info_of([INT], key=["c0"]), "java")
    with pytest.raises(FlussError, match="null"):
        keys.encode_row([None])
    with pytest.raises(FlussError, match="null"):
        keys.encode([arrow_from_internal([1, None], INT)])


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
    schema = schema_from_columns([Column(f"c{i}", t) for i, t in enumerate(types)])
    columns = [arrow_from_internal([row[i] for row in rows], t) for i, t in enumerate(types)]
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())


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
