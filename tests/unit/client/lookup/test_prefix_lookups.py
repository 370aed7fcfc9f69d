"""Rows by the beginning of their keys: which columns that may be, what is found, in rows and as Arrow.
Shown on real sockets with a server that keeps rows in memory and fails on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.connection import FlussConnection
from fluss.client.fluss_table import FlussTable
from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Schema
from tests.fakes.faulty_server import Fault
from tests.fakes.lookup_server import PATH, LookupServer

ORDERS = Schema(
    pa.schema([("region", pa.string()), ("customer", pa.int32()), ("number", pa.int64()), ("item", pa.string())]),
    primary_keys=["region", "customer", "number"],
)


def orders(region: str = "EU", customers: int = 3, each: int = 4) -> list[dict[str, Any]]:
    return [
        {"region": region, "customer": customer, "number": number, "item": f"item {number}"}
        for customer in range(customers)
        for number in range(each)
    ]


async def table_of(connection: FlussConnection) -> FlussTable:
    return await connection.get_table(PATH)


async def test_all_rows_that_begin_so_in_the_order_of_their_keys(server: LookupServer) -> None:
    server.add_table(ORDERS, bucket_keys=("region", "customer"), bucket_count=3)
    rows = orders()
    for row in reversed(rows):
        server.put(row)
    async with await FlussConnection.create(server.config()) as connection:
        lookup = (await table_of(connection)).new_lookup().lookup_by(["region", "customer"])
        lookuper = lookup.create_lookuper()
        assert await lookuper.lookup({"region": "EU", "customer": 1}) == rows[4:8]
        assert await lookuper.lookup(["EU", 2]) == rows[8:]
        assert await lookuper.lookup(("EU", 9)) == []
        found = await asyncio.gather(*(lookuper.lookup(["EU", number % 4]) for number in range(200)))
        assert found == [rows[4 * number : 4 * number + 4] for number in range(4)] * 50
        table = await lookuper.lookup_arrow(["EU", 1])
        assert (table.schema, table.to_pylist()) == (ORDERS.to_arrow(), rows[4:8])
        nothing = await lookuper.lookup_arrow(["EU", 9])
        assert (nothing.schema, nothing.num_rows) == (ORDERS.to_arrow(), 0)
        assert (repr(lookup), repr(lookuper)) == ("TablePrefixLookup()", "PrefixLookuper()")


async def test_partition_columns_come_first_or_last_or_in_between(server: LookupServer) -> None:
    server.add_table(ORDERS, partition_keys=("region",), bucket_keys=("customer",), bucket_count=3)
    for partition_id, region in ((10, "EU"), (11, "US")):
        server.add_partition(region, partition_id)
        for row in orders(region):
            server.put(row, partition_id=partition_id)
    async with await FlussConnection.create(server.config()) as connection:
        new_lookup = (await table_of(connection)).new_lookup
        first = new_lookup().lookup_by(["region", "customer"]).create_lookuper()
        last = new_lookup().lookup_by(("customer", "region")).create_lookuper()
        assert await first.lookup(["US", 2]) == orders("US")[8:]
        assert await last.lookup([2, "US"]) == orders("US")[8:]
        assert await first.lookup(["MARS", 2]) == []
        assert (await last.lookup_arrow([2, "MARS"])).num_rows == 0
        server.add_partition("MARS", 12)
        server.put(orders("MARS")[0], partition_id=12)
        assert await last.lookup([0, "MARS"]) == orders("MARS")[:1]


@pytest.mark.parametrize(
    ("bucket_keys", "partition_keys", "columns", "text"),
    [
        (["region", "customer"], [], ["region", "nme"], "Unknown column name 'nme'"),
        (["region", "customer"], [], ["customer", "region"], "bucket keys"),
        (["region", "customer"], [], ["region"], "bucket keys"),
        (["region", "customer"], [], ["region", "customer", "number"], "bucket keys"),
        (["customer"], ["region"], ["customer"], "partition fields"),
        (["customer"], ["region"], ["region", "region", "customer"], "each column once"),
        (["region", "customer", "number"], [], ["region", "customer", "number"], "the whole primary key"),
        (["number"], [], ["number"], "not the beginning"),
        (["region"], [], [], "bucket keys"),
    ],
)
async def test_columns_that_cannot_be_looked_up_by_are_refused(
    server: LookupServer, bucket_keys: list[str], partition_keys: list[str], columns: list[str], text: str
) -> None:
    server.add_table(ORDERS, bucket_keys=tuple(bucket_keys), partition_keys=tuple(partition_keys))
    async with await FlussConnection.create(server.config()) as connection:
        lookup = (await table_of(connection)).new_lookup()
        with pytest.raises(FlussError, match=text) as caught:
            lookup.lookup_by(columns)
        assert "prefix lookup" in caught.value.message
        with pytest.raises(TypeError):
            lookup.lookup_by("region")


async def test_failures_pass_or_are_raised_and_bad_prefixes_are_refused(server: LookupServer) -> None:
    server.add_table(ORDERS, bucket_keys=("region", "customer"))
    for row in orders():
        server.put(row)
    async with await FlussConnection.create(server.config()) as connection:
        lookuper = (await table_of(connection)).new_lookup().lookup_by(["region", "customer"]).create_lookuper()
        for ask in (lookuper.lookup, lookuper.lookup_arrow):
            server.faults.extend([Fault(bucket_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), Fault(is_cut=True)])
            assert len(await ask(["EU", 1])) == 4
            server.faults.append(Fault(bucket_code=48))
            with pytest.raises(FlussError) as caught:
                await ask(["EU", 1])
            assert caught.value.error_code == 48
            for prefix in (["EU"], ["EU", None], ["EU", "x"], {"region": "EU"}, {"item": 1}, "EU"):
                with pytest.raises(FlussError):
                    await ask(prefix)
