"""Variable-length integers: seven bits per byte, least significant first, bit 7 set on every byte but the last.

The number is taken as unsigned, two's complement: there is no zig-zag, so a negative int32 always takes 5 bytes and a
negative int64 always 10.

    300          ac 02
    -1 (32 bit)  ff ff ff ff 0f
    -1 (64 bit)  ff ff ff ff ff ff ff ff ff 01

A decoder takes groups of zeros at the end (``80 00`` is 0), as other clients do, but no more bytes than the width
needs and no bits beyond it.
"""

from __future__ import annotations

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, FlussError

VARINT32_BYTES_MAX = 5
VARINT64_BYTES_MAX = 10


def encode_varint32(value: int) -> bytes:
    """Encode a signed 32-bit number."""
    return _encode(value, 32)


def encode_varint64(value: int) -> bytes:
    """Encode a signed 64-bit number."""
    return _encode(value, 64)


def decode_varint32(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Decode the signed 32-bit number at ``position``; return it and the position behind it."""
    return _decode(data, position, 32, VARINT32_BYTES_MAX)


def decode_varint64(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Decode the signed 64-bit number at ``position``; return it and the position behind it."""
    return _decode(data, position, 64, VARINT64_BYTES_MAX)


def _encode(value: int, bits: int) -> bytes:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise FlussError(f"The number {value} does not fit {bits} bits")
    rest = value & ((1 << bits) - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _decode(data: BytesLike, position: int, bits: int, bytes_max: int) -> tuple[int, int]:
    number = 0
    available = data[position : position + bytes_max]
    for index, byte in enumerate(available):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if number >> bits:
                raise CorruptRecordError(f"The varint at byte {position} has bits beyond its {bits}: {number:#x}")
            sign = 1 << (bits - 1)
            return (number ^ sign) - sign, position + index + 1
    if len(available) < bytes_max:
        raise CorruptRecordError(f"The data ends inside the varint that starts at byte {position}")
    raise CorruptRecordError(f"The varint at byte {position} is longer than {bytes_max} bytes")
