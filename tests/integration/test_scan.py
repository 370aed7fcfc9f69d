"""Scanning from end to end: what was appended to a real server is read as records and as Arrow, live and bounded.
Shown against one server with tables of all kinds, from event loops and plainly, and across a restart of a server."""

from __future__ import annotations

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import EARLIEST_OFFSET, LATEST_OFFSET, NO_COMMIT_TIMESTAMP, FlussError, TableBucket, TablePath, col, embedded
from fluss.client.kernel.runtime import wait_for
from tests.integration.keyed_tables import ID_NAME, Tables
from tests.ports import free_port


def write_rows(table: fluss.FlussTable, rows: list[Any]) -> None:
    writer = table.new_append().create_writer()
    for row in rows:
        writer.append(row)
    wait_for(writer.flush())


def write_batches(table: fluss.FlussTable, *columns: dict[str, Any]) -> None:
    """Write batches one after the other, so that they stay apart and in order."""
    writer = table.new_append().create_writer()
    for column_values in columns:
        writer.write_arrow_batch(pa.RecordBatch.from_pydict(column_values, schema=table.arrow_schema))
        wait_for(writer.flush())


def ids_and_names(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {"id": list(numbers), "name": [f"n{number}" for number in numbers]}


def record_scanner(scan: fluss.TableScan) -> fluss.LogScanner:
    return wait_for(scan.create_log_scanner())


def batch_scanner(scan: fluss.TableScan) -> fluss.LogScanner:
    return wait_for(scan.create_record_batch_log_scanner())


def subscribe_all(scanner: fluss.LogScanner, table: fluss.FlussTable, offset: int = EARLIEST_OFFSET) -> None:
    scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), offset))


def poll_records(scanner: fluss.LogScanner, count: int) -> list[fluss.ScanRecord]:
    records: list[fluss.ScanRecord] = []
    deadline_s = time.monotonic() + 120
    while len(records) < count and time.monotonic() < deadline_s:
        records += scanner.poll(120_000)
    return records


# Records


def test_batches_spread_over_buckets_come_back_as_records(tables: Tables) -> None:
    table = tables.create_log(pa.schema([("c1", pa.int32()), ("c2", pa.string())]), bucket_count=3, bucket_keys=["c1"])
    write_batches(table, {"c1": [1, 2, 3], "c2": ["a", "b", "c"]}, {"c1": [4, 5, 6], "c2": ["d", "e", "f"]})
    scanner = record_scanner(table.new_scan())
    subscribe_all(scanner, table)
    records = poll_records(scanner, 6)
    assert {record.row["c1"]: record.row["c2"] for record in records} == dict(zip(range(1, 7), "abcdef", strict=True))
    scanner.unsubscribe(bucket_id=0)
    assert len(scanner.get_subscribed_buckets()) == 2


def test_rows_of_every_shape_are_equal_dicts(tables: Tables) -> None:
    table = tables.create_log()
    write_rows(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, [3, "c"]])
    scanner = record_scanner(table.new_scan())
    scanner.subscribe(bucket_id=0, start_offset=EARLIEST_OFFSET)
    records = poll_records(scanner, 3)
    assert [record.row for record in records] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": "c"},
    ]
    now_ms = time.time() * 1000
    assert all(now_ms - 60_000 < record.timestamp <= now_ms + 1000 for record in records)
    assert [record.offset for record in records] == [0, 1, 2]
    assert {str(record.change_type) for record in records} == {"+A"}


def test_columns_are_chosen_by_name_and_by_position(tables: Tables) -> None:
    table = tables.create_log()
    write_rows(table, [[1, "a"], [2, "b"]])
    by_name = record_scanner(table.new_scan().project_by_name(["name"]))
    by_name.subscribe(0, 0)
    assert [record.row for record in poll_records(by_name, 2)] == [{"name": "a"}, {"name": "b"}]
    turned = record_scanner(table.new_scan().project([1, 0]))
    turned.subscribe(0, 0)
    assert [list(record.row.items()) for record in poll_records(turned, 2)] == [
        [("name", "a"), ("id", 1)],
        [("name", "b"), ("id", 2)],
    ]


