"""Where a streaming query stands in a table, what is between two such offsets, and how one follows from another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from fluss.errors import FlussError
from fluss.schema.table import TableBucket


class BucketPosition(NamedTuple):
    """Where reading continues in one bucket."""

    offset: int
    # Whether the rows as they were at the offset are to be read before the changes from there on.
    has_rows: bool = False


class LakeFiles(NamedTuple):
    """Which files of a snapshot of the lake a batch has read: from the number ``first`` up to and without ``stop``."""

    snapshot_id: int
    first: int
    stop: int
    # How many there are.
    total: int

    @property
    def is_done(self) -> bool:
        return self.stop >= self.total


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a query stands in all buckets it reads. Its form in checkpoints is that of ``offset_json``."""

    table_id: int
    positions: Mapping[TableBucket, BucketPosition]
    begun: Mapping[TableBucket, BucketPosition] = field(default_factory=dict)
    ends: Mapping[TableBucket, int] = field(default_factory=dict)
    task_count: int | None = None
    is_initial: bool = False
    table: str | None = None
    # The names of partitions by their ids.
    names: Mapping[int, str] = field(default_factory=dict)
    newest_partition_id: int | None = None
    # As long as files of the lake are read, and no logs.
    lake: LakeFiles | None = None
    # What people look for in a report: the buckets that the batch which ends here has read.
    shown: Collection[TableBucket] = field(default=(), compare=False)

    def may_have_unread(self, bucket: TableBucket, end: int) -> bool:
        """Whether there is something to read of a bucket whose log ends there."""
        position = self.positions.get(bucket)
        return position is None or position.has_rows or position.offset < end

    def is_beyond(self, latest: Mapping[TableBucket, int]) -> bool:
        """Whether more has been read of some bucket than its log has."""
        return any(bucket in latest and position.offset > latest[bucket] for bucket, position in self.positions.items())


# What is between two offsets


class PlannedRead(NamedTuple):
    """What a batch reads of one bucket: changes from ``start`` up to ``stop``, or the rows as they were at ``stop``."""

    bucket: TableBucket
    kind: Literal["log", "rows"]
    start: int
    stop: int


def reads_between(start: StreamOffset, end: StreamOffset) -> list[PlannedRead]:
    """Say what a batch from one offset to another reads, from the oldest bucket to the newest."""
    # A batch that reads the lake reads nothing else.
    if end.is_initial or end == start or end.lake is not None:
        return []
    reads = []
    for bucket in by_age(end.positions):
        position, reached = end.begun.get(bucket) or start.positions.get(bucket), end.positions[bucket]
        if position is None:
            raise FlussError(
                f"The offsets of the checkpoint do not fit together: {bucket} is only in the later one; begin with a "
                "new checkpoint"
            )
        if position.has_rows:
            if not reached.has_rows:
                reads.append(PlannedRead(bucket, "rows", position.offset, position.offset))
        elif position.offset < reached.offset:
            reads.append(PlannedRead(bucket, "log", position.offset, reached.offset))
    return reads


# From one offset to the next


class Loss(NamedTuple):
    """Records that a query has not read and that are gone."""

    bucket: TableBucket
    start: int
    # None if it is not known where they would have ended.
    stop: int | None
    reason: str
    # False if there may have been none.
    is_certain: bool = True


DROPPED: Final = "its partition was dropped"
NEVER_SEEN: Final = "its partition was created and dropped again before the stream looked for new ones"


def log_begins_at(offset: int) -> str:
    """Return the reason for the loss of what is no longer in a log."""
    return f"its log begins at {offset} now"


class ObservedTable(NamedTuple):
    """A table at a moment: all buckets there are, the ends of the logs that are read, the beginnings of unread ones.

    ``dropped`` are the buckets that there are no more, as far as the server tells, and where their logs ended, None
    where it does not know. Of partitions that a query never saw it has only those that would have been read.
    """

    existing: Collection[TableBucket]
    latest: Mapping[TableBucket, int]
    earliest: Mapping[TableBucket, int]
    dropped: Mapping[TableBucket, int | None] = MappingProxyType({})


class Resumed(NamedTuple):
    """Where the next batch begins, and what was lost before it could."""

    positions: dict[TableBucket, BucketPosition]
    losses: list[Loss]


def resume(start: StreamOffset, seen: ObservedTable, *, rows_first: bool) -> Resumed:
    """Compare where a query stands with the table as it is now.

    Buckets that are new begin with their first record; with ``rows_first`` they begin with their rows if older changes
    are gone. Otherwise records of a partition that came since the query looked last, and are gone, are lost. Buckets
    that exist and are not to be read stay where they are.
    """
    existing, latest, earliest, dropped = seen
    positions, losses = {}, _never_seen(start, dropped)
    for bucket, position in start.positions.items():
        if bucket not in existing:
            losses += _lost_with_partition(bucket, position, start.ends.get(bucket), dropped.get(bucket))
            continue
        positions[bucket], loss = _checked(bucket, position, latest.get(bucket), earliest.get(bucket))
        losses += loss
    for bucket in latest.keys() - start.positions.keys():
        first = earliest[bucket]
        if rows_first and first > 0:
            positions[bucket] = BucketPosition(latest[bucket], True)
            continue
        positions[bucket] = BucketPosition(first)
        if first > 0 and _came_since(start, bucket):
            losses.append(Loss(bucket, 0, first, log_begins_at(first)))
    return Resumed(positions, losses)


