"""Administration means the same to every client: what is made can be described, listed and dropped, or is refused.

The same calls go through both official clients and ours against a real server; refusals are compared by code.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from tests.interop.client import Client, refused
from tests.interop.conftest import Addresses
from tests.interop.remote import Api
from tests.interop.samples import NESTED, SCALARS, schema_of

PLAIN = pa.schema([("id", pa.int32()), ("name", pa.string())])
DATED = pa.schema([("id", pa.int32()), ("dt", pa.string()), ("region", pa.string())])


@pytest.fixture
def database(client: Client, unique: str) -> str:
    client.admin.create_database(unique)
    return unique


# Databases


def test_a_database_is_described_by_whom_it_was_not_made(writer: Client, reader: Client, unique: str) -> None:
    descriptor = writer.fluss.DatabaseDescriptor(comment="for tests", custom_properties={"owner": "qa", "tier": "1"})
    writer.admin.create_database(unique, descriptor)
    info = reader.admin.get_database_info(unique)
    assert info.database_name == unique
    assert info.get_database_descriptor().comment == "for tests"
    assert info.get_database_descriptor().get_custom_properties() == {"owner": "qa", "tier": "1"}
    now_ms = time.time() * 1000
    assert now_ms - 60_000 < info.created_time <= now_ms + 1000
    assert info.modified_time >= info.created_time
    assert unique in reader.admin.list_databases()
    reader.admin.drop_database(unique)
    assert not writer.admin.database_exists(unique)


def test_the_database_every_cluster_has_is_there(client: Client) -> None:
    assert client.admin.database_exists("fluss")
    assert "fluss" in client.admin.list_databases()


@pytest.mark.parametrize("name", ["with.dot", "", "__system", "umläut", "x" * 201, "a b"])
def test_a_bad_database_name_is_refused(client: Client, name: str) -> None:
    with refused(16):
        client.admin.create_database(name)


def test_a_database_is_made_without_a_descriptor_and_dropped_once(client: Client, database: str) -> None:
    assert client.admin.get_database_info(database).get_database_descriptor().get_custom_properties() == {}
    with refused(6, database):
        client.admin.create_database(database)
    client.admin.create_database(database, None, True)
    client.admin.drop_database(database)
    with refused(4, database):
        client.admin.drop_database(database)
    client.admin.drop_database(database, ignore_if_not_exists=True)


def test_a_database_with_tables_is_dropped_only_on_demand(client: Client, database: str) -> None:
    client.admin.create_table(client.path("t", database), client.descriptor(PLAIN))
    with refused(5, database):
        client.admin.drop_database(database, cascade=False)
    client.admin.drop_database(database, cascade=True)
    assert not client.admin.table_exists(client.path("t", database))


# Tables


def test_a_schema_comes_back_as_it_was_given(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, schema_of(SCALARS))
    found = reader.admin.get_table_info(reader.path(table)).get_schema()
    assert found.get_columns() == reader.fluss.Schema(schema_of(SCALARS)).get_columns()


def test_a_nested_schema_comes_back_as_it_was_given(newer_client: Client, newer_reader: Client, table: str) -> None:
    newer_client.create_table(table, schema_of(NESTED))
    found = newer_reader.admin.get_table_info(newer_reader.path(table)).get_schema()
    assert found.get_columns() == newer_client.fluss.Schema(schema_of(NESTED)).get_columns()
    assert newer_reader.table(table).arrow_schema == schema_of(NESTED)


def test_a_table_is_described_by_whom_it_was_not_made(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(
        table,
        PLAIN,
        bucket_count=3,
        bucket_keys=["id"],
        comment="a table",
        properties={"table.log.ttl": "2 d", "table.log.arrow.compression.type": "LZ4_FRAME"},
        custom_properties={"team": "search"},
    )
    info = reader.admin.get_table_info(reader.path(table))
    assert info.table_path.table_name == table
    assert (info.num_buckets, info.schema_id, info.comment) == (3, 1, "a table")
    assert info.get_bucket_keys() == ["id"]
    assert info.get_primary_keys() == []
    assert info.get_partition_keys() == []
    assert not info.has_primary_key()
    assert not info.is_partitioned()
    assert info.get_column_names() == ["id", "name"]
    assert info.get_column_count() == 2
    properties = info.get_properties()
    assert properties["table.log.ttl"] == "2 d"
    assert properties["table.log.arrow.compression.type"] == "LZ4_FRAME"
    assert info.get_custom_properties() == {"team": "search"}
    assert info.created_time <= info.modified_time <= time.time() * 1000 + 1000
    with_table = reader.table(table).get_table_info()
    assert with_table.table_id == info.table_id


def test_not_null_columns_keep_their_promise_between_clients(
    newer_client: Client, newer_reader: Client, table: str
) -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
    newer_client.create_table(table, schema)
    assert newer_reader.admin.get_table_info(newer_reader.path(table)).get_schema().get_column_types() == [
        "int NOT NULL",
        "string",
    ]
    assert newer_reader.table(table).arrow_schema == schema
    with refused(-2):
        newer_reader.writer(table).append({"id": None, "name": "x"})


def test_the_older_generation_reads_not_null_columns(clients: dict[str, Client], table: str) -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
    clients["pyfluss-1.0.0"].create_table(table, schema)
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    clients["flussbett"].append_rows(table, rows)
    older = clients["pyfluss-0.1.0"]
    older.append_rows(table, rows)
    assert older.read_rows(table, 4) == rows * 2
    assert clients["flussbett"].read_rows(table, 4) == rows * 2


def test_a_table_is_made_and_dropped_once(client: Client, table: str) -> None:
    path, descriptor = client.path(table), client.descriptor(PLAIN)
    client.admin.create_table(path, descriptor)
    assert client.admin.table_exists(path)
    with refused(8, table):
        client.admin.create_table(path, descriptor)
    client.admin.create_table(path, descriptor, ignore_if_exists=True)
    client.admin.drop_table(path)
    assert not client.admin.table_exists(path)
    with refused(7, table):
        client.admin.drop_table(path)
    client.admin.drop_table(path, ignore_if_not_exists=True)
    with refused(7, table):
        client.admin.get_table_info(path)
    with refused(7, table):
        client.connection.get_table(path)


def test_list_tables_shows_exactly_what_is_there(client: Client, database: str) -> None:
    assert client.admin.list_tables(database) == []
    for name in ("a", "b"):
        client.admin.create_table(client.path(name, database), client.descriptor(PLAIN))
    assert sorted(client.admin.list_tables(database)) == ["a", "b"]
    client.admin.drop_table(client.path("a", database))
    assert client.admin.list_tables(database) == ["b"]


def test_a_table_needs_a_database(client: Client, unique: str) -> None:
    with refused(4, unique):
        client.admin.create_table(client.path("t", unique), client.descriptor(PLAIN))
    with refused(4, unique):
        client.admin.list_tables(unique)
    with refused(4, unique):
        client.admin.get_database_info(unique)


@pytest.mark.parametrize("name", ["with.dot", "", "__hidden", "x" * 201])
def test_a_bad_table_name_is_refused(client: Client, name: str) -> None:
    with refused(15):
        client.admin.create_table(client.path(name), client.descriptor(PLAIN))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"properties": {"table.replication.factor": "3"}}, 17),
        ({"properties": {"table.replication.factor": "0"}}, 39),
        ({"properties": {"table.no.such.option": "1"}}, 39),
        ({"properties": {"connector": "fluss"}}, 39),
        ({"properties": {"table.log.ttl": "soon"}}, 39),
        ({"properties": {"table.log.arrow.compression.type": "RAR"}}, 39),
        ({"bucket_count": 100_000}, 49),
    ],
    ids=["replicas", "no-replicas", "unknown-option", "foreign-option", "bad-duration", "bad-codec", "buckets"],
)
def test_a_descriptor_the_server_cannot_keep_is_refused(
    client: Client, table: str, options: dict[str, Any], code: int
) -> None:
    with refused(code):
        client.create_table(table, PLAIN, **options)
    assert not client.admin.table_exists(client.path(table))


def test_keys_must_be_columns(client: Client, table: str) -> None:
    for options in ({"partition_keys": ["nobody"]}, {"bucket_keys": ["nobody"], "bucket_count": 2}):
        with pytest.raises(Exception, match="nobody") as caught:
            client.create_table(table, PLAIN, **options)
        # The official clients let the server find out.
        assert caught.value.error_code in (15, -2)  # type: ignore[attr-defined]


def test_reserved_column_names_are_refused(client: Client, table: str) -> None:
    with refused(15, "__offset"):
        client.create_table(table, pa.schema([("id", pa.int32()), ("__offset", pa.int64())]))


# Partitions


def test_partitions_are_listed_with_the_names_their_values_make(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, DATED, partition_keys=["dt", "region"])
    path = writer.path(table)
    assert reader.admin.list_partition_infos(reader.path(table)) == []
    for day, region in (("2024-01-15", "EMEA"), ("2024-01-15", "US"), ("2024-01-16", "US")):
        writer.admin.create_partition(path, {"dt": day, "region": region})
    ids = reader.partition_ids(table)
    assert sorted(ids) == ["2024-01-15$EMEA", "2024-01-15$US", "2024-01-16$US"]
    assert len(set(ids.values())) == 3
    of_a_day = reader.admin.list_partition_infos(reader.path(table), partition_spec={"dt": "2024-01-15"})
    assert sorted(info.partition_name for info in of_a_day) == ["2024-01-15$EMEA", "2024-01-15$US"]
    assert reader.admin.list_partition_infos(reader.path(table), partition_spec={"dt": "1999-01-01"}) == []
    reader.admin.drop_partition(reader.path(table), {"dt": "2024-01-15", "region": "US"})
    assert sorted(writer.partition_ids(table)) == ["2024-01-15$EMEA", "2024-01-16$US"]


def test_a_partition_is_made_and_dropped_once(client: Client, table: str) -> None:
    client.create_table(table, DATED, partition_keys=["region"])
    path, spec = client.path(table), {"region": "US"}
    client.admin.create_partition(path, spec)
    with refused(42, "US"):
        client.admin.create_partition(path, spec)
    client.admin.create_partition(path, spec, ignore_if_exists=True)
    client.admin.drop_partition(path, spec)
    with refused(36, "US"):
        client.admin.drop_partition(path, spec)
    client.admin.drop_partition(path, spec, ignore_if_not_exists=True)


@pytest.mark.parametrize("value", ["$10", "__18", "with space", ""])
def test_a_bad_partition_value_is_refused(client: Client, table: str, value: str) -> None:
    client.create_table(table, DATED, partition_keys=["region"])
    with refused(43):
        client.admin.create_partition(client.path(table), {"region": value})


@pytest.mark.parametrize("spec", [{"wrong": "x"}, {"dt": "a"}, {"dt": "a", "region": "b", "id": "1"}])
def test_a_partition_spec_must_name_the_keys(client: Client, table: str, spec: dict[str, str]) -> None:
    client.create_table(table, DATED, partition_keys=["dt", "region"])
    with refused(43):
        client.admin.create_partition(client.path(table), spec)


def test_a_table_cannot_have_more_partitions_than_the_server_allows(client: Client, table: str) -> None:
    client.create_table(table, DATED, partition_keys=["region"])
    for number in range(5):
        client.admin.create_partition(client.path(table), {"region": f"r{number}"})
    with refused(45):
        client.admin.create_partition(client.path(table), {"region": "one-too-many"})


def test_a_plain_table_has_no_partitions(client: Client, table: str) -> None:
    client.create_table(table, PLAIN)
    path = client.path(table)
    with refused(37):
        client.admin.list_partition_infos(path)
    with refused(37):
        client.admin.create_partition(path, {"region": "US"})
    with refused(37):
        client.admin.drop_partition(path, {"region": "US"})


def test_partition_calls_on_a_missing_table_are_refused(client: Client, table: str) -> None:
    with refused(7):
        client.admin.create_partition(client.path(table), {"region": "US"})
    with refused(7):
        client.admin.drop_partition(client.path("t", "nowhere"), {"region": "US"})


def test_a_table_may_make_its_own_partitions(client: Client, table: str) -> None:
    client.create_table(
        table,
        DATED,
        partition_keys=["dt"],
        properties={"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "YEAR"},
    )
    year = time.gmtime().tm_year
    assert {str(year), str(year + 1)} <= set(client.partition_ids(table))


# Offsets


def test_offsets_are_those_of_what_was_written(client: Client, reader: Client, table: str) -> None:
    client.create_table(table, PLAIN, bucket_count=2)
    spec = reader.fluss.OffsetSpec
    path = reader.path(table)
    assert reader.admin.list_offsets(path, [0, 1], spec.earliest()) == {0: 0, 1: 0}
    assert reader.admin.list_offsets(path, [0, 1], spec.latest()) == {0: 0, 1: 0}
    client.append_rows(table, [{"id": i, "name": "x"} for i in range(5)])
    latest = reader.admin.list_offsets(path, [0, 1], spec.latest())
    assert sorted(latest.values()) == [0, 5]
    assert reader.admin.list_offsets(path, [0, 1], spec.earliest()) == {0: 0, 1: 0}


def test_timestamps_find_the_first_record_at_or_after_them(client: Client, table: str) -> None:
    client.create_table(table, PLAIN)
    for first in (0, 3):
        client.append_rows(table, [{"id": first + i, "name": "x"} for i in range(3)])
        time.sleep(0.02)
    records = client.tools.poll_records(client.record_scanner(table), 6, 10.0)
    first_ms, second_ms = records[0][2], records[3][2]
    assert first_ms < second_ms

    def offset_at(timestamp_ms: int) -> int:
        return client.admin.list_offsets(client.path(table), [0], client.fluss.OffsetSpec.timestamp(timestamp_ms))[0]

    assert offset_at(first_ms - 1) == 0
    assert offset_at(first_ms) == 0
    assert offset_at(first_ms + 1) == 3
    assert offset_at(second_ms) == 3
    assert offset_at(second_ms + 1) == 6


def test_the_future_has_no_offsets(client: Client, table: str) -> None:
    client.create_table(table, PLAIN)
    tomorrow_ms = int(time.time() * 1000) + 86_400_000
    with refused(38):
        client.admin.list_offsets(client.path(table), [0], client.fluss.OffsetSpec.timestamp(tomorrow_ms))


def test_offsets_of_what_is_not_there_are_refused(client: Client, table: str) -> None:
    latest = client.fluss.OffsetSpec.latest()
    with refused(7, table):
        client.admin.list_offsets(client.path(table), [0], latest)
    client.create_table(table, DATED, partition_keys=["region"])
    with refused(36, f"Table partition 'fluss.{table}(p=US)' does not exist."):
        client.admin.list_partition_offsets(client.path(table), "US", [0], latest)
    client.admin.create_partition(client.path(table), {"region": "US"})
    assert client.admin.list_partition_offsets(client.path(table), "US", [0], latest) == {0: 0}
    with refused(-2, "Buckets are empty"):
        client.admin.list_offsets(client.path(table), [], latest)


# Servers and lakes


def test_server_nodes_show_both_roles(client: Client, server: Addresses) -> None:
    nodes = client.admin.get_server_nodes()
    assert [node.server_type for node in nodes] == ["CoordinatorServer", "TabletServer"]
    assert [node.uid.split("-")[0] for node in nodes] == ["cs", "ts"]
    assert {f"{node.host}:{node.port}" for node in nodes} == {server.plain}
    assert all(client.tools.repr_of(node).startswith("ServerNode(") for node in nodes)


def test_a_dead_bootstrap_address_does_not_matter(newer_api: Api, server: Addresses) -> None:
    client = Client(newer_api, f"127.0.0.1:1, {server.plain}")
    assert client.admin.database_exists("fluss")


def test_there_is_no_lake(client: Client, table: str) -> None:
    client.create_table(table, PLAIN)
    with pytest.raises(Exception) as caught:
        client.admin.get_latest_lake_snapshot(client.path(table))
    assert caught.value.error_code in (40, 53)  # type: ignore[attr-defined]
