"""Whenever a machine stops while segments are copied to remote storage, nothing is lost or doubled, and orphans go.
Shown with a disk in memory that stops after each of its operations in turn, and holds the remote directory as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.net.transport import run
from fluss.schema.descriptor import DatabaseDescriptor
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_store import Database, MetadataStore
from fluss.server.model import RemoteLogEntry, Table
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.server.tablet.remote.remote_logs import RemoteSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.remote_log import RemoteReader
from fluss.testing.faultfs import FaultFiles
from tests.fakes.failing_registry import FailingRegistry
from tests.unit.server.tablet.support import NOW_MS, Clock, MemoryCatalog, arrow_batch, ids, make_table, rows

REMOTE = Path("/remote")
BATCHES = 4
SETTINGS = TabletSettings(
    # A batch for each segment.
    log=LogSettings(segment_bytes_max=120),
    remote=RemoteSettings(locations=[str(REMOTE)], segments_per_task=2),
)
TABLE = make_table(properties={"table.log.tiered.local-segments": "1"})
BUCKET = TableBucket(1, 0)


class Machine:
    """A server's disk and metadata, over many runs of the server."""

    def __init__(self, store: MetadataStore, data_dir: Path, seed: int = 0) -> None:
        self.store = store
        self.registry = store.remote_logs
        self.files = FaultFiles(seed)
        self.data_dir = data_dir
        self.files.make_directory(data_dir)
        self.clock = Clock()

    @asynccontextmanager
    async def running(self, table: Table = TABLE, settings: TabletSettings = SETTINGS) -> AsyncIterator[TabletManager]:
        manager = TabletManager(
            self.data_dir,
            MemoryCatalog(table),
            settings,
            clock=self.clock,
            remote_registry=self.registry,
            files=self.files,
            usage_ratio=lambda path: 0.0,
        )
        async with manager:
            yield manager

    def remote_names(self) -> set[str]:
        """Return the names of segments and manifests in remote storage."""
        tablet = REMOTE / "log" / "db" / "t-1" / "0"
        return {*self.files.names(tablet), *self.files.names(tablet / "metadata")} - {"metadata"}


@asynccontextmanager
async def machine(tmp_path: Path, seed: int = 0) -> AsyncIterator[Machine]:
    store = await MetadataStore.open(tmp_path / f"metadata-{seed}.sqlite")
    await store.create_database(Database("db", DatabaseDescriptor(), NOW_MS, NOW_MS))
    await store.create_table(TABLE)
    try:
        yield Machine(store, tmp_path / "data", seed)
    finally:
        await store.close()


async def fill(manager: TabletManager, first: int = 0, count: int = BATCHES) -> None:
    log = (await manager.tables[1].group(None)[0].open()).log()
    for number in range(first, first + count):
        await log.wait_durable(log.append(arrow_batch(rows(number, 1))))


async def read_all(manager: TabletManager) -> list[int]:
    """Read what is in remote storage, and then what is on the disk, as a client does."""
    hosted = await manager.tables[1].group(None)[0].open()
    assert manager.remote is not None
    log, offset, found = hosted.log(), hosted.offset_start, []
    while offset < log.offset_high_watermark:
        if offset >= log.offset_start:
            data = log.read(offset, 1 << 20, at_least_one_batch=True)
            found += ids(data)
            offset += 1
            continue
        remote_range = await manager.remote.find(hosted, offset, is_remote_first=False)
        assert remote_range is not None, f"offset {offset} is nowhere"
        entry = await manager.remote.registry.find(BUCKET)
        assert entry is not None
        reader: RemoteReader = manager.remote._reader(entry)
        for segment in remote_range.segments:
            found += ids(reader.read(segment, segment.start_offset, 1 << 20))
            offset = segment.end_offset
    return found


async def check_tidy(there: Machine, manager: TabletManager) -> None:
    """Copy what is left; then remote storage has what the manifest names and nothing else."""
    assert manager.copier is not None
    assert manager.remote is not None
    for _ in range(4):
        await manager.copier.copy_all()
    known = await manager.remote.manifest(BUCKET)
    assert known is not None
    entry, manifest = known
    assert entry.manifest_path is not None
    assert [segment.start_offset for segment in manifest.segments] == list(range(BATCHES - 1))
    named = {segment.segment_id for segment in manifest.segments} | {entry.manifest_path.rpartition("/")[2]}
    assert there.remote_names() == named
    stored = await there.registry.find(BUCKET)
    assert stored is not None
    assert not stored.is_dirty
    assert manager.tables[1].group(None)[0].log().segment_count == 1


async def crash_after(tmp_path: Path, operations: int, *, is_power_lost: bool) -> bool:
    """Stop the machine after so many operations of a copy, and look at what is left; False if it was done by then."""
    async with machine(tmp_path, operations) as there:
        async with there.running() as manager:
            await fill(manager)
        async with there.running() as manager:
            assert manager.copier is not None
            there.files.stop_after(operations)
            await manager.copier.copy_all()
            await manager.copier.copy_all()
            is_stopped = not await _is_alive(there)
        there.files.crash(is_power_lost=is_power_lost)
        async with there.running() as manager:
            assert await read_all(manager) == list(range(BATCHES))
            await check_tidy(there, manager)
            assert await read_all(manager) == list(range(BATCHES))
    return is_stopped


async def _is_alive(there: Machine) -> bool:
    try:
        there.files.exists(REMOTE)
        there.files.names(REMOTE)
    except OSError:
        return False
    return True


def test_a_machine_that_stops_while_it_copies_loses_nothing(tmp_path: Path) -> None:
    operations = 5
    while run(crash_after(tmp_path, operations, is_power_lost=True)):
        # Every one of them is tried by the slow test below.
        operations += 11
    assert operations > 40


