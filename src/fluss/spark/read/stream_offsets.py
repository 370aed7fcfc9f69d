"""Where a streaming query stands in a table, as the JSON objects that Spark keeps in its checkpoint.

    {"v": 1, "table_id": 7, "phase": "snapshot",
     "b": {"12:0": 100, "12:1": 80},    the next offset in the log of each bucket: "<partition id or nothing>:<bucket>"
     "rows": ["12:1"],                  buckets whose rows, as they were at that offset, come before the changes
     "begun": {"b": {...}, "rows": []}, where the batch that ends here began, in buckets where its start is not to be
                                        asked: new ones, those that lost records, and in the first batch all of them
     "ends": {"12:0": 140},             where the logs ended that were not read to their ends
     "tasks": 4,                        among how many tasks the batch that ends here is divided
     "initial": true,                   nothing has been read yet
     "table": "sales.orders",           for messages, as are the names of partitions
     "names": {"12": "2026-01-01"},
     "seen": 14}                        the newest partition there was, whether it is read or not

The phase is "snapshot" as long as there are rows to come. Empty members are left out, and may be missing in the
checkpoints of earlier releases.

Spark keeps where batches end, and not where the first one began: a query that dies in its first batch asks for the
initial offset again, and gets another one. What "begun" says wins over that, so that a batch is the same rows
whenever it is read. Nor may a batch that is read again be divided otherwise: each task of a sink knows what it has
written, and not what the others have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_table_bucket, parse_table_bucket

_VERSION: Final = 1

Json: TypeAlias = dict[str, Any]


class BucketPosition(NamedTuple):
    """Where reading continues in one bucket."""

    offset: int
    # Whether the rows as they were at the offset are to be read before the changes from there on.
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a query stands in all buckets it reads. The members are those of the JSON object."""

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

    def may_have_unread(self, bucket: TableBucket, end: int) -> bool:
        """Whether there is something to read of a bucket whose log ends there."""
        position = self.positions.get(bucket)
        return position is None or position.has_rows or position.offset < end

    def is_beyond(self, latest: Mapping[TableBucket, int]) -> bool:
        """Whether more has been read of some bucket than its log has."""
        return any(bucket in latest and position.offset > latest[bucket] for bucket, position in self.positions.items())

    def to_json(self) -> Json:
        """Return the form that Spark keeps; equal offsets have equal texts."""
        positions = _positions_to_json(self.positions)
        found: Json = {
            "v": _VERSION,
            "table_id": self.table_id,
            "phase": "snapshot" if "rows" in positions else "log",
            **positions,
        }
        if self.begun:
            found["begun"] = _positions_to_json(self.begun)
        if self.ends:
            found["ends"] = {format_table_bucket(bucket): self.ends[bucket] for bucket in _by_age(self.ends)}
        if self.task_count is not None:
            found["tasks"] = self.task_count
        if self.is_initial:
            found["initial"] = True
        if self.table is not None:
            found["table"] = self.table
        if self.names:
            found["names"] = {str(id_): self.names[id_] for id_ in sorted(self.names)}
        if self.newest_partition_id is not None:
            found["seen"] = self.newest_partition_id
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffset:
        """Read what a checkpoint holds. Raises FlussError if this version cannot."""
        version = found.get("v")
        if version != _VERSION:
            raise FlussError(
                f"The checkpoint holds offsets of version {version}, and this release reads version {_VERSION}; "
                "continue with the release that wrote it, or begin with a new checkpoint"
            )
        try:
            table_id = int(found["table_id"])
            return cls(
                table_id,
                _positions_from_json(table_id, found),
                begun=_positions_from_json(table_id, found["begun"]) if "begun" in found else {},
                ends={parse_table_bucket(table_id, key): int(end) for key, end in found.get("ends", {}).items()},
                task_count=int(found["tasks"]) if "tasks" in found else None,
                is_initial=bool(found.get("initial", False)),
                table=str(found["table"]) if "table" in found else None,
                names={int(id_): str(name) for id_, name in found.get("names", {}).items()},
                newest_partition_id=int(found["seen"]) if "seen" in found else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FlussError(
                f"The checkpoint does not hold offsets of a table ({error!r}); begin with a new checkpoint"
            ) from error


# What is between two offsets


class PlannedRead(NamedTuple):
    """What a batch reads of one bucket: changes from ``start`` up to ``stop``, or the rows as they were at ``stop``."""

    bucket: TableBucket
    kind: Literal["log", "rows"]
    start: int
    stop: int


def reads_between(start: StreamOffset, end: StreamOffset) -> list[PlannedRead]:
    """Say what a batch from one offset to another reads, from the oldest bucket to the newest."""
    if end.is_initial or end == start:
        return []
    reads = []
    for bucket in _by_age(end.positions):
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
    are gone. Buckets that exist and are not to be read stay where they are.
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
        positions[bucket] = BucketPosition(latest[bucket], True) if rows_first and first > 0 else BucketPosition(first)
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
    newest = start.newest_partition_id
    if newest is None:
        # The checkpoint of an earlier release: the query may have begun after the partition was dropped.
        return []
    return [
        Loss(bucket, 0, end, NEVER_SEEN, is_certain=end is not None)
        for bucket, end in dropped.items()
        if bucket.partition_id is not None
        and bucket.partition_id > newest
        and bucket not in start.positions
        and end != 0
    ]


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
        for bucket in _by_age(latest)
        if not positions[bucket].has_rows and latest[bucket] > positions[bucket].offset
    }


