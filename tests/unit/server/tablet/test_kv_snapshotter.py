"""Whenever a machine stops while snapshots of rows by key are made, nothing is lost, and orphans go.
Shown with a disk in memory that stops after each of its operations in turn, and holds logs and the remote directory;
the stores are real ones, and are gone afterwards, so that they have to be built from what is left in remote storage."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.errors import FlussError, KvDamagedError
from fluss.net.transport import run
from fluss.schema.descriptor import DatabaseDescriptor
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_store import Database, MetadataStore
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.model import KvSnapshotEntry, KvSnapshotRegistry
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.server.tablet.remote.kv_snapshots import KvSnapshotSettings
from fluss.server.tablet.remote.remote_logs import RemoteSettings
from fluss.server.tablet.scrub_repairs import ScrubRepairs
from fluss.storage.kv.snapshots.remote_snapshot import load_snapshot
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.faultfs import FaultFiles
from tests.fakes.failing_registry import FailingRegistry
from tests.unit.server.kv.bucket_support import KV_DIRECTORY, SNAPSHOTS_DIRECTORY, TABLE, Bucket
from tests.unit.server.tablet.support import NOW_MS, Clock, MemoryCatalog

REMOTE = Path("/remote")
SETTINGS = TabletSettings(
    # Every store has a database of its own, so that there is something to be shared between snapshots.
    kv=KvSettings(store=KvStoreSettings(is_portable=True, shared_store_bytes_max=0)),
    remote=RemoteSettings(locations=[str(REMOTE)]),
    snapshots=KvSnapshotSettings(retained_count=1),
)
BUCKET = TableBucket(1, 0)
DIRECTORY = "kv/db/t-1/0"


class Machine:
    """A server's disks and metadata, over many runs of the server."""

    def __init__(self, store: MetadataStore, data_dir: Path, seed: int = 0) -> None:
        self.store = store
        self.registry: KvSnapshotRegistry = store.kv_snapshots
        self.files = FaultFiles(seed)
        self.data_dir = data_dir
        self.files.make_directory(data_dir)
        self.clock = Clock()
        self.settings = SETTINGS

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bucket]:
        manager = TabletManager(
            self.data_dir,
            MemoryCatalog(TABLE),
            self.settings,
            clock=self.clock,
            remote_registry=self.store.remote_logs,
            snapshot_registry=self.registry,
            files=self.files,
            usage_ratio=lambda path: 0.0,
        )
        async with manager:
            bucket = Bucket(manager, TABLE, self.clock)
            await bucket.hosted.open()
            yield bucket

    async def snapshot(self, bucket: Bucket) -> None:
        assert bucket.manager.snapshotter is not None
        self.clock.now_ms += 1000
        await bucket.manager.snapshotter.snapshot_all()

    def lose_stores(self) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def objects(self) -> set[str]:
        """Return what there is of snapshots, by paths below the directory of the bucket."""
        root = REMOTE / DIRECTORY
        return {f"{name}/{below}" for name in self.files.names(root) for below in self.files.names(root / name)}


@asynccontextmanager
async def machine(tmp_path: Path, seed: int = 0) -> AsyncIterator[Machine]:
    store = await MetadataStore.open(tmp_path / f"metadata-{seed}.sqlite")
    await store.create_database(Database("db", DatabaseDescriptor(), NOW_MS, NOW_MS))
    await store.create_table(TABLE)
    try:
        yield Machine(store, tmp_path / f"data-{seed}", seed)
    finally:
        await store.close()


def rows_to(end: int) -> list[tuple[int, str]]:
    return [(number, f"row {number}") for number in range(end)]


