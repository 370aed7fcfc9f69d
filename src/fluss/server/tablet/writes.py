"""What ProduceLog and PutKv have in common: who may write, how long is waited, and what is answered.

Everything up to the last bucket of a request is begun before anything is waited for, so batches are carried out in the
order in which they arrived, as idempotent writers with several requests in flight need it. Every bucket is answered by
itself. Nothing fails as a whole: some clients repeat a request that does, for ever.
"""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.records import BucketRecords
from fluss.schema.acl import AclOperation
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.buckets import HostedBucket, HostedTable
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.settings import TabletSettings

ACKS_ALL: Final = -1
_ACKS: Final = (ACKS_ALL, 0, 1)
_NO_SPACE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


class WriteRequest(Protocol):
    """ProduceLogRequest and PutKvRequest."""

    acks: int
    table_id: int
    timeout_ms: int
    buckets: Sequence[BucketRecords]


class BucketWrite(ABC):
    """What becomes of the records of one bucket. It begins to be written when it is made."""

    __slots__ = ("failure", "is_safe", "records")

    def __init__(self, records: BucketRecords) -> None:
        self.records = records
        # Whether it is as safe as the writer wants it to be.
        self.is_safe = False
        self.failure: FlussError | None = None

    @abstractmethod
    def begin(self, table: HostedTable, bucket: HostedBucket) -> None:
        """Begin to write. Raises what is wrong with the records or the bucket."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the records are as safe as the writer wants, or raise why they never will be."""

    @abstractmethod
    def is_safe_by_now(self) -> bool:
        """Tell whether there is nothing to wait for any more, without waiting."""


W = TypeVar("W", bound=BucketWrite)
R = TypeVar("R")


class Writes:
    """Carries out requests to write. Belongs to the event loop."""

    def __init__(self, access: BucketAccess, disk_guard: DiskGuard, park: FetchPark, settings: TabletSettings) -> None:
        self._access = access
        self._disk_guard = disk_guard
        self._park = park
        self._settings = settings

    def carry_out(
        self,
        context: RequestContext,
        request: WriteRequest,
        writes: Sequence[W],
        check_table: Callable[[HostedTable], None],
        respond: Callable[[Sequence[W]], R],
    ) -> R | Awaitable[R]:
        """Begin all writes at once, one for each bucket of the request; answer at once if nothing is to be waited for.

        ``check_table`` refuses what holds for all buckets.
        """
        self._begin_all(context, request, writes, check_table)
        if all(write.failure is not None for write in writes):
            return self._answer_later(writes, respond) if _is_try_again(writes) else respond(writes)
        return self._answer_when_safe(request, writes, respond)

    def _begin_all(
        self,
        context: RequestContext,
        request: WriteRequest,
        writes: Sequence[BucketWrite],
        check_table: Callable[[HostedTable], None],
    ) -> None:
        try:
            table = self._writable_table(context, request, check_table)
        except FlussError as error:
            for write in writes:
                write.failure = error
            return
        for write in writes:
            try:
                records = write.records
                bucket = self._access.bucket(table, request.table_id, records.partition_id, records.bucket_id)
                assert table is not None, "a table that is not here has no buckets"
                write.begin(table, bucket)
            except FlussError as error:
                # There may be very many of them, and the traceback would keep everything that was looked at.
                write.failure = error.with_traceback(None)

    def _writable_table(
        self, context: RequestContext, request: WriteRequest, check_table: Callable[[HostedTable], None]
    ) -> HostedTable | None:
        """Return the table, None if it is not here; refuse what holds for every bucket of the request."""
        check_acks(request.acks)
        table = self._access.table(context, request.table_id, AclOperation.WRITE)
        if table is not None:
            check_table(table)
        self._disk_guard.check_write()
        return table

    async def _answer_later(self, writes: Sequence[W], respond: Callable[[Sequence[W]], R]) -> R:
        """Hold back an answer that says nothing but "try again"."""
        await self._park.pause(self._settings.retry_answer_delay_ms)
        return respond(writes)

    async def _answer_when_safe(
        self, request: WriteRequest, writes: Sequence[W], respond: Callable[[Sequence[W]], R]
    ) -> R:
        try:
            async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
                # One after the other, which takes as long as the slowest.
                for write in writes:
                    await self._wait(write)
        except TimeoutError:
            for write in writes:
                self._time_out(write, request.timeout_ms)
        return await self._answer_later(writes, respond) if _is_try_again(writes) else respond(writes)

    async def _wait(self, write: BucketWrite) -> None:
        if write.failure is not None:
            return
        try:
            await write.wait()
        except FlussError as error:
            write.failure = error
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_SPACE_ERRORS:
                self._disk_guard.out_of_space()
        else:
            write.is_safe = True

    def _time_out(self, write: BucketWrite, timeout_ms: int) -> None:
        if write.failure is None and not write.is_safe and not write.is_safe_by_now():
            write.failure = FlussError(
                f"The records were not on disk within {timeout_ms} ms; they may still be written",
                ErrorCode.REQUEST_TIME_OUT,
            )


def check_acks(acks: int) -> None:
    """Refuse an unknown number of acknowledgements (code 18)."""
    if acks not in _ACKS:
        raise FlussError(f"Invalid required acks {acks}: write -1 (all), 1 or 0", ErrorCode.INVALID_REQUIRED_ACKS)


def _is_try_again(writes: Sequence[BucketWrite]) -> bool:
    codes = {write.failure.error_code if write.failure else 0 for write in writes}
    return bool(codes) and codes <= RETRIABLE_CODES
