"""A table in partitions: made by hand, made by the clock, written by column values, read one by one."""

from __future__ import annotations

import asyncio
import datetime

import pyarrow as pa

import fluss
from fluss import embedded

SALES = fluss.TablePath("fluss", "sales")
VISITS = fluss.TablePath("fluss", "visits")


async def by_hand(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    schema = fluss.Schema(pa.schema([("region", pa.string()), ("order_id", pa.int64()), ("amount", pa.float64())]))
    await admin.create_table(SALES, fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=1))
    for region in ("EU", "US"):
        await admin.create_partition(SALES, {"region": region})
    table = await connection.get_table(SALES)

    # The partition is in the rows: one batch may hold rows of several.
    async with table.new_append().create_writer() as writer:
        writer.append({"region": "EU", "order_id": 1, "amount": 10.0})
        writer.write_arrow(
            pa.table({"region": ["US", "EU"], "order_id": [2, 3], "amount": [20.0, 30.0]}, schema=table.arrow_schema)
        )

    partitions = {info.partition_name: info.partition_id for info in await admin.list_partition_infos(SALES)}
    print("partitions:", sorted(partitions))
    print("rows in EU:", await admin.list_partition_offsets(SALES, "EU", [0], fluss.OffsetSpec.latest()))

    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition(partitions["EU"], bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    print("EU:", scanner.to_arrow().to_pylist())


async def by_the_clock(connection: fluss.FlussConnection) -> None:
    """Tomorrow's partition is there before tomorrow is, and old ones go by themselves."""
    admin = connection.get_admin()
    schema = fluss.Schema(pa.schema([("day", pa.string()), ("page", pa.string())]))
    properties = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": "DAY",
        "table.auto-partition.num-precreate": "2",
        "table.auto-partition.num-retention": "7",
        "table.auto-partition.time-zone": "UTC",
    }
    await admin.create_table(VISITS, fluss.TableDescriptor(schema, partition_keys=["day"], properties=properties))
    today = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    names = await partition_names(admin, count=2)
    assert today in names
    print(f"{len(names)} partitions were made by the server, today's among them")
    table = await connection.get_table(VISITS)
    async with table.new_append().create_writer() as writer:
        writer.append({"day": today, "page": "/"})


async def partition_names(admin: fluss.FlussAdmin, count: int) -> list[str]:
    """Wait for so many partitions: a cluster of many servers makes them a moment after the table."""
    async with asyncio.timeout(60):
        while True:
            names = sorted(info.partition_name for info in await admin.list_partition_infos(VISITS))
            if len(names) >= count:
                return names
            await asyncio.sleep(0.1)


async def main() -> None:
    async with embedded.EmbeddedServer() as server, await fluss.FlussConnection.create(server.config()) as connection:
        await by_hand(connection)
        await by_the_clock(connection)


if __name__ == "__main__":
    asyncio.run(main())
