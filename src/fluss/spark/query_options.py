"""From what a Python program says to the options of a query: names, values, times, and the defaults of the session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, TypeAlias

from pyspark.sql import SparkSession

from fluss.config import Config
from fluss.errors import FlussError
from fluss.options import TIME_ZONE
from fluss.schema.partition import PartitionSpec
from fluss.spark.option_table import SPARK_OPTIONS, Use, client_key
from fluss.spark.option_values import epoch_ms, quoted_columns
from fluss.spark.options import applicable_options

# A point in time: with or without a zone, epoch milliseconds, or text such as '2026-01-01 12:30:00'.
TimeLike: TypeAlias = datetime | date | int | str
# Partitions: '2026-01-01', 'day=2026-01-01', the same as a mapping, or several of these.
PartitionLike: TypeAlias = str | PartitionSpec | Mapping[str, object]

_SESSION_PREFIX: Final = "spark.sql.fluss."
# A range of time belongs to one query; every query of a session with the same one would be a surprise.
_NEVER_OF_SESSION: Final = "scan.incremental."
_TIME_ZONE_KEY: Final = "scan.time-zone"
_SESSION_ZONE: Final = "spark.sql.session.timeZone"


def _squeezed(key: str) -> str:
    return re.sub(r"[._-]", "", key).lower()


_KEYS: Final = {
    **{_squeezed(name): option.key for option in Config.options() for name in (option.property_name, option.key)},
    **{_squeezed(option.key): option.key for option in SPARK_OPTIONS},
}


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
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
            return time_text(value)
        case list() | tuple() if all(isinstance(name, str) for name in value):
            return quoted_columns(value)
    raise TypeError(f"the option '{key}' takes text, a number, a truth value or a time, got {type(value).__name__}")


def time_text(time: TimeLike) -> str:
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


def columns_text(columns: Sequence[str] | None) -> str | None:
    """Return columns as options have them."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns are a list such as ['id', 'price'], got the text {columns!r}")
    if not columns:
        raise ValueError("an empty list of columns reads nothing; leave it out to read all")
    return quoted_columns(list(columns))


def partitions_text(partitions: PartitionLike | Sequence[PartitionLike] | None) -> str | None:
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
        "scan.incremental.start.timestamp": None if start is None else time_text(start),
        "scan.incremental.end.timestamp": None if end is None else time_text(end),
    }


def sink_options(change_type_column: str | None, target_columns: Sequence[str] | None) -> dict[str, object]:
    """Return the options that say which columns are written, and what they mean."""
    return {
        "sink.change-type-column": None if change_type_column is None else columns_text([change_type_column]),
        "sink.target-columns": columns_text(target_columns),
    }


def joined_options(chosen: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """Put arguments and further options together; what is said twice is a FlussError."""
    named = option_texts(chosen)
    further = option_texts(options)
    for key in named.keys() & further.keys():
        raise FlussError(f"'{key}' is given twice, as an argument and as an option")
    return {**named, **further}


def merged_options(
    spark: SparkSession, shared: Mapping[str, str], own: Mapping[str, object], use: Use
) -> dict[str, str]:
    """Return the options of one query: its own, else those of the ``FlussSpark``, else those of the session.

    Of the shared ones only those that this kind of query can have. Reads get the time zone of the session, which a data
    source does not see.
    """
    merged = applicable_options(session_options(spark), use) | applicable_options(shared, use) | option_texts(own)
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
    return option_texts({key: value for key, value in given.items() if not key.startswith(_NEVER_OF_SESSION)})


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options that are settings of the client."""
    settings = {}
    for key, value in options.items():
        setting = client_key(key)
        if setting is not None:
            settings[setting] = value
    return settings
