"""Everything one does with a primary-key table: upserts, partial updates, deletes, lookups, whole-table reads."""

from __future__ import annotations

import asyncio

import pandas as pd
import pyarrow as pa

import fluss
from fluss import embedded

USERS = fluss.TablePath("fluss", "users")
ORDERS = fluss.TablePath("fluss", "orders")


async def create(connection: fluss.FlussConnection) -> fluss.FlussTable:
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("id", pa.int32()),
                pa.field("name", pa.string()),
                pa.field("city", pa.string()),
                pa.field("visits", pa.int64()),
            ]
        ),
        primary_keys=["id"],
    )
    await connection.get_admin().create_table(USERS, fluss.TableDescriptor(schema, bucket_count=3))
    return await connection.get_table(USERS)


async def write(table: fluss.FlussTable) -> None:
    # Rows: each replaces the one with its key.
    async with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "Ada", "city": "London", "visits": 1})
        writer.upsert([2, "Bob", "Paris", 5])
        writer.upsert({"id": 2, "name": "Bob", "city": "Rome", "visits": 6})

    # Bulk: Arrow data or a pandas frame, several times faster than single rows.
    ids = pa.array(range(100, 10_100), pa.int32())
    people = pa.table(
        [ids, [f"user {i}" for i in range(10_000)], ["Berlin"] * 10_000, [0] * 10_000], schema=table.arrow_schema
    )
    bulk = table.new_upsert().create_writer()
    bulk.upsert_arrow(people)
    bulk.write_pandas(pd.DataFrame({"id": [3], "name": ["Cleo"], "city": ["Cairo"], "visits": [2]}))
    bulk.delete_arrow(pa.table({"id": ids.slice(5_000)}))
    await bulk.flush()

    # Some columns of a row; the others stay.
    moves = table.new_upsert().partial_update_by_name(["id", "city"]).create_writer()
    await moves.upsert({"id": 1, "city": "Cambridge"}).wait()


async def read(table: fluss.FlussTable) -> None:
    lookuper = table.new_lookup().create_lookuper()
    print("one:", await lookuper.lookup({"id": 1}))
    print("none:", await lookuper.lookup({"id": 9_999_999}))

    # Many at once share requests by themselves.
    rows = await asyncio.gather(*(lookuper.lookup([i]) for i in range(100, 1100)))
    print("a thousand:", sum(row is not None for row in rows), "found")

    # A column of keys in, Arrow out: the rows come in the order of the keys.
    found = await lookuper.lookup_many(pa.table({"id": pa.array([3, 2, 5_000_000], pa.int32())}))
    print("as Arrow:", found.to_pylist())

    # All current rows, or some of their columns.
    everything = await table.to_arrow_async(columns=["id", "city"])
    print("cities:", everything.group_by("city").aggregate([("id", "count")]).sort_by("city").to_pylist())


async def look_up_by_prefix(connection: fluss.FlussConnection) -> None:
    """The bucket key is the beginning of the primary key: all orders of a customer are found together."""
    schema = fluss.Schema(
        pa.schema([("customer", pa.int32()), ("number", pa.int64()), ("item", pa.string())]),
        primary_keys=["customer", "number"],
    )
    await connection.get_admin().create_table(
        ORDERS, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["customer"])
    )
    orders = await connection.get_table(ORDERS)
    async with orders.new_upsert().create_writer() as writer:
        for number, item in enumerate(("tea", "milk", "sugar", "cups")):
            writer.upsert([number % 2, number, item])
    of_customer = orders.new_lookup().lookup_by(["customer"]).create_lookuper()
    print("orders of customer 1:", [row["item"] for row in await of_customer.lookup({"customer": 1})])


async def main() -> None:
    async with embedded.EmbeddedServer() as server, await fluss.FlussConnection.create(server.config()) as connection:
        table = await create(connection)
        await write(table)
        await read(table)
        await look_up_by_prefix(connection)


if __name__ == "__main__":
    asyncio.run(main())
