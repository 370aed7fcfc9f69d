"""How results are printed: columns for people, JSON lines or CSV for programs.

On a terminal a table has a head in bold, and is cut to the width; through a pipe it is plain columns, for grep and awk.
Colours obey NO_COLOR.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from fluss.amounts import format_count
from fluss.cli.kernel.columns import cut_line, padded_line, widths_of, widths_within
from fluss.cli.kernel.exits import CommandError, ReaderGoneError
from fluss.cli.kernel.values import csv_text, json_text, shown_lines, shown_text

FORMATS: Final = ("table", "json", "csv")
# Widths are those of the first rows: a long answer is printed while it arrives.
_SAMPLE_ROWS: Final = 200
_CELL_CHARS_MAX: Final = 200


class Output:
    """Prints in one format to standard output."""

    def __init__(self, output_format: str) -> None:
        self.format = output_format

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at it."""
        return sys.stdout.isatty()

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "") -> int:
        """Print rows as they come, and return how many there were. ``empty`` is told a person if there are none."""
        match self.format:
            case "json":
                return self._lines(f"{json_text(dict(zip(columns, row, strict=True)))}\n" for row in rows)
            case "csv":
                self._lines(csv_text([columns]))
                return self._lines(csv_text(rows))
        return self._table(columns, rows, empty)

    def stream(self, columns: Sequence[str]) -> RowStream:
        """Return a way to print rows as they come, some at a time, for as long as they come."""
        return RowStream(self, columns)

    def record(self, values: Mapping[str, Any]) -> None:
        """Print one thing: a line for each of its values; as JSON one object."""
        if self.format == "table":
            self._table(("", ""), list(values.items()), "", has_head=False)
        else:
            self.rows(list(values), [list(values.values())])

    def done(self, sentence: str, **facts: Any) -> None:
        """Say that something was done: a sentence for people, facts for programs."""
        if self.format == "table":
            self.say(sentence)
        else:
            self.record(facts)

    def say(self, text: str) -> None:
        """Print a line for people."""
        self._lines([f"{text}\n"])

    def note(self, text: str) -> None:
        """Print a line for people beside the results: to standard error."""
        sys.stderr.write(f"{shown_lines(text)}\n")
        sys.stderr.flush()

    def raw(self, text: str) -> None:
        """Print a text as it is."""
        self._lines([text])

    def raw_lines(self, lines: Iterable[str]) -> None:
        """Print lines as they are."""
        self._lines(lines)

    def _lines(self, lines: Iterable[str]) -> int:
        count = 0
        for line in lines:
            self._write(line)
            count += 1
        self._write(None)
        return count

    def _write(self, text: str | None) -> None:
        """Write a text, or see to it that all that was written is seen."""
        try:
            if text is None:
                sys.stdout.flush()
            else:
                sys.stdout.write(text)
        except BrokenPipeError:
            raise ReaderGoneError from None
        except UnicodeEncodeError as error:
            raise CommandError(
                f"the output is {error.encoding}, which has no {error.object[error.start]!a}; `PYTHONIOENCODING=utf-8` "
                "before the command makes it UTF-8"
            ) from None

    # Tables

    def _table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str, *, has_head: bool = True
    ) -> int:
        remaining = iter(rows)
        sample = [_cells(row) for row in islice(remaining, _SAMPLE_ROWS)]
        if not sample and empty:
            self.note(empty)
            return 0
        if not has_head:
            return self._record_lines(sample)
        head = [name.upper() for name in columns]
        widths = widths_of([head, *sample])
        if self.is_terminal:
            widths = widths_within(widths, terminal_cells())
            line_of, head_line = cut_line, shown_head(head, widths)
        else:
            line_of, head_line = padded_line, padded_line(head, widths)
        self._lines([head_line])
        count = self._lines(line_of(row, widths) for row in sample)
        count += self._lines(line_of(_cells(row), widths) for row in remaining)
        if len(widths) < len(head):
            self.note(left_out(len(head) - len(widths)))
        return count

    def _record_lines(self, lines: Sequence[Sequence[str]]) -> int:
        """Print names and values; at a terminal long values go on in the next line, below themselves."""
        if not self.is_terminal:
            widths = widths_of(lines)
            return self._lines(padded_line(line, widths) for line in lines)
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        # rich leaves only colours out.
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="" if os.environ.get("NO_COLOR") else "bold", no_wrap=True)
        table.add_column(overflow="fold")
        for line in lines:
            # Text, not markup: what is in a value means nothing to the terminal.
            table.add_row(*map(Text, line))
        Console(highlight=False, soft_wrap=False).print(table)
        return len(lines)


class RowStream:
    """Rows that are printed as they come. The head is printed with the first of them."""

    def __init__(self, output: Output, columns: Sequence[str]) -> None:
        self._output = output
        self._columns = columns
        self._is_begun = False
        self._widths = [0] * len(columns)

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print rows, and see to it that they are seen."""
        match self._output.format:
            case "json":
                lines: Iterable[str] = (f"{json_text(dict(zip(self._columns, row, strict=True)))}\n" for row in rows)
            case "csv":
                lines = csv_text(rows if self._is_begun else chain([self._columns], rows))
                self._is_begun = True
            case _:
                lines = self._padded_rows(rows)
        self._output.raw_lines(lines)

    def _padded_rows(self, rows: Iterable[Sequence[Any]]) -> Iterable[str]:
        cells = [_cells(row) for row in rows]
        if not cells:
            return []
        head = [name.upper() for name in self._columns]
        # They grow with what comes.
        self._widths = list(map(max, self._widths, widths_of([head, *cells])))
        is_first, self._is_begun = not self._is_begun, True
        if not self._output.is_terminal:
            return [padded_line(row, self._widths) for row in ([head, *cells] if is_first else cells)]
        widths = widths_within(self._widths, terminal_cells())
        lines = [cut_line(row, widths) for row in cells]
        if is_first:
            lines.insert(0, shown_head(head, widths))
            if len(widths) < len(head):
                self._output.note(left_out(len(head) - len(widths)))
        return lines


def terminal_cells() -> int:
    """Return how wide the terminal is."""
    return shutil.get_terminal_size().columns


def shown_head(head: Sequence[str], widths: Sequence[int]) -> str:
    """Return the line above the columns, for a terminal."""
    line = cut_line(head, widths)
    return line if os.environ.get("NO_COLOR") else f"\x1b[1m{line[:-1]}\x1b[0m\n"


def left_out(count: int) -> str:
    """Say that there is more than fits."""
    return f"{format_count(count, 'more column')} would not fit; --format json shows all, and a wider terminal more"


def _cells(row: Sequence[Any]) -> list[str]:
    return [shown_text(value, _CELL_CHARS_MAX) for value in row]
