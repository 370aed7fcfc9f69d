"""Looks for cycles of objects: seldom while a command begins, as Python does it in what runs for long."""

from __future__ import annotations

import gc
from typing import Final

_USUAL: Final = gc.get_threshold()
# So many objects are made between two looks. A lookup makes about as many while it loads its modules.
_SELDOM: Final = 100_000


def look_seldom() -> None:
    """For commands that end soon: looking while modules are loaded is a fifth of what they take."""
    gc.set_threshold(_SELDOM, *_USUAL[1:])


def look_as_usual() -> None:
    """For servers, whose memory matters more than their first moment."""
    gc.set_threshold(*_USUAL)
