"""Servers that start fast enough to be killed thousands of times.

    with ServerForks() as forks:
        server = forks.start(data_dir, {"log.segment.file-size": "256kb"})
        server.kill()
        server = forks.start(data_dir, {...}, port=server.port)

A process that has imported everything forks a child for each start, which saves the second or more that Python needs
for it. The children are servers like others, with some doors for tests: a clock that jumps, a disk that is full or
loses what was not synced (``fluss.testing.faultfs``), few descriptors. They end when this process ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from fluss.errors import FlussError
from fluss.net.transport import run
from fluss.server.listener_parsing import address_text
from fluss.server.options.listener_options import DEFAULT_LISTENER_NAME
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer, log_to_stderr, prepare_process, request_stop, wall_clock_ms
from fluss.testing.losing_files import LosingFiles
from fluss.testing.waiting import eventually

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 120.0
POWER_LOST_CODE: Final = 75
_ORDER_BYTES_MAX: Final = 64 * 1024
_PR_SET_PDEATHSIG: Final = 1
_LOCALHOST: Final = "127.0.0.1"
# Of a thread: stopped, and ended.
_STANDING_STATES: Final = frozenset("TZX")


class Conditions:
    """What a test does to running servers: how far their clock is off, and whether their disk is full.

    A few bytes of shared memory in a file. Servers that were started with it follow it at once, over all their lives.
    """

    _LAYOUT: Final = struct.Struct("<qq")

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(self._LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self._LAYOUT.size)

    def set(self, *, clock_offset_ms: int | None = None, is_disk_full: bool | None = None) -> None:
        """Change one or both."""
        offset_ms, is_full = self._LAYOUT.unpack_from(self._memory)
        offset_ms = offset_ms if clock_offset_ms is None else clock_offset_ms
        is_full = is_full if is_disk_full is None else is_disk_full
        self._LAYOUT.pack_into(self._memory, 0, offset_ms, is_full)

    def clock_ms(self) -> int:
        """Return the time as epoch milliseconds, as the server sees it."""
        return wall_clock_ms() + int(self._LAYOUT.unpack_from(self._memory)[0])

    def is_disk_full(self) -> bool:
        return bool(self._LAYOUT.unpack_from(self._memory)[1])


@dataclass(frozen=True, slots=True)
class _Order:
    """What a child is told."""

    options: dict[str, str]
    log_level: str
    conditions: str | None
    loss_seed: int | None
    descriptors_max: int | None


class ServerForks:
    """The process that forks servers. A context manager; all servers end with it. Any thread may start one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "fluss.testing.forked_servers", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        assert self._socket is not None
        self._socket.close()
        self._process.wait(STOP_TIMEOUT_S)

    def start(
        self,
        data_dir: Path,
        options: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        log_file: Path | None = None,
        log_level: str = "info",
        conditions: Conditions | None = None,
        loss_seed: int | None = None,
        descriptors_max: int | None = None,
    ) -> ForkedServer:
        """Start a server and return at once; ``wait_until_ready`` waits for it.

        With a ``loss_seed`` it can lose its power, and with ``conditions`` its clock and its disk can be changed.
        """
        assert self._socket is not None, "used outside of its with statement"
        listener = f"{DEFAULT_LISTENER_NAME}://{address_text(_LOCALHOST, port)}"
        all_options = {"bind.listeners": listener, **(options or {}), "data.dir": str(data_dir)}
        path = None if conditions is None else str(conditions.path)
        order = _Order(all_options, log_level, path, loss_seed, descriptors_max)
        answers, theirs = os.pipe()
        log = os.open(log_file or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # An order and its answer belong together.
            with self._turn:
                socket.send_fds(self._socket, [json.dumps(asdict(order)).encode()], [theirs, log])
                process_id = int(self._socket.recv(64))
        except BaseException:
            os.close(answers)
            raise
        finally:
            os.close(theirs)
            os.close(log)
        return ForkedServer(process_id, answers)


class ForkedServer:
    """One life of a server."""

    def __init__(self, process_id: int, answers: int) -> None:
        self.process_id = process_id
        self.port = 0
        self._answers = os.fdopen(answers, "rb")
        # One that has ended already is not there any more, and nothing can be done to it.
        self._handle: int | None = None
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(process_id)

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Wait until clients can connect. Raises FlussError if it ends before; one that hangs is killed."""
        is_answered = _is_readable(self._answers.fileno(), timeout_s)
        answer = json.loads(self._answers.readline() or b"{}") if is_answered else {}
        if "port" not in answer:
            self.kill()
            raise FlussError(answer.get("error", "the server ended, or hangs, before it was ready; its log tells more"))
        self.port = answer["port"]
        return self

    @property
    def is_running(self) -> bool:
        return self._handle is not None and not _is_readable(self._handle, 0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int | None:
        """Ask it to stop, wait, and return its exit code; None if it was killed meanwhile."""
        self.send_signal(signal.SIGTERM)
        return self._wait()

    def lose_power(self) -> None:
        """Let the machine under it lose its power; it must have been started with a ``loss_seed``."""
        self.send_signal(signal.SIGUSR1)
        code = self._wait()
        assert code in (POWER_LOST_CODE, None), f"the server ended with code {code}"

    def pause(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def stand_still(self) -> None:
        """Pause it, and wait until none of its threads does anything any more, not even inside of the kernel.

        A thread that waits for a disk stops when it has its answer, and does nothing with it.
        """
        self.pause()
        eventually(self._is_standing, f"the threads of process {self.process_id} to stop", timeout_s=STOP_TIMEOUT_S)

    def _is_standing(self) -> bool:
        try:
            states = {_thread_state(thread) for thread in Path(f"/proc/{self.process_id}/task").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            # A thread has ended since they were listed, or all have.
            return not self.is_running
        return states <= _STANDING_STATES

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)

    def limit_descriptors(self, count: int | None) -> None:
        """Let it have no more open files than this; None: as many as before."""
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.process_id, resource.RLIMIT_NOFILE)
            resource.prlimit(self.process_id, resource.RLIMIT_NOFILE, (hard if count is None else count, hard))

    @property
    def descriptor_count(self) -> int:
        """How many files it has open; 0 if it has ended."""
        try:
            return len(os.listdir(f"/proc/{self.process_id}/fd"))
        except FileNotFoundError:
            return 0

    def _wait(self) -> int | None:
        """Wait for its end, and return its exit code, if it had one and was not asked for it before."""
        if self._answers.closed:
            return None
        try:
            if self._handle is not None and not _is_readable(self._handle, STOP_TIMEOUT_S):
                self.send_signal(signal.SIGKILL)
                raise FlussError(f"the server did not end within {STOP_TIMEOUT_S:g} s")
            lines = self._answers.read().splitlines()
            return json.loads(lines[-1]).get("code") if lines else None
        finally:
            self._answers.close()
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read, or the end. With many open files ``select`` would refuse."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _thread_state(thread: Path) -> str:
    """Return what a thread is doing, in the letters of proc(5). Its name before them may have any characters."""
    return (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]


# In the process that forks, and in its children


def main() -> int:
    """Fork a server for each order that comes in, until the giver of orders is gone."""
    # The fork server does not wait for its children: their end is seen by the holder of their handle.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C reaches all processes of a terminal; what it means is decided where the orders come from.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            data, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 2)
            if not data:
                return 0
            process_id = os.fork()
            if process_id == 0:
                orders.detach()
                os.close(int(sys.argv[1]))
                os._exit(_serve_order(_Order(**json.loads(data)), *descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
            orders.send(str(process_id).encode())


def _serve_order(order: _Order, answers: int, log: int) -> int:
    """Be a server until told to end; returns the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, sys.stderr.fileno())
    log_to_stderr(order.log_level)
    code = 1
    try:
        options = ServerOptions(order.options)
        prepare_process(options)
        if order.descriptors_max is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (order.descriptors_max, hard))
        run(_serve(order, options, answers))
        code = 0
    except (FlussError, OSError) as error:
        _answer(answers, {"error": str(error)})
    finally:
        _answer(answers, {"code": code})
    return code


async def _serve(order: _Order, options: ServerOptions, answers: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, request_stop, stop)
    conditions = None if order.conditions is None else Conditions(Path(order.conditions))
    files = None
    if order.loss_seed is not None:
        is_full = conditions.is_disk_full if conditions is not None else lambda: False
        files = LosingFiles(Path(options.data_dir).absolute(), order.loss_seed, is_full=is_full)
        loop.add_signal_handler(signal.SIGUSR1, _lose_power, files, answers)
    clock = wall_clock_ms if conditions is None else conditions.clock_ms
    async with FlussServer(options, clock=clock, files=files) as server:
        _answer(answers, {"port": server.listeners[0].port})
        await stop.wait()


def _lose_power(files: LosingFiles, answers: int) -> None:
    files.lose_power()
    _answer(answers, {"code": POWER_LOST_CODE})
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(answers: int, answer: object) -> None:
    with suppress(BrokenPipeError):
        os.write(answers, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
