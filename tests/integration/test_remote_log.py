"""Logs whose segments are copied to remote storage are read as a whole, through every way there is to read them.
Shown with a server whose segments hold one batch each, so that most of every table has left its disk."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import FetchedBucket
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.tablet.remote import remote_logs
from fluss.testing.waiting import eventually
from tests.integration.remote_storage import ask

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
EVENTS = fluss.TablePath("fluss", "events")
SMALL_SEGMENTS = {
    "log.segment.file-size": "120b",
    "remote.log.task-interval-duration": "20ms",
    # Tests count objects, and wait for some to go.
    "backup.interval": "0ms",
    "durability": "os",
}


@contextmanager
def serving(
    data_dir: Path, remote: Path, options: dict[str, str] | None = None
) -> Iterator[tuple[embedded.EmbeddedServer, blocking.FlussConnection]]:
    given = {**SMALL_SEGMENTS, "remote.data.dir": str(remote), **(options or {})}
    with embedded.start(given, data_dir=data_dir) as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            yield server, connection


def create(connection: blocking.FlussConnection, path: fluss.TablePath = EVENTS, **options: object) -> None:
    schema = fluss.Schema(SCHEMA, primary_keys=options.pop("primary_keys", None))
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1, **options))


def append(connection: blocking.FlussConnection, first: int, count: int, path: fluss.TablePath = EVENTS) -> None:
    """Append rows, each of which is a batch and so a segment."""
    writer = connection.get_table(path).new_append().create_writer()
    for number in range(first, first + count):
        writer.append({"id": number, "text": f"row {number}"})
        writer.flush()


def ids(connection: blocking.FlussConnection, path: fluss.TablePath = EVENTS) -> list[int]:
    return connection.get_table(path).new_scan().to_arrow()["id"].to_pylist()


def local_segments(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.glob("fluss/events-*/**/log-0/*.log"))


def wait_until_remote(data_dir: Path, kept: int = 2) -> None:
    eventually(lambda: len(local_segments(data_dir)) <= kept)


def everything(directory: Path) -> list[Path]:
    """List what is in a directory and below. Other than ``rglob`` it does not mind what is removed meanwhile."""
    return [Path(path, name) for path, names, files in os.walk(directory) for name in (*names, *files)]


def remote_objects(remote: Path) -> list[Path]:
    return sorted(path for path in everything(remote) if path.is_file())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def test_a_table_is_read_as_a_whole_through_remote_storage_and_the_disk(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (_, connection):
        create(connection)
        append(connection, 0, 30)
        wait_until_remote(data_dir)
        assert ids(connection) == list(range(30))
        admin, table = connection.get_admin(), connection.get_table(EVENTS)
        assert admin.list_offsets(EVENTS, [0], fluss.OffsetSpec.earliest()) == {0: 0}
        assert table.new_scan().project_by_name(["text"]).to_arrow()["text"].to_pylist() == [
            f"row {number}" for number in range(30)
        ]
        for offset in (0, 1, 17, 28, 29):
            scanner = table.new_scan().create_log_scanner()
            scanner.subscribe(0, offset)
            found: list[int] = []
            while len(found) < 30 - offset:
                found += [record.row["id"] for record in scanner.poll(1000)]
            assert found == list(range(offset, 30))
        assert admin.get_table_stats(EVENTS).row_count == 30
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        newest = table.new_scan().limit(20).create_bucket_batch_scanner(bucket).to_arrow()
        assert sorted(newest["id"].to_pylist()) == list(range(10, 30))
        append(connection, 30, 3)
        assert ids(connection) == list(range(33))
    with serving(data_dir, remote) as (_, connection):
        assert ids(connection) == list(range(33)), "the next run of the server knows it, too"
        append(connection, 33, 3)
        wait_until_remote(data_dir)
        assert ids(connection) == list(range(36))


def test_names_and_contents_are_those_of_apache_fluss(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (server, connection):
        create(connection)
        append(connection, 0, 4)
        table_id = connection.get_admin().get_table_info(EVENTS).table_id
        request = pb.ListRemoteLogManifestsRequest(table_id=table_id)

        def is_complete() -> bool:
            [listed] = ask(server, apis.LIST_REMOTE_LOG_MANIFESTS, request).manifests or [None]
            return listed is not None and listed.remote_log_end_offset == 3

        eventually(is_complete)
        eventually(lambda: len(remote_objects(remote)) == 3 * 4 + 1)
        answer = ask(server, apis.LIST_REMOTE_LOG_MANIFESTS, request)
    tablet = remote / "log" / "fluss" / f"events-{table_id}" / "0"
    [manifest_path] = (tablet / "metadata").iterdir()
    [listed] = answer.manifests
    assert listed.remote_log_manifest_path == str(manifest_path)
    assert (listed.remote_log_end_offset, listed.table_bucket.bucket_id) == (3, 0)
    text = manifest_path.read_text()
    manifest = json.loads(text)
    assert text == json.dumps(manifest, separators=(",", ":"))
    assert list(manifest) == ["version", "database", "table", "table_id", "bucket_id", "remote_log_segments"]
    assert [segment["start_offset"] for segment in manifest["remote_log_segments"]] == [0, 1, 2]
    for segment in manifest["remote_log_segments"]:
        start, end = segment["start_offset"], segment["end_offset"]
        directory = tablet / segment["segment_id"]
        names = [f"{start:020d}.index", f"{start:020d}.log", f"{start:020d}.timeindex", f"{end:020d}.writer_snapshot"]
        assert sorted(path.name for path in directory.iterdir()) == names
        assert (directory / names[1]).stat().st_size == segment["size_in_bytes"]
        assert json.loads((directory / names[3]).read_text())["writer_id_entries"][-1]["last_batch_sequence"] == start


def test_times_are_found_in_remote_storage(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (_, connection):
        create(connection)
        times = []
        for number in range(10):
            times.append(time.time_ns() // 1_000_000)
            append(connection, number, 1)
            time.sleep(0.003)
        wait_until_remote(data_dir)
        for number, time_ms in enumerate(times):
            found = connection.get_admin().list_offsets(EVENTS, [0], fluss.OffsetSpec.timestamp(time_ms))
            assert found == {0: number}


def test_a_client_may_prefer_remote_storage(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (server, connection):
        create(connection)
        append(connection, 0, 5)
        wait_until_remote(data_dir)
        table_id = connection.get_admin().get_table_info(EVENTS).table_id

        def fetch(offset: int, preference: int) -> FetchedBucket:
            bucket = pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=offset, max_fetch_bytes=1 << 20)
            table = pb.PbFetchLogReqForTable(table_id=table_id, projection_pushdown_enabled=False, buckets_req=[bucket])
            request = pb.FetchLogRequest(
                follower_server_id=-1, max_bytes=1 << 20, tables_req=[table], read_preference=preference
            )
            return ask(server, apis.FETCH_LOG, request).tables[0].buckets[0]

        eventually(lambda: fetch(3, 1).remote_log_fetch_info is not None)
        assert fetch(3, 0).remote_log_fetch_info is None
        assert fetch(3, 0).records_view.nbytes > 0
        first = fetch(0, 0).remote_log_fetch_info
        assert first.remote_log_tablet_dir == str(remote / "log" / "fluss" / f"events-{table_id}" / "0")
        starts = [segment.remote_log_start_offset for segment in first.remote_log_segments]
        assert starts == list(range(len(starts))), "what the log has itself is left out"
        assert fetch(-2, 0).remote_log_fetch_info == first
        assert fetch(4, 1).remote_log_fetch_info is None, "the last segment is still written to"
        assert fetch(4, 1).records_view.nbytes > 0
        assert fetch(99, 1).error_code == 19


def test_an_answer_about_remote_storage_is_no_longer_than_its_buckets_need(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a bucket is named: that takes ten bytes of a request, and its segments take thousands."""
    monkeypatch.setattr(remote_logs, "_SEGMENTS_TOLD_TOGETHER_MAX", 6)
    with serving(data_dir, remote) as (server, connection):
        schema = fluss.Schema(SCHEMA)
        connection.get_admin().create_table(EVENTS, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["id"]))
        append(connection, 0, 60)
        eventually(lambda: not list(data_dir.glob("fluss/events-*/**/log-*/0000000000000000000[0-9].log")))
        table_id = connection.get_admin().get_table_info(EVENTS).table_id

        def fetch(*tables: list[tuple[int, int]]) -> list[list[tuple[int, list[int]]]]:
            """Return the buckets of each table in the answer, with the first offsets of their segments."""
            request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20)
            for buckets in tables:
                table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
                for bucket_id, offset in buckets:
                    table.buckets_req.add(bucket_id=bucket_id, fetch_offset=offset, max_fetch_bytes=1 << 20)
            return [
                [
                    (
                        each.bucket_id,
                        [one.remote_log_start_offset for one in each.remote_log_fetch_info.remote_log_segments],
                    )
                    for each in table.buckets
                ]
                for table in ask(server, apis.FETCH_LOG, request).tables
            ]

        assert fetch([(0, 0)]) == [[(0, [0, 1, 2, 3, 4, 5])]]
        assert fetch([(0, 0), (1, 0)]) == [[(0, [0, 1, 2]), (1, [0, 1, 2])]], "buckets share the length of the answer"
        assert fetch([(0, 0)] * 1000 + [(0, 2)]) == [[(0, [2, 3, 4, 5, 6, 7])]], "the last one counts, as for the log"
        assert fetch(*[[(0, 0)]] * 500, [(0, 2)]) == [[]] * 500 + [[(0, [2, 3, 4, 5, 6, 7])]]