def _lost_with_partition(
    bucket: TableBucket, position: BucketPosition, planned_end: int | None, told_end: int | None
) -> list[Loss]:
    """Return what was lost of a bucket with its partition.

    ``planned_end`` is where its log ended when the last batch was planned, if that was not read to the end;
    ``told_end`` is where it ended when it was dropped, if the server tells.
    """
    if told_end is not None:
        is_read = position.offset >= told_end and not position.has_rows
        return [] if is_read else [Loss(bucket, position.offset, told_end, DROPPED)]
    # What was written after the last batch was planned is in no checkpoint.
    is_certain = planned_end is not None or position.has_rows
    return [Loss(bucket, position.offset, planned_end, DROPPED, is_certain)]


def _never_seen(start: StreamOffset, dropped: Mapping[TableBucket, int | None]) -> list[Loss]:
    """Return what was in partitions that came and went between two looks at the table, or while the query was away."""
    return [
        Loss(bucket, 0, end, NEVER_SEEN, is_certain=end is not None)
        for bucket, end in dropped.items()
        if _came_since(start, bucket) and bucket not in start.positions and end != 0
    ]


def _came_since(start: StreamOffset, bucket: TableBucket) -> bool:
    """Whether the partition of a bucket was created after the query had looked for new ones last.

    The checkpoint of an earlier release does not tell: the query may have begun after that.
    """
    newest = start.newest_partition_id
    return newest is not None and bucket.partition_id is not None and bucket.partition_id > newest


def _checked(
    bucket: TableBucket, position: BucketPosition, latest: int | None, earliest: int | None
) -> tuple[BucketPosition, list[Loss]]:
    """Return where to go on in a bucket, and what is lost of it."""
    if latest is not None and latest < position.offset:
        loss = Loss(bucket, latest, position.offset, f"its log ends at {latest} now")
        return BucketPosition(latest, position.has_rows), [loss]
    if earliest is not None and earliest > position.offset:
        loss = Loss(bucket, position.offset, earliest, log_begins_at(earliest))
        if position.has_rows and latest is not None:
            return BucketPosition(latest, True), [loss]
        return BucketPosition(earliest), [loss]
    return position, []


def unread_rows(
    positions: Mapping[TableBucket, BucketPosition], latest: Mapping[TableBucket, int]
) -> dict[TableBucket, int]:
    """Count the changes that are waiting in each bucket, from the oldest to the newest."""
    return {
        bucket: latest[bucket] - positions[bucket].offset
        for bucket in by_age(latest)
        if not positions[bucket].has_rows and latest[bucket] > positions[bucket].offset
    }


def unread_snapshots(
    positions: Mapping[TableBucket, BucketPosition], latest: Mapping[TableBucket, int]
) -> dict[TableBucket, int]:
    """Return the buckets whose rows are to come, with how many they are at most: as many as changes made them."""
    return {bucket: positions[bucket].offset for bucket in by_age(latest) if positions[bucket].has_rows}


def advance(
    start: StreamOffset,
    resumed: Mapping[TableBucket, BucketPosition],
    latest: Mapping[TableBucket, int],
    changes: Mapping[TableBucket, int],
    snapshots: Collection[TableBucket],
    *,
    names: Mapping[int, str] | None = None,
    newest_partition_id: int | None = None,
) -> StreamOffset:
    """Return where a batch ends that reads so many ``changes`` and the rows of these ``snapshots``.

    ``names`` are those of partitions, and ``newest_partition_id`` is the newest one that was seen. Returns ``start``
    itself if the positions are the same.
    """
    positions = {}
    for bucket, position in resumed.items():
        has_rows = position.has_rows and bucket not in snapshots
        positions[bucket] = BucketPosition(position.offset + changes.get(bucket, 0), has_rows)
    if positions == start.positions:
        return start
    begun = {
        bucket: position
        for bucket, position in resumed.items()
        if start.is_initial or start.positions.get(bucket) != position
    }
    ends = {
        bucket: end
        for bucket, end in latest.items()
        if end > positions[bucket].offset or (positions[bucket].has_rows and end > 0)
    }
    return replace(
        start,
        positions=positions,
        begun=begun,
        ends=ends,
        task_count=None,
        is_initial=False,
        names=names_of(positions, {**start.names, **(names or {})}),
        newest_partition_id=_newer(start.newest_partition_id, newest_partition_id),
        lake=None,
        shown=frozenset([*changes, *snapshots]),
    )


def names_of(buckets: Iterable[TableBucket], names: Mapping[int, str]) -> dict[int, str]:
    """Return of the names of partitions those of these buckets."""
    ids = {bucket.partition_id for bucket in buckets}
    return {id_: names[id_] for id_ in ids if id_ is not None and id_ in names}


def _newer(first: int | None, second: int | None) -> int | None:
    return max(first, second) if first is not None and second is not None else second if first is None else first


def by_age(buckets: Iterable[TableBucket]) -> list[TableBucket]:
    """Return buckets in the order in which they came to be: the ids of partitions only grow."""
    return sorted(buckets, key=_age)


def _age(bucket: TableBucket) -> tuple[int, int]:
    return -1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket_id
