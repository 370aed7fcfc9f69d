"""When a streaming query takes its next micro-batch."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias

from pyspark.sql.streaming.readwriter import DataStreamWriter

# Nothing: one micro-batch after the other. A time between them. 'available-now' or 'once': what there is, then stop.
Trigger: TypeAlias = str | timedelta | None

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
