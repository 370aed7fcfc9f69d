"""Read a statement about something in Fluss; what cannot be understood is refused, with the place and an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluss.spark.sql.create_table import column_of, create_table, properties_of, property_key
from fluss.spark.sql.cursor import Cursor
from fluss.spark.sql.head import Head
from fluss.spark.sql.statements import (
    AddColumns,
    AddPartitions,
    ColumnText,
    CreateDatabase,
    CreateTable,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    SetProperties,
    ShowCreateTable,
    ShowDatabases,
    ShowPartitions,
    ShowProperties,
    ShowTables,
    Statement,
    UnsetProperties,
)
from fluss.spark.sql.text import Kind, Token

_ALTER_EXAMPLES: Final = (
    "ALTER TABLE sales.orders ADD COLUMNS (note STRING COMMENT 'free text'), "
    "SET TBLPROPERTIES ('table.log.ttl' = '3 d'), UNSET TBLPROPERTIES ('table.log.ttl'), "
    "ADD PARTITION (day = '2026-01-01'), DROP PARTITION (day = '2026-01-01')"
)


def parse(text: str, tokens: list[Token], head: Head) -> Statement:
    """Read a statement about something in Fluss; one that cannot be understood is a FlussError."""
    cursor = Cursor(text, tokens)
    if head.kind is None:
        if head.verb != "ALTER":
            cursor.fail_at(tokens[0], _CANNOT[head.verb])
        statement: Statement = _alter_table(cursor)
    else:
        statement = _PARSERS[head.kind](cursor)
    cursor.take_symbol(";")
    if not cursor.at_end():
        cursor.fail(f"expected the end of the statement, found {cursor.shown()}")
    return statement


_CANNOT: Final = {
    "DELETE": "rows are deleted with FlussSpark.delete(dataframe_of_keys, table), or by writing rows that "
    "sink.change-type-column marks with -D",
    "UPDATE": "rows are changed by writing them again: INSERT INTO, or FlussSpark.upsert(dataframe, table), for some "
    "columns with target_columns",
    "MERGE": "rows of a table with a primary key are merged by writing them: INSERT INTO, or "
    "FlussSpark.upsert(dataframe, table)",
    "TRUNCATE": "a table is emptied by dropping its partitions, or by dropping and creating it",
}


# Databases


def _create_database(cursor: Cursor) -> CreateDatabase:
    cursor.example = "CREATE DATABASE IF NOT EXISTS sales COMMENT 'all orders'"
    cursor.skip(2)
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.name("the name of a database")
    comment: str | None = None
    properties: dict[str, str] = {}
    while True:
        if cursor.take_word("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.take_words("WITH", "DBPROPERTIES") or cursor.take_words("WITH", "PROPERTIES"):
            properties |= properties_of(cursor)
        else:
            return CreateDatabase(name, if_not_exists, comment, properties)


def _drop_database(cursor: Cursor) -> DropDatabase:
    cursor.example = "DROP DATABASE IF EXISTS sales CASCADE"
    cursor.skip(2)
    if_exists = cursor.take_words("IF", "EXISTS")
    name = cursor.name("the name of a database")
    return DropDatabase(name, if_exists, cascade=cursor.take_word("CASCADE", "RESTRICT") == "CASCADE")


def _show_databases(cursor: Cursor) -> ShowDatabases:
    cursor.example = "SHOW DATABASES LIKE 'sales*'"
    cursor.skip(2)
    if cursor.take_word("FROM", "IN"):
        cursor.name("the name of a catalog")
    return ShowDatabases(_pattern(cursor))


def _describe_database(cursor: Cursor) -> DescribeDatabase:
    cursor.example = "DESCRIBE DATABASE sales"
    cursor.skip(2)
    cursor.take_word("EXTENDED")
    return DescribeDatabase(cursor.name("the name of a database"))


# Tables


def _drop_table(cursor: Cursor) -> DropTable:
    cursor.example = "DROP TABLE IF EXISTS sales.orders"
    cursor.skip(2)
    if_exists = cursor.take_words("IF", "EXISTS")
    name = cursor.name("the name of a table")
    cursor.take_word("PURGE")
    return DropTable(name, if_exists)


def _alter_table(cursor: Cursor) -> Statement:
    cursor.example = _ALTER_EXAMPLES
    cursor.skip(2)
    name = cursor.name("the name of a table")
    if cursor.take_words("SET", "TBLPROPERTIES"):
        return SetProperties(name, properties_of(cursor))
    if cursor.take_words("UNSET", "TBLPROPERTIES"):
        cursor.take_words("IF", "EXISTS")
        keys: list[str] = []
        cursor.listed(lambda: keys.append(property_key(cursor)))
        return UnsetProperties(name, tuple(keys))
    if cursor.take_word("ADD"):
        if cursor.take_word("COLUMN", "COLUMNS"):
            return AddColumns(name, _added_columns(cursor))
        if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
        return AddPartitions(name, _partitions(cursor), if_not_exists)
    if cursor.take_word("DROP"):
        if_exists = cursor.take_words("IF", "EXISTS")
        return DropPartitions(name, _partitions(cursor), if_exists)
    cursor.fail(f"expected ADD, DROP PARTITION, SET or UNSET, found {cursor.shown()}")


def _added_columns(cursor: Cursor) -> tuple[ColumnText, ...]:
    columns: list[ColumnText] = []

    def column() -> None:
        added, is_key = column_of(cursor)
        if is_key:
            cursor.fail("the primary key of a table cannot be changed")
        columns.append(added)

    if cursor.peek().is_symbol("("):
        cursor.listed(column)
    else:
        column()
        while cursor.take_symbol(","):
            column()
    return tuple(columns)


def _partitions(cursor: Cursor) -> tuple[dict[str, str], ...]:
    specs: list[dict[str, str]] = []
    cursor.expect_words("PARTITION")
    specs.append(_partition_spec(cursor))
    while True:
        cursor.take_symbol(",")
        if not cursor.take_word("PARTITION"):
            return tuple(specs)
        specs.append(_partition_spec(cursor))


def _partition_spec(cursor: Cursor) -> dict[str, str]:
    spec: dict[str, str] = {}

    def value() -> None:
        column = cursor.identifier("the name of a partition column")
        if column in spec:
            cursor.fail(f"'{column}' is there twice")
        cursor.expect_symbol("=")
        # DATE '2026-01-01' says the same as '2026-01-01': the value of a partition is text.
        if cursor.peek(1).kind is Kind.STRING:
            cursor.take_word("DATE")
        if cursor.peek().kind not in (Kind.STRING, Kind.NUMBER) and not cursor.peek().is_word("TRUE", "FALSE"):
            cursor.fail(f"expected the value of '{column}', found {cursor.shown()}")
        spec[column] = cursor.take().value

    cursor.listed(value)
    return spec


# Show and describe


def _show_tables(cursor: Cursor) -> ShowTables:
    cursor.example = "SHOW TABLES IN sales LIKE 'order*'"
    cursor.skip(2)
    database = cursor.name("the name of a database") if cursor.take_word("FROM", "IN") else None
    return ShowTables(database, _pattern(cursor))


def _show_partitions(cursor: Cursor) -> ShowPartitions:
    cursor.example = "SHOW PARTITIONS sales.orders PARTITION (day = '2026-01-01')"
    cursor.skip(2)
    name = cursor.name("the name of a table")
    return ShowPartitions(name, _partition_spec(cursor) if cursor.take_word("PARTITION") else {})


def _show_properties(cursor: Cursor) -> ShowProperties:
    cursor.example = "SHOW TBLPROPERTIES sales.orders ('table.log.ttl')"
    cursor.skip(2)
    name = cursor.name("the name of a table")
    if not cursor.take_symbol("("):
        return ShowProperties(name)
    key = property_key(cursor)
    cursor.expect_symbol(")")
    return ShowProperties(name, key)


def _show_create_table(cursor: Cursor) -> ShowCreateTable:
    cursor.example = "SHOW CREATE TABLE sales.orders"
    cursor.skip(3)
    return ShowCreateTable(cursor.name("the name of a table"))


def _describe_table(cursor: Cursor) -> DescribeTable:
    cursor.example = "DESCRIBE TABLE EXTENDED sales.orders"
    cursor.take()
    cursor.take_word("TABLE")
    is_extended = cursor.take_word("EXTENDED", "FORMATTED") is not None
    return DescribeTable(cursor.name("the name of a table"), is_extended)


# Parts of several statements


def _pattern(cursor: Cursor) -> str | None:
    if cursor.take_word("LIKE") or cursor.peek().kind is Kind.STRING:
        return cursor.string("a pattern")
    return None


_PARSERS: Final[dict[type[Statement], Callable[[Cursor], Statement]]] = {
    CreateDatabase: _create_database,
    DropDatabase: _drop_database,
    ShowDatabases: _show_databases,
    DescribeDatabase: _describe_database,
    CreateTable: create_table,
    DropTable: _drop_table,
    ShowTables: _show_tables,
    ShowPartitions: _show_partitions,
    ShowProperties: _show_properties,
    ShowCreateTable: _show_create_table,
    DescribeTable: _describe_table,
}
