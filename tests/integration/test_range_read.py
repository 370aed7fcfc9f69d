"""Parts of tables that are read the same way at any time: ranges of logs, and the rows of a bucket at an offset.
Shown against a server process, while others write, after columns were added, and where the past is no longer there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, col, embedded
from fluss.client.bulk.ranges import LogRange, read_ranges
from fluss.client.bulk.rows_at import rows_at
from fluss.client.fluss_table import context_of
from fluss.client.kernel.runtime import wait_for
from fluss.client.scan.fetch.snapshot_fetcher import KvSession
from fluss.errors import ErrorCode
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import ScanKvResponse
from fluss.schema.table import TableBucket
from fluss.schema.types import DataTypes
from fluss.server.rpc.scans import KvScanner
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Tables, delete, in_background, tables_of, upsert, upsert_batch
from tests.java.cluster import JavaCluster
from tests.open_files import lasting_threads, open_files

LOG = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])
KEYED = pa.schema([("name", pa.string()), ("id", pa.int32()), ("price", pa.int64())])


class Served(ServerProcess):
    """A server process that ``Tables`` can use."""

    def config(self) -> fluss.Config:
        return fluss.Config({"bootstrap.servers": self.bootstrap_servers, "scanner.log.fetch.wait-max-time-ms": 50})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, java_cluster: JavaCluster | None) -> Iterator[Tables]:
    if java_cluster is not None:
        with tables_of(java_cluster) as made:
            yield made
        return
    with Served(tmp_path_factory.mktemp("server"), "-D", "durability=os") as server, tables_of(server) as made:
        yield made


def first(table: fluss.FlussTable) -> TableBucket:
    return TableBucket(table.get_table_info().table_id, 0)


def append(table: fluss.FlussTable, ids: range) -> None:
    """Append rows as one batch."""
    columns = [pa.array(ids, pa.int64()), pa.array([f"n{each}" for each in ids]), pa.array([each / 2 for each in ids])]
    writer = table.new_append().create_writer()
    writer.write_arrow_batch(pa.RecordBatch.from_arrays(columns, schema=table.arrow_schema))
    wait_for(writer.flush())


def ranged(table: fluss.FlussTable, *ranges: tuple[int, int], **options: Any) -> pa.Table:
    runs = list(read_ranges(table, [LogRange(first(table), *each) for each in ranges], **options))
    return pa.Table.from_batches([run.batch for run in runs])


# Ranges of logs


def test_a_range_has_exactly_its_records_wherever_batches_begin_and_end(tables: Tables) -> None:
    table = tables.create(LOG, ())
    for start in range(0, 60, 10):
        append(table, range(start, start + 10))
    for start, stop in ((0, 60), (0, 1), (59, 60), (3, 7), (9, 11), (10, 20), (15, 45), (20, 21)):
        runs = list(read_ranges(table, [LogRange(first(table), start, stop)]))
        assert [row["id"] for run in runs for row in run.rows()] == list(range(start, stop))
        assert [run.base_offset for run in runs] == [start, *range(start - start % 10 + 10, stop, 10)]
    assert list(read_ranges(table, [LogRange(first(table), 7, 7)])) == []
    assert list(read_ranges(table, [])) == []


def test_ranges_of_one_bucket_are_read_one_after_the_other(tables: Tables) -> None:
    table = tables.create(LOG, ())
    append(table, range(100))
    found = ranged(table, (90, 95), (0, 3), (50, 50), (2, 5))
    assert found["id"].to_pylist() == [*range(90, 95), *range(3), *range(2, 5)]


def test_columns_are_cut_out_by_the_server_and_have_the_order_asked_for(tables: Tables) -> None:
    table = tables.create(LOG, ())
    append(table, range(20))
    append(table, range(20, 40))
    found = ranged(table, (15, 25), columns=["price", "id"])
    assert found.column_names == ["price", "id"]
    assert found["price"].to_pylist() == [each / 2 for each in range(15, 25)]
    with pytest.raises(FlussError, match=r"Column 'nobody' of .* not found; columns are"):
        read_ranges(table, [LogRange(first(table), 0, 1)], columns=["nobody"])


@pytest.mark.only_here("0.9 knows no statistics, so it leaves nothing out")
def test_batches_in_which_nothing_matches_are_left_out_and_the_range_still_ends(tables: Tables) -> None:
    table = tables.create(LOG, (), properties={"table.statistics.columns": "*"})
    for start in range(0, 50, 10):
        append(table, range(start, start + 10))
    found = ranged(table, (5, 50), predicate=col("id") == 23)
    assert found["id"].to_pylist() == list(range(20, 30))
    assert list(read_ranges(table, [LogRange(first(table), 0, 50)], predicate=col("id") == 1000)) == []


def test_rows_have_the_columns_of_now_whenever_they_were_written(tables: Tables) -> None:
    old = tables.create(LOG, ())
    append(old, range(10))
    wait_for(tables.admin.alter_table(old.table_path, add_columns=[fluss.Column("extra", DataTypes.int())]))
    table = tables.again(old)
    writer = table.new_append().create_writer()
    writer.append([10, "n10", 5.0, 7])
    wait_for(writer.flush())
    assert ranged(table, (8, 11))["extra"].to_pylist() == [None, None, 7]
    assert ranged(table, (9, 11), columns=["extra", "id"]).to_pylist() == [
        {"extra": None, "id": 9},
        {"extra": 7, "id": 10},
    ]
    # Who has not heard of the new column reads on without it.
    assert ranged(old, (9, 11))["id"].to_pylist() == [9, 10]


@pytest.mark.only_here("there, servers hear one after the other of what was dropped, and answer until then")
def test_buckets_of_partitions_are_read_together(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = tables.create(schema, (), bucket_count=2, partition_keys=["day"])
    for day in ("mon", "tue"):
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
        writer = table.new_append().create_writer()
        for each in range(50):
            writer.append([each, day])
        wait_for(writer.flush())
    info = table.get_table_info()
    partitions = wait_for(tables.admin.list_partition_infos(table.table_path))
    ranges, expected = [], 0
    for partition in partitions:
        ends = wait_for(
            tables.admin.list_partition_offsets(table.table_path, partition.partition_name, [0, 1], "latest")
        )
        for bucket_id, end in ends.items():
            bucket = TableBucket.with_partition(info.table_id, partition.partition_id, bucket_id)
            ranges.append(LogRange(bucket, min(1, end), end))
            expected += max(end - 1, 0)
    runs = list(read_ranges(table, ranges))
    assert sum(run.count for run in runs) == expected
    assert {run.bucket for run in runs} == {each.bucket for each in ranges if each.start < each.stop}
    wait_for(tables.admin.drop_partition(table.table_path, {"day": "mon"}))
    with pytest.raises(FlussError, match=r"partition|Partition"):
        list(read_ranges(table, ranges))


def test_a_range_does_not_change_while_the_log_grows(tables: Tables) -> None:
    table = tables.create(LOG, ())
    append(table, range(1000))

    def write(is_over: Callable[[], bool]) -> None:
        next_id = 1000
        while not is_over():
            append(table, range(next_id, next_id + 100))
            next_id += 100

    with in_background(write):
        for _ in range(10):
            assert ranged(table, (300, 1000))["id"].to_pylist() == list(range(300, 1000))


def test_nothing_behind_the_end_of_a_range_is_fetched(tables: Tables) -> None:
    table = tables.create(LOG, ())
    for start in range(0, 20_000, 1000):
        append(table, range(start, start + 1000))
    asked: list[ApiKey] = []
    request = context_of(table).cluster.request

    async def counted(server_id: int, api: Any, *args: Any, **options: Any) -> Any:
        asked.append(api.key)
        return await request(server_id, api, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_of(table).cluster, "request", counted)
        assert ranged(table, (0, 1500)).num_rows == 1500
        time.sleep(0.1)
    assert asked.count(ApiKey.FETCH_LOG) == 1


def test_an_iterator_that_is_closed_early_leaves_nothing_behind(tables: Tables) -> None:
    table = tables.create(LOG, ())
    for start in range(0, 20_000, 1000):
        append(table, range(start, start + 1000))
    keyed = tables.create(KEYED, bucket_count=1)
    upsert_batch(keyed, name=["x" * 100] * 20_000, id=list(range(20_000)), price=[1] * 20_000)
    assert ranged(table, (0, 20_000)).num_rows == 20_000
    threads, sockets = lasting_threads(), socket_count()
    for _ in range(3):
        runs = read_ranges(table, [LogRange(first(table), 0, 20_000)])
        next(runs)
        runs.close()
        rows = rows_at(keyed, first(keyed), 20_000)
        next(rows)
        rows.close()
    eventually(lambda: lasting_threads() <= threads and socket_count() <= sockets)


def socket_count() -> int:
    return sum(link.startswith("socket:") for link in open_files())


@pytest.fixture(scope="module")
def expiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Tables of a server whose logs lose their oldest records as soon as that is allowed."""
    options = ["-D", "durability=os", "-D", "log.segment.file-size=120b", "-D", "log.retention.check-interval=30ms"]
    with Served(tmp_path_factory.mktemp("expiring"), *options) as server, tables_of(server) as made:
        yield made


