"""A day in the life of two tables, in a few seconds: `make run`.

Starts a server on an empty data directory. Orders go into a log table as rows and as Arrow batches and are read back
in several ways; what each customer has spent goes into a primary-key table, is looked up, changed and followed through
its changelog. Then the server is killed, and everything is found again. Every figure is measured while you watch.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import fluss
from fluss import embedded

ORDERS = fluss.TablePath("shop", "orders")
CUSTOMERS = fluss.TablePath("shop", "customers")
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("placed_at", pa.timestamp("us")),
    ]
)
CUSTOMER_SCHEMA = pa.schema(
    [
        pa.field("customer", pa.string(), nullable=False),
        pa.field("spent", pa.float64()),
        pa.field("order_count", pa.int64()),
        pa.field("note", pa.string()),
    ]
)
BUCKETS = 3
CUSTOMER_COUNT = 200_000
LOOKUP_COUNT = 5_000
ROW_COUNT = 50_000
BATCH_ROWS = 50_000
BATCH_COUNT = 60
LATENCY_ROWS = 200


def say(text: str) -> None:
    print(text, flush=True)


def order_batch(first_id: int, row_count: int) -> pa.RecordBatch:
    ids = pa.array(range(first_id, first_id + row_count))
    return pa.record_batch(
        [
            ids,
            pc.binary_join_element_wise("customer", pc.cast(pc.bit_wise_and(ids, 1023), pa.string()), "-"),
            pc.divide(pc.cast(pc.bit_wise_and(ids, 65535), pa.float64()), 100.0),
            pc.cast(pc.add(pc.multiply(ids, 1000), 1_700_000_000_000_000), pa.timestamp("us")),
        ],
        schema=SCHEMA,
    )


async def create_table(connection: fluss.FlussConnection) -> fluss.FlussTable:
    admin = connection.get_admin()
    await admin.create_database("shop", ignore_if_exists=True)
    await admin.create_table(ORDERS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS))
    return await connection.get_table(ORDERS)


async def write_rows(table: fluss.FlussTable) -> None:
    rows = order_batch(0, ROW_COUNT).to_pylist()
    writer = table.new_append().create_writer()
    started = time.perf_counter()
    for row in rows:
        writer.append(row)
    await writer.flush()
    seconds = time.perf_counter() - started
    say(f"  {ROW_COUNT:,} rows, one append() each     {ROW_COUNT / seconds:>12,.0f} rows/s, all acknowledged")


async def write_batches(table: fluss.FlussTable) -> None:
    batches = [order_batch(ROW_COUNT + number * BATCH_ROWS, BATCH_ROWS) for number in range(BATCH_COUNT)]
    writer = table.new_append().create_writer()
    started = time.perf_counter()
    for batch in batches:
        writer.write_arrow_batch(batch)
    await writer.flush()
    seconds = time.perf_counter() - started
    megabytes = sum(batch.nbytes for batch in batches) / 1e6
    rows = BATCH_ROWS * BATCH_COUNT
    say(f"  {rows:,} rows as Arrow batches     {rows / seconds:>12,.0f} rows/s, {megabytes / seconds:,.0f} MB/s")


async def read_table(table: fluss.FlussTable, columns: list[str] | None = None) -> pa.Table:
    scan = table.new_scan() if columns is None else table.new_scan().project_by_name(columns)
    scanner = await scan.create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    started = time.perf_counter()
    found = scanner.to_arrow()
    seconds = time.perf_counter() - started
    what = "all columns" if columns is None else "only " + ", ".join(columns)
    rate = f"{found.num_rows / seconds:>12,.0f} rows/s, {found.nbytes / 1e6 / seconds:,.0f} MB/s"
    say(f"  {found.num_rows:,} rows, {what:<21} {rate}")
    return found


async def measure_latency(table: fluss.FlussTable, writer_config: fluss.Config) -> None:
    """Append single rows on one connection while another thread polls, and compare the clocks."""
    admin_connection = await fluss.FlussConnection.create(writer_config)
    async with admin_connection as connection:
        offsets = await connection.get_admin().list_offsets(ORDERS, list(range(BUCKETS)), fluss.OffsetSpec.latest())
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_buckets(offsets)
        sent: dict[int, float] = {}
        milliseconds: list[float] = []

        def read() -> None:
            while len(milliseconds) < LATENCY_ROWS:
                records = scanner.poll(5000)
                now = time.perf_counter()
                milliseconds.extend((now - sent[record.row["order_id"]]) * 1e3 for record in records)

        reader = threading.Thread(target=read)
        reader.start()
        writer = (await connection.get_table(ORDERS)).new_append().create_writer()
        for number in range(LATENCY_ROWS):
            sent[-1 - number] = time.perf_counter()
            writer.append([-1 - number, "latency", 0.0, None])
            await asyncio.sleep(0.003)
        await asyncio.to_thread(reader.join)
    milliseconds.sort()
    p50, p99 = milliseconds[len(milliseconds) // 2], milliseconds[int(len(milliseconds) * 0.99)]
    say(f"  {LATENCY_ROWS} rows, append() to poll()       {p50:>9.2f} ms median, {p99:.2f} ms for the slowest percent")


# The primary-key table


def customer_rows() -> pa.Table:
    """Return so many customers, each with what the orders of its number would add up to."""
    numbers = pa.array(range(CUSTOMER_COUNT))
    return pa.table(
        [
            pc.binary_join_element_wise("customer", pc.cast(numbers, pa.string()), "-"),
            pc.divide(pc.cast(numbers, pa.float64()), 4.0),
            pc.bit_wise_and(numbers, 7),
            pa.nulls(CUSTOMER_COUNT, pa.string()),
        ],
        schema=CUSTOMER_SCHEMA,
    )


async def write_customers(connection: fluss.FlussConnection) -> fluss.FlussTable:
    schema = fluss.Schema(CUSTOMER_SCHEMA, primary_keys=["customer"])
    await connection.get_admin().create_table(CUSTOMERS, fluss.TableDescriptor(schema, bucket_count=BUCKETS))
    table = await connection.get_table(CUSTOMERS)
    rows = customer_rows()
    writer = table.new_upsert().create_writer()
    for what in ("inserted", "upserted again"):
        started = time.perf_counter()
        writer.upsert_arrow(rows)
        await writer.flush()
        seconds = time.perf_counter() - started
        say(f"  {CUSTOMER_COUNT:,} rows {what:<21} {CUSTOMER_COUNT / seconds:>12,.0f} rows/s, all acknowledged")
    return table


async def look_up_customers(table: fluss.FlussTable) -> None:
    lookuper = table.new_lookup().create_lookuper()
    keys = [{"customer": f"customer-{number * 37 % CUSTOMER_COUNT}"} for number in range(LOOKUP_COUNT)]
    milliseconds = []
    for key in keys[:500]:
        started = time.perf_counter()
        assert await lookuper.lookup(key) is not None
        milliseconds.append((time.perf_counter() - started) * 1e3)
    milliseconds.sort()
    say(f"  one lookup at a time              {milliseconds[len(milliseconds) // 2]:>9.2f} ms median")
    started = time.perf_counter()
    found = await asyncio.gather(*(lookuper.lookup(key) for key in keys))
    seconds = time.perf_counter() - started
    assert all(row is not None for row in found)
    say(f"  {LOOKUP_COUNT:,} lookups at the same time    {LOOKUP_COUNT / seconds:>12,.0f} lookups/s")


async def follow_customers(table: fluss.FlussTable) -> None:
    """Change a few rows, and read exactly these changes."""
    scanner = await table.new_scan().create_changelog_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.LATEST_OFFSET))
    notes = table.new_upsert().partial_update_by_name(["customer", "note"]).create_writer()
    notes.upsert({"customer": "customer-7", "note": "prefers tea"})
    await notes.flush()
    changes = scanner.poll_arrow(5000).select(["_change_type", "customer", "spent", "note"])
    say("  a note for one customer, as the changelog has it:")
    for change in changes.to_pylist():
        say(f"    {change}")
    assert changes["note"].to_pylist() == [None, "prefers tea"]


async def check_customers(table: fluss.FlussTable) -> None:
    started = time.perf_counter()
    found = await table.to_arrow_async()
    seconds = time.perf_counter() - started
    assert found.num_rows == CUSTOMER_COUNT, f"{found.num_rows} customers are there, {CUSTOMER_COUNT} were written"
    expected = pc.sum(customer_rows()["spent"]).as_py()
    assert pc.sum(found["spent"]).as_py() == expected, "what they have spent does not add up"
    assert found["note"].null_count == CUSTOMER_COUNT - 1
    say(f"  {found.num_rows:,} current rows in one call   {found.num_rows / seconds:>12,.0f} rows/s")


def check(found: pa.Table, rows_expected: int) -> None:
    assert found.num_rows == rows_expected, f"{found.num_rows} rows came back, {rows_expected} were written"
    total = pc.sum(found["order_id"]).as_py()
    expected = sum(range(ROW_COUNT + BATCH_ROWS * BATCH_COUNT)) - sum(range(1, LATENCY_ROWS + 1))
    assert total == expected, f"the ids add up to {total} instead of {expected}"


async def main() -> None:
    rows_expected = ROW_COUNT + BATCH_ROWS * BATCH_COUNT + LATENCY_ROWS
    with tempfile.TemporaryDirectory(prefix="flussbett-") as directory:
        started = time.perf_counter()
        server = embedded.start(data_dir=directory, process=True)
        with server:
            say(f"A server is up on {server.bootstrap_servers} after {time.perf_counter() - started:.2f} s.")
            async with await fluss.FlussConnection.create(server.config()) as connection:
                table = await create_table(connection)
                say(f"\nWriting to {ORDERS}, {BUCKETS} buckets, durable on disk before it is acknowledged:")
                await write_rows(table)
                await write_batches(table)
                await measure_latency(table, server.config(writer_batch_timeout_ms=0))
                say("\nReading it back:")
                check(await read_table(table), rows_expected)
                await read_table(table, ["order_id", "amount"])
                say(f"\nOne row per customer in {CUSTOMERS}, a primary-key table:")
                customers = await write_customers(connection)
                await look_up_customers(customers)
                await follow_customers(customers)
                await check_customers(customers)
            bytes_on_disk = sum(path.stat().st_size for path in Path(directory).rglob("*.log"))
            started = time.perf_counter()
            server.kill()
            server.restart()
            say(f"\nThe server was killed, and is back with its data after {time.perf_counter() - started:.2f} s:")
            async with await fluss.FlussConnection.create(server.config()) as connection:
                check(await read_table(await connection.get_table(ORDERS)), rows_expected)
                await check_customers(await connection.get_table(CUSTOMERS))
            say(f"\nAll {rows_expected:,} orders are there exactly once, in {bytes_on_disk / 1e6:,.0f} MB on disk.")


if __name__ == "__main__":
    asyncio.run(main())
