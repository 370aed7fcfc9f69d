"""Judge a history: was everything kept that a server promises?

    findings = check(history)
    assert not findings, "\\n".join(map(str, findings))

What is promised is written at the top of each module of ``fluss.testing.history_checks``; and of names of tables: a
created table is found until its drop begins, and a dropped one is not found any more. That nothing of a dropped table
is in the next one of its name follows from the numbers of rows, which say where they were written.
 The checks look at columns,
not at rows: a million operations take seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fluss.testing.history import ABSENT, NEVER_NS, History, Numbers, Outcome
from fluss.testing.history_checks.findings import Finding, Findings, Violation
from fluss.testing.history_checks.key_tables import check_key_table
from fluss.testing.history_checks.log_tables import check_log_table
from fluss.testing.history_checks.written import WrittenRows, check_origin


def check_table_names(history: History, findings: Findings) -> None:
    """Check which tables were found under names."""
    sightings = history.sightings.table()
    created_ns, drop_begun_ns, dropped_ns = _lives(history)
    # By name, as a sighting is of a name.
    named: dict[str, list[int]] = {}
    for table in history.tables:
        named.setdefault(table.name, []).append(table.number)
    size = sightings["table"].size
    is_lost, is_undead, expected = np.zeros(size, np.bool_), np.zeros(size, np.bool_), np.full(size, ABSENT)
    for name, numbers in named.items():
        is_here = sightings["name"] == history.name_number(name)
        for number in numbers:
            should_be = is_here & (created_ns[number] < sightings["start_ns"])
            should_be &= drop_begun_ns[number] > sightings["end_ns"]
            missing = should_be & (sightings["table"] != number)
            expected[missing] = number
            is_lost |= missing
            is_undead |= is_here & (sightings["table"] == number) & (dropped_ns[number] < sightings["start_ns"])
    findings.add(
        Violation.TABLE_LOST,
        is_lost,
        lambda i: (
            f"{history.tables[expected[i]]} had been created, and process {sightings['process'][i]} found "
            + ("no table of this name" if sightings["table"][i] == ABSENT else "another table of this name")
        ),
    )
    findings.add(
        Violation.TABLE_UNDEAD,
        is_undead,
        lambda i: (
            f"{history.tables[sightings['table'][i]]} had been dropped, and process {sightings['process'][i]} found it"
        ),
    )


def _lives(history: History) -> tuple[Numbers, Numbers, Numbers]:
    """Return for each table when it was there for certain, when its drop began, and when it was gone for certain."""
    ddl, count = history.ddl.table(), len(history.tables)
    created_ns, drop_begun_ns, dropped_ns = (np.full(count, NEVER_NS) for _ in range(3))
    is_drop, is_ok = ddl["is_drop"] == 1, ddl["outcome"] == Outcome.OK
    created_ns[ddl["table"][~is_drop & is_ok]] = ddl["end_ns"][~is_drop & is_ok]
    # A drop may be tried several times; what counts is when the first attempt began.
    np.minimum.at(drop_begun_ns, ddl["table"][is_drop], ddl["start_ns"][is_drop])
    np.minimum.at(dropped_ns, ddl["table"][is_drop & is_ok], ddl["end_ns"][is_drop & is_ok])
    return created_ns, drop_begun_ns, dropped_ns


def check_unfinished(history: History, written: WrittenRows, table: int, findings: Findings) -> None:
    """Check what was seen of a table that is gone: that it was written there."""
    names = [str(recorded) for recorded in history.tables]
    for how, rows in (("a reader", history.seen.of_table(table)), ("a lookup", history.lookups.of_table(table))):
        numbers = np.maximum(rows["value"], rows["other"])
        numbers = np.where((rows["value"] == ABSENT) & (rows["other"] < 0), ABSENT, numbers)
        numbers = numbers[numbers != ABSENT]
        check_origin(findings, table, names, written, written.rows_of(numbers), numbers, how)


__all__ = ["Finding", "Violation", "check"]


def check(history: History) -> list[Finding]:
    """Return what contradicts the promises; nothing if all is well."""
    written = WrittenRows.of(history)
    finished = set(history.finished.table()["table"].tolist())
    found: list[Finding] = []
    for table in history.tables:
        findings = Findings(str(table))
        if table.number not in finished:
            check_unfinished(history, written, table.number, findings)
        elif table.has_key:
            check_key_table(history, written, table.number, findings)
        else:
            check_log_table(history, written, table.number, findings)
        found += findings.found
    findings = Findings("the catalog")
    check_table_names(history, findings)
    return found + findings.found


def main(arguments: list[str]) -> int:
    """Check the file of a history again: ``python -m fluss.testing.history_checker history.npz``."""
    if len(arguments) != 1:
        print("usage: python -m fluss.testing.history_checker HISTORY.npz", file=sys.stderr)
        return 2
    findings = check(History.load(Path(arguments[0])))
    print("\n".join(map(str, findings)) or "nothing is wrong with it")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
