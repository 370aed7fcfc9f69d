"""What this process has open, and which threads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

# Other tests have left servers in this process, which start threads when they need them: one to look for damage when
# they are ten seconds old. Pools that all share grow with the load, and what gives memory back comes and goes.
_COMING_AND_GOING: Final = (
    "asyncio",
    "fluss-client-worker",
    "fluss-committer",
    "fluss-compression",
    "fluss-kv",
    "fluss-login",
    "fluss-memory",
    "fluss-metadata",
    "fluss-open",
    "fluss-reader",
    "fluss-scrubber",
    "fluss-server",
    "fluss-sync",
    "uvloop",
)


def lasting_threads() -> Counter[str]:
    """Count the threads that somebody has started and has to end, by name."""
    names = (thread.name.rstrip("0123456789") for thread in threading.enumerate())
    return Counter(name for name in names if not name.startswith(_COMING_AND_GOING))


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
