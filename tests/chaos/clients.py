"""The clients of a chaos run. Each records in a history what it does and what it sees, and lives through all faults.

An operation that ends with an error has an unknown outcome: the writer that met it is given up, and another one goes on
with a connection of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import fluss
from fluss.errors import FlussError
from fluss.testing.history import ABSENT, History, Outcome, Write
from fluss.testing.waiting import eventually_async
from tests.chaos import tables
from tests.chaos.tables import BUCKETS, KEYS

LOG, KEYED, CHURNED = (fluss.TablePath("chaos", name) for name in ("log", "keyed", "churned"))
_IN_FLIGHT_MAX: Final = 60
_BATCH_ROWS_MAX: Final = 30
_POLL_MS: Final = 200
# Servers are down half of the time, and one operation may meet several of their ends.
WAIT_S: Final = 120.0
_END_TIMEOUT_S: Final = 240.0

logger = logging.getLogger(__name__)


class Clients:
    """Everybody who uses the tables of one server, on the running event loop."""

    def __init__(self, bootstrap_servers: str, seed: int, *, pause_s: float, wait_s: float = WAIT_S) -> None:
        """``wait_s`` is how long an operation waits for its server."""
        self._options = dict.fromkeys(("request-timeout", "connect-timeout"), int(wait_s * 1000))
        self.history = History()
        # Operations that ended with an error, by what they were.
        self.errors: list[str] = []
        # Clients that waited for something that did not come, although the server was there.
        self.hung: list[str] = []
        self._bootstrap_servers = bootstrap_servers
        self._pause_s = pause_s
        self._seeds = random.Random(seed)
        self._numbers: Iterator[int] = itertools.count(1)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # The table that was created last under the name of those that come and go.
        self._churned: int | None = None
        self.log_table = self.history.new_table(str(LOG))
        self.key_table = self.history.new_table(str(KEYED), has_key=True)

    # From beginning to end

    async def create_tables(self) -> None:
        async with self._connection() as connection:
            admin = connection.get_admin()
            await admin.create_database(LOG.database_name, ignore_if_exists=True)
            await admin.create_table(LOG, tables.log_descriptor())
            await admin.create_table(KEYED, tables.key_descriptor())

    def start(self) -> None:
        """Begin to write and to read."""
        roles: list[Callable[[random.Random], Awaitable[None]]] = [
            self._append_rows,
            self._append_rows,
            self._change_rows,
            self._change_rows,
            self._follow_log,
            self._follow_changelog,
            self._look_up,
            self._scan,
            self._ask_for_latest,
            self._churn,
        ]
        for role in roles:
            self._tasks.append(asyncio.create_task(self._repeat(role), name=role.__name__))

    async def wait_until_at_work(self) -> None:
        """Wait until everybody has done something: clients that never reach their server are not what is tested."""
        history = self.history
        parts = history.seen, history.lookups, history.scans, history.latest, history.sightings
        await eventually_async(lambda: all(map(len, parts)), "the clients' beginning", timeout_s=_END_TIMEOUT_S)

    async def stop(self) -> None:
        """Let everybody finish what was begun. The server must be there."""
        self._stop.set()
        _, late = await asyncio.wait(self._tasks, timeout=_END_TIMEOUT_S)
        for task in late:
            self.hung.append(f"{task.get_name()} did not come to an end within {_END_TIMEOUT_S:g} s")
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]  # it is one

    async def read_everything(self) -> None:
        """Record the whole logs and all rows, when nobody writes any more."""
        async with self._connection() as connection:
            await self._read_log(connection)
            await self._read_changelog(connection)

    @asynccontextmanager
    async def _connection(self) -> Any:
        config = fluss.Config(
            {"bootstrap.servers": self._bootstrap_servers, "writer.batch-timeout-ms": 5, **self._options}
        )
        connection = await fluss.FlussConnection.create(config)
        try:
            yield connection
        finally:
            # What it has not sent is lost with it; that its server does not answer is no finding.
            try:
                await asyncio.wait_for(connection.close(), _END_TIMEOUT_S)
            except (FlussError, TimeoutError) as error:
                self._note("closing a connection", error)

    async def _repeat(self, role: Callable[[random.Random], Awaitable[None]]) -> None:
        """Have a role played, by another client whenever one has met an error."""
        rng = random.Random(self._seeds.getrandbits(64))
        while not self._stop.is_set():
            try:
                await role(rng)
            except FlussError as error:
                self._note(role.__name__, error)
                await asyncio.sleep(0.02)

    def _note(self, what: str, error: BaseException) -> None:
        self.errors.append(f"{what}: {type(error).__name__}: {error}")

    async def _pause(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 2 * self._pause_s))

    # Writers

    async def _append_rows(self, rng: random.Random) -> None:
        async with self._connection() as connection, self._in_flight() as sent:
            writer = (await connection.get_table(LOG)).new_append().create_writer()
            process = self.history.new_process()
            while not self._stop.is_set():
                numbers = [next(self._numbers) for _ in range(rng.choice([1, 1, 1, rng.randint(1, _BATCH_ROWS_MAX)]))]
                operation = self.history.begin_write(self.log_table, process, numbers=numbers)
                if len(numbers) == 1:
                    handle = writer.append(tables.log_row(numbers[0]))
                else:
                    handle = writer.write_arrow_batch(tables.log_batch(numbers))
                await sent(operation, handle)
                await self._pause(rng)

    async def _change_rows(self, rng: random.Random) -> None:
        async with self._connection() as connection, self._in_flight() as sent:
            table = await connection.get_table(KEYED)
            # A writer each for whole rows and for parts of them: the order between these is not promised.
            writers = {
                kind: (
                    upsert.partial_update_by_name(tables.WRITTEN_COLUMNS[kind]) if partial else upsert
                ).create_writer()
                for kind, partial in ((Write.UPSERT, False), (Write.VALUE, True), (Write.OTHER, True))
                for upsert in [table.new_upsert()]
            }
            processes = {kind: self.history.new_process() for kind in writers}
            while not self._stop.is_set():
                kind = rng.choice([Write.UPSERT, Write.UPSERT, Write.UPSERT, Write.VALUE, Write.OTHER, Write.DELETE])
                count = rng.choice([1, 1, 1, rng.randint(1, _BATCH_ROWS_MAX)]) if kind is Write.UPSERT else 1
                keys = [rng.randrange(KEYS) for _ in range(count)]
                numbers = [next(self._numbers) for _ in keys]
                process = processes[Write.UPSERT if kind is Write.DELETE else kind]
                operation = self.history.begin_write(self.key_table, process, numbers=numbers, keys=keys, kind=kind)
                if kind is Write.DELETE:
                    handle = writers[Write.UPSERT].delete({"k": keys[0]})
                elif count == 1:
                    handle = writers[kind].upsert(tables.key_row(kind, keys[0], numbers[0]))
                else:
                    handle = writers[kind].upsert_arrow_batch(tables.key_batch(keys, numbers))
                await sent(operation, handle)
                await self._pause(rng)

    @asynccontextmanager
    async def _in_flight(self) -> Any:
        """Give out a function that takes what was sent; what becomes of it is recorded as it becomes known."""
        pending: set[asyncio.Task[None]] = set()
        failures: list[FlussError] = []

        async def watch(operation: int, handle: fluss.WriteResultHandle) -> None:
            try:
                await handle.wait()
            except FlussError as error:
                self.history.end_write(operation, Outcome.UNKNOWN)
                failures.append(error)
            else:
                self.history.end_write(operation, Outcome.OK)

        async def sent(operation: int, handle: fluss.WriteResultHandle) -> None:
            task = asyncio.create_task(watch(operation, handle))
            pending.add(task)
            task.add_done_callback(pending.discard)
            while len(pending) >= _IN_FLIGHT_MAX and not failures:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if failures:
                raise failures[0]

        try:
            yield sent
        finally:
            if pending:
                await asyncio.wait(pending)

    # Readers

    async def _follow_log(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            scanner = await (await connection.get_table(LOG)).new_scan().create_record_batch_log_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            process = self.history.new_process()
            while not self._stop.is_set():
                start_ns = self.history.now_ns()
                self._saw_log(process, start_ns, await scanner.poll_record_batch_async(_POLL_MS))

    async def _follow_changelog(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            scanner = await (await connection.get_table(KEYED)).new_scan().create_changelog_scanner()
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            process = self.history.new_process()
            while not self._stop.is_set():
                start_ns = self.history.now_ns()
                self._saw_changes(process, start_ns, await scanner.poll_record_batch_async(_POLL_MS))

    async def _look_up(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            lookuper = (await connection.get_table(KEYED)).new_lookup().create_lookuper()
            process = self.history.new_process()
            while not self._stop.is_set():
                keys = [rng.randrange(KEYS) for _ in range(rng.choice([1, 1, 8]))]
                start_ns = self.history.now_ns()
                rows = await asyncio.gather(*(lookuper.lookup({"k": key}) for key in keys))
                found = [tables.row_numbers(row) for row in rows]
                self.history.looked_up(
                    self.key_table,
                    process,
                    start_ns=start_ns,
                    keys=keys,
                    values=[value for value, _ in found],
                    others=[other for _, other in found],
                )
                await self._pause(rng)

    async def _scan(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            table = await connection.get_table(KEYED)
            process = self.history.new_process()
            while not self._stop.is_set():
                limit = rng.choice([None, None, 7])
                start_ns = self.history.now_ns()
                rows = await table.to_arrow_async(limit=limit)
                keys, values, others = tables.key_numbers(rows)
                self.history.scanned(
                    self.key_table,
                    process,
                    start_ns=start_ns,
                    keys=keys,
                    values=values,
                    others=others,
                    is_complete=limit is None,
                )
                await asyncio.sleep(rng.uniform(0, 40 * self._pause_s))

    async def _ask_for_latest(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            admin, process = connection.get_admin(), self.history.new_process()
            while not self._stop.is_set():
                for path, table in ((LOG, self.log_table), (KEYED, self.key_table)):
                    start_ns = self.history.now_ns()
                    latest = await admin.list_offsets(path, list(range(BUCKETS)), fluss.OffsetSpec.latest())
                    self.history.saw_latest(table, process, start_ns=start_ns, offsets=latest)
                await asyncio.sleep(rng.uniform(0, 20 * self._pause_s))

    def _saw_log(self, process: int, start_ns: int, batches: Any, *, is_final: bool = False) -> None:
        for batch in batches:
            first, count = batch.base_offset, batch.batch.num_rows
            self.history.saw(
                self.log_table,
                process,
                start_ns=start_ns,
                bucket=batch.bucket.bucket_id,
                offsets=range(first, first + count),
                values=tables.log_numbers(batch.batch),
                is_final=is_final,
            )

    def _saw_changes(self, process: int, start_ns: int, batches: Any, *, is_final: bool = False) -> None:
        for batch in batches:
            first, count = batch.base_offset, batch.batch.num_rows
            keys, values, others = tables.key_numbers(batch.batch)
            self.history.saw(
                self.key_table,
                process,
                start_ns=start_ns,
                bucket=batch.bucket.bucket_id,
                offsets=range(first, first + count),
                changes=tables.change_numbers(batch.change_types),
                keys=keys,
                values=values,
                others=others,
                is_final=is_final,
            )

    # Tables that come and go

    async def _churn(self, rng: random.Random) -> None:
        async with self._connection() as connection:
            admin, process = connection.get_admin(), self.history.new_process()
            # One of a predecessor whose end is not known is taken away first.
            start_ns = self.history.now_ns()
            if self._churned is not None:
                self._changed(self._churned, process, start_ns, Outcome.UNKNOWN, is_drop=True)
            await admin.drop_table(CHURNED, ignore_if_not_exists=True)
            if self._churned is not None:
                self._changed(self._churned, process, start_ns, Outcome.OK, is_drop=True)
            while not self._stop.is_set():
                self._churned = table = self.history.new_table(str(CHURNED))
                start_ns = self.history.now_ns()
                try:
                    await admin.create_table(CHURNED, tables.log_descriptor())
                except FlussError:
                    self._changed(table, process, start_ns, Outcome.UNKNOWN)
                    raise
                self._changed(table, process, start_ns, Outcome.OK)
                await self._use_churned(connection, table, process, rng)
                start_ns = self.history.now_ns()
                try:
                    await admin.drop_table(CHURNED)
                except FlussError:
                    self._changed(table, process, start_ns, Outcome.UNKNOWN, is_drop=True)
                    raise
                self._changed(table, process, start_ns, Outcome.OK, is_drop=True)
                start_ns = self.history.now_ns()
                is_there = await admin.table_exists(CHURNED)
                self.history.saw_table(str(CHURNED), process, start_ns=start_ns, table=table if is_there else ABSENT)
                await asyncio.sleep(rng.uniform(0, 40 * self._pause_s))

    def _changed(self, table: int, process: int, start_ns: int, outcome: Outcome, *, is_drop: bool = False) -> None:
        self.history.changed_table(table, process, start_ns=start_ns, outcome=outcome, is_drop=is_drop)

    async def _use_churned(
        self, connection: fluss.FlussConnection, table: int, process: int, rng: random.Random
    ) -> None:
        """Write a few rows into a new table, and read what is in it: those and no others."""
        start_ns = self.history.now_ns()
        is_there = await connection.get_admin().table_exists(CHURNED)
        self.history.saw_table(str(CHURNED), process, start_ns=start_ns, table=table if is_there else ABSENT)
        opened = await connection.get_table(CHURNED)
        numbers = [next(self._numbers) for _ in range(rng.randint(1, _BATCH_ROWS_MAX))]
        operation = self.history.begin_write(table, process, numbers=numbers)
        try:
            await opened.new_append().create_writer().write_arrow_batch(tables.log_batch(numbers)).wait()
        except FlussError:
            self.history.end_write(operation, Outcome.UNKNOWN)
            raise
        self.history.end_write(operation, Outcome.OK)
        scanner = await opened.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        start_ns = self.history.now_ns()
        rows = tables.log_numbers(await scanner.to_arrow_async())
        self.history.saw(
            table,
            process,
            start_ns=start_ns,
            bucket=0,
            offsets=range(len(rows)),
            values=rows,
        )

    # At the end

    async def _read_log(self, connection: fluss.FlussConnection) -> None:
        latest = await self._latest(connection, LOG, self.log_table)
        scanner = await (await connection.get_table(LOG)).new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        process, left = self.history.new_process(), sum(latest.values())
        while left > 0:
            batches = list(await scanner.poll_record_batch_async(120_000))
            if not batches:
                raise AssertionError(f"{left} rows of {LOG} cannot be read")
            left -= sum(batch.batch.num_rows for batch in batches)
            self._saw_log(process, self.history.now_ns(), batches, is_final=True)
        self.history.finish(self.log_table)

    async def _read_changelog(self, connection: fluss.FlussConnection) -> None:
        await self._latest(connection, KEYED, self.key_table)
        table = await connection.get_table(KEYED)
        process = self.history.new_process()
        # A batch whose deletes met nothing takes an offset and has no record, so the last offset may have none:
        # a bounded read knows where to stop.
        for bucket in range(BUCKETS):
            changes = await table.new_scan().create_changelog_scanner()
            changes.subscribe(bucket, fluss.EARLIEST_OFFSET)
            start_ns = self.history.now_ns()
            rows = await changes.to_arrow_async()
            keys, values, others = tables.key_numbers(rows)
            self.history.saw(
                self.key_table,
                process,
                start_ns=start_ns,
                bucket=bucket,
                offsets=rows["_log_offset"].to_numpy(),
                changes=tables.change_numbers(rows["_change_type"]),
                keys=keys,
                values=values,
                others=others,
                is_final=True,
            )
        keys, values, others = tables.key_numbers(await table.to_arrow_async())
        self.history.finish(self.key_table, keys=keys, values=values, others=others)

    async def _latest(self, connection: fluss.FlussConnection, path: fluss.TablePath, table: int) -> dict[int, int]:
        start_ns = self.history.now_ns()
        latest = await connection.get_admin().list_offsets(path, list(range(BUCKETS)), fluss.OffsetSpec.latest())
        self.history.saw_latest(table, self.history.new_process(), start_ns=start_ns, offsets=latest)
        return dict(latest)
