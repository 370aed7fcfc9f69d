"""What the server did in the last minutes, looked at every two seconds: for plots, and for rates over a minute."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fluss.errors import FlussError
from fluss.metrics import Family, Sample
from fluss.net.request_metrics import api_label, quantile_s
from fluss.protocol.api import ApiKey
from fluss.server.operator_view import ApiTotals, Inventory, LoadSample, OperatorView

INTERVAL_S: Final = 2.0
# Rates are told over the last minute.
_RATE_POINTS: Final = 30
# How many points a page gets at once.
_SHOWN_POINTS: Final = 150
# They wait for records: how long they take says nothing about the server.
_WAITING: Final = frozenset({ApiKey.FETCH_LOG})
_UPSTREAM_NAMES: Final = {
    ApiKey.PRODUCE_LOG: "produceLog",
    ApiKey.PUT_KV: "putKv",
    ApiKey.LOOKUP: "lookup",
    ApiKey.PREFIX_LOOKUP: "prefixLookup",
    ApiKey.GET_METADATA: "metadata",
    ApiKey.FETCH_LOG: "fetchLogClient",
}
_WRITES: Final = frozenset({ApiKey.PRODUCE_LOG, ApiKey.PUT_KV})
_READS: Final = frozenset({ApiKey.FETCH_LOG, ApiKey.LOOKUP, ApiKey.PREFIX_LOOKUP, ApiKey.LIMIT_SCAN})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """The server at one moment."""

    at_s: float  # Of a clock that never jumps.
    time_ms: int
    load: LoadSample
    disk_used_bytes: int
    disk_total_bytes: int


class LoadHistory:
    """The last points. Belongs to the loop of HTTP."""

    def __init__(self, view: OperatorView) -> None:
        self._view = view
        # Of the last minute, and what is shown of the last minutes: made once, however many look at it.
        self._points: deque[Point] = deque(maxlen=_RATE_POINTS + 1)
        self._intervals: deque[dict[str, float | None]] = deque(maxlen=_SHOWN_POINTS)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fluss-http-load")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except (FlussError, OSError) as error:
                logger.debug("the load of the server could not be looked at: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> None:
        load = await self._view.load()
        disk = await asyncio.to_thread(shutil.disk_usage, self._view.options.data_dir)
        point = Point(time.monotonic(), time.time_ns() // 1_000_000, load, disk.used, disk.total)
        if self._points:
            self._intervals.append(_interval(self._points[-1], point))
        self._points.append(point)

    # For the page

    def series(self) -> dict[str, Any]:
        """Return what the plots show: one value per interval, null where there is none."""
        shown: dict[str, Any] = {name: [values[name] for values in self._intervals] for name in _SERIES}
        shown["disk_total_bytes"] = self._points[-1].disk_total_bytes if self._points else 0
        return shown

    def apis(self) -> list[dict[str, Any]]:
        """Return the requests of the last minute by API, the busiest first."""
        window = self._window()
        if window is None:
            return []
        old, new = window
        rows = []
        for key, totals in new.load.apis.items():
            before = old.load.apis.get(key)
            times = _times_between(before, totals)
            rows.append(
                {
                    "api": api_label(key),
                    "requests_per_s": _rate(old, new, lambda each: each.requests, (key,)),
                    "errors_per_s": _rate(old, new, lambda each: each.errors, (key,)),
                    "in_bytes_per_s": _rate(old, new, lambda each: each.received_bytes, (key,)),
                    "out_bytes_per_s": _rate(old, new, lambda each: each.sent_bytes, (key,)),
                    "p50_ms": _ms(quantile_s(times, 0.50)),
                    "p99_ms": _ms(quantile_s(times, 0.99)),
                    "requests": totals.requests,
                }
            )
        return sorted(rows, key=lambda row: (-row["requests_per_s"], -row["requests"]))

    # For monitoring systems

    def families(self) -> list[Family]:
        """Return the rates of the last minute by the names that they have in Apache Fluss."""
        window = self._window()
        if window is None:
            return []
        return _upstream_families(*window)

    def _window(self) -> tuple[Point, Point] | None:
        """Return the ends of the last minute, or of the time since the start."""
        if len(self._points) < 2:
            return None
        return self._points[0], self._points[-1]


_NOTHING: Final = ApiTotals(0, 0, 0, 0, 0.0, ())
_UPSTREAM_MEANING: Final = "As in Apache Fluss, over the last minute."


def _upstream_families(old: Point, new: Point) -> list[Family]:
    families = [
        _gauge("fluss_tabletserver_bytesInPerSecond", _rate(old, new, lambda totals: totals.received_bytes, _WRITES)),
        _gauge("fluss_tabletserver_bytesOutPerSecond", _rate(old, new, lambda totals: totals.sent_bytes, _READS)),
        _gauge(
            "fluss_tabletserver_messagesInPerSecond",
            (new.load.written_row_count - old.load.written_row_count) / max(new.at_s - old.at_s, 1e-3),
        ),
        _gauge("fluss_tabletserver_delayedFetchCount", new.load.delayed_fetch_count),
        _gauge("fluss_tabletserver_leaderCount", new.load.inventory.bucket_count),
        _gauge("fluss_tabletserver_replicaCount", new.load.inventory.bucket_count),
        _gauge("fluss_tabletserver_diskWriteLocked", float(new.load.is_write_locked)),
        _gauge("fluss_coordinator_activeCoordinatorCount", 1),
        _gauge("fluss_coordinator_activeTabletServerCount", 1),
        _gauge("fluss_coordinator_offlineBucketCount", new.load.inventory.failed_bucket_count),
        _gauge("fluss_coordinator_tableCount", new.load.inventory.table_count),
        _gauge("fluss_coordinator_bucketCount", new.load.inventory.bucket_count),
        _gauge("fluss_coordinator_partitionCount", new.load.inventory.partition_count),
        _gauge("fluss_coordinator_lakeTiering_pendingTablesCount", new.load.inventory.tiering_counts.get("pending", 0)),
        _gauge("fluss_coordinator_lakeTiering_runningTablesCount", new.load.inventory.tiering_counts.get("tiering", 0)),
        _gauge(
            "fluss_tabletserver_diskUsageRatio",
            new.disk_used_bytes / new.disk_total_bytes if new.disk_total_bytes else 0.0,
        ),
    ]
    for key, name in _UPSTREAM_NAMES.items():
        totals = new.load.apis.get(key) or _NOTHING
        before, prefix = old.load.apis.get(key), f"fluss_tabletserver_request_{name}_"
        times = _times_between(before, totals)
        requests = _difference(before, totals, lambda each: each.requests)
        received = _difference(before, totals, lambda each: each.received_bytes)
        families += [
            _gauge(f"{prefix}requestsPerSecond", _rate(old, new, lambda each: each.requests, (key,))),
            _gauge(f"{prefix}errorsPerSecond", _rate(old, new, lambda each: each.errors, (key,))),
            _gauge(f"{prefix}requestBytes", received / requests if requests else 0.0),
            Family(
                f"{prefix}totalTimeMs",
                "gauge",
                _UPSTREAM_MEANING,
                [
                    Sample((quantile_s(times, fraction) or 0.0) * 1e3, (("quantile", str(fraction)),))
                    for fraction in (0.5, 0.75, 0.95, 0.99)
                ],
            ),
        ]
    return families


def _gauge(name: str, value: float) -> Family:
    return Family(name, "gauge", _UPSTREAM_MEANING, [Sample(value)])


# What is shown of each interval.
_SERIES: Final = (
    "time_ms",
    "requests_per_s",
    "errors_per_s",
    "in_bytes_per_s",
    "out_bytes_per_s",
    "p50_ms",
    "p99_ms",
    "rows_per_s",
    "memory_bytes",
    "disk_used_bytes",
    "connections",
)


def _interval(old: Point, new: Point) -> dict[str, float | None]:
    times = _times(old, new)
    values: tuple[float | None, ...] = (
        new.time_ms,
        _rate(old, new, lambda totals: totals.requests),
        _rate(old, new, lambda totals: totals.errors),
        _rate(old, new, lambda totals: totals.received_bytes),
        _rate(old, new, lambda totals: totals.sent_bytes),
        _ms(quantile_s(times, 0.50)),
        _ms(quantile_s(times, 0.99)),
        (new.load.written_row_count - old.load.written_row_count) / max(new.at_s - old.at_s, 1e-3),
        new.load.memory_bytes,
        new.disk_used_bytes,
        new.load.connection_count,
    )
    return dict(zip(_SERIES, values, strict=True))


def _rate(old: Point, new: Point, value: Callable[[ApiTotals], float], keys: Iterable[ApiKey] | None = None) -> float:
    seconds = max(new.at_s - old.at_s, 1e-3)
    chosen = new.load.apis if keys is None else [key for key in keys if key in new.load.apis]
    total = sum(_difference(old.load.apis.get(key), new.load.apis[key], value) for key in chosen)
    return total / seconds


def _difference(old: ApiTotals | None, new: ApiTotals, value: Callable[[ApiTotals], float]) -> float:
    return value(new) - (0 if old is None else value(old))


def _times_between(old: ApiTotals | None, new: ApiTotals) -> Sequence[int]:
    return new.times if old is None else [after - before for before, after in zip(old.times, new.times, strict=True)]


def _times(old: Point, new: Point) -> Sequence[int]:
    """Return the times of all requests but those that wait for records."""
    times: list[int] = []
    for key, totals in new.load.apis.items():
        before = old.load.apis.get(key)
        if key in _WAITING or (before is not None and before.requests == totals.requests):
            continue
        between = _times_between(before, totals)
        times = [total + count for total, count in zip(times, between, strict=True)] if times else list(between)
    return times


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def upstream_metrics() -> list[str]:
    """Return the names of the metrics that are called as in Apache Fluss."""
    nothing = Point(0.0, 0, LoadSample({}, 0, 0, 0, 0, False, Inventory(0, 0, 0, 0, {})), 0, 0)
    return sorted(family.name for family in _upstream_families(nothing, nothing))
