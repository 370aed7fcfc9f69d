"""One server: coordinator and tablet server in this process, on one event loop, behind the same listeners."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss.errors import FlussError
from fluss.memory import MemoryWatch, limit_arenas, loop_gives_back, resident_bytes, serve_alone
from fluss.metrics import Metrics
from fluss.net.admission import Places
from fluss.net.listener import Listener
from fluss.net.listener_settings import ListenerSettings
from fluss.net.login import Users
from fluss.net.login_throttle import LoginThrottle
from fluss.net.quotas import QuotaKind, QuotaRates, Quotas
from fluss.net.request_handler import Handler
from fluss.net.request_metrics import RequestMetrics
from fluss.net.tls import ServerCertificate, ServerTls
from fluss.protocol import scram
from fluss.protocol.api import ApiKey
from fluss.protocol.sasl import UserTable
from fluss.server.authorizer import Authorizer
from fluss.server.coordinator.coordinator import Coordinator
from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.coordinator.lake_snapshots import LakeOffsetsFiles
from fluss.server.coordinator.metadata.metadata_backup import MetadataBackup
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME as METADATA_FILE
from fluss.server.coordinator.nodes import Nodes
from fluss.server.data_dir import DataDirectory
from fluss.server.descriptors import connections_possible, http_connections_possible, raise_limit
from fluss.server.http_listener import HttpPlan, MetricsPage, Site, page_sentence, plan_http, start_site
from fluss.server.listener_parsing import address_text
from fluss.server.listeners import (
    HTTP_LISTENER_NAME,
    ListenerPlan,
    RunningListener,
    SharedUsers,
    plan_listeners,
    warn_of_listeners,
)
from fluss.server.model import Clock
from fluss.server.operator_view import INSIDE_LISTENER, OperatorView
from fluss.server.options.server_option import ServerOption
from fluss.server.options.server_options import ServerOptions
from fluss.server.periodic import Periodic
from fluss.server.restore import refuse_half_restored, restore
from fluss.server.rpc.coordinator_service import CoordinatorService
from fluss.server.rpc.tablet_service import TabletService
from fluss.server.security_files import SecurityFiles, UsersFile, load_salt_key
from fluss.server.service_settings import coordinator_settings, super_user_test, tablet_settings
from fluss.server.tablet.manager import TabletManager
from fluss.server.tablet.tablet_files import find_tablet
from fluss.storage.remote.file_systems import FileSystemOptions
from fluss.storage.remote.security_tokens import SecurityTokens
from fluss.storage.vfs import Files, OsFiles

T = TypeVar("T")

# How long requests that have been received may take to be answered when the server stops.
_DRAIN_TIMEOUT_S: Final = 10.0
# How long a stop may take in all before the server is ended by force.
STOP_TIMEOUT_S: Final = 60.0
# How long a thread that merges or writes may keep the event loop from running when that has something to do.
_SWITCH_INTERVAL_S: Final = 0.0005
# How often it is looked whether the process holds memory that nothing uses any more.
_MEMORY_CHECK_INTERVAL_MS: Final = 5_000
# What the users of the page may read at a time.
_PAGE_MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

logger = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """Return the time as epoch milliseconds."""
    return time.time_ns() // 1_000_000


class FlussServer:
    """A server from its start to its stop. It belongs to the event loop that starts it, and is started once.

    Parts are started in the order in which they need each other, and stopped in the opposite order, also when starting
    fails half way: then everything is as before.
    """

    def __init__(self, options: ServerOptions, *, clock: Clock = wall_clock_ms, files: Files | None = None) -> None:
        """``files`` are where logs are kept: the disk of the machine unless given."""
        if not options.data_dir:
            raise FlussError(f"'{ServerOptions.data_dir.key}' is not set; say where to keep the data")
        self._options = options
        self._plans = plan_listeners(options)
        self._http_plan = plan_http(options, self._plans)
        self._site: Site | None = None
        self._clock = clock
        self._files = files
        self._running = AsyncExitStack()
        self._listeners: list[RunningListener] = []
        self._metrics = Metrics()
        self._quotas = Quotas()
        self._quotas.show(self._metrics)
        self._metrics.gauge("fluss_resident_memory_bytes", "The memory of the process.", lambda: resident_bytes() or 0)
        self._security_files = SecurityFiles()
        self._login_throttle = LoginThrottle(time.monotonic)
        self._request_metrics: RequestMetrics | None = None
        if options.metrics_port or self._http_plan is not None:
            self._request_metrics = RequestMetrics()
            self._request_metrics.show(self._metrics)

    @property
    def metrics(self) -> Metrics:
        """What an operator can look at."""
        return self._metrics

    @property
    def options(self) -> ServerOptions:
        return self._options

    @property
    def data_dir(self) -> Path:
        return Path(self._options.data_dir).absolute()

    @property
    def listeners(self) -> tuple[RunningListener, ...]:
        """The listeners that take clients in, in the order of the configuration."""
        return tuple(self._listeners)

    @property
    def http_url(self) -> str | None:
        """Where the page is; None if there is none."""
        return None if self._site is None else self._site.url

    async def start(self) -> None:
        """Open everything and take clients in. Raises FlussError with what is in the way."""
        try:
            await self._start()
        except BaseException:
            await self._running.aclose()
            raise

    async def stop(self) -> None:
        """Answer what was received, write down everything, and let go of the data directory. May be called again."""
        await self._running.aclose()

    async def __aenter__(self) -> FlussServer:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        if self._options.ignored_keys:
            logger.info("these options have no effect in this server: %s", ", ".join(self._options.ignored_keys))
        warn_of_listeners(self._options, self._plans)
        # In a thread, because a directory may be slow, and other servers may share this loop.
        directory = await asyncio.to_thread(DataDirectory.acquire, self.data_dir, mode=self._options.data_dir_mode)
        self._running.callback(directory.release)
        await asyncio.to_thread(self._restore, directory.path)
        await asyncio.to_thread(_refuse_lost_metadata, directory.path)
        nodes, authorizer = Nodes(self._options.server_id, self._options.rack or None), self._new_authorizer()
        coordinator = await Coordinator.open(
            directory.path,
            coordinator_settings(self._options),
            nodes,
            authorizer,
            self._options.as_written(),
            clock=self._clock,
            tokens=SecurityTokens(
                next(iter(self._options.remote_locations), None),
                FileSystemOptions(self._options.file_system_properties),
            ),
            lake_files=LakeOffsetsFiles.open(
                self._options.remote_locations,
                FileSystemOptions(self._options.file_system_properties),
                directory.path,
                self._files,
            ),
        )
        self._running.push_async_callback(coordinator.close)
        manager = TabletManager(
            directory.path,
            coordinator.catalog,
            tablet_settings(self._options),
            clock=self._clock,
            ids=coordinator.row_ids,
            remote_registry=coordinator.store.remote_logs,
            snapshot_registry=coordinator.store.kv_snapshots,
            tiered=coordinator.lake_snapshots,
            metadata=MetadataBackup(coordinator.store),
            files=self._files,
        )
        self._running.push_async_callback(manager.stop)
        manager.scrubber.show(self._metrics)
        await manager.start()
        if manager.remote is not None:
            coordinator.lake_snapshots.attach(manager.remote.gate)
        coordinator_service = CoordinatorService(
            coordinator, manager, None if manager.snapshots is None else manager.snapshots.files_of
        )
        self._running.push_async_callback(coordinator_service.stop)
        await coordinator_service.start()
        manager.show(self._metrics)
        coordinator_service.show(self._metrics)
        tablet_service = TabletService(manager, coordinator.catalog, authorizer, clock=self._clock)
        self._running.push_async_callback(tablet_service.stop)
        tablet_service.start()
        tablet_service.show(self._metrics)
        self._watch_memory()
        users = await self._load_users(directory.path)
        _follow_changes(coordinator.configs, users, manager)
        _follow_quotas(coordinator.configs, self._quotas)
        handlers = {**coordinator_service.handlers(), **tablet_service.handlers()}
        listeners = await self._start_listeners(handlers, users, nodes, tablet_service)
        if self._http_plan is not None:
            inside = self._inside_listener(handlers, nodes)
            view = OperatorView(
                self._options,
                self._metrics,
                self._request_metrics or RequestMetrics(),
                coordinator,
                coordinator_service,
                manager,
                listeners,
                inside,
                users=self._http_users(self._http_plan, users),
                throttle=self._login_throttle,
                tablet_service=tablet_service,
            )
            await self._start_site(self._http_plan, view)
        if self._options.metrics_port:
            page = MetricsPage(self._metrics.text, self._options.metrics_host, self._options.metrics_port)
            self._running.push_async_callback(page.stop)
            await page.start()
        if not self._security_files.is_empty:
            interval_ms = self._options.security_reload_interval_ms
            reload = Periodic("fluss-security-reload", interval_ms, self._security_files.renew)
            self._running.push_async_callback(reload.stop)
            reload.start()

    def _restore(self, data_dir: Path) -> None:
        """Make the data directory from a backup, if that was asked for. Blocking."""
        options, files = self._options, self._files or OsFiles()
        if options.backup_restore_from:
            file_systems = FileSystemOptions(options.file_system_properties)
            restore(options.backup_restore_from, file_systems, data_dir, files, self._clock)
        refuse_half_restored(data_dir, files)

    async def reload(self) -> None:
        """Look at the files of certificates and users now; those that have changed are loaded again."""
        await self._security_files.renew()

    async def _load_users(self, data_dir: Path) -> SharedUsers:
        options, file, salt_key = self._options, None, None
        if options.sasl_users_file:
            file = await asyncio.to_thread(UsersFile, Path(options.sasl_users_file))
        if any(plan.protocol.uses_sasl for plan in self._plans) and scram.MECHANISM in self._mechanisms:
            salt_key = await asyncio.to_thread(load_salt_key, data_dir)
        is_needed = any(plan.needs_shared_users for plan in self._plans)
        users = SharedUsers(
            options.sasl_jaas_users,
            is_needed=is_needed,
            own_credentials=options.sasl_users,
            is_super_user=super_user_test(options),
            file=file,
            salt_key=salt_key,
        )
        if file is not None:
            self._security_files.add_users(file, users.refresh)
        return users

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        return tuple(name.upper() for name in self._options.sasl_mechanisms)

    def _watch_memory(self) -> None:
        watch = MemoryWatch()

        async def check() -> None:
            watch.check()

        upkeep = Periodic("giving memory back", _MEMORY_CHECK_INTERVAL_MS, check)
        self._running.callback(loop_gives_back(asyncio.get_running_loop()))
        self._running.push_async_callback(upkeep.stop)
        upkeep.start()

    def _new_authorizer(self) -> Authorizer:
        options = self._options
        if not options.authorizer_enabled:
            return Authorizer.disabled()
        return Authorizer(
            super_users=options.super_users,
            internal_listener_name=options.internal_listener_name or None,
            ignore_case=options.principal_ignore_case,
        )

    async def _start_listeners(
        self, handlers: Mapping[ApiKey, Handler], users: SharedUsers, nodes: Nodes, tablet_service: TabletService
    ) -> list[Listener]:
        started: list[Listener] = []
        places = Places(connections_possible(has_http=self._http_plan is not None))

        async def stop_all() -> None:
            # Fetches that wait for records are answered with what there is, so that no client has to be cut off.
            tablet_service.drain()
            await asyncio.gather(*(listener.stop(grace_s=_DRAIN_TIMEOUT_S) for listener in started))

        self._running.push_async_callback(stop_all)
        for plan in self._plans:
            settings = await self._listener_settings(plan, users)
            listener = Listener(
                *(settings, handlers),
                places=places,
                quotas=self._quotas,
                throttle=self._login_throttle,
                request_metrics=self._request_metrics,
            )
            started.append(listener)
            listener.show(self._metrics)
            if plan.needs_shared_users:
                users.on_change.append(listener.end_outdated_sessions)
            await listener.start()
            host, port = plan.advertised_address(listener.port)
            nodes.set_listener(plan.endpoint.name, host, port)
            running = RunningListener(
                plan.endpoint.name, plan.protocol.value, plan.endpoint.host, listener.port, host, port
            )
            self._listeners.append(running)
            logger.info("listener %s; clients are told %s", running, address_text(host, port))
        return started

    # The page

    def _inside_listener(self, handlers: Mapping[ApiKey, Handler], nodes: Nodes) -> Listener:
        """Return a listener without an address: the page reads tables as a client that was let in already."""
        connections_max = http_connections_possible()
        settings = ListenerSettings(
            name=INSIDE_LISTENER,
            connections_max=connections_max,
            connections_per_address_max=connections_max,
            in_flight_bytes_max=_PAGE_MEMORY_BYTES_MAX,
            unsent_bytes_total_max=_PAGE_MEMORY_BYTES_MAX,
        )
        listener = Listener(settings, handlers, quotas=self._quotas)
        self._running.push_async_callback(listener.stop)
        # No socket leads to it: the page makes its connections in another way.
        nodes.set_listener(INSIDE_LISTENER, "127.0.0.1", 1)
        return listener

    def _http_users(self, plan: HttpPlan, users: SharedUsers) -> Users | None:
        if not plan.needs_login:
            return None
        return users if plan.users_of is None else UserTable(plan.users_of.own_users or {})

    async def _start_site(self, plan: HttpPlan, view: OperatorView) -> None:
        self._running.callback(view.close)
        certificate = None if plan.tls is None else await self._load_certificate(HTTP_LISTENER_NAME, plan.tls)
        site = self._site = await start_site(plan, view, certificate)
        self._running.push_async_callback(asyncio.to_thread, site.stop)
        logger.info("the page is at %s", site.url)

    async def _listener_settings(self, plan: ListenerPlan, users: SharedUsers) -> ListenerSettings:
        options = self._options
        certificate = None if plan.tls is None else await self._load_certificate(plan.endpoint.name, plan.tls)
        known_users: Users | None = None
        if plan.protocol.uses_sasl:
            known_users = users if plan.own_users is None else UserTable(plan.own_users)
        return ListenerSettings(
            name=plan.endpoint.name,
            host=plan.endpoint.host,
            port=plan.endpoint.port,
            check_credentials=known_users,
            mechanisms=self._mechanisms,
            certificate=certificate,
            http_page=page_sentence(options),
            frame_bytes_max=options.request_bytes_max,
            connections_max=options.connection_count_max,
            connections_per_address_max=options.connection_count_per_address_max or None,
            in_flight_requests_max=options.queued_requests_max,
            in_flight_bytes_max=max(1, options.request_memory_bytes_max // len(self._plans)),
            idle_timeout_s=options.idle_time_ms_max / 1000,
            arrival_timeout_s=options.arrival_timeout_ms / 1000,
            login_timeout_s=options.login_timeout_ms / 1000,
        )

    async def _load_certificate(self, listener_name: str, tls: ServerTls) -> ServerCertificate:
        try:
            certificate = await asyncio.to_thread(ServerCertificate, tls)
        except FlussError as error:
            raise FlussError(f"listener {listener_name}: {error.message}", error.error_code) from None
        self._security_files.add_certificate(listener_name, certificate)
        return certificate


def _refuse_lost_metadata(data_dir: Path) -> None:
    """Refuse logs without the file that says whose they are: new tables would be taken for the old ones. Blocking."""
    metadata = data_dir / METADATA_FILE
    if metadata.exists() and metadata.stat().st_size > 0:
        return
    tablet = find_tablet(data_dir)
    if tablet is not None:
        raise FlussError(
            f"{metadata} is missing or empty, but there are logs, such as {tablet}; "
            "restore the file together with its -wal file from a backup, or start with another data directory"
        )


# Settings of the parts


def _follow_changes(configs: DynamicConfigs, users: SharedUsers, manager: TabletManager) -> None:
    """Give the parts of the server the options that can change while it runs, now and whenever they change."""

    def current(option: ServerOption[T]) -> T:
        return option.value_type.read(configs.value(option.key) or "")

    def set_ratios(_: str | None = None) -> None:
        limit_ratio = current(ServerOptions.disk_write_limit_ratio)
        # One may come from a stored change, the other from a configuration that was edited since.
        recover_ratio = min(current(ServerOptions.disk_write_recover_ratio), limit_ratio)
        manager.disk_guard.set_ratios(limit_ratio=limit_ratio, recover_ratio=recover_ratio)

    def set_rolls(_: str | None = None) -> None:
        manager.retention.rolls_active_segment = current(ServerOptions.log_retention_rolls_active_segment)

    def set_flush_interval(_: str | None = None) -> None:
        interval_ms = current(ServerOptions.kv_flush_interval_ms)
        manager.kv_runtime.set_flush_interval(interval_ms)
        if manager.snapshotter is not None:
            manager.snapshotter.set_interval(interval_ms)

    followed: tuple[tuple[ServerOption[Any], Callable[[str | None], None]], ...] = (
        (ServerOptions.disk_write_limit_ratio, set_ratios),
        (ServerOptions.disk_write_recover_ratio, set_ratios),
        (ServerOptions.log_retention_rolls_active_segment, set_rolls),
        (ServerOptions.kv_flush_interval_ms, set_flush_interval),
    )
    for option, follow in followed:
        follow(None)
        configs.on_change(option.key, follow)
    credentials = ServerOptions.sasl_users.key
    users.replace(configs.value(credentials))
    configs.on_change(credentials, users.replace, check=users.check)


def _follow_quotas(configs: DynamicConfigs, quotas: Quotas) -> None:
    """Limit clients as the options say, now and whenever they change."""

    def follow(kind: QuotaKind, default: ServerOption[int], overrides: ServerOption[dict[str, int]]) -> None:
        def set_rates(_: str | None = None) -> None:
            rates = QuotaRates(
                default.value_type.read(configs.value(default.key) or default.default_text),
                overrides.value_type.read(configs.value(overrides.key) or ""),
            )
            quotas.set_rates(kind, rates)

        set_rates()
        configs.on_change(default.key, set_rates)
        configs.on_change(overrides.key, set_rates)

    follow(QuotaKind.PRODUCE, ServerOptions.produce_quota, ServerOptions.produce_quota_overrides)
    follow(QuotaKind.FETCH, ServerOptions.fetch_quota, ServerOptions.fetch_quota_overrides)
    follow(QuotaKind.REQUESTS, ServerOptions.request_quota, ServerOptions.request_quota_overrides)


# A process that is nothing but a server


async def serve(
    options: ServerOptions, *, stop: asyncio.Event, on_ready: Callable[[FlussServer], None] | None = None
) -> None:
    """Run a server until ``stop`` is set. ``on_ready`` is called when clients can connect.

    A stop that is wanted while the server starts waits for it, since recovery must not be left half done.
    """
    async with FlussServer(options) as server:
        if on_ready is not None:
            on_ready(server)
        await stop.wait()
        logger.info("stopping")
    logger.info("stopped")


def log_to_stderr(level: str, format_name: str = LOG_FORMATS[0]) -> None:
    """Send everything from ``level`` on to standard error. Standard output is left to the one line that says ready."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
    if format_name == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def prepare_process(options: ServerOptions) -> None:
    """Make this process fit to be a server: the event loop has its turn soon, files may be many, heaps are few.

    Files that libraries make, such as those of RocksDB, are for the same people as all others. For processes that are
    nothing but a server, before it is started.
    """
    os.umask(0o777 & ~options.data_dir_mode)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    limit_arenas()
    serve_alone()
    raise_limit()


def request_stop(stop: asyncio.Event, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Set the event that ``serve`` waits for; if the stop then takes too long, end the process by force.

    For processes that are nothing but a server. Called on its event loop.
    """
    stop.set()
    watchdog = threading.Timer(timeout_s, _give_up_stopping, (asyncio.get_running_loop(), timeout_s))
    watchdog.daemon = True
    watchdog.start()


def _give_up_stopping(loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
    logger.error(
        "the server did not stop within %g s and is ended; the next start will look through the logs. It waited for: "
        "%s. The threads follow",
        *(timeout_s, describe_waits(loop)),
    )
    faulthandler.dump_traceback()
    os._exit(1)


def describe_waits(loop: asyncio.AbstractEventLoop) -> str:
    """Return what the tasks of a loop wait for; from any thread."""
    return "; ".join(sorted(map(_where, asyncio.all_tasks(loop))))


def _where(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the functions that it is in, the innermost last."""
    functions: list[str] = []
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        functions.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return f"{task.get_name()} in {' > '.join(functions) or waiting}"


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger and message, the thread, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
