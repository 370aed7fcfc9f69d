"""Upserts, partial updates and deletes of every type take effect on a real server, once and in the order of the calls.
Shown end to end: writers on one connection, a server process, and lookups on another connection."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss
from fluss import DataTypes, FlussError, Schema, TablePath, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.schema.schema import Column, schema_from_columns
from fluss.testing.cluster import ServerProcess
from fluss.testing.faultnet import FaultProxy, Faults
from tests.integration import every_type
from tests.integration.every_type import schema_of_every_type

USERS = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())]), primary_keys=["id"])
ALL_TYPES = schema_of_every_type(Column("id", DataTypes.bigint()), primary_keys=["id"])
FULL_ROW: dict[str, Any] = {"id": 1, **every_type.FULL_ROW}


@pytest.fixture(scope="module")
def server(server_process: embedded.EmbeddedServer) -> embedded.EmbeddedServer:
    return server_process


class Cluster:
    """A connection that writes and one that reads."""

    def __init__(self, address: str, **options: str | int) -> None:
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        config = fluss.Config({"bootstrap.servers": address, **named})
        self.writing = wait_for(fluss.FlussConnection.create(config))
        self.reading = wait_for(fluss.FlussConnection.create(config))

    def create(self, name: str, schema: Schema = USERS, **arguments: Any) -> fluss.FlussTable:
        path = TablePath("fluss", name)
        wait_for(self.writing.get_admin().create_table(path, fluss.TableDescriptor(schema, **arguments)))
        return wait_for(self.writing.get_table(path))

    def table(self, name: str) -> fluss.FlussTable:
        return wait_for(self.writing.get_table(TablePath("fluss", name)))

    def rows(self, name: str, keys: list[Any]) -> list[dict[str, Any] | None]:
        """Look rows up, one by one."""
        lookuper = wait_for(self.reading.get_table(TablePath("fluss", name))).new_lookup().create_lookuper()
        return [wait_for(lookuper.lookup(key)) for key in keys]

    def held(self, name: str, keys: list[Any]) -> list[dict[str, Any]]:
        """Look many rows up at once; those that are not there are left out."""
        lookuper = wait_for(self.reading.get_table(TablePath("fluss", name))).new_lookup().create_lookuper()
        found: list[dict[str, Any]] = wait_for(lookuper.lookup_many(keys, missing="drop")).to_pylist()
        return found

    def ages_written(self, name: str, bucket_count: int) -> dict[int, list[int]]:
        """Read the changelog; return the ages that each key was given, in their order."""
        table = wait_for(self.reading.get_table(TablePath("fluss", name)))
        ends = wait_for(
            self.reading.get_admin().list_offsets(table.table_path, range(bucket_count), fluss.OffsetSpec.latest())
        )
        scanner = wait_for(table.new_scan().create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(bucket_count), fluss.EARLIEST_OFFSET))
        ages: dict[int, list[int]] = {}
        while any(offset < ends[bucket.bucket_id] for bucket, offset in scanner.get_subscribed_buckets()):
            for record in scanner.poll(120_000):
                if record.change_type in (fluss.ChangeType.Insert, fluss.ChangeType.UpdateAfter):
                    ages.setdefault(record.row["id"], []).append(record.row["age"])
        scanner.close()
        return ages

    def close(self) -> None:
        wait_for(self.reading.close())
        wait_for(self.writing.close())


@pytest.fixture
def cluster(server: embedded.EmbeddedServer) -> Iterator[Cluster]:
    made = Cluster(server.bootstrap_servers)
    yield made
    made.close()


def flush(writer: fluss.UpsertWriter | fluss.TableUpsert) -> None:
    wait_for(writer.flush())


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_every_type_and_every_null_survives_by_row_and_by_arrow(cluster: Cluster, kv_format: str) -> None:
    name = f"all_types_{kv_format}"
    table = cluster.create(name, ALL_TYPES, kv_format=kv_format)
    writer = table.new_upsert().create_writer()
    null_row = dict.fromkeys(FULL_ROW) | {"id": 2}
    writer.upsert(FULL_ROW)
    writer.upsert(null_row)
    by_arrow = [FULL_ROW | {"id": 3}, null_row | {"id": 4}]
    writer.upsert_arrow(pa.Table.from_pylist(by_arrow, schema=table.arrow_schema))
    # The columns of a partial update keep their types, too.
    everything_else = [column for column in table.arrow_schema.names if column != "boolean"]
    partial = table.new_upsert().partial_update_by_name(everything_else)
    partial.upsert({key: value for key, value in FULL_ROW.items() if key != "boolean"} | {"id": 5})
    # A writer waits for its own rows only.
    flush(writer)
    flush(partial)
    assert cluster.rows(name, [[1], [2], [3], [4], [5]]) == [
        FULL_ROW,
        null_row,
        *by_arrow,
        FULL_ROW | {"id": 5, "boolean": None},
    ]


def test_every_scalar_type_can_be_a_key(cluster: Cluster) -> None:
    names = [column.name for column in ALL_TYPES.columns if not column.data_type.is_nested]
    names.remove("id")
    columns = [Column(name, ALL_TYPES.column(name).data_type) for name in names]
    table = cluster.create(
        "any_key", schema_from_columns([*columns, Column("value", DataTypes.int())], names), bucket_count=3
    )
    writer = table.new_upsert().create_writer()
    key = {name: FULL_ROW[name] for name in names}
    others = [key | {"bigint": number} for number in range(20)]
    for row in [key, *others]:
        writer.upsert(row | {"value": 1})
    writer.upsert_arrow(pa.Table.from_pylist([key | {"value": 2}], schema=table.arrow_schema))
    writer.delete(others[0])
    key_schema = pa.schema([table.arrow_schema.field(name) for name in names])
    writer.delete_arrow(pa.Table.from_pylist(others[1:3], schema=key_schema))
    flush(writer)
    assert cluster.rows("any_key", [key, *others]) == [
        key | {"value": 2},
        *[None] * 3,
        *(other | {"value": 1} for other in others[3:]),
    ]


def test_upserts_deletes_and_partial_updates_take_effect_in_the_order_of_the_calls(cluster: Cluster) -> None:
    table = cluster.create("in_order", bucket_count=2)
    whole = table.new_upsert().create_writer()
    ages = table.new_upsert(columns=["id", "age"])
    names = table.new_upsert(column_indices=[1, 0]).create_writer()
    rng = random.Random(7)
    model: dict[int, dict[str, Any]] = {}
    blank = {"name": None, "age": None}
    for number in range(300):
        key = rng.randrange(20)
        row = model.get(key)
        match rng.randrange(6):
            case 0:
                whole.upsert([key, f"n{number}", number])
                model[key] = {"id": key, "name": f"n{number}", "age": number}
            case 1:
                ages.upsert({"id": key, "age": number})
                model[key] = {"id": key, **blank, **(row or {}), "age": number}
            case 2:
                names.upsert([f"p{number}", key])
                model[key] = {"id": key, **blank, **(row or {}), "name": f"p{number}"}
            case 3:
                whole.delete({"id": key})
                model.pop(key, None)
            case 4:
                whole.delete_arrow(pa.table({"id": [key]}))
                model.pop(key, None)
            case _:
                data = pa.table({"name": [f"a{number}"], "id": [key]})
                names.upsert_arrow(data)
                model[key] = {"id": key, **blank, **(row or {}), "name": f"a{number}"}
        if number % 100 == 99:
            flush(whole)
            assert cluster.rows("in_order", [[i] for i in range(20)]) == [model.get(i) for i in range(20)]


def test_a_delete_of_a_partial_update_takes_its_columns_and_at_last_the_row(cluster: Cluster) -> None:
    table = cluster.create("partial_delete")
    table.new_upsert().upsert([1, "a", 30])
    ages, names = table.new_upsert(columns=["id", "age"]), table.new_upsert(columns=["id", "name"])
    wait_for(ages.delete([1]).wait())
    assert cluster.rows("partial_delete", [[1]]) == [{"id": 1, "name": "a", "age": None}]
    wait_for(names.delete([1]).wait())
    assert cluster.rows("partial_delete", [[1]]) == [None]


@pytest.mark.parametrize("bucket_hash", ["java", "rust"])
def test_many_rows_by_arrow_and_pandas_are_all_found_again(server: embedded.EmbeddedServer, bucket_hash: str) -> None:
    cluster = Cluster(server.bootstrap_servers, client__bucket_hash=bucket_hash, writer__batch_size=50_000)
    name, count = f"many_{bucket_hash}", 20_000
    table = cluster.create(name, bucket_count=4)
    writer = table.new_upsert().create_writer()
    ids = list(range(count))
    writer.upsert_arrow(pa.table({"id": ids, "name": [f"n{i}" for i in ids], "age": ids}, schema=table.arrow_schema))
    writer.delete_arrow(pa.table({"id": ids[::3]}))
    writer.write_pandas(pd.DataFrame({"age": [-1] * 10, "id": ids[:10], "name": ["pandas"] * 10}))
    flush(writer)
    expected = [
        {"id": i, "name": "pandas", "age": -1} if i < 10 else {"id": i, "name": f"n{i}", "age": i}
        for i in ids
        if i < 10 or i % 3
    ]
    assert cluster.held(name, pa.table({"id": ids})) == expected
    cluster.close()


def test_keys_of_several_columns_may_be_in_another_order_than_the_columns(cluster: Cluster) -> None:
    schema = Schema(
        pa.schema([("shop", pa.string()), ("amount", pa.float64()), ("number", pa.int32())]),
        primary_keys=["number", "shop"],
    )
    table = cluster.create("composite", schema, bucket_count=3)
    writer = table.new_upsert().create_writer()
    for number in range(10):
        writer.upsert(["a", 1.0, number])
        writer.upsert({"shop": "b", "amount": 2.0, "number": number})
    writer.upsert(["a", 9.0, 3])
    writer.delete([4, "a"])
    writer.delete({"shop": "b", "number": 5})
    writer.delete_arrow(pa.table({"shop": ["b"], "number": pa.array([6], pa.int32())}))
    flush(writer)
    assert cluster.rows("composite", [[3, "a"], [3, "b"], [4, "a"], [4, "b"], [5, "b"], [6, "b"]]) == [
        {"shop": "a", "amount": 9.0, "number": 3},
        {"shop": "b", "amount": 2.0, "number": 3},
        None,
        {"shop": "b", "amount": 2.0, "number": 4},
        None,
        None,
    ]


def test_rows_and_deletes_find_their_partition(cluster: Cluster) -> None:
    schema = Schema(
        pa.schema([("user", pa.int64()), ("score", pa.int32()), ("region", pa.string())]),
        primary_keys=["region", "user"],
    )
    table = cluster.create("partitioned", schema, partition_keys=["region"], bucket_count=2)
    for region in ("EU", "US"):
        wait_for(cluster.writing.get_admin().create_partition(table.table_path, {"region": region}))
    writer = table.new_upsert().create_writer()
    for user in range(10):
        writer.upsert({"user": user, "score": user, "region": "EU"})
        writer.upsert([user, -user, "US"])
    writer.upsert_arrow(
        pa.table({"user": [1, 1, 2], "score": [10, 20, 30], "region": ["EU", "US", "EU"]}, schema=table.arrow_schema)
    )
    # A flush waits for the rows of its own writer only.
    table.new_upsert(columns=["region", "user", "score"]).upsert(["US", 3, 33]).result(120)
    writer.delete({"region": "EU", "user": 4})
    writer.delete(["US", 5])
    writer.delete_arrow(pa.table({"user": [6, 7], "region": ["EU", "US"]}))
    flush(writer)
    scores = {
        region: [row and row["score"] for row in cluster.rows("partitioned", [[region, user] for user in range(10)])]
        for region in ("EU", "US")
    }
    assert scores == {
        "EU": [0, 10, 30, 3, None, 5, None, 7, 8, 9],
        "US": [0, 20, -2, 33, -4, None, -6, None, -8, -9],
    }


def test_a_partition_that_does_not_exist_is_an_error(server: embedded.EmbeddedServer) -> None:
    cluster = Cluster(server.bootstrap_servers)
    schema = Schema(pa.schema([("id", pa.int64()), ("region", pa.string())]), primary_keys=["region", "id"])
    table = cluster.create("no_partition", schema, partition_keys=["region"])
    writer = table.new_upsert().create_writer()
    for handle in (writer.upsert([1, "EU"]), writer.delete(["EU", 1])):
        with pytest.raises(FlussError) as caught:
            handle.result(120)
        assert caught.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
    cluster.close()


@pytest.mark.parametrize("lake", ["paimon", "iceberg", "lance"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_tables_with_the_keys_of_a_lake_are_written_and_read(cluster: Cluster, lake: str, version: str) -> None:
    name = f"lake_{lake}_{version}"
    properties = {"table.datalake.format": lake, "table.kv.format-version": version}
    table = cluster.create(name, bucket_count=3, properties=properties)
    writer = table.new_upsert().create_writer()
    for number in range(0, 100_000, 7_000):
        writer.upsert([number, "x", 1])
    writer.delete([7_000])
    flush(writer)
    assert [row and row["id"] for row in cluster.rows(name, [[0], [7_000], [98_000]])] == [0, None, 98_000]


def test_the_server_makes_up_the_values_of_an_auto_increment_column(cluster: Cluster) -> None:
    schema = Schema(
        pa.schema([("name", pa.string()), ("number", pa.int64()), ("age", pa.int32())]),
        primary_keys=["name"],
        auto_increment_column="number",
    )
    table = cluster.create("numbered", schema)
    with pytest.raises(FlussError, match="auto increment column"):
        table.new_upsert().create_writer()
    writer = table.new_upsert().partial_update_by_name(["name", "age"]).create_writer()
    for age in range(2):
        writer.upsert(["a", age])
        writer.upsert_arrow(pa.table({"name": ["b", "c"], "age": pa.array([age] * 2, pa.int32())}))
        flush(writer)
    rows = cluster.rows("numbered", [["a"], ["b"], ["c"]])
    assert [(row["number"], row["age"]) for row in rows if row] == [(1, 1), (2, 1), (3, 1)]


def test_writers_of_an_older_schema_go_on_and_newer_ones_know_more(cluster: Cluster) -> None:
    old = cluster.create("evolving").new_upsert().create_writer()
    old.upsert([1, "a", 1])
    flush(old)
    added = Column("city", DataTypes.string())
    wait_for(cluster.writing.get_admin().alter_table(TablePath("fluss", "evolving"), add_columns=[added]))
    new = cluster.table("evolving").new_upsert().create_writer()
    new.upsert([2, "b", 2, "Rome"])
    old.upsert([3, "c", 3])
    new.upsert([1, "a", 1, "Oslo"])
    old.delete([2])
    flush(new)
    assert cluster.rows("evolving", [[1], [2], [3]]) == [
        {"id": 1, "name": "a", "age": 1, "city": "Oslo"},
        None,
        {"id": 3, "name": "c", "age": 3, "city": None},
    ]


def test_what_the_server_refuses_reaches_the_handle_and_the_flush(cluster: Cluster) -> None:
    table = cluster.create("undeletable", properties={"table.delete.behavior": "disable"})
    writer = table.new_upsert().create_writer()
    writer.upsert([1, "a", 1]).result(120)
    with pytest.raises(FlussError) as caught:
        writer.delete([1]).result(120)
    assert caught.value.error_code == fluss.ErrorCode.DELETION_DISABLED_EXCEPTION
    writer.delete_arrow(pa.table({"id": [1]}))
    with pytest.raises(FlussError) as caught:
        flush(writer)
    assert caught.value.error_code == fluss.ErrorCode.DELETION_DISABLED_EXCEPTION
    writer.upsert([1, "b", 2]).result(120)
    assert cluster.rows("undeletable", [[1]]) == [{"id": 1, "name": "b", "age": 2}]


def test_on_a_bad_network_everything_takes_effect_once_and_in_order(tmp_path: Any) -> None:
    with FaultProxy(seed=23) as proxy:
        advertised = f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}"
        with ServerProcess(tmp_path / "data", "-D", advertised, "--durability", "os") as server:
            proxy.upstream_port = server.port
            cluster = Cluster(f"127.0.0.1:{proxy.port}", writer__batch_size=2_000, writer__batch_timeout_ms=2)
            table = cluster.create("shaken", bucket_count=3)
            proxy.faults = Faults(cut_after_bytes=(1, 30_000), delay_s=(0.0, 0.002))
            writer = table.new_upsert().create_writer()
            for number in range(3_000):
                writer.upsert([number % 50, f"n{number}", number])
                if number % 7 == 0:
                    writer.delete([number % 50])
            flush(writer)
            proxy.faults = Faults()
            # No row was written twice, and none overtook another one of its key.
            written = cluster.ages_written("shaken", bucket_count=3)
            assert sorted(age for ages in written.values() for age in ages) == list(range(3_000))
            assert all(ages == sorted(ages) for ages in written.values())
            expected = [
                {"id": number % 50, "name": f"n{number}", "age": number} for number in range(2_950, 3_000) if number % 7
            ]
            assert cluster.held("shaken", [[i] for i in range(50)]) == expected
            cluster.close()
            assert "Traceback" not in server.log_text
