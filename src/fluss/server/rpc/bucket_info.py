"""ListOffsets and GetTableStats: where buckets begin and end, where a time lies in them, how many rows they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.protocol.convert import partition_id, set_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclOperation
from fluss.schema.table_options import CHANGELOG_IMAGE, ChangelogImage
from fluss.server.kv.bucket import KvBucket
from fluss.server.model import Clock
from fluss.server.rpc.bucket_access import BucketAccess, is_try_again
from fluss.server.tablet.buckets import HostedBucket, HostedTable, not_open, open_all
from fluss.server.tablet.purgatory import FetchPurgatory
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.log.tablet import LogTablet

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

# Offset types by their numbers in requests.
EARLIEST, LATEST, TIMESTAMP, LOG_END = range(4)
_OFFSET_TYPES = (  # Offset types by their numbers in requests.
    EARLIEST,
    LATEST,
    TIMESTAMP,
    LOG_END,
)

# What is known about a bucket: its offset, why there is none, or a log that has to be looked into; the bucket itself,
# if remote storage has to be asked first.
_Found: TypeAlias = int | FlussError | LogTablet | HostedBucket
# What is known by partition and bucket. A request may name a bucket any number of times, which is little work then.
_FoundByPlace: TypeAlias = Mapping[tuple[int | None, int], _Found]


class OffsetLister:
    """Answers questions about offsets. Belongs to the event loop; times are looked up by ``readers``.

    Followers do not exist here: a request that names one is answered like that of a client.
    """

    def __init__(
        self,
        access: BucketAccess,
        purgatory: FetchPurgatory,
        readers: Executor,
        clock: Clock,
        remote: RemoteLogs | None = None,
    ) -> None:
        self._access = access
        self._purgatory = purgatory
        self._readers = readers
        self._clock = clock
        self._remote = remote

    def list_offsets(
        self, context: RequestContext, request: pb.ListOffsetsRequest
    ) -> pb.ListOffsetsResponse | Awaitable[pb.ListOffsetsResponse]:
        """Answer at once unless a time has to be looked up, or everything says "try again"."""
        found = self._find_all(context, request)
        if unopened := not_open(found.values()):
            return self._open_and_list(context, request, unopened)
        return self._list(request, found)

    async def _open_and_list(
        self, context: RequestContext, request: pb.ListOffsetsRequest, unopened: Iterable[HostedBucket]
    ) -> pb.ListOffsetsResponse:
        await open_all(unopened)
        response = self._list(request, self._find_all(context, request))
        return response if isinstance(response, pb.ListOffsetsResponse) else await response

    def _list(
        self, request: pb.ListOffsetsRequest, found: _FoundByPlace
    ) -> pb.ListOffsetsResponse | Awaitable[pb.ListOffsetsResponse]:
        if any(isinstance(answer, LogTablet | HostedBucket) for answer in found.values()):
            return self._look_up(request, found)
        if is_try_again(answer if isinstance(answer, FlussError) else None for answer in found.values()):
            return self._answer_later(request, found)
        return _offsets_response(request, found)

    def _find_all(self, context: RequestContext, request: pb.ListOffsetsRequest) -> _FoundByPlace:
        try:
            table = self._access.table(context, request.table_id, AclOperation.DESCRIBE)
            self._check(request)
        except FlussError as error:
            return {
                (wanted_partition, bucket_id): error
                for wanted_partition, bucket_ids in _wanted(request)
                for bucket_id in bucket_ids
            }
        find_bucket, table_id = self._access.bucket, request.table_id
        found: dict[tuple[int | None, int], _Found] = {}
        for wanted_partition, bucket_ids in _wanted(request):
            for bucket_id in bucket_ids:
                place = wanted_partition, bucket_id
                if place in found:
                    continue
                try:
                    hosted = find_bucket(table, table_id, wanted_partition, bucket_id)
                    log = hosted.log()
                except FlussError as error:
                    # There may be very many of them, and the traceback would keep everything that was looked at.
                    found[place] = error.with_traceback(None)
                else:
                    found[place] = _find(hosted, log, request)
        return found

    def _check(self, request: pb.ListOffsetsRequest) -> None:
        if request.offset_type not in _OFFSET_TYPES:
            raise FlussError(
                f"Unknown offset type {request.offset_type}: known are 0 (earliest), 1 (latest), 2 (timestamp) and 3 "
                "(end of the log)",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        if request.offset_type != TIMESTAMP:
            return
        if not request.HasField("startTimestamp"):
            raise FlussError("Offsets by timestamp need a timestamp", ErrorCode.UNKNOWN_SERVER_ERROR)
        now_ms = self._clock()
        if request.startTimestamp > now_ms:
            raise FlussError(
                f"The timestamp {request.startTimestamp} is in the future: the server's time is {now_ms}",
                ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
            )

    async def _look_up(self, request: pb.ListOffsetsRequest, found: _FoundByPlace) -> pb.ListOffsetsResponse:
        loop = asyncio.get_running_loop()
        answers: Sequence[_Found] = list(found.values())
        if any(isinstance(answer, HostedBucket) for answer in answers):
            answers = await asyncio.gather(*(self._ask_remote(answer, request.startTimestamp) for answer in answers))
        answers = await loop.run_in_executor(self._readers, _look_up_all, answers, request.startTimestamp)
        return _offsets_response(request, dict(zip(found, answers, strict=True)))

    async def _ask_remote(self, answer: _Found, timestamp_ms: int) -> _Found:
        """Return what remote storage knows of a time; the log, if it has to be looked for there."""
        if not isinstance(answer, HostedBucket):
            return answer
        assert self._remote is not None, "otherwise nothing is there"
        try:
            offset = await self._remote.offset_for_timestamp(answer, timestamp_ms)
            return answer.log() if offset is None else offset
        except FlussError as error:
            return error

    async def _answer_later(self, request: pb.ListOffsetsRequest, found: _FoundByPlace) -> pb.ListOffsetsResponse:
        await self._purgatory.hold_back()
        return _offsets_response(request, found)


def _wanted(request: pb.ListOffsetsRequest) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Yield the buckets that are asked about, by partition: those of the first one, and of any others."""
    yield partition_id(request), request.bucket_id
    for further in request.more_partitions:
        yield further.partition_id, further.bucket_id


