"""What must hold in a log table, and for every log, the changelog of a table with a primary key too.

A log table:

- every acknowledged row is there exactly once, no row is there twice, none that was not sent or was refused;
- offsets have no gaps.

Every log:

- the rows of one writer in a bucket are in the order in which they were sent, and a row that was sent after another
  one was acknowledged comes after it;
- what a reader saw is there in the end, at its offset; a reader sees offsets in order, and no row before it was sent;
- the latest offset never goes back, is beyond every row that was acknowledged or seen before it was asked for, and not
  beyond rows that were sent after it was told.
"""

from __future__ import annotations

import numpy as np

from fluss.testing.history import History, Numbers, Outcome, Write
from fluss.testing.history_checks.findings import Findings, Violation
from fluss.testing.history_checks.written import WrittenRows, check_origin, largest_before, rows_where, starts_of_runs

# Offsets of one bucket and those of the next share an integer.
_OFFSETS_MAX = 2**40


def check_log_table(history: History, written: WrittenRows, table: int, findings: Findings) -> None:
    """Check one log table."""
    final, seen = history.final.of_table(table), history.seen.of_table(table)
    names = [str(recorded) for recorded in history.tables]
    rows = written.rows_of(final["value"])
    check_origin(findings, table, names, written, rows, final["value"], "reading the log")
    check_origin(findings, table, names, written, written.rows_of(seen["value"]), seen["value"], "a reader on its way")
    _check_exactly_once(written, table, final, findings)
    is_known = rows >= 0
    known = {name: column[is_known] for name, column in final.items()}
    check_order(written, rows[is_known], known, findings)
    check_sessions(final, findings, is_dense=True)
    check_sessions(seen, findings, is_dense=True)
    check_seen(written, final, seen, seen["value"], findings)
    check_latest(history, written, table, known, rows[is_known], findings)


def _check_exactly_once(written: WrittenRows, table: int, final: dict[str, Numbers], findings: Findings) -> None:
    numbers, counts = np.unique(final["value"], return_counts=True)
    findings.add(Violation.DOUBLED, counts > 1, lambda i: f"{numbers[i]} is there {counts[i]} times")
    is_expected = (written.table == table) & (written.outcome == Outcome.OK) & (written.kind == Write.APPEND)
    is_lost = is_expected & (rows_where(numbers, written.number) < 0)
    findings.add(
        Violation.LOST,
        is_lost,
        lambda i: f"{written.number[i]} of process {written.process[i]} was acknowledged and is not there",
    )


def check_order(written: WrittenRows, rows: Numbers, final: dict[str, Numbers], findings: Findings) -> None:
    """Check the order of rows in buckets, by writer and by time; ``rows`` are the writes of the final records."""
    bucket, offset, process = final["bucket"], final["offset"], written.process[rows]
    order = np.lexsort((offset, process, bucket))
    sequence = written.sequence[rows][order]
    is_same_writer = ~starts_of_runs(bucket[order], process[order])
    is_back = np.zeros(order.size, np.bool_)
    is_back[1:] = is_same_writer[1:] & (sequence[1:] < sequence[:-1])

    def describe(i: int) -> str:
        before, after = order[i - 1], order[i]
        return (
            f"process {process[after]}: {final['value'][after]} at offset {offset[after]} of bucket {bucket[after]} "
            f"follows {final['value'][before]}, which was sent later"
        )

    findings.add(Violation.WRITER_ORDER, is_back, describe)
    start_ns, end_ns = written.start_ns[rows], written.end_ns[rows]
    latest = largest_before(bucket, end_ns, offset, bucket, start_ns)
    findings.add(
        Violation.REAL_TIME_ORDER,
        latest > offset,
        lambda i: (
            f"{final['value'][i]} is at offset {offset[i]} of bucket {bucket[i]}, but was sent after the row at "
            f"{latest[i]} was acknowledged"
        ),
    )


def check_sessions(seen: dict[str, Numbers], findings: Findings, *, is_dense: bool) -> None:
    """Check that each subscription got offsets in order, without gaps if the log has none."""
    order = np.lexsort((np.arange(seen["offset"].size), seen["bucket"], seen["session"], seen["process"]))
    offset = seen["offset"][order]
    is_next = ~starts_of_runs(seen["process"][order], seen["session"][order], seen["bucket"][order])
    step = np.ones(offset.size, np.int64)
    step[1:] = np.where(is_next[1:], np.diff(offset), 1)

    def describe(i: int) -> str:
        return (
            f"process {seen['process'][order[i]]} got offset {offset[i]} of bucket {seen['bucket'][order[i]]} "
            f"after {offset[i - 1]}"
        )

    findings.add(Violation.OFFSET_ORDER, step < 1, describe)
    if is_dense:
        findings.add(Violation.OFFSET_GAP, step > 1, describe)


