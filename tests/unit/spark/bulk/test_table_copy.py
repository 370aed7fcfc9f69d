"""Copies of tables that have a lake: what only the lake has is not left out in silence. By tasks of this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, embedded
from fluss.cli.rows.copying import LocalTasks
from fluss.client.bulk import named_buckets_of, offsets_of
from fluss.client.kernel.runtime import wait_for
from fluss.schema.offsets import OffsetSpec
from fluss.spark.bulk.reports import CopyReport, quiet
from fluss.spark.bulk.table_copy import copy_tables
from tests.integration.keyed_tables import Tables, tables_of, upsert

pytest.importorskip("pyiceberg", reason="a lake needs pyiceberg")

from tests.lake_tiering import tier  # needs pyiceberg

LAKE = {"table.datalake.enabled": "true"}
ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    directory = tmp_path_factory.mktemp("copies")
    options = {
        "datalake.format": "iceberg",
        "datalake.iceberg.warehouse": str(directory / "warehouse"),
        "durability": "os",
        "log.segment.file-size": "1kb",
        "log.retention.check-interval": "50ms",
    }
    with embedded.start(options, data_dir=directory / "data") as server, tables_of(server) as made:
        yield made


def append(table: fluss.FlussTable, ids: range, day: str = "mon") -> None:
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.table({"id": ids, "day": [day] * len(ids)}, ROWS))
    wait_for(writer.flush())


def copy(tables: Tables, source: fluss.FlussTable, suffix: str = "copy", **settings: str) -> CopyReport:
    options = {"bootstrap.servers": tables.server.bootstrap_servers, **settings}
    path = str(source.table_path)
    return copy_tables(
        LocalTasks(),
        options,
        path,
        options,
        f"{path}_{suffix}",
        tables=None,
        properties={},
        verify=True,
        listener=quiet,
    )


def refused(tables: Tables, source: fluss.FlussTable, reason: str) -> None:
    with pytest.raises(FlussError, match=rf"{reason} in its lake only.*'client.lake.read' to off"):
        copy(tables, source, "partly")
    path = source.table_path
    names = wait_for(tables.admin.list_tables(path.database_name))
    assert f"{path.table_name}_partly" not in names, "nothing was made"


def expire(tables: Tables, table: fluss.FlussTable) -> int:
    """Have the oldest records of a bucket deleted, and return where its log begins then."""
    wait_for(tables.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "50ms"}))
    deadline = time.monotonic() + 30
    while not (start := max(offsets_of(table, named_buckets_of(table), OffsetSpec.earliest()).values())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    wait_for(tables.admin.alter_table(table.table_path, set_properties={"table.log.ttl": "7d"}))
    return start


def test_a_log_whose_older_records_are_only_in_the_lake_is_not_copied_in_part(tables: Tables) -> None:
    table = tables.create_log(ROWS, bucket_count=1, properties=LAKE)
    for first in range(0, 200, 10):
        append(table, range(first, first + 10))
    tier(table)
    append(table, range(200, 210))
    (report,) = copy(tables, table).tables
    assert report.rows == 210, "Fluss has all of it"
    start = expire(tables, table)
    assert copy(tables, table).tables[0].rows_found == 210, "what was copied before is copied"
    refused(tables, table, "its oldest records")
    (report,) = copy(tables, table, "of_fluss", **{"client.lake.read": "off"}).tables
    assert 0 < report.rows <= 210 - start


@pytest.mark.parametrize("keys", [(), ("id", "day")], ids=["log", "keys"])
def test_partitions_that_are_only_in_the_lake_are_not_left_out(tables: Tables, keys: tuple[str, ...]) -> None:
    table = tables.create(ROWS, keys, partition_keys=["day"], bucket_count=1, properties=LAKE)
    for day in ("mon", "tue"):
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
        if keys:
            upsert(table, [[number, day] for number in range(10)])
        else:
            append(table, range(10), day)
        tier(table)
    wait_for(tables.admin.drop_partition(table.table_path, {"day": "mon"}))
    refused(tables, table, "rows of the partition 'mon'")
    # Its old rows are in the lake beside those that it gets now.
    wait_for(tables.admin.create_partition(table.table_path, {"day": "mon"}))
    refused(tables, table, "rows of the partition 'mon'")
    assert copy(tables, table, **{"client.lake.read": "off"}).tables[0].rows == 10
