"""Promises of a server that show only over time or in numbers: tiny segments, expiry, restarts, replaced tables.
Shown with real servers and clients, from the first write to what the last reader sees."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss import EARLIEST_OFFSET, blocking
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import poll_rows
from tests.integration.servers import serving

ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
SCHEMA = blocking.Schema(ARROW_SCHEMA)


def create_table(connection: blocking.FlussConnection, name: str, **description: Any) -> blocking.FlussTable:
    path = blocking.TablePath("fluss", name)
    connection.get_admin().create_table(path, blocking.TableDescriptor(SCHEMA, **description))
    return connection.get_table(path)


def append_each(table: blocking.FlussTable, numbers: range, region: str = "EU") -> None:
    """Append rows one after the other, each in a batch of its own."""
    writer = table.new_append().create_writer()
    for number in numbers:
        writer.append([number, region]).wait()


def ids(scanner: blocking.LogScanner) -> list[int]:
    found: list[int] = scanner.to_arrow()["id"].to_pylist()
    return found


# Segments


def test_segments_of_120_bytes_are_read_without_gaps_or_duplicates(tmp_path: Path) -> None:
    with serving(tmp_path, log__segment__file_size="120b") as (server, connection):
        table = create_table(connection, "tiny")
        append_each(table, range(30))
        files = sorted((tmp_path / "data" / "fluss").glob("tiny-*/log-0/*.log"))
        assert [int(file.stem) for file in files] == list(range(30)), "every batch has a segment of its own"

        def check() -> None:
            for columns in (["id", "region"], ["region", "id"], ["id"]):
                scan = table.new_scan().project_by_name(columns)
                records = scan.create_log_scanner()
                records.subscribe(0, 0)
                expected = [{name: {"id": n, "region": "EU"}[name] for name in columns} for n in range(30)]
                assert poll_rows(records, 30) == expected
                batches = scan.create_record_batch_log_scanner()
                batches.subscribe(0, 17)
                assert batches.to_arrow().to_pylist() == expected[17:]

        check()
        server.restart()
        check()
        append_each(table, range(30, 32))
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 28)
        assert ids(scanner) == [28, 29, 30, 31]


def test_partitions_of_tiny_segments_survive_a_restart_with_their_ids(tmp_path: Path) -> None:
    with serving(tmp_path, log__segment__file_size="120b") as (server, connection):
        admin = connection.get_admin()
        table = create_table(connection, "tiny_parts", partition_keys=["region"])
        for region, first in (("EU", 0), ("US", 100)):
            admin.create_partition(table.table_path, {"region": region})
            append_each(table, range(first, first + 10), region)

        def partition_ids() -> dict[str, int]:
            return {info.partition_name: info.partition_id for info in admin.list_partition_infos(table.table_path)}

        before = partition_ids()
        server.restart()
        assert partition_ids() == before
        for region, first in (("EU", 0), ("US", 100)):
            scanner = table.new_scan().project([0]).create_record_batch_log_scanner()
            scanner.subscribe_partition(before[region], 0, EARLIEST_OFFSET)
            assert ids(scanner) == list(range(first, first + 10))


def test_a_time_leads_to_the_right_segment_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, log__segment__file_size="120b") as (server, connection):
        table = create_table(connection, "times")
        for number in range(5):
            append_each(table, range(number, number + 1))
            time.sleep(0.005)
        scanner = table.new_scan().create_log_scanner()
        scanner.subscribe(0, EARLIEST_OFFSET)
        times_ms: dict[int, int] = {}
        while len(times_ms) < 5:
            times_ms |= {record.offset: record.timestamp for record in scanner.poll(500)}
        server.restart()
        for offset, time_ms in times_ms.items():
            for asked_ms, expected in ((time_ms, offset), (time_ms - 1, offset), (time_ms + 1, offset + 1)):
                spec = blocking.OffsetSpec.timestamp(asked_ms)
                assert connection.get_admin().list_offsets(table.table_path, [0], spec) == {0: expected}


# Expiry


def test_reading_below_what_has_expired_is_an_error_that_names_the_range(tmp_path: Path) -> None:
    options = {"log__segment__file_size": "120b", "log__retention__check_interval": "30ms"}
    with serving(tmp_path, **options) as (_, connection):
        admin = connection.get_admin()
        table = create_table(connection, "expiring")
        append_each(table, range(5))
        early = table.new_scan().create_log_scanner()
        early.subscribe(0, EARLIEST_OFFSET)
        assert len(poll_rows(early, 5)) == 5
        assert admin.list_offsets(table.table_path, [0], "earliest") == {0: 0}

        admin.alter_table(table.table_path, set_properties={"table.log.ttl": "50ms"})
        eventually(lambda: admin.list_offsets(table.table_path, [0], "earliest") == {0: 4})
        admin.alter_table(table.table_path, set_properties={"table.log.ttl": "0ms"})

        late = table.new_scan().create_record_batch_log_scanner()
        late.subscribe(0, 0)
        with pytest.raises(FlussError, match=r"out of range.* 4 to 5"):
            late.poll_arrow(120_000)
        late.subscribe(0, EARLIEST_OFFSET)
        assert ids(late) == [4]
        # Whoever was behind the expired records does not notice.
        append_each(table, range(5, 7))
        assert [row["id"] for row in poll_rows(early, 2)] == [5, 6]
        # Without a time to live nothing expires.
        time.sleep(0.1)
        assert admin.list_offsets(table.table_path, [0], "earliest") == {0: 4}


# Tables and partitions that come and go


def test_a_table_may_be_replaced_again_and_again(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, connection):
        admin = connection.get_admin()
        found = []
        for number in range(10):
            table = create_table(connection, "again", bucket_count=2)
            assert admin.list_tables("fluss") == ["again"]
            append_each(table, range(number, number + 1))
            assert admin.get_table_stats(table.table_path).row_count == 1
            found.append(table.get_table_info().table_id)
            admin.drop_table(table.table_path)
            assert admin.list_tables("fluss") == []
            assert not admin.table_exists(table.table_path)
        assert found == sorted(set(found))
        eventually(lambda: not list((server.data_dir / "fluss").glob("again-*")))


def test_a_dropped_partition_is_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, connection):
        admin = connection.get_admin()
        table = create_table(connection, "parts", partition_keys=["region"])
        for region in ("EU", "US"):
            admin.create_partition(table.table_path, {"region": region})
        append_each(table, range(1), "EU")
        append_each(table, range(10, 11), "US")
        by_name = {info.partition_name: info.partition_id for info in admin.list_partition_infos(table.table_path)}
        scanner = table.new_scan().create_log_scanner()
        scanner.subscribe_partition_buckets({(partition_id, 0): EARLIEST_OFFSET for partition_id in by_name.values()})
        assert sorted(row["id"] for row in poll_rows(scanner, 2)) == [0, 10]

        admin.drop_partition(table.table_path, {"region": "EU"})
        append_each(table, range(11, 14), "US")
        seen: list[int] = []
        codes: set[int] = set()
        deadline_s = time.monotonic() + 120
        while (len(seen) < 3 or not codes) and time.monotonic() < deadline_s:
            try:
                seen += [record.row["id"] for record in scanner.poll(200)]
            except FlussError as error:
                codes.add(error.error_code)
        assert seen == [11, 12, 13]
        assert codes == {ErrorCode.PARTITION_NOT_EXISTS}
        scanner.unsubscribe_partition(by_name["EU"], 0)
        append_each(table, range(14, 15), "US")
        assert [row["id"] for row in poll_rows(scanner, 1)] == [14]


def test_writers_of_an_old_and_a_new_schema_take_turns_under_a_scanner(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, connection):
        old = create_table(connection, "growing")
        fixed, free = (old.new_scan().with_fixed_schema(is_fixed).create_log_scanner() for is_fixed in (True, False))
        for scanner in (fixed, free):
            scanner.subscribe(0, EARLIEST_OFFSET)
        connection.get_admin().alter_table(old.table_path, add_columns=[pa.field("note", pa.string())])
        new = connection.get_table(old.table_path)
        for number in range(3):
            append_each(old, range(number, number + 1))
            new.new_append().create_writer().append([number, "EU", f"note {number}"]).wait()
        short = [{"id": number // 2, "region": "EU"} for number in range(6)]
        assert poll_rows(fixed, 6) == short
        # A scanner from before the change that is not bound to its schema sees the column as soon as rows have it.
        longer = [{**row, "note": f"note {row['id']}"} if index % 2 else row for index, row in enumerate(short)]
        assert poll_rows(free, 6) == longer


def test_an_empty_batch_first_does_not_keep_rows_from_spreading(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, connection):
        table = create_table(connection, "spread", bucket_count=3)
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(pa.RecordBatch.from_pylist([], schema=ARROW_SCHEMA)).wait()
        for number in range(60):
            batch = pa.record_batch([[number], ["EU"]], schema=ARROW_SCHEMA)
            writer.write_arrow_batch(batch).wait()
            writer.write_arrow_batch(batch.slice(0, 0)).wait()
        offsets = connection.get_admin().list_offsets(table.table_path, [0, 1, 2], "latest")
        assert sum(offsets.values()) == 60, "empty batches take no offsets"
        assert all(offset > 0 for offset in offsets.values())


# What is served


async def test_every_public_request_is_served_on_one_port(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, _):
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            assert channel.server_type is None, "one port plays both roles"
            request = pb.ApiVersionsRequest(client_software_name="test", client_software_version="1")
            response = await channel.request(apis.API_VERSIONS, request, timeout_s=120)
            served = {ApiKey(version.api_key) for version in response.api_versions}
        # Services that bring tables to a lake are clients, too.
        lake = {ApiKey.LAKE_TIERING_HEARTBEAT, ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT}
        assert served == lake | {api.key for api in apis.APIS.values() if api.is_public}
