"""Serialized sets of 64-bit numbers, as the class ``Roaring64Bitmap`` of the Java library writes them.

This is not the portable 64-bit format of other libraries. It is a radix tree over the upper 48 bits of the numbers,
whose leaves name containers. All numbers are little-endian except keys:

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
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from fluss.errors import CorruptRecordError
from fluss.server.kv.aggregation.bitmaps import Bitmap, ByteReader
from fluss.server.kv.aggregation.containers import (
    BITMAP,
    BITMAP_BYTES,
    COUNT_MAX,
    NUMBER_BYTES,
    RUN,
    Container,
    checked_container,
)

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


def read_bitmap64(data: bytes) -> Bitmap:
    """Read a whole serialized bitmap. CorruptRecordError if the bytes are anything else."""
    try:
        return _read(ByteReader(data))
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


def _read(reader: ByteReader) -> Bitmap:
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
                containers[list_index << 32 | place] = _read_container(reader)
            elif mark != _EMPTY:
                raise CorruptRecordError(f"The bitmap has the byte {mark.hex()} instead of a container")
    return containers


def _read_container(reader: ByteReader) -> Container:
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
