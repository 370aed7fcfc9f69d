"""A filter means the same to the source as to Spark itself, and to DuckDB.
Shown by random rows of many types and conditions with NULL, NaN, patterns and literals between two values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from fluss import blocking
from tests.integration.filter_corpus import CORPUS_SCHEMA, conditions, duckdb_text, random_rows

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


@dataclass(frozen=True)
class Corpus:
    """Random rows in a table, as Spark has them without any filter, and in DuckDB."""

    table: blocking.FlussTable
    reader: Any
    everything: DataFrame
    duckdb: Any

    def check(self, condition: str, by_spark: list[int]) -> None:
        query = f"SELECT row FROM given WHERE {duckdb_text(condition)} ORDER BY row"
        wanted = [row for (row,) in self.duckdb.execute(query).fetchall()]
        filtered = self.reader.option("scan.filter", condition).load().select("row").collect()
        by_client = self.table.to_arrow(["row"], filter=condition)["row"].to_pylist()
        assert sorted(row["row"] for row in filtered) == by_spark == sorted(by_client) == wanted, condition


@pytest.fixture
def corpus(
    spark: SparkSession, connection: blocking.FlussConnection, database: str, bootstrap_servers: str
) -> Iterator[Corpus]:
    duckdb = pytest.importorskip("duckdb")
    rows: pa.Table = random_rows(7, 300)
    path = blocking.TablePath(database, "corpus")
    properties = {"table.statistics.columns": "row,number,small,amount,ratio,name,flag,day,moment"}
    descriptor = blocking.TableDescriptor(blocking.Schema(CORPUS_SCHEMA), bucket_count=2, properties=properties)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
        for batch in rows.to_batches(max_chunksize=50):
            writer.write_arrow(batch)
            writer.flush()
    reader = spark.read.format("fluss").option("bootstrap.servers", bootstrap_servers).option("table", str(path))
    with duckdb.connect() as database_of_rows:
        database_of_rows.register("given", rows)
        yield Corpus(table, reader, reader.load().cache(), database_of_rows)


def test_conditions_mean_the_same_to_all(corpus: Corpus) -> None:
    for condition in CONDITIONS:
        found = corpus.everything.where(condition).select("row").collect()
        corpus.check(condition, sorted(row["row"] for row in found))


@pytest.mark.slow
def test_random_conditions_mean_the_same_to_all(corpus: Corpus) -> None:
    # Spark judges all of them in one query.
    @given(st.lists(conditions, min_size=10, max_size=10))
    def agree(drawn: list[str]) -> None:
        judged = [expr(condition).alias(f"c{number}") for number, condition in enumerate(drawn)]
        rows = corpus.everything.select("row", *judged).collect()
        for number, condition in enumerate(drawn):
            corpus.check(condition, sorted(row["row"] for row in rows if row[f"c{number}"]))

    agree()
