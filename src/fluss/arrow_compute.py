"""The functions of ``pyarrow.compute``, which is loaded when the first of them is used.

Loading it takes half as long as pyarrow itself, and lookups have no use for it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Take a function from pyarrow; it is a name of this module from then on."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pyarrow.compute

    function = getattr(pyarrow.compute, name)
    globals()[name] = function
    return function
