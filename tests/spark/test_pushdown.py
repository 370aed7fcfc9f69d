"""What Spark's optimizer knows reaches the readers, and no query gives other rows because of it.

The rows of every query of a random corpus are compared: of Parquet files with the same data, of the Fluss table with
pushdown, and of the table without it. What is left out is seen in the plan, in the way of ``explain()``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from fluss.spark import FlussSpark
from fluss.spark.pushdown import installation
from fluss.spark.pushdown.java_source import RULE_CLASS
from tests.spark.query_corpus import CorpusTable, random_query, random_table

pytestmark = pytest.mark.skipif(
    pyspark.__version__.startswith("4.1."), reason="Spark 4.1 is without the inner classes that this takes"
)
_OFF = "spark.sql.fluss.scan.pushdown"
# Queries that are run as one, to save the start of a job for each of them.
_QUERIES_PER_JOB = 10


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


@contextmanager
def without_pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(_OFF, "false")
    try:
        yield
    finally:
        spark.conf.unset(_OFF)


def physical(rows: DataFrame) -> str:
    """Return the plan of a query as it is executed."""
    plan: str = rows._jdf.queryExecution().executedPlan().toString()
    return plan


def scans(rows: DataFrame) -> list[str]:
    """Return what the plan of a query says about its scans."""
    return [line.strip(" +-*()12:") for line in physical(rows).splitlines() if "Scan" in line]


def scanned(rows: DataFrame) -> str:
    """Return what the only scan of a query reads."""
    (scan,) = set(scans(rows))
    return scan.partition("] ")[2].partition(" RuntimeFilters")[0]


# The corpus


def make_table(fs: FlussSpark, database: str, table: CorpusTable, directory: Path) -> None:
    """Write a table twice: into Fluss, and what it has in the end into Parquet files; a view on each."""
    shape: dict[str, Any] = {"bucket_count": 2}
    if table.has_key:
        shape["primary_keys"] = ["id", "region"] if table.is_partitioned else ["id"]
    if table.is_partitioned:
        shape["partition_keys"] = ["region"]
    else:
        shape["properties"] = {} if table.has_key else {"table.statistics.columns": "*"}
    path = f"{database}.{table.name}"
    fs.catalog.create_table(path, table.ddl, **shape)
    if table.is_partitioned:
        for region in ("eu", "us", "ap"):
            fs.catalog.add_partition(path, {"region": region})
    for rows in table.writes:
        fs.write(fs.spark.createDataFrame(rows, table.ddl, verifySchema=False).coalesce(1), path)
    file = str(directory / table.name)
    fs.spark.createDataFrame(table.rows, table.ddl, verifySchema=False).coalesce(1).write.parquet(file)
    fs.spark.read.parquet(file).createOrReplaceTempView(f"{table.name}_parquet")
    fs.read(path).createOrReplaceTempView(f"{table.name}_fluss")


def answers(spark: SparkSession, queries: list[str], view: str) -> list[tuple[int, str]]:
    """Run queries on a view, and return the rows of each as texts, sorted."""
    texts = [
        f"SELECT {number} AS q, CAST(struct(*) AS STRING) AS r FROM ({query.format(t=view)})"
        for number, query in enumerate(queries)
    ]
    rows = spark.sql(" UNION ALL ".join(texts)).collect()
    return sorted((row.q, row.r) for row in rows)


def compare(fs: FlussSpark, table: CorpusTable, queries: list[str]) -> None:
    spark = fs.spark
    expected = answers(spark, queries, f"{table.name}_parquet")
    with_pushdown = answers(spark, queries, f"{table.name}_fluss")
    with without_pushdown(spark):
        plain = answers(spark, queries, f"{table.name}_fluss")
    for name, found in (("with", with_pushdown), ("without", plain)):
        wrong = {number for number, _ in set(found) ^ set(expected)}
        assert found == expected, f"{name} pushdown, {table.ddl}: {[queries[number] for number in sorted(wrong)]}"


# Ends what hangs, and nothing else.
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "query_count"),
    [(1, 6), *(pytest.param(seed, 50, marks=pytest.mark.slow) for seed in range(2, 12))],
)
def test_random_queries_give_the_rows_that_they_give_on_parquet(
    fs: FlussSpark, database: str, tmp_path: Path, seed: int, query_count: int
) -> None:
    rng = random.Random(seed)
    table = random_table(rng, f"t{seed}", row_count=40)
    make_table(fs, database, table, tmp_path)
    queries = [random_query(rng, table) for _ in range(query_count)]
    for begin in range(0, query_count, _QUERIES_PER_JOB):
        compare(fs, table, queries[begin : begin + _QUERIES_PER_JOB])
    assert rule(fs.spark).lastError() is None


def rule(spark: SparkSession) -> Any:
    return installation._loaded(spark, RULE_CLASS)


# What reaches a reader


@pytest.fixture
def orders(fs: FlussSpark, database: str) -> str:
    """A log table with two partitions and 200 rows, and a table with a primary key, ``<name>_keyed``."""
    path = f"{database}.orders"
    fs.catalog.create_table(path, "id BIGINT, day STRING, price DOUBLE, note STRING", partition_keys=["day"])
    fs.catalog.create_table(f"{path}_keyed", "id BIGINT, note STRING", primary_keys=["id"])
    for day in ("1", "2"):
        fs.catalog.add_partition(path, {"day": day})
    rows = fs.spark.sql("SELECT id, CAST(id % 2 + 1 AS STRING) AS day, id / 4 AS price, 'n' AS note FROM range(200)")
    fs.write(rows, path)
    fs.write(rows.select("id", "note"), f"{path}_keyed")
    return path


def test_columns_conditions_limits_and_counts_reach_the_reader(fs: FlussSpark, orders: str) -> None:
    spark = fs.spark
    chosen = fs.read(orders).where("day = '2' AND price < 2").select("id")
    assert sorted(row.id for row in chosen.collect()) == [1, 3, 5, 7]
    assert scanned(chosen).startswith("columns [id, day, price] where ")
    assert scanned(chosen).endswith("`day` = '2' AND `price` < 2.0")
    assert scanned(fs.read(orders).limit(3)) == "columns [id, day, price, note] limit 3"
    # Rows have to be read to be counted, but none of their columns.
    for table in (orders, f"{orders}_keyed"):
        counted = fs.read(table).groupBy().count()
        assert counted.collect() == [(200,)]
        assert scanned(counted) == "columns []"
    # Rows that are wanted as they are are not copied by a projection.
    assert physical(fs.read(orders)).startswith("BatchScan")
    assert physical(fs.read(orders).select("id", "note")).startswith("BatchScan")
    assert physical(fs.read(orders).selectExpr("id + 1")).lstrip("*(1) ").startswith("Project")
    # By the name of the format, and by a name in SQL.
    options = {"bootstrap.servers": fs.options["bootstrap.servers"], "table": orders}
    assert scanned(spark.read.format("fluss").options(**options).load().select("note")) == "columns [note]"
    fs.attach(orders.partition(".")[0])
    try:
        assert scanned(spark.sql(f"SELECT max(id) FROM {orders}_keyed")) == "columns [id]"
    finally:
        fs.detach(orders.partition(".")[0])
    # Off, for a query and for the session.
    assert scanned(fs.read(orders, scan_pushdown=False).select("id")) == "(Python)"
    with without_pushdown(spark):
        assert scanned(fs.read(orders).select("id")) == "(Python)"
    assert rule(spark).lastError() is None


def test_conditions_on_times_of_long_ago_leave_out_no_rows(fs: FlussSpark, database: str) -> None:
    spark, table = fs.spark, f"{database}.history"
    fs.catalog.create_table(table, "id INT, at TIMESTAMP, day DATE", bucket_count=1)
    days = (
        "0001-01-01",
        "0044-03-15",
        "1500-06-01",
        "1582-10-10",
        "1850-07-01",
        "1899-12-31",
        "1900-01-02",
        "9999-12-31",
    )
    values = ", ".join(f"({number}, TIMESTAMP '{day} 00:00:00', DATE '{day}')" for number, day in enumerate(days))
    fs.write(spark.sql(f"SELECT * FROM VALUES {values} AS t(id, at, day)"), table)
    rows = fs.read(table)
    for number, day in enumerate(days):
        for column, value in (("at", f"TIMESTAMP '{day} 00:00:00'"), ("day", f"DATE '{day}'")):
            for test, ids in (("=", [number]), ("<=", range(number + 1)), (">=", range(number, len(days)))):
                found = sorted(row.id for row in rows.where(f"{column} {test} {value}").select("id").collect())
                assert found == [*ids], f"{column} {test} {value}"


def test_a_dataframe_has_the_same_rows_in_every_query_on_it(fs: FlussSpark, orders: str) -> None:
    rows = fs.read(orders)
    assert rows.where("day = '1'").count() == 100
    fs.write(fs.spark.sql("SELECT id, '2' AS day FROM range(1000, 1005)"), orders)
    assert (rows.count(), rows.where("day = '2'").count(), rows.where("id >= 1000").count()) == (200, 100, 0)
    assert fs.read(orders).count() == 205


def test_a_stream_reads_and_counts_only_what_its_query_needs(fs: FlussSpark, orders: str, checkpoint: str) -> None:
    source = fs.read_stream(orders)
    rows = source.where("day = '2' AND price < 2").select("id").union(source.select("id").where("id >= 198"))
    query = (
        rows.writeStream.format("memory")
        .queryName("pushed_stream")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(600)
    assert sorted(row.id for row in fs.spark.table("pushed_stream").collect()) == [1, 3, 5, 7, 198, 199]
    # Of the real source, in whose place another one was planned.
    assert sum(progress.numInputRows for progress in query.recentProgress) == 6
    plan = query._jsq.explainInternal(False)
    assert "columns [id, day, price] where" in plan
    assert "columns [id] where" in plan


def test_without_the_inner_classes_of_spark_a_session_is_as_it_was(
    fs: FlussSpark, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_error(spark: SparkSession, class_name: str) -> Any:
        raise RuntimeError(
            "An error occurred:\n: org.codehaus.commons.compiler.CompileException: no such class\n\tat x"
        )

    monkeypatch.setattr(installation, "_loaded", compile_error)
    monkeypatch.setattr(installation, "_missing", set())
    with caplog.at_level(logging.WARNING, logger=installation.__name__):
        assert not installation.install_pushdown(fs.spark)
        # Once is enough, and what the catalog is made of is missing, too.
        assert not installation.install_pushdown(fs.spark)
        assert not installation.install_catalog(fs.spark, object())
    (line,) = caplog.messages
    assert line.endswith(
        "read all columns in this session of Spark: org.codehaus.commons.compiler.CompileException: no such class"
    )
