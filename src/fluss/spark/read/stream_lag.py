"""How far a streaming query is behind its tables: found out on the driver, shown in Spark's progress, read from there.

Spark has a place for it in the reports of a query (``sources[].latestOffset``), though none for metrics of a Python
data source. Beside where the logs end stands there

    "lag": {"table": "web.views", "rows": 299, "seconds": 12.4,
            "worst": {"2026-01-02:0": {"rows": 200, "seconds": 12.4}, ...}}

Rows are those that are waiting behind the micro-batch that was planned last; seconds are the age of the oldest of them,
by the time at which the server took it. Before Spark 4.2 there is no such place: the ends that stand in the offset
itself tell the rows.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fluss import FlussTable
from fluss.client.bulk import LogRange, read_ranges
from fluss.errors import FlussError
from fluss.row.arrow_arrays import narrowest_column
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket
from fluss.spark.read.offset_json import Json, parse_offset
from fluss.spark.read.stream_offsets import BucketPosition, StreamOffset

# Buckets that are named, with the age of what waits in them.
_WORST_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class BucketLag:
    """What waits in one bucket: how many rows, and how old the oldest of them is, if that is known."""

    partition: str | None
    bucket_id: int
    rows: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class TableLag:
    """What waits in one table that a query reads. ``worst`` are the buckets in which the most rows wait."""

    table: str | None
    rows: int
    seconds: float | None
    worst: tuple[BucketLag, ...]


# On the driver of a query


def unread(reached: StreamOffset, latest: Mapping[TableBucket, int]) -> dict[TableBucket, int]:
    """Count the rows between what has been read and the ends of the logs, in buckets that have some.

    The rows of a bucket that has not been begun count as many as the changes that made them.
    """
    found = {}
    for bucket, end in latest.items():
        position = reached.positions.get(bucket, BucketPosition(0))
        rows = end if position.has_rows else end - position.offset
        if rows > 0:
            found[bucket] = rows
    return found


def worst_of(waiting: Mapping[TableBucket, int]) -> list[TableBucket]:
    """Return the buckets in which the most rows wait, the worst first."""
    return heapq.nlargest(_WORST_MAX, waiting, key=waiting.__getitem__)


def measured_lag(
    table: FlussTable,
    reached: StreamOffset,
    waiting: Mapping[TableBucket, int],
    names: Mapping[int, str],
    *,
    clock: Callable[[], float] = time.time,
) -> Json:
    """Return what a report says about the lag. The age is asked of the servers, if something waits."""
    worst = worst_of(waiting)
    firsts = {
        bucket: position.offset
        for bucket in worst
        if not (position := reached.positions.get(bucket, BucketPosition(0))).has_rows
    }
    now_s = clock()
    ages_s = {
        bucket: max(0.0, round(now_s - timestamp_ms / 1000, 3))
        for bucket, timestamp_ms in _times_ms(table, firsts).items()
    }
    return {
        "table": str(table.table_path),
        "rows": sum(waiting.values()),
        "seconds": max(ages_s.values(), default=None if waiting else 0.0),
        "worst": {
            format_bucket(_partition_name(bucket, names), bucket.bucket_id): {
                "rows": waiting[bucket],
                "seconds": ages_s.get(bucket),
            }
            for bucket in worst
        },
    }


def _partition_name(bucket: TableBucket, names: Mapping[int, str]) -> str | None:
    id_ = bucket.partition_id
    return None if id_ is None else names.get(id_, str(id_))


def _times_ms(table: FlussTable, firsts: Mapping[TableBucket, int]) -> dict[TableBucket, int]:
    """Return when the records at these offsets were written; nothing if they cannot be read now."""
    if not firsts:
        return {}
    columns = [narrowest_column(table.get_table_info().schema)]
    records = [LogRange(bucket, offset, offset + 1) for bucket, offset in firsts.items()]
    try:
        return {run.bucket: run.timestamp_ms for run in read_ranges(table, records, columns=columns)}
    except FlussError:
        # Records that have expired, or a server that is away: the query will notice, a report need not.
        return {}


# In a program that watches a query


def lags(progress: Mapping[str, Any]) -> list[TableLag]:
    """Return how far a query was behind its tables when a micro-batch began that is done now, table by table.

    ``progress`` is what ``query.lastProgress`` returns, or what a listener gets, or one of its sources. Sources of
    other kinds are left out.
    """
    sources: Sequence[Mapping[str, Any]] = progress.get("sources", [progress])
    found = (_lag_of(source) for source in sources)
    return [lag for lag in found if lag is not None]


def backlog(progress: Mapping[str, Any]) -> int:
    """Return how many rows a query was behind all its tables together, see ``lags``."""
    return sum(lag.rows for lag in lags(progress))


def _lag_of(source: Mapping[str, Any]) -> TableLag | None:
    latest = _reported(source.get("latestOffset"))
    if latest is not None and "lag" in latest:
        return _shown_lag(latest["lag"])
    reached = _reported(source.get("endOffset"))
    if reached is None:
        return None
    offset = parse_offset(reached)
    ends = dict(offset.ends) if latest is None else _ends(parse_offset(latest))
    waiting = unread(offset, ends)
    worst = [
        BucketLag(_partition_name(bucket, offset.names), bucket.bucket_id, waiting[bucket], None)
        for bucket in worst_of(waiting)
    ]
    return TableLag(offset.table, sum(waiting.values()), None if waiting else 0.0, tuple(worst))


def _ends(latest: StreamOffset) -> dict[TableBucket, int]:
    return {bucket: position.offset for bucket, position in latest.positions.items()}


def _shown_lag(found: Mapping[str, Any]) -> TableLag:
    worst = []
    for key, lag in found["worst"].items():
        partition, _, bucket_id = key.rpartition(":")
        worst.append(BucketLag(partition or None, int(bucket_id), lag["rows"], lag["seconds"]))
    return TableLag(found["table"], found["rows"], found["seconds"], tuple(worst))


def _reported(offset: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Read an offset out of a progress report; None if it is not one of ours."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and "table_id" in found else None
