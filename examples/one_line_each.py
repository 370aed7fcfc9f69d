"""One line for each: connecting, writing, looping, data frames, in the three styles, and type checkers know it all."""

from __future__ import annotations

import asyncio
from itertools import islice

import duckdb
import polars as pl
import pyarrow as pa

import fluss
from fluss import aio, blocking, embedded

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64()), ("city", pa.string())]), primary_keys=["id"])
EVENTS = fluss.Schema(pa.schema([("id", pa.int64()), ("day", pa.string())]))


def create_tables(address: str) -> None:
    config = fluss.Config(bootstrap_servers=address, scanner_partition_discovery_interval_ms=100)
    with blocking.FlussConnection.create(config) as connection:
        admin: blocking.FlussAdmin = connection.get_admin()
        admin.create_table("fluss.cities", fluss.TableDescriptor(SCHEMA, bucket_count=2))
        admin.create_table("fluss.events", fluss.TableDescriptor(EVENTS, partition_keys=["day"], bucket_count=1))
        admin.create_partition("fluss.events", {"day": "monday"})
        info: fluss.TableInfo = admin.get_table_info("fluss.cities")
        print(info.primary_keys)


def write_and_read(address: str) -> int:
    with blocking.connect({"bootstrap.servers": address}, request_timeout_ms=60_000) as connection:
        cities: blocking.FlussTable = connection.get_table("fluss.cities")
        with cities.new_upsert().create_writer() as writer:
            handle: blocking.WriteResultHandle = writer.upsert_many([[1, "Bonn"], [2, "Kiel"], [3, "Jena"]])
            handle.wait()
            writer.delete_many([{"id": 3}]).wait()
        table: pa.Table = cities.to_arrow(["city"], filter=fluss.col("id") == 1, limit=1)
        print(table.to_pydict(), len(cities.to_pandas(filter="id > 0", progress=True)))
        print(frames(cities), relations(cities))
        batches: pa.RecordBatchReader = cities.to_arrow_batch_reader(["id"])
        return sum(batch.num_rows for batch in batches)


def frames(table: blocking.FlussTable) -> tuple[int, str]:
    whole: pl.DataFrame = table.to_polars()
    lazy: pl.LazyFrame = table.scan_polars().filter(pl.col("id") == 2).select("city")
    city: str = lazy.collect().item()
    return whole.height, city


def relations(table: blocking.FlussTable) -> list[tuple[int]]:
    assert pa.table(table.new_scan().project_by_name(["id"])).num_rows == 2
    with duckdb.connect() as connection:
        relation: duckdb.DuckDBPyRelation = table.to_duckdb(connection)
        found: list[tuple[int]] = relation.filter("id > 1").project("id").fetchall()
        return found


def loop(address: str) -> dict[fluss.TableBucket, int]:
    with blocking.connect(address) as connection:
        events = connection.get_table("fluss.events")
        events.new_append().create_writer().append_many([[n, "monday"] for n in range(3)]).wait()
        with events.new_scan().create_log_scanner() as scanner:
            scanner.subscribe_all(fluss.EARLIEST_OFFSET)
            record: fluss.ScanRecord
            for record in scanner:
                row: dict[str, object] = record.row
                print(record.offset, row)
                if record.offset == 1:
                    break
            position: dict[fluss.TableBucket, int] = scanner.position()
        with events.new_scan().filter("id > 0").create_record_batch_log_scanner() as batch_scanner:
            batch_scanner.subscribe_all()
            batch: fluss.RecordBatch
            for batch in islice(batch_scanner, 1):
                print(batch.batch["id"].to_pylist())
        return position


async def loop_async(address: str) -> None:
    async with fluss.connect(address) as connection:
        table: fluss.FlussTable = await connection.get_table("fluss.events")
        scanner: fluss.LogScanner[fluss.ScanRecord] = await table.new_scan().create_log_scanner()
        scanner.subscribe_all()
        async for record in scanner:
            print(record.row["id"], (await table.to_polars_async()).height)
            break
    async with aio.connect(address) as other:
        events: aio.FlussTable = await other.get_table("fluss.events")
        batches = await events.new_scan().create_record_batch_log_scanner()
        batches.subscribe_all()
        async for batch in batches:
            rows: pa.RecordBatch = batch.batch
            print(rows.num_rows, (await events.to_polars(["id"])).height)
            break


async def count(address: str) -> int:
    async with fluss.connect(address) as connection:
        rows: pa.Table = await (await connection.get_table("fluss.events")).to_arrow_async()
        row_count: int = rows.num_rows
        return row_count


def main() -> None:
    with embedded.start() as server:
        address = server.bootstrap_servers
        create_tables(address)
        print(write_and_read(address))
        print(list(loop(address).values()))
        asyncio.run(loop_async(address))
        print(asyncio.run(count(address)))


if __name__ == "__main__":
    main()
