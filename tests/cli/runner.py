"""Runs the command ``fluss`` in processes of its own, each forked from one that has loaded everything already.

A start of Python takes longer than most commands. What a command gets is real all the same: its own process, a pipe or
a terminal, an environment, signals, an exit code. ``python -m tests.cli.runner`` is the process that is forked.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
WINDOW = struct.pack("HHHH", 40, 120, 0, 0)


@dataclass(frozen=True)
class Result:
    """How a command ended. On a terminal standard output and standard error are one."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was printed with --format json."""
        return [json.loads(line) for line in self.lines]

    def ok(self) -> Result:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


class Running:
    """A command that has been started."""

    def __init__(self, answers: socket.socket, number: int, out: int, err: int | None, stdin: int | None) -> None:
        self.number = number
        self._answers = answers
        self._parts: dict[int, list[bytes]] = {out: []} | ({} if err is None else {err: []})
        self._open = set(self._parts)
        self._closed: set[int] = set()
        self._out, self._err, self._stdin = out, err, stdin

    def send(self, text: str) -> None:
        """Type a text, or write it to the pipe."""
        self.send_bytes(text.encode())

    def send_bytes(self, data: bytes) -> None:
        assert self._stdin is not None
        os.write(self._stdin, data)

    def close_input(self) -> None:
        if self._stdin is not None and self._stdin != self._out:
            os.close(self._stdin)
        self._stdin = None

    def interrupt(self) -> None:
        os.kill(self.number, signal.SIGINT)

    def read_until(self, text: str) -> str:
        """Wait until a text was printed, and return everything so far."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self._text(self._out):
            assert self._open, f"it has ended without {text!r}: {self._text(self._out)!r}"
            assert time.monotonic() < deadline, f"no {text!r} in {self._text(self._out)!r}"
            self._read(1.0)
        return self._text(self._out)

    def read_until_end(self, text: str) -> str:
        """Wait until a text is the last that was printed."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._text(self._out).endswith(text):
            assert self._open, f"it has ended without {text!r}: {self._text(self._out)!r}"
            assert time.monotonic() < deadline, f"no {text!r} at the end of {self._text(self._out)!r}"
            self._read(1.0)
        return self._text(self._out)

    def type_hidden(self, prompt: str, text: str) -> None:
        """Answer a prompt for a password. Only the blank behind it says that what is typed is taken, and not shown."""
        self.read_until(prompt)
        self.read_until_end(": ")
        self.send(text)

    def give_up(self) -> None:
        """End a command that a test has left, because it failed."""
        if self._answers.fileno() >= 0:
            with suppress(ProcessLookupError):
                os.kill(self.number, signal.SIGKILL)
            self._answers.close()

    def read_some(self) -> str:
        """Read what is there within a moment, and return everything so far."""
        self._read(0.2)
        return self._text(self._out)

    def close_output(self) -> None:
        """End reading what the command prints, as `head` does."""
        os.close(self._out)
        self._open.discard(self._out)
        self._closed.add(self._out)

    def wait(self) -> Result:
        deadline = time.monotonic() + TIMEOUT_S
        while self._open:
            if time.monotonic() > deadline:
                os.kill(self.number, signal.SIGKILL)
            self._read(1.0)
        self.close_input()
        for descriptor in self._parts.keys() - self._closed:
            os.close(descriptor)
        code = json.loads(self._answers.makefile().readline())["code"]
        self._answers.close()
        return Result(code, self._text(self._out), "" if self._err is None else self._text(self._err))

    def _read(self, timeout_s: float) -> None:
        # select() refuses descriptors of processes with many files, as one may be that runs many tests.
        poll = select.poll()
        for descriptor in self._open:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            try:
                data = os.read(descriptor, 65536)
            except OSError:
                # A terminal whose other side is closed.
                data = b""
            if data:
                self._parts[descriptor].append(data)
            else:
                self._open.discard(descriptor)

    def _text(self, descriptor: int) -> str:
        return b"".join(self._parts[descriptor]).decode(errors="replace").replace("\r\n", "\n")


