"""lookup_many: keys of any kind in, one Arrow table out, aligned with the keys and honest about what was not found.
Shown on real sockets with a server that keeps rows in memory and fails on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fluss.client.connection import FlussConnection
from fluss.client.lookup.lookup_many import BulkLimits
from fluss.client.lookup.lookupers import Lookuper
from fluss.errors import ErrorCode, FlussError
from fluss.net.transport import run
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually_async
from tests.fakes.faulty_server import Fault
from tests.fakes.lookup_server import PATH, LookupServer

ORDERS = Schema(
    pa.schema(
        [
            ("region", pa.string()),
            pa.field("amount", pa.int64(), nullable=False),
            ("id", pa.int32()),
            ("note", pa.string()),
        ]
    ),
    primary_keys=["id", "region"],
)


def look_up_many(
    server: LookupServer, keys: Any, request_timeout: int = 300_000, limits: BulkLimits | None = None, **arguments: Any
) -> pa.Table:
    async def main() -> pa.Table:
        async with await FlussConnection.create(server.config(request_timeout=request_timeout)) as connection:
            info = (await connection.get_table(PATH)).get_table_info()
            return await Lookuper(connection._get_lookup_client(), info, limits).lookup_many(keys, **arguments)

    return run(main())


def with_users(server: LookupServer, count: int = 100) -> None:
    server.add_table(bucket_count=3)
    server.put_users(range(count))


def with_orders(server: LookupServer) -> list[dict[str, Any]]:
    server.add_table(ORDERS, partition_keys=("region",), bucket_count=3)
    rows = []
    for partition_id, region in enumerate(("EU", "US"), start=10):
        server.add_partition(region, partition_id)
        for number in range(20):
            row = {"region": region, "amount": number * 10, "id": number, "note": None if number % 2 else "even"}
            server.put(row, partition_id=partition_id)
            rows.append(row)
    return rows


# Keys


@pytest.mark.parametrize(
    "keys",
    [
        [[3], [1], [77], [3]],
        ({"id": 3}, (1,), [77], {"id": 3}),
        pa.table({"id": pa.array([3, 1, 77, 3], pa.int32())}),
        pa.table({"x": ["a", "b", "c", "d"], "id": pa.chunked_array([[3], [1, 77], [3]])}),
        pa.record_batch({"id": pa.array([3, 1, 77, 3], pa.uint8())}),
        pa.table({"id": [3, 1, 77, 3]}).to_reader(),
        pd.DataFrame({"id": [3, 1, 77, 3], "other": 1.5}),
    ],
    ids=["lists", "mixed", "table", "more columns", "batch", "reader", "pandas"],
)
def test_keys_of_any_kind_give_rows_in_their_order(server: LookupServer, keys: Any) -> None:
    with_users(server, 50)
    found = look_up_many(server, keys)
    assert found.to_pydict() == {"id": [3, 1, 77, 3], "name": ["user 3", "user 1", None, "user 3"]}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([[1], ["x"]], "Key 1: Field 'id': expected int"),
        ([[1], [None]], "Key 1: Field 'id': null"),
        ([[1, 2]], "Expected 1 elements"),
        ([{"nme": 1}], "Unknown field 'nme'"),
        ([1], "Row must be a dict"),
        (pa.table({"nme": [1]}), "key column 'id' is missing"),
        (pa.table([[1], [2]], names=["id", "id"]), "occurs 2 times"),
        (pa.table({"id": ["x"]}), "Arrow type string"),
        (pa.table({"id": [2**40]}), "Field 'id': Integer value"),
        (pa.table({"id": pa.array([1, None], pa.int32())}), "contains null"),
        (pd.DataFrame({"id": [1.5]}), "Field 'id'"),
        (pd.DataFrame({"id": [1.0, None]}), "contains null"),
        (pd.DataFrame({"nme": [1]}), "is missing"),
    ],
)
def test_keys_that_do_not_fit_are_refused(server: LookupServer, keys: Any, text: str) -> None:
    with_users(server, 1)
    with pytest.raises(FlussError, match=text):
        look_up_many(server, keys)
    assert not server.requests


@pytest.mark.parametrize("keys", [7, "text", {"id": 1}, pa.array([1]), pa.chunked_array([[1]]), None])
def test_what_cannot_be_keys_is_a_type_error(server: LookupServer, keys: Any) -> None:
    with_users(server, 1)
    with pytest.raises(TypeError, match="keys must be"):
        look_up_many(server, keys)


@pytest.mark.parametrize("keys", [[], pa.table({"id": pa.array([], pa.int32())}), pd.DataFrame({"id": []})])
def test_no_keys_are_no_rows(server: LookupServer, keys: Any) -> None:
    with_users(server, 1)
    found = look_up_many(server, keys, found_column="found")
    assert (found.num_rows, found.column_names) == (0, ["id", "name", "found"])


# Results


def test_partitions_and_buckets_do_not_disturb_the_order(server: LookupServer) -> None:
    rows = with_orders(server)
    rng = np.random.default_rng(1)
    chosen = [rows[index] for index in rng.permutation(len(rows)).tolist()]
    keys = [{"region": row["region"], "id": row["id"]} for row in chosen]
    assert look_up_many(server, keys).to_pylist() == chosen
    frame = pd.DataFrame(keys)
    assert look_up_many(server, frame).to_pylist() == chosen


def test_missing_keys_have_their_key_and_nothing_else(server: LookupServer) -> None:
    with_orders(server)
    keys = [{"region": "EU", "id": 2}, {"region": "EU", "id": 99}, {"region": "MOON", "id": 2}]
    found = look_up_many(server, keys, found_column="found")
    assert found.to_pylist() == [
        {"region": "EU", "amount": 20, "id": 2, "note": "even", "found": True},
        {"region": "EU", "amount": None, "id": 99, "note": None, "found": False},
        {"region": "MOON", "amount": None, "id": 2, "note": None, "found": False},
    ]
    # The schema says the same whether something was missing or not.
    assert found.schema == look_up_many(server, keys[:1], found_column="found").schema
    assert {field.name: field.nullable for field in found.schema} == {
        "region": False,
        "amount": True,
        "id": False,
        "note": True,
        "found": False,
    }


def test_missing_keys_can_be_left_out(server: LookupServer) -> None:
    with_orders(server)
    # In the order of the primary key.
    keys = [[99, "EU"], [2, "EU"], [2, "MOON"], [3, "US"]]
    found = look_up_many(server, keys, missing="drop", found_column="found")
    assert [(row["region"], row["id"], row["found"]) for row in found.to_pylist()] == [("EU", 2, True), ("US", 3, True)]
    assert look_up_many(server, keys, missing="drop").schema == ORDERS.to_arrow()
    assert look_up_many(server, keys[:1], missing="drop").num_rows == 0


def test_missing_keys_can_be_an_error(server: LookupServer) -> None:
    with_orders(server)
    present, absent = {"region": "EU", "id": 2}, {"region": "EU", "id": 99}
    with pytest.raises(FlussError, match=r"1 of 3 keys were not found in fluss.users.*'id': 99.*'region': 'EU'"):
        look_up_many(server, [present, absent, present], missing="error")
    found = look_up_many(server, [present], missing="error")
    assert found.schema == ORDERS.to_arrow()
    assert found.num_rows == 1


def test_some_columns_in_any_order(server: LookupServer) -> None:
    with_orders(server)
    keys = [{"region": "US", "id": 4}, {"region": "US", "id": -4}]
    found = look_up_many(server, keys, columns=["note", "id"])
    assert found.to_pylist() == [{"note": "even", "id": 4}, {"note": None, "id": -4}]
    assert look_up_many(server, keys, columns=["amount"]).column_names == ["amount"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"missing": "ignore"}, "missing must be"),
        ({"columns": ["nme"]}, "Column 'nme' not found"),
        ({"columns": []}, "cannot be empty"),
        ({"found_column": "name"}, "which is a column"),
    ],
)
def test_wrong_arguments_are_refused(server: LookupServer, arguments: dict[str, Any], text: str) -> None:
    with_users(server, 1)
    with pytest.raises(FlussError, match=text):
        look_up_many(server, [[1]], **arguments)


def test_rows_of_several_schemas(server: LookupServer) -> None:
    server.add_table()
    server.put_users(range(5))
    old = server.tables[PATH].schema
    server.add_table(old.with_added_columns(Schema(pa.schema([("age", pa.int32())])).columns), schema_id=2)
    server.put({"id": 5, "name": "new", "age": 50})
    found = look_up_many(server, [[5], [1], [9]])
    assert found.to_pydict() == {"id": [5, 1, 9], "name": ["new", "user 1", None], "age": [50, None, None]}


# Requests


def test_many_keys_go_in_large_requests_of_which_few_are_on_the_way(server: LookupServer) -> None:
    with_users(server, 30_000)
    keys = pa.table({"id": np.arange(30_000)[::-1]})
    found = look_up_many(server, keys)
    assert found.column("id").to_pylist() == list(range(29_999, -1, -1))
    assert found.column("name")[0].as_py() == "user 29999"
    assert sum(server.request_sizes) == 30_000
    assert len(server.requests) < 80
    assert server.in_progress_max <= 4


def test_batches_of_keys_follow_each_other(server: LookupServer) -> None:
    with_users(server, 3000)
    limits = BulkLimits(batch_rows_max=1000)
    found = look_up_many(server, pa.table({"id": np.arange(3500)}), limits=limits, found_column="found")
    assert found.column("id").to_pylist() == list(range(3500))
    assert found.column("found").to_pylist() == [True] * 3000 + [False] * 500
    assert found.column("name").num_chunks == 4


def test_large_rows_make_small_requests(server: LookupServer) -> None:
    server.add_table()
    for number in range(2000):
        server.put({"id": number, "name": "x" * 1000})
    limits = BulkLimits(batch_rows_max=1000, bytes_target=20_000)
    look_up_many(server, pa.table({"id": np.arange(2000)}), limits=limits)
    # The first ones found out how large the rows are.
    assert server.request_sizes[:2] == [500, 500]
    assert max(server.request_sizes[2:]) <= 20


def test_later_calls_know_how_large_rows_are(server: LookupServer) -> None:
    with_users(server, 8000)

    async def main() -> None:
        async with await FlussConnection.create(server.config()) as connection:
            lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
            keys = pa.table({"id": np.arange(8000)})
            for _ in range(2):
                assert (await lookuper.lookup_many(keys)).num_rows == 8000

    run(main())
    # One after the other the first four carry few keys; whatever is sent when the first answer is there carries many.
    assert sorted(server.request_sizes[:4]) == [500] * 4
    assert sorted(server.request_sizes[4:]) == [1000, 3000, 5000, 5000]


def test_keys_without_rows_make_large_requests_too(server: LookupServer) -> None:
    with_users(server, 1)
    look_up_many(server, pa.table({"id": np.arange(10_000, 22_000)}))
    assert sorted(server.request_sizes) == [500] * 4 + [5000, 5000]


def test_large_keys_make_small_requests(server: LookupServer) -> None:
    server.add_table(Schema(pa.schema([("id", pa.string())]), primary_keys=["id"]))
    keys = [[f"{number}" * 400] for number in range(100)]
    server.put({"id": keys[7][0]})
    found = look_up_many(server, keys, limits=BulkLimits(bytes_target=20_000), found_column="found")
    assert found.column("found").to_pylist().index(True) == 7
    assert max(server.request_sizes) < 30


def test_rows_that_are_too_large_together_are_asked_for_apart(server: LookupServer) -> None:
    with_users(server, 100)
    server.answer_bytes_max = 60
    assert look_up_many(server, [[number] for number in range(100)]).column("id").to_pylist() == list(range(100))
    server.answer_bytes_max = 5
    with pytest.raises(FlussError) as caught:
        look_up_many(server, [[1], [2]])
    assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


@pytest.mark.parametrize(
    "fault",
    [
        Fault(bucket_code=ErrorCode.KV_STORAGE_EXCEPTION),
        Fault(bucket_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(request_code=ErrorCode.STORAGE_EXCEPTION),
        Fault(is_cut=True),
    ],
    ids=["bucket", "leader", "request", "connection"],
)
def test_what_may_pass_is_tried_again(server: LookupServer, fault: Fault) -> None:
    with_users(server)
    server.faults.extend([fault] * 3)
    assert look_up_many(server, [[number] for number in range(100)]).column("id").to_pylist() == list(range(100))


def test_what_does_not_pass_is_raised_with_its_code(server: LookupServer) -> None:
    with_users(server)
    server.default_fault = Fault(bucket_code=48)
    with pytest.raises(FlussError) as caught:
        look_up_many(server, [[1]])
    assert (caught.value.error_code, len(server.requests)) == (48, 1)
    server.default_fault = Fault(bucket_code=11)
    with pytest.raises(FlussError) as caught:
        look_up_many(server, [[1]], request_timeout=3000)
    assert caught.value.error_code == 11


async def test_partitions_that_come_and_go(server: LookupServer) -> None:
    rows = with_orders(server)
    keys = [{"region": region, "id": number} for region in ("EU", "US", "MARS") for number in range(20)]
    async with await FlussConnection.create(server.config()) as connection:
        lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        assert (await lookuper.lookup_many(keys, missing="drop")).to_pylist() == rows
        server.drop_partition("EU")
        assert (await lookuper.lookup_many(keys, missing="drop")).to_pylist() == rows[20:]
        server.add_partition("MARS", 30)
        server.put({"region": "MARS", "amount": 1, "id": 7}, partition_id=30)
        found = await lookuper.lookup_many(keys, missing="drop", columns=["region"])
        assert found.column("region").to_pylist() == ["US"] * 20 + ["MARS"]


async def test_a_caller_that_is_cancelled_ends_its_requests(server: LookupServer) -> None:
    with_users(server)
    async with await FlussConnection.create(server.config(lookup__max_inflight_requests=1)) as connection:
        lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        server.hold()
        calls = [asyncio.create_task(lookuper.lookup_many([[number]])) for number in range(3)]
        await eventually_async(lambda: len(server.requests) == 1)
        calls[0].cancel()
        calls[1].cancel()
        await asyncio.wait(calls[:2])
        server.release()
        assert (await calls[2]).num_rows == 1
        assert (await lookuper.lookup([5])) == {"id": 5, "name": "user 5"}
