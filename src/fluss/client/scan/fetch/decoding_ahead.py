"""Batches decoded ahead of their turn: those that are buffered, by the processors that would be idle meanwhile.

This is for scans with a filter, whose batches are decoded by one thread each, as far as they are compressed: while the
reader is at one batch, helpers are at those behind it. A reader whose batch is still under way takes the next one that
nobody has begun, so that it waits only when there is nothing else to do.

    buffer    chunk 1: [a b c]   chunk 2: [d e]   chunk 3: ...
    reader     a done, at b      c, d under way by helpers      e not begun

What has been decoded ahead is a guess of what will be wanted. The reader asks for each batch when its turn has come,
and decodes it itself if it was not guessed, or has failed: then the error comes up where it belongs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Final

import pyarrow as pa

from fluss.client.kernel.decode import BatchDecoder, DecodedBatch
from fluss.client.scan.fetch.buffer import Chunk, ScanBuffer
from fluss.errors import CorruptRecordError
from fluss.record.compression import shared_threads
from fluss.record.log_batch import LogBatch, iter_batches

# Below this another thread takes longer to wake up than a batch takes to be decoded.
_BATCH_BYTES_MIN: Final = 64 * 1024
# What has been decoded is kept until its turn, so there must not be much of it.
_HELPERS_MAX: Final = 7
_JOBS_PER_THREAD: Final = 2

logger = logging.getLogger(__name__)


class DecodingAhead:
    """Decodes batches of a buffer ahead. Used by one thread at a time."""

    def __init__(self, buffer: ScanBuffer, decoder: BatchDecoder) -> None:
        self._buffer = buffer
        self._decoder = decoder
        self._aligned = True
        self._helpers_max = min(pa.cpu_count() - 1, _HELPERS_MAX)
        self._helpers: list[Future[None]] = []
        # In the order of the buffer, and those of them that no thread has begun.
        self._jobs: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._upcoming: Iterator[_Job | None] = iter(())

    def decoded(self, chunk: Chunk, batch: LogBatch, *, aligned: bool) -> DecodedBatch | None:
        """Return a batch, and have those behind it decoded; None if it has to be decoded by the caller."""
        if aligned is not self._aligned:
            self.forget()
            self._aligned = aligned
        if not (self._helpers_max and self._is_worth_it(chunk, batch)):
            return None
        while self._jobs and not self._jobs[0].is_for(chunk, batch):
            self._jobs.popleft()
        if not self._jobs:
            # The first one, or one that was not guessed.
            self.forget()
            self._upcoming = self._behind(chunk, batch)
            self._add(self._job(chunk, batch))
        self._look_ahead()
        job = self._jobs.popleft()
        while not job.is_done.is_set():
            try:
                self._waiting.popleft().run()
            except IndexError:
                job.is_done.wait()
        return job.decoded

    def forget(self) -> None:
        """Let go of what was decoded ahead. What is under way comes to its end, for nobody."""
        self._waiting.clear()
        self._jobs.clear()
        self._upcoming = iter(())

    def _look_ahead(self) -> None:
        while len(self._jobs) < _JOBS_PER_THREAD * (self._helpers_max + 1):
            job = next(self._upcoming, None)
            if job is None:
                break
            self._add(job)
        self._helpers = [helper for helper in self._helpers if not helper.done()]
        # When the interpreter is about to end, it starts no threads any more.
        with contextlib.suppress(RuntimeError):
            while len(self._helpers) < min(self._helpers_max, len(self._waiting) - 1):
                self._helpers.append(shared_threads().submit(_run_all, self._waiting))

    def _behind(self, chunk: Chunk, batch: LogBatch) -> Iterator[_Job | None]:
        """Yield jobs for the batches behind one of them; None where nothing more is to be guessed for now."""
        following: Chunk | None = chunk
        offset = batch.header.offset_next
        while True:
            if following is None:
                yield None
            else:
                chunk = following
                with contextlib.suppress(CorruptRecordError):
                    for each in () if chunk.is_values else iter_batches(chunk.records):
                        if each.header.base_offset >= offset:
                            yield self._job(chunk, each) if self._is_worth_it(chunk, each) else None
            following = self._buffer.behind(chunk)
            offset = 0 if following is None else following.subscription.position

    def _is_worth_it(self, chunk: Chunk, batch: LogBatch) -> bool:
        header, subscription = batch.header, chunk.subscription
        if not header.record_count or header.size < _BATCH_BYTES_MIN or not subscription.is_wanted:
            return False
        if subscription.offset_stop is not None and header.base_offset >= subscription.offset_stop:
            return False
        return self._decoder.is_worth_a_thread(batch, is_projected=chunk.is_projected, aligned=self._aligned)

    def _job(self, chunk: Chunk, batch: LogBatch) -> _Job:
        decode = partial(self._decoder.decode, batch, is_projected=chunk.is_projected, aligned=self._aligned)
        return _Job(chunk, batch.header.base_offset, decode)

    def _add(self, job: _Job) -> None:
        self._jobs.append(job)
        self._waiting.append(job)


class _Job:
    """One batch that is to be decoded, by whoever takes it first."""

    __slots__ = ("_base_offset", "_chunk", "_decode", "decoded", "is_done")

    def __init__(self, chunk: Chunk, base_offset: int, decode: Callable[[], DecodedBatch]) -> None:
        self._chunk = chunk
        self._base_offset = base_offset
        self._decode = decode
        self.decoded: DecodedBatch | None = None
        self.is_done = threading.Event()

    def is_for(self, chunk: Chunk, batch: LogBatch) -> bool:
        return self._chunk is chunk and self._base_offset == batch.header.base_offset

    def run(self) -> None:
        try:
            self.decoded = self._decode()
        except Exception:
            # It comes up again where it is noticed.
            logger.debug("a batch cannot be decoded ahead", exc_info=True)
        finally:
            self.is_done.set()


def _run_all(waiting: deque[_Job]) -> None:
    while True:
        try:
            job = waiting.popleft()
        except IndexError:
            return
        job.run()
