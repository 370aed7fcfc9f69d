"""What writers wait for: their own rows, as long as they are told to; and what is said about a bucket without a leader.
Shown with a server that names no leader for some of its tables, until it is told to, in all styles of the client."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.client.write.encoders import LogEncoder
from fluss.client.write.writer_client import WriterClient
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.server.model import Table
from fluss.server.rpc import get_metadata
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Tables, tables_of

REASON = "the cluster names none, its replicas may be starting or away"
ROWS = pa.schema([("id", pa.int64())])


class Leaderless:
    """The tables, by name, whose buckets but the first have no leader."""

    def __init__(self) -> None:
        self.names: set[str] = set()


@pytest.fixture(scope="module")
def leaderless() -> Leaderless:
    return Leaderless()


@pytest.fixture(scope="module")
def server(leaderless: Leaderless) -> Iterator[embedded.EmbeddedServer]:
    buckets = get_metadata.MetadataHandlers._buckets

    def led(self: get_metadata.MetadataHandlers, table: Table) -> bytes:
        if table.path.table_name not in leaderless.names:
            return buckets(self, table)
        return get_metadata._buckets_led_by(self._nodes.tablet_server_id, 1, is_partition=table.is_partitioned)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_metadata.MetadataHandlers, "_buckets", led)
        with embedded.start({"durability": "os"}) as running:
            yield running


@pytest.fixture
def tables(server: embedded.EmbeddedServer) -> Iterator[Tables]:
    with tables_of(server) as made:
        yield made


@pytest.fixture
def stuck(tables: Tables, leaderless: Leaderless) -> Iterator[fluss.FlussTable]:
    """A table whose second bucket has no leader."""
    table = tables.create_log(ROWS, bucket_count=2, bucket_keys=["id"])
    leaderless.names.add(table.table_path.table_name)
    yield tables.again(table)
    leaderless.names.clear()


def ids_of_bucket(table: fluss.FlussTable, bucket_id: int, count: int = 3) -> list[int]:
    """Return ids of rows that go to a bucket."""
    client = table._context.writer_client()
    encoder = client.log_encoder(table.get_table_info())
    ids = pa.record_batch({"id": list(range(100))}, schema=ROWS)
    return _ids_by_bucket(encoder, ids)[bucket_id][:count]


def _ids_by_bucket(encoder: LogEncoder, rows: pa.RecordBatch) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in range(rows.num_rows):
        ((bucket_id, _),) = encoder.encode(rows.slice(row, 1), None)
        found.setdefault(bucket_id, []).append(rows["id"][row].as_py())
    return found


def wait_for_trouble(connection: fluss.FlussConnection) -> None:
    """Wait until writers have been told that there is no leader, however long that takes."""
    client = connection._get_writer_client()
    client.accumulator.close_all()
    tables = list(client._tables.values())
    eventually(lambda: client._sender is not None and client._sender.trouble_of(tables) is not None, "no leader")


def test_a_flush_that_is_given_a_limit_says_what_is_not_stored_and_why(
    tables: Tables, stuck: fluss.FlussTable, leaderless: Leaderless
) -> None:
    (id_,) = ids_of_bucket(stuck, 1, 1)
    writer = stuck.new_append().create_writer()
    handle = writer.append([id_])
    wait_for_trouble(tables.connection)
    with pytest.raises(RequestTimeoutError) as caught:
        wait_for(writer.flush(timeout=0.3))
    assert caught.value.error_code == ErrorCode.REQUEST_TIME_OUT
    assert caught.value.message.startswith(f"flush timed out: a batch of {stuck.table_path}")
    assert f"bucket 1 of {stuck.table_path} has no leader at the moment: {REASON}" in caught.value.message
    assert caught.value.message.endswith(
        "not stored within 0.3 s; the rows are still being sent, and another flush waits for them"
    )
    with pytest.raises(RequestTimeoutError):
        wait_for(writer.flush(0))
    assert not handle.done()
    leaderless.names.clear()
    wait_for(writer.flush(timeout=600))
    assert handle.done()


def test_a_flush_waits_for_the_rows_of_its_writer_only(tables: Tables, stuck: fluss.FlussTable) -> None:
    waiting_id, fine_id = ids_of_bucket(stuck, 1, 1)[0], ids_of_bucket(stuck, 0, 1)[0]
    stuck_writer = stuck.new_append().create_writer()
    handle = stuck_writer.append([waiting_id])
    # Of another table, of the same table, row by row and as Arrow data.
    other = tables.create_log(ROWS).new_append().create_writer()
    other.append([1])
    wait_for(other.flush())
    same_table = stuck.new_append().create_writer()
    same_table.write_arrow(pa.table({"id": [fine_id]}))
    wait_for(same_table.flush())
    idle = stuck.new_append().create_writer()
    wait_for(idle.flush())
    assert not handle.done()


def test_failures_are_told_to_the_writers_of_the_rows(tables: Tables) -> None:
    table = tables.create_log(pa.schema([("p", pa.string()), ("id", pa.int64())]), partition_keys=["p"])
    first, second, third = (table.new_append().create_writer() for _ in range(3))
    for writer in (first, second):
        writer.append(["nowhere", 1])
    wait_for(third.flush())
    for writer in (first, second):
        with pytest.raises(FlussError, match="partition 'nowhere'"):
            wait_for(writer.flush())
        # It was told once.
        wait_for(writer.flush())


def test_all_styles_take_limits(server: embedded.EmbeddedServer, stuck: fluss.FlussTable) -> None:
    (id_,) = ids_of_bucket(stuck, 1, 1)
    path = stuck.table_path
    connection = blocking.FlussConnection.create(server.config())
    writer = connection.get_table(path).new_append().create_writer()
    writer.append([id_])
    wait_for_trouble(connection._inner)
    with pytest.raises(RequestTimeoutError, match="has no leader"):
        writer.flush(timeout=0.1)
    with pytest.raises(FlussError, match="timeout must be non-negative"):
        writer.flush(timeout=-1)
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got str"):
        writer.flush(timeout="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not both"):
        connection.close(1, timeout=1)
    with pytest.raises(
        FlussError, match=r"writer closed: a batch of .* \(bucket 1 of .* has no leader .* within 0.2 s"
    ):
        connection.close(timeout=0.2)

    async def awaits() -> None:
        for module in (fluss, aio):
            connection = await module.FlussConnection.create(server.config())
            writer = (await connection.get_table(path)).new_append().create_writer()
            writer.append([id_])
            inner = connection._inner if isinstance(connection, aio.FlussConnection) else connection
            await asyncio.to_thread(wait_for_trouble, inner)
            with pytest.raises(RequestTimeoutError, match="has no leader"):
                await writer.flush(timeout=0.1)
            with pytest.raises(FlussError, match="has no leader"):
                await connection.close(timeout=0.1)

    asyncio.run(awaits())


def test_rows_with_keys_take_limits_too(
    server: embedded.EmbeddedServer, tables: Tables, leaderless: Leaderless
) -> None:
    table = tables.create(ROWS, bucket_count=64)
    leaderless.names.add(table.table_path.table_name)
    with blocking.FlussConnection.create(server.config()) as connection:
        upsert = connection.get_table(table.table_path).new_upsert()
        upsert.upsert_arrow(pa.table({"id": list(range(640))}))
        wait_for_trouble(connection._inner)
        with pytest.raises(RequestTimeoutError, match="has no leader"):
            upsert.flush(timeout=0.2)
        leaderless.names.clear()
        upsert.flush()


def test_a_bucket_that_stays_without_a_leader_is_in_the_log_once(
    tables: Tables, stuck: fluss.FlussTable, leaderless: Leaderless, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fluss.client")
    client: WriterClient = stuck._context.writer_client()
    client.sender_settings = replace(client.sender_settings, leaderless_s_max=0.2)
    writer = stuck.new_append().create_writer()
    handle = writer.append(ids_of_bucket(stuck, 1, 1))
    flushed = threading.Thread(target=lambda: wait_for(writer.flush()))
    flushed.start()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    eventually(lambda: lines() != [], "a warning")
    # It is looked for again and again, and nothing more is said.
    client.accumulator.close_all()
    with pytest.raises(RequestTimeoutError):
        wait_for(writer.flush(timeout=1.5))
    assert len(lines()) == 1
    assert lines()[0].startswith(
        f"bucket 1 of {stuck.table_path} has no leader at the moment: {REASON}; rows for it have"
    )
    leaderless.names.clear()
    handle.result(600)
    flushed.join()
    assert len(lines()) == 2
    assert lines()[1].startswith(f"bucket 1 of {stuck.table_path} has a leader again, after")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
