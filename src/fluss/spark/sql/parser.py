"""Read a statement about something in Fluss; what cannot be understood is refused, with the place and an example.

Most statements are Spark's and must reach it untouched, right or wrong. So ``head_of`` first reads only what a
statement is about, enough to decide whose it is, and refuses nothing. ``parse`` then reads those that are about Fluss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fluss.filter.lexer import Kind, Token
from fluss.spark.sql.statements import (
    AddColumns,
    AddPartitions,
    ColumnText,
    CommentOnDatabase,
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
from fluss.spark.sql.tokens import StatementCursor
from fluss.spark.table_shape import COMMENT_STAYS

_DATABASE: Final = ("DATABASE", "SCHEMA", "NAMESPACE")
_DATABASES: Final = ("DATABASES", "SCHEMAS", "NAMESPACES")
_VERBS: Final = (
    *("CREATE", "DROP", "ALTER", "SHOW", "DESCRIBE", "DESC", "COMMENT"),
    *("DELETE", "UPDATE", "MERGE", "TRUNCATE"),
)
_ROW_STATEMENTS: Final[dict[str, type[Statement]]] = {"DELETE": DeleteRows, "UPDATE": UpdateRows}
# Between the verb and the name.
_BEFORE_NAME: Final = {"ALTER": ("TABLE",), "DELETE": ("FROM",), "MERGE": ("INTO",), "TRUNCATE": ("TABLE",)}
_TABLE_EXAMPLE: Final = (
    "CREATE TABLE sales.orders (id BIGINT, price DECIMAL(10, 2) COMMENT 'in euro', day STRING, "
    "PRIMARY KEY (id, day)) PARTITIONED BY (day) TBLPROPERTIES ('bucket.num' = '4')"
)
_QUERY_EXAMPLE: Final = "CREATE TABLE sales.totals TBLPROPERTIES ('primary.key' = 'id') AS SELECT id, total FROM sums"
_QUERY_BEGINS: Final = ("AS", "SELECT", "VALUES", "FROM", "TABLE", "WITH")
_ALTER_EXAMPLES: Final = (
    "ALTER TABLE sales.orders ADD COLUMNS (note STRING COMMENT 'free text'), "
    "SET TBLPROPERTIES ('table.log.ttl' = '3 d'), UNSET TBLPROPERTIES ('table.log.ttl'), "
    "ADD PARTITION (day = '2026-01-01'), DROP PARTITION (day = '2026-01-01')"
)
_CANNOT: Final = {
    "MERGE": "rows are merged into a table with a primary key by FlussSpark.merge(table, source, on)"
    ".when_matched_update(...).execute(); INSERT INTO writes rows of a key over",
    "COMMENT": COMMENT_STAYS,
    "TRUNCATE": "a table with a primary key is emptied by DELETE FROM, any other by dropping its partitions, or by "
    "dropping and creating it",
}


# What a statement is about


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a statement: what it does, and to what.

    ``kind`` is None for ALTER TABLE, of which there are several, and for what cannot be done with Fluss tables, such
    as MERGE. ``name`` is None where there is none. ``using`` is the provider of CREATE TABLE.
    """

    verb: str
    kind: type[Statement] | None
    name: Name | None
    using: str | None = None


def head_of(tokens: list[Token]) -> Head | None:
    """Return the beginning of a statement; None for those that are Spark's in any case."""
    cursor = StatementCursor("", tokens)
    verb = cursor.take_word(*_VERBS)
    match verb:
        case None:
            return None
        case "CREATE":
            return _create_head(cursor)
        case "DROP":
            return _named(cursor, "DROP", {_DATABASE: DropDatabase, ("TABLE",): DropTable}, "IF", "EXISTS")
        case "SHOW":
            return _show_head(cursor)
        case "DESCRIBE" | "DESC":
            return _describe_head(cursor)
        case "COMMENT":
            return _comment_head(cursor)
    if not cursor.take_words(*_BEFORE_NAME.get(verb, ())):
        return None
    return Head(verb, _ROW_STATEMENTS.get(verb), cursor.peek_name())


def _named(
    cursor: StatementCursor, verb: str, kinds: dict[tuple[str, ...], type[Statement]], *condition: str
) -> Head | None:
    for words, kind in kinds.items():
        if cursor.take_word(*words):
            cursor.take_words(*condition)
            return Head(verb, kind, cursor.peek_name())
    return None


