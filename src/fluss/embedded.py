"""A whole server for a notebook, a test or a script: started in this process, or as a child of it.

    with fluss.embedded.start() as server:
        connection = await FlussConnection.create(server.config())

It listens on a free port and keeps its data in a temporary directory, unless told otherwise.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import fluss.neighbours  # noqa: F401 - it looks for what would be in the way
from fluss.config import Config
from fluss.errors import FlussError
from fluss.net.listener import keep_port
from fluss.net.transport import run
from fluss.server.child import ChildOrder, read_answer
from fluss.server.listener_parsing import address_text
from fluss.server.listeners import RunningListener
from fluss.server.options.listener_options import DEFAULT_LISTENER_NAME
from fluss.server.options.server_options import ServerOptions, argument_settings
from fluss.server.process import STOP_TIMEOUT_S, describe_waits, serve

OptionValue: TypeAlias = str | int | float | bool

_LISTENERS_KEY: Final = ServerOptions.bind_listeners.key
_DATA_DIR_KEY: Final = ServerOptions.data_dir.key
# What a child may need beyond the time that the server itself gives its stop.
_EXIT_TIMEOUT_S: Final = STOP_TIMEOUT_S + 5.0
# A disk that is slow keeps a stop from ending. What it waits for is told now and then, and it is an error much later.
_STOP_REPORT_S: Final = 20.0
_STOP_REPORTS_MAX: Final = 15
_CHILD_LOG_LEVEL: Final = "warning"
# The package may have been found by a path that the child does not have.
_CHILD_CODE: Final = (
    "import sys; sys.path.append(sys.argv[1]); from fluss.server.child import main; raise SystemExit(main())"
)

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """A server that belongs to this program. Usable as a context manager, with ``with`` and with ``async with``.

    ``options`` are server options by key, such as ``{"durability": "os"}``; neither environment nor files are looked
    at. With ``process=True`` the server is a child process, which uses another core and can be killed; it ends when
    this process ends, however that happens. Otherwise it runs on a thread of its own, which works inside a running
    event loop, too. A server that is still running at the end of the program is stopped then.

    Starting and stopping block for a moment. One thread at a time may do so.
    """

    def __init__(
        self,
        options: Mapping[str, OptionValue] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        process: bool = False,
    ) -> None:
        self._options = dict(options or {})
        self._options.setdefault(_LISTENERS_KEY, f"{DEFAULT_LISTENER_NAME}://{address_text(host, port)}")
        if data_dir is not None:
            self._options[_DATA_DIR_KEY] = os.fspath(data_dir)
        self._is_process = process
        self._temporary_dir: Path | None = None
        self._host: _Thread | _Child | None = None
        self._listeners: tuple[RunningListener, ...] = ()
        # The ports of a server that was killed, or is being restarted.
        self._kept_ports = ExitStack()

    def start(self) -> Self:
        """Start and wait until clients can connect. Raises FlussError if that fails, and nothing is left behind."""
        if self._host is not None:
            raise FlussError("the server is running already")
        if _DATA_DIR_KEY not in self._options:
            self._temporary_dir = Path(tempfile.mkdtemp(prefix="fluss-"))
        try:
            self._start_host()
        except BaseException:
            self._remove_temporary_dir()
            raise
        return self

    def stop(self) -> None:
        """Stop in order, and remove the data if it is in a temporary directory. May be called again."""
        try:
            self._stop_host()
        finally:
            self._remove_temporary_dir()
            self._kept_ports.close()
            self._listeners = ()

    def restart(self) -> None:
        """Stop, unless it was killed, and start again with the same data at the same addresses."""
        self._require_started()
        self._stop_host()
        self._keep_ports()
        self._start_host()
        self._kept_ports.close()

    def kill(self) -> None:
        """End the child process at once, as a crash does. ``restart`` brings the server back, ``stop`` cleans up."""
        self._require_started()
        if not isinstance(self._host, _Child):
            raise FlussError("only a server in a process of its own can be killed: start it with process=True")
        self._host.kill()
        self._host = None
        self._keep_ports()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the first listener, for ``bootstrap.servers``."""
        return self.address()

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self._listener(None).port

    @property
    def data_dir(self) -> Path:
        """Where the data is."""
        if _DATA_DIR_KEY in self._options:
            return Path(str(self._options[_DATA_DIR_KEY]))
        if self._temporary_dir is None:
            raise _not_started()
        return self._temporary_dir

    @property
    def process_id(self) -> int:
        """The number of the process the server runs in."""
        return self._host.process_id if isinstance(self._host, _Child) else os.getpid()

    def address(self, listener_name: str | None = None) -> str:
        """``host:port`` of a listener, the first one unless named."""
        listener = self._listener(listener_name)
        return address_text(listener.advertised_host, listener.advertised_port)

    def config(self, listener_name: str | None = None, **properties: Any) -> Config:
        """Return client options that lead here, with further ones by property name: ``config(writer_acks="1")``."""
        config = Config({Config.bootstrap_servers.key: self.address(listener_name)})
        for name, value in properties.items():
            if not hasattr(config, name):
                raise TypeError(f"Config has no property {name}")
            setattr(config, name, value)
        return config

    def __enter__(self) -> Self:
        return self if self._host is not None else self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.stop)

    def __repr__(self) -> str:
        state = f"on {self.address()}" if self._listeners else "not started"
        return f"EmbeddedServer({state})"

    def _start_host(self) -> None:
        options = {**self._options, _DATA_DIR_KEY: str(self.data_dir)}
        if self._listeners:
            # Clients find a server that comes back where it was.
            options[_LISTENERS_KEY] = ",".join(str(listener.endpoint) for listener in self._listeners)
        host = _Child(options) if self._is_process else _Thread(options)
        self._listeners = host.start()
        self._host = host
        _running.add(self)

    def _keep_ports(self) -> None:
        """See to it that the server can listen again where it was, however long it is away."""
        self._kept_ports.close()
        for listener in self._listeners:
            self._kept_ports.enter_context(keep_port(listener.host, listener.port))

    def _stop_host(self) -> None:
        _running.discard(self)
        host, self._host = self._host, None
        if host is not None:
            host.stop()

    def _remove_temporary_dir(self) -> None:
        directory, self._temporary_dir = self._temporary_dir, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _require_started(self) -> None:
        if not self._listeners:
            raise _not_started()

    def _listener(self, name: str | None) -> RunningListener:
        self._require_started()
        for listener in self._listeners:
            if name in (None, listener.name):
                return listener
        names = [listener.name for listener in self._listeners]
        raise FlussError(f"there is no listener {name}; there are {', '.join(names)}")


