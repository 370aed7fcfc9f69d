"""The official clients see the snapshots that a tiering service registers with this server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss import embedded
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.interop.client import Client
from tests.interop.conftest import Libraries
from tests.interop.samples import EVENTS

SNAPSHOT_ID = 8_291_823_123_412_345_678


@pytest.fixture(scope="module")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    pytest.importorskip("pyiceberg", reason="lake tables need pyiceberg")
    data_dir: Path = tmp_path_factory.mktemp("interop-lake")
    options = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(data_dir / "warehouse")}
    with embedded.start(options, data_dir=data_dir / "data", process=True) as running:
        yield running


async def tier(server: embedded.EmbeddedServer, table: str, table_id: int, offsets: dict[int, int]) -> None:
    """Do what a tiering service does when it has committed to the lake."""
    async with await Channel.connect("127.0.0.1", server.port) as channel:

        async def ask(api: Any, message: Any) -> Any:
            return await channel.request(api, message, timeout_s=120)

        table_offsets = pb.PbTableOffsets(
            table_id=table_id,
            table_path=pb.PbTablePath(database_name="fluss", table_name=table),
            bucket_offsets=[pb.PbBucketOffset(bucket_id=id, log_end_offset=offset) for id, offset in offsets.items()],
        )
        prepared = await ask(
            apis.PREPARE_LAKE_TABLE_SNAPSHOT, pb.PrepareLakeTableSnapshotRequest(bucket_offsets=[table_offsets])
        )
        (answer,) = prepared.prepare_lake_table_resp
        entry = pb.PbLakeTableSnapshotMetadata(
            table_id=table_id,
            snapshot_id=SNAPSHOT_ID,
            tiered_bucket_offsets_file_path=answer.lake_table_offsets_path,
            readable_bucket_offsets_file_path=answer.lake_table_offsets_path,
        )
        committed = await ask(
            apis.COMMIT_LAKE_TABLE_SNAPSHOT, pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
        )
        assert committed.table_resp[0].error_code == 0


def test_the_latest_snapshot_and_its_offsets_are_seen(
    libraries: Libraries, any_name: str, table: str, lake_server: embedded.EmbeddedServer
) -> None:
    client = Client(libraries[any_name], lake_server.bootstrap_servers)
    client.create_table(table, EVENTS, properties={"table.datalake.enabled": "true"}, bucket_count=3)
    with pytest.raises(Exception) as caught:
        client.admin.get_latest_lake_snapshot(client.path(table))
    assert caught.value.error_code == 53  # type: ignore[attr-defined]
    table_id = client.admin.get_table_info(client.path(table)).table_id
    asyncio.run(tier(lake_server, table, table_id, {0: 100, 2: 7}))
    snapshot = client.admin.get_latest_lake_snapshot(client.path(table))
    assert snapshot.snapshot_id == SNAPSHOT_ID
    found = {
        bucket_id: snapshot.get_bucket_offset(client.fluss.TableBucket(table_id, bucket_id)) for bucket_id in range(3)
    }
    assert found == {0: 100, 1: None, 2: 7}