def _create_head(cursor: StatementCursor) -> Head | None:
    head = _named(cursor, "CREATE", {_DATABASE: CreateDatabase, ("TABLE",): CreateTable}, "IF", "NOT", "EXISTS")
    if head is None or head.kind is not CreateTable:
        return head
    depth = 0
    while not cursor.at_end():
        token = cursor.take()
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_word("AS", "SELECT"):
            break
        if depth == 0 and token.is_word("USING"):
            return Head("CREATE", CreateTable, head.name, using=cursor.peek().value.lower())
    return head


def _show_head(cursor: StatementCursor) -> Head | None:
    kind: type[Statement]
    if cursor.take_word(*_DATABASES):
        kind = ShowDatabases
    elif cursor.take_word("TABLES"):
        kind = ShowTables
    elif cursor.take_word("PARTITIONS"):
        return Head("SHOW", ShowPartitions, cursor.peek_name())
    elif cursor.take_word("TBLPROPERTIES"):
        return Head("SHOW", ShowProperties, cursor.peek_name())
    elif cursor.take_words("CREATE", "TABLE"):
        return Head("SHOW", ShowCreateTable, cursor.peek_name())
    else:
        return None
    return Head("SHOW", kind, cursor.peek_name() if cursor.take_word("FROM", "IN") else None)


def _describe_head(cursor: StatementCursor) -> Head | None:
    if cursor.take_word(*_DATABASE):
        cursor.take_word("EXTENDED")
        return Head("DESCRIBE", DescribeDatabase, cursor.peek_name())
    cursor.take_word("TABLE")
    cursor.take_word("EXTENDED", "FORMATTED")
    return Head("DESCRIBE", DescribeTable, cursor.peek_name())


def _comment_head(cursor: StatementCursor) -> Head | None:
    if not cursor.take_word("ON"):
        return None
    if cursor.take_word(*_DATABASE):
        return Head("COMMENT", CommentOnDatabase, cursor.peek_name())
    if cursor.take_word("TABLE"):
        return Head("COMMENT", None, cursor.peek_name())
    return None


# The whole statement


def parse(text: str, tokens: list[Token], head: Head) -> Statement:
    """Read a statement about something in Fluss; one that cannot be understood is a FlussError."""
    cursor = StatementCursor(text, tokens)
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


# Databases


def _create_database(cursor: StatementCursor) -> CreateDatabase:
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
            properties |= cursor.properties()
        else:
            return CreateDatabase(name, if_not_exists, comment, properties)


def _drop_database(cursor: StatementCursor) -> DropDatabase:
    cursor.example = "DROP DATABASE IF EXISTS sales CASCADE"
    cursor.skip(2)
    if_exists = cursor.take_words("IF", "EXISTS")
    name = cursor.name("the name of a database")
    return DropDatabase(name, if_exists, cascade=cursor.take_word("CASCADE", "RESTRICT") == "CASCADE")


def _comment_on_database(cursor: StatementCursor) -> CommentOnDatabase:
    cursor.example = "COMMENT ON DATABASE sales IS 'all orders'"
    cursor.skip(3)
    name = cursor.name("the name of a database")
    if not cursor.take_word("IS"):
        cursor.fail(f"expected IS, found {cursor.shown()}")
    return CommentOnDatabase(name, None if cursor.take_word("NULL") else cursor.string("a comment, or NULL"))


def _show_databases(cursor: StatementCursor) -> ShowDatabases:
    cursor.example = "SHOW DATABASES LIKE 'sales*'"
    cursor.skip(2)
    if cursor.take_word("FROM", "IN"):
        cursor.name("the name of a catalog")
    return ShowDatabases(_pattern(cursor))


def _describe_database(cursor: StatementCursor) -> DescribeDatabase:
    cursor.example = "DESCRIBE DATABASE sales"
    cursor.skip(2)
    cursor.take_word("EXTENDED")
    return DescribeDatabase(cursor.name("the name of a database"))


# CREATE TABLE


def _create_table(cursor: StatementCursor) -> CreateTable:
    cursor.example = _TABLE_EXAMPLE
    cursor.skip(2)
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.name("the name of a table")
    columns, primary_keys = _columns_and_key(cursor) if cursor.peek().is_symbol("(") else ([], ())
    parts = _TableParts()
    while _table_clause(cursor, parts):
        pass
    query = _query(cursor)
    if query is not None and columns:
        cursor.example = _QUERY_EXAMPLE
        cursor.fail("columns and AS SELECT are both given; the query decides about the columns")
    if query is None and not columns:
        cursor.fail("a table needs columns, or AS SELECT")
    return CreateTable(
        name,
        tuple(columns),
        primary_keys,
        parts.partition_keys,
        parts.bucket_keys,
        parts.bucket_count,
        parts.comment,
        parts.properties,
        if_not_exists,
        query,
    )


