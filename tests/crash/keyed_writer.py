"""A writer of a primary-key table that lives through the crashes of its server: a process of its own.

Every change has a number n = 0, 1, 2, ... and goes to one of the writer's own keys: an upsert of (writer, slot, n), or
a delete. Changes go in single rows and as Arrow data. Every acknowledged change is noted as "n slot U" or "n slot D".
It stops at SIGTERM, flushes, and leaves with 0 only if no write failed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import NamedTuple

import pyarrow as pa

import fluss
from tests.crash.log_writer import payload
from tests.crash.writer_process import run_writer

IN_FLIGHT_MAX = 300
SLOTS = 150
ARROW_ROWS_MAX = 40
# One write in so many is Arrow data; the others are single rows. One change in so many is a delete.
ARROW_EVERY = 5
DELETE_EVERY = 6


class Change(NamedTuple):
    number: int
    slot: int
    is_delete: bool

    def line(self) -> str:
        return f"{self.number} {self.slot} {'D' if self.is_delete else 'U'}\n"


def new_writer(table: fluss.FlussTable) -> fluss.UpsertWriter:
    return table.new_upsert().create_writer()


def write_next(
    writer: fluss.UpsertWriter, name: str, rng: random.Random, number: int
) -> tuple[fluss.WriteResultHandle, list[Change]]:
    count = rng.randint(1, ARROW_ROWS_MAX) if rng.randrange(ARROW_EVERY) == 0 else 1
    is_delete = rng.randrange(DELETE_EVERY) == 0
    changes = [Change(number + i, rng.randrange(SLOTS), is_delete) for i in range(count)]
    return _write(writer, name, changes), changes


def _write(writer: fluss.UpsertWriter, name: str, changes: list[Change]) -> fluss.WriteResultHandle:
    first = changes[0]
    if len(changes) == 1:
        if first.is_delete:
            return writer.delete({"writer": name, "slot": first.slot})
        row = {"writer": name, "slot": first.slot, "n": first.number, "payload": payload(first.number)}
        return writer.upsert(row)
    columns = {
        "writer": pa.array([name] * len(changes)),
        "slot": pa.array([change.slot for change in changes], pa.int32()),
    }
    if first.is_delete:
        return writer.delete_arrow_batch(pa.record_batch(columns))
    columns["n"] = pa.array([change.number for change in changes], pa.int64())
    columns["payload"] = pa.array([payload(change.number) for change in changes])
    return writer.upsert_arrow_batch(pa.record_batch(columns))


if __name__ == "__main__":
    sys.exit(asyncio.run(run_writer(__doc__, new_writer, write_next, Change.line, in_flight_max=IN_FLIGHT_MAX)))
