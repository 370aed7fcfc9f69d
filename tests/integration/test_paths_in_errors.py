"""Clients are not told where a server keeps its data: errors name files without the directories of the machine.
Shown with a log that was lost, over a real socket, and text by text."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import FlussError, hide_directory, unhide_directory
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PATHS = {name: fluss.TablePath("fluss", name) for name in ("log", "keyed")}


LOG, KEYED = 0, 1  # The ids of the tables.
# All ways by which the error of a bucket reaches a client.
REQUESTS: list[tuple[apis.Api, Any]] = [
    (apis.PRODUCE_LOG, ProduceLogRequest(-1, LOG, 1000, [BucketRecords(0, b"x" * 64)])),
    (apis.PUT_KV, PutKvRequest(-1, KEYED, 1000, [], [BucketRecords(0, b"x" * 64)])),
    (
        apis.FETCH_LOG,
        pb.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=1000,
            tables_req=[
                pb.PbFetchLogReqForTable(
                    table_id=LOG,
                    projection_pushdown_enabled=False,
                    buckets_req=[pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1000)],
                )
            ],
        ),
    ),
    (apis.LIST_OFFSETS, pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=LOG, bucket_id=[0])),
    (
        apis.GET_TABLE_STATS,
        pb.GetTableStatsRequest(table_id=LOG, buckets_req=[pb.PbTableStatsReqForBucket(bucket_id=0)]),
    ),
    (apis.LIMIT_SCAN, pb.LimitScanRequest(table_id=LOG, bucket_id=0, limit=1)),
    (
        apis.LOOKUP,
        pb.LookupRequest(table_id=KEYED, buckets_req=[pb.PbLookupReqForBucket(bucket_id=0, keys=[b"\0" * 8])]),
    ),
    (
        apis.SCAN_KV,
        pb.ScanKvRequest(
            bucket_scan_req=pb.PbScanReqForBucket(table_id=KEYED, bucket_id=0), call_seq_id=0, batch_size_bytes=100
        ),
    ),
]


async def ask(port: int, api: apis.Api, message: Any) -> Any:
    async with await Channel.connect("127.0.0.1", port) as channel:
        return await channel.request(api, message, timeout_s=120)


def fill(server: embedded.EmbeddedServer) -> None:
    with blocking.FlussConnection.create(server.config()) as connection:
        for name, keys in (("log", []), ("keyed", ["id"])):
            schema = fluss.Schema(SCHEMA, primary_keys=keys)
            connection.get_admin().create_table(PATHS[name], fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(PATHS[name])
            with (table.new_upsert() if keys else table.new_append()).create_writer() as writer:
                (writer.upsert if keys else writer.append)([1, "x"])


def test_a_lost_log_is_named_without_the_directories_above(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data_dir = tmp_path / "where nobody looks" / "data"
    with embedded.start(data_dir=data_dir) as server:
        fill(server)
    for directory in data_dir.glob("fluss/*/log-0"):
        shutil.rmtree(directory)
        directory.mkdir()
    with caplog.at_level(logging.WARNING), embedded.start(data_dir=data_dir) as server:
        answers = {api.name: str(run(ask(server.port, api, message))) for api, message in REQUESTS}
    for name, answer in answers.items():
        assert "holds no log" in answer, name
        assert re.search(r"\bfluss/(log-0|keyed-1)/log-0 holds", answer), (
            "it is told which, seen from the data directory"
        )
        assert "where" not in answer
        assert str(tmp_path) not in answer
    # The operator is told where.
    assert str(data_dir) in caplog.text


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("cannot read /srv/my data/d/t-1/log-0: gone", "cannot read d/t-1/log-0: gone"),
        ("'/etc/fluss/server.yaml' line 3", "'server.yaml' line 3"),
        ("[Errno 2] No such file: '/usr/lib/python/x.py'", "[Errno 2] No such file: 'x.py'"),
        ("use https://example.org/a/b, and/or CLIENT://host:1", "use https://example.org/a/b, and/or CLIENT://host:1"),
        ("the host 10.0.0.1/8 or a/b/c", "the host 10.0.0.1/8 or a/b/c"),
        ("/ alone", "/ alone"),
        ("no path at all", "no path at all"),
    ],
)
def test_files_are_told_without_directories(message: str, told: str) -> None:
    hide_directory(Path("/srv/my data"))
    try:
        assert FlussError(message).public_message == told
        assert FlussError(message).message == message
    finally:
        unhide_directory(Path("/srv/my data"))
