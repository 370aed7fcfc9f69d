"""A server that is restored from its backup goes on as the lost one: tables, rights, users, offsets, writers.
Shown with servers whose data directory is removed, by clients that know nothing of it; and with backups that are not
complete, and places that belong to another server."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.__main__ import main
from fluss.server.coordinator.metadata.metadata_backup import remote_logs, table_count
from fluss.server.model import RemoteLogEntry
from fluss.server.tablet.remote import backup, restoration
from fluss.storage.backup import tails
from fluss.storage.backup.ownership import Claim, check_claim
from fluss.storage.backup.points import POINTS, get_chains, newest_point
from fluss.storage.backup.restored_log import make_log
from fluss.storage.backup.tails import PlannedTail
from fluss.storage.log.committer import LogEnd
from fluss.storage.log.tablet import LogTablet
from fluss.storage.remote.objects import DirectoryObjects
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files, OsFiles
from fluss.testing.waiting import eventually
from tests.integration.remote_storage import ask
from tests.open_files import open_below
from tests.ports import free_port

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
EVENTS = fluss.TablePath("fluss", "events")
KEYED = fluss.TablePath("fluss", "keyed")
QUICK = {
    "log.segment.file-size": "300b",
    "remote.log.task-interval-duration": "20ms",
    "backup.interval": "20ms",
    "durability": "os",
}


@contextmanager
def serving(
    data_dir: Path, options: dict[str, str]
) -> Iterator[tuple[embedded.EmbeddedServer, blocking.FlussConnection]]:
    with embedded.start({**QUICK, **options}, data_dir=data_dir) as server, connected(server) as connection:
        yield server, connection


def connected(server: embedded.EmbeddedServer, **options: str) -> blocking.FlussConnection:
    return blocking.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers, **options}))


def create(connection: blocking.FlussConnection, path: fluss.TablePath = EVENTS, **options: object) -> None:
    schema = fluss.Schema(SCHEMA, primary_keys=options.pop("primary_keys", None))
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1, **options))


def append(writer: object, first: int, count: int) -> None:
    for number in range(first, first + count):
        writer.append({"id": number, "text": f"row {number}"})  # type: ignore[attr-defined]
        writer.flush()  # type: ignore[attr-defined]


def ids(connection: blocking.FlussConnection, path: fluss.TablePath = EVENTS) -> list[int]:
    return connection.get_table(path).new_scan().to_arrow()["id"].to_pylist()


def store_at(remote: Path) -> RemoteStore:
    return RemoteStore(DirectoryObjects(remote, OsFiles()), RemoteTraffic())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def new_dir(tmp_path: Path) -> Path:
    return tmp_path / "new"


def test_tables_rows_writers_and_offsets_go_on_after_a_restore(data_dir: Path, remote: Path, new_dir: Path) -> None:
    port = free_port()
    with (
        embedded.start({**QUICK, "remote.data.dir": str(remote)}, data_dir=data_dir, port=port) as server,
        connected(server) as connection,
    ):
        create(connection)
        create(connection, KEYED, primary_keys=["id"])
        writer = connection.get_table(EVENTS).new_append().create_writer()
        append(writer, 0, 20)
        upserts = connection.get_table(KEYED).new_upsert().create_writer()
        for number in range(12):
            upserts.upsert({"id": number % 5, "text": f"value {number}"})
            upserts.flush()
        table_id = connection.get_admin().get_table_info(EVENTS).table_id
        server.stop()
        shutil.rmtree(data_dir)
        # The same clients go on with the server that takes its place.
        with embedded.start({**QUICK, "backup.restore-from": str(remote)}, data_dir=new_dir, port=port):
            append(writer, 20, 5)
            upserts.upsert({"id": 0, "text": "new"})
            upserts.flush()
            assert ids(connection) == list(range(25))
            rows = connection.get_table(KEYED).new_scan().to_arrow().sort_by("id").to_pylist()
            assert [row["text"] for row in rows] == ["new", "value 11", "value 7", "value 8", "value 9"]
            admin = connection.get_admin()
            assert admin.get_table_info(EVENTS).table_id == table_id
            assert admin.list_offsets(EVENTS, [0], fluss.OffsetSpec.latest()) == {0: 25}
            create(connection, fluss.TablePath("fluss", "later"))
            later = admin.get_table_info(fluss.TablePath("fluss", "later")).table_id
            assert later > table_id + 1000, "ids that the lost server gave out later are not given out again"
    with serving(new_dir, {"backup.restore-from": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(25)), "the same command starts it again"


def test_a_process_holds_no_file_open_of_servers_that_have_stopped(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        create(connection, KEYED, primary_keys=["id"])
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 20)
        upserts = connection.get_table(KEYED).new_upsert().create_writer()
        upserts.upsert({"id": 1, "text": "x"})
        upserts.flush()
        assert open_below(tmp_path)
    assert not open_below(tmp_path)
    with serving(new_dir, {"backup.restore-from": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(20))
    assert not open_below(tmp_path)


def test_how_far_the_lake_has_a_table_is_known_after_a_restore(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path
) -> None:
    """Also if the lake went on after the backup. Who is told that the lake has nothing reads what the log has left."""

    def tier(server: embedded.EmbeddedServer, table_id: int, snapshot_id: int, offset: int) -> None:
        offsets = pb.PbTableOffsets(
            table_id=table_id,
            table_path=pb.PbTablePath(database_name="fluss", table_name="events"),
            bucket_offsets=[pb.PbBucketOffset(bucket_id=0, log_end_offset=offset)],
        )
        prepare = pb.PrepareLakeTableSnapshotRequest(bucket_offsets=[offsets])
        (prepared,) = ask(server, apis.PREPARE_LAKE_TABLE_SNAPSHOT, prepare).prepare_lake_table_resp
        entry = pb.PbLakeTableSnapshotMetadata(
            table_id=table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=prepared.lake_table_offsets_path,
        )
        commit = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
        (committed,) = ask(server, apis.COMMIT_LAKE_TABLE_SNAPSHOT, commit).table_resp
        assert not committed.error_code, committed

    def known(server: embedded.EmbeddedServer) -> tuple[int, list[int]]:
        request = pb.GetLakeSnapshotRequest(table_path=pb.PbTablePath(database_name="fluss", table_name="events"))
        answer = ask(server, apis.GET_LAKE_SNAPSHOT, request)
        return answer.snapshotId, [bucket.log_offset for bucket in answer.bucket_snapshots]

    with serving(data_dir, {"remote.data.dir": str(remote)}) as (server, connection):
        create(connection)
        table_id = connection.get_admin().get_table_info(EVENTS).table_id
        tier(server, table_id, 1, 10)
    # No backup is made from here on.
    with serving(data_dir, {"remote.data.dir": str(remote), "backup.interval": "1h"}) as (server, _):
        for number in range(2, 5):
            tier(server, table_id, number, 10 * number)
        lost = shutil.copytree(remote, tmp_path / "lost")
    with serving(new_dir, {"backup.restore-from": str(lost)}) as (server, _):
        assert known(server) == (1, [10])
        files = lost / "lake" / "fluss" / f"events-{table_id}" / "metadata"
        before = set(files.iterdir())
        for number in range(5, 9):
            tier(server, table_id, number, 10 * number)
        named = set(files.iterdir()) - before

        def are_gone() -> bool:
            """Files that a server has registered go when no backup names them any more."""
            tier(server, table_id, 9, 90)
            return not named & set(files.iterdir())

        eventually(are_gone)


def test_rights_users_and_settings_are_in_the_backup(data_dir: Path, remote: Path, new_dir: Path) -> None:
    options = {
        "bind.listeners": "CLIENT://127.0.0.1:0",
        "security.protocol.map": "CLIENT:SASL",
        "security.sasl.plain.credentials": "root:secret",
        "super.users": "User:root",
        "authorizer.enabled": "true",
        **QUICK,
    }
    root = {"security.protocol": "sasl", "security.sasl.username": "root", "security.sasl.password": "secret"}
    alice = {"security.protocol": "sasl", "security.sasl.username": "alice", "security.sasl.password": "pencil"}
    with (
        embedded.start({**options, "remote.data.dir": str(remote)}, data_dir=data_dir) as server,
        connected(server, **root) as connection,
    ):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
        admin = connection.get_admin()
        admin.alter_cluster_configs(append_configs={"security.sasl.plain.credentials": "alice:pencil"})
        resource = fluss.AclResource.table(EVENTS)
        admin.create_acls([fluss.AclBinding(resource, "User:alice", fluss.AclOperation.READ)])
    shutil.rmtree(data_dir)
    with (
        embedded.start({**options, "backup.restore-from": str(remote)}, data_dir=new_dir) as server,
        connected(server, **alice) as connection,
    ):
        assert ids(connection) == [0, 1, 2]
        with pytest.raises(FlussError, match="alice"):
            append(connection.get_table(EVENTS).new_append().create_writer(), 3, 1)


def test_a_server_whose_directory_was_taken_over_takes_no_more_writes(
    data_dir: Path, remote: Path, new_dir: Path
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, old):
        create(old)
        append(old.get_table(EVENTS).new_append().create_writer(), 0, 10)
        eventually(lambda: end_in_backup(remote) == 10)
        with serving(new_dir, {"backup.restore-from": str(remote)}) as (_, new):
            assert ids(new) == list(range(10))
            append(new.get_table(EVENTS).new_append().create_writer(), 10, 3)

            def refusal() -> FlussError | None:
                try:
                    append(old.get_table(EVENTS).new_append().create_writer(), 100, 1)
                except FlussError as error:
                    return error
                return None

            error = eventually(refusal, "the old server refusing writes")
            assert error.error_code == ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION
            assert "has taken over its remote directory" in error.message
            with pytest.raises(FlussError, match="has taken over its remote directory"):
                create(old, fluss.TablePath("fluss", "other"))
            assert old.get_admin().get_cluster_health().status.name == "RED"
            assert ids(old)[:10] == list(range(10)), "it can still be read"
            append(new.get_table(EVENTS).new_append().create_writer(), 13, 3)
            assert ids(new) == list(range(16)), "what the old one did after that is nowhere"
    with (
        serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection),
        pytest.raises(FlussError, match="has taken over its remote directory"),
    ):
        append(connection.get_table(EVENTS).new_append().create_writer(), 100, 1)
    with serving(new_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(16))


def test_segments_stay_on_the_disk_until_a_backup_names_their_copies(data_dir: Path, remote: Path) -> None:
    def segments_on_disk() -> set[str]:
        return {path.name for path in data_dir.glob("**/events-0/**/*.log")}

    def copies(table: str) -> int:
        return len(list(remote.glob(f"log/fluss/{table}-*/0/*/*.log")))

    # A server that takes over finds the last backup, and removes copies that this does not name.
    with serving(data_dir, {"remote.data.dir": str(remote), "backup.interval": "1h"}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 30)
        eventually(lambda: copies("events") > 3)
        # What is copied later is copied by a later round, which has looked after the first table, too.
        other = fluss.TablePath("fluss", "other")
        create(connection, other)
        append(connection.get_table(other).new_append().create_writer(), 0, 30)
        eventually(lambda: copies("other") > 3)
        assert "00000000000000000000.log" in segments_on_disk()
        assert ids(connection) == list(range(30))
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        eventually(lambda: "00000000000000000000.log" not in segments_on_disk())
        assert ids(connection) == list(range(30))


def replace_server(data_dir: Path, remote: Path, new_dir: Path) -> None:
    """Have a server that is restored elsewhere go on with the rows of another one, and copy and remove segments."""
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 30)
        eventually(lambda: len(list(remote.glob("log/fluss/events-*/0/*/*.log"))) > 3)
    with serving(new_dir, {"remote.data.dir": str(remote), "backup.restore-from": str(remote)}) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 30, 60)
        eventually(lambda: len(list(new_dir.glob("**/events-0/**/*.log"))) < 4)
        assert ids(connection) == list(range(90))


@pytest.mark.parametrize("interval", ["20ms", "0ms"])
def test_a_server_that_was_replaced_and_goes_on_elsewhere_touches_nothing_of_its_successor(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path, interval: str
) -> None:
    replace_server(data_dir, remote, new_dir)
    elsewhere = tmp_path / "elsewhere"
    with serving(data_dir, {"remote.data.dir": str(elsewhere), "backup.interval": interval}) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 30, 30)
        other = fluss.TablePath("fluss", "other")
        create(connection, other)
        append(connection.get_table(other).new_append().create_writer(), 0, 30)
        # By a round that has looked after the first table, too.
        eventually(lambda: len(list(elsewhere.glob("log/fluss/other-*/0/*/*.log"))) > 3)
        for path in (EVENTS, other):
            connection.get_admin().drop_table(path)
        eventually(lambda: not list(elsewhere.glob("log/fluss/other-*")), "what was dropped being removed")
    with serving(new_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(90))


def test_a_server_that_was_replaced_takes_no_writes_without_backups_either(
    data_dir: Path, remote: Path, new_dir: Path
) -> None:
    replace_server(data_dir, remote, new_dir)
    with serving(data_dir, {"remote.data.dir": str(remote), "backup.interval": "0ms"}) as (_, connection):
        with pytest.raises(FlussError, match="has taken over its remote directory"):
            append(connection.get_table(EVENTS).new_append().create_writer(), 30, 1)
        with pytest.raises(FlussError, match="has taken over its remote directory"):
            connection.get_admin().drop_table(EVENTS)
    with serving(new_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(90))


def test_tables_stay_in_the_directory_they_are_in_when_a_server_gets_another_one(
    data_dir: Path, remote: Path, tmp_path: Path
) -> None:
    def copies() -> int:
        return len(list(remote.glob("log/fluss/events-*/0/*/*.log")))

    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 30)
        eventually(lambda: copies() > 3)
    count = copies()
    with serving(data_dir, {"remote.data.dir": str(tmp_path / "elsewhere")}) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 30, 30)
        eventually(lambda: copies() > count + 3)
        eventually(lambda: len(list(data_dir.glob("**/events-0/**/*.log"))) < 4)
        assert ids(connection) == list(range(60))


def shipped(remote: Path) -> dict[fluss.TableBucket, object]:
    point = newest_point(store_at(remote))
    return {} if point is None else get_chains(store_at(remote), point)  # type: ignore[return-value]


def logs_in_backup(remote: Path) -> list[RemoteLogEntry]:
    """Return the remote logs that the newest backup names; none as long as that cannot be told."""
    try:
        point = newest_point(store_at(remote))
        entries = [] if point is None else remote_logs(remote / point.metadata.path)
    except (FlussError, OSError):
        # An older point was removed meanwhile.
        return []
    return [entry for entry in entries if entry.manifest_path is not None]


def end_in_backup(remote: Path) -> int:
    """Return up to which offset the newest backup has the only log; 0 as long as that cannot be told."""
    try:
        ends = [chain.end_offset for chain in shipped(remote).values()]  # type: ignore[attr-defined]
        point = newest_point(store_at(remote))
        ends += [] if point is None else [entry.end_offset for entry in remote_logs(remote / point.metadata.path)]
    except (FlussError, OSError):
        # An older point was removed meanwhile.
        return 0
    return max(ends, default=0)


def test_a_place_of_another_server_and_data_of_its_own_are_refused(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    with pytest.raises(FlussError, match=r"belongs to the server on .* --restore-from"):
        embedded.start({**QUICK, "remote.data.dir": str(remote)}, data_dir=new_dir)
    with pytest.raises(FlussError, match="has data of its own"):
        embedded.start({**QUICK, "backup.restore-from": str(remote)}, data_dir=data_dir)
    with pytest.raises(FlussError, match="there is no backup in"):
        embedded.start({**QUICK, "backup.restore-from": str(tmp_path / "nothing")}, data_dir=tmp_path / "other")
    with pytest.raises(FlussError, match="which is the data directory"):
        embedded.start({**QUICK, "remote.data.dir": f"{tmp_path}/other/../other"}, data_dir=tmp_path / "other")
    foreign = tmp_path / "foreign"
    (foreign / "log" / "fluss" / "orders-0" / "0" / "metadata").mkdir(parents=True)
    with pytest.raises(FlussError, match="has logs of another server or cluster"):
        embedded.start({**QUICK, "remote.data.dir": str(foreign)}, data_dir=tmp_path / "other")
    assert sorted(path.name for path in foreign.rglob("*")) == ["0", "fluss", "log", "metadata", "orders-0"]
    with pytest.raises(FlussError, match="leave one of them out"):
        embedded.start(
            {"backup.restore-from": str(remote), "remote.data.dir": str(tmp_path)}, data_dir=tmp_path / "other"
        )
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        assert ids(connection) == [0, 1, 2], "the owner itself goes on"


def test_a_directory_that_is_not_mounted_is_not_written_to(
    data_dir: Path, remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"remote.data.dir": str(remote)}
    # No segment is copied, so that there is no manifest whose absence would keep the second server from copying.
    with serving(data_dir, {**options, "remote.log.task-interval-duration": "1h"}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    remote.rename(tmp_path / "elsewhere")
    with serving(data_dir, options) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 3, 3)
        # Both have tried: segments, and what is not in segments yet.
        eventually(lambda: "copying to remote storage failed" in caplog.text)
        eventually(lambda: "backup failed" in caplog.text)
        assert not remote.exists()
        (tmp_path / "elsewhere").rename(remote)
        eventually(lambda: end_in_backup(remote) == 6, "the backup going on")


def test_readers_that_have_seen_more_than_the_backup_are_told(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 10)
    # A copy in another place is as good.
    older = tmp_path / "older"
    shutil.copytree(remote, older)
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 10, 5)
    with serving(new_dir, {"backup.restore-from": str(older)}) as (_, connection):
        assert ids(connection) == list(range(10))
        scanner = connection.get_table(EVENTS).new_scan().create_log_scanner()
        scanner.subscribe(0, 15)
        with pytest.raises(FlussError, match=r"restored from a backup of .* what was written later is lost"):
            eventually(lambda: scanner.poll(100))


def test_small_writes_make_short_chains_and_objects_go_when_no_point_needs_them(
    data_dir: Path, remote: Path, new_dir: Path
) -> None:
    options = {"remote.log.task-interval-duration": "0ms", "log.segment.file-size": "1mb", "backup.interval": "5ms"}
    with serving(data_dir, {**options, "remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 150)
    (chain,) = shipped(remote).values()
    assert chain.end_offset == 150  # type: ignore[attr-defined]
    # A piece that is not larger than what follows it is joined with it. So sizes fall by a write at least from piece to
    # piece, whenever the rounds come, and 17 pieces would be 17 + 16 + ... + 1 = 153 writes.
    assert len(chain.pieces) <= 16, "pieces are joined"  # type: ignore[attr-defined]
    assert len(list((remote / POINTS).iterdir())) == 3
    assert len(list((remote / "backup" / "tails").iterdir())) < 30
    shutil.rmtree(data_dir)
    with serving(new_dir, {**options, "backup.restore-from": str(remote)}) as (_, connection):
        assert ids(connection) == list(range(150))


def test_a_backup_is_verified_without_restoring_it(
    data_dir: Path, remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 10)
        eventually(lambda: len(list(remote.glob("log/fluss/events-*/0/*/*.log"))) > 3)
    with serving(data_dir, {"remote.data.dir": str(remote), "remote.log.task-interval-duration": "0ms"}):
        pass
    assert main(["--verify-backup", str(remote)]) == 0
    assert capsys.readouterr().out.startswith("complete: the backup of ")
    point = newest_point(store_at(remote))
    assert point is not None
    [entry] = remote_logs(remote / point.metadata.path)
    manifest = remote / str(entry.manifest_path)
    segment_id = json.loads(manifest.read_text())["remote_log_segments"][0]["segment_id"]
    [segment] = (remote / entry.directory / segment_id).glob("*.log")

    def damaged(path: Path, data: bytes | None) -> str:
        before = path.read_bytes()
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        assert main(["--verify-backup", "-D", f"remote.data.dir={remote}"]) == 1
        path.write_bytes(before)
        output = capsys.readouterr()
        assert output.out.startswith("NOT COMPLETE, ")
        return output.err

    assert "is missing" in damaged(segment, None)
    assert f"has 3 bytes, it should have {segment.stat().st_size}" in damaged(segment, b"abc")
    metadata = remote / point.metadata.path
    assert "missing" in damaged(metadata, None)
    assert "checksum" in damaged(metadata, metadata.read_bytes()[:-1] + b"!")
    assert "manifest" in damaged(manifest, b"{")
    last_id = json.loads(manifest.read_text())["remote_log_segments"][-1]["segment_id"]
    [writers] = (remote / entry.directory / last_id).glob("*.writer_snapshot")
    assert "writer" in damaged(writers, b"")
    for chain in shipped(remote).values():
        tail = remote / chain.pieces[0].path  # type: ignore[attr-defined]
        assert "checksum" in damaged(tail, b"!" + tail.read_bytes()[1:])
    assert main(["--verify-backup", str(remote)]) == 0
    assert main(["--verify-backup", str(tmp_path / "nothing")]) == 1
    assert "there is no backup in" in capsys.readouterr().err


def test_a_backup_of_several_places_is_verified_and_restored(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "second"
    places = {"remote.data.dirs": f"{remote},{second}"}
    paths = [fluss.TablePath("fluss", f"table{number}") for number in range(2)]
    with serving(data_dir, places) as (_, connection):
        for path in paths:
            create(connection, path)
            append(connection.get_table(path).new_append().create_writer(), 0, 6)
        eventually(lambda: any(entry.root == str(second) for entry in logs_in_backup(remote)))
    assert main(["--verify-backup", str(remote), "-D", f"remote.data.dirs={places['remote.data.dirs']}"]) == 0
    assert main(["--verify-backup", str(remote)]) == 1
    assert "is another place" in capsys.readouterr().err
    shutil.rmtree(data_dir)
    with serving(new_dir, {**places, "backup.restore-from": str(remote)}) as (_, connection):
        assert [ids(connection, path) for path in paths] == [list(range(6))] * 2


def test_a_damaged_backup_is_not_restored_and_leaves_the_server_alone_that_makes_it(
    data_dir: Path, remote: Path, new_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"remote.data.dir": str(remote)}
    with serving(data_dir, options) as (_, connection):
        create(connection)
        eventually(lambda: table_count_in_backup(remote) == 1)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    point = newest_point(store_at(remote))
    assert point is not None
    for path, text in ((point.metadata.path, "its checksum is wrong"), (point.path, "to use the backup before it")):
        before = (remote / path).read_bytes()
        (remote / path).write_bytes(b"{" * len(before))
        with pytest.raises(FlussError, match=text):
            embedded.start({**QUICK, "backup.restore-from": str(remote)}, data_dir=new_dir)
        if path != point.path:
            (remote / path).write_bytes(before)
    assert main(["--verify-backup", str(remote)]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("NOT COMPLETE: ")
    assert "move this object away" in output.err
    (remote / point.path).write_bytes(before)
    with serving(data_dir, options) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 3, 1)
        assert ids(connection) == [0, 1, 2, 3], "nobody has taken the directory over"


def test_a_server_starts_though_its_store_says_nothing(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"remote.data.dir": str(remote)}
    with serving(data_dir, options) as (_, connection):
        create(connection)
    is_back = threading.Event()

    def look_slowly(store: RemoteStore, own: Claim) -> None:
        is_back.wait(120)
        check_claim(store, own)

    monkeypatch.setattr(backup, "check_claim", look_slowly)
    monkeypatch.setattr(backup, "_FIRST_LOOK_TIMEOUT_S", 0.01)
    with serving(data_dir, options) as (_, connection):
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
        is_back.set()
        eventually(lambda: end_in_backup(remote) == 3, "the backup going on")


def test_a_log_that_cannot_be_restored_is_told_and_comes_when_it_can(
    data_dir: Path, remote: Path, new_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"remote.data.dir": str(remote), "remote.log.task-interval-duration": "0ms"}
    with serving(data_dir, options) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    [chain] = shipped(remote).values()
    tail = remote / chain.pieces[0].path  # type: ignore[attr-defined]
    # Somewhere else: what a server finds there that no backup names it removes.
    gone = tail.rename(tmp_path / "gone")
    with serving(new_dir, {**options, "backup.restore-from": str(remote)}) as (_, connection):
        eventually(lambda: connection.get_admin().get_cluster_health().status.name == "YELLOW")
        assert "cannot be restored now" in caplog.text
    gone.rename(tail)
    # It was stopped in order, and nobody asks for the log: it comes all the same.
    with serving(new_dir, options) as (_, connection):
        eventually(lambda: '"is_complete":true' in (new_dir / "restore.json").read_text())
        assert connection.get_admin().get_cluster_health().status.name == "GREEN"
        assert ids(connection) == [0, 1, 2]


def test_a_table_that_is_dropped_while_it_is_restored_leaves_nothing(
    data_dir: Path, remote: Path, new_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"remote.data.dir": str(remote), "remote.log.task-interval-duration": "0ms"}
    with serving(data_dir, options) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    is_making, is_dropped, is_made = threading.Event(), threading.Event(), threading.Event()

    def make_slowly(*arguments: object, **options: object) -> int:
        is_making.set()
        is_dropped.wait(60)
        try:
            return make_log(*arguments, **options)  # type: ignore[arg-type]
        finally:
            is_made.set()

    monkeypatch.setattr(restoration, "make_log", make_slowly)
    with serving(new_dir, {**options, "backup.restore-from": str(remote)}) as (_, connection):
        assert is_making.wait(60)
        connection.get_admin().drop_table(EVENTS)
        eventually(lambda: not list(new_dir.glob("fluss/events-*")))
        create(connection)
        is_dropped.set()
        assert is_made.wait(60)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 1)
        eventually(lambda: len(list(new_dir.glob("fluss/events-*"))) == 1, "nothing but the new table on the disk")
        assert ids(connection) == [0]
        eventually(lambda: '"is_complete":true' in (new_dir / "restore.json").read_text())


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Have a function of the backup fail once, as if the store were away for a moment; return what tells when."""
    act, failed = getattr(backup, name), []

    def act_or_fail(*arguments: object) -> object:
        if not failed:
            failed.append(name)
            raise FlussError("the store is away")
        return act(*arguments)

    monkeypatch.setattr(backup, name, act_or_fail)
    return failed


