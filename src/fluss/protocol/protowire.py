"""Protobuf's wire format, as far as the messages that carry record batches need it.

A message is a sequence of fields, each a tag (varint: field number << 3 | wire type) followed by a value:

    wire type   value
    0 VARINT    1 to 10 bytes, 7 bits each, lowest first; the high bit says that more follow
    1 FIXED64   8 bytes
    2 BYTES     a varint length, then that many bytes (bytes, strings, messages, packed lists)
    5 FIXED32   4 bytes

Wire types 3 and 4 (groups) exist in old protobuf only and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from fluss.errors import CorruptMessageError, FlussError

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5

_GROUPS = (3, 4)
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES_MAX = 10
# The negative number that is in nearly every message.
_MINUS_ONE = b"\xff" * (_VARINT_BYTES_MAX - 1) + b"\x01"
_TAG_BYTES_MAX = 5
_TAG_MAX = (1 << 32) - 1
_LENGTH_MAX = (1 << 31) - 1
_REMEMBERED_PREFIXES_MAX: Final = 1024

# A varint as it stands (unsigned), or a view of the bytes of any other wire type.
Value: TypeAlias = int | memoryview


def walk(message: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Yield (field number, wire type, value) for every field, in wire order and without copying.

    Lengths are checked against the message before anything is sliced. What a field means is the caller's business: an
    unknown number or an unexpected wire type is to be skipped, as all protobuf implementations do.
    """
    position, end = 0, len(message)
    while position < end:
        tag_position = position
        tag = message[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag > _TAG_MAX or position - tag_position > _TAG_BYTES_MAX:
            raise CorruptMessageError(
                f"the field tag at byte {tag_position} has the value {tag}, which is no valid tag"
            )
        if wire_type == VARINT:
            value, position = read_varint(message, position)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, position = read_varint(message, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            kind = "a group" if wire_type in _GROUPS else f"the unknown wire type {wire_type}"
            raise CorruptMessageError(
                f"field {number} at byte {tag_position} is {kind}, which is not part of the protocol"
            )
        if size > end - position:
            raise CorruptMessageError(
                f"field {number} at byte {tag_position} announces {size} bytes, but only {end - position} are left"
            )
        yield number, wire_type, message[position : position + size]
        position += size


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned value at ``position`` and the position behind it."""
    if position < len(message) and (byte := message[position]) < 0x80:
        return byte, position + 1
    if position + 1 < len(message) and (second := message[position + 1]) < 0x80:
        return message[position] & 0x7F | second << 7, position + 2
    if message[position : position + _VARINT_BYTES_MAX] == _MINUS_ONE:
        return 0xFFFF_FFFF_FFFF_FFFF, position + _VARINT_BYTES_MAX
    value = 0
    for shift, byte in enumerate(message[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            # The tenth byte has room for one bit; more are dropped, as the official runtime does.
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + shift + 1
    if len(message) - position >= _VARINT_BYTES_MAX:
        raise CorruptMessageError(f"the varint at byte {position} is longer than {_VARINT_BYTES_MAX} bytes")
    raise CorruptMessageError(f"the message ends inside the varint at byte {position}")


def signed_32(value: int) -> int:
    """Read a varint as int32: the low 32 bits, two's complement."""
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value & 0x8000_0000 else value


def signed_64(value: int) -> int:
    """Read a varint as int64: two's complement."""
    return value - (1 << 64) if value & 0x8000_0000_0000_0000 else value


def varint(value: int) -> bytes:
    """Encode an integer between -2**63 and 2**64-1; negative ones take ten bytes."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 <= value < 0x4000:
        return (value & 0x7F | 0x80 | value >> 7 << 8).to_bytes(2, "little")
    if value == -1:
        return _MINUS_ONE
    assert -(1 << 63) <= value < (1 << 64), "the value has more than 64 bits"
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, wire_type: int) -> bytes:
    """Encode the tag that opens a field."""
    return varint(number << 3 | wire_type)


def length(size: int) -> bytes:
    """Encode what stands between the tag and the content of a field of wire type BYTES."""
    if size > _LENGTH_MAX:
        raise FlussError(f"a message field of {size} bytes is above the protobuf limit of 2 GiB; write smaller batches")
    return varint(size)


# A message about many buckets has as many of them, and few different ones.
@lru_cache(_REMEMBERED_PREFIXES_MAX)
def length_prefix(number: int, size: int) -> bytes:
    """Encode what stands before the content of a field of wire type BYTES."""
    return tag(number, BYTES) + length(size)
