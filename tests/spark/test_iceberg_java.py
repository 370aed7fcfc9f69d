"""What tiering writes is read by Apache Iceberg's own Java library: rows with all deletes applied, and its summary.
What that library writes is read here: deletes by key, as the tiering service of Apache Fluss makes them.

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

from fluss import FlussTable
from fluss.client.bulk import admin_of, lake_snapshot_of, named_buckets_of, offsets_of, tiering_calls_of
from fluss.lake.commits import TIERING_USER
from fluss.lake.scans import LakeScan
from fluss.schema.offsets import OffsetSpec
from fluss.testing.cluster import ServerProcess
from fluss.tiering.compaction import compact
from fluss.tiering.rounds import tier
from fluss.tiering.verification import verify
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
# Writes rounds of rows and deleted keys as the tiering service of Apache Fluss does: deletes are by key.
WRITER: Final = """
import json, sys
from pyspark.sql import SparkSession
jar, location, user, offsets_path, rounds = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.driver.extraClassPath", jar)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
context = spark.sparkContext
jvm, new_array = context._jvm, context._gateway.new_array
iceberg = jvm.org.apache.iceberg
table = iceberg.hadoop.HadoopTables(context._jsc.hadoopConfiguration()).load(location)
key_names = jvm.java.util.ArrayList()
key_names.add("id")
schema, spec, parquet = table.schema(), table.spec(), iceberg.FileFormat.PARQUET
key_schema = schema.select(key_names)
key_ids = new_array(jvm.int, 1)
key_ids[0] = schema.findField("id").fieldId()
factory = iceberg.data.GenericAppenderFactory(schema, spec, key_ids, key_schema, None)
files = iceberg.io.OutputFileFactory.builderFor(table, 1, 1).format(parquet).build()
epoch = jvm.java.time.OffsetDateTime.parse("2026-01-01T00:00:00Z")


def row_of(values):
    row = iceberg.data.GenericRecord.create(schema)
    for name, value in values.items():
        row.setField(name, value)
    row.setField("__timestamp", epoch)
    key = iceberg.PartitionKey(spec, schema)
    key.partition(iceberg.data.InternalRecordWrapper(schema.asStruct()).wrap(row))
    bucket = key.get(0, jvm.java.lang.Class.forName("java.lang.Integer"))
    row.setField("__bucket", bucket)
    return bucket, key, row


for rows, deleted in json.loads(rounds):
    writers = {}
    for values, kind in [*((values, "deletes") for values in deleted), *((values, "data") for values in rows)]:
        bucket, key, row = row_of(values)
        if (bucket, kind) not in writers:
            new = factory.newEqDeleteWriter if kind == "deletes" else factory.newDataWriter
            writers[bucket, kind] = new(files.newOutputFile(key), parquet, key)
        if kind == "deletes":
            key_row = iceberg.data.GenericRecord.create(key_schema)
            key_row.setField("id", row.getField("id"))
            row = key_row
        writers[bucket, kind].write(row)
    delta = table.newRowDelta().set("commit-user", user).set("fluss-offsets", offsets_path)
    for (_, kind), writer in writers.items():
        writer.close()
        delta = delta.addDeletes(writer.toDeleteFile()) if kind == "deletes" else delta.addRows(writer.toDataFile())
    delta.commit()
print("RESULT", table.currentSnapshot().snapshotId())
"""
# py4j sends numbers that fit as int, and ids are long.
FIRST_ID: Final = 1 << 40


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


def run_in_java(program: str, *arguments: str) -> list[Any]:
    """Run a program with a JVM that has Iceberg's library, and return its results."""
    command = [sys.executable, "-c", program, str(iceberg_jar()), *arguments]
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
    found = run_in_java(PROGRAM, "id,n", *places)
    assert found[0] == [sorted([n, version] for n in range(10) for version in range(3)), "__fluss_lake_tiering", "0"]
    assert found[1][:2] == [expected, "__fluss_lake_tiering"]
    assert int(found[1][2]) > 0
    assert found[2] == [expected, "__fluss_lake_tiering", "0"]


def test_deletes_by_key_of_the_java_library_are_read_and_gone_on_with(lake_server: ServerProcess) -> None:
    iceberg_jar()
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32())])

    def ids(*numbers: int) -> list[int]:
        return [FIRST_ID + number for number in numbers]

    def rows(n: int, *numbers: int) -> list[dict[str, Any]]:
        return [{"id": each, "n": n} for each in ids(*numbers)]

    def keys(*numbers: int) -> list[dict[str, Any]]:
        return [{"id": each} for each in ids(*numbers)]

    with LakeCluster(f"127.0.0.1:{lake_server.port}") as cluster:
        name = "fluss.java_deletes"
        table = cluster.create(name, columns, primary_keys=["id"])
        cluster.upsert(name, rows(0, *range(20)))
        cluster.upsert(name, rows(1, *range(5, 10)), deletes=keys(0, 1))
        expected = dict.fromkeys(ids(*range(2, 20)), 0) | dict.fromkeys(ids(*range(5, 10)), 1)
        ends = offsets_of(table, list(named_buckets_of(table)), OffsetSpec.latest())
        info = table.get_table_info()
        path = tiering_calls_of(admin_of(table)).prepare(info.table_path, info.table_id, ends)
        rounds = [
            [[{**row, "__offset": row["id"]} for row in rows(0, *range(20))], []],
            [[{**row, "__offset": row["id"]} for row in rows(1, *range(5, 10))], keys(0, 1, *range(5, 10))],
        ]
        place = lake_table(table).location().removeprefix("file://")
        (snapshot_id,) = run_in_java(WRITER, place, TIERING_USER, path, json.dumps(rounds))
        assert any(file.equality_deletes for file in LakeScan(lake_table(table)).files())

        # The service that wrote this has not told Fluss of it; then it is taken over.
        assert tier(table).snapshot_id is None
        known = lake_snapshot_of(table)
        assert known is not None
        assert known.snapshot_id == snapshot_id
        assert read(table) == expected
        assert verify(table).is_right
        cluster.upsert(name, rows(2, *range(8, 13)), deletes=keys(19, 5))
        expected |= dict.fromkeys(ids(*range(8, 13)), 2)
        for key in ids(19, 5):
            del expected[key]
        assert read(table) == expected, "deletes by key, and changes behind them"
        assert tier(table).rows == 5
        assert read(table) == expected
        assert verify(table).is_right
        compact(table, everything=True)
        assert read(table) == expected
        assert verify(table).is_right
        assert not any(file.has_deletes for file in LakeScan(lake_table(table)).files())


def read(table: FlussTable) -> dict[int, int]:
    found = table.to_arrow().to_pydict()
    return dict(zip(found["id"], found["n"], strict=True))
