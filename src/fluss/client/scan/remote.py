"""Records that have left the servers: segment files of remote storage, which a fetch response names.

A segment is a copy of the log file of a bucket, ``<tablet directory>/<segment id>/<start offset, 20 digits>.log``. It
is read in pieces that go through the buffer like records from a server, so a scan needs no more memory for it. Nothing
was cut out of it: columns are chosen when it is decoded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from fluss.buffers import byte_view, new_memory
from fluss.client.kernel.retry import DOWNLOADS
from fluss.client.scan.buffer import Chunk, Frame, ScanBuffer, Subscription
from fluss.config import Config
from fluss.errors import CorruptRecordError, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import measure_batches

T = TypeVar("T")

_PIECE_BYTES: Final = 8 * 1024 * 1024
# Smaller parts are not worth a thread of their own.
_PART_BYTES_MIN: Final = 1024 * 1024
_RETRIES_MAX: Final = 10
_RETRY_JITTER: Final = 0.25

logger = logging.getLogger(__name__)


class RemoteLog:
    """Reads segments for one scanner, on the event loop of the client and a few threads of its own.

    At most ``scanner.remote-log.prefetch-num`` segments are read at a time, by ``remote-file.download-thread-num``
    threads, each piece of one in ``scanner.remote-log.read-concurrency`` parts. While the buffer is full, all wait.
    """

    def __init__(
        self,
        buffer: ScanBuffer,
        config: Config,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._buffer = buffer
        self._thread_count = config.remote_file_download_thread_num
        self._part_count = config.scanner_remote_log_read_concurrency
        self._segments = asyncio.Semaphore(config.scanner_remote_log_prefetch_num)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._threads: ThreadPoolExecutor | None = None
        self._has_room = asyncio.Event()

    async def read(self, subscription: Subscription, info: pb.PbRemoteLogFetchInfo) -> int:
        """Put the records of all segments into the buffer, in order; return the offset behind them.

        Ends early when the subscription does. Raises FlussError if the storage cannot be read from here, or not after
        some retries.
        """
        directory = local_directory(info.remote_log_tablet_dir)
        if not info.remote_log_segments:
            raise FlussError(f"{subscription.bucket} is said to be in remote storage, but no segment of it is named")
        position, offset = info.first_start_pos, subscription.offset_fetch
        for segment in info.remote_log_segments:
            path = directory / segment.remote_log_segment_id / f"{segment.remote_log_start_offset:020d}.log"
            async with self._segments:
                await self._read_segment(subscription, path, position)
            position, offset = 0, max(offset, segment.remote_log_end_offset)
        return offset

    def resume(self) -> None:
        self._has_room.set()

    def close(self) -> None:
        """End the threads. Nothing may be read any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read_segment(self, subscription: Subscription, path: Path, position: int) -> None:
        file = await self._retried(path, partial(self._on_thread, os.open, path, os.O_RDONLY))
        try:
            size = os.fstat(file).st_size
            piece_bytes = _PIECE_BYTES
            while position < size and subscription.is_active:
                await self._wait_for_room()
                byte_count = min(piece_bytes, size - position)
                piece = await self._retried(path, partial(self._read_piece, file, position, byte_count))
                run = _measured(piece, path, position)
                if run is None and byte_count == size - position:
                    raise FlussError(f"The remote log segment {path} ends in the middle of a batch at byte {position}")
                if run is None:
                    # A batch is larger than that.
                    piece_bytes *= 2
                    continue
                piece_bytes = _PIECE_BYTES
                used_bytes, offset_next = run
                frame = Frame(len(piece))
                self._buffer.hold(frame)
                self._buffer.put([Chunk(subscription, frame, piece[:used_bytes], offset_next, is_projected=False)])
                position += used_bytes
        finally:
            os.close(file)

    async def _wait_for_room(self) -> None:
        while True:
            self._has_room.clear()
            if self._buffer.has_room():
                return
            await self._has_room.wait()

    async def _read_piece(self, file: int, position: int, byte_count: int) -> memoryview:
        piece = byte_view(new_memory(byte_count))
        part_bytes = max(-(-byte_count // self._part_count), _PART_BYTES_MIN)
        starts = range(0, byte_count, part_bytes)
        await asyncio.gather(
            *(
                self._on_thread(_read_exactly, file, piece[start : start + part_bytes], position + start)
                for start in starts
            )
        )
        return piece.toreadonly()

    async def _on_thread(self, function: Callable[..., T], *args: object) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._thread_count, thread_name_prefix="fluss-remote-log")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _retried(self, path: Path, read: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(_RETRIES_MAX + 1):
            try:
                return await read()
            except OSError as error:
                if attempt == _RETRIES_MAX:
                    raise FlussError(f"Failed to download remote log segment {path}: {error}") from error
                logger.info("the remote log segment %s cannot be read right now: %s", path, error)
            await self._sleep(DOWNLOADS.pause_s(attempt + 1) * self._rng.uniform(1 - _RETRY_JITTER, 1 + _RETRY_JITTER))
        raise AssertionError("the last try returns or raises")


def local_directory(location: str) -> Path:
    """Return the path of a tablet directory, given as an absolute path or a ``file:`` URI.

    Other storage is a FlussError that says what cannot be read from here.
    """
    url = urlsplit(location)
    if location.startswith("/"):
        return Path(location)
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path.startswith("/"):
        return Path(unquote(url.path))
    raise FlussError(
        f"The records are in remote storage at {location}, which this client cannot read: it has no support for "
        f"{url.scheme or 'relative'} locations, only for absolute paths and file: URIs; read from an offset that the "
        f"servers still have, or mount the storage and set remote.data.dir to the path"
    )


def _measured(piece: memoryview, path: Path, position: int) -> tuple[int, int] | None:
    """Return how many bytes of a piece are whole batches and the offset behind them; None if there is none."""
    try:
        run = measure_batches(piece)
    except CorruptRecordError as error:
        raise FlussError(f"The remote log segment {path} is damaged after byte {position}: {error.message}") from error
    return None if run.offset_next is None else (run.byte_count, run.offset_next)


def _read_exactly(file: int, memory: memoryview, position: int) -> None:
    while memory:
        byte_count = os.preadv(file, [memory], position)
        if not byte_count:
            raise OSError(f"the file ends at byte {position}, more was expected")
        memory, position = memory[byte_count:], position + byte_count
