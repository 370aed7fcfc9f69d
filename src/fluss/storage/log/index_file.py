"""What the two index files of a segment have in common: fixed-size big-endian entries, and room for more.

The file of a segment that is still written to has its final size from the start and is zero behind the last entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array, byte_array
from fluss.storage.log.damage import damaged
from fluss.storage.log.names import OFFSET_MAX

RELATIVE_OFFSET_MAX = 2**31 - 1


def read_entries(data: BytesLike, entry: np.dtype[Any], what: str, file_name: str | None) -> npt.NDArray[Any]:
    """View the entries of a file without the zeros behind the last one."""
    raw = byte_array(data)
    if len(raw) % entry.itemsize:
        reason = f"its {len(raw)} bytes are not a multiple of the entry size {entry.itemsize}"
        raise damaged(what, reason, file_name)
    written = np.flatnonzero(raw)
    count = int(written[-1]) // entry.itemsize + 1 if len(written) else 0
    return raw[: count * entry.itemsize].view(entry)


def check_ascending(values: Int64Array, what: str, field: str, file_name: str | None) -> None:
    """Refuse values that are negative or not larger than the one before."""
    # Comparing, not subtracting: the distance of two int64 need not fit one.
    before = np.concatenate((np.full(1, -1), values[:-1]))
    bad = np.flatnonzero(values <= before[: len(values)])
    if len(bad):
        index = int(bad[0])
        found = f"after {values[index - 1]}" if index else "in the first entry"
        raise damaged(what, f"{field} {values[index]} {found}, at entry {index} of {len(values)}", file_name)


def absolute_offsets(relative: Int64Array, base_offset: int, what: str, file_name: str | None) -> Int64Array:
    """Add the base of the segment to ascending distances; offsets beyond 64 bits are damage."""
    if len(relative) and base_offset + int(relative[-1]) > OFFSET_MAX:
        raise damaged(what, f"{relative[-1]} after the base offset {base_offset} is not an offset", file_name)
    return relative + base_offset


def relative_offsets(offsets: Int64Array, base_offset: int) -> Int64Array:
    """Subtract the base of the segment. The distances must fit an int32: longer segments are not made."""
    relative = offsets - base_offset
    assert int(relative.min(initial=0)) >= 0, "an entry lies before its segment"
    assert int(relative.max(initial=0)) <= RELATIVE_OFFSET_MAX, "an entry is too far from the base of its segment"
    return relative
