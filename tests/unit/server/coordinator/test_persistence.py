"""What a coordinator has answered is there after a restart, a crash and a failed write; damage is refused clearly.

Real files: restarted coordinators, processes killed in the middle of changes, full and failing disks.
"""

from __future__ import annotations

import ast
import asyncio
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.serde import schema_from_json
from fluss.schema.table import TablePath
from fluss.server import model
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME, MetadataStore
from fluss.server.coordinator.metadata.sqlite_file import SqliteFile
from tests.unit.server.coordinator import busy_catalog
from tests.unit.server.coordinator.support import create_request, descriptor, new_column, path, spec

CRASHES = 5


async def _open(metadata_file: Path) -> tuple[MetadataStore, Catalog]:
    store = await MetadataStore.open(metadata_file)
    try:
        catalog = await Catalog.open(store, clock=lambda: 0)
    except BaseException:
        await store.close()
        raise
    catalog.attach(busy_catalog.NoBuckets())
    return store, catalog


# Restart


async def test_a_restart_changes_nothing(make_cluster, clock):
    partitioned = descriptor({"id": "INTEGER", "dt": "STRING"}, primary_key=["id", "dt"], partition_key=["dt"])
    before = {}

    async def _everything(cluster):
        infos = {name: (await cluster.info(name))[0] for name in ("d.t", "d.p")}
        schemas = {
            schema_id: await cluster.ask(
                apis.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path("d.t"), schema_id=schema_id)
            )
            for schema_id in (1, 2)
        }
        databases = await cluster.ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True))
        return {
            "infos": {name: info.SerializeToString() for name, info in infos.items()},
            "schemas": {schema_id: schema.SerializeToString() for schema_id, schema in schemas.items()},
            "databases": databases.SerializeToString(),
            "partitions": await cluster.partitions("d.p"),
            "created": (cluster.table("d.t").created_ms, cluster.table("d.t").modified_ms),
        }

    async with make_cluster() as cluster:
        await cluster.create_database("d")
        clock.now_ms += 1
        await cluster.create("d.t", descriptor(comment="ü 'quoted'", custom_properties={"k\n": "v\t\0"}))
        await cluster.alter("d.t", columns=[new_column("c", {"type": "STRING"})])
        clock.now_ms += 1
        await cluster.alter("d.t", values={"table.log.ttl": "1 d"})
        await cluster.create("d.p", partitioned)
        for value in ("a", "b"):
            request = pb.CreatePartitionRequest(
                table_path=path("d.p"), partition_spec=spec(dt=value), ignore_if_not_exists=False
            )
            await cluster.ask(apis.CREATE_PARTITION, request)
        before.update(await _everything(cluster))
    async with make_cluster() as cluster:
        assert await _everything(cluster) == before
        table = await cluster.create("d.next", descriptor())
        assert table.table_id == 2


async def test_the_default_database_comes_only_when_there_is_none(make_cluster, tmp_path):
    async with make_cluster() as cluster:
        await cluster.create_database("other")
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("DELETE FROM databases WHERE name = 'fluss'")
    connection.close()
    async with make_cluster() as cluster:
        assert cluster.catalog.database_names() == ["other"]


async def test_ids_are_not_used_again_after_the_last_one_was_dropped(make_cluster):
    ids = []
    for _ in range(3):
        async with make_cluster() as cluster:
            table = await cluster.create("fluss.t", descriptor())
            await cluster.ask(
                apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False)
            )
            ids.append(table.table_id)
    assert ids == [0, 1, 2]


async def test_five_thousand_partitions_are_loaded_quickly(tmp_path):
    store, catalog = await _open(tmp_path / FILE_NAME)
    for number in range(5):
        table_path = TablePath("fluss", f"t{number}")
        table = await catalog.create_table(table_path, busy_catalog.DESCRIPTOR, ignore_if_exists=False)
        names = [f"p{index}" for index in range(1000)]
        await catalog.create_partitions(table.table_id, names, count_max=1000)
    await store.close()
    begun = time.process_time()
    store, catalog = await _open(tmp_path / FILE_NAME)
    cpu_s = time.process_time() - begun
    await store.close()
    assert sum(len(catalog.partitions_of(table.table_id)) for table in catalog.tables()) == 5000
    assert catalog.partition_by_id(4999).name == "p999"
    # The work of some hundredths of a second.
    assert cpu_s < 2


# Crash


