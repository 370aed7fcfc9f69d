"""What must hold in a table with a primary key (with the default merge engine, whole and partial updates).

The changelog is the witness: it says in which order the states of a key followed each other. Then:

- its images chain: an insert only where nothing was, an old row is the row that was there, an update has both;
- every acknowledged upsert is there exactly once under its key, with the columns that it wrote changed and the others
  as they were; no change is there that no client asked for;
- writes, deletes, lookups and scans fit into that order: none of them shows or makes an older state than an operation
  that had ended before it began. With one order of states per key this is linearizability;
- the rows of a bucket in a scan are those of one moment;
- the rows at the end are those that the changelog leads to.

A lookup that finds nothing does not say which of several gaps between rows it saw, and so does a delete. Each is given
the earliest gap that comes after everything that had ended before it: if any gap fits, this one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.testing.history import ABSENT, DAMAGED, NEVER_NS, Change, History, Numbers, Outcome, Write
from fluss.testing.history_checks.findings import Findings, Violation
from fluss.testing.history_checks.log_tables import check_latest, check_order, check_seen, check_sessions
from fluss.testing.history_checks.written import (
    NOTHING_BEFORE,
    WrittenRows,
    check_origin,
    largest_before,
    mixed,
    rows_where,
    starts_of_runs,
)

Mask: TypeAlias = npt.NDArray[np.bool_]

# An offset that no log reaches.
_BEYOND: Final = 2**62


def check_key_table(history: History, written: WrittenRows, table: int, findings: Findings) -> None:
    """Check one table with a primary key."""
    final, seen = history.final.of_table(table), history.seen.of_table(table)
    lookups = _with_missing_rows(history, table)
    check_sessions(final, findings, is_dense=False)
    check_sessions(seen, findings, is_dense=False)
    check_seen(written, final, seen, np.maximum(seen["value"], seen["other"]), findings)
    of_table = (written.table == table) & (written.kind != Write.APPEND)
    keys = np.unique(np.concatenate([final["key"], lookups["key"], written.key[of_table]]))
    states = States.of(final, keys, findings)
    rows = _check_origins(history, states, written, table, findings)
    _check_exactly_once(states, written, of_table, findings)
    records = {"bucket": states.bucket, "offset": states.offset, "value": states.number}
    check_order(written, rows[rows >= 0], {name: column[rows >= 0] for name, column in records.items()}, findings)
    check_latest(history, written, table, records, rows, findings)
    definite = _definite_writes(states, rows, written).joined(_present_reads(history, states, lookups, findings))
    deletes = _deletes(written, of_table)
    absent = _gaps(states, definite, _absent_reads(lookups), findings)
    deleted = _gaps(states, definite, deletes.acknowledged(), findings)
    _check_order(states, definite.joined(absent).joined(deleted), findings)
    _check_deletes(states, definite.joined(_without_choice(states, definite, absent)), deletes, findings)
    _check_snapshots(history, states, lookups, findings)
    _check_final_rows(history, states, table, findings)


@dataclass(frozen=True)
class States:
    """The states of all keys, by key and then in their order. Each key begins with nothing, at offset -1."""

    key: Numbers
    bucket: Numbers
    offset: Numbers
    value: Numbers
    other: Numbers
    # The number of the write that made the state, and how that write must have been; ABSENT for gaps.
    number: Numbers
    kind: Numbers

    @property
    def is_gap(self) -> Mask:
        gap: Mask = (self.value == ABSENT) & (self.other == ABSENT)
        return gap

    @classmethod
    def of(cls, changelog: dict[str, Numbers], keys: Numbers, findings: Findings) -> States:
        order = np.lexsort((changelog["offset"], changelog["key"]))
        log = {name: column[order] for name, column in changelog.items()}
        _check_chain(log, findings)
        is_new = (log["change"] == Change.INSERT) | (log["change"] == Change.UPDATE_AFTER)
        is_state = is_new | (log["change"] == Change.DELETE)
        bucket = np.full(keys.size, -1)
        places = rows_where(keys, log["key"])
        bucket[places] = log["bucket"]
        findings.add(
            Violation.BUCKET,
            bucket[places] != log["bucket"],
            lambda i: f"key {log['key'][i]} is in bucket {log['bucket'][i]} and in {bucket[places[i]]}",
        )
        first = np.full(keys.size, -1)
        nothing = np.full(keys.size, ABSENT)
        key = np.concatenate([keys, log["key"][is_state]])
        offset = np.concatenate([first, log["offset"][is_state]])
        value = np.concatenate([nothing, np.where(is_new, log["value"], ABSENT)[is_state]])
        other = np.concatenate([nothing, np.where(is_new, log["other"], ABSENT)[is_state]])
        buckets = np.concatenate([bucket, log["bucket"][is_state]])
        order = np.lexsort((offset, key))
        key, offset, value, other, buckets = (c[order] for c in (key, offset, value, other, buckets))
        number, kind = _making_write(key, value, other, findings)
        return cls(key, buckets, offset, value, other, number, kind)

    def next_offsets(self) -> Numbers:
        """Return where each state was replaced by the next one of its key."""
        following = np.full(self.key.size, _BEYOND)
        is_followed = ~starts_of_runs(self.key)[1:]
        following[:-1][is_followed] = self.offset[1:][is_followed]
        return following

    def find(self, key: Numbers, value: Numbers, other: Numbers) -> Numbers:
        """Return the state of each row that was read, or -1."""
        names = mixed(self.key, self.value, self.other)
        order = np.argsort(names, kind="stable")
        found = rows_where(names[order], mixed(key, value, other))
        return np.where(found >= 0, order[found] if order.size else -1, -1)


def _check_chain(log: dict[str, Numbers], findings: Findings) -> None:
    """Check each record against the one before it of the same key."""
    change, size = log["change"], log["change"].size
    if not size:
        return
    is_first = starts_of_runs(log["key"])
    before = np.roll(change, 1)
    before[is_first] = Change.DELETE
    was_there = (before == Change.INSERT) | (before == Change.UPDATE_AFTER)
    is_same_row = np.zeros(size, np.bool_)
    is_same_row[1:] = (log["value"][1:] == log["value"][:-1]) & (log["other"][1:] == log["other"][:-1])
    is_adjacent = np.zeros(size, np.bool_)
    is_adjacent[1:] = log["offset"][1:] == log["offset"][:-1] + 1
    is_old = (change == Change.UPDATE_BEFORE) | (change == Change.DELETE)
    is_wrong = (
        ((change == Change.INSERT) & (before != Change.DELETE))
        | (is_old & ~(was_there & is_same_row))
        | ((change == Change.UPDATE_AFTER) & ~((before == Change.UPDATE_BEFORE) & is_adjacent))
        | (change == Change.APPEND)
    )
    # An old row that nothing follows is half of an update.
    is_last = np.roll(is_first, -1)
    is_wrong |= (change == Change.UPDATE_BEFORE) & is_last

    def describe(i: int) -> str:
        said = f"{Change(int(change[i])).name} {log['value'][i]}/{log['other'][i]} of key {log['key'][i]}"
        where = f"at offset {log['offset'][i]} of bucket {log['bucket'][i]}"
        if is_first[i]:
            return f"{said} {where} is the first change of its key"
        return f"{said} {where} follows {Change(int(change[i - 1])).name} {log['value'][i - 1]}/{log['other'][i - 1]}"

    findings.add(Violation.CHANGELOG, is_wrong, describe)


def _making_write(key: Numbers, value: Numbers, other: Numbers, findings: Findings) -> tuple[Numbers, Numbers]:
    """Return the number and the kind of the write behind each state, from what changed."""
    was_value, was_other = np.roll(value, 1), np.roll(other, 1)
    is_first = starts_of_runs(key)
    was_value[is_first], was_other[is_first] = ABSENT, ABSENT
    is_gap = (value == ABSENT) & (other == ABSENT)
    is_damaged = (value == DAMAGED) | (other == DAMAGED)
    is_upsert = (value == other) & ~is_gap
    is_value = ~is_upsert & ~is_gap & (value != was_value) & (other == was_other)
    is_other = ~is_upsert & ~is_gap & (other != was_other) & (value == was_value)
    is_torn = ~(is_gap | is_upsert | is_value | is_other | is_damaged)
    findings.add(
        Violation.TORN_ROW,
        is_torn,
        lambda i: f"key {key[i]} went from {was_value[i]}/{was_other[i]} to {value[i]}/{other[i]}: no write does that",
    )
    kinds = [int(Write.UPSERT), int(Write.VALUE), int(Write.OTHER)]
    kind = np.select([is_upsert, is_value, is_other], kinds, ABSENT)
    number = np.select([is_damaged, is_upsert | is_value, is_other], [np.full(key.size, DAMAGED), value, other], ABSENT)
    return number, kind


def _check_origins(history: History, states: States, written: WrittenRows, table: int, findings: Findings) -> Numbers:
    """Check that a client asked for each state; returns the write of each, or -1."""
    rows = written.rows_of(states.number)
    is_made = states.number != ABSENT
    names = [str(recorded) for recorded in history.tables]
    check_origin(findings, table, names, written, rows[is_made], states.number[is_made], "the changelog")
    if not written.number.size:
        return rows
    is_ours = (rows >= 0) & (written.table[rows] == table)
    is_elsewhere = is_ours & (written.key[rows] != states.key)
    findings.add(
        Violation.PHANTOM,
        is_elsewhere,
        lambda i: f"{states.number[i]} was written under key {written.key[rows[i]]} and is under {states.key[i]}",
    )
    findings.add(
        Violation.TORN_ROW,
        is_ours & ~is_elsewhere & (written.kind[rows] != states.kind),
        lambda i: (
            f"key {states.key[i]} became {states.value[i]}/{states.other[i]} by the write of {states.number[i]}, which "
            f"was an {Write(int(written.kind[rows[i]])).name}"
        ),
    )
    return np.where(is_ours & ~is_elsewhere, rows, -1)


def _check_exactly_once(states: States, written: WrittenRows, of_table: Mask, findings: Findings) -> None:
    numbers, counts = np.unique(states.number[states.number >= 0], return_counts=True)
    findings.add(Violation.DOUBLED, counts > 1, lambda i: f"{numbers[i]} was made {counts[i]} times")
    is_expected = of_table & (written.outcome == Outcome.OK) & (written.kind != Write.DELETE)
    findings.add(
        Violation.LOST,
        is_expected & (rows_where(numbers, written.number) < 0),
        lambda i: f"{written.number[i]} of key {written.key[i]} was acknowledged and is not in the changelog",
    )


@dataclass(frozen=True)
class _Operations:
    """Operations with a place in the order: twice the state they made, or one more if they saw it."""

    key: Numbers
    start_ns: Numbers
    end_ns: Numbers
    place: Numbers
    process: Numbers
    # What the row was, for messages; ABSENT for reads that found nothing and for deletes.
    value: Numbers
    # Whether it is known to have happened: 1 or 0.
    is_acknowledged: Numbers

    def joined(self, other: _Operations) -> _Operations:
        return _Operations(*(np.concatenate(pair) for pair in zip(self._columns(), other._columns(), strict=True)))

    def where(self, mask: Mask) -> _Operations:
        return _Operations(*(column[mask] for column in self._columns()))

    def acknowledged(self) -> _Operations:
        return self.where(self.is_acknowledged == 1)

    def _columns(self) -> tuple[Numbers, ...]:
        return self.key, self.start_ns, self.end_ns, self.place, self.process, self.value, self.is_acknowledged


def _definite_writes(states: States, rows: Numbers, written: WrittenRows) -> _Operations:
    made = np.flatnonzero(rows >= 0)
    by = rows[made]
    one = np.ones(made.size, np.int64)
    columns = states.key[made], written.start_ns[by], written.end_ns[by], 2 * made
    return _Operations(*columns, written.process[by], states.number[made], one)


def _present_reads(history: History, states: States, lookups: dict[str, Numbers], findings: Findings) -> _Operations:
    is_present = (lookups["value"] != ABSENT) | (lookups["other"] != ABSENT)
    reads = {name: column[is_present] for name, column in lookups.items()}
    is_damaged = (reads["value"] == DAMAGED) | (reads["other"] == DAMAGED)
    findings.add(Violation.DAMAGED, is_damaged, lambda i: f"key {reads['key'][i]} came back damaged by a lookup")
    state = states.find(reads["key"], reads["value"], reads["other"])
    findings.add(
        Violation.PHANTOM,
        (state < 0) & ~is_damaged,
        lambda i: (
            f"process {reads['process'][i]} found {reads['value'][i]}/{reads['other'][i]} under key {reads['key'][i]}, "
            "which the changelog never made"
        ),
    )
    found = state >= 0
    columns = reads["key"][found], reads["start_ns"][found], reads["end_ns"][found], 2 * state[found] + 1
    ones = np.ones(int(found.sum()), np.int64)
    return _Operations(*columns, reads["process"][found], reads["value"][found], ones)


def _absent_reads(lookups: dict[str, Numbers]) -> _Operations:
    is_absent = (lookups["value"] == ABSENT) & (lookups["other"] == ABSENT)
    nothing = np.full(int(is_absent.sum()), ABSENT)
    columns = lookups["key"][is_absent], lookups["start_ns"][is_absent], lookups["end_ns"][is_absent], nothing
    return _Operations(*columns, lookups["process"][is_absent], nothing, np.ones(nothing.size, np.int64))


def _deletes(written: WrittenRows, of_table: Mask) -> _Operations:
    is_delete = of_table & (written.kind == Write.DELETE) & (written.outcome != Outcome.FAILED)
    nothing = np.full(int(is_delete.sum()), ABSENT)
    columns = written.key[is_delete], written.start_ns[is_delete], written.end_ns[is_delete], nothing
    is_ok = (written.outcome[is_delete] == Outcome.OK).astype(np.int64)
    return _Operations(*columns, written.process[is_delete], nothing, is_ok)


def _gaps(states: States, definite: _Operations, reads: _Operations, findings: Findings) -> _Operations:
    """Place what saw or made a gap at the earliest gap after everything that had ended before."""
    size = states.key.size
    if not reads.key.size:
        return reads
    earliest = largest_before(definite.key, definite.end_ns, definite.place, reads.key, reads.start_ns) // 2
    first_of_key = np.searchsorted(states.key, reads.key)
    next_gap = np.where(states.is_gap, np.arange(size), _BEYOND)
    next_gap = np.minimum.accumulate(next_gap[::-1])[::-1]
    gap = next_gap[np.maximum(earliest, first_of_key)]
    is_found = gap < size
    is_found &= states.key[np.where(is_found, gap, 0)] == reads.key
    findings.add(
        Violation.STALE,
        ~is_found,
        lambda i: (
            f"process {reads.process[i]} found or left nothing under key {reads.key[i]}, but "
            f"{states.value[earliest[i]]}/{states.other[earliest[i]]} was known before and is never deleted"
        ),
    )
    placed = reads.where(is_found)
    columns = placed.key, placed.start_ns, placed.end_ns, 2 * gap[is_found] + 1
    return _Operations(*columns, placed.process, placed.value, placed.is_acknowledged)


def _without_choice(states: States, definite: _Operations, absent: _Operations) -> _Operations:
    """Return the reads whose gap is the only one that they can have seen."""
    if not absent.key.size:
        return absent
    # The latest gap before everything that began after it: the earliest such place is the latest in opposite order.
    places_max = 2 * states.key.size
    opposite = largest_before(definite.key, -definite.start_ns, places_max - definite.place, absent.key, -absent.end_ns)
    last_of_key = np.searchsorted(states.key, absent.key, side="right") - 1
    latest = np.where(opposite == NOTHING_BEFORE, last_of_key, (places_max - opposite - 1) // 2)
    last_gap = np.maximum.accumulate(np.where(states.is_gap, np.arange(states.key.size), -1))
    return absent.where(last_gap[np.minimum(latest, last_of_key)] == absent.place // 2)


def _check_order(states: States, operations: _Operations, findings: Findings) -> None:
    latest = largest_before(operations.key, operations.end_ns, operations.place, operations.key, operations.start_ns)

    def describe(i: int) -> str:
        what = "read" if operations.place[i] % 2 else "wrote"
        newer = latest[i] // 2
        return (
            f"process {operations.process[i]} {what} {_row(states, operations.place[i] // 2)} of key "
            f"{operations.key[i]}, although {_row(states, newer)} was written or read before that began"
        )

    findings.add(Violation.STALE, latest > operations.place, describe)


def _row(states: States, state: int) -> str:
    return "nothing" if states.is_gap[state] else f"{states.value[state]}/{states.other[state]}"


def _check_deletes(states: States, operations: _Operations, deletes: _Operations, findings: Findings) -> None:
    """Check that for each delete in the changelog there was one that can have made it.

    ``operations`` are those whose place is not a matter of choice.
    """
    is_delete = states.is_gap & (states.offset >= 0)
    made = np.flatnonzero(is_delete)
    if not made.size:
        return
    after_ns, before_ns = _moments_around(states, operations, made)
    keys = states.key[made]
    # Those that had begun before it was over, without those that had ended before it could begin.
    begun = _count_up_to(deletes.key, deletes.start_ns, keys, before_ns)
    possible = begun - _count_up_to(deletes.key, deletes.end_ns, keys, after_ns - 1)
    findings.add(
        Violation.PHANTOM_DELETE,
        made[possible <= 0],
        lambda i: f"key {states.key[i]} is deleted at offset {states.offset[i]}, and nobody can have done that",
    )
    known, counts = np.unique(keys, return_counts=True)
    asked = _count_up_to(deletes.key, deletes.start_ns, known, np.full(known.size, NEVER_NS))
    findings.add(
        Violation.PHANTOM_DELETE,
        counts > asked,
        lambda i: f"key {known[i]} is deleted {counts[i]} times, although {asked[i]} deletes were sent",
    )


def _moments_around(states: States, operations: _Operations, made: Numbers) -> tuple[Numbers, Numbers]:
    """Return the latest beginning of what came before each state of a key, and the earliest end of what came after."""
    key, place = operations.key, operations.place
    after = largest_before(key, place, operations.start_ns, states.key[made], 2 * made)
    # The earliest end is the latest one in the opposite order.
    before = largest_before(key, -place, NEVER_NS - operations.end_ns, states.key[made], -2 * made)
    return after, np.where(before == NOTHING_BEFORE, NEVER_NS, NEVER_NS - before)


def _count_up_to(keys: Numbers, times_ns: Numbers, asked_keys: Numbers, asked_ns: Numbers) -> Numbers:
    """Count for each question the times of its key that are not later."""
    known_times = np.unique(times_ns)
    span = known_times.size + 1
    known_keys, key_ranks = np.unique(keys, return_inverse=True)
    if not known_keys.size:
        return np.zeros(asked_keys.size, np.int64)
    moments = np.sort(key_ranks * span + np.searchsorted(known_times, times_ns))
    ranks = rows_where(known_keys, asked_keys)
    up_to = np.searchsorted(known_times, asked_ns, side="right")
    counts = np.searchsorted(moments, ranks * span + up_to) - np.searchsorted(moments, ranks * span)
    return np.where(ranks >= 0, counts, 0)


def _with_missing_rows(history: History, table: int) -> dict[str, Numbers]:
    """Return the lookups of a table, with a row that was not found for each key that a complete scan did not have."""
    lookups = history.lookups.of_table(table)
    scans = history.scans.table()
    complete = np.flatnonzero((scans["table"] == table) & (scans["is_complete"] == 1))
    writes = history.writes.of_table(table)
    keys = np.unique(np.concatenate([writes["key"], lookups["key"]]))
    added: list[dict[str, Numbers]] = [lookups]
    for scan in complete:
        missing = np.setdiff1d(keys, lookups["key"][lookups["scan"] == scan], assume_unique=False)
        row = {name: scans[name][scan] for name in ("table", "process", "start_ns", "end_ns")}
        row |= {"scan": scan, "value": ABSENT, "other": ABSENT}
        added.append({name: missing if name == "key" else np.full(missing.size, row[name]) for name in lookups})
    return {name: np.concatenate([part[name] for part in added]) for name in lookups}


def _check_snapshots(history: History, states: States, lookups: dict[str, Numbers], findings: Findings) -> None:
    """Check that there is a moment at which all rows of a bucket in a scan were there."""
    scans = history.scans.table()
    is_row = (lookups["scan"] >= 0) & ((lookups["value"] != ABSENT) | (lookups["other"] != ABSENT))
    is_row[is_row] &= scans["is_snapshot"][lookups["scan"][is_row]] == 1
    scan, key = lookups["scan"][is_row], lookups["key"][is_row]
    state = states.find(key, lookups["value"][is_row], lookups["other"][is_row])
    scan, state = scan[state >= 0], state[state >= 0]
    if not scan.size:
        return
    order = np.lexsort((states.bucket[state], scan))
    scan, state = scan[order], state[order]
    runs = np.flatnonzero(starts_of_runs(scan, states.bucket[state]))
    made = np.maximum.reduceat(states.offset[state], runs)
    replaced = np.minimum.reduceat(states.next_offsets()[state], runs)
    findings.add(
        Violation.SNAPSHOT,
        made >= replaced,
        lambda i: (
            f"scan {scan[runs[i]]} has the row of offset {made[i]} of bucket {states.bucket[state[runs[i]]]}, and one "
            f"that was replaced at {replaced[i]}"
        ),
    )


def _check_final_rows(history: History, states: States, table: int, findings: Findings) -> None:
    rows = history.final_rows.of_table(table)
    is_last = np.ones(states.key.size, np.bool_)
    is_last[:-1] = starts_of_runs(states.key)[1:]
    is_there = is_last & ~states.is_gap
    expected = {name: getattr(states, name)[is_there] for name in ("key", "value", "other")}
    keys = np.union1d(rows["key"], expected["key"])
    values = np.full((4, keys.size), ABSENT)
    for at, found in ((0, expected), (2, rows)):
        places = rows_where(keys, found["key"])
        values[at, places], values[at + 1, places] = found["value"], found["other"]
    findings.add(
        Violation.FINAL_ROWS,
        (values[0] != values[2]) | (values[1] != values[3]),
        lambda i: (
            f"key {keys[i]} should be {values[0, i]}/{values[1, i]} by the changelog, and is "
            f"{values[2, i]}/{values[3, i]}"
        ),
    )
    unique, counts = np.unique(rows["key"], return_counts=True)
    findings.add(Violation.FINAL_ROWS, counts > 1, lambda i: f"key {unique[i]} has {counts[i]} rows")
