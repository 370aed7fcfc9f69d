"""Take one of the journeys of ``docs/internals/journeys.md`` and print the files whose functions were called.

    python -m tests.journeys append | fetch | upsert | lookup

Everything has happened once before, so that what is made at the first time is not part of it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import fluss
from fluss import embedded

SOURCES = Path(fluss.__file__).parent
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Footprints:
    """Notes the files of the package that are called, in every thread, while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._files: dict[str, None] = {}

    def watch(self) -> None:
        """Be told of calls in this thread and in those that are started from now on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and self._is_on:
            self._files[frame.f_code.co_filename] = None

    def __enter__(self) -> None:
        self._is_on = True

    def __exit__(self, *_exception: object) -> None:
        self._is_on = False

    def files(self) -> list[str]:
        paths = [Path(name) for name in self._files]
        return [path.relative_to(SOURCES).as_posix() for path in paths if path.is_relative_to(SOURCES)]


async def _take(journey: str, footprints: Footprints) -> None:
    with embedded.start() as server:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            keys = ["id"] if journey in ("upsert", "lookup") else []
            path = fluss.TablePath("fluss", "journey")
            await connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(_SCHEMA, keys)))
            await _JOURNEYS[journey](await connection.get_table(path), footprints)


async def _append(table: fluss.FlussTable, footprints: Footprints) -> None:
    async with table.new_append().create_writer() as writer:
        writer.append({"id": 1, "name": "first"})
        await writer.flush()
        with footprints:
            # So many that Arrow is worth its while.
            for number in range(100):
                writer.append({"id": number, "name": "second"})
            await writer.flush()


async def _fetch(table: fluss.FlussTable, footprints: Footprints) -> None:
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    assert len(scanner.poll(10)) == 0
    async with table.new_append().create_writer() as writer:
        with footprints:
            writer.append({"id": 1, "name": "first"})
            assert [record.row["id"] for record in scanner.poll(120_000)] == [1]


async def _upsert(table: fluss.FlussTable, footprints: Footprints) -> None:
    async with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "first"})
        await writer.flush()
        with footprints:
            writer.upsert({"id": 1, "name": "second"})
            await writer.flush()


async def _lookup(table: fluss.FlussTable, footprints: Footprints) -> None:
    async with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "first"})
    lookuper = table.new_lookup().create_lookuper()
    await lookuper.lookup({"id": 2})
    with footprints:
        assert await lookuper.lookup({"id": 1}) == {"id": 1, "name": "first"}


_JOURNEYS = {"append": _append, "fetch": _fetch, "upsert": _upsert, "lookup": _lookup}

if __name__ == "__main__":
    prints = Footprints()
    prints.watch()
    asyncio.run(_take(sys.argv[1], prints))
    print("\n".join(prints.files()))