def expire(tables: Tables, table: fluss.FlussTable) -> int:
    """Let the oldest records of a bucket go, and return the first offset that is left."""
    wait_for(tables.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "50ms"}))
    start = eventually(lambda: offset(tables, table, "earliest"))
    time.sleep(0.2)
    wait_for(tables.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "0ms"}))
    return max(start, offset(tables, table, "earliest"))


def offset(tables: Tables, table: fluss.FlussTable, which: str = "latest") -> int:
    return wait_for(tables.admin.list_offsets(table.table_path, [0], which))[0]


def test_records_that_have_expired_are_an_error_and_not_left_out(expiring: Tables) -> None:
    table = expiring.create(LOG, ())
    for each in range(5):
        append(table, range(each, each + 1))
    start = expire(expiring, table)
    with pytest.raises(FlussError, match=f"Offset 0 of .* is out of range.* {start} to 5") as caught:
        ranged(table, (0, 5))
    assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert ranged(table, (start, 5))["id"].to_pylist() == list(range(start, 5))


def test_buckets_of_another_table_are_refused(tables: Tables) -> None:
    table, other = tables.create(LOG, ()), tables.create(LOG, ())
    with pytest.raises(FlussError, match="belongs to another table"):
        read_ranges(table, [LogRange(first(other), 0, 1)])


