"""The data source without Spark: what it costs to be found, and which options count when a table is bound to it.
Shown by a fresh interpreter, and by asking sources for their schemas with a server in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa
import pytest

from fluss import FlussError, Schema, TableDescriptor, TablePath, blocking, embedded
from fluss.spark.data_source import FlussDataSource


@pytest.fixture(scope="module", autouse=True)
def orders_and_others(server: embedded.EmbeddedServer) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    with blocking.FlussConnection.create(server.config()) as connection:
        for table in ("orders", "others"):
            connection.get_admin().create_table(TablePath("fluss", table), TableDescriptor(schema))


@pytest.fixture
def source(server: embedded.EmbeddedServer) -> type[FlussDataSource]:
    """A source that is bound to a table, with options for several kinds of queries."""

    class Orders(FlussDataSource):
        bound_options: ClassVar[Mapping[str, str]] = {
            "bootstrap.servers": server.address(),
            "table": "fluss.orders",
            "maxRowsPerTrigger": "10",
            "sink.bucket-shuffle": "false",
            "scan.columns": "id",
        }

    return Orders


def test_being_found_by_spark_imports_nothing_of_the_library() -> None:
    program = "import sys, pyspark_fluss; print([name for name in sys.modules if name.split('.')[0] == 'fluss'])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert answer.stdout == "[]\n"


def test_the_options_of_a_query_win_over_those_of_its_source(source: type[FlussDataSource]) -> None:
    assert source({}).schema().names == ["id"]
    assert source({"scan.columns": "name,id"}).schema().names == ["name", "id"]
    assert source({"Scan.Columns": "name"}).schema().names == ["name"]
    assert source({"table": "fluss.others$changelog", "scan.columns": "_log_offset"}).schema().names == ["_log_offset"]


def test_bound_options_of_other_kinds_of_queries_do_no_harm_but_those_of_a_query_must_fit(
    source: type[FlussDataSource],
) -> None:
    reader = source({}).reader(source({}).schema())
    assert reader.partitions() == []
    with pytest.raises(FlussError, match="'maxRowsPerTrigger' is an option of streaming reads"):
        source({"maxrowspertrigger": "5"}).reader(source({}).schema())


def test_errors_come_without_the_frames_of_the_client(source: type[FlussDataSource]) -> None:
    with pytest.raises(FlussError, match=r"Table 'fluss\.nothing' does not exist") as error:
        source({"table": "fluss.nothing"}).schema()
    assert error.value.error_code == 7
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    # The test, the source, and the end of its block.
    assert len(error.traceback) == 3
