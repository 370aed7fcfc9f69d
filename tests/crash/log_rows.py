"""Rows of a log table through crashes.

Per writer: every acknowledged row is there exactly once, and no other row is there twice; its rows in a bucket are in
the order in which they were written. Offsets have no gap, and what a reader saw once is still at its offset.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import fluss
from tests.crash.harness import CrashReport
from tests.crash.log_writer import payload

BUCKETS = 3
# (bucket, offset) -> (writer, n)
Rows = dict[tuple[int, int], tuple[str, int]]


class LogRows:
    """Two columns that say who wrote what, and one that would show damage."""

    table = "crash.events"
    writer_program = "tests.crash.log_writer"

    def __init__(self) -> None:
        self._path = fluss.TablePath(*self.table.split("."))
        self.seen: Rows = {}

    async def create_table(self, bootstrap_servers: str) -> None:
        async with await connect(bootstrap_servers) as connection:
            admin = connection.get_admin()
            await admin.create_database(self._path.database_name, ignore_if_exists=True)
            schema = (
                fluss.Schema.builder()
                .column("writer", fluss.DataTypes.string())
                .column("n", fluss.DataTypes.bigint())
                .column("payload", fluss.DataTypes.string())
                .build()
            )
            descriptor = fluss.TableDescriptor(
                schema, bucket_count=BUCKETS, properties={"table.log.arrow.compression.type": "NONE"}
            )
            await admin.create_table(self._path, descriptor, ignore_if_exists=True)

    async def witness(self, bootstrap_servers: str, stop: asyncio.Event) -> None:
        async with await connect(bootstrap_servers) as connection:
            scanner = await self._open_scanner(connection)
            while not stop.is_set():
                for batch in await scanner.poll_record_batch_async(200):
                    remember(batch, self.seen)

    def damage(self, data_dir: Path, rng: random.Random) -> bool:
        """A log has nothing to spare."""
        return False

    async def check(self, bootstrap_servers: str, acks: dict[str, Path], report: CrashReport) -> None:
        acknowledged = {name: read_acks(file) for name, file in acks.items()}
        found = await self._read_everything(bootstrap_servers)
        report.acknowledged_rows = sum(map(len, acknowledged.values()))
        report.rows_seen_live = len(self.seen)
        report.findings += differences(found, self.seen, acknowledged)

    async def _read_everything(self, bootstrap_servers: str) -> Rows:
        """Read every bucket from the beginning to its latest offset, by a new connection."""
        found: Rows = {}
        async with await connect(bootstrap_servers) as connection:
            admin = connection.get_admin()
            ends = await admin.list_offsets(self._path, list(range(BUCKETS)), fluss.OffsetSpec.latest())
            scanner = await self._open_scanner(connection)
            while len(found) < sum(ends.values()):
                batches = await scanner.poll_record_batch_async(120_000)
                if not batches:
                    raise AssertionError(f"no more rows after {len(found)} of {sum(ends.values())}")
                for batch in batches:
                    remember(batch, found)
        return found

    async def _open_scanner(self, connection: fluss.FlussConnection) -> fluss.LogScanner:
        table = await connection.get_table(self._path)
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        return scanner


async def connect(bootstrap_servers: str) -> fluss.FlussConnection:
    # A server that is killed all the time is down for most of it, and readers may be out of luck many times in a row.
    config = fluss.Config({"bootstrap.servers": bootstrap_servers, "request-timeout": 120_000})
    return await fluss.FlussConnection.create(config)


def remember(batch: fluss.RecordBatch, seen: Rows) -> None:
    columns = batch.batch.to_pydict()
    rows = zip(columns["writer"], columns["n"], columns["payload"], strict=True)
    for offset, (writer, number, text) in enumerate(rows, start=batch.base_offset):
        assert text == payload(number), f"row {number} of {writer} came back damaged: {text!r}"
        seen[(batch.bucket.bucket_id, offset)] = (writer, number)


def read_acks(path: Path) -> list[int]:
    return [int(line) for line in path.read_text(encoding="ascii").splitlines()]


def differences(found: Rows, seen_live: Rows, acknowledged: dict[str, list[int]]) -> list[str]:
    """Return what contradicts the promises above, one sentence each."""
    findings = []
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place, row in sorted(found.items()):
        places.setdefault(row, []).append(place)
    for row, at in places.items():
        if len(at) > 1:
            findings.append(f"{row} is there {len(at)} times, at (bucket, offset) {at}")
    for writer, numbers in acknowledged.items():
        lost = [number for number in numbers if (writer, number) not in places]
        if lost:
            findings.append(f"{len(lost)} acknowledged rows of {writer} are lost, the first is {lost[0]}")
    latest: dict[tuple[int, str], int] = {}
    for (bucket, offset), (writer, number) in sorted(found.items()):
        if number < latest.get((bucket, writer), -1):
            findings.append(f"{writer}: {number} at offset {offset} of bucket {bucket} follows a later row")
        latest[(bucket, writer)] = number
    for bucket in {bucket for bucket, _ in found}:
        offsets = [offset for at, offset in found if at == bucket]
        if sorted(offsets) != list(range(len(offsets))):
            findings.append(f"the offsets of bucket {bucket} have gaps")
    for place, row in seen_live.items():
        if found.get(place) != row:
            findings.append(f"a reader saw {row} at {place}; now {found.get(place)} is there")
    return findings
