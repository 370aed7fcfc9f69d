"""A server that is killed and comes back under a running stream costs time, and nothing else.
Shown with a stream from a log table to another one, and to sums by key, while the server is killed again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from fluss import blocking
from fluss.errors import FlussError
from fluss.spark import FlussSpark
from fluss.testing.cluster import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = 4
GROUPS = 7
SOURCE, COPY, SUMS = "chain.numbers", "chain.copies", "chain.sums"


@pytest.fixture
def mortal_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server") as running:
        yield running


class Feeder(threading.Thread):
    """Appends numbers to the source, in batches, until it is told to stop; knows how many were acknowledged."""

    def __init__(self, table: blocking.FlussTable) -> None:
        super().__init__(daemon=True)
        self._table = table
        self._is_stopping = threading.Event()
        self.count = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            writer = self._table.new_append().create_writer()
            while not self._is_stopping.is_set():
                numbers = pa.array(range(self.count, self.count + 500))
                writer.write_arrow_batch(pa.record_batch([numbers], names=["n"])).wait()
                self.count += 500
                time.sleep(0.02)
        except Exception as error:
            self.failure = error

    def stop(self) -> int:
        self._is_stopping.set()
        self.join()
        assert self.failure is None, self.failure
        return self.count


def start_copy(fs: FlussSpark, checkpoint: Path) -> StreamingQuery:
    return fs.write_stream(fs.read_stream(SOURCE), COPY, checkpoint=str(checkpoint / "copy"))


def start_sums(fs: FlussSpark, checkpoint: Path) -> StreamingQuery:
    sums = (
        fs.read_stream(SOURCE)
        .groupBy((f.col("n") % GROUPS).alias("g"))
        .agg(f.sum("n").alias("s"), f.count("*").alias("c"))
    )
    return fs.write_stream(sums, SUMS, checkpoint=str(checkpoint / "sums"), output_mode="update")


def test_nothing_is_lost_or_doubled_when_the_server_is_killed_under_streams(
    spark: SparkSession, mortal_server: ServerProcess, tmp_path: Path
) -> None:
    fs = FlussSpark(spark, bootstrap_servers=f"127.0.0.1:{mortal_server.port}")
    fs.sql("CREATE DATABASE fluss.chain")
    for name in (SOURCE, COPY):
        fs.sql(f"CREATE TABLE fluss.{name} (n BIGINT) TBLPROPERTIES ('bucket.num' = '2')")
    fs.sql(f"CREATE TABLE fluss.{SUMS} (g BIGINT NOT NULL, s BIGINT, c BIGINT, PRIMARY KEY (g) NOT ENFORCED)")
    starts = {"copy": start_copy, "sums": start_sums}
    queries = {name: start(fs, tmp_path) for name, start in starts.items()}
    config = blocking.Config({"bootstrap.servers": f"127.0.0.1:{mortal_server.port}"})
    with blocking.FlussConnection.create(config) as connection:
        feeder = Feeder(connection.get_table(blocking.TablePath(*SOURCE.split("."))))
        feeder.start()
        failures = []
        for number in range(KILLS):
            time.sleep(2.5)
            mortal_server.kill()
            time.sleep(0.3 + 0.4 * number)
            mortal_server.restart()
        count = feeder.stop()
        for name, start in starts.items():
            while True:
                try:
                    queries[name].processAllAvailable()
                    break
                except Exception as error:
                    # It may fail, if it says why, and goes on where it was.
                    failures.append(str(error))
                    queries[name] = start(fs, tmp_path)
            queries[name].stop()
        assert all("Fluss" in failure or "fluss" in failure for failure in failures), failures
        copies = connection.get_table(blocking.TablePath(*COPY.split("."))).to_arrow()
        assert sorted(copies["n"].to_pylist()) == list(range(count))
        found = connection.get_table(blocking.TablePath(*SUMS.split("."))).to_arrow().to_pylist()
    expected = {g: (sum(range(g, count, GROUPS)), len(range(g, count, GROUPS))) for g in range(GROUPS)}
    assert {row["g"]: (row["s"], row["c"]) for row in found} == expected


def test_a_query_on_a_server_that_stays_away_ends_with_a_sentence(
    spark: SparkSession, mortal_server: ServerProcess, tmp_path: Path
) -> None:
    fs = FlussSpark(
        spark, bootstrap_servers=f"127.0.0.1:{mortal_server.port}", **{"request-timeout": 3000, "connect-timeout": 2000}
    )
    fs.sql("CREATE DATABASE fluss.chain")
    fs.sql(f"CREATE TABLE fluss.{SOURCE} (n BIGINT)")
    query = fs.read_stream(SOURCE).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    query.processAllAvailable()
    mortal_server.kill()
    with pytest.raises(Exception, match=f"127.0.0.1:{mortal_server.port}"):
        query.awaitTermination(600)
    assert not query.isActive
    mortal_server.restart()
    with pytest.raises(FlussError, match="does not exist"):
        fs.catalog.table_info("chain.others")
