"""What every writer of a crash test does: take its orders, write, note what was acknowledged, stop when told to."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import fluss

PAUSE_S_MAX = 0.004
WRITES_PER_PAUSE = 8

W = TypeVar("W")
C = TypeVar("C")
# Writes something with a writer, under a name and from a number on; returns the handle and what was written.
WriteNext = Callable[[W, str, random.Random, int], tuple[fluss.WriteResultHandle, Sequence[C]]]


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


async def run_writer(
    description: str | None,
    new_writer: Callable[[fluss.FlussTable], W],
    write_next: WriteNext[W, C],
    line_of: Callable[[C], str],
    *,
    in_flight_max: int,
) -> int:
    """Write until SIGTERM, note a line for everything that was acknowledged, and return 0 if nothing failed."""
    options = _options(description)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = fluss.Config({"bootstrap.servers": options.bootstrap, "writer.batch-timeout-ms": 5})
    connection = await fluss.FlussConnection.create(config)
    table = await connection.get_table(fluss.TablePath(*options.table.split(".")))
    sent: asyncio.Queue[Any] = asyncio.Queue(in_flight_max)

    async def write_until_stopped() -> None:
        rng, writer = random.Random(options.seed), new_writer(table)
        number = writes = 0
        while not stop.is_set():
            handle, written = write_next(writer, options.name, rng, number)
            number += len(written)
            await sent.put((handle, written))
            writes += 1
            if writes % WRITES_PER_PAUSE == 0:
                await asyncio.sleep(rng.uniform(0, PAUSE_S_MAX))
        await sent.put(None)

    writing = asyncio.create_task(write_until_stopped())
    with AckFile(options.acks_file) as acks:
        while (item := await sent.get()) is not None:
            handle, written = item
            await handle.wait()
            acks.note(map(line_of, written))
    await writing
    await connection.close()
    return 0


def _options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--acks-file", required=True)
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args()
