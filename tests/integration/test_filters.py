"""A filter returns exactly the rows for which it holds, wherever rows come out, and scanners go on behind the others.
Shown on a real server with log tables and tables with a primary key, in all faces, and by random conditions on random
rows that DuckDB decides a second time."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

import fluss
from fluss import EARLIEST_OFFSET, ChangeType, FlussError, aio, blocking, col, embedded
from fluss.client.kernel.runtime import wait_for
from tests.integration.filter_corpus import CORPUS_SCHEMA, conditions, duckdb_text, random_rows
from tests.integration.keyed_tables import Tables, delete, poll_until, tables_of, upsert, upsert_batch
from tests.integration.test_scan import batch_scanner, poll_records, record_scanner, subscribe_all

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("day", pa.date32())])
COUNT = 1000


def rows(first: int, count: int) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "id": list(numbers),
        "name": [None if number % 7 == 0 else f"n{number % 10}" for number in numbers],
        "price": [math.nan if number % 11 == 0 else number / 2 for number in numbers],
        "day": [dt.date(2026, 1, 1) + dt.timedelta(days=number // 100) for number in numbers],
    }


# The same condition in all forms; expressions of pyarrow know no NaN above all numbers.
WANTED = [number for number in range(COUNT) if number >= 400 and number % 7 and number % 10 == 3]
FORMS: dict[str, Any] = {
    "object": (col("id") >= 400) & (col("name") == "n3"),
    "text": "id >= 400 AND name = 'n3'",
    "pyarrow": (pc.field("id") >= 400) & (pc.field("name") == "n3"),
}
forms = pytest.mark.parametrize("condition", list(FORMS.values()), ids=list(FORMS))


@pytest.fixture(scope="module")
def log_table(tables: Tables) -> fluss.FlussTable:
    table = tables.create_log(SCHEMA, bucket_count=3, bucket_keys=["id"], properties={"table.statistics.columns": "*"})
    writer = table.new_append().create_writer()
    for first in range(0, COUNT, 100):
        writer.write_arrow(pa.RecordBatch.from_pydict(rows(first, 100), schema=SCHEMA))
        wait_for(writer.flush())
    return table


@pytest.fixture(scope="module")
def key_table(tables: Tables) -> fluss.FlussTable:
    table = tables.create(SCHEMA, bucket_count=3)
    upsert_batch(table, **rows(0, COUNT))
    return table


def ids(found: pa.Table) -> list[int]:
    return sorted(found["id"].to_pylist())


# Everywhere rows come out


@forms
@pytest.mark.parametrize("kind", ["log", "keys"])
def test_whole_tables(kind: str, condition: Any, log_table: fluss.FlussTable, key_table: fluss.FlussTable) -> None:
    table = log_table if kind == "log" else key_table
    assert ids(table.to_arrow(filter=condition)) == WANTED
    assert ids(table.new_scan().filter(condition).to_arrow()) == WANTED
    assert sorted(table.to_pandas(filter=condition)["id"]) == WANTED
    assert ids(table.new_scan().filter(condition).to_arrow_batch_reader().read_all()) == WANTED
    assert ids(wait_for(table.to_arrow_async(["id"], filter=condition))) == WANTED
    assert sorted(wait_for(table.to_pandas_async(filter=condition))["id"]) == WANTED


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_columns_of_the_filter_are_fetched_and_dropped_again(
    kind: str, log_table: fluss.FlussTable, key_table: fluss.FlussTable
) -> None:
    table = log_table if kind == "log" else key_table
    found = table.to_arrow(["price", "day"], filter="name = 'n3' AND id >= 400")
    assert found.column_names == ["price", "day"]
    assert sorted(map(repr, found["price"].to_pylist())) == sorted(
        repr(math.nan if number % 11 == 0 else number / 2) for number in WANTED
    )
    assert found.schema == table.new_scan().project_by_name(["price", "day"]).to_arrow().schema
    twice = table.new_scan().project([0, 0]).filter(col("day") == dt.date(2026, 1, 2)).to_arrow()
    assert twice.column_names == ["id", "id"]
    assert sorted(twice.column(1).to_pylist()) == list(range(100, 200))


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_a_limit_counts_rows_that_are_kept(kind: str, log_table: fluss.FlussTable, key_table: fluss.FlussTable) -> None:
    table = log_table if kind == "log" else key_table
    found = table.to_arrow(filter="name = 'n3'", limit=30)
    assert found.num_rows == 30
    assert set(found["name"].to_pylist()) == {"n3"}


@forms
def test_records_and_their_offsets(condition: Any, tables: Tables, log_table: fluss.FlussTable) -> None:
    scan = log_table.new_scan().project_by_name(["id"])
    everything = record_scanner(scan)
    subscribe_all(everything, log_table)
    offsets = {record.row["id"]: record.offset for record in poll_records(everything, COUNT)}
    scanner = record_scanner(log_table.new_scan().project_by_name(["id"]).filter(condition))
    subscribe_all(scanner, log_table)
    records = poll_records(scanner, len(WANTED))
    assert sorted(record.row["id"] for record in records) == WANTED
    assert all(record.offset == offsets[record.row["id"]] for record in records)
    # Nothing else comes, and the positions are at the end all the same.
    ends = dict(everything.get_subscribed_buckets())
    poll_until(lambda: scanner.poll(100), lambda: dict(scanner.get_subscribed_buckets()) == ends)


def test_few_records_of_each_poll(server: embedded.EmbeddedServer, log_table: fluss.FlussTable) -> None:
    with tables_of(server, **{"scanner.log.max-poll-records": "2"}) as others:
        table = wait_for(others.connection.get_table(log_table.table_path))
        scanner = record_scanner(table.new_scan().filter(FORMS["text"]))
        subscribe_all(scanner, table)
        found: list[fluss.ScanRecord] = []
        while len(found) < len(WANTED):
            polled = list(scanner.poll(120_000))
            assert len(polled) <= 2
            found += polled
        assert sorted(record.row["id"] for record in found) == WANTED


@forms
def test_batches(condition: Any, log_table: fluss.FlussTable) -> None:
    scanner = batch_scanner(log_table.new_scan().filter(condition))
    subscribe_all(scanner, log_table)
    assert ids(scanner.to_arrow()) == WANTED
    assert sorted(scanner.to_pandas()["id"]) == WANTED
    subscribe_all(scanner, log_table)
    batches: list[fluss.RecordBatch] = []
    while sum(map(len, batches)) < len(WANTED):
        batches += scanner.poll_record_batch(120_000)
    assert ids(pa.Table.from_batches([batch.batch for batch in batches])) == WANTED
    for batch in batches:
        offsets = batch.offsets.to_pylist()
        assert (batch.base_offset, batch.last_offset) == (offsets[0], offsets[-1])
        assert len(offsets) == len(batch)
        assert offsets == sorted(set(offsets))
    subscribe_all(scanner, log_table)
    tables = []
    while sum(map(len, tables)) < len(WANTED):
        tables.append(scanner.poll_arrow(120_000))
    assert ids(pa.concat_tables(tables)) == WANTED
    subscribe_all(scanner, log_table)
    assert ids(scanner.to_arrow_batch_reader().read_all()) == WANTED


def test_a_bounded_read_goes_on_behind_rows_that_were_left_out(tables: Tables) -> None:
    table = tables.create_log(SCHEMA)
    writer = table.new_append().create_writer()

    def write(first: int, count: int) -> None:
        writer.write_arrow(pa.RecordBatch.from_pydict(rows(first, count), schema=SCHEMA))
        wait_for(writer.flush())

    write(0, 50)
    scanner = batch_scanner(table.new_scan().filter("id < 10 OR id >= 45"))
    scanner.subscribe(0, 5)
    assert scanner.to_arrow()["id"].to_pylist() == [*range(5, 10), *range(45, 50)]
    ((_, position),) = scanner.get_subscribed_buckets()
    assert position == 50
    write(50, 5)
    assert scanner.poll_arrow(120_000)["id"].to_pylist() == list(range(50, 55))
    scanner.subscribe(0, 0)
    assert scanner.to_arrow()["id"].to_pylist() == [*range(10), *range(45, 55)]
    nothing = batch_scanner(table.new_scan().filter("id < 0"))
    nothing.subscribe(0, EARLIEST_OFFSET)
    assert nothing.to_arrow().num_rows == 0
    assert nothing.to_arrow().schema == SCHEMA
    assert nothing.get_subscribed_buckets() == [(fluss.TableBucket(table.get_table_info().table_id, 0), 55)]


async def test_iteration(server: embedded.EmbeddedServer, log_table: fluss.FlussTable) -> None:
    async with await aio.FlussConnection.create(server.config()) as connection:
        table = await connection.get_table(log_table.table_path)
        for create in (aio.TableScan.create_log_scanner, aio.TableScan.create_record_batch_log_scanner):
            scanner = await create(table.new_scan().filter(FORMS["text"]))
            scanner.subscribe_buckets({0: EARLIEST_OFFSET, 1: EARLIEST_OFFSET, 2: EARLIEST_OFFSET})
            found: list[int] = []
            async for item in scanner:
                found += item.batch["id"].to_pylist() if isinstance(item, fluss.RecordBatch) else [item.row["id"]]
                if len(found) == len(WANTED):
                    break
            assert sorted(found) == WANTED
            scanner.close()
        assert ids(await table.to_arrow(filter=FORMS["object"])) == WANTED
        assert ids(await table.new_scan().filter(FORMS["object"]).to_arrow()) == WANTED


def test_without_an_event_loop(server: embedded.EmbeddedServer, log_table: fluss.FlussTable) -> None:
    with blocking.FlussConnection.create(server.config()) as connection:
        table = connection.get_table(log_table.table_path)
        assert ids(table.to_arrow(filter=FORMS["text"])) == WANTED
        assert sorted(table.to_pandas(filter=FORMS["text"])["id"]) == WANTED
        scanner = table.new_scan().filter(FORMS["text"]).create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: EARLIEST_OFFSET, 1: EARLIEST_OFFSET, 2: EARLIEST_OFFSET})
        assert ids(scanner.to_arrow()) == WANTED
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        limited = table.new_scan().filter("name = 'n3'").limit(4).create_bucket_batch_scanner(bucket)
        assert limited.to_arrow()["name"].to_pylist() == ["n3"] * 4


def test_the_newest_rows_of_a_bucket_that_are_kept(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.client.scan.batch_scanner._FIRST_PIECE_RECORDS", 7)
    table = tables.create_log(SCHEMA)
    writer = table.new_append().create_writer()
    for first in range(0, 200, 20):
        writer.write_arrow(pa.RecordBatch.from_pydict(rows(first, 20), schema=SCHEMA))
        wait_for(writer.flush())
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)

    def newest(condition: str, limit: int) -> fluss.RecordBatch | None:
        scan = table.new_scan().project([0]).filter(condition).limit(limit)
        return wait_for(scan.create_bucket_batch_scanner(bucket).next_batch())

    for limit in (1, 3, 5, 100):
        batch = newest("name = 'n3'", limit)
        wanted = [number for number in range(200) if number % 10 == 3 and number % 7][-limit:]
        assert batch is not None
        assert batch.batch["id"].to_pylist() == batch.offsets.to_pylist() == wanted
        assert (batch.base_offset, batch.last_offset) == (wanted[0], wanted[-1])
        assert batch.batch.schema.names == ["id"]
    assert newest("id < 0", 3) is None
    oldest = newest("id < 3", 2)
    assert oldest is not None
    assert oldest.batch["id"].to_pylist() == [1, 2]


def test_rows_of_a_bucket_with_a_key(key_table: fluss.FlussTable) -> None:
    info = key_table.get_table_info()
    found = []
    for bucket_id in range(info.num_buckets):
        bucket = fluss.TableBucket(info.table_id, bucket_id)
        scanner = key_table.new_scan().filter(FORMS["text"]).limit(COUNT).create_bucket_batch_scanner(bucket)
        found += wait_for(scanner.to_arrow())["id"].to_pylist()
        few = key_table.new_scan().filter("name = 'n3'").limit(2).create_bucket_batch_scanner(bucket)
        assert wait_for(few.to_arrow())["name"].to_pylist() == ["n3", "n3"]
    assert sorted(found) == WANTED


def test_several_filters_must_all_hold(log_table: fluss.FlussTable) -> None:
    scan = log_table.new_scan().filter(col("id") >= 400).filter("name = 'n3'").filter(pc.field("id") < 500)
    assert ids(scan.to_arrow()) == [number for number in WANTED if number < 500]


def test_more_values_than_a_server_takes(log_table: fluss.FlussTable) -> None:
    many = col("id").is_in(list(range(900, 40_000)))
    assert ids(log_table.to_arrow(filter=many)) == list(range(900, COUNT))


def test_a_server_that_takes_fewer_conditions_than_others() -> None:
    options = {"durability": "os", "log.filter.max-conditions": "2"}
    with embedded.start(options) as running, tables_of(running) as tables:
        table = tables.create_log(SCHEMA, bucket_count=2, properties={"table.statistics.columns": "*"})
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.RecordBatch.from_pydict(rows(0, 100), schema=SCHEMA))
        wait_for(writer.flush())
        assert ids(table.to_arrow(filter="id = 1 OR id = 2 OR id = 3 OR id = 4")) == [1, 2, 3, 4]


# Partitions and schemas


def test_partitions_that_cannot_match_are_not_read(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), ("region", pa.string())])
    table = tables.create_log(schema, partition_keys=["region"])
    for region in ("EU", "US"):
        wait_for(tables.admin.create_partition(table.table_path, {"region": region}))
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.table({"id": [1, 2, 3], "region": ["EU", "US", "EU"]}, schema=schema))
    wait_for(writer.flush())
    assert ids(table.to_arrow(filter=col("region") == "EU")) == [1, 3]
    assert ids(table.to_arrow(["id"], filter="region LIKE 'U%'")) == [2]
    assert table.to_arrow(filter="region = 'ASIA'").num_rows == 0


@pytest.mark.parametrize("kind", ["log", "keys"])
def test_columns_that_rows_are_older_than_are_null(kind: str, tables: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    old = tables.create_log(schema) if kind == "log" else tables.create(schema)

    def write(table: fluss.FlussTable, *given: Any) -> None:
        if kind == "log":
            writer = table.new_append().create_writer()
            for row in given:
                writer.append(row)
            wait_for(writer.flush())
        else:
            upsert(table, given)

    write(old, [1, "a"], [2, "b"])
    wait_for(tables.admin.alter_table(old.table_path, add_columns=[pa.field("price", pa.int32())]))
    new = tables.again(old)
    write(new, [3, "c", 5], [4, "d", None])
    assert ids(new.to_arrow(["id"], filter="price IS NULL")) == [1, 2, 4]
    assert ids(new.to_arrow(filter=col("price") < 10)) == [3]
    if kind == "log":
        scanner = wait_for(new.new_scan().with_fixed_schema(False).filter("price IS NULL").create_batch_scanner())
        scanner.subscribe(0, EARLIEST_OFFSET)
        batches: list[fluss.RecordBatch] = []
        while sum(map(len, batches)) < 3:
            batches += scanner.poll_record_batch(120_000)
        assert [batch.batch.schema.names for batch in batches] == [["id", "name"], ["id", "name", "price"]]


# Changes of rows


def _changes(scanner: fluss.LogScanner, count: int) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    while len(found) < count:
        found += [(str(record.change_type), record.row["id"], record.row["score"]) for record in scanner.poll(120_000)]
    return found


SCORES = pa.schema([("id", pa.int32()), ("score", pa.int32())])


def test_a_changelog_is_filtered_change_by_change(tables: Tables) -> None:
    table = tables.create(SCORES)
    for row in ([1, 10], [2, 1], [1, 11], [1, 2], [2, 20]):
        upsert(table, [row])
    delete(table, [[2]])
    scanner = record_scanner(table.new_scan().filter(col("score") >= 10))
    scanner.subscribe(0, EARLIEST_OFFSET)
    # Of the update that takes row 1 out comes its end, of the one that brings row 2 in its beginning.
    assert _changes(scanner, 6) == [
        ("+I", 1, 10),
        ("-U", 1, 10),
        ("+U", 1, 11),
        ("-U", 1, 11),
        ("+U", 2, 20),
        ("-D", 2, 20),
    ]
    arrow = wait_for(table.new_scan().filter("score >= 10").create_changelog_scanner())
    arrow.subscribe(0, EARLIEST_OFFSET)
    found = arrow.to_arrow()
    assert found["_change_type"].to_pylist() == [
        "insert",
        "update_before",
        "update_after",
        "update_before",
        "update_after",
        "delete",
    ]
    everything = wait_for(table.new_scan().create_changelog_scanner())
    everything.subscribe(0, EARLIEST_OFFSET)
    offsets = [row["_log_offset"] for row in everything.to_arrow().to_pylist() if row["score"] >= 10]
    assert found["_log_offset"].to_pylist() == offsets


@pytest.mark.parametrize("server_kind", ["tables", "tables_without_scans"])
def test_a_filtered_copy_follows_the_table(server_kind: str, request: pytest.FixtureRequest) -> None:
    tables: Tables = request.getfixturevalue(server_kind)
    table = tables.create(SCORES, bucket_count=2)
    numbers = random.Random(7)
    upsert(table, [[key, numbers.randrange(20)] for key in range(40)])
    scanner = record_scanner(table.new_scan().filter("score >= 10"))
    scanner.subscribe_from_snapshot()
    copy: dict[int, int] = {}

    def poll() -> None:
        for record in scanner.poll(200):
            if record.change_type in (ChangeType.UpdateBefore, ChangeType.Delete):
                assert copy.pop(record.row["id"]) == record.row["score"]
            else:
                copy[record.row["id"]] = record.row["score"]

    def wanted() -> dict[int, int]:
        found = table.to_arrow(filter="score >= 10")
        return dict(zip(found["id"].to_pylist(), found["score"].to_pylist(), strict=True))

    poll_until(poll, lambda: copy == wanted())
    for _ in range(5):
        upsert(table, [[numbers.randrange(40), numbers.randrange(20)] for _ in range(20)])
        delete(table, [[numbers.randrange(40)]])
    poll_until(poll, lambda: copy == wanted())
    everything = table.to_arrow().to_pylist()
    assert wanted() == {row["id"]: row["score"] for row in everything if row["score"] >= 10}
    assert all(score >= 10 for score in copy.values())


def test_rows_of_servers_that_have_only_changes(tables_without_scans: Tables) -> None:
    table = tables_without_scans.create(SCHEMA, bucket_count=2)
    upsert_batch(table, **rows(0, 100))
    upsert(table, [{"id": 43, "name": "other"}, {"id": 50, "name": "n3"}])
    assert ids(table.to_arrow(["id"], filter="name = 'n3'")) == sorted(
        {number for number in range(100) if number % 10 == 3 and number % 7} - {43} | {50}
    )
    assert table.to_arrow(filter="name = 'n3'", limit=3).num_rows == 3


# NULL and NaN


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (col("price") > 1.0, [2.0, math.inf, math.nan]),
        (col("price") >= math.inf, [math.inf, math.nan]),
        (col("price") < math.nan, [0.0, 1.0, 2.0, math.inf]),
        (col("price") <= math.nan, [0.0, 1.0, 2.0, math.inf, math.nan]),
        (col("price") > math.nan, []),
        (col("price") == math.nan, [math.nan]),
        (col("price") != math.nan, [0.0, 1.0, 2.0, math.inf]),
        (col("price") != 1.0, [0.0, 2.0, math.inf, math.nan]),
        (col("price").is_in([math.nan, 1.0]), [1.0, math.nan]),
        (col("price").not_in([math.nan, 1.0]), [0.0, 2.0, math.inf]),
        (col("price").is_in([0.0, None]), [0.0]),
        (col("price").not_in([0.0, None]), []),
        (col("price").is_in([]), []),
        (col("price").not_in([]), [0.0, 1.0, 2.0, math.inf, math.nan]),
        (col("price").is_null(), [None]),
        (col("price").is_not_null(), [0.0, 1.0, 2.0, math.inf, math.nan]),
        ("NOT price > 1", [0.0, 1.0]),
        ("price = NULL", []),
        ("price > 1 OR price IS NULL", [2.0, math.inf, math.nan, None]),
        (pc.field("price") > 1.0, [2.0, math.inf]),
    ],
    ids=str,
)
@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_null_and_nan(type_: pa.DataType, condition: Any, kept: list[float | None], floats: Callable[..., Any]) -> None:
    found = floats(type_).to_arrow(filter=condition)["price"].to_pylist()
    assert list(map(repr, found)) == list(map(repr, kept))


@pytest.fixture(scope="module")
def floats(tables: Tables) -> Callable[[pa.DataType], fluss.FlussTable]:
    made: dict[pa.DataType, fluss.FlussTable] = {}

    def of(type_: pa.DataType) -> fluss.FlussTable:
        if type_ not in made:
            schema = pa.schema([("price", type_)])
            table = made[type_] = tables.create_log(schema, properties={"table.statistics.columns": "*"})
            writer = table.new_append().create_writer()
            # Each in a batch of its own, of which the server knows the bounds.
            for price in (0.0, 1.0, 2.0, math.inf, math.nan, None):
                writer.write_arrow(pa.table({"price": [price]}, schema=schema))
                wait_for(writer.flush())
        return made[type_]

    return of


def test_times_are_compared_with_all_their_digits(tables: Tables) -> None:
    schema = pa.schema([("clock", pa.time64("us")), ("at", pa.timestamp("ms"))])
    table = tables.create_log(schema)
    writer = table.new_append().create_writer()
    clocks = [dt.time(1, 0, 0, micros) for micros in (1000, 1001, 2000)]
    moments = [dt.datetime(2026, 1, 1, 0, 0, 0, millis * 1000) for millis in (1, 2, 3)]
    writer.write_arrow(pa.table({"clock": clocks, "at": moments}, schema=schema))
    wait_for(writer.flush())
    assert table.to_arrow(filter=col("clock") == clocks[1])["clock"].to_pylist() == clocks[1:2]
    assert table.to_arrow(filter=col("clock") > clocks[0])["clock"].to_pylist() == clocks[1:]
    between = dt.datetime(2026, 1, 1, 0, 0, 0, 1500)
    assert table.to_arrow(filter=col("at") > between)["at"].to_pylist() == moments[1:]
    assert table.to_arrow(filter=col("at") <= between)["at"].to_pylist() == moments[:1]
    assert table.to_arrow(filter=col("at") == between).num_rows == 0


# A second opinion


class Corpus:
    """Random rows in a log table and in a table with a primary key, and in DuckDB."""

    def __init__(self, tables: Tables, database: Any) -> None:
        given = random_rows(20261116, 400)
        schema = pa.schema([field.with_nullable(field.name != "row") for field in CORPUS_SCHEMA])
        statistics = {"table.statistics.columns": "row,number,small,amount,ratio,name,flag,day,moment"}
        self.log = tables.create_log(CORPUS_SCHEMA, bucket_count=2, properties=statistics)
        self.keyed = tables.create(fluss.Schema(schema, primary_keys=["row"]), bucket_count=2)
        writer = self.log.new_append().create_writer()
        for batch in given.to_batches(max_chunksize=20):
            writer.write_arrow(batch)
            wait_for(writer.flush())
        upserts = self.keyed.new_upsert().create_writer()
        upserts.upsert_arrow(given.cast(self.keyed.arrow_schema))
        wait_for(upserts.flush())
        self._duckdb = database
        self._duckdb.register("given", given)

    def wanted(self, condition: str) -> list[int]:
        query = f"SELECT row FROM given WHERE {duckdb_text(condition)} ORDER BY row"
        return [number for (number,) in self._duckdb.execute(query).fetchall()]


@pytest.fixture(scope="module")
def corpus(tables: Tables) -> Iterator[Corpus]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        yield Corpus(tables, database)


@given(condition=conditions)
def test_duckdb_agrees(corpus: Corpus, condition: str) -> None:
    wanted = corpus.wanted(condition)
    for table in (corpus.log, corpus.keyed):
        found = table.to_arrow(["row"], filter=condition)
        assert sorted(found["row"].to_pylist()) == wanted, condition


def test_what_is_no_condition_is_refused(log_table: fluss.FlussTable) -> None:
    scan: Any = log_table.new_scan()
    for condition in (3, ["id = 1"], None, col("id")):
        with pytest.raises(TypeError, match="must be a Predicate such as"):
            scan.filter(condition)
    with pytest.raises(FlussError, match="there is no column 'idd'; did you mean 'id'"):
        log_table.to_arrow(filter="idd = 1")