class _TableParts:
    """What follows the columns of CREATE TABLE, in any order."""

    def __init__(self) -> None:
        self.partition_keys: tuple[str, ...] = ()
        self.bucket_keys: tuple[str, ...] = ()
        self.bucket_count: int | None = None
        self.comment: str | None = None
        self.properties: dict[str, str] = {}


def _table_clause(cursor: StatementCursor, parts: _TableParts) -> bool:
    """Read one clause; False where there is none."""
    if cursor.take_word("USING"):
        cursor.identifier("fluss")
    elif cursor.take_words("PARTITIONED", "BY"):
        parts.partition_keys = cursor.names("the name of a column")
    elif cursor.take_words("CLUSTERED", "BY"):
        parts.bucket_keys = cursor.names("the name of a column")
        cursor.expect_words("INTO")
        parts.bucket_count = _bucket_count(cursor)
        cursor.expect_words("BUCKETS")
    elif cursor.take_word("COMMENT"):
        parts.comment = cursor.string("a comment")
    elif cursor.peek().is_word("TBLPROPERTIES", "OPTIONS", "WITH") and cursor.peek(1).is_symbol("("):
        cursor.take()
        parts.properties |= cursor.properties()
    else:
        return False
    return True


def _bucket_count(cursor: StatementCursor) -> int:
    if not cursor.peek().value.isdigit():
        cursor.fail(f"expected the number of buckets, found {cursor.shown()}")
    return int(cursor.take().value)


def _query(cursor: StatementCursor) -> str | None:
    """Return the text of the query at the end of CREATE TABLE, if there is one."""
    begin = cursor.peek()
    if not begin.is_word(*_QUERY_BEGINS) and not begin.is_symbol("("):
        return None
    if begin.is_word("AS"):
        cursor.take()
        begin = cursor.peek()
    if cursor.at_end():
        cursor.fail("expected a query after AS, found the end of the statement")
    while not cursor.at_end():
        cursor.take()
    return cursor.text[begin.start :].rstrip().removesuffix(";")


def _columns_and_key(cursor: StatementCursor) -> tuple[list[ColumnText], tuple[str, ...]]:
    columns: list[ColumnText] = []
    keys: list[tuple[str, ...]] = []

    def column_or_key() -> None:
        position = cursor.peek()
        if cursor.take_word("CONSTRAINT"):
            cursor.identifier("the name of a constraint")
        if cursor.take_words("PRIMARY", "KEY"):
            keys.append(cursor.names("the name of a key column"))
            cursor.skip_not_enforced()
        else:
            column, is_key = cursor.column()
            columns.append(column)
            if is_key:
                keys.append((column.name,))
        if len(keys) > 1:
            cursor.fail_at(position, "a table has one primary key; name all its columns in PRIMARY KEY (a, b)")

    cursor.listed(column_or_key)
    return columns, keys[0] if keys else ()


# Other statements about tables


def _drop_table(cursor: StatementCursor) -> DropTable:
    cursor.example = "DROP TABLE IF EXISTS sales.orders"
    cursor.skip(2)
    if_exists = cursor.take_words("IF", "EXISTS")
    name = cursor.name("the name of a table")
    cursor.take_word("PURGE")
    return DropTable(name, if_exists)


def _alter_table(cursor: StatementCursor) -> Statement:
    cursor.example = _ALTER_EXAMPLES
    cursor.skip(2)
    name = cursor.name("the name of a table")
    if cursor.take_words("SET", "TBLPROPERTIES"):
        return SetProperties(name, cursor.properties())
    if cursor.take_words("UNSET", "TBLPROPERTIES"):
        cursor.take_words("IF", "EXISTS")
        keys: list[str] = []
        cursor.listed(lambda: keys.append(cursor.property_key()))
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


def _added_columns(cursor: StatementCursor) -> tuple[ColumnText, ...]:
    columns: list[ColumnText] = []

    def column() -> None:
        added, is_key = cursor.column()
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


def _partitions(cursor: StatementCursor) -> tuple[dict[str, str], ...]:
    specs: list[dict[str, str]] = []
    cursor.expect_words("PARTITION")
    specs.append(_partition_spec(cursor))
    while True:
        cursor.take_symbol(",")
        if not cursor.take_word("PARTITION"):
            return tuple(specs)
        specs.append(_partition_spec(cursor))


