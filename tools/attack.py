"""Attack a server of our own over the loopback, and say what it cost: places held, memory, guesses, honest latency.

    python tools/attack.py slow       every place taken by a client that sends a byte now and then
    python tools/attack.py flood      connections by the thousand, each with a large request that never becomes whole
    python tools/attack.py requests   large requests by the thousand, answered with errors
    python tools/attack.py guesses    passwords guessed as fast as the server lets one

Attackers come from 127.0.0.9. An honest client comes from 127.0.0.1 all the while: it connects, asks, and disconnects.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol import frame as frames
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, plain_token
from fluss.testing.cluster import ServerProcess

ATTACKER = "127.0.0.9"
HONEST = "127.0.0.1"
HONEST_PAUSE_S = 0.1
MEGABYTE = 1_000_000
SETTLE_S = 12.0
_SECRET = "correct horse battery staple"


class Honest:
    """A client that connects, asks what is served (and logs in first if told so), and disconnects, again and again."""

    def __init__(self, port: int, credentials: Credentials | None) -> None:
        self._port = port
        self._credentials = credentials
        self.latencies_s: list[float] = []
        self.failures: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            began_at = time.perf_counter()
            try:
                async with asyncio.timeout(20):
                    await self._ask()
            except (OSError, TimeoutError, EOFError, RuntimeError) as error:
                self.failures[type(error).__name__] += 1
            else:
                self.latencies_s.append(time.perf_counter() - began_at)
            await asyncio.sleep(HONEST_PAUSE_S)

    async def _ask(self) -> None:
        reader, writer = await asyncio.open_connection(HONEST, self._port)
        try:
            if self._credentials is not None:
                writer.write(login_bytes(self._credentials))
                await read_success(reader)
            writer.write(request_bytes(apis.LIST_DATABASES, pb.ListDatabasesRequest()))
            await read_success(reader)
        finally:
            writer.close()

    def summary(self) -> str:
        failed = f", failed {sum(self.failures.values())} times {dict(self.failures)}" if self.failures else ""
        if not self.latencies_s:
            return f"the honest client never came in{failed}"
        ordered = sorted(self.latencies_s)
        median, worst = statistics.median(ordered) * 1000, ordered[-1] * 1000
        return f"the honest client came in {len(ordered)} times: median {median:.1f} ms, worst {worst:.1f} ms{failed}"


def request_bytes(api: apis.Api[Any, Any], message: Any, request_id: int = 0) -> bytes:
    return b"".join(frames.request_frame(api.key, 0, request_id, api.request.encode(message)))


def login_bytes(credentials: Credentials, request_id: int = 0) -> bytes:
    request = pb.AuthenticateRequest(protocol="PLAIN", token=plain_token(credentials))
    return request_bytes(apis.AUTHENTICATE, request, request_id)


async def read_answer(reader: asyncio.StreamReader) -> frames.ResponseFrame:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return frames.parse_response(memoryview(await reader.readexactly(length)))


async def read_success(reader: asyncio.StreamReader) -> None:
    answer = await read_answer(reader)
    if answer.response_type is not frames.ResponseType.SUCCESS:
        raise RuntimeError(pb.ErrorResponse.FromString(bytes(answer.body)).error_message)


async def attacker_connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(ATTACKER, 0))


# The attacks: each returns lines to print


async def slow(port: int, arguments: argparse.Namespace) -> list[str]:
    """Take every place and keep it with a byte now and then."""
    is_held = [False] * arguments.connections

    async def hold(number: int) -> None:
        frame = request_bytes(apis.LIST_DATABASES, pb.ListDatabasesRequest()) + bytes(1000)
        try:
            reader, writer = await attacker_connection(port)
            async with asyncio.timeout(arguments.seconds):
                is_held[number] = True
                # The announced length is never reached.
                frame = struct.pack(">i", 100_000) + frame[4:]
                for byte in frame:
                    writer.write(bytes((byte,)))
                    if await arrives(reader, arguments.interval):
                        break
        except (OSError, TimeoutError):
            if is_held[number]:
                return
        is_held[number] = False

    await asyncio.gather(*(hold(number) for number in range(arguments.connections)))
    return [f"{sum(is_held)} of {arguments.connections} slow connections still had their place at the end"]


async def arrives(reader: asyncio.StreamReader, timeout_s: float) -> bool:
    """Whether the server says something or hangs up within a time."""
    try:
        async with asyncio.timeout(timeout_s):
            await reader.read(1000)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


async def _repeat(seconds: float, tasks: int, action: Callable[[], Awaitable[int]]) -> int:
    """Do something in many tasks until the time is over; return the sum of what it returns."""
    ends_at = time.monotonic() + seconds

    async def run() -> int:
        count = 0
        while time.monotonic() < ends_at:
            try:
                count += await action()
            except (OSError, EOFError):
                # Without a pause, a server that refuses would be asked by one busy loop.
                await asyncio.sleep(0.001)
        return count

    return sum(await asyncio.gather(*(run() for _ in range(tasks))))


async def flood(port: int, arguments: argparse.Namespace) -> list[str]:
    """Connect, send the beginning of a large request, disconnect."""
    beginning = struct.pack(">ihhi", 90 * MEGABYTE, ApiKey.PRODUCE_LOG, 0, 0) + bytes(arguments.bytes)
    refused = 0

    async def connect() -> int:
        nonlocal refused
        reader, writer = await attacker_connection(port)
        try:
            writer.write(beginning)
            if await arrives(reader, 0.5):
                refused += 1
        finally:
            writer.transport.abort()
        return 1

    count = await _repeat(arguments.seconds, arguments.connections, connect)
    return [f"{count} connections, {refused} of them told or cut off"]


async def requests(port: int, arguments: argparse.Namespace) -> list[str]:
    """Send large requests that are refused, on connections that stay."""
    body = apis.PRODUCE_LOG.key
    request = struct.pack(">ihhi", 8 + arguments.bytes, body, 0, 7) + bytes(arguments.bytes)

    async def ask() -> int:
        reader, writer = await attacker_connection(port)
        try:
            for _ in range(10):
                writer.write(request)
            for _ in range(10):
                await read_answer(reader)
        finally:
            writer.transport.abort()
        return 10

    count = await _repeat(arguments.seconds, arguments.connections, ask)
    return [f"{count} requests of {arguments.bytes} bytes answered, {count / arguments.seconds:.0f}/s"]


async def guesses(port: int, arguments: argparse.Namespace) -> list[str]:
    """Guess five passwords per connection, each with a request behind it whose answer would tell success."""
    number = told_to_wait = 0

    async def guess() -> int:
        nonlocal number, told_to_wait
        reader, writer = await attacker_connection(port)
        checked = answered = 0
        try:
            for _ in range(5):
                number += 1
                writer.write(login_bytes(Credentials("alice", f"guess {number}"), 1))
                writer.write(request_bytes(apis.LIST_DATABASES, pb.ListDatabasesRequest(), 2))
            async with asyncio.timeout(arguments.seconds):
                while answered < 10:
                    answer = await read_answer(reader)
                    answered += 1
                    error = pb.ErrorResponse.FromString(bytes(answer.body))
                    checked += answer.request_id == 1 and error.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
                    told_to_wait += error.error_code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()
        return checked

    began_at = time.monotonic()
    count = await _repeat(arguments.seconds, arguments.connections, guess)
    rate = count / (time.monotonic() - began_at)
    return [f"{count} guesses checked, {rate:.2f}/s; {told_to_wait} times the attacker was told to try again"]


_ATTACKS: dict[str, Callable[[int, argparse.Namespace], Awaitable[list[str]]]] = {
    "slow": slow,
    "flood": flood,
    "requests": requests,
    "guesses": guesses,
}
_DEFAULTS: dict[str, dict[str, float]] = {
    "slow": {"connections": 1000, "seconds": 60},
    "flood": {"connections": 200, "seconds": 15},
    "requests": {"connections": 100, "seconds": 15},
    "guesses": {"connections": 50, "seconds": 20},
}


async def _measure(server: ServerProcess, arguments: argparse.Namespace) -> None:
    process = psutil.Process(server.process_id)
    honest = Honest(server.port, Credentials("bob", _SECRET) if arguments.attack == "guesses" else None)
    # Before the attack, so that the memory of code that is loaded with the first request is not counted.
    await honest._ask()
    before_bytes = peak_bytes = process.memory_info().rss
    lines_before = len(server.log_text.splitlines())
    processor_before = process.cpu_times()
    tasks = [asyncio.create_task(honest.run())]

    async def watch() -> None:
        nonlocal peak_bytes
        while True:
            peak_bytes = max(peak_bytes, process.memory_info().rss)
            await asyncio.sleep(0.2)

    tasks.append(asyncio.create_task(watch()))
    lines = await _ATTACKS[arguments.attack](server.port, arguments)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    processor = process.cpu_times()
    await asyncio.sleep(arguments.settle)
    after_bytes = process.memory_info().rss
    for line in lines:
        print(line)
    print(honest.summary())
    print(
        f"memory: {before_bytes / MEGABYTE:.0f} MB before, {peak_bytes / MEGABYTE:.0f} MB at most, "
        f"{after_bytes / MEGABYTE:.0f} MB {arguments.settle:g} s after"
    )
    print(f"processor time of the server: {sum(processor[:2]) - sum(processor_before[:2]):.1f} s")
    print(f"lines in the log: {len(server.log_text.splitlines()) - lines_before}")
    if arguments.log:
        print("\n".join(re.sub(r"^\S+ \S+ ", "", line) for line in server.log_text.splitlines()[lines_before:][:20]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", choices=_ATTACKS)
    parser.add_argument("--connections", type=int, help="how many the attacker has at a time")
    parser.add_argument("--seconds", type=float, help="how long the attack lasts")
    parser.add_argument("--interval", type=float, default=14.0, help="seconds between two bytes of a slow client")
    parser.add_argument("--bytes", type=int, default=300_000, help="what a flooding client sends")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds until memory is looked at again")
    parser.add_argument("--log", action="store_true", help="print what the server logged meanwhile")
    parser.add_argument("-D", dest="definitions", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for name, value in _DEFAULTS[arguments.attack].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, type(value)(value))
    # Both ends of thousands of connections: this process has one of them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options = [part for definition in arguments.definitions for part in ("-D", definition)]
    environment = {}
    if arguments.attack == "guesses":
        options += ["-D", "bind.listeners=CLIENT://127.0.0.1:0", "-D", "security.protocol.map=CLIENT:SASL"]
        environment["FLUSS_SECURITY_SASL_PLAIN_CREDENTIALS"] = f"alice:{_SECRET} of alice,bob:{_SECRET}"
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(Path(directory) / "data", *options, environment=environment) as server,
    ):
        asyncio.run(_measure(server, arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
