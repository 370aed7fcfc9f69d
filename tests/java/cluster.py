"""An Apache Fluss cluster for tests: ZooKeeper, one coordinator, three tablet servers, each a JVM on this machine.

    with JavaCluster(directory) as cluster:
        config = Config({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.kill(1)                                # tablet server 1, as a crash does
        cluster.start_server(1)                        # with the same data and ports

Every table has three replicas. There are two listeners: ``FLUSS``, where nobody is asked who they are and everything is
allowed, and ``CLIENT`` with SASL and rights. Remote storage is a directory. Intervals are short, so that tests see
segments and snapshots there soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import threading
import time
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from fluss.client.admin.catalog_calls import CatalogAdmin
from fluss.client.connection import FlussConnection
from fluss.client.kernel.runtime import wait_for
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.schema.table import TablePath
from tests.java.jars import class_path

TABLET_SERVERS: Final = 3
USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}

_ZOOKEEPER: Final = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"
_COORDINATOR: Final = "org.apache.fluss.server.coordinator.CoordinatorServer"
_TABLET_SERVER: Final = "org.apache.fluss.server.tablet.TabletServer"
# Small, and quick to start rather than quick in the long run: there are five of them on the machine of a developer.
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)
# Arrow reaches into buffers of the JDK.
_OPENED: Final = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
_START_TIMEOUT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 60.0
# A table that the coordinator has not noticed by then was missed.
_NOTICED_S: Final = 10.0
_COORDINATOR_BEGINS: Final = "CoordinatorEventThread - Starting"
_NEW_TABLE: Final = re.compile(r"New table: \S+ with id (\d+),")

_JAAS: Final = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required " + " ".join(
    f'user_{name}="{password}"' for name, password in USERS.items()
)
_OPTIONS: Final = {
    "default.replication.factor": TABLET_SERVERS,
    # A write with acks=all is on two machines before it is acknowledged, also while one of the three is away.
    "log.replica.min-in-sync-replicas-number": 2,
    "log.replica.max-lag-time": "10s",
    # How long a server may be silent before it counts as dead; servers that are taken for dead end themselves, so it
    # has to be longer than a busy machine lets a JVM wait.
    "zookeeper.client.session-timeout": "30s",
    "internal.listener.name": "FLUSS",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "PLAIN",
    "security.sasl.listener.name.client.plain.jaas.config": f"{_JAAS};",
    "authorizer.enabled": "true",
    # Without a name everything is allowed at the internal listener, but lists of names are empty there if it may not
    # see them, too.
    "super.users": "User:admin;User:ANONYMOUS",
    # Files of remote storage soon: a segment is one as soon as it is full.
    "log.segment.file-size": "4mb",
    "remote.log.task-interval-duration": "1s",
    "kv.snapshot.interval": "2s",
    "auto-partition.check.interval": "2s",
}


def sasl_config(bootstrap_servers: str, user: str, password: str | None = None) -> Config:
    """Return the config of a user; with another password than the right one, if it is given."""
    return Config(
        {
            "bootstrap.servers": bootstrap_servers,
            "security.protocol": "sasl",
            "security.sasl.mechanism": "PLAIN",
            "security.sasl.username": user,
            "security.sasl.password": password or USERS[user],
        }
    )


class JavaCluster:
    """A cluster in a directory of its own, on free ports. A context manager that starts it, and ends it at once."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, object] | None = None,
        *,
        tablet_servers: int = TABLET_SERVERS,
        heap_mb: int = 256,
        jvm_options: tuple[str, ...] = _JVM_OPTIONS,
    ) -> None:
        self.directory = directory
        self.remote_dir = directory / "remote"
        self._options = {**_OPTIONS, "default.replication.factor": tablet_servers, **(options or {})}
        self._heap_mb = heap_mb
        self._jvm_options = jvm_options
        self._class_path = class_path("server")
        names = ["zookeeper", "coordinator", *(f"tablet-{number}" for number in range(tablet_servers))]
        self.server_ids = range(tablet_servers)
        free = iter(_free_ports(2 * len(names)))
        # Without credentials, and with.
        self._ports = {name: (next(free), next(free)) for name in names}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._noticing = threading.Lock()
        # The ids of tables that the coordinator knows, and how far its log has been read for them.
        self._noticed: set[int] = set()
        self._log_position = 0

    @property
    def bootstrap_servers(self) -> str:
        """Where to begin without credentials: all tablet servers, as one of them may be away."""
        return ",".join(f"127.0.0.1:{self._ports[f'tablet-{number}'][0]}" for number in self.server_ids)

    @property
    def sasl_bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{self._ports[f'tablet-{number}'][1]}" for number in self.server_ids)

    def address(self, listener: str = "FLUSS") -> str:
        """The first of the tablet servers."""
        return (self.bootstrap_servers if listener == "FLUSS" else self.sasl_bootstrap_servers).partition(",")[0]

    def config(self, listener: str = "FLUSS", **options: str) -> Config:
        """Return the settings of a client; options are named as Config names them, such as ``writer_acks``."""
        addresses = self.bootstrap_servers if listener == "FLUSS" else self.sasl_bootstrap_servers
        config = Config({"bootstrap.servers": addresses})
        for name, value in options.items():
            setattr(config, name, value)
        return config

    def start(self) -> Self:
        """Start everything and wait until tables can be made."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start_zookeeper()
        self._start("coordinator", _COORDINATOR)
        for number in self.server_ids:
            self._start(f"tablet-{number}", _TABLET_SERVER, {"tablet-server.id": number})
        self._until(self._is_complete, "the cluster to be complete")
        return self

    def restart_coordinator(self) -> None:
        """Stop the coordinator and start it again: it reads from ZooKeeper what there is."""
        self._end("coordinator", signal.SIGTERM)
        begun = self.log_text("coordinator").count(_COORDINATOR_BEGINS)
        self._start("coordinator", _COORDINATOR)
        # It answers before it knows any tablet server, and refuses new tables until then.
        self._until(lambda: self.log_text("coordinator").count(_COORDINATOR_BEGINS) > begun, "the coordinator to begin")
        self._until(self._is_complete, "the coordinator to be known")

    @contextlib.contextmanager
    def noticing_tables(self) -> Iterator[None]:
        """Have every table that this process creates noticed by the coordinator before its creation returns.

        Tables are written to ZooKeeper by one thread of the coordinator and noticed by another one. On a busy machine
        version 0.9.1 misses some, by coming too late to see that a node was there before its content was. Such a table
        never has leaders, and a partition of it keeps all tables that come later from having any. A coordinator that
        is started again finds all tables.
        """
        ask = CatalogAdmin._ask

        async def ask_and_notice(admin: CatalogAdmin, api: Any, request: Any) -> Any:
            answer = await ask(admin, api, request)
            if api is apis.CREATE_TABLE and self._is_of_this(admin._cluster.config):
                path = TablePath(request.table_path.database_name, request.table_path.table_name)
                try:
                    info = await admin.get_table_info(path)
                except FlussError as error:
                    # A user who may make a table need not be allowed to look at it.
                    if error.error_code != ErrorCode.AUTHORIZATION_EXCEPTION:
                        raise
                else:
                    await asyncio.to_thread(self.have_noticed, info.table_id)
            return answer

        # Below the three styles of the client, each of which has a method of its own.
        with unittest.mock.patch.object(CatalogAdmin, "_ask", ask_and_notice):
            yield

    @contextlib.contextmanager
    def noticing_tables_of_others(self) -> Iterator[None]:
        """Do the same for the tables that other processes create: they wait a moment longer for their leaders."""
        is_over = threading.Event()

        def watch() -> None:
            connection = wait_for(FlussConnection.create(self.config()))
            try:
                while not is_over.wait(1.0):
                    # What is dropped meanwhile, or a coordinator that is away.
                    with contextlib.suppress(FlussError):
                        for table_id in wait_for(_table_ids(connection)):
                            self.have_noticed(table_id)
            finally:
                wait_for(connection.close())

        watcher = threading.Thread(target=watch, name="noticing-tables")
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _is_of_this(self, config: Config) -> bool:
        addresses = {f"127.0.0.1:{port}" for ports in self._ports.values() for port in ports}
        return not addresses.isdisjoint(str(config.bootstrap_servers).split(","))

    def have_noticed(self, table_id: int) -> None:
        """Wait for the line of the coordinator that says so; start it again if there is none."""
        with self._noticing:
            deadline_s = time.monotonic() + _NOTICED_S
            while table_id not in self._noticed:
                with self._log_path("coordinator").open(encoding="utf-8", errors="replace") as log:
                    log.seek(self._log_position)
                    for line in iter(log.readline, ""):
                        if not line.endswith("\n"):
                            break
                        self._noticed.update(map(int, _NEW_TABLE.findall(line)))
                        self._log_position = log.tell()
                if time.monotonic() > deadline_s:
                    self._noticed.add(table_id)
                    self.restart_coordinator()
                    return
                time.sleep(0.01)

    def start_server(self, number: int) -> None:
        """Start a tablet server again and wait until the cluster has it."""
        self._start(f"tablet-{number}", _TABLET_SERVER, {"tablet-server.id": number})
        self._until(self._is_complete, f"tablet server {number}")

    def stop_server(self, number: int) -> None:
        """Ask a tablet server to stop, which hands its leaderships over first."""
        self._end(f"tablet-{number}", signal.SIGTERM)

    def kill(self, number: int) -> None:
        """End a tablet server at once, as a crash does."""
        self._end(f"tablet-{number}", signal.SIGKILL)

    def close(self) -> None:
        """End everything at once: the data is not needed any more."""
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    def log_text(self, name: str) -> str:
        return self._log_path(name).read_text(errors="replace")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_zookeeper(self) -> None:
        port = self._ports["zookeeper"][0]
        data = self.directory / "zookeeper"
        data.mkdir()
        settings = data / "zoo.cfg"
        settings.write_text(
            f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=2000\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        # It would sync its log for every change, and servers wait for it.
        self._spawn("zookeeper", 64, ["-Dzookeeper.forceSync=no", _ZOOKEEPER, str(settings)])
        self._until(lambda: _listens(port), "ZooKeeper")

    def _start(self, name: str, main_class: str, options: Mapping[str, object] | None = None) -> None:
        plain, sasl = self._ports[name]
        written = {
            **self._options,
            "zookeeper.address": f"127.0.0.1:{self._ports['zookeeper'][0]}",
            "bind.listeners": f"FLUSS://127.0.0.1:{plain}, CLIENT://127.0.0.1:{sasl}",
            "data.dir": self.directory / name / "data",
            "remote.data.dir": f"file://{self.remote_dir}",
            **(options or {}),
        }
        settings = self.directory / name / "conf"
        settings.mkdir(parents=True, exist_ok=True)
        lines = (f"{key}: {value}\n" for key, value in written.items())
        (settings / "server.yaml").write_text("".join(lines))
        self._spawn(name, self._heap_mb, [main_class, "--configDir", str(settings)])

    def _spawn(self, name: str, heap_mb: int, arguments: list[str]) -> None:
        assert name not in self._processes, f"{name} is running already"
        command = ["java", f"-Xmx{heap_mb}m", *self._jvm_options, *_OPENED, "-cp", self._class_path, *arguments]
        with self._log_path(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _is_complete(self) -> bool:
        """Whether every server that runs is known to a server of the cluster."""
        running = [name for name in self._processes if name.startswith("tablet-")]
        config = Config({"bootstrap.servers": ",".join(f"127.0.0.1:{self._ports[name][0]}" for name in running)})
        with contextlib.suppress(FlussError):
            connection = wait_for(FlussConnection.create(config))
            try:
                nodes = wait_for(connection.get_admin().get_server_nodes())
            finally:
                wait_for(connection.close())
            return len(nodes) == len(running) + 1
        return False

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended with code {process.returncode}:\n{self._last_lines(name)}")
            if time.monotonic() > deadline_s:
                said = "\n".join(f"--- {name}\n{self._last_lines(name)}" for name in self._processes)
                raise AssertionError(f"waited {_START_TIMEOUT_S:g} s for {what}:\n{said}")
            time.sleep(0.1)

    def _last_lines(self, name: str) -> str:
        lines = self.log_text(name).splitlines()
        return "\n".join(line for line in lines[-40:] if not re.search("jaas.config|password", line))


async def _table_ids(connection: FlussConnection) -> list[int]:
    admin = connection.get_admin()
    return [
        (await admin.get_table_info(TablePath(database, name))).table_id
        for database in await admin.list_databases()
        for name in await admin.list_tables(database)
    ]


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now. Servers are restarted with the same ones, so they cannot take any."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(listener.getsockname()[1])
        return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
