"""Promises of the client that need a real server to be seen: keywords of the guides, missing values, positions, polls.
Shown against one server, with the plain client, from a coroutine and without one."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fluss
from fluss import EARLIEST_OFFSET, LATEST_OFFSET, FlussError, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import poll_rows

ARROW_SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
SCHEMA = fluss.Schema(ARROW_SCHEMA)

_numbers = itertools.count()


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


# Keywords


async def test_calls_work_with_the_keywords_of_the_reference(connection: fluss.FlussConnection) -> None:
    admin: Any = await connection.get_admin()
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
    assert scanner.poll(0).is_empty(), "nothing was asked for before"
    assert [record.row for record in eventually(lambda: scanner.poll(0))] == [{"id": 1, "name": "a"}]


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
            batches += scanner.poll_record_batch(120_000)
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
    assert scanner.poll_arrow(120_000).num_rows == 1
    assert wait_for(limited.to_arrow()).num_rows == 1


def test_handles_and_flush_report_what_the_server_refused_each_time(
    connection: fluss.FlussConnection, server: embedded.EmbeddedServer
) -> None:
    with wait_for(fluss.FlussConnection.create(server.config(request_timeout_ms=2000))) as hasty:
        table = wait_for(hasty.get_table(create_table(connection, partition_keys=["name"]).table_path))
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


# Primary keys


async def test_upserts_and_lookups_work_with_the_keywords_of_the_reference(connection: fluss.FlussConnection) -> None:
    schema = pa.schema([("shop", pa.int32()), ("number", pa.int32()), ("name", pa.string())])
    table = create_table(connection, fluss.Schema(schema, primary_keys=["shop", "number"]), bucket_keys=["shop"])
    writer = table.new_upsert().create_writer()
    await writer.upsert(row={"shop": 1, "number": 1, "name": "a"}).wait()
    await writer.upsert(row=(1, 2, "b"))
    await writer.upsert([1, 3, "c"]).wait()
    await writer.delete(pk={"number": 2, "shop": 1}).wait()
    whole = table.new_upsert()
    for builder in (
        whole.partial_update_by_name(columns=["shop", "number", "name"]),
        whole.partial_update_by_index(indices=[0, 1, 2]),
        whole.partial_update_by_index(column_indices=[0, 1, 2]),
        whole.partial_update_with_column_names(columns=["shop", "number", "name"]),
        whole.partial_update(column_indices=[0, 1, 2]),
        whole.partial_update(),
        table.new_upsert(columns=["shop", "number", "name"]),
        table.new_upsert(column_indices=[0, 1, 2]),
    ):
        await builder.create_writer().upsert(row=[1, 1, "again"]).wait()
    lookup = table.new_lookup()
    found = await lookup.create_lookuper().lookup(pk={"shop": 1, "number": 1})
    assert found == {"shop": 1, "number": 1, "name": "again"}
    assert await lookup.lookup(pk=[1, 2]) is None
    by_shop = lookup.lookup_by(column_names=["shop"]).create_lookuper()
    assert [row["number"] for row in await by_shop.lookup(prefix={"shop": 1})] == [1, 3]


def test_missing_values_are_null_in_rows_and_refused_in_keys(connection: fluss.FlussConnection) -> None:
    schema = pa.schema([("id", pa.timestamp("us")), ("local", pa.timestamp("us")), ("number", pa.int32())])
    table = create_table(connection, fluss.Schema(schema, primary_keys=["id"]))
    writer, lookup = table.new_upsert().create_writer(), table.new_lookup()
    missing = [None, pd.NaT, pd.NA, np.datetime64("NaT")]
    for day, value in enumerate(missing, start=1):
        writer.upsert([datetime(2024, 1, day), value, value])
        with pytest.raises(FlussError, match="'id'") as refused:
            writer.upsert([value, None, 1])
        assert refused.value.error_code == fluss.ErrorCode.CLIENT_ERROR
        for call in (writer.delete, lambda key: wait_for(lookup.lookup(key))):
            with pytest.raises(FlussError, match="'id'"):
                call([value])
    writer.write_pandas(pd.DataFrame({"number": [None], "id": [pd.Timestamp(2024, 1, 5)], "local": [pd.NaT]}))
    wait_for(writer.flush())
    keys = [[datetime(2024, 1, day)] for day in range(1, 6)]
    assert wait_for(lookup.lookup_many(keys)).to_pylist() == [
        {"id": id, "local": None, "number": None} for (id,) in keys
    ]


def test_a_row_is_the_same_whichever_way_it_is_read(connection: fluss.FlussConnection) -> None:
    fields = {
        "id": pa.int32(),
        "zero": pa.decimal128(10, 2),
        "rounded": pa.decimal128(38, 3),
        "float": pa.float32(),
        "seconds": pa.time32("s"),
        "millis": pa.timestamp("ms"),
        "nanos": pa.timestamp("ns"),
        "instant": pa.timestamp("us", tz="UTC"),
        "tags": pa.list_(pa.string()),
        "sizes": pa.map_(pa.string(), pa.int32()),
        "pair": pa.struct([("x", pa.int32()), ("when", pa.date32())]),
        "raw": pa.binary(2),
    }
    table = create_table(connection, fluss.Schema(pa.schema(list(fields.items())), primary_keys=["id"]))
    before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_001)
    written = {
        "id": -1,
        "zero": Decimal("0"),
        "rounded": Decimal("-2.0005"),
        "float": 0.1,
        "seconds": clock_time(23, 59, 59),
        "millis": before_1970,
        "nanos": pd.Timestamp(before_1970) + pd.Timedelta(7, "ns"),
        "instant": before_1970,
        "tags": (),
        "sizes": {"b": 1, "a": None},
        "pair": {"when": date(1, 1, 1)},
        "raw": bytearray(b"\x00\xff"),
    }
    expected = {
        **written,
        "zero": Decimal("0.00"),
        "rounded": Decimal("-2.001"),
        "float": float(np.float32(0.1)),
        "millis": datetime(1969, 12, 31, 23, 59, 59, 999_000),
        "nanos": before_1970,
        "instant": before_1970.replace(tzinfo=UTC),
        "tags": [],
        "sizes": [("b", 1), ("a", None)],
        "pair": {"x": None, "when": date(1, 1, 1)},
        "raw": b"\x00\xff",
    }
    wait_for(table.new_upsert().upsert(written).wait())
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    records = wait_for(table.new_scan().create_log_scanner())
    records.subscribe(0, EARLIEST_OFFSET)
    by_lookup = wait_for(table.new_lookup().lookup([-1]))
    assert by_lookup == expected
    assert str(by_lookup["zero"]) == "0.00"
    assert poll_rows(records, 1) == [expected]
    in_arrow = [
        wait_for(table.new_lookup().lookup_many([[-1]])),
        table.to_arrow(),
        wait_for(table.new_scan().limit(1).create_bucket_batch_scanner(bucket).to_arrow()),
    ]
    for found in in_arrow:
        assert found.schema == table.arrow_schema
        (row,) = found.to_pylist()
        # Arrow keeps the nanoseconds that a datetime cannot have.
        assert row.pop("nanos") == written["nanos"]
        assert row == {name: value for name, value in expected.items() if name != "nanos"}


@pytest.mark.parametrize(
    ("data_type", "values", "names"),
    [
        (pa.int32(), (-5, 7), ("-5", "7")),
        (pa.bool_(), (True, False), ("true", "false")),
        (pa.date32(), (date(2024, 2, 29), date(1999, 1, 1)), ("2024-02-29", "1999-01-01")),
        (pa.binary(), (b"\x00\xff", b"a"), ("00ff", "61")),
        (pa.float64(), (1.5, -0.25), ("1_5", "-0_25")),
        (
            pa.timestamp("ms"),
            (datetime(2024, 1, 2, 3, 4, 5), datetime(1969, 12, 31)),
            ("2024-01-02-03-04-05_", "1969-12-31-00-00-00_"),
        ),
    ],
    ids=str,
)
def test_a_partition_column_may_have_any_scalar_type(
    connection: fluss.FlussConnection, data_type: pa.DataType, values: tuple[Any, Any], names: tuple[str, str]
) -> None:
    schema = pa.schema([("id", pa.int32()), ("part", data_type), ("shop", pa.string()), ("name", pa.string())])
    table = create_table(
        connection,
        fluss.Schema(schema, primary_keys=["part", "id", "shop"]),
        partition_keys=["part"],
        # Not the beginning of the key.
        bucket_keys=["shop"],
        bucket_count=3,
    )
    for name in names:
        wait_for(connection.get_admin().create_partition(table.table_path, {"part": name}))
    rows = [{"id": n, "part": values[n % 2], "shop": f"s{n % 4}", "name": f"n{n}"} for n in range(20)]
    writer = table.new_upsert().create_writer()
    for row in rows[:10]:
        writer.upsert(row)
    writer.upsert_arrow(pa.Table.from_pylist(rows[10:], schema=table.arrow_schema))
    keys = [{name: row[name] for name in ("id", "part", "shop")} for row in rows]
    writer.delete(keys[0])
    key_schema = pa.schema([table.arrow_schema.field(name) for name in ("id", "part", "shop")])
    writer.delete_arrow(pa.Table.from_pylist(keys[1:3], schema=key_schema))
    wait_for(writer.flush())
    lookuper = table.new_lookup().create_lookuper()
    assert [wait_for(lookuper.lookup(key)) for key in keys] == [None, None, None, *rows[3:]]
    assert wait_for(lookuper.lookup_many(keys, missing="drop")).to_pylist() == rows[3:]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == rows[3:]
    with pytest.raises(FlussError, match="prefix lookup"):
        table.new_lookup().lookup_by(["part", "shop"])


def test_a_table_made_again_is_never_taken_for_the_one_before(
    server: embedded.EmbeddedServer, connection: fluss.FlussConnection
) -> None:
    schema = fluss.Schema(ARROW_SCHEMA, primary_keys=["id"])
    # Whoever has the old table looks for it as long as a request may take.
    with wait_for(fluss.FlussConnection.create(server.config(request_timeout_ms=1000))) as impatient:
        old = wait_for(impatient.get_table(create_table(connection, schema).table_path))
        writer, lookuper = old.new_upsert().create_writer(), old.new_lookup().create_lookuper()
        wait_for(writer.upsert([1, "old"]).wait())
        wait_for(connection.get_admin().drop_table(old.table_path))
        wait_for(connection.get_admin().create_table(old.table_path, fluss.TableDescriptor(schema)))
        new = wait_for(connection.get_table(old.table_path))
        assert wait_for(new.new_lookup().lookup([1])) is None
        wait_for(new.new_upsert().upsert([1, "new"]).wait())
        for call in (
            lambda: wait_for(lookuper.lookup([1])),
            lambda: wait_for(lookuper.lookup_many([[1]])),
            lambda: wait_for(writer.upsert([1, "late"]).wait()),
            lambda: wait_for(writer.delete([1]).wait()),
            old.to_arrow,
        ):
            with pytest.raises(FlussError, match="created again") as refused:
                call()
            assert refused.value.error_code == fluss.ErrorCode.TABLE_NOT_EXIST
        assert new.to_arrow().to_pylist() == [{"id": 1, "name": "new"}]


def test_asking_for_the_servers_disturbs_neither_writers_nor_lookups(connection: fluss.FlussConnection) -> None:
    table = create_table(connection, fluss.Schema(ARROW_SCHEMA, primary_keys=["id"]), bucket_count=3)
    writer, lookuper = table.new_upsert().create_writer(), table.new_lookup().create_lookuper()
    for number in range(5):
        handle = writer.upsert([number, "x"])
        assert wait_for(connection.get_admin().get_server_nodes())
        assert repr(handle) == "WriteResultHandle(pending)"
        for _ in range(2):
            wait_for(handle.wait())
        assert repr(handle) == "WriteResultHandle(consumed)"
        assert wait_for(lookuper.lookup([number])) == {"id": number, "name": "x"}


def test_a_changelog_is_followed_from_its_end_and_without_an_end(connection: fluss.FlussConnection) -> None:
    table = create_table(connection, fluss.Schema(ARROW_SCHEMA, primary_keys=["id"]))
    writer = table.new_upsert().create_writer()

    async def main() -> list[tuple[str, dict[str, Any]]]:
        await writer.upsert([1, "a"])
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, LATEST_OFFSET)
        await writer.upsert([1, "b"])
        await writer.delete([1])
        found = []
        async for record in scanner:
            found.append((str(record.change_type), record.row))
            if record.change_type is fluss.ChangeType.Delete:
                return found
        raise AssertionError("it has no end")

    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    assert asyncio.run(main()) == [("-U", old), ("+U", new), ("-D", new)]


def test_a_closed_connection_neither_writes_nor_looks_up(server: embedded.EmbeddedServer) -> None:
    connection = wait_for(fluss.FlussConnection.create(server.config()))
    table = create_table(connection, fluss.Schema(ARROW_SCHEMA, primary_keys=["id"]))
    writer, lookuper = table.new_upsert().create_writer(), table.new_lookup().create_lookuper()
    handle = writer.upsert([1, "a"])
    wait_for(lookuper.lookup([1]))
    connection.close()
    wait_for(handle.wait())
    for call in (
        lambda: writer.upsert([1, "b"]),
        lambda: writer.delete([1]),
        lambda: table.new_upsert().upsert([1, "b"]),
        lambda: wait_for(lookuper.lookup([1])),
        lambda: wait_for(lookuper.lookup_many([[1]])),
        lambda: wait_for(table.new_lookup().lookup([1])),
        table.to_arrow,
    ):
        with pytest.raises(FlussError, match="closed"):
            call()
