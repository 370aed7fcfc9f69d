"""Serialized roaring bitmaps: sets of 32-bit and of 64-bit numbers, read, united and written.

**32 bits**: the portable format that every roaring bitmap library reads and writes. All numbers are little-endian. A
container holds the numbers that share their upper 16 bits, its key.

    without runs   uint32 12346, uint32 number of containers
    with runs      uint16 12347, uint16 number of containers - 1, one bit per container: it has the RUN form
    per container  uint16 key, uint16 count of its numbers - 1; keys ascend
    per container  uint32 its place in these bytes; left out if there are runs and fewer than four containers
    per container  its content; up to 4096 numbers that are no runs are an ARRAY, more a BITMAP

Reading checks everything that later work relies on, because the bytes come from clients. Places are not among that:
containers follow each other in any case, and every other reader of whole bitmaps skips them, too.

**64 bits**: as the class ``Roaring64Bitmap`` of the Java library writes them, which is not the portable 64-bit format
of other libraries. It is a radix tree over the upper 48 bits of the numbers, whose leaves name containers. All numbers
are little-endian except keys:

    byte 0                                         the empty bitmap, nothing follows
    byte 1, int64 number of leaves, root node      then the containers
    node        byte kind, int16 number of children, byte length of the prefix, the prefix, the body of its kind
    containers  int32 number of lists; per list: byte -2, int32 length, then per place:
                byte 0 if it is free, else byte 1, byte form, int32 count of numbers, content
                int64 number of containers, int32 the last list, int32 the last place used in it

A key is six bytes, the highest first. Each branch adds its prefix and the byte of one child to what its children have
in common; children follow it at once, depth first, ascending. The bodies:

    0  up to 4 children    their bytes, as one 32-bit number that begins with the first child's (so they are reversed)
    1  up to 16 children   the same, as two 64-bit numbers
    2  up to 48 children   per possible byte the slot of the child, 255 for none, as 32 such 64-bit numbers
    3  more children       256 bits
    4  leaf                key, int64 place of its container: list << 32 | place

Counters (leaves, containers, last places) are not checked: writers that removed numbers leave them behind as they were.
"""

from __future__ import annotations

import struct
from itertools import accumulate, groupby, islice, pairwise
from typing import Final, TypeAlias

import numpy as np