def _partition_spec(cursor: StatementCursor) -> dict[str, str]:
    spec: dict[str, str] = {}

    def value() -> None:
        column = cursor.identifier("the name of a partition column")
        if column in spec:
            cursor.fail(f"'{column}' is there twice")
        cursor.expect_symbol("=")
        # DATE '2026-01-01' says the same as '2026-01-01': the value of a partition is text.
        if cursor.peek(1).kind is Kind.STRING:
            cursor.take_word("DATE")
        spec[column] = cursor.value(column)

    cursor.listed(value)
    return spec


# Show and describe


def _show_tables(cursor: StatementCursor) -> ShowTables:
    cursor.example = "SHOW TABLES IN sales LIKE 'order*'"
    cursor.skip(2)
    database = cursor.name("the name of a database") if cursor.take_word("FROM", "IN") else None
    return ShowTables(database, _pattern(cursor))


def _show_partitions(cursor: StatementCursor) -> ShowPartitions:
    cursor.example = "SHOW PARTITIONS sales.orders PARTITION (day = '2026-01-01')"
    cursor.skip(2)
    name = cursor.name("the name of a table")
    return ShowPartitions(name, _partition_spec(cursor) if cursor.take_word("PARTITION") else {})


def _show_properties(cursor: StatementCursor) -> ShowProperties:
    cursor.example = "SHOW TBLPROPERTIES sales.orders ('table.log.ttl')"
    cursor.skip(2)
    name = cursor.name("the name of a table")
    if not cursor.take_symbol("("):
        return ShowProperties(name)
    key = cursor.property_key()
    cursor.expect_symbol(")")
    return ShowProperties(name, key)


def _show_create_table(cursor: StatementCursor) -> ShowCreateTable:
    cursor.example = "SHOW CREATE TABLE sales.orders"
    cursor.skip(3)
    return ShowCreateTable(cursor.name("the name of a table"))


def _describe_table(cursor: StatementCursor) -> DescribeTable:
    cursor.example = "DESCRIBE TABLE EXTENDED sales.orders"
    cursor.take()
    cursor.take_word("TABLE")
    is_extended = cursor.take_word("EXTENDED", "FORMATTED") is not None
    return DescribeTable(cursor.name("the name of a table"), is_extended)


def _pattern(cursor: StatementCursor) -> str | None:
    if cursor.take_word("LIKE") or cursor.peek().kind is Kind.STRING:
        return cursor.string("a pattern")
    return None


# Rows


def _delete_rows(cursor: StatementCursor) -> DeleteRows:
    cursor.example = "DELETE FROM sales.prices WHERE price < 3"
    cursor.skip(2)
    return DeleteRows(cursor.name("the name of a table"), _condition(cursor))


def _update_rows(cursor: StatementCursor) -> UpdateRows:
    cursor.example = "UPDATE sales.prices SET price = price * 2, note = 'doubled' WHERE price < 3"
    cursor.skip(1)
    name = cursor.name("the name of a table")
    cursor.expect_words("SET")
    values: dict[str, str] = {}
    while True:
        position = cursor.peek()
        column = cursor.name("the name of a column").parts[-1]
        if column in values:
            cursor.fail_at(position, f"'{column}' is there twice")
        cursor.expect_symbol("=")
        values[column] = _expression(cursor, f"the value of '{column}'")
        if not cursor.take_symbol(","):
            return UpdateRows(name, values, _condition(cursor))


def _condition(cursor: StatementCursor) -> str | None:
    """Return the text after WHERE; None if there is none."""
    return _expression(cursor, "a condition") if cursor.take_word("WHERE") else None


def _expression(cursor: StatementCursor, what: str) -> str:
    """Return the text of an expression: all up to the next comma or WHERE that is in no parentheses."""
    first, last, depth = cursor.peek(), None, 0
    while not cursor.at_end() and not cursor.peek().is_symbol(";"):
        token = cursor.peek()
        if depth == 0 and (token.is_symbol(",") or token.is_word("WHERE")):
            break
        depth += token.is_symbol("(") - token.is_symbol(")")
        last = cursor.take()
    if last is None:
        cursor.fail(f"expected {what}, found {cursor.shown()}")
    return cursor.text[first.start : last.stop]


_PARSERS: Final[dict[type[Statement], Callable[[StatementCursor], Statement]]] = {
    CreateDatabase: _create_database,
    DropDatabase: _drop_database,
    CommentOnDatabase: _comment_on_database,
    ShowDatabases: _show_databases,
    DescribeDatabase: _describe_database,
    CreateTable: _create_table,
    DropTable: _drop_table,
    ShowTables: _show_tables,
    ShowPartitions: _show_partitions,
    ShowProperties: _show_properties,
    ShowCreateTable: _show_create_table,
    DescribeTable: _describe_table,
    DeleteRows: _delete_rows,
    UpdateRows: _update_rows,
}
