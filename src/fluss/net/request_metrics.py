"""What is counted about requests: how many, how large, how long, and how many were refused, by API.

It is written on the event loop, once per request and once per answer, and read when asked for. Times are counted
in a histogram whose buckets grow by a quarter of a power of two, so a quantile is exact to about a tenth, whatever its
size, and counting takes two shifts and an addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from fluss.metrics import HistogramSample, Metrics, Sample
from fluss.protocol.api import APIS, Api, ApiKey

# Up to 2**32 microseconds, more than an hour; what takes longer counts there, too.
_BITS_MAX: Final = 32
_BUCKETS: Final = 4 * (_BITS_MAX + 1)
# The bounds that monitoring systems are told: powers of two from 64 microseconds to 67 seconds.
_TOLD_BITS: Final = range(6, 27)


class ApiCounts:
    """What is known about the requests of one API."""

    __slots__ = ("error_count", "received_bytes", "request_count", "seconds", "sent_bytes", "times")

    def __init__(self) -> None:
        self.request_count = 0
        self.error_count = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.seconds = 0.0
        self.times = [0] * _BUCKETS

    def answered(self, received_bytes: int, sent_bytes: int, seconds: float) -> None:
        """Count a request that was answered after so long."""
        self.request_count += 1
        self.received_bytes += received_bytes
        self.sent_bytes += sent_bytes
        self.seconds += seconds
        self.times[_bucket_of(int(seconds * 1e6))] += 1

    def failed(self, seconds: float, *, received_bytes: int, sent_bytes: int) -> None:
        """Count a request that was answered with an error, or not at all."""
        self.error_count += 1
        self.answered(received_bytes, sent_bytes, seconds)


class RequestMetrics:
    """The counts of all listeners of a server, or of all connections of a client. Belongs to an event loop.

    Any thread may read. ``prefix`` begins the names of the metrics.
    """

    def __init__(self, prefix: str = "fluss") -> None:
        self._prefix = prefix
        self._counts: dict[ApiKey, ApiCounts] = {ApiKey(key): ApiCounts() for key in APIS}

    def of(self, api: Api[Any, Any]) -> ApiCounts:
        return self._counts[api.key]

    @property
    def counts(self) -> Mapping[ApiKey, ApiCounts]:
        return self._counts

    def show(self, metrics: Metrics) -> None:
        """Have the counts shown among the metrics, for those APIs that were used."""
        metrics.counters(
            f"{self._prefix}_requests_total",
            "Requests that were answered, refused ones included.",
            lambda: (Sample(counts.request_count, labels) for labels, counts in self._used()),
        )
        metrics.counters(
            f"{self._prefix}_request_errors_total",
            "Requests that were answered with an error, or not at all.",
            lambda: (Sample(counts.error_count, labels) for labels, counts in self._used()),
        )
        metrics.counters(
            f"{self._prefix}_received_bytes_total",
            "Bytes that were received.",
            lambda: (Sample(counts.received_bytes, labels) for labels, counts in self._used()),
        )
        metrics.counters(
            f"{self._prefix}_sent_bytes_total",
            "Bytes that were sent.",
            lambda: (Sample(counts.sent_bytes, labels) for labels, counts in self._used()),
        )
        metrics.histograms(
            f"{self._prefix}_request_seconds",
            "From a request to its answer; of fetches, with the time that they wait for records.",
            lambda: (HistogramSample(_told(counts), counts.seconds, labels) for labels, counts in self._used()),
        )

    def _used(self) -> Iterable[tuple[tuple[tuple[str, str], ...], ApiCounts]]:
        for key, counts in self._counts.items():
            if counts.request_count:
                yield (("api", api_label(key)),), counts


def api_label(key: ApiKey) -> str:
    """Return the name of an API as monitoring systems are told it, such as ``produceLog``."""
    first, *rest = key.name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def quantile_s(times: Sequence[int], fraction: float) -> float | None:
    """Return the time that a fraction of the requests took at most; None if there were none."""
    total = sum(times)
    if not total:
        return None
    wanted = fraction * total
    for bucket, count in enumerate(accumulate(times)):
        if count >= wanted:
            return _upper_us(bucket) / 1e6
    return None


def _bucket_of(us: int) -> int:
    """Return the bucket of a time: its highest bit, and the two bits behind that one."""
    if us < 4:
        return us if us > 0 else 0
    bits = us.bit_length()
    if bits > _BITS_MAX:
        return _BUCKETS - 1
    return (bits << 2) | ((us >> (bits - 3)) & 3)


def _upper_us(bucket: int) -> int:
    """Return the time below which those of a bucket are."""
    bits, quarter = divmod(bucket, 4)
    return bucket + 1 if bits < 3 else (5 + quarter) << (bits - 3)


def _told(counts: ApiCounts) -> list[tuple[float, int]]:
    """Return how many requests took at most each of the told bounds, and at last how many there were."""
    sums = list(accumulate(counts.times))
    # The bucket of a power of two is the first of its highest bit, so everything before it is below.
    told = [((1 << bits) / 1e6, sums[_bucket_of(1 << bits) - 1]) for bits in _TOLD_BITS]
    return [*told, (float("inf"), sums[-1])]
