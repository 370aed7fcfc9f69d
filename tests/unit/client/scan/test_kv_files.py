"""Servers before 1.0 cannot return rows and forget old changes: then their snapshots in remote storage are read.
Shown against servers on real sockets, with files that RocksDB has written, as a whole read and as rows with changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rocksdict import Options, Rdict

from fluss import FlussError, col
from fluss.record.value_batch import prefix_schema_id
from fluss.row import compacted_columns
from fluss.schema.schema import Schema
from fluss.storage.kv import rocks
from tests.fakes.scan_cluster import ScanCluster, client_of

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
# Changes before the snapshot: two rows, of which the first will be another later. The log has only its last one.
OFFSET = 3


def rows(*ids: int, name: str = "old") -> list[dict[str, Any]]:
    return [{"id": number, "name": f"{name} {number}"} for number in ids]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ScanCluster]:
    """Servers whose changelogs begin behind the first changes, with a snapshot of what these were."""
    servers = ScanCluster(KEYED, bucket_count=2)
    servers.offers_scans = False
    try:
        servers.start_server()
        for bucket in range(2):
            ids = [10 * bucket + 1, 10 * bucket + 2, 10 * bucket + 3]
            servers.append(rows(*ids), bucket=bucket, change_types=[INSERT] * 3)
            files = write_snapshot(tmp_path / f"remote-{bucket}", rows(*ids))
            servers.call(lambda bucket=bucket, files=files: servers.snapshots.update({(None, bucket): (OFFSET, files)}))
            first = rows(ids[0]) + rows(ids[0], name="new")
            servers.append(first, bucket=bucket, change_types=[BEFORE, AFTER])
            servers.append(rows(ids[1]), bucket=bucket, change_types=[DELETE])
            servers.append(rows(ids[0] + 8), bucket=bucket, change_types=[INSERT])
            servers.call(lambda bucket=bucket: servers.offsets_start.update({(None, bucket): OFFSET}))
        yield servers
    finally:
        servers.close()


def write_snapshot(remote: Path, stored: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Write rows as a server does: a database whose files have names of their own in remote storage."""
    batch = pa.RecordBatch.from_pylist(list(stored), KEYED.to_arrow())
    values = prefix_schema_id(compacted_columns.encode_rows(batch.columns, KEYED.data_types), 1).to_list()
    directory = remote.with_name(f"{remote.name}-database")
    database = Rdict(str(directory), Options(raw_mode=True))
    for row, value in zip(stored, values, strict=True):
        database[row["id"].to_bytes(4, "big")] = value
    database.flush()
    database.close()
    remote.mkdir()
    kept = [path for path in directory.iterdir() if path.name.startswith(("CURRENT", "MANIFEST", "OPTIONS", "0"))]
    return {path.name: f"file:{shutil.copy(path, remote / f'copy-of-{path.name}')}" for path in kept}


EXPECTED = [*rows(1, name="new"), *rows(3), *rows(9), *rows(11, name="new"), *rows(13), *rows(19)]


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("id").to_pylist()


def test_a_whole_table_is_its_snapshot_and_the_changes_since(servers: ScanCluster) -> None:
    with client_of(servers) as client:
        assert sorted_rows(client.scan().to_arrow()) == EXPECTED
        assert sorted_rows(client.scan().to_arrow_batch_reader().read_all()) == EXPECTED
        names = client.scan().project_by_name(["name"]).to_arrow()["name"].to_pylist()
        assert sorted(names) == sorted(row["name"] for row in EXPECTED)
        kept = client.scan().filter(col("name").starts_with("new")).to_arrow()
        assert sorted_rows(kept) == [row for row in EXPECTED if row["name"].startswith("new")]


def test_a_subscription_begins_with_the_snapshot(servers: ScanCluster) -> None:
    with client_of(servers) as client:
        scanner = client.changes()
        scanner.subscribe_from_snapshot()
        found = scanner.to_arrow().to_pylist()
        of_first = [(row["_log_offset"], row["_change_type"], row["id"]) for row in found if row["id"] < 10]
        assert of_first == [
            (-1, "insert", 1),
            (-1, "insert", 2),
            (-1, "insert", 3),
            (3, "update_before", 1),
            (4, "update_after", 1),
            (5, "delete", 2),
            (6, "insert", 9),
        ]


def test_a_bucket_with_all_its_changes_needs_no_snapshot(servers: ScanCluster) -> None:
    servers.call(lambda: servers.offsets_start.clear() or servers.snapshots.clear())
    with client_of(servers) as client:
        assert sorted_rows(client.scan().to_arrow()) == EXPECTED


def move_to_a_store_of_another_kind(servers: ScanCluster) -> None:
    servers.snapshots = {key: (OFFSET, {"CURRENT": "ftp://remote/CURRENT"}) for key in servers.snapshots}


def name_a_directory_of_another_machine(servers: ScanCluster) -> None:
    servers.snapshots = {key: (OFFSET, {"CURRENT": "/nowhere/remote/CURRENT"}) for key in servers.snapshots}


def name_a_file_somewhere_else(servers: ScanCluster) -> None:
    for offset, files in servers.snapshots.values():
        assert offset == OFFSET
        files["../CURRENT"] = files["CURRENT"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (move_to_a_store_of_another_kind, "remote storage cannot be at 'ftp://remote/CURRENT'"),
        (name_a_directory_of_another_machine, "no directory /nowhere/remote on this machine"),
        (name_a_file_somewhere_else, "a file is called"),
    ],
)
def test_files_that_are_out_of_reach_are_an_error_at_once(
    servers: ScanCluster, change: Callable[[ScanCluster], None], text: str
) -> None:
    servers.call(lambda: change(servers))
    with client_of(servers) as client, pytest.raises(FlussError, match=text):
        client.scan().to_arrow()


def test_without_rocksdb_the_error_says_what_to_install(servers: ScanCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "_IS_INSTALLED", False)
    with client_of(servers) as client, pytest.raises(FlussError, match=r'pip install "flussbett\[server\]"'):
        client.scan().to_arrow()


def test_a_snapshot_that_is_replaced_meanwhile_is_looked_up_again(servers: ScanCluster, tmp_path: Path) -> None:
    good = dict(servers.snapshots)
    gone = {name: f"{path}-gone" for name, path in good[None, 0][1].items()}
    servers.call(lambda: servers.snapshots.update({(None, 0): (OFFSET, gone)}))
    asked = servers.servers[0].requests
    with client_of(servers) as client:
        reader = client.scan().to_arrow_batch_reader()
        first = asked.total()
        servers.call(lambda: servers.snapshots.update(good))
        assert sorted_rows(reader.read_all()) == EXPECTED
        assert asked.total() > first
    assert not list(Path(tmp_path).glob("fluss-snapshot-*"))