def test_metadata_that_no_point_has_named_are_shipped_again(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        eventually(lambda: table_count_in_backup(remote) == 1)
        failed = fail_once(monkeypatch, "put_point")
        create(connection, KEYED, primary_keys=["id"])
        eventually(lambda: failed)
        eventually(lambda: table_count_in_backup(remote) == 2, "the new table in the backup")


def test_logs_that_are_not_open_are_shipped_after_a_round_that_failed(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"remote.data.dir": str(remote), "remote.log.task-interval-duration": "0ms"}
    with serving(data_dir, {**options, "backup.interval": "0ms"}) as (_, connection):
        create(connection)
        append(connection.get_table(EVENTS).new_append().create_writer(), 0, 3)
    failed = fail_once(monkeypatch, "check_claim")
    with serving(data_dir, options):
        eventually(lambda: failed)
        eventually(lambda: end_in_backup(remote) == 3, "the log in the backup")


def test_a_table_that_is_dropped_while_it_is_shipped_keeps_no_other_waiting(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = fluss.TablePath("fluss", "gone")
    is_dropped = threading.Event()
    ship, shipped_tables = tails.ship_pack, []

    def ship_later(store: RemoteStore, files: Files, plans: Sequence[PlannedTail]) -> object:
        if len(plans) == 2 and not is_dropped.is_set():
            shipped_tables.append(len(plans))
            assert is_dropped.wait(60)
        return ship(store, files, plans)

    monkeypatch.setattr(backup, "ship_pack", ship_later)
    options = {"remote.data.dir": str(remote), "remote.log.task-interval-duration": "0ms"}
    with serving(data_dir, {**options, "backup.interval": "0ms"}) as (_, connection):
        for path in (EVENTS, gone):
            create(connection, path)
            append(connection.get_table(path).new_append().create_writer(), 0, 3)
    with serving(data_dir, options) as (_, connection):
        eventually(lambda: shipped_tables, "both logs on their way")
        connection.get_admin().drop_table(gone)
        eventually(lambda: not list(data_dir.glob("fluss/gone-*")), "the files removed")
        is_dropped.set()
        eventually(lambda: end_in_backup(remote) == 3, "the other log in the backup")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], "the round failed"


def test_a_backup_is_not_ahead_of_what_is_on_the_disk(
    data_dir: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With ``durability: os`` readers see more than what a loss of power leaves.
    ends: list[tuple[int, int]] = []
    plan, flush = tails.plan_tail, LogTablet.flush

    def plan_and_note(log: LogTablet, files: Files, chain: object, start: int, end: LogEnd, **options: bool) -> object:
        ends.append((end.offset_next, log.recovery_offset))
        return plan(log, files, chain, start, end, **options)  # type: ignore[arg-type]

    async def flush_while_others_write(log: LogTablet) -> None:
        await flush(log)
        seen = log.offset_high_watermark
        while len(ends) < 3 and log.offset_high_watermark == seen:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(backup, "plan_tail", plan_and_note)
    monkeypatch.setattr(LogTablet, "flush", flush_while_others_write)
    with serving(data_dir, {"remote.data.dir": str(remote)}) as (_, connection):
        create(connection)
        writer = connection.get_table(EVENTS).new_append().create_writer()
        eventually(lambda: append(writer, 0, 1) or len(ends) >= 3, "three rounds")
    assert all(shipped <= on_disk for shipped, on_disk in ends)


def test_how_often_and_how_much_is_backed_up_are_options(data_dir: Path, remote: Path, tmp_path: Path) -> None:
    with serving(data_dir, {"remote.data.dir": str(remote), "backup.interval": "0ms"}) as (_, connection):
        create(connection)
    assert not (remote / "backup").exists()
    with serving(data_dir, {"remote.data.dir": str(remote), "backup.points-kept": "5"}) as (_, connection):
        for number in range(8):
            create(connection, fluss.TablePath("fluss", f"table{number}"))
            count = number + 1
            eventually(lambda count=count: table_count_in_backup(remote) == count + 1)  # type: ignore[misc]
    assert len(list((remote / POINTS).iterdir())) == 5
    with pytest.raises(FlussError, match="not below 2"):
        embedded.start({"backup.points-kept": "1"}, data_dir=tmp_path / "other")


def table_count_in_backup(remote: Path) -> int:
    try:
        point = newest_point(store_at(remote))
        return 0 if point is None else table_count(remote / point.metadata.path)
    except (FlussError, OSError):
        return 0


def test_how_old_the_backup_is_can_be_seen(data_dir: Path, remote: Path) -> None:
    port = free_port()
    options = {"remote.data.dir": str(remote), "metrics.reporter.prometheus.port": str(port)}
    with serving(data_dir, options) as (_, connection):
        create(connection)
        eventually(lambda: newest_point(store_at(remote)))

        def shown() -> dict[str, float] | None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
            values = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("fluss_backup_")}
            return values if values["fluss_backup_points_total"] >= 1 else None

        values = eventually(shown)
        assert values is not None
        assert 0 <= values["fluss_backup_age_seconds"] < 120
        assert values["fluss_backup_fenced"] == values["fluss_backup_failed_buckets"] == 0
        assert connection.get_admin().get_cluster_health().status.name == "GREEN"
