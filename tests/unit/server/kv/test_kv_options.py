"""Options about rows by key reach the part they speak of, and do there what they say.
Options of a server turned into settings; and whole servers with one unusual option, written to with raw requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.serde import table_to_json
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.server.service_settings import tablet_settings
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import SCHEMA, TABLE, kv_batch

TIMEOUT_S = 120
KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("key", "text", "setting", "value"),
    [
        ("kv.snapshot.interval", "3 s", "kv.flush_interval_ms", 3000),
        ("kv.snapshot.interval", "0 s", "kv.flush_interval_ms", 0),
        ("kv.snapshot.interval", "3 s", "snapshots.interval_ms", 3000),
        ("kv.snapshot.num-retained", "3", "snapshots.retained_count", 3),
        ("kv.snapshot.transfer-thread-num", "7", "snapshots.transfer_threads", 7),
        ("kv.snapshot.lease.expiration-check-interval", "1 min", "snapshots.lease_check_interval_ms", 60_000),
        ("remote.data.dir", "/mnt/remote", "kv.store.is_portable", True),
        ("kv.writes.memory-size", "7 mb", "kv.write_memory_bytes_max", 7 * MIB),
        ("kv.rocksdb.block.cache-size", "9 mb", "kv.store.block_cache_bytes", 9 * MIB),
        ("kv.rocksdb.writebuffer.size", "100 kb", "kv.store.write_buffer_bytes", 100 * KIB),
        ("kv.rocksdb.writebuffer.total-size", "200 kb", "kv.store.write_buffers_bytes_max", 200 * KIB),
        ("kv.shared-store.max-size", "0 b", "kv.store.shared_store_bytes_max", 0),
        ("kv.open-stores.max-number", "30", "kv.open_stores_max", 30),
        ("kv.recover.log-record-batch.max-size", "5 kb", "kv.recovery_bytes", 5 * KIB),
        ("kv.scanner.ttl", "4 min", "scans.ttl_ms", 240_000),
        ("kv.scanner.expiration-interval", "2 s", "scans.expiration_interval_ms", 2000),
        ("kv.scanner.max-per-bucket", "3", "scans.sessions_per_bucket_max", 3),
        ("kv.scanner.max-per-server", "11", "scans.sessions_max", 11),
        ("kv.scanner.max-batch-size", "64 kb", "scans.answer_bytes_max", 64 * KIB),
    ],
)
def test_options_reach_the_settings(key, text, setting, value):
    assert attrgetter(setting)(tablet_settings(ServerOptions({key: text}))) == value
    assert attrgetter(setting)(tablet_settings(ServerOptions())) != value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("kv.writes.memory-size", "1 kb"),
        ("kv.rocksdb.writebuffer.size", "0 b"),
        ("kv.open-stores.max-number", "0"),
        ("kv.scanner.max-per-server", "0"),
        ("kv.scanner.ttl", "soon"),
        ("kv.snapshot.num-retained", "0"),
    ],
)
def test_values_that_cannot_work_are_refused(key, text):
    with pytest.raises(FlussError, match=key):
        ServerOptions({key: text})


class Client:
    """A connection to a server with one primary-key table."""

    def __init__(self, channel: Channel, data_dir: Path, table_id: int) -> None:
        self._channel = channel
        self._table_id = table_id
        self._data_dir = data_dir

    async def put(self, *rows: tuple, acks: int = -1) -> int:
        """Write a batch and return the code of the answer."""
        entry = BucketRecords(0, kv_batch(TABLE, *rows))
        request = PutKvRequest(acks, self._table_id, 10_000, [], [entry])
        return (await self.ask(apis.PUT_KV, request)).buckets_resp[0].error_code

    async def ask(self, api: Any, message: Any) -> Any:
        return await self._channel.request(api, message, timeout_s=TIMEOUT_S)

    @property
    def table_count(self) -> int:
        """The tables that RocksDB has written to the disk."""
        return len(list(self._data_dir.rglob("*.sst")))


@asynccontextmanager
async def serving(tmp_path: Path, **options: str) -> AsyncIterator[Client]:
    """Start a server with some options, ``__`` for dots and ``_`` for dashes."""
    named = {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
    given = {"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0", "durability": "os", **named}
    path = pb.PbTablePath(database_name="fluss", table_name="t")
    descriptor = table_to_json(TableDescriptor(SCHEMA, bucket_count=1))
    create = pb.CreateTableRequest(table_path=path, table_json=descriptor, ignore_if_exists=False)
    async with (
        FlussServer(ServerOptions(given)) as server,
        await Channel.connect("127.0.0.1", server.listeners[0].port) as channel,
    ):
        await channel.request(apis.CREATE_TABLE, create, timeout_s=TIMEOUT_S)
        info = await channel.request(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path), timeout_s=TIMEOUT_S)
        yield Client(channel, tmp_path, info.table_id)


async def test_rows_are_written_to_the_disk_at_an_interval_that_can_be_changed(tmp_path):
    async with serving(tmp_path, kv__snapshot__interval="20 ms") as client:
        await client.put((1, "a"))
        await eventually_async(lambda: client.table_count)
        change = pb.AlterClusterConfigsRequest()
        change.alter_configs.add(config_key="kv.snapshot.interval", config_value="1 h", op_type=0)
        await client.ask(apis.ALTER_CLUSTER_CONFIGS, change)
        # A write to the disk that has begun may still end.
        await asyncio.sleep(0.3)
        count = client.table_count
        await client.put((2, "b"))
        await asyncio.sleep(0.1)
        assert client.table_count == count


async def test_a_small_write_buffer_goes_to_the_disk_when_it_is_full(tmp_path):
    for size, is_written in (("64 kb", True), ("64 mb", False)):
        async with serving(tmp_path / size, kv__rocksdb__writebuffer__size=size) as client:
            text = random.Random(7).randbytes(500).hex()
            for first in range(0, 500, 50):
                await client.put(*((number, text) for number in range(first, first + 50)))
            if is_written:
                await eventually_async(lambda: client.table_count)
            else:
                await asyncio.sleep(0.2)
                assert not client.table_count


async def test_writes_beyond_their_memory_are_refused(tmp_path):
    async with serving(tmp_path, kv__writes__memory_size="1 mb") as client:
        await client.put((0, "a"))
        text = "x" * 700_000
        codes = await asyncio.gather(*(client.put((number, text)) for number in (1, 2)))
        assert codes == [0, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION]
        assert await client.put((2, text)) == 0
