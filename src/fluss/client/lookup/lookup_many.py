"""Lookups of many keys in one call: their rows as one Arrow table, in the order of the keys.

``ManyRows`` is what a call is to return; ``BulkFetch`` gets the stored values, with large requests, several of them in
flight. A single lookup goes another way: it shares its request with others (``lookup_client``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from fluss.client.kernel.leaders import BucketKey
from fluss.client.kernel.retry import LOOKUPS
from fluss.client.lookup.keys_and_rows import KeyRun, LookupKeys, ValueReader
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.pending import LookupTable, pause_within, reason_of
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import bool_array, number_array
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo
from fluss.schema.value_objects import string_list

# What becomes of keys that have no row.
Missing: TypeAlias = Literal["null", "drop", "error"]

# The answer for a key that was not found.
_NOTHING: Final = b""

# One object per key: what its answer is.
Answers: TypeAlias = npt.NDArray[np.object_]


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

    async def fetch(self, fetcher: BulkFetch, lookup_keys: LookupKeys, keys: Any) -> pa.Table:
        """Look up the keys of a caller. Runs on the event loop; workers do everything that takes a while."""
        client, offload = fetcher.client, fetcher.client.runtime.offload
        reader = ValueReader(self._info, self._positions)
        made: list[pa.RecordBatch] = []
        for batch in await offload(lookup_keys.batches, keys, fetcher.limits.batch_rows_max):
            answers: Answers = np.full(batch.num_rows, _NOTHING, dtype=np.object_)
            await fetcher.fetch(await offload(lookup_keys.runs, batch), answers)
            for schema_id in await offload(_unknown_schemas, reader, answers):
                reader.add_schema(schema_id, await client.cluster.schema(self._info.table_path, schema_id))
            made.append(await offload(self._rows, reader, batch, answers))
        return pa.Table.from_batches(made, schema=self.arrow_schema)

    def _rows(self, reader: ValueReader, keys: pa.RecordBatch, answers: Answers) -> pa.RecordBatch:
        """Make the part of the result that belongs to some keys."""
        is_found = answers.astype(np.bool_)
        found_count = int(is_found.sum())
        if found_count < len(answers) and self._missing == "error":
            first = keys.slice(int(is_found.argmin()), 1).to_pylist()[0]
            raise FlussError(
                f"{len(answers) - found_count} of {len(answers)} keys were not found in {self._info.table_path}; the "
                f"first of them is {first}"
            )
        rows = reader.arrow(answers[is_found].tolist())
        self._check_keys(rows, keys if found_count == len(answers) else keys.filter(bool_array(is_found)))
        columns = rows.columns
        if found_count < len(answers) and self._missing == "null":
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


class BulkFetch:
    """Fetches the answers for the keys of one call. Belongs to the event loop.

    A request that fails for a passing reason is sent again, like that of a single lookup.
    """

    def __init__(self, client: LookupClient, table: LookupTable, limits: BulkLimits) -> None:
        self.client = client
        self.limits = limits
        self._table = table
        self._turns = asyncio.Semaphore(limits.requests_max)
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
        by_server: dict[int | None, list[KeyRun]] = {}
        for run in runs:
            server_id = self._table.leaders(run.partition_name).leader_of(run.bucket_id)
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
        limit = self.limits.keys_max if self._value_count else self.limits.keys_first
        return max(1, min(limit, int(self.limits.bytes_target / max(key_bytes, value_bytes, 1))))

    async def _in_turn(self, runs: list[KeyRun], answers: Answers) -> None:
        async with self._turns:
            await self._complete(runs, answers)

    async def _complete(self, runs: list[KeyRun], answers: Answers) -> None:
        """Ask for some runs until all of them are answered."""
        client = self.client
        deadline_s = client.clock() + client.timeout_s
        attempts = 0
        reason: FlussError | None = None
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
            reason = reason_of(reason, error)
            time_left_s = deadline_s - client.clock()
            if not error.is_retriable or attempts > client.retries_max or time_left_s <= LOOKUPS.first_s:
                raise reason
            await asyncio.sleep(pause_within(attempts, time_left_s))

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
        for server_id, by_bucket in by_server.items():
            for bucket_key, answer in (await self._ask(server_id, by_bucket, timeout_s)).items():
                run = by_bucket[bucket_key]
                if not isinstance(answer, FlussError):
                    self._note(answer)
                    answers[run.rows] = _objects(answer)
                    continue
                if answer.stale_metadata:
                    self._table.forget_leaders(bucket_key)
                refused.append(run)
                # One that does not pass counts more than one that does.
                error = answer if error is None or error.is_retriable else error
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
    ) -> dict[BucketKey, list[Any] | FlussError]:
        keys = {bucket_key: run.keys for bucket_key, run in by_bucket.items()}
        await self.client.take_slot()
        try:
            return await self._table.method.ask(self.client.cluster, server_id, self._table.info, keys, timeout_s)
        except FlussError as error:
            return dict.fromkeys(keys, error)
        finally:
            self.client.free_slot(server_id)

    def _note(self, answers: Sequence[Any]) -> None:
        values = self._table.method.stored_values(answers)
        self._value_count += len(values)
        self._value_bytes += sum(map(len, values))


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """How much one call asks for at once."""

    # Keys are looked up in batches of so many, so that memory is needed for the result and a few of them only.
    batch_rows_max: int = 65_536
    # Requests in flight at once.
    requests_max: int = 4
    # Keys in one request. With large keys or rows there are fewer, so that requests and answers are about this size.
    keys_max: int = 5_000
    bytes_target: int = 4 * 1024 * 1024
    # Keys in one request as long as it is not known how large the rows are.
    keys_first: int = 500


def _unknown_schemas(reader: ValueReader, answers: Answers) -> list[int]:
    return reader.unknown_schemas(list(filter(None, answers.tolist())))


def _known_columns(info: TableInfo, columns: Sequence[str]) -> list[str]:
    names = string_list("columns", columns)
    if not names:
        raise FlussError("Column names cannot be empty; leave columns out to get all of them")
    for name in names:
        if name not in info.schema.column_names:
            raise FlussError(f"Column '{name}' not found; columns are {shown_names(info.schema.column_names)}")
    return names


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
