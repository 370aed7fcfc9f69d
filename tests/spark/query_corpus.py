"""Random tables and random queries, for comparing the rows that a query gives in several ways.

Data is what goes wrong easily: nulls, NaN, both zeros, the ends of ranges, texts with quotes and wildcards, times
around changes of daylight saving, nested values. Every query has one right answer: nothing depends on the order of
rows, and no floating-point numbers are added.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

_UTC = dt.UTC
INTS = (-(2**31), -7, -1, 0, 1, 2, 3, 41, 2**31 - 1)
FLOATS = (math.nan, -0.0, 0.0, math.inf, -math.inf, 0.5, -0.5, 1.0, 1e-30, 3.25, 1e30)
TEXTS = ("", "a", "A", "ab", "abc", "it's", "100%", "a_b", "a\\b", "é", "𝄞", "z", "\n", "`x`", "-- no")
DATES = tuple(dt.date.fromisoformat(d) for d in ("1969-12-31", "1970-01-01", "2026-01-01", "2026-02-28", "9999-12-31"))
TIMES = tuple(
    dt.datetime.fromisoformat(t)
    for t in ("1969-12-31 23:59:59.999999", "2026-03-08 06:59:59", "2026-03-08 07:00:00", "2026-11-01 05:30:00.5")
)
# By type: values, and how each is written in SQL.
VALUES: dict[str, tuple[Any, ...]] = {
    "TINYINT": (-128, -1, 0, 1, 127),
    "INT": INTS,
    "BIGINT": (-(2**63), *INTS, 2**53 + 1, 2**63 - 1),
    "FLOAT": tuple(value for value in FLOATS),
    "DOUBLE": (*FLOATS, 0.1, 1.7976931348623157e308, 5e-324),
    "DECIMAL(10,2)": tuple(map(Decimal, ("-99999999.99", "-0.01", "0.00", "0.50", "1.00", "41.00", "99999999.99"))),
    "DECIMAL(30,5)": tuple(map(Decimal, ("-1.00001", "0.00000", "12345678901234567890.12345"))),
    "STRING": TEXTS,
    "BOOLEAN": (True, False),
    "DATE": DATES,
    "TIMESTAMP": tuple(time.replace(tzinfo=_UTC) for time in TIMES),
    "TIMESTAMP_NTZ": TIMES,
    "BINARY": (b"", b"\x00", b"ab", b"\xff"),
    "ARRAY<INT>": ([], [1], [1, None, 3]),
    "MAP<STRING,INT>": ({}, {"a": 1}, {"a": None, "b": 2}),
    "STRUCT<x: INT, y: STRING>": ((1, "a"), (None, None), (41, "it's")),
}
NESTED = ("ARRAY<INT>", "MAP<STRING,INT>", "STRUCT<x: INT, y: STRING>")
PARTITIONS = ("eu", "us", "ap")


@dataclass
class CorpusTable:
    """A table: its columns, beside ``id`` and maybe ``region``, and the rows that are in it in the end."""

    name: str
    columns: dict[str, str]
    has_key: bool
    is_partitioned: bool
    # In the order in which they are written; of a table with a key the last one with an id counts.
    writes: list[list[tuple[Any, ...]]] = field(default_factory=list)

    @property
    def ddl(self) -> str:
        names = {"id": "BIGINT NOT NULL", **({"region": "STRING NOT NULL"} if self.is_partitioned else {})}
        return ", ".join(f"`{name}` {type_}" for name, type_ in (names | self.columns).items())

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        written = [row for rows in self.writes for row in rows]
        if not self.has_key:
            return written
        return list({row[: 2 if self.is_partitioned else 1]: row for row in written}.values())


def random_table(rng: random.Random, name: str, row_count: int) -> CorpusTable:
    """Make a table of a random shape with random rows, in two writes."""
    types = [rng.choice(list(VALUES)) for _ in range(rng.randint(3, 9))]
    if not set(types) & {"INT", "BIGINT", "STRING"}:
        types.append("INT")
    columns = {f"c{number}" if rng.random() < 0.9 else f"c {number}.x": type_ for number, type_ in enumerate(types)}
    table = CorpusTable(name, columns, has_key=rng.random() < 0.4, is_partitioned=rng.random() < 0.5)
    first = [_row(rng, table, id_) for id_ in range(row_count)]
    again = [_row(rng, table, rng.randrange(row_count) if table.has_key else row_count + n) for n in range(5)]
    table.writes = [first, again]
    return table


def _row(rng: random.Random, table: CorpusTable, id_: int) -> tuple[Any, ...]:
    # The partition follows from the id, so that a key is in one partition only.
    region = (PARTITIONS[id_ % len(PARTITIONS)],) if table.is_partitioned else ()
    values = (None if rng.random() < 0.2 else rng.choice(VALUES[type_]) for type_ in table.columns.values())
    return (id_, *region, *values)


# Queries


def random_query(rng: random.Random, table: CorpusTable) -> str:
    """Return a query on a table, which stands in it as ``{t}``."""
    where = f" WHERE {condition(rng, table)}" if rng.random() < 0.8 else ""
    match rng.randrange(12):
        case 0 | 1 | 2:
            return f"SELECT {_list(rng, table)} FROM {{t}}{where}"
        case 3:
            return f"SELECT count(*) AS n FROM {{t}}{where}"
        case 4:
            return f"SELECT count(*) AS n, count({_any(rng, table)}) AS m FROM {{t}}{where}"
        case 5:
            group = _quoted(_flat(rng, table))
            return f"SELECT {group} AS g, count(*) AS n, max(id) AS m FROM {{t}}{where} GROUP BY {group}"
        case 6:
            return f"SELECT {_list(rng, table)} FROM {{t}}{where} ORDER BY id DESC LIMIT {rng.randint(0, 9)}"
        case 7:
            return f"SELECT count(*) AS n FROM (SELECT {_any(rng, table)} FROM {{t}} LIMIT {rng.randint(0, 60)})"
        case 8:
            joined = "SELECT a.id, a.{0} AS l, b.{1} AS r FROM {{t}} a JOIN {{t}} b ON a.id = b.id WHERE a.id > {2}"
            return joined.format(_any(rng, table), _any(rng, table), rng.randint(0, 40))
        case 9:
            return f"SELECT id FROM {{t}} WHERE id IN (SELECT id + 1 FROM {{t}}{where})"
        case 10:
            return f"SELECT id FROM {{t}} WHERE id > (SELECT avg(id) FROM {{t}}{where})"
    other = condition(rng, table)
    return f"SELECT id, {_any(rng, table)} AS c FROM {{t}}{where} UNION ALL SELECT id, NULL FROM {{t}} WHERE {other}"


def condition(rng: random.Random, table: CorpusTable, depth: int = 0) -> str:
    """Return a random condition on the columns of a table."""
    if depth < 3 and rng.random() < 0.4:
        parts = [condition(rng, table, depth + 1) for _ in range(rng.randint(2, 3))]
        joined = f" {rng.choice(('AND', 'OR'))} ".join(parts)
        return f"{rng.choice(('', '', 'NOT '))}({joined})"
    if table.is_partitioned and rng.random() < 0.2:
        return f"region {rng.choice(('=', '<>', '<', '>='))} '{rng.choice(('eu', 'us', 'aa', 'zz'))}'"
    if rng.random() < 0.15:
        return f"id {rng.choice(('<', '>=', '=', '<>'))} {rng.randint(-1, 45)}"
    name, type_ = rng.choice(list(table.columns.items()))
    column = _quoted(name)
    if rng.random() < 0.15:
        return f"{column} IS {rng.choice(('', 'NOT '))}NULL"
    match type_:
        case "ARRAY<INT>":
            return f"size({column}) > {rng.randint(0, 2)}"
        case "MAP<STRING,INT>":
            return f"element_at({column}, 'a') IS NULL"
        case "STRUCT<x: INT, y: STRING>":
            return rng.choice((f"{column}.x > 1", f"{column}.y = 'it''s'", f"{column}.x IS NULL"))
        case "BOOLEAN":
            return rng.choice((column, f"NOT {column}", f"{column} = false", f"{column} <=> true"))
        case "STRING" if rng.random() < 0.5:
            pattern = rng.choice(("a%", "%b", "%a%", "a\\\\_b", "100\\\\%", "_", "%", "a_b", "it''s%"))
            return f"{column} {rng.choice(('', 'NOT '))}LIKE '{pattern}'"
    return _comparison(rng, column, type_)


def _comparison(rng: random.Random, column: str, type_: str) -> str:
    def value() -> str:
        return literal(rng.choice(VALUES[type_]), type_)

    match rng.randrange(6):
        case 0:
            return f"{column} IN ({', '.join(value() for _ in range(3))})"
        case 1:
            return f"{column} NOT IN ({value()}, {rng.choice(('NULL', value()))})"
        case 2:
            return f"{column} BETWEEN {value()} AND {value()}"
        case 3:
            return f"{column} {rng.choice(('<=>', 'IS DISTINCT FROM'))} {value()}"
        case 4 if type_ in ("TINYINT", "INT", "BIGINT", "DECIMAL(10,2)", "FLOAT", "DOUBLE"):
            other = rng.choice(("0.5", "1", "41L", "1e2", "CAST(1 AS DECIMAL(3,1))", "127"))
            return f"{column} {rng.choice(('<', '<=', '>', '>=', '=', '<>'))} {other}"
    return f"{column} {rng.choice(('=', '==', '<>', '!=', '<', '<=', '>', '>='))} {value()}"


def literal(value: Any, type_: str) -> str:
    """Return a value as SQL has it."""
    match type_:
        case "FLOAT" | "DOUBLE":
            return f"CAST('{value!r}' AS {type_})"
        case "STRING":
            text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            return f"'{text}'"
        case "DATE":
            return f"DATE '{value}'"
        case "TIMESTAMP" | "TIMESTAMP_NTZ":
            return f"{type_} '{value}'"
        case "BINARY":
            return f"X'{value.hex()}'"
        case "BOOLEAN":
            return str(value).lower()
        case "BIGINT" if value == -(2**63):
            return "(-9223372036854775807L - 1L)"
    return f"CAST({value} AS {type_})"


def _quoted(name: str) -> str:
    return f"`{name}`"


def _flat(rng: random.Random, table: CorpusTable) -> str:
    return rng.choice([name for name, type_ in table.columns.items() if type_ not in NESTED])


def _any(rng: random.Random, table: CorpusTable) -> str:
    return _quoted(rng.choice(list(table.columns)))


def _list(rng: random.Random, table: CorpusTable) -> str:
    chosen = rng.sample(list(table.columns), rng.randint(1, min(3, len(table.columns))))
    fields = []
    for name in chosen:
        inner = f"{_quoted(name)}.y" if table.columns[name].startswith("STRUCT") and rng.random() < 0.5 else ""
        fields.append(f"{inner or _quoted(name)} AS s{len(fields)}")
    return ", ".join(["id", *fields])
