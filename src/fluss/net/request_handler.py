"""What carries out requests: a function of the request and of where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fluss.protocol.api import ApiKey
from fluss.protocol.sasl import Principal


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Where a request comes from."""

    api_key: ApiKey
    api_version: int
    principal: Principal
    listener_name: str
    peer_address: str
    # Whether the client is gone by now: what is kept for it alone can be dropped.
    is_gone: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Guest:
    """A client inside this process that another part of it has let in: who it is, and for whom at what address."""

    principal: Principal
    peer_address: str


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A response whose handler wants to know when its bytes have left, or never will; both are told once."""

    response: Any
    on_sent: Callable[[], None]


# Carries out the requests of one API. It returns the response message (or an Answer), or an awaitable of it.
Handler: TypeAlias = Callable[[RequestContext, Any], Any]
