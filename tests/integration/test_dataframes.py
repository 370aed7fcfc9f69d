"""Tables are data frames: of pyarrow, pandas, polars and duckdb, as a whole or lazily, with what a query
needs pushed down. Shown by comparing with the same query on the same rows in memory, and by watching what is read."""

from __future__ import annotations

import datetime as dt
import io
import random
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded, libraries
from fluss.client.scan import frames
from fluss.client.scan.progress import ProgressBar
from fluss.client.scan.table_read import TableRead, TableReadOptions
from tests.integration.keyed_tables import Tables, tables_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("ratio", pa.float32()),
        ("name", pa.string()),
        ("is_new", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("seen", pa.timestamp("ms", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("clock", pa.time32("ms")),
    ]
)
ROW_COUNT = 300
MIDNIGHT = dt.datetime(2026, 1, 1)


def rows(seed: int = 0) -> pa.Table:
    """Return rows with few values, nulls, NaN and zeros of both signs, so that conditions hold for some."""
    rng = random.Random(seed)

    def some(*values: Any) -> list[Any]:
        return rng.choices([None, *values], k=ROW_COUNT)

    columns = {
        "id": list(range(ROW_COUNT)),
        "small": some(-3, 0, 1, 2, 3),
        "price": some(float("nan"), float("inf"), 0.0, -0.0, 0.1, 1.5, 2.0),
        "ratio": some(float("nan"), 0.1, 0.5, 2.0),
        "name": some("", "a", "ab", "b%", "b_c", "ä"),
        "is_new": some(True, False),
        "day": [MIDNIGHT.date() + dt.timedelta(rng.randrange(4)) for _ in range(ROW_COUNT)],
        "at": some(*(MIDNIGHT + dt.timedelta(hours=hour, microseconds=1) for hour in range(4))),
        "seen": some(*((MIDNIGHT + dt.timedelta(hours=hour)).replace(tzinfo=dt.UTC) for hour in range(4))),
        "amount": some(Decimal("1.50"), Decimal("2.00"), Decimal("-3.25")),
        "raw": some(b"", b"a", b"ab"),
        "clock": some(dt.time(1), dt.time(2, 30)),
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def own_tables(server: embedded.EmbeddedServer) -> Iterator[Tables]:
    with tables_of(server) as made:
        yield made


@pytest.fixture(scope="module")
def plain(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.connect(server.bootstrap_servers) as made:
        yield made


@pytest.fixture(scope="module")
def table(plain: blocking.FlussConnection, own_tables: Tables) -> blocking.FlussTable:
    made = plain.get_table(
        own_tables.create_log(
            SCHEMA, partition_keys=["day"], bucket_count=2, properties={"table.statistics.columns": "id,small"}
        ).table_path
    )
    for day in range(4):
        name = (MIDNIGHT.date() + dt.timedelta(day)).isoformat()
        plain.get_admin().create_partition(made.table_path, {"day": name})
    with made.new_append().create_writer() as writer:
        for batch in rows().to_batches(max_chunksize=50):
            writer.write_arrow(batch)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[TableReadOptions]:
    """What has been asked for in each read that begins."""
    begun: list[TableReadOptions] = []
    begin = TableRead.begin

    async def noted(cluster: Any, runtime: Any, info: Any, options: TableReadOptions) -> TableRead:
        begun.append(options)
        return await begin(cluster, runtime, info, options)

    monkeypatch.setattr(TableRead, "begin", noted)
    return begun


def same(frame: pl.DataFrame, expected: pl.DataFrame) -> None:
    key = expected.columns
    assert frame.schema == expected.schema
    assert frame.sort(key).equals(expected.sort(key)), (frame, expected)


# As a whole


def test_what_takes_arrow_takes_a_table_and_a_scan(table: blocking.FlussTable) -> None:
    expected = frames.polars_frame(rows())
    for source in (table, table.new_scan()):
        assert pa.table(source).schema.equals(SCHEMA)
        same(frames.polars_frame(pa.table(source)), expected)
        same(pl.DataFrame(source), expected)
        frame = pl.from_arrow(source)
        # From version 2 on, polars makes columns of all that is not pyarrow's; the guide says what to call instead.
        assert isinstance(frame, pl.Series) == (int(pl.__version__.split(".")[0]) >= 2)
        same(frame.struct.unnest() if isinstance(frame, pl.Series) else frame, expected)
    scan = table.new_scan().project_by_name(["id"]).filter("id < 2")
    assert sorted(pa.table(scan)["id"].to_pylist()) == [0, 1]
    orders = table
    assert duckdb.sql("select count(*), sum(id) from orders").fetchall() == [(300, 44850)], orders
    assert duckdb.sql("select max(id) from scan").fetchall() == [(1,)]


async def test_frames_in_the_three_styles(server: embedded.EmbeddedServer, table: blocking.FlussTable) -> None:
    expected = frames.polars_frame(rows().select(["id", "name"])).filter(pl.col("id") < 5)
    same(table.to_polars(["id", "name"], filter="id < 5"), expected)
    same(table.new_scan().project_by_name(["id", "name"]).filter(pl.col("id") < 5).to_polars(), expected)
    assert sorted(table.to_pandas(["id"], filter=pl.col("id").is_in([3, 5]))["id"]) == [3, 5]
    async with fluss.connect(server.bootstrap_servers) as connection:
        other = await connection.get_table(table.table_path)
        same(other.to_polars(["id", "name"], filter="id < 5"), expected)
        same(await other.to_polars_async(["id", "name"], filter="id < 5"), expected)
    async with aio.connect(server.bootstrap_servers) as waiting:
        third = await waiting.get_table(table.table_path)
        same(await third.to_polars(["id", "name"], filter="id < 5"), expected)
        same(third.scan_polars().filter(pl.col("id") < 5).select("id", "name").collect(), expected)
        assert third.to_duckdb().filter("id < 5").count("id").fetchall() == [(5,)]


def test_a_reader_of_a_table_holds_a_piece_of_it(table: blocking.FlussTable) -> None:
    reader = table.to_arrow_batch_reader(["id"], filter="id >= 290", limit=3)
    assert sum(batch.num_rows for batch in reader) == 3
    assert reader.schema.names == ["id"]


def test_tables_with_a_primary_key_are_frames_too(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    keyed = plain.get_table(own_tables.create(bucket_count=2).table_path)
    keyed.new_upsert().upsert_many([[1, "a"], [2, "b"], [1, "c"]]).wait()
    assert sorted(keyed.to_polars().rows()) == [(1, "c"), (2, "b")]
    assert keyed.scan_polars().filter(pl.col("id") == 1).select("name").collect().rows() == [("c",)]
    assert keyed.to_duckdb().filter("id = 2").project("name").fetchall() == [("b",)]
    assert pa.table(keyed).num_rows == 2


def test_a_table_without_rows_has_columns(plain: blocking.FlussConnection, own_tables: Tables) -> None:
    empty = plain.get_table(own_tables.create_log(SCHEMA).table_path)
    expected = frames.polars_frame(SCHEMA.empty_table())
    for frame in (
        empty.to_polars(),
        empty.scan_polars().collect(),
        empty.scan_polars().filter(pl.col("id") > 1).collect(),
    ):
        assert frame.equals(expected)
        assert frame.schema == expected.schema
    assert empty.to_duckdb().fetchall() == []


def test_a_library_that_is_missing_is_named(table: blocking.FlussTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(fluss.FlussError, match="A data frame needs polars: pip install polars"):
        table.to_polars()
    with pytest.raises(fluss.FlussError, match="A lazy frame needs polars: pip install polars"):
        table.scan_polars()
    with pytest.raises(fluss.FlussError, match="A relation needs duckdb: pip install duckdb"):
        table.to_duckdb()


def test_a_library_that_is_too_old_is_named(
    table: blocking.FlussTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("duckdb", "1.5.6"), ("polars", "1.9.0")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(fluss.FlussError, match=r"duckdb: 1.5.6 is installed, 2.0 or newer is needed: pip install --up"):
        table.to_duckdb()
    with pytest.raises(fluss.FlussError, match=r"polars: 1.9.0 is installed, 1.36 or newer is needed"):
        table.to_polars()


# Lazily

c = pl.col
CONDITIONS = [
    c("id") < 7,
    pl.lit(3) >= c("id"),
    c("small") == 2,
    c("small") != 2,
    ~(c("small") > 1),
    c("small").is_in([1, 2]),
    ~c("small").is_in([1, 2]),
    c("small").is_in([1, None]),
    c("small").is_between(0, 2, closed="left"),
    c("price") > 1.0,
    c("price") == float("nan"),
    c("price") <= 0,
    c("price").is_nan(),
    c("ratio") == 0.1,
    c("ratio") > 0.4,
    c("small") > c("price"),
    c("id") % 7 == 1,
    c("name") == "ab",
    c("name").str.starts_with("b_"),
    c("name").str.ends_with("%"),
    c("name").str.contains("b", literal=True),
    c("name").str.contains("^b"),
    c("name").is_in(["a", "ä"]),
    c("name") > "a",
    c("is_new"),
    ~c("is_new"),
    c("is_new").is_null(),
    c("name").is_not_null() & (c("id") < 100) & (c("name").str.to_uppercase() == "AB"),
    (c("small") == 1) | c("price").is_null(),
    (c("small") == 1) | (c("name").str.len_chars() == 2),
    c("day") == dt.date(2026, 1, 2),
    c("day").is_in([dt.date(2026, 1, 2), dt.date(2026, 1, 3)]),
    c("at") >= MIDNIGHT + dt.timedelta(hours=1),
    c("at") > MIDNIGHT,
    c("seen") == MIDNIGHT.replace(tzinfo=dt.UTC),
    c("amount") > Decimal("1.5"),
    c("raw") == b"ab",
    c("clock") < dt.time(2),
    c("small").eq_missing(None),
    pl.lit(True),
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_a_lazy_frame_returns_what_polars_does(table: blocking.FlussTable, condition: pl.Expr) -> None:
    expected = frames.polars_frame(rows())
    same(table.scan_polars().filter(condition).collect(), expected.filter(condition))


def test_columns_conditions_and_limits_reach_the_scan(
    table: blocking.FlussTable, reads: list[TableReadOptions]
) -> None:
    lazy = table.scan_polars()
    frame = lazy.filter((c("small") == 2) & (c("name").str.len_chars() > 1)).select("price").collect()
    assert frame.columns == ["price"]
    (options,) = reads
    assert sorted(options.columns.arrow_schema.names) == ["name", "price", "small"]
    assert options.columns.row_filter is not None
    assert options.columns.row_filter.columns == {"small"}

    reads.clear()
    assert lazy.select("id", "day").head(3).collect().height == 3
    assert reads[0].row_limit == 3
    assert lazy.head(5).filter(c("id") >= 0).collect().height == 5
    assert lazy.filter(c("day") == dt.date(2026, 1, 2)).select(pl.len()).collect().item() == len(
        [day for day in rows()["day"].to_pylist() if day == dt.date(2026, 1, 2)]
    )
    assert table.scan_polars(partitions="2026-01-02").select(pl.len()).collect().item() > 0
    with pytest.raises(fluss.FlussError, match="is partitioned by"):
        table.scan_polars(partitions={"name": "a"})


@pytest.mark.only_here("0.9 knows no statistics")
def test_conditions_reach_the_server(table: blocking.FlussTable, reads: list[TableReadOptions]) -> None:
    table.scan_polars().filter(c("small") == 2).collect()
    assert reads[0].predicate is not None, "servers may skip batches"


def test_a_relation_passes_columns_and_conditions_on(table: blocking.FlussTable, reads: list[TableReadOptions]) -> None:
    connection = duckdb.connect()
    relation = table.to_duckdb(connection)
    assert reads == [], "nothing is read before a query runs"
    connection.register("in_memory", rows())
    for query in (
        "select sum(id) from {} where small = 2",
        "select name, count(*) from {} where price > 1.0 and id < 200 group by name",
        "select count(*) from {}",
        "select id from {} where name in ('a', 'ab') or is_new",
        "select id from {} where day = DATE '2026-01-02' and \"at\" is not null",
        "select id from {} where amount > 1.5 and seen >= TIMESTAMPTZ '2026-01-01 01:00:00+00'",
        "select a.id from {} a join {} b on a.id = b.id where b.small < 0",
    ):
        ours = connection.sql(query.replace("{}", "relation")).fetchall()
        assert sorted(ours, key=repr) == sorted(connection.sql(query.replace("{}", "in_memory")).fetchall(), key=repr)
    first = reads[0]
    assert set(first.columns.arrow_schema.names) <= {"id", "small"}
    assert first.columns.row_filter is not None
    relation.create_view("orders")
    assert connection.execute("select min(id) from orders").fetchall() == [(0,)]
    connection.close()


# Progress


def test_progress_is_shown_where_somebody_sees_it(table: blocking.FlussTable, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, is_shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert table.to_arrow(progress=True).num_rows == 300
        assert table.to_polars(["id"], progress=True).height == 300
        shown = stream.getvalue().split("\n")[:-1]
        assert len(shown) == (2 if is_shown else 0)
        for line in shown:
            last = line.split("\r")[-1]
            assert last.startswith(f"reading {table.table_path} 100% ████████████████████████ 300 rows, ")


def test_a_bar_says_how_far_it_is() -> None:
    stream, now_s = io.StringIO(), 0.0
    bar = ProgressBar("reading", stream, lambda: now_s)
    bar.update(10, lambda: 0.25)
    now_s = 0.01
    bar.update(11, lambda: pytest.fail("too soon to be shown"))
    now_s = 2.0
    bar.update(20, lambda: None)
    bar.end(30, is_complete=True)
    assert stream.getvalue().split("\r")[1:] == [
        "reading  25% ██████░░░░░░░░░░░░░░░░░░ 10 rows, 0.0 s",
        "reading 20 rows, 2.0 s".ljust(52),
        "reading 100% ████████████████████████ 30 rows, 2.0 s\n",
    ]
