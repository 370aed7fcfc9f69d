"""The tables and buckets a server hosts, in memory: by table, by partition, by number.

A table without partitions is kept like one with a single partition that has no id. Everything here belongs to the
event loop.

A bucket is a number until a request asks for it. Then there is a ``HostedBucket``, whose log is opened in a thread
while the requests for it wait; one that is not used for a while becomes a number again.

    a number -> opening -> open     its log can be read and written
       ^           |         |
       |           +-----> offline  its log is damaged; stays so until the server starts again
       +------ closed ------+
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.schema.table_options import LogFormat
from fluss.server.model import Partition, Table, format_bucket
from fluss.server.tablet.batch_check import BatchCheck
from fluss.storage.log.file_names import TabletKind, TabletLocation
from fluss.storage.log.tablet import LogTablet

if TYPE_CHECKING:
    from fluss.server.kv.bucket import KvBucket

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """A delayed fetch, as its buckets know it. Called on the event loop; may be called more than once."""

    def bucket_advanced(self) -> None:
        """The high watermark of the bucket has moved, or the bucket is gone."""
        ...


class Opener(Protocol):
    """Opens the logs of buckets below a data directory."""

    data_dir: Path
    # Of when the backup was from which the server was restored, as epoch milliseconds; None if it was not.
    restored_ms: int | None

    def open(self, bucket: HostedBucket) -> None:
        """Have the log of a bucket opened; ``bucket.opened`` is called on the event loop, perhaps at once."""
        ...

    def open_new(self, bucket: HostedBucket) -> None:
        """Open the log of a bucket at once if nothing of it is on the disk, as far as there is time for that."""
        ...


class NotOpenError(FlussError):
    """The log of a bucket is not open (any more); ``bucket`` tells when it is.

    A client that gets to see it is told to try again.
    """

    def __init__(self, bucket: HostedBucket) -> None:
        # Always the same: a request may ask for thousands of buckets.
        super().__init__("The log of the bucket is being opened; try again", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._bucket = bucket

    @property
    def bucket(self) -> HostedBucket:
        return self._bucket.current


class HostedBucket:
    """One bucket in use: its log, or why there is none, its rows by key, and the fetches that wait for it.

    Thousands of these may lie idle: what belongs to rows by key is made when it is first needed.
    """

    __slots__ = (
        "_is_dropped",
        "_kv",
        "_log",
        "_opening",
        "_problem",
        "_waiters",
        "bucket",
        "group",
        "idle_answer",
        "idle_high_watermark",
        "is_used",
    )

    def __init__(self, group: BucketGroup, bucket_id: int) -> None:
        self.group = group
        self.bucket: TableBucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        # Whether a request has asked for the log since this was last set to False.
        self.is_used = True
        self._kv: KvBucket | None = None
        self._log: LogTablet | None = None
        self._problem: FlussError | None = None
        self._is_dropped = False
        # What is to be done when the log is open, in this order; None if it is not being opened.
        self._opening: list[Callable[[], None]] | None = None
        self._waiters: set[Waiter] | None = None
        # What fetches that find nothing are told, encoded, and the high watermark for which it holds.
        self.idle_high_watermark = -1
        self.idle_answer = b""

    def __repr__(self) -> str:
        return f"HostedBucket({format_bucket(self.bucket)}, {self._log or self._problem or 'not open'})"

    # Opening

    @property
    def current(self) -> HostedBucket:
        """The bucket as it is in use now: this, or another one since the log of this was closed.

        A request may have found a bucket that was being closed, and open it only afterwards. There must not be two logs
        of one bucket.
        """
        return self if self._is_dropped else self.group[self.bucket.bucket_id]

    @property
    def directory(self) -> Path:
        """Where its log is, or will be."""
        return self.group.log_directory(self.bucket.bucket_id)

    @property
    def offset_start(self) -> int:
        """The first offset that readers can have, from remote storage or from the log, which must be open."""
        log, remote, bucket_id = self.log(), self.group.remote, self.bucket.bucket_id
        if remote is None or remote.starts[bucket_id] >= remote.ends[bucket_id]:
            return log.offset_start
        return min(remote.starts[bucket_id], log.offset_start)

    def is_remote(self, offset: int) -> bool:
        """Tell whether an offset is in remote storage, perhaps besides being in the log."""
        remote = self.group.remote
        return remote is not None and remote.has(self.bucket.bucket_id, offset)

    @property
    def is_settled(self) -> bool:
        """Whether ``log`` returns the log, or raises an error that stays."""
        return self._log is not None or self._problem is not None or self._is_dropped

    def when_open(self, act: Callable[[], None]) -> None:
        """Do something as soon as the log is open, or it is known why it will not be: now, if it is known already.

        Everything is done in the order of the calls.
        """
        if self.is_settled:
            act()
            return
        current = self.current
        if current is not self:
            current.when_open(act)
            return
        if self._opening is not None:
            self._opening.append(act)
            return
        self._opening = [act]
        self.group.opener.open(self)

    async def open(self) -> HostedBucket:
        """Wait until the log is open, or it is known why it will not be; return the bucket as it is in use then."""
        await open_all((self,))
        return self.current

    def opened(self, log: LogTablet | FlussError) -> None:
        """Take the log, or why it cannot be opened, and let those go on who wait for it."""
        if self._is_dropped:
            return
        if isinstance(log, LogTablet):
            self._log = log
            log.on_advance(self._advanced)
        else:
            self._problem = log
        self._go_on()

    def not_opened(self) -> None:
        """Let those go on who wait for the log, which cannot be opened now; the next request may try again."""
        self._go_on()

    def _go_on(self) -> None:
        acts, self._opening = self._opening or (), None
        for act in acts:
            try:
                act()
            except Exception:  # Those behind it belong to other requests.
                logger.exception("a request could not go on with %s", self.bucket)

    # What is there

    @property
    def tablet(self) -> LogTablet | None:
        """The log, if it is open; ``log`` raises why it is not."""
        return self._log

    def log(self) -> LogTablet:
        """Return the log. A bucket that is offline raises why (code 26), one that was dropped code 21.

        One that is not open raises NotOpenError: see ``open``.
        """
        if self._log is not None:
            self.is_used = True
            return self._log
        if self._problem is not None:
            raise self._problem.copied()
        raise unknown_bucket(self.bucket) if self._is_dropped else NotOpenError(self)

    @property
    def kv(self) -> KvBucket | None:
        """The rows by key, if the log is open and the table has a primary key; see ``key_values``."""
        if self._kv is None and self._log is not None:
            self._kv = self.group.new_kv(self._log)
        return self._kv if self._log is not None else None

    @property
    def kv_in_use(self) -> KvBucket | None:
        """The rows by key, if a request has asked for them since the bucket was opened."""
        return self._kv

    def key_values(self) -> KvBucket:
        """Return the rows by key. Raises what ``log`` raises, and code 20 if the table has no primary key."""
        self.log()
        kv = self.kv
        if kv is None:
            raise FlussError(
                f"The table of {format_bucket(self.bucket)} has no primary key: it is a log, read and append to it",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        return kv

    @property
    def is_failed(self) -> bool:
        """Whether the bucket does not take reads and writes, by key as well if it has keys."""
        if self._problem is not None or (self._kv is not None and not self._kv.is_available):
            return True
        return self._log is not None and self._log.failure is not None

    @property
    def is_log_clean(self) -> bool:
        """Whether nothing is known that the next start would have to look at."""
        return self._problem is None and (self._log is None or self._log.failure is None)

    @property
    def is_closable(self) -> bool:
        """Whether the log is open and nothing would miss it now."""
        if self._log is None or not self._log.is_idle or self._waiters is not None:
            return False
        return self._kv is None or (self._kv.is_closable and self._kv.is_available)

    async def close(self) -> None:
        """Close the log if it is closable; the bucket is a number again. Raises what goes wrong with that.

        Requests that ask for the bucket meanwhile wait, and have the log opened again.
        """
        if not self.is_closable:
            # A request has come since it was decided.
            return
        log, self._log, self._opening = self._log, None, []
        assert log is not None, "it was closable"
        kv, self._kv = self._kv, None
        if kv is not None:
            # A request that has kept it is told to come again: the store belongs to the one that is made next.
            kv.refuse(not_hosted(self.bucket))
        in_order = False
        try:
            await log.close()
            in_order = True
        finally:
            if not self._is_dropped:
                self.group.note_closed(log, in_order=in_order)
                if self._opening:
                    self.group.opener.open(self)
                else:
                    self._opening = None
                    del self.group.in_use[self.bucket.bucket_id]

    def drop(self) -> None:
        """Note that the bucket is gone: requests that know it find nothing any more, those that wait wake up."""
        log, self._log, self._problem, self._is_dropped = self._log, None, None, True
        if self._kv is not None:
            self._kv.refuse(unknown_bucket(self.bucket))
        if log is not None:
            log.drop()
        self._go_on()
        self._wake()

    # Waiting for records

    def add_waiter(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {waiter}
        else:
            self._waiters.add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Forget a waiter; one that is not there changes nothing."""
        if self._waiters is not None:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._waiters = None

    def _advanced(self, log: LogTablet) -> None:
        if self._waiters is not None:
            self._wake()

    def _wake(self) -> None:
        # A waiter may take itself out while it is told.
        for waiter in tuple(self._waiters or ()):
            waiter.bucket_advanced()


