"""The history checker finds every kind of broken promise, and nothing where all were kept.
Shown with forged histories, with random ones of a model, and with those after one thing in them was changed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.testing.history import ABSENT, DAMAGED, Change, Columns, History, Outcome, Write
from fluss.testing.history_checker import Violation, check, main
from tests.unit.testing.history_model import Model, SteppedHistory

STEPS = 400


def kinds_of(history: History) -> set[str]:
    return {finding.violation for finding in check(history)}


class Forged:
    """Writes a history line by line; each call is one moment later than the one before."""

    def __init__(self, *, has_key: bool = False) -> None:
        self.history = SteppedHistory()
        self.table = self.history.new_table("f.t", has_key=has_key)
        self.process = self.history.new_process()
        self.reader = self.history.new_process()

    def _later(self) -> int:
        self.history.clock_ns += 10
        return self.history.clock_ns

    def begin(self, number: int, key: int = -1, kind: Write = Write.APPEND, process: int | None = None) -> int:
        self._later()
        by = self.process if process is None else process
        return self.history.begin_write(self.table, by, numbers=[number], keys=[key], kind=kind)

    def end(self, operation: int, outcome: Outcome = Outcome.OK) -> None:
        self._later()
        self.history.end_write(operation, outcome)

    def write(self, number: int, key: int = -1, kind: Write = Write.APPEND, outcome: Outcome = Outcome.OK) -> Forged:
        self.end(self.begin(number, key, kind), outcome)
        return self

    def upsert(self, number: int, key: int = 1, kind: Write = Write.UPSERT, outcome: Outcome = Outcome.OK) -> Forged:
        return self.write(number, key, kind, outcome)

    def read(self, offset: int, value: int, *, session: int = 0, bucket: int = 0) -> Forged:
        self.history.saw(
            self.table,
            self.reader,
            start_ns=self._later(),
            bucket=bucket,
            offsets=[offset],
            values=[value],
            session=session,
        )
        return self

    def lookup(self, value: int, other: int | None = None, key: int = 1) -> Forged:
        start_ns = self._later()
        self._later()
        self.history.looked_up(
            self.table,
            self.reader,
            start_ns=start_ns,
            keys=[key],
            values=[value],
            others=[value if other is None else other],
        )
        return self

    def scan(self, rows: dict[int, int], *, is_complete: bool = True) -> Forged:
        start_ns = self._later()
        self._later()
        values = list(rows.values())
        self.history.scanned(
            self.table,
            self.reader,
            start_ns=start_ns,
            keys=list(rows),
            values=values,
            others=values,
            is_complete=is_complete,
        )
        return self

    def latest(self, offset: int) -> Forged:
        self.history.saw_latest(self.table, self.reader, start_ns=self._later(), offsets={0: offset})
        return self

    def log(self, *values: int, offsets: list[int] | None = None) -> History:
        """End with this log in bucket 0."""
        self.history.saw(
            self.table,
            self.reader,
            start_ns=self._later(),
            bucket=0,
            offsets=range(len(values)) if offsets is None else offsets,
            values=list(values),
            is_final=True,
        )
        self.history.finish(self.table)
        return self.history

    def changelog(self, *records: str, rows: dict[int, str] | None = None, buckets: list[int] | None = None) -> History:
        """End with these changes, such as "+I 1:5/5" for value 5 and other 5 of key 1, and these rows by key."""
        for offset, record in enumerate(records):
            change, rest = record.split()
            key, row = rest.split(":")
            value, other = map(int, row.split("/"))
            self.history.saw(
                self.table,
                self.reader,
                start_ns=self._later(),
                bucket=buckets[offset] if buckets else 0,
                offsets=[offset],
                changes=[Change.of(change)],
                keys=[int(key)],
                values=[value],
                others=[other],
                is_final=True,
            )
        pairs = {key: tuple(map(int, row.split("/"))) for key, row in (rows or {}).items()}
        self.history.finish(
            self.table,
            keys=list(pairs),
            values=[value for value, _ in pairs.values()],
            others=[other for _, other in pairs.values()],
        )
        return self.history


def keyed() -> Forged:
    return Forged(has_key=True)


# Log tables, forged


def test_a_log_that_is_right_is_accepted() -> None:
    forged = Forged().write(1).latest(1).read(0, 1).write(2, outcome=Outcome.UNKNOWN).write(3, outcome=Outcome.FAILED)
    assert check(forged.read(1, 2).latest(2).log(1, 2)) == []


def reordered_by_others() -> History:
    forged = Forged()
    forged.write(1)
    forged.end(forged.begin(2, process=forged.history.new_process()))
    return forged.log(2, 1)


def seen_before_sent() -> History:
    forged = Forged().write(1).read(0, 1)
    forged.read(1, 2)
    return forged.write(2).log(1, 2)


FORGED_LOGS: dict[str, tuple[Callable[[], History], Violation]] = {
    "an acknowledged row is missing": (lambda: Forged().write(1).write(2).log(1), Violation.LOST),
    "the first row is missing": (lambda: Forged().write(1).write(2).log(2), Violation.LOST),
    "a row is there twice": (lambda: Forged().write(1).write(2).log(1, 2, 1), Violation.DOUBLED),
    "an unknown row is there twice": (lambda: Forged().write(1, outcome=Outcome.UNKNOWN).log(1, 1), Violation.DOUBLED),
    "a row was never sent": (lambda: Forged().write(1).log(1, 7), Violation.PHANTOM),
    "a refused row is there": (
        lambda: Forged().write(1).write(2, outcome=Outcome.FAILED).log(1, 2),
        Violation.REFUSED_BUT_THERE,
    ),
    "a row is damaged": (lambda: Forged().write(1).log(1, DAMAGED), Violation.DAMAGED),
    "rows of a writer are exchanged": (
        lambda: Forged().write(1, outcome=Outcome.UNKNOWN).write(2).log(2, 1),
        Violation.WRITER_ORDER,
    ),
    "a row comes before one that was acknowledged": (reordered_by_others, Violation.REAL_TIME_ORDER),
    "offsets have a gap": (lambda: Forged().write(1).write(2).log(1, 2, offsets=[0, 2]), Violation.OFFSET_GAP),
    "an offset comes again": (lambda: Forged().write(1).write(2).log(1, 2, offsets=[0, 0]), Violation.OFFSET_ORDER),
    "a reader skips a row": (
        lambda: Forged().write(1).write(2).write(3).read(0, 1).read(2, 3).log(1, 2, 3),
        Violation.OFFSET_GAP,
    ),
    "a reader gets a row again": (
        lambda: Forged().write(1).write(2).read(0, 1).read(0, 1).log(1, 2),
        Violation.OFFSET_ORDER,
    ),
    "what was seen is gone": (
        lambda: Forged().write(1).write(2, outcome=Outcome.UNKNOWN).read(0, 1).read(1, 2).log(1),
        Violation.UNSEEN,
    ),
    "all that was seen is gone": (
        lambda: Forged().write(1, outcome=Outcome.UNKNOWN).read(0, 1).log(),
        Violation.UNSEEN,
    ),
    "what was seen is another row now": (
        lambda: Forged().write(1, outcome=Outcome.UNKNOWN).write(2).read(0, 1).log(2),
        Violation.UNSEEN,
    ),
    "a reader sees a row before it is sent": (seen_before_sent, Violation.SEEN_BEFORE_WRITTEN),
    "a reader sees a row that was never sent": (lambda: Forged().write(1).read(0, 9).log(1), Violation.PHANTOM),
    "the latest offset goes back": (
        lambda: Forged().write(1, outcome=Outcome.UNKNOWN).latest(1).latest(0).log(1),
        Violation.HIGH_WATERMARK,
    ),
    "the latest offset is before an acknowledged row": (
        lambda: Forged().write(1).latest(0).log(1),
        Violation.HIGH_WATERMARK,
    ),
    "a reader sees a row beyond the latest offset": (
        lambda: Forged().write(1, outcome=Outcome.UNKNOWN).read(0, 1).latest(0).log(1),
        Violation.HIGH_WATERMARK,
    ),
    "the latest offset is beyond a row that is sent later": (
        lambda: Forged().latest(1).write(1).log(1),
        Violation.HIGH_WATERMARK,
    ),
}


@pytest.mark.parametrize("case", FORGED_LOGS)
def test_forged_histories_of_logs_are_found(case: str) -> None:
    forge, violation = FORGED_LOGS[case]
    assert violation in kinds_of(forge())


# Tables with a primary key, forged


def test_changes_that_are_right_are_accepted() -> None:
    forged = keyed().lookup(ABSENT).upsert(1).lookup(1).upsert(2, kind=Write.VALUE).lookup(2, 1)
    forged.upsert(3, outcome=Outcome.UNKNOWN).scan({1: 3}).upsert(4, kind=Write.DELETE).lookup(ABSENT).scan({})
    forged.upsert(5, kind=Write.DELETE).upsert(6, kind=Write.OTHER).upsert(7, outcome=Outcome.FAILED)
    changes = ["+I 1:1/1", "-U 1:1/1", "+U 1:2/1", "-U 1:2/1", "+U 1:3/3", "-D 1:3/3", "+I 1:-1/6"]
    assert check(forged.changelog(*changes, rows={1: "-1/6"})) == []


def test_a_lookup_may_see_a_write_that_is_under_way_or_not() -> None:
    for value in (1, 2):
        forged = keyed().upsert(1)
        operation = forged.begin(2, 1, Write.UPSERT)
        forged.lookup(value)
        forged.end(operation)
        assert check(forged.changelog("+I 1:1/1", "-U 1:1/1", "+U 1:2/2", rows={1: "2/2"})) == []


def overlapping(first: int, second: int) -> History:
    """Two lookups, one after the other, while a write is under way."""
    forged = keyed().upsert(1)
    operation = forged.begin(2, 1, Write.UPSERT)
    forged.lookup(first).lookup(second)
    forged.end(operation)
    return forged.changelog("+I 1:1/1", "-U 1:1/1", "+U 1:2/2", rows={1: "2/2"})


def test_lookups_during_a_write_agree_on_when_it_happened() -> None:
    assert kinds_of(overlapping(1, 2)) == set()
    assert kinds_of(overlapping(2, 1)) == {Violation.STALE}


ONE, TWO = ("+I 1:1/1",), ("+I 1:1/1", "-U 1:1/1", "+U 1:2/2")
FORGED_KEYS: dict[str, tuple[Callable[[], History], Violation]] = {
    "an acknowledged upsert is missing": (
        lambda: keyed().upsert(1).upsert(2).changelog(*ONE, rows={1: "1/1"}),
        Violation.LOST,
    ),
    "an acknowledged partial update is missing": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.OTHER).changelog(*ONE, rows={1: "1/1"}),
        Violation.LOST,
    ),
    "an upsert is there twice": (
        lambda: keyed().upsert(1).upsert(2).changelog(*TWO, "-U 1:2/2", "+U 1:1/1", rows={1: "1/1"}),
        Violation.DOUBLED,
    ),
    "a row was never written": (lambda: keyed().upsert(1).changelog(*TWO, rows={1: "2/2"}), Violation.PHANTOM),
    "a row is under another key": (
        lambda: keyed().upsert(1).upsert(2, key=3).changelog(*TWO, rows={1: "2/2"}),
        Violation.PHANTOM,
    ),
    "a refused upsert is there": (
        lambda: keyed().upsert(1, outcome=Outcome.FAILED).changelog(*ONE, rows={1: "1/1"}),
        Violation.REFUSED_BUT_THERE,
    ),
    "an insert where a row is": (
        lambda: keyed().upsert(1).upsert(2).changelog(*ONE, "+I 1:2/2", rows={1: "2/2"}),
        Violation.CHANGELOG,
    ),
    "an old row that never was": (
        lambda: keyed().upsert(1).upsert(2).changelog(*ONE, "-U 1:9/9", "+U 1:2/2", rows={1: "2/2"}),
        Violation.CHANGELOG,
    ),
    "a new row without the old one": (
        lambda: keyed().upsert(1).upsert(2).changelog(*ONE, "+U 1:2/2", rows={1: "2/2"}),
        Violation.CHANGELOG,
    ),
    "an old row without the new one": (
        lambda: keyed().upsert(1).upsert(2, outcome=Outcome.UNKNOWN).changelog(*ONE, "-U 1:1/1", rows={1: "1/1"}),
        Violation.CHANGELOG,
    ),
    "a delete of another row": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.DELETE).changelog(*ONE, "-D 1:5/5"),
        Violation.CHANGELOG,
    ),
    "a delete of nothing": (lambda: keyed().upsert(2, kind=Write.DELETE).changelog("-D 1:1/1"), Violation.CHANGELOG),
    "a delete that nobody asked for": (lambda: keyed().upsert(1).changelog(*ONE, "-D 1:1/1"), Violation.PHANTOM_DELETE),
    "a delete before it was sent": (
        lambda: (
            keyed()
            .upsert(1)
            .lookup(ABSENT)
            .upsert(2, kind=Write.DELETE)
            .upsert(3)
            .changelog(*ONE, "-D 1:1/1", "+I 1:3/3", rows={1: "3/3"})
        ),
        Violation.PHANTOM_DELETE,
    ),
    "more deletes than were sent": (
        lambda: (
            keyed().upsert(1).upsert(2, kind=Write.DELETE).upsert(3).changelog(*ONE, "-D 1:1/1", "+I 1:3/3", "-D 1:3/3")
        ),
        Violation.PHANTOM_DELETE,
    ),
    "a partial update changed the other column": (
        lambda: (
            keyed().upsert(1).upsert(2, kind=Write.VALUE).changelog(*ONE, "-U 1:1/1", "+U 1:2/-1", rows={1: "2/-1"})
        ),
        Violation.TORN_ROW,
    ),
    "a partial update changed the wrong column": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.VALUE).changelog(*ONE, "-U 1:1/1", "+U 1:1/2", rows={1: "1/2"}),
        Violation.TORN_ROW,
    ),
    "a lookup misses an acknowledged upsert": (
        lambda: keyed().upsert(1).lookup(ABSENT).changelog(*ONE, rows={1: "1/1"}),
        Violation.STALE,
    ),
    "a lookup returns an old row": (
        lambda: keyed().upsert(1).upsert(2).lookup(1).changelog(*TWO, rows={1: "2/2"}),
        Violation.STALE,
    ),
    "a lookup returns a deleted row": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.DELETE).lookup(1).changelog(*ONE, "-D 1:1/1"),
        Violation.STALE,
    ),
    "an acknowledged delete has no effect": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.DELETE).changelog(*ONE, rows={1: "1/1"}),
        Violation.STALE,
    ),
    "a lookup returns a row before it is written": (
        lambda: keyed().lookup(1).upsert(1).changelog(*ONE, rows={1: "1/1"}),
        Violation.STALE,
    ),
    "a lookup returns a row that never was": (
        lambda: keyed().upsert(1).lookup(8).changelog(*ONE, rows={1: "1/1"}),
        Violation.PHANTOM,
    ),
    "a lookup returns a row that is undone later": (
        lambda: keyed().upsert(1).upsert(2, outcome=Outcome.UNKNOWN).lookup(2).changelog(*ONE, rows={1: "1/1"}),
        Violation.PHANTOM,
    ),
    "a lookup returns two halves of rows": (
        lambda: keyed().upsert(1).upsert(2).lookup(2, 1).changelog(*TWO, rows={1: "2/2"}),
        Violation.PHANTOM,
    ),
    "a lookup returns damage": (
        lambda: keyed().upsert(1).lookup(DAMAGED).changelog(*ONE, rows={1: "1/1"}),
        Violation.DAMAGED,
    ),
    "upserts are in the wrong order": (
        lambda: keyed().upsert(1).upsert(2).changelog("+I 1:2/2", "-U 1:2/2", "+U 1:1/1", rows={1: "1/1"}),
        Violation.STALE,
    ),
    "a scan has an old row": (
        lambda: keyed().upsert(1).upsert(2).scan({1: 1}).changelog(*TWO, rows={1: "2/2"}),
        Violation.STALE,
    ),
    "a scan has not all rows": (
        lambda: keyed().upsert(1).scan({}).changelog(*ONE, rows={1: "1/1"}),
        Violation.STALE,
    ),
    "a scan has rows of two moments": (lambda: scan_of_two_moments(), Violation.SNAPSHOT),
    "the rows are not those of the changelog": (
        lambda: keyed().upsert(1).upsert(2).changelog(*TWO, rows={1: "1/1"}),
        Violation.FINAL_ROWS,
    ),
    "a row is gone": (lambda: keyed().upsert(1).changelog(*ONE), Violation.FINAL_ROWS),
    "a deleted row is back": (
        lambda: keyed().upsert(1).upsert(2, kind=Write.DELETE).changelog(*ONE, "-D 1:1/1", rows={1: "1/1"}),
        Violation.FINAL_ROWS,
    ),
    "a key is in two buckets": (
        lambda: keyed().upsert(1).upsert(2).changelog(*TWO, rows={1: "2/2"}, buckets=[0, 1, 1]),
        Violation.BUCKET,
    ),
}


def scan_of_two_moments() -> History:
    """Two keys change while a scan is under way: the old row of the first change with the new one of the second."""
    forged = keyed().upsert(1, key=1).upsert(2, key=2)
    start_ns = forged._later()
    forged.upsert(3, key=1).upsert(4, key=2)
    forged._later()
    forged.history.scanned(
        forged.table, forged.reader, start_ns=start_ns, keys=[1, 2], values=[1, 4], others=[1, 4], is_complete=True
    )
    changes = ["+I 1:1/1", "+I 2:2/2", "-U 1:1/1", "+U 1:3/3", "-U 2:2/2", "+U 2:4/4"]
    return forged.changelog(*changes, rows={1: "3/3", 2: "4/4"})


@pytest.mark.parametrize("case", FORGED_KEYS)
def test_forged_histories_of_keys_are_found(case: str) -> None:
    forge, violation = FORGED_KEYS[case]
    assert violation in kinds_of(forge())


def test_every_kind_of_violation_has_a_forged_history() -> None:
    forged = {violation for _, violation in (*FORGED_LOGS.values(), *FORGED_KEYS.values())}
    assert forged | {Violation.FOREIGN, Violation.TABLE_LOST, Violation.TABLE_UNDEAD} == set(Violation)


# Tables that come and go


def reborn() -> tuple[SteppedHistory, int, int, int]:
    """A table that was created, dropped and created again."""
    history = SteppedHistory()
    process = history.new_process()
    old, new = history.new_table("f.t"), history.new_table("f.t")
    for table, is_drop in ((old, False), (old, True), (new, False)):
        start_ns = history.clock_ns = history.clock_ns + 10
        history.clock_ns += 1
        history.changed_table(table, process, start_ns=start_ns, outcome=Outcome.OK, is_drop=is_drop)
        history.clock_ns += 10
        history.saw_table("f.t", process, start_ns=history.clock_ns, table=ABSENT if is_drop else table)
    return history, process, old, new


def test_rows_of_a_dropped_table_must_not_be_in_the_next_one() -> None:
    history, process, old, new = reborn()
    assert check(history) == []
    history.end_write(history.begin_write(old, process, numbers=[5]), Outcome.OK)
    history.saw(new, process, start_ns=history.clock_ns, bucket=0, offsets=[0], values=[5])
    assert kinds_of(history) == {Violation.FOREIGN}
    history.saw(new, process, start_ns=history.clock_ns, bucket=0, offsets=[0], values=[5], is_final=True)
    history.finish(new)
    assert Violation.FOREIGN in kinds_of(history)


def test_a_created_table_must_be_found_and_a_dropped_one_not() -> None:
    history, process, _, _ = reborn()
    history.clock_ns += 10
    history.saw_table("f.t", process, start_ns=history.clock_ns, table=ABSENT)
    assert kinds_of(history) == {Violation.TABLE_LOST}
    history, process, old, _ = reborn()
    history.clock_ns += 10
    history.saw_table("f.t", process, start_ns=history.clock_ns, table=old)
    assert kinds_of(history) == {Violation.TABLE_LOST, Violation.TABLE_UNDEAD}


# Random histories


@given(st.integers(0, 2**32))
def test_histories_of_a_server_that_keeps_its_promises_are_accepted(seed: int) -> None:
    assert check(Model(seed).run(STEPS)) == []


def changed(columns: Columns, row: int, **values: int) -> bool:
    columns.set(row, **values)
    return True


def without(columns: Columns, rows: Any) -> bool:
    table = columns.table()
    columns.replace({name: np.delete(column, rows) for name, column in table.items()})
    return True


def lose_a_record(history: History, rng: random.Random) -> bool:
    """One that was acknowledged, or is between others."""
    final = history.final.table()
    rows = [
        row
        for row in range(len(final["table"]) - 1)
        if final["table"][row] == final["table"][row + 1]
        and final["bucket"][row] == final["bucket"][row + 1]
        # A delete that is lost may be one that never happened, if nothing more is known about its key.
        and final["change"][row] in (Change.APPEND, Change.UPDATE_BEFORE, Change.UPDATE_AFTER)
    ]
    return bool(rows) and without(history.final, rng.choice(rows))


def repeat_a_record(history: History, rng: random.Random) -> bool:
    final = history.final.table()
    rows = np.flatnonzero(final["change"] != Change.DELETE)
    if not rows.size:
        return False
    row = rng.choice(rows.tolist())
    values = {name: int(column[row]) for name, column in final.items()}
    history.final.add(**{**values, "offset": 10**6})
    return True


def replace_a_record(history: History, rng: random.Random) -> bool:
    final = history.final.table()
    rows = np.flatnonzero(final["change"] != Change.DELETE)
    return bool(rows.size) and changed(history.final, rng.choice(rows.tolist()), value=10**7, other=10**7)


def exchange_records_of_a_writer(history: History, rng: random.Random) -> bool:
    final, writes = history.final.table(), history.writes.table()
    process = dict(zip(writes["number"], history.operations.table()["process"][writes["operation"]], strict=True))
    appended = np.flatnonzero(final["change"] == Change.APPEND).tolist()
    pairs = [
        (a, b)
        for a in appended
        for b in appended
        if a < b
        and final["bucket"][a] == final["bucket"][b]
        and process[final["value"][a]] == process[final["value"][b]]
    ]
    if not pairs:
        return False
    a, b = rng.choice(pairs)
    return changed(history.final, a, value=int(final["value"][b])) and changed(
        history.final, b, value=int(final["value"][a])
    )


def unsee_a_record(history: History, rng: random.Random) -> bool:
    return bool(len(history.seen)) and changed(history.seen, rng.randrange(len(history.seen)), value=10**7)


def skip_a_record(history: History, rng: random.Random) -> bool:
    """In a log table, where a reader sees every offset."""
    seen = history.seen.table()
    order = np.lexsort((seen["offset"], seen["bucket"], seen["process"]))
    rows = [
        int(b)
        for a, b, c in zip(order, order[1:], order[2:], strict=False)
        if len({(seen["process"][row], seen["bucket"][row], seen["change"][row]) for row in (a, b, c)}) == 1
        and seen["change"][b] == Change.APPEND
    ]
    return bool(rows) and without(history.seen, rng.choice(rows))


def refuse_a_write_that_is_there(history: History, rng: random.Random) -> bool:
    final, writes = history.final.table(), history.writes.table()
    rows = np.flatnonzero(np.isin(writes["number"], final["value"][final["change"] == Change.APPEND]))
    if not rows.size:
        return False
    operation = int(writes["operation"][rng.choice(rows.tolist())])
    return changed(history.operations, operation, outcome=int(Outcome.FAILED))


def acknowledge_a_write_that_is_not_there(history: History, rng: random.Random) -> bool:
    final, writes = history.final.table(), history.writes.table()
    there = np.concatenate([final["value"], final["other"]])
    rows = np.flatnonzero(~np.isin(writes["number"], there) & (writes["kind"] != Write.DELETE))
    if not rows.size:
        return False
    return changed(history.operations, int(writes["operation"][rng.choice(rows.tolist())]), outcome=int(Outcome.OK))


def damage_a_lookup(history: History, rng: random.Random) -> bool:
    rows = np.flatnonzero(history.lookups.table()["value"] > 0)
    return bool(rows.size) and changed(history.lookups, rng.choice(rows.tolist()), value=10**7)


def look_up_what_was_before(history: History, rng: random.Random) -> bool:
    """Move a lookup that found a row to the time after another one had found the next row."""
    lookups = history.lookups.table()
    found = [row for row in range(len(lookups["key"])) if lookups["scan"][row] == ABSENT and lookups["value"][row] > 0]
    pairs = [
        (a, b)
        for a in found
        for b in found
        if lookups["key"][a] == lookups["key"][b]
        and lookups["end_ns"][a] < lookups["start_ns"][b]
        and (lookups["value"][a], lookups["other"][a]) != (lookups["value"][b], lookups["other"][b])
    ]
    if not pairs:
        return False
    a, b = rng.choice(pairs)
    after_ns = int(lookups["end_ns"][b]) + 1
    return changed(history.lookups, a, start_ns=after_ns, end_ns=after_ns)


def forget_a_row(history: History, rng: random.Random) -> bool:
    return bool(len(history.final_rows)) and without(history.final_rows, rng.randrange(len(history.final_rows)))


def drop_a_row_of_a_complete_scan(history: History, rng: random.Random) -> bool:
    """One whose key was never without a row while the scan went on, as it has no deletes."""
    lookups, scans, writes = history.lookups.table(), history.scans.table(), history.writes.table()
    deleted = set(writes["key"][writes["kind"] == Write.DELETE].tolist())
    rows = [
        row
        for row in np.flatnonzero(lookups["scan"] >= 0).tolist()
        if scans["is_complete"][lookups["scan"][row]]
        and lookups["key"][row] not in deleted
        and any(
            lookups["key"][other] == lookups["key"][row]
            and lookups["value"][other] > 0
            and lookups["end_ns"][other] < lookups["start_ns"][row]
            for other in range(len(lookups["key"]))
        )
    ]
    return bool(rows) and without(history.lookups, rng.choice(rows))


def set_the_latest_offset_back(history: History, rng: random.Random) -> bool:
    latest, seen = history.latest.table(), history.seen.table()
    rows = [
        row
        for row in range(len(latest["table"]))
        if (
            (seen["table"] == latest["table"][row])
            & (seen["bucket"] == latest["bucket"][row])
            & (seen["end_ns"] < latest["start_ns"][row])
        ).any()
    ]
    return bool(rows) and changed(history.latest, rng.choice(rows), offset=0)


CORRUPTIONS = [
    lose_a_record,
    repeat_a_record,
    replace_a_record,
    exchange_records_of_a_writer,
    unsee_a_record,
    skip_a_record,
    refuse_a_write_that_is_there,
    acknowledge_a_write_that_is_not_there,
    damage_a_lookup,
    look_up_what_was_before,
    forget_a_row,
    drop_a_row_of_a_complete_scan,
    set_the_latest_offset_back,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_one_change_in_a_random_history_is_found(corrupt: Callable[[History, random.Random], bool]) -> None:
    applied = 0
    for seed in range(12):
        history = Model(seed).run(STEPS)
        if corrupt(history, random.Random(seed)):
            applied += 1
            assert check(history), f"{corrupt.__name__} with seed {seed} was not found"
    assert applied >= (0 if corrupt is drop_a_row_of_a_complete_scan else 3)


def test_histories_are_saved_and_checked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = Model(3).run(STEPS)
    history.save(tmp_path / "good.npz")
    loaded = History.load(tmp_path / "good.npz")
    assert loaded.tables == history.tables
    assert loaded.process_count == history.process_count
    for name in ("writes", "final", "lookups", "sightings"):
        before, after = getattr(history, name).table(), getattr(loaded, name).table()
        assert all((before[column] == after[column]).all() for column in before)
    assert main([str(tmp_path / "good.npz")]) == 0
    assert replace_a_record(loaded, random.Random(1))
    loaded.save(tmp_path / "bad.npz")
    assert main([str(tmp_path / "bad.npz")]) == 1
    assert "10000000" in capsys.readouterr().out
    assert main([]) == 2


@pytest.mark.slow
def test_a_million_rows_are_checked_column_by_column() -> None:
    history = History()
    log, keys = history.new_table("m.log"), history.new_table("m.keys", has_key=True)
    writer, reader = history.new_process(), history.new_process()
    count = 200_000
    numbers = np.arange(count)
    history.end_write(history.begin_write(log, writer, numbers=numbers), Outcome.OK)
    history.saw(log, reader, start_ns=0, bucket=0, offsets=numbers, values=numbers, is_final=True)
    history.finish(log)
    numbers = numbers + count
    for first in range(0, count, count // 10):
        part = numbers[first : first + count // 10]
        history.end_write(
            history.begin_write(keys, writer, numbers=part, keys=part % 100_000, kind=Write.UPSERT), Outcome.OK
        )
        start_ns = history.now_ns()
        history.looked_up(keys, reader, start_ns=start_ns, keys=part % 100_000, values=part, others=part)
    before = np.where(numbers - 100_000 >= count, numbers - 100_000, ABSENT)
    is_new = before == ABSENT
    changes = np.stack([np.full(count, Change.UPDATE_BEFORE), np.where(is_new, Change.INSERT, Change.UPDATE_AFTER)], 1)
    rows = np.stack([before, numbers], 1)
    kept = np.stack([~is_new, np.ones(count, bool)], 1).ravel()
    values = rows.ravel()[kept]
    history.saw(
        keys,
        reader,
        start_ns=0,
        bucket=0,
        offsets=np.arange(values.size),
        changes=changes.ravel()[kept],
        keys=np.repeat(numbers % 100_000, 2)[kept],
        values=values,
        others=values,
        is_final=True,
    )
    last = numbers[-100_000:]
    history.finish(keys, keys=last % 100_000, values=last, others=last)
    began_s = time.process_time()
    assert check(history) == []
    # A loop over records would need a minute and more.
    assert time.process_time() - began_s < 30