def test_nested_columns_are_reordered_and_both_paths_agree(tables: Tables) -> None:
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("tags", pa.list_(pa.string())),
            ("scores", pa.map_(pa.string(), pa.int32())),
            ("place", pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))])),
            ("deep", pa.list_(pa.list_(pa.int32()))),
        ]
    )
    table = tables.create_log(schema)
    rows = [
        {"id": 1, "tags": ["a", None], "scores": [("k", 1)], "place": {"x": 1, "names": ["n"]}, "deep": [[1], []]},
        {"id": 2, "tags": [], "scores": [], "place": {"x": None, "names": []}, "deep": [None]},
        {"id": 3, "tags": None, "scores": None, "place": None, "deep": None},
    ]
    write_rows(table, rows)
    columns = ["deep", "place", "id", "scores", "tags"]
    records = record_scanner(table.new_scan().project_by_name(columns))
    records.subscribe(0, 0)
    batches = batch_scanner(table.new_scan().project_by_name(columns))
    batches.subscribe(0, 0)
    expected = [{name: row[name] for name in columns} for row in rows]
    assert [record.row for record in poll_records(records, 3)] == expected
    assert batches.to_arrow().to_pylist() == expected


def test_polled_records_are_a_sequence_and_a_mapping(tables: Tables) -> None:
    table = tables.create_log(bucket_count=2)
    for number in range(8):
        write_rows(table, [[number, "x"]])
    scanner = record_scanner(table.new_scan())
    subscribe_all(scanner, table)
    seen = 0
    while seen < 8:
        polled = scanner.poll(120_000)
        seen += len(polled)
        flat = list(polled)
        assert [polled[index] for index in range(len(polled))] == flat
        assert polled[-1] is flat[-1]
        assert polled[::-1] == flat[::-1]
        assert [record for bucket in polled.buckets() for record in polled[bucket]] == flat


async def test_iteration_ends_when_the_user_wants(tables: Tables) -> None:
    table = tables.create_log(bucket_count=2)
    write_rows(table, [[number, "x"] for number in range(10)])
    scanner = await table.new_scan().create_log_scanner()
    subscribe_all(scanner, table)
    seen = []
    async for record in scanner:
        seen.append(record.row["id"])
        if len(seen) == 10:
            break
    assert sorted(seen) == list(range(10))
    more = await asyncio.to_thread(write_rows, table, [[10, "y"]])
    assert more is None
    assert [record.row["id"] for record in await scanner.poll_async(120_000)] == [10]
    # The forms of both generations.
    assert (await scanner.poll(10)).is_empty()
    assert scanner.poll(10).is_empty()


# Batches


def test_batches_have_the_timestamps_of_their_records(tables: Tables) -> None:
    table = tables.create_log()
    write_batches(table, *(ids_and_names(number, 1) for number in range(4)))
    records, batches = record_scanner(table.new_scan()), batch_scanner(table.new_scan())
    for scanner in (records, batches):
        scanner.subscribe(0, EARLIEST_OFFSET)
    read = [(record.offset, record.timestamp) for record in poll_records(records, 4)]
    found: list[tuple[int, int]] = []
    while len(found) < 4:
        found += [(batch.base_offset, batch.commit_timestamp) for batch in batches.poll_record_batch(120_000)]
    assert found == read
    bucket = TableBucket(table.get_table_info().table_id, 0)
    limited = wait_for(table.new_scan().limit(3).create_bucket_batch_scanner(bucket).next_batch())
    assert limited is not None
    assert limited.commit_timestamp == NO_COMMIT_TIMESTAMP