# Rows at an offset


def rows_of(table: fluss.FlussTable, at: int, *, columns: list[str] | None = None, bucket: int = 0) -> pa.Table:
    schema = table.arrow_schema if columns is None else pa.schema([table.arrow_schema.field(name) for name in columns])
    found = rows_at(table, TableBucket(table.get_table_info().table_id, bucket), at, columns=columns)
    return pa.Table.from_batches(found, schema=schema)


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


class History:
    """Makes random changes to a table, and remembers the rows there were at each offset."""

    def __init__(self, tables: Tables, table: fluss.FlussTable, seed: int) -> None:
        self._tables = tables
        self._table = table
        self._rng = random.Random(seed)
        self._rows: dict[int, dict[str, Any]] = {}
        self.at: dict[int, list[dict[str, Any]]] = {}

    def change(self, *, deletes: bool = True) -> None:
        for number in self._rng.sample(range(40), 12):
            if deletes and number in self._rows and self._rng.random() < 0.4:
                delete(self._table, [{"id": number}])
                del self._rows[number]
            else:
                row = {"name": f"n{self._rng.random():.3f}", "id": number, "price": self._rng.randrange(1000)}
                upsert(self._table, [row])
                self._rows[number] = row
        self.at[offset(self._tables, self._table)] = sorted(self._rows.values(), key=lambda row: row["id"])


