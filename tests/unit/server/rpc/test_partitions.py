"""Partitions made and dropped by request: specs, names, limits, and lists with and without a filter.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import pytest

from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import descriptor, path, spec

COLUMNS = {"id": "INTEGER", "dt": "STRING", "region": "STRING"}
TWO_KEYS = descriptor(COLUMNS, partition_key=["dt", "region"], bucket_count=2)
ONE_KEY = descriptor(COLUMNS, partition_key=["dt"])


def _create(table: str, *, ignore: bool = False, **values: str) -> pb.CreatePartitionRequest:
    return pb.CreatePartitionRequest(table_path=path(table), partition_spec=spec(**values), ignore_if_not_exists=ignore)


def _drop(table: str, *, ignore: bool = False, **values: str) -> pb.DropPartitionRequest:
    return pb.DropPartitionRequest(table_path=path(table), partition_spec=spec(**values), ignore_if_not_exists=ignore)


async def test_a_partition_is_named_by_its_values_in_the_order_of_the_keys(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", TWO_KEYS)
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", region="EMEA", dt="2024-01-15"))
        assert await cluster.partitions("fluss.t") == {"2024-01-15$EMEA": 0}
        assert cluster.host.open == {(table.table_id, 0)}


async def test_ids_count_through_all_tables_and_are_never_used_again(make_cluster):
    async with make_cluster() as cluster:
        for table in ("fluss.a", "fluss.b"):
            await cluster.create(table, ONE_KEY)
        for table, value in (("fluss.a", "1"), ("fluss.b", "1"), ("fluss.a", "2")):
            await cluster.ask(apis.CREATE_PARTITION, _create(table, dt=value))
        assert await cluster.partitions("fluss.a") == {"1": 0, "2": 2}
        assert await cluster.partitions("fluss.b") == {"1": 1}
        await cluster.ask(apis.DROP_PARTITION, _drop("fluss.a", dt="2"))
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.a", dt="2"))
        assert await cluster.partitions("fluss.a") == {"1": 0, "2": 3}


async def test_a_partition_whose_directory_no_file_system_could_name_is_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", TWO_KEYS)
        longest = {"dt": "x" * 115, "region": "y" * 114}
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", **longest))
        error = await cluster.refused(apis.CREATE_PARTITION, _create("fluss.t", dt="x" * 115, region="y" * 115))
        assert error.error_code == 43
        assert "at most 230" in error.message
        assert len(await cluster.partitions("fluss.t")) == 1


async def test_a_partial_spec_filters(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", TWO_KEYS)
        for dt, region in (("1", "EU"), ("1", "US"), ("2", "EU")):
            await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt=dt, region=region))
        assert set(await cluster.partitions("fluss.t", dt="1")) == {"1$EU", "1$US"}
        assert set(await cluster.partitions("fluss.t", region="EU")) == {"1$EU", "2$EU"}
        assert set(await cluster.partitions("fluss.t", region="EU", dt="2")) == {"2$EU"}
        assert await cluster.partitions("fluss.t", dt="3") == {}
        unknown = pb.ListPartitionInfosRequest(table_path=path("fluss.t"), partial_partition_spec=spec(country="DE"))
        assert await cluster.code(apis.LIST_PARTITION_INFOS, unknown) == 43


async def test_listed_specs_have_all_keys_in_order(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", TWO_KEYS)
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", region="EU", dt="1"))
        response = await cluster.ask(
            apis.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path("fluss.t"))
        )
        (info,) = response.partitions_info
        pairs = [(pair.key, pair.value) for pair in info.partition_spec.partition_key_values]
        assert pairs == [("dt", "1"), ("region", "EU")]


@pytest.mark.parametrize(
    "values",
    [
        {"dt": "1"},
        {"dt": "1", "region": "EU", "id": "3"},
        {"dt": "1", "country": "EU"},
        {"dt": "$10", "region": "EU"},
        {"dt": "__18", "region": "EU"},
        {"dt": "", "region": "EU"},
        {"dt": "a" * 201, "region": "EU"},
        {"dt": "1/2", "region": "EU"},
    ],
)
async def test_a_spec_that_names_no_possible_partition_is_refused(make_cluster, values):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", TWO_KEYS)
        assert await cluster.code(apis.CREATE_PARTITION, _create("fluss.t", **values)) == 43
        assert await cluster.partitions("fluss.t") == {}


async def test_a_key_that_is_given_twice_is_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", ONE_KEY)
        request = _create("fluss.t", dt="1")
        request.partition_spec.partition_key_values.add(key="dt", value="2")
        assert await cluster.code(apis.CREATE_PARTITION, request) == 43


@pytest.mark.parametrize("table", ["fluss.missing", "missing.t"])
async def test_without_the_table_or_its_database_the_code_is_that_of_a_missing_table(make_cluster, table):
    async with make_cluster() as cluster:
        for api, message in (
            (apis.CREATE_PARTITION, _create(table, ignore=True, dt="1")),
            (apis.DROP_PARTITION, _drop(table, ignore=True, dt="1")),
            (apis.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path(table))),
        ):
            error = await cluster.refused(api, message)
            assert (error.error_code, error.message) == (7, f"Table '{table}' does not exist.")


async def test_a_table_without_partitions_has_none(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        for api, message in (
            (apis.CREATE_PARTITION, _create("fluss.t", dt="1")),
            (apis.DROP_PARTITION, _drop("fluss.t", dt="1")),
            (apis.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path("fluss.t"))),
        ):
            assert await cluster.code(api, message) == 37


async def test_an_existing_or_missing_partition_is_refused_or_ignored(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", TWO_KEYS)
        values = {"dt": "1", "region": "EU"}
        error = await cluster.refused(apis.DROP_PARTITION, _drop("fluss.t", **values))
        assert error.error_code == 36
        assert error.message == "Partition 'dt=1/region=EU' does not exist for table fluss.t"
        await cluster.ask(apis.DROP_PARTITION, _drop("fluss.t", ignore=True, **values))
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", **values))
        error = await cluster.refused(apis.CREATE_PARTITION, _create("fluss.t", **values))
        assert error.error_code == 42
        assert error.message == "Partition 'dt=1/region=EU' already exists for table fluss.t"
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", ignore=True, **values))
        assert len(await cluster.partitions("fluss.t")) == 1


async def test_the_number_of_partitions_is_limited(make_cluster):
    async with make_cluster(settings={"partition_count_max": 3}) as cluster:
        await cluster.create("fluss.t", ONE_KEY)
        for value in "abc":
            await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt=value))
        assert await cluster.code(apis.CREATE_PARTITION, _create("fluss.t", dt="d")) == 45
        # What exists is no new one.
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", ignore=True, dt="a"))
        await cluster.ask(apis.DROP_PARTITION, _drop("fluss.t", dt="a"))
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt="d"))


async def test_the_limit_of_buckets_is_one_of_each_partition(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(COLUMNS, partition_key=["dt"], bucket_count=4096))
        for value in "abcd":
            await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt=value))
    async with make_cluster(settings={"bucket_count_max": 4095}) as cluster:
        assert await cluster.code(apis.CREATE_PARTITION, _create("fluss.t", dt="e")) == 49


async def test_dropping_takes_reserved_names_but_not_the_system_s_partition(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", ONE_KEY)
        assert await cluster.code(apis.DROP_PARTITION, _drop("fluss.t", dt="__18")) == 36
        assert await cluster.code(apis.DROP_PARTITION, _drop("fluss.t", dt="$")) == 43
        assert await cluster.code(apis.DROP_PARTITION, _drop("fluss.t", dt="__historical__")) == 43


async def test_a_dropped_partition_lets_go_of_its_buckets_and_a_dropped_table_of_all(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", ONE_KEY)
        for value in "abc":
            await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt=value))
        await cluster.ask(apis.DROP_PARTITION, _drop("fluss.t", dt="b"))
        assert cluster.host.open == {(0, 0), (0, 2)}
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        assert not cluster.host.open
        assert cluster.catalog.partition_by_id(0) is None


async def test_nothing_is_left_of_a_partition_whose_buckets_cannot_be_opened(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", ONE_KEY)
        cluster.host.failure = FlussError("no room", 26)
        assert await cluster.code(apis.CREATE_PARTITION, _create("fluss.t", dt="1")) == 26
        assert await cluster.partitions("fluss.t") == {}
        cluster.host.failure = None
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", dt="1"))
