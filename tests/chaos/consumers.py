"""``make chaos-consumers``: members of consumers are killed and paused, and their server is, while they copy a table.

Every record must be in the copy of the consumer that is at least once, and exactly once in that of the one whose sink
stores the offsets. Faults come from a seed; each comes when the copies have grown since the last one.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

import fluss
from fluss import blocking
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

TABLE: Final = ("fluss", "numbers")
FAULTS: Final = ("kill", "pause", "stop", "server")
_BUCKETS: Final = 6
# Ends what hangs, and nothing else.
_PROGRESS_TIMEOUT_S: Final = 300.0


@dataclass
class ConsumerReport:
    """What a run did, and what it found wrong."""

    row_count: int = 0
    repeated_count: int = 0
    fenced_count: int = 0
    fault_counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Run:
    """Some processes, their server, and a writer."""

    def __init__(
        self, directory: Path, server: ServerProcess, rng: random.Random, *, members: int, lease_ms: int
    ) -> None:
        self._directory = directory
        self._server = server
        self._rng = rng
        self._lease_s = lease_ms / 1000
        self._options = {
            "bootstrap.servers": server.bootstrap_servers,
            "consumer.lease-ms": str(lease_ms),
            "consumer.commit-interval-ms": "100",
            "writer.bucket.no-key-assigner": "round_robin",
        }
        self._members: list[subprocess.Popen[str]] = []
        self._member_count = members
        self._is_writing = True
        self._written = 0
        self.report = ConsumerReport()

    def go(self, faults: int, kinds: tuple[str, ...] = FAULTS) -> ConsumerReport:
        with blocking.FlussConnection.create(fluss.Config(dict(self._options))) as connection:
            schema = fluss.Schema(pa.schema([("id", pa.int64())]))
            connection.get_admin().create_table(
                fluss.TablePath(*TABLE), fluss.TableDescriptor(schema, bucket_count=_BUCKETS)
            )
            writer = threading.Thread(target=self._write, args=[connection])
            writer.start()
            try:
                self._members = [self._started() for _ in range(self._member_count)]
                for _ in range(faults):
                    self._await_growth()
                    self._befall(self._rng.choice(kinds))
                self._await_growth()
                self._is_writing = False
                writer.join()
                self._await(lambda: self._is_complete(), "all records in both copies")
            finally:
                self._is_writing = False
                writer.join()
                for member in self._members:
                    self._end(member, signal.SIGTERM)
            self._check(connection)
        return self.report

    def _write(self, connection: blocking.FlussConnection) -> None:
        with connection.get_table(fluss.TablePath(*TABLE)).new_append().create_writer() as writer:
            while self._is_writing:
                for number in range(self._written, self._written + 50):
                    writer.append([number])
                writer.flush()
                self._written += 50
                time.sleep(0.02)

    # Faults

    def _befall(self, kind: str) -> None:
        self.report.fault_counts[kind] += 1
        number = self._rng.randrange(len(self._members))
        member = self._members[number]
        match kind:
            case "kill" | "stop":
                self._end(member, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                self._members[number] = self._started()
            case "pause":
                member.send_signal(signal.SIGSTOP)
                # Sometimes not long enough for others to notice.
                time.sleep(self._rng.uniform(0.2, 2.5) * self._lease_s)
                member.send_signal(signal.SIGCONT)
            case "server":
                self._server.kill()
                time.sleep(self._rng.uniform(0.0, 1.5) * self._lease_s)
                self._server.start()

    def _started(self) -> subprocess.Popen[str]:
        config = json.dumps({"table": TABLE, "options": self._options})
        command = [sys.executable, "-m", "tests.chaos.consuming_process", config, str(self._directory)]
        with (self._directory / "errors.txt").open("ab") as errors:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def _end(self, member: subprocess.Popen[str], number: int) -> None:
        member.send_signal(number)
        output, _ = member.communicate(timeout=120)
        self.report.fenced_count += output.count("fenced")
        # A member that was stopped while Python was starting had no time to say how it wants to end.
        if member.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM):
            self.report.problems.append(f"a member ended with {member.returncode}: see errors.txt\n{self._errors()}")

    def _errors(self) -> str:
        return (self._directory / "errors.txt").read_text(encoding="utf-8")[-4000:]

    # Copies

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            for member in self._members:
                assert member.poll() is None, f"a member has ended: {self._errors()}"
            return condition()

        eventually(checked, what, timeout_s=_PROGRESS_TIMEOUT_S)

    def _await_growth(self) -> None:
        exact, plain = self._exact_count(), len(self._plain())
        self._await(lambda: self._exact_count() > exact and len(self._plain()) > plain, "growth of both copies")

    def _exact(self) -> list[int]:
        if not (self._directory / "exact.db").exists():
            return []
        with sqlite3.connect(f"file:{self._directory / 'exact.db'}?mode=ro", uri=True, timeout=120) as database:
            try:
                return [number for (number,) in database.execute("SELECT id FROM ids")]
            except sqlite3.OperationalError:
                # The first member has not made the table yet.
                return []

    def _exact_count(self) -> int:
        return len(self._exact())

    def _plain(self) -> list[int]:
        path = self._directory / "plain.txt"
        # What a member that was killed has written last may have no end.
        return list(map(int, path.read_text(encoding="ascii").splitlines())) if path.exists() else []

    def _is_complete(self) -> bool:
        return self._exact_count() >= self._written and len(set(self._plain())) >= self._written

    def _check(self, connection: blocking.FlussConnection) -> None:
        report, wanted = self.report, set(range(self._written))
        exact, plain = Counter(self._exact()), Counter(self._plain())
        report.row_count = self._written
        report.repeated_count = sum(plain.values()) - len(plain)
        for name, copy in (("exact", exact), ("plain", plain)):
            if wanted - copy.keys():
                report.problems.append(f"{name}: {len(wanted - copy.keys())} records are missing")
            if copy.keys() - wanted:
                report.problems.append(f"{name}: {len(copy.keys() - wanted)} records were never written")
        repeated = [number for number, count in exact.items() if count > 1]
        if repeated:
            report.problems.append(f"exact: {len(repeated)} records are there more than once, such as {repeated[:5]}")
        for info in connection.get_table(fluss.TablePath(*TABLE)).consumers():
            if info.members or info.lag:
                report.problems.append(f"{info} should be at the end, and without members")


def run(
    directory: Path, *, faults: int, seed: int, members: int = 3, lease_ms: int = 1000, kinds: tuple[str, ...] = FAULTS
) -> ConsumerReport:
    """Have so many faults happen, and return what came of it."""
    rng = random.Random(seed)
    with ServerProcess(directory / "data", "-D", "durability=os") as server:
        return Run(directory, server, rng, members=members, lease_ms=lease_ms).go(faults, kinds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--members", type=int, default=4)
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = run(Path(directory), faults=arguments.faults, seed=arguments.seed, members=arguments.members)
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.fault_counts.items()))
    print(
        f"seed {arguments.seed}: {report.row_count} records, {faults}, in {time.monotonic() - begun_s:.0f} s; "
        f"{report.repeated_count} came again at least once, {report.fenced_count} times a member was fenced"
    )
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
