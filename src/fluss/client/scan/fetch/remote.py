"""Records that have left the servers: segment files of remote storage, which a fetch response names.

A segment is a copy of the log file of a bucket, ``<tablet directory>/<segment id>/<start offset, 20 digits>.log``. It
is read in pieces that go through the buffer like records from a server, so a scan needs no more memory for it. Nothing
was cut out of it: columns are chosen when it is decoded.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from fluss.buffers import byte_view, new_memory
from fluss.client.kernel.remote_storage import AskForToken, RemoteFile, RemoteStorage
from fluss.client.scan.fetch.buffer import Chunk, Frame, ScanBuffer, Subscription
from fluss.config import Config
from fluss.errors import CorruptRecordError, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import measure_batches
from fluss.retry import DOWNLOADS

T = TypeVar("T")

_PIECE_BYTES: Final = 8 * 1024 * 1024
# Smaller parts are not worth a thread of their own.
_PART_BYTES_MIN: Final = 1024 * 1024
_RETRIES_MAX: Final = 10

logger = logging.getLogger(__name__)


class RemoteLog:
    """Reads segments for one scanner, on the event loop of the client and a few threads of its own.

    At most ``scanner.remote-log.prefetch-num`` segments are read at a time, by ``remote-file.download-thread-num``
    threads, each piece of one in ``scanner.remote-log.read-concurrency`` parts. Of each there are at most two pieces
    that the buffer has not taken, so all wait while the buffer is full.
    """

    def __init__(
        self,
        buffer: ScanBuffer,
        config: Config,
        storage: RemoteStorage,
        ask_for_token: AskForToken,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._buffer = buffer
        self._storage = storage
        self._ask_for_token = ask_for_token
        self._thread_count = config.remote_file_download_thread_num
        self._part_count = config.scanner_remote_log_read_concurrency
        self._prefetch_num = config.scanner_remote_log_prefetch_num
        self._segments = asyncio.Semaphore(self._prefetch_num)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._threads: ThreadPoolExecutor | None = None
        self._has_room = asyncio.Event()

    async def read(self, subscription: Subscription, info: pb.PbRemoteLogFetchInfo) -> int:
        """Put the records of all segments into the buffer, in order; return the offset behind them.

        Ends early when the subscription does. Raises FlussError if the storage cannot be read from here, or not after
        some retries.
        """
        if not info.remote_log_segments:
            raise FlussError(f"{subscription.bucket} is said to be in remote storage, but no segment of it is named")
        directory = info.remote_log_tablet_dir.rstrip("/")
        upcoming = deque(
            f"{directory}/{segment.remote_log_segment_id}/{segment.remote_log_start_offset:020d}.log"
            for segment in info.remote_log_segments
        )
        position = info.first_start_pos
        # In the order of their records: those behind the first are read ahead.
        downloads: deque[_Download] = deque()
        try:
            while upcoming or downloads:
                while upcoming and len(downloads) < self._prefetch_num:
                    read = partial(self._read_segment, subscription, upcoming.popleft(), position)
                    downloads.append(_Download(read, self._segments))
                    position = 0
                while (piece := await downloads[0].next_piece()) is not None:
                    await self._wait_for_room()
                    if not subscription.is_active:
                        return subscription.offset_fetch
                    frame = Frame(piece.frame_bytes)
                    self._buffer.hold(frame)
                    self._buffer.put([Chunk(subscription, frame, piece.records, piece.offset_next, is_projected=False)])
                await downloads.popleft().end()
        finally:
            for download in downloads:
                await download.end()
        return max(subscription.offset_fetch, *(s.remote_log_end_offset for s in info.remote_log_segments))

    def resume(self) -> None:
        self._has_room.set()

    def close(self) -> None:
        """End the threads. Nothing may be read any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read_segment(
        self,
        subscription: Subscription,
        location: str,
        position: int,
        pieces: asyncio.Queue[_Piece | FlussError | None],
    ) -> None:
        """Put a segment into a queue, piece by piece, and then None or what has gone wrong."""
        end: FlussError | None = None
        segment = _Segment(self, location)
        try:
            size = await segment.size()
            piece_bytes = _PIECE_BYTES
            while position < size and subscription.is_active:
                byte_count = min(piece_bytes, size - position)
                data = await segment.read(position, byte_count)
                run = _measured(data, location, position)
                if run is None and byte_count == size - position:
                    raise FlussError(
                        f"The remote log segment {location} ends in the middle of a batch at byte {position}"
                    )
                if run is None:
                    # A batch is larger than that.
                    piece_bytes *= 2
                    continue
                piece_bytes = _PIECE_BYTES
                used_bytes, offset_next = run
                await pieces.put(_Piece(data[:used_bytes], len(data), offset_next))
                position += used_bytes
        except FlussError as error:
            end = error
        except Exception as error:
            # A fault of the client itself: the reader must not be left waiting because of it.
            logger.exception("a remote log segment could not be read")
            end = FlussError(f"The remote log segment {location} cannot be read: {type(error).__name__}: {error}")
        finally:
            segment.close()
        await pieces.put(end)

    async def _wait_for_room(self) -> None:
        while True:
            self._has_room.clear()
            if self._buffer.has_room():
                return
            await self._has_room.wait()

    # For segments

    async def open(self, location: str) -> RemoteFile:
        """Open a file, with credentials that are good now."""
        return await self._on_thread(await self._storage.opener(location, self._ask_for_token))

    async def read_piece(self, file: RemoteFile, position: int, byte_count: int) -> memoryview:
        piece = byte_view(new_memory(byte_count))
        part_bytes = max(-(-byte_count // self._part_count), _PART_BYTES_MIN)
        starts = range(0, byte_count, part_bytes)
        await asyncio.gather(
            *(self._on_thread(file.read, piece[start : start + part_bytes], position + start) for start in starts)
        )
        return piece.toreadonly()

    async def pause(self, location: str, attempt: int, error: OSError) -> None:
        """Wait before the next attempt at a file, if there is one."""
        if attempt >= _RETRIES_MAX:
            raise FlussError(f"Failed to download remote log segment {location}: {error}") from error
        logger.info("the remote log segment %s cannot be read right now: %s", location, error)
        # Perhaps it was the credentials.
        self._storage.refused(location)
        await self._sleep(DOWNLOADS.jittered_s(attempt + 1, self._rng))

    async def _on_thread(self, function: Callable[..., T], *args: object) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._thread_count, thread_name_prefix="fluss-remote-log")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Whole batches of a segment."""

    records: memoryview
    # With what was read of the batch behind them.
    frame_bytes: int
    offset_next: int


class _Download:
    """A segment that is being read. It has one of the places until it ends: until then it has records in memory."""

    def __init__(
        self,
        read: Callable[[asyncio.Queue[_Piece | FlussError | None]], Awaitable[None]],
        places: asyncio.Semaphore,
    ) -> None:
        self._read = read
        self._places = places
        self._has_place = False
        self._pieces: asyncio.Queue[_Piece | FlussError | None] = asyncio.Queue(maxsize=1)
        self._task = asyncio.create_task(self._run())

    async def next_piece(self) -> _Piece | None:
        """Return the next batches, None at the end, or raise what has gone wrong."""
        piece = await self._pieces.get()
        if isinstance(piece, FlussError):
            raise piece
        return piece

    async def end(self) -> None:
        """Stop reading, and give the place to another one."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._has_place:
            self._has_place = False
            self._places.release()

    async def _run(self) -> None:
        await self._places.acquire()
        self._has_place = True
        await self._read(self._pieces)


class _Segment:
    """A file that is opened when it is first read, and again after a failure."""

    def __init__(self, log: RemoteLog, location: str) -> None:
        self._log = log
        self._location = location
        self._file: RemoteFile | None = None

    async def size(self) -> int:
        async def read(file: RemoteFile) -> int:
            return file.size_bytes

        return await self._retried(read)

    async def read(self, position: int, byte_count: int) -> memoryview:
        async def read(file: RemoteFile) -> memoryview:
            return await self._log.read_piece(file, position, byte_count)

        return await self._retried(read)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    async def _retried(self, read: Callable[[RemoteFile], Awaitable[T]]) -> T:
        attempt = 0
        while True:
            try:
                if self._file is None:
                    self._file = await self._log.open(self._location)
                return await read(self._file)
            except OSError as error:
                self.close()
                await self._log.pause(self._location, attempt, error)
            attempt += 1


def _measured(piece: memoryview, location: str, position: int) -> tuple[int, int] | None:
    """Return how many bytes of a piece are whole batches and the offset behind them; None if there is none."""
    try:
        run = measure_batches(piece)
    except CorruptRecordError as error:
        text = f"The remote log segment {location} is damaged after byte {position}: {error.message}"
        raise FlussError(text) from error
    return None if run.offset_next is None else (run.byte_count, run.offset_next)
