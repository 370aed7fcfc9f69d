"""Everything one does with a log table: rows, Arrow, pandas, acknowledgements, projections, offsets, limits."""

from __future__ import annotations

import asyncio
import time

import pandas as pd
import pyarrow as pa

import fluss
from fluss import embedded

PATH = fluss.TablePath("fluss", "measurements")


async def create(connection: fluss.FlussConnection) -> fluss.FlussTable:
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("sensor", pa.string(), nullable=False),
                pa.field("value", pa.float64()),
                pa.field("at", pa.timestamp("ms", tz="UTC")),
                pa.field("tags", pa.list_(pa.string())),
            ]
        )
    )
    descriptor = fluss.TableDescriptor(
        schema,
        bucket_count=2,
        bucket_keys=["sensor"],  # rows of one sensor stay in order, in one bucket
        comment="what the sensors said",
        properties={"table.log.ttl": "30d"},
    )
    await connection.get_admin().create_table(PATH, descriptor)
    return await connection.get_table(PATH)


async def write(table: fluss.FlussTable) -> None:
    writer = table.new_append().create_writer()

    # A row is queued at once and sent with others. The handle tells when it is stored.
    handle = writer.append({"sensor": "north", "value": 20.5, "tags": ["roof"]})
    await handle.wait()

    # Bulk: Arrow in its own form, or a pandas frame whose columns are matched by name.
    writer.write_arrow_batch(
        pa.record_batch(
            [["south", "north"], [21.0, 20.75], pa.array([0, 1], pa.timestamp("ms", tz="UTC")), [None, ["roof"]]],
            schema=table.arrow_schema,
        )
    )
    frame = pd.DataFrame({"value": [19.0, 18.5], "sensor": ["east", "east"], "at": [None, None], "tags": [None, []]})
    writer.write_pandas(frame)

    # A row that does not fit is refused here, and spoils nothing that was queued before.
    try:
        writer.append({"sensor": None, "value": 1.0})
    except fluss.FlussError as error:
        print("refused:", error.message)
    await writer.flush()


async def read(connection: fluss.FlussConnection, table: fluss.FlussTable) -> None:
    buckets = range(table.get_table_info().num_buckets)

    # Once: everything up to now, as Arrow. to_pandas() gives a frame; both can be repeated.
    scanner = await table.new_scan().project_by_name(["sensor", "value"]).create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
    print(scanner.to_arrow().sort_by("value").to_pydict())

    # Again and again: whatever has arrived, with its place in the log.
    follower = await table.new_scan().create_log_scanner()
    follower.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
    seen = 0
    while seen < 5:
        for bucket, records in follower.poll(timeout_ms=1000).items():
            for record in records:
                print(
                    f"bucket {bucket.bucket_id}, offset {record.offset}: {record.row['sensor']}={record.row['value']}"
                )
                seen += 1

    # Where things are: by position, and by time.
    admin = connection.get_admin()
    print("latest offsets:", await admin.list_offsets(PATH, list(buckets), fluss.OffsetSpec.latest()))
    an_hour_ago = int(time.time() * 1000) - 3_600_000
    print("an hour ago:", await admin.list_offsets(PATH, list(buckets), fluss.OffsetSpec.timestamp(an_hour_ago)))

    # The newest rows of a bucket, without reading the rest.
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    newest = await table.new_scan().limit(1).create_bucket_batch_scanner(bucket).to_arrow()
    print("newest row of bucket 0:", newest.to_pylist())


async def main() -> None:
    async with embedded.EmbeddedServer() as server, await fluss.FlussConnection.create(server.config()) as connection:
        table = await create(connection)
        await write(table)
        await read(connection, table)


if __name__ == "__main__":
    asyncio.run(main())