def _find(hosted: HostedBucket, log: LogTablet, request: pb.ListOffsetsRequest) -> _Found:
    """Return an offset that is known without looking, or else what to look into."""
    if request.offset_type == LOG_END:
        return log.offset_next
    if request.offset_type == LATEST:
        return log.offset_high_watermark
    offset_start = log.offset_start if hosted.group.remote is None else hosted.offset_start
    if request.offset_type == EARLIEST:
        return offset_start
    if request.startTimestamp > log.timestamp_max_ms:
        return log.offset_high_watermark
    return log if offset_start == log.offset_start else hosted


def _look_up_all(found: Sequence[_Found], timestamp_ms: int) -> list[_Found]:
    return [_look_up(answer, timestamp_ms) if isinstance(answer, LogTablet) else answer for answer in found]


def _look_up(log: LogTablet, timestamp_ms: int) -> _Found:
    try:
        return log.offset_for_timestamp(timestamp_ms)
    except FlussError as error:
        return error


def _offsets_response(request: pb.ListOffsetsRequest, found: _FoundByPlace) -> pb.ListOffsetsResponse:
    """Return the answer: a message for each bucket of the first partition, two lists for each of the others."""
    response = pb.ListOffsetsResponse()
    first_id = partition_id(request)
    entries: dict[int, pb.PbListOffsetsRespForBucket] = {}
    for bucket_id in request.bucket_id:
        _add_entry(response.buckets_resp, entries, bucket_id, found[first_id, bucket_id])
    for further in request.more_partitions:
        partition = response.more_partitions.add()
        failures: dict[int, pb.PbListOffsetsRespForBucket] = {}
        for bucket_id in further.bucket_id:
            answer = found[further.partition_id, bucket_id]
            if isinstance(answer, FlussError):
                _add_entry(partition.failures, failures, bucket_id, answer)
            else:
                partition.bucket_id.append(bucket_id)
                partition.offset.append(_known(answer))
    return response


def _add_entry(
    answered: RepeatedCompositeFieldContainer[pb.PbListOffsetsRespForBucket],
    added: dict[int, pb.PbListOffsetsRespForBucket],
    bucket_id: int,
    answer: _Found,
) -> None:
    """Add what is known about a bucket; a copy, which takes less, if it was ``added`` before."""
    before = added.get(bucket_id)
    if before is not None:
        answered.append(before)
        return
    entry = added[bucket_id] = answered.add(bucket_id=bucket_id)
    if isinstance(answer, FlussError):
        set_failure(entry, answer)
    else:
        entry.offset = _known(answer)


