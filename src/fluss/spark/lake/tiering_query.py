"""Tiering that goes on in the background, as an object in the manner of Spark's ``StreamingQuery``."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from fluss.errors import FlussError
from fluss.tiering.progress import RoundProgress, TableTotals, TieringReport
from fluss.tiering.service import TieringService
from fluss.tiering.tiering_metrics import TieringMetrics

_RECENT: Final = 100

logger = logging.getLogger(__name__)


class TieringQuery:
    """A tiering service in a thread of this process. Stop it when it is not needed any more: it is a context manager.

    ``lastProgress``, ``recentProgress``, ``awaitTermination``, ``stop`` and ``exception`` are those of a streaming
    query; a progress is that of one round of one table.
    """

    def __init__(self, name: str, on_progress: Callable[[RoundProgress], None]) -> None:
        self.id = str(uuid4())
        self.name = name
        self.metrics = TieringMetrics()
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._recent: deque[RoundProgress] = deque(maxlen=_RECENT)
        self._totals: dict[str, TableTotals] = {}
        self._started_s = time.monotonic()
        self._ended_s: float | None = None
        self._error: FlussError | None = None
        self._service: TieringService | None = None
        self._thread = threading.Thread(target=self._run, name="fluss-tiering-service", daemon=True)

    def start(self, service: TieringService) -> TieringQuery:
        """Begin."""
        self._service = service
        self._thread.start()
        return self

    def add(self, progress: RoundProgress) -> None:
        """Take the progress of a round."""
        with self._lock:
            self._recent.append(progress)
            self._totals.setdefault(progress.table, TableTotals(progress.table)).add(progress)
        self.metrics.add(progress)
        self._on_progress(progress)

    def _run(self) -> None:
        assert self._service is not None
        try:
            self._service.run()
        except FlussError as error:
            self._error = error
        except Exception as error:
            logger.exception("tiering has ended")
            self._error = FlussError(f"Tiering has ended: {type(error).__name__}: {error}")
        finally:
            self._ended_s = time.monotonic()

    @property
    def isActive(self) -> bool:  # noqa: N802 - as Spark calls it
        """Whether it goes on."""
        return self._thread.is_alive()

    @property
    def lastProgress(self) -> RoundProgress | None:  # noqa: N802
        """The round that has ended last, None before the first."""
        with self._lock:
            return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[RoundProgress]:  # noqa: N802
        """The last rounds, the newest at the end."""
        with self._lock:
            return list(self._recent)

    def report(self) -> TieringReport:
        """Return what was done so far: the totals of all rounds, and the last of them one by one."""
        seconds = (self._ended_s or time.monotonic()) - self._started_s
        with self._lock:
            return TieringReport(tuple(self._totals.values()), tuple(self._recent), seconds)

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until it ends, or for so many seconds; return whether it has. Raises the error that has ended it."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def exception(self) -> FlussError | None:
        """Return the error that has ended it, if one has."""
        return self._error

    def stop(self) -> None:
        """End it: rounds that are not at their commit yet are given up. Returns when all is done."""
        if self._service is not None:
            self._service.stop()
            self._thread.join()

    def __enter__(self) -> TieringQuery:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"TieringQuery({self.name!r}, {'active' if self.isActive else 'ended'})"