@dataclass
class Model:
    """What a catalog must hold: tables by name as id, schema id, property, and partition ids by name."""

    tables: dict[str, tuple[int, int, str, dict[str, int]]] = field(default_factory=dict)
    table_id_next: int = 0
    partition_id_next: int = 0

    def make(self, change: busy_catalog.Change) -> None:
        kind, name, detail = change
        if kind == "create table":
            self.tables[name] = (self.table_id_next, 1, "", {})
            self.table_id_next += 1
            return
        if kind == "drop table":
            del self.tables[name]
            return
        table_id, schema_id, text, partitions = self.tables[name]
        if kind == "create partitions":
            for partition in detail:
                if partition not in partitions:
                    partitions[partition] = self.partition_id_next
                    self.partition_id_next += 1
        elif kind == "drop partition":
            partitions.pop(detail, None)
        elif kind == "add column":
            schema_id += 1
        else:
            text = detail
        self.tables[name] = (table_id, schema_id, text, partitions)

    @classmethod
    def of(cls, catalog: Catalog) -> Model:
        tables = {
            table.path.table_name: (
                table.table_id,
                table.schema_id,
                table.descriptor.custom_properties.get("n", ""),
                {name: partition.partition_id for name, partition in catalog.partitions_of(table.table_id).items()},
            )
            for table in catalog.tables()
        }
        return cls(tables, catalog._table_id_next, catalog._partition_id_next)


