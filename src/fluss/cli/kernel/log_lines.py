"""What the client logs, as far as a person has to know it: that a server is away, for instance."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# They warn of what is raised as an error, too, for programs that do not wait for it.
_TOLD_BY_ERRORS: Final = ("fluss.client.write", "fluss.client.connection")


@contextmanager
def shown_log_lines(*, is_debug: bool) -> Iterator[None]:
    """Show warnings on standard error for as long as this lasts, or with ``is_debug`` everything."""
    logger = logging.getLogger("fluss")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s" if is_debug else "Note: %(message)s"))
    if not is_debug:
        handler.addFilter(lambda record: not record.name.startswith(_TOLD_BY_ERRORS))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if is_debug else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