def test_a_batch_scanner_follows_a_growing_table(tables: Tables) -> None:
    table = tables.create_log()
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    empty = scanner.poll_arrow(200)
    assert (empty.num_rows, empty.schema) == (0, table.arrow_schema)
    write_batches(table, *(ids_and_names(2 * number, 2) for number in range(3)))
    polled = _poll_arrow(scanner, 6)
    assert polled["id"].to_pylist() == list(range(6))
    write_batches(table, ids_and_names(6, 2))
    assert _poll_arrow(scanner, 2)["id"].to_pylist() == [6, 7]
    later = batch_scanner(table.new_scan())
    later.subscribe(0, 3)
    assert _poll_arrow(later, 5)["id"].to_pylist() == [3, 4, 5, 6, 7]
    projected = batch_scanner(table.new_scan().project_by_name(["id"]))
    projected.subscribe(0, 0)
    (first, *_) = projected.poll_record_batch(120_000)
    assert (first.batch.num_columns, first.base_offset) == (1, 0)
    assert first.batch.column(0).to_pylist() == list(range(first.last_offset + 1))


def _poll_arrow(scanner: fluss.LogScanner, row_count: int) -> pa.Table:
    parts = []
    deadline_s = time.monotonic() + 120
    while sum(part.num_rows for part in parts) < row_count and time.monotonic() < deadline_s:
        parts.append(scanner.poll_arrow(120_000))
    return pa.concat_tables(parts)


def test_bounded_reads_end_and_may_be_repeated(tables: Tables) -> None:
    table = tables.create_log(bucket_count=2)
    write_rows(table, [[number, f"n{number}"] for number in range(3)])
    scanner = batch_scanner(table.new_scan())
    subscribe_all(scanner, table)
    assert scanner.to_arrow().sort_by("id").to_pydict() == ids_and_names(0, 3)
    frame = scanner.to_pandas()
    assert (len(frame), list(frame.columns)) == (3, ["id", "name"])
    write_rows(table, [[3, "n3"]])
    assert scanner.to_arrow().num_rows == 4
    assert asyncio.run(scanner.to_arrow_async()).num_rows == 4
    # A poll goes on behind.
    assert scanner.poll_arrow(100).num_rows == 0
    assert scanner.to_arrow().num_rows == 0


def test_the_latest_offset_is_where_reading_may_begin(tables: Tables) -> None:
    table = tables.create_log()
    write_rows(table, [[1, "a"], [2, "b"]])
    scanner = record_scanner(table.new_scan())
    scanner.subscribe(0, LATEST_OFFSET)
    write_rows(table, [[3, "c"]])
    (record,) = poll_records(scanner, 1)
    assert (record.offset, record.row) == (2, {"id": 3, "name": "c"})


def test_a_reader_streams_a_table_and_guards_its_scanner(tables: Tables) -> None:
    table = tables.create_log()
    write_batches(table, *(ids_and_names(100 * number, 100) for number in range(20)))
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    reader = scanner.to_arrow_batch_reader()
    assert reader.schema == table.arrow_schema
    assert reader.read_next_batch().num_rows == 100
    with pytest.raises(FlussError, match="RecordBatchLogReader is active"):
        scanner.subscribe(0, 0)
    del reader
    gc.collect()
    with pytest.raises(FlussError, match="No buckets subscribed"):
        scanner.to_arrow_batch_reader()
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert sum(batch.num_rows for batch in scanner.to_arrow_batch_reader()) == 2000