# What is known of a log that is not open, one byte for each bucket of a group.
NOTHING_ON_DISK: Final = 0
# It is as the last run of the server left it.
LEFT_BEHIND: Final = 1
# This run has closed it in order.
CLOSED_IN_ORDER: Final = 2
# This run could not close it in order.
LEFT_OPEN: Final = 3


class RemoteOffsets:
    """What is in remote storage of the buckets of a group, by number. A bucket of which nothing is has an end of 0."""

    __slots__ = ("ends", "first_times", "segment_counts", "sizes", "starts")

    def __init__(self, bucket_count: int) -> None:
        def numbers(value: int) -> array[int]:
            return array("q", [value]) * bucket_count

        self.starts = numbers(0)
        self.ends = numbers(0)
        # The largest commit time in the first segment, -1 if there is none.
        self.first_times = numbers(-1)
        self.sizes = numbers(0)
        self.segment_counts = numbers(0)

    def has(self, bucket_id: int, offset: int) -> bool:
        """Tell whether an offset lies between the first and the last that were copied and have not expired."""
        return self.starts[bucket_id] <= offset < self.ends[bucket_id]


class BucketGroup:
    """The buckets of a partition, or of a table without partitions: how many they are, and those that are in use.

    There may be very many groups, so what is known of logs that are not open is kept in a few bytes.
    """

    __slots__ = (
        "_directory",
        "_partition",
        "_table",
        "bucket_count",
        "copy_looks",
        "first_times",
        "found",
        "high_watermarks",
        "in_use",
        "is_dropped",
        "opener",
        "recovery_offsets",
        "remote",
        "snapshot_offsets",
        "table_id",
        "unshipped",
    )

    def __init__(self, table: HostedTable, partition: Partition | None, opener: Opener) -> None:
        self._table = table
        self._partition = partition
        self.table_id = table.table.table_id
        self.bucket_count = table.table.bucket_count
        self.opener = opener
        # Made when it is first needed.
        self._directory: Path | None = None
        # Whether requests can find it no more, because it was dropped.
        self.is_dropped = False
        # By number.
        self.in_use: dict[int, HostedBucket] = {}
        # What is on the disk, by number, as above; None as long as the disk was not asked.
        self.found: bytearray | None = None
        # From the checkpoints, by number; None if all are 0. Those of buckets that are open or offline are kept, too:
        # they say what has to be there.
        self.recovery_offsets: array[int] | None = None
        self.high_watermarks: array[int] | None = None
        # For retention: when the first segments of logs that are not open end, -1 where that is not known.
        self.first_times: array[int] | None = None
        # What of it is in remote storage; None if nothing is.
        self.remote: RemoteOffsets | None = None
        # How far the newest snapshots of rows by key in remote storage go, by number; None if there are none.
        self.snapshot_offsets: array[int] | None = None
        # For copies to remote storage: 1 for logs that are not open and have nothing to be copied.
        self.copy_looks: bytearray | None = None
        # For backups: those whose logs were closed since it was last looked; None if there are none.
        self.unshipped: set[int] | None = None

    @property
    def partition_id(self) -> int | None:
        return None if self._partition is None else self._partition.partition_id

    @property
    def directory(self) -> Path:
        """Where the directories of its buckets are."""
        if self._directory is None:
            self._directory = self.opener.data_dir / _group_directory(self.table, self._partition)
        return self._directory

    def log_directory(self, bucket_id: int) -> Path:
        """Return where the log of a bucket is, or will be."""
        return self.directory / f"{TabletKind.LOG}{bucket_id}"

    @property
    def table(self) -> Table:
        """The newest version of the table."""
        return self._table.table

    def __len__(self) -> int:
        return self.bucket_count

    def __getitem__(self, bucket_id: int) -> HostedBucket:
        """Return a bucket; from now on it is in use."""
        hosted = self.in_use.get(bucket_id)
        if hosted is None:
            if not 0 <= bucket_id < self.bucket_count:
                raise IndexError(bucket_id)
            hosted = HostedBucket(self, bucket_id)
            if self.is_dropped:
                hosted.drop()
                return hosted
            self.in_use[bucket_id] = hosted
            self.opener.open_new(hosted)
        return hosted

    def new_kv(self, log: LogTablet) -> KvBucket | None:
        new_kv = self._table.new_kv
        return None if new_kv is None else new_kv(log)

    def recovery_offset(self, bucket_id: int) -> int:
        """Return before which offset the log of a bucket is known to have been on the disk."""
        return 0 if self.recovery_offsets is None else self.recovery_offsets[bucket_id]

    def take_found(self, found: bytearray) -> None:
        """Take what is on the disk, unless that is known. Buckets that are in use are known better."""
        if self.found is None:
            self.found = found

    def note_offsets(self, log: LogTablet) -> bool:
        """Note what of a log is on the disk and what is visible; return whether that is new."""
        bucket_id = log.bucket.bucket_id
        recovery_offset, high_watermark = log.recovery_offset, log.offset_high_watermark
        if self.recovery_offsets is None or self.high_watermarks is None:
            if not recovery_offset and not high_watermark:
                return False
            self.recovery_offsets = self.recovery_offsets or self.new_numbers(0)
            self.high_watermarks = self.high_watermarks or self.new_numbers(0)
        if self.recovery_offsets[bucket_id] == recovery_offset and self.high_watermarks[bucket_id] == high_watermark:
            return False
        self.recovery_offsets[bucket_id] = recovery_offset
        self.high_watermarks[bucket_id] = high_watermark
        return True

    def new_numbers(self, value: int) -> array[int]:
        """Return an array with a number for each bucket."""
        return array("q", [value]) * self.bucket_count

    def note_closed(self, log: LogTablet, *, in_order: bool) -> None:
        """Note what is known of a log that has just been closed."""
        bucket_id = log.bucket.bucket_id
        assert self.found is not None, "a log is opened by looking for it"
        self.note_offsets(log)
        if log.segment_count or self.found[bucket_id] != NOTHING_ON_DISK:
            self.found[bucket_id] = CLOSED_IN_ORDER if in_order else LEFT_OPEN
        if self.first_times is not None:
            self.first_times[bucket_id] = -1
        if self.copy_looks is not None:
            self.copy_looks[bucket_id] = 0
        if self.unshipped is None:
            self.unshipped = set()
        self.unshipped.add(bucket_id)

    def location(self, bucket_id: int) -> TabletLocation:
        """Return the names of a bucket's directories."""
        return _location(self.table, self._partition, bucket_id)


