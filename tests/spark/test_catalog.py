"""The catalog ``fluss`` of a session, without attaching anything: statements of ``spark.sql`` on tables of the cluster,
tables as they were, and rows that are deleted, updated and merged."""

from __future__ import annotations

import time

import pyspark
import pytest
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from fluss import FlussError
from fluss.spark import FlussSpark
from tests.spark.test_pushdown import scanned

pytestmark = pytest.mark.skipif(
    pyspark.__version__.startswith("4.1."), reason="Spark 4.1 is without the inner classes that this takes"
)


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


def test_tables_are_made_described_filled_and_read_by_statements_of_spark(fs: FlussSpark, database: str) -> None:
    sql = fs.spark.sql
    assert database in {row.namespace for row in sql("SHOW DATABASES IN fluss").collect()}
    sql(
        f"CREATE TABLE fluss.{database}.prices (item STRING NOT NULL, price INT COMMENT 'in cents', "
        "PRIMARY KEY (item)) COMMENT 'what things cost' CLUSTERED BY (item) INTO 2 BUCKETS "
        "TBLPROPERTIES ('own' = 'mine')"
    )
    info = fs.catalog.table_info(f"{database}.prices")
    assert (info.primary_keys, info.num_buckets, info.comment) == (["item"], 2, "what things cost")
    assert info.custom_properties == {"own": "mine"}
    assert [row.tableName for row in sql(f"SHOW TABLES IN fluss.{database}").collect()] == ["prices"]
    assert ("price", "int", "in cents") in sql(f"DESCRIBE fluss.{database}.prices").collect()
    sql(f"INSERT INTO fluss.{database}.prices VALUES ('milk', 3), ('tea', 5), ('rum', 20)")
    dear = sql(f"SELECT item FROM fluss.{database}.prices WHERE price > 4 ORDER BY item")
    assert [row.item for row in dear.collect()] == ["rum", "tea"]
    assert "columns [item, price] where `price` IS NOT NULL AND `price` > 4" in scanned(dear)
    sql(f"DELETE FROM fluss.{database}.prices WHERE item = 'rum' OR price < 0")
    changes = sql(f"SELECT _change_type, item FROM fluss.{database}.`prices$changelog` WHERE item = 'rum'").collect()
    assert sorted(row._change_type for row in changes) == ["delete", "insert"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql(f"SELECT * FROM fluss.{database}.nothing").collect()


@pytest.mark.slow
def test_statements_about_tables_and_databases_say_what_fluss_says(fs: FlussSpark, database: str) -> None:
    sql = fs.spark.sql
    sql(f"CREATE TABLE fluss.{database}.log (id BIGINT, day STRING) PARTITIONED BY (day)")
    assert fs.catalog.table_info(f"{database}.log").partition_keys == ["day"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql(f"CREATE TABLE fluss.{database}.log (id BIGINT)")
    sql(f"CREATE TABLE IF NOT EXISTS fluss.{database}.log (id BIGINT)")
    sql(f"ALTER TABLE fluss.{database}.log ADD COLUMNS (note STRING COMMENT 'free text')")
    sql(f"ALTER TABLE fluss.{database}.log SET TBLPROPERTIES ('own' = '1')")
    properties = {row.key: row.value for row in sql(f"SHOW TBLPROPERTIES fluss.{database}.log").collect()}
    assert properties["own"] == "1"
    sql(f"ALTER TABLE fluss.{database}.log UNSET TBLPROPERTIES ('own')")
    assert fs.catalog.table_schema(f"{database}.log").names == ["id", "day", "note"]
    with pytest.raises(UnsupportedOperationException, match="takes new columns at its end, and properties"):
        sql(f"ALTER TABLE fluss.{database}.log DROP COLUMN note")
    with pytest.raises(UnsupportedOperationException, match="cannot rename a table"):
        sql(f"ALTER TABLE fluss.{database}.log RENAME TO other")
    with pytest.raises(UnsupportedOperationException, match="Tables of Fluss are partitioned by columns"):
        sql(f"CREATE TABLE fluss.{database}.years (at DATE) PARTITIONED BY (years(at))")
    sql(f"CREATE TABLE fluss.{database}.copy AS SELECT id, 'x' AS name FROM range(5)")
    assert sql(f"SELECT count(*) AS n FROM fluss.{database}.copy").collect() == [(5,)]
    sql(f"DROP TABLE fluss.{database}.copy")
    sql(f"DROP TABLE IF EXISTS fluss.{database}.copy")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        sql(f"DROP DATABASE fluss.{database}")
    # Not kept beside the comment that the table has, as a property of this name.
    with pytest.raises(UnsupportedOperationException, match="comment of a table is set when it is created"):
        sql(f"COMMENT ON TABLE fluss.{database}.log IS 'new'")
    assert "comment" not in fs.catalog.table_info(f"{database}.log").custom_properties
    sql(f"CREATE DATABASE fluss.{database}_two COMMENT 'second'")
    sql(f"COMMENT ON DATABASE fluss.{database}_two IS 'third'")
    sql(f"ALTER DATABASE fluss.{database}_two SET DBPROPERTIES ('a' = 'b')")
    descriptor = fs.catalog.database_info(f"{database}_two").database_descriptor
    assert (descriptor.comment, descriptor.custom_properties) == ("third", {"a": "b"})
    sql(f"DROP DATABASE fluss.{database}_two")
    assert not fs.catalog.database_exists(f"{database}_two")


@pytest.mark.slow
def test_a_stream_is_read_and_written_by_names_of_the_catalog(fs: FlussSpark, database: str, checkpoint: str) -> None:
    spark = fs.spark
    fs.catalog.create_table(f"{database}.source", "id BIGINT, note STRING, size INT")
    fs.catalog.create_table(f"{database}.target", "id BIGINT", primary_keys=["id"])
    fs.write(spark.sql("SELECT id, 'n' AS note, CAST(id AS INT) AS size FROM range(20)"), f"{database}.source")
    rows = spark.readStream.table(f"fluss.{database}.source").where("size >= 15").select("id")
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.toTable(f"fluss.{database}.target")
    query.awaitTermination(600)
    assert "columns [id, size] where" in query._jsq.explainInternal(False)
    assert sorted(row.id for row in spark.table(f"fluss.{database}.target").collect()) == [15, 16, 17, 18, 19]


@pytest.mark.slow
def test_a_table_is_read_as_it_was_at_a_time_and_at_offsets(fs: FlussSpark, database: str) -> None:
    spark = fs.spark
    fs.catalog.create_table(f"{database}.log", "id BIGINT", bucket_count=2)
    fs.catalog.create_table(f"{database}.keyed", "id BIGINT, n INT", primary_keys=["id"], bucket_count=2)
    moments = []
    for turn in (1, 2):
        fs.write(spark.sql(f"SELECT id FROM range({turn * 10})"), f"{database}.log")
        fs.write(spark.sql(f"SELECT id, {turn} AS n FROM range({turn * 3})"), f"{database}.keyed")
        time.sleep(0.01)
        moments.append((int(time.time() * 1000), fs.version(f"{database}.log"), fs.version(f"{database}.keyed")))
        time.sleep(0.01)
    (then_ms, log_then, keyed_then), _ = moments
    fs.delete(table=f"{database}.keyed", where="id = 0")

    def keyed(as_of: str) -> list[tuple[int, int]]:
        return sorted((row.id, row.n) for row in spark.sql(f"SELECT * FROM fluss.{database}.keyed {as_of}").collect())

    assert spark.sql(f"SELECT * FROM fluss.{database}.log VERSION AS OF '{log_then}'").count() == 10
    assert keyed(f"VERSION AS OF '{keyed_then}'") == [(0, 1), (1, 1), (2, 1)]
    timestamp = f"TIMESTAMP AS OF timestamp_millis({then_ms})"
    assert spark.sql(f"SELECT count(*) AS n FROM fluss.{database}.log {timestamp}").collect() == [(10,)]
    assert keyed(timestamp) == [(0, 1), (1, 1), (2, 1)]
    assert keyed("") == [(each, 2) for each in range(1, 6)]
    assert fs.read(f"{database}.log", scan_as_of_timestamp=then_ms).count() == 10


# Rows that change


def test_rows_are_deleted_updated_and_merged_by_conditions(fs: FlussSpark, database: str) -> None:
    spark, table = fs.spark, f"{database}.prices"
    fs.catalog.create_table(table, "item STRING, price INT, note STRING", primary_keys=["item"], bucket_count=1)
    fs.write(
        spark.sql("SELECT * FROM VALUES ('a', 1, 'n'), ('b', 2, NULL), ('c', 3, 'n') AS t(item, price, note)"), table
    )
    fs.delete(table=table, where="price = 1")
    fs.update(table, {"price": "price * 10", "note": col("item")}, where="note IS NULL")

    def rows() -> set[tuple[str, int, str | None]]:
        return {(row.item, row.price, row.note) for row in fs.read(table).collect()}

    assert rows() == {("b", 20, "b"), ("c", 3, "n")}
    source = spark.sql("SELECT * FROM VALUES ('b', 5, 's'), ('c', -1, 's'), ('d', 7, 's') AS t(item, price, note)")
    (
        fs.merge(table, source, "target.item = source.item")
        .when_matched_delete("source.price < 0")
        .when_matched_update({"price": "target.price + source.price"})
        .when_not_matched_insert({"item": "source.item", "price": "source.price"})
        .execute()
    )
    assert rows() == {("b", 25, "b"), ("d", 7, None)}
    twice = source.union(source)
    with pytest.raises(FlussError, match="Several rows of the source are for one row"):
        fs.merge(table, twice, "target.item = source.item").when_matched_update_all().execute()
    with pytest.raises(FlussError, match="'item' is in the primary key, which stays"):
        fs.update(table, {"item": "'x'"})


@pytest.mark.slow
def test_all_clauses_of_a_merge(fs: FlussSpark, database: str) -> None:
    spark, table = fs.spark, f"{database}.stock"
    fs.catalog.create_table(table, "id INT, n INT", primary_keys=["id"], bucket_count=2)
    fs.write(spark.sql("SELECT CAST(id AS INT) AS id, 0 AS n FROM range(6)"), table)
    source = spark.sql("SELECT CAST(id AS INT) AS ID, CAST(id * 10 AS INT) AS n FROM range(4, 9)")
    (
        fs.merge(table, source, "target.id = source.id")
        .when_matched_update_all()
        .when_not_matched_insert_all("source.id < 8")
        .when_not_matched_by_source_update({"N": "-1"}, "target.id < 2")
        .when_not_matched_by_source_delete("target.id = 2")
        .execute()
    )
    expected = {0: -1, 1: -1, 3: 0, 4: 40, 5: 50, 6: 60, 7: 70}
    assert {row.id: row.n for row in fs.read(table).collect()} == expected
    fs.catalog.create_table(
        f"{database}.sums",
        "id INT, n INT",
        primary_keys=["id"],
        aggregations={"n": "sum"},
        properties={"table.merge-engine": "aggregation"},
    )
    with pytest.raises(FlussError, match="merge engine 'aggregation'"):
        fs.update(f"{database}.sums", {"n": "1"})
