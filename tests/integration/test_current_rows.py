"""One call reads the rows that a primary-key table has now: of one moment in each bucket, none missing or double.
Shown against real servers, by scans of rows and by all changes, while others write, and while sessions end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import Column, FlussError, TableScan, embedded
from fluss.client.kernel.runtime import run_blocking, wait_for
from fluss.client.scan.table_read import TableRead
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.integration.every_type import FULL_ROW, schema_of_every_type
from tests.integration.keyed_tables import Tables, by_key, delete, in_background, tables_of, upsert, upsert_batch

SMALL_ANSWERS = {"scanner.log.fetch.max-bytes": 20_000, "scanner.log.fetch.max-bytes-for-bucket": 5_000}


@pytest.fixture(params=["scan", "changes"])
def both(request: pytest.FixtureRequest, tables: Tables, tables_without_scans: Tables) -> Tables:
    """Tables that are read by scans of rows, then tables that are read by all their changes."""
    return tables if request.param == "scan" else tables_without_scans


def reads(scan: Callable[[], TableScan]) -> Iterator[pa.Table]:
    """Read in every way there is."""
    yield scan().to_arrow()
    yield wait_for(scan().to_arrow_async())
    yield scan().to_arrow_batch_reader().read_all()
    yield pa.Table.from_pandas(scan().to_pandas(), preserve_index=False)


def test_rows_are_those_after_all_changes(both: Tables) -> None:
    table = both.create(bucket_count=3)
    expected: dict[int, dict[str, Any]] = {}
    rng = random.Random(1)
    for round_number in range(4):
        ids = rng.sample(range(200), 120)
        upsert(table, [[number, f"r{round_number}"] for number in ids])
        expected |= {number: {"id": number, "name": f"r{round_number}"} for number in ids}
        gone = rng.sample(sorted(expected), 30)
        delete(table, [[number] for number in gone])
        for number in gone:
            del expected[number]
    for found in reads(table.new_scan):
        assert by_key(found, "id") == expected
    assert table.new_scan().to_arrow().schema == table.arrow_schema
    assert wait_for(both.admin.get_table_stats(table.table_path)).row_count == len(expected)


def test_an_empty_table_has_its_columns(both: Tables) -> None:
    table = both.create(bucket_count=3)
    found = table.new_scan().to_arrow()
    assert (found.num_rows, found.schema) == (0, table.arrow_schema)
    upsert(table, [[1, "a"]])
    delete(table, [[1]])
    for found in reads(table.new_scan):
        assert found.num_rows == 0
    partitioned = both.create(
        pa.schema([("id", pa.int32()), ("day", pa.string())]), ["id", "day"], partition_keys=["day"]
    )
    assert partitioned.new_scan().to_arrow().num_rows == 0


def test_columns_are_chosen_and_rows_limited(both: Tables) -> None:
    table = both.create(pa.schema([("a", pa.string()), ("id", pa.int32()), ("b", pa.float64())]), bucket_count=2)
    upsert(table, [[f"a{number}", number, number / 2] for number in range(100)])
    without_key = table.new_scan().project_by_name(["b", "a"]).to_arrow()
    assert without_key.column_names == ["b", "a"]
    assert sorted(without_key["b"].to_pylist()) == [number / 2 for number in range(100)]
    for limit in (1, 37, 1000):
        found = table.new_scan().project([1]).limit(limit).to_arrow()
        assert found.num_rows == min(limit, 100)
        assert len(set(found["id"].to_pylist())) == found.num_rows


def test_partitions_are_read_together_or_by_choice(both: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), ("day", pa.string()), ("region", pa.string())])
    table = both.create(schema, ["id", "day", "region"], bucket_count=3, partition_keys=["day", "region"])
    expected = []
    for day in ("mon", "tue"):
        for region in ("EU", "US"):
            wait_for(both.admin.create_partition(table.table_path, {"day": day, "region": region}))
            rows = [{"id": number, "day": day, "region": region} for number in range(20)]
            upsert(table, rows)
            expected += rows

    def found(partitions: Any = None) -> list[dict[str, Any]]:
        return sorted(table.new_scan().to_arrow(partitions).to_pylist(), key=str)

    assert found() == sorted(expected, key=str)
    assert found("tue$US") == sorted((row for row in expected if row["day"] + row["region"] == "tueUS"), key=str)
    assert found([{"day": "mon"}]) == sorted((row for row in expected if row["day"] == "mon"), key=str)
    with pytest.raises(FlussError, match=r"no partition 'wed\$US'"):
        found("wed$US")


EVERY_TYPE = schema_of_every_type(Column("id", DataTypes.bigint()), primary_keys=["id"])


def rows_of_every_type() -> pa.RecordBatch:
    """Return a row with values, one with null, and the first one backwards in time."""
    nulls = dict.fromkeys(FULL_ROW)
    early = {"date": date(1, 1, 1), "timestamp": datetime(1, 1, 1), "timestamp_ltz": datetime(1, 1, 1, tzinfo=UTC)}
    rows = [{"id": -1, **FULL_ROW}, {"id": 0, **nulls}, {"id": 2**62, **FULL_ROW, **early}]
    return pa.RecordBatch.from_pylist(rows, schema=EVERY_TYPE.to_arrow())


@pytest.mark.parametrize(
    "kv_format",
    ["compacted", pytest.param("indexed", marks=pytest.mark.only_here("0.9 fails at rows of this format"))],
)
def test_every_type_comes_back_as_it_was_written(both: Tables, kv_format: str) -> None:
    table = both.create(EVERY_TYPE, bucket_count=1, kv_format=kv_format)
    writer = table.new_upsert().create_writer()
    writer.upsert_arrow(rows_of_every_type())
    wait_for(writer.flush())
    expected = pa.Table.from_batches([rows_of_every_type()]).sort_by("id")
    found = table.new_scan().to_arrow()
    assert found.schema == expected.schema
    assert found.sort_by("id").to_pylist() == expected.to_pylist()
    nested = table.new_scan().project_by_name(["row", "map", "array"]).to_arrow()
    assert sorted(map(str, nested.to_pylist())) == sorted(map(str, expected.select(nested.column_names).to_pylist()))


def test_rows_written_before_a_column_was_added_have_it_as_null(both: Tables) -> None:
    table = both.create(bucket_count=2)
    upsert(table, [[number, "old"] for number in range(10)])
    wait_for(both.admin.alter_table(table.table_path, add_columns=[pa.field("price", pa.float64())]))
    newer = both.again(table)
    upsert(newer, [[number, "new", 1.5] for number in range(5, 15)])
    rows = by_key(newer.new_scan().to_arrow(), "id")
    assert [rows[number]["price"] for number in range(15)] == [None] * 5 + [1.5] * 10
    assert newer.new_scan().project_by_name(["price"]).to_arrow().num_rows == 15
    # Who knows the older schema goes on with it.
    rows = by_key(table.new_scan().to_arrow(), "id")
    assert rows[0] == {"id": 0, "name": "old"}
    assert rows[14] == {"id": 14, "name": "new"}


def test_a_whole_log_table_is_read(both: Tables) -> None:
    path = fluss.TablePath("fluss", f"log_{time.monotonic_ns()}")
    schema = fluss.Schema(pa.schema([("id", pa.int32())]))
    wait_for(both.admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=3)))
    table = wait_for(both.connection.get_table(path))
    assert table.new_scan().to_arrow().num_rows == 0
    writer = table.new_append().create_writer()
    for number in range(100):
        writer.append([number])
    wait_for(writer.flush())
    for found in reads(table.new_scan):
        assert sorted(found["id"].to_pylist()) == list(range(100))


# What is consistent


@pytest.mark.only_here("twelve reads by changes are over there before the first write is")
def test_a_bucket_is_seen_between_two_writes_and_never_within_one(server: embedded.EmbeddedServer) -> None:
    """All rows are written with the same number, again and again: who sees two numbers has seen half a write."""
    row_count = 4000
    with tables_of(server) as writing, tables_of(server, **SMALL_ANSWERS) as reading:
        table = writing.create(pa.schema([("id", pa.int32()), ("round", pa.int64())]), bucket_count=1)
        ids = list(range(row_count))
        upsert_batch(table, id=ids, round=[0] * row_count)
        acknowledged = [0]

        def write(is_over: Callable[[], bool]) -> None:
            while not is_over():
                upsert_batch(table, id=ids, round=[acknowledged[0] + 1] * row_count)
                acknowledged[0] += 1

        reader = wait_for(reading.connection.get_table(table.table_path))
        with in_background(write):
            seen = []
            for _ in range(12):
                at_least = acknowledged[0]
                found = reader.new_scan().to_arrow()
                assert found.num_rows == row_count
                (number,) = set(found["round"].to_pylist())
                assert number >= at_least, "an acknowledged write is missing"
                seen.append(number)
        assert seen == sorted(seen)
        assert seen[-1] > seen[0], "nothing was written meanwhile"


def test_keys_come_once_while_rows_come_and_go(server: embedded.EmbeddedServer) -> None:
    with tables_of(server) as writing, tables_of(server, **SMALL_ANSWERS) as reading:
        table = writing.create(bucket_count=4)
        upsert(table, [[number, "first"] for number in range(2000)])

        def write(is_over: Callable[[], bool]) -> None:
            rng = random.Random(2)
            while not is_over():
                upsert(table, [[rng.randrange(1000, 4000), "later"] for _ in range(200)])
                delete(table, [[rng.randrange(1000, 4000)] for _ in range(200)])

        reader = wait_for(reading.connection.get_table(table.table_path))
        with in_background(write):
            for _ in range(8):
                rows = by_key(reader.new_scan().to_arrow(), "id")
                # These are never touched.
                assert all(rows[number]["name"] == "first" for number in range(1000))


# Sessions and servers that end


def read_rest(reader: pa.RecordBatchReader, seen: list[int]) -> None:
    for batch in reader:
        seen += batch["id"].to_pylist()


def begun_read(table: fluss.FlussTable) -> TableRead:
    """Begin a read of the whole table, and return it when the first rows have come."""
    scan = table.new_scan()
    options = scan._read_options(None)
    read = scan._runtime.run(TableRead.begin(scan._cluster, scan._runtime, scan._info, options))
    # A step may have nothing yet.
    read._keep(eventually(lambda: run_blocking(read._read.step()), "the first rows"))
    return read


def ids_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def rows_in_time(table: fluss.FlussTable) -> int | None:
    """Return how many rows there are, or nothing if the machine paused for longer than a session may."""
    try:
        return table.new_scan().to_arrow().num_rows
    except FlussError as error:
        if error.error_code != fluss.ErrorCode.SCANNER_EXPIRED:
            raise
        return None


def test_a_reader_that_pauses_for_too_long_is_told_so() -> None:
    options = {"durability": "os", "kv.scanner.ttl": "2 s", "kv.scanner.expiration-interval": "50 ms"}
    with embedded.start(options) as server, tables_of(server, **SMALL_ANSWERS) as tables:
        table = tables.create(bucket_count=1)
        upsert_batch(table, id=list(range(40_000)), name=["x" * 20] * 40_000)
        reader = table.new_scan().to_arrow_batch_reader()
        seen = reader.read_next_batch()["id"].to_pylist()
        time.sleep(2.5)
        with pytest.raises(FlussError, match="read again") as error:
            read_rest(reader, seen)
        assert error.value.error_code == fluss.ErrorCode.SCANNER_EXPIRED
        assert len(seen) == len(set(seen)) < 40_000
        # A read that does not pause is not disturbed; on a busy machine it may not get its turns in time.
        eventually(lambda: rows_in_time(table) == 40_000)


def test_sessions_that_expire_while_nobody_reads_are_opened_again() -> None:
    options = {"durability": "os", "kv.scanner.ttl": "2 s", "kv.scanner.expiration-interval": "50 ms"}
    with embedded.start(options) as server, tables_of(server, **SMALL_ANSWERS) as tables:
        table = tables.create(bucket_count=12)
        upsert_batch(table, id=list(range(40_000)), name=["x" * 20] * 40_000)
        read = begun_read(table)
        time.sleep(2.5)
        # Some buckets have been read in part, others have only been opened, or not even that.
        assert sorted(ids_of(run_blocking(read.all_rows()))) == list(range(40_000))


def test_more_buckets_than_sessions_are_read_one_after_the_other() -> None:
    options = {"durability": "os", "kv.scanner.max-per-server": 3, "kv.scanner.max-per-bucket": 1}
    with embedded.start(options) as server, tables_of(server, **SMALL_ANSWERS) as tables:
        table = tables.create(bucket_count=8)
        upsert_batch(table, id=list(range(4000)), name=["x" * 20] * 4000)
        assert sorted(table.new_scan().to_arrow()["id"].to_pylist()) == list(range(4000))


def test_a_read_survives_a_restart_of_the_server_and_doubles_nothing() -> None:
    with (
        embedded.start({"durability": "os"}) as server,
        tables_of(server, **SMALL_ANSWERS) as tables,
    ):
        table = tables.create(bucket_count=2)
        upsert_batch(table, id=list(range(40_000)), name=["x" * 20] * 40_000)
        read = begun_read(table)
        server.restart()
        assert sorted(ids_of(run_blocking(read.all_rows()))) == list(range(40_000))
