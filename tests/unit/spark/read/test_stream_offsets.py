"""Shows that the offsets of a stream say exactly which rows each micro-batch reads, whatever happens to the table.

By comparing a random life of a table, its query and their restarts with what the micro-batches read of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.spark.read.offset_json import format_offset, parse_offset
from fluss.spark.read.stream_lag import BucketLag, TableLag, backlog, lags
from fluss.spark.read.stream_offsets import (
    BucketPosition,
    ObservedTable,
    PlannedRead,
    StreamOffset,
    advance,
    reads_between,
    resume,
    unread_rows,
    unread_snapshots,
)
from tests.unit.spark.read.earlier_offsets import version_1

_TABLE_ID = 7


def _bucket(partition_id: int | None, bucket_id: int = 0) -> TableBucket:
    return TableBucket.new_with_partition(_TABLE_ID, partition_id, bucket_id)


def _offset(positions: dict[TableBucket, BucketPosition], **members: Any) -> StreamOffset:
    return StreamOffset(_TABLE_ID, positions, **members)


_BUCKETS = st.builds(_bucket, st.one_of(st.none(), st.integers(0, 5), st.integers(0, 2**40)), st.integers(0, 200))
_POSITIONS = st.dictionaries(_BUCKETS, st.builds(BucketPosition, st.integers(0, 2**62), st.booleans()), max_size=6)
_OFFSETS = st.builds(
    _offset,
    _POSITIONS,
    begun=_POSITIONS,
    ends=st.dictionaries(_BUCKETS, st.integers(0, 2**62), max_size=6),
    is_initial=st.booleans(),
    table=st.none() | st.text(),
    names=st.dictionaries(st.integers(0, 6) | st.integers(0, 2**40), st.text() | st.sampled_from("ab:"), max_size=6),
    newest_partition_id=st.none() | st.integers(-1, 2**40),
)


@given(offset=_OFFSETS)
def test_offsets_come_back_from_json_as_they_were(offset: StreamOffset) -> None:
    text = json.dumps(format_offset(offset))
    assert parse_offset(json.loads(text)) == offset
    assert parse_offset(json.loads(json.dumps(version_1(offset)))) == offset, "as an earlier release wrote it"


@given(offset=_OFFSETS)
def test_equal_offsets_have_equal_texts(offset: StreamOffset) -> None:
    other = _offset(
        dict(reversed(list(offset.positions.items()))),
        begun=dict(reversed(list(offset.begun.items()))),
        ends=dict(reversed(list(offset.ends.items()))),
        is_initial=offset.is_initial,
        table=offset.table,
        names=dict(reversed(list(offset.names.items()))),
        newest_partition_id=offset.newest_partition_id,
    )
    assert json.dumps(format_offset(other)) == json.dumps(format_offset(offset))


def test_the_json_of_offsets_is_what_checkpoints_hold() -> None:
    offset = _offset(
        {_bucket(12, 1): BucketPosition(80, True), _bucket(12): BucketPosition(100)},
        begun={_bucket(12): BucketPosition(90)},
        ends={_bucket(12): 140},
        table="sales.orders",
        names={12: "2026-01-01"},
        newest_partition_id=14,
    )
    assert format_offset(offset) == {
        "v": 2,
        "table_id": 7,
        "phase": "snapshot",
        "b": {"2026-01-01:0": 100, "2026-01-01:1": 80},
        "rows": ["2026-01-01:1"],
        "begun": {"b": {"2026-01-01:0": 90}},
        "ends": {"b": {"2026-01-01:0": 140}},
        "partitions": {"2026-01-01": 12},
        "table": "sales.orders",
        "seen": 14,
    }
    initial = _offset({_bucket(None, 3): BucketPosition(5)}, is_initial=True)
    assert format_offset(initial) == {"v": 2, "table_id": 7, "phase": "log", "b": {":3": 5}, "initial": True}


def test_a_checkpoint_of_an_earlier_release_is_read() -> None:
    found = {
        "v": 1,
        "table_id": 7,
        "phase": "snapshot",
        "b": {"12:0": 100, "12:1": 80},
        "rows": ["12:1"],
        "begun": {"b": {"12:0": 90}},
        "ends": {"12:0": 140},
        "tasks": 3,
    }
    assert parse_offset(found) == _offset(
        {_bucket(12): BucketPosition(100), _bucket(12, 1): BucketPosition(80, True)},
        begun={_bucket(12): BucketPosition(90)},
        ends={_bucket(12): 140},
        task_count=3,
    )


def test_what_a_batch_has_not_read_takes_hardly_any_place_in_its_offset() -> None:
    def end_of_a_batch(partitions: int) -> dict[str, Any]:
        buckets = [_bucket(id_, number) for id_ in range(partitions) for number in range(4)]
        start = _offset(
            {bucket: BucketPosition(1000 + bucket.bucket_id) for bucket in buckets},
            names={id_: f"day-{id_:06d}" for id_ in range(partitions)},
        )
        latest = {bucket: position.offset for bucket, position in start.positions.items()}
        latest[_bucket(3, 1)] += 5
        end = advance(start, dict(start.positions), latest, {_bucket(3, 1): 5}, (), names=start.names)
        found = format_offset(end)
        assert parse_offset(json.loads(json.dumps(found))) == end
        return found

    few, many, most = (end_of_a_batch(count) for count in (4, 200, 20_000))
    assert len(few["b"]) == 16, "of a small table a person sees all"
    assert many["b"] == most["b"] == {"day-000003:1": 1006}
    assert many["partitions"] == {"day-000003": 3}
    assert len(json.dumps(many)) < 2000
    # Less than a byte for each bucket, and three for each name.
    assert len(json.dumps(most)) < 20_000 * (4 + 3)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"v": 4, "table_id": 7, "b": {}}, "offsets of version 4"),
        ({"v": 2, "table_id": 7, "b": {"x:0": 1}}, "does not hold offsets"),
        ({"v": 2, "table_id": 7, "more": "eNpj"}, "does not hold offsets"),
        ({"v": 2, "table_id": 7, "more": "eJxjZGBgAAAACAAC"}, "does not hold offsets"),
        ({"v": 2, "table_id": 7, "more": "no base64"}, "does not hold offsets"),
        ({"v": 2, "table_id": 7, "more_partitions": "eJxjZGBgAAAACAAC"}, "does not hold offsets"),
        ({}, "offsets of version None"),
        ({"v": 1, "b": {}}, "does not hold offsets"),
        ({"v": 1, "table_id": 7, "b": {"x:0": 1}}, "does not hold offsets"),
        ({"v": 1, "table_id": 7, "b": [1]}, "does not hold offsets"),
    ],
)
def test_what_is_not_an_offset_of_this_version_is_refused(found: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FlussError, match=complaint):
        parse_offset(found)


def test_a_batch_reads_from_where_the_previous_one_ended() -> None:
    start = _offset({_bucket(None, 0): BucketPosition(3), _bucket(None, 1): BucketPosition(4)})
    end = _offset({_bucket(None, 0): BucketPosition(9), _bucket(None, 1): BucketPosition(4)})
    assert reads_between(start, end) == [PlannedRead(_bucket(None, 0), "log", 3, 9)]


def test_the_first_batch_is_the_same_when_the_initial_offset_is_another_one_after_a_restart() -> None:
    bucket = _bucket(None)
    initial = _offset({bucket: BucketPosition(10)}, is_initial=True)
    end = advance(initial, dict(initial.positions), {bucket: 15}, {bucket: 5}, ())
    asked_again = _offset({bucket: BucketPosition(15)}, is_initial=True)
    assert reads_between(asked_again, end) == reads_between(initial, end) == [PlannedRead(bucket, "log", 10, 15)]
    assert reads_between(asked_again, initial) == []


def test_rows_come_before_changes_and_the_bucket_stays_at_their_offset() -> None:
    bucket, other = _bucket(None, 0), _bucket(None, 1)
    initial = _offset({bucket: BucketPosition(10, True), other: BucketPosition(20, True)}, is_initial=True)
    latest = {bucket: 12, other: 20}
    assert unread_snapshots(initial.positions, latest) == {bucket: 10, other: 20}
    assert unread_rows(initial.positions, latest) == {}
    first = advance(initial, dict(initial.positions), latest, {}, [bucket])
    assert reads_between(initial, first) == [PlannedRead(bucket, "rows", 10, 10)]
    second = advance(first, dict(first.positions), latest, unread_rows(first.positions, latest), [other])
    assert reads_between(first, second) == [PlannedRead(bucket, "log", 10, 12), PlannedRead(other, "rows", 20, 20)]
    assert format_offset(second)["phase"] == "log"


def test_an_offset_is_the_same_object_when_there_is_nothing_new() -> None:
    start = _offset({_bucket(None): BucketPosition(3)}, ends={_bucket(None): 9})
    assert advance(start, dict(start.positions), {_bucket(None): 3}, {}, ()) is start


def test_a_new_partition_begins_with_its_first_record() -> None:
    old, new = _bucket(1), _bucket(2)
    start = _offset({old: BucketPosition(5)})
    latest = {old: 5, new: 8}
    resumed = resume(start, ObservedTable(latest, latest, {new: 2}), rows_first=False)
    assert (resumed.positions, resumed.losses) == ({old: BucketPosition(5), new: BucketPosition(2)}, [])
    end = advance(start, resumed.positions, latest, unread_rows(resumed.positions, latest), ())
    assert reads_between(start, end) == [PlannedRead(new, "log", 2, 8)]


def test_records_that_are_gone_of_a_partition_that_came_since_the_last_look_are_a_loss() -> None:
    # The first of the buckets is older: it was not chosen before.
    latest = {_bucket(4): 8, _bucket(5): 8, _bucket(6): 8}
    earliest = {_bucket(4): 2, _bucket(5): 2, _bucket(6): 0}
    resumed = resume(_offset({}, newest_partition_id=4), ObservedTable(latest, latest, earliest), rows_first=False)
    assert resumed.positions == {bucket: BucketPosition(first) for bucket, first in earliest.items()}
    assert [(loss.bucket, loss.start, loss.stop, loss.is_certain) for loss in resumed.losses] == [
        (_bucket(5), 0, 2, True)
    ]


def test_a_new_partition_without_its_oldest_changes_begins_with_its_rows_in_a_full_read() -> None:
    start, latest = _offset({}), {_bucket(2): 8, _bucket(3): 4}
    resumed = resume(start, ObservedTable(latest, latest, {_bucket(2): 2, _bucket(3): 0}), rows_first=True)
    assert resumed.positions == {_bucket(2): BucketPosition(8, True), _bucket(3): BucketPosition(0)}


@pytest.mark.parametrize(("told_end", "losses"), [(5, []), (7, [(5, 7, True)]), (None, [(5, None, False)])])
def test_a_dropped_partition_is_forgotten_when_everything_of_it_was_read(
    told_end: int | None, losses: list[tuple[int, int | None, bool]]
) -> None:
    start = _offset({_bucket(1): BucketPosition(5), _bucket(2): BucketPosition(6)})
    seen = ObservedTable({_bucket(2): 6}, {_bucket(2): 6}, {}, {_bucket(1): told_end})
    resumed = resume(start, seen, rows_first=False)
    assert resumed.positions == {_bucket(2): BucketPosition(6)}
    assert [(loss.start, loss.stop, loss.is_certain) for loss in resumed.losses] == losses


def test_a_dropped_partition_that_was_never_seen_is_a_loss_if_it_may_have_had_rows() -> None:
    dropped = {_bucket(3): 9, _bucket(5): 0, _bucket(6): 2, _bucket(7): None}
    for newest, lost in ((4, [(6, True), (7, False)]), (6, [(7, False)]), (None, [])):
        start = _offset({}, newest_partition_id=newest)
        losses = resume(start, ObservedTable((), {}, {}, dropped), rows_first=False).losses
        assert [(loss.bucket.partition_id, loss.is_certain) for loss in losses] == lost


def test_a_batch_takes_along_the_names_of_its_partitions_and_which_was_the_newest() -> None:
    start = _offset({_bucket(1): BucketPosition(5)}, table="a.b", names={1: "x"}, newest_partition_id=1)
    positions = {_bucket(2): BucketPosition(0)}
    latest = {_bucket(2): 3}
    end = advance(start, positions, latest, latest, (), names={2: "y", 4: "z"}, newest_partition_id=4)
    assert (end.table, end.names, end.newest_partition_id) == ("a.b", {2: "y"}, 4)


def test_a_dropped_partition_with_unread_rows_is_a_loss() -> None:
    start = _offset({_bucket(1): BucketPosition(5), _bucket(2): BucketPosition(6, True)}, ends={_bucket(1): 9})
    resumed = resume(start, ObservedTable((), {}, {}), rows_first=True)
    assert resumed.positions == {}
    assert [(loss.bucket, loss.start, loss.stop) for loss in resumed.losses] == [
        (_bucket(1), 5, 9),
        (_bucket(2), 6, None),
    ]


def test_records_deleted_before_they_were_read_are_a_loss_and_reading_goes_on_behind_them() -> None:
    bucket, with_rows = _bucket(None, 0), _bucket(None, 1)
    start = _offset({bucket: BucketPosition(5), with_rows: BucketPosition(5, True)})
    latest = {bucket: 20, with_rows: 20}
    resumed = resume(start, ObservedTable(latest, latest, {bucket: 8, with_rows: 8}), rows_first=True)
    assert resumed.positions == {bucket: BucketPosition(8), with_rows: BucketPosition(20, True)}
    assert [(loss.start, loss.stop) for loss in resumed.losses] == [(5, 8), (5, 8)]
    end = advance(start, resumed.positions, latest, {bucket: 12}, [with_rows])
    assert reads_between(start, end) == [PlannedRead(bucket, "log", 8, 20), PlannedRead(with_rows, "rows", 20, 20)]


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_log_that_became_shorter_than_what_was_read_is_a_loss(has_rows: bool) -> None:
    bucket = _bucket(None)
    start = _offset({bucket: BucketPosition(5, has_rows)})
    assert start.is_beyond({bucket: 3})
    assert not start.is_beyond({bucket: 5})
    resumed = resume(start, ObservedTable([bucket], {bucket: 3}, {}), rows_first=False)
    assert resumed.positions == {bucket: BucketPosition(3, has_rows)}
    assert [(loss.start, loss.stop) for loss in resumed.losses] == [(3, 5)]


def test_a_bucket_that_is_not_to_be_read_any_more_keeps_its_position() -> None:
    read, unread = _bucket(1), _bucket(2)
    start = _offset({read: BucketPosition(1), unread: BucketPosition(4)})
    resumed = resume(start, ObservedTable([read, unread], {read: 3}, {read: 0}), rows_first=False)
    end = advance(start, resumed.positions, {read: 3}, {read: 2}, ())
    assert end.positions == {read: BucketPosition(3), unread: BucketPosition(4)}


def test_offsets_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(FlussError, match="do not fit together"):
        reads_between(_offset({}), _offset({_bucket(None): BucketPosition(3)}))


def test_rows_behind_are_counted_from_a_progress_report() -> None:
    reached = format_offset(_offset({_bucket(None, 0): BucketPosition(4), _bucket(None, 1): BucketPosition(2, True)}))
    latest = _offset(
        {_bucket(None, 0): BucketPosition(10), _bucket(None, 1): BucketPosition(5), _bucket(None, 2): BucketPosition(3)}
    )
    ours = {"endOffset": reached, "latestOffset": json.dumps(format_offset(latest))}
    others = {"endOffset": "12", "latestOffset": None}
    assert backlog({"sources": [ours, others, {"endOffset": '{"x": 1}', "latestOffset": "None"}]}) == 6 + 5 + 3
    assert backlog(ours) == 14


class _Life:
    """A partitioned table and the query that reads it; what was read is kept by bucket."""

    def __init__(self) -> None:
        self.ends: dict[TableBucket, int] = {}
        self.begins: dict[TableBucket, int] = {}
        self.read: dict[TableBucket, list[int]] = {}
        self.offset = _offset({}, is_initial=True)

    def add_partition(self) -> None:
        bucket = _bucket(len(self.ends))
        self.ends[bucket], self.begins[bucket], self.read[bucket] = 0, 0, []

    def trigger(self, rows_max: int, *, dies: bool) -> None:
        """Plan a batch and read it; a query that dies in between reads it again by what is in the checkpoint."""
        start = parse_offset(format_offset(self.offset))
        resumed = resume(start, ObservedTable(self.ends, self.ends, self.begins), rows_first=False)
        assert resumed.losses == []
        changes, left = {}, rows_max
        for bucket, waiting in unread_rows(resumed.positions, self.ends).items():
            changes[bucket] = min(left, waiting)
            left -= changes[bucket]
        end = advance(start, resumed.positions, self.ends, changes, ())
        if dies and start.is_initial:
            start = _offset({bucket: BucketPosition(end) for bucket, end in self.ends.items()}, is_initial=True)
        for bucket, _, first, stop in reads_between(start, parse_offset(format_offset(end))):
            self.read[bucket] += range(first, stop)
        self.offset = end

    def trim(self, bucket: TableBucket) -> None:
        """Delete what the query has read, as retention does."""
        position = self.offset.positions.get(bucket)
        if position is not None:
            self.begins[bucket] = position.offset


@given(data=st.data())
def test_every_record_is_read_once_and_in_order_on_a_table_that_grows(data: st.DataObject) -> None:
    life = _Life()
    steps = data.draw(st.lists(st.sampled_from(["partition", "write", "trim", "trigger", "die"]), max_size=30))
    for step in steps:
        if step == "partition":
            life.add_partition()
        elif step in ("trigger", "die"):
            life.trigger(data.draw(st.integers(1, 20)), dies=step == "die")
        elif life.ends:
            bucket = data.draw(st.sampled_from(sorted(life.ends, key=repr)))
            if step == "write":
                life.ends[bucket] += data.draw(st.integers(1, 20))
            else:
                life.trim(bucket)
    life.trigger(10**9, dies=False)
    assert life.read == {bucket: list(range(end)) for bucket, end in life.ends.items()}
    assert life.offset.ends == {}


def test_the_lag_of_a_report_is_that_of_its_tables() -> None:
    reached = _offset({_bucket(1): BucketPosition(10), _bucket(2, 3): BucketPosition(0)}, names={1: "a", 2: "b"})
    latest = {
        "lag": {
            "table": "web.views",
            "rows": 9,
            "seconds": 2.5,
            "worst": {"b:3": {"rows": 7, "seconds": 2.5}, "a:0": {"rows": 2, "seconds": None}},
        },
        **format_offset(_offset({_bucket(1): BucketPosition(12), _bucket(2, 3): BucketPosition(7)})),
    }
    worst = (BucketLag("b", 3, 7, 2.5), BucketLag("a", 0, 2, None))
    source = {"endOffset": format_offset(reached), "latestOffset": json.dumps(latest)}
    assert lags({"sources": [source, {"endOffset": "5"}]}) == [TableLag("web.views", 9, 2.5, worst)]
    # Before Spark 4.2 there is no latest offset: the ends say what was left, and nobody knows for how long.
    ends = _offset(dict(reached.positions), names=reached.names, ends={_bucket(2, 3): 7}, table="web.views")
    source = {"endOffset": json.dumps(format_offset(ends)), "latestOffset": None}
    assert lags(source) == [TableLag("web.views", 7, None, (BucketLag("b", 3, 7, None),))]
    assert backlog(source) == 7
