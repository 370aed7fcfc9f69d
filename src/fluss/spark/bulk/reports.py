"""What bulk jobs say: how far they are, for a terminal or for a program, and what they have done."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple, Self, TextIO, TypeAlias

from fluss.amounts import format_bytes, format_count, format_duration, format_rate, format_scaled

_BAR_CHARS: Final = 20
# Often enough to look alive, seldom enough to cost nothing.
_INTERVAL_S: Final = 0.25
# The first moments are too short to estimate how long the rest takes.
_ESTIMATE_AFTER_S: Final = 0.5
_MODULUS: Final = 2**64

logger = logging.getLogger(__name__)


# While a job runs


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment in the life of a job. Rows that an earlier, interrupted run has done count as done, but not as speed."""

    what: str
    rows_done: int
    rows_known: int | None
    """None where they have not been counted, as in text files."""
    rows_before: int
    fraction: float
    """The part of the work that is done, from 0 to 1; by size where rows are not known."""
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rows of this run, over all of its time."""
        return (self.rows_done - self.rows_before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that is left if everything goes on as it did; None while that cannot be said."""
        before = self.rows_before / self.rows_known if self.rows_known else 0.0
        done = self.fraction - before
        if self.seconds < _ESTIMATE_AFTER_S or done <= 0:
            return None
        return self.seconds * max(1.0 - self.fraction, 0.0) / done

    def __str__(self) -> str:
        filled = min(int(self.fraction * _BAR_CHARS), _BAR_CHARS)
        bar = "#" * filled + "." * (_BAR_CHARS - filled)
        rows = format_count(self.rows_done, "row")
        if self.rows_known is not None:
            rows = f"{format_scaled(self.rows_done)} of {format_scaled(self.rows_known)} rows"
        parts = [f"{self.what} [{bar}] {int(self.fraction * 100):3d} %", rows, format_rate(self.rows_per_second)]
        left_s = self.seconds_left
        if left_s is not None:
            parts.append(f"{format_duration(left_s)} left")
        return "  ".join(parts)


Listener: TypeAlias = Callable[[Progress], None]
"""Called a few times per second from a thread of its own, and once at the end."""


class Counted(NamedTuple):
    """What a job knows about itself at a moment."""

    rows_done: int
    fraction: float


class ProgressWatch:
    """Asks a job how far it is, again and again, and tells a listener. A context manager; the job runs inside.

    ``count`` is called in another thread. A listener or a count that fails is logged and does not disturb the job.
    """

    def __init__(
        self,
        what: str,
        count: Callable[[], Counted],
        listener: Listener,
        *,
        rows_known: int | None = None,
        rows_before: int = 0,
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._what = what
        self._count = count
        self._listener = listener
        self._rows_known = rows_known
        self._rows_before = rows_before
        self._interval_s = interval_s
        self._clock = clock
        self._started_s = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fluss-bulk-progress", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            self.tell()

    def tell(self) -> None:
        """Tell the listener how far the job is now."""
        try:
            counted = self._count()
            seconds = self._clock() - self._started_s
            self._listener(
                Progress(self._what, counted.rows_done, self._rows_known, self._rows_before, counted.fraction, seconds)
            )
        except Exception:
            logger.warning("the progress of '%s' cannot be told", self._what, exc_info=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.tell()
        close = getattr(self._listener, "close", None)
        if close is not None:
            close()


class TerminalLine:
    """One line on a terminal that is written over again and again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_chars = 0

    def __call__(self, progress: Progress) -> None:
        # A line that wraps would not be written over.
        text = str(progress)[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text.ljust(self._shown_chars))
        self._stream.flush()
        self._shown_chars = len(text)

    def close(self) -> None:
        """Go on in the next line."""
        if self._shown_chars:
            self._stream.write("\n")
            self._stream.flush()
            self._shown_chars = 0


def quiet(_progress: Progress) -> None:
    """Listen, and say nothing."""


def listener_of(progress: bool | Listener | None, stream: TextIO | None = None) -> Listener:
    """Return the listener for an argument ``progress``: the function itself, a line on standard error, or ``quiet``.

    None means a line if standard error is a terminal; True means a line wherever it goes.
    """
    if callable(progress):
        return progress
    stream = sys.stderr if stream is None else stream
    is_shown = stream.isatty() if progress is None else progress
    return TerminalLine(stream) if is_shown else quiet


# When it is done


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
class Checksum:
    """How many rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.total + other.total) % _MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows with the checksum {self.total:016x}"


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
