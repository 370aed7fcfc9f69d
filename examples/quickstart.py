"""The shortest way from nothing to a streaming table: a server inside this program, three rows in, three rows out."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss
from fluss import embedded


async def main() -> None:
    # In production this is a server of its own, started with `python -m fluss.server`; only the address differs.
    async with embedded.EmbeddedServer() as server, await fluss.FlussConnection.create(server.config()) as connection:
        admin = connection.get_admin()
        path = fluss.TablePath("fluss", "events")
        schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())]))
        await admin.create_table(path, fluss.TableDescriptor(schema))

        table = await connection.get_table(path)
        async with table.new_append().create_writer() as writer:
            writer.append({"id": 1, "name": "Alice", "score": 95.5})
            writer.append([2, "Bob", 87.0])
            writer.append((3, "Charlie", None))

        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        for record in scanner.poll(timeout_ms=5000):
            print(f"offset {record.offset}: {record.change_type} {record.row}")


if __name__ == "__main__":
    asyncio.run(main())
