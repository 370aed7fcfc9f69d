"""What rounds of tiering have done: one object for each, a line for people, JSON for programs, a summary at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from fluss.amounts import format_bytes, format_count, format_duration, format_rate
from fluss.errors import FlussError
from fluss.options import without_passwords
from fluss.tiering.round_commit import RoundLostError
from fluss.tiering.rounds import RoundReport


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """A round that has ended. ``tiered``: rows or offsets were committed; ``idle``: there was nothing new; ``lost``:
    another service has the table; ``failed``: ``error`` says why, and the next round begins where this one did."""

    table: str
    state: Literal["tiered", "idle", "lost", "failed"]
    report: RoundReport | None = None
    error: str | None = None
    ended_s: float = field(default_factory=time.time)

    @classmethod
    def of(cls, report: RoundReport) -> RoundProgress:
        """Return the progress of a round that has ended well."""
        return cls(report.table, "idle" if report.snapshot_id is None else "tiered", report)

    @classmethod
    def of_error(cls, table: str, error: FlussError) -> RoundProgress:
        """Return the progress of a round that has brought nothing to the lake."""
        return cls(table, "lost" if isinstance(error, RoundLostError) else "failed", error=error.message)

    @classmethod
    def of_exception(cls, table: str, error: Exception) -> RoundProgress:
        """Return the progress of a round that has ended in an error of another library."""
        return cls(table, "failed", error=without_passwords(f"{type(error).__name__}: {error}"))

    @property
    def is_error(self) -> bool:
        """Whether the round has brought nothing to the lake although it should have."""
        return self.state == "failed"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it, with names in the manner of ``StreamingQueryProgress``."""
        fields: dict[str, Any] = {
            "name": self.table,
            "timestamp": datetime.fromtimestamp(self.ended_s, UTC).isoformat(timespec="milliseconds"),
            "state": self.state,
        }
        report = self.report
        if report is not None:
            fields |= {
                "numOutputRows": report.rows,
                "numDeletedRows": report.deleted_rows,
                "outputBytes": report.bytes,
                "dataFiles": report.data_files,
                "deleteFiles": report.delete_files,
                "processedRowsPerSecond": _rate(report.rows, report.seconds),
                "lagRows": report.lag_rows,
                "lagSeconds": report.lag_s,
                "numExpiredRows": report.expired_rows,
                "snapshotId": report.snapshot_id,
                "isComplete": report.is_complete,
                "tasks": report.tasks,
                "durationMs": {
                    "planning": round(report.plan_s * 1000),
                    "writing": round(report.write_s * 1000),
                    "commit": round(report.commit_s * 1000),
                    "total": round(report.seconds * 1000),
                },
            }
        if self.error is not None:
            fields["error"] = self.error
        return fields

    @property
    def json(self) -> str:
        """As JSON on one line."""
        return json.dumps(self.to_dict())

    @property
    def prettyJson(self) -> str:  # noqa: N802 - as StreamingQueryProgress calls it
        """As JSON for people."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        report = self.report
        if report is None:
            return f"{self.table}: {self.state}: {self.error}"
        if self.state == "idle":
            return f"{self.table}: nothing new"
        deleted = f", {format_count(report.deleted_rows, 'row')} replaced" if report.deleted_rows else ""
        files = format_count(report.data_files + report.delete_files, "file")
        lag = format_count(report.lag_rows, "row")
        expired = f", {format_count(report.expired_rows, 'row')} expired before" if report.expired_rows else ""
        age = "" if report.lag_s is None else f", {format_duration(report.lag_s)}"
        return (
            f"{self.table}: {format_count(report.rows, 'row')}{deleted} in {files} ({format_bytes(report.bytes)}) in "
            f"{format_duration(report.seconds)}, {format_rate(_rate(report.rows, report.seconds))}, "
            f"behind: {lag}{age}{expired}"
        )


@dataclass(slots=True)
class TableTotals:
    """All rounds of one table."""

    table: str
    rounds: int = 0
    failures: int = 0
    rows: int = 0
    deleted_rows: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    lag_rows: int = 0

    def add(self, progress: RoundProgress) -> None:
        """Add a round."""
        self.rounds += progress.state == "tiered"
        self.failures += progress.state in ("failed", "lost")
        report = progress.report
        if report is not None:
            self.rows += report.rows
            self.deleted_rows += report.deleted_rows
            self.files += report.data_files + report.delete_files
            self.bytes += report.bytes
            self.seconds += report.seconds
            self.lag_rows = report.lag_rows


@dataclass(frozen=True, slots=True)
class TieringReport:
    """What tiering has done since it began: the last rounds one by one, and the totals of each table."""

    tables: tuple[TableTotals, ...]
    rounds: tuple[RoundProgress, ...]
    seconds: float

    @classmethod
    def of(cls, rounds: Iterable[RoundProgress], seconds: float) -> TieringReport:
        """Sum rounds up."""
        ended = tuple(rounds)
        totals: dict[str, TableTotals] = {}
        for progress in ended:
            totals.setdefault(progress.table, TableTotals(progress.table)).add(progress)
        return cls(tuple(totals.values()), ended, seconds)

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why rounds have failed."""
        return tuple(f"{each.table}: {each.error}" for each in self.rounds if each.is_error)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as JSON has them."""
        return {"tables": [asdict(table) for table in self.tables], "rows": self.rows, "seconds": self.seconds}

    def __str__(self) -> str:
        lines = [
            f"{table.table}: {format_count(table.rows, 'row')} in {format_count(table.rounds, 'round')}, "
            f"{format_count(table.files, 'file')} ({format_bytes(table.bytes)}), behind: "
            f"{format_count(table.lag_rows, 'row')}"
            + (f", {format_count(table.failures, 'failure')}" if table.failures else "")
            for table in self.tables
        ]
        lines.append(
            f"tiered {format_count(self.rows, 'row')} of {format_count(len(self.tables), 'table')} in "
            f"{format_duration(self.seconds)}, {format_rate(_rate(self.rows, self.seconds))}"
        )
        return "\n".join(lines)


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0
