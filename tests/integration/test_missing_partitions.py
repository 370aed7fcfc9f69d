"""Rows of partitions that do not exist, and partitions that cannot exist: errors come at once, and say what to do.
Shown with timeouts that are much longer than a test may take, in all three styles of the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_partition_spec, pb_table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import PartitionSpec
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Tables, tables_of

# Nothing may wait for it.
AN_HOUR_MS = 3_600_000
DAYS = pa.schema([("day", pa.date32()), ("id", pa.int64())])


@pytest.fixture(scope="module")
def patient(server: embedded.EmbeddedServer) -> Iterator[Tables]:
    with tables_of(server, **{"request-timeout": AN_HOUR_MS}) as made:
        yield made


def table_by_day(tables: Tables, *days: str) -> fluss.FlussTable:
    table = tables.create_log(DAYS, partition_keys=["day"])
    for day in days:
        blocking.FlussAdmin._of(tables.admin).create_partition(table.table_path, {"day": day})
    return table


def patient_config(server: embedded.EmbeddedServer, **options: Any) -> fluss.Config:
    return fluss.Config({"bootstrap.servers": server.bootstrap_servers, "request-timeout": AN_HOUR_MS, **options})


def check_sentence(error: FlussError, table: fluss.FlussTable) -> None:
    assert error.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert error.message == (
        f"Rows belong to partition '2026-11-17' of {table.table_path}, which does not exist; create it first with "
        f"admin.create_partition(fluss.TablePath('fluss', '{table.table_path.table_name}'), {{'day': '2026-11-17'}}), "
        "or have writers do so (client.writer.create-missing-partitions). There are '2026-11-15', '2026-11-16'; names "
        "are written as yyyy-MM-dd (day date)"
    )


def test_a_missing_partition_fails_at_once_with_the_way_out(
    patient: Tables, server: embedded.EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_by_day(patient, "2026-11-15", "2026-11-16")
    with (
        caplog.at_level(logging.WARNING, logger="fluss.client"),
        blocking.FlussConnection.create(patient_config(server)) as connection,
    ):
        writer = connection.get_table(table.table_path).new_append().create_writer()
        for _ in range(3):
            handle = writer.append([date(2026, 11, 17), 1])
            with pytest.raises(FlussError) as from_flush:
                writer.flush()
            check_sentence(from_flush.value, table)
            with pytest.raises(FlussError) as from_handle:
                handle.wait()
            check_sentence(from_handle.value, table)
        # What is created meanwhile is found by the next row.
        connection.get_admin().create_partition(table.table_path, {"day": "2026-11-17"})
        writer.append([date(2026, 11, 17), 2]).wait()
    assert [record.getMessage() for record in caplog.records if "were not stored" not in record.getMessage()] == []
    assert len(caplog.records) == 1


async def test_it_does_so_in_coroutines_too(patient: Tables, server: embedded.EmbeddedServer) -> None:
    table = await asyncio.to_thread(table_by_day, patient, "2026-11-15", "2026-11-16")
    for module in (fluss, aio):
        async with await module.FlussConnection.create(patient_config(server)) as connection:
            writer = (await connection.get_table(table.table_path)).new_append().create_writer()
            writer.write_arrow(pa.table({"day": [date(2026, 11, 17)], "id": [1]}))
            with pytest.raises(FlussError) as caught:
                await writer.flush()
            check_sentence(caught.value, table)


def test_rows_with_keys_are_told_the_same(patient: Tables) -> None:
    table = patient.create(
        pa.schema([("region", pa.string()), ("n", pa.int32())]), ("region", "n"), partition_keys=["region"]
    )
    writer = table.new_upsert().create_writer()
    for handle in (writer.upsert(["EU", 1]), writer.delete(["EU", 1])):
        with pytest.raises(FlussError, match="The table has no partitions yet; names are written as its text"):
            handle.result(600)


def test_readers_are_told_which_partitions_there_are(patient: Tables) -> None:
    table = table_by_day(patient, "2026-11-15", "2026-11-16")
    with pytest.raises(FlussError) as caught:
        table.to_arrow(partitions=["2026-11-17"])
    assert caught.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert caught.value.message == (
        f"{table.table_path} has no partition '2026-11-17'. There are '2026-11-15', '2026-11-16'"
    )


def test_a_value_that_cannot_name_a_partition_says_why(patient: Tables) -> None:
    table = patient.create_log(pa.schema([("region", pa.string())]), partition_keys=["region"])
    with pytest.raises(FlussError, match="that cannot be: Partition value 'a/b' is invalid") as caught:
        table.new_append().create_writer().append(["a/b"]).result(600)
    assert caught.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


def test_a_table_by_the_clock_tells_its_pattern(patient: Tables) -> None:
    options = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": "DAY",
        "table.auto-partition.num-precreate": "0",
    }
    table = patient.create_log(pa.schema([("day", pa.string())]), partition_keys=["day"], properties=options)
    with pytest.raises(FlussError, match=r"names are written as yyyyMMdd \(day string\)"):
        table.new_append().create_writer().append(["20991231"]).result(600)


@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "keys"])
def test_writers_create_what_is_missing_if_they_are_told_to(
    patient: Tables, server: embedded.EmbeddedServer, is_keyed: bool
) -> None:
    schema = pa.schema([("region", pa.string()), ("n", pa.int32()), ("id", pa.int64())])
    table = patient.create(schema, ("region", "n", "id") if is_keyed else (), partition_keys=["region", "n"])
    config = patient_config(server, **{"client.writer.create-missing-partitions": "true"})
    with blocking.FlussConnection.create(config) as connection:
        found = connection.get_table(table.table_path)
        rows = [[region, n, n] for n in range(5) for region in ("EU", "US")]
        if is_keyed:
            writer = found.new_upsert().create_writer()
            for row in rows:
                writer.upsert(row)
            writer.flush()
        else:
            append = found.new_append().create_writer()
            append.write_arrow(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows]))
            append.flush()
        assert sorted(found.to_arrow()["n"].to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert set(patient.partition_ids(table)) == {f"{region}${n}" for region in ("EU", "US") for n in range(5)}


@pytest.mark.only_here("there, partitions that are older than the table keeps can be created")
def test_what_cannot_be_created_fails_at_once_too(patient: Tables, server: embedded.EmbeddedServer) -> None:
    options = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": "YEAR",
        "table.auto-partition.num-retention": "1",
    }
    table = patient.create_log(pa.schema([("year", pa.string())]), partition_keys=["year"], properties=options)
    config = patient_config(server, **{"client.writer.create-missing-partitions": "true"})
    with blocking.FlussConnection.create(config) as connection:
        writer = connection.get_table(table.table_path).new_append().create_writer()
        with pytest.raises(FlussError, match="older than") as caught:
            writer.append(["1999"]).result(600)
        assert caught.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


def test_a_table_that_was_dropped_fails_at_once_too(patient: Tables) -> None:
    table = patient.create_log(pa.schema([("id", pa.int64())]))
    writer = table.new_append().create_writer()
    writer.append([1]).result(600)
    admin = blocking.FlussAdmin._of(patient.admin)
    admin.drop_table(table.table_path)
    # The servers of a cluster hear of it one after the other, and take rows until then.
    with pytest.raises(FlussError, match="does not exist") as caught:
        eventually(lambda: writer.append([2]).result(600))
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
    admin.create_table(table.table_path, fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())]))))
    with pytest.raises(FlussError, match="was dropped and created again; get it anew to write to it"):
        writer.append([3]).result(600)


# Values that no row can have

IMPOSSIBLE = [
    (pa.date32(), "2026-99-01", "2026-09-01"),
    (pa.int8(), "300", "-7"),
    (pa.bool_(), "yes", "true"),
    (pa.timestamp("ms"), "2026-01-01", "2026-01-01-00-00-00_"),
]


@pytest.mark.only_here("0.9 does not look at the types of partition values")
@pytest.mark.parametrize(("arrow_type", "impossible", "possible"), IMPOSSIBLE, ids=lambda value: str(value))
def test_an_impossible_value_is_refused_by_client_and_server(
    patient: Tables, server: embedded.EmbeddedServer, arrow_type: pa.DataType, impossible: str, possible: str
) -> None:
    table = patient.create_log(pa.schema([("p", arrow_type), ("id", pa.int64())]), partition_keys=["p"])
    admin = blocking.FlussAdmin._of(patient.admin)
    with pytest.raises(FlussError, match=r"is no text of a .* value, which is written as") as caught:
        admin.create_partition(table.table_path, {"p": impossible})
    assert caught.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    assert run(_code_of_creating(server, table, impossible)) == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    admin.create_partition(table.table_path, {"p": possible})
    assert set(patient.partition_ids(table)) == {possible}


async def _code_of_creating(server: embedded.EmbeddedServer, table: fluss.FlussTable, value: str) -> int:
    """Ask as a client does that does not look at the values."""
    host, port = server.bootstrap_servers.split(":")
    request = pb.CreatePartitionRequest(
        table_path=pb_table_path(table.table_path),
        partition_spec=pb_partition_spec(PartitionSpec({"p": value})),
        ignore_if_not_exists=False,
    )
    async with await Channel.connect(host, int(port)) as channel:
        with pytest.raises(FlussError) as caught:
            await channel.request(apis.CREATE_PARTITION, request, timeout_s=600)
        return caught.value.error_code


def test_a_table_that_was_created_again_is_not_judged_by_the_old_one(patient: Tables) -> None:
    table = patient.create_log(DAYS, partition_keys=["day"])
    admin = blocking.FlussAdmin._of(patient.admin)
    other = fluss.TableDescriptor(fluss.Schema(pa.schema([("day", pa.string())])), partition_keys=["day"])
    with embedded_connection(patient) as second:
        second.get_admin().drop_table(table.table_path)
        second.get_admin().create_table(table.table_path, other)
    admin.create_partition(table.table_path, {"day": "monday"})
    with pytest.raises(FlussError, match=r"Table .* does not exist"):
        admin.create_partition(fluss.TablePath("fluss", "no_such_table"), {"day": "monday"})


def embedded_connection(tables: Tables) -> blocking.FlussConnection:
    return blocking.FlussConnection.create(tables.connection.config())
