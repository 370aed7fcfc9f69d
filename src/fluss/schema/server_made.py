"""Values that only the library creates, from what a server answered."""

from __future__ import annotations

from typing import Any, Self


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
