"""What every writer of a crash test does: take its orders, note what was acknowledged, stop when told to."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterable

import fluss


class AckFile:
    """Lines about what the server has acknowledged, on disk before the call returns."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, lines: Iterable[str]) -> None:
        os.write(self._file, "".join(lines).encode())
        os.fdatasync(self._file)

    def __enter__(self) -> AckFile:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)


def writer_options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--acks-file", required=True)
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args()


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def open_table(options: argparse.Namespace) -> tuple[fluss.FlussConnection, fluss.FlussTable]:
    config = fluss.Config({"bootstrap.servers": options.bootstrap, "writer.batch-timeout-ms": 5})
    connection = await fluss.FlussConnection.create(config)
    return connection, await connection.get_table(fluss.TablePath(*options.table.split(".")))
