"""SHOW TABLES and its relatives. DuckDB would answer them from its own catalog, which has no table of the cluster."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from fluss.blocking import FlussAdmin
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.session import DEFAULT_DATABASE, Session
from fluss.cli.sql.key_queries import SyntaxTree, nodes_of

_DATABASES: Final = ("databases", "schemas")
_ALL_TABLES: Final = "__show_tables_expanded"


def shown(tree: SyntaxTree, session: Session) -> pa.Table | None:
    """Return what a statement shows of the cluster; None if it shows something else, or is a query.

    Inside of a query SHOW TABLES is refused.
    """
    node = tree["statements"][0]["node"]
    reference = node.get("from_table") or {}
    if reference.get("type") != "SHOW_REF":
        _check_shows_nothing(tree)
        return None
    if reference["show_type"] == "SHOW_FROM":
        return pa.table({"table": pa.array(_tables(session.admin, reference["schema_name"]), pa.string())})
    if reference["show_type"] != "SHOW_SPECIAL":
        return None
    name, admin = reference["table_name"].strip('"'), session.admin
    if name in _DATABASES:
        return pa.table({"database": pa.array(sorted(admin.list_databases()), pa.string())})
    if name == "tables":
        return pa.table({"table": pa.array(table_names(admin), pa.string())})
    if name == _ALL_TABLES:
        tables = {database: _tables(admin, database) for database in sorted(admin.list_databases())}
        rows = [{"database": database, "table": table} for database in tables for table in tables[database]]
        return pa.Table.from_pylist(rows, pa.schema([("database", pa.string()), ("table", pa.string())]))
    return None


def _check_shows_nothing(tree: SyntaxTree) -> None:
    """Refuse a query of what is shown: DuckDB would answer it, and say that there are no tables."""
    for node in nodes_of(tree):
        name = str(node.get("table_name", "")).strip('"')
        is_ours = name in (*_DATABASES, "tables", _ALL_TABLES) or node.get("show_type") == "SHOW_FROM"
        if node.get("type") == "SHOW_REF" and node["show_type"] != "SHOW" and is_ours:
            raise CommandError(
                "SHOW TABLES and its relatives are statements of their own here; `fluss table ls -f json` gives "
                "programs the names",
                Exit.USAGE,
            )


def table_names(admin: FlussAdmin) -> list[str]:
    """Return the names of all tables, as a query has them: those of the database ``fluss`` without it."""
    return [
        table if database == DEFAULT_DATABASE else f"{database}.{table}"
        for database in sorted(admin.list_databases())
        for table in _tables(admin, database)
    ]


def _tables(admin: FlussAdmin, database: str) -> list[str]:
    return sorted(admin.list_tables(database))
