"""What the connections of one listener share: handlers, memory, places, quotas and the threads for passwords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.limits import ByteBudget
from fluss.net.login import PasswordHashing
from fluss.net.login_throttle import LoginThrottle
from fluss.net.quotas import Quotas
from fluss.net.request_handler import Handler
from fluss.net.request_metrics import RequestMetrics
from fluss.protocol.api import Api, ApiKey


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of one listener have in common."""

    handlers: Mapping[ApiKey, Handler]
    served: Mapping[int, Api[Any, Any]]
    # The bytes of large requests that are arriving, of those that are being carried out, and of unsent answers.
    arriving_memory: ByteBudget
    request_memory: ByteBudget
    answer_memory: ByteBudget
    throttle: LoginThrottle
    clock: Callable[[], float]
    admission: Admission
    quotas: Quotas
    bursts: BurstLog
    # None: requests are not counted.
    request_metrics: RequestMetrics | None = None
    hashing: PasswordHashing = field(default_factory=PasswordHashing)
