"""How texts stand in columns: each as wide as its texts, and all of them within the width of a terminal.

Columns that are wider than others are cut first. Where not even their beginnings fit, those at the right are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

GAP: Final = "  "
CUT: Final = "…"
# Less of a column than this is not worth its place, unless there is no more.
_COLUMN_CELLS_MIN: Final = 8


def text_cells(text: str) -> int:
    """Return how many places of a terminal a text takes: letters of some languages take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is."""
    return [max(map(text_cells, column)) for column in zip(*rows, strict=True)]


def widths_within(widths: Sequence[int], cells_max: int) -> list[int]:
    """Return the widths with which columns fit: the widest are cut, and the last ones left out if it must be."""
    gaps = len(GAP) * (len(widths) - 1)
    for limit in range(max(_COLUMN_CELLS_MIN, *widths), _COLUMN_CELLS_MIN - 1, -1):
        cut = [min(width, limit) for width in widths]
        if sum(cut) + gaps <= cells_max:
            return cut
    kept: list[int] = []
    # Behind the last one a mark says that there are more.
    left = cells_max - len(GAP) - len(CUT)
    for width in widths:
        cut_width = min(width, _COLUMN_CELLS_MIN)
        if cut_width > left:
            break
        kept.append(cut_width)
        left -= cut_width + len(GAP)
    return kept or [max(1, left)]


def padded_line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row in columns, as a line. A text that is longer than its column is there as a whole."""
    return f"{GAP.join(map(_padded, row, widths)).rstrip()}\n"


def cut_line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row in columns, as a line. Longer texts are cut, and columns beyond the widths left out."""
    cells = [_padded(_cut(text, width), width) for text, width in zip(row, widths, strict=False)]
    if len(widths) < len(row):
        cells.append(CUT)
    return f"{GAP.join(cells).rstrip()}\n"


def _padded(text: str, cells: int) -> str:
    return text.ljust(cells) if text.isascii() else text + " " * (cells - text_cells(text))


def _cut(text: str, cells: int) -> str:
    if text_cells(text) <= cells:
        return text
    if text.isascii():
        return text[: cells - 1] + CUT
    from rich.cells import set_cell_size

    return set_cell_size(text, cells - 1) + CUT
