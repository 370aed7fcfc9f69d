"""Telling a write that was interrupted from bytes that have changed.

A write that was under way when the machine stopped is the last thing in a file, or parts of it never reached the disk
and read as zeros. A bad batch without missing sectors and with good batches behind it is neither: something changed
bytes that had been written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array, byte_array
from fluss.errors import FlussError
from fluss.record.log_batch import (
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    HEADER_LAYOUTS,
    LENGTH_END,
    MAGIC_NEWEST,
    read_batch,
    verify_crc,
)
from fluss.storage.log.scan import TIMESTAMP_MS_MAX
from fluss.storage.vfs import Files

# Disks and file systems lose writes in units of this size or a multiple of it.
SECTOR_BYTES: Final = 512
_WINDOW_BYTES: Final = 1024 * 1024
# Where fields lie, by magic.
_POSITIONS: Final = {
    name: np.array([layout.offsets[name] for layout in HEADER_LAYOUTS])
    for name in ("length", "commit_timestamp", "last_offset_delta", "record_count")
}
_HEADER_BYTES: Final = np.array([layout.size for layout in HEADER_LAYOUTS])


def is_torn_write(files: Files, path: Path, position: int, end: int, offset_next: int) -> bool:
    """Tell whether a bad place, where a batch with that offset should begin, can be an interrupted write."""
    # The place may be bad only because of what the checksum leaves out.
    is_good = _is_good_batch(files, path, position)
    following = position if is_good else _first_good_batch(files, path, position, end, offset_next)
    return following is None or _has_lost_sector(files, path, position, following)


def _first_good_batch(files: Files, path: Path, position: int, end: int, offset_next: int) -> int | None:
    """Return where, behind a bad position, a whole batch with a later offset and a right checksum begins."""
    # Windows overlap by a header, so that none is cut in two.
    for start in range(position, end - HEADER_BYTES_MIN + 1, _WINDOW_BYTES):
        window = files.read(path, start, _WINDOW_BYTES + HEADER_BYTES_MAX)
        for candidate in map(int, _candidates(byte_array(window), offset_next, end - start)):
            if start + candidate > position and _is_good_batch(files, path, start + candidate):
                return start + candidate
    return None


def _candidates(window: UInt8Array, offset_next: int, byte_count: int) -> Int64Array:
    """Return, in ascending order, where a later batch could begin of which no more than so many bytes are left.

    This is strict because it is what keeps the search fast: a column of small numbers looks much like headers.
    """
    # A header at the end may be one of the shorter ones.
    window = np.concatenate((window, np.zeros(HEADER_BYTES_MAX - HEADER_BYTES_MIN, np.uint8)))
    found = np.sort(np.concatenate([_later_offsets(window, shift, offset_next) for shift in range(8)]))
    found = found[window[found + LENGTH_END] <= MAGIC_NEWEST]
    magics = window[found + LENGTH_END]
    lengths = _integers(window, found + _POSITIONS["length"][magics], "<i4")
    times_ms = _integers(window, found + _POSITIONS["commit_timestamp"][magics], "<i8")
    counts = _integers(window, found + _POSITIONS["record_count"][magics], "<i4")
    deltas = _integers(window, found + _POSITIONS["last_offset_delta"][magics], "<i4")
    body_lengths = lengths + LENGTH_END - _HEADER_BYTES[magics]
    is_possible = (body_lengths >= 0) & (lengths <= byte_count - LENGTH_END - found)
    is_possible &= (times_ms >= 0) & (times_ms <= TIMESTAMP_MS_MAX)
    # Records need a body, and a body holds records.
    is_possible &= (counts >= 0) & (deltas >= counts - 1) & (deltas >= 0) & ((counts > 0) == (body_lengths > 0))
    possible: Int64Array = found[is_possible]
    return possible


def _later_offsets(window: UInt8Array, shift: int, offset_next: int) -> Int64Array:
    """Return those of every eighth position, from ``shift`` on, that hold an offset which may come later."""
    offsets = np.frombuffer(window, "<i8", count=(len(window) - shift) // 8, offset=shift)
    positions = np.flatnonzero((offsets > offset_next) & (offsets <= offset_next + 2**31)) * 8 + shift
    return positions[positions <= len(window) - HEADER_BYTES_MAX]


def _integers(window: UInt8Array, positions: Int64Array, kind: str) -> Int64Array:
    """Read integers at any positions."""
    width = np.dtype(kind).itemsize
    integers: npt.NDArray[Any] = window[positions[:, None] + np.arange(width)].view(kind)
    return integers.reshape(-1).astype(np.int64)


def _is_good_batch(files: Files, path: Path, position: int) -> bool:
    length = files.read(path, position, LENGTH_END)[LENGTH_END - 4 :]
    try:
        verify_crc(read_batch(files.read(path, position, LENGTH_END + int.from_bytes(length, "little"))))
    except FlussError:
        return False
    return True


def _has_lost_sector(files: Files, path: Path, position: int, end: int) -> bool:
    """Tell whether a sector before ``end``, or what follows ``position`` in its own sector, is all zeros.

    A good batch begins at ``end``, so the sector there was written.
    """
    position_aligned = -(-position // SECTOR_BYTES) * SECTOR_BYTES
    head = files.read(path, position, position_aligned - position)
    if head and not any(head):
        return True
    for start in range(position_aligned, end, _WINDOW_BYTES):
        window = byte_array(files.read(path, start, min(_WINDOW_BYTES, end - start)))
        sectors = window[: len(window) // SECTOR_BYTES * SECTOR_BYTES].reshape(-1, SECTOR_BYTES)
        if not sectors.any(axis=1).all():
            return True
    return False
