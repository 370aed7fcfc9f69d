"""What the sink of Spark does with rows: which it takes, what it makes of change types and columns, what it replaces.
Shown with batches as Spark sends them, given to a writer that was pickled as Spark does, and an embedded server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import fluss
from fluss import DataTypes
from fluss.client.kernel.runtime import wait_for
from fluss.errors import FlussError
from fluss.spark.query_options import write_options
from fluss.spark.write import overwrite, sink
from fluss.spark.write.batch_writer import BatchTaskCommit, FlussBatchWriter
from fluss.spark.write.stream_writer import FlussStreamWriter
from tests.integration.keyed_tables import Tables

ROW = StructType().add("id", LongType()).add("name", StringType()).add("op", StringType())
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])
NAMES = count()


def options_of(tables: Tables, table: fluss.FlussTable, **options: str) -> dict[str, str]:
    given = {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
    return {"bootstrap.servers": tables.server.bootstrap_servers, "table": str(table.table_path), **given}


class WriteJob:
    """A batch write without Spark: tasks are calls."""

    def __init__(
        self, tables: Tables, table: fluss.FlussTable, struct: StructType, *, overwrites: bool = False, **options: Any
    ) -> None:
        parsed = write_options(options_of(tables, table, **options), is_stream=False)
        self.writer = FlussBatchWriter(parsed, struct, overwrites)
        self._struct = struct

    def run(self, *tasks: list[tuple[Any, ...]]) -> list[BatchTaskCommit]:
        messages = [self.task(rows) for rows in tasks]
        pickled = pickle.loads(pickle.dumps(messages))
        self.writer.commit(pickled)
        return messages

    def task(self, rows: list[tuple[Any, ...]], rows_per_batch: int = 3) -> BatchTaskCommit:
        writer: FlussBatchWriter = pickle.loads(pickle.dumps(self.writer))
        return writer.write(self._batches(rows, rows_per_batch))

    def _batches(self, rows: list[tuple[Any, ...]], rows_per_batch: int) -> Iterator[pa.RecordBatch]:
        types = {LongType: pa.int64(), StringType: pa.string()}
        for start in range(0, len(rows), rows_per_batch):
            part = rows[start : start + rows_per_batch]
            arrays = [
                pa.array([row[index] for row in part], types[type(field.dataType)])
                for index, field in enumerate(self._struct)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=self._struct.names)


def found(table: fluss.FlussTable) -> list[tuple[Any, ...]]:
    rows = table.to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def columns(*names: str) -> StructType:
    return StructType([ROW[name] for name in names])


# What is taken


@pytest.mark.parametrize(
    ("keys", "struct", "options", "reason"),
    [
        (("id",), columns("name"), {}, "Column 'id' is NOT NULL, so it must be among"),
        ((), StructType().add("id", "string"), {}, "Column 'id' holds string, which cannot become int64"),
        ((), StructType().add("id", "long").add("nam", "string"), {}, "has no column 'nam' to write to.*'name'"),
        ((), columns("id", "op"), {"sink__change_type_column": "op"}, "is a log table, whose rows are never updated"),
        (("id",), columns("id"), {"sink__change_type_column": "op"}, "has no such column; columns are 'id'"),
        (("id",), columns("id", "op"), {"sink__change_type_column": "id"}, "must hold texts such as insert or -D"),
        ((), columns("id"), {"sink__target_columns": "id"}, "is a log table, whose rows are never updated"),
        (("id",), columns("id"), {"sink__target_columns": "nam"}, "names 'nam', which .* does not have.*'name'"),
        (
            ("id",),
            columns("id"),
            {"sink__target_columns": "name"},
            "the DataFrame has no such column; columns are 'id'",
        ),
        (("id",), columns("name"), {"sink__target_columns": "name"}, "'id' is to be written"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_any_row(
    tables: Tables, keys: tuple[str, ...], struct: StructType, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(FlussError, match=reason):
        WriteJob(tables, tables.create(COLUMNS, keys), struct, **options)


def test_missing_columns_are_null_and_the_order_does_not_matter(tables: Tables) -> None:
    table = tables.create(COLUMNS, ())
    (message,) = WriteJob(tables, table, columns("name", "id")).run([("a", 1), ("b", 2)])
    assert found(table) == [(1, "a", None), (2, "b", None)]
    assert message.summary.rows == 2
    assert sum(message.summary.rows_by_bucket.values()) == 2


def test_a_bad_row_among_few_leaves_no_trace(tables: Tables) -> None:
    table = tables.create(pa.schema([("id", pa.int32()), ("name", pa.string())]), ())
    job = WriteJob(tables, table, columns("id", "name"))
    with pytest.raises(FlussError, match="Column 'id' has a value that does not fit int32"):
        job.run([*[(number, "x") for number in range(100)], (2**40, "too large")])
    assert found(table) == []


def test_a_bad_row_behind_many_is_an_error(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_LOOK_AHEAD_BYTES", 100)
    monkeypatch.setattr(sink, "_BATCH_BYTES_MIN", 1)
    table = tables.create(pa.schema([("id", pa.int32()), ("name", pa.string())]), ())
    with pytest.raises(FlussError, match="does not fit"):
        WriteJob(tables, table, columns("id", "name")).run([*[(number, "x") for number in range(100)], (2**40, "x")])


def test_a_table_that_was_created_again_is_not_written_to(tables: Tables) -> None:
    table = tables.create(COLUMNS, ())
    job = WriteJob(tables, table, columns("id"))
    wait_for(tables.admin.drop_table(table.table_path))
    wait_for(tables.admin.create_table(table.table_path, fluss.TableDescriptor(fluss.Schema(COLUMNS))))
    with pytest.raises(FlussError, match="dropped and created again while it was written to"):
        job.run([(1,)])


def test_small_batches_are_put_together_for_tables_with_buckets_by_key(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_BATCH_BYTES_MIN", 200)
    table = tables.create(COLUMNS, ("id",), bucket_count=4)
    rows = [(number, "x" * 10) for number in range(300)]
    (message,) = WriteJob(tables, table, columns("id", "name")).run(rows)
    assert found(table) == [(number, name, None) for number, name in rows]
    assert set(message.summary.rows_by_bucket) == {":0", ":1", ":2", ":3"}
    assert message.summary.rows_by_bucket.total() == 300


# What rows mean


def test_change_types_of_both_kinds_are_applied_in_the_order_of_rows(tables: Tables) -> None:
    table = tables.create(COLUMNS, ("id",))
    WriteJob(tables, table, columns("id", "name")).run([(number, "old") for number in range(1, 6)])
    job = WriteJob(tables, table, columns("id", "name", "op"), sink__change_type_column="op")
    job.run(
        [
            (1, "new", "+U"),
            (1, None, "delete"),
            (2, None, "-D"),
            (2, "again", "insert"),
            (3, "before", "update_before"),
        ],
        [(4, "x", "-U"), (5, "y", "UPDATE_AFTER"), (6, "z", "+I")],
    )
    assert found(table) == [(2, "again", None), (3, "old", None), (4, "old", None), (5, "y", None), (6, "z", None)]
    for unknown in ("upsert", None):
        with pytest.raises(FlussError, match=f"The change type {unknown!r} in column 'op' is none: use"):
            job.run([(1, "x", "+I"), (2, "x", unknown)])
    ignoring = WriteJob(tables, table, columns("id", "op"), sink__change_type_column="op", sink__ignore_delete="true")
    ignoring.run([(2, "-D"), (3, "delete"), (9, "+I")])
    assert [row[0] for row in found(table)] == [2, 3, 4, 5, 6, 9]


def test_a_delete_needs_nothing_but_its_key(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    table = tables.create(schema, ("id",))
    WriteJob(tables, table, columns("id", "name")).run([(1, "a"), (2, "b")])
    WriteJob(tables, table, columns("id", "op"), sink__change_type_column="op").run([(1, "delete")])
    job = WriteJob(tables, table, columns("id", "name", "op"), sink__change_type_column="op")
    job.run([(2, None, "-D"), (3, "c", "+I")])
    assert found(table) == [(3, "c")]
    with pytest.raises(FlussError, match="'name' is non-nullable but contains null"):
        job.run([(4, None, "-D"), (5, None, "+I")])


def test_partial_updates_write_the_target_columns_and_ignore_the_others(tables: Tables) -> None:
    table = tables.create(COLUMNS, ("id",))
    WriteJob(tables, table, columns("id", "name")).run([(1, "a"), (2, "b")])
    note = StructType().add("id", "long").add("note", "string").add("name", "string")
    WriteJob(tables, table, note, sink__target_columns="note").run([(1, "seen", "not written"), (3, "new", "x")])
    assert found(table)[0] == (1, "a", "seen")
    assert found(table)[2] == (3, None, "new")
    deletes = StructType().add("id", "long").add("note", "string").add("op", "string")
    WriteJob(tables, table, deletes, sink__target_columns="note", sink__change_type_column="op").run([(1, None, "-D")])
    assert found(table)[0] == (1, "a", None)


def test_an_auto_increment_column_is_filled_by_the_server(tables: Tables) -> None:
    builder = fluss.Schema.builder().column("name", DataTypes.string()).column("number", DataTypes.bigint())
    table = tables.create(builder.primary_key(["name"]).enable_auto_increment("number").build())
    WriteJob(tables, table, columns("name")).run([("a",), ("b",)])
    assert {row[0] for row in found(table)} == {"a", "b"}
    assert None not in {row[1] for row in found(table)}
    numbered = columns("name").add("number", "long")
    with pytest.raises(FlussError, match="is an auto increment column"):
        WriteJob(tables, table, numbered)
    with pytest.raises(FlussError, match="has an auto increment column, and its rows cannot be deleted"):
        WriteJob(tables, table, columns("name", "op"), sink__change_type_column="op")


# What is replaced


def test_an_overwrite_deletes_the_keys_that_were_not_written(tables: Tables) -> None:
    schema = pa.schema([("day", pa.string()), ("id", pa.int64()), ("name", pa.string())])
    table = tables.create(schema, ("day", "id"), partition_keys=["day"], bucket_count=2)
    for day in ("mon", "tue"):
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
    struct = StructType().add("day", "string").add("id", "long").add("name", "string")
    WriteJob(tables, table, struct).run([(day, number, "old") for day in ("mon", "tue") for number in range(50)])
    new = [("mon", number, "new") for number in range(25, 75)]
    WriteJob(tables, table, struct, overwrites=True).run(new[:20], new[20:], [])
    assert found(table) == new
    WriteJob(tables, table, struct, overwrites=True).run([])
    assert found(table) == []


def test_what_cannot_be_overwritten_is_refused_with_the_reason(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tables.create(COLUMNS, ())
    with pytest.raises(FlussError, match=r"cannot be taken back.*'sink\.allow-overwrite' to true, which lets"):
        WriteJob(tables, log, columns("id"), overwrites=True)
    for _ in range(2):
        WriteJob(tables, log, columns("id"), overwrites=True, sink__allow_overwrite="true").run([(1,)])
    assert len(found(log)) == 2
    keyed = tables.create(COLUMNS, ("id",))
    with pytest.raises(FlussError, match="leaves the other columns as they are"):
        WriteJob(tables, keyed, columns("id", "name"), overwrites=True, sink__target_columns="name")
    with pytest.raises(FlussError, match="says row by row what to do"):
        WriteJob(tables, keyed, columns("id", "op"), overwrites=True, sink__change_type_column="op")
    for key, value, reason in (
        ("table.merge-engine", "first_row", "merge engine first_row merges"),
        ("table.delete.behavior", "ignore", "rows cannot be deleted"),
    ):
        special = tables.create(COLUMNS, ("id",), properties={key: value})
        with pytest.raises(FlussError, match=f"cannot be overwritten: its {reason}"):
            WriteJob(tables, special, columns("id"), overwrites=True)
    monkeypatch.setattr(overwrite, "ROWS_MAX", 5)
    with pytest.raises(FlussError, match="More than 5 rows cannot overwrite"):
        WriteJob(tables, keyed, columns("id"), overwrites=True).run([(number,) for number in range(6)])
    with pytest.raises(FlussError, match="More than 5 rows cannot overwrite"):
        WriteJob(tables, keyed, columns("id"), overwrites=True).run([(1,), (2,), (3,)], [(4,), (5,), (6,)])


def test_complete_output_needs_rows_that_replace_each_other(tables: Tables, tmp_path: Any) -> None:
    def writer(table: fluss.FlussTable) -> FlussStreamWriter:
        options = {**options_of(tables, table), "checkpointlocation": str(tmp_path)}
        return FlussStreamWriter(write_options(options, is_stream=True), columns("id", "name"), True)

    with pytest.raises(FlussError, match="every micro-batch would append all rows again"):
        writer(tables.create(COLUMNS, ()))
    first_row = tables.create(COLUMNS, ("id",), properties={"table.merge-engine": "first_row"})
    with pytest.raises(FlussError, match="merge engine first_row"):
        writer(first_row)
    # What was refused has left no trace in the checkpoint.
    first, other = (tables.create(COLUMNS, ("id",)) for _ in range(2))
    writer(first)
    with pytest.raises(FlussError, match=f"that of a stream into {first.table_path}"):
        writer(other)
