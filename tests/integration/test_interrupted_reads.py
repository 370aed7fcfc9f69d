"""Ctrl-C and cancelled tasks while records are on their way to the program: the next read begins with them.

In a notebook a loop is interrupted and run again, on the same scanner or consumer; what was polled for it and not
handed out must not count as read. Shown by interrupting at the moments at which records have left the scanner.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.client.consume.membership import Membership
from fluss.client.kernel.decode import BatchDecoder, DecodedBatch
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.records import ScanRecord
from fluss.errors import ConsumerFencedError
from fluss.record.log_batch import LogBatch
from fluss.testing.waiting import eventually, eventually_async

SCHEMA = pa.schema([("id", pa.int32())])
POLL_MS = 1000

_numbers = itertools.count()


@pytest.fixture
def connection(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.FlussConnection.create(server.config()) as opened:
        yield opened


def create_table(connection: blocking.FlussConnection) -> blocking.FlussTable:
    """Create a table with ten records, in two batches."""
    path = fluss.TablePath("fluss", f"interrupted_{next(_numbers)}")
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
    table = connection.get_table(path)
    writer = table.new_append().create_writer()
    for ids in (range(5), range(5, 10)):
        writer.append_many({"id": id} for id in ids)
        writer.flush()
    return table


def read_ids(reader: blocking.LogScanner | blocking.Consumer) -> list[int]:
    """Poll until there are ten records."""
    ids: list[int] = []

    def polled() -> bool:
        ids.extend(record.row["id"] for record in reader.poll(POLL_MS))
        return len(ids) >= 10

    eventually(polled, "reading ten records")
    return ids


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Press Ctrl-C when records are made of what a poll has returned, the first time; return whether that was so."""
    is_pressed = False
    create_all = ScanRecord._create_all

    def interrupted(*args: object) -> object:
        nonlocal is_pressed
        # Members of consumers read on a thread of the library, which gets no signals.
        if not is_pressed and threading.current_thread() is threading.main_thread():
            is_pressed = True
            raise KeyboardInterrupt
        return create_all(*args)

    monkeypatch.setattr(ScanRecord, "_create_all", interrupted)
    return lambda: is_pressed


