"""What the machine has that this program runs on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# The file that a container's memory limit is in; in the older form of control groups, the second one.
_MEMORY_LIMIT_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN_MEMORY_BYTES: Final = 4 * 1024**3


def machine_memory_bytes() -> int:
    """Return the memory of this machine, or of the container if that has less; 4 GiB if neither is told."""
    try:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        sizes = []  # Not every system tells.
    for file in map(Path, _MEMORY_LIMIT_FILES):
        try:
            sizes.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # No container, or one without a limit: "max".
    return min(sizes, default=_UNKNOWN_MEMORY_BYTES)