@pytest.mark.slow  # Missing files are asked for again for half a minute.
def test_a_client_may_read_from_remote_storage_first(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (server, connection):
        create(connection, properties={"table.log.tiered.local-segments": "100"})
        append(connection, 0, 10)
        request = pb.ListRemoteLogManifestsRequest(table_id=connection.get_admin().get_table_info(EVENTS).table_id)

        def copied() -> int:
            manifests = ask(server, apis.LIST_REMOTE_LOG_MANIFESTS, request).manifests
            return manifests[0].remote_log_end_offset if manifests else 0

        eventually(lambda: copied() == 9)
        options = {"bootstrap.servers": server.bootstrap_servers, "client.scanner.log.read-preference": "REMOTE_FIRST"}
        with blocking.FlussConnection.create(fluss.Config(options)) as other:
            assert ids(other) == list(range(10))
            # What is everywhere is read from remote storage, as one sees when it is gone there.
            for segment in remote.glob("log/fluss/events-*/0/*/*.log"):
                segment.unlink()
            assert ids(connection) == list(range(10))
            scanner = other.get_table(EVENTS).new_scan().create_log_scanner()
            scanner.subscribe(0, 0)
            with pytest.raises(fluss.FlussError, match="remote"):
                eventually(lambda: scanner.poll(100))


def test_clients_are_told_where_remote_files_of_a_table_are(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (server, connection):
        create(connection)
        path = pb.PbTablePath(database_name="fluss", table_name="events")
        assert ask(server, apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path)).remote_data_dir == str(remote)
        [told] = ask(server, apis.GET_METADATA, pb.MetadataRequest(table_path=[path])).table_metadata
        assert told.remote_data_dir == str(remote)
        parted = fluss.TablePath("fluss", "parted")
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string())])
        admin = connection.get_admin()
        admin.create_table(parted, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1, partition_keys=["day"]))
        admin.create_partition(parted, {"day": "mon"})
        path = pb.PbTablePath(database_name="fluss", table_name="parted")
        [info] = ask(server, apis.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path)).partitions_info
        assert info.remote_data_dir == str(remote)