@pytest.mark.slow
@pytest.mark.parametrize("is_power_lost", [False, True])
def test_wherever_a_machine_stops_while_it_copies_it_loses_nothing(tmp_path: Path, is_power_lost: bool) -> None:
    operations = 1
    while run(crash_after(tmp_path, operations, is_power_lost=is_power_lost)):
        operations += 1


@pytest.mark.parametrize("method", ["commit", "finish"])
def test_metadata_that_cannot_be_written_leaves_no_orphans(tmp_path: Path, method: str) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            there.registry = FailingRegistry(there.store.remote_logs, method)
            async with there.running() as manager:
                assert manager.copier is not None
                await fill(manager)
                try:
                    await manager.copier.copy_all()
                except FlussError:
                    assert method == "finish"
                assert await read_all(manager) == list(range(BATCHES))
                await check_tidy(there, manager)
                assert await read_all(manager) == list(range(BATCHES))

    run(scenario())


def test_a_table_that_is_dropped_while_it_is_copied_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there, there.running() as manager:
            assert manager.copier is not None
            await fill(manager)

            class Dropping:
                """Drops the table right before its manifest is committed."""

                def __getattr__(self, name: str):
                    return getattr(there.store.remote_logs, name)

                async def commit(self, entry: RemoteLogEntry) -> bool:
                    await there.store.drop_table(1)
                    return await there.store.remote_logs.commit(entry)

            assert manager.remote is not None
            manager.remote.registry = Dropping()
            await manager.copier.copy_all()
            assert there.remote_names()
            await manager.drop_buckets(TABLE, None)
            while manager.copier._removal is not None:
                await manager.copier._removal
            assert there.remote_names() == set()
            assert await there.store.remote_logs.dropped() == []

    run(scenario())


def test_what_was_dropped_is_removed_by_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            async with there.running() as manager:
                assert manager.copier is not None
                await fill(manager)
                await manager.copier.copy_all()
            await there.store.drop_table(1)
            assert there.remote_names()
            async with there.running(make_table(2, "other")) as manager:
                assert manager.copier is not None
                while manager.copier._removal is not None:
                    await manager.copier._removal
            assert there.remote_names() == set()

    run(scenario())


def test_logs_that_nobody_uses_are_copied_too_and_looked_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            async with there.running(settings=replace(SETTINGS, remote=RemoteSettings())) as manager:
                await fill(manager)
            async with there.running() as manager:
                assert manager.copier is not None
                await check_tidy(there, manager)
                group = manager.tables[1].group(None)
                await group[0].close()
                await manager.copier.copy_all()
                assert not group.in_use, "a log without work is not opened"
                assert group.copy_looks == b"\1"
                await fill(manager, BATCHES, 2)
                await group[0].close()
                assert group.copy_looks == b"\0"
                await manager.copier.copy_all()
                assert group.remote is not None
                assert group.remote.ends[0] == BATCHES + 1

    run(scenario())


@pytest.mark.parametrize("is_open", [True, False])
def test_copies_that_wait_for_a_backup_are_no_work_until_it_is_made(
    tmp_path: Path, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there, there.running() as manager:
            assert manager.copier is not None
            assert manager.remote is not None
            gate, group = manager.remote.gate, manager.tables[1].group(None)
            gate.close()
            await fill(manager)
            for _ in range(2):
                await manager.copier.copy_all()
            assert group.remote is not None
            assert group.remote.ends[0] == BATCHES - 1
            if not is_open:
                await group[0].close()
            with monkeypatch.context() as patch:
                patch.setattr(manager.remote.registry, "begin", None)
                await manager.copier.copy_all()
                await manager.copier.copy_all()
            assert bool(group.in_use) is is_open
            gate.point_made(gate.begin_point())
            await manager.copier.copy_all()
            assert (await group[0].open()).log().segment_count == 1

    run(scenario())


def test_records_older_than_the_local_ttl_stay_on_the_disk_until_a_backup_names_their_copies(tmp_path: Path) -> None:
    # A server that takes over removes copies that the last backup does not name; then they are only here.
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            table = make_table(
                properties={"table.log.local-ttl": "1 h", "table.log.tiered.local-segments": str(BATCHES)}
            )
            async with there.running(table) as manager:
                assert manager.copier is not None
                assert manager.remote is not None
                gate = manager.remote.gate
                gate.close()
                await fill(manager)
                for _ in range(2):
                    await manager.copier.copy_all()
                log = manager.tables[1].group(None)[0].log()
                there.clock.now_ms += 2 * 3_600_000
                await manager.retention.expire_segments()
                assert log.offset_start == 0
                gate.point_made(gate.begin_point())
                await manager.retention.expire_segments()
                assert log.offset_start == BATCHES - 1
                assert await read_all(manager) == list(range(BATCHES))

    run(scenario())


def test_a_damaged_segment_is_not_copied_and_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there, there.running() as manager:
            assert manager.copier is not None
            await fill(manager)
            [path] = [segment.path for segment in manager.tables[1].group(None)[0].log().closed_segments(0)][1:2]
            there.files.write(path, [b"\xff"], there.files.size(path) - 1)
            await manager.copier.copy_all()
            await manager.copier.copy_all()
            assert there.files.exists(path)
            assert "checksum" in manager.copier._failures[BUCKET]
            remote = manager.tables[1].group(None).remote
            assert remote is not None
            assert remote.ends[0] == 1, "what is before it was copied"
            assert len(there.remote_names()) == 2, "and nothing else is there"

    run(scenario())
