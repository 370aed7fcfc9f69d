"""Where a server's log lines go when it is a process of its own: standard error, one line each."""

from __future__ import annotations

import logging
from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def log_to_stderr(level: str) -> None:
    """Send everything from ``level`` on to standard error. Standard output is left to the one line that says ready."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
