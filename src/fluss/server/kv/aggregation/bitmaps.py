"""Serialized sets of 32-bit numbers: the portable format that every roaring bitmap library reads and writes.

All numbers are little-endian. A container holds the numbers that share their upper 16 bits, its key.

    without runs   uint32 12346, uint32 number of containers
    with runs      uint16 12347, uint16 number of containers - 1, one bit per container: it has the RUN form
    per container  uint16 key, uint16 count of its numbers - 1; keys ascend
    per container  uint32 its place in these bytes; left out if there are runs and fewer than four containers
    per container  its content; up to 4096 numbers that are no runs are an ARRAY, more a BITMAP

Reading checks everything that later work relies on, because the bytes come from clients. Places are not among that:
containers follow each other in any case, and every other reader of whole bitmaps skips them, too.
"""

from __future__ import annotations

import struct
from itertools import accumulate, islice, pairwise
from typing import Final, TypeAlias

import numpy as np

from fluss.errors import CorruptRecordError
from fluss.server.kv.aggregation.containers import (
    ARRAY,
    ARRAY_COUNT_MAX,
    BITMAP,
    BITMAP_BYTES,
    COUNT_MAX,
    NUMBER_BYTES,
    RUN,
    RUN_BYTES,
    RUN_COUNT_BYTES,
    Container,
    checked_container,
    smallest,
    united,
)

# Containers by the high part of their numbers, ascending.
Bitmap: TypeAlias = dict[int, Container]

_COOKIE_PLAIN: Final = 12346
_COOKIE_RUNS: Final = 12347
_HEADER = struct.Struct("<HH")
_PLAIN_COUNT = struct.Struct("<I")
_PLACE_BYTES: Final = 4
# With runs, only bitmaps of this many containers or more say where each of them is.
_PLACES_FROM_COUNT: Final = 4


def union(one: Bitmap, other: Bitmap) -> Bitmap:
    """Return the numbers of both bitmaps; what only one of them has is not copied."""
    merged = dict(one)
    for key, container in other.items():
        held = merged.get(key)
        merged[key] = smallest(container) if held is None else united(held, container)
    return merged if len(merged) == len(one) else dict(sorted(merged.items()))


def read_bitmap32(data: bytes) -> Bitmap:
    """Read a whole serialized bitmap. CorruptRecordError if the bytes are anything else."""
    reader = ByteReader(data)
    cookie, upper = reader.unpack(_HEADER)
    if cookie == _COOKIE_RUNS:
        count = upper + 1
        run_flags = reader.take((count + 7) // 8)
        has_places = count >= _PLACES_FROM_COUNT
    elif cookie == _COOKIE_PLAIN and not upper:
        (count,) = reader.unpack(_PLAIN_COUNT)
        run_flags = None
        has_places = True
    else:
        raise CorruptRecordError(f"The bitmap begins with {data[:4].hex()}, which no 32-bit roaring bitmap does")
    if count > COUNT_MAX:
        raise CorruptRecordError(f"The bitmap announces {count} containers; there can be {COUNT_MAX}")
    heads = struct.unpack(f"<{2 * count}H", reader.take(count * _HEADER.size))
    keys = heads[0::2]
    if any(key >= following for key, following in pairwise(keys)):
        raise CorruptRecordError("The containers of the bitmap are out of order")
    if has_places:
        reader.take(count * _PLACE_BYTES)
    bitmap = {}
    for index, (key, last) in enumerate(zip(keys, heads[1::2], strict=True)):
        is_run = run_flags is not None and run_flags[index >> 3] >> (index & 7) & 1 == 1
        bitmap[key] = _read_container(reader, last + 1, is_run)
    reader.finish()
    return bitmap


def write_bitmap32(bitmap: Bitmap) -> bytes:
    """Serialize a bitmap."""
    containers = [_portable(container) for container in bitmap.values()]
    count = len(containers)
    is_run = [container.form == RUN for container in containers]
    if any(is_run):
        start = _HEADER.pack(_COOKIE_RUNS, count - 1) + np.packbits(is_run, bitorder="little").tobytes()
    else:
        start = _HEADER.pack(_COOKIE_PLAIN, 0) + _PLAIN_COUNT.pack(count)
    heads = b"".join(
        _HEADER.pack(key, container.number_count - 1) for key, container in zip(bitmap, containers, strict=True)
    )
    contents = [container.content for container in containers]
    places = b""
    if not any(is_run) or count >= _PLACES_FROM_COUNT:
        first_place = len(start) + len(heads) + count * _PLACE_BYTES
        ends = accumulate(map(len, contents), initial=first_place)
        places = struct.pack(f"<{count}I", *islice(ends, count))
    return b"".join((start, heads, places, *contents))


class ByteReader:
    """Takes bytes off the front of a serialized bitmap. CorruptRecordError at its end, and if it does not end there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, byte_count: int) -> bytes:
        """Return the next bytes."""
        taken = self._data[self._position : self._position + byte_count]
        if len(taken) != byte_count:
            raise CorruptRecordError(
                f"The bitmap is cut off: {len(self._data)} bytes, {self._position + byte_count} or more are needed"
            )
        self._position += byte_count
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return layout.unpack(self.take(layout.size))

    def take_runs(self) -> bytes:
        """Return the next content in the RUN form, which says itself how long it is."""
        run_count = self.take(RUN_COUNT_BYTES)
        return run_count + self.take(int.from_bytes(run_count, "little") * RUN_BYTES)

    def finish(self) -> None:
        """Check that nothing is left. Bytes of another format could begin like a small bitmap."""
        if self._position != len(self._data):
            raise CorruptRecordError(f"The bitmap ends after {self._position} of {len(self._data)} bytes")


def _read_container(reader: ByteReader, count: int, is_run: bool) -> Container:
    if is_run:
        return checked_container(RUN, count, reader.take_runs())
    if count <= ARRAY_COUNT_MAX:
        return checked_container(ARRAY, count, reader.take(count * NUMBER_BYTES))
    return checked_container(BITMAP, count, reader.take(BITMAP_BYTES))


def _portable(container: Container) -> Container:
    """Return the set in a form that this format can tell apart from the others by the count of numbers."""
    fits = container.form == RUN or (container.form == ARRAY) == (container.number_count <= ARRAY_COUNT_MAX)
    return container if fits else smallest(container)
