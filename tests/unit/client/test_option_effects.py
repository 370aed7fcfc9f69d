"""Client options that other tests do not come across have their effect, too: timeouts, batch sizes, tiered segments.
Shown with sockets that do not answer, a server that stores what is sent, and real files in place of remote storage."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from fluss.client.connection import FlussConnection
from fluss.client.kernel.remote_storage import AskForToken, RemoteFile, RemoteStorage
from fluss.client.kernel.runtime import wait_for
from fluss.client.scan.fetch import remote
from fluss.client.scan.fetch.buffer import Chunk, Frame, ScanBuffer, Subscription
from fluss.client.scan.fetch.remote import RemoteLog
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.record.log_batch import assign_offset
from fluss.schema.table import TableBucket
from fluss.testing.waiting import eventually_async
from tests.fakes import scan_cluster as scanning
from tests.fakes import write_server as writing

# Connections


@contextmanager
def unreachable() -> Iterator[str]:
    """An address where connections are neither taken nor refused: the queue for them is full."""
    with socket.socket() as full, ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


def test_connecting_takes_no_longer_than_the_connect_timeout() -> None:
    with unreachable() as address:
        # Two addresses, so that neither is tried again.
        config = Config({"bootstrap.servers": f"{address},{address}", "connect-timeout": 100})
        began_s = time.monotonic()
        with pytest.raises(FlussError, match=address) as caught:
            wait_for(FlussConnection.create(config))
        assert caught.value.error_code == ErrorCode.NETWORK_EXCEPTION
        # Twice the timeout, and not twice the two minutes that it is without the option.
        assert 0.2 <= time.monotonic() - began_s < 100


def test_a_fetch_may_take_the_time_to_wait_beside_the_request_timeout(caplog: pytest.LogCaptureFixture) -> None:
    options = {"request__timeout": 3000, "scanner_log_fetch_wait__max__time__ms": 3500}
    with scanning.scan_cluster() as servers, scanning.client_of(servers, **options) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        with caplog.at_level(logging.INFO, "fluss.client"):
            began_s = time.monotonic()
            assert scanner.poll(4000).is_empty()
        assert "could not be asked" not in caplog.text
        fetches = servers.call(lambda: len(servers.fetches))
        assert fetches <= 2 + (time.monotonic() - began_s) / 3.5, "each one waited"


# Batches


@pytest.mark.parametrize(
    ("options", "largest_bytes"),
    [
        ({"writer__dynamic_batch_size__enabled": False}, range(80_000, 100_001)),
        ({"writer__dynamic_batch_size_min": 40_000}, range(30_000, 60_001)),
        ({"writer__dynamic_batch_size_min": 80_000}, range(65_000, 95_001)),
    ],
    ids=["fixed", "low", "high"],
)
def test_half_empty_batches_make_later_ones_smaller_down_to_a_limit(
    options: dict[str, int | bool], largest_bytes: range
) -> None:
    with writing.WriteServer() as server:
        server.add_table()
        with writing.client_of(
            server, writer__batch_size=100_000, writer__batch_timeout_ms=60_000, **options
        ) as client:
            writer = client.writer()
            for number in range(30):
                writer.append([number, "x"])
                client.flush(writer)
            server.headers.clear()
            for number in range(3000):
                writer.append([number, "x" * 50])
            client.flush(writer)
            # The first of them are still cut to the smallest size; later ones grow again.
            assert server.headers[1, None, 0][0].size in largest_bytes


# Tiered segments


def segment(directory: Path, number: int, row_count: int = 10_000) -> pb.PbRemoteLogFetchInfo:
    """Write one segment with a batch in it, and return what names it."""
    batch = pa.record_batch([list(range(row_count)), ["x"] * row_count], schema=scanning.SCHEMA.to_arrow())
    encoded = encode_arrow_batch(batch, 1, NO_COMPRESSION)
    assign_offset(encoded, 0, 0)
    path = directory / f"bucket-{number}" / "s" / f"{0:020d}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded)
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=str(path.parents[1]), first_start_pos=0)
    info.remote_log_segments.add(
        remote_log_segment_id="s",
        remote_log_start_offset=0,
        remote_log_end_offset=row_count,
        segment_size_in_bytes=len(encoded),
    )
    return info


class WatchedStorage(RemoteStorage):
    """Remote storage that keeps which files were opened, and calls ``on_read`` with the position of each read."""

    def __init__(self, on_read: Callable[[int], None] = lambda position: None) -> None:
        super().__init__()
        self.locations: list[str] = []
        self._on_read = on_read

    async def opener(self, location: str, ask: AskForToken) -> Callable[[], RemoteFile]:
        self.locations.append(location)
        open_file = await super().opener(location, ask)
        return lambda: self._watched(open_file())

    def _watched(self, file: Any) -> RemoteFile:
        read = file.read

        def watched(memory: memoryview, position: int) -> None:
            self._on_read(position)
            read(memory, position)

        file.read = watched
        return cast("RemoteFile", file)


async def no_token() -> pb.GetFileSystemSecurityTokenResponse:
    raise AssertionError("directories need no credentials")


@pytest.mark.parametrize("count", [1, 3])
async def test_no_more_segments_are_read_at_a_time_than_wanted(tmp_path: Path, count: int) -> None:
    infos = [segment(tmp_path, number) for number in range(5)]

    buffer = ScanBuffer(1, lambda: None)
    buffer.hold(full := Frame(1))
    storage = WatchedStorage()
    log = RemoteLog(buffer, Config({"scanner.remote-log.prefetch-num": count}), storage, no_token)
    subscriptions = [Subscription(TableBucket(7, number), 0) for number in range(5)]
    reads = [asyncio.ensure_future(log.read(s, info)) for s, info in zip(subscriptions, infos, strict=True)]
    async with asyncio.timeout(120):
        await eventually_async(lambda: len(storage.locations) >= count)
        await asyncio.sleep(0.03)
        # All who are allowed to begin wait for room, and no others have begun.
        assert len(storage.locations) == count
        buffer.put([Chunk(subscriptions[0], full, memoryview(b""), 0, is_projected=False)])
        while not all(read.done() for read in reads):
            if (chunk := buffer.take()) is not None:
                buffer.release(chunk)
                log.resume()
            await asyncio.sleep(0.001)
    log.close()
    assert [read.result() for read in reads] == [10_000] * 5


@pytest.mark.parametrize(("thread_count", "part_count"), [(1, 1), (2, 5), (3, 2)])
async def test_a_segment_is_read_in_so_many_parts_by_so_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_count: int, part_count: int
) -> None:
    monkeypatch.setattr(remote, "_PART_BYTES_MIN", 100)
    info = segment(tmp_path, 0)
    parts: list[int] = []
    threads: set[str] = set()
    # The first parts wait for each other, so that no thread is done before the others have begun.
    all_began = threading.Barrier(min(thread_count, part_count))

    def on_read(position: int) -> None:
        parts.append(position)
        if threading.current_thread().name not in threads:
            threads.add(threading.current_thread().name)
            all_began.wait(120)

    config = Config(
        {"remote-file.download-thread-num": thread_count, "scanner.remote-log.read-concurrency": part_count}
    )
    log = RemoteLog(ScanBuffer(1 << 30, lambda: None), config, WatchedStorage(on_read), no_token)
    await log.read(Subscription(TableBucket(7, 0), 0), info)
    log.close()
    assert len(parts) == part_count
    assert len(threads) == min(thread_count, part_count)
