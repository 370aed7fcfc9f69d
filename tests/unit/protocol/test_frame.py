"""Frames come out whole however the bytes arrive, and a hostile length costs nothing.

Streams are cut at random places, byte by byte and into a socket-like buffer; memory is watched with tracemalloc.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptMessageError, FlussError, FrameTooLargeError, NegativeFrameLengthError
from fluss.protocol import frame as frames
from fluss.protocol.frame import FrameReader

MIB = 1024 * 1024


def _reader(frame_bytes_max: int = frames.REQUEST_FRAME_BYTES_MAX) -> FrameReader:
    return FrameReader(frame_bytes_max=frame_bytes_max, fields_bytes_min=frames.REQUEST_FIELDS_BYTES)


def _framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def test_a_request_frame_has_length_key_version_and_id_before_its_body():
    parts = frames.request_frame(1012, 1, 2, [b"\x0a\x06", b"\x0a\x01d\x12\x01t"])
    assert b"".join(parts) == bytes.fromhex("00000010 03f4 0001 00000002 0a060a0164120174")
    parsed = frames.parse_request(memoryview(parts[0])[4:])
    assert (parsed.api_key, parsed.api_version, parsed.request_id, bytes(parsed.body)) == (
        1012,
        1,
        2,
        b"\x0a\x06\x0a\x01d\x12\x01t",
    )


def test_response_frames_carry_their_type_and_all_but_failures_an_id():
    assert b"".join(frames.success_frame(0, [b"\x0a\x00"])) == bytes.fromhex("00000007 00 00000000 0a00")
    assert b"".join(frames.success_frame(7, [])) == bytes.fromhex("00000005 00 00000007")
    assert b"".join(frames.error_frame(5, b"\x08\x07")) == bytes.fromhex("00000007 01 00000005 0807")
    assert b"".join(frames.failure_frame(b"\x08\x2e")) == bytes.fromhex("00000003 02 082e")
    for data, expected in (
        ("00 00000007 0a00", (0, 7, b"\x0a\x00")),
        ("01 ffffffff 0807", (1, -1, b"\x08\x07")),
        ("02 082e", (2, None, b"\x08\x2e")),
        ("02", (2, None, b"")),
    ):
        parsed = frames.parse_response(memoryview(bytes.fromhex(data)))
        assert (parsed.response_type, parsed.request_id, bytes(parsed.body)) == expected


def test_small_parts_are_joined_and_large_ones_are_left_alone():
    large = memoryview(bytes(100_000))
    parts = frames.request_frame(1014, 0, 1, [b"a", b"b", large, b"c", b"d"])
    assert [len(part) for part in parts] == [14, 100_000, 2]
    assert parts[1] is large


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "empty"),
        ("00", "shorter than its 5 byte header"),
        ("01000000", "shorter"),
        ("03 00000000", "unknown type 3"),
    ],
)
def test_malformed_responses_are_refused(data, text):
    with pytest.raises(CorruptMessageError, match=text):
        frames.parse_response(memoryview(bytes.fromhex(data)))


def test_a_request_shorter_than_its_header_is_refused():
    with pytest.raises(CorruptMessageError, match="shorter than its 8 byte header"):
        frames.parse_request(memoryview(bytes(7)))


def test_a_frame_above_two_gibibytes_is_refused_before_it_is_sent():
    class Gibibyte:
        """Claims its size without having it: two real ones would be rude in a test."""

        def __len__(self) -> int:
            return 1 << 30

    with pytest.raises(FlussError, match="2 GiB"):
        frames.request_frame(1014, 0, 1, [Gibibyte(), Gibibyte()])


CONTENTS = st.lists(st.binary(min_size=8, max_size=60), max_size=12)


@given(CONTENTS, st.data())
def test_the_same_frames_come_out_wherever_the_stream_is_cut(contents, data):
    stream = b"".join(map(_framed, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = _reader()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert [bytes(frame) for frame in received] == contents
    assert reader.is_between_frames


def test_frames_may_arrive_one_byte_at_a_time():
    contents = [bytes([n]) * (8 + n) for n in range(20)]
    reader = _reader()
    received = [frame for byte in b"".join(map(_framed, contents)) for frame in reader.feed(bytes([byte]))]
    assert [bytes(frame) for frame in received] == contents


@pytest.mark.parametrize("size", [65_530, 65_531, 65_532, 65_533, 65_536, 65_540, 200_000, 3 * MIB, 20 * MIB])
@pytest.mark.parametrize("chunk_bytes", [1000, 65_536, 1_000_000])
def test_frames_around_and_above_the_receive_buffer_are_whole(size, chunk_bytes):
    if size > 4 * MIB and chunk_bytes < 65_536:
        chunk_bytes = 65_536  # The same code path, in a tenth of the time.
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    stream = _framed(b"before..") + _framed(content) + _framed(b"behind..")
    reader = _reader()
    received = []
    for start in range(0, len(stream), chunk_bytes):
        received += reader.feed(stream[start : start + chunk_bytes])
    assert [len(frame) for frame in received] == [8, size, 8]
    assert received[1] == content
    assert all(frame.readonly for frame in received)


def test_a_received_frame_is_never_overwritten():
    reader = _reader()
    (first,) = reader.feed(_framed(b"a" * 100))
    (large,) = reader.feed(_framed(b"b" * 100_000))
    reader.feed(_framed(b"c" * 100) + _framed(b"d" * 100_000))
    assert bytes(first) == b"a" * 100
    assert bytes(large) == b"b" * 100_000


def test_the_socket_writes_a_large_frame_straight_into_its_memory():
    content = bytes(2 * MIB)
    stream = memoryview(_framed(content))
    reader = _reader()
    first = reader.get_buffer()
    first[:] = stream[: len(first)]
    assert reader.buffer_updated(len(first)) == []
    rest = reader.get_buffer()
    assert len(rest) == len(stream) - len(first), "the buffer ends where the frame ends"
    tracemalloc.start()
    rest[:] = stream[len(first) :]
    (frame,) = reader.buffer_updated(len(rest))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert frame.obj is rest.obj
    assert peak < 10_000


@pytest.mark.parametrize("received_bytes", [0, 100_000, 5 * MIB])
def test_memory_follows_what_was_received_not_what_was_announced(received_bytes):
    data = struct.pack(">i", 100 * MIB - 4) + bytes(received_bytes)
    reader = _reader()
    tracemalloc.start()
    reader.feed(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= max(4 * MIB, 5 * received_bytes) + 100_000


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1, 7])
def test_a_length_below_the_header_has_its_own_error(length):
    reader = _reader()
    assert reader.feed(struct.pack(">i", length) + bytes(100)) == []
    assert isinstance(reader.failure, NegativeFrameLengthError)
    assert str(length) in str(reader.failure)


def test_the_limit_counts_the_whole_frame():
    exact, above = _reader(1000), _reader(1000)
    assert len(exact.feed(_framed(bytes(996)))) == 1
    assert above.feed(_framed(bytes(997))) == []
    assert exact.failure is None
    assert isinstance(above.failure, FrameTooLargeError)
    assert "1001 bytes, more than the limit of 1000" in str(above.failure)


def test_frames_before_a_bad_length_are_handed_out_and_everything_after_it_is_ignored():
    reader = _reader()
    received = reader.feed(_framed(b"12345678") + struct.pack(">i", -5) + _framed(b"abcdefgh"))
    assert [bytes(frame) for frame in received] == [b"12345678"]
    assert reader.failure is not None
    assert reader.feed(_framed(b"abcdefgh")) == []
    assert len(reader.get_buffer()) > 0
    assert reader.buffer_updated(4) == []


def test_a_sender_that_is_not_trusted_gets_memory_as_it_sends():
    reader = FrameReader(frame_bytes_max=100 * MIB, fields_bytes_min=1, is_trusted=False)
    reader.feed(struct.pack(">i", 90 * MIB) + bytes(100_000))
    assert len(reader.get_buffer()) < 300_000
    reader = FrameReader(frame_bytes_max=100 * MIB, fields_bytes_min=1, is_trusted=False)
    assert len(reader.feed(_framed(bytes(MIB)))) == 1
    stream = memoryview(_framed(bytes(2 * MIB)))
    reader.feed(stream[:100_000])
    assert len(reader.get_buffer()) == len(stream) - 100_000, "it has sent a large frame: the next one is not copied"


def test_there_is_no_memory_before_it_is_asked_for_and_none_after_it_was_released():
    reader = _reader()
    assert len(reader._received) == 0
    assert reader.feed(_framed(b"a" * 9)) == [b"a" * 9]
    assert len(reader._received) > 0
    reader.release()
    assert len(reader._received) == 0
    assert reader.feed(_framed(b"b" * 9)) == [b"b" * 9]
