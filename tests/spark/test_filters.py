"""A filter means the same to the source as to Spark itself, and to DuckDB.
Shown by random rows of many types and conditions with NULL, NaN, patterns and literals between two values."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from fluss import blocking
from tests.integration.filter_corpus import CORPUS_SCHEMA, duckdb_text, random_rows

CONDITIONS = [
    "ratio > 0.1 OR number IS NULL",
    "NOT (ratio <= 1.5) AND name LIKE 'a%'",
    "ratio <> 0.0 AND ratio < 1e300",
    "amount > 1.505 OR amount IN (-0.01, NULL)",
    "NOT (amount BETWEEN 0 AND 1.5)",
    "small >= 1.5 AND number < 100000",
    "number NOT IN (1, 2.25)",
    "number NOT IN (1, NULL)",
    "name > 'a' AND NOT name LIKE '%b%'",
    "name LIKE '_' OR name = ''",
    "flag AND day >= DATE '2026-02-28'",
    "NOT flag OR moment <= TIMESTAMP '2026-02-28 23:59:59.999999'",
    "data = X'61' OR data = X''",
    "(flag OR NULL) AND small IS NOT NULL",
]


def test_conditions_mean_the_same_to_all(
    spark: SparkSession, connection: blocking.FlussConnection, database: str, bootstrap_servers: str
) -> None:
    duckdb = pytest.importorskip("duckdb")
    given = random_rows(7, 300)
    path = blocking.TablePath(database, "corpus")
    properties = {"table.statistics.columns": "row,number,small,amount,ratio,name,flag,day,moment"}
    descriptor = blocking.TableDescriptor(blocking.Schema(CORPUS_SCHEMA), bucket_count=2, properties=properties)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
        for batch in given.to_batches(max_chunksize=50):
            writer.write_arrow(batch)
            writer.flush()
    reader = spark.read.format("fluss").option("bootstrap.servers", bootstrap_servers).option("table", str(path))
    everything = reader.load().cache()
    with duckdb.connect() as database_of_rows:
        database_of_rows.register("given", given)
        for condition in CONDITIONS:
            query = f"SELECT row FROM given WHERE {duckdb_text(condition)} ORDER BY row"
            wanted = [row for (row,) in database_of_rows.execute(query).fetchall()]
            by_spark = sorted(row["row"] for row in everything.where(condition).select("row").collect())
            filtered = reader.option("scan.filter", condition).load().select("row").collect()
            by_client = table.to_arrow(["row"], filter=condition)["row"].to_pylist()
            assert sorted(row["row"] for row in filtered) == by_spark == sorted(by_client) == wanted, condition
