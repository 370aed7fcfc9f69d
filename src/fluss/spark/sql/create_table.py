"""Read CREATE TABLE: columns, keys, and the clauses after them."""

from __future__ import annotations

from typing import Final

from fluss.spark.sql.cursor import Cursor
from fluss.spark.sql.statements import ColumnText, CreateTable
from fluss.spark.sql.text import Kind

_EXAMPLE: Final = (
    "CREATE TABLE sales.orders (id BIGINT, price DECIMAL(10, 2) COMMENT 'in euro', day STRING, "
    "PRIMARY KEY (id, day)) PARTITIONED BY (day) TBLPROPERTIES ('bucket.num' = '4')"
)
_QUERY_EXAMPLE: Final = "CREATE TABLE sales.totals TBLPROPERTIES ('primary.key' = 'id') AS SELECT id, total FROM sums"
# What ends the type of a column.
_AFTER_TYPE: Final = ("NOT", "NULL", "COMMENT", "PRIMARY", "DEFAULT", "GENERATED", "CHECK", "FIRST", "AFTER")
_QUERY_BEGINS: Final = ("AS", "SELECT", "VALUES", "FROM", "TABLE", "WITH")


def create_table(cursor: Cursor) -> CreateTable:
    cursor.example = _EXAMPLE
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


def _table_clause(cursor: Cursor, parts: _TableParts) -> bool:
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
        parts.properties |= properties_of(cursor)
    else:
        return False
    return True


def _bucket_count(cursor: Cursor) -> int:
    if not cursor.peek().value.isdigit():
        cursor.fail(f"expected the number of buckets, found {cursor.shown()}")
    return int(cursor.take().value)


def _query(cursor: Cursor) -> str | None:
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


def _columns_and_key(cursor: Cursor) -> tuple[list[ColumnText], tuple[str, ...]]:
    columns: list[ColumnText] = []
    keys: list[tuple[str, ...]] = []

    def column_or_key() -> None:
        position = cursor.peek()
        if cursor.take_word("CONSTRAINT"):
            cursor.identifier("the name of a constraint")
        if cursor.take_words("PRIMARY", "KEY"):
            keys.append(cursor.names("the name of a key column"))
            _skip_not_enforced(cursor)
        else:
            column, is_key = column_of(cursor)
            columns.append(column)
            if is_key:
                keys.append((column.name,))
        if len(keys) > 1:
            cursor.fail_at(position, "a table has one primary key; name all its columns in PRIMARY KEY (a, b)")

    cursor.listed(column_or_key)
    return columns, keys[0] if keys else ()


def column_of(cursor: Cursor) -> tuple[ColumnText, bool]:
    """Read a column, and whether it says that it is the primary key."""
    position = cursor.peek().start
    name = cursor.identifier("the name of a column")
    type_text = _type_text(cursor, name)
    nullable, is_key, comment = True, False, None
    while True:
        if cursor.take_words("NOT", "NULL"):
            nullable = False
        elif cursor.take_words("PRIMARY", "KEY"):
            is_key = True
            _skip_not_enforced(cursor)
        elif cursor.take_word("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.peek().is_word("DEFAULT", "GENERATED", "CHECK", "FIRST", "AFTER"):
            cursor.fail(f"columns have no {cursor.peek().value.upper()}")
        elif not cursor.take_word("NULL"):
            return ColumnText(name, type_text, nullable, comment, position), is_key


def _type_text(cursor: Cursor, column: str) -> str:
    """Return the text of a type: everything up to the next comma, parenthesis or word that belongs to the column."""
    first = cursor.peek()
    last = None
    depth = 0
    while True:
        token = cursor.peek()
        if depth == 0 and (token.is_symbol(",") or token.is_symbol(")") or token.is_word(*_AFTER_TYPE)):
            break
        if token.kind is Kind.END or token.is_symbol(";"):
            break
        depth += (token.is_symbol("(") or token.is_symbol("<")) - (token.is_symbol(")") or token.is_symbol(">"))
        last = cursor.take()
    if last is None:
        cursor.fail(f"expected the type of column '{column}', found {cursor.shown()}")
    return cursor.text[first.start : last.stop]


def _skip_not_enforced(cursor: Cursor) -> None:
    # Keys are enforced in any case. People write this because other engines want it.
    cursor.take_words("NOT", "ENFORCED")


def properties_of(cursor: Cursor) -> dict[str, str]:
    properties: dict[str, str] = {}

    def entry() -> None:
        position = cursor.peek()
        key = property_key(cursor)
        if key in properties:
            cursor.fail_at(position, f"'{key}' is there twice")
        cursor.take_symbol("=")
        token = cursor.peek()
        if token.kind not in (Kind.STRING, Kind.NUMBER) and not token.is_word("TRUE", "FALSE"):
            cursor.fail(f"expected the value of '{key}', found {cursor.shown()}")
        properties[key] = cursor.take().value

    cursor.listed(entry)
    return properties


def property_key(cursor: Cursor) -> str:
    """Read a key in quotes, or as a name with dots: ``'bucket.num'``, ``bucket.num``."""
    if cursor.peek().kind is Kind.STRING:
        return cursor.take().value
    return str(cursor.name("the name of a property, such as 'bucket.num'"))
