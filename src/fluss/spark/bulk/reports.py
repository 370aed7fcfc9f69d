"""What bulk jobs say when they are done."""

from __future__ import annotations

from dataclasses import dataclass

from fluss.spark.bulk.checksums import Checksum
from fluss.spark.bulk.progress import format_bytes, format_count, format_duration, format_rate


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A finished load."""

    table: str
    files: int
    rows: int
    """All rows of the files, those of earlier runs included."""
    rows_found: int
    """Rows that an earlier attempt or run had written already."""
    bytes: int
    tasks: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rows that this run has written, over all of its time."""
        return _rate(self.rows - self.rows_found, self.seconds)

    def __str__(self) -> str:
        found = f", {self.rows_found:,} of them were there already" if self.rows_found else ""
        return (
            f"loaded {format_count(self.rows, 'row')} from {format_count(self.files, 'file')} "
            f"({format_bytes(self.bytes)}) into {self.table} in {format_duration(self.seconds)}, "
            f"{format_rate(self.rows_per_second)}{found}"
        )


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A finished export."""

    table: str
    path: str
    files: int
    rows: int
    bytes: int
    tasks: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """All rows over all time."""
        return _rate(self.rows, self.seconds)

    def __str__(self) -> str:
        return (
            f"exported {format_count(self.rows, 'row')} of {self.table} to {format_count(self.files, 'file')} "
            f"({format_bytes(self.bytes)}) in {self.path} in {format_duration(self.seconds)}, "
            f"{format_rate(self.rows_per_second)}"
        )


@dataclass(frozen=True, slots=True)
class BucketCheck:
    """One bucket of a copy: what is in the source, and what is in the target."""

    partition: str | None
    bucket: int
    source: Checksum
    target: Checksum

    @property
    def is_equal(self) -> bool:
        """Whether they have the same rows."""
        return self.source == self.target

    def __str__(self) -> str:
        where = f"bucket {self.bucket}" if self.partition is None else f"bucket {self.bucket} of '{self.partition}'"
        if self.is_equal:
            return f"{where}: {self.source}"
        return f"{where}: the source has {self.source}, the target has {self.target}"


@dataclass(frozen=True, slots=True)
class TableCopyReport:
    """A finished copy of one table."""

    source: str
    target: str
    partitions: int
    rows: int
    """All rows, those of earlier runs included."""
    rows_found: int
    """Rows that an earlier run had copied already."""
    checks: tuple[BucketCheck, ...] | None
    """What was compared, bucket by bucket; None if that was not wanted."""
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rows that this run has copied, over all of its time, comparing included."""
        return _rate(self.rows - self.rows_found, self.seconds)

    def __str__(self) -> str:
        found = f", {self.rows_found:,} of them were there already" if self.rows_found else ""
        partitions = f" in {format_count(self.partitions, 'partition')}" if self.partitions else ""
        checked = "not compared" if self.checks is None else f"{format_count(len(self.checks), 'bucket')} compared"
        return (
            f"copied {format_count(self.rows, 'row')}{partitions} from {self.source} to {self.target} in "
            f"{format_duration(self.seconds)}, {format_rate(self.rows_per_second)}, {checked}{found}"
        )


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A finished copy: of one table, or of all tables of a database."""

    tables: tuple[TableCopyReport, ...]
    seconds: float

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def rows_found(self) -> int:
        """Rows that earlier runs had copied already."""
        return sum(table.rows_found for table in self.tables)

    @property
    def rows_per_second(self) -> float:
        """The rows that this run has copied, over all of its time."""
        return _rate(self.rows - self.rows_found, self.seconds)

    def __str__(self) -> str:
        lines = [str(table) for table in self.tables]
        if len(lines) != 1:
            lines.append(
                f"copied {format_count(len(self.tables), 'table')} with {format_count(self.rows, 'row')} in "
                f"{format_duration(self.seconds)}, {format_rate(self.rows_per_second)}"
            )
        return "\n".join(lines)


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0
