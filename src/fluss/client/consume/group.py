"""Who of a group reads which bucket, and from where: a function of the log of the group, and of nothing else.

Everything that members of a group do is a record in one log, which all of them read. Each applies the records in their
order to a ``Group``, and so all of them have the same one at the same offset: no member has to be asked, and none
decides for others. What a record does:

| record    | effect                                                                                        |
|-----------|-----------------------------------------------------------------------------------------------|
| reset     | the group begins anew with these buckets and positions, if its author knew of the last reset |
| join      | a new member; buckets without an owner are its own at once                                    |
| beat      | a sign of life; of a sender who is no member it means nothing                                 |
| leave     | a member is gone, by its own will or expelled; its buckets are given to others                |
| partition | the partitions of the table are others now                                                    |
| commit    | the position of a bucket, if it comes from the owner and has the epoch of its ownership       |
| release   | a commit after which the bucket is no longer its author's, and is given to another member     |

Buckets move only when their owner releases them or leaves the group, so that at each offset a bucket has at most one
owner. Who has more than its share releases the rest. The epoch of an ownership is the offset of the record that gave
it: it grows with every change of the owner, which makes it a fencing token, here and in sinks of users.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.schema.offsets import EARLIEST_OFFSET

# Epochs also grow when the table with the group's rows is created anew, and its log begins at 0 again: the ids of
# tables grow, and no log has more records than this.
_RECORDS_MAX: Final = 1 << 40
# The table id of a group that has not begun.
NO_TABLE: Final = -1
# In place of the offset of a reset: there was none.
NO_RESET: Final = -1


class BucketKey(NamedTuple):
    """A bucket of the table that a group reads. Tables without partitions have the partition ``NO_PARTITION``."""

    partition_id: int
    bucket_id: int


NO_PARTITION: Final = -1


class Ownership(NamedTuple):
    """Who reads a bucket, and since when."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin the group anew. ``offset_known`` is up to where its author had read the log.

    Who begins to read there has to know, as its author did, at which offset the last reset was that counts: resets of
    authors who had not seen that one do not count.
    """

    offset_known: int
    table_id: int
    bucket_count: int
    partition_ids: tuple[int, ...]
    positions: Mapping[BucketKey, int]
    last_reset_at: int = NO_RESET


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of a member, the first of which makes it one."""

    member: str
    is_join: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """A member is gone."""

    member: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions that the table has now."""

    table_id: int
    partition_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """The offset at which a bucket is to be read on, None for the one it has; ``number`` is for its author."""

    key: BucketKey
    member: str
    epoch: int
    offset_next: int | None
    is_release: bool
    number: int


Event: TypeAlias = Reset | Beat | Leave | Partitions | Commit


@dataclass(slots=True)
class Group:
    """The members, owners and positions of one consumer at one offset of the log."""

    # What the log of the group's rows belongs to; epochs of a later table are greater.
    log_id: int
    # The next record to be applied.
    offset: int
    reset_at: int = NO_RESET
    table_id: int = NO_TABLE
    bucket_count: int = 0
    partition_ids: tuple[int, ...] = ()
    # In the order in which they joined, with the epoch of that. The first one does what only one has to do.
    members: dict[str, int] = field(default_factory=dict)
    owners: dict[BucketKey, Ownership] = field(default_factory=dict)
    positions: dict[BucketKey, int] = field(default_factory=dict)

    @property
    def leader(self) -> str | None:
        """The member that looks after what belongs to all."""
        return next(iter(self.members), None)

    def buckets(self) -> list[BucketKey]:
        """All buckets, partition by partition."""
        return [BucketKey(partition, number) for partition in self.partition_ids for number in range(self.bucket_count)]

    def owned_by(self, member: str) -> dict[BucketKey, int]:
        """Return the buckets of a member with the epochs of its ownership."""
        return {key: owner.epoch for key, owner in self.owners.items() if owner.member == member}

    def excess_of(self, member: str) -> list[BucketKey]:
        """Return the buckets that a member has beyond its share, and is to release."""
        if member not in self.members:
            return []
        share = _shares(self._counts(), len(self.owners))[member]
        return sorted(self.owned_by(member))[share:]

    def apply(self, offset: int, event: Event) -> bool:
        """Apply the record at an offset; False if it has no effect, because its author is not, or no longer, who may.

        Records before ``self.offset`` have been applied already.
        """
        assert offset >= self.offset, "records are applied once, in their order"
        self.offset = offset + 1
        epoch = self.log_id * _RECORDS_MAX + offset
        match event:
            case Reset():
                return self._reset(offset, event)
            case _ if self.table_id == NO_TABLE:
                return False
            case Beat(member, is_join):
                if is_join and member not in self.members:
                    self.members[member] = epoch
                    self._give_unowned(epoch)
                return member in self.members
            case Leave(member):
                return self._leave(member, epoch)
            case Partitions(table_id, partition_ids):
                return table_id == self.table_id and self._set_partitions(partition_ids, epoch)
            case Commit():
                return self._commit(event, epoch)

    def _reset(self, offset: int, event: Reset) -> bool:
        # Of several members that reset a group at the same time, the first one in the log wins.
        if event.offset_known <= self.reset_at or event.table_id < self.table_id:
            return False
        self.reset_at = offset
        self.table_id, self.bucket_count = event.table_id, event.bucket_count
        self.partition_ids = event.partition_ids
        self.members, self.owners = {}, {}
        known = set(self.buckets())
        self.positions = {key: position for key, position in event.positions.items() if key in known}
        return True

    def _leave(self, member: str, epoch: int) -> bool:
        if self.members.pop(member, None) is None:
            return False
        self.owners = {key: owner for key, owner in self.owners.items() if owner.member != member}
        self._give_unowned(epoch)
        return True

    def _set_partitions(self, partition_ids: tuple[int, ...], epoch: int) -> bool:
        before = set(self.buckets())
        self.partition_ids = partition_ids
        now = set(self.buckets())
        self.owners = {key: owner for key, owner in self.owners.items() if key in now}
        self.positions = {key: position for key, position in self.positions.items() if key in now}
        # Nothing of a new partition was there to be skipped when the consumer began.
        self.positions |= dict.fromkeys(now - before, EARLIEST_OFFSET)
        self._give_unowned(epoch)
        return True

    def _commit(self, event: Commit, epoch: int) -> bool:
        if self.owners.get(event.key) != (event.member, event.epoch):
            return False
        if event.offset_next is not None:
            self.positions[event.key] = event.offset_next
        if event.is_release:
            del self.owners[event.key]
            self._give([event.key], epoch)
        return True

    # Shares

    def _give_unowned(self, epoch: int) -> None:
        self._give([key for key in self.buckets() if key not in self.owners], epoch)

    def _give(self, keys: Collection[BucketKey], epoch: int) -> None:
        """Give buckets without an owner to the members that lack most of their share, the oldest first."""
        if not self.members or not keys:
            return
        counts = self._counts()
        shares = _shares(counts, len(self.owners) + len(keys))
        lacking = {member: shares[member] - counts[member] for member in self.members}
        for key in keys:
            # Of equal ones ``max`` takes the first.
            member = max(lacking, key=lacking.__getitem__)
            lacking[member] -= 1
            self.owners[key] = Ownership(member, epoch)

    def _counts(self) -> dict[str, int]:
        return dict.fromkeys(self.members, 0) | Counter(owner.member for owner in self.owners.values())

    # As text

    def to_json(self) -> str:
        """Return the group as a text from which others go on reading the log."""
        numbers = {member: number for number, member in enumerate(self.members)}
        return json.dumps(
            {
                "offset": self.offset,
                "reset_at": self.reset_at,
                "table_id": self.table_id,
                "buckets": self.bucket_count,
                "partitions": self.partition_ids,
                "members": list(self.members.items()),
                "owners": [[*key, numbers[owner.member], owner.epoch] for key, owner in sorted(self.owners.items())],
                "positions": positions_to_json(self.positions),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, log_id: int, text: str) -> Group:
        """Return the group that a text says, also if it is the text of a reset."""
        parts: dict[str, Any] = json.loads(text)
        members: dict[str, int] = dict(parts.get("members", []))
        names = list(members)
        return cls(
            log_id=log_id,
            offset=parts["offset"],
            reset_at=parts.get("reset_at", parts.get("last_reset_at", NO_RESET)),
            # A reset takes effect where it stands in the log.
            table_id=parts["table_id"] if "reset_at" in parts else NO_TABLE,
            bucket_count=parts["buckets"],
            partition_ids=tuple(parts["partitions"]),
            members=members,
            owners={
                BucketKey(partition, bucket): Ownership(names[number], epoch)
                for partition, bucket, number, epoch in parts.get("owners", [])
            },
            positions=positions_from_json(parts["positions"]),
        )


def _shares(counts: Mapping[str, int], bucket_count: int) -> dict[str, int]:
    """Return how many buckets each member is to have: equal numbers, one more for those that have most already."""
    least, more = divmod(bucket_count, len(counts))
    # Sorting keeps the order of those that have the same number.
    by_count = sorted(counts, key=lambda member: -counts[member])
    return {member: least + (rank < more) for rank, member in enumerate(by_count)}


def reset_to_json(reset: Reset) -> str:
    """Return a reset as the text of its row."""
    return json.dumps(
        {
            "offset": reset.offset_known,
            "table_id": reset.table_id,
            "buckets": reset.bucket_count,
            "partitions": reset.partition_ids,
            "positions": positions_to_json(reset.positions),
            "last_reset_at": reset.last_reset_at,
        },
        separators=(",", ":"),
    )


def reset_from_json(text: str) -> Reset | None:
    """Return the reset that a text says; None if it is that of a group."""
    parts: dict[str, Any] = json.loads(text)
    if "reset_at" in parts:
        return None
    return Reset(
        parts["offset"],
        parts["table_id"],
        parts["buckets"],
        tuple(parts["partitions"]),
        positions_from_json(parts["positions"]),
        parts.get("last_reset_at", NO_RESET),
    )


def positions_to_json(positions: Mapping[BucketKey, int]) -> list[list[int]]:
    return [[*key, position] for key, position in sorted(positions.items())]


def positions_from_json(rows: Iterable[list[int]]) -> dict[BucketKey, int]:
    return {BucketKey(partition, bucket): position for partition, bucket, position in rows}
