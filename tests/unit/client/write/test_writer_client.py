"""What a connection writes with: memory stays within its bound, flush and close tell the truth, nothing gets lost.
Shown with real threads and sockets against a server that can be slow, or gone."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from fluss.client.write.encoders import KvEncoder, LogEncoder
from fluss.client.write.row_layout import RowLayout
from fluss.client.write.writer_client import WriterClient
from fluss.client.write.writers import AppendWriter
from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.testing.waiting import eventually, eventually_async
from tests.fakes.faulty_server import Fault
from tests.fakes.write_server import WriteServer, client_of, upsert_of

# Rows that are added while blocks are closed


def test_no_row_is_lost_or_doubled_while_others_close_blocks_all_the_time(server: WriteServer) -> None:
    server.add_table(bucket_count=2)
    stop = threading.Event()
    with client_of(server, writer__bucket__no_key_assigner="round_robin") as client:
        writer = client.writer()

        def close_blocks() -> None:
            while not stop.is_set():
                client.writes.accumulator.close_all()

        def work(thread: int) -> list[int]:
            ids = list(range(thread * 10_000, thread * 10_000 + 1500))
            for i in ids:
                writer.append([i, "x"])
            return ids

        with ThreadPoolExecutor(5) as threads:
            closer = threads.submit(close_blocks)
            written = [i for future in [threads.submit(work, n) for n in range(3)] for i in future.result(120)]
            stop.set()
            closer.result(120)
        client.flush(writer)
        assert client.writes.memory.used_bytes == 0
    assert sorted(server.ids(0) + server.ids(1)) == sorted(written)


def test_a_row_that_comes_too_late_for_its_block_moves_to_another_one(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        writer.append([1, "x"])
        destination = writer._destination
        assert destination is not None
        block = destination.block
        client.flush(writer)
        # Between the two looks at the limit, the block was closed and its rows were taken.
        packed = writer._encoder.layout.pack_any([2, "x"])[0]
        block.rows.append(packed)
        assert client.writes.accumulator.take_back_late(block, packed)
        assert block.rows == []
        client.writes.accumulator.append(destination, packed, block)
        client.flush(writer)
        # It was closed, but the row was there in time.
        writer.append([3, "x"])
        block = destination.block
        packed = writer._encoder.layout.pack_any([4, "x"])[0]
        with client.writes.accumulator._lock:
            block.rows.append(packed)
        client.writes.accumulator.close_all()
        client.flush(writer)
        assert not client.writes.accumulator.take_back_late(block, packed)
    assert server.ids() == [1, 2, 3, 4]


STEPS = [(LogEncoder, "encode_few"), (RowLayout, "to_arrow"), (LogEncoder, "encode"), (WriterClient, "_submit")]


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[step for _, step in STEPS])
def test_rows_that_are_being_encoded_when_their_writer_is_interrupted_are_stored_like_those_behind_them(
    server: WriteServer, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, compression: str
) -> None:
    interrupted = interrupt_once(monkeypatch, owner, step)
    server.add_table(properties={"table.log.arrow.compression.type": compression})
    with client_of(server, writer__batch_timeout_ms=3_600_000, writer__batch_size=2_000) as client:
        writer = client.writer()
        ids = itertools.count()
        while not interrupted.is_set() and (i := next(ids)) < 1_000:
            try:
                writer.append([i, "x" * 20])
            except KeyboardInterrupt:
                # The row after which a block was closed is not in it, and may be written again.
                next_id = i
        if interrupted.is_set():
            for i in range(next_id, next_id + 200):
                writer.append([i, "x" * 20])
        client.flush(writer)
        assert client.writes.memory.used_bytes == 0
        assert client.writes.accumulator.incomplete() == []
    assert server.ids() == list(range(len(server.ids())))
    assert len(server.ids()) >= 200


@pytest.mark.parametrize(
    ("owner", "step"), [(RowLayout, "to_arrow"), (KvEncoder, "encode")], ids=["to_arrow", "encode"]
)
def test_rows_with_keys_survive_that_as_well(
    server: WriteServer, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    interrupt_once(monkeypatch, owner, step)
    server.add_kv_table()
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer = upsert_of(client).create_writer()
        for i in range(10):
            writer.upsert([i, "x", None])
        with pytest.raises(KeyboardInterrupt):
            client.writes.accumulator.close_all()
        writer.upsert([10, "x", None])
        client.flush(writer)
    assert [row["id"] for row in server.rows_put()] == list(range(11))


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: type, step: str) -> threading.Event:
    """Press Ctrl-C at a step of the main thread, the first time; return what is set then."""
    is_pressed = threading.Event()
    function = getattr(owner, step)

    def interrupted(*arguments: object) -> object:
        if not is_pressed.is_set() and threading.current_thread() is threading.main_thread():
            is_pressed.set()
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(owner, step, interrupted)
    return is_pressed


# Memory


def test_memory_stays_within_its_bound_while_writers_are_faster_than_the_server(server: WriteServer) -> None:
    server.add_table(properties={"table.log.arrow.compression.type": "ZSTD"})
    server.hold()
    memory_bytes = 1_000_000
    is_released = threading.Event()
    options = {"writer__buffer__memory_size": memory_bytes, "writer__batch_size": 50_000}
    with client_of(server, writer__batch_timeout_ms=3_600_000, **options) as client:
        writer = client.writer()
        used_bytes = set()

        def write() -> int:
            for i in itertools.count():
                if is_released.is_set() and i >= 10_000:
                    return i
                writer.append([i, os.urandom(25).hex()])
                used_bytes.add(client.writes.memory.used_bytes)
            raise AssertionError

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            eventually(lambda: client.writes.memory.waiting_count == 1)
            server.release()
            is_released.set()
            row_count = writing.result(120)
        client.flush(writer)
        assert client.writes.memory.used_bytes == 0
    assert 0.5 * memory_bytes < max(used_bytes) <= memory_bytes
    assert server.ids() == list(range(row_count))


def test_scarce_memory_does_not_end_in_tiny_batches(server: WriteServer) -> None:
    server.add_table(properties={"table.log.arrow.compression.type": "ZSTD"})
    server.default_fault = Fault(delay_s=0.02)
    options = {"writer__buffer__memory_size": 300_000, "writer__batch_size": 50_000}
    with client_of(server, writer__batch_timeout_ms=3_600_000, **options) as client:
        writer = client.writer()
        for i in range(20_000):
            writer.append([i, os.urandom(50).hex()])
        client.flush(writer)
    row_counts = [header.record_count for header in server.headers[1, None, 0]]
    assert sum(row_counts) == 20_000
    assert len(row_counts) < 150


def test_what_is_counted_is_what_python_holds(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer = client.writer()
        rows = [[i, "x" * 40] for i in range(10_000)]
        tracemalloc.start()
        before_bytes, _ = tracemalloc.get_traced_memory()
        for row in rows:
            writer.append(row)
        after_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        held_bytes = after_bytes - before_bytes
        assert 0.8 * held_bytes < client.writes.memory.used_bytes < 2 * held_bytes


def test_a_writer_that_waits_for_memory_has_open_blocks_sent(server: WriteServer) -> None:
    server.add_table(bucket_count=4)
    options = {"writer__batch_timeout_ms": 3_600_000, "writer__bucket__no_key_assigner": "round_robin"}
    with client_of(server, writer__buffer__memory_size=100_000, writer__batch_size=100_000, **options) as client:
        writer = client.writer()
        for i in range(2000):
            writer.append([i, "x" * 100])
        assert sum(len(server.ids(bucket_id)) for bucket_id in range(4)) > 500
        client.flush(writer)
    assert sum(len(server.ids(bucket_id)) for bucket_id in range(4)) == 2000


def test_waiting_for_memory_has_a_limit(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    options = {"writer__buffer__memory_size": 50_000, "writer__batch_size": 50_000}
    with client_of(server, writer__buffer__wait_timeout_ms=50, **options) as client:
        writer = client.writer()
        handles = [writer.append([i, "x" * 10_000]) for i in range(4)]
        client.writes.accumulator.close_all()
        with pytest.raises(FlussError, match="buffer exhausted"):
            writer.append([9, "y" * 20_000])
        server.release()
        for handle in handles:
            handle.result(120)
        client.flush(writer)
    assert server.ids() == [0, 1, 2, 3]


# Flush


def test_flush_waits_for_all_and_raises_the_first_failure(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(), Fault(bucket_code=13), Fault()])
    with client_of(server) as client:
        writer = client.writer()
        handles = []
        for i in range(3):
            handles.append(writer.append([i, "x"]))
            client.writes.accumulator.close_all()
        with pytest.raises(FlussError, match="refused with 13"):
            client.flush(writer)
        assert [handle.done() for handle in handles] == [True] * 3
        client.flush(writer)
    assert server.ids() == [0, 2]


def test_flush_reports_failures_that_nobody_was_told_of_once(server: WriteServer) -> None:
    server.add_table()
    server.default_fault = Fault(bucket_code=13)
    with client_of(server) as client:
        writer, other = client.writer(), client.writer()
        writer.append([1, "x"])
        eventually(lambda: bool(client.writes._failures))
        with pytest.raises(FlussError, match="refused with 13"):
            client.flush(writer)
        client.flush(writer)
        # This one has been reported by the first writer of the table.
        client.flush(other)
        with pytest.raises(FlussError):
            writer.append([2, "x"]).result(120)
        # And this one by its handle.
        client.flush(writer)


def test_a_flush_that_was_given_up_leaves_failures_to_the_next_one(server: WriteServer) -> None:
    server.add_table()
    server.default_fault = Fault(bucket_code=13)
    server.hold()

    async def given_up(writer: AppendWriter) -> None:
        flush = asyncio.ensure_future(writer.flush())
        await eventually_async(lambda: server.in_progress == 1)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush

    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        # Their rows are in the same block.
        writers = [client.writer(), client.writer()]
        for writer in writers:
            writer.append([1, "x"])
        asyncio.run(given_up(writers[0]))
        server.release()
        eventually(lambda: bool(client.writes._failures))
        for writer in writers:
            with pytest.raises(FlussError, match="refused with 13"):
                client.flush(writer)
            client.flush(writer)


def test_a_handle_tells_one_writer_of_a_failure_and_not_those_that_share_its_batch(server: WriteServer) -> None:
    server.add_table()
    server.default_fault = Fault(bucket_code=13)
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        one, other = client.writer(), client.writer()
        handle = one.append([1, "x"])
        other.append([2, "x"])
        client.writes.accumulator.close_all()
        with pytest.raises(FlussError, match="refused with 13"):
            handle.result(120)
        eventually(lambda: bool(client.writes._failures))
        with pytest.raises(FlussError, match="refused with 13"):
            client.flush(other)
        client.flush(other)


def test_a_new_writer_does_not_report_what_failed_before_it(server: WriteServer) -> None:
    server.add_table()
    server.default_fault = Fault(bucket_code=13)
    with client_of(server) as client:
        client.writer().append([1, "x"])
        eventually(lambda: bool(client.writes._failures))
        client.flush(client.writer())


def test_failures_of_another_table_are_not_reported(server: WriteServer) -> None:
    server.add_table()
    other = TablePath("fluss", "other")
    server.add_table(other, table_id=2)
    server.faults.append(Fault(table_id=2, bucket_code=13))
    with client_of(server) as client:
        writer, other_writer = client.writer(), client.writer(other)
        other_writer.append([1, "x"])
        eventually(lambda: bool(client.writes._failures))
        client.flush(writer)
        with pytest.raises(FlussError, match="refused with 13"):
            client.flush(other_writer)


def test_flush_of_one_writer_sends_the_rows_of_all(server: WriteServer) -> None:
    server.add_table()
    other = TablePath("fluss", "other")
    server.add_table(other, table_id=2)
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer, other_writer = client.writer(), client.writer(other)
        other_writer.append([1, "x"])
        client.flush(writer)
    assert server.ids(table_id=2) == [1]


def test_flush_does_not_wait_for_rows_that_come_later(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer = client.writer()
        writer.append([1, "x"])

        async def main() -> bool:
            flush = asyncio.ensure_future(writer.flush())
            await eventually_async(lambda: server.in_progress == 1)
            later = writer.append([2, "x"])
            server.release()
            await flush
            return later.done()

        assert not asyncio.run(main())
    assert server.ids() == [1, 2]


# Close


def test_closing_sends_what_was_written_and_refuses_more(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, writer__batch_timeout_ms=3_600_000) as client:
        writer = client.writer()
        handle = writer.append([1, "x"])
        client.runtime.run(client.writes.close(5.0))
        assert handle.done()
        for write in (
            lambda: writer.append([2, "x"]),
            lambda: writer.write_arrow(pa.table({"id": [1], "name": ["x"]})),
        ):
            with pytest.raises(FlussError, match="writer closed"):
                write()
        client.runtime.run(client.writes.close(5.0))
    assert server.ids() == [1]


def test_closing_has_a_limit_and_fails_what_is_left(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server) as client:
        writer = client.writer()
        handles = []
        for i in range(7):
            handles.append(writer.append([i, "x"]))
            client.writes.accumulator.close_all()
        with pytest.raises(FlussError, match=r"writer closed: 7 batches of .* were not stored within 0\.1 s"):
            client.runtime.run(client.writes.close(0.1))
        for handle in handles:
            with pytest.raises(FlussError, match="writer closed"):
                handle.result(120)
        assert client.writes.memory.used_bytes == 0


def test_closing_wakes_those_who_wait_for_memory(server: WriteServer) -> None:
    server.add_table()
    server.hold()
    with client_of(server, writer__buffer__memory_size=30_000, writer__batch_size=30_000) as client:
        writer = client.writer()

        def write_for_ever() -> None:
            for i in range(1000):
                writer.append([i, "x" * 5000])

        with ThreadPoolExecutor(2) as threads:
            writing = threads.submit(write_for_ever)
            eventually(lambda: client.writes.memory.waiting_count == 1)
            closing = threads.submit(client.close)
            with pytest.raises(FlussError, match="writer closed"):
                writing.result(120)
            server.release()
            closing.result(120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_writer_is_refused_in_a_forked_child(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer: AppendWriter = client.writer()
        process_id, client.writes._process_id = client.writes._process_id, -1
        with pytest.raises(FlussError, match="forked"):
            writer.append([1, "x"])
        client.writes._process_id = process_id


def test_rows_that_cannot_be_encoded_fail_alone(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        encoder = writer._encoder
        encode = encoder.encode_few
        encoder.encode_few = lambda rows, bucket_id: 1 / 0
        handle = writer.append([1, "x"])
        with pytest.raises(FlussError, match="the rows cannot be encoded: ZeroDivisionError"):
            handle.result(120)
        encoder.encode_few = encode
        assert client.writes.memory.used_bytes == 0
        writer.append([2, "x"]).result(120)
    assert server.ids() == [2]