class FlussCommand:
    """Starts the command. ``environment`` is all that it gets beside the bare necessities."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment: dict[str, str] = {}
        self._started: list[Running] = []
        ours, theirs = socket.socketpair()
        self._orders = ours
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.cli.runner", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        )
        theirs.close()

    def close(self) -> None:
        for running in self._started:
            running.give_up()
        self._orders.close()
        self._process.wait()

    def process_environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = self.home
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            **self.environment,
            **(more or {}),
        }

    def start(self, *arguments: str, terminal: bool = False, environment: Mapping[str, str] | None = None) -> Running:
        ours, theirs = socket.socketpair()
        order = {"arguments": arguments, "environment": self.process_environment(environment), "cwd": str(self.home)}
        if terminal:
            main, side = pty.openpty()
            fcntl.ioctl(main, termios.TIOCSWINSZ, WINDOW)
            given, running = [side, side, side], (main, None, main)
        else:
            (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
            given, running = [in_read, out_write, err_write], (out_read, err_read, in_write)
        self._orders.sendall(b"!")
        socket.send_fds(self._orders, [b"x"], [theirs.fileno(), *given])
        ours.sendall(json.dumps(order | {"terminal": terminal}).encode() + b"\n")
        theirs.close()
        for descriptor in set(given):
            os.close(descriptor)
        line = b""
        while not line.endswith(b"\n"):
            line += ours.recv(1)
        out, err, stdin = running
        running_command = Running(ours, json.loads(line)["process"], out, err, stdin)
        self._started.append(running_command)
        return running_command

    def run(
        self,
        *arguments: str,
        text: str | None = None,
        terminal: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command to its end, with a text as its input."""
        running = self.start(*arguments, terminal=terminal, environment=environment)
        if text is not None:
            with suppress(BrokenPipeError):
                running.send(text)
        if not terminal:
            running.close_input()
        return running.wait()

    def __call__(self, *arguments: str, **settings: Any) -> Result:
        """Run a command that has to succeed."""
        return self.run(*arguments, **settings).ok()


# The process that is forked


def _serve(descriptor: int) -> int:
    # What commands need, and what starts no threads.
    import duckdb  # noqa: F401
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401
    import rich.console
    import rich.progress
    import rich.table  # noqa: F401

    import fluss.blocking
    import fluss.cli.app
    import fluss.cli.catalog.tables
    import fluss.client.consume.membership
    import fluss.client.write.writer_client
    import fluss.filter.row_filter
    import fluss.spark.sql.parser  # noqa: F401

    # Children have less to copy.
    gc.collect()
    gc.freeze()
    orders = socket.socket(fileno=descriptor)
    while True:
        if not orders.recv(1):
            orders.close()
            # Libraries call what was set aside a leak.
            gc.unfreeze()
            return 0
        _, descriptors, _, _ = socket.recv_fds(orders, 1, 4)
        channel = socket.socket(fileno=descriptors[0])
        # One process waits for the command, so that this one need not.
        waiting = os.fork()
        if waiting == 0:
            orders.close()
            _run(channel, descriptors[1:])
        channel.close()
        for each in set(descriptors[1:]):
            os.close(each)
        _reap()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(channel: socket.socket, descriptors: list[int]) -> NoReturn:
    order = json.loads(channel.makefile().readline())
    number = os.fork()
    if number:
        for each in set(descriptors):
            os.close(each)
        channel.sendall(json.dumps({"process": number}).encode() + b"\n")
        _, status = os.waitpid(number, 0)
        channel.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
        os._exit(0)
    channel.close()
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(descriptors[0], termios.TIOCSCTTY, 0)
    for target, each in enumerate(descriptors):
        os.dup2(each, target)
    for each in {*descriptors} - {0, 1, 2}:
        os.close(each)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    # As Python opens them in a process that has them from its beginning.
    is_terminal = order["terminal"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1 if is_terminal else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["fluss", *order["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from fluss.cli.app import main

    code = main(order["arguments"])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # Taking everything apart takes longer than most commands.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(_serve(int(sys.argv[1])))