@pytest.mark.parametrize("image", ["FULL", "WAL"])
def test_every_offset_has_its_rows_whenever_they_are_read(tables: Tables, image: str) -> None:
    table = tables.create(KEYED, bucket_count=1, properties={"table.changelog.image": image})
    history = History(tables, table, seed=7)
    for _ in range(5):
        history.change()
        for at, expected in history.at.items():
            assert by_id(rows_of(table, at)) == expected
    assert rows_of(table, 0).num_rows == 0
    at, expected = list(history.at.items())[2]
    found = rows_of(table, at, columns=["price", "name"])
    assert found.column_names == ["price", "name"]
    wanted = [{"price": row["price"], "name": row["name"]} for row in expected]
    assert sorted(found.to_pylist(), key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("engine", ["first_row", "versioned", "aggregation"])
def test_merge_engines_have_their_rows_at_every_offset(tables: Tables, engine: str) -> None:
    properties = {"table.merge-engine": engine}
    if engine == "versioned":
        properties["table.merge-engine.versioned.ver-column"] = "price"
    builder = fluss.Schema.builder().column("name", DataTypes.string()).column("id", DataTypes.int())
    if engine == "aggregation":
        builder = builder.column("price", DataTypes.bigint(), aggregation=fluss.AggFunction("sum"))
    else:
        builder = builder.column("price", DataTypes.bigint())
    table = tables.create(builder.primary_key(["id"]).build(), bucket_count=1, properties=properties)
    rng = random.Random(3)
    moments: dict[int, list[dict[str, Any]]] = {}
    for _ in range(6):
        upsert(table, [[f"n{rng.random():.3f}", rng.randrange(30), rng.randrange(100)] for _ in range(20)])
        moments[offset(tables, table)] = by_id(table.to_arrow())
    for at, expected in moments.items():
        assert by_id(rows_of(table, at)) == expected
    assert len({str(rows) for rows in moments.values()}) > 1


def test_rows_stay_the_same_while_others_write(tables: Tables) -> None:
    table = tables.create(KEYED, bucket_count=1)
    count = 20_000
    upsert_batch(table, name=["x"] * count, id=list(range(count)), price=[0] * count)
    at = offset(tables, table)
    expected = [{"name": "x", "id": number, "price": 0} for number in range(count)]

    def write(is_over: Callable[[], bool]) -> None:
        rng = np.random.default_rng(1)
        version = 1
        while not is_over():
            ids = rng.choice(count + 500, 200, replace=False).tolist()
            upsert_batch(table, name=["y"] * 200, id=ids, price=[version] * 200)
            delete(table, [{"id": number} for number in rng.choice(count, 20, replace=False).tolist()])
            version += 1

    with in_background(write):
        for _ in range(5):
            assert by_id(rows_of(table, at)) == expected
    assert by_id(rows_of(table, at)) == expected
    assert rows_of(table, at, columns=["price"])["price"].to_pylist() == [0] * count


def test_buckets_and_partitions_have_their_own_rows(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), ("day", pa.string()), ("price", pa.int64())])
    table = tables.create(schema, ["id", "day"], bucket_count=3, partition_keys=["day"])
    for day in ("mon", "tue", "wed"):
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
    upsert(table, [[number, day, 1] for number in range(50) for day in ("mon", "tue")])
    info = table.get_table_info()
    ends = {
        TableBucket.with_partition(info.table_id, partition.partition_id, bucket_id): end
        for partition in wait_for(tables.admin.list_partition_infos(table.table_path))
        for bucket_id, end in wait_for(
            tables.admin.list_partition_offsets(table.table_path, partition.partition_name, [0, 1, 2], "latest")
        ).items()
    }
    upsert(table, [[number, "mon", 2] for number in range(20, 70)])
    upsert(table, [[number, "wed", 2] for number in range(10)])
    delete(table, [{"id": number, "day": "tue"} for number in range(25)])
    found = [row for bucket, end in ends.items() for batch in rows_at(table, bucket, end) for row in batch.to_pylist()]
    expected = [{"id": number, "day": day, "price": 1} for number in range(50) for day in ("mon", "tue")]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_rows_from_before_a_column_was_added_have_it_without_a_value(tables: Tables) -> None:
    old = tables.create(KEYED, bucket_count=1)
    upsert(old, [["a", 1, 10], ["b", 2, 20]])
    at = offset(tables, old)
    wait_for(tables.admin.alter_table(old.table_path, add_columns=[fluss.Column("extra", DataTypes.int())]))
    table = tables.again(old)
    upsert(table, [["c", 2, 30, 7], ["d", 3, 40, 8]])
    assert rows_of(table, at, columns=["id", "extra"]).sort_by("id").to_pylist() == [
        {"id": 1, "extra": None},
        {"id": 2, "extra": None},
    ]
    assert by_id(rows_of(table, offset(tables, table), columns=["extra", "id"]))[1] == {"extra": 7, "id": 2}


