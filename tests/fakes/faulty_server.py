"""What fake servers share: a thread of their own, so that tests may block; answers that are held back; faults.

A test never has to be faster than a server. It lets the server ``hold`` its answers, waits until as many requests are
``in_progress`` as it wants, and lets them go with ``release``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from fluss.config import Config
from fluss.errors import FlussError
from fluss.net.listener import keep_port
from fluss.net.transport import new_event_loop
from fluss.protocol.api import ApiKey
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.table import TablePath
from tests.fakes.scripted_server import ScriptedServer

T = TypeVar("T")


class ServerThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-server", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread of the server and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the thread of the server."""

        async def apply() -> T:
            return function()

        return self.run(apply())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass
class Fault:
    """What goes wrong with one request."""

    # Only with requests for this table, 0 is any; and only for this bucket of them.
    table_id: int = 0
    bucket_id: int | None = None
    # Seconds before anything happens.
    delay_s: float = 0.0
    # What has to be set before anything happens, on the thread of the server.
    gate: asyncio.Event | None = None
    # Never answered, and not stored.
    is_lost: bool = False
    # Whether the records are stored all the same.
    is_stored: bool = False
    # An error for every bucket, or for the request as a whole; -1 is a code, 0 is none.
    bucket_code: int = 0
    request_code: int = 0
    # Close the connection instead of answering.
    is_cut: bool = False
    # Leave the buckets out of the answer, or the last value of each.
    is_omitted: bool = False
    is_short: bool = False
    # How much of a burden the server says that puts are.
    pressure: float = 0.0


class FaultyServer(ServerThread):
    """One server of both roles, whose metadata a test makes and whose answers it may hold back or let fail."""

    # Options of clients, unless a test says otherwise.
    options: ClassVar[dict[str, str | int]] = {}

    def __init__(self, server_id: int = 0) -> None:
        super().__init__()
        self.server_id = server_id
        self.faults: deque[Fault] = deque()
        # Used for every request that has no fault of its own.
        self.default_fault = Fault()
        self.in_progress = 0
        self.in_progress_max = 0
        self._gate = asyncio.Event()
        self._gate.set()
        # The port of a server that is away.
        self._kept_port = ExitStack()
        self.scripted = self._new_scripted(0)
        self.run(self.scripted.start())

    def handlers(self) -> dict[ApiKey, Any]:
        raise NotImplementedError

    def _new_scripted(self, port: int) -> ScriptedServer:
        return ScriptedServer(self.server_id, port=port, handlers=self.handlers())

    # What tests do

    def config(self, **options: str | int | bool) -> Config:
        """Return a config with options named like ``writer__batch_size``."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        return Config({"bootstrap.servers": self.scripted.address, **self.options, **named})

    def describe(
        self,
        path: TablePath,
        table_id: int,
        descriptor: TableDescriptor,
        *,
        schema_id: int = 1,
        leaders: list[int | None] | None = None,
    ) -> None:
        """Let a table exist, or be another one than before. This server leads its buckets, unless it says otherwise."""
        assert descriptor.bucket_count is not None
        leaders = leaders if leaders is not None else [0] * descriptor.bucket_count
        self.scripted.add_table(path, table_id, leaders=leaders, descriptor=descriptor, schema_id=schema_id)

    def hold(self) -> None:
        """Answer nothing until ``release``; ``in_progress`` says how many requests are held."""
        self.call(self._gate.clear)

    def release(self) -> None:
        """Answer what is held, in the order in which it came."""
        self.call(self._gate.set)

    def stop_listening(self) -> None:
        self.run(self.scripted.stop())
        self._kept_port = keep_port("127.0.0.1", self.scripted.port)

    def listen_again(self) -> None:
        """Come back at the same port, with everything that was stored."""
        old, self.scripted = self.scripted, self._new_scripted(self.scripted.port)
        # Before anybody can ask: the client is told at once that a table does not exist.
        self.scripted.tables, self.scripted.partitions = old.tables, old.partitions
        self.run(self.scripted.start())
        self._kept_port.close()

    def close(self) -> None:
        self.release()
        self.run(self.scripted.stop())
        self._kept_port.close()
        super().close()

    # What clients ask

    @asynccontextmanager
    async def answering(self, table_id: int) -> AsyncIterator[Fault]:
        """Answer a request in the block, held back and with the fault that is its turn."""
        fault = self._next_fault(table_id)
        self.in_progress += 1
        self.in_progress_max = max(self.in_progress, self.in_progress_max)
        try:
            await self._gate.wait()
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.gate is not None:
                await fault.gate.wait()
            if fault.is_lost:
                await asyncio.Event().wait()
            yield fault
        finally:
            self.in_progress -= 1
        if fault.is_cut:
            self.scripted.cut_connections()
        if fault.request_code:
            raise FlussError(f"refused with {fault.request_code}", fault.request_code)

    def _next_fault(self, table_id: int) -> Fault:
        for fault in self.faults:
            if fault.table_id in (0, table_id):
                self.faults.remove(fault)
                return fault
        return self.default_fault
