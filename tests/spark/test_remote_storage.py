"""Spark reads tables whose log is mostly in remote storage: its tasks read the segments there, and the rest from the
server. Shown with a directory, by batches and a stream, and with files that are gone, which a task then names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fluss import blocking
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

pytestmark = pytest.mark.slow

PATH = blocking.TablePath("fluss", "readings")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
OPTIONS = (
    "durability=os",
    "log.segment.file-size=1kb",
    "remote.log.task-interval-duration=50ms",
    "backup.interval=0ms",
)
BATCHES, BATCH_ROWS = 40, 100


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def tiered(tmp_path: Path, remote: Path) -> Iterator[ServerProcess]:
    """A server with a table of two buckets, of which the newest segments are on its disk and no others."""
    arguments = [part for option in (*OPTIONS, f"remote.data.dir={remote}") for part in ("-D", option)]
    with ServerProcess(tmp_path / "data", *arguments) as server:
        config = blocking.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            properties = {"table.log.tiered.local-segments": "1"}
            descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA), bucket_count=2, properties=properties)
            connection.get_admin().create_table(PATH, descriptor)
            writer = connection.get_table(PATH).new_append().create_writer()
            for first in range(0, BATCHES * BATCH_ROWS, BATCH_ROWS):
                rows = [{"id": number, "text": f"row {number}"} for number in range(first, first + BATCH_ROWS)]
                writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                writer.flush()
        eventually(lambda: len(list((tmp_path / "data").glob("fluss/readings-*/log-*/*.log"))) == 2)
        assert len(list(remote.glob("log/fluss/readings-*/*/*/*.log"))) > 10
        yield server


def test_tasks_read_segments_where_they_are(
    spark: SparkSession, tiered: ServerProcess, remote: Path, tmp_path: Path
) -> None:
    def load() -> DataFrame:
        reader = spark.read.format("fluss").option("bootstrap.servers", tiered.bootstrap_servers)
        return reader.option("table", str(PATH)).load()

    everything = list(range(BATCHES * BATCH_ROWS))
    assert sorted(row.id for row in load().select("id").collect()) == everything
    assert load().where("id >= 500 and id < 600").count() == 100
    reader = spark.readStream.format("fluss").option("bootstrap.servers", tiered.bootstrap_servers)
    stream = reader.option("table", str(PATH)).option("scan.startup.mode", "full").load()
    query = stream.writeStream.format("memory").queryName("readings").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert sorted(row.id for row in spark.sql("SELECT id FROM readings").collect()) == everything
    remote.rename(remote.with_name("elsewhere"))
    with pytest.raises(Exception, match="Failed to download remote log segment"):
        load().select("id").collect()