@pytest.mark.parametrize("compression", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_large_batches_of_every_compression_arrive_whole(tables: Tables, compression: str) -> None:
    table = tables.create_log(bucket_count=2, properties={"table.log.arrow.compression.type": compression})
    writer = table.new_append().create_writer()
    row_count = 200_000
    writer.write_arrow(pa.table(ids_and_names(0, row_count), schema=table.arrow_schema))
    wait_for(writer.flush())
    scanner = batch_scanner(table.new_scan())
    subscribe_all(scanner, table)
    assert scanner.to_arrow().sort_by("id").equals(pa.table(ids_and_names(0, row_count), schema=table.arrow_schema))
    projected = batch_scanner(table.new_scan().project([1]))
    subscribe_all(projected, table)
    names = projected.to_arrow()
    assert (names.schema.names, names.num_rows) == (["name"], row_count)


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
def test_logs_of_rows_are_scanned_like_all_others(tables: Tables, log_format: str) -> None:
    table = tables.create_log(properties={"table.log.format": log_format})
    write_rows(table, [[1, "a"], [2, None]])
    records = record_scanner(table.new_scan())
    records.subscribe(0, EARLIEST_OFFSET)
    assert [record.row for record in poll_records(records, 2)] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    scanner = batch_scanner(table.new_scan().project([1]))
    scanner.subscribe(0, 1)
    assert scanner.to_arrow().to_pylist() == [{"name": None}]


def test_a_filter_is_exact(tables: Tables) -> None:
    table = tables.create_log()
    write_batches(table, ids_and_names(0, 10), ids_and_names(10, 10))
    scanner = batch_scanner(table.new_scan().filter((col("id") >= 15) & col("name").starts_with("n")))
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow()["id"].to_pylist() == [15, 16, 17, 18, 19]


# Partitions


def test_partitions_are_scanned_by_id_and_dropped_ones_are_errors(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), ("region", pa.string()), ("value", pa.int64())])
    table = tables.create_log(schema, partition_keys=["region"])
    for region in ("US", "EU"):
        wait_for(tables.admin.create_partition(table.table_path, {"region": region}))
    write_rows(table, [{"id": n, "region": region, "value": n} for n in range(2) for region in ("US", "EU")])
    for region in ("US", "EU"):
        write_batches(table, {"id": [2, 3], "region": [region] * 2, "value": [2, 3]})
    ids = tables.partition_ids(table)
    scanner = record_scanner(table.new_scan())
    for partition_id in ids.values():
        scanner.subscribe_partition(partition_id=partition_id, bucket_id=0, start_offset=EARLIEST_OFFSET)
    records = poll_records(scanner, 8)
    names = {partition_id: name for name, partition_id in ids.items()}
    assert len(records) == 8
    assert all(names[record.bucket.partition_id or 0] == record.row["region"] for record in records)

    scanner.subscribe_partition_buckets({(partition_id, 0): EARLIEST_OFFSET for partition_id in ids.values()})
    scanner.unsubscribe_partition(partition_id=ids["EU"], bucket_id=0)
    assert [record.row["region"] for record in poll_records(scanner, 4)] == ["US"] * 4
    batches = batch_scanner(table.new_scan())
    batches.subscribe_partition_buckets({(partition_id, 0): 2 for partition_id in ids.values()})
    assert batches.to_arrow().num_rows == 4
    with pytest.raises(FlussError) as unknown:
        scanner.subscribe_partition(99_999, 0, 0)
    assert unknown.value.error_code == 36
    wait_for(tables.admin.drop_partition(table.table_path, {"region": "US"}))
    with pytest.raises(FlussError) as dropped:
        poll_records(scanner, 1)
    assert dropped.value.error_code == 36


# Changes


