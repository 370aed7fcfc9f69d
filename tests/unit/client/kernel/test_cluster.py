"""The client follows its cluster: servers that die and return, coordinators and leaders that move, new tables.
Shown with scripted servers on real sockets, which are stopped, restarted and told to say something else."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from fluss.client.kernel.cluster import Cluster
from fluss.config import Config
from fluss.errors import FlussError, NetworkError, RequestTimeoutError
from fluss.net.request_handler import RequestContext
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.serde import schema_to_json
from fluss.schema.table import TableBucket, TablePath
from fluss.testing.waiting import eventually_async
from tests.fakes.scripted_server import SCHEMA, ScriptedServer
from tests.ports import free_port

PATH = TablePath("fluss", "events")
EXISTS = pb.DatabaseExistsRequest(database_name="fluss")
CREATE = pb.CreateDatabaseRequest(database_name="fluss", ignore_if_exists=False)


async def _no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


# Connections


async def test_one_connection_per_role_serves_all_requests() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        await eventually_async(lambda: server.connection_count == 0)
        await asyncio.gather(*(cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS) for _ in range(20)))
        assert server.connection_count == 1
        await asyncio.gather(*(cluster.refresh() for _ in range(20)))
        assert server.connection_count == 2
        await cluster.close()
        await eventually_async(lambda: server.connection_count == 0)


async def test_a_restarted_server_is_reconnected_at_the_next_use() -> None:
    port = free_port()
    server = ScriptedServer(port=port)
    await server.start()
    cluster = await Cluster.connect(server.config())
    await cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)
    await cluster.refresh()
    await server.stop()

    async with ScriptedServer(port=port):
        assert (await cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)).exists
        assert (await cluster.request_any_tablet(apis.DATABASE_EXISTS, EXISTS)).exists
        await cluster.request(0, apis.DATABASE_EXISTS, EXISTS)
        await cluster.refresh()
    await cluster.close()


async def test_a_server_that_is_gone_for_good_is_code_1() -> None:
    server = ScriptedServer()
    await server.start()
    cluster = await Cluster.connect(server.config(), sleep=_no_sleep)
    await server.stop()
    with pytest.raises(NetworkError):
        await cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)
    with pytest.raises(NetworkError):
        await cluster.refresh()
    with pytest.raises(NetworkError):
        await cluster.request_any_tablet(apis.DATABASE_EXISTS, EXISTS)
    await cluster.close()


async def test_an_unknown_tablet_server_is_code_44() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        with pytest.raises(FlussError, match="tablet server 9") as caught:
            await cluster.request(9, apis.DATABASE_EXISTS, EXISTS)
        assert caught.value.error_code == 44
        cluster.forget_server(0)
        with pytest.raises(FlussError) as caught:
            await cluster.request(0, apis.DATABASE_EXISTS, EXISTS)
        assert caught.value.error_code == 44
        await cluster.close()


async def test_a_request_without_an_answer_is_code_25_and_the_connection_stays() -> None:
    is_silent = True

    async def answer(context: RequestContext, request: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
        if is_silent:
            await asyncio.sleep(60)
        return pb.DatabaseExistsResponse(exists=False)

    async with ScriptedServer(handlers={ApiKey.DATABASE_EXISTS: answer}) as server:
        cluster = await Cluster.connect(Config({"bootstrap.servers": server.address, "request-timeout": 3000}))
        with pytest.raises(RequestTimeoutError, match="timed out"):
            await cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)
        with pytest.raises(RequestTimeoutError, match=r"within 0.01 s"):
            await cluster.request(0, apis.DATABASE_EXISTS, EXISTS, timeout_s=0.01)
        is_silent = False
        assert not (await cluster.request(0, apis.DATABASE_EXISTS, EXISTS)).exists
        assert server.connection_count == 2
        await cluster.close()


async def test_a_closed_cluster_refuses_everything_and_may_be_closed_again() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        await cluster.close()
        await cluster.close()
        for call in (
            cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS),
            cluster.request_any_tablet(apis.DATABASE_EXISTS, EXISTS),
            cluster.request(0, apis.DATABASE_EXISTS, EXISTS),
            cluster.refresh([PATH]),
            cluster.rebootstrap(),
        ):
            with pytest.raises(FlussError, match="closed") as caught:
                await call
            assert caught.value.error_code == -2


async def test_requests_that_wait_when_the_cluster_is_closed_fail() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.gate = asyncio.Event()
        waiting = asyncio.create_task(cluster.refresh([PATH]))
        server.add_table(PATH, 1, leaders=[0])
        await eventually_async(lambda: len(server.metadata_requests) == 2)
        await cluster.close()
        with pytest.raises(FlussError):
            await waiting


async def test_a_forgotten_cluster_closes_its_connections() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        await cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)
        assert server.connection_count == 1
        del cluster
        gc.collect()
        await eventually_async(lambda: server.connection_count == 0)


# The coordinator


async def test_the_coordinator_is_found_again_when_it_has_moved() -> None:
    async with ScriptedServer() as bootstrap:
        first = ScriptedServer()
        await first.start()
        bootstrap.coordinator_port = first.port
        cluster = await Cluster.connect(bootstrap.config())
        await cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
        assert first.requests[ApiKey.CREATE_DATABASE] == 1
        await first.stop()

        async with ScriptedServer() as second:
            bootstrap.coordinator_port = second.port
            # Nothing was sent to the one that is gone, so changes are made, too.
            await cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
            assert second.requests[ApiKey.CREATE_DATABASE] == 1
            await cluster.close()


async def test_a_coordinator_that_no_longer_is_one_says_65_and_the_new_one_is_asked() -> None:
    def refuse(context: RequestContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        bootstrap.coordinator_port = second.port
        raise FlussError("not the coordinator", 65)

    async with (
        ScriptedServer() as bootstrap,
        ScriptedServer(handlers={ApiKey.CREATE_DATABASE: refuse}) as first,
        ScriptedServer() as second,
    ):
        bootstrap.coordinator_port = first.port
        cluster = await Cluster.connect(bootstrap.config())
        await cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
        assert (first.requests[ApiKey.CREATE_DATABASE], second.requests[ApiKey.CREATE_DATABASE]) == (1, 1)
        assert cluster.coordinator is not None
        assert cluster.coordinator.port == second.port
        await cluster.close()


async def test_the_coordinator_is_looked_up_once_more_only() -> None:
    def refuse(context: RequestContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        raise FlussError("not the coordinator", 65)

    async with ScriptedServer(handlers={ApiKey.CREATE_DATABASE: refuse}) as server:
        cluster = await Cluster.connect(server.config())
        with pytest.raises(FlussError) as caught:
            await cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
        assert caught.value.error_code == 65
        assert server.requests[ApiKey.CREATE_DATABASE] == 2
        await cluster.close()


@pytest.mark.parametrize("is_change", [True, False])
async def test_a_question_that_was_cut_off_is_repeated_and_a_change_is_not(is_change: bool) -> None:
    asked = asyncio.Event()

    async def hold(context: RequestContext, request: object) -> None:
        asked.set()
        await asyncio.sleep(60)

    key = ApiKey.CREATE_DATABASE if is_change else ApiKey.DATABASE_EXISTS
    async with ScriptedServer() as bootstrap, ScriptedServer() as second:
        first = ScriptedServer(handlers={key: hold})
        await first.start()
        bootstrap.coordinator_port = first.port
        cluster = await Cluster.connect(bootstrap.config())
        call = asyncio.create_task(
            cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
            if is_change
            else cluster.request_coordinator(apis.DATABASE_EXISTS, EXISTS)
        )
        await asked.wait()
        bootstrap.coordinator_port = second.port
        await first.stop()
        if is_change:
            with pytest.raises(NetworkError):
                await call
        else:
            await call
        assert second.requests[key] == (0 if is_change else 1)
        await cluster.close()


async def test_what_the_server_answers_reaches_the_caller() -> None:
    def refuse(context: RequestContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        raise FlussError("Database fluss already exists.", 6)

    async with ScriptedServer(handlers={ApiKey.CREATE_DATABASE: refuse}) as server:
        cluster = await Cluster.connect(server.config())
        with pytest.raises(FlussError, match=r"Database fluss already exists\.") as caught:
            await cluster.request_coordinator(apis.CREATE_DATABASE, CREATE)
        assert caught.value.error_code == 6
        assert server.requests[ApiKey.CREATE_DATABASE] == 1
        await cluster.close()


# Tables and leaders


async def test_a_refresh_makes_tables_and_leaders_known_and_a_second_bootstrap_keeps_them() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        assert cluster.table_info(PATH) is None
        server.add_table(PATH, 7, leaders=[0, None])
        await cluster.refresh([PATH])
        await cluster.rebootstrap()
        info = cluster.table_info(PATH)
        assert info is not None
        assert (info.table_id, info.num_buckets, info.schema) == (7, 2, SCHEMA)
        assert cluster.leader_of(TableBucket(7, 0)) == 0
        assert cluster.leader_of(TableBucket(7, 1)) is None
        assert cluster.leader_of(TableBucket(8, 0)) is None
        await cluster.close()


async def test_the_same_answer_gives_the_same_table_info() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0])
        await cluster.refresh([PATH])
        info = cluster.table_info(PATH)
        await cluster.refresh([PATH])
        assert cluster.table_info(PATH) is info
        await cluster.close()


async def test_a_leader_that_is_not_in_the_server_list_counts_as_unknown() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[5, -1])
        await cluster.refresh([PATH])
        assert cluster.leader_of(TableBucket(7, 0)) is None
        assert cluster.leader_of(TableBucket(7, 1)) is None
        await cluster.close()


async def test_a_leader_that_has_moved_is_found_after_a_refresh() -> None:
    async with ScriptedServer(1) as first, ScriptedServer(2) as second:
        for server in (first, second):
            server.peers = {1: first.port, 2: second.port}
            server.add_table(PATH, 7, leaders=[1])
        cluster = await Cluster.connect(first.config())
        await cluster.refresh([PATH])
        assert cluster.leader_of(TableBucket(7, 0)) == 1
        for server in (first, second):
            server.add_table(PATH, 7, leaders=[2])
        cluster.forget_leaders(7)
        assert cluster.leader_of(TableBucket(7, 0)) is None
        await cluster.refresh([PATH])
        assert cluster.leader_of(TableBucket(7, 0)) == 2
        await cluster.request(2, apis.DATABASE_EXISTS, EXISTS)
        assert second.requests[ApiKey.DATABASE_EXISTS] == 1
        await cluster.close()


async def test_metadata_is_asked_of_another_server_when_one_is_dead() -> None:
    async with ScriptedServer(1) as living:
        dead = ScriptedServer(2)
        await dead.start()
        living.peers = {1: living.port, 2: dead.port, 3: dead.port}
        living.add_table(PATH, 7, leaders=[2])
        cluster = await Cluster.connect(living.config(), rng=random.Random(1))
        await dead.stop()
        for _ in range(10):
            await cluster.refresh([PATH])
        assert cluster.table_info(PATH) is not None
        await cluster.close()


async def test_a_table_created_anew_replaces_the_old_one() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0], partition_keys=("name",))
        server.add_partition(PATH, "US", 70, leaders=[0])
        await cluster.refresh([PATH], partitions=[(PATH, "US")])
        assert await cluster.partition_id(PATH, "US") == 70

        server.add_table(PATH, 8, leaders=[0, 0])
        server.partitions.clear()
        await cluster.refresh([PATH])
        info = cluster.table_info(PATH)
        assert info is not None
        assert info.table_id == 8
        assert cluster.leader_of(TableBucket.with_partition(7, 70, 0)) is None
        assert cluster.leader_of(TableBucket(8, 1)) == 0
        assert cluster.partition_name(70) is None

        # An answer that was under way meanwhile does not bring the old one back.
        server.add_table(PATH, 7, leaders=[0])
        await cluster.refresh([PATH])
        assert cluster.table_info(PATH) is info
        await cluster.close()


async def test_a_dropped_table_is_code_7_and_is_forgotten() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0])
        await cluster.refresh([PATH])
        del server.tables[PATH]
        with pytest.raises(FlussError, match=r"fluss\.events") as caught:
            await cluster.refresh([PATH])
        assert caught.value.error_code == 7
        assert cluster.table_info(PATH) is None
        assert cluster.leader_of(TableBucket(7, 0)) is None
        await cluster.close()


async def test_partitions_are_known_by_name_and_by_id() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0], partition_keys=("name",))
        server.add_partition(PATH, "US", 70, leaders=[0])
        server.add_partition(PATH, "EU", 71, leaders=[0])
        assert await cluster.partition_id(PATH, "US") == 70
        asked = len(server.metadata_requests)
        assert await cluster.partition_id(PATH, "US") == 70
        assert len(server.metadata_requests) == asked
        assert cluster.partition_name(70) == "US"
        assert cluster.leader_of(TableBucket.with_partition(7, 70, 0)) == 0

        await cluster.refresh(partition_ids=[(PATH, 71)])
        assert cluster.partition_name(71) == "EU"
        assert cluster.leader_of(TableBucket.with_partition(7, 71, 0)) == 0
        # Answers name the table by id, so it is always part of the question.
        assert all(request.table_path for request in server.metadata_requests[1:])

        cluster.forget_leaders(7, 70)
        assert cluster.leader_of(TableBucket.with_partition(7, 70, 0)) is None
        assert cluster.leader_of(TableBucket.with_partition(7, 71, 0)) == 0
        await cluster.close()


async def test_a_missing_partition_is_code_36_and_one_created_anew_has_a_new_id() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0], partition_keys=("name",))
        with pytest.raises(FlussError) as caught:
            await cluster.partition_id(PATH, "US")
        assert caught.value.error_code == 36

        server.add_partition(PATH, "US", 70, leaders=[0])
        assert await cluster.partition_id(PATH, "US") == 70
        server.partitions.clear()
        with pytest.raises(FlussError):
            await cluster.refresh(partitions=[(PATH, "US")])
        server.add_partition(PATH, "US", 75, leaders=[0])
        assert await cluster.partition_id(PATH, "US") == 75
        assert cluster.partition_name(70) is None
        await cluster.close()


async def test_whoever_has_just_created_a_table_finds_it_although_others_are_asking() -> None:
    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config())
        server.gate = asyncio.Event()
        early = asyncio.create_task(cluster.refresh([PATH]))
        with pytest.raises(FlussError):
            await early
        server.add_table(PATH, 7, leaders=[0])
        held = asyncio.create_task(cluster.refresh([PATH]))
        await server.is_asked.wait()
        late = [asyncio.create_task(cluster.refresh([PATH])) for _ in range(10)]
        await asyncio.sleep(0.01)
        server.add_table(PATH, 7, leaders=[0, 0])
        server.gate.set()
        await asyncio.gather(held, *late)
        info = cluster.table_info(PATH)
        assert info is not None
        assert info.num_buckets == 2
        # Bootstrap, the one that failed, the one that was held, and one for all who came later.
        assert server.requests[ApiKey.GET_METADATA] == 4
        await cluster.close()


async def test_asking_for_a_leader_in_vain_takes_longer_each_time() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with ScriptedServer() as server:
        cluster = await Cluster.connect(server.config(), sleep=sleep)
        server.add_table(PATH, 7, leaders=[0, None])
        for _ in range(4):
            await cluster.refresh([PATH])
            assert cluster.leader_of(TableBucket(7, 1)) is None
        assert [round(seconds, 1) for seconds in pauses] == [0.1, 0.2, 0.4]
        server.add_table(PATH, 7, leaders=[0, 0])
        await cluster.refresh([PATH])
        assert cluster.leader_of(TableBucket(7, 1)) == 0
        # All is well again: no more pauses.
        pauses.clear()
        await cluster.refresh([PATH])
        assert pauses == []
        await cluster.close()


async def test_older_schemas_are_asked_for_once() -> None:
    older = SCHEMA.to_arrow().remove(1)

    def answer(context: RequestContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        if request.schema_id == 3:
            raise FlussError("no such schema", 9)
        schema = type(SCHEMA)(older)
        return pb.GetTableSchemaResponse(schema_id=request.schema_id, schema_json=schema_to_json(schema))

    async with ScriptedServer(handlers={ApiKey.GET_TABLE_SCHEMA: answer}) as server:
        cluster = await Cluster.connect(server.config())
        server.add_table(PATH, 7, leaders=[0])
        await cluster.refresh([PATH])
        # The newest schema came with the table.
        assert await cluster.schema(PATH, 1) == SCHEMA
        assert server.requests[ApiKey.GET_TABLE_SCHEMA] == 0
        first, second = await asyncio.gather(cluster.schema(PATH, 2), cluster.schema(PATH, 2))
        assert first == second == await cluster.schema(PATH, 2)
        assert first.column_names == ["id"]
        assert server.requests[ApiKey.GET_TABLE_SCHEMA] == 1
        with pytest.raises(FlussError) as caught:
            await cluster.schema(PATH, 3)
        assert caught.value.error_code == 9
        await cluster.close()
