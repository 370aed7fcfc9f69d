"""The Java client reads the snapshots of rows by key that our server makes: it opens their files with its own RocksDB.
Shown with stores that share a database, with large ones, and with files from before there was remote storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss import Config, OffsetSpec, Schema, TableDescriptor, TablePath, blocking, embedded
from fluss.testing.waiting import eventually
from tests.java.jars import JavaUnavailableError, program_class_path
from tests.java.peer import JavaPeer

PATH = TablePath("fluss", "keyed")
SCHEMA = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
ROWS = 20_000
BUCKETS = 2


@pytest.mark.parametrize("kind", ["shared", "own", "from before"])
def test_the_java_client_reads_our_snapshots(tmp_path: Path, kind: str) -> None:
    try:
        program_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    options = {"durability": "os", **({} if kind == "shared" else {"kv.shared-store.max-size": "0b"})}
    if kind == "from before":
        with embedded.start(options, data_dir=tmp_path / "data") as server, connected(server) as connection:
            write(connection)
    remote = {"remote.data.dir": str(tmp_path / "remote"), "kv.snapshot.interval": "200ms"}
    with (
        embedded.start({**options, **remote}, data_dir=tmp_path / "data") as server,
        connected(server) as connection,
        JavaPeer(server.bootstrap_servers) as java,
    ):
        if kind != "from before":
            write(connection)
        offsets = connection.get_admin().list_offsets(PATH, list(range(BUCKETS)), OffsetSpec.latest())

        def read() -> dict[int, tuple[int, list[list[Any]]]]:
            return java.read_snapshots("fluss.keyed")

        eventually(lambda: {bucket: offset for bucket, (offset, _) in read().items()} == offsets)
        rows = [tuple(row) for _, found in read().values() for row in found]
        assert sorted(rows) == [(number, f"row {number}") for number in range(1, ROWS)]


def connected(server: embedded.EmbeddedServer) -> blocking.FlussConnection:
    return blocking.FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers}))


def write(connection: blocking.FlussConnection) -> None:
    """Write rows, all but the first of which stay."""
    connection.get_admin().create_table(PATH, TableDescriptor(SCHEMA, bucket_count=BUCKETS))
    with connection.get_table(PATH).new_upsert().create_writer() as writer:
        for number in range(ROWS):
            writer.upsert({"id": number, "name": f"row {number}"})
        writer.delete({"id": 0})
