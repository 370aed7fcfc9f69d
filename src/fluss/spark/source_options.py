"""Every option of the data source ``fluss``: key, type, default, what it is for, and which queries take it.

Beside these, every client option (``fluss.Config``) is taken, with or without ``client.`` before its key. Spark hands
over all keys in lower case, so the case of a key never matters. Values are written as those of other options, and:

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
from enum import Flag, auto
from typing import Any, Final, NamedTuple

from fluss.config import Config
from fluss.errors import FlussError
from fluss.integers import INT64_MAX
from fluss.options import (
    BOOLEAN,
    DURATION_MS,
    INT64,
    MEMORY_BYTES,
    TEXT,
    TIME_ZONE,
    Option,
    ValueType,
    integer_between,
    word_of,
)
from fluss.schema.table import PartitionSpec
from fluss.spark.naming import TableName

_TRANSACTION: Final = re.compile(r"(?P<name>[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199})/(?P<number>[0-9]{1,18})")
_BUCKET: Final = re.compile(r"(?P<partition>[^:]*):(?P<bucket>[0-9]{1,9})")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
# A name in backquotes, in which a doubled one stands for itself, or a plain one; then a comma or the end.
_COLUMN: Final = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^`,]*[^`,\s]))\s*(?P<end>,|$)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_CLIENT_PREFIX: Final = "client."
# The key of ``fluss.Config`` by every spelling of it.
_CLIENT_KEYS: Final = {key: option.key for option in Config.options() for key in (option.key, *option.aliases)}


# Kinds of values


class Transaction(NamedTuple):
    """What a write is known by when it is repeated: a name, and a number that grows from one write to the next."""

    name: str
    number: int


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


TABLE: Final = ValueType("database.table, such as sales.orders or sales.orders$changelog", TableName.parse)
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


# The options


class Use(Flag):
    """The kinds of queries."""

    BATCH_READ = auto()
    STREAM_READ = auto()
    BATCH_WRITE = auto()
    STREAM_WRITE = auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE


USE_NAMES: Final = {
    Use.BATCH_READ: "batch reads",
    Use.STREAM_READ: "streaming reads",
    Use.BATCH_WRITE: "batch writes",
    Use.STREAM_WRITE: "streaming writes",
    Use.READ: "reads",
    Use.WRITE: "writes",
    Use.ALL: "reads and writes",
}


class SparkOption(Option[Any]):
    """An option of queries: which of them take it, and the attribute of the parsed options (``field``)."""

    def __init__(
        self,
        key: str,
        field: str,
        value_type: ValueType[Any],
        default: str | None,
        uses: Use,
        doc: str,
        *,
        lowest: float | None = None,
    ) -> None:
        super().__init__(key, value_type, default, doc, lowest=lowest)
        self.field = field
        self.uses = uses


SPARK_OPTIONS: Final = (
    SparkOption(
        "table",
        "table",
        TABLE,
        None,
        Use.ALL,
        "The table, as database.table. Reads also take the views sales.orders$changelog, every change with its kind, "
        "offset and time in columns before the others, and sales.orders$binlog, every change as one row with the row "
        "before and after it.",
    ),
    SparkOption(
        "case-sensitive",
        "is_case_sensitive",
        BOOLEAN,
        "false",
        Use.ALL,
        "Whether columns are found only by names in the same upper and lower case. A data source does not see "
        "spark.sql.caseSensitive of the session; FlussSpark fills it in.",
    ),
    SparkOption(
        "log.level",
        "log_level",
        word_of("debug", "info", "warning", "error"),
        "warning",
        Use.ALL,
        "From which level on tasks write to the log of their worker. With info each of them says in one line how many "
        "rows it read or wrote, and how long that took.",
    ),
    # What is read
    SparkOption(
        "scan.columns",
        "columns",
        COLUMNS,
        None,
        Use.READ,
        "The columns to read, in this order; all if not given. A schema given to Spark does the same. Names with "
        "commas in them stand in backquotes.",
    ),
    SparkOption(
        "scan.filter",
        "filter",
        TEXT,
        None,
        Use.READ,
        "Read only rows for which this condition holds, such as price > 10 AND name LIKE 'a%'. It knows comparisons, "
        "AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE, and literals such as DATE '2026-01-01' and TIMESTAMP '2026-01-01 "
        "12:00:00'. Batches and partitions in which no row can match are not read.",
    ),
    SparkOption(
        "scan.partitions",
        "partitions",
        PARTITIONS,
        None,
        Use.READ,
        "Read only these partitions: by name (2026-01-01$EU), or by the values of some or all partition columns "
        "(day=2026-01-01,region=EU). Several are separated by semicolons.",
    ),
    SparkOption(
        "scan.mode",
        "mode",
        word_of("union", "fluss", "lake", "snapshot"),
        "union",
        Use.READ,
        "Where rows come from: union takes them from the lake, where a table has one, and the newest from Fluss; fluss "
        "from Fluss only; lake from the lake only; snapshot the state that was last saved as a whole.",
    ),
    SparkOption(
        "read.optimized",
        "is_read_optimized",
        BOOLEAN,
        "false",
        Use.READ,
        "Another way to say scan.mode=snapshot.",
    ),
    SparkOption(
        "scan.incremental.start.timestamp",
        "incremental_start",
        TIME,
        None,
        Use.BATCH_READ,
        "Read only what was written at this time or later: epoch milliseconds, or a time such as 2026-01-01 12:00:00 "
        "in the zone of scan.time-zone. Of a table with a primary key: the rows written since, in their last state.",
    ),
    SparkOption(
        "scan.incremental.end.timestamp",
        "incremental_end",
        TIME,
        None,
        Use.BATCH_READ,
        "Where a read with scan.incremental.start.timestamp ends: only what was written before this time.",
    ),
    SparkOption(
        "scan.as-of.timestamp",
        "as_of_time",
        TIME,
        None,
        Use.BATCH_READ,
        "Read what the table had at this time, as far as its log reaches back: the rows written until then, or those "
        "that a table with a primary key had. The same as TIMESTAMP AS OF in SQL.",
    ),
    SparkOption(
        "scan.as-of.offsets",
        "as_of_offsets",
        OFFSETS,
        None,
        Use.BATCH_READ,
        'Read what the table had when its logs ended at these offsets, such as {":0": 17, ":1": 4}; buckets that are '
        "not in it had nothing, and one that the table does not have is refused. The same as VERSION AS OF in SQL.",
    ),
    SparkOption(
        "scan.lake.snapshot-id",
        "lake_snapshot_id",
        integer_between(0, INT64_MAX),
        None,
        Use.BATCH_READ,
        "Read the lake as it was at this snapshot of the Iceberg table; with scan.mode=lake, or from t$lake. With "
        "scan.as-of.timestamp it is the snapshot of that time.",
    ),
    SparkOption(
        "scan.changelog",
        "changelog",
        BOOLEAN,
        "false",
        Use.READ,
        "Read every change, with the columns _change_type, _log_offset and _commit_timestamp before the others; the "
        "same as the table name with $changelog.",
    ),
    SparkOption(
        "scan.time-zone",
        "time_zone",
        TIME_ZONE,
        "UTC",
        Use.READ,
        "The zone of times in options and of TIMESTAMP literals in scan.filter. A data source does not see the zone of "
        "the session; FlussSpark fills it in.",
    ),
    SparkOption(
        "scan.pushdown",
        "pushdown",
        BOOLEAN,
        "true",
        Use.READ,
        "Whether a read leaves out columns, batches, partitions and rows that Spark would leave out afterwards, and "
        "answers count(*) of rows that are all in a lake. The rows of a query are the same either way. Tables by name "
        "take it from the session only, as spark.sql.fluss.scan.pushdown.",
    ),
    # Where a stream begins, and how much it takes at once
    SparkOption(
        "scan.startup.mode",
        "startup_mode",
        word_of("full", "earliest", "latest", "timestamp", "offsets"),
        "full",
        Use.STREAM_READ,
        "Where a new stream begins: full with the rows there are, and goes on with the changes after them; earliest "
        "with the oldest change, latest with the next one, timestamp at scan.startup.timestamp, offsets at "
        "scan.startup.offsets. A stream with a checkpoint goes on where it was.",
    ),
    SparkOption(
        "scan.startup.timestamp",
        "startup_time",
        TIME,
        None,
        Use.STREAM_READ,
        "Where a stream with scan.startup.mode=timestamp begins, written like scan.incremental.start.timestamp.",
    ),
    SparkOption(
        "scan.startup.offsets",
        "startup_offsets",
        OFFSETS,
        None,
        Use.STREAM_READ,
        'Where a stream with scan.startup.mode=offsets begins: JSON such as {":0": 17, ":1": 4}, or '
        '{"2026-01-01:0": 17} with the partition. Buckets that are not in it begin at the earliest offset.',
    ),
    SparkOption(
        "maxRowsPerTrigger",
        "max_rows_per_trigger",
        INT64,
        None,
        Use.STREAM_READ,
        "The most rows of one micro-batch.",
        lowest=1,
    ),
    SparkOption(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        SIZE_BYTES,
        None,
        Use.STREAM_READ,
        "About the most bytes of one micro-batch, such as 64mb.",
        lowest=1,
    ),
    SparkOption(
        "scan.partition.discovery.interval",
        "partition_discovery_interval_s",
        DURATION_S,
        "1 min",
        Use.STREAM_READ,
        "How often a stream looks for new partitions; with 0s before every micro-batch.",
        lowest=0,
    ),
    SparkOption(
        "scan.on-data-loss",
        "on_data_loss",
        word_of("fail", "fail-if-known", "skip"),
        "fail",
        Use.STREAM_READ,
        "What a stream does whose next rows are gone, by age or with their partition: fail, or skip to the earliest "
        "rows there are. Of a dropped partition an Apache Fluss server does not tell whether rows were left in it: "
        "fail fails there, too, and fail-if-known goes on.",
    ),
    # How the work is divided
    SparkOption(
        "scan.target-task-bytes",
        "target_task_bytes",
        SIZE_BYTES,
        "32mb",
        Use.READ,
        "About how many bytes a task reads. Small buckets are read together, large ones of log tables divided.",
        lowest=1,
    ),
    SparkOption(
        "scan.max-tasks",
        "max_tasks",
        INT64,
        None,
        Use.READ,
        "The most tasks of a read or of a micro-batch; if not given, it follows from the number of cores and the size.",
        lowest=1,
    ),
    SparkOption(
        "scan.cores",
        "cores",
        INT64,
        None,
        Use.READ,
        "How many tasks run at the same time. More tasks than that are a multiple of it, so that no core is idle while "
        "the last of them run. A data source does not see it; FlussSpark fills it in, and without it the processors of "
        "the driver count.",
        lowest=1,
    ),
    SparkOption(
        "scan.maxRecordsPerPartition",
        "max_records_per_partition",
        INT64,
        None,
        Use.READ,
        "The most rows of a log table that one task reads.",
        lowest=1,
    ),
    SparkOption(
        "scan.poll.timeout",
        "poll_timeout_s",
        DURATION_S,
        "5 min",
        Use.READ,
        "How long a task waits for rows that must be there, or for a server that does not answer, before it fails and "
        "Spark tries it again. It says every ten seconds in its log what it waits for.",
        lowest=0.001,
    ),
    # What is written
    SparkOption(
        "sink.delivery-guarantee",
        "delivery_guarantee",
        word_of("at-least-once", "exactly-once"),
        None,
        Use.WRITE,
        "at-least-once, the default of batch writes: a task that is tried again may write rows twice. exactly-once, "
        "the default of streams: no row is lost or doubled, whatever fails.",
    ),
    SparkOption(
        "sink.transaction",
        "transaction",
        TRANSACTION,
        None,
        Use.BATCH_WRITE,
        "A name and a number, such as daily-load/17. A write that is repeated under the same name and number, because "
        "a driver died or foreachBatch was called again, writes every row once. Numbers grow: those before are "
        "forgotten. It needs checkpointLocation, where the account is kept.",
    ),
    SparkOption(
        "sink.on-table-change",
        "on_table_change",
        word_of("fail", "accept"),
        "fail",
        Use.WRITE,
        "What a stream does whose table was dropped and created again since its checkpoint was written, or that is "
        "given another one: fail, because the rows written before would be missing, or accept it and go on with new "
        "rows.",
    ),
    SparkOption(
        "sink.change-type-column",
        "change_type_column",
        COLUMN,
        None,
        Use.WRITE,
        "The column that says for each row what to do with it, in a table with a primary key: +I, +U, insert or "
        "update_after to write it, -D or delete to delete it, -U or update_before to ignore it. It is not written "
        "itself.",
    ),
    SparkOption(
        "sink.ignore-delete",
        "ignore_delete",
        BOOLEAN,
        "false",
        Use.WRITE,
        "Leave out rows that sink.change-type-column marks as deletes.",
    ),
    SparkOption(
        "sink.target-columns",
        "target_columns",
        COLUMNS,
        None,
        Use.WRITE,
        "Write only these columns of a table with a primary key, and leave the others of a row as they are. The key "
        "is always among them.",
    ),
    SparkOption(
        "sink.bucket-shuffle",
        "bucket_shuffle",
        BOOLEAN,
        "true",
        Use.WRITE,
        "Whether FlussSpark, told which column orders the changes of a key, brings the rows of a key together in one "
        "task before it writes them. Spark itself does not do so.",
    ),
    SparkOption(
        "sink.allow-overwrite",
        "allow_overwrite",
        BOOLEAN,
        "false",
        Use.BATCH_WRITE,
        "Whether a write with mode overwrite may append to a log table, whose rows cannot be taken back, and leaves "
        "what is there. Otherwise it is refused. A table with a primary key is overwritten without it.",
    ),
)
OPTION_BY_KEY: Final = {option.key.lower(): option for option in SPARK_OPTIONS}


def options_of(use: Use) -> tuple[SparkOption, ...]:
    """Return the options that one kind of query takes."""
    return tuple(option for option in SPARK_OPTIONS if option.uses & use)


def client_key(key: str) -> str | None:
    """Return the key of ``fluss.Config`` that an option stands for, if it is one of the client's."""
    key = key.lower()
    return _CLIENT_KEYS.get(key) or _CLIENT_KEYS.get(key.removeprefix(_CLIENT_PREFIX))
