"""Counters and gauges of one server, and their text form for monitoring systems (the Prometheus text format)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]

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


@dataclass(slots=True)
class _Family:
    kind: Literal["counter", "gauge"]
    meaning: str
    counters: dict[Labels, Counter] = field(default_factory=dict)
    sources: list[Callable[[], Iterable[Sample]]] = field(default_factory=list)

    def samples(self) -> Iterator[Sample]:
        for labels, counter in self.counters.items():
            yield Sample(counter.value, labels)
        for source in self.sources:
            yield from source()


class Metrics:
    """The metrics of one server by name. Values are read when somebody looks, so that they cost nothing meanwhile.

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
        """Show a value that is read when somebody looks."""
        pairs = tuple(sorted(labels.items()))
        self._family(name, "gauge", meaning).sources.append(lambda: (Sample(read(), pairs),))

    def gauges(self, name: str, meaning: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Show values whose labels come and go."""
        self._family(name, "gauge", meaning).sources.append(read)

    def counters(self, name: str, meaning: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Show counts that are kept elsewhere, and whose labels come and go."""
        self._family(name, "counter", meaning).sources.append(read)

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
        for name, family in sorted(self._families.items()):
            lines.append(f"# HELP {name} {family.meaning}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += (f"{name}{_label_text(sample.labels)} {_number_text(sample.value)}" for sample in family.samples())
        return "\n".join((*lines, ""))

    def _family(self, name: str, kind: Literal["counter", "gauge"], meaning: str) -> _Family:
        family = self._families.setdefault(name, _Family(kind, meaning))
        assert (family.kind, family.meaning) == (kind, meaning), f"{name} has another kind or meaning elsewhere"
        return family


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"


def _number_text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