def start(
    options: Mapping[str, OptionValue] | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    process: bool = False,
) -> EmbeddedServer:
    """Start a server and return it; see ``EmbeddedServer`` for the arguments."""
    return EmbeddedServer(options, data_dir=data_dir, host=host, port=port, process=process).start()


class _RunningServers:
    """The servers of this process that are still running. They are stopped when the program ends."""

    def __init__(self) -> None:
        self._servers: set[EmbeddedServer] = set()
        self._process_id = 0

    def add(self, server: EmbeddedServer) -> None:
        if self._process_id != os.getpid():
            # The first one, or the first one after a fork: the parent process stops its own.
            self._process_id = os.getpid()
            self._servers = set()
            _register_at_exit(self._stop_all)
        self._servers.add(server)

    def discard(self, server: EmbeddedServer) -> None:
        self._servers.discard(server)

    def _stop_all(self) -> None:
        if self._process_id != os.getpid():
            return
        for server in list(self._servers):
            try:
                server.stop()
            except Exception:
                logger.exception("%r could not be stopped at the end of the program", server)


_running: Final = _RunningServers()
# ``atexit`` comes too late: by then the thread pools are gone, and a server cannot close its files in order any more.
_register_at_exit: Final[Callable[[Callable[[], None]], object]] = getattr(
    threading, "_register_atexit", atexit.register
)


def _not_started() -> FlussError:
    return FlussError("the server was not started; use 'with', or call start()")


class _Thread:
    """Runs a server on a thread with an event loop of its own."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._options = ServerOptions(options)
        self._ready: Future[tuple[RunningListener, ...]] = Future()
        self._ended: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        # A daemon: a program that forgets to stop its server still ends.
        self._thread = threading.Thread(target=self._run, name="fluss-server", daemon=True)

    def start(self) -> tuple[RunningListener, ...]:
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            # If it was only the wait that was interrupted, the server is stopped.
            self._request_stop()
            self._thread.join(STOP_TIMEOUT_S)
            raise

    def stop(self) -> None:
        self._request_stop()
        waits = ""
        for number in range(1, _STOP_REPORTS_MAX + 1):
            self._thread.join(_STOP_REPORT_S)
            if not self._thread.is_alive():
                return self._ended.result()
            assert self._loop is not None, "a server that is running has a loop"
            waits = describe_waits(self._loop)
            logger.warning("the server has not stopped within %g s; it waits for: %s", number * _STOP_REPORT_S, waits)
        text = f"the server did not stop within {_STOP_REPORTS_MAX * _STOP_REPORT_S:g} s; its thread goes on trying"
        raise FlussError(f"{text}. It waits for: {waits}")

    def _request_stop(self) -> None:
        # The loop is closed if the server has ended by itself.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            run(self._serve())
        except BaseException as error:
            ended = self._ended if self._ready.done() else self._ready
            ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await serve(self._options, stop=self._stop, on_ready=lambda server: self._ready.set_result(server.listeners))


class _Child:
    """Runs a server in a child process."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        # What is wrong with them is found here, where the caller sees the whole traceback.
        ServerOptions(options)
        self._order = ChildOrder(
            {key: setting.text for key, setting in argument_settings(options).items()}, _CHILD_LOG_LEVEL, os.getpid()
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the child was not started"
        return self._process

    def start(self) -> tuple[RunningListener, ...]:
        package_parent = str(Path(__file__).parents[1])
        # -P: no module of the current directory is mistaken for one of the library.
        command = [sys.executable, "-P", "-c", _CHILD_CODE, package_parent]
        # Without a buffer, so that nothing is left to be written to a child that has died.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(self._order.to_line())
            return read_answer(process.stdout.readline())
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        assert self._running.stdin is not None
        with suppress(BrokenPipeError):
            self._running.stdin.close()
        try:
            self._running.wait(_EXIT_TIMEOUT_S)
        finally:
            # Nothing, if it has ended.
            self.kill()

    def kill(self) -> None:
        with self._running:
            self._running.kill()
