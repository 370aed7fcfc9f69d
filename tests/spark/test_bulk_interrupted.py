"""Bulk jobs that are disturbed or killed, and go on: no row is lost, and none is there twice.

Connections are cut, Python workers are killed, and drivers are killed with everything they have started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from fluss import blocking
from fluss.spark import FlussSpark
from fluss.spark.bulk import Progress
from fluss.testing.cluster import ServerProcess
from fluss.testing.faultnet import FaultProxy, Faults

_ATTEMPTS_MAX = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.float64()), pa.field("name", pa.string())]
)
ROWS = 200_000
FILES = 10
LOAD = """
import json, sys
from fluss.spark import FlussSpark, session
arguments = json.loads(sys.argv[1])
fs = FlussSpark(session("interrupted", cores=2, config={"spark.driver.memory": "1g"}), arguments["servers"])
report = getattr(fs, arguments["job"])(*arguments["positional"], **arguments["named"])
print(json.dumps({"rows": report.rows, "rows_found": report.rows_found}), flush=True)
"""


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    names = pa.array([f"name {number * 7919 % 100_003}" for number in ids])
    return pa.table([pa.array(ids), pa.array(ids / 7), names], schema=SCHEMA)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of Parquet files."""
    directory = tmp_path_factory.mktemp("files")
    count = ROWS // FILES
    for number in range(FILES):
        pq.write_table(rows(number * count, count), directory / f"{number}.parquet", row_group_size=5000)
    return directory


def create(
    connection: blocking.FlussConnection, table: str, primary_keys: list[str] | None = None
) -> blocking.FlussTable:
    path = blocking.TablePath(*table.split("."))
    descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA, primary_keys=primary_keys), bucket_count=4)
    connection.get_admin().create_table(path, descriptor)
    return connection.get_table(path)


def assert_complete(table: blocking.FlussTable) -> None:
    ids = np.sort(table.to_arrow(["id"])["id"].to_numpy())
    assert len(ids) == ROWS, f"{len(ids)} rows, {len(np.unique(ids))} different ones"
    assert (ids == np.arange(ROWS)).all()


# Attempts


@pytest.fixture
def unreliable(tmp_path: Path) -> Iterator[tuple[FaultProxy, str]]:
    """A server behind a network that can be disturbed, and its address."""
    with FaultProxy(seed=31) as proxy:
        advertised = f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}"
        with ServerProcess(tmp_path / "server", "-D", advertised, "-D", "durability=os") as server:
            proxy.upstream_port = server.port
            yield proxy, f"127.0.0.1:{proxy.port}"


# Rows of a log are compressed; and a request must get through now and then.
@pytest.mark.parametrize(
    ("primary_keys", "cut_after_bytes"), [(None, (20_000, 300_000)), (["id"], (500_000, 3_000_000))]
)
def test_a_load_over_a_network_that_breaks_is_exact(
    spark: SparkSession,
    files: Path,
    unreliable: tuple[FaultProxy, str],
    primary_keys: list[str] | None,
    cut_after_bytes: tuple[int, int],
) -> None:
    proxy, servers = unreliable
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": servers})) as connection:
        connection.get_admin().create_database("bulk")
        table = create(connection, "bulk.orders", primary_keys)
        proxy.faults = Faults(cut_after_bytes=cut_after_bytes, delay_s=(0.0, 0.002))
        report = FlussSpark(spark, servers).bulk_load(str(files), "bulk.orders", task_bytes=500_000)
        proxy.faults = Faults()
        assert proxy.cut_count > 0
        assert report.rows == ROWS
        assert_complete(table)


