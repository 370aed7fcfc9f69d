"""Remote storage works with an object store behind HTTP, also with one that fails, hangs and cuts off.
Shown with a server that speaks S3, and a proxy before it; the same with a directory is in test_remote_log.py."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.storage.remote.file_systems import FileSystemOptions, open_objects
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore, RemoteTraffic
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually
from tests.integration.remote_storage import ask
from tests.s3_server import KEYS, FaultyProxy, faulty_proxy, new_bucket, s3_server

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
EVENTS = fluss.TablePath("fluss", "events")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> str:
    return new_bucket(endpoint)


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(endpoint) as running:
        yield running


def store_at(endpoint: str, bucket: str, name: str, *, request_timeout_s: float = 120) -> RemoteStore:
    options = FileSystemOptions({**KEYS, "s3.endpoint": endpoint}, request_timeout_s=request_timeout_s)
    return RemoteStore(open_objects(f"s3://{bucket}/{name}", options, OsFiles()), RemoteTraffic())


def test_objects_small_and_large_are_written_read_listed_and_removed(
    endpoint: str, bucket: str, tmp_path: Path
) -> None:
    store = store_at(endpoint, bucket, "plain")
    store.put("a/small", b"hello")
    data = random.Random(5).randbytes(CHUNK_BYTES + 1000)
    (tmp_path / "large").write_bytes(data)
    store.put_file("a/b/large", OsFiles(), tmp_path / "large", len(data))
    assert bytes(store.get("a/small")) == b"hello"
    assert bytes(store.get("a/b/large")) == data
    assert bytes(store.read("a/b/large", CHUNK_BYTES - 10, 20)) == data[CHUNK_BYTES - 10 : CHUNK_BYTES + 10]
    assert sorted(store.names("a")) == ["b", "small"]
    assert store.names("nothing") == []
    with pytest.raises(FileNotFoundError):
        store.get("a/none")
    store.remove("a/none")
    store.remove_all("a")
    assert store.names("a") == []


def test_what_fails_for_a_while_is_tried_again(proxy: FaultyProxy, bucket: str) -> None:
    store = store_at(proxy.endpoint, bucket, "faults", request_timeout_s=2)
    proxy.methods = "PUT POST"
    proxy.faults = [500, "close", "hang"]
    store.put("object", b"x" * 1000)
    assert not proxy.faults
    proxy.methods = "GET"
    proxy.faults = [503, "truncate"]
    assert bytes(store.get("object")) == b"x" * 1000
    assert not proxy.faults


def test_what_is_refused_is_said_at_once_and_what_stays_broken_after_some_attempts(
    proxy: FaultyProxy, bucket: str
) -> None:
    store = store_at(proxy.endpoint, bucket, "refused")
    proxy.faults = [403]
    with pytest.raises(FlussError, match="check that remote storage can be reached") as refused:
        store.put("object", b"x")
    assert "testing" not in refused.value.message
    assert proxy.request_count <= 2
    proxy.faults = [500] * 100
    with pytest.raises(FlussError, match="after 4 attempts"):
        store.put("object", b"x")
    proxy.faults = []
    with pytest.raises(FlussError, match=r"NO_SUCH_BUCKET|does not exist"):
        store_at(proxy.endpoint, "there-is-none", "x").put("object", b"x")


def test_a_server_copies_its_logs_through_failures_and_gives_clients_short_lived_credentials(
    proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    options = {
        **KEYS,
        "remote.data.dir": f"s3://{bucket}/server",
        "s3.endpoint": proxy.endpoint,
        "log.segment.file-size": "120b",
        "remote.log.task-interval-duration": "100ms",
        "durability": "os",
    }
    proxy.methods = "PUT POST"
    proxy.faults = [500, "close", 403, 503]
    with embedded.start(options, data_dir=tmp_path / "data") as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
            connection.get_admin().create_table(EVENTS, descriptor)
            writer = connection.get_table(EVENTS).new_append().create_writer()
            for number in range(4):
                writer.append({"id": number, "text": f"row {number}"})
                writer.flush()
            eventually(lambda: len(list(tmp_path.glob("data/fluss/events-*/log-0/*.log"))) <= 2, timeout_s=600)
            table_id = connection.get_admin().get_table_info(EVENTS).table_id
            bucket_request = pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20)
            table = pb.PbFetchLogReqForTable(
                table_id=table_id, projection_pushdown_enabled=False, buckets_req=[bucket_request]
            )
            fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20, tables_req=[table])
            info = ask(server, apis.FETCH_LOG, fetch).tables[0].buckets[0].remote_log_fetch_info
            assert info.remote_log_tablet_dir == f"s3://{bucket}/server/log/fluss/events-{table_id}/0"
            token = ask(server, apis.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())
            assert token.schema == "s3"
            assert b"security_token" in token.token
            assert token.expiration_time > 0


def test_snapshots_of_rows_by_key_go_to_an_object_store_and_come_back_through_failures(
    proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    keyed = fluss.TablePath("fluss", "keyed")
    options = {
        **KEYS,
        "remote.data.dir": f"s3://{bucket}/keyed",
        "s3.endpoint": proxy.endpoint,
        "kv.snapshot.interval": "200ms",
        "kv.shared-store.max-size": "0b",
        "durability": "os",
    }
    question = pb.GetLatestKvSnapshotsRequest(
        table_path=pb.PbTablePath(database_name="fluss", table_name=keyed.table_name)
    )

    def rows(server: embedded.EmbeddedServer) -> dict[int, str]:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            found = connection.get_table(keyed).new_scan().to_arrow()
            return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))

    proxy.methods = "PUT POST"
    proxy.faults = [500, "close", 403, 503]
    with embedded.start(options, data_dir=tmp_path / "data") as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=1)
            connection.get_admin().create_table(keyed, descriptor)
            with connection.get_table(keyed).new_upsert().create_writer() as writer:
                for number in range(500):
                    writer.upsert({"id": number, "text": f"row {number}"})
        eventually(lambda: ask(server, apis.GET_LATEST_KV_SNAPSHOTS, question).latest_snapshots[0].log_offset == 500)
        expected = rows(server)
    assert len(expected) == 500
    for path in (tmp_path / "data" / "fluss").glob("keyed-*/kv-*"):
        shutil.rmtree(path)
    proxy.methods = "GET"
    proxy.faults = [503, "truncate", "close"]
    with embedded.start(options, data_dir=tmp_path / "data") as server:
        assert rows(server) == expected
    assert not proxy.faults
