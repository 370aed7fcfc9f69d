"""A server as the child of another process: told everything through a pipe, and gone when its parent is.

The parent writes one line of JSON (``ChildOrder``) to standard input and reads one line from standard output: its
listeners when the server is ready, or what went wrong. Closing the pipe ends the server in order; the
end of the parent, however it comes about, closes the pipe, too. Options do not go through the command line, where
every user of the machine could read the passwords among them.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from fluss.errors import FlussError, error_for_code
from fluss.net.transport import run
from fluss.server.listeners import RunningListener
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer, log_to_stderr, prepare_process, request_stop, serve

# A process that was forked from the parent may keep the pipe open, so the parent itself is looked for as well.
_PARENT_CHECK_INTERVAL_S: Final = 1.0
_STDIN: Final = 0


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """What a parent tells its child first."""

    options: dict[str, str]
    log_level: str
    parent_pid: int

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    def __repr__(self) -> str:
        return "ChildOrder(...)"


def read_answer(line: bytes) -> tuple[RunningListener, ...]:
    """Return the listeners from a child's line, or raise the FlussError that it reports."""
    try:
        answer = json.loads(line)
    except ValueError:
        raise FlussError("the server process ended before it was ready; standard error has its messages") from None
    if "error" in answer:
        raise error_for_code(answer["code"], answer["error"])
    return tuple(RunningListener(**listener) for listener in answer["listeners"])


def main() -> int:
    """Carry out the order on standard input; return the exit code."""
    order = ChildOrder(**json.loads(_read_line()))
    log_to_stderr(order.log_level)
    # Ctrl-C in a terminal reaches the whole group of processes; here the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        options = ServerOptions(order.options)
        prepare_process(options)
        run(_serve(options, order.parent_pid))
    except FlussError as error:
        _answer({"error": error.message, "code": error.error_code})
        return 1
    return 0


async def _serve(options: ServerOptions, parent_pid: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, request_stop, stop)
    watch = partial(_watch_parent, parent_pid, loop, stop)
    threading.Thread(target=watch, name="fluss-parent-watch", daemon=True).start()
    await serve(options, stop=stop, on_ready=_report_ready)


def _report_ready(server: FlussServer) -> None:
    _answer({"listeners": [asdict(listener) for listener in server.listeners]})


def _answer(answer: object) -> None:
    # A parent that is gone does not read: then the answer is dropped.
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it once more at its end


def _read_line() -> bytes:
    """Read the first line without reading ahead, because the pipe is watched afterwards."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(_STDIN, 1)
        if not byte:
            raise SystemExit(1)
        line += byte
    return bytes(line)


def _watch_parent(parent_pid: int, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Wait for the end of the parent; then stop the server."""
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([_STDIN], [], [], _PARENT_CHECK_INTERVAL_S)
        if readable and not os.read(_STDIN, 1024):
            break
    # The loop is closed if the server has ended by itself.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(request_stop, stop)
