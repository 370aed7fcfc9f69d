"""Changelogs of primary-key tables: every change once and in order, alone or behind the rows that were there before.
Shown against real servers with a copy of the table that refuses every change that does not fit, while others write."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import EARLIEST_OFFSET, ChangeType, FlussError, TableBucket, embedded
from fluss.client.kernel.runtime import wait_for
from tests.integration.keyed_tables import (
    Copy,
    Tables,
    by_key,
    delete,
    in_background,
    poll_until,
    tables_of,
    upsert,
    upsert_batch,
)

SMALL_ANSWERS = {"scanner.log.fetch.max-bytes": 20_000, "scanner.log.fetch.max-bytes-for-bucket": 5_000}
SMALL_ANSWERS_FEW_RECORDS = SMALL_ANSWERS | {"scanner.log.max-poll-records": 7}


def records_of(table: fluss.FlussTable) -> fluss.LogScanner:
    return wait_for(table.new_scan().create_log_scanner())


def changes_of(table: fluss.FlussTable) -> fluss.LogScanner:
    return wait_for(table.new_scan().create_changelog_scanner())


def poll_records(scanner: fluss.LogScanner, count: int) -> list[fluss.ScanRecord]:
    records: list[fluss.ScanRecord] = []
    poll_until(lambda: records.extend(scanner.poll(500)), lambda: len(records) >= count)
    return records


def shown(records: list[fluss.ScanRecord]) -> list[tuple[int, str, list[Any]]]:
    return [(record.offset, str(record.change_type), list(record.row.values())) for record in records]


def write_story(table: fluss.FlussTable) -> None:
    upsert(table, [[1, "a"]])
    upsert(table, [[2, "b"]])
    upsert(table, [[1, "A"]])
    delete(table, [[2]])


# Changes


def test_changes_have_their_types_and_both_images(tables: Tables) -> None:
    table = tables.create(bucket_count=1)
    write_story(table)
    scanner = records_of(table)
    scanner.subscribe(0, EARLIEST_OFFSET)
    records = poll_records(scanner, 5)
    assert shown(records) == [
        (0, "+I", [1, "a"]),
        (1, "+I", [2, "b"]),
        (2, "-U", [1, "a"]),
        (3, "+U", [1, "A"]),
        (4, "-D", [2, "b"]),
    ]
    now_ms = time.time() * 1000
    assert all(now_ms - 60_000 < record.timestamp <= now_ms + 1000 for record in records)
    table_of_changes = scan_changes(table)
    assert table_of_changes["_change_type"].to_pylist() == [
        "insert",
        "insert",
        "update_before",
        "update_after",
        "delete",
    ]
    assert table_of_changes["_log_offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table_of_changes.select(["id", "name"]).to_pylist() == [record.row for record in records]


def scan_changes(table: fluss.FlussTable) -> pa.Table:
    with changes_of(table) as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), EARLIEST_OFFSET))
        return scanner.to_arrow()


def test_a_changelog_without_old_rows(tables: Tables) -> None:
    table = tables.create(bucket_count=1, properties={"table.changelog.image": "WAL"})
    write_story(table)
    assert [(row["_change_type"], row["id"], row["name"]) for row in scan_changes(table).to_pylist()] == [
        ("update_after", 1, "a"),
        ("update_after", 2, "b"),
        ("update_after", 1, "A"),
        ("delete", 2, "b"),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_both_rows_of_an_update_come_with_the_same_poll(server: embedded.EmbeddedServer, limit: int) -> None:
    with tables_of(server, **{"scanner.log.max-poll-records": limit}) as tables:
        table = tables.create(bucket_count=1)
        upsert_batch(table, id=[1, 2, 3], name=["a", "b", "c"])
        upsert_batch(table, id=[1, 4, 2, 3], name=["A", "D", "B", "C"])
        scanner = records_of(table)
        scanner.subscribe(0, EARLIEST_OFFSET)
        polls: list[list[fluss.ScanRecord]] = []
        poll_until(lambda: polls.append(list(scanner.poll(500))), lambda: sum(map(len, polls)) >= 10)
        assert [record.offset for poll in polls for record in poll] == list(range(10))
        assert all(poll[-1].change_type is not ChangeType.UpdateBefore for poll in polls if poll)


def test_a_write_without_effect_takes_an_offset_and_has_no_records(tables: Tables) -> None:
    table = tables.create(bucket_count=1, properties={"table.merge-engine": "first_row"})
    for name in ("first", "second", "third"):
        upsert(table, [[1, name]])
    scanner = records_of(table)
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert shown(poll_records(scanner, 1)) == [(0, "+I", [1, "first"])]
    poll_until(lambda: scanner.poll(100), lambda: scanner.get_subscribed_buckets()[0][1] == 3)
    # Reading to the end ends, also where the end has no records, and nothing else is there.
    assert scan_changes(table)["name"].to_pylist() == ["first"]
    behind = changes_of(table)
    behind.subscribe(0, 1)
    assert behind.to_arrow().num_rows == 0
    upsert(table, [[1, "fourth"]])
    cpu_s = time.process_time()
    assert scanner.poll(700).is_empty()
    assert time.process_time() - cpu_s < 0.4, "a poll does not spin"
    upsert(table, [[2, "other"]])
    assert shown(poll_records(scanner, 1)) == [(4, "+I", [2, "other"])]


@pytest.mark.parametrize(
    ("log_format", "kv_format"),
    [
        ("arrow", "compacted"),
        ("arrow", "indexed"),
        pytest.param("indexed", "indexed", marks=pytest.mark.only_here("0.9 fails at this pair of formats")),
        ("compacted", "compacted"),
    ],
)
def test_changelogs_of_every_format_are_the_same(tables: Tables, log_format: str, kv_format: str) -> None:
    table = tables.create(bucket_count=1, log_format=log_format, kv_format=kv_format)
    write_story(table)
    copy = Copy("id")
    scanner = changes_of(table)
    scanner.subscribe(0, EARLIEST_OFFSET)
    poll_until(lambda: copy.apply_batches(scanner.poll_record_batch(500)), lambda: copy.change_count == 5)
    assert copy.rows == {1: {"id": 1, "name": "A"}} == by_key(table.new_scan().to_arrow(), "id")


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_columns_are_chosen(tables: Tables) -> None:
    table = tables.create(pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.float64())]), bucket_count=1)
    upsert(table, [[1, "x", 0.5]])
    upsert(table, [[1, "y", 1.5]])
    scanner = wait_for(table.new_scan().project_by_name(["b", "id"]).create_log_scanner())
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert shown(poll_records(scanner, 3)) == [(0, "+I", [0.5, 1]), (1, "-U", [0.5, 1]), (2, "+U", [1.5, 1])]
    as_arrow = wait_for(table.new_scan().project([1]).create_changelog_scanner())
    as_arrow.subscribe_from_snapshot()
    assert as_arrow.to_arrow().to_pylist() == [
        {"_change_type": "insert", "_log_offset": -1, "_commit_timestamp": None, "a": "y"}
    ]


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_changes_before_a_column_was_added_have_it_as_null(tables: Tables) -> None:
    table = tables.create(bucket_count=1)
    upsert(table, [[1, "a"]])
    wait_for(tables.admin.alter_table(table.table_path, add_columns=[pa.field("price", pa.float64())]))
    newer = tables.again(table)
    upsert(newer, [[1, "A", 2.5]])
    assert [row["price"] for row in scan_changes(newer).to_pylist()] == [None, None, 2.5]
    assert scan_changes(table).column_names[3:] == ["id", "name"]
    # Somebody who began before the column was there reads on.
    scanner = records_of(table)
    scanner.subscribe_from_snapshot()
    assert shown(poll_records(scanner, 1)) == [(-1, "+I", [1, "A"])]
    upsert(newer, [[2, "b", 3.5]])
    assert shown(poll_records(scanner, 1)) == [(3, "+I", [2, "b"])]


# Rows first, then changes


class Writer:
    """Upserts and deletes at random, and remembers what must be there in the end."""

    def __init__(self, table: fluss.FlussTable, *, seed: int, partitions: list[str] | None = None) -> None:
        self._table = table
        self._rng = random.Random(seed)
        self._partitions = partitions
        self.rows: dict[Any, dict[str, Any]] = {}
        self.count = 0

    def write(self, row_count: int) -> None:
        rng, writer = self._rng, self._table.new_upsert().create_writer()
        for _ in range(row_count):
            self.count += 1
            row: dict[str, Any] = {"id": rng.randrange(3000), "name": f"v{self.count}"}
            key: Any = row["id"]
            if self._partitions is not None:
                row["part"] = rng.choice(self._partitions)
                key = row["id"], row["part"]
            if rng.random() < 0.25:
                writer.delete({name: value for name, value in row.items() if name != "name"})
                self.rows.pop(key, None)
            else:
                writer.upsert(row)
                self.rows[key] = row
        wait_for(writer.flush())

    def write_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.write(300)


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
@pytest.mark.parametrize("kind", ["records", "batches"])
@pytest.mark.parametrize("bucket_count", [1, 5])
def test_a_copy_that_begins_while_others_write_becomes_the_table(
    server: embedded.EmbeddedServer, kind: str, bucket_count: int
) -> None:
    with tables_of(server) as writing, tables_of(server, **SMALL_ANSWERS) as reading:
        table = writing.create(bucket_count=bucket_count)
        writer = Writer(table, seed=bucket_count)
        writer.write(4000)
        reader = wait_for(reading.connection.get_table(table.table_path))
        copy = Copy("id")
        scanner = records_of(reader) if kind == "records" else changes_of(reader)

        def poll() -> None:
            if kind == "records":
                copy.apply_records(scanner.poll(200))
            else:
                copy.apply_batches(scanner.poll_record_batch(200))

        with in_background(writer.write_until):
            time.sleep(0.05)
            scanner.subscribe_from_snapshot()
            poll_until(poll, lambda: copy.snapshot_count > 0 and copy.change_count > 2000)
        poll_until(poll, lambda: copy.rows == writer.rows)
        assert copy.snapshot_count > 1000
        poll()
        assert copy.rows == writer.rows == by_key(table.new_scan().to_arrow(), "id")
        scanner.close()


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_a_copy_of_partitions_with_few_records_at_a_time(server: embedded.EmbeddedServer) -> None:
    schema = pa.schema([("id", pa.int32()), ("part", pa.string()), ("name", pa.string())])
    with tables_of(server) as writing, tables_of(server, **SMALL_ANSWERS_FEW_RECORDS) as reading:
        table = writing.create(schema, ["id", "part"], bucket_count=2, partition_keys=["part"])
        parts = ["a", "b", "c"]
        for part in parts:
            wait_for(writing.admin.create_partition(table.table_path, {"part": part}))
        writer = Writer(table, seed=3, partitions=parts)
        writer.write(1500)
        reader = wait_for(reading.connection.get_table(table.table_path))
        scanner, copy = records_of(reader), Copy("id", "part")
        scanner.subscribe_from_snapshot()
        assert len(scanner.get_subscribed_buckets()) == 6
        copy.apply_records(scanner.poll(120_000))
        writer.write(500)
        poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.rows == writer.rows)
        only_b = records_of(reader)
        only_b.subscribe_from_snapshot({"part": "b"})
        of_b = Copy("id", "part")
        expected = {key: row for key, row in writer.rows.items() if row["part"] == "b"}
        poll_until(lambda: of_b.apply_records(only_b.poll(200)), lambda: of_b.rows == expected)


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_a_copy_on_an_event_loop_whose_polls_are_cancelled(server: embedded.EmbeddedServer) -> None:
    with tables_of(server) as writing, tables_of(server, **SMALL_ANSWERS) as reading:
        table = writing.create(bucket_count=3)
        writer = Writer(table, seed=4)
        writer.write(3000)
        reader = wait_for(reading.connection.get_table(table.table_path))

        async def follow() -> Copy:
            scanner, copy = records_of(reader), Copy("id")
            scanner.subscribe_from_snapshot()
            rng = random.Random(5)
            deadline_s = time.monotonic() + 120
            while copy.rows != writer.rows and time.monotonic() < deadline_s:
                poll = asyncio.create_task(scanner.poll_async(200))
                await asyncio.sleep(rng.choice([0, 0.001, 0.005, 0.05]))
                poll.cancel()
                try:
                    copy.apply_records(await poll)
                except asyncio.CancelledError:
                    continue
            return copy

        with in_background(lambda is_over: writer.write(1000)):
            copy = asyncio.run(follow())
        assert copy.rows == writer.rows
        assert copy.snapshot_count > 0


@pytest.mark.only_here("0.9 cannot scan rows: what begins with a snapshot here begins with the first change there")
def test_unsubscribing_while_the_rows_are_read(server: embedded.EmbeddedServer) -> None:
    with tables_of(server, **SMALL_ANSWERS) as tables:
        table = tables.create(bucket_count=2)
        upsert_batch(table, id=list(range(20_000)), name=["x" * 20] * 20_000)
        scanner, copy = records_of(table), Copy("id")
        scanner.subscribe_from_snapshot()
        kept = TableBucket(table.get_table_info().table_id, 1)
        # The rows of both buckets have been begun before anything changes.
        while kept not in (polled := scanner.poll(120_000)).buckets():
            copy.apply_records(polled)
        copy.apply_records(polled)
        assert 0 < copy.snapshot_count < 20_000
        scanner.unsubscribe(0)
        assert scanner.get_subscribed_buckets() == [(kept, EARLIEST_OFFSET)]
        upsert(table, [[number, "new"] for number in range(0, 20_000, 10)])
        rest: list[fluss.ScanRecord] = []
        poll_until(lambda: rest.extend(scanner.poll(200)), lambda: any(record.offset >= 0 for record in rest))
        assert {record.bucket for record in rest} == {kept}
        scanner.unsubscribe(1)
        assert scanner.poll(100).is_empty()


def test_a_server_that_restarts_while_the_rows_are_read_loses_and_doubles_nothing() -> None:
    with (
        embedded.start({"durability": "os"}) as server,
        tables_of(server, **SMALL_ANSWERS) as tables,
    ):
        table = tables.create(bucket_count=2)
        upsert_batch(table, id=list(range(20_000)), name=["x" * 20] * 20_000)
        scanner, copy = records_of(table), Copy("id")
        scanner.subscribe_from_snapshot()
        copy.apply_records(scanner.poll(120_000))
        server.restart()
        with pytest.raises(FlussError, match="read again") as error:
            poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.snapshot_count >= 20_000)
        assert error.value.error_code == fluss.ErrorCode.SCANNER_EXPIRED
        # From here on it is another copy.
        scanner.subscribe_from_snapshot()
        copy = Copy("id")
        poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.snapshot_count >= 20_000)
        upsert(table, [[5, "changed"]])
        poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.change_count == 2)
        assert copy.rows[5]["name"] == "changed"


def test_an_empty_table_and_a_log_table_from_their_snapshots(tables: Tables) -> None:
    table = tables.create(bucket_count=3)
    scanner, copy = records_of(table), Copy("id")
    scanner.subscribe_from_snapshot()
    assert scanner.poll(200).is_empty()
    write_story(table)
    poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.change_count == 5)
    assert (copy.snapshot_count, copy.rows) == (0, {1: {"id": 1, "name": "A"}})
    log = tables.create(fluss.Schema(pa.schema([("id", pa.int32())])), bucket_count=2)
    writer = log.new_append().create_writer()
    for number in range(20):
        writer.append([number])
    wait_for(writer.flush())
    scanner = records_of(log)
    scanner.subscribe_from_snapshot()
    records = poll_records(scanner, 20)
    assert {record.row["id"] for record in records} == set(range(20))
    assert {str(record.change_type) for record in records} == {"+A"}


# Limited scans


async def test_some_rows_of_a_bucket_in_one_request(tables: Tables) -> None:
    table = tables.create(pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.int64())]), bucket_count=1)
    bucket = TableBucket(table.get_table_info().table_id, 0)
    upsert(table, [[number, f"a{number}", number * 10] for number in range(10)])
    upsert(table, [[2, "changed", -1]])
    delete(table, [[0]])
    scanner = table.new_scan().limit(5).create_bucket_batch_scanner(bucket)
    batch = await scanner.next_batch()
    assert batch is not None
    assert batch.batch["id"].to_pylist() == [1, 2, 3, 4, 5]
    assert batch.batch["a"].to_pylist()[1] == "changed"
    assert (batch.base_offset, len(batch)) == (0, 5)
    assert await scanner.next_batch() is None
    projected = table.new_scan().project_by_name(["b", "id"]).limit(100).create_bucket_batch_scanner(bucket)
    found = await projected.to_arrow()
    assert found.to_pylist()[:2] == [{"b": 10, "id": 1}, {"b": -1, "id": 2}]
    assert found.num_rows == 9
    (only,) = await table.new_scan().limit(1).create_bucket_batch_scanner(bucket).collect_all_batches()
    assert only.batch.num_rows == 1
    wait_for(tables.admin.alter_table(table.table_path, add_columns=[pa.field("c", pa.string())]))
    newer = tables.again(table)
    upsert(newer, [[3, "n", 3, "c"]])
    found = wait_for(newer.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow())
    assert found["c"].to_pylist() == [None, None, "c"]
    empty = tables.create(bucket_count=1)
    nothing = empty.new_scan().limit(3).create_bucket_batch_scanner(TableBucket(empty.get_table_info().table_id, 0))
    assert wait_for(nothing.to_arrow()).schema == empty.arrow_schema


def test_batches_without_change_types_are_refused(tables: Tables) -> None:
    with pytest.raises(FlussError, match="unsupported"):
        wait_for(tables.create().new_scan().create_record_batch_log_scanner())


# Changes and lookups


def test_whoever_reads_of_a_change_finds_it_by_lookup(tables: Tables) -> None:
    table = tables.create(pa.schema([("id", pa.int32()), ("n", pa.int64())]), bucket_count=1)
    scanner = records_of(table)
    scanner.subscribe(0, EARLIEST_OFFSET)
    lookuper = table.new_lookup().create_lookuper()
    rounds, rows = 40, 500

    def write(is_over: Callable[[], bool]) -> None:
        for number in range(rounds):
            upsert_batch(table, id=range(rows), n=[number] * rows)

    newest = 0
    with in_background(write) as is_writing:
        while newest < rounds - 1:
            records = scanner.poll(120_000)
            if not len(records):
                assert is_writing()
                continue
            # The last of the rows that were seen is the last that was written of them.
            newest = records[-1].row["n"]
            found = wait_for(lookuper.lookup([records[-1].row["id"]]))
            assert found is not None
            assert found["n"] >= newest, "the changelog is ahead of the rows"
