"""Writers forget partitions that were dropped, and nothing else: a partition that is still there keeps its numbers.

Shown with a real server, which knows numbers of batches again; and, for what is on its way, with one that is held."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.client.write import gone_partitions
from fluss.client.write.writer_client import WriterClient
from fluss.testing.waiting import eventually
from tests.fakes.write_server import WriteServer, client_of

COLUMNS = pa.schema([pa.field("day", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False)])
NEW_MIN = 4
ROUNDS = 8 * NEW_MIN


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[blocking.FlussConnection]:
    monkeypatch.setattr(gone_partitions, "_NEW_MIN", NEW_MIN)
    with embedded.start({"durability": "os"}) as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, "writer.batch-timeout-ms": "0"})
        with blocking.connect(config) as opened:
            yield opened


def writes_of(connection: blocking.FlussConnection) -> WriterClient:
    client = connection._inner._writer_client
    assert client is not None
    return client


def kept(connection: blocking.FlussConnection) -> dict[str, int]:
    """Return what the client has by partition."""
    client, metadata = writes_of(connection), connection._inner._cluster._metadata
    sender = client._sender
    assert sender is not None
    (table,) = metadata._tables.values()
    return {
        "tables": len(client._tables),
        "queues": len(sender._queues),
        "searches": len(sender._searches._searches),
        "numbers": len(sender._idempotence._buckets),
        "ids": len(table.partition_ids),
        "leaders": len(table.leaders) - 1,
        "names": len(metadata._partition_names),
    }


@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "keys"])
def test_of_partitions_that_were_dropped_nothing_is_kept(connection: blocking.FlussConnection, is_keyed: bool) -> None:
    admin = connection.get_admin()
    schema = fluss.Schema(COLUMNS, primary_keys=["day", "id"] if is_keyed else [])
    descriptor = fluss.TableDescriptor(schema, partition_keys=["day"], bucket_count=1, bucket_keys=["id"])
    admin.create_table("fluss.t", descriptor)
    table = connection.get_table("fluss.t")
    writer = table.new_upsert().create_writer() if is_keyed else table.new_append().create_writer()

    def write(day: str, number: int) -> None:
        (writer.upsert if is_keyed else writer.append)({"day": day, "id": number}).wait()

    admin.create_partition("fluss.t", {"day": "stays"})
    for number in range(ROUNDS):
        write("stays", number)
        day = f"day-{number}"
        admin.create_partition("fluss.t", {"day": day})
        write(day, number)
        if not is_keyed:
            writer.write_arrow(pa.record_batch({"day": [day], "id": [-1]}, schema=COLUMNS))
            writer.flush()
        admin.drop_partition("fluss.t", {"day": day})
    # One look may still be under way, and some partitions have come since.
    eventually(lambda: max(kept(connection).values()) <= ROUNDS // 2, "forgetting")
    assert len(writer._inner._destinations_by_name) <= ROUNDS // 2
    assert len(writer._inner._destinations_by_values) <= ROUNDS // 2
    sender = writes_of(connection)._sender
    assert sender is not None
    (stays,) = [info for info in admin.list_partition_infos("fluss.t") if info.partition_name == "stays"]
    ((_, numbers),) = [
        each for each in sender._idempotence._buckets.items() if each[0].partition_id == stays.partition_id
    ]
    assert numbers.next == ROUNDS, "numbers go on where there is something to go on with"
    # A name that was forgotten can come again.
    admin.create_partition("fluss.t", {"day": "day-0"})
    write("day-0", 1000)
    write("stays", 1000)
    found = sorted(table.new_scan().to_arrow().to_pylist(), key=repr)
    expected = [{"day": "stays", "id": number} for number in [*range(ROUNDS), 1000]]
    assert found == sorted([*expected, {"day": "day-0", "id": 1000}], key=repr)


def test_what_is_on_its_way_to_a_partition_keeps_it(server: WriteServer) -> None:
    server.add_table(partition_keys=("name",))
    for partition_id, name in enumerate("abc"):
        server.add_partition(name, partition_id)
    with client_of(server, writer__max_inflight_requests_per_bucket=1) as client:
        writer = client.writer()
        writer.append([0, "a"])
        writer.append([0, "b"])
        client.flush(writer)
        sender = client.writes._sender
        assert sender is not None
        server.hold()
        for number in (1, 2):
            writer.append([number, "a"])
            client.writes.accumulator.close_all()
        eventually(lambda: server.in_progress == 1)
        tables = {table.partition_name: table for table in client.writes._partitions_of(1)}

        async def forget() -> tuple[set[str | None], set[int]]:
            sender.forget(1, list(tables.values()), {0, 1, 2})
            return {table.partition_name for table, _ in sender._queues}, sender.partition_ids(1)

        assert client.runtime.run(forget()) == ({"a"}, {0}), "one batch is sent, and one waits behind it"
        server.release()
        writer.append([3, "a"])
        client.flush(writer)
    assert server.ids(partition_id=0) == [0, 1, 2, 3]
    assert [header.batch_sequence for header in server.headers[1, 0, 0]] == [0, 1, 2, 3]


def test_writers_of_a_partition_share_what_is_known_while_one_of_them_has_it(server: WriteServer) -> None:
    server.add_table(partition_keys=("name",))
    server.add_partition("a", 0)
    with client_of(server) as client:
        writer, other = client.writer(), client.writer()
        writer.append([1, "a"])
        client.flush(writer)
        known = client.writes._partitions_of(1)

        async def forget() -> None:
            sender = client.writes._sender
            assert sender is not None
            sender.forget(1, client.writes._partitions_of(1), ())

        client.runtime.run(forget())
        other.append([2, "a"])
        writer.append([3, "a"])
        assert client.writes._partitions_of(1) == known
        client.flush(other)
        client.flush(writer)
        client.runtime.run(forget())
        del writer, other, known
        gc.collect()
        assert client.writes._partitions_of(1) == []
    assert server.ids(partition_id=0) == [1, 2, 3]
