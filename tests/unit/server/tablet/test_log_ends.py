"""Where the logs of a dropped partition ended is known exactly, however they were left, and without opening them all.

Real directories and a real server; a crash is a copy of the data directory taken while the server runs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluss.server.model import Partition
from fluss.server.tablet.log_ends import UNKNOWN_END
from tests.unit.server.tablet.support import MemoryCatalog, Server, make_table, rows, serving

_PARTITION = Partition(7, 1, "x")


def _catalog() -> MemoryCatalog:
    catalog = MemoryCatalog(make_table(buckets=5, partition_keys=["name"]))
    catalog.add_partition(_PARTITION)
    return catalog


async def _write(server: Server) -> None:
    await server.append(rows(0, 4), 1, partition_id=7)
    await server.append(rows(0, 2), 3, partition_id=7)
    await server.append(rows(2, 1), 3, partition_id=7)


async def _dropped(server: Server, catalog: MemoryCatalog) -> tuple[int, ...]:
    (table,) = catalog.tables()
    await server.manager.know_log_ends(table, _PARTITION)
    catalog.remove_partition(_PARTITION)
    return await server.manager.drop_buckets(table, _PARTITION)


def _open_count(server: Server) -> int:
    return sum(bucket.tablet is not None for bucket in server.manager.tables[1])


@pytest.mark.parametrize("state", ["open", "closed", "restarted", "crashed"])
async def test_ends_are_what_was_written(tmp_path: Path, state: str) -> None:
    catalog = _catalog()
    async with serving(tmp_path / "data", catalog=catalog) as server:
        await _write(server)
        if state == "closed":
            for _ in range(2):
                await server.manager._upkeep.close_idle()
        if state == "crashed":
            shutil.copytree(tmp_path / "data", tmp_path / "crashed")
        if state in ("open", "closed"):
            assert await _dropped(server, catalog) == (0, 4, 0, 3, 0)
            return
    data_dir = tmp_path / ("data" if state == "restarted" else "crashed")
    async with serving(data_dir, catalog=catalog) as server:
        (table,) = catalog.tables()
        await server.manager.know_log_ends(table, _PARTITION)
        if state == "restarted":
            # What a clean stop has noted need not be opened.
            assert _open_count(server) <= 1
        assert await _dropped(server, catalog) == (0, 4, 0, 3, 0)


async def test_the_end_of_a_log_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    catalog = _catalog()
    async with serving(tmp_path / "data", catalog=catalog) as server:
        await _write(server)
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    (segment,) = (tmp_path / "crashed").rglob("log-1/*.log")
    segment.unlink()
    segment.mkdir()
    async with serving(tmp_path / "crashed", catalog=catalog) as server:
        assert await _dropped(server, catalog) == (0, UNKNOWN_END, 0, 3, 0)


async def test_a_partition_that_is_not_there_has_no_ends(tmp_path: Path) -> None:
    catalog = MemoryCatalog(make_table(partition_keys=["name"]))
    async with serving(tmp_path, catalog=catalog) as server:
        (table,) = catalog.tables()
        await server.manager.know_log_ends(table, _PARTITION)
        assert await server.manager.drop_buckets(table, _PARTITION) == ()
