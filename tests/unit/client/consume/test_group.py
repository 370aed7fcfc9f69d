"""Who reads which bucket follows from the log alone: all members compute the same, and no bucket has two owners.
Shown by random lives of groups, followed from the beginning, from a state written down, and from a reset."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import EARLIEST_OFFSET
from fluss.client.consume.group import (
    NO_PARTITION,
    NO_RESET,
    Beat,
    BucketKey,
    Commit,
    Event,
    Group,
    Leave,
    Ownership,
    Partitions,
    Reset,
    reset_from_json,
    reset_to_json,
)

TABLE_ID = 7
LOG_ID = 3


def reset_of(
    offset_known: int, buckets: int = 4, partitions: tuple[int, ...] = (NO_PARTITION,), *, last_reset_at: int = NO_RESET
) -> Reset:
    return Reset(offset_known, TABLE_ID, buckets, partitions, {}, last_reset_at)


@dataclass
class Life:
    """A log that grows by what members do, each knowing the group as it is, or as it was some records ago."""

    rng: random.Random
    log: list[tuple[int, Event]] = field(default_factory=list)
    group: Group = field(default_factory=lambda: Group(LOG_ID, 0))
    offset: int = 0
    names: int = 0

    def write(self, event: Event) -> bool:
        # Records of other consumers, and old rows of updates, lie in between.
        self.offset += self.rng.randrange(1, 4)
        self.log.append((self.offset, event))
        return self.group.apply(self.offset, event)

    def last_reset_before(self, offset: int) -> int:
        return replayed(Group(LOG_ID, 0), [record for record in self.log if record[0] < offset]).reset_at

    def step(self) -> None:
        rng, group = self.rng, self.group
        members = list(group.members)
        action = rng.choice(["join", "join", "leave", "beat", "commit", "stale", "release", "partitions", "reset"])
        if action == "join":
            self.names += 1
            self.write(Beat(f"m{self.names}", is_join=True))
        elif action == "partitions":
            self.write(Partitions(TABLE_ID, tuple(sorted(rng.sample(range(6), rng.randrange(1, 5))))))
        elif action == "reset":
            if rng.random() < 0.2:
                known = rng.choice([self.offset + 1, rng.randrange(self.offset + 1)])
                self.write(reset_of(known, 3, (1, 2), last_reset_at=self.last_reset_before(known)))
        elif members:
            member = rng.choice(members)
            if action == "leave":
                self.write(Leave(member))
            elif action == "beat":
                self.write(Beat(rng.choice([member, "expelled"]), is_join=False))
            elif action == "release":
                for key in group.excess_of(member):
                    self.write(Commit(key, member, group.owners[key].epoch, self.offset, True, number=1))
            elif group.owners:
                key = rng.choice(sorted(group.owners))
                owner = group.owners[key]
                if action == "commit":
                    assert self.write(Commit(key, owner.member, owner.epoch, self.offset, False, number=1))
                    assert group.positions[key] < self.offset
                else:
                    before = dict(group.positions)
                    stale = rng.choice([Ownership(owner.member, owner.epoch - 1), Ownership("expelled", owner.epoch)])
                    assert not self.write(Commit(key, *stale, offset_next=self.offset, is_release=True, number=1))
                    assert group.positions == before


def lived(seed: int, steps: int) -> Life:
    life = Life(random.Random(seed))
    life.write(reset_of(0, buckets=life.rng.randrange(1, 6), partitions=(1, 2)))
    for _ in range(steps):
        life.step()
    return life


def replayed(group: Group, log: list[tuple[int, Event]]) -> Group:
    for offset, event in log:
        if offset >= group.offset:
            group.apply(offset, event)
    return group


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_every_bucket_has_one_owner_who_is_a_member_and_epochs_grow(seed: int, steps: int) -> None:
    life = Life(random.Random(seed))
    life.write(reset_of(0, buckets=3, partitions=(1, 2)))
    last: dict[BucketKey, Ownership] = {}
    for _ in range(steps):
        life.step()
        group = life.group
        assert {owner.member for owner in group.owners.values()} <= set(group.members)
        assert sorted(group.owners) == (group.buckets() if group.members else [])
        for key, owner in group.owners.items():
            if key in last and last[key] != owner:
                assert owner.epoch > last[key].epoch
            last[key] = owner


@given(st.integers(0, 2**32), st.integers(1, 60), st.data())
def test_a_member_that_joins_later_computes_the_same(seed: int, steps: int, data: st.DataObject) -> None:
    life = lived(seed, steps)
    everything = replayed(Group(LOG_ID, 0), life.log)
    assert everything == life.group
    cut = data.draw(st.integers(0, len(life.log)))
    written_down = replayed(Group(LOG_ID, 0), life.log[:cut]).to_json() if cut else None
    if written_down is not None:
        assert replayed(Group.from_json(LOG_ID, written_down), life.log) == life.group
    # The row of a reset, won or lost, is a place to begin at, too.
    for offset, event in life.log:
        if isinstance(event, Reset):
            text = reset_to_json(event)
            assert reset_from_json(text) == event
            begun = Group.from_json(LOG_ID, text)
            assert begun.offset == event.offset_known <= offset
            later = replayed(begun, life.log)
            assert (later.owners, later.positions, later.members) == (
                life.group.owners,
                life.group.positions,
                life.group.members,
            )


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_buckets_are_shared_equally_once_everybody_has_released(seed: int, steps: int) -> None:
    life = lived(seed, steps)
    group = life.group
    moved = 0
    for _ in range(100):
        excess = [(member, key) for member in group.members for key in group.excess_of(member)]
        if not excess:
            break
        member, key = life.rng.choice(excess)
        assert life.write(Commit(key, member, group.owners[key].epoch, None, True, number=1))
        assert group.owners[key].member != member
        moved += 1
    counts = [len(group.owned_by(member)) for member in group.members]
    assert not counts or max(counts) - min(counts) <= 1
    assert moved <= len(group.owners), "no bucket moves twice"


def test_a_member_that_joins_gets_its_share_from_those_who_have_more() -> None:
    life = Life(random.Random(1))
    life.write(reset_of(0, buckets=4))
    life.write(Beat("a", is_join=True))
    assert len(life.group.owned_by("a")) == 4
    life.write(Beat("b", is_join=True))
    assert life.group.owned_by("b") == {}
    for key in life.group.excess_of("a"):
        life.write(Commit(key, "a", life.group.owners[key].epoch, 10, True, number=1))
        assert life.group.owners[key].member == "b"
        assert life.group.positions[key] == 10
    assert life.group.excess_of("a") == life.group.excess_of("b") == []
    life.write(Leave("a"))
    assert len(life.group.owned_by("b")) == 4


def test_a_beat_of_a_member_that_was_expelled_does_not_bring_it_back() -> None:
    life = Life(random.Random(1))
    life.write(reset_of(0))
    life.write(Beat("a", is_join=True))
    life.write(Leave("a"))
    assert not life.write(Beat("a", is_join=False))
    assert not life.group.members


def test_new_partitions_are_read_from_their_beginning_and_dropped_ones_are_forgotten() -> None:
    life = Life(random.Random(1))
    life.write(reset_of(0, buckets=1, partitions=(1, 2)))
    life.write(Beat("a", is_join=True))
    owner = life.group.owners[BucketKey(1, 0)]
    life.write(Commit(BucketKey(1, 0), *owner, offset_next=5, is_release=False, number=1))
    life.write(Partitions(TABLE_ID, (2, 3)))
    assert sorted(life.group.owners) == [(2, 0), (3, 0)]
    assert life.group.positions == {BucketKey(3, 0): EARLIEST_OFFSET}


def test_of_two_resets_at_the_same_time_the_first_one_counts() -> None:
    life = Life(random.Random(1))
    assert life.write(Reset(0, TABLE_ID, 1, (NO_PARTITION,), {BucketKey(NO_PARTITION, 0): 5}))
    life.write(Beat("a", is_join=True))
    assert not life.write(Reset(0, TABLE_ID, 1, (NO_PARTITION,), {}))
    assert list(life.group.members) == ["a"]
    assert life.group.positions == {BucketKey(NO_PARTITION, 0): 5}
    assert life.write(Reset(life.offset + 1, TABLE_ID, 1, (NO_PARTITION,), {}))
    assert not life.group.members


def test_who_begins_at_the_row_of_a_reset_knows_which_resets_do_not_count() -> None:
    last = reset_of(15, last_reset_at=10)
    log: list[tuple[int, Event]] = [
        (0, reset_of(0)),
        (10, reset_of(5, last_reset_at=0)),
        # By a member that has been away since before the second one.
        (20, reset_of(3, last_reset_at=0)),
        (30, last),
    ]
    group = replayed(Group(LOG_ID, 0), log)
    assert group.reset_at == 30
    assert replayed(Group.from_json(LOG_ID, reset_to_json(last)), log) == group


@pytest.mark.parametrize("table_id", [TABLE_ID - 1, TABLE_ID + 1])
def test_only_a_later_table_of_the_same_name_takes_the_place_of_one(table_id: int) -> None:
    life = Life(random.Random(1))
    life.write(reset_of(0))
    is_later = table_id > TABLE_ID
    assert life.write(Reset(life.offset + 1, table_id, 1, (NO_PARTITION,), {})) is is_later
    assert life.group.table_id == (table_id if is_later else TABLE_ID)


def test_epochs_of_a_later_log_are_greater() -> None:
    first, second = Group(LOG_ID, 0), Group(LOG_ID + 1, 0)
    for group, offset in ((first, 1_000_000), (second, 0)):
        group.apply(offset, reset_of(offset))
        group.apply(offset + 1, Beat("a", is_join=True))
    key = BucketKey(NO_PARTITION, 0)
    assert second.owners[key].epoch > first.owners[key].epoch
