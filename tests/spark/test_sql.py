"""Fluss tables in Spark SQL: created, altered and shown by fs.sql, and used by name in everything that takes a name.

Every statement runs in a real session against a real server; results are compared with what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from fluss import blocking
from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.spark import FlussSpark
from fluss.testing.cluster import ServerProcess


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str, database: str) -> Iterator[FlussSpark]:
    """A FlussSpark with an empty database attached, under the name that every test has for it."""
    fs = FlussSpark(spark, bootstrap_servers=bootstrap_servers)
    fs.attach(database, name="db")
    yield fs
    spark.sql("USE default")
    fs.detach(database)


@pytest.fixture
def orders(fs: FlussSpark) -> str:
    """A primary-key table with two rows."""
    fs.sql("""
        CREATE TABLE db.orders (id BIGINT, name STRING COMMENT 'what', price DECIMAL(10, 2), PRIMARY KEY (id))
        TBLPROPERTIES ('bucket.num' = '2')
    """)
    fs.sql("INSERT INTO db.orders VALUES (1, 'one', 1.50), (2, 'two', NULL)")
    return "db.orders"


def fs_path(fs: FlussSpark, table: str) -> str:
    """Return the Fluss name of a table whose database is attached as db."""
    database = fs._attachments.database_of("db")
    return f"{database}.{table}"


def rows(answer: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in answer.collect())


def first_column(answer: DataFrame) -> list[object]:
    return [row[0] for row in answer.collect()]


def test_a_table_lives_its_life_in_sql(fs: FlussSpark, spark: SparkSession) -> None:
    fs.sql("""
        CREATE TABLE db.events (  -- a log
            id BIGINT NOT NULL, kind STRING COMMENT 'of event', day STRING
        ) PARTITIONED BY (day) COMMENT 'it''s a log' TBLPROPERTIES ('bucket.num' = '1')
    """)
    fs.sql("ALTER TABLE db.events ADD PARTITION (day = '2026-01-01') PARTITION (day = '2026-01-02')")
    assert first_column(fs.sql("SHOW PARTITIONS db.events")) == ["day=2026-01-01", "day=2026-01-02"]
    spark.sql("INSERT INTO db.events VALUES (1, 'a', '2026-01-01'), (2, 'b', '2026-01-02')")
    fs.sql("ALTER TABLE db.events ADD COLUMN note STRING")
    spark.sql("INSERT INTO db.events (day, note, id) VALUES ('2026-01-02', 'new', 3)")
    assert rows(spark.sql("SELECT * FROM db.events WHERE day = '2026-01-02'")) == [
        (2, "b", "2026-01-02", None),
        (3, None, "2026-01-02", "new"),
    ]
    assert first_column(fs.sql("DESCRIBE db.events"))[:4] == ["id", "kind", "day", "note"]
    fs.sql("DROP TABLE db.events")
    assert rows(fs.sql("SHOW TABLES IN db")) == []
    assert not spark.catalog.tableExists("db.events")


@pytest.mark.slow
def test_queries_of_every_kind_read_attached_tables(fs: FlussSpark, spark: SparkSession, orders: str) -> None:
    assert rows(spark.sql("WITH c AS (SELECT id FROM db.orders) SELECT max(c.id) FROM c")) == [(2,)]
    # Spark 4.3 would answer some of these wrongly if filters were pushed into the scans.
    union = "SELECT id FROM db.orders WHERE id = 1 UNION ALL SELECT id FROM db.orders WHERE id = 2"
    assert rows(spark.sql(union)) == [(1,), (2,)]
    scans = """
        SELECT (SELECT count(*) FROM db.orders WHERE id = 1), (SELECT count(*) FROM db.orders),
               (SELECT count(*) FROM db.orders a JOIN db.orders b ON a.id = b.id WHERE a.id = 1)
    """
    assert rows(spark.sql(scans)) == [(1, 2, 1)]
    assert rows(spark.sql("SELECT id FROM db.orders WITH (`scan.filter` = 'id = 2')")) == [(2,)]
    spark.sql("CREATE OR REPLACE TEMP VIEW names AS SELECT name FROM db.orders")
    spark.sql("CREATE VIEW db.prices AS SELECT id, price FROM db.orders")
    assert rows(spark.sql("SELECT * FROM names")) == [("one",), ("two",)]
    spark.sql("INSERT INTO db.orders VALUES (3, 'three', 3)")
    assert spark.sql("SELECT * FROM db.prices").count() == spark.table("names").count() == 3
    spark.sql("CACHE TABLE db.orders")
    assert spark.table("db.orders").count() == 3
    spark.sql("UNCACHE TABLE db.orders")
    spark.sql("USE db")
    assert spark.sql("SELECT * FROM orders").count() == fs.sql("SELECT * FROM orders").count() == 3
    assert first_column(fs.sql("DESCRIBE orders"))[0] == "id"
    # A view of Spark's in the same database is Spark's.
    assert first_column(fs.sql("DESCRIBE db.prices")) == ["id", "price"]
    spark.sql("USE default")
    spark.sql("DROP VIEW db.prices")
    spark.sql("DROP VIEW names")


@pytest.mark.slow
def test_whatever_writes_by_name_writes_to_fluss(
    fs: FlussSpark, spark: SparkSession, orders: str, checkpoint: str
) -> None:
    more = spark.sql("SELECT 3L AS id, 'three' AS name, CAST(3 AS DECIMAL(10, 2)) AS price")
    more.writeTo("db.orders").append()
    more.selectExpr("id + 1 AS id", "name", "price").write.insertInto("db.orders")
    provider = "fluss__db__orders"
    more.selectExpr("id + 2 AS id", "name", "price").write.format(provider).mode("append").saveAsTable("db.orders")
    spark.sql("INSERT INTO db.orders WITH (`sink.target-columns` = 'id,name') VALUES (1, 'uno', NULL)")
    assert rows(fs.read(fs_path(fs, "orders"), columns=["id", "name"])) == [
        (1, "uno"),
        (2, "two"),
        (3, "three"),
        (4, "three"),
        (5, "three"),
    ]
    assert rows(spark.sql("SELECT price FROM db.orders WHERE id = 1"))[0][0] is not None
    fs.sql("CREATE TABLE db.copy (id BIGINT, name STRING, price DECIMAL(10, 2))")
    stream = spark.readStream.table("db.orders")
    query = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True).toTable("db.copy")
    assert query.awaitTermination(600)
    assert rows(spark.table("db.copy")) == rows(spark.table("db.orders"))


@pytest.mark.slow
def test_a_table_is_created_from_a_query(fs: FlussSpark, spark: SparkSession, orders: str) -> None:
    fs.sql(
        "CREATE TABLE db.totals TBLPROPERTIES ('primary.key' = 'id') AS SELECT id, price * 2 AS double FROM db.orders"
    )
    assert rows(spark.sql("SELECT id, CAST(double AS INT) FROM db.totals WHERE double IS NOT NULL")) == [(1, 3)]
    assert fs.catalog.table_info(fs_path(fs, "totals")).primary_keys == ["id"]
    fs.sql("CREATE TABLE IF NOT EXISTS db.totals AS SELECT 1 AS other")
    assert spark.table("db.totals").columns == ["id", "double"]
    with pytest.raises(FlussError, match="exists already"):
        fs.sql("CREATE TABLE db.totals AS SELECT 1 AS other")
    with pytest.raises(AnalysisException, match="nobody"):
        fs.sql("CREATE TABLE db.broken AS SELECT nobody FROM db.orders")
    # What fails while rows are written leaves no table behind.
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        fs.sql("CREATE TABLE db.broken AS SELECT id, 1 / (id - 1) AS x FROM db.orders")
    assert not fs.catalog.table_exists(fs_path(fs, "broken"))


@pytest.mark.slow
def test_what_show_create_table_says_creates_the_same_table(fs: FlussSpark, spark: SparkSession) -> None:
    fs.sql(r"""
        CREATE TABLE db.original (
            id BIGINT, `odd ``name` STRUCT<x: INT NOT NULL COMMENT 'inner', `y z`: ARRAY<MAP<STRING, DATE>>> NOT NULL,
            at TIMESTAMP, local TIMESTAMP_NTZ, clock TIME(3), flag BOOLEAN NOT NULL COMMENT 'it\'s "quoted"',
            visits BIGINT, region STRING, PRIMARY KEY (id, region) NOT ENFORCED
        ) PARTITIONED BY (region) COMMENT 'line\nbreak' CLUSTERED BY (id) INTO 3 BUCKETS
        TBLPROPERTIES ('table.merge-engine' = 'aggregation', 'fields.visits.agg' = 'sum', 'my.own' = 'x')
    """)
    statement = str(first_column(fs.sql("SHOW CREATE TABLE db.original"))[0])
    assert statement.startswith("CREATE TABLE fluss.")
    fs.sql(statement.replace("`original`", "`again`", 1))
    original, again = (fs.catalog.table_info(fs_path(fs, name)) for name in ("original", "again"))
    assert again._descriptor == original._descriptor
    assert spark.table("db.again").schema == spark.table("db.original").schema


@pytest.mark.slow
def test_show_and_describe_answer_like_spark(fs: FlussSpark, orders: str, database: str) -> None:
    assert fs.sql("SHOW TABLES IN db").collect() == [Row(namespace=database, tableName="orders", isTemporary=False)]
    assert rows(fs.sql("SHOW TABLES IN db LIKE 'x*|ord*'")) == [(database, "orders", False)]
    assert rows(fs.sql(f"SHOW TABLES IN fluss.{database} LIKE 'nothing'")) == []
    assert database in first_column(fs.sql("SHOW DATABASES"))
    assert first_column(fs.sql(f"SHOW DATABASES LIKE '{database}'")) == [database]
    assert "default" in first_column(fs.sql("SHOW DATABASES IN spark_catalog"))
    facts = {row.col_name: row.data_type for row in fs.sql("DESCRIBE EXTENDED db.orders").collect()}
    assert (facts["price"], facts["Type"], facts["Buckets"]) == ("decimal(10,2)", "primary-key table", "2")
    fs.sql("ALTER TABLE db.orders SET TBLPROPERTIES ('owner' = 'me')")
    assert rows(fs.sql("SHOW TBLPROPERTIES db.orders ('owner')")) == [("owner", "me")]
    fs.sql("ALTER TABLE db.orders UNSET TBLPROPERTIES ('owner')")
    assert "owner" not in first_column(fs.sql("SHOW TBLPROPERTIES db.orders"))
    described = {row[0]: row[1] for row in rows(fs.sql(f"DESCRIBE DATABASE fluss.{database}"))}
    assert described["Namespace Name"] == database


@pytest.mark.slow
def test_names_with_the_catalog_need_no_attaching(spark: SparkSession, bootstrap_servers: str, database: str) -> None:
    fs = FlussSpark(spark, bootstrap_servers=bootstrap_servers)
    fs.sql(f"CREATE TABLE fluss.{database}.`Web-Clicks` (id BIGINT, page STRING, PRIMARY KEY (id))")
    fs.sql(f"INSERT INTO fluss.{database}.`Web-Clicks` VALUES (1, 'fluss.x.y'), (2, 'b')")
    query = f"SELECT c.page FROM fluss.{database}.`Web-Clicks` c WHERE page = 'fluss.x.y' -- fluss.{database}.none"
    assert rows(fs.sql(query)) == [("fluss.x.y",)]
    changes = f"SELECT _change_type, id FROM fluss.{database}.`Web-Clicks$changelog`"
    assert rows(fs.sql(changes)) == [("insert", 1), ("insert", 2)]
    # Spark has its own names for all this, and no database of that name.
    assert not spark.catalog.databaseExists(database)
    assert fs.sql("SELECT :x AS x", args={"x": 3}).first() == Row(x=3)
    # The database of that name is no different.
    fs.sql(f"CREATE TABLE fluss.{database} (id INT)")
    fs.sql(f"INSERT INTO fluss.{database} VALUES (7)")
    assert rows(fs.sql(f"SELECT fluss.{database}.id FROM fluss.{database}")) == [(7,)]
    assert database in [row.tableName for row in fs.sql("SHOW TABLES IN fluss").collect()]
    fs.sql(f"DROP TABLE fluss.{database}")
    fs.sql(f"DROP DATABASE {database} CASCADE")
    assert database not in first_column(spark.sql("SHOW DATABASES"))


@pytest.mark.slow
def test_attaching_again_takes_over_what_others_have_changed(
    fs: FlussSpark, spark: SparkSession, connection: blocking.FlussConnection, database: str, orders: str
) -> None:
    fs.sql("CREATE TABLE db.gone (id INT)")
    admin = connection.get_admin()
    admin.drop_table(TablePath(database, "gone"))
    admin.alter_table(TablePath(database, "orders"), add_columns=[pa.field("note", pa.string())])
    fs.catalog.create_table(f"{database}.New-One", "id INT")
    assert fs.attach(database, name="db") == ["db.new_one", "db.orders"]
    assert spark.table("db.orders").columns == ["id", "name", "price", "note"]
    assert spark.table("db.new_one").count() == 0
    assert not spark.catalog.tableExists("db.gone")
    # Changes of Spark's entries alone are made good as well.
    spark.sql("DROP TABLE db.orders")
    fs.attach(database, name="db")
    assert spark.table("db.orders").count() == 2
    spark.sql("DROP DATABASE db CASCADE")
    assert fs.attach(database, name="db") == ["db.new_one", "db.orders"]
    fs.detach(database)
    assert not spark.catalog.databaseExists("db")
    assert fs.attach(database, ["orders"], name="db") == ["db.orders"]
    assert fs.sql("SELECT * FROM db.`New-One`").count() == 0


@pytest.mark.slow
def test_names_that_spark_cannot_tell_apart_or_has_already_are_refused(
    fs: FlussSpark, spark: SparkSession, database: str
) -> None:
    fs.sql("CREATE TABLE db.mine (id INT) USING parquet")
    with pytest.raises(FlussError, match=r"Spark has a table db.mine of its own \(parquet\)") as refused:
        fs.sql("CREATE TABLE db.mine (id INT) USING fluss")
    assert any("has been made" in note for note in refused.value.__notes__)
    spark.sql("DROP TABLE db.mine")
    fs.catalog.create_table(f"{database}.a-b", "id INT")
    fs.catalog.create_table(f"{database}.A_B", "id INT")
    with pytest.raises(FlussError, match=r"would both be db.a_b in Spark"):
        fs.attach(database, name="db")
    with pytest.raises(FlussError, match="has no table 'nobody'"):
        fs.attach(database, ["nobody"])


@pytest.mark.slow
def test_two_clusters_with_the_same_names_do_not_mix(
    fs: FlussSpark, spark: SparkSession, orders: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("other"), "-D", "durability=os") as other_server:
        other = FlussSpark(spark, bootstrap_servers=f"127.0.0.1:{other_server.port}")
        other.catalog.create_database("db")
        other.catalog.create_table("db.orders", "id BIGINT, other STRING")
        with pytest.raises(FlussError, match="has tables of another cluster"):
            other.attach("db")
        assert other.attach("db", name="other_db") == ["other_db.orders"]
        assert spark.sql("SELECT * FROM db.orders a JOIN other_db.orders b ON a.id = b.id").count() == 0
        # A statement of each finds its own tables, whatever the other one did to the name.
        assert other.sql("SELECT * FROM fluss.db.orders").columns == ["id", "other"]
        assert fs.sql("SELECT * FROM db.orders").columns == ["id", "name", "price"]
        other.detach("db")


@pytest.mark.slow
def test_rows_are_deleted_and_updated_by_statements(fs: FlussSpark, spark: SparkSession, orders: str) -> None:
    fs.sql("INSERT INTO db.orders VALUES (3, 'three', 3), (4, 'four', 4)")
    fs.sql("UPDATE db.orders SET PRICE = orders.price + 10, name = upper(name) WHERE orders.id IN (1, 3);")
    fs.sql("DELETE FROM db.orders WHERE id % 2 = 0 AND id < (SELECT max(id) FROM db.orders)")
    expected = [(1, "ONE", Decimal("11.50")), (3, "THREE", Decimal("13.00")), (4, "four", Decimal("4.00"))]
    assert rows(fs.sql("SELECT * FROM db.orders")) == expected
    fs.sql("DELETE FROM db.orders")
    assert fs.sql("SELECT * FROM db.orders").count() == 0
    fs.sql("CREATE TABLE db.log (id BIGINT)")
    for statement in ("DELETE FROM db.log WHERE id = 1", "UPDATE db.log SET id = 1"):
        with pytest.raises(FlussError, match="primary key"):
            fs.sql(statement)
    with pytest.raises(FlussError, match="'id' is in the primary key, which stays"):
        fs.sql("UPDATE db.orders SET ID = 5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE TABLE db.x (id INT PRIMRY)", r"(?s)column 20: the type of column 'id' is not understood.*\^"),
        ("CREATE TABLE db.x (id VARIANT)", "Column 'id' is variant"),
        ("CREATE TABLE db.x (id INT, PRIMARY KEY (nobody))", "Primary key column 'nobody' not found"),
        ("CREATE TABLE nowhere.x (id INT) USING fluss", "Database nowhere does not exist"),
        ("CREATE TABLE x (id INT) USING fluss", "In which database"),
        ("MERGE INTO db.orders USING s ON true WHEN MATCHED THEN DELETE", r"FlussSpark.merge\("),
        ("ALTER TABLE db.orders SET TBLPROPERTIES ('comment' = 'x')", "comment of a table is set when it is created"),
        ("ALTER TABLE db.orders DROP COLUMN name", "expected PARTITION, found 'COLUMN'"),
        ("DROP TABLE fluss.nowhere.x", "does not exist"),
        ("DROP DATABASE nowhere", "does not exist"),
    ],
)
def test_mistakes_in_statements_are_explained(fs: FlussSpark, orders: str, statement: str, problem: str) -> None:
    with pytest.raises(FlussError, match=problem):
        fs.sql(statement)


@pytest.mark.slow
def test_what_is_sparks_goes_to_spark(fs: FlussSpark, spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        fs.sql("DROP TABLE nowhere.orders")
    with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
        fs.sql("SELEC 'unclosed")
    fs.sql("CREATE DATABASE spark_catalog.own")
    fs.sql("CREATE TABLE own.t (id INT) USING parquet")
    assert ("own", "t", False) in rows(fs.sql("SHOW TABLES IN own"))
    assert not fs.catalog.database_exists("own")
    fs.sql("DROP DATABASE spark_catalog.own CASCADE")


def test_a_name_never_leads_to_another_table(fs: FlussSpark, spark: SparkSession, database: str) -> None:
    fs.sql("CREATE TABLE db.`a-b` (id BIGINT)")
    fs.sql("INSERT INTO db.`a-b` VALUES (1)")
    # What Spark calls it, and what differs in upper and lower case only, is it.
    for name in ("a-b", "a_b", "A_B"):
        assert first_column(fs.sql(f"SELECT id FROM db.`{name}`")) == [1]
    for name in ("a b", "a$b", "a.b", "a+b"):
        for statement in (
            f"SELECT * FROM db.`{name}`",
            f"DROP TABLE db.`{name}`",
            f"INSERT INTO db.`{name}` VALUES (2)",
        ):
            with pytest.raises(AnalysisException):
                fs.sql(statement)
    # A change names the table itself.
    for statement in ("DROP TABLE db.a_b", "ALTER TABLE db.a_b SET TBLPROPERTIES ('x' = 'y')"):
        with pytest.raises(FlussError, match=r"no table 'a_b' .* what Spark calls 'a-b': write .*`a-b`"):
            fs.sql(statement)
    assert fs.sql("DESCRIBE db.a_b").first()["col_name"] == "id"
    # The table of this very name goes before what Spark calls another one.
    fs.sql("CREATE TABLE db.a_b (id BIGINT)")
    fs.sql("INSERT INTO db.a_b VALUES (7)")
    assert first_column(fs.sql("SELECT id FROM db.a_b")) == [7]
    assert first_column(fs.sql("SELECT id FROM db.`a-b`")) == [1]
    fs.sql("DROP TABLE db.A_B")
    assert fs.catalog.list_tables(database) == ["a-b"]
    fs.sql("DROP TABLE db.`A-B`")
    assert fs.catalog.list_tables(database) == []


@pytest.mark.slow
def test_tables_that_differ_in_case_only_are_told_apart(fs: FlussSpark, database: str) -> None:
    for number, name in enumerate(("Orders", "orders")):
        fs.catalog.create_table(f"{database}.{name}", "id BIGINT")
        fs.sql(f"INSERT INTO fluss.{database}.{name} VALUES ({number})")
    assert first_column(fs.sql("SELECT id FROM db.Orders")) == [0]
    assert first_column(fs.sql(f"SELECT o.id + 1 FROM fluss.{database}.orders AS o")) == [2]
    with pytest.raises(FlussError, match="there are 'Orders', 'orders'; write the one that is meant"):
        fs.sql("DROP TABLE db.ORDERS")
    fs.sql("DROP TABLE db.orders")
    assert fs.catalog.list_tables(database) == ["Orders"]


@pytest.mark.slow
def test_a_database_is_dropped_by_a_name_that_means_only_one(fs: FlussSpark, bootstrap_servers: str) -> None:
    fs.catalog.create_database("db")
    try:
        with pytest.raises(FlussError, match=r"'db' is what Spark calls the database .*, too; write fluss\."):
            fs.sql("DROP DATABASE db CASCADE")
        fs.sql("DROP DATABASE fluss.db CASCADE")
        assert not fs.catalog.database_exists("db")
    finally:
        fs.catalog.drop_database("db", if_exists=True)
