"""The options of one query: checked as a whole, and typed.

``read_options`` and ``write_options`` take what Spark hands over, and refuse what they do not know. A few keys come
from Spark itself, as was seen with Spark 4.3:

    load("x"), save("x"), start("x")    path
    a streaming write                   checkpointLocation, queryName, and the asyncProgressTracking options
    CREATE TABLE ... USING              provider, owner, comment, location, all table properties, and each option
                                        twice, the second time as option.<key>

``merged_options`` makes them of what a Python program says: names, values, times, and the defaults of the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fluss.config import Config
from fluss.errors import FlussError
from fluss.options import TIME_ZONE, suggestion
from fluss.schema.schema import Schema
from fluss.schema.table import PartitionSpec
from fluss.schema.types import DataType, TimestampLtzType, TimestampType, TimeType
from fluss.spark.naming import TableName, TableView
from fluss.spark.session import has_read_limits
from fluss.spark.session.task_log import LogLevel
from fluss.spark.source_options import (
    OPTION_BY_KEY,
    SPARK_OPTIONS,
    USE_NAMES,
    SparkOption,
    Transaction,
    Use,
    client_key,
    epoch_ms,
    options_of,
    quoted_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluss.filter.row_filter import RowFilter


# A partition by its name, or those with some values of the partition columns.
PartitionChoice: TypeAlias = str | PartitionSpec
ScanMode: TypeAlias = Literal["union", "fluss", "lake", "snapshot"]
StartupMode: TypeAlias = Literal["full", "earliest", "latest", "timestamp", "offsets"]
DeliveryGuarantee: TypeAlias = Literal["at-least-once", "exactly-once"]
# A point in time: with or without a zone, epoch milliseconds, or text such as '2026-01-01 12:30:00'.
TimeLike: TypeAlias = datetime | date | int | str
# Partitions: '2026-01-01', 'day=2026-01-01', the same as a mapping, or several of these.
PartitionLike: TypeAlias = str | PartitionSpec | Mapping[str, object]

_BOOTSTRAP_SERVERS: Final = Config.bootstrap_servers.key
_CHECKPOINT_LOCATION: Final = "checkpointlocation"
_SPARKS_OWN: Final = frozenset(
    {
        _CHECKPOINT_LOCATION,
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingoverridesinksupportcheck",
    }
)
_PATH: Final = "path"
_TABLE: Final = "table"
_CATALOG_TWIN: Final = "option."
# Keys that only CREATE TABLE hands over.
_CATALOG_SIGNS: Final = frozenset({"provider", "owner"})
_SESSION_PREFIX: Final = "spark.sql.fluss."
# A range of time belongs to one query, so it cannot be set for a whole session.
_NEVER_OF_SESSION: Final = "scan.incremental."
_CASE_KEY: Final = "case-sensitive"
_SESSION_CASE: Final = "spark.sql.caseSensitive"
_TIME_ZONE_KEY: Final = "scan.time-zone"
_SPARK_PRECISION: Final = 6
_CORES_KEY: Final = "scan.cores"
_SESSION_ZONE: Final = "spark.sql.session.timeZone"


@dataclass(frozen=True)
class ReadOptions:
    """What to read, and how; for batch and streaming reads. It goes to the executors."""

    connection: Mapping[str, str] = field(repr=False)
    table: TableName
    is_case_sensitive: bool = False
    log_level: LogLevel = "warning"
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    partitions: tuple[PartitionChoice, ...] | None = None
    mode: ScanMode = "union"
    incremental_start_ms: int | None = None
    incremental_end_ms: int | None = None
    as_of_ms: int | None = None
    as_of_offsets: Mapping[str, int] | None = None
    lake_snapshot_id: int | None = None
    changelog: bool = False
    time_zone: str = "UTC"
    startup_mode: StartupMode = "full"
    startup_timestamp_ms: int | None = None
    startup_offsets: Mapping[str, int] | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    partition_discovery_interval_s: float = 60.0
    on_data_loss: Literal["fail", "fail-if-known", "skip"] = "fail"
    target_task_bytes: int = 32 * 1024 * 1024
    max_tasks: int | None = None
    cores: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_s: float = 300.0
    pushdown: bool = True
    # What Spark has told the reader; it holds anyway.
    hinted_filter: str | None = None
    hinted_limit: int | None = None

    @property
    def view(self) -> TableView:
        """The view that is read, by the suffix of the table or by ``scan.changelog``."""
        return "changelog" if self.changelog else self.table.view

    @property
    def returns_every_row(self) -> bool:
        """Whether no row of what is read is left out."""
        return self.filter is None and self.hinted_filter is None and self.incremental_start_ms is None

    def row_filter(self, schema: Schema) -> RowFilter | None:
        """Return the condition on the rows of a table with this schema, if there is one."""
        if self.filter is None:
            return None
        from fluss.filter.row_filter import RowFilter

        zone = TIME_ZONE.read(self.time_zone)
        return RowFilter.parse(self.filter, schema, time_zone=zone, is_case_sensitive=self.is_case_sensitive)

    def is_same_for_spark(self, condition: str, schema: Schema) -> bool:
        """Whether a condition holds for the same rows here and in Spark."""
        from fluss.filter.row_filter import RowFilter

        columns = RowFilter.parse(condition, schema).columns
        return all(_is_same_for_spark(schema.column(name).data_type) for name in columns)

    def row_hint(self, schema: Schema) -> RowFilter | None:
        """Return a condition that may be used or not: Spark evaluates it again."""
        if self.hinted_filter is None:
            return None
        from fluss.filter.row_filter import RowFilter

        return RowFilter.hint(self.hinted_filter, schema, _is_same_for_spark)


def _is_same_for_spark(data_type: DataType) -> bool:
    """Whether Spark compares values of a type as they are stored: it has no more than microseconds."""
    if isinstance(data_type, TimestampType | TimestampLtzType):
        return data_type.precision <= _SPARK_PRECISION
    return not isinstance(data_type, TimeType)


@dataclass(frozen=True)
class WriteOptions:
    """Where to write, and how; for batch and streaming writes. It goes to the executors."""

    connection: Mapping[str, str] = field(repr=False)
    table: TableName
    is_case_sensitive: bool = False
    log_level: LogLevel = "warning"
    delivery_guarantee: DeliveryGuarantee = "at-least-once"
    transaction: Transaction | None = None
    on_table_change: Literal["fail", "accept"] = "fail"
    change_type_column: str | None = None
    ignore_delete: bool = False
    target_columns: tuple[str, ...] | None = None
    bucket_shuffle: bool = True
    allow_overwrite: bool = False
    checkpoint_location: str | None = None


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Check the options of a read; the first that cannot be is a FlussError."""
    use = Use.STREAM_READ if is_stream else Use.BATCH_READ
    checked = _read_options(_GivenOptions(options, use), use)
    has_limits = checked.max_rows_per_trigger is not None or checked.max_bytes_per_trigger is not None
    if has_limits and not has_read_limits():
        raise FlussError(
            "'maxRowsPerTrigger' and 'maxBytesPerTrigger' need Spark 4.2 or newer: before, a micro-batch has all that "
            "there is; leave them out"
        )
    return checked


