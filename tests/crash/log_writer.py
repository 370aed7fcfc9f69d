"""A writer that lives through the crashes of its server: a process of its own, started by the harness.

It appends rows (writer, n) with n = 0, 1, 2, ... and notes every acknowledged n in a file before it goes on, with
fdatasync. It stops at SIGTERM, flushes, and leaves with 0 only if no write failed.
"""

from __future__ import annotations

import asyncio
import random
import sys

import pyarrow as pa

import fluss
from tests.crash.writer_process import run_writer

IN_FLIGHT_MAX = 400
ARROW_ROWS_MAX = 40
# One write in so many is an Arrow batch; the others are single rows.
ARROW_EVERY = 5


def new_writer(table: fluss.FlussTable) -> fluss.AppendWriter:
    return table.new_append().create_writer()


def write_next(
    writer: fluss.AppendWriter, name: str, rng: random.Random, number: int
) -> tuple[fluss.WriteResultHandle, list[int]]:
    if rng.randrange(ARROW_EVERY):
        return writer.append({"writer": name, "n": number, "payload": payload(number)}), [number]
    count = rng.randint(1, ARROW_ROWS_MAX)
    numbers = list(range(number, number + count))
    columns = [pa.array([name] * count), pa.array(numbers, pa.int64()), pa.array([payload(n) for n in numbers])]
    return writer.write_arrow_batch(pa.record_batch(columns, names=["writer", "n", "payload"])), numbers


def line_of(number: int) -> str:
    return f"{number}\n"


def payload(number: int) -> str:
    """Return a text that tells whether a row came back whole."""
    return f"{number}:" + "ab" * (number % 97)


if __name__ == "__main__":
    sys.exit(asyncio.run(run_writer(__doc__, new_writer, write_next, line_of, in_flight_max=IN_FLIGHT_MAX)))
