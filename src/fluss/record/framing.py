"""What batches of all kinds share: the CRC-32C (Castagnoli) checksum, and records behind a length.

| field   | type  | meaning                          |
|---------|-------|----------------------------------|
| length  | int32 | bytes of the payload, not its own |
| payload | bytes | opaque here                      |

Log rows, KV records and stored values are framed so. Records follow each other without padding; how many there are is
written elsewhere. Integers are little-endian. Nothing in this module copies a record on the way in, and nothing handles
records one by one on the way out.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_view
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.encoded import EncodedRows, gather_ranges, join_rows, large_binary_array, offsets_of

LENGTH_PREFIX_BYTES = 4
RECORD_BYTES_MAX = 2**31 - 1

_LENGTH = struct.Struct("<i")
_CRC_PACKAGE: Final = "crc32c"
_CRC_MODULE: Final = "crc32c._crc32c"


def _crc32c(data: memoryview, value: int) -> int:
    """Load the library, which takes this name from then on: lookups do without it."""
    global _crc32c
    _crc32c = _compiled_crc32c()  # type: ignore[assignment]
    return _crc32c(data, value)


def _compiled_crc32c() -> Callable[[memoryview, int], int]:
    """Load the compiled module of the library, without the package around it if that was not loaded before.

    The package has a command, and knows its version: loading both takes twenty times as long.
    """
    package = find_spec(_CRC_PACKAGE)
    places = None if package is None or _CRC_PACKAGE in sys.modules else package.submodule_search_locations
    spec = PathFinder.find_spec(_CRC_MODULE, places) if places else None
    if spec is None or spec.loader is None:
        from crc32c import crc32c

        return crc32c
    module = sys.modules[_CRC_MODULE] = module_from_spec(spec)
    spec.loader.exec_module(module)
    compiled: Callable[[memoryview, int], int] = module.crc32c
    return compiled


def crc32c(data: BytesLike | UInt8Array | pa.Buffer, value: int = 0) -> int:
    """Return the checksum of contiguous bytes as an unsigned 32-bit number, reading them in place.

    ``value`` is the checksum of the bytes before ``data``, when they belong together.
    """
    return int(_crc32c(byte_view(data), value))


def load_crc32c() -> None:
    """Load the library now: a server may have no descriptor left for its files when it needs it."""
    crc32c(b"")


def crc32c_chain(parts: Iterable[BytesLike | UInt8Array | pa.Buffer]) -> int:
    """Return the checksum of buffers as if they were joined."""
    value = 0
    for part in parts:
        value = int(_crc32c(byte_view(part), value))
    return value


def split_length_prefixed(
    data: BytesLike | UInt8Array, count: int, *, what: str, payload_bytes_min: int = 0
) -> tuple[Int64Array, Int64Array]:
    """Find the payloads of ``count`` records that fill ``data`` exactly: payload ``i`` is ``data[starts[i]:ends[i]]``.

    ``what`` names one record in error messages. A count that cannot fit is refused before anything is allocated, so
    the memory used is never more than a few times the size of ``data``.
    """
    view = byte_view(data)
    if count < 0:
        raise CorruptRecordError(f"A batch announces {count} {what}s, a count cannot be negative")
    if count * (LENGTH_PREFIX_BYTES + payload_bytes_min) > len(view):
        raise CorruptRecordError(f"A batch announces {count} {what}s, its {len(view)} bytes cannot hold that many")
    try:
        boundaries = _equal_boundaries(view, count)
        if boundaries is None:
            boundaries = np.fromiter(_walk(view, count), dtype=np.int64, count=count + 1)
    except struct.error:
        _raise_first_fault(view, count, what, payload_bytes_min)
    starts, ends = boundaries[:-1] + LENGTH_PREFIX_BYTES, boundaries[1:]
    # No length is negative and the last record ends with the data, so all records lie inside it.
    if boundaries[-1] != len(view) or bool((ends - starts < payload_bytes_min).any()):
        _raise_first_fault(view, count, what, payload_bytes_min)
    return starts, ends


def join_length_prefixed(*parts: EncodedRows) -> EncodedRows:
    """Build records whose payload ``i`` is row ``i`` of every part, one after the other.

    The records are returned with their prefixes and lie back to back, so ``data`` as a whole is the framed body.
    """
    assert parts, "a record needs at least one part"
    lengths = sum(part.lengths for part in parts)
    assert isinstance(lengths, np.ndarray)
    longest = int(lengths.max(initial=0))
    if longest > RECORD_BYTES_MAX:
        raise FlussError(f"A record of {longest} bytes is too large, the limit is {RECORD_BYTES_MAX}: use smaller rows")
    return concat_rows(fixed_width_rows(lengths.astype("<i4")), *parts)


def concat_rows(*parts: EncodedRows) -> EncodedRows:
    """Concatenate row by row: row ``i`` of the result is row ``i`` of every part, one after the other."""
    count = len(parts[0])
    assert all(len(part) == count for part in parts), "every part must have the same number of rows"
    if not count:
        return EncodedRows.from_offsets(np.empty(0, np.uint8), np.zeros(1, np.int64))
    return join_rows([_arrow_binary(part) for part in parts])


def fixed_width_rows(values: np.ndarray[Any, np.dtype[Any]]) -> EncodedRows:
    """Present an array of fixed-width numbers as rows: row ``i`` is the memory of value ``i``."""
    values = np.ascontiguousarray(values)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    return EncodedRows.from_offsets(values.view(np.uint8), offsets)


def _arrow_binary(rows: EncodedRows) -> pa.Array:
    """View rows as an Arrow column; only rows with other bytes between them are copied, to lie back to back."""
    starts, ends, data = rows.starts, rows.ends, rows.data
    assert bool((starts <= ends).all()), "a row cannot end before it starts"
    assert int(starts.min()) >= 0, "a row cannot start before its data"
    assert int(ends.max()) <= len(data), "a row cannot end after its data"
    if bool((ends[:-1] == starts[1:]).all()):
        offsets = np.append(starts, ends[-1])
    else:
        offsets, data = offsets_of(rows.lengths), gather_ranges(data, starts, rows.lengths)
    return large_binary_array(data, offsets)


def _equal_boundaries(view: memoryview, count: int) -> Int64Array | None:
    """Return the boundaries if all records have the same length, as rows without text usually do."""
    if not count:
        return np.zeros(1, np.int64)
    length = _LENGTH.unpack_from(view)[0]
    stride = length + LENGTH_PREFIX_BYTES
    if length < 0 or stride * count != len(view):
        return None
    lengths = np.ndarray((count,), "<i4", view, strides=(stride,))
    return np.arange(count + 1, dtype=np.int64) * stride if bool((lengths == length).all()) else None


def _walk(view: memoryview, count: int) -> Iterator[int]:
    """Yield where each record starts, then where the last one ends.

    A length leads to the next one, so this cannot be vectorised. It does no checks of its own for speed: a bad length
    ends in ``struct.error`` or in boundaries that the caller's checks refuse.
    """
    length_at = _LENGTH.unpack_from
    position = 0
    yield position
    for _ in range(count):
        position += length_at(view, position)[0] + LENGTH_PREFIX_BYTES
        yield position


def _raise_first_fault(view: memoryview, count: int, what: str, payload_bytes_min: int) -> NoReturn:
    """Walk again with every check, to name the first record that is wrong."""
    position = 0
    for index in range(count):
        remaining = len(view) - position - LENGTH_PREFIX_BYTES
        where = f"The {what} {index} of {count}, at byte {position} of {len(view)}"
        if remaining < 0:
            raise CorruptRecordError(f"{where}, is cut off before its length")
        length = _LENGTH.unpack_from(view, position)[0]
        if length < payload_bytes_min:
            raise CorruptRecordError(f"{where}, has the length {length}, at least {payload_bytes_min} is needed")
        if length > remaining:
            raise CorruptRecordError(f"{where}, has the length {length}, only {remaining} bytes follow")
        position += LENGTH_PREFIX_BYTES + length
    raise CorruptRecordError(f"{len(view) - position} bytes follow the last of {count} {what}s, none were expected")
