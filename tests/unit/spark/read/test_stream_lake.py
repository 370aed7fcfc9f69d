"""A stream begins with what the lake has, then reads the log behind it; it can end and go on anywhere.
Shown with the reader of a stream as Spark uses it, and without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import fluss
from fluss import FlussError, blocking, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.spark.read.offset_json import parse_offset
from tests.unit.spark.read.day_table import DayTable

pytest.importorskip("pyiceberg", reason="a lake needs pyiceberg")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="before 4.2 Spark had no limits for Python sources")

from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.lake_tiering import lake_table_of, tier
from tests.unit.spark.read.test_stream_reader import _Query

LAKE = {"table.datalake.enabled": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    directory = tmp_path_factory.mktemp("stream-lake")
    options = {
        "datalake.format": "iceberg",
        "datalake.iceberg.warehouse": str(directory / "warehouse"),
        "durability": "os",
    }
    with embedded.start(options, data_dir=directory / "data") as running:
        yield running


class LakeTable(DayTable):
    """A table that can be tiered."""

    def opened(self) -> fluss.FlussTable:
        return wait_for(self._connection._inner.get_table(self.path))

    def tier(self) -> int | None:
        return tier(self.opened())


@pytest.fixture(scope="module")
def connection(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.connect(server.bootstrap_servers) as opened:
        yield opened


def query_of(server: embedded.EmbeddedServer, table: DayTable, **options: str) -> _Query:
    return _Query(table, server.bootstrap_servers, {key.replace("_", "."): text for key, text in options.items()}, None)


def ids(batches: Sequence[Sequence[dict[str, Any]]]) -> list[int]:
    return sorted(row["id"] for batch in batches for row in batch)


@pytest.mark.parametrize("keys", [(), ("id",)], ids=["log", "keys"])
def test_the_lake_comes_first_and_then_what_is_behind_it(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection, keys: tuple[str, ...]
) -> None:
    table = LakeTable(connection, keys=keys, **LAKE)
    for first in (0, 100):
        table.write(range(first, first + 100))
        table.tier()
    table.write(range(200, 230))
    query = query_of(server, table)
    first, second = query.trigger(), query.trigger()
    assert ids([first]) == list(range(200))
    assert ids([second]) == list(range(200, 230))
    assert query.trigger() == []
    assert query.trigger() == []
    table.write(range(230, 240))
    assert ids([query.trigger()]) == list(range(230, 240))
    assert [json.loads(end)["phase"] for end in query.planned] == ["log", "log", "log"]
    assert [json.loads(end)["v"] for end in query.planned] == [3, 2, 2]


@pytest.mark.parametrize("keys", [(), ("id",)], ids=["log", "keys"])
def test_a_query_can_end_and_go_on_anywhere(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection, keys: tuple[str, ...]
) -> None:
    table = LakeTable(connection, keys=keys, **LAKE)
    for first in (0, 50, 100):
        table.write(range(first, first + 50))
        table.tier()
    table.write(range(150, 200))
    whole = query_of(server, table)
    batches = whole.drain(ReadMaxRows(40))
    assert ids(batches) == list(range(200))
    assert {json.loads(end)["phase"] for end in whole.planned} == {"lake", "log"}
    interrupted = query_of(server, table)
    found = []
    count = 200
    for step in range(40):
        # The query dies after each plan, and before or after each batch; meanwhile the table and its lake go on.
        if not interrupted.plan(ReadMaxRows(40)):
            break
        if step % 2:
            interrupted.restart()
        if step == 1:
            table.write(range(200, 210))
            table.tier()
            count = 210
        found.append(interrupted.run())
        interrupted.restart()
    assert sorted(Counter(ids(found)).items()) == [(number, 1) for number in range(count)]


def test_dropped_partitions_are_read_from_the_lake_and_filters_hold(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection
) -> None:
    table = LakeTable(connection, days=["1", "2"], **LAKE)
    table.write(range(10), day="1")
    table.write(range(10, 20), day="2")
    table.tier()
    table.drop_day("1")
    table.write(range(20, 25), day="2")
    assert ids(query_of(server, table).drain()) == list(range(25))
    assert ids(query_of(server, table, scan_filter="id >= 5 AND id < 22").drain()) == list(range(5, 22))
    assert ids(query_of(server, table, scan_partitions="day=1").drain()) == list(range(10))
    assert ids(query_of(server, table, **{"scan.mode": "fluss"}).drain()) == list(range(10, 25))
    assert ids(query_of(server, table, **{"scan.startup.mode": "latest"}).drain()) == []


def test_available_now_reads_the_lake_and_the_log_up_to_now(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection
) -> None:
    table = LakeTable(connection, **LAKE)
    table.write(range(30))
    query = query_of(server, table)
    query.reader.prepareForTriggerAvailableNow()
    # The lake goes on after the end of the query was fixed.
    table.write(range(30, 40))
    table.tier()
    found = query.drain(ReadMaxRows(10))
    assert ids(found) == list(range(40))
    table.write(range(40, 45))
    assert ids(query.available_now()) == list(range(40, 45))


def test_a_snapshot_that_has_expired_is_said_to_have(
    server: embedded.EmbeddedServer, connection: blocking.FlussConnection
) -> None:
    from fluss.lake.maintenance import expire_snapshots

    table = LakeTable(connection, **LAKE)
    for first in (0, 50):
        table.write(range(first, first + 50))
        table.tier()
    query = query_of(server, table)
    query.trigger(ReadMaxRows(10))
    position = parse_offset(json.loads(query.planned[-1])).lake
    assert position is not None
    assert not position.is_done
    table.write(range(100, 110))
    table.tier()
    expire_snapshots(lake_table_of(table.opened()), older_than_ms=1 << 62, keep_count=1)
    query.restart()
    with pytest.raises(FlussError, match="begin with a new checkpoint") as caught:
        query.trigger()
    assert caught.value.error_code == 53
