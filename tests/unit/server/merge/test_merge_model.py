"""Whatever is written to a table, the changelog, the store, and a replay of the changelog are what the rules say.
Shown by random batches (repeated keys, deletes, old and new schemas, nulls, all types) against a model of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.row.values import Timestamp
from fluss.schema.schema import Column, Schema
from fluss.schema.types import BigIntType, DataType, IntType, TimestampType
from fluss.server.model import Table
from fluss.testing.strategies import data_types, internal_rows, internal_values, scalar_types
from tests.unit.server.merge.merge_model import MergeModel
from tests.unit.server.merge.merging import Delete, Merging, Row, key_of, make_table, with_columns

# KV format, log format.
FORMATS = (("compacted", "arrow"), ("compacted", "compacted"), ("indexed", "arrow"), ("indexed", "indexed"))


@dataclass
class Batch:
    """What is written, and to which version of the table; rows have the schema of ``schema_id``."""

    table: Table
    schema_id: int
    records: list[Row | Delete]
    targets: list[int]
    overwrite: bool


@dataclass
class Scene:
    model: MergeModel
    batches: list[Batch]
    decodes_apart: bool


@st.composite
def scenes(draw: st.DrawFn, engine: str | None, generated: bool = False) -> Scene:
    """Draw a table, the same table with more columns, and what is written to the one and then to the other."""
    key_types = draw(st.lists(scalar_types(nullable=False), min_size=1, max_size=2))
    # Partial updates need nullable columns.
    nullable = True if generated or draw(st.booleans()) else None
    types: list[DataType] = draw(st.lists(data_types(max_leaves=3, nullable=nullable), min_size=1, max_size=4))
    deletes = draw(st.sampled_from(("allow", "ignore", "disable") if engine is None else ("ignore", "disable")))
    image = draw(st.sampled_from(("FULL", "WAL")))
    properties = {"delete.behavior": deletes, "changelog.image": image, "log.arrow.compression.type": "none"}
    version_index = None
    if engine is not None:
        properties["merge-engine"] = engine
    if engine == "versioned":
        version_index = len(key_types)
        types[0] = draw(st.sampled_from((IntType(), BigIntType(), TimestampType(3), TimestampType(6))))
        properties["merge-engine.versioned.ver-column"] = f"c{version_index}"
    kv_format, log_format = draw(st.sampled_from(FORMATS))
    schema = _schema(key_types, types, generated)
    table = make_table(schema, properties, kv_format=kv_format, log_format=log_format)
    added = draw(st.lists(scalar_types(nullable=True), max_size=2))
    altered = with_columns(table, *(Column(f"added{i}", data_type) for i, data_type in enumerate(added)))
    generated_index = len(schema.columns) - 1 if generated else None
    keys = draw(st.lists(internal_rows(key_types), min_size=1, max_size=3))
    batches = [
        draw(_batches(version, keys, engine, version_index, generated_index))
        for version, count in ((table, 2), (altered, 3))
        for _ in range(draw(st.integers(0, count)))
    ]
    key_indexes = frozenset(range(len(key_types)))
    model = MergeModel(key_indexes, engine, image == "WAL", deletes, version_index, generated_index)
    return Scene(model, batches, decodes_apart=draw(st.booleans()))


def _schema(key_types: Sequence[DataType], types: Sequence[DataType], generated: bool) -> Schema:
    builder = Schema.builder()
    for i, data_type in enumerate((*key_types, *types)):
        builder.column(f"c{i}", data_type)
    if generated:
        builder.column("id", BigIntType()).enable_auto_increment("id")
    return builder.primary_key([f"c{i}" for i in range(len(key_types))]).build()


@st.composite
def _batches(
    draw: st.DrawFn,
    table: Table,
    keys: Sequence[Row],
    engine: str | None,
    version_index: int | None,
    generated_index: int | None,
) -> Batch:
    schema_id = draw(st.sampled_from(sorted(table.schemas)))
    types = table.schemas[schema_id].data_types
    key_count = len(keys[0])
    values = [internal_values(t) for t in types[key_count:]]
    if version_index is not None:
        values[0] = _versions(types[version_index])
    if generated_index is not None:
        values[generated_index - key_count] = st.none()
    row = st.tuples(*values)
    drawn = draw(st.lists(st.tuples(st.sampled_from(keys), st.one_of(st.none(), row, row)), max_size=10))
    records = [Delete(key) if values is None else key + values for key, values in drawn]
    overwrite = draw(st.booleans())
    targets: list[int] = []
    can_be_partial = (engine is None or overwrite) and all(
        t.nullable for t in table.descriptor.schema.data_types[key_count:]
    )
    if generated_index is not None or (can_be_partial and draw(st.booleans())):
        others = [i for i in range(key_count, len(types)) if i != generated_index]
        targets = [*range(key_count), *draw(st.lists(st.sampled_from(others)))]
    return Batch(table, schema_id, records, targets, overwrite)


def _versions(data_type: DataType) -> st.SearchStrategy[Any]:
    """Draw versions of which many are equal."""
    if isinstance(data_type, TimestampType):
        few = st.sampled_from([Timestamp(-1), Timestamp(0), Timestamp(0, 1000 if data_type.precision > 3 else 0)])
        return st.one_of(few, few, internal_values(data_type))
    return st.one_of(st.integers(-1, 1), st.integers(-1, 1), internal_values(data_type))


def check(scene: Scene) -> None:
    model, ids = scene.model, count(1)
    if not scene.batches:
        return
    merging = Merging(
        scene.batches[0].table,
        lambda id_count: [next(ids) for _ in range(id_count)],
        decodes_apart=scene.decodes_apart,
    )
    for batch in scene.batches:
        merging.alter(batch.table)
        width = len(batch.table.descriptor.schema.columns)
        model.widen(width)
        keyed = [(key_of(batch.table, _row(record)), _padded(record, width)) for record in batch.records]
        before = dict(model.rows), list(merging.log), dict(merging.store)
        put = partial(
            merging.put, *batch.records, targets=batch.targets, overwrite=batch.overwrite, schema_id=batch.schema_id
        )
        try:
            expected = model.put(keyed, batch.targets, overwrite=batch.overwrite, width=width)
        except ValueError:
            with pytest.raises(FlussError) as caught:
                put()
            assert caught.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
            assert (model.rows, merging.log, merging.store) == before
            continue
        assert put() == expected
        assert merging.rows() == model.rows
        assert merging.row_count == (None if model.is_wal else len(model.rows))
    assert merging.replayed() == model.rows


def _row(record: Row | Delete) -> Row:
    return record.row if isinstance(record, Delete) else record


def _padded(record: Row | Delete, width: int) -> Row | Delete:
    return record if isinstance(record, Delete) else record + (None,) * (width - len(record))


@given(scenes(None))
def test_the_last_row_of_a_key_wins_whole_or_in_parts(scene: Scene) -> None:
    check(scene)


@given(scenes("first_row"))
def test_the_first_row_of_a_key_stays(scene: Scene) -> None:
    check(scene)


@given(scenes("versioned"))
def test_the_highest_version_of_a_key_wins(scene: Scene) -> None:
    check(scene)


@given(scenes(None, generated=True))
def test_new_keys_are_numbered_and_keep_their_numbers(scene: Scene) -> None:
    check(scene)
