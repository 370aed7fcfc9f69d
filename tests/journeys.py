"""Take one of the journeys of ``docs/internals/journeys.md`` and print the files whose functions were called.

    python -m tests.journeys append | fetch | upsert | lookup | consumer
    python -m tests.journeys remote | backup | tiering | union | command | page

Everything has happened once before, so that what is made at the first time is not part of it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import fluss
from fluss import blocking, embedded
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.waiting import eventually

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


async def _consumer(table: fluss.FlussTable, footprints: Footprints) -> None:
    async with table.new_append().create_writer() as writer, table.consumer("reader") as consumer:
        assert len(await consumer.poll_async(10)) == 0
        with footprints:
            writer.append({"id": 1, "name": "first"})
            assert [record.row["id"] for record in await consumer.poll_async(120_000)] == [1]
            await consumer.commit_async()


_JOURNEYS = {"append": _append, "fetch": _fetch, "upsert": _upsert, "lookup": _lookup, "consumer": _consumer}

# Journeys through a server with other options: the table has rows of which each is a segment.


def _remote(directory: Path, footprints: Footprints) -> None:
    options = {
        "remote.data.dir": str(directory / "remote"),
        "log.segment.file-size": "120b",
        "remote.log.task-interval-duration": "20ms",
        "backup.interval": "0ms",
    }
    with embedded.start(options, data_dir=directory / "data") as server, footprints:
        table = _table_with_rows(server.config())
        eventually(lambda: len(list(directory.glob("data/**/log-0/*.log"))) <= 2)
        assert table.new_scan().to_arrow().num_rows == 10


def _backup(directory: Path, footprints: Footprints) -> None:
    options = {"remote.data.dir": str(directory / "remote"), "backup.interval": "20ms"}
    with footprints:
        with embedded.start(options, data_dir=directory / "data") as server:
            _table_with_rows(server.config())
        shutil.rmtree(directory / "data")
        options["backup.restore-from"] = str(directory / "remote")
        with embedded.start(options, data_dir=directory / "new") as server:
            assert (
                blocking.FlussConnection.create(server.config()).get_table(_PATH).new_scan().to_arrow().num_rows == 10
            )


def _tiering(directory: Path, footprints: Footprints) -> None:
    from fluss.tiering.rounds import tier

    with embedded.start(_lake_options(directory)) as server:
        _table_with_rows(server.config(), lake=True)
        connection = asyncio.run(fluss.FlussConnection.create(server.config()))
        with footprints:
            assert tier(asyncio.run(connection.get_table(_PATH))).rows == 10


def _union(directory: Path, footprints: Footprints) -> None:
    from fluss.tiering.rounds import tier

    with embedded.start(_lake_options(directory)) as server:
        table = _table_with_rows(server.config(), lake=True)
        connection = asyncio.run(fluss.FlussConnection.create(server.config()))
        tier(asyncio.run(connection.get_table(_PATH)))
        _write_rows(table)
        with footprints:
            assert table.to_arrow().num_rows == 20


def _command(directory: Path, footprints: Footprints) -> None:
    from fluss.cli.app import main

    with embedded.start() as server:
        _table_with_rows(server.config())
        with footprints:
            assert main(["head", "journey", "--server", server.bootstrap_servers]) == 0


def _page(directory: Path, footprints: Footprints) -> None:
    async def look() -> None:
        options = {"data.dir": str(directory), "bind.listeners": "FLUSS://127.0.0.1:0", "http.listener": "0"}
        async with FlussServer(ServerOptions(options)) as server:
            await asyncio.to_thread(
                _table_with_rows, fluss.Config(bootstrap_servers=f"127.0.0.1:{server.listeners[0].port}")
            )
            with footprints:
                for name in ("tables/fluss/journey/rows", "overview"):
                    await asyncio.to_thread(read, f"{server.http_url}/api/{name}")

    def read(url: str) -> None:
        with urllib.request.urlopen(url, timeout=120) as answer:
            assert answer.status == 200

    asyncio.run(look())


_PATH = fluss.TablePath("fluss", "journey")
_OTHER_SERVERS: dict[str, Callable[[Path, Footprints], None]] = {
    "remote": _remote,
    "backup": _backup,
    "tiering": _tiering,
    "union": _union,
    "command": _command,
    "page": _page,
}


def _lake_options(directory: Path) -> dict[str, str]:
    return {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(directory / "warehouse")}


def _table_with_rows(config: fluss.Config, *, lake: bool = False) -> blocking.FlussTable:
    connection = blocking.FlussConnection.create(config)
    properties = {"table.datalake.enabled": "true"} if lake else {}
    descriptor = fluss.TableDescriptor(fluss.Schema(_SCHEMA), bucket_count=1, properties=properties)
    connection.get_admin().create_table(_PATH, descriptor)
    table = connection.get_table(_PATH)
    _write_rows(table)
    return table


def _write_rows(table: blocking.FlussTable) -> None:
    writer = table.new_append().create_writer()
    for number in range(10):
        writer.append({"id": number, "name": "second"})
        writer.flush()


if __name__ == "__main__":
    prints = Footprints()
    prints.watch()
    if sys.argv[1] in _JOURNEYS:
        asyncio.run(_take(sys.argv[1], prints))
    else:
        with tempfile.TemporaryDirectory() as name:
            _OTHER_SERVERS[sys.argv[1]](Path(name), prints)
    print("\n".join(prints.files()))
