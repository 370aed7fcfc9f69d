"""What the protocol costs: framing, decoding, round trips, and bulk writes against a bare socket.

Client and server share one event loop and one core, so the figures are what one process can do for both together.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.micro.timing import best_seconds
from fluss.net.channel import Channel
from fluss.net.listener import Handler, Listener, ListenerSettings, RequestContext
from fluss.net.transport import new_event_loop
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol.api import ApiKey
from fluss.protocol.frame import REQUEST_FIELDS_BYTES, REQUEST_FRAME_BYTES_MAX, FrameReader, parse_request
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.session import ClientSession

_PAYLOAD_BYTES = 2 * 1024 * 1024
_REPETITIONS = 4
_TIMEOUT_S = 30.0

Measurement = tuple[str, float, str, str]


def measure() -> list[Measurement]:
    """Return (name, value, unit, target) for each figure."""
    results = [*_framing(), *_decoding()]
    for name, factory in (("asyncio", asyncio.new_event_loop), ("default loop", new_event_loop)):
        with asyncio.Runner(loop_factory=factory) as runner:
            results += runner.run(_over_the_loopback(name))
    return results


def _produce_request(payload: bytes) -> bulk_messages.ProduceLogRequest:
    return bulk_messages.ProduceLogRequest(-1, 7, 30_000, [bulk_messages.BucketRecords(0, payload)])


def _framing() -> list[Measurement]:
    request = _produce_request(bytes(_PAYLOAD_BYTES))
    session = ClientSession()

    def frame() -> Any:
        return session.request(apis.PRODUCE_LOG, request)[1]

    parts = frame()
    assert any(getattr(part, "obj", None) is request.buckets[0].records for part in parts), "the payload was copied"
    return [
        ("frame a 2 MiB ProduceLog", _best_ms(frame), "ms", "< 0.1"),
        ("payload copies while framing", _copies(frame), "copies", "0"),
    ]


def _decoding() -> list[Measurement]:
    _, parts = ClientSession().request(apis.PRODUCE_LOG, _produce_request(bytes(_PAYLOAD_BYTES)))
    data = b"".join(parts)

    def receive() -> bulk_messages.ProduceLogRequest:
        """Receive the frame as a socket would hand it over, in pieces, and decode it."""
        reader = FrameReader(frame_bytes_max=REQUEST_FRAME_BYTES_MAX, fields_bytes_min=REQUEST_FIELDS_BYTES)
        (frame,) = reader.feed(data)
        return decode(frame)

    def decode(frame: memoryview) -> bulk_messages.ProduceLogRequest:
        return bulk_messages.PRODUCE_LOG_REQUEST.decode(parse_request(frame).body)

    frame = memoryview(data)[4:]
    assert len(receive().buckets[0].records_view) == _PAYLOAD_BYTES
    return [
        ("decode a 2 MiB ProduceLog", _best_ms(lambda: decode(frame)), "ms", "< 0.1"),
        ("payload copies while decoding", _copies(lambda: decode(frame)), "copies", "0"),
        ("receive and decode it", _best_ms(receive), "ms", "one copy, done by the socket"),
        ("memory for receiving it", _copies(receive), "payloads", "< 1.1"),
    ]


async def _over_the_loopback(loop_name: str) -> list[Measurement]:
    handlers: dict[ApiKey, Handler] = {
        ApiKey.PRODUCE_LOG: _handle_produce,
        ApiKey.TABLE_EXISTS: _handle_table_exists,
    }
    results: list[Measurement] = []
    async with (
        Listener(ListenerSettings(), handlers) as listener,
        await Channel.connect("127.0.0.1", listener.port) as channel,
    ):
        for in_flight, target in ((1, "> 5000"), (100, "> 10000")):
            rate = max([await _round_trips_per_s(channel, in_flight=in_flight) for _ in range(_REPETITIONS)])
            results.append((f"{loop_name}: round trips, {in_flight} in flight", rate, "1/s", target))
        for in_flight in (1, 4):
            raw_mb_s = produce_mb_s = 0.0
            for _ in range(_REPETITIONS):
                raw_mb_s = max(raw_mb_s, await _raw_transfer_mb_s(in_flight=in_flight))
                produce_mb_s = max(produce_mb_s, await _produce_mb_s(channel, in_flight=in_flight))
            name = f"{loop_name}: 2 MiB requests, {in_flight} in flight"
            results.append((f"{name}, bare socket", raw_mb_s, "MB/s", "-"))
            results.append((f"{name}, ProduceLog", produce_mb_s, "MB/s", "-"))
            results.append((f"{name}, ratio", produce_mb_s / raw_mb_s, "x", "> 0.5"))
    return results


def _handle_table_exists(context: RequestContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
    return pb.TableExistsResponse(exists=True)


def _handle_produce(context: RequestContext, request: bulk_messages.ProduceLogRequest) -> pb.ProduceLogResponse:
    response = pb.ProduceLogResponse()
    for bucket in request.buckets:
        assert len(bucket.records_view) == _PAYLOAD_BYTES
        response.buckets_resp.add(bucket_id=bucket.bucket_id, base_offset=0)
    return response


async def _round_trips_per_s(channel: Channel, *, in_flight: int, count: int = 2000) -> float:
    request = pb.TableExistsRequest(table_path=pb.PbTablePath(database_name="sales", table_name="orders"))

    async def worker() -> None:
        for _ in range(count // in_flight):
            await channel.request(apis.TABLE_EXISTS, request, timeout_s=_TIMEOUT_S)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return count / (time.perf_counter() - started)


async def _produce_mb_s(channel: Channel, *, in_flight: int, count: int = 40) -> float:
    request = _produce_request(bytes(_PAYLOAD_BYTES))

    async def worker() -> None:
        for _ in range(count // in_flight):
            await channel.request(apis.PRODUCE_LOG, request, timeout_s=_TIMEOUT_S)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return count * _PAYLOAD_BYTES / 1e6 / (time.perf_counter() - started)


async def _raw_transfer_mb_s(*, in_flight: int, count: int = 40) -> float:
    """Send the same bytes through a bare socket into memory that is already there, with one-byte answers."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
        for end in (server, sender):
            end.setblocking(False)
        connecting = asyncio.ensure_future(loop.sock_connect(sender, server.getsockname()))
        receiver, _ = await loop.sock_accept(server)
        await connecting
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with receiver:
            started = time.perf_counter()
            receiving = asyncio.ensure_future(_receive_raw(receiver, count))
            payload = bytes(_PAYLOAD_BYTES)
            for index in range(count):
                await loop.sock_sendall(sender, payload)
                if index + 1 >= in_flight:
                    await loop.sock_recv(sender, 1)
            await receiving
            return count * _PAYLOAD_BYTES / 1e6 / (time.perf_counter() - started)


async def _receive_raw(receiver: socket.socket, count: int) -> None:
    loop = asyncio.get_running_loop()
    target = memoryview(bytearray(_PAYLOAD_BYTES))
    for _ in range(count):
        received = 0
        while received < _PAYLOAD_BYTES:
            received += await loop.sock_recv_into(receiver, target[received:])
        await loop.sock_sendall(receiver, b"!")


def _best_ms(action: Callable[[], Any]) -> float:
    return best_seconds(action, budget_seconds=0.2) * 1e3


def _copies(action: Callable[[], Any]) -> float:
    """Return the most memory the action ever held, as a multiple of the payload."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = action()
        _, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return round((peak - before) / _PAYLOAD_BYTES, 2)


if __name__ == "__main__":
    for name, value, unit, target in measure():
        print(f"{name:55} {value:12.3f} {unit:9} target {target}")
