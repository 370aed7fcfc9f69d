"""Values of Spark options as people write them, beyond the plain ones: tables, columns, partitions, points in time.

| kind | written as | examples |
|---|---|---|
| table | database and table, and the name of a view of it | ``sales.orders``, ``sales.orders$changelog`` |
| columns | names separated by commas; unusual names in backquotes | ``id, price``, ``id,`a,b` `` |
| partitions | names, or values of partition columns | ``day=2026-01-01; day=2026-02-01`` |
| time | epoch milliseconds, or date and time of day | ``1767225600000``, ``2026-01-01 12:30:00`` |
| size | bytes, or a number and a unit | ``1048576``, ``32mb`` |
| transaction | a name and a number | ``daily-load/17`` |
| offsets | JSON: offsets by ``"<partition name or nothing>:<bucket>"`` | ``{"2026-01-01:0": 17}``, ``{":3": 0}`` |
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal, NamedTuple, cast, get_args

from fluss.errors import FlussError
from fluss.integers import INT64_MAX
from fluss.options import DURATION_MS, INT64, MEMORY_BYTES, ValueType
from fluss.schema.partition import PartitionSpec
from fluss.schema.table import TablePath

TableView = Literal["", "changelog", "binlog", "lake"]
_VIEWS: Final[tuple[TableView, ...]] = get_args(TableView)

_TRANSACTION: Final = re.compile(r"(?P<name>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199})/(?P<number>[0-9]{1,18})")
_BUCKET: Final = re.compile(r"(?P<partition>[^:]*):(?P<bucket>[0-9]{1,9})")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
# A name in backquotes, in which a doubled one stands for itself, or a plain one; then a comma or the end.
_COLUMN: Final = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^`,]*[^`,\s]))\s*(?P<end>,|$)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class TableName(NamedTuple):
    """A table, and which view of it: its rows, or with ``$changelog`` and ``$binlog`` its changes."""

    database: str
    table: str
    view: TableView

    @property
    def path(self) -> TablePath:
        return TablePath(self.database, self.table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}" + (f"${self.view}" if self.view else "")


class Transaction(NamedTuple):
    """What a write is known by when it is repeated: a name, and a number that grows from one write to the next."""

    name: str
    number: int


def _read_table_name(text: str) -> TableName:
    path, dollar, view = text.strip().partition("$")
    database, dot, table = path.partition(".")
    if not (database and dot and table) or "." in table:
        raise ValueError
    if dollar and (not view or view.lower() not in _VIEWS):
        raise FlussError(f"a table has no view '${view}'; there are $changelog, $binlog and $lake")
    return TableName(database, table, cast(TableView, view.lower()))


def _read_columns(text: str) -> tuple[str, ...]:
    names: list[str] = []
    position = 0
    while True:
        name = _COLUMN.match(text, position)
        if name is None:
            raise ValueError
        names.append(name["plain"] if name["quoted"] is None else name["quoted"].replace("``", "`"))
        position = name.end()
        if not name["end"]:
            break
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise FlussError(f"the column '{min(repeated)}' is there twice")
    return tuple(names)


def quoted_columns(names: tuple[str, ...] | list[str]) -> str:
    """Return the text that stands for these columns."""
    return ",".join(f"`{name.replace('`', '``')}`" if re.search("[`,]|^\\s|\\s$", name) else name for name in names)


def _read_partitions(text: str) -> tuple[str | PartitionSpec, ...]:
    choices: list[str | PartitionSpec] = []
    for choice in filter(None, (part.strip() for part in text.split(";"))):
        values = [value.strip() for value in re.split("[,/]", choice)]
        if "=" in choice:
            choices.append(_partition_spec(values))
        elif all(values):
            choices.extend(values)
        else:
            raise ValueError
    if not choices:
        raise ValueError
    return tuple(choices)


def _partition_spec(values: list[str]) -> PartitionSpec:
    spec: dict[str, str] = {}
    for column, equals, value in (part.partition("=") for part in values):
        if not (equals and column.strip() and value.strip()):
            raise ValueError
        if column.strip() in spec:
            raise FlussError(f"a partition has one value of '{column.strip()}'; separate partitions with semicolons")
        spec[column.strip()] = value.strip()
    return PartitionSpec(spec)


def _read_time(text: str) -> datetime | int:
    """Read a point in time. Without a zone it is a naive datetime, and depends on where one is."""
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return INT64.read(text)
    if _TIME.fullmatch(text) is None:
        raise ValueError
    return datetime.fromisoformat(text)


def epoch_ms(time: datetime | int, zone: tzinfo) -> int:
    """Return the milliseconds of a point in time; one that says no zone is meant in this one."""
    if isinstance(time, int):
        return time
    return ((time if time.tzinfo is not None else time.replace(tzinfo=zone)) - _EPOCH) // _MILLISECOND


def _read_size(text: str) -> int:
    return INT64.read(text.strip()) if text.strip().isdigit() else MEMORY_BYTES.read(text)


def _read_offsets(text: str) -> dict[str, int]:
    offsets = json.loads(text)
    if not isinstance(offsets, dict):
        raise ValueError
    for key, offset in offsets.items():
        if _BUCKET.fullmatch(key) is None or type(offset) is not int or not 0 <= offset <= INT64_MAX:
            raise ValueError
    return offsets


def _read_transaction(text: str) -> Transaction:
    match = _TRANSACTION.fullmatch(text.strip())
    if match is None:
        raise ValueError
    return Transaction(match["name"], int(match["number"]))


TABLE: Final = ValueType("database.table, such as sales.orders or sales.orders$changelog", _read_table_name)
COLUMNS: Final = ValueType("column names separated by commas", _read_columns)
COLUMN: Final = ValueType("the name of a column", lambda text: _read_columns(text)[0])
PARTITIONS: Final = ValueType(
    "partition names such as '2026-01-01' or values such as 'day=2026-01-01', several separated by semicolons",
    _read_partitions,
)
TIME: Final = ValueType("epoch milliseconds, or a time such as '2026-01-01 12:30:00'", _read_time)
SIZE_BYTES: Final = ValueType("a size such as '32mb', or a number of bytes", _read_size)
TRANSACTION: Final = ValueType("a name and a number, such as daily-load/17", _read_transaction)
DURATION_S: Final = ValueType(DURATION_MS.expected, lambda text: DURATION_MS.read(text) / 1000)
OFFSETS: Final = ValueType(
    'JSON with an offset for each bucket, such as {"2026-01-01:0": 17}, or {":0": 17} without partitions',
    _read_offsets,
)
