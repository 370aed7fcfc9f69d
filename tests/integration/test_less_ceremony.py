"""What takes one line takes one line: connecting, naming a table, writing many rows, looping over a scanner.
Shown in the three styles, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from tests.integration.keyed_tables import Tables, tables_of

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
DISCOVERY_MS = 50


@pytest.fixture(scope="module")
def plain(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.connect(server.bootstrap_servers, scanner_partition_discovery_interval_ms=DISCOVERY_MS) as made:
        yield made


@pytest.fixture(scope="module")
def own_tables(server: embedded.EmbeddedServer) -> Iterator[Tables]:
    with tables_of(server) as made:
        yield made


def log_table(connection: blocking.FlussConnection, tables: Tables, **descriptor: Any) -> blocking.FlussTable:
    return connection.get_table(str(tables.create_log(SCHEMA, **descriptor).table_path))


# Connecting


async def test_an_address_is_enough_to_connect(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.bootstrap_servers
    async with fluss.connect(address) as connection:
        assert isinstance(connection, fluss.FlussConnection)
        assert repr(connection) == f"FlussConnection('{address}', open)"
        table = (await connection.get_admin().list_tables("fluss"))[:0]
        assert table == []
    assert repr(connection) == f"FlussConnection('{address}', closed)"
    connection = await fluss.connect({"bootstrap.servers": address}, request_timeout_ms=5000)
    assert connection.config().request_timeout_ms == 5000
    await connection.close()
    async with aio.connect(address) as other:
        assert isinstance(other, aio.FlussConnection)
    with blocking.FlussConnection.create(address) as third:
        assert third.config().bootstrap_servers == address
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", address)
    for made in (blocking.connect(), blocking.FlussConnection.create(), blocking.connect(request_timeout_ms=5000)):
        assert made.config().bootstrap_servers == address
        made.close()
    # Whoever says where, means it; and a config says everything itself.
    assert fluss.Config.of("elsewhere:1").bootstrap_servers == "elsewhere:1"
    assert fluss.Config.of(fluss.Config()).bootstrap_servers == "127.0.0.1:9123"
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS")
    assert fluss.Config.of().bootstrap_servers == "127.0.0.1:9123"


async def test_a_connection_that_was_not_awaited_says_so(server: embedded.EmbeddedServer) -> None:
    not_open = fluss.connect(server.bootstrap_servers)
    assert repr(not_open) == f"<a connection to {server.bootstrap_servers} that is not open yet: await it>"
    with pytest.raises(AttributeError, match="is not open yet, so it has no 'get_table': write `await connect"):
        not_open.get_table  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match=r"connect to an address such as 'localhost:9123', or .* got int"):
        fluss.connect(9123)  # type: ignore[arg-type]


def test_options_are_keywords_of_a_config() -> None:
    config = fluss.Config({"writer.acks": "1"}, writer_batch_size=1000, bootstrap_server="here:1")
    assert (config.writer_acks, config.writer_batch_size, config.bootstrap_servers) == ("1", 1000, "here:1")
    changed = fluss.Config.of(config, writer_acks="0")
    assert (changed.writer_acks, config.writer_acks) == ("0", "1")
    with pytest.raises(TypeError, match="Config has no option 'writer_ack'; did you mean 'writer_acks'"):
        fluss.Config(writer_ack="1")
    with pytest.raises(TypeError, match="writer_batch_size must be int, got str"):
        fluss.Config(writer_batch_size="big")
    with pytest.raises(fluss.FlussError, match=r"'writer\.acks' is given twice"):
        fluss.Config({"writer.acks": "1"}, writer_acks="1")


def test_a_table_is_named_in_one_text(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    path = own_tables.create_log(SCHEMA).table_path
    assert plain.get_table(str(path)).table_path == path
    assert plain.get_admin().get_table_info(str(path)).table_path == path
    assert plain.get_admin().table_exists("fluss.not_there") is False
    for wrong in ("orders", ".orders", "fluss.", "a.b.c", ""):
        with pytest.raises(fluss.FlussError, match=r"A table is named 'database\.table'"):
            plain.get_table(wrong)
    with pytest.raises(TypeError, match=r"table_path must be a TablePath or a text 'database\.table', got int"):
        plain.get_table(3)  # type: ignore[arg-type]


# Writing


def test_many_rows_are_one_call_and_one_handle(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    table = log_table(plain, own_tables)
    writer = table.new_append().create_writer()
    handle = writer.append_many({"id": number, "name": "x"} for number in range(1000))
    handle.wait()
    assert table.to_arrow()["id"].to_pylist() == list(range(1000))
    writer.append_many([]).wait()
    with pytest.raises(fluss.FlussError, match=r"Row 1 was not written, the 1 before it were: .*id"):
        writer.append_many([[1000, "fits"], ["no number", "x"], [1001, "x"]])
    writer.flush()
    assert table.to_arrow().num_rows == 1001


def test_many_rows_are_upserted_and_deleted(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    table = plain.get_table(own_tables.create(bucket_count=3).table_path)
    with table.new_upsert() as upsert:
        upsert.upsert_many((number, "x") for number in range(100)).wait()
        upsert.create_writer().delete_many({"id": number} for number in range(1, 100)).wait()
    assert table.to_arrow().to_pydict() == {"id": [0], "name": ["x"]}


# Loops


def test_a_loop_stands_where_its_last_record_was(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    table = log_table(plain, own_tables, bucket_count=1)
    table.new_append().create_writer().append_many([number, "x"] for number in range(10)).wait()
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe_all()
    seen = []
    for record in scanner:
        seen.append(record.row["id"])
        assert list(scanner.position().values()) == [record.offset + 1]
        if len(seen) == 3:
            break
    # The next loop goes on, and so does a poll, although all records came with the first poll.
    seen += [record.row["id"] for record in itertools.islice(scanner, 2)]
    assert seen == [0, 1, 2, 3, 4]
    polled = [record.row["id"] for record in scanner.poll(10_000)]
    assert polled[0] == 5
    (bucket,) = scanner.position()
    assert scanner.get_subscribed_buckets() == [(bucket, 5 + len(polled))]
    # What is subscribed anew begins where it was told to, whatever a loop has left over.
    scanner.subscribe(0, 7)
    assert next(iter(scanner)).row["id"] == 7
    scanner.subscribe(0, 2)
    assert next(iter(scanner)).row["id"] == 2


def test_batches_are_looped_over_and_a_read_up_to_now_goes_on_behind(
    plain: blocking.FlussConnection, own_tables: Tables
) -> None:
    table = log_table(plain, own_tables, bucket_count=1)
    writer = table.new_append().create_writer()
    for start in (0, 10, 20):
        writer.write_arrow(pa.table({"id": range(start, start + 10), "name": ["x"] * 10}, schema=SCHEMA))
        writer.flush()
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_all()
    for batch in scanner:
        assert batch.batch["id"].to_pylist() == list(range(10))
        break
    assert scanner.to_arrow()["id"].to_pylist() == list(range(10, 30))


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_rows_of_a_snapshot_that_a_loop_has_left_come_with_the_next_poll(
    plain: blocking.FlussConnection, own_tables: Tables
) -> None:
    table = plain.get_table(own_tables.create(bucket_count=1).table_path)
    table.new_upsert().upsert_many((number, "x") for number in range(10)).wait()
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe_from_snapshot()
    seen = [record.row["id"] for record in itertools.islice(scanner, 4)]
    assert list(scanner.position().values()) == [fluss.EARLIEST_OFFSET]
    table.new_upsert().upsert((99, "later")).wait()
    while len(seen) < 11:
        seen += [record.row["id"] for record in scanner.poll(10_000)]
    assert sorted(seen[:10]) == list(range(10))
    assert seen[10] == 99


async def test_loops_of_the_other_styles(server: embedded.EmbeddedServer, own_tables: Tables) -> None:
    path = own_tables.create_log(SCHEMA, bucket_count=1).table_path
    for connect in (fluss.connect, aio.connect):
        async with connect(server.bootstrap_servers) as connection:
            table = await connection.get_table(path)
            await table.new_append().create_writer().append_many([[1, "a"], [2, "b"]])
            scanner = await table.new_scan().create_log_scanner()
            scanner.subscribe_all()
            async for record in scanner:
                assert record.row["id"] == 1
                assert list(scanner.position().values()) == [1]
                break
            async for record in scanner:
                assert record.row["id"] == 2
                break


# Partitions


def test_a_scanner_finds_new_partitions_and_lets_go_of_dropped_ones(
    plain: blocking.FlussConnection, own_tables: Tables
) -> None:
    table = log_table(plain, own_tables, partition_keys=["name"], bucket_count=1)
    admin, path = plain.get_admin(), table.table_path
    admin.create_partition(path, {"name": "a"})
    writer = table.new_append().create_writer()
    writer.append([1, "a"]).wait()
    following, fixed = table.new_scan().create_log_scanner(), table.new_scan().create_log_scanner()
    following.subscribe_all(fluss.LATEST_OFFSET)
    fixed.subscribe_all(partitions="a")
    admin.create_partition(path, {"name": "b"})
    writer.append([2, "b"]).wait()
    assert next(iter(following)).row == {"id": 2, "name": "b"}
    admin.drop_partition(path, {"name": "a"})
    while len(following.position()) > 1:
        following.poll(DISCOVERY_MS)
    writer.append([3, "b"]).wait()
    assert next(iter(following)).row == {"id": 3, "name": "b"}
    assert len(fixed.position()) == 1


def test_a_loop_over_all_partitions_survives_the_end_of_one_of_them(
    server: embedded.EmbeddedServer, own_tables: Tables
) -> None:
    # Partitions are looked for once in an hour here: that one is gone is found out by reading it.
    with blocking.connect(server.bootstrap_servers, scanner_partition_discovery_interval_ms=3_600_000) as plain:
        table = log_table(plain, own_tables, partition_keys=["name"], bucket_count=1)
        admin, path = plain.get_admin(), table.table_path
        for name in ("a", "b"):
            admin.create_partition(path, {"name": name})
        writer = table.new_append().create_writer()
        writer.append_many([[1, "a"], [1, "b"]]).wait()
        scanners = [table.new_scan().create_log_scanner(), table.new_scan().create_log_scanner()]
        scanners[0].subscribe_all()
        scanners[1].subscribe_all(partitions=["a", "b"])
        loops = [iter(scanner) for scanner in scanners]
        assert [next(rows).row["id"] for rows in loops for _ in range(2)] == [1, 1, 1, 1]
        admin.drop_partition(path, {"name": "a"})
        while len(scanners[0].position()) > 1:
            assert not scanners[0].poll(100)
        writer.append([2, "b"]).wait()
        assert next(loops[0]).row == {"id": 2, "name": "b"}
        with pytest.raises(fluss.FlussError, match="does not exist"):
            list(loops[1])


def test_rows_of_new_partitions_follow_those_of_a_snapshot(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    keyed = own_tables.create(SCHEMA, ("id", "name"), partition_keys=["name"], bucket_count=2)
    table, admin = plain.get_table(keyed.table_path), plain.get_admin()
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe_from_snapshot()
    admin.create_partition(keyed.table_path, {"name": "a"})
    table.new_upsert().upsert_many([[1, "a"], [2, "a"], [3, "a"]]).wait()
    assert sorted(record.row["id"] for record in itertools.islice(scanner, 3)) == [1, 2, 3]


def test_partitions_are_not_looked_for_when_that_is_turned_off(
    server: embedded.EmbeddedServer, own_tables: Tables
) -> None:
    keyed = own_tables.create_log(SCHEMA, partition_keys=["name"])
    # "client.scanner.partition.discovery.interval" is the key of the property.
    with blocking.connect(
        {"client.scanner.partition.discovery.interval": 0}, bootstrap_servers=server.bootstrap_servers
    ) as made:
        scanner = made.get_table(keyed.table_path).new_scan().create_log_scanner()
        scanner.subscribe_all()
        assert scanner._discovery is None


# What a newcomer tries


async def test_a_loop_over_a_scanner_that_reads_nothing_is_an_error(
    plain: blocking.FlussConnection, own_tables: Tables
) -> None:
    table = log_table(plain, own_tables)
    for create in (table.new_scan().create_log_scanner, table.new_scan().create_record_batch_log_scanner):
        with create() as scanner, pytest.raises(fluss.FlussError, match=r"No buckets subscribed.* subscribe_all\(\)"):
            next(iter(scanner))
    async with fluss.connect(plain.config()) as connection:
        other = await (await connection.get_table(table.table_path)).new_scan().create_log_scanner()
        with pytest.raises(fluss.FlussError, match="No buckets subscribed"):
            await anext(aiter(other))
        other.subscribe_all()
        other.unsubscribe(0)
        with pytest.raises(fluss.FlussError, match="No buckets subscribed"):
            await anext(aiter(other))


def test_columns_and_single_rows_are_no_rows(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    writer = log_table(plain, own_tables).new_append().create_writer()
    for columns in (pa.table({"id": [1]}), pd.DataFrame({"id": [1]}), pl.DataFrame({"id": [1]})):
        with pytest.raises(TypeError, match=r"expected rows, got \w+ of \w+; use write_arrow, or upsert_arrow"):
            writer.append_many(columns)
    with pytest.raises(TypeError, match="got one dict; put it into a list if it is a row"):
        writer.append_many({"id": 1})
    with pytest.raises(TypeError, match="expected a pandas DataFrame, got DataFrame of polars; write_arrow and"):
        writer.write_pandas(pl.DataFrame({"id": [1]}))


def test_conditions_are_taken_from_columns(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    table = log_table(plain, own_tables)
    table.new_append().create_writer().append_many([[number, "a"] for number in range(6)] + [[None, "b"]]).wait()
    id_ = fluss.col("id")
    for condition, expected in (
        (id_.isin([1, 4]), [1, 4]),
        (id_.isin(pd.Series([1, 4])), [1, 4]),
        (id_.not_in(pa.array([0, 1, 2, 3, 4])), [5]),
    ):
        assert table.to_arrow(filter=condition)["id"].to_pylist() == expected, condition
    with pytest.raises(TypeError, match="project_by_name takes names"):
        table.new_scan().project(["id"])  # type: ignore[list-item]
