"""What our client does with a cluster of Apache Fluss 0.9: tables of three replicas, errors, rows without scans.
Shown against real servers, right after tables are made, and after old changes and segments have left the servers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, TablePath, blocking
from fluss.client.bulk import rows_at
from fluss.testing.waiting import eventually
from tests.java.cluster import JavaCluster

ID_TEXT = pa.schema([("id", pa.int64()), ("text", pa.string())])


def create(
    connection: blocking.FlussConnection, database: str, name: str, keys: list[str], **descriptor: Any
) -> blocking.FlussTable:
    path = TablePath(database, name)
    schema = fluss.Schema(ID_TEXT, primary_keys=keys)
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, **descriptor))
    return connection.get_table(path)


def noise(count: int) -> list[str]:
    """Return texts that cannot be compressed, so that segments become full."""
    data = os.urandom(count * 40).hex()
    return [data[start : start + 80] for start in range(0, len(data), 80)]


# Errors


def test_a_missing_table_is_code_7_and_one_sentence(connection: blocking.FlussConnection, database: str) -> None:
    """The server answers -1 with a stack trace to some of these questions."""
    path = TablePath(database, "nothing")
    admin = connection.get_admin()
    for ask in (
        lambda: connection.get_table(path),
        lambda: admin.get_table_info(path),
        lambda: admin.list_offsets(path, [0], "latest"),
        lambda: admin.drop_table(path),
    ):
        with pytest.raises(FlussError) as caught:
            ask()
        assert caught.value.error_code == fluss.ErrorCode.TABLE_NOT_EXIST
        assert "does not exist" in caught.value.message
        assert "\n" not in caught.value.message


# Rows of a server that cannot return them


def test_new_tables_are_read_at_once(connection: blocking.FlussConnection, database: str) -> None:
    """A table whose leaders are not chosen yet: many are made at the same time, so that choosing takes a while."""

    def read_new(number: int) -> int:
        table = create(connection, database, f"new_{number}", ["id"] if number % 2 else [], bucket_count=3)
        newest = table.new_scan().limit(1).create_bucket_batch_scanner(fluss.TableBucket(table_id(table), 2))
        ends = connection.get_admin().list_offsets(table.table_path, [0, 1, 2], "latest")
        return sum(ends.values()) + newest.to_arrow().num_rows + table.new_scan().to_arrow().num_rows

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(read_new, range(16))) == [0] * 16


def table_id(table: blocking.FlussTable) -> int:
    return table.get_table_info().table_id


@pytest.fixture
def old_table(connection: blocking.FlussConnection, database: str) -> blocking.FlussTable:
    """A table whose first changes have left the servers; every row says in which round it was written last."""
    properties = {"table.log.ttl": "1 s"}
    table = create(connection, database, "old", ["id"], bucket_count=2, properties=properties)
    admin = connection.get_admin()
    ids = list(range(20_000))
    rounds = 0

    def is_forgotten() -> bool:
        nonlocal rounds
        rounds += 1
        with table.new_upsert().create_writer() as writer:
            texts = [f"{rounds} {text}" for text in noise(len(ids))]
            writer.upsert_arrow(pa.table({"id": ids, "text": texts}))
        return min(admin.list_offsets(table.table_path, [0, 1], "earliest").values()) > 0

    eventually(is_forgotten, "that the oldest changes are gone", timeout_s=600)
    with table.new_upsert().create_writer() as writer:
        for number in range(100):
            writer.upsert([number, "last"])
        for number in range(100, 200):
            writer.delete([number])
    return table


def test_rows_whose_changes_are_gone_are_read_from_snapshots(old_table: blocking.FlussTable) -> None:
    rows = old_table.new_scan().to_arrow().sort_by("id")
    assert rows["id"].to_pylist() == [*range(100), *range(200, 20_000)]
    assert set(rows["text"].to_pylist()[:100]) == {"last"}
    # All rows but those were written in one round.
    assert len({text.split()[0] for text in rows["text"].to_pylist()[100:]}) == 1

    scanner = old_table.new_scan().create_changelog_scanner()
    scanner.subscribe_from_snapshot()
    state: dict[int, str] = {}
    for change in scanner.to_arrow().to_pylist():
        if change["_change_type"] in ("insert", "update_after"):
            state[change["id"]] = change["text"]
        elif change["_change_type"] == "delete":
            del state[change["id"]]
    assert state == dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))


def test_rows_at_an_offset_are_read_from_snapshots(
    cluster: JavaCluster, old_table: blocking.FlussTable, connection: blocking.FlussConnection
) -> None:
    table = old_table._inner
    latest = connection.get_admin().list_offsets(old_table.table_path, [0, 1], "latest")
    found: list[int] = []
    for number, offset in latest.items():
        bucket = fluss.TableBucket(old_table.get_table_info().table_id, number)
        found += [key for batch in rows_at(table, bucket, offset) for key in batch["id"].to_pylist()]
    assert sorted(found) == [*range(100), *range(200, 20_000)]


# Segments in remote storage


def test_segments_that_have_left_the_servers_are_read(
    cluster: JavaCluster, connection: blocking.FlussConnection, database: str
) -> None:
    properties = {"table.log.tiered.local-segments": "1"}
    table = create(connection, database, "tiered", [], bucket_count=1, properties=properties)
    row_count = 0
    directory = cluster.remote_dir / "log" / database

    def is_tiered() -> bool:
        nonlocal row_count
        with table.new_append().create_writer() as writer:
            texts = noise(20_000)
            writer.write_arrow(pa.table({"id": range(row_count, row_count + len(texts)), "text": texts}))
        row_count += 20_000
        # Two segments at least: of the newest one the servers keep a copy.
        return len(list(directory.rglob("*.log"))) >= 2

    eventually(is_tiered, "that segments are in remote storage", timeout_s=600)
    found = table.new_scan().to_arrow()
    assert found["id"].to_pylist() == list(range(row_count))


# Replicas


def test_every_bucket_has_three_replicas(connection: blocking.FlussConnection, database: str) -> None:
    table = create(connection, database, "replicated", [], bucket_count=3)
    assert table.get_table_info().properties["table.replication.factor"] == "3"
    nodes = connection.get_admin().get_server_nodes()
    assert sorted(node.server_type for node in nodes) == ["CoordinatorServer", *["TabletServer"] * 3]
