"""A lookup on its way: from its caller, in any thread and on any event loop, to the loop that sends it, and back.

Intake         collects lookups, and makes callers wait where there are too many
Lookup         one key, and the future that its caller waits for
LookupTable    what lookups of one table share: the leaders of its buckets, the method, the reader of its rows
LookupRequests requests and answers
LookupMethod   by key or by the beginning of a key: requests, answers, results
deliver, fail  results and errors, on the loops of the callers
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import BucketKey, TableLeaders
from fluss.client.kernel.runtime import Runtime
from fluss.client.lookup.keys_and_rows import Located, ValueReader
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.api import Api
from fluss.protocol.convert import partition_id
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import LOOKUPS
from fluss.schema.table import TableBucket, TableInfo

# Partitions whose leaders are remembered; beyond that many all are forgotten.
_PARTITIONS_MAX: Final = 10_000
# The sizes of so many values count at most.
_KEYS_NOTED_MAX: Final = 100_000
AnswerT = TypeVar("AnswerT")
KeysT = TypeVar("KeysT", bound=Sized)
AnswersT = TypeVar("AnswersT", bound=Sized)
logger = logging.getLogger(__name__)


class Intake:
    """Collects lookups, and counts those that wait to be sent. At the limit, callers wait.

    ``on_lookups`` is called on the library's loop when there are some to be taken: once for all that come in a burst.
    """

    def __init__(self, runtime: Runtime, waiting_max: int, on_lookups: Callable[[], None]) -> None:
        self._runtime = runtime
        self._waiting_max = waiting_max
        self._on_lookups = on_lookups
        # Shared by threads. Adding to a deque and taking from it needs no lock.
        self._submitted: deque[Lookup] = deque()
        self._callers: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._is_woken = False
        # Lookups that were taken, and wait to be sent. Belongs to the event loop; other threads look at its size.
        self.waiting: set[Lookup] = set()

    @property
    def waiting_count(self) -> int:
        """Lookups that wait to be sent, also those that were not taken yet."""
        return len(self.waiting) + len(self._submitted)

    @property
    def caller_count(self) -> int:
        """Callers that wait until there is room for their lookups."""
        return len(self._callers)

    # In any thread

    def is_full(self) -> bool:
        return self.waiting_count >= self._waiting_max

    async def wait_for_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full():
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._callers.append((loop, turn))
            # There may have been room since ``is_full``, and no other reason for the loop to look.
            self._wake()
            try:
                await turn
            except asyncio.CancelledError:
                # It may have been admitted already: another caller must get the room.
                self._wake()
                raise

    def submit(self, lookup: Lookup) -> None:
        """Hand in a lookup."""
        self._runtime.check_process()
        self._submitted.append(lookup)
        self._wake()

    def _wake(self) -> None:
        # A thread that sees the flag set has added its lookup before, and the loop clears the flag before it takes the
        # lookups: none is overlooked.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._runtime.loop.call_soon_threadsafe(self._on_lookups)
            except RuntimeError as error:
                self._is_woken = False
                raise FlussError("the client cannot be used any more: the interpreter is shutting down") from error

    # On the event loop

    def take(self) -> list[Lookup]:
        """Return what was handed in; it is among those that wait from now on."""
        self._is_woken = False
        taken: list[Lookup] = []
        for _ in range(len(self._submitted)):
            # In both collections for a moment, and never in none: callers add their sizes.
            self.waiting.add(self._submitted[0])
            taken.append(self._submitted.popleft())
        return taken

    def admit(self, *, all_of_them: bool = False) -> None:
        """Let as many callers go on as there is room for."""
        room = self._waiting_max - self.waiting_count
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        while self._callers and (room > 0 or all_of_them):
            loop, turn = self._callers.popleft()
            if not turn.done():
                by_loop.setdefault(loop, []).append((turn, None))
                room -= 1
        for loop, turns in by_loop.items():
            _call_on(loop, _set_results, turns)


class Lookup:
    """One key on its way to its row."""

    __slots__ = (
        "attempts",
        "bucket_id",
        "bucket_key",
        "deadline_s",
        "failure",
        "future",
        "key",
        "loop",
        "partition_name",
        "table",
    )

    # Set when the leader of the bucket is known.
    bucket_key: BucketKey

    def __init__(
        self, table: LookupTable, located: Located, deadline_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.table = table
        self.partition_name, self.bucket_id, self.key = located
        self.deadline_s = deadline_s
        self.attempts = 0
        # Why the last attempt failed.
        self.failure: FlussError | None = None
        # The caller waits for it on its own loop, where alone it may be given a result.
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()


class ValueSizes:
    """How large the values are that keys have, by what was found lately. Keys without a value count, too."""

    __slots__ = ("_byte_count", "_key_count")

    def __init__(self) -> None:
        self._key_count = 0
        self._byte_count = 0

    @property
    def mean(self) -> float | None:
        """Bytes per key, None as long as nothing was looked up."""
        return self._byte_count / self._key_count if self._key_count else None

    def note(self, key_count: int, byte_count: int) -> None:
        """Take what was found for some keys. What was found long ago counts less and less."""
        if self._key_count > _KEYS_NOTED_MAX:
            self._key_count //= 2
            self._byte_count //= 2
        self._key_count += key_count
        self._byte_count += byte_count


class LookupTable:
    """What lookups of one table have in common that see it with the same schema and look it up in the same way."""

    def __init__(self, cluster: Cluster, info: TableInfo, method: LookupMethod[Any]) -> None:
        self.info = info
        self.method = method
        self.reader = ValueReader(info)
        # What lookups of many keys have found. Belongs to the event loop.
        self.value_sizes = ValueSizes()
        self._cluster = cluster
        self._leaders: dict[str | None, TableLeaders] = {}

    def leaders(self, partition_name: str | None) -> TableLeaders:
        """Return the leaders of a partition, or of the table if it has none. Belongs to the event loop."""
        leaders = self._leaders.get(partition_name)
        if leaders is None:
            if len(self._leaders) >= _PARTITIONS_MAX:
                self._leaders.clear()
            leaders = TableLeaders(self._cluster, self.info, partition_name, purpose="look rows up")
            self._leaders[partition_name] = leaders
        return leaders

    async def find_leaders(self, leaders: TableLeaders, bucket_ids: Iterable[int]) -> bool:
        """Find the leaders of some buckets; False if there is no such partition, which is never remembered.

        Raises what ``TableLeaders.find`` raises otherwise.
        """
        try:
            await leaders.find(bucket_ids)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            self._leaders.pop(leaders.partition_name, None)
            return False
        return True

    def forget_leaders(self, bucket_key: BucketKey) -> None:
        """A server has said that what is known about a bucket is out of date."""
        self._cluster.forget_leaders(self.info.table_id, bucket_key[0])


class LookupRequests(ABC, Generic[KeysT, AnswersT]):
    """How servers are asked for rows: ``KeysT`` has keys of one bucket, ``AnswersT`` the answers to all of them."""

    api: Api[Any, Any]

    async def ask(
        self,
        cluster: Cluster,
        server_id: int,
        info: TableInfo,
        keys: Mapping[BucketKey, KeysT],
        timeout_s: float,
    ) -> dict[BucketKey, AnswersT | FlussError]:
        """Ask a server for keys of buckets that it leads; every bucket has its answers in the order of its keys.

        Raises what the request failed with as a whole.
        """
        request = self.request(info.table_id, keys)
        response = await cluster.request(server_id, self.api, request, timeout_s=timeout_s)
        entries = {(partition_id(entry), entry.bucket_id): entry for entry in response.buckets_resp}
        failures: dict[BucketKey, AnswersT | FlussError] = {}
        answered: list[BucketKey] = []
        for bucket_key in keys:
            entry = entries.get(bucket_key)
            if entry is None:
                failures[bucket_key] = _confused(f"did not answer about {_shown(info, bucket_key)}")
            elif entry.error_code:
                failures[bucket_key] = error_for_code(entry.error_code, entry.error_message)
            else:
                answered.append(bucket_key)
        found = self.answers([entries[bucket_key] for bucket_key in answered])
        return failures | {
            bucket_key: answers
            if len(answers) == len(keys[bucket_key])
            else _miscounted(info, bucket_key, keys, answers)
            for bucket_key, answers in zip(answered, found, strict=True)
        }

    @abstractmethod
    def request(self, table_id: int, keys: Mapping[BucketKey, KeysT]) -> Any:
        """Return the message that asks for keys of some buckets."""

    @abstractmethod
    def answers(self, entries: Sequence[Any]) -> list[AnswersT]:
        """Return what a server has answered about some buckets."""


class LookupMethod(LookupRequests[Sequence[bytes], list[AnswerT]]):
    """How single rows are looked up. Every key has one answer, which holds stored values."""

    @abstractmethod
    def stored_values(self, answers: Sequence[AnswerT]) -> list[bytes]:
        """Return all stored values of some answers."""

    @abstractmethod
    def results(self, answers: Sequence[AnswerT], rows: Iterable[Any]) -> list[Any]:
        """Return what the callers get: the rows that were made of ``stored_values``, one result for each answer."""

    @abstractmethod
    def nothing(self) -> Any:
        """Return the result for a key that nothing was found for."""


class _ByKey(LookupMethod[bytes]):
    """An answer is a stored value, or no bytes at all if there is no such key. The result is a row, or None."""

    api = apis.LOOKUP

    def stored_values(self, answers: Sequence[bytes]) -> list[bytes]:
        return list(filter(None, answers))

    def results(self, answers: Sequence[bytes], rows: Iterable[Any]) -> list[Any]:
        found = iter(rows)
        return [next(found) if answer else None for answer in answers]

    def nothing(self) -> None:
        return None

    def request(self, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]]) -> pb.LookupRequest:
        entries = [
            pb.PbLookupReqForBucket(partition_id=partition, bucket_id=bucket_id, keys=wanted)
            for (partition, bucket_id), wanted in keys.items()
        ]
        return pb.LookupRequest(table_id=table_id, buckets_req=entries)

    def answers(self, entries: Sequence[pb.PbLookupRespForBucket]) -> list[list[bytes]]:
        # A value begins with its schema id, so one without bytes is one that is not there.
        return [[value.values for value in entry.values] for entry in entries]


class _ByPrefix(LookupMethod[Sequence[bytes]]):
    """An answer has the stored values of all keys that begin so, in the order of their keys. The result is a list."""

    api = apis.PREFIX_LOOKUP

    def stored_values(self, answers: Sequence[Sequence[bytes]]) -> list[bytes]:
        return list(chain.from_iterable(answers))

    def results(self, answers: Sequence[Sequence[bytes]], rows: Iterable[Any]) -> list[Any]:
        found = iter(rows)
        return [list(islice(found, len(answer))) for answer in answers]

    def nothing(self) -> list[Any]:
        return []

    def request(self, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]]) -> pb.PrefixLookupRequest:
        entries = [
            pb.PbPrefixLookupReqForBucket(partition_id=partition, bucket_id=bucket_id, keys=wanted)
            for (partition, bucket_id), wanted in keys.items()
        ]
        return pb.PrefixLookupRequest(table_id=table_id, buckets_req=entries)

    def answers(self, entries: Sequence[pb.PbPrefixLookupRespForBucket]) -> list[list[Sequence[bytes]]]:
        return [[list(found.values) for found in entry.value_lists] for entry in entries]


BY_KEY: Final = _ByKey()
BY_PREFIX: Final = _ByPrefix()


def _confused(what: str) -> FlussError:
    return FlussError(f"the server {what}", ErrorCode.UNKNOWN_SERVER_ERROR)


def _miscounted(info: TableInfo, bucket_key: BucketKey, keys: Mapping[BucketKey, Sized], answers: Sized) -> FlussError:
    counts = f"{len(answers)} of {len(keys[bucket_key])} lookups"
    return _confused(f"answered {counts} in {_shown(info, bucket_key)}")


def _shown(info: TableInfo, bucket_key: BucketKey) -> str:
    return f"{TableBucket.new_with_partition(info.table_id, *bucket_key)} of {info.table_path}"


def pause_within(failures: int, time_left_s: float) -> float:
    """Return the pause before a lookup is sent again: half of the time left at most, so that some is for the answer."""
    return min(LOOKUPS.pause_s(failures), time_left_s / 2)


def deliver(lookups: Iterable[Lookup], results: Iterable[Any]) -> None:
    """Give callers their results, with one call into each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for lookup, result in zip(lookups, results, strict=True):
        by_loop.setdefault(lookup.loop, []).append((lookup.future, result))
    for loop, pairs in by_loop.items():
        _call_on(loop, _set_results, pairs)


def fail(lookups: Iterable[Lookup], error: FlussError) -> None:
    """Tell callers that there will be no result."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    for lookup in lookups:
        by_loop.setdefault(lookup.loop, []).append(lookup.future)
    for loop, futures in by_loop.items():
        _call_on(loop, _set_errors, futures, error)


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function on the loop of a caller. Must be called on the library's own loop."""
    if loop is asyncio.get_running_loop():
        function(*args)
        return
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop that waited is closed, and the wait has ended with it.
        logger.debug("the event loop of a caller was closed before its lookup was finished")


def _set_results(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give futures of this loop their results, except for those that were cancelled."""
    for future, result in pairs:
        if not future.done():
            future.set_result(result)


def _set_errors(futures: Sequence[asyncio.Future[Any]], error: FlussError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error.copied())


def reason_of(before: FlussError | None, error: FlussError) -> FlussError:
    """Return which of two failures of one lookup says more: what a server said, rather than that time was over then."""
    return before if before is not None and isinstance(error, RequestTimeoutError) else error
