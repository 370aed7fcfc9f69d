"""The tiering service's side of the server: schedule, epochs, offsets files, snapshots; and lake tables beside tables.

Every request goes over a socket to a coordinator whose clock the test moves.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import process_time

import pytest

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_backup import adapt
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME
from fluss.storage.log.checkpoint_file import encode_checkpoint
from fluss.storage.log.file_names import RESTORED_CHECKPOINT
from fluss.storage.remote.removal_gate import RemovalGate
from tests.unit.server.coordinator.support import descriptor, path, spec

MINUTE_MS = 60_000
FRESHNESS_MS = 3 * MINUTE_MS
# Tables of this format are left to their tiering service.
PAIMON = {"datalake.format": "paimon"}
LAKE = {"table.datalake.enabled": "true"}


def beat(*, request=True, **reports):
    """Return a heartbeat; reports are (table id, coordinator epoch, tiering epoch) by kind."""
    lists = {
        f"{kind}_tables": [
            pb.PbHeartbeatReqForTable(table_id=table_id, coordinator_epoch=coordinator, tiering_epoch=epoch)
            for table_id, coordinator, epoch in each
        ]
        for kind, each in reports.items()
        if kind != "forced"
    }
    return pb.LakeTieringHeartbeatRequest(
        request_table=request, force_finished_tables=reports.get("forced", []), **lists
    )


async def handed(cluster, **reports):
    """Send a heartbeat that asks for a table, and return its id and epoch, None if there is none."""
    response = await cluster.ask(apis.LAKE_TIERING_HEARTBEAT, beat(**reports))
    for answers in (response.failed_table_resp, response.tiering_table_resp, response.finished_table_resp):
        assert not any(answer.HasField("error") for answer in answers)
    if not response.HasField("tiering_table"):
        return None
    return response.tiering_table.table_id, response.tiering_table.tiering_epoch


async def report_code(cluster, kind, report):
    response = await cluster.ask(apis.LAKE_TIERING_HEARTBEAT, beat(request=False, **{kind: [report]}))
    (answer,) = getattr(response, f"{kind}_table_resp")
    return answer.error.error_code if answer.HasField("error") else 0


async def test_a_table_is_handed_out_when_it_is_due_and_again_after_its_freshness(make_cluster, clock):
    async with make_cluster(initial_configs=PAIMON) as cluster:
        table_id = (await cluster.create("fluss.t", descriptor(properties=LAKE))).table_id
        await cluster.create("fluss.without", descriptor())
        assert await handed(cluster) is None
        clock.now_ms += FRESHNESS_MS - 1
        assert await handed(cluster) is None
        clock.now_ms += 1
        assert await handed(cluster) == (table_id, 1)
        assert await handed(cluster) is None, "it has a service"
        assert await handed(cluster, finished=[(table_id, 0, 1)]) is None
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table_id, 2)
        assert await handed(cluster, finished=[(table_id, 0, 2)], forced=[table_id]) == (table_id, 3)


async def test_failure_and_silence_make_a_table_due_at_once_and_fence_the_old_round(make_cluster, clock):
    async with make_cluster(initial_configs=PAIMON) as cluster:
        table_id = (await cluster.create("fluss.t", descriptor(properties=LAKE))).table_id
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table_id, 1)
        assert await handed(cluster, failed=[(table_id, 0, 1)]) == (table_id, 2)
        clock.now_ms += 2 * MINUTE_MS
        assert await handed(cluster, tiering=[(table_id, 0, 2)]) is None, "it was heard of"
        clock.now_ms += 2 * MINUTE_MS
        assert await handed(cluster) is None
        clock.now_ms += 1
        assert await report_code(cluster, "tiering", (table_id, 0, 2)) == 50
        assert await report_code(cluster, "finished", (table_id, 0, 3)) == -1, "nobody has it now"
        assert await handed(cluster) == (table_id, 3)
        assert await report_code(cluster, "finished", (table_id, 0, 2)) == 50
        assert await report_code(cluster, "finished", (table_id, 1, 3)) == 23
        assert await report_code(cluster, "finished", (99, 0, 3)) == 7
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        assert await report_code(cluster, "finished", (table_id, 0, 3)) == 7


async def test_tables_come_in_the_order_in_which_they_were_due(make_cluster, clock):
    async with make_cluster(initial_configs=PAIMON) as cluster:
        slow = await cluster.create("fluss.slow", descriptor(properties={**LAKE, "table.datalake.freshness": "10 min"}))
        fast = await cluster.create("fluss.fast", descriptor(properties={**LAKE, "table.datalake.freshness": "1 min"}))
        off = await cluster.create("fluss.off", descriptor(properties=LAKE))
        await cluster.alter("fluss.off", values={"table.datalake.enabled": "false"})
        clock.now_ms += 2 * MINUTE_MS
        await cluster.alter("fluss.slow", values={"table.datalake.freshness": "90 s"})
        assert [await handed(cluster) for _ in range(3)] == [(fast.table_id, 1), (slow.table_id, 1), None]
        await cluster.alter("fluss.off", values={"table.datalake.enabled": "true"})
        clock.now_ms += FRESHNESS_MS
        await handed(cluster)
        assert off.table_id in {entry.table_id for entry in cluster.coordinator.lake_tiering.tables()}


async def test_a_heartbeat_goes_through_the_schedule_once_whatever_it_reports(make_cluster, clock):
    async with make_cluster(initial_configs=PAIMON) as cluster:
        await asyncio.gather(*(cluster.create(f"fluss.t{n}", descriptor(properties=LAKE)) for n in range(500)))
        clock.now_ms += FRESHNESS_MS
        table_id, epoch = await handed(cluster)
        reports = [(table_id, 0, epoch)] * 60_000
        start = process_time()
        response = await cluster.ask(apis.LAKE_TIERING_HEARTBEAT, beat(request=False, tiering=reports))
        assert process_time() - start < 2
        assert len(response.tiering_table_resp) == len(reports)
        assert not any(answer.HasField("error") for answer in response.tiering_table_resp)


async def test_after_a_restart_services_of_before_are_told_by_the_coordinator_s_epoch(make_cluster, clock):
    async with make_cluster(initial_configs=PAIMON) as cluster:
        table_id = (await cluster.create("fluss.t", descriptor(properties=LAKE))).table_id
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table_id, 1)
    async with make_cluster(initial_configs=PAIMON) as cluster:
        assert await report_code(cluster, "tiering", (table_id, 0, 1)) == 23
        assert await handed(cluster) is None
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table_id, 1)


# Snapshots


async def prepare(cluster, table, offsets, **more):
    """Have offsets written, by bucket or (partition, bucket), and return the answer."""
    buckets = [
        pb.PbBucketOffset(
            partition_id=key[0] if isinstance(key, tuple) else None,
            bucket_id=key[1] if isinstance(key, tuple) else key,
            log_end_offset=offset,
        )
        for key, offset in offsets.items()
    ]
    table_offsets = pb.PbTableOffsets(table_id=table.table_id, table_path=path(str(table.path)), bucket_offsets=buckets)
    request = pb.PrepareLakeTableSnapshotRequest(bucket_offsets=[table_offsets], **more)
    (answer,) = (await cluster.ask(apis.PREPARE_LAKE_TABLE_SNAPSHOT, request)).prepare_lake_table_resp
    return answer


async def commit(cluster, table, snapshot_id, file_path, **more):
    entry = pb.PbLakeTableSnapshotMetadata(
        table_id=table.table_id, snapshot_id=snapshot_id, tiered_bucket_offsets_file_path=file_path, **more
    )
    request = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
    (answer,) = (await cluster.ask(apis.COMMIT_LAKE_TABLE_SNAPSHOT, request)).table_resp
    return answer.error_code


async def tiered(cluster, table, snapshot_id, offsets, **more):
    file_path = (await prepare(cluster, table, offsets)).lake_table_offsets_path
    assert await commit(cluster, table, snapshot_id, file_path, **more) == 0
    return file_path


def wanted(table, **more):
    return pb.GetLakeSnapshotRequest(table_path=path(str(table.path)), **more)


async def found(cluster, table, **more):
    response = await cluster.ask(apis.GET_LAKE_SNAPSHOT, wanted(table, **more))
    assert response.table_id == table.table_id
    return response.snapshotId, {bucket.bucket_id: bucket.log_offset for bucket in response.bucket_snapshots}


async def test_offsets_are_laid_over_those_of_the_newest_snapshot(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor(bucket_count=3))
        assert await cluster.code(apis.GET_LAKE_SNAPSHOT, wanted(table)) == 53
        first = await tiered(cluster, table, 11, {0: 5, 2: 7})
        assert json.loads(Path(first).read_text()) == {
            "version": 1,
            "table_id": table.table_id,
            "bucket_offsets": [5, -1, 7],
        }
        assert await found(cluster, table) == (11, {0: 5, 2: 7})
        second = await tiered(cluster, table, 10, {1: 1, 2: 9})
        assert await found(cluster, table) == (10, {0: 5, 1: 1, 2: 9})
        assert not Path(first).exists()
        third = (await prepare(cluster, table, {0: 1}, ignore_previous_table_offsets=True)).lake_table_offsets_path
        assert json.loads(Path(third).read_text())["bucket_offsets"] == [1]
    async with make_cluster() as cluster:
        assert await found(cluster, table) == (10, {0: 5, 1: 1, 2: 9})
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        await cluster.coordinator.lake_snapshots.forget_dropped()
    assert Path(second).name.endswith(".offsets")


async def test_older_snapshots_stay_as_long_as_the_service_says(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor())
        keep_all = {"earliest_snapshot_id_to_keep": -1}
        paths = {}
        for snapshot_id in (30, 10, 20):
            paths[snapshot_id] = await tiered(cluster, table, snapshot_id, {0: snapshot_id}, **keep_all)
        assert await found(cluster, table, snapshot_id=30) == (30, {0: 30})
        assert await cluster.code(apis.GET_LAKE_SNAPSHOT, wanted(table, readable=True)) == 53
        assert await cluster.code(apis.GET_LAKE_SNAPSHOT, wanted(table, readable=True, snapshot_id=1)) == -1
        readable = {"readable_bucket_offsets_file_path": paths[20]}
        await tiered(cluster, table, 5, {0: 50}, earliest_snapshot_id_to_keep=10, **readable)
        assert await found(cluster, table, readable=True) == (5, {0: 20})
        assert await found(cluster, table) == (5, {0: 50})
        assert await cluster.code(apis.GET_LAKE_SNAPSHOT, wanted(table, snapshot_id=30)) == 53
        assert await found(cluster, table, snapshot_id=10) == (10, {0: 10})
        last = await tiered(cluster, table, 6, {0: 60}, earliest_snapshot_id_to_keep=5)
        assert await commit(cluster, table, 6, last, earliest_snapshot_id_to_keep=5) == 0, "the same again"
        assert [entry.snapshot_id for entry in cluster.coordinator.lake_snapshots._entries[table.table_id]] == [5, 6]


async def test_a_commit_that_comes_again_after_others_changes_nothing(make_cluster):
    """From a service that was away, and does not know that another one registered its snapshot and went on."""
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor())
        keep_all = {"earliest_snapshot_id_to_keep": -1}
        first = await tiered(cluster, table, 30, {0: 100}, **keep_all)
        await tiered(cluster, table, 10, {0: 200}, **keep_all)
        assert await commit(cluster, table, 30, first, **keep_all) == 0
        assert await found(cluster, table) == (10, {0: 200}), (
            "what came later is in the lake, and may be gone elsewhere"
        )
        assert await found(cluster, table, snapshot_id=30) == (30, {0: 100})


async def test_files_of_rounds_that_were_not_committed_are_few(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor())
        committed = await tiered(cluster, table, 1, {0: 5})
        prepared = [(await prepare(cluster, table, {0: 6 + n})).lake_table_offsets_path for n in range(20)]
        assert await found(cluster, table) == (1, {0: 5})
        directory = Path(committed).parent
        assert {str(file) for file in directory.iterdir()} == {committed, *prepared[-16:]}
        assert await commit(cluster, table, 2, prepared[-16]) == 0, "whichever of them was committed to the lake"
        assert {str(file) for file in directory.iterdir()} == set(prepared[-16:])
        other = await cluster.create("fluss.other", descriptor())
        uncommitted = Path((await prepare(cluster, other, {0: 1})).lake_table_offsets_path)
        for name in ("fluss.t", "fluss.other"):
            await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path(name), ignore_if_not_exists=False))
        await cluster.coordinator.lake_snapshots.forget_dropped()
        assert not directory.exists()
        assert not uncommitted.parent.exists()


async def test_offsets_that_no_log_had_when_the_server_was_restored_are_refused(make_cluster, tmp_path, clock):
    def restored(table, ends):
        adapt(tmp_path / FILE_NAME, moved={})
        offsets = {TableBucket(table.table_id, bucket): end for bucket, end in ends.items()}
        (tmp_path / RESTORED_CHECKPOINT).write_bytes(encode_checkpoint(offsets))

    async def prepared(cluster, offsets):
        return (await prepare(cluster, table, offsets)).lake_table_offsets_path

    keep_all = {"earliest_snapshot_id_to_keep": -1}
    async with make_cluster(initial_configs=PAIMON) as cluster:
        table = await cluster.create("fluss.t", descriptor(bucket_count=2, properties=LAKE))
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table.table_id, 1)
        registered = await tiered(cluster, table, 1, {0: 5})
        within, ahead, also_ahead = [
            await prepared(cluster, offsets) for offsets in ({0: 10, 1: 2}, {0: 10, 1: 3}, {0: 11})
        ]
    restored(table, {0: 10, 1: 2})
    async with make_cluster(initial_configs=PAIMON) as cluster:
        for path_of_lost in (ahead, also_ahead):
            assert await commit(cluster, table, 2, path_of_lost, **keep_all) == 53
        assert await commit(cluster, table, 2, f"{within}.offsets", **keep_all) == 53
        assert await found(cluster, table) == (1, {0: 5})
        assert await commit(cluster, table, 1, registered, **keep_all) == 0
        assert await commit(cluster, table, 3, within, readable_bucket_offsets_file_path=ahead, **keep_all) == 53
        assert await commit(cluster, table, 3, within, **keep_all) == 0
        own = await tiered(cluster, table, 4, {0: 40, 1: 3}, **keep_all)
        assert json.loads(Path(own).read_text())["history"] > 0
        assert await commit(cluster, table, 2, ahead, **keep_all) == 53, "however far the lake has come since"
        assert await found(cluster, table) == (4, {0: 40, 1: 3})
        clock.now_ms += FRESHNESS_MS
        assert await handed(cluster) == (table.table_id, 1)
        for epoch in (0, 1, 2):
            report = (table.table_id, epoch, 1)
            assert await report_code(cluster, "tiering", report) == 23, "the lost server may have been started again"
        unregistered = [await prepared(cluster, offsets) for offsets in ({0: 50}, {0: 61})]
    restored(table, {0: 60, 1: 60})
    async with make_cluster(initial_configs=PAIMON) as cluster:
        assert await found(cluster, table) == (4, {0: 40, 1: 3})
        assert await commit(cluster, table, 2, ahead, **keep_all) == 53, "of another history, with other records"
        assert await commit(cluster, table, 5, unregistered[1], **keep_all) == 53
        assert await commit(cluster, table, 5, unregistered[0], **keep_all) == 0
        assert await found(cluster, table) == (5, {0: 50, 1: 3})


async def test_files_stay_as_long_as_a_backup_names_them(make_cluster):
    async with make_cluster() as cluster:
        gate, snapshots = RemovalGate(), cluster.coordinator.lake_snapshots
        gate.close()
        snapshots.attach(gate)
        table = await cluster.create("fluss.t", descriptor())
        files = [Path(await tiered(cluster, table, number, {0: number})) for number in range(3)]
        assert [file.exists() for file in files] == [True, True, True]
        point = gate.begin_point()
        await tiered(cluster, table, 4, {0: 4})
        gate.point_made(point)
        gate.keep_from(point)
        await tiered(cluster, table, 5, {0: 5})
        assert [file.exists() for file in files] == [False, False, True], "the last one was registered when it began"
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        await snapshots.forget_dropped()
        assert files[0].parent.exists()
        gate.keep_from(gate.begin_point())
        await snapshots.forget_dropped()
        assert not files[0].parent.exists()


async def test_a_request_names_a_table_once(make_cluster):
    async with make_cluster() as cluster:
        table, other = [await cluster.create(f"fluss.{name}", descriptor()) for name in ("t", "other")]
        offered = [
            pb.PbTableOffsets(table_id=each.table_id, table_path=path(str(each.path))) for each in (table, other, table)
        ]
        request = pb.PrepareLakeTableSnapshotRequest(bucket_offsets=offered)
        answers = (await cluster.ask(apis.PREPARE_LAKE_TABLE_SNAPSHOT, request)).prepare_lake_table_resp
        assert [answer.error_code for answer in answers] == [0, 0, -1]
        entry = pb.PbLakeTableSnapshotMetadata(
            table_id=table.table_id,
            snapshot_id=1,
            tiered_bucket_offsets_file_path=answers[0].lake_table_offsets_path,
        )
        for request in (
            pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry] * 3),
            pb.CommitLakeTableSnapshotRequest(
                tables_req=[pb.PbLakeTableSnapshotInfo(table_id=table.table_id, snapshot_id=2)] * 3
            ),
        ):
            answers = (await cluster.ask(apis.COMMIT_LAKE_TABLE_SNAPSHOT, request)).table_resp
            assert [answer.error_code for answer in answers] == [0, -1, -1]


async def test_offsets_of_partitions_go_with_them(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor({"id": "INTEGER", "dt": "STRING"}, partition_key=["dt"]))
        for name in ("a", "b"):
            request = pb.CreatePartitionRequest(
                table_path=path("fluss.t"), partition_spec=spec(dt=name), ignore_if_not_exists=False
            )
            await cluster.ask(apis.CREATE_PARTITION, request)
        ids = await cluster.partitions("fluss.t")
        await tiered(cluster, table, 1, {(ids["a"], 0): 3, (ids["b"], 0): 4})
        response = await cluster.ask(apis.GET_LAKE_SNAPSHOT, wanted(table))
        assert {(each.partition_id, each.partition_name, each.log_offset) for each in response.bucket_snapshots} == {
            (ids["a"], "a", 3),
            (ids["b"], "b", 4),
        }
        request = pb.DropPartitionRequest(
            table_path=path("fluss.t"), partition_spec=spec(dt="a"), ignore_if_not_exists=False
        )
        await cluster.ask(apis.DROP_PARTITION, request)
        await tiered(cluster, table, 2, {(ids["b"], 0): 5})
        response = await cluster.ask(apis.GET_LAKE_SNAPSHOT, wanted(table))
        assert [(each.partition_name, each.log_offset) for each in response.bucket_snapshots] == [("b", 5)]


async def test_only_files_that_were_prepared_for_the_table_are_looked_at(make_cluster, tmp_path):
    async with make_cluster() as cluster:
        table, other = [await cluster.create(f"fluss.{name}", descriptor()) for name in ("t", "other")]
        own = (await prepare(cluster, table, {0: 5})).lake_table_offsets_path
        of_other = (await prepare(cluster, other, {0: 5})).lake_table_offsets_path
        secret = tmp_path / "secret.offsets"
        secret.write_text('{"version":1,"table_id":0,"bucket_offsets":[1]}')
        directory = own.rpartition("/")[0]
        for wrong in (of_other, str(secret), f"{directory}/../../../../secret.offsets", f"{directory}/x/..", "", "/"):
            assert await commit(cluster, table, 1, wrong) == 53
            assert await commit(cluster, table, 1, own, readable_bucket_offsets_file_path=wrong) == 53
        assert await cluster.code(apis.GET_LAKE_SNAPSHOT, wanted(table)) == 53
        assert secret.exists()
        assert (await prepare(cluster, table, {1: 5})).error_code == 15
        assert (await prepare(cluster, table, {(0, 0): 5})).error_code == 15
        assert await commit(cluster, table, 1, own) == 0


async def test_the_oldest_form_of_a_commit_has_its_offsets_with_it(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor(bucket_count=2))
        for snapshot_id, bucket_id, offset in ((1, 0, 5), (2, 1, 6)):
            bucket = pb.PbLakeTableOffsetForBucket(bucket_id=bucket_id, log_end_offset=offset)
            info = pb.PbLakeTableSnapshotInfo(table_id=table.table_id, snapshot_id=snapshot_id, buckets_req=[bucket])
            request = pb.CommitLakeTableSnapshotRequest(tables_req=[info])
            assert (await cluster.ask(apis.COMMIT_LAKE_TABLE_SNAPSHOT, request)).table_resp[0].error_code == 0
        assert await found(cluster, table, readable=True) == (2, {0: 5, 1: 6})


# Lake tables


@pytest.fixture
def iceberg(tmp_path):
    pytest.importorskip("pyiceberg", reason="lake tables need pyiceberg")
    return {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(tmp_path / "warehouse")}


def lake_tables(configs):
    from fluss.lake.lake_tables import LakeTables

    return LakeTables.open({"warehouse": configs["datalake.iceberg.warehouse"]})


async def test_a_lake_table_is_made_and_altered_with_its_table(make_cluster, iceberg):
    async with make_cluster(initial_configs=iceberg) as cluster:
        table = await cluster.create("fluss.t", descriptor(bucket_count=3, properties=LAKE))
        lake = lake_tables(iceberg)
        names = [field.name for field in lake.load(table.path).schema().fields]
        assert names[-3:] == ["__bucket", "__offset", "__timestamp"]
        column = pb.PbAddColumn(column_name="added", data_type_json=b'{"type":"STRING"}', column_position_type=0)
        await cluster.alter("fluss.t", columns=[column])
        assert [field.name for field in lake.load(table.path).schema().fields] == [*names[:-3], "added", *names[-3:]]
        await cluster.alter("fluss.t", values={"owner": "me", "iceberg.a": "1"})
        properties = lake.load(table.path).properties
        assert (properties["fluss.owner"], properties["a"]) == ("me", "1")
        await cluster.alter("fluss.t", values={"table.datalake.enabled": "false"}, reset=["iceberg.a"])
        assert "a" not in lake.load(table.path).properties
        await cluster.alter("fluss.t", values={"table.datalake.enabled": "true"})
        assert lake.load(table.path).properties["fluss.table.datalake.enabled"] == "true"
        shown = (await cluster.info("fluss.t"))[1]["properties"]
        assert shown["table.datalake.iceberg.warehouse"] == iceberg["datalake.iceberg.warehouse"]
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        assert lake.find(table.path) is not None, "the lake keeps what it has"


@pytest.mark.parametrize(
    ("columns", "keys", "text"),
    [
        ({"a": "INTEGER", "b": "INTEGER"}, ["a", "b"], "exactly one column"),
        ({"a": "TINYINT"}, ["a"], "cannot have a key column of type tinyint"),
    ],
)
async def test_a_table_that_could_not_be_written_is_not_made(make_cluster, iceberg, columns, keys, text):
    async with make_cluster(initial_configs=iceberg) as cluster:
        table_json = descriptor(columns, primary_key=keys)
        request = pb.CreateTableRequest(table_path=path("fluss.t"), table_json=table_json, ignore_if_exists=False)
        error = await cluster.refused(apis.CREATE_TABLE, request)
        assert error.error_code == 15
        assert text in error.message


async def test_a_table_whose_lake_table_cannot_be_made_is_not_made(make_cluster, iceberg):
    async with make_cluster(initial_configs=iceberg) as cluster:
        await cluster.create("fluss.t", descriptor(bucket_count=3))
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        await cluster.create("fluss.t", descriptor(bucket_count=3, properties=LAKE))
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False))
        request = pb.CreateTableRequest(
            table_path=path("fluss.t"),
            table_json=descriptor({"other": "INTEGER"}, properties=LAKE),
            ignore_if_exists=False,
        )
        assert await cluster.code(apis.CREATE_TABLE, request) == 54
        assert await cluster.code(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path("fluss.t"))) == 7
        await cluster.create("fluss.t", descriptor(bucket_count=3, properties=LAKE))
    async with make_cluster(initial_configs={"datalake.format": "iceberg"}) as cluster:
        request = pb.CreateTableRequest(
            table_path=path("fluss.u"), table_json=descriptor(properties=LAKE), ignore_if_exists=False
        )
        error = await cluster.refused(apis.CREATE_TABLE, request)
        assert error.error_code == 40
        assert "'warehouse'" in error.message
