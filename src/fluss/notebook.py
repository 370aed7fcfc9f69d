"""How values look in a notebook: small tables of HTML, and texts that do not fill the screen."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

# Rows that are shown of many.
ROWS_SHOWN_MAX: Final = 20
_HTML_CHARS_MAX: Final = 200
_REPR_CHARS_MAX: Final = 1000


def html_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return a table; texts are shown as they are, other values by their repr, long ones cut off."""
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else repr(value)
    return f"<td>{html.escape(_cut(text, _HTML_CHARS_MAX))}</td>"


def shown(value: object) -> str:
    """Return the repr of a value, cut off if it is long."""
    return _cut(repr(value), _REPR_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"
