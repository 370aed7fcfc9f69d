"""Tables at terminals of any width: every line fits, and what is left out is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fluss.cli.kernel.columns import cut_line, padded_line, widths_of, widths_within
from tests.cli.runner import FlussCommand

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp")), max_size=30)


@given(st.data(), st.integers(1, 6), st.integers(10, 120))
def test_every_line_fits_and_shows_the_beginning_of_its_texts(data: st.DataObject, columns: int, cells: int) -> None:
    rows = data.draw(st.lists(st.lists(TEXTS, min_size=columns, max_size=columns), min_size=1, max_size=4))
    widths = widths_within(widths_of(rows), cells)
    assert 1 <= len(widths) <= columns
    for row in rows:
        assert cell_len(cut_line(row, widths)[:-1]) <= cells
    if sum(widths_of(rows)) + 2 * (columns - 1) <= cells:
        assert widths == widths_of(rows), "nothing is cut without need"


def test_wide_letters_stand_in_columns() -> None:
    rows = [["ID", "CITY", "KM"], ["1", "東京", "2"], ["2", "Bonn", "3"]]
    lines = [padded_line(row, widths_of(rows)) for row in rows]
    assert lines == ["ID  CITY  KM\n", "1   東京  2\n", "2   Bonn  3\n"]
    assert cut_line(["1", "日本語テキスト"], [2, 8]) == "1   日本語 …\n"


@pytest.mark.parametrize("command", [("head",), ("tail", "-n", "5")], ids=lambda words: words[0])
def test_a_wide_table_in_a_narrow_terminal(fluss: FlussCommand, fluss_database: str, command: tuple[str, ...]) -> None:
    table = f"{fluss_database}.wide"
    names = [f"column_{number:02}" for number in range(30)]
    fluss("table", "create", table, *(word for name in names for word in ("-c", f"{name} STRING")))
    fluss("append", table, text="{" + ", ".join(f'"{name}": "{name * 3}"' for name in names) + "}\n")
    running = fluss.start(
        command[0], table, *command[1:], terminal=True, environment={"NO_COLOR": "1", "COLUMNS": "40"}
    )
    shown = running.wait().ok().out.splitlines()
    lines = [line for line in shown if "columns would not fit" not in line]
    assert lines[0].split() == ["COLUMN_…", "COLUMN_…", "COLUMN_…", "…"]
    assert lines[1].split() == ["column_…", "column_…", "column_…", "…"]
    assert max(map(len, lines)) <= 40
    assert f"{30 - 3} more columns would not fit" in "".join(shown)
