"""Which buckets are fetched together: the buckets of one leader, in one request as far as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fluss.client.scan.fetch_messages import FetchRequests, FetchResponses
from fluss.client.scan.subscription import Subscription
from fluss.protocol.codec import Parts


class FetchGroup:
    """Buckets of one leader that are fetched with one request, in order.

    Buckets whose records have arrived go to the end, so that all get their turn when a response cannot hold the
    records of all of them.
    """

    __slots__ = ("_request", "responses", "subscriptions", "task")

    def __init__(self) -> None:
        self.subscriptions: dict[Subscription, None] = {}
        self.responses = FetchResponses()
        # What waits for the answer to the request, while there is one.
        self.task: asyncio.Task[None] | None = None
        self._request: Parts | None = None

    def request(self, requests: FetchRequests) -> Parts:
        """Return the encoded request; it is the same until something changes."""
        if self._request is None:
            self._request = requests.encode(self.subscriptions)
        return self._request

    def add(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            self.subscriptions[subscription] = None
            subscription.group = self
        self.responses.forget()
        self._request = None

    def remove(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription]
        subscription.group = None
        self._request = None

    def move_on(self, subscription: Subscription, offset: int) -> None:
        """Fetch a bucket from another offset next time, after all others."""
        del self.subscriptions[subscription]
        self.subscriptions[subscription] = None
        subscription.offset_fetch = offset
        subscription.request_entry = None
        self._request = None

    def forget_request(self) -> None:
        self._request = None


class Lane:
    """The buckets of one leader: in groups that are under way, and in one that waits to be sent."""

    __slots__ = ("out_count", "server_id", "waiting")

    def __init__(self, server_id: int) -> None:
        self.server_id = server_id
        self.out_count = 0
        self.waiting: FetchGroup | None = None

    def wait(self, group: FetchGroup) -> None:
        """Let a group be part of the next request."""
        if self.waiting is None:
            self.waiting = group
        elif group is not self.waiting:
            self.waiting.add(group.subscriptions)