class HostedTable:
    """A table and those of its partitions that this server has. Altering it replaces what is known about it."""

    __slots__ = ("_batch_check", "groups", "log_format", "new_kv", "table")

    def __init__(self, table: Table, new_kv: Callable[[HostedTable, LogTablet], KvBucket] | None = None) -> None:
        """``new_kv`` is for the buckets of primary-key tables, None for all others."""
        # By the id of the partition.
        self.groups: dict[int | None, BucketGroup] = {}
        self.new_kv = None if new_kv is None else partial(new_kv, self)
        self.update(table)

    def update(self, table: Table) -> None:
        """Take over new properties and schemas."""
        self.table = table
        self.log_format: LogFormat = table.descriptor.log_format
        self._batch_check: BatchCheck | None = None

    @property
    def batch_check(self) -> BatchCheck:
        if self._batch_check is None:
            self._batch_check = BatchCheck(self.table)
        return self._batch_check

    def add(self, partition: Partition | None, opener: Opener) -> BucketGroup:
        """Host a partition, or a table without partitions."""
        group = BucketGroup(self, partition, opener)
        self.groups[group.partition_id] = group
        return group

    def remove(self, partition: Partition | None) -> BucketGroup | None:
        """Take a partition out, or a table without partitions; return it if it was here."""
        group = self.groups.pop(None if partition is None else partition.partition_id, None)
        if group is not None:
            group.is_dropped = True
        return group

    def has(self, partition: Partition | None) -> bool:
        return (None if partition is None else partition.partition_id) in self.groups

    @property
    def is_empty(self) -> bool:
        return not self.groups

    def group(self, partition_id: int | None) -> BucketGroup:
        """Return the buckets of a partition by number; raises KeyError if it is not here."""
        return self.groups[partition_id]

    def __iter__(self) -> Iterator[HostedBucket]:
        """Iterate over the buckets in use."""
        for group in self.groups.values():
            yield from group.in_use.values()