def schema_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a table whose schema is asked for, before it is known whether it will be read or written."""
    return _read_options(_GivenOptions(options, Use.ALL), Use.READ)


def write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Check the options of a write; the first that cannot be is a FlussError."""
    use = Use.STREAM_WRITE if is_stream else Use.BATCH_WRITE
    given = _GivenOptions(options, use)
    values = given.values(use)
    usual = "exactly-once" if is_stream or values.get("transaction") is not None else "at-least-once"
    values["delivery_guarantee"] = values["delivery_guarantee"] or usual
    values["checkpoint_location"] = given.texts.get(_CHECKPOINT_LOCATION)
    if values.get("transaction") is not None and values["delivery_guarantee"] != "exactly-once":
        raise FlussError("'sink.transaction' is for exactly-once writes; leave it or 'sink.delivery-guarantee' out")
    table: TableName = values["table"]
    if table.view:
        raise FlussError(f"{table} can only be read; write to {table.path}")
    if values["ignore_delete"] and values["change_type_column"] is None:
        raise FlussError("'sink.ignore-delete' needs 'sink.change-type-column', which says what is a delete")
    return WriteOptions(connection=given.connection(), **values)


def applicable_options(options: Mapping[str, str], use: Use) -> dict[str, str]:
    """Leave out the options that this kind of query does not take. For settings that several kinds share."""
    kept: dict[str, str] = {}
    for key, text in options.items():
        option = OPTION_BY_KEY.get(key.lower())
        if option is None or option.uses & use:
            kept[key] = text
    return kept


