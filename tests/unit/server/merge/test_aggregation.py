"""A table that aggregates does with each batch what merging record by record does, and its changelog tells all of it.
Shown against a plain model with random batches, by replaying the changelog, and case by case for each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.record.mutations import FoundRows
from fluss.row.compacted_columns import encode_keys
from fluss.schema.schema import AggFunction, Column, Schema, schema_from_columns
from fluss.schema.table_options import DeleteBehavior
from fluss.schema.types import (
    BigIntType,
    BooleanType,
    BytesType,
    CharType,
    DecimalType,
    DoubleType,
    IntType,
    StringType,
)
from fluss.server.merge import aggregate_functions
from fluss.server.merge.changes import MergeInput
from fluss.server.merge.engines import merger_of
from fluss.server.merge.key_fold import KeyFold
from fluss.server.merge.table_codec import TableRowCodec
from tests.unit.server.merge.aggregation_model import TableModel, shown
from tests.unit.server.merge.bitmap_samples import numbers_in, serialized
from tests.unit.server.merge.merging import Change, Delete, Merging, Row, key_of, kv_batch, make_table, with_columns

AGGREGATION = {"merge-engine": "aggregation"}
ALLOWING_DELETES = {**AGGREGATION, "delete.behavior": "allow"}


def orders() -> Schema:
    return (
        Schema.builder()
        .column("id", IntType())
        .column("total", BigIntType(), aggregation="sum")
        .column("top", StringType(), aggregation="max")
        .column("note", StringType())
        .primary_key(["id"])
        .build()
    )


def merging_orders(properties: dict[str, str] = AGGREGATION) -> Merging:
    return Merging(make_table(orders(), properties))


def deleted(row_id: int) -> Delete:
    return Delete((row_id,))


def test_a_new_key_takes_its_row_as_it_is() -> None:
    orders = merging_orders()
    assert orders.put((1, 5, "b", "n")) == [("+I", (1, 5, "b", "n"))]
    assert orders.put((2, None, None, None)) == [("+I", (2, None, None, None))]


def test_each_column_is_merged_by_its_own_function() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "old"))
    assert orders.put((1, 7, "a", None)) == [("-U", (1, 5, "b", "old")), ("+U", (1, 12, "b", "old"))]


def test_an_update_that_changes_nothing_is_told_all_the_same() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "n"))
    assert orders.put((1, 0, "a", "n")) == [("-U", (1, 5, "b", "n")), ("+U", (1, 5, "b", "n"))]


def test_records_of_one_key_are_merged_in_their_order() -> None:
    orders = merging_orders()
    changes = orders.put((1, 1, None, "x"), (2, 10, "z", None), (1, 2, "m", None), (1, None, "c", "y"))
    assert changes == [
        ("+I", (1, 1, None, "x")),
        ("+I", (2, 10, "z", None)),
        ("-U", (1, 1, None, "x")),
        ("+U", (1, 3, "m", "x")),
        ("-U", (1, 3, "m", "x")),
        ("+U", (1, 3, "m", "y")),
    ]
    assert orders.row_count == 2


def test_deletes_are_ignored_unless_the_table_says_otherwise() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "n"))
    assert orders.put(deleted(1), deleted(2)) == []
    assert orders.put(deleted(1), (1, 1, None, None))[-1] == ("+U", (1, 6, "b", "n"))


def test_deletes_can_be_refused_as_a_whole() -> None:
    orders = merging_orders({**AGGREGATION, "delete.behavior": "disable"})
    with pytest.raises(FlussError, match="takes no deletes") as refusal:
        orders.put((1, 5, "b", "n"), deleted(1))
    assert refusal.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
    assert not orders.store


def test_a_delete_of_a_whole_row_removes_it_and_the_next_row_starts_anew() -> None:
    orders = merging_orders(ALLOWING_DELETES)
    orders.put((1, 5, "b", "n"))
    changes = orders.put((1, 1, None, None), deleted(1), deleted(1), (1, 2, None, None), (1, 3, "a", None))
    assert changes == [
        ("-U", (1, 5, "b", "n")),
        ("+U", (1, 6, "b", "n")),
        ("-D", (1, 6, "b", "n")),
        ("+I", (1, 2, None, None)),
        ("-U", (1, 2, None, None)),
        ("+U", (1, 5, "a", None)),
    ]
    assert orders.put(deleted(1), deleted(7)) == [("-D", (1, 5, "a", None))]
    assert (orders.store, orders.row_count) == ({}, 0)


def test_a_partial_update_merges_its_targets_and_keeps_the_rest() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "n"))
    changes = orders.put((1, 7, "z", "ignored"), (1, 1, "y", None), targets=[0, 1])
    assert changes[-1] == ("+U", (1, 13, "b", "n"))


def test_a_partial_update_of_a_new_key_takes_its_row_as_it_is() -> None:
    orders = merging_orders()
    assert orders.put((1, 7, "z", "kept"), (1, 1, "y", "x"), targets=[0, 1]) == [
        ("+I", (1, 7, "z", "kept")),
        ("-U", (1, 7, "z", "kept")),
        ("+U", (1, 8, "z", "kept")),
    ]


def test_a_partial_update_of_nothing_but_the_key_is_told_as_an_update() -> None:
    orders = merging_orders()
    orders.put((1, 7, "z", None))
    assert orders.put((1, None, None, None), targets=[0]) == [("-U", (1, 7, "z", None)), ("+U", (1, 7, "z", None))]


def test_a_partial_delete_makes_its_targets_null() -> None:
    orders = merging_orders(ALLOWING_DELETES)
    orders.put((1, 5, "b", "n"))
    changes = orders.put((1, 1, None, None), deleted(1), (1, 9, None, None), targets=[0, 1])
    assert changes == [
        ("-U", (1, 5, "b", "n")),
        ("+U", (1, 6, "b", "n")),
        ("-U", (1, 6, "b", "n")),
        ("+U", (1, None, "b", "n")),
        ("-U", (1, None, "b", "n")),
        ("+U", (1, 9, "b", "n")),
    ]


def test_a_partial_delete_removes_a_row_that_has_nothing_else() -> None:
    orders = merging_orders(ALLOWING_DELETES)
    orders.put((1, 5, None, None))
    changes = orders.put(deleted(1), deleted(1), (1, 9, None, None), deleted(1), targets=[0, 1])
    assert changes == [("-D", (1, 5, None, None)), ("+I", (1, 9, None, None)), ("-D", (1, 9, None, None))]
    assert not orders.store


def test_overwriting_bypasses_the_functions_and_the_delete_behaviour() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "n"))
    assert orders.put((1, 1, "a", None), overwrite=True)[-1] == ("+U", (1, 1, "a", None))
    assert orders.put((1, 7, None, None), targets=[0, 1], overwrite=True)[-1] == ("+U", (1, 7, "a", None))
    assert orders.put(deleted(1), overwrite=True) == [("-D", (1, 7, "a", None))]


@pytest.mark.parametrize("targets", [(), (0, 1)])
def test_large_rows_are_not_repeated_without_a_bound(monkeypatch: pytest.MonkeyPatch, targets: tuple[int, ...]) -> None:
    monkeypatch.setattr(aggregate_functions, "STATES_BYTES_MAX", 10_000)
    orders = merging_orders(ALLOWING_DELETES)
    orders.put((1, 5, "b", "x" * 1000))
    assert len(orders.put(*[(1, 1, None, None)] * 8, deleted(2), targets=targets)) == 16
    with pytest.raises(FlussError, match="fewer records") as refusal:
        orders.put(*[(1, 1, None, None)] * 10, deleted(2), targets=targets)
    assert refusal.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    # Other keys do not count for this one.
    assert len(orders.put(*[(key, 1, None, None) for key in range(100) for _ in range(2)], targets=targets)) == 301


def test_rows_of_older_schemas_merge_with_newer_ones() -> None:
    orders = merging_orders()
    orders.put((1, 5, "b", "n"))
    orders.alter(with_columns(orders.table, Column("worst", IntType(), aggregation=AggFunction("min"))))
    assert orders.put((1, 1, None, None, 3))[-1] == ("+U", (1, 6, "b", "n", 3))
    # A client that does not know of the new column yet.
    changes = orders.put((1, 1, None, "m"), (2, 2, None, None), schema_id=1)
    assert changes[1:] == [("+U", (1, 7, "b", "m", 3)), ("+I", (2, 2, None, None, None))]
    assert orders.put((2, 2, None, None, 8))[-1] == ("+U", (2, 4, None, None, 8))


def test_new_rows_get_ids_and_keep_them() -> None:
    schema = (
        Schema.builder()
        .column("id", IntType())
        .column("number", BigIntType())
        .column("total", BigIntType(), aggregation="sum")
        .primary_key(["id"])
        .enable_auto_increment("number")
        .build()
    )
    ids = iter(range(100, 200))
    drawn: list[int] = []

    def next_ids(count: int) -> Sequence[int]:
        drawn.append(count)
        return [next(ids) for _ in range(count)]

    table = Merging(make_table(schema, ALLOWING_DELETES), next_ids)
    assert table.put((2, None, 1), (1, None, 2), (2, None, 3), targets=[0, 2]) == [
        ("+I", (2, 100, 1)),
        ("+I", (1, 101, 2)),
        ("-U", (2, 100, 1)),
        ("+U", (2, 100, 4)),
    ]
    assert table.put((1, None, 5), (3, None, 6), targets=[0, 2])[1:] == [("+U", (1, 101, 7)), ("+I", (3, 102, 6))]
    # The id is a value that a delete of the other columns leaves behind, also in a row that is new.
    deletes = deleted(3), (4, None, 1), deleted(4), (4, None, 2)
    assert [change for change in table.put(*deletes, targets=[0, 2]) if change[0] != "-U"] == [
        ("+U", (3, 102, None)),
        ("+I", (4, 103, 1)),
        ("+U", (4, 103, None)),
        ("+U", (4, 103, 2)),
    ]
    assert drawn == [2, 1, 1]


def test_a_decimal_that_does_not_fit_a_not_null_column_refuses_the_batch() -> None:
    amount = DecimalType(3, 1, nullable=False)
    schema = (
        Schema.builder().column("id", IntType()).column("amount", amount, aggregation="sum").primary_key(["id"]).build()
    )
    table = Merging(make_table(schema, ALLOWING_DELETES))
    table.put((1, 999), (2, 1))
    with pytest.raises(FlussError, match="too many digits") as refusal:
        table.put((1, 1), (1, 1))
    assert refusal.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert table.put((2, 5), deleted(1))[1:] == [("+U", (2, 6)), ("-D", (1, 999))]


def test_listagg_of_char_works_and_is_refused_where_the_format_has_no_room() -> None:
    schema = (
        Schema.builder()
        .column("id", IntType())
        .column("c", CharType(3), aggregation="listagg")
        .primary_key(["id"])
        .build()
    )
    table = Merging(make_table(schema, AGGREGATION))
    assert table.put((1, "abc"), (1, "de"))[-1] == ("+U", (1, "abc,de"))
    padded = Merging(make_table(schema, {**AGGREGATION, "kv.format": "indexed"}))
    padded.put((1, "a"))
    with pytest.raises(FlussError, match="does not fit") as refusal:
        padded.put((1, "de"))
    assert refusal.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def visitors(bits: int) -> Merging:
    schema = (
        Schema.builder()
        .column("page", IntType())
        .column("seen", BytesType(), aggregation=f"rbm{bits}")
        .column("hits", BigIntType(), aggregation="sum")
        .primary_key(["page"])
        .build()
    )
    return Merging(make_table(schema, AGGREGATION))


@pytest.mark.parametrize("bits", [32, 64])
def test_bitmaps_are_united(bits: int) -> None:
    table = visitors(bits)
    first, second, third = (serialized(bits, numbers) for numbers in ([1, 2], [2, 2**31], [70_000]))
    table.put((1, first, 1))
    changes = table.put((1, second, 1), (1, None, 1), (2, second, 1), (1, third, 1))
    states = [numbers_in(bits, row[1]) for text, row in changes if text == "+U"]
    assert states == [{1, 2, 2**31}, {1, 2, 2**31}, {1, 2, 2**31, 70_000}]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_bitmap_is_refused_before_anything_is_written(bits: int, overwrite: bool) -> None:
    table = visitors(bits)
    table.put((1, serialized(bits, [1]), 1))
    before = dict(table.store)
    for damaged in (b"", b"no bitmap", serialized(bits, [5])[:-1], serialized(96 - bits, [5])):
        # Also where nothing would be united, and in a column that is not written.
        for page, targets in ((1, ()), (2, ()), (1, (0, 2))):
            with pytest.raises(FlussError, match="'seen' is no serialized bitmap") as refusal:
                table.put((1, None, 5), (page, damaged, 1), targets=targets, overwrite=overwrite)
            assert refusal.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert table.store == before


# --- Against the model ---

COLUMNS = [
    Column("id", IntType()),
    Column("total", BigIntType(), aggregation=AggFunction("sum")),
    Column("amount", DecimalType(3, 1), aggregation=AggFunction("sum")),
    Column("factor", DoubleType(), aggregation=AggFunction("product")),
    Column("top", StringType(), aggregation=AggFunction("max")),
    Column("plain", StringType()),
    Column("last", IntType(), aggregation=AggFunction("last_value")),
    Column("first", IntType(), aggregation=AggFunction("first_value")),
    Column("names", StringType(), aggregation=AggFunction.of("listagg", delimiter="|")),
    Column("all", BooleanType(), aggregation=AggFunction("bool_and")),
    Column("seen", BytesType(), aggregation=AggFunction("rbm64")),
]
ADDED = Column("added", BigIntType(), aggregation=AggFunction("max"))
_SETS = st.sets(st.integers(0, 300_000), max_size=3).map(frozenset)
_VALUES: list[st.SearchStrategy[Any]] = [
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-999, 999),
    st.sampled_from([0.5, -3.0, 1e300, -0.0]),
    st.sampled_from(["", "a", "ä", "z"]),
    st.sampled_from(["x", "y"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["", "n", "m"]),
    st.booleans(),
    _SETS,
]
_ROWS = st.tuples(*(st.one_of(st.none(), values) for values in _VALUES))


@dataclass(frozen=True)
class Batch:
    """Records as (key, row without its key or None for a delete), and how they are written."""

    records: list[tuple[int, Row | None]]
    added: list[int | None]
    targets: list[int]
    is_overwrite: bool
    has_added_column: bool


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    records = draw(st.lists(st.tuples(st.integers(0, 3), st.one_of(_ROWS, _ROWS, st.none())), max_size=12))
    targets = draw(st.one_of(st.just([]), st.sets(st.integers(1, 10)).map(lambda chosen: [0, *sorted(chosen)])))
    added = draw(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=len(records), max_size=len(records)))
    return Batch(records, added, targets, draw(st.integers(0, 4)) == 0, draw(st.booleans()))


def model_row(batch: Batch, index: int, width: int) -> Row | None:
    key, values = batch.records[index]
    if values is None:
        return None
    row = (key, *values, batch.added[index] if batch.has_added_column else None)
    return row[:width]


def written_row(row: Row | None, width: int) -> Row | None:
    """Return the row as a client writes it, without the columns it does not know."""
    if row is None:
        return None
    return (*row[:10], None if row[10] is None else serialized(64, row[10]), *row[11:])[:width]


def write(table: Merging, model: TableModel, batch: Batch) -> tuple[list[Change], list[Change]]:
    """Write a batch to both, and return what each of them tells."""
    width = len(table.table.descriptor.schema.columns)
    schema_id = table.table.schema_id if batch.has_added_column else 1
    rows = [model_row(batch, index, width) for index in range(len(batch.records))]
    keys = [key_of(table.table, (key,)) for key, _ in batch.records]
    written = [written_row(row, len(table.table.schemas[schema_id].columns)) for row in rows]
    data = kv_batch(table.table, list(zip(keys, written, strict=True)), schema_id)
    changes = table.put_batch(data, targets=batch.targets, overwrite=batch.is_overwrite)
    expected = [
        change
        for (key, _), row in zip(batch.records, rows, strict=True)
        for change in model.apply(key, row, batch.targets, is_overwrite=batch.is_overwrite)
    ]
    return changes, expected


def shown_rows(schema: Schema, rows: Mapping[bytes, Row]) -> dict[int, Row]:
    return {row[0]: shown(schema, row) for row in rows.values()}


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
@pytest.mark.parametrize("deletes", [DeleteBehavior.ALLOW, DeleteBehavior.IGNORE])
@given(history=st.lists(batches(), min_size=1, max_size=5), altered_at=st.integers(0, 5), decodes_apart=st.booleans())
def test_batches_do_what_their_records_do_one_by_one(
    deletes: DeleteBehavior, kv_format: str, history: list[Batch], altered_at: int, decodes_apart: bool
) -> None:
    properties = {**AGGREGATION, "delete.behavior": str(deletes), "kv.format": kv_format}
    table = Merging(make_table(schema_from_columns(COLUMNS, ["id"]), properties), decodes_apart=decodes_apart)
    model = TableModel(table.table.descriptor.schema, deletes)
    for index, batch in enumerate(history):
        if index == altered_at:
            table.alter(with_columns(table.table, ADDED))
            model.add_columns(table.table.descriptor.schema)
        changes, expected = write(table, model, batch)
        schema = model.schema
        assert [(text, shown(schema, row)) for text, row in changes] == [
            (text, shown(schema, row)) for text, row in expected
        ]
        assert shown_rows(schema, table.rows()) == {key: shown(schema, row) for key, row in model.rows.items()}
        assert table.row_count == len(model.rows)
    assert shown_rows(model.schema, table.replayed()) == shown_rows(model.schema, table.rows())


def test_twenty_thousand_records_of_one_key_take_well_under_two_seconds() -> None:
    schema = schema_from_columns(COLUMNS[:7], ["id"])
    table = make_table(schema, AGGREGATION)
    count = 20_000
    columns = [
        pa.array(np.ones(count, np.int32)),
        pa.array(np.arange(count)),
        pa.array(np.ones(count, np.int64)).cast(pa.decimal128(20, 0)).cast(pa.decimal128(3, 1), safe=False),
        pa.array(np.full(count, 1.0001)),
        pa.array([f"{index % 97}" for index in range(count)]),
        pa.array(["plain", None] * (count // 2)),
        pa.array(np.arange(count, dtype=np.int32)),
    ]
    rows = TableRowCodec(table).encode(pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow()))
    keys = encode_keys(columns[:1], [schema.columns[0].data_type])
    fold = KeyFold.of(keys)
    merger = merger_of(table)
    start = thread_time()
    changes = merger.merge(MergeInput(keys, rows, np.zeros(count, np.bool_), 1, fold, FoundRows()), None)
    assert thread_time() - start < 1
    assert (len(changes.changed), changes.rows.num_rows) == (1, 2 * count - 1)
    assert changes.rows.column(1)[-1].as_py() == count * (count - 1) // 2
