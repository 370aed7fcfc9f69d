"""What one client writes to a log table, every other one reads, value by value: both official ones and ours, both ways.

The clients drive a real server; the tables have every type, partitions, several buckets, every compression.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.interop.client import READ_TIMEOUT_S, Client, refused
from tests.interop.samples import EVENTS, NESTED, SCALARS, batch_of, event_batch, events, rows_of, schema_of

# Every type


def test_values_of_every_type_cross_between_any_two_clients(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, schema_of(SCALARS))
    writer.append_rows(table, rows_of(SCALARS))
    writer.write_batches(table, batch_of(SCALARS))

    assert reader.read_rows(table, 8) == rows_of(SCALARS) * 2
    # The older generation leaves the zone of timestamps out of its Arrow schema.
    found = reader.read_table(table).cast(schema_of(SCALARS))
    assert found == pa.Table.from_batches([batch_of(SCALARS)] * 2)


def test_nested_values_cross_between_any_two_clients(newer_client: Client, newer_reader: Client, table: str) -> None:
    newer_client.create_table(table, schema_of(NESTED))
    newer_client.append_rows(table, rows_of(NESTED))
    newer_client.write_batches(table, batch_of(NESTED))

    assert newer_reader.read_rows(table, 8) == rows_of(NESTED) * 2
    assert newer_reader.read_table(table) == pa.Table.from_batches([batch_of(NESTED)] * 2)


def test_rows_given_as_tuples_and_lists_are_read_as_dicts(client: Client, table: str) -> None:
    client.create_table(table, EVENTS)
    rows = [tuple(row.values()) for row in events(0, 1)]
    client.append_rows(table, [*rows, list(rows[0])])
    assert client.read_rows(table, 3) == [*events(0, 1), events(0, 0)[0]]


@pytest.mark.parametrize("codec", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_every_compression_is_read_by_all(clients: dict[str, Client], codec: str, table: str) -> None:
    first = next(iter(clients.values()))
    first.create_table(table, EVENTS, properties={"table.log.arrow.compression.type": codec})
    expected: list[dict[str, Any]] = []
    for writer in clients.values():
        rows = events(len(expected), len(expected) + 999)
        writer.append_rows(table, rows)
        expected += rows
    for reader in clients.values():
        assert reader.read_table(table).to_pylist() == expected, reader.api.name
        projected = reader.read_table(table, columns=["score", "id"]).to_pylist()
        assert projected == [{"score": row["score"], "id": row["id"]} for row in expected], reader.api.name


# Batches


def test_the_older_generation_writes_batches_of_256_rows(clients: dict[str, Client], table: str) -> None:
    older, ours = clients["pyfluss-0.1.0"], clients["flussbett"]
    older.create_table(table, EVENTS)
    older.append_rows(table, events(0, 999))
    batches = ours.tools.poll_batches(ours.batch_scanner(table), 1000, READ_TIMEOUT_S)
    assert [(base, last, batch.num_rows) for _, base, last, batch in batches] == [
        (0, 255, 256),
        (256, 511, 256),
        (512, 767, 256),
        (768, 999, 232),
    ]


def test_many_batches_in_flight_keep_their_order(clients: dict[str, Client], any_name: str, table: str) -> None:
    clients[any_name].create_table(table, EVENTS)
    # Twenty batches of the older generation, several of them under way at any time.
    clients[any_name].append_rows(table, events(0, 4999))
    for reader in clients.values():
        found = reader.read_table(table, columns=["id"])["id"].to_pylist()
        assert found == list(range(5000)), reader.api.name


def test_a_batch_larger_than_a_fetch_arrives_whole(client: Client, reader: Client, table: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("blob", pa.binary())])
    client.create_table(table, schema, properties={"table.log.arrow.compression.type": "NONE"})
    # Six times what a fetch may carry for one bucket.
    blobs = [os.urandom(100_000) for _ in range(60)]
    client.write_batches(table, pa.record_batch({"id": range(60), "blob": blobs}, schema=schema))
    client.write_batches(table, pa.record_batch({"id": [60], "blob": [b"after"]}, schema=schema))
    found = reader.read_table(table)
    assert found["blob"].to_pylist() == [*blobs, b"after"]


def test_an_empty_batch_does_not_break_what_follows(clients: dict[str, Client], any_name: str, table: str) -> None:
    clients[any_name].create_table(table, EVENTS)
    clients[any_name].write_batches(table, event_batch(0, -1), event_batch(0, 2), event_batch(0, -1), event_batch(3, 5))
    for reader in clients.values():
        assert reader.read_rows(table, 6) == events(0, 5), reader.api.name
        assert reader.read_table(table).to_pylist() == events(0, 5), reader.api.name
        assert reader.read_rows(table, 6, columns=["id"]) == [{"id": i} for i in range(6)], reader.api.name
        assert reader.read_table(table, columns=["id"])["id"].to_pylist() == list(range(6)), reader.api.name


def test_reading_starts_inside_a_batch(client: Client, table: str) -> None:
    client.create_table(table, EVENTS)
    client.write_batches(table, event_batch(0, 9))
    assert client.read_rows(table, 7, start=3) == events(3, 9)
    batches = client.tools.poll_batches(client.batch_scanner(table, start=3), 7, READ_TIMEOUT_S)
    assert [(base, last) for _, base, last, _ in batches] == [(3, 9)]


def test_batches_with_statistics_are_read_by_all(clients: dict[str, Client], table: str) -> None:
    clients["pyfluss-1.0.0"].create_table(table, EVENTS, properties={"table.statistics.columns": "*"})
    expected: list[dict[str, Any]] = []
    for writer in clients.values():
        rows = events(len(expected), len(expected) + 9)
        writer.append_rows(table, rows)
        expected += rows
    for reader in clients.values():
        assert reader.read_rows(table, 30) == expected, reader.api.name
        assert reader.read_table(table, columns=["name"])["name"].to_pylist() == [row["name"] for row in expected]


# Buckets


def test_rows_without_a_key_spread_over_buckets_and_are_all_read(client: Client, reader: Client, table: str) -> None:
    client.create_table(table, EVENTS, bucket_count=4)
    for first in range(0, 40, 10):
        client.append_rows(table, events(first, first + 9))
    latest = client.latest(table, range(4))
    assert sum(latest.values()) == 40
    assert Counter(row["id"] for row in reader.read_rows(table, 40)) == Counter(range(40))


def test_equal_keys_share_a_bucket(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, EVENTS, bucket_count=3, bucket_keys=["id"])
    newer_client.append_rows(table, events(0, 49))
    newer_client.write_batches(table, event_batch(0, 49))
    records = newer_client.tools.poll_records(newer_client.record_scanner(table), 100, READ_TIMEOUT_S)
    buckets: dict[int, set[int]] = {}
    for (_, bucket_id), _, _, _, row in records:
        buckets.setdefault(row["id"], set()).add(bucket_id)
    assert len(buckets) == 50
    assert all(len(found) == 1 for found in buckets.values())
    assert len(set.union(*buckets.values())) == 3


def test_our_client_can_place_rows_like_the_official_one(
    clients: dict[str, Client], new_client: Any, table: str
) -> None:
    official = clients["pyfluss-1.0.0"]
    official.create_table(table, EVENTS, bucket_count=7, bucket_keys=["name"])
    official.append_rows(table, events(0, 99))
    ours = new_client("flussbett", client_bucket_hash="rust")
    ours.append_rows(table, events(0, 99))
    records = ours.tools.poll_records(ours.record_scanner(table), 200, READ_TIMEOUT_S)
    placed = Counter((bucket_id, row["name"]) for (_, bucket_id), _, _, _, row in records)
    assert set(placed.values()) == {2}


# Partitions

REGIONAL = pa.schema([("id", pa.int32()), ("region", pa.string()), ("value", pa.int64())])


def test_partitions_written_by_one_client_are_read_by_all(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, REGIONAL, partition_keys=["region"], bucket_count=2)
    for region in ("US", "EU"):
        writer.admin.create_partition(writer.path(table), {"region": region})
    rows = [{"id": i, "region": ("US", "EU")[i % 2], "value": i * 10} for i in range(20)]
    writer.append_rows(table, rows)
    for region in ("US", "EU"):
        batch = [{"id": 100, "region": region, "value": 0}]
        writer.write_batches(table, pa.RecordBatch.from_pylist(batch, schema=REGIONAL))

    ids = reader.partition_ids(table)
    records = reader.tools.poll_records(reader.record_scanner(table), 22, READ_TIMEOUT_S)
    assert len(records) == 22
    for (partition_id, _), _, _, _, row in records:
        assert partition_id == ids[row["region"]]
    assert sorted(row["id"] for *_, row in records) == [*range(20), 100, 100]
    assert sorted(reader.read_table(table)["id"].to_pylist()) == [*range(20), 100, 100]
    for region in ("US", "EU"):
        spec = reader.fluss.OffsetSpec.latest()
        offsets = reader.admin.list_partition_offsets(reader.path(table), region, [0, 1], spec)
        assert sum(offsets.values()) == 11


def test_partition_values_of_other_types_get_the_same_names_everywhere(writer: Client, table: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("day", pa.date32()), ("hour", pa.int32()), ("urgent", pa.bool_())])
    writer.create_table(table, schema, partition_keys=["day", "hour", "urgent"])
    writer.admin.create_partition(writer.path(table), {"day": "2024-01-15", "hour": "7", "urgent": "true"})
    row = {"id": 1, "day": dt.date(2024, 1, 15), "hour": 7, "urgent": True}
    writer.append_rows(table, [row])
    assert list(writer.partition_ids(table)) == ["2024-01-15$7$true"]
    assert writer.read_rows(table, 1) == [row]


def test_rows_wait_for_a_partition_that_is_made_later(client: Client, table: str) -> None:
    client.create_table(table, REGIONAL, partition_keys=["region"])
    handle = client.writer(table).append({"id": 1, "region": "late", "value": 1})
    client.admin.create_partition(client.path(table), {"region": "late"})
    handle.wait()
    assert [row["id"] for row in client.read_rows(table, 1)] == [1]


def test_other_partitions_are_read_on_after_one_is_dropped(client: Client, table: str) -> None:
    client.create_table(table, REGIONAL, partition_keys=["region"])
    path = client.path(table)
    for region in ("US", "EU"):
        client.admin.create_partition(path, {"region": region})
    client.append_rows(table, [{"id": 1, "region": "US", "value": 1}, {"id": 2, "region": "EU", "value": 2}])
    us = client.partition_ids(table)["US"]
    scanner = client.table(table).new_scan().create_log_scanner()
    scanner.subscribe_partition(us, 0, -2)
    client.admin.drop_partition(path, {"region": "EU"})
    client.append_rows(table, [{"id": 3, "region": "US", "value": 3}])
    records = client.tools.poll_records(scanner, 2, READ_TIMEOUT_S)
    assert [row["id"] for *_, row in records] == [1, 3]


def test_an_unknown_partition_cannot_be_subscribed(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, REGIONAL, partition_keys=["region"])
    newer_client.admin.create_partition(newer_client.path(table), {"region": "US"})
    scanner = newer_client.table(table).new_scan().create_log_scanner()
    with refused(36):
        scanner.subscribe_partition(987654, 0, -2)


# Schemas that grow


def test_an_added_column_is_null_in_older_rows_for_the_newer_client(clients: dict[str, Client], table: str) -> None:
    official, ours = clients["pyfluss-1.0.0"], clients["flussbett"]
    official.create_table(table, EVENTS)
    official.append_rows(table, events(0, 2))
    early_writer = official.writer(table)
    ours.admin.alter_table(ours.path(table), add_columns=[ours.tools.field("note", pa.schema([("note", pa.string())]))])
    ours.append_rows(table, [{**events(3, 3)[0], "note": "new"}])
    # A writer from before goes on with the schema it knows.
    official.tools.wait_all(official.tools.append_all(early_writer, events(4, 4)))

    expected = [{**row, "note": "new" if row["id"] == 3 else None} for row in events(0, 4)]
    for reader in (official, ours):
        scan = reader.table(table).new_scan().with_fixed_schema(True)
        scanner = scan.create_record_batch_log_scanner()
        scanner.subscribe(0, -2)
        assert scanner.to_arrow().to_pylist() == expected, reader.api.name
    assert clients["flussbett"].read_rows(table, 5) == expected


# Acknowledgements


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_writers_choose_how_much_to_wait_for(new_client: Any, table: str, acks: str, any_name: str) -> None:
    client = new_client(any_name, writer_acks=acks, writer_enable_idempotence=acks == "all")
    client.create_table(table, EVENTS)
    client.append_rows(table, events(0, 99))
    assert client.read_rows(table, 100) == events(0, 99)


# Formats


def test_an_indexed_log_table_can_be_made_but_not_scanned_by_official_clients(
    clients: dict[str, Client], table: str
) -> None:
    clients["pyfluss-1.0.0"].create_table(table, EVENTS, log_format="INDEXED")
    for name in ("pyfluss-0.1.0", "pyfluss-1.0.0"):
        with refused(-2):
            clients[name].batch_scanner(table)
