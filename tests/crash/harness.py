"""Kill a server with SIGKILL again and again while it is written to and read, then look at every row.

Writers, processes of their own, note on disk what was acknowledged to them; a witness reads along through all
crashes; at the end everything is read from the beginning. What is written, and what must hold afterwards, is the
matter of a scenario: ``log_rows`` or ``keyed_rows``.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.crash.processes import STOP_TIMEOUT_S, ServerProcess, start_writer, wait_for_first_ack


@dataclass
class CrashReport:
    """What a run did, and what it found wrong."""

    cycles: int = 0
    acknowledged_rows: int = 0
    # Rows that the witness saw while the server lived and died.
    rows_seen_live: int = 0
    # Things that the scenario damaged between two lives of the server.
    damage_count: int = 0
    start_seconds_max: float = 0.0
    findings: list[str] = field(default_factory=list)


class Scenario(Protocol):
    """What is written, and how to tell that nothing of it was lost. Made anew for each run."""

    table: str
    # The module that is run as a writer.
    writer_program: str

    async def create_table(self, bootstrap_servers: str) -> None: ...

    async def witness(self, bootstrap_servers: str, stop: asyncio.Event) -> None:
        """Read along until told to stop, and remember."""
        ...

    def damage(self, data_dir: Path, rng: random.Random) -> bool:
        """Damage something that a dead server must be able to do without; return whether that was done."""
        ...

    async def check(self, bootstrap_servers: str, acks: dict[str, Path], report: CrashReport) -> None:
        """Read everything, and note what is wrong; ``acks`` has the file of each writer."""
        ...


async def run(
    directory: Path,
    scenario: Scenario,
    *,
    cycles: int,
    seed: int,
    writer_count: int = 2,
    options: dict[str, str] | None = None,
) -> CrashReport:
    """Crash the server ``cycles`` times and return what was found."""
    rng = random.Random(seed)
    report = CrashReport()
    server = ServerProcess(directory, {"log.segment.file-size": "256kb", **(options or {})})
    acks = {f"writer-{number}": directory / f"writer-{number}.acks" for number in range(writer_count)}
    writers: dict[str, subprocess.Popen[bytes]] = {}
    stop = asyncio.Event()
    witness: asyncio.Task[None] | None = None
    server.start()
    try:
        await scenario.create_table(server.bootstrap_servers)
        witness = asyncio.create_task(scenario.witness(server.bootstrap_servers, stop))
        for name, file in acks.items():
            writers[name] = start_writer(
                scenario.writer_program, file, server.bootstrap_servers, scenario.table, name, rng.getrandbits(32)
            )
            await wait_for_first_ack(writers[name], file)
        for _ in range(cycles):
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            await asyncio.to_thread(server.kill)
            report.damage_count += scenario.damage(directory / "data", rng)
            report.start_seconds_max = max(report.start_seconds_max, await asyncio.to_thread(server.start))
            report.cycles += 1
        for name, writer in writers.items():
            writer.terminate()
            _, errors = await asyncio.to_thread(writer.communicate, timeout=STOP_TIMEOUT_S)
            if writer.returncode != 0:
                report.findings.append(f"{name} ended with {writer.returncode}: {errors.decode()[-2000:]}")
        await asyncio.to_thread(server.kill)
        report.start_seconds_max = max(report.start_seconds_max, await asyncio.to_thread(server.start))
        stop.set()
        await witness
        await scenario.check(server.bootstrap_servers, acks, report)
        code = await asyncio.to_thread(server.stop)
        if code != 0:
            report.findings.append(f"the server ended with {code} when asked to stop")
    finally:
        for writer in writers.values():
            if writer.poll() is None:
                writer.kill()
                writer.communicate()
        if witness is not None and not witness.done():
            witness.cancel()
            await asyncio.gather(witness, return_exceptions=True)
        if server.is_running:
            server.kill()
    return report
