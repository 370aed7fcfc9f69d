"""What immutable values are made of: frozen mappings, checked texts, a base for values that only servers make.

And how values look in a notebook: small tables of HTML, and texts that do not fill the screen.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """Keeps the order it was given; equality and hash do not depend on it."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._items: dict[K, V] = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def string_dict(what: str, mapping: Mapping[str, str] | None) -> FrozenDict[str, str]:
    """Copy text under text; keys or values that are not str are a TypeError."""
    if mapping is None:
        return FrozenDict()
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{what} must be a dict of str to str, got {type(mapping).__name__}")
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise TypeError(f"{what} must have str keys, got {type(key).__name__}")
        if not isinstance(value, str):
            raise TypeError(f"{what}[{key!r}] must be str, got {type(value).__name__}")
    return FrozenDict(mapping)


def string_list(what: str, values: Iterable[str] | None) -> list[str]:
    """Copy a sequence of names; a bare string is a mistake, not a sequence of letters."""
    if values is None:
        return []
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a sequence of str, got {type(values).__name__}")
    names = list(values)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} must hold str only, got {type(name).__name__}")
    return names


class ServerMade:
    """Base of frozen dataclasses (with ``init=False``) that users receive but never construct.

    Each subclass has a typed ``_create`` for the library's own use.
    """

    __slots__ = ()

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError(f"{type(self).__name__} objects cannot be constructed; the client returns them")

    @classmethod
    def _with_fields(cls, **fields: Any) -> Self:
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made


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
