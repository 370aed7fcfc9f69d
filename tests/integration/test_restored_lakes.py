"""Servers that are restored from a backup which is older than what the lake has of their tables."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from fluss import FlussTable, embedded
from fluss.client.bulk import lake_snapshot_of, wait_for
from fluss.errors import ErrorCode, FlussError
from fluss.server.coordinator.metadata.metadata_backup import MetadataBackup
from fluss.server.coordinator.metadata.remote_log_table import RemoteLogTable
from fluss.server.model import RemoteLogEntry
from fluss.server.tablet.remote import backup
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.backup.points import BackupPoint, put_point
from fluss.storage.log.remote_manifest import RemoteManifest
from fluss.storage.remote.store import RemoteStore

pytest.importorskip("pyiceberg", reason="a lake needs pyiceberg")

from fluss.tiering.rounds import tier  # needs pyiceberg
from fluss.tiering.verification import verify
from tests.unit.tiering.lakes import LakeCluster, lake_rows, lake_table, ordered

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
EVENTS, KEYED, OTHER = "fluss.events", "fluss.keyed", "fluss.other"
TABLES = [EVENTS, KEYED]
SHIPPING = {"backup.interval": "20ms"}
# What is acknowledged after the start is in no backup, unless the server is stopped in order.
NOT_SHIPPING = {"backup.interval": "1h"}


class Disaster:
    """A server with backups and a lake, which is lost with its disk and restored."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.remote = directory / "remote"
        self._data_dirs = [directory / "data"]

    @contextmanager
    def serving(self, options: dict[str, str], port: int = 0) -> Iterator[LakeCluster]:
        options = {
            "datalake.format": "iceberg",
            "datalake.iceberg.warehouse": str(self.directory / "warehouse"),
            "remote.data.dir": str(self.remote),
            "durability": "os",
            **options,
        }
        with (
            embedded.start(options, data_dir=self._data_dirs[-1], port=port) as server,
            LakeCluster(server.bootstrap_servers) as cluster,
        ):
            yield cluster

    @contextmanager
    def lost_at_the_end(self) -> Iterator[LakeCluster]:
        """Serve, and leave of it what was in remote storage before the stop."""
        with self.serving(NOT_SHIPPING) as cluster:
            yield cluster
            self._keep_remote()
        self._lose_all_but_kept()

    @contextmanager
    def lost_at_a_point(
        self, options: dict[str, str], after: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[LakeCluster]:
        """Serve, and leave of it what is in remote storage with the first point that is made after an event."""
        is_made = threading.Event()

        def put_and_keep(store: RemoteStore, point: BackupPoint) -> None:
            put_point(store, point)
            if after.is_set() and not is_made.is_set():
                self._keep_remote()
                is_made.set()

        monkeypatch.setattr(backup, "put_point", put_and_keep)
        with self.serving(options) as cluster:
            yield cluster
            assert is_made.wait(600), "the backup is made"
        self._lose_all_but_kept()

    def _keep_remote(self) -> None:
        shutil.copytree(self.remote, self.directory / "left")

    def _lose_all_but_kept(self) -> None:
        shutil.rmtree(self.remote)
        (self.directory / "left").rename(self.remote)
        shutil.rmtree(self._data_dirs[-1])

    @contextmanager
    def restored(self, options: dict[str, str] = SHIPPING) -> Iterator[LakeCluster]:
        self._data_dirs.append(self.directory / f"restored-{len(self._data_dirs)}")
        with self.serving({**options, "backup.restore-from": str(self.remote)}) as cluster:
            yield cluster


@pytest.fixture
def disaster(tmp_path: Path) -> Disaster:
    return Disaster(tmp_path)


def rows(first: int, stop: int, life: str = "lost") -> list[dict[str, object]]:
    return [{"id": number, "text": f"row {number} of the {life} server"} for number in range(first, stop)]


def write(cluster: LakeCluster, first: int, stop: int, life: str = "lost") -> None:
    for name in TABLES:
        if cluster.table(name).get_table_info().has_primary_key():
            cluster.upsert(name, rows(first, stop, life))
        else:
            cluster.append(name, pa.Table.from_pylist(rows(first, stop, life), COLUMNS))


def created(cluster: LakeCluster) -> None:
    cluster.create(EVENTS, COLUMNS, buckets=1)
    cluster.create(KEYED, COLUMNS, buckets=1, primary_keys=["id"])
    cluster.create(OTHER, COLUMNS, buckets=1)
    write(cluster, 0, 5)


def read(table: FlussTable) -> list[dict[str, object]]:
    return ordered(table.to_arrow().to_pylist())


def refusal(table: FlussTable) -> str:
    with pytest.raises(FlussError) as refused:
        tier(table)
    assert refused.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    return refused.value.message


def back_to_what_fluss_knows(cluster: LakeCluster, directory: Path, name: str) -> None:
    table = cluster.table(name)
    known = lake_snapshot_of(table)
    assert known is not None
    lake_table(table).manage_snapshots().set_current_snapshot(known.snapshot_id).commit()


def moved_away(cluster: LakeCluster, directory: Path, name: str) -> None:
    (directory / "warehouse" / name.replace(".", "/")).rename(directory / name)
    for value in ("false", "true"):
        wait_for(cluster.admin.alter_table(name, set_properties={"table.datalake.enabled": value}))


@pytest.mark.parametrize("mended", [back_to_what_fluss_knows, moved_away])
def test_a_lake_that_is_ahead_of_the_restored_logs_is_not_taken_over(
    disaster: Disaster, mended: Callable[[LakeCluster, Path, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What is written at the offsets that the lake has already would be in no lake, and hidden from readers."""
    with disaster.serving(SHIPPING) as cluster:
        created(cluster)
        for name in TABLES:
            tier(cluster.table(name))
        write(cluster, 5, 10)
    with disaster.lost_at_the_end() as cluster:
        write(cluster, 10, 40)
        for name in TABLES:
            assert tier(cluster.table(name)).rows == 35
    caplog.clear()
    with disaster.restored() as cluster:
        write(cluster, 10, 30, "new")
        for name in TABLES:
            table = cluster.table(name)
            known = lake_snapshot_of(table)
            assert known is not None
            message = refusal(table)
            assert "restored from a backup that is older" in message
            assert "up to offset 40, and the log in the backup ended at 10" in message
            assert f"set the branch main of the lake table back to the snapshot {known.snapshot_id}" in message
            assert "then switch 'table.datalake.enabled' off and on" in message
            assert lake_snapshot_of(table) == known
            assert read(table) == ordered([*rows(0, 10), *rows(10, 30, "new")])
        write(cluster, 30, 50, "new")
        now = ordered([*rows(0, 10), *rows(10, 50, "new")])
        for name in TABLES:
            assert refusal(cluster.table(name)), "also when the log is longer than the lake again"
            assert read(cluster.table(name)) == now
        assert "it is registered now" not in caplog.text
        cluster.append(OTHER, pa.Table.from_pylist(rows(0, 3), COLUMNS))
        assert tier(cluster.table(OTHER)).rows == 3, "other tables are tiered"
        for name in TABLES:
            mended(cluster, disaster.directory, name)
            table = cluster.table(name)
            tier(table)
            assert lake_rows(table) == read(table) == now
            assert verify(table).is_right
        write(cluster, 50, 60, "new")
        for name in TABLES:
            assert tier(cluster.table(name)).rows == 10
    with disaster.serving(SHIPPING) as cluster:
        for name in TABLES:
            assert tier(cluster.table(name)).snapshot_id is None, "it is no restore to start again"


@pytest.mark.parametrize("is_in_backup", [True, False])
def test_rounds_that_the_lost_server_had_begun(disaster: Disaster, is_in_backup: bool) -> None:
    """They are taken over if all that they brought to the lake is in the backup."""

    class ServiceDiedError(Exception):
        pass

    def die(step: str) -> None:
        if step == "committed":
            raise ServiceDiedError

    with disaster.serving(SHIPPING) as cluster:
        created(cluster)
        for name in TABLES:
            tier(cluster.table(name))
        write(cluster, 5, 10)
    with disaster.lost_at_the_end() as cluster:
        if not is_in_backup:
            write(cluster, 10, 20)
        for name in TABLES:
            with pytest.raises(ServiceDiedError):
                tier(cluster.table(name), on_step=die)
    with disaster.restored() as cluster:
        write(cluster, 10, 20, "new")
        for name in TABLES:
            table = cluster.table(name)
            if is_in_backup:
                assert tier(table).rows == 10
                assert verify(table).is_right
                assert lake_rows(table) == read(table)
            else:
                assert "up to offset 20, and the log in the backup ended at 10" in refusal(table)
            assert read(table) == ordered([*rows(0, 10), *rows(10, 20, "new")])


def test_a_lake_that_is_ahead_is_not_taken_over_after_another_restore(disaster: Disaster) -> None:
    """The logs of the server in between were longer than the lake, and had other records."""
    with disaster.serving(SHIPPING) as cluster:
        created(cluster)
    with disaster.lost_at_the_end() as cluster:
        write(cluster, 5, 10)
        for name in TABLES:
            assert tier(cluster.table(name)).rows == 10
    with disaster.restored() as cluster:
        write(cluster, 5, 20, "new")
    for _ in range(2):
        with disaster.restored() as cluster:
            for name in TABLES:
                table = cluster.table(name)
                assert lake_snapshot_of(table) is None
                message = refusal(table)
                assert "It was made before an earlier restore" in message
                assert "To go on without what only the lake has, move the lake table away" in message
                assert read(table) == ordered([*rows(0, 5), *rows(5, 20, "new")])


def test_what_comes_to_a_lake_while_a_backup_is_made_is_in_its_logs(
    disaster: Disaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are shipped first, and the metadata are copied later, which name what was registered in between."""
    is_armed, is_shipped, is_tiered = (threading.Event() for _ in range(3))
    copy = MetadataBackup.copy_to

    def copy_later(metadata: MetadataBackup, target: Path) -> None:
        if is_armed.is_set():
            is_shipped.set()
            assert is_tiered.wait(600)
        copy(metadata, target)

    monkeypatch.setattr(MetadataBackup, "copy_to", copy_later)
    with disaster.lost_at_a_point(SHIPPING, is_tiered, monkeypatch) as cluster:
        created(cluster)
        for name in TABLES:
            tier(cluster.table(name))
        write(cluster, 5, 10)
        is_armed.set()
        # Metadata are copied only if they have changed.
        cluster.create("fluss.another", COLUMNS)
        assert is_shipped.wait(600), "the round has shipped the logs"
        write(cluster, 10, 40)
        cluster.append(OTHER, pa.Table.from_pylist(rows(0, 3), COLUMNS))
        for name in [*TABLES, OTHER]:
            tier(cluster.table(name))
        wait_for(cluster.admin.drop_table(OTHER))
        known = {name: lake_snapshot_of(cluster.table(name)) for name in TABLES}
        is_tiered.set()
    with disaster.restored() as cluster:
        for name in TABLES:
            table = cluster.table(name)
            assert lake_snapshot_of(table) == known[name], "the backup knows of the round"
            assert read(table) == ordered(rows(0, 40))
        write(cluster, 40, 50, "new")
        for name in TABLES:
            table = cluster.table(name)
            assert tier(table).rows == 10
            assert lake_rows(table) == read(table) == ordered([*rows(0, 40), *rows(40, 50, "new")])
            assert verify(table).is_right


def test_segments_that_are_copied_after_the_metadata_do_not_stand_for_logs(
    disaster: Disaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of the backup do not name them, but a lake that has come as far."""
    is_armed, is_shipped, is_tiered, is_copied, is_in_segments = (threading.Event() for _ in range(5))
    copy, commit, committed = MetadataBackup.copy_to, RemoteLogTable.commit, RemoteLogs.committed

    def copy_before_segments(metadata: MetadataBackup, target: Path) -> None:
        # One copy may have begun before.
        is_held = is_armed.is_set()
        if is_held:
            is_shipped.set()
            assert is_tiered.wait(600)
        copy(metadata, target)
        if is_held:
            is_copied.set()
            assert is_in_segments.wait(600)

    async def commit_after_metadata(table: RemoteLogTable, entry: RemoteLogEntry) -> bool:
        while is_armed.is_set() and not is_copied.is_set():
            await asyncio.sleep(0.01)
        return await commit(table, entry)

    def committed_and_told(logs: RemoteLogs, entry: RemoteLogEntry, manifest: RemoteManifest) -> None:
        committed(logs, entry, manifest)
        if entry.end_offset >= 20:
            is_in_segments.set()

    monkeypatch.setattr(MetadataBackup, "copy_to", copy_before_segments)
    monkeypatch.setattr(RemoteLogTable, "commit", commit_after_metadata)
    monkeypatch.setattr(RemoteLogs, "committed", committed_and_told)
    small = {"log.segment.file-size": "300b", "remote.log.task-interval-duration": "20ms"}
    with disaster.lost_at_a_point({**SHIPPING, **small}, is_in_segments, monkeypatch) as cluster:
        cluster.create(EVENTS, COLUMNS, buckets=1)
        cluster.append(EVENTS, pa.Table.from_pylist(rows(0, 5), COLUMNS))
        tier(cluster.table(EVENTS))
        is_armed.set()
        cluster.create(OTHER, COLUMNS, buckets=1)
        assert is_shipped.wait(600), "the round has shipped the logs"
        for first in range(5, 20, 5):
            cluster.append(EVENTS, pa.Table.from_pylist(rows(first, first + 5), COLUMNS))
        assert tier(cluster.table(EVENTS)).rows == 15
        # Segments are copied when others follow them.
        for first in range(20, 40, 5):
            cluster.append(EVENTS, pa.Table.from_pylist(rows(first, first + 5), COLUMNS))
        is_tiered.set()
    with disaster.restored() as cluster:
        have = read(cluster.table(EVENTS))
        assert all(row in have for row in rows(0, 20))