def _group_directory(table: Table, partition: Partition | None) -> Path:
    return Path(_location(table, partition, 0).path(TabletKind.LOG)).parent


def _location(table: Table, partition: Partition | None, bucket_id: int) -> TabletLocation:
    return TabletLocation(
        table.path.database_name,
        table.path.table_name,
        table.table_id,
        bucket_id,
        None if partition is None else partition.name,
        None if partition is None else partition.partition_id,
    )


async def open_all(buckets: Iterable[HostedBucket], *, is_use: bool = True) -> None:
    """Wait until the logs of buckets are open, or it is known why they will not be.

    Unless ``is_use`` they may be closed again at once.
    """
    # One for the loop below: a bucket may be open as soon as it is asked for.
    left = 1
    are_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count_down() -> None:
        nonlocal left
        left -= 1
        if not left and not are_open.done():
            are_open.set_result(None)

    for bucket in [found.current for found in buckets]:
        bucket.is_used |= is_use
        if not bucket.is_settled:
            left += 1
            bucket.when_open(count_down)
    count_down()
    await are_open


def not_open(outcomes: Iterable[object]) -> Collection[HostedBucket]:
    """Return the buckets that have to be opened first among those that requests have asked for."""
    return [outcome.bucket for outcome in outcomes if isinstance(outcome, NotOpenError)]


def unknown_bucket(bucket: TableBucket) -> FlussError:
    """Build the error for a bucket that does not exist (any more)."""
    return FlussError(
        f"Unknown table or bucket: {format_bucket(bucket)}; it may have been dropped",
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    )


def not_hosted(bucket: TableBucket) -> FlussError:
    """Build the error for a bucket that exists but is not ready here."""
    return FlussError(
        f"This server is not leader or follower of {format_bucket(bucket)} yet; try again",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
