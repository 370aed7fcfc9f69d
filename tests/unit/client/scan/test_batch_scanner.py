"""A limited scan returns the newest rows of a log bucket, or rows by key, in one batch and one request.
Shown against a server on a real socket that answers with whole batches, more rows than asked for, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss import BatchScanner, FlussError, TableBucket, col
from fluss.net.transport import run
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import LimitScanResponse
from fluss.record.value_batch import encode_value, encode_value_batch
from fluss.row import compacted
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from tests.fakes.scan_cluster import SCHEMA, Client, ScanCluster, client_of, scan_cluster
from tests.unit.client.scan.test_log_scanner import rows

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
KEYED_LATER = KEYED.with_added_columns([Column("price", DataTypes.double())])


@pytest.fixture
def servers() -> Iterator[ScanCluster]:
    with scan_cluster(bucket_count=2) as servers:
        for number in range(4):
            servers.append(rows(3 * number))
        yield servers


@pytest.fixture
def client(servers: ScanCluster) -> Iterator[Client]:
    with client_of(servers) as client:
        yield client


def scan(client: Client, limit: int, bucket_id: int = 0) -> BatchScanner:
    return client.scan().limit(limit).create_bucket_batch_scanner(client.bucket(bucket_id))


@pytest.mark.parametrize(("limit", "first"), [(1, 11), (3, 9), (5, 7), (12, 0), (100, 0)])
async def test_the_newest_rows_come_in_one_batch_and_then_nothing(client: Client, limit: int, first: int) -> None:
    scanner = scan(client, limit)
    assert scanner.bucket == client.bucket(0)
    batch = await scanner.next_batch()
    assert batch is not None
    assert batch.batch.to_pylist() == rows(first, 12 - first)
    assert (batch.base_offset, batch.last_offset, batch.bucket) == (first, 11, client.bucket(0))
    assert await scanner.next_batch() is None
    assert await scanner.collect_all_batches() == []
    assert (await scanner.to_arrow()).num_rows == 0


async def test_all_forms_give_the_same_rows_and_ask_once_each(client: Client, servers: ScanCluster) -> None:
    (batch,) = await scan(client, 4).collect_all_batches()
    table = await scan(client, 4).to_arrow()
    frame = await scan(client, 4).to_pandas()
    assert batch.batch.to_pylist() == table.to_pylist() == frame.to_dict("records") == rows(8, 4)
    assert servers.call(lambda: servers.servers[0].requests[ApiKey.LIMIT_SCAN]) == 3


async def test_an_empty_bucket_gives_no_batch_and_a_table_with_the_columns(client: Client) -> None:
    assert await scan(client, 5, bucket_id=1).next_batch() is None
    projected = client.scan().project([1]).limit(5).create_bucket_batch_scanner(client.bucket(1))
    table = await projected.to_arrow()
    assert (table.num_rows, table.schema.names) == (0, ["name"])


async def test_columns_are_chosen_from_whole_rows(client: Client) -> None:
    scanner = client.scan().project_by_name(["name", "id"]).limit(1).create_bucket_batch_scanner(client.bucket(0))
    assert (await scanner.to_arrow()).to_pydict() == {"name": ["n11"], "id": [11]}


async def test_an_error_of_the_server_is_raised_and_spends_the_scanner(client: Client, servers: ScanCluster) -> None:
    servers.limit_scan_answer = LimitScanResponse(error_code=48, error_message="not you")
    scanner = scan(client, 1)
    with pytest.raises(FlussError, match="not you") as error:
        await scanner.next_batch()
    assert error.value.error_code == 48
    assert await scanner.next_batch() is None


async def test_damage_is_an_error(client: Client, servers: ScanCluster) -> None:
    data = bytearray(servers.logs[None, 0][0].data)
    data[-1] ^= 1
    servers.limit_scan_answer = LimitScanResponse(is_log_table=True, records=bytes(data))
    with pytest.raises(FlussError, match=r"cannot be read: .*checksum") as error:
        await scan(client, 1).next_batch()
    assert error.value.error_code == -2


async def test_a_bucket_without_a_leader_is_code_44(servers: ScanCluster) -> None:
    def lose() -> None:
        servers.leaders[None, 0] = 77
        servers.publish()

    servers.call(lose)
    with client_of(servers, request__timeout=3000) as client:
        with pytest.raises(FlussError, match="No leader found") as error:
            await scan(client, 1).next_batch()
        assert error.value.error_code == 44


def test_rows_of_a_table_with_a_primary_key_keep_their_order_across_schemas() -> None:
    def value(schema_id: int, schema: Schema, row: tuple[Any, ...]) -> bytes:
        return encode_value(schema_id, compacted.encode_row(schema.data_types, row))

    with scan_cluster(KEYED) as servers:
        servers.schemas[2] = KEYED_LATER
        values = [
            value(2, KEYED_LATER, (1, "a", 0.5)),
            value(1, KEYED, (2, None)),
            value(2, KEYED_LATER, (3, "c", None)),
            value(1, KEYED, (4, "d")),
        ]
        batch = encode_value_batch(EncodedRows.from_list(values))
        servers.limit_scan_answer = LimitScanResponse(is_log_table=False, records=bytes(batch))
        with client_of(servers) as client:

            async def main() -> None:
                found = await scan(client, 10).next_batch()
                assert found is not None
                assert found.base_offset == 0
                names = ["a", None, "c", "d"]
                assert found.batch.to_pydict() == {"id": [1, 2, 3, 4], "name": names}
                assert (await scan(client, 2).to_arrow())["id"].to_pylist() == [1, 2]

            run(main())
            servers.limit_scan_answer = LimitScanResponse(is_log_table=False)
            assert run(scan(client, 2).to_arrow()).num_rows == 0


def test_misuse_is_refused(client: Client) -> None:
    for number in (0, -5):
        with pytest.raises(FlussError, match="Scan limit must be positive"):
            client.scan().limit(number)
    with pytest.raises(TypeError):
        client.scan().limit("3")  # type: ignore[arg-type]
    with pytest.raises(FlussError, match="requires a limit"):
        client.scan().create_bucket_batch_scanner(client.bucket(0))
    limited = client.scan().limit(5)
    with pytest.raises(FlussError, match="another table"):
        limited.create_bucket_batch_scanner(TableBucket(99, 0))
    for bucket in (2, 99):
        with pytest.raises(FlussError, match=f"Bucket {bucket} does not exist"):
            limited.create_bucket_batch_scanner(client.bucket(bucket))
    with pytest.raises(FlussError, match="not a partitioned table"):
        limited.create_bucket_batch_scanner(client.bucket(0, partition_id=3))
    with pytest.raises(TypeError, match="TableBucket"):
        limited.create_bucket_batch_scanner(0)  # type: ignore[arg-type]
    with pytest.raises(FlussError, match="filter column"):
        client.scan().limit(5).filter(col("nope") > 1).create_bucket_batch_scanner(client.bucket(0))
    with pytest.raises(TypeError, match="cannot be constructed"):
        BatchScanner()
    assert repr(scan(client, 1)) == f"BatchScanner(bucket={client.bucket(0)})"


def test_a_log_of_rows_cannot_be_scanned_with_a_limit() -> None:
    with (
        scan_cluster(SCHEMA, log_format="indexed") as servers,
        client_of(servers) as client,
        pytest.raises(FlussError, match="INDEXED"),
    ):
        scan(client, 1)
