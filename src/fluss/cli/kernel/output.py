"""How results are printed: columns for people, JSON lines or CSV for programs.

On a terminal a table has a head in bold, and is cut to the width; through a pipe it is plain columns, for grep and awk.
Colours are those of rich, which obeys NO_COLOR, and is loaded for a terminal only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from fluss.cli.kernel.exits import ReaderGoneError
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

    # Tables

    def _table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str, *, has_head: bool = True
    ) -> int:
        remaining = iter(rows)
        sample = [_cells(row) for row in islice(remaining, _SAMPLE_ROWS)]
        if not sample and empty:
            self.note(empty)
            return 0
        if self.is_terminal:
            return self._rich_table(columns, sample, remaining, has_head=has_head)
        heads = [[name.upper() for name in columns]] if has_head else []
        widths = [max(map(len, column)) for column in zip(*heads, *sample, strict=True)] if heads or sample else []
        count = self._lines(_padded(row, widths) for row in (*heads, *sample))
        count += self._lines(_padded(_cells(row), widths) for row in remaining)
        return count - len(heads)

    def _rich_table(
        self, columns: Sequence[str], sample: list[list[str]], remaining: Iterable[Sequence[Any]], *, has_head: bool
    ) -> int:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        # What is cut off at the right can be seen with --format json.
        console = Console(highlight=False, soft_wrap=False)
        # rich leaves only colours out.
        bold = "" if os.environ.get("NO_COLOR") else "bold"
        count = 0
        batch = sample
        is_first = True
        rest = iter(remaining)
        while batch or is_first:
            table = Table(box=None, pad_edge=False, show_header=has_head and is_first, header_style=bold)
            for number, name in enumerate(columns):
                style = bold if not has_head and number == 0 else None
                table.add_column(
                    Text(name.upper()), style=style, no_wrap=has_head, overflow="ellipsis" if has_head else "fold"
                )
            for row in batch:
                # Text, not markup: what is in a row means nothing to the terminal.
                table.add_row(*map(Text, row))
            console.print(table)
            count += len(batch)
            batch = [_cells(row) for row in islice(rest, _SAMPLE_ROWS)]
            is_first = False
        return count


class RowStream:
    """Rows that are printed as they come. The head is printed with the first of them."""

    def __init__(self, output: Output, columns: Sequence[str]) -> None:
        self._output = output
        self._columns = columns
        self._is_begun = False
        self._widths: list[int] = []

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
        if not self._is_begun:
            self._widths = [0] * len(head)
            cells.insert(0, head)
        self._widths = [max(width, *map(len, column)) for width, *column in zip(self._widths, *cells, strict=True)]
        lines = [_padded(row, self._widths) for row in cells]
        if not self._is_begun and self._output.is_terminal and not os.environ.get("NO_COLOR"):
            lines[0] = f"\x1b[1m{lines[0].rstrip()}\x1b[0m\n"
        self._is_begun = True
        return lines


def counted(count: int, noun: str) -> str:
    """Return a number of things for people: ``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cells(row: Sequence[Any]) -> list[str]:
    return [shown_text(value, _CELL_CHARS_MAX) for value in row]


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
