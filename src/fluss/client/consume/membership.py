"""A member of a group: joins it, shows that it is alive, follows the group's log, commits, and leaves.

Clocks are not compared. A member sends a beat, and the next one when it has seen that beat in the log and an interval
has passed; so its own beats in the log are its clock, which stands still while the server is away. Who has shown
nothing while a lease of beats of another member went by is expelled by that one: its row is deleted, which is a record
like any other, and takes effect for all at the same place in the log. A member that has not seen a beat of its own for
a lease returns no records until it has: others may have its buckets by then, and no earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluss.client.consume.group import (
    NO_PARTITION,
    Beat,
    BucketKey,
    Commit,
    Event,
    Group,
    Reset,
)
from fluss.client.consume.group_table import GroupName, GroupRows, events_of, group_table_info
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import partitions_of
from fluss.client.scan.log_scanner import LogScanner
from fluss.config import Config
from fluss.errors import ConsumerFencedError, ErrorCode, FlussError, RequestTimeoutError
from fluss.schema.table import TableInfo, TablePath

# So many beats of a member fit into a lease. Who has shown nothing for so many beats of another member is expelled.
_BEATS_PER_LEASE: Final = 5
# How many records of the log a member that joins has to read at most, or four times as many as there are buckets.
_RECORDS_PER_STATE: Final = 2000
# How long one look at the log waits for records, unless something else is due earlier.
_TAIL_POLL_S: Final = 1.0
# How often a member that does not look for partitions looks whether the table is still the same.
_TABLE_CHECK_S: Final = 10.0
# How long leaving waits until the log says so.
_LEAVE_TIMEOUT_S: Final = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The options of a member, in seconds."""

    table_path: TablePath
    lease_s: float
    poll_interval_s_max: float
    # 0 if partitions stay as they are when the consumer begins.
    discovery_interval_s: float
    request_timeout_s: float

    @classmethod
    def of(cls, config: Config) -> MembershipSettings:
        return cls(
            table_path=group_table_path(config),
            lease_s=config.consumer_lease_ms / 1000,
            poll_interval_s_max=config.consumer_max_poll_interval_ms / 1000,
            discovery_interval_s=config.scanner_partition_discovery_interval_ms / 1000,
            request_timeout_s=config.request_timeout_ms / 1000,
        )


def group_table_path(config: Config) -> TablePath:
    """Return the table that ``consumer.table`` names."""
    database, dot, table = config.consumer_table.partition(".")
    if not (database and dot and table):
        raise FlussError(f"consumer.table must be database.table, got {config.consumer_table!r}")
    return TablePath(database, table)


class TableGoneError(FlussError):
    """The table that is read is no longer there, or another one has its name."""

    default_code = ErrorCode.TABLE_NOT_EXIST


