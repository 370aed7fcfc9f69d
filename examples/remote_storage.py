"""A log that is larger than what its server keeps on the disk: the old part lies elsewhere, and is read as ever."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow as pa

from fluss import blocking, embedded

PATH = blocking.TablePath("fluss", "readings")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.float64())])
ROWS_PER_BATCH = 1000
BATCHES = 12

with tempfile.TemporaryDirectory() as name:
    directory = Path(name)
    options = {
        # On a real server: s3://bucket/path and the like; see docs/operations/remote-storage.md.
        "remote.data.dir": str(directory / "remote"),
        # A real server closes a segment when it has a gigabyte, and copies once a minute.
        "log.segment.file-size": "8 kb",
        "remote.log.task-interval-duration": "50 ms",
        # Copies of a dropped table go when no backup needs them any more.
        "backup.interval": "50 ms",
    }
    with embedded.start(options, data_dir=directory / "data") as server:
        config = blocking.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            descriptor = blocking.TableDescriptor(
                blocking.Schema(SCHEMA),
                bucket_count=1,
                properties={
                    "table.log.ttl": "365 d",  # how long rows can be read
                    "table.log.tiered.local-segments": "1",  # how many segments stay on the disk
                },
            )
            connection.get_admin().create_table(PATH, descriptor)
            table = connection.get_table(PATH)
            writer = table.new_append().create_writer()
            for first in range(0, BATCHES * ROWS_PER_BATCH, ROWS_PER_BATCH):
                ids = range(first, first + ROWS_PER_BATCH)
                writer.write_arrow(pa.table({"id": ids, "value": [id * 0.5 for id in ids]}, schema=SCHEMA))
                writer.flush()

            # Wait until the server has copied what is complete, and let go of it.
            while len(list(directory.glob("data/fluss/readings-*/log-0/*.log"))) > 1:
                time.sleep(0.05)
            copies = list(directory.glob("remote/log/fluss/readings-*/0/*/*.log"))
            print(f"{len(copies)} segments are in remote storage, 1 is on the disk")
            assert len(copies) > 1

            # Readers do not see where rows are.
            found = table.new_scan().to_arrow()
            assert found["id"].to_pylist() == list(range(BATCHES * ROWS_PER_BATCH))
            print(f"read {found.num_rows} rows, from the first to the last")

            connection.get_admin().drop_table(PATH)
            while any(directory.glob("remote/log/fluss/readings-*")):
                time.sleep(0.05)
            print("the table is dropped, and its copies with it")
