"""One round of chaos: a machine, its clients, faults from a seed, and the verdict over what the clients saw."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fluss.errors import FlussError
from fluss.testing.forked_servers import ServerForks
from fluss.testing.history_checker import check
from fluss.testing.waiting import eventually
from tests.chaos.clients import WAIT_S, Clients
from tests.chaos.loop_disk import LoopDiskUnavailableError
from tests.chaos.machine import REMOTE, Disk, Fault, Machine
from tests.chaos.remote_objects import RemoteObjects

# Segments so small, and rounds so often, that a fault is likely to meet a copy.
_REMOTE: Final = {
    "log.segment.file-size": "1kb",
    "remote.log.task-interval-duration": "100ms",
    "backup.interval": "100ms",
    "kv.snapshot.interval": "200ms",
}
# Orphans go when no backup needs what they were, and backups are made often here.
_TIDY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Plan:
    """What a round is made of. The same plan has the same faults in the same order; when they hit, time decides."""

    seed: int
    fault_count: int
    disk: Disk
    has_proxy: bool
    # Only these, if they are possible; all if empty.
    faults: tuple[Fault, ...] = ()
    # Whether logs are copied to remote storage, and leave the disk.
    has_remote: bool = False
    # Further options of the server.
    options: tuple[tuple[str, str], ...] = ()
    # How long it is quiet before a fault, on average, and between two operations of a client.
    quiet_s: float = 0.15
    pause_s: float = 0.004
    # How long a client waits for the server. A log that has lost its end never gets where a reader was told that it is.
    wait_s: float = WAIT_S


@dataclass
class Report:
    """What a round did, and what it found wrong."""

    plan: Plan
    counts: Counter[Fault] = field(default_factory=Counter)
    kill_count: int = 0
    written_rows: int = 0
    read_rows: int = 0
    lookup_count: int = 0
    errors: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    # Where history, logs and findings are, if there are any findings.
    artefacts: Path | None = None
    skipped: str | None = None
    seconds: float = 0.0


def _options(plan: Plan, directory: Path) -> dict[str, str]:
    if not plan.has_remote:
        return dict(plan.options)
    # Files that can be lost are those below the data directory.
    remote = directory / "data" / "remote" if plan.disk is Disk.LOSING else directory / "remote"
    return {REMOTE: str(remote.absolute()), **_REMOTE, **dict(plan.options)}


async def run_round(plan: Plan, directory: Path, forks: ServerForks, artefacts: Path) -> Report:
    """Run one round in a new directory, which is gone afterwards unless something was found."""
    report = Report(plan)
    began_s = time.monotonic()
    rng = random.Random(plan.seed)
    clients: Clients | None = None
    try:
        with Machine(
            directory, forks, rng, disk=plan.disk, has_proxy=plan.has_proxy, options=_options(plan, directory)
        ) as machine:
            try:
                clients = Clients(
                    machine.bootstrap_servers, rng.getrandbits(64), pause_s=plan.pause_s, wait_s=plan.wait_s
                )
                await clients.create_tables()
                clients.start()
                await clients.wait_until_at_work()
                for fault in _chosen(plan, machine.possible_faults()):
                    await asyncio.sleep(rng.uniform(0, 2 * plan.quiet_s))
                    await machine.suffer(fault)
                await clients.stop()
                await clients.read_everything()
                objects = machine.remote_objects()
                if objects is not None:
                    report.findings += await asyncio.to_thread(_orphans, objects)
                code = await machine.stop()
                if code != 0:
                    report.findings.append(f"the server ended with {code} when asked to stop")
            finally:
                report.counts, report.kill_count = machine.counts, machine.kill_count
    except LoopDiskUnavailableError as error:
        report.skipped = f"no loop device: {error}"
        return report
    except Exception:
        report.findings.append(traceback.format_exc())
    if clients is not None:
        history = clients.history
        report.errors = clients.errors
        report.findings += clients.hung
        report.written_rows, report.read_rows = len(history.writes), len(history.seen)
        report.lookup_count = len(history.lookups)
        # What a round that broke off has seen is judged as far as it goes.
        report.findings += map(str, await asyncio.to_thread(check, history))
    report.seconds = time.monotonic() - began_s
    if report.findings:
        report.artefacts = artefacts / f"seed-{plan.seed}"
        shutil.copytree(directory, report.artefacts, dirs_exist_ok=True, ignore=shutil.ignore_patterns("loop"))
        if clients is not None:
            clients.history.save(report.artefacts / "history.npz")
        lines = [str(plan), *report.findings, "", "what clients met:", *report.errors]
        (report.artefacts / "findings.txt").write_text("\n".join(lines), encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    return report


def _orphans(objects: RemoteObjects) -> list[str]:
    """Wait until remote storage has what is named and nothing else; return what is wrong if that does not come."""

    def is_in_order() -> bool:
        # What is looked at changes meanwhile.
        with suppress(FlussError, OSError, sqlite3.Error):
            return objects.difference() is None
        return False

    try:
        eventually(is_in_order, timeout_s=_TIDY_TIMEOUT_S)
    except AssertionError:
        return [objects.difference() or "remote storage is in order, but it took long"]
    return []


def _chosen(plan: Plan, possible: Sequence[Fault]) -> list[Fault]:
    """Choose faults: mostly kills, and losses of power where there can be any; the others as often as each other."""
    rng = random.Random(plan.seed)
    among = [fault for fault in possible if not plan.faults or fault in plan.faults]
    often = [fault for fault in (Fault.KILL, Fault.KILL, Fault.POWER) if fault in among] or among
    return [rng.choice(often if rng.random() < 0.6 else among) for _ in range(plan.fault_count)]
