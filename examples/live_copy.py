"""A dict that follows a table: the rows that are there, then every change, while somebody goes on writing.

This is how a cache, a search index or a replica is fed. Nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa

import fluss
from fluss import aio, embedded

PATH = aio.TablePath("fluss", "stock")
ITEMS = 500
CHANGES = 2000


async def change(table: aio.FlussTable) -> None:
    """Sell and restock, in no particular order."""
    rng = random.Random(1)
    writer = table.new_upsert().create_writer()
    for number in range(CHANGES):
        item = f"item-{rng.randrange(ITEMS)}"
        if number % 10 == 0:
            writer.delete([item])
        else:
            writer.upsert([item, rng.randrange(100)])
        if number % 100 == 0:
            await writer.flush()
    await writer.flush()


class Copy:
    """The rows of the table as far as its changes have been read."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.change_count = 0

    def apply(self, record: fluss.ScanRecord) -> None:
        match record.change_type:
            case fluss.ChangeType.Insert | fluss.ChangeType.UpdateAfter:
                self.rows[record.row["item"]] = record.row["count"]
            case fluss.ChangeType.Delete:
                del self.rows[record.row["item"]]
        self.change_count += 1


async def main() -> None:
    async with (
        embedded.EmbeddedServer() as server,
        await aio.FlussConnection.create(server.config()) as connection,
    ):
        schema = fluss.Schema(pa.schema([("item", pa.string()), ("count", pa.int32())]), primary_keys=["item"])
        await connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2))
        table = await connection.get_table(PATH)
        await change(table)

        writing = asyncio.create_task(change(table))
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_from_snapshot()
        copy = Copy()
        while True:
            records = await scanner.poll(200)
            for record in records:
                copy.apply(record)
            if writing.done() and not len(records):
                break
        await writing

        current = await table.to_arrow()
        truth = dict(zip(current["item"].to_pylist(), current["count"].to_pylist(), strict=True))
        assert copy.rows == truth, "the copy is the table"
        print(f"{copy.change_count} records read, {len(copy.rows)} rows: the copy is the table")


if __name__ == "__main__":
    asyncio.run(main())
