"""FetchLog: records of many buckets in one answer, now or as soon as there are some.

    prepare   every bucket becomes a cursor, or a failure that is answered
    decode    large filters, in a thread
    wait      until there are ``min_bytes`` to read, unless something is to be answered at once
    read      the cursors that have something, in turn, until the limits of the request are reached
    answer    every bucket once; the ones without news with bytes that were encoded before

Where an offset is in remote storage only, the answer says where, and the client reads it there. Such a fetch is not
waited with.

Fetches with filters decode and read by turns, so that they leave threads to the others. A filter that skips all it
looks at is answered with the offset it came to; from there the client goes on.

Clients read below the high watermark. Followers do not exist here: a request that names one is answered like that of
a client.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.net.request_handler import Answer, RequestContext
from fluss.protocol.bulk_messages import FetchedBucket, FetchLogResponse
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import FilterAllowance
from fluss.schema.acl import AclOperation
from fluss.schema.predicate import FilterLimits
from fluss.schema.table_options import LogFormat
from fluss.server.model import format_bucket
from fluss.server.rpc.bucket_access import BucketAccess
from fluss.server.rpc.fetch_answers import LOG_START_OFFSET_TOLD, bucket_failure, remote_fetch_info, table_answer
from fluss.server.rpc.fetch_filters import BYTES_AT_ONCE, FetchFilters, decoded
from fluss.server.tablet.buckets import HostedBucket, HostedTable, NotOpenError, open_all, unknown_bucket
from fluss.server.tablet.fetch_memory import FetchMemory
from fluss.server.tablet.filter_turns import FilterTurns
from fluss.server.tablet.log_reads import BucketData, FetchLimits, Selection, read_bucket
from fluss.server.tablet.purgatory import BucketCursor, FetchPurgatory
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.log.tablet import LogTablet

FETCH_OFFSET_EARLIEST = -2
# What clients prefer: 0 is the log, where it has the records.
_REMOTE_FIRST = 1
_WAIT_MS_DEFAULT = 100
# Stored bytes that one fetch looks at where columns are cut out or batches skipped.
_SCAN_BYTES_MAX = 64 * 1024 * 1024
# The processor time that one fetch may take for its filters. Then it is answered with what it has found.
_FILTER_SECONDS_MAX = 0.05
# Buckets that are read on the event loop, if that needs no disk, and batches that filters are asked about there; more
# are left to a thread.
_READS_AT_ONCE_MAX = 8
_FILTERED_AT_ONCE_MAX = 64
# A bucket that fails with one of these does not end the wait for the others.
_WAITING_CODES = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION))

# Answers that only fail with these are held back. Some clients do not tell their user that a filter was refused.
_HELD_BACK_CODES = RETRIABLE_CODES | {ErrorCode.RECORD_TOO_LARGE_EXCEPTION}

# A cursor, and the log it is in.
_Read: TypeAlias = tuple[BucketCursor, LogTablet]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _TableFetch:
    """What is fetched from one table: the buckets that can be read, and those that cannot."""

    table_id: int
    cursors: list[BucketCursor] = field(default_factory=list)
    failures: list[FetchedBucket] = field(default_factory=list)
    # Those that fail only because they have to be opened first.
    unopened: list[HostedBucket] = field(default_factory=list)
    # Those that are to be read from remote storage: the bucket, offset and limit of each.
    remote: list[tuple[HostedBucket, int, int]] = field(default_factory=list)
    # What is wanted of all buckets, as far as it is known.
    selection: Selection | None = None
    # What is left to do to know what is wanted of the table.
    decode_selection: Callable[[], Selection | None] | None = None

    def select(self, selection: Selection | FlussError | None) -> None:
        """Set what is wanted of all buckets, or the reason why they cannot be read."""
        if isinstance(selection, FlussError):
            self.refuse(selection)
        else:
            for cursor in self.cursors:
                cursor.selection = selection

    def refuse(self, error: FlussError | None) -> None:
        """Read nothing of the table, and say why for each bucket; None: the table is gone."""
        for bucket in (cursor.hosted.bucket for cursor in self.cursors):
            self.failures.append(bucket_failure(bucket.bucket_id, bucket.partition_id, error or unknown_bucket(bucket)))
        self.cursors = []


@dataclass(slots=True)
class _Fetch:
    """One request on its way to its answer."""

    context: RequestContext
    # The connection that waits for it, and holds the memory of what is read.
    owner: str
    bytes_max: int
    # None: the answer is wanted at once.
    bytes_min: int | None
    wait_ms: int
    # What its filters may still have.
    allowance: FilterAllowance
    filter_bytes: int = 0
    tables: list[_TableFetch] = field(default_factory=list)
    cursors: list[BucketCursor] = field(default_factory=list)
    # The cursors that have something to read.
    ready: list[BucketCursor] = field(default_factory=list)
    unopened: list[HostedBucket] = field(default_factory=list)
    # Whether clients would rather read from remote storage what is there.
    is_remote_first: bool = False
    # What was read and is held in memory.
    byte_count: int = 0
    # Whether it is more than the event loop has time for.
    is_long: bool = False

    @property
    def has_remote(self) -> bool:
        return any(table.remote for table in self.tables)

    @property
    def undecoded(self) -> list[_TableFetch]:
        """The tables whose filters have still to be decoded."""
        return [table for table in self.tables if table.decode_selection is not None]

    def is_filtered(self) -> bool:
        """Whether a filter has to be asked about what there is to read."""
        return any(cursor.selection is not None and cursor.selection.is_filtered for cursor in self.ready)

    def drop_failed(self) -> None:
        """Forget the cursors of tables that cannot be read."""
        self.cursors = [cursor for table in self.tables for cursor in table.cursors]
        self.ready = [cursor for cursor in self.cursors if cursor.is_ready]

    def keep_last(self) -> None:
        """Forget all but the last of those cursors that are in the same bucket, and of those looks into remote storage.

        An answer about remote storage can be thousands of times as long as the question.
        """
        last = {cursor.hosted: cursor for cursor in self.cursors}
        self.cursors = list(last.values())
        last_remote = {wanted[0]: wanted for table in self.tables for wanted in table.remote}
        for table in self.tables:
            table.cursors = [cursor for cursor in table.cursors if last[cursor.hosted] is cursor]
            table.remote = [wanted for wanted in table.remote if last_remote[wanted[0]] is wanted]

    def failure_codes(self) -> set[int]:
        """Return the codes of all buckets that failed so far."""
        codes = {failure.error_code or 0 for table in self.tables for failure in table.failures}
        codes.update(cursor.outcome.error_code for cursor in self.ready if isinstance(cursor.outcome, FlussError))
        return codes

    def is_satisfied(self) -> bool:
        """Whether waiting any longer would be of no use, or was not asked for."""
        if self.bytes_min is None or self.byte_count >= self.bytes_min or not self.cursors:
            return True
        for cursor in self.ready:
            # A bucket has failed or disappeared meanwhile. Or a filter skipped all it looked at, and there is more:
            # the client can ask for that at once.
            if isinstance(cursor.outcome, FlussError) or (cursor.outcome is not None and cursor.outcome.has_more):
                return True
        return not self.failure_codes() <= _WAITING_CODES

    def leave_to_thread(self) -> None:
        """Begin anew, because there is more to look at than the event loop has time for."""
        for cursor in self.ready:
            cursor.outcome = None
        self.byte_count = 0
        self.is_long = True

    def forget_read(self) -> None:
        """Let go of what was read; only those cursors stay ready that still have something to read."""
        for cursor in self.ready:
            data, cursor.outcome = cursor.outcome, None
            if isinstance(data, BucketData) and not data.byte_count:
                cursor.is_ready = False
                if data.filtered_end_offset is not None:
                    cursor.offset = cursor.skipped_to = data.filtered_end_offset
        self.ready = [cursor for cursor in self.ready if cursor.is_ready]
        self.byte_count = 0


class LogFetcher:
    """Answers fetches. Belongs to the event loop; what is not in memory is read by ``readers``."""

    def __init__(
        self,
        access: BucketAccess,
        memory: FetchMemory,
        purgatory: FetchPurgatory,
        readers: Executor,
        turns: FilterTurns,
        rng: random.Random,
        *,
        filters: FetchFilters,
        response_bytes_max: int,
        filter_limits: FilterLimits,
        filter_batches_max: int,
        remote: RemoteLogs | None = None,
    ) -> None:
        self._access = access
        self._remote = remote
        self._memory = memory
        self._purgatory = purgatory
        self._readers = readers
        self._turns = turns
        self._filters = filters
        self._response_bytes_max = response_bytes_max
        self._filter_limits = filter_limits
        self._filter_batches_max = filter_batches_max
        self._rng = rng

    def fetch(
        self, context: RequestContext, request: pb.FetchLogRequest
    ) -> Answer | FetchLogResponse | Awaitable[Answer | FetchLogResponse]:
        """Answer at once if that needs neither the disk nor waiting."""
        fetch = self._prepare(context, request)
        if fetch.unopened:
            return self._open_and_serve(context, request, fetch.unopened)
        if fetch.has_remote:
            return self._serve_remote(fetch)
        if fetch.ready and not fetch.undecoded and (fetch.bytes_min or 0) <= 1 and _is_in_memory(fetch):
            granted = self._memory.try_take(fetch.bytes_max, fetch.owner)
            if granted is not None and self._read_at_once(fetch, granted):
                if fetch.byte_count or fetch.is_satisfied():
                    return self._answer(fetch)
                # A filter has skipped everything.
                fetch.forget_read()
        return self._serve(fetch)

    async def _open_and_serve(
        self, context: RequestContext, request: pb.FetchLogRequest, unopened: Sequence[HostedBucket]
    ) -> Answer | FetchLogResponse:
        await open_all(unopened)
        fetch = self._prepare(context, request)
        return await (self._serve_remote(fetch) if fetch.has_remote else self._serve(fetch))

    async def _serve_remote(self, fetch: _Fetch) -> Answer | FetchLogResponse:
        """Look up what is in remote storage, and answer at once, with what other buckets have now."""
        count = sum(len(table.remote) for table in fetch.tables)
        looks = [self._find_remote(fetch, table, count, *wanted) for table in fetch.tables for wanted in table.remote]
        await asyncio.gather(*looks)
        fetch.bytes_min = None
        return await self._serve(fetch)

    async def _find_remote(
        self, fetch: _Fetch, table: _TableFetch, bucket_count: int, hosted: HostedBucket, offset: int, bytes_max: int
    ) -> None:
        """Add to the answers where an offset is; what is wrong with remote storage, if the log does not have it."""
        assert self._remote is not None, "otherwise nothing is there"
        bucket, found, problem = hosted.bucket, None, None
        try:
            found = await self._remote.find(
                hosted, offset, is_remote_first=fetch.is_remote_first, bucket_count=bucket_count
            )
        except FlussError as error:
            problem = error
        try:
            log = hosted.log()
            if found is None and (problem is None or log.offset_start <= offset):
                cursor = _cursor(hosted, offset, bytes_max, table.selection)
                table.cursors.append(cursor)
                fetch.cursors.append(cursor)
                fetch.ready += [cursor] if cursor.is_ready else []
                return
        except FlussError as error:
            problem = error
        if problem is not None or found is None:
            assert problem is not None, "then it is in the log, or out of range"
            table.failures.append(bucket_failure(bucket.bucket_id, bucket.partition_id, problem))
            return
        table.failures.append(
            FetchedBucket(
                bucket.bucket_id,
                bucket.partition_id,
                high_watermark=log.offset_high_watermark,
                log_start_offset=LOG_START_OFFSET_TOLD,
                remote_log_fetch_info=remote_fetch_info(found),
            )
        )

    # Prepare

    def _prepare(self, context: RequestContext, request: pb.FetchLogRequest) -> _Fetch:
        fetch = _Fetch(
            context=context,
            owner=context.peer_address,
            bytes_max=max(0, min(request.max_bytes, self._response_bytes_max)),
            bytes_min=request.min_bytes if request.HasField("min_bytes") else None,
            wait_ms=request.max_wait_ms if request.HasField("max_wait_ms") else _WAIT_MS_DEFAULT,
            allowance=FilterAllowance(self._filter_limits),
            is_remote_first=request.read_preference == _REMOTE_FIRST,
        )
        for wanted in request.tables_req:
            table_fetch = _TableFetch(wanted.table_id)
            fetch.tables.append(table_fetch)
            self._prepare_table(context, wanted, table_fetch, fetch)
            fetch.cursors += table_fetch.cursors
            fetch.unopened += table_fetch.unopened
        wanted_buckets = [cursor.hosted for cursor in fetch.cursors]
        wanted_buckets += [hosted for table_fetch in fetch.tables for hosted, _, _ in table_fetch.remote]
        if len(set(wanted_buckets)) < len(wanted_buckets):
            fetch.keep_last()
        fetch.ready = [cursor for cursor in fetch.cursors if cursor.is_ready]
        return fetch

    def _prepare_table(
        self, context: RequestContext, wanted: pb.PbFetchLogReqForTable, table_fetch: _TableFetch, fetch: _Fetch
    ) -> None:
        table_id = wanted.table_id
        refusal: FlussError | None = None
        try:
            table = self._access.table(context, table_id, AclOperation.READ)
            selection = None if table is None else self._selection(table, wanted, table_fetch, fetch)
        except FlussError as error:
            refusal = error
        for entry in wanted.buckets_req:
            partition_id = entry.partition_id if entry.HasField("partition_id") else None
            if refusal is not None:
                table_fetch.failures.append(bucket_failure(entry.bucket_id, partition_id, refusal))
                continue
            try:
                hosted = self._access.bucket(table, table_id, partition_id, entry.bucket_id)
                offset = hosted.offset_start if entry.fetch_offset == FETCH_OFFSET_EARLIEST else entry.fetch_offset
                if hosted.group.remote is not None and _is_remote(hosted, offset, fetch.is_remote_first):
                    table_fetch.remote.append((hosted, offset, entry.max_fetch_bytes))
                    table_fetch.selection = selection
                    continue
                cursor = _cursor(hosted, offset, entry.max_fetch_bytes, selection)
            except FlussError as error:
                if isinstance(error, NotOpenError):
                    table_fetch.unopened.append(error.bucket)
                table_fetch.failures.append(bucket_failure(entry.bucket_id, partition_id, error))
            else:
                table_fetch.cursors.append(cursor)

    def _selection(
        self, table: HostedTable, wanted: pb.PbFetchLogReqForTable, table_fetch: _TableFetch, fetch: _Fetch
    ) -> Selection | None:
        """Return what is wanted of a table, as far as it can be told at once; a large filter is left for a thread."""
        columns = tuple(wanted.projected_fields) if wanted.projection_pushdown_enabled else None
        schema_id = wanted.filter_schema_id
        has_filter = wanted.HasField("filter_predicate") and schema_id in table.table.schemas
        if not has_filter or table.log_format is not LogFormat.ARROW:
            return Selection.of(table, columns, None)
        counts, encoded = self._filters.counts, wanted.filter_predicate
        if not fetch.filter_bytes:
            counts.fetches.add()
        try:
            fetch.allowance.take_bytes(len(encoded))
            fetch.filter_bytes += len(encoded)
            if len(encoded) > BYTES_AT_ONCE:
                decode = partial(decoded, table, schema_id, encoded, fetch.allowance)
                table_fetch.decode_selection = lambda: Selection.of(table, columns, decode())
                return None
            kept = self._filters.kept(table, schema_id, encoded, fetch.allowance)
        except FlussError:
            counts.refused["limit"].add()
            raise
        if kept.batch_filter is None:
            counts.refused["unknown"].add()
        batch_filter = kept.batch_filter if kept.filter_yield.is_worth_asking() else None
        return Selection.of(table, columns, batch_filter, kept.filter_yield)

    # Wait and read

    async def _serve(self, fetch: _Fetch) -> Answer | FetchLogResponse:
        if not fetch.filter_bytes:
            return await self._wait_and_read(fetch)
        if not self._turns.hold(fetch.filter_bytes, fetch.owner):
            self._filters.counts.refused["memory"].add()
            await self._purgatory.hold_back()
            return self._answer(fetch)
        try:
            if fetch.undecoded and not await self._decode_filters(fetch):
                return self._answer(fetch)
            return await self._wait_and_read(fetch)
        finally:
            self._turns.let_go(fetch.filter_bytes, fetch.owner)

    async def _decode_filters(self, fetch: _Fetch) -> bool:
        """Decode what was too large for the event loop; return False if the server is shutting down."""
        tables = fetch.undecoded
        async with self._turns.turn(fetch.owner) as turn:
            if self._purgatory.is_closed:
                return False
            selections = await turn.run(_decode_all, tables)
        for table, selection in zip(tables, selections, strict=True):
            if isinstance(selection, FlussError):
                self._filters.counts.refused["limit"].add()
            elif selection is None or not selection.is_filtered:
                self._filters.counts.refused["unknown"].add()
            table.select(selection)
            table.decode_selection = None
        fetch.drop_failed()
        return True

    async def _wait_and_read(self, fetch: _Fetch) -> Answer | FetchLogResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + fetch.wait_ms / 1000
        has_waited = False
        while True:
            if fetch.ready and not await self._read(fetch):
                break
            wait_s = deadline - loop.time()
            if wait_s <= 0 or self._purgatory.is_closed or fetch.is_satisfied() or (has_waited and fetch.byte_count):
                break
            failed_count = sum(len(table.failures) for table in fetch.tables)
            if not self._purgatory.has_room(len(fetch.cursors) + failed_count):
                await self._hold_back(fetch)
                break
            bytes_missing = (fetch.bytes_min or 0) - fetch.byte_count
            self._memory.give_back(fetch.byte_count, fetch.owner)
            fetch.forget_read()
            fetch.ready += await self._purgatory.wait(fetch.cursors, bytes_missing, wait_s, failed_count=failed_count)
            has_waited = True
            self._give_up_forbidden(fetch)
        codes = fetch.failure_codes()
        if codes and codes <= _HELD_BACK_CODES and not has_waited and not fetch.byte_count:
            await self._purgatory.hold_back()
        return self._answer(fetch)

    async def _hold_back(self, fetch: _Fetch) -> None:
        """Answer later, with what was read. If the client goes meanwhile, no answer gives the memory of that back."""
        try:
            await self._purgatory.hold_back()
        except BaseException:
            self._memory.give_back(fetch.byte_count, fetch.owner)
            raise

    def _give_up_forbidden(self, fetch: _Fetch) -> None:
        """Give up tables that the reader may not read any more: rights may have been taken away while it waited."""
        is_any = False
        for table in fetch.tables:
            refusal: FlussError | None = None
            try:
                if (
                    not table.cursors
                    or self._access.table(fetch.context, table.table_id, AclOperation.READ) is not None
                ):
                    continue
            except FlussError as error:
                refusal = error
            table.refuse(refusal)
            is_any = True
        if is_any:
            fetch.cursors = [cursor for table in fetch.tables for cursor in table.cursors]
            left = {cursor.hosted for cursor in fetch.cursors}
            fetch.ready = [cursor for cursor in fetch.ready if cursor.hosted in left]

    async def _read(self, fetch: _Fetch) -> bool:
        """Read what is ready; return False if there is no memory for it, or no time any more."""
        if _is_in_memory(fetch):
            granted = await self._memory.take(fetch.bytes_max, fetch.owner)
            if granted is None or self._read_at_once(fetch, granted):
                return granted is not None
        if not fetch.is_filtered():
            return await self._read_in(partial(asyncio.get_running_loop().run_in_executor, self._readers), fetch)
        # The turn comes first: a fetch that waits for it holds no memory that others need.
        async with self._turns.turn(fetch.owner) as turn:
            return not self._purgatory.is_closed and await self._read_in(turn.run, fetch)

    async def _read_in(self, run: Callable[..., Awaitable[None]], fetch: _Fetch) -> bool:
        granted = await self._memory.take(fetch.bytes_max, fetch.owner)
        if granted is None:
            return False
        with self._settling(fetch, granted):
            limits = FetchLimits(granted, _SCAN_BYTES_MAX, self._filter_batches_max, _FILTER_SECONDS_MAX)
            try:
                await run(_read_all, self._reads(fetch), limits)
            except asyncio.CancelledError:
                limits.is_abandoned = True
                raise
            self._count(limits)
        return True

    def _read_at_once(self, fetch: _Fetch, granted_bytes: int) -> bool:
        """Read what is in memory on the event loop; False if filters have more to look at than there is time for."""
        with self._settling(fetch, granted_bytes):
            batches_max = min(self._filter_batches_max, _FILTERED_AT_ONCE_MAX)
            limits = FetchLimits(granted_bytes, _SCAN_BYTES_MAX, batches_max, _FILTER_SECONDS_MAX)
            _read_all(self._reads(fetch), limits)
            self._count(limits)
        if limits.scan_batches_left > 0:
            return True
        self._memory.give_back(fetch.byte_count, fetch.owner)
        fetch.leave_to_thread()
        return False

    def _count(self, limits: FetchLimits) -> None:
        if limits.filtered_batches:
            self._filters.counts.add(limits)

    def _reads(self, fetch: _Fetch) -> list[_Read]:
        """Return what is to be read, starting at a random bucket: the first ones get the most."""
        start = self._rng.randrange(len(fetch.ready))
        reads = []
        for cursor in (*fetch.ready[start:], *fetch.ready[:start]):
            try:
                log = cursor.hosted.log()
            except FlussError as error:
                cursor.outcome = error
            else:
                cursor.high_watermark = log.offset_high_watermark
                reads.append((cursor, log))
        return reads

    @contextmanager
    def _settling(self, fetch: _Fetch, granted_bytes: int) -> Iterator[None]:
        """Hold what was read instead of what was granted: less, or more if the first batch is large, or nothing."""
        try:
            yield
            for cursor in fetch.ready:
                if isinstance(cursor.outcome, FlussError) and cursor.hosted.tablet is None:
                    # Whatever the error says, its reason is that the bucket was dropped meanwhile.
                    cursor.outcome = unknown_bucket(cursor.hosted.bucket)
                elif isinstance(cursor.outcome, BucketData):
                    fetch.byte_count += cursor.outcome.byte_count
        finally:
            self._memory.settle(granted_bytes, fetch.byte_count, fetch.owner)

    # Answer

    def _answer(self, fetch: _Fetch) -> Answer | FetchLogResponse:
        response = FetchLogResponse([table_answer(each.table_id, each.failures, each.cursors) for each in fetch.tables])
        if not fetch.byte_count:
            return response
        return Answer(response, partial(self._memory.give_back, fetch.byte_count, fetch.owner))


def _decode_all(tables: Sequence[_TableFetch]) -> list[Selection | FlussError | None]:
    """Decode the filters of tables that have some; errors are returned. Runs in any thread."""
    selections: list[Selection | FlussError | None] = []
    for table in tables:
        assert table.decode_selection is not None, "only tables with filters are decoded"
        try:
            selections.append(table.decode_selection())
        except FlussError as error:
            selections.append(error)
    return selections


def _cursor(hosted: HostedBucket, offset: int, bytes_max: int, selection: Selection | None) -> BucketCursor:
    log = hosted.log()
    if not log.offset_start <= offset <= log.offset_next:
        raise _out_of_range(hosted, log, offset)
    return BucketCursor(hosted, log, offset, bytes_max, selection)


def _is_remote(hosted: HostedBucket, offset: int, is_remote_first: bool) -> bool:
    """Whether a client is sent to remote storage for an offset."""
    return hosted.is_remote(offset) and (is_remote_first or offset < hosted.log().offset_start)


def _out_of_range(hosted: HostedBucket, log: LogTablet, offset: int) -> FlussError:
    restored_ms, reason = hosted.group.opener.restored_ms, ""
    if restored_ms is not None and offset > log.offset_next:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(restored_ms / 1000))
        reason = (
            f". The server was restored from a backup of {when}, and what was written later is lost: go on at offset "
            f"{log.offset_next}, or read again what depends on lost records"
        )
    return FlussError(
        f"The fetch offset {offset} of {format_bucket(hosted.bucket)} is out of range: its log goes from "
        f"{log.offset_start} to {log.offset_next}{reason}",
        ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
    )


def _is_in_memory(fetch: _Fetch) -> bool:
    """Whether there is little to read and to filter, all of it written moments ago and with all columns wanted."""
    if fetch.is_long or fetch.filter_bytes > BYTES_AT_ONCE or len(fetch.ready) > _READS_AT_ONCE_MAX:
        return False
    for cursor in fetch.ready:
        log = cursor.hosted.tablet
        if log is None:
            continue
        bytes_max = cursor.bytes_max
        if cursor.selection is not None:
            if cursor.selection.is_projected:
                return False
            # A filter may skip whatever there is.
            bytes_max = INT32_MAX
        if not log.is_cached(cursor.offset, bytes_max):
            return False
    return True


def _read_all(reads: Sequence[_Read], limits: FetchLimits) -> None:
    """Read until the limits are reached; the cursors keep what was found. Runs in any thread."""
    for cursor, log in reads:
        if limits.is_used_up:
            break
        try:
            cursor.outcome = read_bucket(log, cursor.offset, cursor.bytes_max, cursor.selection, limits)
        except FlussError as error:
            cursor.outcome = error
            if error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION and cursor.hosted.is_remote(
                cursor.offset
            ):
                # It has left the disk since the fetch came in. The client asks again, and is told where it is now.
                cursor.outcome = BucketData(has_more=True)
