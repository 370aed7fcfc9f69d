"""Rows that were upserted are found by their keys: singly, by the thousand, as Arrow, by the beginning of a key.
Shown end to end against a real server: all types, partitions, schema changes, crashes, and every style of program."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss
from fluss import Column, DataTypes, FlussError, Schema, TablePath, aio, blocking, embedded
from fluss.schema.schema import schema_from_columns
from fluss.testing.waiting import eventually_async
from tests.integration import every_type
from tests.integration.every_type import KEY_NAMES, schema_of_every_type

USERS = Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())]), primary_keys=["id"])
EVERY_TYPE = schema_of_every_type(Column("note", DataTypes.string()))
FULL_ROW: dict[str, Any] = {"note": "x", **every_type.FULL_ROW}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(server_process: embedded.EmbeddedServer) -> embedded.EmbeddedServer:
    return server_process


@pytest.fixture(scope="module")
def connection(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.FlussConnection.create(server.config()) as opened:
        yield opened


def create(connection: blocking.FlussConnection, schema: Schema = USERS, **options: Any) -> blocking.FlussTable:
    """Create a table of a name that no other has."""
    path = TablePath("fluss", f"lookup_{next(_numbers)}")
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, **{"bucket_count": 3, **options}))
    return connection.get_table(path)


def upsert(table: blocking.FlussTable, *rows: dict[str, Any]) -> None:
    with table.new_upsert().create_writer() as writer:
        for row in rows:
            writer.upsert(row)


def user(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"user {number}", "age": None if number % 7 == 0 else number}


def users_table(numbers: range) -> pa.Table:
    return pa.Table.from_pylist([user(number) for number in numbers], schema=USERS.to_arrow())


# Single rows


def test_rows_are_found_as_they_are_now(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    upsert(table, user(1), user(2), user(3))
    lookuper = table.new_lookup().create_lookuper()
    assert [lookuper.lookup({"id": number}) for number in (3, 1, 2)] == [user(3), user(1), user(2)]
    assert lookuper.lookup((4,)) is None
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "again", "age": 5}).wait()
        assert lookuper.lookup([1]) == {"id": 1, "name": "again", "age": 5}
        writer.delete({"id": 2}).wait()
        assert lookuper.lookup([2]) is None
    assert lookuper.lookup([3]) == user(3)


def test_a_builder_serves_as_a_lookuper(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    upsert(table, user(1))
    assert table.new_lookup().lookup({"id": 1}) == user(1)
    assert table.new_lookup().lookup_many([[1]]).to_pylist() == [user(1)]
    assert repr(table.new_lookup()) == "TableLookup()"
    assert repr(table.new_lookup().create_lookuper()) == "Lookuper()"


def test_log_tables_have_no_keys(connection: blocking.FlussConnection) -> None:
    table = create(connection, Schema(pa.schema([("id", pa.int32())])))
    with pytest.raises(FlussError, match="Lookup is only supported for primary key tables"):
        table.new_lookup()
    with pytest.raises(FlussError, match="Upsert is only supported for primary key tables"):
        table.new_upsert()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("text", "Row must be a dict, list, or tuple; got str"),
        ([1, 2], "Expected 1 elements, got 2"),
        ({}, "Missing value for non-nullable field 'id'"),
        ({"id": None}, "Field 'id': null"),
        ({"id": "1"}, "Field 'id': expected int, got str"),
        ({"id": True}, "got bool"),
        ({"id": 2**31}, "out of range"),
        ({"id": 1, "name": "x"}, "Unknown field 'name'"),
        ({1: 1}, "Dict keys must be strings"),
    ],
)
def test_keys_that_do_not_fit_are_refused(connection: blocking.FlussConnection, key: Any, text: str) -> None:
    lookuper = create(connection).new_lookup().create_lookuper()
    with pytest.raises(FlussError, match=text) as caught:
        lookuper.lookup(key)
    assert caught.value.error_code == fluss.ErrorCode.CLIENT_ERROR


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_values_of_every_type_come_back_nested_ones_included(
    connection: blocking.FlussConnection, kv_format: str
) -> None:
    builder = EVERY_TYPE
    schema = schema_from_columns(builder.columns, ["int"])
    table = create(connection, schema, kv_format=kv_format)
    nothing = dict.fromkeys(FULL_ROW) | {"int": 2}
    upsert(table, FULL_ROW, nothing)
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup({"int": -(2**31)}) == FULL_ROW
    assert lookuper.lookup({"int": 2}) == nothing
    assert list(lookuper.lookup([2]) or {}) == schema.column_names
    # Many at a time go another way, column by column.
    many = lookuper.lookup_many([[2], [-(2**31)]] * 40)
    assert many.slice(0, 2).to_pylist()[0] == nothing
    expected = {**FULL_ROW, "map": FULL_ROW["map"]}
    assert many.slice(79, 1).to_pylist() == [expected]


def test_keys_of_every_type_are_found(connection: blocking.FlussConnection) -> None:
    schema = schema_from_columns(EVERY_TYPE.columns, KEY_NAMES)
    table = create(connection, schema)
    others = [
        {**FULL_ROW, "boolean": False},
        {**FULL_ROW, "string": "other"},
        {**FULL_ROW, "timestamp_ltz": datetime(2024, 2, 29, 12, 0, 0, 2000, tzinfo=UTC)},
    ]
    upsert(table, FULL_ROW, *({**row, "note": f"{number}"} for number, row in enumerate(others)))
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup({name: FULL_ROW[name] for name in KEY_NAMES}) == FULL_ROW
    for number, row in enumerate(others):
        found = lookuper.lookup([row[name] for name in KEY_NAMES])
        assert found == {**row, "note": f"{number}"}
    keys = pa.Table.from_pylist([FULL_ROW, *others], schema=schema.to_arrow())
    assert lookuper.lookup_many(keys, columns=["note"]).column("note").to_pylist() == ["x", "0", "1", "2"]


def test_a_key_may_have_its_columns_anywhere_and_in_another_order(connection: blocking.FlussConnection) -> None:
    schema = Schema(pa.schema([("b", pa.string()), ("value", pa.int32()), ("a", pa.int32())]), primary_keys=["a", "b"])
    table = create(connection, schema, bucket_keys=["b"])
    rows = [{"b": f"{number % 3}", "value": number, "a": number} for number in range(30)]
    upsert(table, *rows)
    lookuper = table.new_lookup().create_lookuper()
    assert [lookuper.lookup([row["a"], row["b"]]) for row in rows] == rows
    assert lookuper.lookup({"b": "0", "a": 1}) is None
    assert lookuper.lookup_many(pd.DataFrame(rows)).to_pylist() == rows


# Many rows


async def test_ten_thousand_lookups_at_once(server: embedded.EmbeddedServer) -> None:
    async with await fluss.FlussConnection.create(server.config()) as connection:
        path = TablePath("fluss", f"lookup_{next(_numbers)}")
        await connection.get_admin().create_table(path, fluss.TableDescriptor(USERS, bucket_count=4))
        table = await connection.get_table(path)
        async with table.new_upsert().create_writer() as writer:
            writer.upsert_arrow(users_table(range(5000)))
        lookuper = table.new_lookup().create_lookuper()
        numbers = [random.Random(1).randrange(6000) for _ in range(10_000)]
        rows = await asyncio.gather(*(lookuper.lookup([number]) for number in numbers))
        assert rows == [user(number) if number < 5000 else None for number in numbers]


def test_threads_share_a_lookuper(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    with table.new_upsert().create_writer() as writer:
        writer.upsert_arrow(users_table(range(1000)))
    lookuper = table.new_lookup().create_lookuper()
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda number: lookuper.lookup([number]), range(1000))) == list(map(user, range(1000)))


def test_many_keys_at_once_as_arrow(connection: blocking.FlussConnection) -> None:
    table = create(connection, bucket_count=5)
    with table.new_upsert().create_writer() as writer:
        writer.upsert_arrow(users_table(range(20_000)))
    lookuper = table.new_lookup().create_lookuper()
    numbers = list(range(25_000))
    random.Random(2).shuffle(numbers)
    found = lookuper.lookup_many(pa.table({"id": numbers}), found_column="found")
    assert found.column("id").to_pylist() == numbers
    assert found.column("found").to_pylist() == [number < 20_000 for number in numbers]
    assert found.slice(0, 10).drop_columns(["found"]).to_pylist() == [
        user(number) if number < 20_000 else {"id": number, "name": None, "age": None} for number in numbers[:10]
    ]
    only_found = lookuper.lookup_many(pa.table({"id": numbers}), missing="drop", columns=["name"])
    assert only_found.num_rows == 20_000
    with pytest.raises(FlussError, match="not found"):
        lookuper.lookup_many([[30_000]], missing="error")


def test_rows_larger_than_an_answer_together_are_found_all_the_same(connection: blocking.FlussConnection) -> None:
    table = create(connection, bucket_count=1)
    with table.new_upsert().create_writer() as writer:
        for number in range(14):
            writer.upsert({"id": number, "name": f"{number:02d}" * 2_500_000, "age": None})
    starts = [f"{number:02d}" for number in range(14)]
    lookuper = table.new_lookup().create_lookuper()
    names = lookuper.lookup_many([[number] for number in range(14)], columns=["name"]).column("name")
    assert [name.as_py()[:2] for name in names] == starts
    with ThreadPoolExecutor(14) as threads:
        rows = list(threads.map(lambda number: lookuper.lookup([number]), range(14)))
    assert [row["name"][:2] for row in rows if row is not None] == starts


def test_the_whole_table_is_one_call(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    upsert(table, *map(user, range(50)))
    rows = table.to_arrow().sort_by("id")
    assert rows.to_pylist() == list(map(user, range(50)))
    assert table.to_arrow(["name", "id"]).column_names == ["name", "id"]
    assert table.to_arrow(limit=7).num_rows == 7
    assert sorted(table.to_pandas(columns=["id"])["id"]) == list(range(50))


# Partitions


@pytest.mark.only_here("there, servers hear one after the other of what was dropped, and answer until then")
def test_partitions_that_do_not_exist_have_no_rows(connection: blocking.FlussConnection) -> None:
    schema = Schema(
        pa.schema([("region", pa.string()), ("id", pa.int32()), ("name", pa.string())]), primary_keys=["region", "id"]
    )
    table = create(connection, schema, partition_keys=["region"])
    path, admin = table.table_path, connection.get_admin()
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup(["EU", 1]) is None
    for region in ("EU", "US"):
        admin.create_partition(path, {"region": region})
    rows = [{"region": region, "id": number, "name": region} for region in ("EU", "US") for number in range(20)]
    upsert(table, *rows)
    assert [lookuper.lookup({"region": row["region"], "id": row["id"]}) for row in rows] == rows
    assert lookuper.lookup(["MARS", 1]) is None
    keys = [*rows, {"region": "MARS", "id": 1}]
    found = lookuper.lookup_many(pd.DataFrame(keys)[["region", "id"]], found_column="found")
    assert found.column("found").to_pylist() == [True] * 40 + [False]
    with table.new_upsert().create_writer() as writer:
        writer.delete(["EU", 3])
    assert lookuper.lookup(["EU", 3]) is None
    assert lookuper.lookup(["US", 3]) == rows[23]
    admin.drop_partition(path, {"region": "US"})
    assert lookuper.lookup(["US", 3]) is None
    admin.create_partition(path, {"region": "US"})
    upsert(table, {"region": "US", "id": 3, "name": "anew"})
    assert lookuper.lookup(["US", 3]) == {"region": "US", "id": 3, "name": "anew"}


# The beginning of a key


def test_rows_are_found_by_the_beginning_of_their_keys(connection: blocking.FlussConnection) -> None:
    schema = Schema(
        pa.schema([("region", pa.string()), ("customer", pa.int32()), ("number", pa.int64()), ("item", pa.string())]),
        primary_keys=["region", "customer", "number"],
    )
    table = create(connection, schema, partition_keys=["region"], bucket_keys=["customer"])
    connection.get_admin().create_partition(table.table_path, {"region": "EU"})
    rows = [
        {"region": "EU", "customer": customer, "number": number, "item": f"{customer}-{number}"}
        for customer in range(10)
        for number in range(6)
    ]
    upsert(table, *rows)
    lookup = table.new_lookup().lookup_by(["region", "customer"])
    lookuper = lookup.create_lookuper()
    for customer in range(10):
        expected = rows[6 * customer : 6 * customer + 6]
        assert lookuper.lookup({"region": "EU", "customer": customer}) == expected
        assert lookuper.lookup_arrow(("EU", customer)).to_pylist() == expected
    assert lookuper.lookup(["EU", 99]) == []
    assert lookuper.lookup(["MARS", 1]) == []
    assert (repr(lookup), repr(lookuper)) == ("TablePrefixLookup()", "PrefixLookuper()")
    for columns, text in (
        (["customer"], "partition fields"),
        (["region"], "bucket keys"),
        (["region", "customer", "number"], "bucket keys"),
        (["region", "x"], "Unknown column name"),
    ):
        with pytest.raises(FlussError, match=text):
            table.new_lookup().lookup_by(columns)


# Changes around lookups


def test_rows_older_than_a_column_have_none_in_it(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    upsert(table, *map(user, range(50)))
    before = table.new_lookup().create_lookuper()
    connection.get_admin().alter_table(table.table_path, add_columns=[pa.field("city", pa.string())])
    changed = connection.get_table(table.table_path)
    upsert(changed, {"id": 50, "name": "new", "age": 1, "city": "Rome"})
    after = changed.new_lookup().create_lookuper()
    assert after.lookup([1]) == {**user(1), "city": None}
    assert after.lookup([50]) == {"id": 50, "name": "new", "age": 1, "city": "Rome"}
    assert before.lookup([50]) == {"id": 50, "name": "new", "age": 1}
    assert before.lookup_many([[50], [1]]).to_pylist() == [{"id": 50, "name": "new", "age": 1}, user(1)]
    assert after.lookup_many([[50], [1]]).column("city").to_pylist() == ["Rome", None]


@pytest.mark.only_here("there, servers hear one after the other of what was dropped, and answer until then")
def test_a_table_that_was_dropped_is_code_7(connection: blocking.FlussConnection) -> None:
    table = create(connection)
    upsert(table, user(1))
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup([1]) == user(1)
    connection.get_admin().drop_table(table.table_path)
    for ask in (lambda: lookuper.lookup([1]), lambda: lookuper.lookup_many([[1]])):
        with pytest.raises(FlussError) as caught:
            ask()
        assert caught.value.error_code == fluss.ErrorCode.TABLE_NOT_EXIST


async def test_lookups_go_on_when_the_server_was_killed_in_between(tmp_path: Path) -> None:
    with embedded.start(data_dir=tmp_path, process=True) as server:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            path = TablePath("fluss", "users")
            await connection.get_admin().create_table(path, fluss.TableDescriptor(USERS, bucket_count=2))
            table = await connection.get_table(path)
            async with table.new_upsert().create_writer() as writer:
                writer.upsert_arrow(users_table(range(500)))
            lookuper = table.new_lookup().create_lookuper()
            is_over = False
            rounds = 0

            async def look_up(number: int) -> None:
                nonlocal rounds
                while not is_over:
                    assert await lookuper.lookup([number]) == user(number)
                    rounds += 1

            callers = [asyncio.create_task(look_up(number)) for number in range(100)]
            bulk = asyncio.create_task(lookuper.lookup_many(users_table(range(500))))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            before = rounds
            await eventually_async(lambda: rounds >= before + 200)
            is_over = True
            await asyncio.gather(*callers)
            assert rounds > 200
            assert (await bulk).to_pylist() == list(map(user, range(500)))


# Styles


async def test_a_program_that_awaits_everything(server: embedded.EmbeddedServer) -> None:
    async with await aio.FlussConnection.create(server.config()) as connection:
        path = TablePath("fluss", f"lookup_{next(_numbers)}")
        await connection.get_admin().create_table(path, fluss.TableDescriptor(USERS, bucket_count=2))
        table = await connection.get_table(path)
        async with table.new_upsert() as writer:
            writer.upsert(user(1))
            writer.upsert(user(2))
        assert await table.new_lookup().create_lookuper().lookup([1]) == user(1)
        assert (await table.new_lookup().lookup_many([[2]])).to_pylist() == [user(2)]
        assert (await table.to_arrow(["id"])).column("id").to_pylist() in ([1, 2], [2, 1])
        assert len(await table.to_pandas()) == 2
        assert (await table.new_scan().to_arrow()).num_rows == 2


def test_a_lookuper_serves_several_event_loops(server: embedded.EmbeddedServer) -> None:
    async def opened() -> tuple[fluss.FlussConnection, fluss.Lookuper]:
        connection = await fluss.FlussConnection.create(server.config())
        path = TablePath("fluss", f"lookup_{next(_numbers)}")
        await connection.get_admin().create_table(path, fluss.TableDescriptor(USERS, bucket_count=2))
        table = await connection.get_table(path)
        async with table.new_upsert() as writer:
            writer.upsert(user(1))
        return connection, table.new_lookup().create_lookuper()

    connection, lookuper = asyncio.run(opened())
    for _ in range(3):
        assert asyncio.run(lookuper.lookup([1])) == user(1)
    connection.close()
    with pytest.raises(FlussError, match="closed"):
        asyncio.run(lookuper.lookup([1]))