async def check_tidy(there: Machine, bucket: Bucket) -> None:
    """Finish what was begun; then remote storage has what the one retained snapshot names and nothing else."""
    for _ in range(3):
        await there.snapshot(bucket)
    assert bucket.manager.remote is not None
    (entry,) = await there.store.kv_snapshots.of_bucket(BUCKET)
    assert entry.log_offset == bucket.log.offset_high_watermark
    snapshot = load_snapshot(bucket.manager.remote.store(entry.root), entry.directory, entry.snapshot_id)
    named = {path.removeprefix(f"{DIRECTORY}/") for path, _ in snapshot.paths(DIRECTORY)}
    assert there.objects() == named | {f"snap-{entry.snapshot_id}/_METADATA"}
    known = await there.store.kv_snapshots.find(BUCKET)
    assert known is not None
    assert not known.is_dirty


async def crash_after(tmp_path: Path, operations: int, *, is_power_lost: bool) -> bool:
    """Stop the machine after so many operations of two snapshots, and look at what is left; False if it was done."""
    async with machine(tmp_path, operations) as there:
        async with there.running() as bucket:
            await bucket.put(*rows_to(20))
            await there.snapshot(bucket)
            await bucket.put((20, "row 20"))
            there.files.stop_after(operations)
            await there.snapshot(bucket)
            await there.snapshot(bucket)
            is_stopped = not _is_alive(there)
        there.files.crash(is_power_lost=is_power_lost)
        there.lose_stores()
        async with there.running() as bucket:
            assert await bucket.rows() == rows_to(21)
            await check_tidy(there, bucket)
        there.lose_stores()
        async with there.running() as bucket:
            assert await bucket.rows() == rows_to(21)
    return is_stopped


def _is_alive(there: Machine) -> bool:
    try:
        there.files.names(REMOTE)
    except OSError:
        return False
    return True


def test_a_machine_that_stops_while_it_makes_snapshots_loses_nothing(tmp_path: Path) -> None:
    operations = 9
    while run(crash_after(tmp_path, operations, is_power_lost=True)):
        # Every one of them is tried by the slow test below.
        operations += 29
    assert operations > 40


@pytest.mark.slow
@pytest.mark.parametrize("is_power_lost", [False, True])
def test_wherever_a_machine_stops_while_it_makes_snapshots_it_loses_nothing(
    tmp_path: Path, is_power_lost: bool
) -> None:
    operations = 1
    while run(crash_after(tmp_path, operations, is_power_lost=is_power_lost)):
        operations += 1


@pytest.mark.parametrize("method", ["add", "retire", "remove", "finish"])
def test_metadata_that_cannot_be_written_leaves_no_orphans(tmp_path: Path, method: str) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            there.registry = FailingRegistry(there.store.kv_snapshots, method)
            async with there.running() as bucket:
                for number in range(3):
                    await bucket.put((number, f"row {number}"))
                    try:
                        await there.snapshot(bucket)
                    except FlussError:
                        assert method == "finish"
                await check_tidy(there, bucket)
                assert await bucket.rows() == rows_to(3)

    run(scenario())


def test_a_table_that_is_dropped_while_a_snapshot_is_made_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:

            class Dropping:
                """Drops the table right before its snapshot is registered."""

                def __getattr__(self, name: str):
                    return getattr(there.store.kv_snapshots, name)

                async def add(self, entry: KvSnapshotEntry) -> bool:
                    await there.store.drop_table(1)
                    return await there.store.kv_snapshots.add(entry)

            there.registry = Dropping()
            async with there.running() as bucket:
                await bucket.put(*rows_to(3))
                await there.snapshot(bucket)
                assert there.objects()
                copier = bucket.manager.copier
                assert copier is not None
                await bucket.manager.drop_buckets(TABLE, None)
                while copier._removal is not None:
                    await copier._removal
                assert there.objects() == set()
                assert await there.store.remote_logs.dropped() == []

    run(scenario())


