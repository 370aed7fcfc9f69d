"""Rows and Arrow data of every type are stored by a real server, once and in order, whatever happens on the way.
Shown end to end: a writer on one connection, a server process, and a reader on another connection."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from fluss import embedded
from fluss.client.connection import FlussConnection
from fluss.client.kernel.runtime import wait_for
from fluss.client.write.writers import AppendWriter
from fluss.config import Config
from fluss.errors import FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.offsets import EARLIEST_OFFSET
from fluss.schema.schema import Column, Schema
from fluss.schema.table import TablePath
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.integration import every_type
from tests.integration.every_type import schema_of_every_type

ALL_TYPES = schema_of_every_type(Column("id", DataTypes.bigint().not_null()))
FULL_ROW: dict[str, Any] = {"id": 1, **every_type.FULL_ROW}
NULL_ROW = dict.fromkeys(FULL_ROW) | {"id": 0}

SMALL = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))


@pytest.fixture(scope="module")
def server(server_process: embedded.EmbeddedServer) -> embedded.EmbeddedServer:
    return server_process


def connect(server: embedded.EmbeddedServer, **options: str | int | bool) -> FlussConnection:
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return wait_for(FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers, **named})))


def create_table(connection: FlussConnection, name: str, schema: Schema, **arguments: Any) -> TablePath:
    path = TablePath("fluss", name)
    wait_for(connection.get_admin().create_table(path, TableDescriptor(schema, **arguments)))
    return path


def writer_of(connection: FlussConnection, path: TablePath) -> AppendWriter:
    return wait_for(connection.get_table(path)).new_append().create_writer()


def read(server: embedded.EmbeddedServer, path: TablePath, bucket_count: int = 1) -> dict[int, pa.Table]:
    """Read every bucket with a connection of its own."""
    tables = {}
    with connect(server) as connection:
        table = wait_for(connection.get_table(path))
        for bucket_id in range(bucket_count):
            scanner = wait_for(table.new_scan().create_record_batch_log_scanner())
            scanner.subscribe(bucket_id, EARLIEST_OFFSET)
            tables[bucket_id] = scanner.to_arrow()
    return tables


@pytest.mark.parametrize("compression", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_every_type_and_every_null_survives_by_row_and_by_arrow(
    server: embedded.EmbeddedServer, compression: str
) -> None:
    properties = {"table.log.arrow.compression.type": compression}
    with connect(server) as connection:
        path = create_table(connection, f"types_{compression}", ALL_TYPES, properties=properties)
        writer = writer_of(connection, path)
        for row in (FULL_ROW, NULL_ROW, list(FULL_ROW.values()), tuple(NULL_ROW.values()), {"id": 0}):
            writer.append(row)
        writer.write_arrow(pa.Table.from_pylist([FULL_ROW, NULL_ROW], schema=ALL_TYPES.to_arrow()))
        wait_for(writer.flush())
    expected = [FULL_ROW, NULL_ROW, FULL_ROW, NULL_ROW, NULL_ROW, FULL_ROW, NULL_ROW]
    assert read(server, path)[0].to_pylist() == expected


def test_rows_are_spread_over_partitions_and_buckets_and_found_there(server: embedded.EmbeddedServer) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("region", pa.string())]))
    with connect(server) as connection:
        path = create_table(
            connection, "regions", schema, partition_keys=["region"], bucket_keys=["id"], bucket_count=3
        )
        admin = connection.get_admin()
        for region in ("EU", "US"):
            wait_for(admin.create_partition(path, {"region": region}))
        writer = writer_of(connection, path)
        for i in range(60):
            writer.append([i, ["EU", "US"][i % 2]])
        rows = {"id": list(range(60, 120)), "region": [["EU", "US"][i % 2] for i in range(60)]}
        writer.write_arrow(pa.table(rows, schema=schema.to_arrow()))
        wait_for(writer.flush())
        table = wait_for(connection.get_table(path))
        found = []
        for partition in wait_for(admin.list_partition_infos(path)):
            scanner = wait_for(table.new_scan().create_record_batch_log_scanner())
            scanner.subscribe_partition_buckets(
                {(partition.partition_id, bucket_id): EARLIEST_OFFSET for bucket_id in range(3)}
            )
            rows_of_partition = scanner.to_arrow().to_pylist()
            assert {row["region"] for row in rows_of_partition} == {partition.partition_name}
            found += [row["id"] for row in rows_of_partition]
    assert sorted(found) == list(range(120))


def test_a_partition_that_does_not_exist_is_an_error(server: embedded.EmbeddedServer) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("region", pa.string())]))
    with connect(server) as patient, connect(server, request_timeout=2000) as connection:
        path = create_table(patient, "no_regions", schema, partition_keys=["region"])
        with pytest.raises(FlussError) as caught:
            writer_of(connection, path).append([1, "nowhere"]).result(120)
        assert caught.value.error_code == 36


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_rows_are_stored_with_every_kind_of_acknowledgement(server: embedded.EmbeddedServer, acks: str) -> None:
    with connect(server, writer__acks=acks, writer__enable_idempotence=False) as connection:
        path = create_table(connection, f"acks_{acks}", SMALL)
        writer = writer_of(connection, path)
        for i in range(100):
            writer.append([i, "x"])
        wait_for(writer.flush())
        # Without idempotence or with few acks, rows may become visible a moment after the answer.
        eventually(lambda: read(server, path)[0].num_rows == 100)
    assert read(server, path)[0]["id"].to_pylist() == list(range(100))


@pytest.mark.only_here("0.9 knows no statistics")
def test_tables_that_ask_for_statistics_get_them(server: embedded.EmbeddedServer) -> None:
    with connect(server) as connection:
        path = create_table(connection, "statistics", SMALL, properties={"table.statistics.columns": "*"})
        writer = writer_of(connection, path)
        for i in range(100):
            writer.append([i, None if i % 7 else str(i)])
        writer.write_arrow(pa.table({"id": [100], "name": [None]}, schema=SMALL.to_arrow()))
        wait_for(writer.flush())
    assert read(server, path)[0]["id"].to_pylist() == list(range(101))


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
def test_tables_of_other_log_formats_are_written(server: embedded.EmbeddedServer, log_format: str) -> None:
    with connect(server) as connection:
        path = create_table(connection, f"format_{log_format}", SMALL, properties={"table.log.format": log_format})
        writer = writer_of(connection, path)
        handles = [writer.append([i, None if i % 3 else str(i)]) for i in range(100)]
        handles.append(writer.write_arrow_batch(pa.record_batch([[100], ["x"]], schema=SMALL.to_arrow())))
        for handle in handles:
            handle.result(120)
        offsets = wait_for(connection.get_admin().list_offsets(path, [0], "latest"))
    assert offsets == {0: 101}


def test_a_server_killed_in_the_middle_of_writing_has_every_row_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        embedded.start(data_dir=tmp_path_factory.mktemp("killed"), process=True) as server,
        connect(server, writer__batch_size=4096, writer__batch_timeout_ms=5) as connection,
    ):
        path = create_table(connection, "killed", SMALL, bucket_count=2)
        writer = writer_of(connection, path)
        stop = threading.Event()
        handles: list[Any] = []

        def write() -> None:
            while not stop.is_set():
                handles.append(writer.append([len(handles), "x" * 50]))
                if len(handles) % 50 == 0:
                    time.sleep(0.005)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(2):
                time.sleep(0.3)
                server.kill()
                time.sleep(0.1)
                server.restart()
        finally:
            stop.set()
            thread.join(120)
        wait_for(writer.flush())
        for handle in handles:
            handle.result(0)
        buckets = read(server, path, bucket_count=2)
    for table in buckets.values():
        ids = table["id"].to_pylist()
        assert ids == sorted(ids)
    assert sorted(i for table in buckets.values() for i in table["id"].to_pylist()) == list(range(len(handles)))