def unread_snapshots(
    positions: Mapping[TableBucket, BucketPosition], latest: Mapping[TableBucket, int]
) -> dict[TableBucket, int]:
    """Return the buckets whose rows are to come, with how many they are at most: as many as changes made them."""
    return {bucket: positions[bucket].offset for bucket in _by_age(latest) if positions[bucket].has_rows}


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
    )


def names_of(buckets: Iterable[TableBucket], names: Mapping[int, str]) -> dict[int, str]:
    """Return of the names of partitions those of these buckets."""
    ids = {bucket.partition_id for bucket in buckets}
    return {id_: names[id_] for id_ in ids if id_ is not None and id_ in names}


def _newer(first: int | None, second: int | None) -> int | None:
    return max(first, second) if first is not None and second is not None else second if first is None else first


# What a query reports


def backlog(progress: Mapping[str, Any]) -> int:
    """Return how many rows a query was behind its tables when a micro-batch began that is done now.

    ``progress`` is what ``query.lastProgress`` returns, or what a listener gets, or one of its sources. Changes of a
    table count one by one, also those that a batch reads as one row; the rows of a bucket that has not been begun
    count as many as the changes that made them. Sources of other kinds count nothing.
    """
    if "sources" in progress:
        return sum(backlog(source) for source in progress["sources"])
    reached, latest = _reported(progress.get("endOffset")), _reported(progress.get("latestOffset"))
    if reached is None or latest is None:
        return 0
    return rows_behind(reached, latest)


def rows_behind(reached: StreamOffset, latest: StreamOffset) -> int:
    """Count the rows between what has been read and the ends of the logs."""
    rows = 0
    for bucket, end in latest.positions.items():
        position = reached.positions.get(bucket, BucketPosition(0))
        rows += end.offset if position.has_rows else max(0, end.offset - position.offset)
    return rows


def _reported(offset: str | Mapping[str, Any] | None) -> StreamOffset | None:
    """Read an offset out of a progress report; None if it is not one of ours."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
    if not isinstance(found, Mapping) or "table_id" not in found:
        return None
    return StreamOffset.from_json(found)


# The JSON of positions


def _positions_to_json(positions: Mapping[TableBucket, BucketPosition]) -> Json:
    ordered = _by_age(positions)
    found: Json = {"b": {format_table_bucket(bucket): positions[bucket].offset for bucket in ordered}}
    rows = [format_table_bucket(bucket) for bucket in ordered if positions[bucket].has_rows]
    return {**found, "rows": rows} if rows else found


def _positions_from_json(table_id: int, found: Mapping[str, Any]) -> dict[TableBucket, BucketPosition]:
    rows = frozenset(found.get("rows", ()))
    return {
        parse_table_bucket(table_id, key): BucketPosition(int(offset), key in rows)
        for key, offset in found["b"].items()
    }


def _by_age(buckets: Iterable[TableBucket]) -> list[TableBucket]:
    """Return buckets in the order in which they came to be: the ids of partitions only grow."""
    return sorted(buckets, key=_age)


def _age(bucket: TableBucket) -> tuple[int, int]:
    return -1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket_id
