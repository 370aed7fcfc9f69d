"""asyncio from end to end: one task writes, another follows the table with `async for`, on one event loop."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from fluss import aio, embedded

PATH = aio.TablePath("fluss", "clicks")
CLICKS = 500


async def produce(table: aio.FlussTable) -> None:
    async with table.new_append().create_writer() as writer:
        for number in range(CLICKS):
            writer.append({"user": f"user-{number % 7}", "number": number})
            if number % 100 == 0:
                await asyncio.sleep(0.01)


async def consume(table: aio.FlussTable) -> dict[str, int]:
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, aio.EARLIEST_OFFSET)
    clicks: dict[str, int] = {}
    seen = 0
    async for record in scanner:
        clicks[record.row["user"]] = clicks.get(record.row["user"], 0) + 1
        seen += 1
        if seen == CLICKS:
            break
    return clicks


async def main() -> None:
    async with embedded.EmbeddedServer() as server, await aio.FlussConnection.create(server.config()) as connection:
        schema = aio.Schema(pa.schema([("user", pa.string()), ("number", pa.int64())]))
        await connection.get_admin().create_table(PATH, aio.TableDescriptor(schema))
        table = await connection.get_table(PATH)
        _, clicks = await asyncio.gather(produce(table), consume(table))
        print(f"{sum(clicks.values())} clicks of {len(clicks)} users:", dict(sorted(clicks.items())))


if __name__ == "__main__":
    asyncio.run(main())
