"""A server as users start it, for tests: the command line in a process of its own, to be stopped, killed and restarted.

For a server that is only needed, not examined, ``fluss.embedded`` is shorter.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, Self

from fluss.errors import FlussError, NetworkError
from fluss.net.channel import Channel
from fluss.net.listener import keep_port
from fluss.net.transport import run

# Ends what hangs, and nothing else: on a machine that others keep busy a start may take minutes.
_START_TIMEOUT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 60.0
_RETRY_INTERVAL_S: Final = 0.02
_ADDRESS: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^\s,:]+):(?P<port>[0-9]+) \((?P<name>[^,]+), \w+\)")


class ServerProcess:
    """``python -m fluss.server`` with a data directory and further arguments. A context manager that stops it.

    Unless the arguments say where to listen it takes a free port, and has the same one again after ``restart``.
    Variables in ``environment`` are added to those of this process, without its own ``FLUSS_`` ones.
    """

    def __init__(self, data_dir: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._port = 0
        # Nobody else gets the port while the server is away.
        self._kept_port = ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of its owner
        # What the server said when it was ready, and the ports by listener name.
        self.ready_line = ""
        self.ports: dict[str, int] = {}

    def start(self) -> Self:
        """Start and wait for the line that says ready. Raises FlussError with the server's messages if it ends."""
        assert self._process is None, "the server is running already"
        self._process = self._spawn()
        self.ready_line = self._read_line(self._process)
        if not self.ready_line:
            code = self.wait()
            raise FlussError(f"the server ended with code {code} before it was ready:\n{self.log_text}")
        self.ports = {match["name"]: int(match["port"]) for match in _ADDRESS.finditer(self.ready_line)}
        self._port = self.port
        self._kept_port.close()
        return self

    def _spawn(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fluss.server", "--data-dir", str(self.data_dir), *self._arguments]
        if "--port" not in command and not any(
            "bind.listeners" in argument or argument == "--config" for argument in command
        ):
            command += ["--port", str(self._port)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLUSS_")}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**inherited, **self._environment}
        )

    def _read_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        watchdog = threading.Timer(_START_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            return process.stdout.readline().strip()
        finally:
            watchdog.cancel()

    @property
    def process_id(self) -> int:
        return self._running.pid

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return next(iter(self.ports.values()))

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_text(self) -> str:
        """Everything the server has written to standard error so far, over all its lives."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server is not running"
        return self._process

    def send_signal(self, number: int) -> None:
        self._running.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        process, self._process = self._running, None
        with process:
            try:
                return process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                self._keep_port()

    def _keep_port(self) -> None:
        self._kept_port.close()
        if self._port:
            self._kept_port = keep_port("127.0.0.1", self._port)

    def stop(self) -> int:
        """Ask the server to stop, wait for it, and return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Stop the server, if it runs, and start it again with the same data and port."""
        if self._process is not None:
            self.stop()
        self.start()

    def __enter__(self) -> Self:
        if self._process is None:
            try:
                self.start()
            except BaseException:
                self._log.close()
                self._kept_port.close()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        # A process that has ended by itself is not signalled any more.
        if self._process is not None:
            self.stop()
        self._kept_port.close()
        self._log.close()


def wait_until_ready(host: str, port: int, *, timeout_s: float = 30.0) -> None:
    """Wait until a server answers at an address. Raises the last error if none does in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            run(_greet(host, port))
            return
        except NetworkError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_INTERVAL_S)


async def _greet(host: str, port: int) -> None:
    # Connecting asks the server for the versions that it speaks.
    async with await Channel.connect(host, port):
        pass
