"""What clients did to tables, and what they saw: the record that ``fluss.testing.history_checker`` judges.

    history = History()
    table, writer, reader = history.new_table("shop.orders"), history.new_process(), history.new_process()
    operation = history.begin_write(table, writer, numbers=[1, 2, 3])
    await handle.wait()
    history.end_write(operation, Outcome.OK)
    ...
    findings = check(history)

Rows are numbers. Each written row carries one that no other write of the history carries, a delete too, so that a row
that is read says which write it came from. A row of a log table is its number. A row of a table with a primary key has
a key and two columns, ``value`` and ``other``: a whole upsert puts its number into both, a partial one into the column
it writes. How they are spelled in the real table is the matter of the program under test.

A process is one writer, or one reader: its operations are recorded in the order in which they were begun. Times are
those of ``now_ns``, which all processes of a machine share. Columns are arrays of integers: millions of rows are fine.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
# What may be given for a column: one number for all rows, or one each.
Column: TypeAlias = "int | Iterable[int] | Numbers"

# The end of an operation whose outcome is not known: it may have happened, and may still happen.
NEVER_NS: Final = 2**63 - 1
# The value of a row that is not there, and of a column that is null.
ABSENT: Final = -1
# The value of a row that came back with other bytes than were written.
DAMAGED: Final = -2
NO_KEY: Final = -1


class Outcome(IntEnum):
    """What a client knows about its operation."""

    OK = 0
    # Refused for certain: nothing of it may ever be seen.
    FAILED = 1
    # No answer, or one that does not tell: it happened or not, but not in part and not twice.
    UNKNOWN = 2


class Write(IntEnum):
    """What a write does to its row."""

    APPEND = 0
    UPSERT = 1
    # Partial updates, of the one column and of the other.
    VALUE = 2
    OTHER = 3
    DELETE = 4


class Change(IntEnum):
    """The kind of a record of a log or changelog; ``Change.of`` takes the short form, such as "-U"."""

    APPEND = 0
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

    @classmethod
    def of(cls, short: str) -> Change:
        return cls(("+A", "+I", "-U", "+U", "-D").index(short))


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A table from its creation to its drop. One that is made again under the same name is another."""

    number: int
    name: str
    has_key: bool

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"


