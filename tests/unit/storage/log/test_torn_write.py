"""An interrupted write is told from changed bytes: by what follows it, and by sectors that were never written.
Tails made by hand around a bad batch, at every alignment to a sector."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fluss.record.log_batch import LENGTH_END, assign_offset, build_batch
from fluss.storage.log.loader import SECTOR_BYTES, is_torn_write
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import NOW_MS, make_batch

PATH = Path("/log")


def stamped(offset: int, body: bytes = b"row") -> bytearray:
    batch = make_batch(body)
    assign_offset(batch, offset, NOW_MS)
    return batch


def is_torn(data: bytes | bytearray, position: int = 0, offset_next: int = 100) -> bool:
    files = FaultFiles()
    files.write(PATH, [data], 0)
    return is_torn_write(files, PATH, position, len(data), offset_next)


@pytest.mark.parametrize("end", range(60))
def test_a_write_that_ends_early_is_torn(end: int) -> None:
    assert is_torn(stamped(100, b"x" * 100)[:end])


def test_a_bad_batch_at_the_end_is_torn_and_before_good_ones_it_is_not() -> None:
    bad = stamped(100, b"x" * 100)
    bad[-1] ^= 1
    assert is_torn(bad)
    assert not is_torn(bad + stamped(101))
    assert not is_torn(bad + b"noise" + stamped(105)), "wherever the good one begins"
    assert is_torn(bad + stamped(101)[:-1]), "one that is not whole says nothing"
    assert is_torn(bad + stamped(99)), "nor does an older one"


def test_a_whole_batch_in_the_wrong_place_is_no_interrupted_write() -> None:
    assert not is_torn(stamped(101))
    late = stamped(100)
    assign_offset(late, 100, 2**60)
    assert not is_torn(late)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_good_batches_of_every_layout_are_recognised(magic: int) -> None:
    bad = stamped(100)
    bad[-1] ^= 1
    good = build_batch([b"row"], schema_id=1, record_count=1, append_only=True, magic=magic)
    empty = build_batch([], schema_id=1, record_count=0, append_only=True, magic=magic)
    for batch in (good, empty):
        assign_offset(batch, 101, NOW_MS)
        assert not is_torn(bad + batch)


@pytest.mark.parametrize("position", [*range(0, 2 * SECTOR_BYTES, 31), SECTOR_BYTES - 1, SECTOR_BYTES - 8])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_sector_makes_it_torn_whatever_follows(position: int, lost: int) -> None:
    """Three batches were being written at ``position``; one sector of them is as it was before: zeros."""
    before = b"\xee" * position
    data = bytearray(before + stamped(100, b"x" * 700) + stamped(101, b"y" * 700) + stamped(102, b"z" * 700))
    first_sector = position // SECTOR_BYTES
    start = max((first_sector + lost) * SECTOR_BYTES, position)
    end = (first_sector + lost + 1) * SECTOR_BYTES
    data[start:end] = bytes(end - start)
    # The first batch may have survived; then the bad place is the second one.
    bad = position if start < position + 748 else position + 748
    assert is_torn(data, bad, 100 if bad == position else 101)


def test_zeros_inside_a_sector_that_was_written_are_no_sign_of_a_loss() -> None:
    bad = stamped(100, b"x" + bytes(300) + b"y" * 300)
    bad[60] ^= 1
    assert not is_torn(bad + stamped(101))


def test_a_good_batch_far_behind_is_found() -> None:
    bad = stamped(100, b"\xaa" * 3_000_000)
    bad[100] ^= 1
    assert not is_torn(bad + stamped(101))
    assert is_torn(bad)


def test_numbers_that_look_like_headers_do_not_make_the_search_slow() -> None:
    # Offsets, lengths and times are small numbers, and so is most of what people store.
    column = np.arange(100_000, 400_000, dtype=np.int64).tobytes()
    bad = bytearray(stamped(100_000, column))
    bad[LENGTH_END + 20] ^= 1
    started_at = time.process_time()
    assert is_torn(bad, offset_next=100_000)
    assert time.process_time() - started_at < 1
