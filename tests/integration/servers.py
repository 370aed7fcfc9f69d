"""Servers that tests examine: with options of their own, or behind a network that loses what it is told to lose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss
from fluss import FlussTable, blocking, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.testing.cluster import ServerProcess
from fluss.testing.faultnet import FaultProxy
from tests.integration.keyed_tables import Tables


@contextmanager
def serving(tmp_path: Path, **options: Any) -> Iterator[tuple[embedded.EmbeddedServer, blocking.FlussConnection]]:
    """A server with these options, ``__`` for dots and ``_`` for dashes, and a connection that sends rows at once."""
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    with (
        embedded.start({"durability": "os", **named}, data_dir=tmp_path / "data") as server,
        blocking.FlussConnection.create(server.config(writer_batch_timeout_ms=0)) as connection,
    ):
        yield server, connection


class Network(Tables):
    """A server that clients reach through a proxy, and the tables that tests make there."""

    def __init__(self, server: ServerProcess, proxy: FaultProxy, schema: pa.Schema, **options: str) -> None:
        self.proxy = proxy
        # What every table that is partitioned gets.
        self.partitions: list[dict[str, str]] = []
        self._schema = schema
        super().__init__(server, **{"bootstrap.servers": f"127.0.0.1:{proxy.port}", **options})

    def connect(self, **options: str) -> fluss.FlussConnection:
        config = {"bootstrap.servers": f"127.0.0.1:{self.proxy.port}", **options}
        return wait_for(fluss.FlussConnection.create(fluss.Config(config)))

    def create(
        self, schema: pa.Schema | fluss.Schema | None = None, keys: tuple[str, ...] = (), **descriptor: Any
    ) -> FlussTable:
        table = super().create(self._schema if schema is None else schema, keys, **descriptor)
        for partition in self.partitions if "partition_keys" in descriptor else ():
            wait_for(self.admin.create_partition(table.table_path, partition))
        return table


@contextmanager
def network_of(
    directory: Path, schema: pa.Schema, *options: str, seed: int, client: dict[str, str] | None = None
) -> Iterator[Network]:
    """A server with these options behind a proxy, whose tables have this schema unless a test says otherwise."""
    with FaultProxy(seed=seed) as proxy:
        settings = (f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}", "durability=os", *options)
        with ServerProcess(directory, *(part for setting in settings for part in ("-D", setting))) as server:
            proxy.upstream_port = server.port
            network = Network(server, proxy, schema, **(client or {}))
            yield network
            network.close()
