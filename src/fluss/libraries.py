"""Libraries that only some calls need: are they installed, in a version that works with this package."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

# The same as in the extras of pyproject.toml; `make test-oldest` runs with them. What is older installs and loads, and
# fails in the middle of something, or leaves rows with NaN out.
_OLDEST: Final = {"polars": (1, 36), "duckdb": (2, 0)}


def library_hint(name: str) -> str | None:
    """Return what to do before a library can be used; None if it can."""
    if find_spec(name) is None:
        return f"pip install {name}"
    # Loaded by who asks for a data frame, and by no other command or program.
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version(name)
    except PackageNotFoundError:
        # Built or laid there by hand: its user knows which one it is.
        return None
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    oldest = _OLDEST[name]
    if numbers and numbers < oldest:
        needed = ".".join(map(str, oldest))
        return f"{installed} is installed, {needed} or newer is needed: pip install --upgrade {name}"
    return None
