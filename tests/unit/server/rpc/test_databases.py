"""Databases: names, existence, properties, dropping, and what lists and summaries say.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import json

import pytest

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import NOW_MS, descriptor


def _create(name: str, *, ignore: bool = False, **more) -> pb.CreateDatabaseRequest:
    return pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore, **more)


def _drop(name: str, *, ignore: bool = False, cascade: bool = False) -> pb.DropDatabaseRequest:
    return pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore, cascade=cascade)


def _alter(name: str, *, ignore: bool = False, **more) -> pb.AlterDatabaseRequest:
    return pb.AlterDatabaseRequest(database_name=name, ignore_if_not_exists=ignore, **more)


def _set(key: str, value: str) -> pb.PbAlterConfig:
    return pb.PbAlterConfig(config_key=key, config_value=value, op_type=0)


async def _info(cluster, name: str) -> tuple[pb.GetDatabaseInfoResponse, dict]:
    response = await cluster.ask(apis.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=name))
    return response, json.loads(response.database_json)


async def _names(cluster) -> list[str]:
    return list((await cluster.ask(apis.LIST_DATABASES, pb.ListDatabasesRequest())).database_name)


async def test_a_new_cluster_has_the_default_database(make_cluster):
    async with make_cluster() as cluster:
        assert await _names(cluster) == ["fluss"]
        assert (await cluster.ask(apis.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss"))).exists


async def test_a_database_keeps_its_descriptor_and_times(make_cluster, clock):
    async with make_cluster() as cluster:
        sent = {"version": 1, "comment": "c", "custom_properties": {"k": "v"}}
        await cluster.ask(apis.CREATE_DATABASE, _create("d", database_json=json.dumps(sent).encode()))
        response, described = await _info(cluster, "d")
        assert described == sent
        assert (response.created_time, response.modified_time) == (NOW_MS, NOW_MS)


async def test_a_database_without_a_descriptor_has_an_empty_one(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        assert (await _info(cluster, "d"))[1] == {"version": 1, "custom_properties": {}}


@pytest.mark.parametrize("name", ["", "a.b", "..", "__x", "x" * 201, "ä", "a b"])
async def test_names_that_no_database_can_have_are_refused(make_cluster, name):
    async with make_cluster() as cluster:
        assert await cluster.code(apis.CREATE_DATABASE, _create(name)) == 16
        assert await _names(cluster) == ["fluss"]


async def test_a_damaged_descriptor_is_refused(make_cluster):
    async with make_cluster() as cluster:
        assert await cluster.code(apis.CREATE_DATABASE, _create("d", database_json=b'{"version":1}')) == 16


async def test_an_existing_database_is_refused_or_left_alone(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        error = await cluster.refused(apis.CREATE_DATABASE, _create("d"))
        assert (error.error_code, error.message) == (6, "Database d already exists.")
        clock.now_ms += 1000
        other = b'{"version":1,"comment":"other","custom_properties":{}}'
        await cluster.ask(apis.CREATE_DATABASE, _create("d", ignore=True, database_json=other))
        response, described = await _info(cluster, "d")
        assert "comment" not in described
        assert response.modified_time == NOW_MS


@pytest.mark.parametrize("name", ["missing", "not a name"])
async def test_a_missing_database_is_refused_whatever_its_name(make_cluster, name):
    async with make_cluster() as cluster:
        for api, message in (
            (apis.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=name)),
            (apis.DROP_DATABASE, _drop(name)),
            (apis.LIST_TABLES, pb.ListTablesRequest(database_name=name)),
            (apis.ALTER_DATABASE, _alter(name)),
        ):
            error = await cluster.refused(api, message)
            assert (error.error_code, error.message) == (4, f"Database {name} does not exist.")
        exists = await cluster.ask(apis.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name=name))
        assert not exists.exists
        await cluster.ask(apis.DROP_DATABASE, _drop(name, ignore=True))
        await cluster.ask(apis.ALTER_DATABASE, _alter(name, ignore=True))


async def test_a_database_with_tables_is_dropped_by_cascade_only(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        table = await cluster.create("d.t", descriptor(bucket_count=2))
        error = await cluster.refused(apis.DROP_DATABASE, _drop("d"))
        assert error.error_code == 5
        assert "Database d is not empty." in error.message
        await cluster.ask(apis.DROP_DATABASE, _drop("d", cascade=True))
        assert await _names(cluster) == ["fluss"]
        assert cluster.catalog.table_by_id(table.table_id) is None
        assert not cluster.host.open


async def test_a_dropped_database_can_be_created_again_and_is_empty(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        await cluster.create("d.t", descriptor())
        await cluster.ask(apis.DROP_DATABASE, _drop("d", cascade=True))
        await cluster.create_database("d")
        assert not (await cluster.ask(apis.LIST_TABLES, pb.ListTablesRequest(database_name="d"))).table_name


async def test_the_default_database_is_never_dropped(make_cluster):
    async with make_cluster() as cluster:
        assert await cluster.code(apis.DROP_DATABASE, _drop("fluss", ignore=True, cascade=True)) == -1
        assert await _names(cluster) == ["fluss"]


async def test_summaries_come_instead_of_names(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.a", descriptor())
        await cluster.create("fluss.b", descriptor())
        response = await cluster.ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True))
        assert not response.database_name
        (summary,) = response.database_summary
        assert (summary.database_name, summary.created_time, summary.table_count) == ("fluss", NOW_MS, 2)


async def test_altering_sets_resets_and_clears(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        clock.now_ms += 5
        await cluster.ask(
            apis.ALTER_DATABASE, _alter("d", config_changes=[_set("a", "1"), _set("b", "2")], comment="c")
        )
        response, described = await _info(cluster, "d")
        assert described == {"version": 1, "comment": "c", "custom_properties": {"a": "1", "b": "2"}}
        assert (response.created_time, response.modified_time) == (NOW_MS, NOW_MS + 5)
        reset = [pb.PbAlterConfig(config_key=key, op_type=1) for key in ("a", "never there")]
        await cluster.ask(apis.ALTER_DATABASE, _alter("d", config_changes=reset, comment=""))
        assert (await _info(cluster, "d"))[1] == {"version": 1, "custom_properties": {"b": "2"}}


async def test_altering_to_the_same_changes_no_time(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        clock.now_ms += 5
        await cluster.ask(apis.ALTER_DATABASE, _alter("d"))
        await cluster.ask(
            apis.ALTER_DATABASE, _alter("d", config_changes=[pb.PbAlterConfig(config_key="x", op_type=1)])
        )
        assert (await _info(cluster, "d"))[0].modified_time == NOW_MS


async def test_altering_a_database_keeps_its_tables(make_cluster):
    """The tables hang on the row of their database; changing the row must not touch them, on disk either."""
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await cluster.ask(apis.ALTER_DATABASE, _alter("fluss", comment="c"))
    async with make_cluster() as cluster:
        assert cluster.table("fluss.t").table_id == 0
        assert (await _info(cluster, "fluss"))[1]["comment"] == "c"


@pytest.mark.parametrize("op_type", [2, 3, 9])
async def test_properties_of_a_database_are_no_lists(make_cluster, op_type):
    async with make_cluster() as cluster:
        change = pb.PbAlterConfig(config_key="a", config_value="1", op_type=op_type)
        assert await cluster.code(apis.ALTER_DATABASE, _alter("fluss", config_changes=[change])) == -1


@pytest.mark.parametrize("name", ["flussbett-format", "high-watermark-checkpoint", "Recovery-Point-Offset-Checkpoint"])
async def test_a_database_cannot_have_the_name_of_a_file_of_the_server(make_cluster, name):
    """Its directory would be in the way of that file, or the file in the way of all its tables."""
    async with make_cluster() as cluster:
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False)
        assert await cluster.code(apis.CREATE_DATABASE, request) == 16
