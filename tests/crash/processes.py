"""The processes of a crash test: a server that is killed, and writers that live on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


def free_port() -> int:
    """Return a port that the server will get each time it starts again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """The server under attack, always on the same data directory and port."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        self.port = free_port()
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._options = [f"-D{key}={value}" for key, value in options.items()]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start, wait until it answers, and return how long that took."""
        started = time.monotonic()
        command = [sys.executable, "-m", "fluss.server", "--data-dir", str(self._directory / "data")]
        command += ["--port", str(self.port), *self._options]
        with open(self._directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log_text = (self._directory / "server.log").read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"the server did not start again:\n{log_text[-3000:]}")
        return time.monotonic() - started

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._finish()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._finish()

    def _finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process.stdout.close()
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None


def start_writer(
    program: str, acks: Path, bootstrap_servers: str, table: str, name: str, seed: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", program, "--bootstrap", bootstrap_servers, "--table", table]
    command += ["--name", name, "--acks-file", str(acks), "--seed", str(seed)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"})


async def wait_for_first_ack(writer: subprocess.Popen[bytes], acks: Path) -> None:
    """Wait until a writer is at work: a client that has never reached its server is not what is tested here."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not (acks.exists() and acks.stat().st_size):
        if writer.poll() is not None or time.monotonic() > deadline:
            _, errors = await asyncio.to_thread(writer.communicate)
            raise AssertionError(f"a writer did not begin: {errors.decode()[-2000:]}")
        await asyncio.sleep(0.02)