def test_columns_that_are_added_appear_in_new_scans_and_not_in_old_ones(tables: Tables) -> None:
    table = tables.create_log()
    write_rows(table, [[1, "a"]])
    old = record_scanner(table.new_scan())
    old.subscribe(0, EARLIEST_OFFSET)
    wait_for(tables.admin.alter_table(table.table_path, add_columns=[pa.field("price", pa.float64())]))
    altered = wait_for(tables.connection.get_table(table.table_path))
    write_rows(altered, [[2, "b", 0.5]])
    new = record_scanner(altered.new_scan())
    new.subscribe(0, EARLIEST_OFFSET)
    first, second = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    assert [record.row for record in poll_records(new, 2)] == [{**first, "price": None}, {**second, "price": 0.5}]
    assert [record.row for record in poll_records(old, 2)] == [first, second]
    as_written = record_scanner(altered.new_scan().with_fixed_schema(False))
    as_written.subscribe(0, EARLIEST_OFFSET)
    assert [record.row for record in poll_records(as_written, 2)] == [first, {**second, "price": 0.5}]
    chosen = batch_scanner(altered.new_scan().project_by_name(["price", "id"]))
    chosen.subscribe(0, EARLIEST_OFFSET)
    assert chosen.to_arrow().to_pylist() == [{"price": None, "id": 1}, {"price": 0.5, "id": 2}]


def test_a_dropped_table_is_an_error_for_those_who_read_it(tables: Tables) -> None:
    table = tables.create_log()
    scanner = record_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.poll(50).is_empty()
    wait_for(tables.admin.drop_table(table.table_path))
    with pytest.raises(FlussError) as error:
        poll_records(scanner, 1)
    assert error.value.error_code == 7


def test_offsets_outside_the_log_are_errors(tables: Tables) -> None:
    table = tables.create_log()
    write_rows(table, [[1, "a"]])
    scanner = batch_scanner(table.new_scan())
    scanner.subscribe(0, 1000)
    for read in (lambda: scanner.poll_arrow(120_000), scanner.to_arrow, scanner.to_pandas):
        with pytest.raises(FlussError, match="out of range") as error:
            read()
        assert error.value.error_code == -2


# Limits


async def test_a_limited_scan_returns_the_newest_rows(tables: Tables) -> None:
    table = tables.create_log()
    write_batches(table, *(ids_and_names(5 * number, 5) for number in range(4)))
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(7).create_bucket_batch_scanner(bucket)
    batch = await scanner.next_batch()
    assert batch is not None
    assert batch.batch.to_pydict() == ids_and_names(13, 7)
    assert (batch.base_offset, await scanner.next_batch()) == (13, None)
    projected = table.new_scan().project([1]).limit(1).create_bucket_batch_scanner(bucket)
    assert (await projected.to_arrow()).to_pydict() == {"name": ["n19"]}


# Life


def test_a_waiting_poll_returns_as_soon_as_something_is_written(tables: Tables) -> None:
    table = tables.create_log()
    writer = table.new_append().create_writer()
    scanner = record_scanner(table.new_scan())
    scanner.subscribe(0, EARLIEST_OFFSET)
    scanner.poll(0)
    with ThreadPoolExecutor(1) as threads:
        for number in range(5):
            # It may wait for an hour, and nobody does.
            polling = threads.submit(scanner.poll, 3_600_000)
            time.sleep(0.05)
            assert not polling.done()
            writer.append([number, "x"])
            wait_for(writer.flush())
            assert [record.row["id"] for record in polling.result(120)] == [number]


def test_a_scanner_outlives_a_restart_of_its_server(tmp_path: Path) -> None:
    path = TablePath("fluss", "restarted")
    options = {"durability": "os"}
    port = free_port()
    with embedded.start(options, data_dir=tmp_path, port=port) as first:
        connection = wait_for(fluss.FlussConnection.create(first.config()))
        wait_for(connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(ID_NAME))))
        table = wait_for(connection.get_table(path))
        write_rows(table, [[1, "a"]])
        scanner = record_scanner(table.new_scan())
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert len(poll_records(scanner, 1)) == 1
    assert scanner.poll(100).is_empty()
    with embedded.start(options, data_dir=tmp_path, port=port), connection:
        write_rows(table, [[2, "b"]])
        assert [record.row["id"] for record in poll_records(scanner, 1)] == [2]
        scanner.subscribe(0, EARLIEST_OFFSET)
        assert [record.row["id"] for record in poll_records(scanner, 2)] == [1, 2]
