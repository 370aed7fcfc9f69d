"""Behaviours that users of the official clients rely on, one test each, run with both official clients and with ours.

The same body drives each library against a real server; what only the newer generation has runs with it and with ours.
Databases, partitions, error codes and credentials have files of their own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.interop.client import EARLIEST, READ_TIMEOUT_S, Client, refused
from tests.interop.remote import Api

PAIR = pa.schema([("c1", pa.int32()), ("c2", pa.string())])
TRIPLE = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())])
REGIONAL = pa.schema([("id", pa.int32()), ("region", pa.string()), ("value", pa.int64())])


def pairs(*ids: int) -> list[dict[str, Any]]:
    return [{"c1": i, "c2": f"a{i}"} for i in ids]


def pair_batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(pairs(*ids), schema=PAIR)


def ids_of(table: pa.Table) -> list[int]:
    found: list[int] = table["c1"].to_pylist()
    return found


# Administration


def test_a_key_table_is_described_as_it_was_made(client: Client, table: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())])
    client.create_table(
        table,
        schema,
        primary_keys=["id"],
        bucket_count=3,
        bucket_keys=["id"],
        comment="people",
        log_format="arrow",
        kv_format="indexed",
        properties={"table.replication.factor": "1"},
    )
    info = client.admin.get_table_info(client.path(table))
    assert (info.comment, info.num_buckets) == ("people", 3)
    assert info.get_primary_keys() == ["id"]
    assert info.get_bucket_keys() == ["id"]
    assert info.get_column_names() == ["id", "name", "age"]
    assert info.get_properties()["table.replication.factor"] == "1"
    client.admin.drop_table(client.path(table))
    assert not client.admin.table_exists(client.path(table))


# Schemas, configuration, errors: no server needed


def test_a_schema_tells_its_primary_keys(api: Api) -> None:
    assert api.fluss.Schema(PAIR).get_primary_keys() == []
    assert api.fluss.Schema(PAIR, primary_keys=["c1"]).get_primary_keys() == ["c1"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (pa.field("f", pa.list_(pa.string())), "array<string>"),
        (
            pa.field("f", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
            "array<int NOT NULL> NOT NULL",
        ),
        (pa.field("f", pa.map_(pa.string(), pa.int32())), "map<string NOT NULL,int>"),
        (pa.field("f", pa.struct([("seq", pa.int32()), ("label", pa.string())])), "row<seq: int, label: string>"),
        (
            pa.field("f", pa.map_(pa.string(), pa.struct([("seq", pa.int32()), ("label", pa.string())]))),
            "map<string NOT NULL,row<seq: int, label: string>>",
        ),
        (pa.field("f", pa.list_(pa.map_(pa.string(), pa.int32()))), "array<map<string NOT NULL,int>>"),
        (pa.field("f", pa.struct([("ids", pa.list_(pa.int32()))])), "row<ids: array<int>>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_type_texts_show_nesting_and_nullability(newer_api: Api, field: pa.Field, text: str) -> None:
    schema = newer_api.fluss.Schema(pa.schema([pa.field("id", pa.int32()), field]), primary_keys=["id"])
    assert schema.get_column_types() == ["int NOT NULL", text]


def test_the_back_pressure_option_and_its_code_are_known(newer_api: Api) -> None:
    config = newer_api.fluss.Config({"writer.kv-backpressure.max-throttle-ms": "1500"})
    assert config.writer_kv_backpressure_max_throttle_ms == 1500
    config.writer_kv_backpressure_max_throttle_ms = 10
    assert config.writer_kv_backpressure_max_throttle_ms == 10
    assert newer_api.tools.is_equal(newer_api.fluss.ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION, 72)
    assert newer_api.fluss.FlussError("too fast", 72).is_retriable


# Writing and reading


def test_batches_in_keyed_buckets_are_read_as_records(client: Client, table: str) -> None:
    client.create_table(table, PAIR, bucket_count=3, bucket_keys=["c1"])
    client.write_batches(table, pair_batch(1, 2, 3), pair_batch(4, 5, 6))
    scanner = client.record_scanner(table)
    records = client.tools.poll_records(scanner, 6, READ_TIMEOUT_S)
    assert sorted((row["c1"], row["c2"]) for *_, row in records) == [(i, f"a{i}") for i in range(1, 7)]
    scanner.unsubscribe(bucket_id=0)


def test_a_batch_scanner_goes_on_where_it_was(client: Client, table: str) -> None:
    client.create_table(table, PAIR)
    scanner = client.batch_scanner(table)
    assert scanner.poll_arrow(200).num_rows == 0
    client.write_batches(table, pair_batch(1, 2), pair_batch(3, 4), pair_batch(5, 6))
    assert ids_of(client.tools.poll_tables(scanner, 6, READ_TIMEOUT_S)) == [1, 2, 3, 4, 5, 6]
    client.write_batches(table, pair_batch(7, 8))
    assert ids_of(client.tools.poll_tables(scanner, 2, READ_TIMEOUT_S)) == [7, 8]

    truncated = client.batch_scanner(table, start=3)
    assert ids_of(client.tools.poll_tables(truncated, 5, READ_TIMEOUT_S)) == [4, 5, 6, 7, 8]

    projected = client.tools.poll_batches(client.batch_scanner(table, columns=["c2"]), 8, READ_TIMEOUT_S)
    assert all(batch.schema.names == ["c2"] for *_, batch in projected)


def test_bounded_reads_return_all_there_is(client: Client, table: str) -> None:
    client.create_table(table, TRIPLE)
    client.append_rows(table, [[1, "a", 1.0], [2, "b", 2.0], [3, "c", 3.0]])
    found = client.batch_scanner(table).to_arrow()
    assert found.num_rows == 3
    assert found.column_names == ["id", "name", "score"]
    frame = client.batch_scanner(table).to_pandas()
    assert client.tools.class_name(frame) == "DataFrame"
    assert frame.to_dict("list") == {"id": [1, 2, 3], "name": ["a", "b", "c"], "score": [1.0, 2.0, 3.0]}


def test_each_partition_holds_its_region_only(client: Client, table: str) -> None:
    client.create_table(table, REGIONAL, partition_keys=["region"])
    path = client.path(table)
    for region in ("US", "EU"):
        client.admin.create_partition(path, {"region": region})
    client.append_rows(
        table,
        [{"id": i, "region": region, "value": i * 10} for i, region in ((1, "US"), (2, "US"), (3, "EU"), (4, "EU"))],
    )
    for first, region in ((5, "US"), (7, "EU")):
        rows = [{"id": i, "region": region, "value": i * 10} for i in (first, first + 1)]
        client.write_batches(table, pa.RecordBatch.from_pylist(rows, schema=REGIONAL))
    latest = client.fluss.OffsetSpec.latest()
    for region in ("US", "EU"):
        assert client.admin.list_partition_offsets(path, region, [0], latest) == {0: 4}

    ids = client.partition_ids(table)
    scanner = client.table(table).new_scan().create_log_scanner()
    for partition_id in ids.values():
        scanner.subscribe_partition(partition_id, 0, EARLIEST)
    records = client.tools.poll_records(scanner, 8, READ_TIMEOUT_S)
    assert sorted(row["id"] for *_, row in records) == list(range(1, 9))
    assert all(partition_id == ids[row["region"]] for (partition_id, _), *_, row in records)

    only_us = client.record_scanner(table)
    only_us.unsubscribe_partition(ids["EU"], 0)
    rows = [row for *_, row in client.tools.poll_records(only_us, 4, READ_TIMEOUT_S)]
    assert [row["region"] for row in rows] == ["US"] * 4
    assert only_us.poll(300).is_empty()

    at_once = client.table(table).new_scan().create_record_batch_log_scanner()
    at_once.subscribe_partition_buckets({(id_, 0): EARLIEST for id_ in ids.values()})
    assert at_once.to_arrow().num_rows == 8


def test_tables_and_frames_are_written_whole(client: Client, table: str) -> None:
    client.create_table(table, TRIPLE)
    writer = client.writer(table)
    columns = {"id": [1, 2, 3, 4, 5], "name": list("abcde"), "score": [0.5] * 5}
    writer.write_arrow(pa.table(columns, schema=TRIPLE))
    # The frame's integers have 64 bits; the table's have 32.
    writer.write_pandas(client.tools.data_frame({"id": [6, 7, 8], "name": list("fgh"), "score": [0.25] * 3}))
    writer.flush()
    assert sorted(client.read_table(table)["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_scan_records_are_a_sequence_and_a_mapping(client: Client, table: str) -> None:
    client.create_table(table, PAIR)
    client.append_rows(table, pairs(*range(10)))
    records = client.record_scanner(table).poll(5000)
    count = len(records)
    assert count == records.count() == 10
    assert not records.is_empty()
    offsets = [record.offset for record in records]
    assert offsets == [records[i].offset for i in range(count)] == list(range(10))
    assert records[-1].offset == 9
    assert records[-count].offset == 0
    for piece in (
        slice(2, 5),
        slice(None, None, -1),
        slice(8, 2, -2),
        slice(-3, -8, -1),
        slice(1, None, 3),
        slice(5, 2),
        slice(100, 200),
    ):
        assert [record.offset for record in records[piece]] == offsets[piece]
    with pytest.raises(IndexError):
        records[count]
    with pytest.raises(TypeError):
        records["0"]
    (bucket,) = records.buckets()
    assert len(records[bucket]) == 10
    assert bucket in records
    assert [bucket.bucket_id for bucket in records.keys()] == [0]  # noqa: SIM118 - a call of the client's own
    assert [len(list(found)) for found in records.values()] == [10]
    assert client.tools.is_same(records[0], records[0])
    assert client.tools.repr_of(records) == "ScanRecords(records=10, buckets=1)"


def test_misused_scanners_say_so(client: Client, table: str) -> None:
    client.create_table(table, PAIR)
    record_scanner, batch_scanner = client.record_scanner(table), client.batch_scanner(table)
    with refused(-2, "record-based scanner"):
        batch_scanner.poll(10)
    for name in ("poll_arrow", "poll_record_batch"):
        with refused(-2, "batch-based scanner"):
            getattr(record_scanner, name)(10)
    with refused(-2, "timeout_ms must be non-negative"):
        record_scanner.poll(-1)
    with refused(-2, "No buckets subscribed"):
        client.table(table).new_scan().create_record_batch_log_scanner().to_arrow()
    with refused(-2, "Bucket offsets are empty"):
        record_scanner.subscribe_buckets({})
    with refused(-2, "partitioned table"):
        record_scanner.subscribe_partition(1, 0, EARLIEST)


def test_misused_rows_are_refused_at_the_call_and_poison_nothing(client: Client, table: str) -> None:
    client.create_table(table, PAIR)
    writer = client.writer(table)
    writer.append({"c1": 1, "c2": "a1"})
    for row, text in (
        ("text", "Row must be a dict, list, or tuple"),
        ({"c1": 1, "c2": "x", "c3": 1}, "Unknown field 'c3'"),
        ([1], "Expected 2 elements, got 1"),
        ({"c1": "one", "c2": "x"}, "c1"),
        ({"c1": 2**31, "c2": "x"}, "c1"),
    ):
        with refused(-2, text):
            writer.append(row)
    writer.append({"c1": 2, "c2": "a2"})
    writer.flush()
    assert client.read_rows(table, 2) == pairs(1, 2)


def test_log_tables_refuse_what_only_key_tables_do(client: Client, table: str) -> None:
    client.create_table(table, PAIR)
    found = client.table(table)
    assert not found.has_primary_key()
    assert client.tools.repr_of(found) == f"FlussTable(path=fluss.{table})"
    with refused(-2, "Upsert is only supported for primary key tables"):
        found.new_upsert()
    with refused(-2, "Lookup is only supported for primary key tables"):
        found.new_lookup()


# The newer generation: asynchronous iteration


def test_async_iteration_yields_all_records(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR, bucket_count=3)
    for first in (0, 10, 20):
        newer_client.append_rows(table, pairs(*range(first, first + 10)))
    records = newer_client.tools.iterate_records(newer_client.record_scanner(table), 30)
    assert sorted(row["c1"] for *_, row in records) == list(range(30))


def test_leaving_async_iteration_leaves_the_scanner_usable(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    newer_client.append_rows(table, pairs(*range(5)))
    scanner = newer_client.record_scanner(table)
    taken = newer_client.tools.iterate_records(scanner, 2)
    assert [offset for offset, *_ in taken] == [0, 1]
    newer_client.append_rows(table, pairs(5, 6))
    later = [offset for _, offset, *_ in newer_client.tools.poll_records(scanner, 2, 2.0)]
    # What the abandoned poll held is gone; nothing comes twice.
    assert later[-2:] == [5, 6]
    assert not {0, 1} & set(later)


def test_async_iteration_of_a_batch_scanner_yields_batches(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    newer_client.write_batches(table, pair_batch(1, 2, 3), pair_batch(4, 5))
    found = newer_client.tools.iterate_batches(newer_client.batch_scanner(table), 5)
    assert [(bucket, base, last) for bucket, base, last, _ in found] == [((None, 0), 0, 2), ((None, 0), 3, 4)]
    assert [batch["c1"].to_pylist() for *_, batch in found] == [[1, 2, 3], [4, 5]]


# The newer generation: batch readers


def test_a_batch_reader_has_the_schema_and_the_rows_of_the_table(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    newer_client.write_batches(table, pair_batch(1, 2, 3))
    reader = newer_client.batch_scanner(table).to_arrow_batch_reader()
    assert newer_client.tools.class_name(reader) == "RecordBatchReader"
    assert reader.schema == PAIR
    assert ids_of(reader.read_all()) == [1, 2, 3]


def test_a_batch_reader_guards_its_scanner_while_it_lives(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    for first in range(0, 2000, 100):
        newer_client.write_batches(table, pair_batch(*range(first, first + 100)))
    scanner = newer_client.batch_scanner(table)
    reader = scanner.to_arrow_batch_reader()
    assert reader.read_next_batch().num_rows > 0
    with refused(-2, "RecordBatchLogReader is active"):
        scanner.subscribe(0, EARLIEST)
    with refused(-2, "RecordBatchLogReader is active"):
        scanner.unsubscribe(0)
    with refused(-2, "already active"):
        scanner.to_arrow_batch_reader()
    newer_client.api.release(reader)
    with refused(-2, "No buckets subscribed"):
        scanner.to_arrow_batch_reader()
    scanner.subscribe(0, EARLIEST)
    assert scanner.to_arrow_batch_reader().read_all().num_rows == 2000


# The newer generation: nested values


def test_a_map_may_be_given_as_a_dict(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, pa.schema([("id", pa.int32()), ("attrs", pa.map_(pa.string(), pa.int32()))]))
    newer_client.append_rows(table, [{"id": 1, "attrs": {"x": 1, "y": 2}}, {"id": 2, "attrs": {}}])
    assert [row["attrs"] for row in newer_client.read_rows(table, 2)] == [[("x", 1), ("y", 2)], []]


def test_a_string_is_no_list(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, pa.schema([("id", pa.int32()), ("tags", pa.list_(pa.string()))]))
    with refused(-2, "Expected sequence for Array column"):
        newer_client.writer(table).append({"id": 1, "tags": "not a list"})


def test_omitted_nullable_fields_are_null_and_required_ones_are_missed(newer_client: Client, table: str) -> None:
    inner = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])
    schema = pa.schema(
        [pa.field("req", pa.int32(), nullable=False), pa.field("opt", pa.string()), pa.field("inner", inner)]
    )
    newer_client.create_table(table, schema)
    newer_client.append_rows(table, [{"req": 1}, {"req": 2, "inner": {"b": 5}}])
    assert newer_client.read_rows(table, 2) == [
        {"req": 1, "opt": None, "inner": None},
        {"req": 2, "opt": None, "inner": {"a": None, "b": 5}},
    ]
    writer = newer_client.writer(table)
    with refused(-2, "non-nullable field 'req'"):
        writer.append({"opt": "x"})
    with refused(-2, "non-nullable row field 'b'"):
        writer.append({"req": 3, "inner": {"a": 1}})


# The newer generation: context managers


def test_leaving_a_writer_flushes_it(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    found = newer_client.table(table)
    newer_client.tools.append_inside(found.new_append().create_writer(), found, pairs(1, 2), False)
    assert newer_client.latest(table) == {0: 2}


def test_leaving_a_connection_drains_it(newer_client: Client, new_client: Any, table: str) -> None:
    newer_client.create_table(table, PAIR)
    leaving = new_client(newer_client.api.name)
    newer_client.tools.append_inside(leaving.connection, leaving.table(table), pairs(1, 2, 3), False)
    assert newer_client.latest(table) == {0: 3}


def test_a_failure_inside_a_connection_is_not_hidden(newer_client: Client, new_client: Any, table: str) -> None:
    newer_client.create_table(table, PAIR)
    leaving = new_client(newer_client.api.name)
    with pytest.raises(ValueError, match="the body failed"):
        newer_client.tools.append_inside(leaving.connection, leaving.table(table), pairs(1), True)


# The newer generation: limit scans


def test_a_limit_scan_returns_the_newest_rows_once(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    newer_client.append_rows(table, pairs(*range(10)))
    found = newer_client.table(table)
    bucket = newer_client.fluss.TableBucket(found.get_table_info().table_id, 0)

    scanner = found.new_scan().limit(5).create_bucket_batch_scanner(bucket)
    batch = scanner.next_batch()
    assert batch.batch["c1"].to_pylist() == [5, 6, 7, 8, 9]
    assert (batch.base_offset, batch.last_offset) == (5, 9)
    assert scanner.next_batch() is None

    all_at_once = found.new_scan().limit(100).create_bucket_batch_scanner(bucket)
    (only,) = all_at_once.collect_all_batches()
    assert only.batch.num_rows == 10
    as_table = found.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow()
    assert as_table.to_pylist() == pairs(7, 8, 9)


def test_a_limit_scan_can_be_projected_and_can_be_empty(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, TRIPLE)
    found = newer_client.table(table)
    bucket = newer_client.fluss.TableBucket(found.get_table_info().table_id, 0)
    empty = found.new_scan().project_by_name(["score", "id"]).limit(2).create_bucket_batch_scanner(bucket).to_arrow()
    assert (empty.num_rows, empty.column_names) == (0, ["score", "id"])
    newer_client.append_rows(table, [[1, "a", 1.5], [2, "b", 2.5]])
    some = found.new_scan().project([0, 2]).limit(5).create_bucket_batch_scanner(bucket).to_arrow()
    assert some.to_pylist() == [{"id": 1, "score": 1.5}, {"id": 2, "score": 2.5}]


def test_misused_limits_are_refused(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR)
    found = newer_client.table(table)
    table_id = found.get_table_info().table_id
    bucket = newer_client.fluss.TableBucket(table_id, 0)
    for limit in (0, -5):
        with refused(-2, "Scan limit must be positive"):
            found.new_scan().limit(limit)
    with refused(-2, "requires a limit"):
        found.new_scan().create_bucket_batch_scanner(bucket)
    with refused(-2):
        found.new_scan().limit(1).create_bucket_batch_scanner(newer_client.fluss.TableBucket(table_id + 1000, 0))
    with refused(-2):
        found.new_scan().limit(1).create_bucket_batch_scanner(newer_client.fluss.TableBucket(table_id, 99))
    for name in ("create_log_scanner", "create_record_batch_log_scanner"):
        with refused(-2, "limit pushdown"):
            getattr(found.new_scan().limit(1), name)()


def test_a_limit_scan_of_an_indexed_log_table_is_refused(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, PAIR, log_format="INDEXED")
    found = newer_client.table(table)
    bucket = newer_client.fluss.TableBucket(found.get_table_info().table_id, 0)
    with refused(-2):
        found.new_scan().limit(1).create_bucket_batch_scanner(bucket)
