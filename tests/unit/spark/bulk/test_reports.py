"""Progress is counted, estimated and shown, and reports read well.

With a clock that is set by hand, and a stream in memory.
"""

from __future__ import annotations

import io

import pytest

from fluss.amounts import format_bytes, format_count, format_duration, format_scaled
from fluss.spark.bulk.reports import (
    BucketCheck,
    Checksum,
    CopyReport,
    Counted,
    ExportReport,
    LoadReport,
    Progress,
    ProgressWatch,
    TableCopyReport,
    TerminalLine,
    listener_of,
    quiet,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_amounts_have_three_digits_and_a_unit() -> None:
    assert [format_scaled(amount) for amount in (0, 999, 1234, 1_520_000, 20e9)] == [
        "0",
        "999",
        "1.23 k",
        "1.52 M",
        "20 G",
    ]
    assert [format_bytes(amount) for amount in (5, 1500)] == ["5 B", "1.5 kB"]
    assert [format_duration(seconds) for seconds in (0.42, 12.4, 200, 7500)] == [
        "0.4 s",
        "12 s",
        "3 min 20 s",
        "2 h 5 min",
    ]
    assert [format_count(count, "row") for count in (0, 1, 12000)] == ["0 rows", "1 row", "12,000 rows"]


def test_rate_and_rest_follow_from_what_this_run_has_done() -> None:
    progress = Progress("load", rows_done=600, rows_known=1000, rows_before=200, fraction=0.6, seconds=4.0)
    assert progress.rows_per_second == 100
    assert progress.seconds_left == pytest.approx(4.0)
    assert str(progress) == "load [############........]  60 %  600 of 1 k rows  100 rows/s  4.0 s left"


def test_without_known_rows_the_rest_follows_from_the_size() -> None:
    progress = Progress("load", rows_done=500, rows_known=None, rows_before=0, fraction=0.25, seconds=2.0)
    assert progress.seconds_left == pytest.approx(6.0)
    assert "500 rows" in str(progress)


def test_at_first_there_is_no_estimate() -> None:
    assert Progress("load", 10, 1000, 0, 0.01, 0.1).seconds_left is None
    assert Progress("load", 0, 1000, 0, 0.0, 5.0).seconds_left is None
    assert Progress("load", 0, 1000, 0, 0.0, 0.0).rows_per_second == 0


def test_a_listener_is_told_until_the_end() -> None:
    clock = Clock()
    told: list[Progress] = []
    watch = ProgressWatch("load", lambda: Counted(7, 0.5), told.append, rows_known=14, interval_s=3600, clock=clock)
    with watch:
        clock.now_s += 2
    assert told == [Progress("load", 7, 14, 0, 0.5, 2.0)]


def test_a_listener_that_fails_does_not_disturb_the_job(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_progress: Progress) -> None:
        raise RuntimeError("no paper")

    with ProgressWatch("load", lambda: Counted(0, 0.0), fail, interval_s=3600):
        pass
    assert "cannot be told" in caplog.text


def test_a_terminal_line_is_written_over_and_ended_once() -> None:
    stream = io.StringIO()
    line = TerminalLine(stream)
    line(Progress("load", 1000, 2000, 0, 0.5, 1.0))
    line(Progress("go", 1, 2, 0, 0.5, 0.1))
    line.close()
    line.close()
    first, second = stream.getvalue()[1:].split("\r")
    assert second.endswith("\n")
    assert stream.getvalue().count("\n") == 1
    # Nothing of the longer text is left.
    assert len(second.rstrip("\n")) == len(first)


def test_nothing_is_shown_unless_there_is_a_terminal() -> None:
    stream = io.StringIO()
    assert listener_of(None, stream) is quiet
    assert listener_of(False, stream) is quiet
    assert isinstance(listener_of(True, stream), TerminalLine)
    assert listener_of(quiet, stream) is quiet


def test_reports_say_what_was_done_and_how_fast() -> None:
    load = LoadReport(
        "sales.orders", files=4, rows=4_000_000, rows_found=1_000_000, bytes=229_000_000, tasks=4, seconds=2
    )
    assert load.rows_per_second == 1_500_000
    assert str(load) == (
        "loaded 4,000,000 rows from 4 files (229 MB) into sales.orders in 2.0 s, 1.5 M rows/s, 1,000,000 of them were "
        "there already"
    )
    export = ExportReport("sales.orders", "/tmp/x", files=1, rows=10, bytes=99, tasks=1, seconds=1)
    assert str(export) == "exported 10 rows of sales.orders to 1 file (99 B) in /tmp/x in 1.0 s, 10 rows/s"


def test_a_copy_report_has_a_line_for_each_table_and_their_sum() -> None:
    check = BucketCheck(None, 0, Checksum(10, 5), Checksum(10, 5))
    tables = (
        TableCopyReport("a.x", "b.x", 0, rows=10, rows_found=0, checks=(check,), seconds=1),
        TableCopyReport("a.y", "b.y", 2, rows=20, rows_found=5, checks=None, seconds=1),
    )
    assert str(CopyReport(tables, 2.0)).splitlines() == [
        "copied 10 rows from a.x to b.x in 1.0 s, 10 rows/s, 1 bucket compared",
        "copied 20 rows in 2 partitions from a.y to b.y in 1.0 s, 15 rows/s, not compared, "
        "5 of them were there already",
        "copied 2 tables with 30 rows in 2.0 s, 12 rows/s",
    ]


def test_a_difference_is_said_with_both_sides() -> None:
    check = BucketCheck("mon", 3, Checksum(10, 5), Checksum(9, 5))
    assert not check.is_equal
    assert "bucket 3 of 'mon': the source has 10 rows" in str(check)
