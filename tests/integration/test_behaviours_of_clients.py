"""Promises of the client that need a real server to be seen: keywords of the guides, missing values, positions, polls.
Shown against one server, with the plain client, from a coroutine and without one."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fluss
from fluss import EARLIEST_OFFSET, LATEST_OFFSET, FlussError, embedded
from fluss.client.faces import wait_for

ARROW_SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
SCHEMA = fluss.Schema(ARROW_SCHEMA)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start({"durability": "os"}, data_dir=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def connection(server: embedded.EmbeddedServer) -> Iterator[fluss.FlussConnection]:
    with wait_for(fluss.FlussConnection.create(server.config(writer_batch_timeout_ms=1))) as opened:
        yield opened


def create_table(
    connection: fluss.FlussConnection, schema: fluss.Schema = SCHEMA, **description: Any
) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", f"t{next(_numbers)}")
    wait_for(connection.get_admin().create_table(path, fluss.TableDescriptor(schema, **description)))
    return wait_for(connection.get_table(path))


def write(table: fluss.FlussTable, *rows: Any) -> None:
    writer = table.new_append().create_writer()
    for row in rows:
        writer.append(row)
    wait_for(writer.flush())


def batch_scanner(scan: fluss.TableScan) -> fluss.LogScanner:
    return wait_for(scan.create_record_batch_log_scanner())


def poll_rows(scanner: fluss.LogScanner, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    deadline_s = time.monotonic() + 15
    while len(rows) < count and time.monotonic() < deadline_s:
        rows += [record.row for record in scanner.poll(500)]
    return rows


# Keywords


def test_calls_work_with_the_keywords_of_the_reference(connection: fluss.FlussConnection) -> None:
    async def main() -> None:
        admin = await connection.get_admin()
        descriptor = fluss.DatabaseDescriptor(comment="by keyword")
        await admin.create_database(name="named", database_descriptor=descriptor, ignore_if_exists=False)
        assert await admin.database_exists(name="named")
        assert (await admin.get_database_info(name="named")).get_database_descriptor() == descriptor
        path = fluss.TablePath(database="named", table="t")
        await admin.create_table(
            table_path=path, table_descriptor=fluss.TableDescriptor(schema=SCHEMA), ignore_if_exists=False
        )
        table = await connection.get_table(table_path=path)
        writer = table.new_append().create_writer()
        await writer.append(row={"id": 1, "name": "a"}).wait()
        await writer.write_arrow_batch(batch=pa.record_batch([[2], ["b"]], schema=ARROW_SCHEMA)).wait()
        writer.write_arrow(table=pa.table([[3], ["c"]], schema=ARROW_SCHEMA))
        writer.write_pandas(df=pd.DataFrame({"id": [4], "name": ["d"]}))
        await writer.flush()
        scan = table.new_scan().project(indices=[0]).project_by_name(names=["name", "id"])
        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow().to_pydict() == {"name": list("abcd"), "id": [1, 2, 3, 4]}
        scanner.subscribe_buckets(bucket_offsets={0: 3})
        assert scanner.poll_arrow(timeout_ms=5000)["id"].to_pylist() == [4]
        scanner.unsubscribe(bucket_id=0)
        await admin.drop_table(table_path=path, ignore_if_not_exists=False)
        await admin.drop_database(name="named", ignore_if_not_exists=False, cascade=True)
        assert not await admin.database_exists(database_name="named")

    asyncio.run(main())


# Values


def test_every_kind_of_missing_value_is_null(connection: fluss.FlussConnection) -> None:
    schema = pa.schema([("id", pa.int32()), ("local", pa.timestamp("us")), ("instant", pa.timestamp("us", tz="UTC"))])
    table = create_table(connection, fluss.Schema(schema))
    missing = [None, pd.NaT, pd.NA, np.datetime64("NaT")]
    write(table, *([number, value, value] for number, value in enumerate(missing)))
    frame = pd.DataFrame({"id": [4], "local": [pd.NaT], "instant": [pd.NaT]})
    writer = table.new_append().create_writer()
    writer.write_pandas(frame)
    wait_for(writer.flush())
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow().to_pylist() == [{"id": n, "local": None, "instant": None} for n in range(5)]


def test_instants_are_read_in_utc_whatever_zone_they_were_written_in(connection: fluss.FlussConnection) -> None:
    schema = pa.schema([("instant", pa.timestamp("us", tz="UTC"))])
    table = create_table(connection, fluss.Schema(schema))
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    elsewhere = pa.array([noon], pa.timestamp("us", tz="Asia/Tokyo"))
    writer = table.new_append().create_writer()
    writer.append([noon])
    writer.append([noon.replace(tzinfo=None)])
    writer.write_arrow_batch(pa.record_batch([elsewhere], names=["instant"]))
    wait_for(writer.flush())
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    found = scanner.to_arrow()
    assert found.schema == schema == table.arrow_schema
    assert found["instant"].to_pylist() == [noon] * 3
    records = wait_for(table.new_scan().create_log_scanner())
    records.subscribe(0, EARLIEST_OFFSET)
    assert [row["instant"].tzinfo for row in poll_rows(records, 3)] == [UTC] * 3


# Positions and polls


def test_the_latest_offset_of_a_partition_is_where_reading_may_begin(connection: fluss.FlussConnection) -> None:
    table = create_table(connection, partition_keys=["name"])
    admin = connection.get_admin()
    wait_for(admin.create_partition(table.table_path, {"name": "EU"}))
    write(table, [1, "EU"], [2, "EU"])
    (info,) = wait_for(admin.list_partition_infos(table.table_path))
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe_partition(info.partition_id, 0, LATEST_OFFSET)
    bucket = fluss.TableBucket.with_partition(table.get_table_info().table_id, info.partition_id, 0)
    assert scanner.get_subscribed_buckets() == [(bucket, 2)]
    write(table, [3, "EU"])
    assert poll_rows(scanner, 1) == [{"id": 3, "name": "EU"}]


def test_a_poll_without_time_returns_what_has_arrived_and_has_more_fetched(connection: fluss.FlussConnection) -> None:
    table = create_table(connection)
    write(table, [1, "a"])
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe(0, EARLIEST_OFFSET)
    began_s = time.monotonic()
    assert scanner.poll(0).is_empty(), "nothing was asked for before"
    assert time.monotonic() - began_s < 0.2
    deadline_s = time.monotonic() + 10
    while not (polled := scanner.poll(0)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert [record.row for record in polled] == [{"id": 1, "name": "a"}]


def test_a_column_may_be_wanted_twice(connection: fluss.FlussConnection) -> None:
    table = create_table(connection)
    write(table, [1, "a"])
    scanner = batch_scanner(table.new_scan().project([1, 0, 1]))
    scanner.subscribe(0, EARLIEST_OFFSET)
    found = scanner.to_arrow()
    assert found.column_names == ["name", "id", "name"]
    assert [column.to_pylist() for column in found.columns] == [["a"], [1], ["a"]]
    records = wait_for(table.new_scan().project([1, 0, 1]).create_log_scanner())
    records.subscribe(0, EARLIEST_OFFSET)
    assert poll_rows(records, 1) == [{"name": "a", "id": 1}]


def test_a_small_batch_size_needs_no_other_option(server: embedded.EmbeddedServer) -> None:
    with wait_for(fluss.FlussConnection.create(server.config(writer_batch_size=1000))) as connection:
        table = create_table(connection, properties={"table.log.arrow.compression.type": "NONE"})
        write(table, *([number, "x" * 100] for number in range(100)))
        scanner = batch_scanner(table.new_scan())
        scanner.subscribe(0, EARLIEST_OFFSET)
        batches: list[fluss.RecordBatch] = []
        while sum(batch.num_records for batch in batches) < 100:
            batches += scanner.poll_record_batch(5000)
        assert len(batches) > 10


# Errors


def test_without_pandas_a_data_frame_says_what_to_install_and_reads_nothing(
    connection: fluss.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    write(table, [1, "a"])
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    limited = table.new_scan().limit(1).create_bucket_batch_scanner(bucket)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for read in (scanner.to_pandas, lambda: wait_for(scanner.to_pandas_async()), lambda: wait_for(limited.to_pandas())):
        with pytest.raises(FlussError, match="pip install pandas"):
            read()
    assert scanner.poll_arrow(5000).num_rows == 1
    assert wait_for(limited.to_arrow()).num_rows == 1


def test_handles_and_flush_report_what_the_server_refused_each_time(
    connection: fluss.FlussConnection, server: embedded.EmbeddedServer
) -> None:
    with wait_for(fluss.FlussConnection.create(server.config(request_timeout_ms=300))) as hasty:
        table = create_table(hasty, partition_keys=["name"])
        writer = table.new_append().create_writer()
        handle = writer.append([1, "nowhere"])
        with pytest.raises(FlussError, match="nowhere") as from_flush:
            wait_for(writer.flush())
        assert from_flush.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
        for _ in range(2):
            with pytest.raises(FlussError) as from_handle:
                wait_for(handle.wait())
            assert from_handle.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
        # It was told once; what is written now stands for itself.
        wait_for(connection.get_admin().create_partition(table.table_path, {"name": "somewhere"}))
        writer.append([2, "somewhere"])
        wait_for(writer.flush())