def _read_options(given: _GivenOptions, use: Use) -> ReadOptions:
    values = given.values(use)
    zone = values.pop("time_zone")
    values["time_zone"] = given.format_table_bucket("scan.time-zone", "UTC")
    if use is not Use.STREAM_READ:
        start, end = values.pop("incremental_start"), values.pop("incremental_end")
        values["incremental_start_ms"] = None if start is None else epoch_ms(start, zone)
        values["incremental_end_ms"] = None if end is None else epoch_ms(end, zone)
        as_of = values.pop("as_of_time")
        values["as_of_ms"] = None if as_of is None else epoch_ms(as_of, zone)
    if use is not Use.BATCH_READ:
        time = values.pop("startup_time")
        values["startup_timestamp_ms"] = None if time is None else epoch_ms(time, zone)
    if values.pop("is_read_optimized"):
        if values["mode"] != "snapshot" and given.has("scan.mode"):
            raise FlussError(f"'read.optimized' means 'scan.mode'=snapshot, but it is {values['mode']}; keep one")
        values["mode"] = "snapshot"
    options = ReadOptions(connection=given.connection(), **values)
    _check_view(options)
    _check_startup(options)
    _check_time_range(options)
    _check_as_of(options)
    return options


def _check_view(options: ReadOptions) -> None:
    if options.changelog and options.table.view not in ("", "changelog"):
        raise FlussError(f"'scan.changelog' reads the changes of a table, but {options.table} is a view; leave one out")
    if options.view not in ("", "lake") and options.mode in ("lake", "snapshot"):
        raise FlussError(f"'scan.mode'={options.mode} has no changes; leave it out to read the view ${options.view}")
    if options.max_rows_per_trigger is not None and options.max_bytes_per_trigger is not None:
        raise FlussError("'maxRowsPerTrigger' and 'maxBytesPerTrigger' are both given; keep one")


def _check_startup(options: ReadOptions) -> None:
    needed: dict[str, tuple[str, object]] = {
        "timestamp": ("scan.startup.timestamp", options.startup_timestamp_ms),
        "offsets": ("scan.startup.offsets", options.startup_offsets),
    }
    for mode, (key, value) in needed.items():
        if options.startup_mode == mode and value is None:
            raise FlussError(f"'scan.startup.mode' is {mode}, but '{key}' is not given")
        if options.startup_mode != mode and value is not None:
            raise FlussError(f"'{key}' is given, but 'scan.startup.mode' is {options.startup_mode}; set it to {mode}")


def _check_time_range(options: ReadOptions) -> None:
    start_ms, end_ms = options.incremental_start_ms, options.incremental_end_ms
    if start_ms is None:
        if end_ms is not None:
            raise FlussError("'scan.incremental.end.timestamp' needs 'scan.incremental.start.timestamp', too")
        return
    if end_ms is not None and end_ms <= start_ms:
        raise FlussError(f"The time range is empty: it begins at {start_ms} ms and ends before {end_ms} ms")
    if options.mode in ("lake", "snapshot"):
        raise FlussError(f"A time range is read from Fluss; leave out 'scan.mode'={options.mode} or 'read.optimized'")


def _check_as_of(options: ReadOptions) -> None:
    is_lake = options.mode == "lake" or options.view == "lake"
    if options.lake_snapshot_id is not None:
        if not is_lake:
            raise FlussError("'scan.lake.snapshot-id' is about the lake; set 'scan.mode' to lake, too")
        if options.as_of_ms is not None:
            raise FlussError("'scan.as-of.timestamp' and 'scan.lake.snapshot-id' are both given; keep one")
    if options.as_of_ms is None and options.as_of_offsets is None:
        return
    if options.as_of_ms is not None and options.as_of_offsets is not None:
        raise FlussError("'scan.as-of.timestamp' and 'scan.as-of.offsets' are both given; keep one")
    if options.incremental_start_ms is not None:
        raise FlussError(
            "A read of a range of time ends with 'scan.incremental.end.timestamp'; leave 'scan.as-of.*' out"
        )
    if is_lake and options.as_of_offsets is not None:
        raise FlussError("'scan.as-of.offsets' are those of Fluss; a lake has 'scan.lake.snapshot-id'")
    if options.mode == "snapshot":
        raise FlussError(f"The past of a table is read from Fluss; leave out 'scan.mode'={options.mode}")


