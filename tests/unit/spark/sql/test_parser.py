"""The statements about Fluss tables: each form that is understood, and what is said about the others. No session."""

from __future__ import annotations

import pytest

from fluss.errors import FlussError
from fluss.spark.sql.parser import Head, head_of, parse
from fluss.spark.sql.statements import (
    AddColumns,
    AddPartitions,
    ColumnText,
    CreateDatabase,
    CreateTable,
    DeleteRows,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    Name,
    SetProperties,
    ShowCreateTable,
    ShowDatabases,
    ShowPartitions,
    ShowProperties,
    ShowTables,
    Statement,
    UnsetProperties,
    UpdateRows,
)
from fluss.spark.sql.tokens import statement_tokens

T = Name(("d", "t"))


def head(text: str) -> Head | None:
    return head_of(statement_tokens(text))


def read(text: str) -> Statement:
    tokens = statement_tokens(text)
    found = head_of(tokens)
    assert found is not None
    return parse(text, tokens, found)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("create database d", CreateDatabase(Name(("d",)))),
        (
            "CREATE SCHEMA IF NOT EXISTS fluss.d COMMENT 'c' WITH DBPROPERTIES ('a' = 'b')",
            CreateDatabase(Name(("fluss", "d")), True, "c", {"a": "b"}),
        ),
        ("DROP DATABASE IF EXISTS d CASCADE;", DropDatabase(Name(("d",)), True, True)),
        ("DROP DATABASE d RESTRICT", DropDatabase(Name(("d",)))),
        ("SHOW DATABASES", ShowDatabases()),
        ("SHOW SCHEMAS IN fluss LIKE 'a*'", ShowDatabases("a*")),
        ("DESCRIBE DATABASE EXTENDED d", DescribeDatabase(Name(("d",)))),
        ("DROP TABLE IF EXISTS d.t PURGE", DropTable(T, True)),
        ("DROP TABLE `d`.`t`", DropTable(T)),
        ("SHOW TABLES", ShowTables()),
        ("SHOW TABLES FROM d LIKE 'x|y'", ShowTables(Name(("d",)), "x|y")),
        ("SHOW PARTITIONS d.t", ShowPartitions(T)),
        ("SHOW PARTITIONS d.t PARTITION (a = 1)", ShowPartitions(T, {"a": "1"})),
        ("SHOW CREATE TABLE d.t", ShowCreateTable(T)),
        ("SHOW TBLPROPERTIES d.t", ShowProperties(T)),
        ("SHOW TBLPROPERTIES d.t ('table.log.ttl')", ShowProperties(T, "table.log.ttl")),
        ("DESC d.t", DescribeTable(T)),
        ("DESCRIBE TABLE FORMATTED d.t", DescribeTable(T, True)),
        ("ALTER TABLE d.t SET TBLPROPERTIES ('a' = 'b', c.d = 3)", SetProperties(T, {"a": "b", "c.d": "3"})),
        ("ALTER TABLE d.t UNSET TBLPROPERTIES IF EXISTS ('a', b.c)", UnsetProperties(T, ("a", "b.c"))),
        ("ALTER TABLE d.t ADD COLUMN a INT", AddColumns(T, (ColumnText("a", "INT"),))),
        (
            "ALTER TABLE d.t ADD COLUMNS (a INT COMMENT 'x', `b c` ARRAY<STRING>)",
            AddColumns(T, (ColumnText("a", "INT", comment="x"), ColumnText("b c", "ARRAY<STRING>"))),
        ),
        (
            "ALTER TABLE d.t ADD IF NOT EXISTS PARTITION (day = '2026-01-01', n = 2) "
            "PARTITION (day = DATE '2026-01-02', n = 3)",
            AddPartitions(T, ({"day": "2026-01-01", "n": "2"}, {"day": "2026-01-02", "n": "3"}), True),
        ),
        ("ALTER TABLE d.t DROP IF EXISTS PARTITION (day = 'x')", DropPartitions(T, ({"day": "x"},), True)),
        ("DELETE FROM d.t", DeleteRows(T)),
        (
            "DELETE FROM d.t WHERE a IN (SELECT b FROM s WHERE c = ';');",
            DeleteRows(T, "a IN (SELECT b FROM s WHERE c = ';')"),
        ),
        ("UPDATE d.t SET a = 1", UpdateRows(T, {"a": "1"})),
        (
            "UPDATE d.t SET t.a = coalesce(a, 1), `b c` = 'x, WHERE' WHERE a > 1",
            UpdateRows(T, {"a": "coalesce(a, 1)", "b c": "'x, WHERE'"}, "a > 1"),
        ),
    ],
)
def test_statements_are_understood(text: str, statement: Statement) -> None:
    assert read(text) == statement