def _known(answer: int | LogTablet | HostedBucket) -> int:
    assert isinstance(answer, int), "every log has been looked into"
    return answer


@dataclass(slots=True, eq=False)
class _Count:
    """The rows of one bucket: how many, or why that is not known, or the store that is still to be asked."""

    bucket_id: int
    partition_id: int | None
    row_count: int = 0
    failure: FlussError | None = None
    kv: KvBucket | None = None


class RowCounter:
    """Answers how many rows buckets hold. Belongs to the event loop."""

    def __init__(self, access: BucketAccess, purgatory: FetchPurgatory) -> None:
        self._access = access
        self._purgatory = purgatory

    def get_table_stats(
        self, context: RequestContext, request: pb.GetTableStatsRequest
    ) -> pb.GetTableStatsResponse | Awaitable[pb.GetTableStatsResponse]:
        """Answer for every bucket: in a log table every visible offset is a row, primary-key tables count theirs."""
        counts = self._begin_all(context, request)
        if unopened := not_open(count.failure for count in counts):
            return self._open_and_count(context, request, unopened)
        if any(count.kv is not None for count in counts):
            return self._ask_stores(counts)
        return _counts_response(counts)

    async def _open_and_count(
        self, context: RequestContext, request: pb.GetTableStatsRequest, unopened: Iterable[HostedBucket]
    ) -> pb.GetTableStatsResponse:
        await open_all(unopened)
        return await self._ask_stores(self._begin_all(context, request))

    def _begin_all(self, context: RequestContext, request: pb.GetTableStatsRequest) -> list[_Count]:
        """Count what can be counted without waiting."""
        keys = [(wanted.bucket_id, partition_id(wanted)) for wanted in request.buckets_req]
        # A bucket that is asked for many times is counted once, and answered as often.
        by_key = {key: _Count(*key) for key in keys}
        counts = [by_key[key] for key in keys]
        try:
            table = self._countable_table(context, request.table_id)
        except FlussError as error:
            for count in by_key.values():
                count.failure = error
            return counts
        for count in by_key.values():
            try:
                self._begin(table, request.table_id, count)
            except FlussError as error:
                count.failure = error.with_traceback(None)
        return counts

    def _countable_table(self, context: RequestContext, table_id: int) -> HostedTable | None:
        hosted = self._access.table(context, table_id, AclOperation.READ)
        if hosted is None or not hosted.table.has_primary_key:
            return hosted
        if CHANGELOG_IMAGE.of(hosted.table.descriptor.properties) is ChangelogImage.WAL:
            raise FlussError(
                f"The rows of table {hosted.table.path} are not counted: with '{CHANGELOG_IMAGE.key}' = "
                f"'{ChangelogImage.WAL}' nothing tells new rows from changed ones; scan the table instead",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return hosted

    def _begin(self, table: HostedTable | None, table_id: int, count: _Count) -> None:
        hosted = self._access.bucket(table, table_id, count.partition_id, count.bucket_id)
        log = hosted.log()
        count.kv = hosted.kv
        count.row_count = log.offset_high_watermark - hosted.offset_start

    async def _ask_stores(self, counts: Sequence[_Count]) -> pb.GetTableStatsResponse:
        """Ask the stores of all buckets, which are opened if they are not open."""
        distinct = {id(count): count for count in counts}.values()
        await asyncio.gather(*(_ask_store(count, count.kv) for count in distinct if count.kv is not None))
        if is_try_again(count.failure for count in counts):
            await self._purgatory.hold_back()
        return _counts_response(counts)


async def _ask_store(count: _Count, kv: KvBucket) -> None:
    try:
        row_count = await kv.row_count()
    except FlussError as error:
        count.failure = error
        return
    assert row_count is not None, "all tables are counted but those that were refused"
    count.row_count = row_count


def _counts_response(counts: Sequence[_Count]) -> pb.GetTableStatsResponse:
    response = pb.GetTableStatsResponse()
    for count in counts:
        answer = response.buckets_resp.add(bucket_id=count.bucket_id, partition_id=count.partition_id)
        if count.failure is not None:
            set_failure(answer, count.failure)
        else:
            answer.row_count = count.row_count
    return response