def test_a_log_table_has_no_rows_at_an_offset(tables: Tables) -> None:
    table = tables.create(LOG, ())
    with pytest.raises(FlussError, match="is a log table"):
        rows_at(table, first(table), 0)


def test_rows_whose_later_changes_have_expired_cannot_be_told(expiring: Tables) -> None:
    for image, text in (("FULL", "changes since then are no longer complete"), ("WAL", "are no longer there")):
        table = expiring.create(KEYED, bucket_count=1, properties={"table.changelog.image": image})
        upsert(table, [["a", 1, 1]])
        at = offset(expiring, table)
        for price in range(2, 6):
            upsert(table, [["a", 1, price]])
        if image == "WAL":
            at = offset(expiring, table) - 1
        expire(expiring, table)
        with pytest.raises(FlussError, match=text):
            rows_of(table, at)
        assert rows_of(table, offset(expiring, table))["price"].to_pylist() == [5]


def test_changes_are_undone_also_where_older_ones_have_expired(expiring: Tables) -> None:
    table = expiring.create(KEYED, bucket_count=1)
    for price in range(5):
        upsert(table, [["a", 1, price], ["b", 2, price]])
    assert expire(expiring, table) > 0
    at = offset(expiring, table)
    for price in range(10, 13):
        upsert(table, [["a", 1, price], ["c", 3, price]])
    delete(table, [{"id": 2}])
    upsert(table, [["b", 2, 99]])
    assert by_id(rows_of(table, at)) == [{"name": "a", "id": 1, "price": 4}, {"name": "b", "id": 2, "price": 4}]


def test_servers_without_scans_of_rows_give_the_same_rows(tables_without_scans: Tables) -> None:
    table = tables_without_scans.create(KEYED, bucket_count=1)
    history = History(tables_without_scans, table, seed=8)
    for _ in range(3):
        history.change()
    for at, expected in history.at.items():
        assert by_id(rows_of(table, at)) == expected


def test_a_server_whose_rows_are_behind_its_changelog_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica may have changes in its log and not yet in its rows; here it goes on answering with old rows."""
    scan_kv = KvScanner.scan_kv
    old_answers: list[ScanKvResponse] = []

    async def answer(self: KvScanner, context: Any, request: Any) -> Any:
        return old_answers[0] if old_answers else await scan_kv(self, context, request)

    monkeypatch.setattr(KvScanner, "scan_kv", answer)
    with embedded.start({"durability": "os"}) as server, tables_of(server) as made:
        table = made.create(KEYED, bucket_count=1)
        history = History(made, table, seed=9)
        history.change()
        session = KvSession(context_of(table).cluster, 0, first(table))
        records = context_of(table).runtime.run(session.open(bytes_max=1 << 20))
        assert not session.has_more
        old_answers.append(ScanKvResponse(records=bytes(records), log_offset=session.log_offset))
        for _ in range(3):
            history.change()
        for at, expected in history.at.items():
            assert by_id(rows_of(table, at)) == expected
