"""What a query of Spark reads of a lake and of Fluss, without Spark: the tasks together return each row once."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.spark.query_options import read_options
from fluss.spark.read.past import version_of
from fluss.spark.read.planner import TablePlan, plan_batch
from fluss.spark.read.snapshot import Snapshot
from fluss.spark.read.split_read import SplitRead, table_columns, table_filter, view_filter
from fluss.spark.read.split_rows import split_rows
from fluss.spark.type_mapping import view_schema
from tests.integration.keyed_tables import Tables, delete, tables_of, upsert

pytest.importorskip("pyiceberg", reason="a lake needs pyiceberg")

from tests.lake_tiering import tier  # needs pyiceberg

LAKE = {"table.datalake.enabled": "true"}
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    directory = tmp_path_factory.mktemp("lake-part")
    options = {
        "datalake.format": "iceberg",
        "datalake.iceberg.warehouse": str(directory / "warehouse"),
        "durability": "os",
    }
    with embedded.start(options, data_dir=directory / "data") as server, tables_of(server) as made:
        yield made


class Query:
    """A batch query of a table, planned and read as Spark does it."""

    def __init__(self, tables: Tables, table: fluss.FlussTable, view: str = "", **options: str) -> None:
        given = {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
        servers = tables.server.bootstrap_servers
        self.options = read_options(
            {"bootstrap.servers": servers, "table": f"{table.table_path}{view}", **given}, is_stream=False
        )
        self.table = table
        self.info = table.get_table_info()
        self.schema = view_schema(self.info.schema, "", self.options.columns, is_case_sensitive=False)

    def plan(self, snapshot: Snapshot | None = None) -> TablePlan:
        view = "rows" if self.info.has_primary_key() else "log"
        row_filter = view_filter(self.options, self.info, view)
        columns = table_columns(self.schema, view, row_filter, self.info)
        return plan_batch(self.table, self.options, columns, table_filter(row_filter, self.info), snapshot=snapshot)

    def read(self, plan: TablePlan | None = None) -> list[tuple[Any, ...]]:
        plan = self.plan() if plan is None else plan
        read = SplitRead(self.options, self.schema, plan.view, plan.table_id, None, plan.lake)
        rows: list[tuple[Any, ...]] = []
        for task in plan.tasks:
            # As it goes to an executor.
            sent, splits = pickle.loads(pickle.dumps((read, task)))
            for batch in sent.read(splits):
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return sorted(rows)

    def read_parts(self) -> list[tuple[Any, ...]]:
        """Read part by part, as jobs do that work with the rows themselves."""
        plan = self.plan()
        row_filter = view_filter(self.options, self.info, plan.view)
        columns = table_columns(self.schema, plan.view, row_filter, self.info)
        rows: list[tuple[Any, ...]] = []
        for split in (split for task in plan.tasks for split in task):
            for batch in split_rows(self.table, split, columns, lake=plan.lake):
                kept = batch if row_filter is None else row_filter.filter(batch)
                rows += zip(*(kept.column(name).to_pylist() for name in self.schema.names), strict=True)
        return sorted(rows)


def append(table: fluss.FlussTable, numbers: range, name: str) -> None:
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.table({"id": list(numbers), "name": [name] * len(numbers)}, ROWS))
    wait_for(writer.flush())


def test_a_log_table_is_files_and_the_log_behind_them(tables: Tables) -> None:
    table = tables.create_log(ROWS, bucket_count=2, properties=LAKE)
    append(table, range(100), "a")
    tier(table)
    append(table, range(100, 150), "b")
    plan = Query(tables, table).plan()
    assert {split.kind for task in plan.tasks for split in task} == {"lake", "log"}
    assert plan.row_count is None
    everything = Query(tables, table, scan__mode="fluss").read()
    assert Query(tables, table).read(plan) == everything == Query(tables, table).read_parts()
    # Another query of the same DataFrame reads the same rows, also if the lake has gone on meanwhile.
    append(table, range(150, 160), "c")
    tier(table)
    same = Snapshot.from_text(plan.snapshot.to_text(), table.get_table_info())
    assert Query(tables, table).read(Query(tables, table).plan(same)) == everything
    assert Query(tables, table, scan__columns="name", scan__filter="id >= 140").read() == [("b",)] * 10 + [("c",)] * 10
    limited = Query(tables, table)
    limited.options = replace(limited.options, hinted_limit=5)
    assert sum(split.weight for task in limited.plan().tasks for split in task) >= 5
    assert len(limited.read()) >= 5
    # Files tell how many rows they have, and offsets of a log do not.
    assert limited.plan().row_count == 160
    assert {split.kind for task in limited.plan().tasks for split in task} == {"lake"}
    assert sum(split.weight for task in limited.plan().tasks for split in task) < 160
    limited.options = replace(limited.options, hinted_limit=1000)
    assert len(limited.read()) == 160
    append(table, range(160, 165), "d")
    assert len(limited.read()) == 165


def test_a_key_table_is_files_merged_with_the_changes_behind_them(tables: Tables) -> None:
    rng = random.Random(5)
    table = tables.create(ROWS, ("id",), bucket_count=3, properties=LAKE)
    for round_number in range(4):
        upsert(table, [[key, f"r{round_number}"] for key in rng.sample(range(60), 30)])
        delete(table, [[key] for key in rng.sample(range(60), 6)])
        assert Query(tables, table).read() == Query(tables, table, scan__mode="fluss").read()
        tier(table, lambda _bucket, start, stop: rng.randint(start, stop))
        plan = Query(tables, table).plan()
        assert Query(tables, table).read(plan) == Query(tables, table, scan__mode="fluss").read()
        for options in ({"scan__columns": "name"}, {"scan__filter": "name <> 'r0'"}, {"scan__filter": "id = 7"}):
            query = Query(tables, table, **options)
            assert query.read() == Query(tables, table, scan__mode="fluss", **options).read() == query.read_parts()
    assert "merged" in {split.kind for task in plan.tasks for split in task}


def test_the_lake_alone_is_read_at_any_of_its_snapshots(tables: Tables) -> None:
    table = tables.create(ROWS, ("id",), bucket_count=1, properties=LAKE)
    upsert(table, [[key, "first"] for key in range(10)])
    first = tier(table)
    upsert(table, [[key, "second"] for key in range(5)])
    second = tier(table)
    upsert(table, [[100, "later"]])
    old, new = [(key, "first") for key in range(10)], [(key, "second" if key < 5 else "first") for key in range(10)]
    assert Query(tables, table, "$lake").read() == Query(tables, table, scan__mode="lake").read() == new
    assert Query(tables, table, "$lake", scan__lake__snapshot_id=str(first)).read() == old
    assert Query(tables, table, "$lake", scan__lake__snapshot_id=str(second)).read() == new
    assert Query(tables, table, "$lake", scan__as_of__timestamp="2100-01-01 00:00:00").read() == new
    with pytest.raises(FlussError, match="no snapshot of 1 ms or before") as caught:
        Query(tables, table, "$lake", scan__as_of__timestamp="1").read()
    assert caught.value.error_code == 53
    with pytest.raises(FlussError, match="has no snapshot 7"):
        Query(tables, table, "$lake", scan__lake__snapshot_id="7").read()
    with pytest.raises(FlussError, match=r"'scan.lake.snapshot-id' is about the lake"):
        Query(tables, table, scan__lake__snapshot_id="7")


@pytest.mark.parametrize("keys", [(), ("id", "name")], ids=["log", "keys"])
def test_partitions_that_fluss_has_dropped_are_read_from_the_lake(tables: Tables, keys: tuple[str, ...]) -> None:
    table = tables.create(ROWS, keys, partition_keys=["name"], bucket_count=1, properties=LAKE)
    for name in ("old", "new"):
        wait_for(tables.admin.create_partition(table.table_path, {"name": name}))
        if keys:
            upsert(table, [[number, name] for number in range(10)])
        else:
            append(table, range(10), name)
        tier(table)
    everything = Query(tables, table).read()
    wait_for(tables.admin.drop_partition(table.table_path, {"name": "old"}))
    assert Query(tables, table).read() == everything == Query(tables, table, "$lake").read()
    assert Query(tables, table, scan__filter="name = 'old'").read() == [(number, "old") for number in range(10)]
    assert Query(tables, table, scan__partitions="name=old").read() == [(number, "old") for number in range(10)]
    assert Query(tables, table, "$lake", scan__partitions="name=new").read() == [(n, "new") for n in range(10)]
    assert Query(tables, table, scan__mode="fluss").read() == [(number, "new") for number in range(10)]
    for view in ("", "$lake"):
        with pytest.raises(FlussError) as caught:
            Query(tables, table, view, scan__partitions="name=never").read()
        assert caught.value.error_code == 36


def test_the_past_is_not_read_without_partitions_that_only_the_lake_has(tables: Tables) -> None:
    table = tables.create(ROWS, (), partition_keys=["name"], bucket_count=1, properties=LAKE)
    for name in ("old", "new"):
        wait_for(tables.admin.create_partition(table.table_path, {"name": name}))
        append(table, range(10), name)
    tier(table)
    then = version_of(table)
    assert len(Query(tables, table, scan__as_of__offsets=then).read()) == 20
    wait_for(tables.admin.drop_partition(table.table_path, {"name": "old"}))
    append(table, range(10), "new")
    # From the second round on the lake's offsets do not name the partition any more.
    tier(table)
    left = version_of(table)
    with pytest.raises(FlussError, match=r"has partitions in its lake only.*'old'.*'scan.mode'=fluss"):
        Query(tables, table, scan__as_of__offsets=left).read()
    assert len(Query(tables, table, scan__as_of__offsets=left, scan__mode="fluss").read()) == 20


def test_a_part_of_another_kind_is_not_read_as_something_else(tables: Tables) -> None:
    table = tables.create_log(ROWS, bucket_count=1, properties=LAKE)
    append(table, range(10), "a")
    ((split,),) = Query(tables, table).plan().tasks
    unknown = replace(split, kind="of tomorrow")  # type: ignore[arg-type] # this is the point
    with pytest.raises(AssertionError, match="of tomorrow"):
        list(split_rows(table, unknown))
    query = Query(tables, table)
    with pytest.raises(AssertionError, match="of tomorrow"):
        query.read(replace(query.plan(), tasks=((unknown,),)))
    without_lake = replace(split, kind="lake")
    with pytest.raises(AssertionError, match="comes with the files"):
        list(split_rows(table, without_lake))
