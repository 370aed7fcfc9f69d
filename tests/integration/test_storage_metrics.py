"""What filters, stores and logs do can be seen on the page of metrics, of a real server over HTTP."""

from __future__ import annotations

import asyncio
import functools
import operator
import urllib.request
from pathlib import Path

import pyarrow as pa

import fluss
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import predicate_to_pb
from fluss.schema.predicate import Predicate, col
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.waiting import eventually_async
from tests.ports import free_port
from tests.unit.server.tablet.support import SCHEMA, batch_with_statistics, fetch_request, rows

EVENTS, USERS = fluss.TablePath("fluss", "events"), fluss.TablePath("fluss", "users")


def server_on(port: int, data_dir: Path) -> FlussServer:
    options = {
        "data.dir": str(data_dir),
        "bind.listeners": "FLUSS://127.0.0.1:0",
        "metrics.reporter.prometheus.port": port,
        "log.filter.max-conditions": 5,
        "kv.shared-store.max-size": "10 kb",
    }
    return FlussServer(ServerOptions(options))


async def connect(server: FlussServer) -> fluss.FlussConnection:
    config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.listeners[0].port}"})
    return await fluss.FlussConnection.create(config)


async def page(port: int) -> dict[str, float]:
    """Return the values of the page by name and labels, as they stand there."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    lines = (await asyncio.to_thread(read)).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_filters_are_counted(tmp_path: Path) -> None:
    port = free_port()
    async with server_on(port, tmp_path) as server, await connect(server) as connection:
        admin = connection.get_admin()
        await admin.create_table(EVENTS, fluss.TableDescriptor(SCHEMA, bucket_count=1))
        table_id = (await admin.get_table_info(EVENTS)).table_id
        async with await Channel.connect("127.0.0.1", server.listeners[0].port) as channel:

            async def fetch(predicate: pb.PbPredicate) -> bulk_messages.FetchedBucket:
                request = fetch_request((0, 0), table_id=table_id, predicate=predicate, filter_schema_id=1)
                return (await channel.request(apis.FETCH_LOG, request, timeout_s=60)).tables[0].buckets[0]

            def message(predicate: Predicate) -> pb.PbPredicate:
                return predicate_to_pb(predicate.bind(SCHEMA))

            for number in range(10):
                entry = bulk_messages.BucketRecords(0, batch_with_statistics(rows(number * 10, 10)))
                produce = bulk_messages.ProduceLogRequest(-1, table_id, 30_000, [entry])
                await channel.request(apis.PRODUCE_LOG, produce, timeout_s=60)
            assert (await fetch(message(col("id") >= 70))).records_view
            assert (await fetch(message(col("id") < 0))).filtered_end_offset == 100
            refused = await fetch(message(functools.reduce(operator.or_, [col("id") == n for n in range(5)])))
            assert refused.error_code == 13
            assert (await fetch(pb.PbPredicate(type=99))).records_view, "it is not understood"
        values = await page(port)
        assert values["fluss_filtered_fetches_total"] == 4
        assert values["fluss_filter_batches_total"] == 20
        assert values["fluss_filter_skipped_batches_total"] == 17
        assert values["fluss_filter_processor_seconds_total"] > 0
        assert values['fluss_filters_refused_total{reason="limit"}'] == 1
        assert values['fluss_filters_refused_total{reason="unknown"}'] == 1
        assert values['fluss_filters_refused_total{reason="memory"}'] == 0
        assert values["fluss_waiting_filters"] == values["fluss_delayed_fetches"] == 0
        assert values["fluss_buckets_in_use"] == values["fluss_open_logs"] == 1


async def test_stores_are_counted(tmp_path: Path) -> None:
    port = free_port()
    schema = fluss.Schema(pa.schema([pa.field("id", pa.int32(), False), ("name", pa.string())]), primary_keys=["id"])
    async with server_on(port, tmp_path) as server, await connect(server) as connection:
        assert (await page(port))["fluss_shared_databases"] == 0
        await connection.get_admin().create_table(USERS, fluss.TableDescriptor(schema, bucket_count=3))
        writer = (await connection.get_table(USERS)).new_upsert().create_writer()
        for number in range(30):
            writer.upsert([number, "small"])
        await writer.flush()
        values = await page(port)
        assert values['fluss_open_stores{database="shared"}'] == values["fluss_stores_opened_total"] == 3
        assert values['fluss_open_stores{database="own"}'] == values["fluss_stores_promoted_total"] == 0
        assert values["fluss_shared_databases"] == 1
        assert values['fluss_store_memory_bytes{kind="write buffers"}'] > 0

        async def is_promoted() -> bool:
            for number in range(1000):
                writer.upsert([number, f"large {number}" * 20])
            await writer.flush()
            return (await page(port))["fluss_stores_promoted_total"] == 3

        while not await is_promoted():
            pass
        values = await page(port)
        assert values['fluss_open_stores{database="own"}'] == 3
        assert values['fluss_open_stores{database="shared"}'] == 0
    (damaged, *_) = [path for path in tmp_path.rglob("CURRENT") if "kv.shared" not in str(path)]
    damaged.write_bytes(b"nonsense")
    async with server_on(port, tmp_path) as server, await connect(server) as connection:
        lookuper = (await connection.get_table(USERS)).new_lookup().create_lookuper()
        found = [await lookuper.lookup([number]) for number in range(100)]
        assert all(row is not None for row in found)
        await eventually_async(lambda: server.metrics.values()["fluss_stores_opened_total", ()] == 3)
        values = await page(port)
        assert values["fluss_stores_rebuilt_total"] == 1
        assert values["fluss_store_replayed_bytes_total"] > 0
        assert values['fluss_shared_databases_given_up_total{reason="damaged"}'] == 0
