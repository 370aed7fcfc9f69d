"""A mapping that never changes, so that values holding one can be compared, hashed and shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

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