def python_workers() -> list[psutil.Process]:
    """The Python workers of the session of this process: children of its daemons."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(process.cmdline()) and "java" not in (process.parent() or process).name():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("primary_keys", [None, ["id"]])
def test_a_load_whose_workers_are_killed_is_exact(
    spark: SparkSession,
    files: Path,
    bootstrap_servers: str,
    connection: blocking.FlussConnection,
    database: str,
    primary_keys: list[str] | None,
) -> None:
    table = create(connection, f"{database}.orders", primary_keys)
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        # Some rows are there: then a task is writing.
        while not is_over.wait(0.05) and len(killed) < 3:
            offsets = connection.get_admin().list_offsets(table.table_path, range(4), "latest")
            if sum(offsets.values()) > ROWS * (len(killed) + 1) // 5:
                for worker in python_workers()[:1]:
                    worker.kill()
                    killed.append(worker.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        report = FlussSpark(spark, bootstrap_servers).bulk_load(str(files), f"{database}.orders", task_bytes=500_000)
    finally:
        is_over.set()
        killer.join()
    assert killed
    assert report.rows == ROWS
    assert_complete(table)


# Drivers


class Driver:
    """A job in a process of its own, which can be killed together with all processes that it has started."""

    def __init__(self, servers: str, job: str, *positional: str, **named: object) -> None:
        arguments = json.dumps({"servers": servers, "job": job, "positional": positional, "named": named})
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOAD, arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        while not is_time():
            assert self._process.poll() is None, "the job was over before it could be killed"
            time.sleep(0.01)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def report(self) -> dict[str, int]:
        output, _ = self._process.communicate(timeout=600)
        assert self._process.returncode == 0
        found: dict[str, int] = json.loads(output.splitlines()[-1])
        return found


@pytest.fixture
def slow_cluster(unreliable: tuple[FaultProxy, str]) -> Iterator[tuple[str, blocking.FlussConnection]]:
    """The address of a server that answers late, so that there is time to kill a process; and a connection to it."""
    proxy, servers = unreliable
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": servers})) as connection:
        connection.get_admin().create_database("bulk")
        proxy.faults = Faults(delay_s=(0.05, 0.05))
        yield servers, connection
        proxy.faults = Faults()


def row_count(connection: blocking.FlussConnection, table: str) -> int:
    path = blocking.TablePath(*table.split("."))
    if not connection.get_admin().table_exists(path):
        return 0
    return sum(connection.get_admin().list_offsets(path, range(4), "latest").values())


def has_begun(connection: blocking.FlussConnection, table: str) -> bool:
    return row_count(connection, table) > ROWS // 10


@pytest.mark.parametrize("primary_keys", [None, ["id"]])
def test_a_load_whose_driver_was_killed_goes_on(
    files: Path,
    tmp_path: Path,
    slow_cluster: tuple[str, blocking.FlussConnection],
    primary_keys: list[str] | None,
) -> None:
    servers, connection = slow_cluster
    table = create(connection, "bulk.orders", primary_keys)
    arguments = servers, "bulk_load", str(files), "bulk.orders"
    options: dict[str, Any] = {"resume_dir": str(tmp_path / "state"), "task_bytes": 500_000}
    Driver(*arguments, **options).kill_when(partial(has_begun, connection, "bulk.orders"))
    there = row_count(connection, "bulk.orders")
    assert there < ROWS
    report = Driver(*arguments, **options).report()
    assert report["rows"] == ROWS
    assert 0 < report["rows_found"] < ROWS
    assert_complete(table)


@pytest.mark.parametrize("primary_keys", [None, ["id"]])
def test_a_copy_whose_driver_was_killed_goes_on(
    slow_cluster: tuple[str, blocking.FlussConnection], primary_keys: list[str] | None
) -> None:
    servers, connection = slow_cluster
    source = create(connection, "bulk.orders", primary_keys)
    if primary_keys is None:
        appends = source.new_append().create_writer()
        appends.write_arrow(rows(0, ROWS))
        appends.flush()
    else:
        upserts = source.new_upsert().create_writer()
        for batch in rows(0, ROWS).to_batches(50_000):
            upserts.upsert_arrow_batch(batch)
        upserts.flush()
    # On a busy machine a copy may be complete before this process has noticed that it began: then there is another one.
    for number in range(_ATTEMPTS_MAX):
        copied = f"bulk.copied_{number}"
        Driver(servers, "copy", "bulk.orders", copied).kill_when(partial(has_begun, connection, copied))
        if row_count(connection, copied) < ROWS:
            break
    report = Driver(servers, "copy", "bulk.orders", copied).report()
    assert report["rows"] == ROWS
    # Workers of the dead driver may have gone on for a moment.
    assert 0 < report["rows_found"] <= ROWS
    assert_complete(connection.get_table(blocking.TablePath(*copied.split("."))))


def test_progress_is_told_while_a_load_runs(
    spark: SparkSession, files: Path, bootstrap_servers: str, connection: blocking.FlussConnection, database: str
) -> None:
    create(connection, f"{database}.orders")
    told: list[Progress] = []
    fs = FlussSpark(spark, bootstrap_servers)
    report = fs.bulk_load(str(files), f"{database}.orders", task_bytes=100_000, progress=told.append)
    assert report.tasks > 10
    assert [each.rows_done for each in told] == sorted(each.rows_done for each in told)
    assert any(0 < each.rows_done < ROWS for each in told)
    assert {each.rows_known for each in told} == {ROWS}