def test_create_table_with_everything() -> None:
    statement = read("""
        CREATE TABLE IF NOT EXISTS fluss.d.t (
            id BIGINT NOT NULL COMMENT 'key',   -- the first
            `a b` STRUCT<x: INT NOT NULL, y: MAP<STRING, DECIMAL(10, 2)>>,
            day STRING,
            CONSTRAINT pk PRIMARY KEY (id, day) NOT ENFORCED
        ) USING fluss
        PARTITIONED BY (day)
        COMMENT 'it''s'
        TBLPROPERTIES ('bucket.num' = '4')
        OPTIONS (table.log.ttl '3 d')
    """)
    assert statement == CreateTable(
        Name(("fluss", "d", "t")),
        columns=(
            ColumnText("id", "BIGINT", False, "key"),
            ColumnText("a b", "STRUCT<x: INT NOT NULL, y: MAP<STRING, DECIMAL(10, 2)>>"),
            ColumnText("day", "STRING"),
        ),
        primary_keys=("id", "day"),
        partition_keys=("day",),
        comment="it's",
        properties={"bucket.num": "4", "table.log.ttl": "3 d"},
        if_not_exists=True,
    )


def test_a_column_may_be_the_key_itself() -> None:
    statement = read("CREATE TABLE d.t (id INT PRIMARY KEY NOT ENFORCED, x STRING) CLUSTERED BY (id) INTO 3 BUCKETS")
    assert statement == CreateTable(
        T,
        columns=(ColumnText("id", "INT"), ColumnText("x", "STRING")),
        primary_keys=("id",),
        bucket_keys=("id",),
        bucket_count=3,
    )


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("CREATE TABLE d.t AS SELECT 1 AS a", "SELECT 1 AS a"),
        ("CREATE TABLE d.t USING fluss WITH ('a' = 'b') AS (SELECT 1);", "(SELECT 1)"),
        (
            "CREATE TABLE d.t COMMENT 'x' AS WITH c AS (SELECT 1) SELECT * FROM c",
            "WITH c AS (SELECT 1) SELECT * FROM c",
        ),
        ("CREATE TABLE d.t SELECT 1 -- one", "SELECT 1 -- one"),
        ("CREATE TABLE d.t (PRIMARY KEY (a)) AS VALUES (1)", "VALUES (1)"),
    ],
)
def test_create_table_takes_a_query(text: str, query: str) -> None:
    statement = read(text)
    assert isinstance(statement, CreateTable)
    assert statement.query == query


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("CREATE TABLE d.t", "column 17", "needs columns, or AS SELECT"),
        ("CREATE TABLE d.t (a INT", "column 24", r"expected ',' or '\)', found the end"),
        ("CREATE TABLE d.t (a, b INT)", "column 20", "expected the type of column 'a', found ','"),
        ("CREATE TABLE d.t (a INT DEFAULT 3)", "column 25", "columns have no DEFAULT"),
        ("CREATE TABLE d.t (a INT PRIMARY KEY, PRIMARY KEY (a))", "column 38", "one primary key"),
        ("CREATE TABLE d.t (a INT,\n  PRIMARY KEY a)", "Line 2, column 15", r"expected '\(', found 'a'"),
        ("CREATE TABLE d.t (a INT) PARTITIONED BY (a STRING)", "column 44", r"expected ',' or '\)', found 'STRING'"),
        ("CREATE TABLE d.t (a INT) TBLPROPERTIES ('a' = 'b', 'a' = 'c')", "column 52", "'a' is there twice"),
        ("CREATE TABLE d.t (a INT) TBLPROPERTIES (a = b)", "column 45", "expected the value of 'a', found 'b'"),
        ("CREATE TABLE d.t (a INT) CLUSTERED BY (a) INTO x BUCKETS", "column 48", "expected the number of buckets"),
        ("CREATE TABLE d.t (a INT) LOCATION '/x'", "column 26", "expected the end of the statement, found 'LOCATION'"),
        ("CREATE TABLE d.t (a INT) AS SELECT 1", "column 37", "the query decides about the columns"),
        ("CREATE TABLE d.t AS", "column 20", "expected a query after AS"),
        ("ALTER TABLE d.t RENAME TO x", "column 17", "expected ADD, DROP PARTITION, SET or UNSET, found 'RENAME'"),
        ("ALTER TABLE d.t DROP COLUMN a", "column 22", "expected PARTITION, found 'COLUMN'"),
        ("ALTER TABLE d.t ADD COLUMN a INT PRIMARY KEY", "column 45", "primary key of a table cannot be changed"),
        ("ALTER TABLE d.t ADD PARTITION (a)", "column 33", r"expected '=', found '\)'"),
        ("ALTER TABLE d.t ADD PARTITION (a = 1, a = 2)", "column 41", "'a' is there twice"),
        ("DROP TABLE 'x'", "column 12", "expected the name of a table, found \"'x'\""),
        ("DELETE FROM d.t a = 1", "column 17", "expected the end of the statement, found 'a'"),
        ("DELETE FROM d.t WHERE", "column 22", "expected a condition, found the end"),
        ("UPDATE d.t a = 1", "column 12", "expected SET, found 'a'"),
        ("UPDATE d.t SET a = 1, a = 2", "column 23", "'a' is there twice"),
        ("UPDATE d.t SET a =, b = 1", "column 19", "expected the value of 'a', found ','"),
        ("SHOW TABLES IN d LIKE x", "column 23", "expected a pattern in quotes, found 'x'"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(FlussError, match=problem) as refused:
        read(text)
    assert place in refused.value.message
    assert "^" in refused.value.message
    assert "For example: " in refused.value.message


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("MERGE INTO d.t USING s ON a = b WHEN MATCHED THEN DELETE", r"FlussSpark.merge\("),
        ("TRUNCATE TABLE d.t", "dropping its partitions"),
    ],
)
def test_what_cannot_be_done_is_said_together_with_what_can(text: str, instead: str) -> None:
    with pytest.raises(FlussError, match=instead):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM d.t",
        "INSERT INTO d.t VALUES (1)",
        "CREATE VIEW d.v AS SELECT 1",
        "CREATE OR REPLACE TEMP VIEW v AS SELECT 1",
        "DROP VIEW d.v",
        "ALTER VIEW d.v RENAME TO w",
        "SHOW FUNCTIONS",
        "SHOW TABLE EXTENDED IN d LIKE 'x'",
        "EXPLAIN SELECT 1",
        "",
        ";",
    ],
)
def test_everything_else_is_sparks(text: str) -> None:
    assert head(text) is None


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("CREATE TABLE d.t (a INT) USING FLUSS", "fluss"),
        ("CREATE TABLE d.t USING parquet AS SELECT a FROM x", "parquet"),
        ("CREATE TABLE d.t (using INT)", None),
        ("CREATE TABLE d.t AS SELECT * FROM x JOIN y USING (a)", None),
        ("CREATE TABLE d.t (", None),
    ],
)
def test_the_provider_is_found_before_the_statement_is_read(text: str, provider: str | None) -> None:
    assert head(text) == Head("CREATE", CreateTable, T, provider)


def test_a_broken_statement_still_says_what_it_is_about() -> None:
    assert head("DROP TABLE IF EXISTS a.b.c whatever") == Head("DROP", DropTable, Name(("a", "b", "c")))
    assert head("CREATE TABLE") == Head("CREATE", CreateTable, None)
