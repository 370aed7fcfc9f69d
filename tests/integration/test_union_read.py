"""A read of a whole table sees its lake and what is newer in Fluss as one: the rows that Fluss alone would have."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import fluss
from fluss import AggFunction, DataTypes, FlussError, FlussTable, OffsetSpec, TableBucket, col, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.client.scan import union_plan, union_read
from fluss.testing.waiting import eventually
from tests.integration.every_type import FULL_ROW, schema_of_every_type
from tests.integration.filter_corpus import CORPUS_SCHEMA, conditions, random_rows
from tests.integration.key_model import ENGINES, Engine
from tests.integration.keyed_tables import Tables, by_key, delete, tables_of, upsert

pytest.importorskip("pyiceberg", reason="a lake needs pyiceberg")

from fluss.client.scan.known_keys import KnownKeys
from fluss.lake import dictionaries  # needs pyiceberg
from fluss.lake.fluss_rows import LakeRows
from tests.lake_tiering import lake_table_of, tier  # needs pyiceberg

LAKE = {"table.datalake.enabled": "true"}
SLOW_SEEDS = range(int(os.environ.get("EXAMPLES", "40")))


@pytest.fixture(scope="module")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    directory = tmp_path_factory.mktemp("union")
    options = {
        "datalake.format": "iceberg",
        "datalake.iceberg.warehouse": str(directory / "warehouse"),
        "durability": "os",
        "log.segment.file-size": "2kb",
        "log.retention.check-interval": "20ms",
    }
    with embedded.start(options, data_dir=directory / "data") as running:
        yield running


@pytest.fixture(scope="module")
def union(lake_server: embedded.EmbeddedServer) -> Iterator[Tables]:
    """Tables whose reads see the lake."""
    with tables_of(lake_server) as made:
        yield made


@pytest.fixture(scope="module")
def plain(lake_server: embedded.EmbeddedServer) -> Iterator[Tables]:
    """The same tables, read from Fluss alone."""
    with tables_of(lake_server, **{"client.lake.read": "off"}) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["strings", "dictionaries"])
def is_by_dictionary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have strings read as numbers of dictionary entries or not; by themselves these files are too small for it."""
    if request.param:
        monkeypatch.setattr(dictionaries, "_ROWS_MIN", 0)
        monkeypatch.setattr(dictionaries, "_LENGTH_BYTES", 1 << 20)


def append(table: FlussTable, rows: pa.Table) -> None:
    writer = table.new_append().create_writer()
    writer.write_arrow(rows)
    wait_for(writer.flush())


def ids(count: int, first: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int32()),
            "name": [f"n{i}" for i in range(first, first + count)],
        }
    )


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))  # type: ignore[arg-type]


def some(rng: random.Random) -> Callable[[TableBucket, int, int], int]:
    """Tier buckets up to random points, some of them not at all."""
    return lambda _bucket, start, stop: rng.choice([start, rng.randint(start, stop), stop])


def every_read(table: FlussTable) -> Iterator[pa.Table]:
    """Read in every way there is."""
    yield table.to_arrow()
    yield asyncio.run(table.to_arrow_async())
    yield table.to_arrow_batch_reader().read_all()
    yield pa.table(table)
    yield pa.Table.from_pandas(table.to_pandas(), schema=table.arrow_schema, preserve_index=False)
    yield table.to_polars().to_arrow().cast(table.arrow_schema)
    yield table.scan_polars().collect().to_arrow().cast(table.arrow_schema)
    connection = duckdb.connect()
    yield table.to_duckdb(connection).to_arrow_table().cast(table.arrow_schema)