from fluss.errors import CorruptRecordError
from fluss.server.merge.roaring_containers import (
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

# Of the 32-bit format.
_COOKIE_PLAIN: Final = 12346
_COOKIE_RUNS: Final = 12347
_HEADER = struct.Struct("<HH")
_PLAIN_COUNT = struct.Struct("<I")
_PLACE_BYTES: Final = 4
# With runs, only bitmaps of this many containers or more say where each of them is.
_PLACES_FROM_COUNT: Final = 4

# Of the 64-bit format.
KEY_BYTES: Final = 6

_EMPTY: Final = b"\x00"
_NOT_EMPTY: Final = b"\x01"
_NODE4, _NODE16, _NODE48, _NODE256, _LEAF = range(5)
# Kind of a branch -> children it has room for, bytes of its body.
_ROOMS: Final = {_NODE4: 4, _NODE16: 16, _NODE48: 48, _NODE256: 256}
_BODY_BYTES: Final = {_NODE4: 4, _NODE16: 16, _NODE48: 256, _NODE256: 32}
_NO_SLOT: Final = 255

_LEAF_COUNT = struct.Struct("<q")
_NODE_HEAD = struct.Struct("<BhB")
_LEAF_PLACE = struct.Struct("<q")
_LIST_COUNT = struct.Struct("<i")
_LIST_HEAD = struct.Struct("<bi")
_CONTAINER_HEAD = struct.Struct("<Bi")
_TAIL = struct.Struct("<qii")
_LIST_MARK: Final = -2
_HELP: Final = "(this column takes what Roaring64Bitmap.serialize of the Java library writes; other formats differ)"


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


def read_bitmap64(data: bytes) -> Bitmap:
    """Read a whole serialized bitmap. CorruptRecordError if the bytes are anything else."""
    try:
        return _read_tree(ByteReader(data))
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{error.message} {_HELP}") from None


def write_bitmap64(bitmap: Bitmap) -> bytes:
    """Serialize a bitmap."""
    if not bitmap:
        return _EMPTY
    parts = [_NOT_EMPTY, _LEAF_COUNT.pack(len(bitmap))]
    leaves = [(key.to_bytes(KEY_BYTES, "big"), place) for place, key in enumerate(bitmap)]
    _write_node(parts, leaves, 0)
    parts += [_LIST_COUNT.pack(1), _LIST_HEAD.pack(_LIST_MARK, len(bitmap))]
    for form, count, content in bitmap.values():
        parts += (_NOT_EMPTY, _CONTAINER_HEAD.pack(form, count), content)
    parts.append(_TAIL.pack(len(bitmap), 0, len(bitmap) - 1))
    return b"".join(parts)


def _read_tree(reader: ByteReader) -> Bitmap:
    mark = reader.take(1)
    if mark == _EMPTY:
        reader.finish()
        return {}
    if mark != _NOT_EMPTY:
        raise CorruptRecordError(f"The bitmap begins with the byte {mark.hex()} instead of 00 or 01")
    reader.unpack(_LEAF_COUNT)
    leaves: list[tuple[int, int]] = []
    _read_node(reader, b"", leaves)
    containers = _read_containers(reader)
    reader.unpack(_TAIL)
    reader.finish()
    bitmap = {}
    for key, place in leaves:
        container = containers.pop(place, None)
        if container is None:
            raise CorruptRecordError("The bitmap has a leaf without a container of its own")
        bitmap[key] = container
    return bitmap


def _read_node(reader: ByteReader, path: bytes, leaves: list[tuple[int, int]]) -> None:
    """Add the leaves of one node, as (key, place of the container). ``path`` is what their keys begin with."""
    kind, child_count, prefix_length = reader.unpack(_NODE_HEAD)
    path += reader.take(prefix_length)
    if kind == _LEAF:
        key = reader.take(KEY_BYTES)
        if not key.startswith(path):
            raise CorruptRecordError("The bitmap has a leaf in the wrong place")
        (place,) = reader.unpack(_LEAF_PLACE)
        leaves.append((int.from_bytes(key, "big"), place))
        return
    if kind not in _ROOMS or len(path) >= KEY_BYTES:
        raise CorruptRecordError(f"The bitmap has a node of kind {kind} below {len(path)} bytes of the key")
    for child in _children(kind, child_count, reader.take(_BODY_BYTES[kind])):
        _read_node(reader, path + bytes((child,)), leaves)


def _children(kind: int, child_count: int, body: bytes) -> list[int]:
    """Return the bytes of the children, ascending."""
    if kind == _NODE256:
        children = np.flatnonzero(np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")).tolist()
    elif kind == _NODE48:
        children = [child for child, slot in enumerate(_reversed_words(body)) if slot != _NO_SLOT]
    else:
        children = list(_reversed_words(body)[:child_count])
    if len(children) != child_count or not children or any(a >= b for a, b in pairwise(children)):
        raise CorruptRecordError(f"The bitmap has a node whose {child_count} children are not those it lists")
    return children


def _reversed_words(body: bytes) -> bytes:
    """Reverse the bytes of each 64-bit number, or of the one 32-bit number."""
    word_bytes = min(len(body), 8)
    return np.frombuffer(body, np.uint8).reshape(-1, word_bytes)[:, ::-1].tobytes()


def _read_containers(reader: ByteReader) -> dict[int, Container]:
    """Return the containers by place."""
    containers: dict[int, Container] = {}
    (list_count,) = reader.unpack(_LIST_COUNT)
    for list_index in range(list_count):
        _, length = reader.unpack(_LIST_HEAD)
        for place in range(length):
            mark = reader.take(1)
            if mark == _NOT_EMPTY:
                containers[list_index << 32 | place] = _read_tree_container(reader)
            elif mark != _EMPTY:
                raise CorruptRecordError(f"The bitmap has the byte {mark.hex()} instead of a container")
    return containers


def _read_tree_container(reader: ByteReader) -> Container:
    form, count = reader.unpack(_CONTAINER_HEAD)
    if not 0 < count <= COUNT_MAX:
        raise CorruptRecordError(f"The bitmap has a container of {count} numbers")
    if form == RUN:
        return checked_container(form, count, reader.take_runs())
    content_bytes = BITMAP_BYTES if form == BITMAP else count * NUMBER_BYTES
    return checked_container(form, count, reader.take(content_bytes))


def _write_node(parts: list[bytes], leaves: list[tuple[bytes, int]], depth: int) -> None:
    """Write the tree over some leaves, ascending, whose keys have their first ``depth`` bytes in common."""
    if len(leaves) == 1:
        key, place = leaves[0]
        parts += (_NODE_HEAD.pack(_LEAF, 0, 0), key, _LEAF_PLACE.pack(place))
        return
    # Between the first and the last of ascending keys nothing else can differ.
    first, last = leaves[0][0], leaves[-1][0]
    prefix_end = next(index for index in range(depth, KEY_BYTES) if first[index] != last[index])
    by_child = [(child, list(group)) for child, group in groupby(leaves, lambda leaf: leaf[0][prefix_end])]
    kind = next(kind for kind, room in _ROOMS.items() if len(by_child) <= room)
    prefix = first[depth:prefix_end]
    parts += (_NODE_HEAD.pack(kind, len(by_child), len(prefix)), prefix, _body(kind, [child for child, _ in by_child]))
    for _, group in by_child:
        _write_node(parts, group, prefix_end + 1)


def _body(kind: int, children: list[int]) -> bytes:
    if kind == _NODE256:
        return sum(1 << child for child in children).to_bytes(_BODY_BYTES[kind], "little")
    if kind == _NODE48:
        slots = bytearray([_NO_SLOT]) * _BODY_BYTES[kind]
        for slot, child in enumerate(children):
            slots[child] = slot
        return _reversed_words(bytes(slots))
    return _reversed_words(bytes(children).ljust(_BODY_BYTES[kind], b"\0"))
