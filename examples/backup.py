"""A server and its disk are gone, and another one takes its place: from a directory, or from s3://bucket/path."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa

from fluss import blocking, embedded

PATH = blocking.TablePath("fluss", "orders")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("item", pa.string())])

with tempfile.TemporaryDirectory() as name:
    directory = Path(name)
    remote = directory / "remote"

    # Every 10 seconds, or as often as backup.interval says, what has changed is shipped.
    with embedded.start({"remote.data.dir": str(remote)}, data_dir=directory / "data") as server:
        config = blocking.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            schema = blocking.Schema(SCHEMA, primary_keys=["id"])
            connection.get_admin().create_table(PATH, blocking.TableDescriptor(schema, bucket_count=1))
            writer = connection.get_table(PATH).new_upsert().create_writer()
            for number in range(100):
                writer.upsert({"id": number % 10, "item": f"item {number}"})
            writer.flush()
    # A server that is stopped ships what is left; one that is killed loses at most what came after its last round.
    shutil.rmtree(directory / "data")
    print("the server is gone, and its disk with it")

    with embedded.start({"backup.restore-from": str(remote)}, data_dir=directory / "new") as server:
        config = blocking.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            rows = connection.get_table(PATH).new_scan().to_arrow().sort_by("id").to_pylist()
            assert [row["item"] for row in rows] == [f"item {number}" for number in range(90, 100)]
            print(f"another one has its {len(rows)} rows, and takes new ones")
            writer = connection.get_table(PATH).new_upsert().create_writer()
            writer.upsert({"id": 100, "item": "a new one"})
            writer.flush()
