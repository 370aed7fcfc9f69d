"""What a server shows to its operators: metrics, health, connections, options, buckets; and a way in for its page.

Everything here may be called from any thread: what belongs to the event loop of the server is looked at there, which
takes microseconds, and everything that takes longer is left to the caller.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.memory import resident_bytes
from fluss.metrics import Family, Metrics
from fluss.net.admission import address_key
from fluss.net.connection_login import check_in_turn
from fluss.net.listener import Listener
from fluss.net.login import Guess, Login, PasswordHashing, Success, Users
from fluss.net.login_throttle import LoginThrottle
from fluss.net.request_handler import Guest, RequestContext
from fluss.net.request_metrics import RequestMetrics
from fluss.net.server_connection import ConnectionFacts
from fluss.protocol.api import ApiKey
from fluss.protocol.sasl import PLAIN, Credentials, plain_token
from fluss.schema.acl import AclResource
from fluss.schema.table import TablePath
from fluss.server.authorizer import CLUSTER, Operation
from fluss.server.coordinator.coordinator import Coordinator
from fluss.server.descriptors import http_connections_possible
from fluss.server.options.server_options import ServerOptions
from fluss.server.rpc.coordinator_service import CoordinatorService
from fluss.server.rpc.tablet_service import TabletService
from fluss.server.tablet.buckets import BucketGroup
from fluss.server.tablet.manager import TabletManager
from fluss.storage.log.file_names import TabletKind

T = TypeVar("T")

# By which the requests of the page are known. No listener of a configuration can have this name.
INSIDE_LISTENER: Final = "(http)"
# How often it is counted how much there is.
_INVENTORY_S: Final = 30.0
_HEALTH_S: Final = 1.0
_CHANGED_WHILE_RUNNING: Final = "changed while the server runs"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Whether the server does its work, and if not, why."""

    status: str  # green, yellow or red
    reasons: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return self.status != "red"