def test_every_read_of_a_log_table_sees_the_lake_and_the_log(union: Tables, plain: Tables) -> None:
    table = union.create_log(bucket_count=3, properties=LAKE)
    append(table, ids(500))
    tier(table)
    append(table, ids(300, 500))
    tier(table, lambda bucket, start, stop: stop if bucket.bucket_id else (start + stop) // 2)
    append(table, ids(100, 800))
    expected = sorted_rows(plain.again(table).to_arrow())
    assert len(expected) == 900
    for found in every_read(table):
        assert found.schema.equals(table.arrow_schema)
        assert sorted_rows(found) == expected
    assert table.to_arrow(["name", "id"]).column_names == ["name", "id"]
    assert table.to_arrow(limit=7).num_rows == 7
    assert table.to_arrow(limit=899).num_rows == 899
    assert sorted_rows(table.to_arrow(limit=100_001)) == expected
    scan = table.new_scan().project([1, 0, 1]).filter(col("id") >= 790)
    assert scan.to_arrow().num_columns == 3
    assert scan.to_arrow().num_rows == 110


def test_rows_of_a_log_bucket_stay_in_their_order(union: Tables) -> None:
    table = union.create_log(bucket_count=1, properties=LAKE)
    for part in range(4):
        append(table, ids(50, part * 50))
        tier(table)
    append(table, ids(50, 200))
    for found in every_read(table):
        assert found["id"].to_pylist() == list(range(250))


@settings(max_examples=10)
@given(condition=conditions)
@example(condition="ratio IN (-1.5, 0.0)")
def test_filters_are_those_of_fluss(union: Tables, plain: Tables, condition: str) -> None:
    table, same = corpus(union, plain)
    found = table.to_arrow(["row"], filter=condition)["row"].to_pylist()
    assert sorted(found) == sorted(same.to_arrow(["row"], filter=condition)["row"].to_pylist())


_corpus: dict[int, tuple[FlussTable, FlussTable]] = {}


def corpus(union: Tables, plain: Tables) -> tuple[FlussTable, FlussTable]:
    """Return a table of random values of which the lake has a part in many files, seen with the lake and without."""
    if id(union) not in _corpus:
        table = union.create_log(CORPUS_SCHEMA, bucket_count=2, properties=LAKE)
        for seed in range(4):
            append(table, random_rows(seed, 40))
            if seed < 3:
                tier(table)
        _corpus[id(union)] = table, plain.again(table)
    return _corpus[id(union)]


def test_filters_leave_out_files_of_the_lake(union: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    table = union.create_log(bucket_count=1, properties=LAKE)
    for part in range(4):
        append(table, ids(50, part * 50))
        tier(table)
    planned: list[union_plan.UnionPlan | None] = []

    async def plan(*arguments: Any) -> union_plan.UnionPlan | None:
        planned.append(await union_plan.plan_union(*arguments))
        return planned[-1]

    monkeypatch.setattr(union_read, "plan_union", plan)
    assert table.to_arrow(filter="id = 120").num_rows == 1
    (found,) = planned
    assert found is not None
    assert len(found.files) == 1


def keyed(tables: Tables, engine: Engine, **descriptor: Any) -> FlussTable:
    builder = fluss.Schema.builder().column("k", DataTypes.int().not_null())
    for name, data_type in (("a", DataTypes.string()), ("b", DataTypes.bigint())):
        chosen = engine.aggregations.get(name)
        aggregation = {} if chosen is None else {"aggregation": AggFunction(chosen)}
        builder = builder.column(name, data_type, **aggregation)
    schema = builder.primary_key(["k"]).build()
    return tables.create(schema, properties={**LAKE, **engine.properties}, **descriptor)


def key_workload(union: Tables, plain: Tables, engine: Engine, seed: int, steps: int) -> None:
    """Change random keys and tier up to random points; whenever the table is read, it is what Fluss says."""
    rng = random.Random(seed)
    table = keyed(union, engine, bucket_count=rng.choice([1, 3]))
    same = plain.again(table)
    version = itertools.count()
    for _ in range(steps):
        match rng.choice(["upsert", "upsert", "delete", "tier", "read"]):
            case "upsert":
                keys = rng.sample(range(40), rng.randint(1, 25))
                upsert(table, [[key, rng.choice([None, "x", "y"]), next(version) // 2] for key in keys])
            case "delete" if engine.takes_deletes:
                delete(table, [[key] for key in rng.sample(range(40), rng.randint(1, 10))])
            case "tier":
                tier(table, some(rng), deletes_by_key=rng.random() < 0.3)
            case "read":
                assert sorted_rows(table.to_arrow()) == sorted_rows(same.to_arrow())
    expected = same.to_arrow()
    assert by_key(table.to_arrow(), "k") == by_key(expected, "k")
    assert sorted_rows(table.to_arrow_batch_reader().read_all()) == sorted_rows(expected)
    for columns, condition in ((["b"], "a = 'x'"), (["a"], None), (["k"], "k < 10 OR a IS NULL"), (["a"], "b > 5")):
        found = table.to_arrow(columns, filter=condition)
        assert sorted_rows(found) == sorted_rows(same.to_arrow(columns, filter=condition))
    assert table.to_arrow(limit=3).num_rows == min(3, expected.num_rows)


@pytest.mark.usefixtures("is_by_dictionary")
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_key_tables_are_merged_exactly(union: Tables, plain: Tables, engine: Engine) -> None:
    key_workload(union, plain, engine, seed=3, steps=14)


@pytest.mark.slow
@pytest.mark.usefixtures("is_by_dictionary")
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_key_tables_are_merged_exactly_whatever_happens(
    union: Tables, plain: Tables, engine: Engine, seed: int
) -> None:
    key_workload(union, plain, engine, seed, steps=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_log_tables_are_read_exactly_whatever_happens(union: Tables, plain: Tables, seed: int) -> None:
    rng = random.Random(seed)
    table = union.create_log(bucket_count=rng.choice([1, 2, 5]), properties=LAKE)
    same = plain.again(table)
    first = 0
    for _ in range(30):
        match rng.choice(["append", "append", "tier", "read"]):
            case "append":
                count = rng.randint(1, 300)
                append(table, ids(count, first))
                first += count
            case "tier":
                tier(table, some(rng))
            case "read":
                low = rng.randint(0, first)
                assert sorted_rows(table.to_arrow(filter=col("id") >= low)) == sorted_rows(
                    same.to_arrow(filter=col("id") >= low)
                )
    assert sorted_rows(table.to_arrow()) == sorted_rows(same.to_arrow())


def test_only_files_that_changes_can_touch_are_read_with_their_keys(
    union: Tables, plain: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(union, ENGINES[0], bucket_count=2)
    for first in (0, 100, 200):
        upsert(table, [[key, "old", key] for key in range(first, first + 50)])
        tier(table)
    read: list[tuple[list[str], int]] = []
    file_batches = LakeRows.file_batches

    def recorded(self: LakeRows, files: Any, **more: Any) -> Any:
        files = list(files)
        read.append((list(self._names), len(files)))
        return file_batches(self, files, **more)

    monkeypatch.setattr(LakeRows, "file_batches", recorded)

    def files_read() -> dict[str, int]:
        read.clear()
        assert sorted_rows(table.to_arrow(["b"])) == sorted_rows(plain.again(table).to_arrow(["b"]))
        return {" ".join(names): count for names, count in read if count}

    # Nothing has changed, so that keys do not matter.
    assert files_read() == {"b": 6}
    upsert(table, [[key, "new", key] for key in range(300, 320)])
    assert files_read() == {"b": 6}
    upsert(table, [[key, "new", -key] for key in range(240, 260)])
    assert files_read() == {"b": 4, "b k": 2}


def test_keys_of_a_file_are_read_no_more_than_twice(
    union: Tables, plain: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(union, ENGINES[0], bucket_count=2)
    # Of the second round, the rows come in descending order of their keys.
    for keys in (range(50), range(99, 49, -1)):
        upsert(table, [[key, "old", key] for key in keys])
        tier(table)
    read: list[str] = []
    file_batches = LakeRows.file_batches

    def recorded(self: LakeRows, files: Any, **more: Any) -> Any:
        files = list(files)
        read.extend(" ".join(self._names) for _ in files)
        return file_batches(self, files, **more)

    monkeypatch.setattr(LakeRows, "file_batches", recorded)

    def columns_read(columns: list[str], condition: str | None = None) -> list[str]:
        read.clear()
        expected = sorted_rows(plain.again(table).to_arrow(columns, filter=condition))
        assert sorted_rows(table.to_arrow(columns, filter=condition)) == expected
        return sorted(read)

    upsert(table, [[key, "new", -key] for key in range(0, 100, 7)])
    assert columns_read(["b"]) == ["b k"] * 4
    assert columns_read(["b"]) == ["b"] * 4 + ["k"] * 4
    assert columns_read(["b"]) == ["b"] * 4
    delete(table, [[key] for key in range(0, 100, 11)])
    assert columns_read(["b"]) == ["b"] * 4
    # A condition saves more than keys that are known.
    assert columns_read(["b"], "a = 'old'") == ["b a k"] * 4
    tier(table)
    # What was deleted by position stays deleted, and the files have the positions that they had.
    upsert(table, [[key, "newer", -key] for key in range(0, 100, 5)])
    assert columns_read(["a"]).count("a") == 4
    assert "k" in columns_read(["a"])
    assert set(columns_read(["a"])) == {"a"}


def test_rows_of_files_whose_keys_are_known_may_be_deleted_by_key_later(union: Tables, plain: Tables) -> None:
    """Files with such deletes are read one by one, and positions mean nothing there."""
    table = keyed(union, ENGINES[0], bucket_count=1)
    upsert(table, [[key, "old", key] for key in range(50)])
    tier(table)
    upsert(table, [[key, "new", -key] for key in range(0, 50, 7)])
    for _ in range(3):
        assert sorted_rows(table.to_arrow()) == sorted_rows(plain.again(table).to_arrow())
    tier(table, deletes_by_key=True)
    upsert(table, [[key, "newer", -key] for key in range(0, 50, 5)])
    for _ in range(3):
        assert sorted_rows(table.to_arrow()) == sorted_rows(plain.again(table).to_arrow())


def test_keys_that_are_known_take_no_more_memory_than_allowed(
    union: Tables, plain: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KnownKeys(bytes_max=8 * 60)
    monkeypatch.setattr(union_read, "KNOWN_KEYS", known)
    tables = [keyed(union, ENGINES[0], bucket_count=1) for _ in range(3)]
    for table, row_count in zip(tables, (40, 50, 70), strict=True):
        upsert(table, [[key, "old", key] for key in range(row_count)])
        tier(table)
        upsert(table, [[key, "new", key] for key in range(0, row_count, 3)])
    for table, kept in zip(tables, (40, 50, 50), strict=True):
        for _ in range(3):
            assert sorted_rows(table.to_arrow(["a", "b"])) == sorted_rows(plain.again(table).to_arrow(["a", "b"]))
        assert known.byte_count == 8 * kept


def test_many_changes_are_merged_in_several_steps(
    union: Tables, plain: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(union, ENGINES[0], bucket_count=4)
    upsert(table, [[key, "old", key] for key in range(200)])
    tier(table)
    upsert(table, [[key, "new", key] for key in range(100, 300)])
    # One bucket has more changes than that, so it is read from Fluss.
    monkeypatch.setattr(union_read, "_CHANGES_MAX", 90)
    assert by_key(table.to_arrow(), "k") == by_key(plain.again(table).to_arrow(), "k")
    monkeypatch.setattr(union_read, "_CHANGES_MAX", 1)
    assert by_key(table.to_arrow(), "k") == by_key(plain.again(table).to_arrow(), "k")


@pytest.mark.parametrize("keys", [(), ("region", "id")], ids=["log", "keys"])
def test_partitions_that_fluss_has_dropped_are_still_there(union: Tables, plain: Tables, keys: tuple[str, ...]) -> None:
    schema = pa.schema([("region", pa.string()), ("id", pa.int32()), ("value", pa.string())])
    table = union.create(schema, keys, partition_keys=["region"], bucket_count=2, properties=LAKE)

    def write(region: str, numbers: range, value: str) -> None:
        rows = pa.table(
            {"region": [region] * len(numbers), "id": pa.array(numbers, pa.int32()), "value": [value] * len(numbers)}
        )
        if keys:
            upsert(table, rows.to_pylist())
        else:
            append(table, rows)

    for region in ("old", "both", "new"):
        wait_for(union.admin.create_partition(table.table_path, {"region": region}))
    write("old", range(20), "a")
    write("both", range(20), "a")
    tier(table)
    write("both", range(10, 30), "b")
    write("new", range(5), "c")
    expected = sorted_rows(plain.again(table).to_arrow())
    assert sorted_rows(table.to_arrow()) == expected
    wait_for(union.admin.drop_partition(table.table_path, {"region": "old"}))
    assert plain.again(table).to_arrow(filter="region = 'old'").num_rows == 0
    for found in every_read(table):
        assert sorted_rows(found) == expected
    assert table.to_arrow(partitions="old").num_rows == 20
    assert table.to_arrow(partitions=[{"region": "old"}, "new"]).num_rows == 25
    assert table.to_arrow(partitions="old", filter="id = 100").num_rows == 0
    assert table.to_arrow(filter="region = 'old' AND id < 5").num_rows == 5
    assert table.to_arrow(limit=len(expected)).num_rows == len(expected)
    with pytest.raises(FlussError) as caught:
        table.to_arrow(partitions="never")
    assert caught.value.error_code == 36


def test_records_that_fluss_has_forgotten_are_still_there(union: Tables, plain: Tables) -> None:
    table = union.create_log(bucket_count=1, properties=LAKE)
    same = plain.again(table)
    for part in range(10):
        append(table, ids(100, part * 100))
    everything = sorted_rows(table.to_arrow())
    tier(table)
    wait_for(union.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "1ms"}))
    earliest = OffsetSpec.earliest()
    eventually(lambda: wait_for(union.admin.list_offsets(table.table_path, [0], earliest))[0] > 0)
    wait_for(union.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "0ms"}))
    append(table, ids(10, 1000))
    assert same.to_arrow().num_rows < 1010
    for found in every_read(table):
        assert found.num_rows == 1010
    assert set(everything) <= set(sorted_rows(table.to_arrow()))
    assert table.to_arrow(limit=1005).num_rows == 1005
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(union_plan, "find_spec", lambda _name: None)
        with pytest.raises(FlussError, match=r'older records .* pip install "flussbett\[lake\]"'):
            table.to_arrow()


def test_without_pyiceberg_a_table_that_fluss_has_all_of_is_read_from_fluss(
    union: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("region", pa.string()), ("id", pa.int32())])
    keyed_table = union.create(schema, ("region", "id"), partition_keys=["region"], bucket_count=1, properties=LAKE)
    log = union.create_log(bucket_count=1, properties=LAKE)
    for region in ("a", "b"):
        wait_for(union.admin.create_partition(keyed_table.table_path, {"region": region}))
    upsert(keyed_table, [[region, number] for region in "ab" for number in range(5)])
    append(log, ids(5))
    tier(keyed_table)
    tier(log)
    monkeypatch.setattr(union_plan, "find_spec", lambda _name: None)
    assert log.to_arrow().num_rows == 5
    assert keyed_table.to_arrow().num_rows == 10
    wait_for(union.admin.drop_partition(keyed_table.table_path, {"region": "a"}))
    with pytest.raises(FlussError, match=r"partitions that are only in its lake, and reading a lake needs pyiceberg"):
        keyed_table.to_arrow()


@pytest.mark.parametrize("keys", [(), ("number",)], ids=["log", "keys"])
def test_values_of_every_type_are_the_same_from_the_lake(union: Tables, plain: Tables, keys: tuple[str, ...]) -> None:
    number = fluss.Column("number", DataTypes.int().not_null())
    fine = fluss.Column("fine", DataTypes.timestamp(9))
    table = union.create(
        schema_of_every_type(number, fine, primary_keys=list(keys)), keys, bucket_count=1, properties=LAKE
    )

    def write(first: int) -> None:
        moment = pa.scalar(1_234_567_891, pa.timestamp("ns")).as_py()
        rows = [
            {"number": first, "fine": moment, **FULL_ROW},
            {"number": first + 1, "fine": datetime(1969, 1, 1), **dict.fromkeys(FULL_ROW)},
        ]
        writer = table.new_upsert().create_writer() if keys else table.new_append().create_writer()
        for row in rows:
            (writer.upsert if keys else writer.append)(row)  # type: ignore[union-attr]
        wait_for(writer.flush())

    write(0)
    tier(table)
    write(2)
    names = [name for name in table.arrow_schema.names if name != "fine"]
    same = plain.again(table)
    for columns in (names, None, ["fine"]):
        found, expected = table.to_arrow(columns), same.to_arrow(columns)
        assert found.schema.equals(expected.schema)
        assert sorted_rows(found) == sorted_rows(expected), columns


@pytest.mark.parametrize("keys", [(), ("id",)], ids=["log", "keys"])
def test_columns_that_were_added_are_null_in_older_rows(union: Tables, plain: Tables, keys: tuple[str, ...]) -> None:
    table = union.create(pa.schema([("id", pa.int32()), ("name", pa.string())]), keys, bucket_count=2, properties=LAKE)

    def write(table: FlussTable, rows: list[list[Any]]) -> None:
        if keys:
            upsert(table, rows)
            return
        writer = table.new_append().create_writer()
        for row in rows:
            writer.append(row)
        wait_for(writer.flush())

    write(table, [[number, "old"] for number in range(30)])
    tier(table)
    wait_for(union.admin.alter_table(table.table_path, add_columns=[fluss.Column("added", DataTypes.bigint())]))
    newer = union.again(table)
    for first in (20, 40):
        write(newer, [[number, "new", number] for number in range(first, first + 20)])
        expected = plain.again(table).to_arrow()
        assert sorted_rows(newer.to_arrow()) == sorted_rows(expected)
        assert sorted_rows(newer.to_arrow(["added"], filter="added IS NULL OR added > 50")) == sorted_rows(
            plain.again(table).to_arrow(["added"], filter="added IS NULL OR added > 50")
        )
        assert sorted_rows(table.to_arrow()) == sorted_rows(expected.select(["id", "name"]))
        tier(newer)


def test_other_engines_read_the_same_rows_up_to_the_tiered_offset(
    union: Tables, plain: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = keyed(union, ENGINES[0], bucket_count=2)
    upsert(table, [[key, "old", key] for key in range(100)])
    tier(table)
    upsert(table, [[key, "new", key] for key in range(50, 120)])
    delete(table, [[key] for key in range(10)])
    tier(table)
    expected = sorted_rows(plain.again(table).to_arrow())
    upsert(table, [[1000, "later", 0]])
    lake = lake_table_of(table)
    names = table.arrow_schema.names
    assert sorted_rows(lake.scan(selected_fields=tuple(names)).to_arrow()) == expected
    assert sorted_rows(pl.scan_iceberg(lake).select(names).collect().to_arrow()) == expected
    arrow = lake.scan(selected_fields=tuple(names)).to_arrow()  # noqa: F841  # duckdb finds it by its name
    assert duckdb.sql("SELECT count(*), min(k), max(k) FROM arrow").fetchall() == [(110, 10, 119)]


def test_files_that_are_gone_are_said_to_be(union: Tables) -> None:
    table = union.create_log(bucket_count=1, properties=LAKE)
    append(table, ids(10))
    tier(table)
    (file,) = union_files(table)
    os.remove(file)
    with pytest.raises(FlussError, match=r"cannot be read.*read again") as caught:
        table.to_arrow()
    assert caught.value.error_code == 53


def union_files(table: FlussTable) -> list[str]:
    return [task.file.file_path.removeprefix("file://") for task in lake_table_of(table).scan().plan_files()]


def test_a_read_that_waits_reads_no_more_than_it_needs(union: Tables) -> None:
    table = union.create_log(bucket_count=1, properties=LAKE)
    append(table, ids(100))
    tier(table)
    append(table, ids(100, 100))
    reader = table.to_arrow_batch_reader()
    assert reader.read_next_batch().num_rows == 100
    reader.close()
    assert table.to_arrow().num_rows == 200


def test_clients_may_leave_the_lake_alone_and_bring_settings_of_its_catalog(
    union: Tables, lake_server: embedded.EmbeddedServer, tmp_path: Path
) -> None:
    table = union.create_log(partition_keys=["name"], bucket_count=1, properties=LAKE)
    wait_for(union.admin.create_partition(table.table_path, {"name": "a"}))
    append(table, pa.table({"id": pa.array(range(10), pa.int32()), "name": ["a"] * 10}))
    tier(table)
    wait_for(union.admin.drop_partition(table.table_path, {"name": "a"}))
    with tables_of(lake_server, **{"client.lake.read": "off"}) as alone:
        assert alone.again(table).to_arrow().num_rows == 0
    with tables_of(lake_server, **{"client.lake.properties": f"warehouse={tmp_path}"}) as elsewhere:
        other = elsewhere.again(table)
        with pytest.raises(FlussError, match="does not exist in the lake"):
            other.to_arrow()
    assert table.to_arrow().num_rows == 10


def test_settings_of_the_catalog_are_never_shown() -> None:
    config = fluss.Config({"client.lake.properties": "s3.access-key-id=me, s3.secret-access-key=hush"})
    assert "hush" not in repr(config)
    with pytest.raises(FlussError, match=r"client.lake.properties") as caught:
        fluss.Config({"client.lake.properties": "hush"})
    assert "hush" not in str(caught.value)
