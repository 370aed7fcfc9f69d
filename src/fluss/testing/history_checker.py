"""Judge a history: was everything kept that a server promises?

    findings = check(history)
    assert not findings, "\\n".join(map(str, findings))

What is promised is written at the top of each module of ``fluss.testing.history_checks``. The checks look at columns,
not at rows: a million operations take seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fluss.testing.history import History
from fluss.testing.history_checks.findings import Finding, Findings, Violation
from fluss.testing.history_checks.key_tables import check_key_table
from fluss.testing.history_checks.log_tables import check_log_table
from fluss.testing.history_checks.table_names import check_table_names, check_unfinished
from fluss.testing.history_checks.written import WrittenRows

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