class _PendingCommit:
    """Rows of one commit that have not been seen in the log."""

    __slots__ = ("done", "numbers", "refused")

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers
        self.refused: list[BucketKey] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def seen(self, commit: Commit, *, is_accepted: bool) -> None:
        if commit.number not in self.numbers:
            return
        self.numbers.discard(commit.number)
        if not is_accepted:
            self.refused.append(commit.key)
        if not self.numbers and not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member has to read, at one version of the group."""

    version: int
    # The buckets of the member, with the epochs of its ownership.
    owned: Mapping[BucketKey, int]
    # Those of them that it is to release.
    excess: frozenset[BucketKey]
    positions: Mapping[BucketKey, int]


class Membership:
    """One member of one group. Belongs to the event loop of the library, except for what says otherwise.

    When it has ended, ``failure`` says why; it cannot begin again. ``version`` changes with the group. Both may be read
    by any thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        consumer: str,
        settings: MembershipSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._info = info
        self._name = GroupName(str(info.table_path), consumer)
        self._settings = settings
        self._clock = clock
        self.member = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.version = 0
        self.failure: FlussError | None = None
        self._rows: GroupRows | None = None
        self._tail: LogScanner | None = None
        self._group = Group(0, 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._commits: list[_PendingCommit] = []
        # Own beats that have gone by since each of the others has shown something.
        self._silence: dict[str, int] = {}
        self._beat_sent_s = 0.0
        self._is_beat_under_way = False
        self._confirmed_s = 0.0
        self._polled_s = clock()
        # The version and the offset of the group when it was last written down.
        self._state_version = -1
        self._state_offset = 0
        self._news = asyncio.Event()

    # Joining

    async def join(self, seed: Mapping[BucketKey, int]) -> None:
        """Become a member. ``seed`` has positions that this process knows, in case that the table has lost them."""
        try:
            await self._enter(seed)
        except BaseException:
            await self._stop()
            raise
        self._polled_s = self._clock()
        self._tasks = [asyncio.create_task(self._guard(self._live())), asyncio.create_task(self._guard(self._watch()))]

    async def _enter(self, seed: Mapping[BucketKey, int]) -> None:
        await self._check_table()
        info = await group_table_info(self._cluster, self._runtime, self._settings.table_path, creates=True)
        assert info is not None
        self._rows = GroupRows(self._cluster, self._runtime, info, self._name)
        self._group, offset_end = await self._rows.load()
        self._tail = self._rows.tail(self._group.offset)
        await self._read_until(lambda: self._group.offset >= offset_end, "read the log of the group")
        if self._group.table_id != self._info.table_id:
            await self._reset(seed)
        self._send_beat(is_join=True)
        await self._read_until(lambda: self.member in self._group.members, "join the group")
        self._state_offset = self._group.offset

    async def _reset(self, seed: Mapping[BucketKey, int]) -> None:
        """Begin the group anew: it never was, its log is gone, or it read another table of the same name."""
        assert self._rows is not None
        table_id = self._info.table_id
        if self._group.table_id > table_id:
            raise self._table_gone("was dropped and created again")
        positions, members = await self._rows.left_behind(table_id)
        partition_ids = await self._partition_ids()
        group, bucket_count = self._group, self._info.num_buckets
        reset = Reset(group.offset, table_id, bucket_count, partition_ids, {**seed, **positions}, group.reset_at)
        self._rows.write_reset(reset, self.member)
        for member in members:
            self._rows.delete_member(member)
        await self._read_until(lambda: self._group.table_id == table_id, "begin the group")

    async def _read_until(self, is_done: Callable[[], bool], what: str) -> None:
        assert self._rows is not None
        deadline_s = self._clock() + self._settings.request_timeout_s
        while not is_done():
            remaining_s = deadline_s - self._clock()
            if remaining_s <= 0:
                raise RequestTimeoutError(
                    f"The consumer '{self._name.consumer}' of {self._name.table_name} could not {what} within "
                    f"{self._settings.request_timeout_s:g} s: {self._settings.table_path} does not answer"
                )
            await self._read(min(remaining_s, _TAIL_POLL_S))
            await self._rows.check()

    # Following the log

    async def _read(self, timeout_s: float) -> None:
        """Apply what has come, or comes within a time."""
        assert self._tail is not None
        records = await self._tail.poll_async(max(int(timeout_s * 1000), 0))
        for offset, event in events_of(records):
            if offset >= self._group.offset:
                self._note(event, is_effective=self._group.apply(offset, event))
        # Records of other consumers have been passed over.
        ((_, position),) = self._tail.get_subscribed_buckets()
        self._group.offset = max(self._group.offset, position)

    def _note(self, event: Event, *, is_effective: bool) -> None:
        if isinstance(event, Beat) and event.member == self.member:
            self._is_beat_under_way = False
            self._confirmed_s = self._beat_sent_s
            self._silence = {member: self._silence.get(member, 0) + 1 for member in self._group.members}
            self._silence.pop(self.member, None)
        elif isinstance(event, Beat | Commit):
            self._silence.pop(event.member, None)
        if isinstance(event, Commit):
            if event.member == self.member:
                for pending in self._commits:
                    pending.seen(event, is_accepted=is_effective)
            is_gone = event.key.partition_id not in self._group.partition_ids
            if is_gone and self._group.leader == self.member and self._rows is not None:
                # A member that did not know yet that the partition was dropped has stored its position once more.
                self._rows.delete_positions([event.key])
            if not event.is_release:
                return
        if isinstance(event, Beat) and not event.is_join:
            if not is_effective and self._group.leader == self.member and self._rows is not None:
                # A member that was expelled does not know it yet.
                self._rows.delete_member(event.member)
            return
        if is_effective:
            self.version += 1
            self._news.set()

    async def _live(self) -> None:
        """Follow the log and show that this member lives, until it is none any more."""
        assert self._rows is not None
        while True:
            await self._read(min(max(self._beat_due_s() - self._clock(), 0.0), _TAIL_POLL_S))
            await self._rows.check()
            if self.member not in self._group.members:
                raise self._fenced("it was not heard of for longer than its lease (consumer.lease-ms)")
            self._expel_silent()
            if self._clock() >= self._beat_due_s():
                self._send_beat(is_join=False)
                self._write_state()
            if self._clock() - self._polled_s > self._settings.poll_interval_s_max:
                self._rows.delete_member(self.member)
                raise self._fenced(
                    f"it was not polled for {self._settings.poll_interval_s_max:g} s (consumer.max-poll-interval-ms)"
                )

    def _expel_silent(self) -> None:
        silent = [member for member, beats in self._silence.items() if beats > _BEATS_PER_LEASE]
        # One is enough to do it: the oldest that lives.
        if silent and self.member == next(member for member in self._group.members if member not in silent):
            for member in silent:
                self._expel(member)

    def _expel(self, member: str) -> None:
        assert self._rows is not None
        logger.warning(
            "%s has not been heard of for a lease: its buckets of %s are read by others of the consumer '%s' now",
            member,
            self._name.table_name,
            self._name.consumer,
        )
        self._rows.delete_member(member)
        # Once more after another lease, should it still be there.
        self._silence.pop(member, None)

    def _beat_due_s(self) -> float:
        if self._is_beat_under_way:
            return float("inf")
        return self._beat_sent_s + self._settings.lease_s / _BEATS_PER_LEASE

    def _send_beat(self, *, is_join: bool) -> None:
        assert self._rows is not None
        self._beat_sent_s = self._clock()
        self._is_beat_under_way = True
        about = {"host": socket.gethostname(), "process": os.getpid(), "sent_ms": time.time_ns() // 1_000_000}
        self._rows.write_beat(self.member, about, is_join=is_join)

    def _write_state(self) -> None:
        """Write the group down now and then, so that who joins does not have to read all of the log."""
        assert self._rows is not None
        group = self._group
        if group.leader != self.member:
            return
        records_max = max(_RECORDS_PER_STATE, 4 * len(group.owners))
        if self.version != self._state_version or group.offset - self._state_offset > records_max:
            self._rows.write_group(group, self.member)
            self._state_version, self._state_offset = self.version, group.offset

    # The table that is read

    async def _watch(self) -> None:
        """Notice that the table is another one, and new and dropped partitions."""
        while True:
            discovery_s = self._settings.discovery_interval_s
            await asyncio.sleep(discovery_s or _TABLE_CHECK_S)
            try:
                await self._check_table()
                if discovery_s and self._info.is_partitioned() and self._group.leader == self.member:
                    await self._discover()
            except FlussError as error:
                if not error.is_retriable:
                    raise
                logger.debug("%s cannot be looked at: %s", self._name.table_name, error.message)

    async def _check_table(self) -> None:
        path = self._info.table_path
        try:
            await self._cluster.refresh([path])
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            raise self._table_gone("was dropped") from error
        info = self._cluster.table_info(path)
        if info is not None and info.table_id != self._info.table_id:
            raise self._table_gone("was dropped and created again")

    def _table_gone(self, how: str) -> TableGoneError:
        return TableGoneError(
            f"{self._name.table_name} {how}: get the table again, and a new consumer of it, which begins anew"
        )

    async def _discover(self) -> None:
        assert self._rows is not None
        before = self._group.partition_ids
        now = await self._partition_ids()
        if now == before:
            return
        self._rows.write_partitions(self._info.table_id, now, self.member)
        # Of every bucket: a commit that is on its way may be in front of this in the log.
        gone = set(before) - set(now)
        self._rows.delete_positions([key for key in self._group.buckets() if key.partition_id in gone])

    async def _partition_ids(self) -> tuple[int, ...]:
        if not self._info.is_partitioned():
            return (NO_PARTITION,)
        infos = await partitions_of(self._cluster, self._info)
        return tuple(sorted(partition.partition_id for partition in infos))

    # For the consumer

    def note_poll(self) -> None:
        """The consumer was polled. Any thread may call this."""
        self._polled_s = self._clock()

    def is_sure(self) -> bool:
        """Whether this member has lately seen that it is one. Any thread may call this."""
        return self._clock() - self._confirmed_s <= self._settings.lease_s

    async def wait_for_news(self, timeout_s: float) -> None:
        """Wait until the group changes, or this member has ended."""
        self._news.clear()
        if self.failure is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout_s)

    async def assignment(self) -> Assignment:
        """Return what this member has to read."""
        group = self._group
        owned = group.owned_by(self.member)
        positions = {key: group.positions[key] for key in owned if key in group.positions}
        return Assignment(self.version, owned, frozenset(group.excess_of(self.member)), positions)

    async def positions(self) -> dict[BucketKey, int]:
        """Return the positions of the whole group, as far as this member knows them."""
        return dict(self._group.positions)

    async def commit(
        self,
        positions: Mapping[BucketKey, tuple[int, int | None]],
        *,
        is_release: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Commit offsets, each under the epoch of its bucket, and wait until the log has them.

        It waits for the request timeout, or ``timeout_s``. Raises ConsumerFencedError if others were the owners at that
        place of the log.
        """
        self._raise_failure()
        assert self._rows is not None
        if not positions:
            return
        pending = _PendingCommit(
            self._rows.write_commit(self._info.table_id, self.member, positions, is_release=is_release)
        )
        self._commits.append(pending)
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await pending.done
        except TimeoutError:
            raise RequestTimeoutError(
                f"The positions were not stored within {limit_s:g} s; they may be later"
            ) from None
        finally:
            self._commits.remove(pending)
        # Positions in partitions that were dropped meanwhile do not matter any more.
        if any(key.partition_id in self._group.partition_ids for key in pending.refused):
            raise self._fenced("others read its buckets by then")

    async def leave(self, timeout_s: float = _LEAVE_TIMEOUT_S) -> None:
        """Leave the group, so that others have the buckets at once. Also ends a membership that has failed.

        It does not wait longer than ``timeout_s`` for the log to say so.
        """
        is_member = bool(self._tasks) and self.failure is None
        # No beat may follow the end.
        await self._cancel_tasks()
        try:
            if self._rows is not None:
                if is_member:
                    self._rows.delete_member(self.member)
                async with asyncio.timeout(min(timeout_s, _LEAVE_TIMEOUT_S)):
                    await self._rows.flush()
        except (FlussError, TimeoutError) as error:
            logger.log(
                # One that has failed has said so already.
                logging.WARNING if is_member else logging.INFO,
                "a member of the consumer '%s' of %s could not leave its group (%s); others get its buckets when its "
                "lease is over",
                self._name.consumer,
                self._name.table_name,
                error.message if isinstance(error, FlussError) else f"{self._settings.table_path} does not answer",
            )
        finally:
            await self._stop()

    # The end

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except FlussError as error:
            self._fail(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("a member of the consumer '%s' has failed", self._name.consumer)
            self._fail(FlussError(f"The consumer '{self._name.consumer}' has failed: {error!r}"))

    def _fail(self, error: FlussError) -> None:
        if self.failure is None:
            self.failure = error if isinstance(error, ConsumerFencedError) else self._lost(error)
        self.version += 1
        self._news.set()
        for pending in self._commits:
            if not pending.done.done():
                pending.done.set_exception(self.failure.copied())

    def _lost(self, error: FlussError) -> FlussError:
        """Return why the member cannot go on; if joining again may help, that is fencing."""
        if isinstance(error, TableGoneError):
            return error
        fenced = self._fenced(
            f"{self._settings.table_path}, which keeps its positions, cannot be used: {error.message.rstrip('.')}"
        )
        fenced.__cause__ = error
        return fenced

    def _fenced(self, why: str) -> ConsumerFencedError:
        return ConsumerFencedError(
            f"The consumer '{self._name.consumer}' of {self._name.table_name} has lost its buckets: {why}. What it has "
            "not committed is read again; the next poll joins the group again"
        )

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure.copied()

    async def _stop(self) -> None:
        if self.failure is None:
            self._fail(FlussError("The consumer is closed"))
        await self._cancel_tasks()
        if self._tail is not None:
            self._tail.close()
        if self._rows is not None:
            with contextlib.suppress(FlussError):
                await self._rows.close()
            self._rows = None

    async def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_group(cluster: Cluster, runtime: Runtime, info: TableInfo, name: GroupName) -> Group:
    """Return a group as its log says it now, without being a member."""
    rows = GroupRows(cluster, runtime, info, name)
    try:
        group, offset_end = await rows.load()
        with rows.tail(group.offset) as tail:
            while group.offset < offset_end:
                _apply(group, events_of(await tail.poll_async(int(_TAIL_POLL_S * 1000))))
                ((_, position),) = tail.get_subscribed_buckets()
                group.offset = max(group.offset, position)
        return group
    finally:
        await rows.close()


def _apply(group: Group, events: Iterable[tuple[int, Event]]) -> None:
    for offset, event in events:
        if offset >= group.offset:
            group.apply(offset, event)
