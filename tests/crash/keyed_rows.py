"""Rows of a primary-key table through crashes, and through the loss of the key-value store behind it.

Between two lives of the server its store is deleted or damaged now and then. Afterwards:

- every key has the row of the last change of its writer, by lookup, by reading the whole table, and by replaying the
  changelog from its beginning;
- every acknowledged upsert is in the changelog exactly once, in the order of its writer, and no change is there twice;
- old rows in the changelog are the rows that were there; offsets have no gap;
- a witness that looks keys up all the time never sees a row older than one it saw, or than one acknowledged before.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import fluss
from tests.crash.harness import CrashReport
from tests.crash.keyed_writer import SLOTS, Change
from tests.crash.log_rows import connect
from tests.crash.log_writer import payload

BUCKETS = 3
# The store is deleted or damaged before one start in so many.
DAMAGE_EVERY = 3
DAMAGED_BYTES_MAX = 64
WITNESS_PAUSE_S = 0.002

Key = tuple[str, int]
Row = dict[str, Any]


class Record(NamedTuple):
    """One record of the changelog."""

    bucket: int
    offset: int
    change: str
    row: Row


class KeyedRows:
    """A key of writer and slot, the number of the change, and a column that would show damage."""

    table = "crash.states"
    writer_program = "tests.crash.keyed_writer"

    def __init__(self) -> None:
        self._path = fluss.TablePath(*self.table.split("."))
        self.lookup_count = 0
        self._findings: list[str] = []

    async def create_table(self, bootstrap_servers: str) -> None:
        async with await connect(bootstrap_servers) as connection:
            admin = connection.get_admin()
            await admin.create_database(self._path.database_name, ignore_if_exists=True)
            schema = (
                fluss.Schema.builder()
                .column("writer", fluss.DataTypes.string())
                .column("slot", fluss.DataTypes.int())
                .column("n", fluss.DataTypes.bigint())
                .column("payload", fluss.DataTypes.string())
                .primary_key(["writer", "slot"])
                .build()
            )
            await admin.create_table(
                self._path, fluss.TableDescriptor(schema, bucket_count=BUCKETS), ignore_if_exists=True
            )

    async def witness(self, bootstrap_servers: str, stop: asyncio.Event) -> None:
        """Look keys up; rows of a key only ever become newer."""
        newest: dict[Key, int] = {}
        rng = random.Random(0)
        async with await connect(bootstrap_servers) as connection:
            lookuper = (await connection.get_table(self._path)).new_lookup().create_lookuper()
            while not stop.is_set():
                key = f"writer-{rng.randrange(2)}", rng.randrange(SLOTS)
                row = await lookuper.lookup(key)
                self.lookup_count += 1
                if row is not None:
                    if row["n"] < newest.get(key, -1):
                        self._findings.append(f"{key} was {newest[key]} and later {row['n']} again")
                    if row["payload"] != payload(row["n"]):
                        self._findings.append(f"{key} came back damaged: {row}")
                    newest[key] = row["n"]
                await asyncio.sleep(WITNESS_PAUSE_S)

    def damage(self, data_dir: Path, rng: random.Random) -> bool:
        """Delete a store, or some of its bytes. The log is not touched: it is what the store is made from."""
        if rng.randrange(DAMAGE_EVERY):
            return False
        stores = sorted(path for path in (*data_dir.rglob("kv-*"), *data_dir.glob("kv.shared/*")) if path.is_dir())
        if not stores:
            return False
        store = rng.choice(stores)
        files = sorted(path for path in store.iterdir() if path.is_file() and path.stat().st_size)
        match rng.randrange(4):
            case 0:
                shutil.rmtree(store)
            case 1 if files:
                rng.choice(files).unlink()
            case 2 if files:
                file = rng.choice(files)
                with file.open("r+b") as opened:
                    opened.truncate(rng.randrange(file.stat().st_size))
            case _ if files:
                file = rng.choice(files)
                with file.open("r+b") as opened:
                    opened.seek(rng.randrange(file.stat().st_size))
                    opened.write(rng.randbytes(rng.randint(1, DAMAGED_BYTES_MAX)))
        return True

    async def check(self, bootstrap_servers: str, acks: dict[str, Path], report: CrashReport) -> None:
        changes = {name: read_changes(file) for name, file in acks.items()}
        report.acknowledged_rows = sum(map(len, changes.values()))
        report.rows_seen_live = self.lookup_count
        report.findings += self._findings
        async with await connect(bootstrap_servers) as connection:
            table = await connection.get_table(self._path)
            lookuper = table.new_lookup().create_lookuper()
            keys = [(writer, slot) for writer in changes for slot in range(SLOTS)]
            rows = await asyncio.gather(*map(lookuper.lookup, keys))
            looked_up = {key: row for key, row in zip(keys, rows, strict=True) if row is not None}
            current = {key_of(row): row for row in (await table.to_arrow_async()).to_pylist()}
            report.findings += differences(looked_up, current, await self._changelog(connection), changes)

    async def _changelog(self, connection: fluss.FlussConnection) -> list[Record]:
        ends = await connection.get_admin().list_offsets(self._path, list(range(BUCKETS)), fluss.OffsetSpec.latest())
        scanner = await (await connection.get_table(self._path)).new_scan().create_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        # A batch whose deletes met nothing has no records and takes an offset all the same, perhaps the last.
        records: list[Record] = []
        empty_polls = 0
        while empty_polls < 3:
            polled = await scanner.poll_async(500)
            empty_polls = 0 if len(polled) else empty_polls + 1
            records += [
                Record(bucket.bucket_id, record.offset, record.change_type.short_string(), record.row)
                for bucket, found in polled.items()
                for record in found
            ]
            if {bucket: end - 1 for bucket, end in ends.items()} == last_offsets(records):
                break
        return records


def read_changes(path: Path) -> list[Change]:
    fields = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return [Change(int(number), int(slot), kind == "D") for number, slot, kind in fields]


def last_offsets(records: list[Record]) -> dict[int, int]:
    return {record.bucket: record.offset for record in records}


def key_of(row: Row) -> Key:
    return row["writer"], row["slot"]


def differences(
    looked_up: dict[Key, Row], current: dict[Key, Row], changelog: list[Record], changes: dict[str, list[Change]]
) -> list[str]:
    """Return what contradicts the promises above, one sentence each."""
    findings = []
    expected: dict[Key, int] = {}
    for writer, acknowledged in changes.items():
        for change in acknowledged:
            if change.is_delete:
                expected.pop((writer, change.slot), None)
            else:
                expected[writer, change.slot] = change.number
    replayed = replay(changelog, findings)
    for how, found in (("lookup", looked_up), ("reading the table", current), ("the changelog", replayed)):
        for key in expected.keys() | found.keys():
            number = found[key]["n"] if key in found else None
            if number != expected.get(key):
                findings.append(f"{key} should be {expected.get(key)}, {how} says {number}")
            elif number is not None and found[key]["payload"] != payload(number):
                findings.append(f"{key} is damaged by {how}: {found[key]}")
    findings += _not_exactly_once(changelog, changes)
    return findings


def replay(changelog: list[Record], findings: list[str]) -> dict[Key, Row]:
    """Return the rows that the changelog leads to; note old rows that never were."""
    rows: dict[Key, Row] = {}
    last: dict[int, Record] = {}
    for record in changelog:
        key, before = key_of(record.row), last.get(record.bucket)
        if before is not None and record.offset <= before.offset:
            findings.append(f"offset {record.offset} of bucket {record.bucket} follows {before.offset}")
        if record.change == "+U" and (before is None or (before.change, before.offset) != ("-U", record.offset - 1)):
            findings.append(f"+U at offset {record.offset} of bucket {record.bucket} has no -U before it")
        last[record.bucket] = record
        if record.change == "+I" and key in rows:
            findings.append(f"+I at offset {record.offset} of bucket {record.bucket}, but {key} is there")
        if record.change in ("-U", "-D") and rows.get(key) != record.row:
            findings.append(f"{record.change} at offset {record.offset}: {record.row}, but there was {rows.get(key)}")
        if record.change in ("+I", "+U"):
            rows[key] = record.row
        elif record.change == "-D":
            rows.pop(key, None)
    return rows


def _not_exactly_once(changelog: list[Record], changes: dict[str, list[Change]]) -> list[str]:
    findings = []
    for writer, acknowledged in changes.items():
        new_rows = [r for r in changelog if r.change in ("+I", "+U") and r.row["writer"] == writer]
        numbers = [record.row["n"] for record in new_rows]
        if len(set(numbers)) != len(numbers):
            findings.append(f"{len(numbers) - len(set(numbers))} changes of {writer} are in the changelog twice")
        lost = {change.number for change in acknowledged if not change.is_delete} - set(numbers)
        if lost:
            findings.append(f"{len(lost)} acknowledged upserts of {writer} are not in the changelog, as {min(lost)}")
        latest: dict[int, int] = {}
        for record in new_rows:
            if record.row["n"] < latest.get(record.bucket, -1):
                findings.append(f"{writer}: {record.row['n']} at offset {record.offset} follows a later change")
            latest[record.bucket] = record.row["n"]
    return findings
