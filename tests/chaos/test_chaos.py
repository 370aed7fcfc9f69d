"""Servers keep their promises through kills, losses of power, full disks, bad networks and jumping clocks.
Shown with short rounds from fixed seeds, and with servers that do not keep them, which the rounds must find out."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss
from fluss.errors import FlussError
from fluss.testing.forked_servers import Conditions, ServerForks
from fluss.testing.losing_files import LosingFiles
from fluss.testing.waiting import eventually
from tests.chaos.clients import Clients
from tests.chaos.loop_disk import LoopDisk, LoopDiskUnavailableError
from tests.chaos.machine import DAY_MS, Disk, Fault, Machine, damage_store
from tests.chaos.rounds import Plan, Report, run_round

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def forks() -> Iterator[ServerForks]:
    with ServerForks() as forks:
        yield forks


def run(plan: Plan, forks: ServerForks, tmp_path: Path) -> Report:
    return asyncio.run(run_round(plan, tmp_path / "round", forks, tmp_path / "artefacts"))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(1, 6, Disk.PLAIN, has_proxy=False, faults=(Fault.KILL, Fault.KILL_IN_RECOVERY, Fault.STORE_DAMAGE)),
        Plan(2, 8, Disk.LOSING, has_proxy=True),
        pytest.param(
            Plan(3, 4, Disk.LOSING, has_proxy=False, faults=(Fault.POWER,), has_remote=True), marks=pytest.mark.slow
        ),
        pytest.param(Plan(4, 4, Disk.LOOP, has_proxy=False, faults=(Fault.POWER, Fault.KILL)), marks=pytest.mark.slow),
    ],
    ids=lambda plan: f"{plan.disk}-{plan.seed}",
)
def test_a_round_finds_nothing(plan: Plan, forks: ServerForks, tmp_path: Path) -> None:
    report = run(plan, forks, tmp_path)
    if report.skipped is not None:
        pytest.skip(report.skipped)
    assert report.findings == []
    assert report.counts.total() == plan.fault_count
    # The round was one worth having.
    assert report.written_rows > 0
    assert report.read_rows > 0
    assert report.lookup_count > 0
    assert not (tmp_path / "artefacts").exists()


def test_a_server_that_does_not_sync_is_found_out(forks: ServerForks, tmp_path: Path) -> None:
    options = (("durability", "os"),)
    for seed in range(10):
        plan = Plan(seed, 4, Disk.LOSING, False, faults=(Fault.POWER,), options=options, wait_s=10.0)
        report = run(plan, forks, tmp_path)
        if report.findings:
            break
    assert any(finding.startswith(("lost", "unseen", "stale")) for finding in report.findings), report.findings
    # Whoever has to find out why has everything for it.
    assert report.artefacts is not None
    assert {path.name for path in report.artefacts.iterdir()} >= {"findings.txt", "history.npz", "server.log", "data"}


# The parts


def test_what_was_not_synced_is_lost_with_the_power_and_the_rest_is_not(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        directory = tmp_path / str(seed)
        directory.mkdir()
        (directory / "old").write_bytes(b"old")
        files = LosingFiles(directory, seed)
        files.write(directory / "log", [b"synced"], 0)
        files.sync(directory / "log")
        files.sync_directory(directory)
        files.write(directory / "log", [b" and not"], 6)
        files.write(directory / "new", [b"new"], 0)
        files.lose_power()
        content = (directory / "log").read_bytes()
        assert content.startswith(b"synced")
        assert (directory / "old").read_bytes() == b"old"
        outcomes |= {content == b"synced", content == b"synced and not", (directory / "new").exists()}
    assert outcomes == {True, False}


def test_nothing_above_the_root_is_ever_lost(tmp_path: Path) -> None:
    for seed in range(20):
        root = tmp_path / "machine" / str(seed)
        root.mkdir(parents=True)
        files = LosingFiles(root, seed)
        files.make_directory(root / "table" / "log-0", durably=False)
        files.write(root / "table" / "log-0" / "log", [b"rows"], 0)
        files.lose_power()
        assert root.is_dir()
        with pytest.raises(AssertionError, match="is not below"):
            LosingFiles(root, seed).make_directory(tmp_path / "elsewhere")


def test_a_full_disk_takes_a_part_of_a_write(tmp_path: Path) -> None:
    is_full = False
    files = LosingFiles(tmp_path, 1, is_full=lambda: is_full)
    files.write(tmp_path / "log", [b"1234"], 0)
    is_full = True
    with pytest.raises(OSError, match="No space"):
        files.write(tmp_path / "log", [b"5678"], 4)
    assert (tmp_path / "log").read_bytes() == b"123456"
    with pytest.raises(OSError, match="No space"):
        files.replace(tmp_path / "log", b"")
    with pytest.raises(OSError, match="No space"):
        files.make_directory(tmp_path / "directory")


async def test_the_clock_of_a_server_can_be_set(forks: ServerForks, tmp_path: Path) -> None:
    conditions = Conditions(tmp_path / "conditions")
    server = forks.start(tmp_path / "data", conditions=conditions).wait_until_ready()
    try:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.port}"})
        async with await fluss.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            await admin.create_database("before")
            conditions.set(clock_offset_ms=365 * DAY_MS)
            await admin.create_database("after")
            created = [(await admin.get_database_info(name)).created_time for name in ("before", "after")]
        assert created[1] - created[0] >= 365 * DAY_MS
    finally:
        assert server.stop() == 0


def test_a_server_that_stands_still_does_nothing_any_more(forks: ServerForks, tmp_path: Path) -> None:
    server = forks.start(tmp_path / "data").wait_until_ready()
    try:
        server.stand_still()
        states = [
            path.read_text().rpartition(")")[2].split()
            for path in Path("/proc").glob(f"{server.process_id}/task/*/stat")
        ]
        assert {fields[0] for fields in states} == {"T"}
        assert len(states) > 1
    finally:
        server.kill()
    # One that has ended does nothing, either.
    server.stand_still()


def test_a_server_that_cannot_start_says_why(forks: ServerForks, tmp_path: Path) -> None:
    server = forks.start(tmp_path / "data").wait_until_ready()
    try:
        with pytest.raises(FlussError, match=r"in use|lock"):
            forks.start(tmp_path / "data").wait_until_ready()
    finally:
        server.kill()
    assert not server.is_running


def test_a_file_system_loses_its_power(tmp_path: Path) -> None:
    try:
        with LoopDisk(tmp_path / "disk") as disk:
            (disk.path / "lost").write_text("not synced", encoding="utf-8")
            disk.lose_power()
            disk.recover()
            assert not (disk.path / "lost").exists()
            disk.fill()
            with pytest.raises(OSError, match="No space"):
                (disk.path / "large").write_bytes(bytes(1_000_000))
            with (disk.path / "ballast").open("rb") as ballast:
                os.fsync(ballast.fileno())
            disk.empty()
            disk.lose_power()
            disk.recover()
            (disk.path / "large").write_bytes(bytes(1_000_000))
    except LoopDiskUnavailableError as error:
        pytest.skip(f"no loop device: {error}")


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_server_that_cannot_start_on_a_full_disk_says_so(forks: ServerForks, tmp_path: Path, is_killed: bool) -> None:
    try:
        with LoopDisk(tmp_path / "disk") as disk:
            server = forks.start(disk.path / "data").wait_until_ready()
            if is_killed:
                server.kill()
                # Not even what SQLite keeps beside its file is there.
                for suffix in ("-wal", "-shm"):
                    (disk.path / "data" / f"metadata.sqlite{suffix}").unlink()
            else:
                assert server.stop() == 0
            disk.fill()
            with pytest.raises(FlussError, match=r"the disk has no room left; free some space"):
                forks.start(disk.path / "data").wait_until_ready()
            disk.empty()
            assert forks.start(disk.path / "data").wait_until_ready().stop() == 0
    except LoopDiskUnavailableError as error:
        pytest.skip(f"no loop device: {error}")


def test_damage_of_a_store_leaves_the_log_alone(tmp_path: Path) -> None:
    assert not damage_store(tmp_path, random.Random(1))
    for seed in range(8):
        store = tmp_path / str(seed) / "kv-0"
        store.mkdir(parents=True)
        for name in ("CURRENT", "1.sst"):
            (store / name).write_bytes(b"content")
        (store.parent / "log").write_bytes(b"log")
        assert damage_store(store.parent, random.Random(seed))
        assert (store.parent / "log").read_bytes() == b"log"
        kept = [path.read_bytes() for path in store.iterdir()] if store.exists() else []
        assert kept != [b"content", b"content"]


@pytest.mark.slow
def test_orphans_and_missing_objects_of_remote_storage_are_found(forks: ServerForks, tmp_path: Path) -> None:
    machine = Machine(
        *(tmp_path / "round", forks, random.Random(1)),
        disk=Disk.PLAIN,
        has_proxy=False,
        options={
            "remote.data.dir": str(tmp_path / "remote"),
            "log.segment.file-size": "1kb",
            "remote.log.task-interval-duration": "50ms",
            "backup.interval": "50ms",
        },
    )
    objects = machine.remote_objects()
    assert objects is not None

    async def write() -> None:
        clients = Clients(machine.bootstrap_servers, 1, pause_s=0.001)
        await clients.create_tables()
        clients.start()
        await clients.wait_until_at_work()
        eventually(lambda: list((tmp_path / "remote").glob("log/*/*/*/*/*.log")))
        await clients.stop()

    with machine:
        asyncio.run(write())
        eventually(lambda: objects.difference() is None)
        asyncio.run(machine.stop())
    (segment, *_) = (tmp_path / "remote").glob("log/*/*/*/*/*.log")
    segment.rename(segment.with_name("other"))
    assert segment.name in (objects.difference() or "").partition("missing there")[2]
    assert "other" in (objects.difference() or "").partition("missing there")[0]
