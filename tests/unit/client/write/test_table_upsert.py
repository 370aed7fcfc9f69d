"""A builder chooses columns and refuses choices that no server would take; it also serves as a writer itself.
Shown with builders on real sockets against a server that keeps what it gets in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fluss.client.write.writers import TableUpsert
from fluss.errors import FlussError
from fluss.schema.schema import Schema
from tests.fakes.write_server import PATH, USERS, WriteServer, client_of, upsert_of


@pytest.fixture
def server() -> Iterator[WriteServer]:
    with WriteServer() as running:
        running.add_kv_table()
        yield running


def test_builders_never_change(server: WriteServer) -> None:
    with client_of(server) as client:
        whole = upsert_of(client)
        by_name, by_index = whole.partial_update_by_name(["id", "age"]), whole.partial_update_by_index([0, 2])
        others = [whole.partial_update_with_column_names(["id", "age"]), whole.partial_update([0, 2])]
        by_other_names = [
            whole.partial_update_by_index(column_indices=[0, 2]),
            whole.partial_update_by_index(indices=[0, 2]),
        ]
        for builder in (by_name, by_index, *others, *by_other_names):
            assert builder is not whole
            builder.create_writer().upsert([1, 30]).result(120)
        by_name.partial_update().create_writer().upsert([1, "a", 30]).result(120)
        whole.create_writer().upsert([1, "a", 30]).result(120)
    assert [change.targets for change in server.changes_of()] == [(0, 2)] * 6 + [()] * 2
    assert repr(whole) == repr(by_name) == "TableUpsert()"


def test_choices_that_do_not_fit_are_refused(server: WriteServer) -> None:
    with client_of(server) as client:
        whole = upsert_of(client)
        refused: list[tuple[Any, type[BaseException], str]] = [
            (lambda: whole.partial_update_by_name(["id", "agge"]), FlussError, "Cannot find target column 'agge'"),
            (lambda: whole.partial_update_by_index([0, 3]), FlussError, "Invalid target column index: 3"),
            (lambda: whole.partial_update_by_index([0, -1]), OverflowError, "-1"),
            (lambda: whole.partial_update_by_index(["id"]), TypeError, "str"),
            (lambda: whole.partial_update_by_index(0), TypeError, "int"),
            (lambda: whole.partial_update_by_index(), TypeError, "once"),
            (lambda: whole.partial_update_by_index([0], indices=[0]), TypeError, "once"),
            (lambda: whole.partial_update_by_name("id"), TypeError, "columns must be a sequence of str, got str"),
            (lambda: whole.partial_update_by_name([0]), TypeError, "columns must hold str only"),
            (lambda: upsert_of(client, columns=["id"], column_indices=[0]), FlussError, "not both"),
            (lambda: upsert_of(client, columns=["x"]), FlussError, "Cannot find target column 'x'"),
            (
                lambda: whole.partial_update_by_name(["name", "age"]).create_writer(),
                FlussError,
                "must contain the primary key columns; 'id' is not among them",
            ),
            (
                lambda: whole.partial_update_by_index([]).create_writer(),
                FlussError,
                "must contain the primary key columns",
            ),
        ]
        for call, kind, message in refused:
            with pytest.raises(kind) as caught:
                call()
            assert message in str(caught.value)
    assert not server.puts


def test_a_partial_update_needs_columns_that_may_be_null(server: WriteServer) -> None:
    schema = Schema(
        pa.schema([("id", pa.int64()), ("name", pa.string()), pa.field("age", pa.int32(), nullable=False)]),
        primary_keys=["id"],
    )
    server.add_kv_table(schema=schema)
    with client_of(server) as client:
        for targets in (["id", "name"], ["id", "name", "age"]):
            with pytest.raises(FlussError, match="'age' is int NOT NULL; write whole rows"):
                upsert_of(client, columns=targets).create_writer()
        writer = upsert_of(client).create_writer()
        with pytest.raises(FlussError, match="Missing value for non-nullable field 'age'"):
            writer.upsert({"id": 1})
        writer.upsert({"id": 1, "age": 5}).result(120)
        # A delete needs no more than the key.
        writer.delete([1]).result(120)
    assert [change.is_delete for change in server.changes_of()] == [False, True]


def test_the_server_makes_up_the_values_of_an_auto_increment_column(server: WriteServer) -> None:
    schema = Schema(
        pa.schema([("id", pa.int64()), ("number", pa.int32()), ("name", pa.string())]),
        primary_keys=["id"],
        auto_increment_column="number",
    )
    server.add_kv_table(schema=schema)
    with client_of(server) as client:
        for refused in (upsert_of(client), upsert_of(client, columns=["id", "number"])):
            with pytest.raises(FlussError, match="auto increment column"):
                refused.create_writer()
            with pytest.raises(FlussError, match="auto increment column"):
                refused.upsert([1, 1, "a"])
        upsert_of(client, columns=["id", "name"]).upsert({"id": 1, "name": "a"}).result(120)
    assert server.rows_put() == [{"id": 1, "number": None, "name": "a"}]
    assert server.changes_of()[0].targets == (0, 2)


def test_a_column_that_is_named_twice_counts_once(server: WriteServer) -> None:
    with client_of(server) as client:
        upsert_of(client, columns=["age", "id", "age"]).upsert([30, 1]).result(120)
        upsert_of(client, column_indices=[2, 0, 0]).upsert([31, 1]).result(120)
    assert [(change.targets, change.row["age"]) for change in server.changes_of()] == [((2, 0), 30), ((2, 0), 31)]


def test_a_builder_is_a_writer_too(server: WriteServer) -> None:
    async def use(builder: TableUpsert) -> None:
        async with builder as writer:
            assert writer is builder
            writer.upsert({"id": 1, "name": "a", "age": 25})
            await writer.upsert([2, "b", 30])
            await writer.delete({"id": 2})
            writer.upsert_arrow(pa.table({"id": [3], "name": ["c"], "age": [1]}, schema=USERS.to_arrow()))
            batch = pa.RecordBatch.from_pylist([{"id": 4, "name": "d", "age": 2}], schema=USERS.to_arrow())
            await writer.upsert_arrow_batch(batch)
            writer.write_pandas(pd.DataFrame({"id": [5], "name": ["e"], "age": [3]}))
            writer.delete_arrow(batch.select(["id"]))
            await writer.delete_arrow_batch(batch.select(["id"]))
            await writer.flush()
            writer.upsert([6, "f", 4])

    with client_of(server) as client:
        asyncio.run(use(upsert_of(client)))
        assert sorted(row["id"] for row in server.state().values()) == [1, 3, 5, 6]
        partial = upsert_of(client, columns=["id", "age"])
        partial.upsert({"id": 1, "age": 27})
        client.flush(partial)
    assert server.state()[None, 1] == {"id": 1, "name": "a", "age": 27}


def test_a_builder_makes_its_own_writer_once(server: WriteServer) -> None:
    with client_of(server) as client:
        made: list[None] = []

        def writes() -> Any:
            made.append(None)
            return client.writes

        builder = TableUpsert(writes, client.table(PATH))
        assert made == []
        for number in range(3):
            builder.upsert([number, "x", 1])
        client.flush(builder)
        assert len(made) == 1
        assert builder.create_writer() is not builder.create_writer()
    assert len(server.changes_of()) == 3
