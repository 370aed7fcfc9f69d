"""Loads of a primary-key table, thousands of rows at a time, survive kill -9: no row is lost, none is written twice.

The write buffer is so small that rows are on their way to the disk, as whole tables, most of the time.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss import embedded

KEYS = 60_000
ROWS = 20_000
KILLS = 4
OPTIONS = {"kv.rocksdb.writebuffer.size": "2 mb"}
PATH = fluss.TablePath("fluss", "loads")
SCHEMA = pa.schema([("id", pa.int64()), ("round", pa.int64()), ("text", pa.string())])


def rows_of_round(number: int) -> pa.RecordBatch:
    """Return the same rows for the same number: keys all over, some of which other rounds have, too."""
    ids = np.random.default_rng(number).choice(KEYS, ROWS, replace=False)
    texts = [f"{number} {key} {'x' * (key % 50)}" for key in ids.tolist()]
    return pa.record_batch([pa.array(ids), pa.array([number] * ROWS), pa.array(texts)], schema=SCHEMA)


async def load(writer: fluss.UpsertWriter, rounds_before: int, begun: asyncio.Event, stop: asyncio.Event) -> int:
    """Write one round after the other until told to stop, and say when the first is done; return how many there are."""
    rounds = rounds_before
    while not stop.is_set():
        rounds += 1
        writer.upsert_arrow(rows_of_round(rounds))
        await writer.flush()
        begun.set()
    return rounds


async def check(table: fluss.FlussTable, model: dict[int, int]) -> None:
    """Compare all rows, and those that a replay of the changelog gives, with the round that wrote each of them last."""
    rows = await table.to_arrow_async()
    assert dict(zip(rows["id"].to_pylist(), rows["round"].to_pylist(), strict=True)) == model
    assert rows["text"].to_pylist() == [
        f"{number} {key} {'x' * (key % 50)}"
        for key, number in zip(rows["id"].to_pylist(), rows["round"].to_pylist(), strict=True)
    ]
    scanner = await table.new_scan().create_changelog_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    changes = await scanner.to_arrow_async()
    replayed: dict[int, int] = {}
    columns = (changes[name].to_pylist() for name in ("_change_type", "id", "round"))
    for change, key, number in zip(*columns, strict=True):
        if change == "insert":
            assert key not in replayed
        elif change == "update_before":
            assert replayed[key] == number
            continue
        replayed[key] = number
    assert replayed == model


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_loads_go_on_after_every_kill_and_no_row_is_lost_or_written_twice(tmp_path: Path) -> None:
    async def run(server: embedded.EmbeddedServer) -> None:
        rng = random.Random(5)
        rounds, model = 0, dict[int, int]()
        async with await fluss.FlussConnection.create(server.config()) as connection:
            schema = fluss.Schema(SCHEMA, primary_keys=["id"])
            await connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
            table = await connection.get_table(PATH)
            writer = table.new_upsert().create_writer()
            for _ in range(KILLS):
                begun, stop = asyncio.Event(), asyncio.Event()
                loading = asyncio.create_task(load(writer, rounds, begun, stop))
                await begun.wait()
                await asyncio.sleep(rng.uniform(0.0, 0.7))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                stop.set()
                before, rounds = rounds, await loading
                for number in range(before + 1, rounds + 1):
                    model |= dict.fromkeys(rows_of_round(number).column("id").to_pylist(), number)
                await check(table, model)
        assert rounds > KILLS

    with embedded.start(OPTIONS, data_dir=tmp_path, process=True) as server:
        asyncio.run(run(server))
