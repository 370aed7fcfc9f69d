"""A checksum is that of the bytes, whatever kind of buffer they are in and however they are cut.
The same bytes as every buffer type and in pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.record.framing import crc32c, crc32c_chain


def test_every_kind_of_buffer_gives_the_same_checksum() -> None:
    data = bytes(range(200))
    expected = crc32c(data)
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), pa.py_buffer(data)):
        assert crc32c(buffer) == expected
    assert crc32c(np.frombuffer(data, "<i8")) == expected
    assert crc32c(pa.py_buffer(b"xx" + data).slice(2)) == expected


def test_the_checksum_of_nothing_is_zero() -> None:
    assert crc32c(b"") == crc32c_chain([]) == crc32c_chain([b"", bytearray()]) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=8))
def test_parts_have_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert crc32c_chain(parts) == crc32c(whole)
    assert crc32c(whole[7:], crc32c(whole[:7])) == crc32c(whole)
