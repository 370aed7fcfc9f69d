"""Records that have left the servers are read from segment files: in order, in bounded memory, and as often as needed.
Shown with real files that a server on a real socket names in its answers; files come late, are cut or damaged."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fluss import EARLIEST_OFFSET, FlussError
from fluss.client.kernel.remote_storage import RemoteStorage, local_path
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.fetch import remote
from fluss.client.scan.fetch.buffer import ScanBuffer, Subscription
from fluss.client.scan.fetch.remote import RemoteLog
from fluss.config import Config
from fluss.net.transport import run
from fluss.protocol.bulk_messages import FetchedBucket
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import iter_batches
from fluss.schema.table import TableBucket
from fluss.testing.waiting import eventually
from tests.fakes.scan_cluster import ScanCluster, client_of, poll_rows, poll_until_it_fails, scan_cluster
from tests.unit.client.scan.test_log_scanner import rows


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    """A log of 30 rows in batches of three."""
    with scan_cluster() as servers:
        for number in range(10):
            servers.append(rows(3 * number))
        yield servers


def tier(servers: ScanCluster, directory: Path, boundaries: list[int]) -> pb.PbRemoteLogFetchInfo:
    """Write batches to segment files, from one boundary (a number of batches) to the next; return what names them."""
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=str(directory), first_start_pos=0)
    log = servers.logs[None, 0]
    for index, (start, end) in enumerate(pairwise(boundaries)):
        content = b"".join(stored.data for stored in log[start:end])
        segment_id, start_offset = f"0000-{index}", 3 * start
        path = directory / segment_id / f"{start_offset:020d}.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        info.remote_log_segments.add(
            remote_log_segment_id=segment_id,
            remote_log_start_offset=start_offset,
            remote_log_end_offset=3 * end,
            segment_size_in_bytes=len(content),
        )
    return info


def answer_with(servers: ScanCluster, info: pb.PbRemoteLogFetchInfo) -> None:
    answer = FetchedBucket(0, high_watermark=30, remote_log_fetch_info=info)
    servers.call(lambda: servers.answers.update({(None, 0): deque([answer])}))


@pytest.mark.parametrize("start", [EARLIEST_OFFSET, 0, 4, 13])
def test_segments_come_first_and_the_server_goes_on(servers: ScanCluster, tmp_path: Path, start: int) -> None:
    info = tier(servers, tmp_path, [0, 2, 6])
    answer_with(servers, info)
    with client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, start)
        first = max(start, 0)
        assert poll_rows(scanner, 30 - first) == rows(first, 30 - first)
        assert scanner.get_subscribed_buckets() == [(client.bucket(0), 30)]


def test_reading_begins_at_the_position_the_server_names(servers: ScanCluster, tmp_path: Path) -> None:
    info = tier(servers, tmp_path, [0, 4, 6])
    info.first_start_pos = len(servers.logs[None, 0][0].data)
    # Nothing before that position is looked at.
    first = tmp_path / "0000-0" / f"{0:020d}.log"
    first.write_bytes(bytes(info.first_start_pos) + first.read_bytes()[info.first_start_pos :])
    answer_with(servers, info)
    with client_of(servers) as client:
        scanner = client.batches()
        scanner.subscribe(0, 4)
        assert scanner.to_arrow().to_pylist() == rows(4, 26)


def test_columns_are_chosen_here_since_nothing_was_cut_out(servers: ScanCluster, tmp_path: Path) -> None:
    answer_with(servers, tier(servers, tmp_path, [0, 10]))
    with client_of(servers) as client:
        scanner = runtime().run(client.scan().project([1]).create_record_batch_log_scanner())
        scanner.subscribe(0, 28)
        assert scanner.to_arrow().to_pylist() == [{"name": "n28"}, {"name": "n29"}]


def test_pieces_smaller_than_a_batch_and_a_full_buffer_are_no_obstacle(
    servers: ScanCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_PIECE_BYTES", 100)
    monkeypatch.setattr(remote, "_PART_BYTES_MIN", 30)
    answer_with(servers, tier(servers, tmp_path, [0, 5, 10]))
    options: dict[str, Any] = {"scanner_log_fetch_max__bytes": 600, "scanner_log_fetch_max__bytes__for__bucket": 600}
    with client_of(servers, **options) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        scanner.poll(0)
        buffer = scanner._pipeline.buffer
        held = [eventually(lambda: buffer.bytes_held, "the first pieces")]
        for _ in range(10):
            runtime().run(asyncio.sleep(0.01))
            held.append(buffer.bytes_held)
        assert 0 < max(held) < 2000
        assert poll_rows(scanner, 30) == rows(0, 30)


def test_unsubscribing_ends_the_reading(servers: ScanCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PIECE_BYTES", 400)
    answer_with(servers, tier(servers, tmp_path, [0, 5, 10]))
    options: dict[str, Any] = {"scanner_log_fetch_max__bytes": 500, "scanner_log_fetch_max__bytes__for__bucket": 500}
    with client_of(servers, **options) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert poll_rows(scanner, 3)
        scanner.subscribe(0, 27)
        assert poll_rows(scanner, 3) == rows(27, 3)
        assert scanner.poll(30).is_empty()


# What can go wrong


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/log", "/data/log"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data", "/data"),
        ("file://localhost/d", "/d"),
    ],
)
def test_local_storage_is_read_by_path_or_file_uri(location: str, path: str) -> None:
    assert local_path(location) == Path(path)


@pytest.mark.parametrize("location", ["file://far/x", "data/log", "s3:/log", ""])
def test_other_storage_is_named(location: str) -> None:
    with pytest.raises(FlussError, match=r"this client cannot read.*absolute path, a file: URI") as error:
        local_path(location)
    assert location in error.value.message


def test_polls_raise_what_storage_is_missing(servers: ScanCluster) -> None:
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="ftp://host/log")
    info.remote_log_segments.add(
        remote_log_segment_id="a", remote_log_start_offset=0, remote_log_end_offset=3, segment_size_in_bytes=1
    )
    servers.standing_answers[None, 0] = FetchedBucket(0, remote_log_fetch_info=info)
    with client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        for _ in range(2):
            assert "remote storage cannot be at 'ftp://host/log" in poll_until_it_fails(scanner.poll).message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda data: data[:-3], "ends in the middle of a batch"),
        (lambda data: b"\0" * 60 + data, "damaged after byte 0"),
    ],
)
def test_segments_that_are_not_what_they_should_be_are_refused(
    servers: ScanCluster, tmp_path: Path, content: Any, reason: str
) -> None:
    info = tier(servers, tmp_path, [0, 2])
    path = tmp_path / "0000-0" / f"{0:020d}.log"
    path.write_bytes(content(path.read_bytes()))
    servers.standing_answers[None, 0] = FetchedBucket(0, remote_log_fetch_info=info)
    with client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert reason in poll_until_it_fails(scanner.poll, reason).message


def test_no_segment_at_all_is_an_error(servers: ScanCluster, tmp_path: Path) -> None:
    servers.standing_answers[None, 0] = FetchedBucket(
        0, remote_log_fetch_info=pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=str(tmp_path))
    )
    with client_of(servers) as client:
        scanner = client.records()
        scanner.subscribe(0, 0)
        assert "no segment of it is named" in poll_until_it_fails(scanner.poll).message


class Pauses:
    """Takes the place of sleeping; something may happen during a pause."""

    def __init__(self, on_pause: Any = None) -> None:
        self.lengths_s: list[float] = []
        self._on_pause = on_pause

    async def __call__(self, seconds: float) -> None:
        self.lengths_s.append(seconds)
        if self._on_pause is not None:
            self._on_pause(len(self.lengths_s))


async def no_token() -> pb.GetFileSystemSecurityTokenResponse:
    raise AssertionError("directories need no credentials")


def read_all(info: pb.PbRemoteLogFetchInfo, pauses: Pauses) -> list[int]:
    """Read segments without a scanner; return the first offsets of their batches."""
    buffer = ScanBuffer(1 << 20, lambda: None)
    subscription = Subscription(TableBucket(7, 0), 0)

    async def main() -> int:
        log = RemoteLog(buffer, Config(), RemoteStorage(), no_token, rng=random.Random(5), sleep=pauses)
        try:
            return await log.read(subscription, info)
        finally:
            log.close()

    end = run(main())
    assert end == info.remote_log_segments[-1].remote_log_end_offset
    offsets = []
    while (chunk := buffer.take()) is not None:
        offsets += [batch.header.base_offset for batch in iter_batches(chunk.records)]
        assert not chunk.is_projected
    return offsets


def test_a_file_that_comes_late_is_waited_for(servers: ScanCluster, tmp_path: Path) -> None:
    info = tier(servers, tmp_path, [0, 2, 4])
    late = tmp_path / "0000-1" / f"{6:020d}.log"
    hidden = late.rename(tmp_path / "hidden")
    pauses = Pauses(lambda count: hidden.rename(late) if count == 4 else None)
    assert read_all(info, pauses) == [0, 3, 6, 9]
    assert len(pauses.lengths_s) == 4
    for index, length_s in enumerate(pauses.lengths_s):
        assert 0.75 * 0.1 * 2**index <= length_s <= 1.25 * 0.1 * 2**index


def test_a_file_that_never_comes_is_an_error(servers: ScanCluster, tmp_path: Path) -> None:
    info = tier(servers, tmp_path, [0, 2])
    (tmp_path / "0000-0" / f"{0:020d}.log").unlink()
    pauses = Pauses()
    with pytest.raises(FlussError, match=r"Failed to download remote log segment .*\.log"):
        read_all(info, pauses)
    assert len(pauses.lengths_s) == 10
    assert max(pauses.lengths_s) <= 5 * 1.25
