"""What a statement is about: enough to decide whether it is about something in Fluss, and no more.

Most statements are Spark's and must reach it untouched, right or wrong. So nothing is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluss.spark.sql.cursor import Cursor
from fluss.spark.sql.statements import (
    CreateDatabase,
    CreateTable,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropTable,
    Name,
    ShowCreateTable,
    ShowDatabases,
    ShowPartitions,
    ShowProperties,
    ShowTables,
    Statement,
)
from fluss.spark.sql.text import Token

_DATABASE: Final = ("DATABASE", "SCHEMA", "NAMESPACE")
_DATABASES: Final = ("DATABASES", "SCHEMAS", "NAMESPACES")
_VERBS: Final = ("CREATE", "DROP", "ALTER", "SHOW", "DESCRIBE", "DESC", "DELETE", "UPDATE", "MERGE", "TRUNCATE")
# Between the verb and the name.
_BEFORE_NAME: Final = {"ALTER": ("TABLE",), "DELETE": ("FROM",), "MERGE": ("INTO",), "TRUNCATE": ("TABLE",)}


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a statement: what it does, and to what.

    ``kind`` is None for ALTER TABLE, of which there are several, and for what cannot be done with Fluss tables, such
    as UPDATE. ``name`` is None where there is none. ``using`` is the provider of CREATE TABLE.
    """

    verb: str
    kind: type[Statement] | None
    name: Name | None
    using: str | None = None


def head_of(tokens: list[Token]) -> Head | None:
    """Return the beginning of a statement; None for those that are Spark's in any case."""
    cursor = Cursor("", tokens)
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
    if not cursor.take_words(*_BEFORE_NAME.get(verb, ())):
        return None
    return Head(verb, None, cursor.peek_name())


def _named(cursor: Cursor, verb: str, kinds: dict[tuple[str, ...], type[Statement]], *condition: str) -> Head | None:
    for words, kind in kinds.items():
        if cursor.take_word(*words):
            cursor.take_words(*condition)
            return Head(verb, kind, cursor.peek_name())
    return None


def _create_head(cursor: Cursor) -> Head | None:
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


def _show_head(cursor: Cursor) -> Head | None:
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


def _describe_head(cursor: Cursor) -> Head | None:
    if cursor.take_word(*_DATABASE):
        cursor.take_word("EXTENDED")
        return Head("DESCRIBE", DescribeDatabase, cursor.peek_name())
    cursor.take_word("TABLE")
    cursor.take_word("EXTENDED", "FORMATTED")
    return Head("DESCRIBE", DescribeTable, cursor.peek_name())
