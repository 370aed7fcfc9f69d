"""Rows of primary-key tables, written, changed, deleted and looked up by any client, are the same for all of them.

Both official clients and ours drive a real server; what only the newer generation has runs with it and with ours.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.testing.waiting import eventually
from tests.interop.client import READ_TIMEOUT_S, Client, refused
from tests.interop.remote import Remote
from tests.interop.samples import NESTED, SCALARS, rows_of, schema_of

USERS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())])
ALICE, BOB, CAROL = (
    {"id": 1, "name": "Alice", "age": 25},
    {"id": 2, "name": "Bob", "age": 30},
    {"id": 3, "name": "Carol", "age": 35},
)


def users(first: int, last: int) -> list[dict[str, Any]]:
    """Return the rows ``first`` to ``last``, both included."""
    return [{"id": i, "name": f"name-{i}", "age": i * 10} for i in range(first, last + 1)]


# Upsert, delete, lookup


def test_rows_are_upserted_overwritten_deleted_and_looked_up(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, [ALICE, list(BOB.values()), tuple(CAROL.values())])
    assert client.lookup(table, {"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}) == [ALICE, BOB, CAROL, None]

    older = {**ALICE, "age": 26}
    client.upserter(table).upsert(older).wait()
    assert client.lookup(table, {"id": 1}) == [older]
    client.upserter(table).delete({"id": 2}).wait()
    assert client.lookup(table, {"id": 1}, {"id": 2}, {"id": 3}) == [older, None, CAROL]
    # What was deleted may come back.
    client.upsert_rows(table, [{**BOB, "name": "Robert"}])
    assert client.lookup(table, [2], (3,)) == [{**BOB, "name": "Robert"}, CAROL]


def test_rows_of_one_client_are_found_and_changed_by_another(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, USERS, primary_keys=["id"])
    writer.upsert_rows(table, users(0, 9))
    assert reader.lookup(table, *({"id": i} for i in (0, 9, 10))) == [*users(0, 0), *users(9, 9), None]
    reader.upsert_rows(table, [{**ALICE, "name": "changed by another"}])
    reader.delete_keys(table, [{"id": 2}])
    assert writer.lookup(table, {"id": 1}, {"id": 2}) == [{**ALICE, "name": "changed by another"}, None]


@pytest.mark.parametrize("key", [7, 128, 300, 1_000_000, -1])
def test_keys_that_hash_differently_meet_in_one_bucket_or_with_the_official_hash(
    clients: dict[str, Client], new_client: Any, table: str, key: int
) -> None:
    ours = new_client("flussbett", client_bucket_hash="rust")
    row = {"id": key, "name": "x", "age": 1}
    for bucket_count in (1, 7):
        name = f"{table}_{bucket_count}"
        for number, writer in enumerate((clients["pyfluss-0.1.0"], clients["pyfluss-1.0.0"], ours)):
            if not number:
                writer.create_table(name, USERS, primary_keys=["id"], bucket_count=bucket_count)
            writer.upsert_rows(name, [{**row, "age": number}])
            for reader in (clients["pyfluss-0.1.0"], clients["pyfluss-1.0.0"], ours):
                assert reader.lookup(name, {"id": key}) == [{**row, "age": number}], reader.api.name
        # One row only: nobody has put it into another bucket.
        records = ours.tools.poll_records(ours.record_scanner(name), 5, READ_TIMEOUT_S)
        assert [change for *_, change, _ in records] == ["+I", "-U", "+U", "-U", "+U"]


def test_many_rows_in_several_buckets_are_all_found(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"], bucket_count=3)
    client.upsert_rows(table, users(0, 2999))
    client.upsert_rows(table, [{**row, "name": "second"} for row in users(1000, 1999)])
    client.delete_keys(table, [{"id": i} for i in range(2900, 3000)])
    latest = client.latest(table, range(3))
    assert sum(latest.values()) == 3000 + 2 * 1000 + 100
    assert all(latest.values())
    found = client.lookup(table, *({"id": i} for i in (0, 999, 1000, 1999, 2000, 2899, 2900, 2999)))
    assert [row and row["name"] for row in found] == [
        "name-0",
        "name-999",
        "second",
        "second",
        "name-2000",
        "name-2899",
        None,
        None,
    ]


def test_a_composite_key_may_surround_other_columns(client: Client, table: str) -> None:
    schema = pa.schema([("region", pa.string()), ("score", pa.int64()), ("user_id", pa.int32())])
    client.create_table(table, schema, primary_keys=["region", "user_id"])
    rows = [
        {"region": "US", "score": 1, "user_id": 1},
        {"region": "US", "score": 2, "user_id": 2},
        {"region": "EU", "score": 3, "user_id": 1},
    ]
    client.upsert_rows(table, rows)
    client.upsert_rows(table, [{"region": "US", "score": 100, "user_id": 1}])
    found = client.lookup(table, {"region": "US", "user_id": 1}, {"user_id": 1, "region": "EU"}, ("US", 2), ("EU", 2))
    assert [row and row["score"] for row in found] == [100, 3, 2, None]


def test_keys_in_an_order_of_their_own(writer: Client, reader: Client, table: str) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64())])
    writer.create_table(table, schema, primary_keys=["c", "a"])
    writer.upsert_rows(table, [{"a": 1, "b": "x", "c": 2**40}])
    assert reader.lookup(table, (2**40, 1), {"a": 1, "c": 2**40}) == [{"a": 1, "b": "x", "c": 2**40}] * 2


# Every type


def test_values_of_every_type_cross_between_any_two_clients(writer: Client, reader: Client, table: str) -> None:
    writer.create_table(table, schema_of(SCALARS), primary_keys=["id"])
    rows = rows_of(SCALARS)
    writer.upsert_rows(table, rows)
    assert reader.lookup(table, *({"id": row["id"]} for row in rows)) == rows
    writer.upsert_rows(table, [{**rows[0], "id": rows[1]["id"]}])
    assert reader.lookup(table, {"id": rows[1]["id"]}) == [{**rows[0], "id": rows[1]["id"]}]


def test_nested_values_cross_between_any_two_clients(newer_client: Client, newer_reader: Client, table: str) -> None:
    newer_client.create_table(table, schema_of(NESTED), primary_keys=["id"])
    rows = rows_of(NESTED)
    newer_client.upsert_rows(table, rows)
    assert newer_reader.lookup(table, *({"id": row["id"]} for row in rows)) == rows
    newer_client.upsert_rows(table, [{"id": 0, "words": ["partial"]}], columns=["id", "words"])
    assert newer_reader.lookup(table, {"id": 0}) == [{**rows[0], "words": ["partial"]}]
    records = newer_reader.changes(table, 6)
    assert [change for _, change, _ in records] == ["+I"] * 4 + ["-U", "+U"]
    assert [row for *_, row in records] == [*rows, rows[0], {**rows[0], "words": ["partial"]}]


KEY_VALUES = (
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int16(), [-1, 300]),
    (pa.int32(), [-(2**31), 127, 128]),
    (pa.int64(), [-1, 2**40]),
    (pa.string(), ["", "ascii", "grüße"]),
    (pa.binary(), [b"\xff\x80", b"x"]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01")]),
    (pa.decimal128(30, 3), [Decimal("12345678901234567890.125"), Decimal("0.000")]),
    (pa.date32(), [dt.date(2024, 2, 29), dt.date(1969, 12, 31)]),
    (pa.time32("ms"), [dt.time(23, 59, 59, 999000), dt.time(0)]),
    (pa.timestamp("ms"), [dt.datetime(2024, 1, 1, 2, 3, 4, 5000)]),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1, 2, 3, 4, 567891)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, 2, 3, 4, 5, dt.UTC)]),
)


@pytest.mark.parametrize(("type_", "values"), KEY_VALUES, ids=[str(type_) for type_, _ in KEY_VALUES])
def test_keys_of_every_type_are_the_same_bytes_for_all(
    clients: dict[str, Client], table: str, type_: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("key", type_), ("n", pa.int32())])
    for number, writer in enumerate(clients.values()):
        if not number:
            writer.create_table(table, schema, primary_keys=["key"])
        rows = [{"key": value, "n": number * 10 + i} for i, value in enumerate(values)]
        writer.upsert_rows(table, rows)
        for reader in clients.values():
            found = reader.lookup(table, *({"key": value} for value in values))
            assert found == rows, f"{writer.api.name} to {reader.api.name}"


# Partial updates


def test_a_partial_update_by_name_keeps_the_other_columns(client: Client, reader: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, [ALICE])
    client.upsert_rows(table, [{"id": 1, "age": 99}, {"id": 7, "age": 7}], columns=["id", "age"])
    assert reader.lookup(table, {"id": 1}, {"id": 7}) == [{**ALICE, "age": 99}, {"id": 7, "name": None, "age": 7}]


def test_a_partial_update_by_index_takes_lists_in_its_own_order(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, [ALICE])
    client.upsert_rows(table, [[1, "Alicia"]], columns=[0, 1])
    assert client.lookup(table, {"id": 1}) == [{**ALICE, "name": "Alicia"}]


def test_a_partial_delete_takes_the_row_with_its_last_value(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, [ALICE])
    client.delete_keys(table, [{"id": 1}], columns=["id", "age"])
    assert client.lookup(table, {"id": 1}) == [{**ALICE, "age": None}]
    client.delete_keys(table, [{"id": 1}], columns=["id", "name"])
    assert client.lookup(table, {"id": 1}) == [None]


def test_misused_partial_updates_are_refused(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    with refused(-2, "Cannot find target column"):
        client.upserter(table, ["id", "nobody"])
    with refused(-2, "Invalid target column index: 9"):
        client.upserter(table, [0, 9])
    with refused(-2, "must contain the primary key columns"):
        client.upserter(table, ["name", "age"])


# Partitions


def test_partitioned_rows_live_and_die_in_their_partition(client: Client, reader: Client, table: str) -> None:
    schema = pa.schema([("region", pa.string()), ("user_id", pa.int32()), ("score", pa.int64())])
    client.create_table(table, schema, primary_keys=["region", "user_id"], partition_keys=["region"], bucket_count=2)
    for region in ("US", "EU"):
        client.admin.create_partition(client.path(table), {"region": region})
    rows = [{"region": region, "user_id": i, "score": i * 10} for region in ("US", "EU") for i in range(10)]
    client.upsert_rows(table, rows)
    client.upsert_rows(table, [{"region": "US", "user_id": 1, "score": 500}])
    client.delete_keys(table, [{"region": "EU", "user_id": 1}])
    for region in ("US", "EU"):
        # In the older generation a lookup finds only partitions that the connection has met before.
        reader.admin.list_partition_offsets(reader.path(table), region, [0], reader.fluss.OffsetSpec.latest())
    # The official clients and ours choose different buckets for some keys, not for these.
    keys = [{"region": region, "user_id": i} for region in ("US", "EU", "APAC") for i in (1, 2)]
    assert [row and row["score"] for row in reader.lookup(table, *keys)] == [500, 20, None, 20, None, None]


# Changelog


def test_the_changelog_tells_old_and_new_rows(client: Client, newer_reader: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, [ALICE])
    client.upsert_rows(table, [BOB])
    client.upsert_rows(table, [{**ALICE, "age": 26}])
    client.delete_keys(table, [{"id": 2}])
    assert newer_reader.changes(table, 5) == [
        (0, "+I", ALICE),
        (1, "+I", BOB),
        (2, "-U", ALICE),
        (3, "+U", {**ALICE, "age": 26}),
        (4, "-D", BOB),
    ]
    assert newer_reader.changes(table, 2, columns=["age", "id"], start=3) == [
        (3, "+U", {"age": 26, "id": 1}),
        (4, "-D", {"age": 30, "id": 2}),
    ]


def test_changes_without_effect_take_an_offset_and_nothing_else(
    client: Client, newer_reader: Client, table: str
) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    client.delete_keys(table, [{"id": 5}])
    client.delete_keys(table, [{"id": 6}])
    client.upsert_rows(table, [ALICE])
    assert client.latest(table) == {0: 3}
    assert newer_reader.changes(table, 1) == [(2, "+I", ALICE)]


def test_a_short_changelog_has_no_old_rows(client: Client, newer_reader: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"], properties={"table.changelog.image": "WAL"})
    client.upsert_rows(table, [ALICE])
    client.upsert_rows(table, [{**ALICE, "age": 26}])
    client.delete_keys(table, [{"id": 1}])
    assert newer_reader.changes(table, 3) == [
        (0, "+U", ALICE),
        (1, "+U", {**ALICE, "age": 26}),
        (2, "-D", {**ALICE, "age": 26}),
    ]


def test_the_older_generation_cannot_read_a_changelog_as_arrow_and_neither_can_the_newer(
    client: Client, table: str
) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    with refused(-2):
        client.batch_scanner(table)


def test_a_changelog_spans_partitions(newer_client: Client, newer_reader: Client, table: str) -> None:
    schema = pa.schema([("region", pa.string()), ("id", pa.int32()), ("n", pa.int32())])
    newer_client.create_table(table, schema, primary_keys=["region", "id"], partition_keys=["region"])
    for region in ("US", "EU"):
        newer_client.admin.create_partition(newer_client.path(table), {"region": region})
    newer_client.upsert_rows(table, [{"region": region, "id": 1, "n": 1} for region in ("US", "EU")])
    newer_client.upsert_rows(table, [{"region": "EU", "id": 1, "n": 2}])
    records = newer_reader.tools.poll_records(newer_reader.record_scanner(table), 4, READ_TIMEOUT_S)
    ids = newer_reader.partition_ids(table)
    found = {name: [(c, row["n"]) for (p, _), _, _, c, row in records if p == id_] for name, id_ in ids.items()}
    assert found == {"US": [("+I", 1)], "EU": [("+I", 1), ("-U", 1), ("+U", 2)]}


# Merge engines


def test_the_first_row_stays(client: Client, newer_reader: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"], properties={"table.merge-engine": "first_row"})
    for number in range(3):
        client.upsert_rows(table, [{**ALICE, "age": number}])
    client.delete_keys(table, [{"id": 1}])
    assert client.lookup(table, {"id": 1}) == [{**ALICE, "age": 0}]
    client.upsert_rows(table, [BOB])
    assert [(change, row["id"]) for _, change, row in newer_reader.changes(table, 2)] == [("+I", 1), ("+I", 2)]


def test_the_highest_version_stays(client: Client, newer_reader: Client, table: str) -> None:
    properties = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "age"}
    client.create_table(table, USERS, primary_keys=["id"], properties=properties)
    for name, age in (("first", 5), ("too old", 4), ("as new", 5), ("newer", 6), ("null is oldest", None)):
        client.upsert_rows(table, [{"id": 1, "name": name, "age": age}])
    assert client.lookup(table, {"id": 1}) == [{"id": 1, "name": "newer", "age": 6}]
    changes = [(change, row["name"]) for _, change, row in newer_reader.changes(table, 5)]
    assert changes == [("+I", "first"), ("-U", "first"), ("+U", "as new"), ("-U", "as new"), ("+U", "newer")]


def test_columns_are_aggregated(client: Client, clients: dict[str, Client], table: str) -> None:
    ours = clients["flussbett"]
    fluss = ours.fluss
    builder = fluss.Schema.builder().column("id", fluss.DataTypes.int()).column("name", fluss.DataTypes.string())
    schema = builder.column("age", fluss.DataTypes.bigint(), aggregation="sum").primary_key(["id"]).build()
    descriptor = fluss.TableDescriptor(schema, properties={"table.merge-engine": "aggregation"})
    ours.admin.create_table(ours.path(table), descriptor)
    client.upsert_rows(table, [{"id": 1, "name": "a", "age": 1}, {"id": 1, "name": None, "age": 10}])
    client.upsert_rows(table, [{"id": 1, "name": "b", "age": 100}, {"id": 2, "name": "c", "age": None}])
    expected = [{"id": 1, "name": "b", "age": 111}, {"id": 2, "name": "c", "age": None}]
    assert client.lookup(table, {"id": 1}, {"id": 2}) == expected


def test_deletes_can_be_forbidden(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"], properties={"table.delete.behavior": "disable"})
    client.upsert_rows(table, [ALICE])
    with refused(57):
        client.upserter(table).delete({"id": 1}).wait()
    assert client.lookup(table, {"id": 1}) == [ALICE]
    client.upsert_rows(table, [BOB])
    assert client.lookup(table, {"id": 2}) == [BOB]


# The newer generation: prefixes, limits, auto-increment, missing fields


ORDERS = pa.schema([("customer", pa.int32()), ("order_id", pa.int64()), ("note", pa.string())])


def _orders_table(client: Client, table: str) -> Remote:
    client.create_table(table, ORDERS, primary_keys=["customer", "order_id"], bucket_keys=["customer"], bucket_count=3)
    client.upsert_rows(table, [{"customer": c, "order_id": o, "note": f"{c}/{o}"} for c in (1, 2) for o in (1, 2, 3)])
    found: Remote = client.table(table).new_lookup()
    return found


def test_a_prefix_of_the_key_finds_all_its_rows(newer_client: Client, newer_reader: Client, table: str) -> None:
    _orders_table(newer_client, table)
    lookuper = newer_reader.table(table).new_lookup().lookup_by(["customer"]).create_lookuper()
    expected = [{"customer": 2, "order_id": o, "note": f"2/{o}"} for o in (1, 2, 3)]
    for prefix in ({"customer": 2}, [2], (2,)):
        assert lookuper.lookup(prefix) == expected
    assert lookuper.lookup({"customer": 9}) == []
    newer_client.delete_keys(table, [{"customer": 2, "order_id": 2}])
    assert [row["order_id"] for row in lookuper.lookup([2])] == [1, 3]


def test_misused_prefixes_are_refused(newer_client: Client, table: str) -> None:
    lookup = _orders_table(newer_client, table)
    for columns, text in (
        (["customer", "order_id"], "prefix lookup"),
        (["order_id"], "bucket keys"),
        (["nobody"], "Unknown column name"),
    ):
        with refused(-2, text):
            lookup.lookup_by(columns).create_lookuper()


def test_a_prefix_lookup_stays_in_its_partition(newer_client: Client, table: str) -> None:
    schema = pa.schema([("day", pa.string()), *ORDERS])
    newer_client.create_table(
        table,
        schema,
        primary_keys=["day", "customer", "order_id"],
        partition_keys=["day"],
        bucket_keys=["customer"],
        bucket_count=2,
    )
    for day in ("mon", "tue"):
        newer_client.admin.create_partition(newer_client.path(table), {"day": day})
        newer_client.upsert_rows(table, [{"day": day, "customer": 1, "order_id": o, "note": day} for o in (1, 2)])
    lookup = newer_client.table(table).new_lookup()
    with refused(-2, "partition fields"):
        lookup.lookup_by(["customer"]).create_lookuper()
    lookuper = lookup.lookup_by(["day", "customer"]).create_lookuper()
    assert [row["note"] for row in lookuper.lookup({"day": "tue", "customer": 1})] == ["tue", "tue"]
    assert lookuper.lookup({"day": "sun", "customer": 1}) == []


def test_a_limit_scan_returns_current_rows_in_key_order(newer_client: Client, table: str) -> None:
    newer_client.create_table(table, USERS, primary_keys=["id"])
    newer_client.upsert_rows(table, users(0, 9))
    newer_client.upsert_rows(table, [{"id": 3, "name": "changed", "age": 3}])
    newer_client.delete_keys(table, [{"id": 1}])
    found = newer_client.table(table)
    bucket = newer_client.fluss.TableBucket(found.get_table_info().table_id, 0)
    scanner = found.new_scan().limit(4).create_bucket_batch_scanner(bucket)
    batch = scanner.next_batch()
    assert batch.batch["id"].to_pylist() == [0, 2, 3, 4]
    assert batch.batch["name"].to_pylist() == ["name-0", "name-2", "changed", "name-4"]
    assert batch.base_offset == 0
    assert scanner.next_batch() is None
    projected = found.new_scan().project_by_name(["age", "id"]).limit(2).create_bucket_batch_scanner(bucket).to_arrow()
    assert projected.to_pylist() == [{"age": 0, "id": 0}, {"age": 20, "id": 2}]


def test_ids_are_given_by_the_server(newer_client: Client, newer_reader: Client, table: str) -> None:
    schema = pa.schema([("name", pa.string()), ("number", pa.int64()), ("note", pa.string())])
    fluss = newer_client.fluss
    made = fluss.Schema(schema, primary_keys=["name"], auto_increment_column="number")
    assert made.get_auto_increment_columns() == ["number"]
    newer_client.admin.create_table(newer_client.path(table), fluss.TableDescriptor(made))
    with refused(-2, "auto increment column"):
        newer_client.upserter(table)
    with refused(-2):
        newer_client.upserter(table, ["name", "number"])
    columns = ["name", "note"]
    newer_client.upsert_rows(table, [{"name": "a", "note": "1"}, {"name": "b", "note": "2"}], columns=columns)
    newer_reader.upsert_rows(table, [{"name": "a", "note": "3"}, {"name": "c", "note": "4"}], columns=columns)
    assert newer_reader.lookup(table, {"name": "a"}, {"name": "b"}, {"name": "c"}) == [
        {"name": "a", "number": 1, "note": "3"},
        {"name": "b", "number": 2, "note": "2"},
        {"name": "c", "number": 3, "note": "4"},
    ]


def test_missing_fields_are_null_or_missed(newer_client: Client, table: str) -> None:
    inner = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])
    schema = pa.schema([("id", pa.int32()), ("opt", pa.string()), ("inner", inner)])
    newer_client.create_table(table, schema, primary_keys=["id"])
    newer_client.upsert_rows(table, [{"id": 1}, {"id": 2, "inner": {"b": 5}}])
    assert newer_client.lookup(table, {"id": 1}, {"id": 2}) == [
        {"id": 1, "opt": None, "inner": None},
        {"id": 2, "opt": None, "inner": {"a": None, "b": 5}},
    ]
    writer = newer_client.upserter(table)
    with refused(-2, "non-nullable field 'id'"):
        writer.upsert({"opt": "x"})
    with refused(-2, "non-nullable row field 'b'"):
        writer.upsert({"id": 3, "inner": {"a": 1}})


# Keys and schemas that do not fit


def test_bad_keys_are_refused_where_they_are_given(client: Client, table: str) -> None:
    client.create_table(table, USERS, primary_keys=["id"])
    writer = client.upserter(table)
    lookuper = client.table(table).new_lookup().create_lookuper()
    for key in ({"id": None}, {"name": "x"}, [], ["text"], {"id": 1, "name": "x"}):
        with refused(-2):
            writer.delete(key)
        with refused(-2):
            lookuper.lookup(key)


def test_rows_from_before_a_column_was_added_have_null_in_it(clients: dict[str, Client], table: str) -> None:
    official, ours = clients["pyfluss-1.0.0"], clients["flussbett"]
    official.create_table(table, USERS, primary_keys=["id"])
    official.upsert_rows(table, [ALICE, BOB])
    early_writer = official.upserter(table)
    ours.admin.alter_table(ours.path(table), add_columns=[ours.tools.field("note", pa.schema([("note", pa.string())]))])
    ours.upsert_rows(table, [{**CAROL, "note": "new"}])
    # A writer from before goes on with the schema it knows.
    official.tools.wait_all(official.tools.upsert_all(early_writer, [{**BOB, "age": 31}]))
    expected = [{**ALICE, "note": None}, {**BOB, "age": 31, "note": None}, {**CAROL, "note": "new"}]
    for reader in (official, ours):
        assert reader.lookup(table, {"id": 1}, {"id": 2}, {"id": 3}) == expected, reader.api.name
    ours.upsert_rows(table, [{"id": 1, "note": "late"}], columns=["id", "note"])
    assert official.lookup(table, {"id": 1}) == [{**ALICE, "note": "late"}]


def test_an_indexed_table_is_ours_alone(clients: dict[str, Client], table: str) -> None:
    ours = clients["flussbett"]
    ours.create_table(table, USERS, primary_keys=["id"], kv_format="INDEXED")
    ours.upsert_rows(table, [ALICE, BOB])
    ours.upsert_rows(table, [{**ALICE, "age": 26}])
    assert ours.lookup(table, {"id": 1}, {"id": 2}) == [{**ALICE, "age": 26}, BOB]
    # The changelog is ARROW, which everybody reads.
    assert clients["pyfluss-1.0.0"].changes(table, 4)[-1] == (3, "+U", {**ALICE, "age": 26})
    for name in ("pyfluss-0.1.0", "pyfluss-1.0.0"):
        with refused(-2):
            clients[name].upserter(table)


# Acknowledgements


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_writers_choose_how_much_to_wait_for(new_client: Any, table: str, acks: str, any_name: str) -> None:
    client = new_client(any_name, writer_acks=acks, writer_enable_idempotence=acks == "all")
    client.create_table(table, USERS, primary_keys=["id"])
    client.upsert_rows(table, users(0, 99))
    client.upsert_rows(table, [ALICE])
    # Acknowledged before it is on the disk, a row may be shown a moment later.
    if acks == "all":
        assert client.latest(table) == {0: 102}
    eventually(lambda: client.latest(table) == {0: 102})
    assert client.lookup(table, {"id": 1}) == [ALICE]