def test_a_loop_over_a_scanner_that_is_interrupted_goes_on_where_it_was(
    connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    has_been_interrupted = interrupt_once(monkeypatch)
    with table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_all()
        with pytest.raises(KeyboardInterrupt):
            next(iter(scanner))
        assert has_been_interrupted()
        assert read_ids(scanner) == list(range(10))


def test_a_loop_over_a_consumer_that_is_interrupted_goes_on_where_it_was(
    connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    with table.consumer("reader") as consumer:
        has_been_interrupted = interrupt_once(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            next(iter(consumer))
        assert has_been_interrupted()
        consumer.commit()
        assert not consumer.committed()
        assert read_ids(consumer) == list(range(10))


def test_what_a_loop_was_left_before_is_not_lost_when_it_cannot_be_given_back(
    connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    with table.consumer("reader") as consumer:
        for record in consumer:
            assert record.row["id"] == 0
            break

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(fluss.LogScanner, "_begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(POLL_MS)
        assert read_ids(consumer) == list(range(10))


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_poll_that_is_interrupted_when_it_begins_with_buckets_leaves_none_out(
    connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    table = create_table(connection)
    begin = fluss.LogScanner._begin

    def interrupted(*arguments: Any) -> None:
        # Members of consumers read on a thread of the library, which gets no signals.
        is_consumer = threading.current_thread() is threading.main_thread()
        if is_behind or not is_consumer:
            begin(*arguments)
        if is_consumer:
            raise KeyboardInterrupt

    with table.consumer("reader") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(fluss.LogScanner, "_begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(POLL_MS)
        assert consumer.positions() == consumer.committed() == {}
        assert read_ids(consumer) == list(range(10))


@pytest.mark.parametrize("is_loop", [False, True])
async def test_what_is_cancelled_while_a_member_makes_sure_is_read_again(
    server: embedded.EmbeddedServer,
    connection: blocking.FlussConnection,
    monkeypatch: pytest.MonkeyPatch,
    is_loop: bool,
) -> None:
    table = create_table(connection)
    async with await aio.FlussConnection.create(server.config()) as plain:
        consumer = (await plain.get_table(table.table_path)).consumer("reader")
        ids: list[int] = []

        async def read() -> None:
            if is_loop:
                async for record in consumer:
                    ids.append(record.row["id"])
                    if len(ids) >= 15:
                        return
            while len(ids) < 15:
                ids.extend(record.row["id"] for record in await consumer.poll(POLL_MS * 1000))

        has_read = asyncio.Event()

        async def never_sure(*_: object) -> None:
            has_read.set()
            await asyncio.Event().wait()

        # As if the process had been paused for longer than its lease as soon as something has been read.
        monkeypatch.setattr(fluss.Consumer, "_make_sure", never_sure)
        reading = asyncio.ensure_future(read())
        await asyncio.wait_for(has_read.wait(), 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ids == []
        monkeypatch.undo()
        await consumer.commit()
        writer = table.new_append().create_writer()
        writer.append_many({"id": id} for id in range(10, 15))
        writer.flush()
        await asyncio.wait_for(read(), 60)
        assert ids == list(range(15))
        await consumer.close()


async def test_a_bounded_read_that_is_cancelled_while_it_decodes_has_moved_nothing(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    decode = BatchDecoder.decode
    is_decoding, may_go_on = threading.Event(), threading.Event()

    def slow_decode(*arguments: Any, **options: Any) -> DecodedBatch:
        is_decoding.set()
        may_go_on.wait(60)
        return decode(*arguments, **options)

    monkeypatch.setattr(BatchDecoder, "decode", slow_decode)
    async with await aio.FlussConnection.create(server.config()) as plain:
        scan = (await plain.get_table(table.table_path)).new_scan()
        async with await scan.create_record_batch_log_scanner() as scanner:
            # The last batch: with it the read of the bucket is done.
            scanner.subscribe(0, 5)
            reading = asyncio.ensure_future(scanner.to_arrow())
            await asyncio.to_thread(is_decoding.wait, 60)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            may_go_on.set()
            ids: list[int] = []
            while len(ids) < 5:
                polled = await asyncio.wait_for(scanner.poll_arrow(POLL_MS * 1000), 60)
                ids += polled["id"].to_pylist()
            assert ids == list(range(5, 10))


async def test_a_poll_that_is_cancelled_while_it_decodes_has_moved_nothing(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    decode = BatchDecoder.decode
    is_decoding, may_go_on = threading.Event(), threading.Event()

    def slow_decode(decoder: BatchDecoder, batch: LogBatch, **options: Any) -> DecodedBatch:
        # The position is behind the first batch by then.
        if batch.header.base_offset:
            is_decoding.set()
            may_go_on.wait(60)
        return decode(decoder, batch, **options)

    async with await aio.FlussConnection.create(server.config()) as plain:
        scan = (await plain.get_table(table.table_path)).new_scan()
        async with await scan.create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
            (before,) = scanner.position().values()
            monkeypatch.setattr(BatchDecoder, "decode", slow_decode)
            reading = asyncio.ensure_future(scanner.poll(POLL_MS * 1000))
            await asyncio.to_thread(is_decoding.wait, 60)
            reading.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            if reading.done():
                # Who commits what was read must not commit this.
                assert [*scanner.position().values()] == [before]
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert [*scanner.position().values()] == [before]
            ids = [record.row["id"] for record in await scanner.poll(POLL_MS * 1000)]
            assert ids == list(range(len(ids)))


async def test_a_member_whose_poll_is_cancelled_when_it_has_lost_its_buckets_is_told_so_by_the_next_call(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(connection)
    leave = Membership.leave
    is_leaving, may_leave = threading.Event(), threading.Event()

    async def slow_leave(membership: Membership, *arguments: Any) -> None:
        is_leaving.set()
        await asyncio.to_thread(may_leave.wait, 60)
        await leave(membership, *arguments)

    async with await aio.FlussConnection.create(server.config()) as plain:
        consumer = (await plain.get_table(table.table_path)).consumer("reader")
        assert (await consumer.poll(POLL_MS * 1000))[0].row == {"id": 0}
        membership = consumer._inner._membership
        assert membership is not None
        runtime().loop.call_soon_threadsafe(membership._fail, ConsumerFencedError("others have its buckets"))
        await eventually_async(lambda: membership.failure is not None, "fencing the member")
        monkeypatch.setattr(Membership, "leave", slow_leave)
        reading = asyncio.ensure_future(consumer.poll(POLL_MS * 1000))
        await asyncio.to_thread(is_leaving.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        may_leave.set()
        # What was polled is read by others as well. A commit that returns would say that it is not.
        with pytest.raises(ConsumerFencedError, match="others have its buckets"):
            await consumer.commit()
        assert (await consumer.poll(POLL_MS * 1000))[0].row == {"id": 0}
        await consumer.close()