def check_seen(
    written: WrittenRows, final: dict[str, Numbers], seen: dict[str, Numbers], numbers: Numbers, findings: Findings
) -> None:
    """Check that what was seen is there in the end; ``numbers`` says which write each seen record came from."""
    places = final["bucket"] * _OFFSETS_MAX + final["offset"]
    order = np.argsort(places, kind="stable")
    found = rows_where(places[order], seen["bucket"] * _OFFSETS_MAX + seen["offset"])
    # What has expired meanwhile cannot be compared; what came first is known only of a bucket that is not empty.
    buckets, firsts = _first_offsets(final)
    bucket_places = rows_where(buckets, seen["bucket"])
    is_expired = (bucket_places >= 0) & (seen["offset"] < firsts[bucket_places]) if firsts.size else found == -2
    is_other = np.zeros(found.size, np.bool_)
    if order.size:
        at = order[found]
        for column in ("change", "key", "value", "other"):
            is_other |= final[column][at] != seen[column]
    is_unseen = ~is_expired & ((found < 0) | is_other)
    findings.add(
        Violation.UNSEEN,
        is_unseen,
        lambda i: (
            f"process {seen['process'][i]} saw {seen['value'][i]} at offset {seen['offset'][i]} of bucket "
            f"{seen['bucket'][i]}, and now "
            + ("nothing is there" if found[i] < 0 else f"{final['value'][order[found[i]]]} is there")
        ),
    )
    rows = written.rows_of(numbers)
    if written.number.size:
        findings.add(
            Violation.SEEN_BEFORE_WRITTEN,
            (rows >= 0) & (seen["end_ns"] < written.start_ns[rows]),
            lambda i: f"process {seen['process'][i]} saw {numbers[i]} before it was sent",
        )


def _first_offsets(final: dict[str, Numbers]) -> tuple[Numbers, Numbers]:
    order = np.lexsort((final["offset"], final["bucket"]))
    buckets, firsts = np.unique(final["bucket"][order], return_index=True)
    return buckets, final["offset"][order][firsts]


def check_latest(
    history: History,
    written: WrittenRows,
    table: int,
    final: dict[str, Numbers],
    rows: Numbers,
    findings: Findings,
) -> None:
    """Check the latest offsets that servers told against rows, readers and each other.

    ``rows`` are the writes of the final records, and -1 where a record is not the row of one.
    """
    told, seen = history.latest.of_table(table), history.seen.of_table(table)
    if not told["offset"].size:
        return
    is_row = rows >= 0
    row_bucket, row_offset = final["bucket"][is_row], final["offset"][is_row]
    row_start_ns, row_end_ns = written.start_ns[rows[is_row]], written.end_ns[rows[is_row]]
    for what, bucket, end_ns, least in (
        ("a row before it had been acknowledged", row_bucket, row_end_ns, row_offset + 1),
        ("a row before it had been seen", seen["bucket"], seen["end_ns"], seen["offset"] + 1),
        ("it had been told as the latest offset", told["bucket"], told["end_ns"], told["offset"]),
    ):
        largest = largest_before(bucket, end_ns, least, told["bucket"], told["start_ns"])
        findings.add(
            Violation.HIGH_WATERMARK,
            largest > told["offset"],
            lambda i, what=what, largest=largest: (  # type: ignore[misc]  # mypy has no types for bound defaults
                f"process {told['process'][i]} was told {told['offset'][i]} as the latest offset of bucket "
                f"{told['bucket'][i]}, which must be at least {largest[i]}, because {what}"
            ),
        )
    largest = largest_before(told["bucket"], told["end_ns"], told["offset"], row_bucket, row_start_ns)
    findings.add(
        Violation.HIGH_WATERMARK,
        largest > row_offset,
        lambda i: (
            f"a row at offset {row_offset[i]} of bucket {row_bucket[i]} was sent after {largest[i]} had been told as "
            "the latest offset"
        ),
    )
