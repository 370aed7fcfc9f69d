"""Metrics for OpenTelemetry: those of a connection or of a server, through a meter of the program.

    from opentelemetry import metrics
    from fluss import telemetry

    telemetry.observe(connection.metrics(), metrics.get_meter("shop"))

The meter asks when it exports, so nothing is spent in between. It needs ``pip install "flussbett[telemetry]"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fluss.metrics import Labels, Metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["observe"]


def observe(metrics: Metrics, meter: Meter | None = None) -> None:
    """Have a meter show all metrics from now on; without one, a meter of the name ``fluss``.

    Counters become observable counters, gauges become observable gauges. A histogram becomes two counters, ``_count``
    and ``_sum``, because OpenTelemetry takes none that is kept elsewhere.
    """
    from opentelemetry import metrics as api

    meter = meter or api.get_meter("fluss")
    for family in metrics.collect():
        name, meaning = family.name, family.meaning
        if family.kind == "histogram":
            meter.create_observable_counter(f"{name}_count", [_callback(metrics, name, _counts)], description=meaning)
            meter.create_observable_counter(f"{name}_sum", [_callback(metrics, name, _sums)], description=meaning)
        elif family.kind == "counter":
            meter.create_observable_counter(name, [_callback(metrics, name, _samples)], description=meaning)
        else:
            meter.create_observable_gauge(name, [_callback(metrics, name, _samples)], description=meaning)


def _callback(
    metrics: Metrics, name: str, read: Callable[[Metrics, str], Iterator[tuple[float, Labels]]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def callback(_options: Any) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for value, labels in read(metrics, name)]

    return callback


def _samples(metrics: Metrics, name: str) -> Iterator[tuple[float, Labels]]:
    return ((sample.value, sample.labels) for sample in metrics.family(name).samples)


def _counts(metrics: Metrics, name: str) -> Iterator[tuple[float, Labels]]:
    return ((histogram.buckets[-1][1], histogram.labels) for histogram in metrics.family(name).histograms)


def _sums(metrics: Metrics, name: str) -> Iterator[tuple[float, Labels]]:
    return ((histogram.total, histogram.labels) for histogram in metrics.family(name).histograms)
