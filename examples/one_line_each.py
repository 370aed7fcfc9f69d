"""One line for each: connecting, writing, looping, consuming, data frames, in three styles, and type checkers know."""

from __future__ import annotations

import asyncio
from itertools import islice

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions.parser import parse

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
        print(frames(cities), relations(cities), duckdb.sql("select max(id) from cities"))
        batches: pa.RecordBatchReader = cities.to_arrow_batch_reader(["id"])
        return sum(batch.num_rows for batch in batches)


def write_frames(address: str) -> list[str]:
    config = fluss.Config(bootstrap_servers=address, writer_create_missing_partitions=True)
    connection = blocking.FlussConnection.create(config)
    events, cities = connection.get_table("fluss.events"), connection.get_table("fluss.cities")
    writer: blocking.AppendWriter = events.new_append().create_writer()
    writer.write_arrow(pa.table({"day": ["sunday"], "id": pa.array([5], pa.uint8())}))
    writer.write_arrow_batch(pa.RecordBatch.from_pylist([{"id": 6, "day": "sunday"}]), strict=True).wait()
    writer.write_pandas(pd.DataFrame({"day": ["sunday", "friday"], "id": [7, 8]}))
    writer.write_arrow(pl.DataFrame({"id": [9], "day": ["friday"]}))
    writer.flush(timeout=30)
    with cities.new_upsert().create_writer() as upserts:
        upserts.upsert_arrow(duckdb.sql("select 4 as id, 'Ulm' as city"))
        upserts.write_pandas(pd.DataFrame({"id": [5], "city": ["Trier"]}))
        upserts.delete_arrow(pa.table({"id": [4, 5]}), strict=True)
        upserts.flush(timeout=30)
    days = [partition.get_partition_name() for partition in connection.get_admin().list_partition_infos("fluss.events")]
    for condition in (
        "id BETWEEN 1 AND 5",
        fluss.col("id") < 6,
        pc.field("id") < 6,
        parse("id < 6"),
        pl.col("id") < 6,
    ):
        rows: pa.Table = events.new_scan().filter(condition).to_arrow()
        assert rows["id"].to_pylist() == [5]
    connection.close(timeout=10)
    return sorted(days)


def alter(address: str) -> str:
    with blocking.connect(address) as connection:
        admin = connection.get_admin()
        admin.alter_table("fluss.cities", add_columns=[pa.field("country", pa.string())])
        try:
            admin.alter_table("fluss.cities", drop_columns=["city"])
        except fluss.FlussError as error:
            return error.message
        admin.alter_table("fluss.cities", rename_columns={"country": "land"})
        return ""


def frames(table: blocking.FlussTable) -> tuple[int, str]:
    whole: pl.DataFrame = table.to_polars()
    lazy: pl.LazyFrame = table.scan_polars().filter(pl.col("id") == 2).select("city")
    city: str = lazy.collect().item()
    return whole.height, city


def relations(table: blocking.FlussTable) -> list[tuple[int]]:
    assert pa.table(table.new_scan().project_by_name(["id"])).num_rows == pl.DataFrame(table).height == 2
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
        writer: fluss.AppendWriter = await table.new_append().create_writer()
        writer.write_pandas(pd.DataFrame({"id": [10], "day": ["monday"]}))
        await writer.flush(timeout=30)
        await connection.close(timeout=10)
    async with aio.connect(address) as other:
        events: aio.FlussTable = await other.get_table("fluss.events")
        batches = await events.new_scan().create_record_batch_log_scanner()
        batches.subscribe_all()
        async for batch in batches:
            rows: pa.RecordBatch = batch.batch
            print(rows.num_rows, (await events.to_polars(["id"])).height)
            break
        async with await events.new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"id": [11], "day": ["monday"]}), strict=True)
            await writer.flush(timeout=30)


def consume(address: str) -> int:
    with blocking.connect(address) as connection:
        events = connection.get_table("fluss.events")
        with events.consumer(
            "billing", columns=["id"], if_lost="earliest", on_assign=lambda bucket, epoch: None
        ) as first:
            record: fluss.ScanRecord
            for record in first:
                print(record.row["id"])
                break
        with events.consumer("billing", start="latest", auto_commit=False) as second:
            # The loop was left at the first record, which was not done with.
            while any(second.lag().values()) or not second.epochs():
                records: fluss.ScanRecords = second.poll(1000)
                second.commit({record.bucket: record.offset + 1 for record in records})
            done: dict[fluss.TableBucket, int] = second.committed()
            second.close(timeout=30)
        info: fluss.ConsumerInfo
        for info in events.consumers():
            print(info.name, info.members, info.lag)
        return sum(done.values())


async def consume_async(address: str) -> None:
    async with aio.connect(address) as connection:
        events = await connection.get_table("fluss.events")
        consumer: aio.Consumer
        async with events.consumer("audit") as consumer:
            try:
                rows: pa.Table = await consumer.poll_arrow(10_000)
                await consumer.commit()
            except fluss.ConsumerFencedError as error:
                print(error.message)
            else:
                print(rows.num_rows > 0)
            await consumer.close(timeout=30)
        await events.drop_consumer("audit")


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
        print(write_frames(address))
        print(list(loop(address).values()))
        asyncio.run(loop_async(address))
        print(consume(address))
        asyncio.run(consume_async(address))
        print(asyncio.run(count(address)))
        print(alter(address))


if __name__ == "__main__":
    main()
