"""Streams whose checkpoint is in an object store write every row once.
Shown with an S3-compatible server that runs here: that of moto, or the one at FLUSS_TEST_S3_ENDPOINT."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pyspark
import pytest

from fluss import blocking
from fluss.spark.write.exactly_once import SinkState
from fluss.spark.write.writer_record import WriterRecord
from fluss.testing.waiting import eventually
from tests.s3_server import s3_server

_TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a store that speaks S3."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def environment(endpoint: str) -> dict[str, str]:
    """What every process has to know about the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", "testing"),
        "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", "testing"),
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.fixture
def bucket(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    name = f"test-{secrets.token_hex(6)}"
    store = pafs.S3FileSystem(endpoint_override=environment["AWS_ENDPOINT_URL"], allow_bucket_creation=True)
    eventually(lambda: store.create_dir(name) is None)
    return name


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_records_of_tasks_are_kept_in_a_store_by_the_name_that_spark_has_for_it(bucket: str, scheme: str) -> None:
    record = WriterRecord(table_id=5, writer_id=17, starts={":0": 3})
    state = SinkState.open(f"{scheme}://{bucket}/checkpoints/one")
    assert SinkState.open(f"s3://{bucket}/checkpoints/one").mark == state.mark
    for batch in (1, 2):
        task = state.task("query", batch, 0)
        assert task.load() is None
        assert task.put(record)
        assert not state.task("query", batch, 0).put(record), "a second attempt finds the first one's"
        assert state.task("query", batch, 0).load() == record
    state.forget_before("query", 2)
    assert state.task("query", 1, 0).load() is None
    assert state.task("query", 2, 0).load() == record


SCRIPT = """
import sys
from fluss.spark import FlussSpark, session

servers, table, target, checkpoint, setting, jars = sys.argv[1:]
spark = session("store", cores=2, config={
    "spark.driver.memory": "1g",
    setting: jars,
    "spark.hadoop.fs.s3a.path.style.access": "true",
})
fs = FlussSpark(spark, bootstrap_servers=servers)
query = fs.write_stream(fs.read_stream(table), target, checkpoint=checkpoint, trigger="available-now")
query.awaitTermination()
print("done", fs.backlog(query))
spark.stop()
"""


def _jars() -> tuple[str, str]:
    """Return the setting that gives Spark Hadoop's S3A, and its value. It is not part of Spark, and large."""
    if "FLUSS_TEST_S3_JARS" in os.environ:
        return "spark.jars", ",".join(map(str, Path(os.environ["FLUSS_TEST_S3_JARS"]).glob("*.jar")))
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = hadoop.stem.removeprefix("hadoop-client-api-")
    return "spark.jars.packages", f"org.apache.hadoop:hadoop-aws:{version}"


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
def test_a_stream_with_its_checkpoint_in_a_store_goes_on_where_it_was(
    bucket: str,
    environment: dict[str, str],
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    tmp_path: Path,
) -> None:
    setting, jars = _jars()
    types = blocking.DataTypes
    schema = blocking.Schema.builder().column("id", types.bigint()).build()
    source, target = (blocking.TablePath(database, name) for name in ("source", "target"))
    for path in (source, target):
        connection.get_admin().create_table(path, blocking.TableDescriptor(schema, bucket_count=2))
    arguments = [bootstrap_servers, str(source), str(target), f"s3a://{bucket}/checkpoints/copy", setting, jars]
    for first in (0, 100):
        with connection.get_table(source).new_append().create_writer() as writer:
            for number in range(first, first + 100):
                writer.append({"id": number})
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if "unresolved dependenc" in done.stderr.lower():
            pytest.skip("Spark needs hadoop-aws from a repository of Maven for S3, and none can be reached")
        assert done.returncode == 0, done.stderr[-6000:]
        assert done.stdout.splitlines()[-1] == "done 0"
        ids = connection.get_table(target).to_arrow()["id"].to_pylist()
        assert Counter(ids) == Counter(range(first + 100))
