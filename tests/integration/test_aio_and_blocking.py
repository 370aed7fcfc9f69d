"""The same program in three styles: ``fluss``, ``fluss.aio`` where nothing blocks, ``fluss.blocking`` without awaits.
Shown by writing and reading with each, and by comparing the names, so that no method is missing in one of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded

ARROW_SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())])
LOG_TABLE = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), bucket_count=1)


def test_the_three_modules_offer_the_same_names() -> None:
    for module in (aio, blocking):
        for name in fluss.__all__:
            assert hasattr(module, name), f"{module.__name__} has no {name}"


@pytest.mark.parametrize("module", [aio, blocking], ids=["aio", "blocking"])
@pytest.mark.parametrize(
    "name",
    [
        "FlussConnection",
        "FlussAdmin",
        "FlussTable",
        "TableScan",
        "TableAppend",
        "AppendWriter",
        "TableUpsert",
        "UpsertWriter",
        "WriteResultHandle",
        "TableLookup",
        "Lookuper",
        "TablePrefixLookup",
        "PrefixLookuper",
        "LogScanner",
        "BatchScanner",
        "Consumer",
    ],
)
def test_a_wrapper_has_every_method_of_what_it_wraps(module: object, name: str) -> None:
    original, wrapper = getattr(fluss, name), getattr(module, name)
    public = {method for method in dir(original) if not method.startswith("_")}
    assert public - set(dir(wrapper)) == set()
    for method in public:
        ours, theirs = getattr(wrapper, method), getattr(original, method)
        if callable(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    if module is blocking:
        coroutines = {method for method in public if inspect.iscoroutinefunction(getattr(wrapper, method))}
        assert {method for method in coroutines if not method.endswith("_async")} == set()


def test_wrappers_are_made_by_the_client_only() -> None:
    for cls in (aio.FlussConnection, aio.LogScanner, blocking.FlussConnection, blocking.FlussAdmin):
        with pytest.raises(TypeError, match="cannot be constructed"):
            cls()


async def test_a_program_that_awaits_everything(server: embedded.EmbeddedServer) -> None:
    path = aio.TablePath("fluss", "aio")
    async with await aio.FlussConnection.create(server.config()) as connection:
        admin = await connection.get_admin()
        await admin.create_table(path, LOG_TABLE)
        table = await connection.get_table(path)
        assert (repr(table), table.table_path) == ("FlussTable(path=fluss.aio)", path)
        async with table.new_append().create_writer() as writer:
            for number in range(5):
                writer.append({"id": number, "name": "x"})

        records = await table.new_scan().create_log_scanner()
        records.subscribe(bucket_id=0, start_offset=aio.EARLIEST_OFFSET)
        polled = await records.poll(120_000)
        assert [record.row["id"] for record in polled] == [0, 1, 2, 3, 4]

        batches = await table.new_scan().project_by_name(["id"]).create_record_batch_log_scanner()
        batches.subscribe(0, aio.EARLIEST_OFFSET)
        assert (await batches.poll_arrow(120_000)).column_names == ["id"]
        batches.subscribe(0, aio.EARLIEST_OFFSET)
        assert [len(batch) for batch in await batches.poll_record_batch(120_000)] == [5]
        batches.subscribe(0, aio.EARLIEST_OFFSET)
        assert (await batches.to_arrow()).num_rows == 5
        assert list((await batches.to_pandas())["id"]) == [0, 1, 2, 3, 4]

        records.subscribe(0, 3)
        seen = []
        async for record in records:
            seen.append(record.row["id"])
            if len(seen) == 2:
                break
        assert seen == [3, 4]


async def test_reads_of_the_plain_module_are_awaited_as_well_as_called(server: embedded.EmbeddedServer) -> None:
    path = fluss.TablePath("fluss", "both_ways")
    async with await fluss.FlussConnection.create(server.config()) as connection:
        await connection.get_admin().create_table(path, LOG_TABLE)
        table: Any = await connection.get_table(path)
        async with table.new_append().create_writer() as writer:
            writer.append({"id": 1, "name": "x"})
        records: Any = await table.new_scan().create_log_scanner()
        batches: Any = await table.new_scan().create_record_batch_log_scanner()

        def again() -> Any:
            batches.subscribe(0, fluss.EARLIEST_OFFSET)
            return batches

        records.subscribe(0, fluss.EARLIEST_OFFSET)
        assert [record.row["id"] for record in await records.poll(120_000)] == [1]
        records.subscribe(0, fluss.EARLIEST_OFFSET)
        assert [record.row["id"] for record in records.poll(120_000)] == [1]
        assert [len(batch) for batch in await again().poll_record_batch(timeout_ms=120_000)] == [1]
        assert [len(batch) for batch in again().poll_record_batch(timeout_ms=120_000)] == [1]
        assert [len(batch) for batch in await again().poll_batches(120_000)] == [1]
        assert (await again().poll_arrow(120_000)) == again().poll_arrow(120_000)
        assert (await again().to_arrow()) == again().to_arrow() == await table.to_arrow() == table.to_arrow()
        assert (await again().to_pandas()).equals(again().to_pandas())
        assert (await table.to_pandas(["id"])).equals(table.new_scan().project([0]).to_pandas())
        assert (await table.new_scan().limit(1).to_arrow()).num_rows == 1

        # Mistakes are raised where the result is asked for, in both ways.
        with pytest.raises(fluss.FlussError, match="batch-based scanner"):
            await records.poll_arrow(0)
        with pytest.raises(fluss.FlussError, match="batch-based scanner"):
            records.poll_arrow(0)


async def test_a_poll_that_is_awaited_leaves_the_loop_free(server: embedded.EmbeddedServer) -> None:
    path = fluss.TablePath("fluss", "free_as_well")
    async with await fluss.FlussConnection.create(server.config()) as connection:
        await connection.get_admin().create_table(path, LOG_TABLE)
        table = await connection.get_table(path)
        scanner: Any = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)

        async def write() -> None:
            writer = table.new_append().create_writer()
            writer.append({"id": 1, "name": "written while the poll waits"})
            await writer.flush()

        # If the poll blocked, nothing could be written before it is over.
        writing = asyncio.create_task(write())
        assert [record.row["id"] for record in await scanner.poll(120_000)] == [1]
        await writing


async def test_the_loop_is_free_while_a_poll_waits(server: embedded.EmbeddedServer) -> None:
    path = aio.TablePath("fluss", "free")
    async with await aio.FlussConnection.create(server.config()) as connection:
        await connection.get_admin().create_table(path, LOG_TABLE)
        scanner = await (await connection.get_table(path)).new_scan().create_log_scanner()
        scanner.subscribe(0, aio.EARLIEST_OFFSET)
        poll = asyncio.create_task(scanner.poll(300))
        turns = 0
        while not poll.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await poll).is_empty()
        assert turns > 100


def test_a_program_that_awaits_nothing(server: embedded.EmbeddedServer) -> None:
    path = blocking.TablePath("fluss", "blocking")
    with blocking.FlussConnection.create(server.config()) as connection:
        admin = connection.get_admin()
        admin.create_table(path, LOG_TABLE)
        assert admin.list_tables("fluss") != []
        assert repr(admin) == "FlussAdmin()"
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append({"id": 0, "name": "x"}).wait()
            handle = writer.write_arrow_batch(pa.record_batch({"id": [1], "name": ["y"]}, schema=ARROW_SCHEMA))
            handle.wait()
            assert handle.done()
            writer.append([2, "z"])
            writer.flush()
            writer.append([3, "at the end of the block"])
        assert admin.list_offsets(path, [0], blocking.OffsetSpec.latest()) == {0: 4}

        scanner = table.new_scan().project([0]).create_record_batch_log_scanner()
        scanner.subscribe(0, blocking.EARLIEST_OFFSET)
        assert scanner.to_arrow()["id"].to_pylist() == [0, 1, 2, 3]
        bucket = blocking.TableBucket(table.get_table_info().table_id, 0)
        newest = table.new_scan().limit(2).create_bucket_batch_scanner(bucket)
        assert newest.bucket == bucket
        assert newest.to_arrow()["id"].to_pylist() == [2, 3]

        with pytest.raises(blocking.FlussError) as caught:
            connection.get_table(blocking.TablePath("fluss", "missing"))
        assert caught.value.error_code == blocking.ErrorCode.TABLE_NOT_EXIST
    with pytest.raises(blocking.FlussError, match="closed"):
        admin.list_databases()


def test_blocking_calls_work_inside_a_running_loop_too(server: embedded.EmbeddedServer) -> None:
    async def main() -> list[str]:
        with blocking.FlussConnection.create(server.config()) as connection:
            return connection.get_admin().list_databases()

    assert "fluss" in asyncio.run(main())