def test_partitions_and_dropped_tables_leave_nothing_behind(data_dir: Path, remote: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string())])
    with serving(data_dir, remote) as (_, connection):
        admin = connection.get_admin()
        descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=1, partition_keys=["day"])
        admin.create_table(EVENTS, descriptor)
        for day in ("mon", "tue"):
            admin.create_partition(EVENTS, {"day": day})
        writer = connection.get_table(EVENTS).new_append().create_writer()
        for number in range(12):
            writer.append({"id": number, "day": ("mon", "tue")[number % 2]})
            writer.flush()
        wait_until_remote(data_dir, kept=4)
        found = connection.get_table(EVENTS).new_scan().to_arrow()
        assert sorted(found["id"].to_pylist()) == list(range(12))
        assert list(remote.glob("log/fluss/events-*/mon-p*/0/metadata/*.manifest"))
        admin.drop_partition(EVENTS, {"day": "mon"})
        eventually(lambda: not any(path.name.startswith("mon-p") for path in everything(remote)))
        assert list(remote.glob("log/fluss/events-*/tue-p*/0/metadata/*.manifest"))
        admin.drop_table(EVENTS)
        eventually(lambda: everything(remote) == [])


def test_copies_expire_and_so_do_their_objects(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (_, connection):
        create(connection)
        append(connection, 0, 10)
        wait_until_remote(data_dir)
        connection.get_admin().alter_table(EVENTS, set_properties={"table.log.ttl": "1 ms"})
        # The last segment is still written to, and so has no copy that could expire.
        eventually(lambda: len(remote_objects(remote)) == 1)
        assert "highest_copied_end_offset" in remote_objects(remote)[0].read_text()
        assert ids(connection)[-1] == 9
        append(connection, 10, 5)

        def newest() -> int | None:
            # Segments expire as soon as they are closed, also while they are read.
            with suppress(fluss.FlussError):
                return ids(connection)[-1]
            return None

        eventually(lambda: newest() == 14)


def test_a_lost_store_is_built_from_remote_storage(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (_, connection):
        create(connection, primary_keys=["id"])
        writer = connection.get_table(EVENTS).new_upsert().create_writer()
        for number in range(20):
            writer.upsert({"id": number % 7, "text": f"row {number}"})
            writer.flush()
        wait_until_remote(data_dir)
    for lost in (*data_dir.glob("kv.shared"), *data_dir.glob("fluss/events-*/kv-*")):
        shutil.rmtree(lost)
    with serving(data_dir, remote) as (_, connection):
        lookuper = connection.get_table(EVENTS).new_lookup().create_lookuper()
        newest = {number % 7: f"row {number}" for number in range(20)}
        assert {key: lookuper.lookup({"id": key})["text"] for key in range(7)} == newest


def test_nothing_is_copied_without_an_interval_and_copies_stay(data_dir: Path, remote: Path) -> None:
    with serving(data_dir, remote) as (_, connection):
        create(connection)
        append(connection, 0, 6)
        wait_until_remote(data_dir)
    copied = remote_objects(remote)
    off = {"remote.log.task-interval-duration": "0 ms"}
    with serving(data_dir, remote, options=off) as (_, connection):
        append(connection, 6, 6)
        assert ids(connection) == list(range(12))
    assert remote_objects(remote) == copied
    assert len(local_segments(data_dir)) == 8


def test_how_much_is_copied_at_a_time_and_how_fast_are_options(data_dir: Path, remote: Path) -> None:
    options = {"remote.log.task-max-upload-segments": "1", "remote.log.upload.max-bytes-per-second": "3 kb"}
    with serving(data_dir, remote, options=options) as (_, connection):
        create(connection)
        began_s = time.monotonic()
        append(connection, 0, 8)
        eventually(lambda: len(list(remote.glob("log/*/*/0/*-*/*.log"))) >= 3)
        sent_bytes = sum(path.stat().st_size for path in remote_objects(remote))
        # The last object may still be on its way.
        assert time.monotonic() - began_s >= (sent_bytes - 1024) / 3072


def test_indexes_of_remote_segments_are_kept_up_to_a_size(data_dir: Path, remote: Path) -> None:
    options = {
        "log.segment.file-size": "2 kb",
        "log.index.interval-size": "1 b",
        "remote.log.index-file-cache-size": "40 b",
    }
    with serving(data_dir, remote, options=options) as (_, connection):
        create(connection)
        append(connection, 0, 60)
        eventually(lambda: len(local_segments(data_dir)) <= 2)
        for offset in (1, 13, 29, 5):
            scanner = connection.get_table(EVENTS).new_scan().create_log_scanner()
            scanner.subscribe(0, offset)
            assert eventually(lambda scanner=scanner: list(scanner.poll(100)))[0].row["id"] == offset
        cached = list((data_dir / "remote-log-index-cache").iterdir())
        assert len(cached) == 1, "each of them is larger than the limit, and the last one stays"
        assert cached[0].name.endswith(".index")
