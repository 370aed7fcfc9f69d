"""Heads are those of the stored batches, wherever a look begins and ends; records are passed over, damage is not.
Logs in memory with small and large batches of every version, against the headers of the same batches read singly."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pytest

from fluss.errors import CorruptRecordError
from fluss.record.batch_heads import BatchHeads
from fluss.record.log_batch import MAGIC_V0, MAGIC_V1, MAGIC_V2, build_batch, read_batch
from fluss.storage.log.segment import HeadLimits
from fluss.storage.log.tablet import LogTablet
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import DIRECTORY, SteppedLog, drive, open_log, quiet_logs, read_batches

KIB = 1024
ALL_HEADS = HeadLimits(batches_max=1000, read_bytes_max=64 * 1024 * KIB, span_bytes_max=64 * 1024 * KIB)
Facts: TypeAlias = tuple[int, int, int, int, int, bytes]


def _batch(number: int, body_bytes: int, statistics_bytes: int = 0, magic: int = MAGIC_V1) -> bytearray:
    return build_batch(
        [bytes(body_bytes)],
        schema_id=number % 3,
        record_count=number % 5 + 1,
        append_only=True,
        magic=magic,
        statistics=bytes([number % 256]) * statistics_bytes,
    )


# Small ones side by side, large ones, heads that are larger than what is read at once, and all versions.
MIXED = [
    *(_batch(number, 20, 30) for number in range(40)),
    *(_batch(number, 100 * KIB, 50) for number in range(8)),
    _batch(1, 10, 20 * KIB),
    _batch(2, 300 * KIB, 300 * KIB),
    *(_batch(number, 50, magic=MAGIC_V0) for number in range(3)),
    *(_batch(number, 50 * KIB, 60, magic=MAGIC_V2) for number in range(3)),
]


class CountingFiles(FaultFiles):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, path: Path, position: int, byte_count: int) -> bytes:
        data = super().read(path, position, byte_count)
        self.read_bytes += len(data)
        return data


def _written(batches: list[bytearray], **settings: int) -> SteppedLog:
    stepped = SteppedLog(files=CountingFiles(), **settings)
    for batch in batches:
        stepped.log.append(bytearray(batch))
        stepped.committer.step()
    return stepped


def _facts(heads: BatchHeads) -> list[Facts]:
    starts = heads.statistics_starts.tolist()
    columns = (heads.base_offsets, heads.offset_ends, heads.sizes, heads.schema_ids, heads.record_counts)
    blocks = [heads.statistics[start:end] for start, end in pairwise(starts)]
    return list(zip(*(column.tolist() for column in columns), blocks, strict=True))


def _walked(log: LogTablet, offset: int, limits: HeadLimits) -> list[Facts]:
    facts: list[Facts] = []
    while (stored := log.read_heads(offset, limits)) is not None:
        assert 1 <= len(stored.heads) <= limits.batches_max
        assert sum(stored.heads.sizes[:-1].tolist()) < limits.span_bytes_max or stored.data is not None
        facts += _facts(stored.heads)
        offset = facts[-1][1]
    return facts


def _expected(log: LogTablet, offset: int) -> list[Facts]:
    return [
        (
            batch.header.base_offset,
            batch.header.offset_next,
            batch.header.size,
            batch.header.schema_id,
            batch.header.record_count,
            bytes(batch.statistics),
        )
        for batch in read_batches(log, offset=offset, bytes_max=4096 * KIB)
    ]


@pytest.mark.parametrize("segment_bytes_max", [400 * KIB, 64 * 1024 * KIB], ids=["small segments", "one segment"])
async def test_heads_are_those_of_the_stored_batches_wherever_a_look_begins_and_ends(segment_bytes_max: int) -> None:
    log = _written(MIXED, segment_bytes_max=segment_bytes_max).log
    offsets = [facts[0] for facts in _expected(log, 0)]
    assert len(offsets) == len(MIXED)
    for offset in (*offsets[::7], offsets[5] + 1, offsets[-1]):
        for limits in (
            ALL_HEADS,
            ALL_HEADS._replace(batches_max=7),
            ALL_HEADS._replace(read_bytes_max=1),
            ALL_HEADS._replace(span_bytes_max=1),
            ALL_HEADS._replace(span_bytes_max=150 * KIB),
        ):
            assert _walked(log, offset, limits) == _expected(log, offset)
    assert log.read_heads(log.offset_high_watermark, HeadLimits(1, 1, 1)) is None


async def test_records_of_large_batches_are_not_read() -> None:
    stepped = _written([_batch(number, 100 * KIB, 200) for number in range(50)])
    files = stepped.files
    assert isinstance(files, CountingFiles)
    files.read_bytes = 0
    stored = stepped.log.read_heads(0, ALL_HEADS)
    assert stored is not None
    assert len(stored.heads) == 50
    assert files.read_bytes < 300 * KIB, "a few kilobytes for each"
    assert stored.read_bytes <= files.read_bytes, "finding the first one takes a read of its own"


async def test_of_large_batches_no_more_are_looked_at_than_there_is_room_for() -> None:
    log = _written([_batch(number, 100 * KIB, 200) for number in range(50)]).log
    for room_bytes, count in ((1, 1), (250 * KIB, 3), (4096 * KIB, 41)):
        stored = log.read_heads(0, ALL_HEADS._replace(span_bytes_max=room_bytes))
        assert stored is not None
        assert len(stored.heads) == count


@pytest.mark.parametrize("place", ["statistics", "records"])
async def test_after_a_restart_batches_are_checked_before_their_statistics_are_believed(place: str) -> None:
    # The last segment is read when the log is opened.
    stepped = _written([_batch(number, 100, 50) for number in range(5)], segment_bytes_max=700)
    await drive(stepped.committer, stepped.log.close())
    path, _ = sorted(DIRECTORY / name for name in stepped.files.names(DIRECTORY) if name.endswith(".log"))
    content = bytearray(stepped.files.read(path, 0, stepped.files.size(path)))
    third = len(content) // 3 * 2
    batch = read_batch(content, third)
    content[third + batch.header.header_size + (0 if place == "statistics" else batch.header.statistics_length)] ^= 1
    files = stepped.files.copy(0)
    files.change(path, bytes(content))
    with quiet_logs():
        log, _ = open_log(files, stepped.committer, recovery_offset=stepped.log.offset_next, was_clean=True)
        with pytest.raises(CorruptRecordError, match=r"byte .*checksum"):
            log.read_heads(0, ALL_HEADS)


async def test_what_was_checked_once_is_not_read_whole_again() -> None:
    stepped = _written([_batch(number, 100 * KIB, 50) for number in range(20)], segment_bytes_max=1200 * KIB)
    await drive(stepped.committer, stepped.log.close())
    files = stepped.files
    assert isinstance(files, CountingFiles)
    log, _ = open_log(files, stepped.committer, recovery_offset=stepped.log.offset_next, was_clean=True)
    expected = _expected(log, 0)
    files.read_bytes = 0
    assert _walked(log, 0, ALL_HEADS) == expected
    assert files.read_bytes < 800 * KIB
