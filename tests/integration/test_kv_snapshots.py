"""Rows by key are brought to remote storage as snapshots that others can read, and that a store can begin with.
Shown with a real server that makes them all the time, and with RocksDB as the judge of their files."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.client.bulk import rows_at
from fluss.client.scan.fetch import snapshot_fetcher
from fluss.client.scan.fetch.kv_files import KvFileSession
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.storage.kv.rocks import open_read_only
from fluss.testing.waiting import eventually
from tests.integration.remote_storage import ask
from tests.ports import free_port

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
KEYED = fluss.TablePath("fluss", "keyed")
PATH = pb.PbTablePath(database_name="fluss", table_name="keyed")
# Without backups, for which superfluous snapshots would wait.
ALWAYS = {"kv.snapshot.interval": "30ms", "durability": "os", "backup.interval": "0s"}
NEVER = {"kv.snapshot.interval": "0s", "durability": "os"}
# Where the metrics of a running server are, by its port.
METRICS_PORTS: dict[int, int] = {}
OWN_STORES = {"kv.shared-store.max-size": "0b"}


@contextmanager
def serving(
    tmp_path: Path, options: dict[str, str]
) -> Iterator[tuple[embedded.EmbeddedServer, blocking.FlussConnection]]:
    metrics_port = free_port()
    given = {
        "remote.data.dir": str(tmp_path / "remote"),
        "remote.log.task-interval-duration": "20ms",
        "metrics.reporter.prometheus.port": metrics_port,
        **options,
    }
    with embedded.start(given, data_dir=tmp_path / "data") as server:
        METRICS_PORTS[server.port] = metrics_port
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            yield server, connection


def create(connection: blocking.FlussConnection, **options: Any) -> None:
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=1, **options)
    connection.get_admin().create_table(KEYED, descriptor)


def upsert(connection: blocking.FlussConnection, first: int, count: int, text: str = "row") -> None:
    writer = connection.get_table(KEYED).new_upsert().create_writer()
    for number in range(first, first + count):
        writer.upsert({"id": number, "text": f"{text} {number}"})
    writer.flush()


def rows(connection: blocking.FlussConnection) -> dict[int, str]:
    table = connection.get_table(KEYED).new_scan().to_arrow()
    return dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


def latest(server: embedded.EmbeddedServer) -> pb.PbKvSnapshot:
    """Return the newest snapshot of the only bucket."""
    (found,) = ask(
        server, apis.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=PATH)
    ).latest_snapshots
    return found


def table_id(server: embedded.EmbeddedServer) -> int:
    return ask(server, apis.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=PATH)).table_id


def wait_for_snapshot(server: embedded.EmbeddedServer, offset: int) -> pb.PbKvSnapshot:
    eventually(lambda: latest(server).log_offset == offset)
    return latest(server)


def files_of(server: embedded.EmbeddedServer, snapshot_id: int) -> dict[str, str]:
    """Return where the files of a snapshot are, by the names that RocksDB gave them."""
    request = pb.GetKvSnapshotMetadataRequest(table_id=table_id(server), bucket_id=0, snapshot_id=snapshot_id)
    answer = ask(server, apis.GET_KV_SNAPSHOT_METADATA, request)
    return {file.local_file_name: file.remote_path for file in answer.snapshot_files}


def active(server: embedded.EmbeddedServer) -> list[int]:
    answer = ask(server, apis.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=table_id(server)))
    return [snapshot.snapshot_id for snapshot in answer.active_snapshots]


def keys_in(files: dict[str, str], directory: Path) -> list[bytes]:
    """Have RocksDB read a snapshot, and return its keys."""
    directory.mkdir()
    for name, path in files.items():
        shutil.copy(path, directory / name)
    database = open_read_only(directory)
    try:
        return list(database.keys())
    finally:
        database.close()


def objects(remote: Path) -> set[str]:
    """List what there is of snapshots; removed meanwhile or not."""
    found: set[str] = set()
    for path, _, names in os.walk(remote / "kv"):
        found |= {str(Path(path, name)) for name in names}
    return found


def lose_stores(tmp_path: Path) -> None:
    """Remove everything that the disk has of rows by key."""
    shutil.rmtree(tmp_path / "data" / "kv.shared", ignore_errors=True)
    for path in (tmp_path / "data" / "fluss").glob("keyed-*/kv-*"):
        shutil.rmtree(path)


def value(server: embedded.EmbeddedServer, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORTS[server.port]}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize(
    "options", [pytest.param({}, id="shared"), pytest.param(OWN_STORES, id="own", marks=pytest.mark.slow)]
)
def test_a_snapshot_has_names_and_contents_of_apache_fluss(tmp_path: Path, options: dict[str, str]) -> None:
    with serving(tmp_path, {**ALWAYS, **options}) as (server, connection):
        create(connection)
        assert latest(server) == pb.PbKvSnapshot(bucket_id=0)
        upsert(connection, 0, 100)
        snapshot = wait_for_snapshot(server, 100)
        files = files_of(server, snapshot.snapshot_id)
        bucket = tmp_path / "remote" / "kv" / "fluss" / f"keyed-{table_id(server)}" / "0"
        description = json.loads((bucket / f"snap-{snapshot.snapshot_id}" / "_METADATA").read_bytes())
        handle = description["kv_snapshot_handle"]
        assert list(description) == [
            *("version", "table_id", "bucket_id", "snapshot_id", "snapshot_location", "kv_snapshot_handle"),
            *("log_offset", "row_count"),
        ]
        assert (description["version"], description["log_offset"], description["row_count"]) == (1, 100, 100)
        assert description["snapshot_location"] == str(bucket / f"snap-{snapshot.snapshot_id}")
        for kind, directory in (("shared", bucket / "shared"), ("private", bucket / f"snap-{snapshot.snapshot_id}")):
            for file in handle[f"{kind}_file_handles"]:
                assert Path(file["kv_file_handle"]["path"]).parent == directory
                assert Path(file["kv_file_handle"]["path"]).stat().st_size == file["kv_file_handle"]["size"]
                assert file["local_path"].endswith(".sst") == (kind == "shared")
                assert files[file["local_path"]] == file["kv_file_handle"]["path"]
        assert len(files) == len(handle["shared_file_handles"]) + len(handle["private_file_handles"])
        keys = keys_in(files, tmp_path / "read")
        assert len(keys) == 100
        assert all(keys), "the state of the store is no row"


def test_sst_files_are_shared_and_superfluous_ones_go(tmp_path: Path) -> None:
    with serving(tmp_path, {**ALWAYS, **OWN_STORES}) as (server, connection):
        create(connection)
        upsert(connection, 0, 20_000)
        first = wait_for_snapshot(server, 20_000)
        before = files_of(server, first.snapshot_id)
        upsert(connection, 20_000, 10)
        second = wait_for_snapshot(server, 20_010)
        after = files_of(server, second.snapshot_id)
        kept = {path for path in before.values() if "/shared/" in path} & set(after.values())
        assert kept, "what has not changed is not uploaded again"
        sizes = [Path(path).stat().st_size for path in kept]
        incremental = json.loads(
            next(
                Path(path) for path in objects(tmp_path / "remote") if f"snap-{second.snapshot_id}/_META" in path
            ).read_bytes()
        )["kv_snapshot_handle"]["snapshot_incremental_size"]
        assert incremental < sum(sizes) / 4
        for number in range(5):
            upsert(connection, number, 1, "new")
            wait_for_snapshot(server, 20_012 + 2 * number)

        def is_tidy() -> bool:
            ids = active(server)
            named: set[str] = set()
            for snapshot_id in ids:
                # One that was there a moment ago may be gone.
                with suppress(FlussError):
                    named |= set(files_of(server, snapshot_id).values())
            found = objects(tmp_path / "remote")
            return len(ids) == 2 and named == {path for path in found if not path.endswith("_METADATA")}

        eventually(is_tidy)
        assert value(server, "fluss_kv_snapshots") >= 2
        assert value(server, "fluss_kv_snapshot_failed_buckets") == 0
        connection.get_admin().drop_table(KEYED)
        eventually(lambda: not objects(tmp_path / "remote"))


@pytest.mark.parametrize(
    "options", [pytest.param({}, id="shared", marks=pytest.mark.slow), pytest.param(OWN_STORES, id="own")]
)
def test_a_lost_store_begins_with_its_snapshot(tmp_path: Path, options: dict[str, str]) -> None:
    with serving(tmp_path, {**ALWAYS, **options}) as (server, connection):
        create(connection)
        upsert(connection, 0, 5_000)
        wait_for_snapshot(server, 5_000)
    with serving(tmp_path, {**NEVER, **options}) as (server, connection):
        upsert(connection, 0, 10, "changed")
        expected = rows(connection)
        assert value(server, "fluss_stores_restored_total") == 0
    lose_stores(tmp_path)
    with serving(tmp_path, {**NEVER, **options}) as (server, connection):
        assert rows(connection) == expected
        assert connection.get_admin().get_table_stats(KEYED).row_count == 5_000
        assert value(server, "fluss_stores_restored_total") == 1
        log_bytes = sum(path.stat().st_size for path in (tmp_path / "data").rglob("log-0/*.log"))
        assert value(server, "fluss_store_replayed_bytes_total") < log_bytes / 4, "only what came after the snapshot"
        upsert(connection, 5_000, 5)
        assert len(rows(connection)) == 5_005
    with serving(tmp_path, {**ALWAYS, **options}) as (server, connection):
        # A store that came from a snapshot has further ones.
        wait_for_snapshot(server, 5_025)


def test_rows_at_an_offset_are_read_from_a_snapshot_by_those_who_prefer_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    class Counted(KvFileSession):
        async def open(self, *, bytes_max: int, row_limit: int | None = None) -> memoryview:
            found = await super().open(bytes_max=bytes_max, row_limit=row_limit)
            opened.append(self.log_offset)
            return found

    monkeypatch.setattr(snapshot_fetcher, "KvFileSession", Counted)
    with serving(tmp_path, NEVER) as (server, _), preferring_files(server) as connection:
        create(connection)
        upsert(connection, 0, 100)
        assert rows_before(connection, 100) == {number: f"row {number}" for number in range(100)}
        assert not opened, "without a snapshot the server is asked"
    with serving(tmp_path, ALWAYS) as (server, _), preferring_files(server) as connection:
        wait_for_snapshot(server, 100)
    with serving(tmp_path, NEVER) as (server, _), preferring_files(server) as connection:
        upsert(connection, 0, 10, "new")
        expected = rows(connection)
        assert rows_before(connection, 120) == expected
        assert rows_before(connection, 100) == {number: f"row {number}" for number in range(100)}
        assert rows_before(connection, 50) == {number: f"row {number}" for number in range(50)}
    assert opened == [100] * 3


@contextmanager
def preferring_files(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    settings = {"bootstrap.servers": server.bootstrap_servers, "scanner.kv.read-preference": "remote_first"}
    with blocking.FlussConnection.create(fluss.Config(settings)) as connection:
        yield connection


def rows_before(connection: blocking.FlussConnection, offset: int) -> dict[int, str]:
    table = connection.get_table(KEYED)._inner
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    found = [row for batch in rows_at(table, bucket, offset) for row in batch.to_pylist()]
    return {row["id"]: row["text"] for row in found}


@pytest.mark.slow
def test_a_damaged_snapshot_is_not_used(tmp_path: Path) -> None:
    with serving(tmp_path, ALWAYS) as (server, connection):
        create(connection)
        upsert(connection, 0, 1_000)
        snapshot = wait_for_snapshot(server, 1_000)
        path = next(
            Path(path) for name, path in files_of(server, snapshot.snapshot_id).items() if name.endswith(".sst")
        )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    lose_stores(tmp_path)
    with serving(tmp_path, NEVER) as (server, connection):
        assert len(rows(connection)) == 1_000
        assert value(server, "fluss_stores_restored_total") == 0


def test_a_lease_keeps_a_snapshot(tmp_path: Path) -> None:
    options = {**ALWAYS, "kv.snapshot.num-retained": "1"}
    with serving(tmp_path, options) as (server, connection):
        create(connection)
        upsert(connection, 0, 10)
        leased = wait_for_snapshot(server, 10).snapshot_id

        def wanted(snapshot_id: int) -> pb.AcquireKvSnapshotLeaseRequest:
            request = pb.AcquireKvSnapshotLeaseRequest(lease_id="mine", lease_duration_ms=3_600_000)
            table = request.snapshots_to_lease.add(table_id=table_id(server))
            table.bucket_snapshots.add(bucket_id=0, snapshot_id=snapshot_id)
            return request

        answer = ask(server, apis.ACQUIRE_KV_SNAPSHOT_LEASE, wanted(leased))
        assert not answer.unavailable_snapshots
        unknown = ask(server, apis.ACQUIRE_KV_SNAPSHOT_LEASE, wanted(99)).unavailable_snapshots
        assert unknown[0].bucket_snapshots[0].snapshot_id == 99
        for number in range(4):
            upsert(connection, 10 + number, 1)
            wait_for_snapshot(server, 11 + number)
        assert leased in active(server)
        assert all(Path(path).exists() for path in files_of(server, leased).values())
    with serving(tmp_path, options) as (server, connection):
        upsert(connection, 20, 1)
        wait_for_snapshot(server, 15)
        assert leased in active(server), "leases survive a restart"
        bucket = pb.PbTableBucket(table_id=table_id(server), bucket_id=0)
        ask(
            server,
            apis.RELEASE_KV_SNAPSHOT_LEASE,
            pb.ReleaseKvSnapshotLeaseRequest(lease_id="mine", buckets_to_release=[bucket]),
        )
        upsert(connection, 21, 1)
        eventually(lambda: active(server) == [latest(server).snapshot_id])
        eventually(lambda: not any(f"/snap-{leased}/" in path for path in objects(tmp_path / "remote")))
        with pytest.raises(FlussError) as caught:
            files_of(server, leased)
        assert caught.value.error_code == ErrorCode.KV_SNAPSHOT_NOT_EXIST
        ask(server, apis.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id="unknown"))
