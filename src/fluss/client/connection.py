"""A connection to a cluster: where every program of the client begins."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from fluss.client.admin.admin import FlussAdmin
from fluss.client.connecting import Connecting
from fluss.client.fluss_table import FlussTable, TableContext
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime, StartedCall, runtime
from fluss.client.lookup.lookup_client import LookupClient
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int64
from fluss.metrics import Metrics
from fluss.net.channel import Dial
from fluss.retry import checked_timeout_s
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    from fluss.client.write.writer_client import WriterClient

logger = logging.getLogger(__name__)


class FlussConnection(ServerMade):
    """A client of one cluster. Get one from ``await fluss.connect("localhost:9123")``.

    It may be used by any number of threads and event loops at once. All tables, writers, lookupers and scanners made
    from it share its connections and its memory for unsent data. It is a context manager, for ``with`` and
    ``async with``; leaving it sends what was written and closes. What is still open when the program ends gets a few
    seconds to do so.
    """

    _cluster: Cluster
    _runtime: Runtime
    _admin: FlussAdmin
    _lock: threading.Lock
    _writer_client: WriterClient | None
    _lookup_client: LookupClient | None
    _closing: StartedCall[None] | None
    _forget_drain: Callable[[], None] | None
    _metrics: Metrics

    @staticmethod
    async def create(config: Config | str | Mapping[str, str | int | bool] | None = None) -> FlussConnection:
        """Connect to the cluster that an address belongs to: ``"host:port"``, or several separated by commas.

        Instead of it, there may be options by their keys, or a ``Config``, which is copied. Without an address it is
        that of the environment variable ``FLUSS_BOOTSTRAP_SERVERS``, or 127.0.0.1:9123.

        Raises a FlussError: code -2 for a config or an address that cannot be right, 1 when no server answers, 46 for
        wrong credentials.
        """
        current = runtime()
        return await current.bridge(FlussConnection._open(Config.of(config), current), cancels=True)

    @staticmethod
    async def connect(config: Config | str | Mapping[str, str | int | bool] | None = None) -> FlussConnection:
        """Connect: the older name of ``create``."""
        return await FlussConnection.create(config)

    @staticmethod
    async def new(config: Config | str | Mapping[str, str | int | bool] | None = None) -> FlussConnection:
        """Connect: another name of ``create``."""
        return await FlussConnection.create(config)

    @classmethod
    async def _open(cls, config: Config, current: Runtime, dial: Dial | None = None) -> FlussConnection:
        cluster = await Cluster.connect(config, dial=dial)
        metrics = Metrics()
        cluster.show(metrics)
        connection = cls._with_fields(
            _cluster=cluster,
            _runtime=current,
            _admin=FlussAdmin._create(cluster, current),
            _lock=threading.Lock(),
            _writer_client=None,
            _lookup_client=None,
            _closing=None,
            _forget_drain=None,
            _metrics=metrics,
        )
        connection._show_writer()
        return connection

    def _show_writer(self) -> None:
        """Have what is written and not sent yet shown among the metrics; the writer is made when first needed."""
        # Metrics outlive their connection, and must not keep it.
        weak = weakref.ref(self)

        def unsent_bytes() -> int:
            connection = weak()
            writer = None if connection is None else connection._writer_client
            return 0 if writer is None else writer.memory.used_bytes

        self._metrics.gauge("fluss_client_unsent_bytes", "What writers hold that is not stored yet.", unsent_bytes)
        limit = self._cluster.config.writer_buffer_memory_size
        self._metrics.gauge("fluss_client_unsent_bytes_max", "What they may hold; then writing waits.", lambda: limit)

    def config(self) -> Config:
        """Return a copy of the config that the connection was made with."""
        return self._cluster.config.copy()

    def metrics(self) -> Metrics:
        """Return what this connection counts: requests by API, bytes, times, what is not sent yet.

        ``values()`` has the numbers of now, ``text()`` the same for Prometheus; ``fluss.telemetry`` brings them to
        OpenTelemetry. It is the same object every time, and any thread may use it.
        """
        return self._metrics

    def get_admin(self) -> FlussAdmin:
        """Return the admin of the cluster. It may also be awaited."""
        self._check_open()
        return self._admin

    async def get_table(self, table_path: TablePath | str) -> FlussTable:
        """Return a table for reading and writing, as it is now; code 7 if it does not exist.

        ``"sales.orders"`` is the same as ``TablePath("sales", "orders")``.
        """
        path = TablePath.of(table_path)
        self._check_open()
        info = await self._runtime.bridge(self._table_info(path))
        context = TableContext(self._cluster, self._runtime, info, self._get_writer_client, self._get_lookup_client)
        return FlussTable._create(context)

    async def _table_info(self, path: TablePath) -> TableInfo:
        await self._cluster.refresh([path])
        info = self._cluster.table_info(path)
        if info is None:
            # It was dropped by another task of this connection meanwhile.
            raise FlussError(f"Table '{path}' does not exist", ErrorCode.TABLE_NOT_EXIST)
        return info

    def _get_writer_client(self) -> WriterClient:
        """Return the writer that everything on this connection writes with."""
        with self._lock:
            self._check_open()
            if self._writer_client is None:
                from fluss.client.write.writer_client import WriterClient

                self._writer_client = WriterClient(self._cluster, self._runtime)
                self._forget_drain = self._runtime.drain_at_exit(self._drain)
            return self._writer_client

    def _get_lookup_client(self) -> LookupClient:
        """Return what all lookups on this connection go through."""
        with self._lock:
            self._check_open()
            if self._lookup_client is None:
                self._lookup_client = LookupClient(self._cluster, self._runtime)
            return self._lookup_client

    # The end

    def close(self, timeout_ms: int | None = None, *, timeout: float | None = None) -> StartedCall[None]:
        """Send what was written, then close. From now on everything on this connection raises, also what is waiting.

        It begins at the call. Inside a running event loop the result may be awaited, or not; elsewhere the call
        blocks until the connection is closed. Writes that are not done after ``timeout`` seconds, or ``timeout_ms``, by
        default ``request-timeout``, fail, and ``close`` raises what is not stored and why. May be called again.
        """
        timeout_s = checked_timeout_s("timeout", timeout)
        if timeout_s is not None and timeout_ms is not None:
            raise TypeError("close() takes timeout, in seconds, or timeout_ms, not both")
        if timeout_s is None:
            timeout_s = self._cluster.config.request_timeout_ms / 1000
        if timeout_ms is not None:
            timeout_s = int64("timeout_ms", timeout_ms) / 1000
            if timeout_s < 0:
                raise FlussError(f"timeout_ms must be non-negative, got: {timeout_ms}")
        with self._lock:
            if self._closing is None:
                self._closing = StartedCall(self._runtime.submit(self._close(timeout_s)))
            closing = self._closing
        if not _is_in_event_loop():
            closing.wait()
        return closing

    async def _close(self, timeout_s: float) -> None:
        try:
            if self._lookup_client is not None:
                await self._lookup_client.close()
            await self._close_writer(timeout_s)
        finally:
            await self._cluster.close()
            if self._forget_drain is not None:
                self._forget_drain()

    async def _close_writer(self, timeout_s: float) -> None:
        if self._writer_client is None:
            return
        try:
            await self._writer_client.close(timeout_s)
        except FlussError as error:
            # The caller may not wait for the outcome.
            logger.warning("not everything that was written has been stored: %s", error.message)
            raise

    async def _drain(self, timeout_s: float) -> None:
        await self.close(int(timeout_s * 1000))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise FlussError("the connection is closed; create a new one")

    def __enter__(self) -> FlussConnection:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]:
        try:
            self.close().wait()
        except FlussError:
            if exception_type is None:
                raise
        return False

    async def __aenter__(self) -> FlussConnection:
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]:
        try:
            await self.close()
        except FlussError:
            if exception_type is None:
                raise
        return False

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed" if self._closing.done() else "closing"
        return f"FlussConnection({self._cluster.config.bootstrap_servers!r}, {state})"


def connect(
    servers: str | Mapping[str, str | int | bool] | Config | None = None, /, **options: str | int | bool
) -> Connecting[FlussConnection]:
    """Connect to a cluster: ``await fluss.connect("localhost:9123")``, or ``async with`` it, which also closes.

    ``servers`` is the address of a server, or of several separated by commas; or a dict of options by their keys, or a
    ``Config``. ``options`` are more options, by the names that they have as properties of ``Config``:
    ``connect("localhost:9123", request_timeout_ms=5000)``. Without an address it is that of the environment variable
    ``FLUSS_BOOTSTRAP_SERVERS``, or 127.0.0.1:9123.
    """
    return Connecting(Config.of(servers, **options), FlussConnection.create)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def connect_inside(config: Config, dial: Dial) -> FlussConnection:
    """Connect through sockets that the caller makes: for a client that lives in the process of a server."""
    current = runtime()
    return await current.bridge(FlussConnection._open(config, current, dial), cancels=True)