class Columns:
    """Rows of integers that only grow, by column."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._arrays = {name: array("q") for name in names}

    def __len__(self) -> int:
        return len(self._arrays[self.names[0]])

    def add(self, **values: Column) -> int:
        """Add rows: numbers stand for all of them, arrays have one each. Returns how many."""
        if all(isinstance(value, int) for value in values.values()):
            for name in self.names:
                self._arrays[name].append(values[name])  # type: ignore[arg-type]  # all are integers
            return 1
        columns = np.broadcast_arrays(*(_as_numbers(values[name]) for name in self.names))
        for name, column in zip(self.names, columns, strict=True):
            self._arrays[name].frombytes(np.ascontiguousarray(column, np.int64).tobytes())
        return int(columns[0].size)

    def set(self, row: int, **values: int) -> None:
        for name, value in values.items():
            self._arrays[name][row] = value

    def table(self, mask: npt.NDArray[np.bool_] | None = None) -> dict[str, Numbers]:
        """Return the columns as arrays of their own, all rows or some."""
        found = {name: np.array(column, np.int64) for name, column in self._arrays.items()}
        return found if mask is None else {name: column[mask] for name, column in found.items()}

    def of_table(self, number: int) -> dict[str, Numbers]:
        """Return the rows whose column ``table`` has the number."""
        return self.table(np.array(self._arrays["table"], np.int64) == number)

    def replace(self, table: Mapping[str, Numbers]) -> None:
        """Have these rows and no others."""
        self._arrays = {name: array("q", table[name].tobytes()) for name in self.names}


_SEEN: Final = ("table", "process", "session", "start_ns", "end_ns", "bucket", "offset", "change", "key", "value")


class History:
    """Everything that was recorded. One thread at a time."""

    def __init__(self) -> None:
        self.tables: list[RecordedTable] = []
        self.process_count = 0
        self.operations = Columns("table", "process", "start_ns", "end_ns", "outcome")
        self.writes = Columns("table", "operation", "kind", "key", "number")
        # Records that readers saw while things went on, and the whole log as it was at the end.
        self.seen = Columns(*_SEEN, "other")
        self.final = Columns(*_SEEN, "other")
        # Rows by key: lookups, and the rows of scans. ``scan`` is a number of ``scans`` or ABSENT.
        self.lookups = Columns("table", "process", "start_ns", "end_ns", "scan", "key", "value", "other")
        self.scans = Columns("table", "process", "start_ns", "end_ns", "is_complete", "is_snapshot")
        self.final_rows = Columns("table", "key", "value", "other")
        # Tables whose whole log, and rows if it has a key, were read when nothing was written any more.
        self.finished = Columns("table")
        # Latest offsets that a server told.
        self.latest = Columns("table", "process", "start_ns", "end_ns", "bucket", "offset")
        # Creations and drops of tables, and whether a name was there: the number of the table, or ABSENT.
        self.ddl = Columns("table", "process", "start_ns", "end_ns", "outcome", "is_drop")
        self.sightings = Columns("name", "process", "start_ns", "end_ns", "table")
        self._names: list[str] = []

    @staticmethod
    def now_ns() -> int:
        """Return the time: monotonic, and the same for all processes of this machine."""
        return time.monotonic_ns()

    # Who and what

    def new_table(self, name: str, *, has_key: bool = False) -> int:
        """Return the number of a table that is about to be created."""
        self.tables.append(RecordedTable(len(self.tables), name, has_key))
        return len(self.tables) - 1

    def new_process(self) -> int:
        """Return the number of a new writer or reader."""
        self.process_count += 1
        return self.process_count - 1

    def name_number(self, name: str) -> int:
        """Return the number under which sightings of a name are recorded."""
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def name_of(self, number: int) -> str:
        return self._names[number]

    # What clients do

    def begin_write(
        self, table: int, process: int, *, numbers: Column, keys: Column = NO_KEY, kind: Write = Write.APPEND
    ) -> int:
        """Record rows that are about to be sent; returns the operation. Until it ends its outcome is unknown."""
        operation = len(self.operations)
        self.operations.add(
            table=table, process=process, start_ns=self.now_ns(), end_ns=NEVER_NS, outcome=int(Outcome.UNKNOWN)
        )
        self.writes.add(table=table, operation=operation, kind=int(kind), key=keys, number=numbers)
        return operation

    def end_write(self, operation: int, outcome: Outcome) -> None:
        """Record what became of it. An operation that failed or is unknown has no end that others could rely on."""
        end_ns = self.now_ns() if outcome is Outcome.OK else NEVER_NS
        self.operations.set(operation, end_ns=end_ns, outcome=int(outcome))

    def saw(
        self,
        table: int,
        process: int,
        *,
        start_ns: int,
        bucket: int,
        offsets: Column,
        values: Column,
        changes: Column = int(Change.APPEND),
        keys: Column = NO_KEY,
        others: Column = ABSENT,
        session: int = 0,
        is_final: bool = False,
    ) -> None:
        """Record what a reader got, in the order it got it; ``start_ns`` is when it began to ask.

        A session is one subscription: inside it offsets only grow, without gaps in a log table. ``is_final`` is for
        one reading of the whole log when nothing is written any more.
        """
        (self.final if is_final else self.seen).add(
            table=table,
            process=process,
            session=session,
            start_ns=start_ns,
            end_ns=self.now_ns(),
            bucket=bucket,
            offset=offsets,
            change=changes,
            key=keys,
            value=values,
            other=others,
        )

    def looked_up(
        self, table: int, process: int, *, start_ns: int, keys: Column, values: Column, others: Column = ABSENT
    ) -> None:
        """Record the answers of lookups; a row that was not there has the value ABSENT."""
        self.lookups.add(
            table=table,
            process=process,
            start_ns=start_ns,
            end_ns=self.now_ns(),
            scan=ABSENT,
            key=keys,
            value=values,
            other=others,
        )

    def scanned(
        self,
        table: int,
        process: int,
        *,
        start_ns: int,
        keys: Column,
        values: Column,
        others: Column = ABSENT,
        is_complete: bool = True,
        is_snapshot: bool = True,
    ) -> None:
        """Record the rows of a scan: all there are unless a limit was set, and of one moment per bucket or not."""
        scan, end_ns = len(self.scans), self.now_ns()
        self.scans.add(
            table=table,
            process=process,
            start_ns=start_ns,
            end_ns=end_ns,
            is_complete=int(is_complete),
            is_snapshot=int(is_snapshot),
        )
        self.lookups.add(
            table=table,
            process=process,
            start_ns=start_ns,
            end_ns=end_ns,
            scan=scan,
            key=_as_numbers(keys),
            value=values,
            other=others,
        )

    def saw_latest(self, table: int, process: int, *, start_ns: int, offsets: Mapping[int, int]) -> None:
        """Record the latest offsets of buckets that a server told."""
        for bucket, offset in offsets.items():
            self.latest.add(
                table=table, process=process, start_ns=start_ns, end_ns=self.now_ns(), bucket=bucket, offset=offset
            )

    def changed_table(self, table: int, process: int, *, start_ns: int, outcome: Outcome, is_drop: bool) -> None:
        """Record the creation or the drop of a table."""
        end_ns = self.now_ns() if outcome is Outcome.OK else NEVER_NS
        self.ddl.add(
            table=table, process=process, start_ns=start_ns, end_ns=end_ns, outcome=int(outcome), is_drop=int(is_drop)
        )

    def saw_table(self, name: str, process: int, *, start_ns: int, table: int) -> None:
        """Record which table was found under a name, or ABSENT."""
        self.sightings.add(
            name=self.name_number(name), process=process, start_ns=start_ns, end_ns=self.now_ns(), table=table
        )

    def finish(self, table: int, *, keys: Column = (), values: Column = (), others: Column = ()) -> None:
        """Record that the log of a table was read as a whole, with ``is_final``, and the rows by key that it has.

        Of tables that are not finished, as they were dropped, only what was seen on the way is checked.
        """
        self.finished.add(table=table)
        self.final_rows.add(table=table, key=_as_numbers(keys), value=values, other=others)

    # Files

    def save(self, path: Path) -> None:
        """Write everything to one file, to find out from it why a check failed."""
        parts = {f"{part}.{name}": column for part, rows in self._parts() for name, column in rows.table().items()}
        facts = {
            "tables": [(table.name, table.has_key) for table in self.tables],
            "names": self._names,
            "process_count": self.process_count,
        }
        with path.open("wb") as file:
            np.savez_compressed(file, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **parts)  # type: ignore[arg-type]  # numpy's own stub takes the names for options

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return what ``save`` has written."""
        history = cls()
        with np.load(path) as stored:
            facts = json.loads(stored["facts"].tobytes())
            history.tables = [RecordedTable(i, name, has_key) for i, (name, has_key) in enumerate(facts["tables"])]
            history._names = facts["names"]
            history.process_count = facts["process_count"]
            for part, rows in history._parts():
                rows.replace({name: stored[f"{part}.{name}"] for name in rows.names})
        return history

    def _parts(self) -> list[tuple[str, Columns]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Columns)]


def _as_numbers(value: Column) -> Numbers:
    if isinstance(value, int | np.ndarray):
        return np.asarray(value, np.int64)
    return np.fromiter(value, np.int64)
