"""Spark reads and writes over TLS, with nothing but options: certificates travel with them to the Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fluss import blocking
from fluss.testing.certificates import ThrowawayCa
from fluss.testing.cluster import ServerProcess

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options of a client whose server speaks TLS, asks for a certificate and for a password."""
    ca = ThrowawayCa(tmp_path)
    server, client = ca.issue("server", names=["127.0.0.1"]), ca.issue("client")
    arguments = [f"-D{key}={value}" for key, value in server.server_options.items()]
    arguments += ["-Dsecurity.ssl.client.auth=required", f"-Dsecurity.ssl.client.ca.file={ca.certificate_file}"]
    arguments += ["-Dsecurity.protocol.map=FLUSS:SASL_SSL", "-Ddurability=os"]
    environment = {"FLUSS_SECURITY_SASL_PLAIN_CREDENTIALS": "alice:alice-secret"}
    with ServerProcess(tmp_path / "data", *arguments, environment=environment) as running:
        texts = {
            "security.ssl.ca": ca.certificate_file.read_text(),
            "security.ssl.certificate": client.certificate_file.read_text(),
            "security.ssl.key": client.key_file.read_text(),
        }
        # Whoever reads them in a worker must not need the files.
        for file in tmp_path.glob("c*"):
            file.unlink()
        yield {
            "bootstrap.servers": f"127.0.0.1:{running.port}",
            "security.protocol": "sasl_ssl",
            "security.sasl.username": "alice",
            "security.sasl.password": "alice-secret",
            **texts,
        }


def test_rows_are_written_and_read_over_tls(spark: SparkSession, options: dict[str, str]) -> None:
    with blocking.FlussConnection.create(blocking.Config(options)) as connection:
        descriptor = blocking.TableDescriptor(blocking.Schema(ROWS), bucket_count=2)
        connection.get_admin().create_table(blocking.TablePath("fluss", "t"), descriptor)
    client_options = {f"client.{key}" if key.startswith("security") else key: text for key, text in options.items()}
    rows = spark.range(1000).selectExpr("id", "concat('n', id) AS name")
    rows.write.format("fluss").options(**client_options).mode("append").save("fluss.t")
    found = spark.read.format("fluss").options(**client_options).load("fluss.t")
    assert found.selectExpr("count(*)", "sum(id)", "min(name)").collect()[0][:] == (1000, 499500, "n0")
