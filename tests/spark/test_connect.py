"""Reads, writes and streams work in a session of Spark Connect.
Shown with a server of Spark Connect that a program starts for itself; it needs what ``pyspark[connect]`` installs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from fluss import blocking

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from fluss.spark import FlussSpark

servers, database, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
print(type(spark).__module__)
fs = FlussSpark(spark, bootstrap_servers=servers)
log, keyed, counts = (f"{database}.{name}" for name in ("log", "keyed", "counts"))
fs.catalog.create_table(log, "id BIGINT, name STRING", bucket_count=2)
fs.catalog.create_table(keyed, "id BIGINT, name STRING", primary_keys=["id"], bucket_count=2)
fs.catalog.create_table(counts, "name STRING, n BIGINT", primary_keys=["name"], bucket_count=1)
fs.write(spark.sql("SELECT id, concat('n', id % 3) AS name FROM range(100)"), log)
print("read", fs.read(log).count(), fs.read(log, columns=["id"], filter="id < 5").count())
fs.upsert(spark.sql("SELECT id, 'old' AS name FROM range(10)"), keyed)
fs.delete(spark.sql("SELECT 1L AS id"), keyed)
print("keyed", fs.read(keyed).count())
query = fs.write_stream(fs.read_stream(log), keyed, checkpoint=f"{checkpoint}/a", trigger="available-now")
query.awaitTermination()
print("stream", fs.read(keyed).count(), fs.backlog(query))
sums = fs.read_stream(log).groupBy("name").count().withColumnRenamed("count", "n")
query = fs.write_stream(
    sums, counts, checkpoint=f"{checkpoint}/b", trigger="available-now", output_mode="update"
)
query.awaitTermination()
print("update", sorted(tuple(row) for row in fs.read(counts).collect()))
fs.attach(database)
spark.sql(f"INSERT INTO {log} VALUES (100, 'sql')")
print("sql", spark.sql(f"SELECT count(*) AS n FROM {log}").first().n)
try:
    fs.export(log, f"{checkpoint}/files")
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_but_bulk_jobs_works_through_spark_connect(
    connection: blocking.FlussConnection, bootstrap_servers: str, database: str, tmp_path: Path
) -> None:
    for module in ("grpc_status", "zstandard"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not there: pip install 'pyspark[connect]', or make test-spark-versions")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, bootstrap_servers, database, str(tmp_path / "checkpoints")],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    *lines, refusal = done.stdout.splitlines()
    assert lines == [
        "pyspark.sql.connect.session",
        "read 100 5",
        "keyed 9",
        "stream 100 0",
        "update [('n0', 34), ('n1', 33), ('n2', 33)]",
        "sql 101",
    ]
    assert "Bulk jobs need a session of this process" in refusal
    ids = connection.get_table(blocking.TablePath(database, "log")).to_arrow()["id"].to_pylist()
    assert Counter(ids) == Counter(range(101))
