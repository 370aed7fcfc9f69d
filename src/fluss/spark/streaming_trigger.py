"""How a streaming query is started: when it takes its next micro-batch, and that a repeated one is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

# Nothing: one micro-batch after the other. A time between them. 'available-now' or 'once': what there is, then stop.
Trigger: TypeAlias = str | timedelta | None

_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
_AVAILABLE_NOW: Final = ("available-now", "availablenow", "available_now")


def triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    """Set the trigger of a stream."""
    match trigger:
        case None:
            return writer
        case timedelta():
            return writer.trigger(processingTime=f"{round(trigger.total_seconds() * 1000)} milliseconds")
        case str() if trigger.lower() in _AVAILABLE_NOW:
            return writer.trigger(availableNow=True)
        case str() if trigger.lower() == "once":
            return writer.trigger(once=True)
        case str():
            return writer.trigger(processingTime=trigger)
    raise TypeError(
        f"a trigger is 'available-now', 'once', a time such as '5 seconds' or a timedelta, got {type(trigger).__name__}"
    )


@contextmanager
def same_tasks(spark: SparkSession) -> Iterator[None]:
    """Have queries that are started here repeat a micro-batch with the same tasks, whatever its sizes look like.

    A query has the settings that the session has when it starts, so others are not affected.
    """
    before = spark.conf.get(_ADAPTIVE, None)
    spark.conf.set(_ADAPTIVE, False)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_ADAPTIVE)
        else:
            spark.conf.set(_ADAPTIVE, before)