def test_a_snapshot_that_is_ahead_of_its_log_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            async with there.running() as bucket:
                await bucket.put(*rows_to(10))
                await there.snapshot(bucket)
                (entry,) = await there.store.kv_snapshots.of_bucket(BUCKET)
            # As if the log had lost its end: it would go on with other rows.
            await there.store.kv_snapshots.add(entry._replace(snapshot_id=1, log_offset=15))
            there.lose_stores()
            async with there.running() as bucket:
                assert await bucket.rows() == rows_to(10)
                ids = [entry.snapshot_id for entry in await there.store.kv_snapshots.of_bucket(BUCKET)]
                assert ids == [0]
                await bucket.put((10, "row 10"))
                await check_tidy(there, bucket)

    run(scenario())


@pytest.mark.parametrize("finder", ["reader", "scrubber"])
def test_a_store_and_its_copy_with_the_same_damage_are_built_from_a_snapshot(tmp_path: Path, finder: str) -> None:
    rows = [(number, random.Random(number).randbytes(40).hex()) for number in range(400)]

    async def scenario() -> None:
        async with machine(tmp_path) as there:
            kv = replace(SETTINGS.kv, open_retry_ms=0)
            there.settings = replace(SETTINGS, kv=kv, log=LogSettings(segment_bytes_max=500))
            async with there.running() as bucket:
                await bucket.put(*rows)
                await there.snapshot(bucket)
                for number in range(20):
                    await bucket.put((number, "later"))
                assert bucket.manager.copier is not None
                # Segments leave the disk once they were copied.
                while not bucket.log.offset_start:
                    await bucket.manager.copier.copy_all()
                (copy,) = (there.data_dir / SNAPSHOTS_DIRECTORY).iterdir()
                assert int(copy.name) > 400, "it is newer than the snapshot"
            path = max(copy.glob("*.sst"), key=lambda path: path.stat().st_size)
            assert path.samefile(there.data_dir / KV_DIRECTORY / path.name)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            async with there.running() as bucket:
                error = KvDamagedError("the file is damaged")
                if finder == "reader":
                    with pytest.raises(KvDamagedError):
                        await bucket.rows()
                    bucket.kv.store_failed(await bucket.kv.store(), error)
                else:
                    store_path = there.data_dir / KV_DIRECTORY / path.name
                    assert await ScrubRepairs(bucket.manager.tables).store_damaged(BUCKET, [store_path], error)
                assert sorted(await bucket.rows()) == [*[(number, "later") for number in range(20)], *rows[20:]]
                assert not copy.exists(), "it would count for more changelog to go"

    run(scenario())


def test_a_replaced_snapshot_stays_until_a_backup_names_the_newer_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there, there.running() as bucket:
            assert bucket.manager.remote is not None
            shipped_ms = there.clock.now_ms
            bucket.manager.remote.shipped_ms = lambda: shipped_ms
            for number in range(3):
                await bucket.put((number, f"row {number}"))
                await there.snapshot(bucket)
            await there.snapshot(bucket)
            assert len(await there.store.kv_snapshots.of_bucket(BUCKET)) == 3
            assert {f"snap-{number}/_METADATA" for number in range(3)} <= there.objects()
            shipped_ms = there.clock.now_ms + 1
            await check_tidy(there, bucket)

    run(scenario())


def test_a_small_store_is_copied_when_enough_has_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with machine(tmp_path) as there:
            store = replace(SETTINGS.kv.store, shared_store_bytes_max=64 * 1024 * 1024)
            there.settings = replace(SETTINGS, kv=replace(SETTINGS.kv, store=store))
            async with there.running() as bucket:
                await bucket.put(*[(number, "x" * 2000) for number in range(1000)])
                await there.snapshot(bucket)
                await bucket.put((1000, "few"))
                await there.snapshot(bucket)
                (entry,) = await there.store.kv_snapshots.of_bucket(BUCKET)
                assert entry.log_offset == 1000, "a change is no reason to copy a thousand rows"
                await bucket.put(*[(number, "many") for number in range(1001, 1200)])
                await there.snapshot(bucket)
                newest, _ = await there.store.kv_snapshots.of_bucket(BUCKET)
                assert newest.log_offset == 1200
            there.lose_stores()
            async with there.running() as bucket:
                assert len(await bucket.rows()) == 1200

    run(scenario())
