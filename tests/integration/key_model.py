"""What a primary-key table should be after a series of changes, said as plainly as possible: a dict of dicts.

One change at a time, with the rules of each merge engine written out; the server works on whole batches of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

KEY = "k"
TEXT, NUMBER = "a", "b"


@dataclass(frozen=True)
class Engine:
    """How a table treats rows and deletes."""

    name: str
    properties: dict[str, str]
    takes_partial_updates: bool = True
    takes_deletes: bool = True
    has_old_rows: bool = True
    aggregations: dict[str, str] = field(default_factory=dict)


ENGINES = (
    Engine("last_row", {}),
    Engine("last_row_wal", {"table.changelog.image": "WAL"}, has_old_rows=False),
    Engine("first_row", {"table.merge-engine": "first_row"}, takes_partial_updates=False, takes_deletes=False),
    Engine(
        "versioned",
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": NUMBER},
        takes_partial_updates=False,
        takes_deletes=False,
    ),
    Engine(
        "aggregation",
        {"table.merge-engine": "aggregation", "table.delete.behavior": "allow"},
        aggregations={TEXT: "listagg", NUMBER: "sum"},
    ),
)


class TableModel:
    """The rows by key. ``columns`` are all columns but the key, and grow."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.columns = [TEXT, NUMBER]
        self.rows: dict[int, Row] = {}

    def add_column(self, name: str) -> None:
        self.columns.append(name)
        for row in self.rows.values():
            row[name] = None

    def upsert(self, row: Row, targets: list[str] | None) -> None:
        """Take a row; with ``targets`` only these columns of it."""
        old = self.rows.get(row[KEY])
        new = {KEY: row[KEY], **{name: row.get(name) for name in self.columns}}
        if old is None:
            self.rows[row[KEY]] = new
            return
        wanted = self.columns if targets is None else [name for name in targets if name != KEY]
        match self.engine.name:
            case "first_row":
                return
            case "versioned":
                if _version(new) >= _version(old):
                    self.rows[row[KEY]] = new
            case "aggregation":
                self.rows[row[KEY]] = {**old, **{name: self._aggregated(name, old, new) for name in wanted}}
            case _:
                self.rows[row[KEY]] = {**old, **{name: new[name] for name in wanted}}

    def delete(self, key: int, targets: list[str] | None) -> None:
        old = self.rows.get(key)
        if old is None or not self.engine.takes_deletes:
            return
        if targets is not None:
            left = {name: None if name in targets and name != KEY else value for name, value in old.items()}
            if any(left[name] is not None for name in self.columns if name not in targets):
                self.rows[key] = left
                return
        del self.rows[key]

    def _aggregated(self, name: str, old: Row, new: Row) -> Any:
        if old[name] is None or new[name] is None:
            return new[name] if old[name] is None else old[name]
        match self.engine.aggregations.get(name):
            case "sum":
                return (old[name] + new[name] + 2**63) % 2**64 - 2**63
            case "listagg":
                return f"{old[name]},{new[name]}"
        return new[name]


def _version(row: Row) -> int:
    return -(2**63) if row[NUMBER] is None else row[NUMBER]


def replayed(records: list[tuple[str, Row]], has_old_rows: bool) -> dict[int, Row]:
    """Return the rows that a changelog of one bucket leads to, and check each record against those before it."""
    rows: dict[int, Row] = {}
    previous: tuple[str, int] | None = None
    for change, row in records:
        key = row[KEY]
        match change:
            case "insert":
                assert key not in rows, f"+I of {row}, but there is {rows[key]}"
                rows[key] = row
            case "update_before":
                assert has_old_rows
                assert rows[key] == row, f"-U of {row}, but there was {rows[key]}"
            case "update_after":
                assert not has_old_rows or previous == ("update_before", key), f"+U of {row} follows {previous}"
                rows[key] = row
            case "delete":
                assert rows.pop(key) == row, f"-D of {row}"
            case _:
                raise AssertionError(f"unknown change {change}")
        previous = change, key
    return rows