def test_a_killed_coordinator_has_made_each_change_wholly_or_not_at_all(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = Model()
    for cycle in range(CRASHES):
        begun, done_count = _kill_busy_catalog(tmp_path / FILE_NAME, seed + cycle, changes=rng.randrange(1, 60))
        for change in begun[:done_count]:
            model.make(change)
        found = run(_reopened(tmp_path / FILE_NAME))
        if found != model:
            # The change whose client had gone was made, too.
            assert len(begun) == done_count + 1
            model.make(begun[-1])
        assert found == model


def _kill_busy_catalog(metadata_file: Path, seed: int, *, changes: int) -> tuple[list[busy_catalog.Change], int]:
    """Let a process make some changes and kill it in the middle of the next one.

    Return the changes it began, and how many of them it said were done.
    """
    command = [sys.executable, busy_catalog.__file__, str(metadata_file), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output = "".join(process.stdout.readline() for _ in range(2 * changes + 1))
        process.send_signal(signal.SIGKILL)
        output += process.stdout.read()
    # The kill may have cut off the last line.
    lines = [line for line in output.splitlines(keepends=True) if line.endswith("\n")]
    done_count = lines.count("done\n")
    return [ast.literal_eval(line) for line in lines if line != "done\n"], done_count


async def _reopened(metadata_file: Path) -> Model:
    store, catalog = await _open(metadata_file)
    await store.close()
    for table in catalog.tables():
        assert sorted(table.schemas) == list(range(1, table.schema_id + 1))
        assert table.descriptor.schema == table.schemas[table.schema_id]
    return Model.of(catalog)


# Failing disks


async def test_a_full_disk_refuses_changes_and_forgets_nothing(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        file = cluster.coordinator.store._file
        pages = await file.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
        await file.read(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}"))
        large = descriptor(custom_properties={"large": "x" * 100_000})
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.u", large))
        assert error.error_code == 70
        assert cluster.catalog.table_by_path(TablePath("fluss", "u")) is None
        assert cluster.host.events[-1] == ("drop", "fluss.u", None)
        await file.read(lambda connection: connection.execute("PRAGMA max_page_count=100000"))
        await cluster.create("fluss.u", large)
    async with make_cluster() as cluster:
        assert cluster.catalog.table_names("fluss") == ["t", "u"]


async def test_after_a_failed_write_nothing_is_changed_any_more_until_a_restart(make_cluster):
    """What has reached the disk is not known then; reading goes on."""
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        # The rest of the reserved ids cannot be given back at the end, which must not keep the server from stopping.
        await cluster.ask(apis.INIT_WRITER, pb.InitWriterRequest())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        large = descriptor(custom_properties={"large": "x" * 300_000})
        # No file can grow beyond this, as if the disk refused to write there.
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            assert await cluster.code(apis.CREATE_TABLE, create_request("fluss.u", large)) == 26
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.v", descriptor()))
        assert error.error_code == 26
        assert "restart the server" in error.message
        assert cluster.catalog.table_names("fluss") == ["t"]
        assert (await cluster.info("fluss.t"))[0].table_id == 0
    async with make_cluster() as cluster:
        assert cluster.catalog.table_names("fluss") == ["t"]
        await cluster.create("fluss.v", descriptor())


# Damage


def _refusal(metadata_file: Path) -> str:
    with pytest.raises(FlussError) as failure:
        run(_open(metadata_file))
    assert failure.value.error_code == 26
    assert str(metadata_file) in failure.value.message
    return failure.value.message


@pytest.fixture
def metadata_file(make_cluster, tmp_path) -> Path:
    """Return a file with one table in it."""

    async def main():
        async with make_cluster() as cluster:
            await cluster.create("fluss.t", descriptor())

    run(main())
    return tmp_path / FILE_NAME


def test_a_file_of_something_else_is_refused(tmp_path):
    metadata_file = tmp_path / FILE_NAME
    metadata_file.write_bytes(b"These are not the bytes of a database. " * 100)
    assert "not a database" in _refusal(metadata_file)


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path):
    metadata_file = tmp_path / FILE_NAME
    with sqlite3.connect(metadata_file) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    content = metadata_file.read_bytes()
    assert "another program" in _refusal(metadata_file)
    assert metadata_file.read_bytes() == content


def test_a_newer_version_is_refused(metadata_file):
    with sqlite3.connect(metadata_file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "version 99" in _refusal(metadata_file)


def test_damaged_pages_are_refused(metadata_file):
    content = bytearray(metadata_file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    metadata_file.write_bytes(content)
    assert "cannot be used" in _refusal(metadata_file)


def test_a_table_that_cannot_be_read_is_named(metadata_file):
    with sqlite3.connect(metadata_file) as connection:
        connection.execute("UPDATE schemas SET schema_json = '{'")
    connection.close()
    assert "table 0 (fluss.t)" in _refusal(metadata_file)


async def test_schemas_that_are_not_the_newest_are_read_when_they_are_wanted(make_cluster, tmp_path, monkeypatch):
    # Columns can be added one by one, thousands of times: a start must not read all the schemas that there were.
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor({"a": "INTEGER"}))
        for number in range(20):
            await cluster.alter("fluss.t", columns=[new_column(f"c{number}", {"type": "STRING"})])
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("UPDATE schemas SET schema_json = '{' WHERE schema_id = 7")
    connection.close()
    read: list[str] = []
    monkeypatch.setattr(model, "schema_from_json", lambda text: read.append(text) or schema_from_json(text))
    async with make_cluster() as cluster:
        schemas = cluster.table("fluss.t").schemas
        await cluster.alter("fluss.t", columns=[new_column("last", {"type": "STRING"})])
        assert len(read) == 1
        assert 6 in schemas
        assert len(schemas[6].columns) == 6
        assert schemas[6] is schemas[6]
        assert len(read) == 2
        with pytest.raises(FlussError, match=r"the metadata is damaged: schema 7 of the table fluss\.t cannot be read"):
            schemas.get(7)
        assert len(cluster.table("fluss.t").schemas) == 22


def test_a_table_without_its_schema_is_named(metadata_file):
    with sqlite3.connect(metadata_file) as connection:
        connection.execute("DELETE FROM schemas")
    connection.close()
    assert "table 0 (fluss.t)" in _refusal(metadata_file)


# Versions


async def test_older_files_are_brought_up_to_date_step_by_step(tmp_path):
    first = ("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)")
    second = ("CREATE TABLE b AS SELECT x + 1 AS x FROM a",)

    async def values(*migrations) -> list[int]:
        file = await SqliteFile.open(tmp_path / "file", migrations)
        try:
            return await file.read(lambda connection: connection.execute("SELECT x FROM a").fetchall())
        finally:
            await file.close()

    assert await values(first) == [(1,)]
    assert await values(first, second) == [(1,)]
    assert await values(first, second) == [(1,)]
    with pytest.raises(FlussError):
        await values(first)


async def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path):
    good = ("CREATE TABLE a (x)",)
    bad = ("CREATE TABLE b (x)", "INSERT INTO missing VALUES (1)")
    await (await SqliteFile.open(tmp_path / "file", (good,))).close()
    with pytest.raises(FlussError):
        await SqliteFile.open(tmp_path / "file", (good, bad))
    file = await SqliteFile.open(tmp_path / "file", (good, ("CREATE TABLE b (y)",)))
    await file.close()
    await file.close()


# The end


async def test_a_change_that_was_begun_is_finished_before_the_end(make_cluster):
    async with make_cluster() as cluster:
        waiting = asyncio.create_task(cluster.ask(apis.CREATE_TABLE, create_request("fluss.t", descriptor())))
        while not cluster.host.events:
            await asyncio.sleep(0)
    with pytest.raises(FlussError):
        await waiting
    async with make_cluster() as cluster:
        assert cluster.catalog.table_names("fluss") == ["t"]