class _GivenOptions:
    """The options of a query as texts by lower-case key, without what Spark adds on its own."""

    def __init__(self, options: Mapping[str, str], use: Use) -> None:
        self.texts = _without_catalog_properties({key.lower(): text for key, text in options.items()})
        path = self.texts.pop(_PATH, None)
        if path is not None and self.texts.setdefault(_TABLE, path) != path:
            raise FlussError(f"The path '{path}' is not the table '{self.texts[_TABLE]}'; leave the path out")
        for key in self.texts:
            is_sparks_own = key in _SPARKS_OWN and bool(use & Use.WRITE)
            if not is_sparks_own and client_key(key) is None:
                _check_known(key, use)

    def has(self, key: str) -> bool:
        return key.lower() in self.texts

    def format_table_bucket(self, key: str, default: str) -> str:
        return self.texts.get(key.lower(), default)

    def values(self, use: Use) -> dict[str, Any]:
        """Return the values of all options of a kind of query, by field; where none is given, the default."""
        if not self.texts:
            raise FlussError(
                "There are no options: Spark does not hand over those of a table in its catalog. Make tables known to "
                "Spark with FlussSpark.attach, or give the options with the query, as in SELECT ... FROM t WITH (...)"
            )
        if _TABLE not in self.texts:
            raise FlussError("Which table? Give the option 'table', such as 'sales.orders'")
        return {option.field: self._value(option) for option in options_of(use)}

    def _value(self, option: SparkOption) -> Any:
        text = self.texts.get(option.key.lower())
        return option.default if text is None else option.parse(text)

    def connection(self) -> dict[str, str]:
        """Return the settings of the client, checked."""
        settings: dict[str, str] = {}
        given: dict[str, str] = {}
        for key, text in self.texts.items():
            setting = client_key(key)
            if setting is None:
                continue
            if setting in settings:
                raise FlussError(f"'{given[setting]}' and '{key}' are both given; keep one")
            settings[setting] = text
            given[setting] = key
        if _BOOTSTRAP_SERVERS not in settings:
            raise FlussError(f"Which cluster? Give the option '{_BOOTSTRAP_SERVERS}', such as 'localhost:9123'")
        Config(dict(settings)).validate()
        return settings


def _without_catalog_properties(texts: dict[str, str]) -> dict[str, str]:
    """Keep of what CREATE TABLE hands over the options: those that are there a second time, marked as such."""
    if not texts.keys() >= _CATALOG_SIGNS:
        return texts
    return {key: text for key, text in texts.items() if _CATALOG_TWIN + key in texts}


def _check_known(key: str, use: Use) -> None:
    option = OPTION_BY_KEY.get(key)
    if option is not None and option.uses & use:
        return
    if option is not None:
        raise FlussError(
            f"'{option.key}' is an option of {USE_NAMES[option.uses]}, but this is one of the {USE_NAMES[use]}; "
            f"leave it out"
        )
    known = [option.key for option in options_of(use)]
    client_keys = [option.key for option in Config.options()]
    close = suggestion(key, [known_key.lower() for known_key in (*known, *client_keys)])
    raise FlussError(
        f"Unknown option '{key}'{_in_its_own_case(close)} There are {', '.join(known)}, and the options of the client, "
        f"such as {_BOOTSTRAP_SERVERS}."
    )


def _in_its_own_case(text: str) -> str:
    """Show the suggested key as it is documented, at the end of a sentence."""
    for option in SPARK_OPTIONS:
        text = text.replace(f"'{option.key.lower()}'", f"'{option.key}'")
    return text or "."


# From arguments of Python


def _squeezed(key: str) -> str:
    return re.sub(r"[._-]", "", key).lower()


_KEYS: Final = {
    **{_squeezed(name): option.key for option in Config.options() for name in (option.property_name, option.key)},
    **{_squeezed(option.key): option.key for option in SPARK_OPTIONS},
}


