"""Frames: how messages are cut out of the byte stream of a connection.

All integers are big-endian and signed. ``length`` counts the bytes that follow it.

    request    length i32 | api_key i16 | api_version i16 | request_id i32 | body
    success    length i32 | type i8 = 0 | request_id i32 | body
    error      length i32 | type i8 = 1 | request_id i32 | ErrorResponse
    failure    length i32 | type i8 = 2 | ErrorResponse        about the connection, not about one request

A reader gets two kinds of memory under its bytes: small frames are collected in one receive buffer and copied out;
a frame that does not fit there gets memory of its own, into which the socket writes directly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from fluss.buffers import BytesLike, byte_view, new_memory
from fluss.errors import (
    CorruptMessageError,
    FlussError,
    FrameTooLargeError,
    HttpReceivedError,
    NegativeFrameLengthError,
)
from fluss.protocol.codec import Parts

_LENGTH = struct.Struct(">i")
_REQUEST_FIELDS = struct.Struct(
    ">h"  # api_key
    "h"  #  api_version
    "i"  #  request_id
)
_RESPONSE_FIELDS = struct.Struct(
    ">b"  # type
    "i"  #  request_id, absent in a failure
)
_TYPE_BYTES = 1

LENGTH_BYTES = _LENGTH.size
REQUEST_FIELDS_BYTES = _REQUEST_FIELDS.size
# The shortest frame a client can get is a failure: its type byte. That its message is incomplete shows later.
RESPONSE_FIELDS_BYTES_MIN = _TYPE_BYTES

# Both count the whole frame, the length field included.
REQUEST_FRAME_BYTES_MAX = 100 * 1024 * 1024
FRAME_BYTES_MAX = LENGTH_BYTES + (1 << 31) - 1

# Parts below this size are cheaper to copy together than to hand to the socket one by one.
_JOINED_PART_BYTES_MAX = 16 * 1024
_PAYLOAD_ALIGNMENT_BYTES = 8
_NO_MEMORY = memoryview(b"")


class ResponseType(IntEnum):
    SUCCESS = 0
    ERROR = 1
    SERVER_FAILURE = 2


# The first two bytes of a TLS record that is a handshake or an alert; a frame that begins so has 350 million bytes.
_TLS_RECORDS = frozenset({0x1603, 0x1503})
# How requests and answers of HTTP begin; as the length of a frame it is more than a billion bytes. Some servers answer
# what they do not understand with a page and no header, as in the first version of HTTP.
_HTTP_BEGINNINGS = frozenset(
    {
        b"GET ",
        b"HEAD",
        b"POST",
        b"PUT ",
        b"DELE",
        b"OPTI",
        b"PATC",
        b"CONN",
        b"TRAC",
        b"HTTP",
        b"<!DO",
        b"<!do",
        b"<htm",
        b"<HTM",
    }
)


class RequestFrame(NamedTuple):
    """A received request; its body is not decoded."""

    api_key: int
    api_version: int
    request_id: int
    body: memoryview


class ResponseFrame(NamedTuple):
    """A received answer; ``request_id`` is None in a server failure."""

    response_type: ResponseType
    request_id: int | None
    body: memoryview


def request_frame(api_key: int, api_version: int, request_id: int, body: Parts) -> Parts:
    """Put the header before a request. Large parts stay what they are, small neighbours are joined."""
    return _framed(_REQUEST_FIELDS.pack(api_key, api_version, request_id), body)


def success_frame(request_id: int, body: Parts) -> Parts:
    """Put the header before an answer."""
    return _framed(_RESPONSE_FIELDS.pack(ResponseType.SUCCESS, request_id), body)


def error_frame(request_id: int, error_response: bytes) -> Parts:
    """Put the header before the error that answers one request."""
    return _framed(_RESPONSE_FIELDS.pack(ResponseType.ERROR, request_id), [error_response])


def failure_frame(error_response: bytes) -> Parts:
    """Put the header before the last thing a server says on a connection."""
    return _framed(bytes((ResponseType.SERVER_FAILURE,)), [error_response])


def parse_request(frame: memoryview) -> RequestFrame:
    """Split a frame, given without its length field, into header and body."""
    if len(frame) < REQUEST_FIELDS_BYTES:
        raise CorruptMessageError(
            f"a request of {len(frame)} bytes is shorter than its {REQUEST_FIELDS_BYTES} byte header"
        )
    api_key, api_version, request_id = _REQUEST_FIELDS.unpack_from(frame)
    return RequestFrame(api_key, api_version, request_id, frame[REQUEST_FIELDS_BYTES:])


def parse_response(frame: memoryview) -> ResponseFrame:
    """Split a frame, given without its length field, into header and body."""
    if len(frame) < _TYPE_BYTES:
        raise CorruptMessageError("a response frame is empty")
    try:
        response_type = ResponseType(frame[0])
    except ValueError:
        raise CorruptMessageError(f"a response has the unknown type {frame[0]}") from None
    if response_type is ResponseType.SERVER_FAILURE:
        return ResponseFrame(response_type, None, frame[_TYPE_BYTES:])
    if len(frame) < _RESPONSE_FIELDS.size:
        raise CorruptMessageError(
            f"a response of {len(frame)} bytes is shorter than its {_RESPONSE_FIELDS.size} byte header"
        )
    _, request_id = _RESPONSE_FIELDS.unpack_from(frame)
    return ResponseFrame(response_type, request_id, frame[_RESPONSE_FIELDS.size :])


def _framed(fields: bytes, body: Parts) -> Parts:
    byte_count = len(fields) + sum(map(len, body))
    if LENGTH_BYTES + byte_count > FRAME_BYTES_MAX:
        raise FlussError(f"a frame of {byte_count} bytes is above the protocol's limit of 2 GiB; send less at once")
    frame: Parts = []
    small: list[BytesLike] = [_LENGTH.pack(byte_count), fields]
    for part in body:
        if len(part) < _JOINED_PART_BYTES_MAX:
            small.append(part)
            continue
        if small:
            frame.append(b"".join(small))
            small = []
        frame.append(part)
    if small:
        frame.append(b"".join(small))
    return frame


class FrameReader:
    """Cuts a byte stream into frames, whatever the pieces in which it arrives.

    Use it like asyncio's BufferedProtocol: write received bytes into ``get_buffer()``, then say how many there were.
    What comes back are whole frames without their length field, each in read-only memory that is never used again.

    Memory follows what was received, not what was announced: the memory of a large frame grows with its content, up to
    fourfold at a time, and frames up to ``_EAGER_BYTES_MAX`` get theirs at once, so that they are not copied at all
    except for the few bytes that came together with their length. A sender that is not trusted has to have sent a frame
    before that had a quarter of the size: so all senders hold no more than about four times what they have sent.

    After a length that no valid frame can have, ``failure`` is set and all further bytes are ignored: where the next
    frame would start cannot be known.
    """

    _RECEIVE_BUFFER_BYTES = 64 * 1024
    _EAGER_BYTES_MAX = 4 * 1024 * 1024
    _UNTRUSTED_BYTES = 256 * 1024
    _GROWTH_FACTOR = 4

    def __init__(
        self, *, frame_bytes_max: int, fields_bytes_min: int, is_writable: bool = False, is_trusted: bool = True
    ) -> None:
        assert LENGTH_BYTES + fields_bytes_min <= frame_bytes_max <= FRAME_BYTES_MAX
        # May be changed between frames.
        self.frame_bytes_max = frame_bytes_max
        self._fields_bytes_min = fields_bytes_min
        # The receiver of a large frame may write into it: a server puts offsets into the batches that it stores.
        self._is_writable = is_writable
        # Bytes not yet cut are received[start:end]. There is no memory for them before the first ones can arrive.
        self._received = _NO_MEMORY
        self._start = 0
        self._end = 0
        # The frame that does not fit there, if one is under way: large[:large_end] has arrived.
        self._large: memoryview | None = None
        self._large_end = 0
        self._large_bytes = 0
        # What a large frame gets at once.
        self._eager_bytes = self._EAGER_BYTES_MAX if is_trusted else self._UNTRUSTED_BYTES
        self.failure: CorruptMessageError | None = None

    @property
    def is_between_frames(self) -> bool:
        """Whether everything received so far has been handed out as whole frames."""
        return self._large is None and self._start == self._end

    @property
    def partial_bytes(self) -> int:
        """What has arrived of a large frame that is not whole yet."""
        return 0 if self._large is None else self._large_end

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes; never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._received is _NO_MEMORY:
            self._received = byte_view(new_memory(self._RECEIVE_BUFFER_BYTES))
        return self._received[self._end :]

    def release(self) -> None:
        """Give the memory back. Between two frames more may come: then there is memory again. Otherwise all is lost."""
        self._received = _NO_MEMORY
        self._start = self._end = 0
        self._large = None

    def buffer_updated(self, byte_count: int) -> list[memoryview]:
        """Take note of new bytes and return the frames they complete."""
        return list(self.iter_updated(byte_count))

    def feed(self, data: BytesLike) -> list[memoryview]:
        """Take bytes that already lie elsewhere, at the price of a copy."""
        return list(self.iter_fed(data))

    def iter_updated(self, byte_count: int) -> Iterator[memoryview]:
        """Take note of new bytes and yield the frames they complete, one by one.

        To be exhausted before more bytes come. What is changed between two frames, such as the limit, holds for the
        second one.
        """
        if self.failure is not None:
            return
        if self._large is not None:
            yield from self._large_updated(self._large, byte_count)
            return
        self._end += byte_count
        try:
            while (frame := self._next_frame()) is not None:
                yield frame
        except CorruptMessageError as error:
            # The frames before this one are good. They were handed out first.
            self.failure = error
            self._start = self._end = 0

    def keep(self, byte_count: int) -> None:
        """Take note of new bytes without cutting them; ``iter_updated(0)`` goes on with them.

        Only while no large frame is under way.
        """
        assert self._large is None
        self._end += byte_count

    def iter_fed(self, data: BytesLike) -> Iterator[memoryview]:
        """Take bytes that already lie elsewhere and yield the frames one by one."""
        view = byte_view(data)
        while len(view) > 0 and self.failure is None:
            buffer = self.get_buffer()
            byte_count = min(len(buffer), len(view))
            buffer[:byte_count] = view[:byte_count]
            yield from self.iter_updated(byte_count)
            view = view[byte_count:]

    def _next_frame(self) -> memoryview | None:
        """Cut the next small frame out of the receive buffer, or make ready for the rest of an incomplete one."""
        available = self._end - self._start
        if available < LENGTH_BYTES:
            self._make_room(LENGTH_BYTES)
            return None
        (length,) = _LENGTH.unpack_from(self._received, self._start)
        self._check_length(length)
        frame_bytes = LENGTH_BYTES + length
        if available < frame_bytes:
            if frame_bytes > len(self._received):
                self._start_large_frame(length)
            else:
                self._make_room(frame_bytes)
            return None
        content = self._received[self._start + LENGTH_BYTES : self._start + frame_bytes]
        self._start += frame_bytes
        return memoryview(bytes(content))

    def _check_length(self, length: int) -> None:
        if length < self._fields_bytes_min:
            raise NegativeFrameLengthError(
                f"a frame announces {length} bytes, fewer than the {self._fields_bytes_min} of its header"
            )
        if LENGTH_BYTES + length > self.frame_bytes_max:
            if length >> 16 in _TLS_RECORDS:
                raise FrameTooLargeError("the other side speaks TLS, and this side does not; both have to")
            if length.to_bytes(LENGTH_BYTES, "big") in _HTTP_BEGINNINGS:
                raise HttpReceivedError("the other side speaks HTTP, and not the protocol of Apache Fluss")
            raise FrameTooLargeError(
                f"a frame announces {LENGTH_BYTES + length} bytes, more than the limit of {self.frame_bytes_max}"
            )

    def _make_room(self, frame_bytes: int) -> None:
        """Move the incomplete frame to the front if its end would not fit behind it, or if that costs nothing."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + frame_bytes > len(self._received):
            rest = bytes(self._received[self._start : self._end])
            self._received[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _start_large_frame(self, length: int) -> None:
        arrived = self._received[self._start + LENGTH_BYTES : self._end]
        self._large_bytes = length
        self._large = self._large_memory(min(length, self._eager_bytes))
        self._large[: len(arrived)] = arrived
        self._large_end = len(arrived)
        self._start = self._end = 0

    def _large_updated(self, large: memoryview, byte_count: int) -> list[memoryview]:
        self._large_end += byte_count
        if self._large_end == self._large_bytes:
            self._large = None
            eager_bytes = min(self._large_bytes * self._GROWTH_FACTOR, self._EAGER_BYTES_MAX)
            self._eager_bytes = max(self._eager_bytes, eager_bytes)
            return [large if self._is_writable else large.toreadonly()]
        if self._large_end == len(large):
            grown = self._large_memory(min(self._large_bytes, len(large) * self._GROWTH_FACTOR))
            grown[: len(large)] = large
            self._large = grown
        return []

    def _large_memory(self, byte_count: int) -> memoryview:
        """Return memory for the beginning of the large frame, placed so that the frame ends on a multiple of 8.

        What makes a frame large is a payload at its end, and payloads are multiples of 8 long: they begin on one, too,
        and Arrow can use them where they are.
        """
        padding = -self._large_bytes % _PAYLOAD_ALIGNMENT_BYTES
        return byte_view(new_memory(padding + byte_count))[padding:]
