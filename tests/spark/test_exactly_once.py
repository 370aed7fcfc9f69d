"""Streams into Fluss write every row once, whatever dies: Python workers, connections, queries, whole drivers.
Shown with files as input, sinks that kill their process between two batches, and the table compared with the input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter

from fluss import blocking
from fluss.spark.data_source import FlussDataSource
from fluss.testing.cluster import ServerProcess
from fluss.testing.faultnet import FaultProxy, Faults
from fluss.testing.waiting import eventually

ROWS = pa.schema([("id", pa.int64()), ("noise", pa.string())])
# Many small batches, so that there is something between them.
SMALL_BATCHES = {"client.writer.batch-size": "512"}
FILES, ROWS_PER_FILE, TASKS = 3, 600, 2


def write_files(directory: Path, files: int = FILES, rows_per_file: int = ROWS_PER_FILE) -> Path:
    """Write the input: every file is one micro-batch."""
    rng = random.Random(1)
    directory.mkdir()
    for number in range(files):
        ids = list(range(number * rows_per_file, (number + 1) * rows_per_file))
        batch = pa.RecordBatch.from_pydict({"id": ids, "noise": [rng.randbytes(20).hex() for _ in ids]}, schema=ROWS)
        pq.write_table(pa.Table.from_batches([batch]), directory / f"{number:04}.parquet", row_group_size=100)
    return directory


def killing_source(provider: str, kills: dict[tuple[int, int], int], sends_before: int) -> type[FlussDataSource]:
    """Return a data source whose tasks kill their process when they have sent some batches, or all there are.

    ``kills`` says for a micro-batch and a partition how many attempts die.
    """

    class KillingSource(FlussDataSource):
        @classmethod
        def name(cls) -> str:
            return provider

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
            from fluss.spark.write.stream_writer import FlussStreamWriter

            class KillingWriter(FlussStreamWriter):
                def write(self, iterator: Any) -> Any:
                    from pyspark import TaskContext

                    from fluss.client.bulk.sequenced_writer import SequencedWriter

                    task = TaskContext.get()
                    assert task is not None
                    place = int(str(task.getLocalProperty("streaming.sql.batchId"))), task.partitionId()
                    original, sent = SequencedWriter._send, [0]

                    def send(writer: SequencedWriter, bucket: Any, records: Any) -> None:
                        sent[0] += records.record_count > 0
                        if sent[0] > sends_before:
                            # Half of what was sent is on its way.
                            if task.attemptNumber() % 2:
                                writer.flush()
                            os.kill(os.getpid(), signal.SIGKILL)
                        original(writer, bucket, records)

                    if task.attemptNumber() >= kills.get(place, 0):
                        return super().write(iterator)
                    SequencedWriter._send = send  # type: ignore[method-assign, assignment]  # this process is about to end
                    try:
                        super().write(iterator)
                        # What attempts before this one have sent may have left too little for another kill.
                        os.kill(os.getpid(), signal.SIGKILL)
                    finally:
                        SequencedWriter._send = original  # type: ignore[method-assign]  # or not: the attempt failed

            plain = super().streamWriter(schema, overwrite)
            killing = KillingWriter.__new__(KillingWriter)
            killing.__dict__.update(plain.__dict__)
            return killing

    return KillingSource


Start = Callable[..., Any]


@pytest.fixture
def start(spark: SparkSession, database: str, checkpoint: str) -> Start:
    """Start a query that reads the files and writes to the table ``t``."""

    def start(files: Path, provider: str, bootstrap_servers: str, **options: str) -> Any:
        rows = spark.readStream.schema("id LONG, noise STRING").option("maxFilesPerTrigger", 1).parquet(str(files))
        return (
            written(rows.repartition(TASKS, "id"), provider, bootstrap_servers, f"{database}.t")
            .options(**{**SMALL_BATCHES, **options})
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    return start


def written(rows: DataFrame, provider: str, bootstrap_servers: str, table: str) -> Any:
    return rows.writeStream.format(provider).option("bootstrap.servers", bootstrap_servers).option("table", table)


def create(
    connection: blocking.FlussConnection, database: str, schema: Any = None, keys: tuple[str, ...] = (), **more: Any
) -> Any:
    path = blocking.TablePath(database, "t")
    made = blocking.Schema(ROWS, primary_keys=list(keys)) if schema is None else schema
    connection.get_admin().create_table(path, blocking.TableDescriptor(made, **more))
    return connection.get_table(path)


def ids_of(table: Any) -> Counter[int]:
    return Counter(table.to_arrow(columns=["id"])["id"].to_pylist())


def test_a_stream_whose_tasks_and_runs_die_writes_every_row_once(
    spark: SparkSession,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    start: Start,
    tmp_path: Path,
    checkpoint: str,
) -> None:
    table = create(connection, database, bucket_count=2)
    files = write_files(tmp_path / "files")
    # One task is killed and succeeds then. In micro-batch 1, one never does: the run ends, and another one goes on.
    spark.dataSource.register(killing_source("fluss_killing", {(0, 1): 1, (1, 0): 4}, sends_before=2))
    with pytest.raises(StreamingQueryException):
        start(files, "fluss_killing", bootstrap_servers).awaitTermination()
    assert sum(ids_of(table).values()) < FILES * ROWS_PER_FILE
    start(files, "fluss", bootstrap_servers).awaitTermination()
    assert ids_of(table) == Counter(range(FILES * ROWS_PER_FILE))
    # The records of the last micro-batch are left, and no others.
    (query,) = [path for path in (Path(checkpoint) / "fluss-sink").iterdir() if path.is_dir()]
    assert [path.name for path in query.iterdir()] == [str(FILES - 1)]


@pytest.mark.slow
def test_sums_of_an_aggregating_table_are_exact_although_tasks_die(
    spark: SparkSession,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    tmp_path: Path,
    checkpoint: str,
) -> None:
    types = blocking.DataTypes
    builder = blocking.Schema.builder().column("k", types.bigint()).primary_key(["k"])
    builder = builder.column("n", types.bigint(), aggregation="sum").column("total", types.bigint(), aggregation="sum")
    create(connection, database, builder.build(), bucket_count=2, properties={"table.merge-engine": "aggregation"})
    files = write_files(tmp_path / "files")
    kills = {(batch, partition): (batch + partition) % 3 for batch in range(FILES) for partition in range(TASKS)}
    spark.dataSource.register(killing_source("fluss_killing_sums", kills, sends_before=2))
    rows = spark.readStream.schema("id LONG, noise STRING").option("maxFilesPerTrigger", 1).parquet(str(files))
    rows = rows.selectExpr("id % 500 AS k", "1L AS n", "id AS total").repartition(TASKS, "k")
    query = (
        written(rows, "fluss_killing_sums", bootstrap_servers, f"{database}.t")
        .options(**{"client.writer.batch-size": "512", "checkpointLocation": checkpoint})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = connection.get_table(blocking.TablePath(database, "t")).to_arrow().sort_by("k").to_pylist()
    count = FILES * ROWS_PER_FILE
    assert found == [{"k": k, "n": len(range(k, count, 500)), "total": sum(range(k, count, 500))} for k in range(500)]


@pytest.mark.slow
def test_a_micro_batch_that_is_given_to_foreach_batch_again_is_written_once(
    spark: SparkSession,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    tmp_path: Path,
    checkpoint: str,
) -> None:
    table = create(connection, database, bucket_count=2)
    reader = spark.readStream.schema("id LONG, noise STRING").option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(write_files(tmp_path / "files")))
    failures = [0, 1, 1, 2]

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.repartition(2, "id").write.format("fluss").mode("append")
        writer = writer.option("bootstrap.servers", bootstrap_servers).option("table", f"{database}.t")
        writer.option("sink.transaction", f"load/{number}").option(
            "checkpointLocation", str(tmp_path / "account")
        ).save()
        if failures and failures[0] == number:
            failures.pop(0)
            raise RuntimeError("injected, after everything was written")

    for _ in range(len(failures)):
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        with pytest.raises(StreamingQueryException):
            query.trigger(availableNow=True).start().awaitTermination()
    query.trigger(availableNow=True).start().awaitTermination()
    assert ids_of(table) == Counter(range(FILES * ROWS_PER_FILE))


@pytest.mark.slow
def test_a_micro_batch_that_is_repeated_is_divided_as_before_although_the_options_are_others(
    spark: SparkSession,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    checkpoint: str,
) -> None:
    table = create(connection, database, bucket_count=2)
    path = blocking.TablePath(database, "source")
    connection.get_admin().create_table(path, blocking.TableDescriptor(blocking.Schema(ROWS), bucket_count=2))
    ids = list(range(4000))
    with connection.get_table(path).new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"id": ids, "noise": ["x" * 40] * len(ids)}, schema=ROWS))
    provider = "fluss_whose_second_task_dies"
    spark.dataSource.register(killing_source(provider, {(0, 1): 99}, sends_before=0))

    def start(provider: str, task_bytes: int) -> Any:
        source = spark.readStream.format("fluss").option("bootstrap.servers", bootstrap_servers)
        source = source.option("scan.startup.mode", "earliest").option("scan.target-task-bytes", task_bytes)
        writer = written(source.load(str(path)), provider, bootstrap_servers, f"{database}.t")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException):
        start(provider, 80_000).awaitTermination()
    assert 0 < ids_of(table).total() < len(ids)
    start("fluss", 1_000_000).awaitTermination()
    assert ids_of(table) == Counter(ids)


@pytest.mark.slow
def test_at_least_once_loses_nothing(
    connection: blocking.FlussConnection, bootstrap_servers: str, database: str, start: Start, tmp_path: Path
) -> None:
    table = create(connection, database, bucket_count=1)
    files = write_files(tmp_path / "files")
    options = {"sink.delivery-guarantee": "at-least-once"}
    start(files, "fluss", bootstrap_servers, **options).awaitTermination()
    assert ids_of(table).keys() == set(range(FILES * ROWS_PER_FILE))


@pytest.mark.slow
def test_a_query_without_a_known_checkpoint_is_refused(
    spark: SparkSession, connection: blocking.FlussConnection, bootstrap_servers: str, database: str, tmp_path: Path
) -> None:
    create(connection, database)
    rows = spark.readStream.schema("id LONG, noise STRING").parquet(str(write_files(tmp_path / "files")))
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "elsewhere"))
    try:
        query = written(rows, "fluss", bootstrap_servers, f"{database}.t").trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="must know where it is: give the query"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


@pytest.fixture
def bad_network(tmp_path: Path) -> Iterator[FaultProxy]:
    """A server whose connections are cut again and again."""
    with FaultProxy(seed=3) as proxy:
        advertised = f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}"
        with ServerProcess(tmp_path / "server", "-D", advertised, "-D", "durability=os") as server:
            proxy.upstream_port = server.port
            yield proxy


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_network_that_cuts_connections_changes_nothing(
    spark: SparkSession,
    bad_network: FaultProxy,
    database: str,
    start: Start,
    tmp_path: Path,
    keys: tuple[str, ...],
) -> None:
    bootstrap_servers = f"127.0.0.1:{bad_network.port}"
    files = write_files(tmp_path / "files", 8)
    config = blocking.Config({"bootstrap.servers": bootstrap_servers})
    with blocking.FlussConnection.create(config) as connection:
        connection.get_admin().create_database(database)
        table = create(connection, database, keys=keys, bucket_count=2)
        kills = {(batch, batch % 2): batch % 4 for batch in range(8)}
        provider = f"fluss_killing_{len(keys)}_network"
        spark.dataSource.register(killing_source(provider, kills, sends_before=4))
        bad_network.faults = Faults(cut_after_bytes=(1, 60_000), delay_s=(0.0, 0.002))
        bad_network.cut_all()
        start(files, provider, bootstrap_servers).awaitTermination()
        bad_network.faults = Faults()
        assert bad_network.cut_count > 3
        assert ids_of(table) == Counter(range(8 * ROWS_PER_FILE))


# Drivers that are killed


DRIVER = textwrap.dedent(
    """
    import json, os, sys
    arguments = json.loads(sys.argv[1])
    from pyspark.sql import SparkSession, functions
    spark = (
        SparkSession.builder.master(arguments["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", arguments["warehouse"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.schema("id LONG, noise STRING").option("maxFilesPerTrigger", 1).parquet(arguments["files"])
    # Rows come to the sink in whatever order the shuffle delivers them.
    rows = rows.repartition(2, "id").selectExpr(*arguments["columns"])
    query = (
        rows.writeStream.format("fluss")
        .options(**arguments["options"])
        .trigger(availableNow=True)
        .start()
    )
    print("running", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()
    """
)


def commits(arguments: dict[str, Any]) -> int:
    """Return how many micro-batches Spark has noted as done."""
    directory = Path(arguments["options"]["checkpointLocation"]) / "commits"
    return sum(path.name.isdecimal() for path in directory.iterdir()) if directory.exists() else 0


@contextmanager
def driver(arguments: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run a driver, as far as its query; it is killed, with all its processes, if it has not ended by itself."""
    log = Path(arguments["warehouse"]).with_name("driver.log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == "running"
            yield process
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()}") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run_until_done(arguments: dict[str, Any], kills: int, rng: random.Random) -> None:
    """Run drivers and kill so many of them, each some micro-batches further; then let one come to its end."""
    for life in range(kills + 1):
        # Spark does not start again from a checkpoint in which it was killed while it began with the first micro-batch.
        commits_max = max(commits(arguments) + rng.randrange(3), 1)
        with driver(arguments) as process:
            assert process.stdout is not None
            if life == kills:
                assert process.stdout.readline().strip() == "done"
                return
            while commits(arguments) < commits_max:
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(rng.uniform(0.0, 0.6))
            assert process.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["log", "keyed", "sums"])
def test_a_driver_that_is_killed_again_and_again_leaves_nothing_out_and_nothing_twice(
    connection: blocking.FlussConnection, bootstrap_servers: str, database: str, tmp_path: Path, kind: str
) -> None:
    kills = int(os.environ.get("KILLS", "4"))
    # A life has up to two micro-batches, and the one in which it ends.
    files = write_files(tmp_path / "files", 3 * kills + 2, 4000)
    columns = ["id", "noise"]
    if kind == "sums":
        types = blocking.DataTypes
        builder = blocking.Schema.builder().column("k", types.bigint()).primary_key(["k"])
        builder = builder.column("n", types.bigint(), aggregation="sum")
        builder = builder.column("total", types.bigint(), aggregation="sum")
        properties = {"table.merge-engine": "aggregation"}
        table = create(connection, database, builder.build(), bucket_count=2, properties=properties)
        columns = ["id % 1000 AS k", "1L AS n", "id AS total"]
    else:
        table = create(connection, database, keys=("id",) if kind == "keyed" else (), bucket_count=3)
    options = {
        "bootstrap.servers": bootstrap_servers,
        "table": f"{database}.t",
        "checkpointLocation": str(tmp_path / "checkpoint"),
        **SMALL_BATCHES,
    }
    arguments = {
        "master": "local[2,4]",
        "files": str(files),
        "columns": columns,
        "options": options,
        "warehouse": str(tmp_path / "warehouse"),
    }
    run_until_done(arguments, kills, random.Random(kind))
    count = (3 * kills + 2) * 4000
    if kind == "sums":
        expected = {k: (len(range(k, count, 1000)), sum(range(k, count, 1000))) for k in range(1000)}
        assert {row["k"]: (row["n"], row["total"]) for row in table.to_arrow().to_pylist()} == expected
    else:
        assert ids_of(table) == Counter(range(count))


def of_executors(bootstrap_servers: str, database: str, files: Path, directory: Path) -> dict[str, Any]:
    """Return the arguments of a driver with executors of their own."""
    options = {
        "bootstrap.servers": bootstrap_servers,
        "table": f"{database}.t",
        "checkpointLocation": str(directory / "checkpoint"),
        **SMALL_BATCHES,
    }
    return {
        "master": "local-cluster[2,1,1024]",
        "files": str(files),
        "columns": ["id", "noise"],
        "options": options,
        "warehouse": str(directory / "warehouse"),
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_executors_of_their_own_write_exactly_once_too(
    connection: blocking.FlussConnection, bootstrap_servers: str, database: str, tmp_path: Path
) -> None:
    table = create(connection, database, bucket_count=2)
    files = write_files(tmp_path / "files", 4, 2000)
    arguments = of_executors(bootstrap_servers, database, files, tmp_path)
    run_until_done(arguments, 0, random.Random())
    assert ids_of(table) == Counter(range(8000))


def executors_of(driver_id: int) -> list[psutil.Process]:
    """Return the executors of a driver that are alive."""
    found = []
    for child in psutil.Process(driver_id).children(recursive=True):
        # Processes end while they are looked at, and those that were killed stay for a while.
        with suppress(psutil.Error):
            if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline()):
                found.append(child)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_executors_that_are_killed_change_nothing(
    connection: blocking.FlussConnection, bootstrap_servers: str, database: str, tmp_path: Path
) -> None:
    kills = int(os.environ.get("KILLS", "3"))
    table = create(connection, database, bucket_count=2)
    files = write_files(tmp_path / "files", 2 * kills + 2, 4000)
    arguments = of_executors(bootstrap_servers, database, files, tmp_path)
    with driver(arguments) as process:
        assert process.stdout is not None
        for number in range(kills):
            while commits(arguments) <= number:
                assert process.poll() is None
                time.sleep(0.02)
            eventually(lambda: bool(executors_of(process.pid)))
            executors_of(process.pid)[0].kill()
        assert process.stdout.readline().strip() == "done"
    assert ids_of(table) == Counter(range((2 * kills + 2) * 4000))
