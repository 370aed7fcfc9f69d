"""Group commit: one thread writes the appends of all logs to the disk, in rounds.

A round takes what is waiting at its beginning, writes it with one call per file, then makes the files durable, and only
then are the writers told. While a round is on its way to the disk, appends collect for the next one: the slower the
disk, the larger the rounds.

One event loop adds to the logs and hears of the results; the committer thread in between touches files only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from fluss.storage.log.pending_writes import CommitRound
from fluss.storage.vfs import Files

# Files that are made durable at the same time. A disk works on several requests at once.
_SYNCS_AT_ONCE: Final = 8

logger = logging.getLogger(__name__)


class Committed(Protocol):
    """A log, as the committer sees it."""

    # In the committer thread:

    def write_pending(self) -> CommitRound:
        """Write what is waiting. After a failed round the log writes nothing before it has heard of the failure."""
        ...

    def halt(self) -> None:
        """Write nothing more: it is unknown what is on the disk."""
        ...

    @property
    def is_written_awaited(self) -> bool:
        """Whether a writer waits for ``written``, and not only for ``durable``."""
        ...

    # On the event loop:

    def written(self, written: CommitRound) -> None:
        """What a round wrote is in the operating system."""
        ...

    def durable(self, written: CommitRound) -> None:
        """What a round wrote is on the disk."""
        ...

    def failed(self, error: OSError, *, is_undone: bool) -> None:
        """A round failed. If it was not undone, it is unknown what is on the disk."""
        ...


class Committer:
    """Group commit for all logs of a server. It belongs to the event loop that started it."""

    def __init__(self, files: Files, *, is_synced: bool = True) -> None:
        self._files = files
        self._is_synced = is_synced
        self._loop: asyncio.AbstractEventLoop | None = None
        self._condition = threading.Condition()
        self._waiting: dict[Committed, None] = {}
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._syncs = ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="fluss-sync")

    def start(self) -> None:
        """Start the thread. To be called on the event loop that will submit."""
        assert self._thread is None, "a committer is started once"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="fluss-committer", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Carry out what was submitted, then end the thread. May be called again."""
        if self._thread is None:
            return
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)
        self._syncs.shutdown()

    @property
    def is_synced(self) -> bool:
        """Whether rounds end on the disk, or in the operating system."""
        return self._is_synced

    def submit(self, log: Committed) -> None:
        """Have a log written in the next round."""
        with self._condition:
            assert not self._is_stopping, "the committer was stopped"
            self._waiting[log] = None
            self._condition.notify()

    async def settle(self) -> None:
        """Wait until the rounds that are under way or due are over, and the logs have heard of it."""
        if self._thread is not None and not self._is_stopping:
            marker = _Marker(asyncio.get_running_loop())
            self.submit(marker)
            await marker.is_reached

    def _run(self) -> None:
        while logs := self._take_waiting():
            self.run_round(logs)

    def _take_waiting(self) -> list[Committed]:
        """Wait for work. Nothing is returned when there will be none any more."""
        with self._condition:
            while not self._waiting and not self._is_stopping:
                self._condition.wait()
            logs, self._waiting = list(self._waiting), {}
            return logs

    def run_round(self, logs: list[Committed]) -> None:
        """Write what logs have waiting, make it durable, and report. A failure concerns only the log that it is of."""
        rounds = [(log, _write_pending(log)) for log in logs]
        errors: dict[Path, OSError] = {}
        if self._is_synced:
            good = [(log, written) for log, written in rounds if written.failure is None]
            self._report([partial(log.written, written) for log, written in good if log.is_written_awaited])
            errors = self._sync_all(written for _, written in good)
        self._report([_outcome(log, written, errors) for log, written in rounds])

    def _sync_all(self, rounds: Iterable[CommitRound]) -> dict[Path, OSError]:
        """Make files and names durable, and return what went wrong with which."""
        jobs: dict[Path, Callable[[Path], None]] = {}
        for written in rounds:
            jobs.update(dict.fromkeys(written.files, self._files.sync))
            jobs.update(dict.fromkeys(written.directories, self._files.sync_directory))
        # Several threads share the work; a single file is not worth the way to another thread.
        shares = [list(jobs.items())[first::_SYNCS_AT_ONCE] for first in range(min(len(jobs), _SYNCS_AT_ONCE))]
        run = map if len(shares) == 1 else self._syncs.map
        return {path: error for errors in run(_sync_share, shares) for path, error in errors.items()}

    def _report(self, reports: list[Callable[[], None]]) -> None:
        """Tell the event loop, once for all logs of the round."""
        assert self._loop is not None
        if reports:
            with suppress(RuntimeError):  # The loop was closed, and no writer waits any more.
                self._loop.call_soon_threadsafe(_call_all, reports)


def _write_pending(log: Committed) -> CommitRound:
    try:
        return log.write_pending()
    except Exception as error:  # A bug must not leave writers waiting for ever.
        logger.exception("a log could not be written")
        return CommitRound(failure=OSError(f"{type(error).__name__}: {error}"))


def _sync_share(jobs: Iterable[tuple[Path, Callable[[Path], None]]]) -> dict[Path, OSError]:
    errors = {}
    for path, sync in jobs:
        try:
            sync(path)
        except OSError as error:
            errors[path] = error
    return errors


def _outcome(log: Committed, written: CommitRound, errors: dict[Path, OSError]) -> Callable[[], None]:
    """Return how to tell a log what has become of its round."""
    failure = written.failure
    if failure is None and errors:
        failure = next((errors[path] for path in (*written.files, *written.directories) if path in errors), None)
    if failure is None:
        return partial(log.durable, written)
    if not written.is_undone:
        log.halt()
    return partial(log.failed, failure, is_undone=written.is_undone)


def _call_all(reports: list[Callable[[], None]]) -> None:
    for report in reports:
        try:
            report()
        except Exception:  # The reports behind it are about other logs, whose writers wait.
            logger.exception("a log could not take in what was committed")


class _Marker:
    """Takes part in a round like a log, to find out when the round is over."""

    is_written_awaited = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_reached: asyncio.Future[None] = loop.create_future()

    def write_pending(self) -> CommitRound:
        return CommitRound()

    def halt(self) -> None:
        """There is nothing to write."""

    def written(self, written: CommitRound) -> None:
        """There is nothing to be told."""

    def durable(self, written: CommitRound) -> None:
        if not self.is_reached.done():
            self.is_reached.set_result(None)

    def failed(self, error: OSError, *, is_undone: bool) -> None:
        self.durable(CommitRound())
