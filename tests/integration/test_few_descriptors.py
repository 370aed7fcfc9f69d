"""A server that has no descriptor left loses nothing, and goes on by itself when there are some again.
A real server whose limit of open files is taken away and given back while clients write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import fluss
from fluss.errors import FlussError
from fluss.testing.forked_servers import ForkedServer, ServerForks
from fluss.testing.waiting import eventually_async

OLD, NEW, KEYED = (fluss.TablePath("db", name) for name in ("old", "new", "keyed"))
ROWS = 100
# What is open stays open, and nothing else can be opened.
NO_MORE = 3
# Of a server that does not go on. A busy machine needs a small part of it.
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def forks() -> Iterator[ServerForks]:
    with ServerForks() as forks:
        yield forks


@asynccontextmanager
async def connected(server: ForkedServer) -> AsyncIterator[fluss.FlussConnection]:
    config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.port}", "request-timeout": TIMEOUT_S * 1000})
    async with await fluss.FlussConnection.create(config) as connection:
        yield connection


async def create_tables(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    await admin.create_database("db")
    types = fluss.DataTypes
    columns = fluss.Schema.builder().column("n", types.bigint()).column("pad", types.string())
    for path in (OLD, NEW):
        await admin.create_table(path, fluss.TableDescriptor(columns.build(), bucket_count=2))
    await admin.create_table(KEYED, fluss.TableDescriptor(columns.primary_key(["n"]).build(), bucket_count=2))


def row(number: int) -> dict[str, object]:
    return {"n": number, "pad": "x" * 200}


async def test_writes_go_on_when_there_are_descriptors_again(forks: ServerForks, tmp_path: Path) -> None:
    log_file = tmp_path / "server.log"
    # So small that the rows of a table need several segments.
    server = forks.start(tmp_path / "data", {"log.segment.file-size": "4kb"}, log_file=log_file).wait_until_ready()
    try:
        async with connected(server) as connection:
            await create_tables(connection)
            tables = {path: await connection.get_table(path) for path in (OLD, NEW, KEYED)}
            write = {path: tables[path].new_append().create_writer().append for path in (OLD, NEW)}
            write[KEYED] = tables[KEYED].new_upsert().create_writer().upsert
            # The logs and stores of two tables are open, and those of the third have never been.
            for path in (OLD, KEYED):
                await asyncio.gather(*(write[path](row(number)).wait() for number in range(ROWS)))
            server.limit_descriptors(NO_MORE)
            handles = [write[path](row(ROWS + number)) for number in range(ROWS) for path in (OLD, NEW, KEYED)]
            waiting = asyncio.gather(*(handle.wait() for handle in handles))
            await eventually_async(lambda: "wait for descriptors" in log_file.read_text(), "the shortage")
            # Whether it is done or not: nothing else must suffer from it.
            with suppress(FlussError):
                await connection.get_admin().create_database("meanwhile")
            assert not waiting.done()
            server.limit_descriptors(None)
            await asyncio.wait_for(waiting, TIMEOUT_S)
            for path, first in ((OLD, 0), (NEW, ROWS), (KEYED, 0)):
                rows = await tables[path].to_arrow_async()
                assert sorted(rows["n"].to_pylist()) == list(range(first, 2 * ROWS)), path
            await connection.get_admin().create_database("afterwards")
        said = log_file.read_text()
        assert "read-only" not in said
        assert "go on" in said
    finally:
        code = server.stop()
    assert code == 0
    # And nothing of it was half done.
    server = forks.start(tmp_path / "data").wait_until_ready()
    try:
        async with connected(server) as connection:
            for path, first in ((OLD, 0), (NEW, ROWS), (KEYED, 0)):
                rows = await (await connection.get_table(path)).to_arrow_async()
                assert sorted(rows["n"].to_pylist()) == list(range(first, 2 * ROWS)), path
            assert "afterwards" in await connection.get_admin().list_databases()
    finally:
        assert server.stop() == 0
