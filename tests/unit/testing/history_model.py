"""Histories of a server that keeps its promises: random clients against a model, with a clock that counts steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fluss.testing.history import ABSENT, Change, History, Outcome, Write

BUCKETS = 2
KEYS = 6


class SteppedHistory(History):
    """A history whose clock is told what time it is."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_ns = 1

    def now_ns(self) -> int:
        return self.clock_ns


@dataclass
class ModelTable:
    """One table of the model: the log of each bucket, and the rows by key."""

    number: int
    has_key: bool
    log: list[list[tuple[int, int, int, int, int]]] = field(default_factory=lambda: [[] for _ in range(BUCKETS)])
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)

    def put(self, bucket: int, *records: tuple[Change, int, int, int]) -> None:
        log = self.log[bucket]
        # A batch that changes nothing takes an offset all the same.
        offset = log[-1][0] + 1 if log else 0
        for step, record in enumerate(records):
            log.append((offset + step, *record))

    def write(self, kind: Write, key: int, number: int, bucket: int) -> None:
        if kind is Write.APPEND:
            self.put(bucket, (Change.APPEND, -1, number, ABSENT))
            return
        before = self.rows.get(key)
        if kind is Write.DELETE:
            if before is not None:
                del self.rows[key]
                self.put(bucket, (Change.DELETE, key, *before))
            return
        value, other = before or (ABSENT, ABSENT)
        after = (value if kind is Write.OTHER else number, other if kind is Write.VALUE else number)
        self.rows[key] = after
        if before is None:
            self.put(bucket, (Change.INSERT, key, *after))
        else:
            self.put(bucket, (Change.UPDATE_BEFORE, key, *before), (Change.UPDATE_AFTER, key, *after))


class Model:
    """Clients whose operations begin, happen and end in steps that others come in between."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = SteppedHistory()
        self.tables: dict[int, ModelTable] = {}
        self._number = 0
        # What each client does next; clients take turns at random.
        self._next: dict[int, Callable[[], None]] = {}
        self._positions: dict[tuple[int, int], int] = {}

    def run(self, steps: int) -> SteppedHistory:
        log, keyed = self._create("m.log", has_key=False), self._create("m.keys", has_key=True)
        for table in (log, keyed):
            for begin in (self._begin_write, self._begin_write, self._begin_read, self._begin_latest):
                self._add_client(table, begin)
        for begin in (self._begin_lookup, self._begin_lookup, self._begin_scan):
            self._add_client(keyed, begin)
        for _ in range(steps):
            self.history.clock_ns += self.rng.randint(0, 2)
            self._next[self.rng.choice(list(self._next))]()
        self._finish(log)
        self._finish(keyed)
        return self.history

    def _create(self, name: str, *, has_key: bool) -> ModelTable:
        number = self.history.new_table(name, has_key=has_key)
        self.tables[number] = ModelTable(number, has_key)
        self.history.changed_table(number, self.history.new_process(), start_ns=0, outcome=Outcome.OK, is_drop=False)
        return self.tables[number]

    def _add_client(self, table: ModelTable, begin: Callable[[ModelTable, int], None]) -> None:
        process = self.history.new_process()
        self._next[process] = lambda: begin(table, process)

    def _in_steps(self, process: int, again: Callable[[], None], *steps: Callable[[], None]) -> None:
        """Do one step at each turn, and then begin again."""
        if not steps:
            self._next[process] = again
            return

        def do_first() -> None:
            steps[0]()
            self._in_steps(process, again, *steps[1:])

        self._next[process] = do_first

    def _begin_write(self, table: ModelTable, process: int) -> None:
        self._number += 1
        number, bucket, key = self._number, self.rng.randrange(BUCKETS), -1
        kind = Write.APPEND
        if table.has_key:
            key = self.rng.randrange(KEYS)
            bucket = key % BUCKETS
            kind = self.rng.choice([Write.UPSERT, Write.UPSERT, Write.VALUE, Write.OTHER, Write.DELETE])
        operation = self.history.begin_write(table.number, process, numbers=[number], keys=[key], kind=kind)
        outcome = self.rng.choice([Outcome.OK] * 8 + [Outcome.FAILED, Outcome.UNKNOWN])
        happens = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5)
        again = self._next[process]
        self._in_steps(
            process,
            again,
            lambda: table.write(kind, key, number, bucket) if happens else None,
            lambda: self.history.end_write(operation, outcome),
        )

    def _begin_read(self, table: ModelTable, process: int) -> None:
        start_ns, bucket = self.history.now_ns(), self.rng.randrange(BUCKETS)
        seen: list[tuple[int, int, int, int, int]] = []

        def read() -> None:
            position = self._positions.get((process, bucket), 0)
            seen.extend(table.log[bucket][position : position + 5])
            self._positions[process, bucket] = position + len(seen)

        self._in_steps(
            process, self._next[process], read, lambda: self._saw(table, process, bucket, seen, start_ns=start_ns)
        )

    def _saw(
        self,
        table: ModelTable,
        process: int,
        bucket: int,
        seen: list[tuple[int, int, int, int, int]],
        *,
        start_ns: int,
        is_final: bool = False,
    ) -> None:
        offsets, changes, keys, values, others = zip(*seen, strict=True) if seen else ((),) * 5
        self.history.saw(
            table.number,
            process,
            start_ns=start_ns,
            bucket=bucket,
            offsets=offsets,
            changes=changes,
            keys=keys,
            values=values,
            others=others,
            is_final=is_final,
        )

    def _begin_latest(self, table: ModelTable, process: int) -> None:
        start_ns = self.history.now_ns()
        ends: dict[int, int] = {}

        def look() -> None:
            ends.update({bucket: log[-1][0] + 1 if log else 0 for bucket, log in enumerate(table.log)})

        self._in_steps(
            process,
            self._next[process],
            look,
            lambda: self.history.saw_latest(table.number, process, start_ns=start_ns, offsets=ends),
        )

    def _begin_lookup(self, table: ModelTable, process: int) -> None:
        start_ns, key = self.history.now_ns(), self.rng.randrange(KEYS)
        found: list[tuple[int, int]] = []

        def end() -> None:
            value, other = found[0]
            self.history.looked_up(table.number, process, start_ns=start_ns, keys=[key], values=[value], others=[other])

        self._in_steps(process, self._next[process], lambda: found.append(table.rows.get(key, (ABSENT, ABSENT))), end)

    def _begin_scan(self, table: ModelTable, process: int) -> None:
        start_ns = self.history.now_ns()
        found: dict[int, tuple[int, int]] = {}
        is_complete = self.rng.random() < 0.7

        def look(bucket: int) -> None:
            rows = {key: row for key, row in table.rows.items() if key % BUCKETS == bucket}
            found.update(rows if is_complete else dict(list(rows.items())[:2]))

        def end() -> None:
            self.history.scanned(
                table.number,
                process,
                start_ns=start_ns,
                keys=list(found),
                values=[value for value, _ in found.values()],
                others=[other for _, other in found.values()],
                is_complete=is_complete,
            )

        # Each bucket is of one moment, and not of the same one.
        self._in_steps(process, self._next[process], lambda: look(0), lambda: look(1), end)

    def _finish(self, table: ModelTable) -> None:
        self.history.clock_ns += 1
        process = self.history.new_process()
        for bucket, log in enumerate(table.log):
            self._saw(table, process, bucket, log, start_ns=self.history.now_ns(), is_final=True)
        self.history.finish(
            table.number,
            keys=list(table.rows),
            values=[value for value, _ in table.rows.values()],
            others=[other for _, other in table.rows.values()],
        )
