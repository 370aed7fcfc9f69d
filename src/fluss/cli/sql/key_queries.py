"""Finds out that a query asks for rows by their primary key, so that they can be looked up instead of being scanned.

DuckDB parses the query; what is looked for in it is one table, and conditions, joined by AND, that give each column of
the primary key a value, or one of several. Other conditions do not matter: the query is run on the rows that were
found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fluss.cli.kernel.values import value_from_text
from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.schema.types import TypeRoot

if TYPE_CHECKING:
    import duckdb

_QUERY_BEGINS: Final = re.compile(r"\b(?:SELECT|WITH|FROM)\b", re.IGNORECASE)
# Beyond it a scan is better.
_KEYS_MAX: Final = 10_000
_INTEGERS: Final = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)
_TEXTS: Final = (TypeRoot.STRING, TypeRoot.CHAR)


SyntaxTree: TypeAlias = dict[str, Any]


def syntax_tree(connection: duckdb.DuckDBPyConnection, statement: str) -> SyntaxTree | None:
    """Return how DuckDB understands a query; None for what is none, such as COPY."""
    found = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    tree: SyntaxTree = json.loads(found[0][0])
    return None if tree.get("error") else tree


def query_in(connection: duckdb.DuckDBPyConnection, statement: str) -> SyntaxTree:
    """Return the query inside of another statement, such as CREATE VIEW, EXPLAIN or COPY; nothing if there is none."""
    for begin in _QUERY_BEGINS.finditer(statement):
        rest = statement[begin.start() :].rstrip("; \t\r\n")
        # COPY (SELECT ...) TO 'file'
        for text in (rest, rest.rpartition(")")[0]):
            tree = syntax_tree(connection, text) if text else None
            if tree is not None:
                return tree
    return {}


def nodes_of(tree: SyntaxTree) -> Iterator[dict[str, Any]]:
    """Yield everything that a query is made of."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            waiting += node.values()


def tables_of(tree: SyntaxTree) -> list[list[str]]:
    """Return the names of the tables of a query, in parts. Those that WITH makes are none.

    What WITH makes of a table of the same name, ``WITH t AS (SELECT * FROM t)``, is made of the table.
    """
    found: dict[tuple[str, ...], None] = {}
    made: set[str] = set()
    for node in nodes_of(tree):
        # SHOW trips is DESCRIBE trips.
        is_shown = node.get("type") == "SHOW_REF" and node["show_type"] == "SHOW"
        if node.get("type") == "BASE_TABLE" or is_shown:
            parts = (node.get("catalog_name"), node.get("schema_name"), node["table_name"])
            found[tuple(part for part in parts if part)] = None
        if "cte_map" in node:
            made |= {entry["key"] for entry in node["cte_map"]["map"] if not _is_of_its_name(entry)}
    return [list(parts) for parts in found if not (len(parts) == 1 and parts[0] in made)]


def _is_of_its_name(entry: dict[str, Any]) -> bool:
    nodes = list(nodes_of(entry["value"]))
    # A recursive query means itself.
    return not any(node.get("type") == "RECURSIVE_CTE_NODE" for node in nodes) and any(
        node.get("type") == "BASE_TABLE" and node["table_name"] == entry["key"] and not node.get("schema_name")
        for node in nodes
    )


def keys_of(tree: SyntaxTree, info: TableInfo) -> list[dict[str, Any]] | None:
    """Return the keys that a query asks for; None if it takes a scan."""
    if len(tree["statements"]) != 1:
        return None
    node = tree["statements"][0]["node"]
    source = node.get("from_table") or {}
    if node.get("type") != "SELECT_NODE" or source.get("type") != "BASE_TABLE" or node["cte_map"]["map"]:
        return None
    if any(each is not node and each.get("type") == "SELECT_NODE" for each in nodes_of(tree)):
        # A query inside of it may be about other rows of the table, under whatever name.
        return None
    if node.get("sample") or source.get("sample") or source.get("column_name_alias"):
        # A sample is taken of all rows, and with other names a condition is about another column.
        return None
    names = {source.get("alias") or source.get("table_name"), source.get("table_name")}
    choices: dict[str, list[Any]] = {}
    for condition in _conjuncts(node.get("where_clause")):
        column, constants = _values(condition)
        if column is None or (len(column) > 1 and column[-2] not in names) or column[-1] not in info.primary_keys:
            continue
        try:
            choices.setdefault(column[-1], [_value(each, column[-1], info) for each in constants])
        except (FlussError, LookupError, TypeError):
            return None
    if set(choices) != set(info.primary_keys):
        return None
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > _KEYS_MAX:
        return None
    combined = product(*(dict.fromkeys(choices[name]) for name in info.primary_keys))
    return [dict(zip(info.primary_keys, values, strict=True)) for values in combined]


def _conjuncts(clause: dict[str, Any] | None) -> list[dict[str, Any]]:
    if clause is None:
        return []
    if clause.get("type") == "CONJUNCTION_AND":
        return [each for child in clause["children"] for each in _conjuncts(child)]
    return [clause]


def _values(condition: dict[str, Any]) -> tuple[list[str] | None, list[dict[str, Any]]]:
    """Return the column of an equality, and the constants that it may be equal to."""
    match condition.get("type"):
        case "COMPARE_EQUAL":
            left, right = condition["left"], condition["right"]
            if right.get("type") == "COLUMN_REF":
                left, right = right, left
            sides = [left, right]
        case "COMPARE_IN":
            sides = condition["children"]
        case _:
            return None, []
    if sides[0].get("type") != "COLUMN_REF" or any(each.get("type") != "VALUE_CONSTANT" for each in sides[1:]):
        return None, []
    return sides[0]["column_names"], sides[1:]


def _value(constant: dict[str, Any], name: str, info: TableInfo) -> Any:
    """Return a constant as a value of its column; one that DuckDB would have to convert takes a scan."""
    data_type = info.schema.column(name).data_type
    kind, text = _literal(constant)
    if kind == "INTEGER" and data_type.root in (*_INTEGERS, TypeRoot.DECIMAL):
        value = value_from_text(text, data_type, name)
        if data_type.root is TypeRoot.DECIMAL:
            return Decimal(value)
        # One that no row can have is found nowhere, which a scan says without an error.
        bits = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INTEGER: 32}.get(data_type.root, 64)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise LookupError
        return value
    if kind == "STRING" and data_type.root in _TEXTS:
        return text
    raise TypeError


def _literal(constant: dict[str, Any]) -> tuple[str, str]:
    """Return kind and text of a constant, as versions of DuckDB write it."""
    if "literal" in constant:
        return constant["literal"]["kind"], str(constant["literal"]["text"])
    value = constant["value"]
    kind = {"INTEGER": "INTEGER", "BIGINT": "INTEGER", "VARCHAR": "STRING"}[value["type"]["id"]]
    if value.get("is_null"):
        raise LookupError
    return kind, str(value["value"])