def format_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as texts by their keys. Keywords may be written ``scan_max_tasks``; None is left out."""
    texts = {}
    for name, value in options.items():
        if value is None:
            continue
        key = client_key(name) or _KEYS.get(_squeezed(name), name)
        if key in texts:
            raise FlussError(f"The option '{key}' is given twice")
        texts[key] = _text(key, value)
    return texts


def _text(key: str, value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case datetime() | date():
            return format_time(value)
        case list() | tuple() if all(isinstance(name, str) for name in value):
            return quoted_columns(value)
    raise TypeError(f"the option '{key}' takes text, a number, a truth value or a time, got {type(value).__name__}")


def format_time(time: TimeLike) -> str:
    """Return a point in time as options have it. Without a zone it is meant in the zone of the session."""
    match time:
        case bool():
            raise TypeError("a time is a datetime, epoch milliseconds or text, got bool")
        case datetime() if time.tzinfo is not None:
            return str(epoch_ms(time, time.tzinfo))
        case datetime():
            return time.isoformat(" ")
        case date():
            return time.isoformat()
        case int() | str():
            return str(time)
    raise TypeError(f"a time is a datetime, epoch milliseconds or text, got {type(time).__name__}")


def format_columns(columns: Sequence[str] | None) -> str | None:
    """Return columns as options have them."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns are a list such as ['id', 'price'], got the text {columns!r}")
    if not columns:
        raise ValueError("an empty list of columns reads nothing; leave it out to read all")
    return quoted_columns(list(columns))


def format_partitions(partitions: PartitionLike | Sequence[PartitionLike] | None) -> str | None:
    """Return a choice of partitions as options have it."""
    if partitions is None:
        return None
    choices = [partitions] if isinstance(partitions, str | PartitionSpec | Mapping) else list(partitions)
    texts = []
    for choice in choices:
        if isinstance(choice, str):
            texts.append(choice)
            continue
        values = choice.spec_map if isinstance(choice, PartitionSpec) else choice
        texts.append(",".join(f"{column}={value}" for column, value in values.items()))
    return ";".join(texts)


def time_range_options(start: TimeLike | None, end: TimeLike | None) -> dict[str, Any]:
    """Return the options of a read of what was written in some time."""
    return {
        "scan.incremental.start.timestamp": None if start is None else format_time(start),
        "scan.incremental.end.timestamp": None if end is None else format_time(end),
    }


def sink_options(change_type_column: str | None, target_columns: Sequence[str] | None) -> dict[str, object]:
    """Return the options that say which columns are written, and what they mean."""
    return {
        "sink.change-type-column": None if change_type_column is None else format_columns([change_type_column]),
        "sink.target-columns": format_columns(target_columns),
    }


def joined_options(chosen: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """Put arguments and further options together; what is said twice is a FlussError."""
    named = format_options(chosen)
    further = format_options(options)
    for key in named.keys() & further.keys():
        raise FlussError(f"'{key}' is given twice, as an argument and as an option")
    return {**named, **further}


# Of a whole session


def merged_options(
    spark: SparkSession, shared: Mapping[str, str], own: Mapping[str, object], use: Use
) -> dict[str, str]:
    """Return the options of one query: its own, else those of the ``FlussSpark``, else those of the session.

    Of the shared ones only those that this kind of query can have. Reads get the time zone of the session and the
    number of its cores, and all queries whether it tells upper and lower case apart: a data source does not see it.
    """
    merged = applicable_options(session_options(spark), use) | applicable_options(shared, use) | format_options(own)
    merged.setdefault(_CASE_KEY, (spark.conf.get(_SESSION_CASE) or "false").lower())
    # Through Spark Connect a program does not see the cores either.
    if use & Use.READ and _CORES_KEY not in merged and hasattr(spark, "_jsparkSession"):
        merged[_CORES_KEY] = str(max(1, spark.sparkContext.defaultParallelism))
    if use & Use.READ and _TIME_ZONE_KEY not in merged:
        zone = spark.conf.get(_SESSION_ZONE) or ""
        try:
            TIME_ZONE.read(zone)
        except ValueError:
            return merged  # One that only Java knows. Times with a zone in them still work.
        merged[_TIME_ZONE_KEY] = zone
    return merged


def session_options(spark: SparkSession) -> dict[str, str]:
    """Return the options that hold for a whole session: ``spark.sql.fluss.<option>``."""
    given = {
        key.removeprefix(_SESSION_PREFIX): value
        for key, value in spark.conf.getAll.items()
        if key.startswith(_SESSION_PREFIX)
    }
    return format_options({key: value for key, value in given.items() if not key.startswith(_NEVER_OF_SESSION)})


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options that are settings of the client."""
    settings = {}
    for key, value in options.items():
        setting = client_key(key)
        if setting is not None:
            settings[setting] = value
    return settings
