"""Clients with filters as large as they may be do not keep a server from stopping in order, nor do filters beyond that.
Shown by a server process, raw connections with hundreds of requests under way, and a client of ours beside them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

import fluss
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import MAGIC_V1, build_batch
from fluss.record.statistics import collect_statistics
from fluss.testing.cluster import ServerProcess
from tests.integration.hostile import RawConnection, error_of

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64())]))
PATH = fluss.TablePath("fluss", "filtered")
BATCHES = 1000
CONNECTIONS = 16
REQUESTS_EACH = 100


def _batches() -> bytes:
    batches = []
    for number in range(BATCHES):
        rows = pa.record_batch({"id": pa.array([number, number + 1])})
        batches.append(
            build_batch(
                [rows.serialize()],
                schema_id=1,
                record_count=2,
                append_only=True,
                magic=MAGIC_V1,
                statistics=collect_statistics(rows, SCHEMA.data_types, [0]),
            )
        )
    return b"".join(batches)


def _fetch(table_id: int, condition_count: int) -> bytes:
    """Return a fetch that no row answers: so many comparisons in one OR."""
    leaves = [
        pb.PbPredicate(
            type=0,
            leaf=pb.PbLeafPredicate(
                function=0,
                field_id=SCHEMA.columns[0].column_id,
                literals=[pb.PbLiteralValue(literal_type=4, is_null=False, bigint_value=-number - 1)],
            ),
        )
        for number in range(condition_count)
    ]
    predicate = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=1, children=leaves))
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20)
    table = request.tables_req.add(
        table_id=table_id,
        projection_pushdown_enabled=False,
        filter_predicate=predicate.SerializeToString(),
        filter_schema_id=1,
    )
    table.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20)
    return request.SerializeToString()


async def _prepare(bootstrap_servers: str) -> int:
    async with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers})) as connection:
        admin = connection.get_admin()
        await admin.create_table(PATH, fluss.TableDescriptor(SCHEMA, bucket_count=1))
        table_id: int = (await admin.get_table_info(PATH)).table_id
        return table_id


def _ask(connection: RawConnection, body: bytes, request_id: int) -> bulk_messages.FetchedBucket:
    answer = connection.ask(apis.FETCH_LOG.key, request_id, body)
    assert answer is not None
    assert error_of(answer) is None
    return apis.FETCH_LOG.response.decode(answer.body).tables[0].buckets[0]


def test_a_server_full_of_filters_refuses_larger_ones_serves_others_and_stops_in_order(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "-D", "durability=os") as server:
        table_id = wait_for(_prepare(server.bootstrap_servers))
        entry = bulk_messages.BucketRecords(0, _batches(), None)
        produce = bulk_messages.ProduceLogRequest(-1, table_id, 30_000, [entry])
        with ExitStack() as connections:
            greedy = [connections.enter_context(RawConnection(server.port)) for _ in range(CONNECTIONS)]
            modest = connections.enter_context(RawConnection(server.port))
            answer = modest.ask(apis.PRODUCE_LOG.key, 0, b"".join(apis.PRODUCE_LOG.request.encode(produce)))
            assert answer is not None
            assert error_of(answer) is None
            allowed = _fetch(table_id, 2000)
            for connection in greedy:
                for request_id in range(REQUESTS_EACH):
                    connection.send(apis.FETCH_LOG.key, request_id, allowed)
            refused = _ask(modest, _fetch(table_id, 30_000), 1)
            assert refused.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert "has 30001 conditions or more, this server takes 2048" in (refused.error_message or "")
            # It gets its turn before the hundreds that were there first.
            assert _ask(modest, _fetch(table_id, 1), 2).filtered_end_offset == 2 * BATCHES
            assert server.stop() == 0, server.log_text
        assert "is ended" not in server.log_text
