"""What the server did in the last minutes, looked at every two seconds: for plots, and for rates over a minute."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from fluss.errors import FlussError
from fluss.metrics import Family, Sample
from fluss.net.request_metrics import api_label, quantile_s
from fluss.protocol.api import ApiKey
from fluss.server.operator_view import ApiTotals, LoadSample, OperatorView

INTERVAL_S: Final = 2.0
_POINTS_MAX: Final = 300
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
        self._points: deque[Point] = deque(maxlen=_POINTS_MAX)
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
        self._points.append(Point(time.monotonic(), time.time_ns() // 1_000_000, load, disk.used, disk.total))

    # For the page

    def series(self) -> dict[str, Any]:
        """Return what the plots show: one value per interval, null where there is none."""
        points = list(self._points)[-_SHOWN_POINTS - 1 :]
        pairs = list(pairwise(points))
        return {
            "time_ms": [new.time_ms for _, new in pairs],
            "requests_per_s": [_rate(old, new, lambda totals: totals.requests) for old, new in pairs],
            "errors_per_s": [_rate(old, new, lambda totals: totals.errors) for old, new in pairs],
            "in_bytes_per_s": [_rate(old, new, lambda totals: totals.received_bytes) for old, new in pairs],
            "out_bytes_per_s": [_rate(old, new, lambda totals: totals.sent_bytes) for old, new in pairs],
            "p50_ms": [_quantile_ms(old, new, 0.50) for old, new in pairs],
            "p99_ms": [_quantile_ms(old, new, 0.99) for old, new in pairs],
            "memory_bytes": [new.load.memory_bytes for _, new in pairs],
            "disk_used_bytes": [new.disk_used_bytes for _, new in pairs],
            "disk_total_bytes": points[-1].disk_total_bytes if points else 0,
            "connections": [new.load.connection_count for _, new in pairs],
        }

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
        old, new = window
        families = [
            _gauge(
                "fluss_tabletserver_bytesInPerSecond", _rate(old, new, lambda totals: totals.received_bytes, _WRITES)
            ),
            _gauge("fluss_tabletserver_bytesOutPerSecond", _rate(old, new, lambda totals: totals.sent_bytes, _READS)),
            _gauge("fluss_tabletserver_delayedFetchCount", new.load.delayed_fetch_count),
            _gauge(
                "fluss_tabletserver_diskUsageRatio",
                new.disk_used_bytes / new.disk_total_bytes if new.disk_total_bytes else 0.0,
            ),
        ]
        for key, name in _UPSTREAM_NAMES.items():
            totals = new.load.apis.get(key)
            if totals is None:
                continue
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

    def _window(self) -> tuple[Point, Point] | None:
        """Return the ends of the last minute, or of the time since the start."""
        if len(self._points) < 2:
            return None
        return self._points[max(0, len(self._points) - 1 - _RATE_POINTS)], self._points[-1]


_UPSTREAM_MEANING: Final = "As in Apache Fluss, over the last minute."


def _gauge(name: str, value: float) -> Family:
    return Family(name, "gauge", _UPSTREAM_MEANING, [Sample(value)])


def _rate(old: Point, new: Point, value: Callable[[ApiTotals], float], keys: Iterable[ApiKey] | None = None) -> float:
    seconds = max(new.at_s - old.at_s, 1e-3)
    chosen = new.load.apis if keys is None else [key for key in keys if key in new.load.apis]
    total = sum(_difference(old.load.apis.get(key), new.load.apis[key], value) for key in chosen)
    return total / seconds


def _difference(old: ApiTotals | None, new: ApiTotals, value: Callable[[ApiTotals], float]) -> float:
    return value(new) - (0 if old is None else value(old))


def _times_between(old: ApiTotals | None, new: ApiTotals) -> Sequence[int]:
    return new.times if old is None else [after - before for before, after in zip(old.times, new.times, strict=True)]


def _quantile_ms(old: Point, new: Point, fraction: float) -> float | None:
    """Return a quantile of the times of all requests but those that wait for records."""
    times = [0] * len(next(iter(new.load.apis.values())).times) if new.load.apis else []
    for key, totals in new.load.apis.items():
        before = old.load.apis.get(key)
        if key in _WAITING or (before is not None and before.requests == totals.requests):
            continue
        times = [total + count for total, count in zip(times, _times_between(before, totals), strict=True)]
    return _ms(quantile_s(times, fraction))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
