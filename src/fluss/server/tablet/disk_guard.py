"""Write protection for a disk that is almost full. Reads go on; so does whatever frees space."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from fluss.errors import ErrorCode, FlussError

logger = logging.getLogger(__name__)


def disk_usage_ratio(directory: Path) -> float:
    """Return how full the disk of a directory is, as far as this process may fill it. Blocking."""
    usage = shutil.disk_usage(directory)
    return 1.0 - usage.free / usage.total


class DiskGuard:
    """Decides whether the server takes writes.

    Above ``limit_ratio`` writes are refused, until the disk is down to ``recover_ratio``: without the distance between
    the two a disk at the limit would change its mind with every batch. A write that found no room refuses the next
    ones at once, until a check finds some. Belongs to the event loop; the disk is looked at in a thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit_ratio: float,
        recover_ratio: float,
        usage_ratio: Callable[[Path], float] = disk_usage_ratio,
    ) -> None:
        self._directory = directory
        self._usage_ratio = usage_ratio
        self._ratio = 0.0
        self._is_above_limit = False
        self._is_out_of_space = False
        self._failure_count = 0
        self._refusal: FlussError | None = None
        self.set_ratios(limit_ratio=limit_ratio, recover_ratio=recover_ratio)

    def set_ratios(self, *, limit_ratio: float, recover_ratio: float) -> None:
        """Change the limits; they hold from the next check on."""
        assert 0.0 <= recover_ratio <= limit_ratio <= 1.0, "writes must recover below the limit, not above it"
        self._limit_ratio = limit_ratio
        self._recover_ratio = recover_ratio

    @property
    def usage_ratio(self) -> float:
        """How full the disk was at the last look, from 0 to 1."""
        return self._ratio

    @property
    def problem(self) -> str | None:
        """Why writes are refused; None if they are not."""
        return self._problem() if self.is_locked else None

    @property
    def is_locked(self) -> bool:
        return self._is_above_limit or self._is_out_of_space

    def refuse(self, reason: FlussError) -> None:
        """Take no more writes, whatever the disk is like, until the server is started again."""
        self._refusal = reason

    def check_write(self) -> None:
        """Refuse a write while the disk is too full (code 70), or for another reason."""
        if self._refusal is not None:
            raise self._refusal.copied()
        if self.is_locked:
            raise FlussError(self._problem(), ErrorCode.DISK_WRITE_LOCKED)

    def out_of_space(self) -> None:
        """Lock at once: a write has found no room on the disk."""
        self._failure_count += 1
        self._change(is_above_limit=self._is_above_limit, is_out_of_space=True)

    async def check(self) -> None:
        """Look at the disk and lock or unlock. A disk that cannot be looked at changes nothing."""
        failure_count = self._failure_count
        try:
            self._ratio = await asyncio.to_thread(self._usage_ratio, self._directory)
        except OSError as error:
            logger.warning("cannot see how full the disk of %s is: %s", self._directory, error)
            return
        is_above_limit = self._ratio > (self._recover_ratio if self._is_above_limit else self._limit_ratio)
        # A write that failed meanwhile knows more than a look at the disk that was taken before.
        is_still_full = self._ratio >= 1.0 or self._failure_count > failure_count
        self._change(is_above_limit=is_above_limit, is_out_of_space=self._is_out_of_space and is_still_full)

    def _change(self, *, is_above_limit: bool, is_out_of_space: bool) -> None:
        was_locked = self.is_locked
        self._is_above_limit, self._is_out_of_space = is_above_limit, is_out_of_space
        if self.is_locked and not was_locked:
            logger.error("writes are refused: %s", self._problem())
        elif was_locked and not self.is_locked:
            logger.warning("writes go on: the disk of %s is %.0f%% full", self._directory, self._ratio * 100)

    def _problem(self) -> str:
        if not self._is_above_limit:
            return f"the disk of {self._directory} has no room left; free some space, reads go on meanwhile"
        return (
            f"the disk of {self._directory} is {self._ratio:.0%} full; above {self._limit_ratio:.0%} writes are "
            f"refused until it is down to {self._recover_ratio:.0%}; free some space, reads go on meanwhile"
        )