@dataclass(frozen=True, slots=True)
class ApiTotals:
    """The counts of one API since the start."""

    requests: int
    errors: int
    received_bytes: int
    sent_bytes: int
    seconds: float
    times: Sequence[int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much there is."""

    bucket_count: int
    failed_bucket_count: int
    table_count: int
    partition_count: int
    # Tables with a lake, by what is next for them.
    tiering_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What the server has done up to a moment, to be compared with another moment."""

    apis: dict[ApiKey, ApiTotals]
    memory_bytes: int
    connection_count: int
    delayed_fetch_count: int
    written_row_count: int
    is_write_locked: bool
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """A bucket as the server has it."""

    bucket_id: int
    state: str  # open, closed or failed
    segment_count: int | None
    log_bytes: int | None
    remote_start: int | None
    remote_end: int | None
    remote_bytes: int | None
    log_directory: Path
    kv_directory: Path | None


@dataclass(frozen=True, slots=True)
class TieringFacts:
    """Where a table with a lake is in its schedule."""

    state: str
    freshness_ms: int
    failure_count: int
    file_bytes: int | None
    record_count: int | None


class OperatorView:
    """The door of a server for its page. Methods may be called from any thread and awaited on any event loop."""

    def __init__(
        self,
        options: ServerOptions,
        metrics: Metrics,
        request_metrics: RequestMetrics,
        coordinator: Coordinator,
        coordinator_service: CoordinatorService,
        manager: TabletManager,
        listeners: Sequence[Listener],
        inside: Listener,
        *,
        users: Users | None,
        throttle: LoginThrottle,
        tablet_service: TabletService,
    ) -> None:
        """``inside`` is a listener without an address, for the connections of the page. Called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.options = options
        self._metrics = metrics
        self._request_metrics = request_metrics
        self._coordinator = coordinator
        self._coordinator_service = coordinator_service
        self._manager = manager
        self._listeners = listeners
        self._inside = inside
        self._users = users
        self._throttle = throttle
        self._hashing = PasswordHashing()
        self._tablet_service = tablet_service
        self._inventory: Inventory | None = None
        self._counted_at_s = 0.0
        self._last_health: tuple[float, HealthReport] | None = None

    @property
    def http_connection_count_max(self) -> int:
        """How many connections of HTTP there are descriptors for."""
        return http_connections_possible()

    # Who may look

    @property
    def needs_login(self) -> bool:
        return self._users is not None

    async def log_in(self, username: str, password: str, address: str) -> Success:
        """Say who it is. Raises AuthenticationError, or code 51 after too many wrong passwords."""
        users = self._users
        assert users is not None, "nobody has to log in"
        try:
            token = plain_token(Credentials(username, password))
        except FlussError:
            raise AuthenticationError("the name or the password is wrong") from None

        async def check() -> Success:
            guess = Login(users, (PLAIN,), self._hashing).take(PLAIN, token)
            assert isinstance(guess, Guess), "PLAIN has no challenges"
            return await check_in_turn(self._throttle, address_key(address), guess)

        return await self._run(check())

    def is_current(self, success: Success) -> bool:
        """Whether a user still has the password that it has logged in with."""
        assert self._users is not None, "nobody has to log in"
        return self._users.table.version_of(success.principal.name) == success.version

    async def check_operator(self, guest: Guest) -> None:
        """Refuse users who may not describe the cluster (code 48)."""
        await self._call(lambda: self._check(guest, CLUSTER))

    def _check(self, guest: Guest, resource: AclResource) -> None:
        self._coordinator.authorizer.check(_context(guest), Operation.DESCRIBE, resource)

    async def dial(self, guest: Guest) -> socket.socket:
        """Return one end of a connection to this server, on which requests are those of a guest."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        try:
            await self._run(self._inside.adopt(far, guest))
        except BaseException:
            near.close()
            far.close()
            raise
        return near

    # What there is to see

    async def families(self) -> list[Family]:
        """Return all metrics as they are now."""
        return await self._call(self._metrics.collect)

    async def load(self) -> LoadSample:
        """Return what the server has done so far."""
        return await self._call(self._load)

    def _load(self) -> LoadSample:
        return LoadSample(
            apis={
                key: ApiTotals(
                    *(counts.request_count, counts.error_count, counts.received_bytes, counts.sent_bytes),
                    *(counts.seconds, tuple(counts.times)),
                )
                for key, counts in self._request_metrics.counts.items()
                if counts.request_count
            },
            memory_bytes=resident_bytes() or 0,
            connection_count=sum(listener.connection_count for listener in self._listeners),
            delayed_fetch_count=self._tablet_service.delayed_fetch_count,
            written_row_count=self._tablet_service.written_row_count,
            is_write_locked=self._manager.disk_guard.is_locked,
            inventory=self._current_inventory(),
        )

    def _current_inventory(self) -> Inventory:
        """Count what there is, now and then: it takes a look at every table and every bucket in use."""
        now_s = self._loop.time()
        if self._inventory is None or now_s - self._counted_at_s > _INVENTORY_S:
            health = self._manager.health()
            _, tables, partitions = self._table_count()
            self._inventory = Inventory(
                bucket_count=health.bucket_count,
                failed_bucket_count=health.bucket_count - health.active_count,
                table_count=tables,
                partition_count=partitions,
                tiering_counts=Counter(table.state.value for table in self._coordinator.lake_tiering.tables()),
            )
            self._counted_at_s = now_s
        return self._inventory

    async def health(self) -> HealthReport:
        """Return how the server is, or was a second ago: everybody may ask, and it takes a look at every bucket."""
        return await self._call(self._current_health)

    def _current_health(self) -> HealthReport:
        now_s = self._loop.time()
        if self._last_health is None or now_s - self._last_health[0] > _HEALTH_S:
            self._last_health = now_s, self._health()
        return self._last_health[1]

    def _health(self) -> HealthReport:
        red: list[str] = []
        yellow: list[str] = []
        health, scrubber = self._manager.health(), self._manager.scrubber
        failed_count = health.bucket_count - health.active_count
        if failed_count:
            red.append(
                f"{failed_count} of {health.bucket_count} buckets cannot be read or written; the log of the server "
                "says why"
            )
        if (problem := self._manager.disk_guard.problem) is not None:
            red.append(problem)
        if health.problem is not None:
            (red if health.is_fenced else yellow).append(health.problem)
        if damaged_count := len(scrubber.damaged_files):
            yellow.append(f"{damaged_count} files are damaged and not mended; the log of the server names them")
        if crowded_count := self._coordinator_service.crowded_count:
            yellow.append(
                f"{crowded_count} tables lack partitions by time because a limit of partitions or buckets is reached"
            )
        return HealthReport("red" if red else "yellow" if yellow else "green", (*red, *yellow))

    async def backup_age_s(self) -> float | None:
        """Return how old the backup is; None if there is none."""
        return await self._call(self._backup_age_s)

    def _backup_age_s(self) -> float | None:
        backup = self._manager.backup
        return None if backup is None or not backup.is_enabled else backup.age_ms / 1000

    async def connections(self) -> list[ConnectionFacts]:
        return await self._call(lambda: [facts for listener in self._listeners for facts in listener.connections()])

    async def configuration(self) -> list[tuple[str, str, str]]:
        """Return key, value and origin of all options; secrets are hidden."""
        changed = await self._call(self._coordinator.configs.describe)
        dynamic = {entry.key: entry.value or "" for entry in changed if entry.is_dynamic}
        rows = {key: (text, origin) for key, text, origin in self.options.shown()}
        rows.update((key, (text, _CHANGED_WHILE_RUNNING)) for key, text in dynamic.items())
        return [(key, text, origin) for key, (text, origin) in rows.items()]

    async def table_count(self) -> tuple[int, int, int]:
        """Return how many databases, tables and partitions there are."""
        return await self._call(self._table_count)

    def _table_count(self) -> tuple[int, int, int]:
        catalog = self._coordinator.catalog
        tables = catalog.tables()
        partitions = sum(len(catalog.partitions_of(table.table_id)) for table in tables if table.is_partitioned)
        return len(catalog.database_names()), len(tables), partitions

    async def buckets(
        self, path: TablePath, partition_id: int | None, bucket_ids: Iterable[int], guest: Guest
    ) -> list[BucketFacts]:
        """Return what is known of buckets without opening them. Raises codes 7, 36 and 48."""
        return await self._call(lambda: self._buckets(path, partition_id, list(bucket_ids), guest))

    def _buckets(
        self, path: TablePath, partition_id: int | None, bucket_ids: list[int], guest: Guest
    ) -> list[BucketFacts]:
        self._check(guest, AclResource.table(path))
        table = self._coordinator.catalog.existing_table(path)
        hosted = self._manager.tables.get(table.table_id)
        group = None if hosted is None else hosted.groups.get(partition_id)
        if group is None:
            raise FlussError(f"Partition {partition_id} of '{path}' does not exist", ErrorCode.PARTITION_NOT_EXISTS)
        return [_bucket_facts(group, number, has_key=table.has_primary_key) for number in bucket_ids]

    async def tiering(self, path: TablePath, guest: Guest) -> TieringFacts | None:
        """Return where a table is in the schedule of its lake; None if it has none. Raises codes 7 and 48."""
        return await self._call(lambda: self._tiering(path, guest))

    def _tiering(self, path: TablePath, guest: Guest) -> TieringFacts | None:
        self._check(guest, AclResource.table(path))
        table_id = self._coordinator.catalog.existing_table(path).table_id
        for table in self._coordinator.lake_tiering.tables():
            if table.table_id == table_id:
                return TieringFacts(
                    table.state.value, table.freshness_ms, table.failure_count, table.file_bytes, table.record_count
                )
        return None

    # Across threads

    async def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the event loop of the server."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._schedule(lambda: self._loop.call_soon_threadsafe(run))
        return await asyncio.wrap_future(future)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the server."""
        try:
            future = self._schedule(lambda: asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        except FlussError:
            coroutine.close()
            raise
        waiting: Awaitable[T] = asyncio.wrap_future(future)
        return await waiting

    def _schedule(self, schedule: Callable[[], T]) -> T:
        try:
            return schedule()
        except RuntimeError:
            raise FlussError("the server is stopping", ErrorCode.NETWORK_EXCEPTION) from None

    def close(self) -> None:
        self._hashing.close()


def _context(guest: Guest) -> RequestContext:
    return RequestContext(ApiKey.GET_CLUSTER_HEALTH, 0, guest.principal, INSIDE_LISTENER, guest.peer_address)


def _bucket_facts(group: BucketGroup, number: int, *, has_key: bool) -> BucketFacts:
    bucket = group.in_use.get(number)
    log = None if bucket is None else bucket.tablet
    remote = group.remote
    is_remote = remote is not None and remote.starts[number] < remote.ends[number]
    return BucketFacts(
        bucket_id=number,
        state="failed" if bucket is not None and bucket.is_failed else "closed" if log is None else "open",
        segment_count=None if log is None else log.segment_count,
        log_bytes=None if log is None else log.size_bytes,
        remote_start=remote.starts[number] if remote is not None and is_remote else None,
        remote_end=remote.ends[number] if remote is not None and is_remote else None,
        remote_bytes=remote.sizes[number] if remote is not None and is_remote else None,
        log_directory=group.log_directory(number),
        kv_directory=group.directory / f"{TabletKind.KV}{number}" if has_key else None,
    )
