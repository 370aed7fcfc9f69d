"""Counters, gauges and histograms of one server or client, and their Prometheus text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class Counter:
    """A number that only grows. Belongs to one thread, as a rule the event loop's."""

    value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family, with the labels that tell it from the others."""

    value: float
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """How many values were at most each of some bounds, the last of them infinite, and the sum of all."""

    buckets: Sequence[tuple[float, int]]
    total: float
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Family:
    """The values of one name at one moment."""

    name: str
    kind: Kind
    meaning: str
    samples: Sequence[Sample]
    histograms: Sequence[HistogramSample] = ()


@dataclass(slots=True)
class _Family:
    kind: Kind
    meaning: str
    counters: dict[Labels, Counter] = field(default_factory=dict)
    sources: list[Callable[[], Iterable[Sample]]] = field(default_factory=list)
    histograms: list[Callable[[], Iterable[HistogramSample]]] = field(default_factory=list)

    def samples(self) -> Iterator[Sample]:
        for labels, counter in self.counters.items():
            yield Sample(counter.value, labels)
        for source in self.sources:
            yield from source()


class Metrics:
    """The metrics of one server by name. Values are read when they are asked for, so that they cost nothing meanwhile.

    Names begin with ``fluss_`` and end with their unit; counters end with ``_total``. One name has one kind and one
    meaning, and may have many labels. What has a label per client must be bounded by its owner.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, meaning: str, **labels: str) -> Counter:
        """Return the counter of this name and these labels; there is one, however often it is asked for."""
        family = self._family(name, "counter", meaning)
        return family.counters.setdefault(tuple(sorted(labels.items())), Counter())

    def show_counter(self, name: str, meaning: str, counter: Counter, **labels: str) -> None:
        """Show a counter that its owner has made."""
        self._family(name, "counter", meaning).counters[tuple(sorted(labels.items()))] = counter

    def gauge(self, name: str, meaning: str, read: Callable[[], float], **labels: str) -> None:
        """Show a value that is read when it is asked for."""
        pairs = tuple(sorted(labels.items()))
        self._family(name, "gauge", meaning).sources.append(lambda: (Sample(read(), pairs),))

    def gauges(self, name: str, meaning: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Show values whose labels come and go."""
        self._family(name, "gauge", meaning).sources.append(read)

    def counters(self, name: str, meaning: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Show counts that are kept elsewhere, and whose labels come and go."""
        self._family(name, "counter", meaning).sources.append(read)

    def histograms(self, name: str, meaning: str, read: Callable[[], Iterable[HistogramSample]]) -> None:
        """Show distributions that are kept elsewhere, and whose labels come and go."""
        self._family(name, "histogram", meaning).histograms.append(read)

    def collect(self) -> list[Family]:
        """Return everything as it is now. To be called where the values belong, as a rule on the event loop."""
        return [self.family(name) for name in sorted(self._families)]

    def family(self, name: str) -> Family:
        """Return one family as it is now."""
        family = self._families[name]
        histograms = [sample for read in family.histograms for sample in read()]
        return Family(name, family.kind, family.meaning, list(family.samples()), histograms)

    def values(self) -> dict[tuple[str, Labels], float]:
        """Return every value by name and labels."""
        return {
            (name, sample.labels): sample.value
            for name, family in self._families.items()
            for sample in family.samples()
        }

    def text(self) -> str:
        """Write all values in the Prometheus text format."""
        lines: list[str] = []
        for family in self.collect():
            name = family.name
            lines.append(f"# HELP {name} {family.meaning}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += (f"{name}{_label_text(sample.labels)} {_number_text(sample.value)}" for sample in family.samples)
            lines += (line for histogram in family.histograms for line in _histogram_lines(name, histogram))
        return "\n".join((*lines, ""))

    def _family(self, name: str, kind: Kind, meaning: str) -> _Family:
        family = self._families.setdefault(name, _Family(kind, meaning))
        assert (family.kind, family.meaning) == (kind, meaning), f"{name} has another kind or meaning elsewhere"
        return family


def _histogram_lines(name: str, histogram: HistogramSample) -> Iterator[str]:
    for bound, count in histogram.buckets:
        text = "+Inf" if bound == float("inf") else _number_text(bound)
        yield f"{name}_bucket{_label_text((*histogram.labels, ('le', text)))} {count}"
    yield f"{name}_count{_label_text(histogram.labels)} {histogram.buckets[-1][1]}"
    yield f"{name}_sum{_label_text(histogram.labels)} {_number_text(histogram.total)}"


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"


def _number_text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
