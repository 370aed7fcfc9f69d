"""The last lines of the log of this process, for users of the page."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

_LINES_MAX: Final = 2000
_LINE_CHARACTERS_MAX: Final = 4000
_LOGGER: Final = "fluss"


@dataclass(frozen=True, slots=True)
class LogLine:
    time_s: float
    level: str
    logger: str
    text: str


class LogLines(logging.Handler):
    """Keeps the last lines of everything that the library logs. Any thread may log and look."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=_LINES_MAX)
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self._formatter.formatException(record.exc_info)
        if len(text) > _LINE_CHARACTERS_MAX:
            text = text[:_LINE_CHARACTERS_MAX] + "…"
        self._lines.append(LogLine(record.created, record.levelname, record.name, text))

    def lines(self, *, level: str, search: str, count: int) -> list[LogLine]:
        """Return the newest lines of a level or above that contain a text, the newest first."""
        lowest = logging.getLevelNamesMapping().get(level.upper(), 0)
        levels, wanted = logging.getLevelNamesMapping(), search.casefold()
        found = (
            line
            for line in reversed(tuple(self._lines))
            if levels.get(line.level, 0) >= lowest and (not wanted or wanted in f"{line.logger} {line.text}".casefold())
        )
        return list(islice(found, count))

    def start(self) -> None:
        logging.getLogger(_LOGGER).addHandler(self)

    def stop(self) -> None:
        logging.getLogger(_LOGGER).removeHandler(self)
