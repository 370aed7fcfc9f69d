"""A registry of remote objects whose metadata cannot be written once."""

from __future__ import annotations

from fluss.errors import FlussError


class FailingRegistry:
    """A registry that fails once, at a method of this name: the metadata cannot be written."""

    def __init__(self, registry, method: str) -> None:
        self._registry = registry
        self._method: str | None = method

    def __getattr__(self, name: str):
        if name != self._method:
            return getattr(self._registry, name)
        self._method = None

        async def fail(*_) -> None:
            raise FlussError("the metadata cannot be written")

        return fail
