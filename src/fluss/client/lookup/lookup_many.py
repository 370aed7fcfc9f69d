"""Lookups of many keys in one call: their rows as one Arrow table, in the order of the keys.

``ManyRows`` is what a call is to return; ``BulkFetch`` gets the stored values, with large requests, several of them in
flight. A single lookup goes another way: it shares its request with others (``lookup_client``).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from fluss.buffers import UInt8Array
from fluss.client.kernel.leaders import BucketKey
from fluss.client.lookup.keys_and_rows import KeyRun, LookupKeys, ValueReader
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.pending import BY_PREFIX, LookupRequests, LookupTable, pause_within, reason_of
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.lookup_messages import lookup_request, values_of
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import LOOKUPS
from fluss.row.arrow_arrays import BoolArray, bool_array, number_array
from fluss.row.encoded import EncodedRows, side_by_side
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo
from fluss.schema.value_objects import string_list

# What becomes of keys that have no row.
Missing: TypeAlias = Literal["null", "drop", "error"]

AnswersT = TypeVar("AnswersT", bound=Sized)


class ManyRows:
    """What one call of ``lookup_many`` is to return. Has no state that changes: it may be shared by threads."""

    def __init__(
        self, info: TableInfo, columns: Sequence[str] | None, missing: Missing, found_column: str | None
    ) -> None:
        self._info = info
        self._names = info.schema.column_names if columns is None else _known_columns(info, columns)
        self._missing = missing
        self._found_column = found_column
        if missing not in get_args(Missing):
            raise FlussError(f"missing must be 'null', 'drop' or 'error', got {missing!r}")
        if found_column is not None and found_column in self._names:
            raise FlussError(
                f"found_column is {found_column!r}, which is a column of {info.table_path}; choose another"
            )
        self._positions = [info.schema.index_of(name) for name in self._names]
        self.arrow_schema = self._schema()

    def _schema(self) -> pa.Schema:
        full = self._info.schema.to_arrow()
        fields = [full.field(position) for position in self._positions]
        if self._missing == "null":
            # Keys are there in any case; all else may be missing, whatever the table says.
            keys = self._info.primary_keys
            fields = [field if field.name in keys else field.with_nullable(True) for field in fields]
        if self._found_column is not None:
            fields.append(pa.field(self._found_column, pa.bool_(), nullable=False))
        return pa.schema(fields)

    async def fetch(self, fetch: BulkFetch[EncodedRows], lookup_keys: LookupKeys, keys: Any) -> pa.Table:
        """Look up the keys of a caller. Runs on the event loop; workers do everything that takes a while."""
        client, offload = fetch.client, fetch.client.runtime.offload
        reader = ValueReader(self._info, self._positions)
        made: list[pa.RecordBatch] = []
        for batch in await offload(lookup_keys.batches, keys, fetch.limits.rows_max(self._info.num_buckets)):
            answers = ManyAnswers(batch.num_rows)
            await fetch.fetch(await offload(lookup_keys.runs, batch), answers.put)
            found = await offload(answers.found)
            for schema_id in await offload(reader.unknown_schemas_of, found.values):
                reader.add_schema(schema_id, await client.cluster.schema(self._info.table_path, schema_id))
            made.append(await offload(self._rows, reader, batch, found))
        return pa.Table.from_batches(made, schema=self.arrow_schema)

    def _rows(self, reader: ValueReader, keys: pa.RecordBatch, found: FoundValues) -> pa.RecordBatch:
        """Make the part of the result that belongs to some keys."""
        is_found, found_count = found.is_found, len(found.values)
        if found_count < len(is_found) and self._missing == "error":
            first = keys.slice(int(is_found.argmin()), 1).to_pylist()[0]
            raise FlussError(
                f"{len(is_found) - found_count} of {len(is_found)} keys were not found in {self._info.table_path}; the "
                f"first of them is {first}"
            )
        rows = reader.arrow(found.values)
        self._check_keys(rows, keys if found_count == len(is_found) else keys.filter(bool_array(is_found)))
        columns = rows.columns
        if found_count < len(is_found) and self._missing == "null":
            indexes = number_array(np.cumsum(is_found) - 1, ~is_found)
            columns = [
                keys.column(name) if name in keys.schema.names else column.take(indexes)
                for name, column in zip(self._names, columns, strict=True)
            ]
        if self._found_column is not None:
            columns = [*columns, bool_array(is_found if self._missing == "null" else is_found[is_found])]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _check_keys(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        """Refuse rows of other keys than those that were asked for, as far as the columns tell."""
        for name, column in zip(self._names, rows.columns, strict=True):
            if name not in keys.schema.names or pat.is_floating(column.type):
                continue
            if not column.equals(keys.column(name)):
                raise FlussError(
                    f"the server answered a lookup in {self._info.table_path} with rows of other keys",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )


@dataclass(frozen=True, slots=True, eq=False)
class FoundValues:
    """Which keys were found, and the stored values of those, in the order of the keys."""

    is_found: BoolArray
    values: EncodedRows


class ManyAnswers:
    """Collects the values of the keys of a batch, in whatever order answers come."""

    def __init__(self, key_count: int) -> None:
        self._starts, self._ends = np.zeros((2, key_count), np.int64)
        self._data: list[UInt8Array] = []
        self._byte_count = 0

    def put(self, runs: Sequence[KeyRun], answers: Sequence[EncodedRows]) -> None:
        """Take the values of some runs; those of keys that were not found have no bytes."""
        values, rows = side_by_side(answers), np.concatenate([run.rows for run in runs])
        self._starts[rows] = values.starts + self._byte_count
        self._ends[rows] = values.ends + self._byte_count
        self._data.append(values.data)
        self._byte_count += len(values.data)

    def found(self) -> FoundValues:
        is_found = self._ends > self._starts
        data = np.concatenate(self._data or [np.empty(0, np.uint8)])
        return FoundValues(is_found, EncodedRows(data, self._starts[is_found], self._ends[is_found]))


# Takes runs of keys and the answers to each of them.
Put: TypeAlias = Callable[[Sequence[KeyRun], Sequence[AnswersT]], None]


class BulkRequests(LookupRequests[EncodedRows, AnswersT]):
    """How servers are asked for the rows of many keys."""

    @abstractmethod
    def byte_count(self, answers: Sequence[AnswersT]) -> int:
        """Return how many bytes the values of some answers have."""


class _ManyByKey(BulkRequests[EncodedRows]):
    """The answers are the stored values; that of a key without a row has no bytes."""

    api = apis.LOOKUP_MANY

    def byte_count(self, answers: Sequence[EncodedRows]) -> int:
        return _byte_count(answers)

    def request(self, table_id: int, keys: Mapping[BucketKey, EncodedRows]) -> EncodedMessage:
        return lookup_request(table_id, keys)

    def answers(self, entries: Sequence[Any]) -> list[EncodedRows]:
        return values_of(entries)


class _ManyByPrefix(BulkRequests[list[Sequence[bytes]]]):
    """The answers are lists of stored values, as those to single lookups."""

    api = BY_PREFIX.api

    def byte_count(self, answers: Sequence[list[Sequence[bytes]]]) -> int:
        return sum(sum(map(len, BY_PREFIX.stored_values(some))) for some in answers)

    def request(self, table_id: int, keys: Mapping[BucketKey, EncodedRows]) -> pb.PrefixLookupRequest:
        return BY_PREFIX.request(table_id, {bucket_key: wanted.to_list() for bucket_key, wanted in keys.items()})

    def answers(self, entries: Sequence[Any]) -> list[list[Sequence[bytes]]]:
        return [list(answers) for answers in BY_PREFIX.answers(entries)]


MANY_BY_KEY: Final = _ManyByKey()
MANY_BY_PREFIX: Final = _ManyByPrefix()


class BulkFetch(Generic[AnswersT]):
    """Fetches the answers for the keys of one call. Belongs to the event loop.

    A request that fails for a passing reason is sent again, like that of a single lookup.
    """

    def __init__(
        self,
        client: LookupClient,
        table: LookupTable,
        requests: BulkRequests[AnswersT],
        limits: BulkLimits,
    ) -> None:
        self.client = client
        self.limits = limits
        self._table = table
        self._requests = requests

    async def fetch(self, runs: Sequence[KeyRun], put: Put[AnswersT]) -> None:
        """Hand in the answers for all runs, or for pieces of them. Runs of partitions that do not exist have none.

        Raises the first failure that does not pass.
        """
        groups = self._groups(runs)
        workers = [asyncio.ensure_future(self._work(groups, put)) for _ in range(self.limits.requests_max)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)

    async def _work(self, groups: Iterator[list[KeyRun]], put: Put[AnswersT]) -> None:
        for group in groups:
            await self._complete(group, put)

    def _groups(self, runs: Sequence[KeyRun]) -> Iterator[list[KeyRun]]:
        """Put runs together that fit a request, by what is known then, and for one server after the other."""
        key_bytes = _byte_count([run.keys for run in runs]) / max(1, sum([len(run.rows) for run in runs]))
        by_server: dict[int | None, list[KeyRun]] = {}
        for run in runs:
            server_id = self._table.leaders(run.partition_name).leader_of(run.bucket_id)
            by_server.setdefault(server_id, []).append(run)
        for server_runs in by_server.values():
            group: list[KeyRun] = []
            room = self._keys_max(key_bytes)
            for run in server_runs:
                rest = run
                while len(rest.rows) > room:
                    piece, rest = rest.split(room)
                    yield [*group, piece] if room else group
                    group, room = [], self._keys_max(key_bytes)
                group.append(rest)
                room -= len(rest.rows)
            yield group

    def _keys_max(self, key_bytes: float) -> int:
        """Return how many keys may be in a request, by the size of the keys and of what was found so far."""
        value_bytes = self._table.value_sizes.mean
        limit = self.limits.keys_first if value_bytes is None else self.limits.keys_max
        return max(1, min(limit, int(self.limits.bytes_target / max(key_bytes, value_bytes or 0, 1))))

    async def _complete(self, runs: list[KeyRun], put: Put[AnswersT]) -> None:
        """Ask for some runs until all of them are answered."""
        client = self.client
        deadline_s = client.clock() + client.timeout_s
        attempts = 0
        reason: FlussError | None = None
        while True:
            runs, error = await self._attempt(runs, put, deadline_s - client.clock())
            if error is None:
                return
            if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and sum(len(run.rows) for run in runs) > 1:
                # These rows are larger than those before: ask for less at once.
                for half in _halves(runs):
                    await self._complete(half, put)
                return
            attempts += 1
            reason = reason_of(reason, error)
            time_left_s = deadline_s - client.clock()
            if not error.is_retriable or attempts > client.retries_max or time_left_s <= LOOKUPS.first_s:
                raise reason
            await asyncio.sleep(pause_within(attempts, time_left_s))

    async def _attempt(
        self, runs: Sequence[KeyRun], put: Put[AnswersT], timeout_s: float
    ) -> tuple[list[KeyRun], FlussError | None]:
        """Ask once; return the runs without an answer, and why they have none."""
        try:
            by_server = await self._by_server(runs)
        except FlussError as failure:
            return list(runs), failure
        refused: list[KeyRun] = []
        error: FlussError | None = None
        for server_id, by_bucket in by_server.items():
            answered: list[KeyRun] = []
            answers: list[AnswersT] = []
            for bucket_key, answer in (await self._ask(server_id, by_bucket, timeout_s)).items():
                run = by_bucket[bucket_key]
                if not isinstance(answer, FlussError):
                    answered.append(run)
                    answers.append(answer)
                    continue
                if answer.stale_metadata:
                    self._table.forget_leaders(bucket_key)
                refused.append(run)
                # One that does not pass counts more than one that does.
                error = answer if error is None or error.is_retriable else error
            if answered:
                key_count = sum([len(run.rows) for run in answered])
                self._table.value_sizes.note(key_count, self._requests.byte_count(answers))
                put(answered, answers)
        return refused, error

    async def _by_server(self, runs: Sequence[KeyRun]) -> dict[int, dict[BucketKey, KeyRun]]:
        """Find the leaders of runs; those of partitions that do not exist have none and are left out."""
        by_server: dict[int, dict[BucketKey, KeyRun]] = {}
        missing: set[str | None] = set()
        for run in runs:
            if run.partition_name in missing:
                continue
            leaders = self._table.leaders(run.partition_name)
            server_id = leaders.leader_of(run.bucket_id)
            if server_id is None:
                if not await self._table.find_leaders(leaders, [run.bucket_id]):
                    missing.add(run.partition_name)
                    continue
                server_id = leaders.leader_of(run.bucket_id)
            if server_id is None:
                raise leaders.no_leader(run.bucket_id)
            by_server.setdefault(server_id, {})[leaders.bucket_keys[run.bucket_id]] = run
        return by_server

    async def _ask(
        self, server_id: int, by_bucket: dict[BucketKey, KeyRun], timeout_s: float
    ) -> dict[BucketKey, AnswersT | FlussError]:
        keys = {bucket_key: run.keys for bucket_key, run in by_bucket.items()}
        await self.client.take_slot()
        try:
            return await self._requests.ask(self.client.cluster, server_id, self._table.info, keys, timeout_s)
        except FlussError as error:
            return dict.fromkeys(keys, error)
        finally:
            self.client.free_slot(server_id)


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """How much one call asks for at once."""

    # Keys are looked up in batches of so many, so that memory is needed for the result and a few of them only. There
    # are more if they go to so many buckets that each would get a few: what a bucket costs does not depend on its keys.
    batch_rows_max: int = 65_536
    bucket_rows_min: int = 64
    # Requests in flight at once.
    requests_max: int = 4
    # Keys in one request. With large keys or rows there are fewer, so that requests and answers are about this size.
    keys_max: int = 5_000
    bytes_target: int = 4 * 1024 * 1024
    # Keys in one request as long as it is not known how large the rows are.
    keys_first: int = 500

    def rows_max(self, bucket_count: int) -> int:
        """Return how many keys a batch has for a table with so many buckets."""
        return max(self.batch_rows_max, self.bucket_rows_min * bucket_count)


def _known_columns(info: TableInfo, columns: Sequence[str]) -> list[str]:
    names = string_list("columns", columns)
    if not names:
        raise FlussError("Column names cannot be empty; leave columns out to get all of them")
    for name in names:
        if name not in info.schema.column_names:
            raise FlussError(f"Column '{name}' not found; columns are {shown_names(info.schema.column_names)}")
    return names


def _byte_count(pieces: Sequence[EncodedRows]) -> int:
    if not pieces:
        return 0
    ends, starts = [rows.ends for rows in pieces], [rows.starts for rows in pieces]
    return int(np.concatenate(ends).sum() - np.concatenate(starts).sum())


def _halves(runs: Sequence[KeyRun]) -> list[list[KeyRun]]:
    if len(runs) > 1:
        middle = len(runs) // 2
        return [list(runs[:middle]), list(runs[middle:])]
    return [[piece] for piece in runs[0].split(len(runs[0].keys) // 2)]
