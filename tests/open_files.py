"""What this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_files() -> list[str]:
    """Return what all descriptors lead to: paths, and words like ``socket:[123]``."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        # One is gone that this list was made with.
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def open_below(directory: Path) -> list[str]:
    """Return the files below a directory that are open."""
    return [path for path in open_files() if path.startswith(f"{directory}{os.sep}")]
