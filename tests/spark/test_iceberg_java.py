"""What tiering writes is read by Apache Iceberg's own Java library: rows with all deletes applied, and its summary.

The library is that of Iceberg's runtime for Spark, fetched by Maven once. Its catalog for Spark does not load in every
version of Spark, so tables are read by the library itself, in the JVM of a session.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg", reason="lake tables need pyiceberg")

from fluss.testing.cluster import ServerProcess
from fluss.tiering.compaction import compact
from fluss.tiering.rounds import tier
from tests.unit.tiering.lakes import LakeCluster, lake_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ARTIFACT: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
JARS: Final = Path(__file__).parents[2] / ".interop" / "java" / "iceberg"
PROGRAM: Final = """
import json, sys
from pyspark.sql import SparkSession
jar, columns, *locations = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.driver.extraClassPath", jar)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
context = spark.sparkContext
iceberg = context._jvm.org.apache.iceberg
tables = iceberg.hadoop.HadoopTables(context._jsc.hadoopConfiguration())
for location in locations:
    table = tables.load(location)
    rows, found = iceberg.data.IcebergGenerics.read(table).build().iterator(), []
    while rows.hasNext():
        row = rows.next()
        found.append([row.getField(name) for name in columns.split(",")])
    summary = dict(table.currentSnapshot().summary())
    print("RESULT", json.dumps([sorted(found), summary.get("commit-user"), summary.get("total-delete-files")]))
"""


def iceberg_jar() -> Path:
    """Return Iceberg's library, fetched if it is not there; skip the test if it cannot be."""
    name = "{1}-{2}.jar".format(*ARTIFACT.split(":"))
    if not (JARS / name).exists():
        if shutil.which("mvn") is None:
            pytest.skip("Iceberg's Java library is fetched by Maven, which is not installed")
        command = ["mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={JARS.parent / 'maven'}"]
        command += ["org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy", f"-Dartifact={ARTIFACT}"]
        command += [f"-DoutputDirectory={JARS}", "-Dmdep.useBaseVersion=true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            pytest.skip("Iceberg's Java library comes from a repository of Maven, and none can be reached")
    return JARS / name


def read_by_java(columns: list[str], *locations: str) -> list[Any]:
    command = [sys.executable, "-c", PROGRAM, str(iceberg_jar()), ",".join(columns), *locations]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def test_tables_are_read_by_the_java_library(lake_server: ServerProcess) -> None:
    iceberg_jar()
    with LakeCluster(f"127.0.0.1:{lake_server.port}") as cluster:
        plain = pa.schema([("id", pa.int64()), ("n", pa.int32())])
        log = cluster.create("fluss.java_log", plain)
        keys = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32())])
        tables = [cluster.create(f"fluss.java_{name}", keys, primary_keys=["id"]) for name in ("keys", "compacted")]
        for version in range(3):
            cluster.append(str(log.table_path), pa.table({"id": range(10), "n": [version] * 10}, schema=plain))
            tier(log)
            for table in tables:
                rows = [{"id": n, "n": version} for n in range(version * 10, 50)]
                cluster.upsert(str(table.table_path), rows, deletes=[{"id": version}])
                tier(table)
        compact(tables[1])
        places = [lake_table(table).location().removeprefix("file://") for table in (log, *tables)]
    expected = [[n, min(n // 10, 2)] for n in range(50) if n not in (0, 1, 2)]
    found = read_by_java(["id", "n"], *places)
    assert found[0] == [sorted([n, version] for n in range(10) for version in range(3)), "__fluss_lake_tiering", "0"]
    assert found[1][:2] == [expected, "__fluss_lake_tiering"]
    assert int(found[1][2]) > 0
    assert found[2] == [expected, "__fluss_lake_tiering", "0"]
