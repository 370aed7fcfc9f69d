"""What the tests of logs share: small batches, a clock that stands still, and a committer that works when told to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.record.log_batch import HEADER_BYTES_MIN, LogBatch, build_batch, iter_batches, verify_crc
from fluss.schema.table import TableBucket
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.committer import Committed, Committer
from fluss.storage.log.loader import RecoveryReport
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import Files, OsFiles
from fluss.testing.faultfs import FaultFiles

T = TypeVar("T")

DATA_DIRECTORY = Path("/data")
DIRECTORY = DATA_DIRECTORY / "db/t-1/log-0"
BUCKET = TableBucket(1, 0)
NOW_MS = 1_700_000_000_000


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def make_batch(body: bytes = b"row", *, rows: int = 1, writer: int = -1, sequence: int = -1) -> bytearray:
    """Return a batch as a client sends it. The log never looks into its body."""
    return build_batch(
        [body] if rows else [],
        schema_id=1,
        record_count=rows,
        append_only=True,
        writer_id=writer,
        batch_sequence=sequence,
    )


def row_bytes(batch: BytesLike) -> bytes:
    """Return a batch without what the server sets in it."""
    data = bytes(batch)
    return data[8:13] + data[21:]


class SteppedCommitter(Committer):
    """Works in the thread of the test, one round at a time, and reports at its end."""

    def __init__(self, files: Files, *, is_synced: bool = True) -> None:
        super().__init__(files, is_synced=is_synced)
        # A write that fails at once is told later, as on an event loop.
        self._untold: list[Callable[[], None]] = []

    def submit(self, log: Committed) -> None:
        self._waiting[log] = None

    def step(self) -> bool:
        """Tell what is untold, and carry out one round; return whether there was anything to do."""
        is_idle = not self._untold
        self._tell()
        logs = self._take_due()
        if logs:
            self.run_round(logs)
            self._tell()
        self._is_in_round = False
        return bool(logs) or not is_idle

    def _tell(self) -> None:
        reports, self._untold = self._untold, []
        for report in reports:
            report()

    def _sync_all(self, rounds: Any) -> Any:
        class InOrder:
            map = map

        self._syncs = InOrder  # type: ignore[assignment]  # One after the other, so that a seed decides everything.
        return super()._sync_all(rounds)

    def _report(self, reports: list[Callable[[], None]]) -> None:
        self._untold += reports


async def drive(committer: SteppedCommitter, coroutine: Coroutine[Any, Any, T]) -> T:
    """Let a coroutine of a log and a committer work side by side until the coroutine is done."""
    task = asyncio.ensure_future(coroutine)
    while not task.done():
        committer.step()
        await asyncio.sleep(0)
    return task.result()


def open_log(
    files: Files,
    committer: Committer,
    *,
    directory: Path = DIRECTORY,
    settings: LogSettings | None = None,
    clock: Callable[[], int] | None = None,
    recovery_offset: int = 0,
    was_clean: bool = False,
) -> tuple[LogTablet, RecoveryReport]:
    return LogTablet.open(
        directory,
        BUCKET,
        settings or LogSettings(),
        files=files,
        committer=committer,
        clock=clock or Clock(),
        recovery_offset=recovery_offset,
        was_clean=was_clean,
    )


def read_batches(log: LogTablet, *, offset: int | None = None, bytes_max: int = 1000) -> Iterator[LogBatch]:
    """Read a log from an offset to the high watermark as a client does, and check what comes like one."""
    offset = log.offset_start if offset is None else offset
    while offset < log.offset_high_watermark:
        data = log.read(offset, bytes_max, at_least_one_batch=True)
        batches = list(iter_batches(data))
        assert batches, f"no whole batch at offset {offset}"
        assert batches[0].header.base_offset <= offset <= batches[0].header.offset_last
        for index, batch in enumerate(batches):
            verify_crc(batch)
            assert not index or batch.header.base_offset == offset, "the next batch must follow"
            assert batch.header.offset_next <= log.offset_high_watermark
            yield batch
            offset = batch.header.offset_next


def contents(log: LogTablet) -> dict[int, bytes]:
    """Return everything a log has, by the offset of the batch, without what the server set."""
    return {batch.header.base_offset: row_bytes(batch.data) for batch in read_batches(log)}


def body_of(batch: LogBatch) -> bytes:
    return bytes(batch.data[HEADER_BYTES_MIN:])


def bodies(log: LogTablet) -> list[bytes]:
    return [body_of(batch) for batch in read_batches(log)]


async def append_all(log: LogTablet, batches: list[bytearray]) -> list[AppendResult]:
    """Append batches one by one, and wait for the last."""
    results = [log.append(batch) for batch in batches]
    if results:
        await log.wait_durable(results[-1])
    return results


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Failures that a test makes on purpose need not be in its output."""
    logger = logging.getLogger("fluss.storage")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


class SteppedLog:
    """A log on a disk in memory, written when the test says so."""

    def __init__(self, *, is_synced: bool = True, files: FaultFiles | None = None, **settings: int) -> None:
        self.files = files or FaultFiles()
        self.files.make_directory(DATA_DIRECTORY)
        self.committer = SteppedCommitter(self.files, is_synced=is_synced)
        self.clock = Clock()
        self.settings = LogSettings(**settings)
        self.log, _ = open_log(self.files, self.committer, settings=self.settings, clock=self.clock)

    def append(self, body: bytes = b"row", **facts: int) -> int:
        """Append one batch, durably, and return its offset."""
        result = self.log.append(make_batch(body, **facts))
        self.committer.step()
        return result.offset_base


@asynccontextmanager
async def real_log(directory: Path, **settings: int) -> AsyncIterator[LogTablet]:
    """A log on the disk of the machine, written by the thread of a committer."""
    files = OsFiles()
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer, directory=directory, settings=LogSettings(**settings))
    try:
        yield log
        await log.close()
    finally:
        await committer.stop()


def code_of(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(FlussError) as caught:
        action()
    return ErrorCode(caught.value.error_code)
