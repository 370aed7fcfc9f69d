"""Stored values for many keys of one call: large requests, several of them on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.client.lookup.key_batches import KeyRun
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.messages import Place
from fluss.client.lookup.pauses import PAUSE_S_MIN, pause_after
from fluss.client.lookup.pending import LookupTable
from fluss.errors import ErrorCode, FlussError

# One object per key: what its answer is.
Answers: TypeAlias = npt.NDArray[np.object_]

# One call has at most so many requests on the way.
_REQUESTS_MAX: Final = 4
# The most keys in one request. With large keys or rows there are fewer, so that requests and answers are of this size.
_KEYS_MAX: Final = 5_000
_BYTES_TARGET: Final = 4 * 1024 * 1024
# As long as nobody knows how large the rows are.
_KEYS_FIRST: Final = 500


class BulkFetch:
    """Fetches the answers for the keys of one call. Belongs to the event loop.

    A request that fails for a passing reason is sent again, like that of a single lookup.
    """

    def __init__(self, client: LookupClient, table: LookupTable) -> None:
        self._client = client
        self._table = table
        self._turns = asyncio.Semaphore(_REQUESTS_MAX)
        self._value_count = 0
        self._value_bytes = 0

    async def fetch(self, runs: Sequence[KeyRun], answers: Answers) -> None:
        """Put the answer for each key where its row is. Rows of partitions that do not exist are left as they are.

        Raises the first failure that does not pass.
        """
        requests = [asyncio.ensure_future(self._in_turn(group, answers)) for group in self._grouped(runs)]
        if not requests:
            return
        try:
            await asyncio.gather(*requests)
        finally:
            for request in requests:
                request.cancel()
            await asyncio.wait(requests)

    def _grouped(self, runs: Sequence[KeyRun]) -> list[list[KeyRun]]:
        """Put runs together that fit a request, those of one server next to each other."""
        keys_max = self._keys_max(runs)
        routes = self._table.routes
        led = [(routes.leader(routes.route(run.partition_name), run.bucket_id), run) for run in runs]
        by_server: dict[int | None, list[KeyRun]] = {}
        for server_id, run in led:
            by_server.setdefault(server_id, []).extend(run.pieces(keys_max))
        groups: list[list[KeyRun]] = []
        for pieces in by_server.values():
            key_count = keys_max
            for piece in pieces:
                key_count += len(piece.keys)
                if key_count > keys_max:
                    groups.append([])
                    key_count = len(piece.keys)
                groups[-1].append(piece)
        return groups

    def _keys_max(self, runs: Sequence[KeyRun]) -> int:
        """Return how many keys may be in a request, by the size of the keys and of the rows found so far."""
        key_count = sum(len(run.keys) for run in runs)
        key_bytes = sum(sum(map(len, run.keys)) for run in runs) / max(key_count, 1)
        value_bytes = self._value_bytes / max(self._value_count, 1)
        limit = _KEYS_MAX if self._value_count else _KEYS_FIRST
        return max(1, min(limit, int(_BYTES_TARGET / max(key_bytes, value_bytes, 1))))

    async def _in_turn(self, runs: list[KeyRun], answers: Answers) -> None:
        async with self._turns:
            await self._complete(runs, answers)

    async def _complete(self, runs: list[KeyRun], answers: Answers) -> None:
        """Ask for some runs until all of them are answered."""
        client = self._client
        deadline_s = client.clock() + client.timeout_s
        attempts = 0
        while True:
            runs, error = await self._attempt(runs, answers, deadline_s - client.clock())
            if error is None:
                return
            if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and sum(len(run.keys) for run in runs) > 1:
                # These rows are larger than those before: ask for less at once.
                for half in _halves(runs):
                    await self._complete(half, answers)
                return
            attempts += 1
            time_left_s = deadline_s - client.clock()
            if not error.is_retriable or attempts > client.retries_max or time_left_s <= PAUSE_S_MIN:
                raise error
            await asyncio.sleep(pause_after(attempts, time_left_s))

    async def _attempt(
        self, runs: Sequence[KeyRun], answers: Answers, timeout_s: float
    ) -> tuple[list[KeyRun], FlussError | None]:
        """Ask once; return the runs without an answer, and why they have none."""
        try:
            by_server = await self._by_server(runs)
        except FlussError as failure:
            return list(runs), failure
        refused: list[KeyRun] = []
        error: FlussError | None = None
        for server_id, placed in by_server.items():
            for place, answer in (await self._ask(server_id, placed, timeout_s)).items():
                run = placed[place]
                if not isinstance(answer, FlussError):
                    self._note(answer)
                    answers[run.rows] = _objects(answer)
                    continue
                if answer.stale_metadata:
                    self._table.routes.forget_leaders(place)
                refused.append(run)
                # One that does not pass counts more than one that does.
                error = answer if error is None or error.is_retriable else error
        return refused, error

    async def _by_server(self, runs: Sequence[KeyRun]) -> dict[int, dict[Place, KeyRun]]:
        """Find the leaders of runs; those of partitions that do not exist have none and are left out."""
        routes = self._table.routes
        by_server: dict[int, dict[Place, KeyRun]] = {}
        missing: set[str | None] = set()
        for run in runs:
            if run.partition_name in missing:
                continue
            route = routes.route(run.partition_name)
            server_id = routes.leader(route, run.bucket_id)
            if server_id is None:
                if not await routes.find(route):
                    missing.add(run.partition_name)
                    continue
                server_id = routes.leader(route, run.bucket_id)
            if server_id is None:
                raise routes.no_leader(route, run.bucket_id)
            by_server.setdefault(server_id, {})[route.places[run.bucket_id]] = run
        return by_server

    async def _ask(
        self, server_id: int, placed: dict[Place, KeyRun], timeout_s: float
    ) -> dict[Place, list[Any] | FlussError]:
        keys = {place: run.keys for place, run in placed.items()}
        await self._client.take_slot()
        try:
            return await self._table.way.ask(self._client.cluster, server_id, self._table.info, keys, timeout_s)
        except FlussError as error:
            return dict.fromkeys(keys, error)
        finally:
            self._client.free_slot(server_id)

    def _note(self, answers: Sequence[Any]) -> None:
        values = self._table.way.stored_values(answers)
        self._value_count += len(values)
        self._value_bytes += sum(map(len, values))


def _halves(runs: Sequence[KeyRun]) -> list[list[KeyRun]]:
    if len(runs) > 1:
        middle = len(runs) // 2
        return [list(runs[:middle]), list(runs[middle:])]
    return [[piece] for piece in runs[0].pieces(-(-len(runs[0].keys) // 2))]


def _objects(answers: Sequence[Any]) -> Answers:
    """Return an array of objects; numpy would make two dimensions of lists of lists."""
    objects = np.empty(len(answers), dtype=np.object_)
    objects[:] = answers
    return objects
