"""Quotas: what one user, or one address of anonymous clients, may send, fetch and ask per second.

A request is carried out if its user has no debt, and is charged; while there is a debt, answers of that connection are
held back and nothing more is read from it or started. So a client that sends more is slowed down to the quota, and the
server holds no more of it in memory than of others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from fluss.metrics import Labels, Metrics, Sample
from fluss.net.token_bucket import TokenBucket
from fluss.protocol.api import ApiKey
from fluss.protocol.sasl import ANONYMOUS, Principal

# What a bucket holds when it is full: so much of a second's worth may come at once.
_BURST_S: Final = 1.0
# Users and addresses that are remembered; of more, the one that asked longest ago is forgotten.
_CLIENTS_MAX: Final = 10_000
# Over how long the shown rates are measured.
_RATE_WINDOW_S: Final = 10.0


class QuotaKind(Enum):
    """What is counted."""

    PRODUCE = "produced bytes"
    FETCH = "fetched bytes"
    REQUESTS = "requests"


# The requests whose bytes count as produced, and those whose answers count as fetched.
PRODUCE_APIS: Final = frozenset({ApiKey.PRODUCE_LOG, ApiKey.PUT_KV})
FETCH_APIS: Final = frozenset(
    {ApiKey.FETCH_LOG, ApiKey.LOOKUP, ApiKey.PREFIX_LOOKUP, ApiKey.LIMIT_SCAN, ApiKey.SCAN_KV}
)


@dataclass(frozen=True, slots=True)
class QuotaRates:
    """The limits of one kind per second: for all users, and for some by name. 0 is no limit.

    A name is that of a user or an address of anonymous clients; ANONYMOUS stands for all addresses that have no entry
    of their own, each by itself.
    """

    default: float = 0
    overrides: Mapping[str, float] = field(default_factory=dict)

    def of(self, principal: Principal, address: str) -> float:
        names = (address, principal.name) if principal == ANONYMOUS else (principal.name,)
        return next((self.overrides[name] for name in names if name in self.overrides), self.default)

    @property
    def limits_somebody(self) -> bool:
        return self.default > 0 or any(rate > 0 for rate in self.overrides.values())


class _Use:
    """One kind of one client: its bucket if it is limited, and what it has used."""

    __slots__ = ("_rate_per_s", "_window_amount", "_window_began_s", "bucket", "throttled_s", "used")

    def __init__(self, now_s: float) -> None:
        self.bucket: TokenBucket | None = None
        self.used = 0.0
        self.throttled_s = 0.0
        self._rate_per_s = 0.0
        self._window_began_s = now_s
        self._window_amount = 0.0

    def charge(self, amount: float, now_s: float) -> float:
        self._turn_window(now_s)
        self.used += amount
        self._window_amount += amount
        return 0.0 if self.bucket is None else self.bucket.take(amount, now_s)

    def rate_per_s(self, now_s: float) -> float:
        self._turn_window(now_s)
        passed_s = now_s - self._window_began_s
        return max(self._rate_per_s, self._window_amount / passed_s) if passed_s >= 1 else self._rate_per_s

    def set_limit(self, rate_per_s: float, now_s: float) -> None:
        if rate_per_s <= 0:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(rate_per_s, rate_per_s * _BURST_S, now_s)
        else:
            self.bucket.change(rate_per_s, rate_per_s * _BURST_S, now_s)

    def _turn_window(self, now_s: float) -> None:
        passed_s = now_s - self._window_began_s
        if passed_s >= _RATE_WINDOW_S:
            self._rate_per_s = self._window_amount / passed_s
            self._window_began_s, self._window_amount = now_s, 0.0


class ClientQuota:
    """What one user, or one anonymous address, has used and may use. All its connections share it."""

    __slots__ = ("_clock", "_uses", "address", "labels", "name", "principal")

    def __init__(self, principal: Principal, address: str, clock: Callable[[], float]) -> None:
        self.principal = principal
        self.address = address
        is_anonymous = principal == ANONYMOUS
        self.name = f"the anonymous clients of {address}" if is_anonymous else f"the user {principal.name}"
        self.labels: Labels = (("address", address),) if is_anonymous else (("user", principal.name),)
        self._clock = clock
        now_s = clock()
        self._uses = {kind: _Use(now_s) for kind in QuotaKind}

    def charge(self, kind: QuotaKind, amount: float) -> float:
        """Count what was used; return for how many seconds there is a debt now."""
        return self._uses[kind].charge(amount, self._clock())

    def wait_s(self) -> float:
        """Return the seconds until nothing is owed."""
        now_s = self._clock()
        return max((use.bucket.wait_s(now_s) for use in self._uses.values() if use.bucket is not None), default=0.0)

    def throttled(self, kind: QuotaKind, seconds: float) -> None:
        """Count the time for which an answer is held back."""
        self._uses[kind].throttled_s += seconds

    def limit_of(self, kind: QuotaKind) -> float:
        bucket = self._uses[kind].bucket
        return 0.0 if bucket is None else bucket.rate_per_s

    def set_limits(self, limits: Mapping[QuotaKind, QuotaRates]) -> None:
        now_s = self._clock()
        for kind, rates in limits.items():
            self._uses[kind].set_limit(rates.of(self.principal, self.address), now_s)

    def samples(self, read: Callable[[_Use], float]) -> Iterator[Sample]:
        for kind, use in self._uses.items():
            yield Sample(read(use), tuple(sorted((("kind", kind.name.lower()), *self.labels))))


class Quotas:
    """The quotas of all clients of a server. Belongs to its event loop.

    ``is_active`` is False as long as no client is limited: then connections do not even ask.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: dict[QuotaKind, QuotaRates] = {kind: QuotaRates() for kind in QuotaKind}
        self._clients: OrderedDict[tuple[str, str], ClientQuota] = OrderedDict()
        self.is_active = False

    def set_rates(self, kind: QuotaKind, rates: QuotaRates) -> None:
        """Limit clients from now on; clients that are in debt stay so, at the new rate."""
        self._limits[kind] = rates
        self.is_active = any(limit.limits_somebody for limit in self._limits.values())
        for client in self._clients.values():
            client.set_limits(self._limits)

    def client(self, principal: Principal, address: str) -> ClientQuota:
        """Return the quota of the client that sends requests from there; the address is an ``address_key``."""
        if principal != ANONYMOUS:
            address = ""
        key = (principal.name, address)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientQuota(principal, address, self._clock)
            client.set_limits(self._limits)
            if len(self._clients) > _CLIENTS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(key)
        return client

    def show(self, metrics: Metrics) -> None:
        """Have everything shown among the metrics, for clients of the time in which there are quotas."""

        def of_all(read: Callable[[_Use], float]) -> Callable[[], Iterable[Sample]]:
            return lambda: [sample for client in self._clients.values() for sample in client.samples(read)]

        metrics.counters("fluss_quota_used_total", "Bytes or requests of a client.", of_all(lambda use: use.used))
        metrics.counters(
            "fluss_quota_throttle_seconds_total",
            "How long answers to a client were held back.",
            of_all(lambda use: use.throttled_s),
        )
        metrics.gauges(
            "fluss_quota_rate_per_second",
            "What a client uses per second.",
            of_all(lambda use: use.rate_per_s(self._clock())),
        )
        metrics.gauges(
            "fluss_quota_limit_per_second",
            "What a client may use per second, 0 without a limit.",
            of_all(lambda use: 0.0 if use.bucket is None else use.bucket.rate_per_s),
        )
