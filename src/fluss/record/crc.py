"""CRC-32C (Castagnoli), the checksum of every batch. The only place that knows the accelerated library."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from crc32c import crc32c as _crc32c

from fluss.buffers import BytesLike, UInt8Array, byte_view


def crc32c(data: BytesLike | UInt8Array | pa.Buffer, value: int = 0) -> int:
    """Return the checksum of contiguous bytes as an unsigned 32-bit number, reading them in place.

    ``value`` is the checksum of the bytes before ``data``, when they belong together.
    """
    return int(_crc32c(byte_view(data), value))


def crc32c_chain(parts: Iterable[BytesLike | UInt8Array | pa.Buffer]) -> int:
    """Return the checksum of buffers as if they were joined."""
    value = 0
    for part in parts:
        value = int(_crc32c(byte_view(part), value))
    return value
