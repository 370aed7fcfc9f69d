"""All metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from fluss.metrics import Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)


def exposition(families: Iterable[Family]) -> bytes:
    """Write families as a page."""
    return generate_latest(_Families(families))


def _metric(family: Family) -> Metric:
    metric: Metric
    if family.kind == "histogram":
        metric = HistogramMetricFamily(family.name, family.meaning)
        for histogram in family.histograms:
            labels = dict(histogram.labels)
            for bound, count in histogram.buckets:
                text = "+Inf" if bound == float("inf") else repr(bound)
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": text}, count)
            metric.add_sample(f"{family.name}_count", labels, histogram.buckets[-1][1])
            metric.add_sample(f"{family.name}_sum", labels, histogram.total)
        return metric
    if family.kind == "counter":
        metric = CounterMetricFamily(family.name, family.meaning)
        name = f"{metric.name}_total"
    else:
        metric = GaugeMetricFamily(family.name, family.meaning)
        name = family.name
    for sample in family.samples:
        metric.add_sample(name, dict(sample.labels), sample.value)
    return metric
