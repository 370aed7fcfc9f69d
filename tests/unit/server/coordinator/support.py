"""A coordinator behind a real listener, asked over a real socket; its bucket host only writes down what it is told."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import FlussError
from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.schema.table import TablePath
from fluss.server.authorizer import Authorizer
from fluss.server.coordinator.coordinator import Coordinator
from fluss.server.coordinator.nodes import Nodes
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.model import BucketHealth, Partition, Table
from fluss.server.rpc.coordinator_service import CoordinatorService

LOCALHOST = "127.0.0.1"
NOW_MS = int(datetime(2024, 9, 10, 12, 0, tzinfo=UTC).timestamp() * 1000)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class RecordingHost:
    """A bucket host that keeps no bytes: it notes what happens, and fails when told to."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int | None]] = set()
        self.events: list[tuple[str, str, str | None]] = []
        self.altered: list[Table] = []
        self.failure: Exception | None = None
        self.fails_at_open = 0
        self.health_now = BucketHealth(0, 0)

    async def open_buckets(self, table: Table, partition: Partition | None) -> None:
        self.events.append(("open", str(table.path), partition.name if partition else None))
        await asyncio.sleep(0)
        if self.failure is not None:
            self.fails_at_open -= 1
            if self.fails_at_open < 0:
                raise self.failure
        self.open.add((table.table_id, partition.partition_id if partition else None))

    async def know_log_ends(self, table: Table, partition: Partition) -> None:
        pass

    async def drop_buckets(self, table: Table, partition: Partition | None) -> tuple[int, ...]:
        self.events.append(("drop", str(table.path), partition.name if partition else None))
        self.open.discard((table.table_id, partition.partition_id if partition else None))
        return tuple(range(table.bucket_count))

    def table_altered(self, table: Table) -> None:
        self.altered.append(table)

    def check_change(self) -> None:
        """Everything may be changed."""

    def health(self) -> BucketHealth:
        return self.health_now


@dataclass
class Cluster:
    """A running coordinator and a connection to it."""

    directory: Path
    settings: CoordinatorSettings
    authorizer: Authorizer
    initial_configs: dict[str, str]
    clock: FakeClock
    listener_settings: ListenerSettings
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    host: RecordingHost = field(default_factory=RecordingHost)

    async def __aenter__(self) -> Cluster:
        nodes = Nodes()
        self.coordinator = await Coordinator.open(
            self.directory,
            self.settings,
            nodes,
            self.authorizer,
            self.initial_configs,
            clock=self.clock,
            rng=self.rng,
        )
        self.catalog = self.coordinator.catalog
        self.service = CoordinatorService(self.coordinator, self.host)
        await self.service.start()
        self.listener = Listener(self.listener_settings, self.service.handlers())
        await self.listener.start()
        nodes.set_listener(self.listener_settings.name, "server.example", self.listener.port)
        self._channels: list[Channel] = []
        if self.listener_settings.check_credentials is None:
            self.channel = await self.connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for channel in self._channels:
            await channel.close()
        await self.listener.stop()
        await self.service.stop()
        await self.coordinator.close()

    async def connect(self, user: str | None = None) -> Channel:
        credentials = None if user is None else Credentials(user, f"{user}-secret")
        channel = await Channel.connect(LOCALHOST, self.listener.port, credentials=credentials)
        self._channels.append(channel)
        return channel

    async def ask(self, api: Any, message: Any, *, channel: Channel | None = None) -> Any:
        return await (channel or self.channel).request(api, message, timeout_s=120)

    async def refused(self, api: Any, message: Any, *, channel: Channel | None = None) -> FlussError:
        """Ask for something that must not work, and return the error."""
        with pytest.raises(FlussError) as failure:
            await self.ask(api, message, channel=channel)
        return failure.value

    async def code(self, api: Any, message: Any, *, channel: Channel | None = None) -> int:
        return (await self.refused(api, message, channel=channel)).error_code

    # The most common requests

    async def create_database(self, name: str) -> None:
        await self.ask(apis.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False))

    async def create(self, table: str, descriptor: bytes, *, ignore: bool = False) -> Table:
        await self.ask(apis.CREATE_TABLE, create_request(table, descriptor, ignore=ignore))
        return self.table(table)

    def table(self, table: str) -> Table:
        return self.catalog.existing_table(TablePath(*table.split(".")))

    async def alter(self, table: str, **changes: Any) -> None:
        await self.ask(apis.ALTER_TABLE, alter_request(table, **changes))

    async def alter_refused(self, table: str, **changes: Any) -> FlussError:
        return await self.refused(apis.ALTER_TABLE, alter_request(table, **changes))

    async def info(self, table: str) -> tuple[pb.GetTableInfoResponse, dict[str, Any]]:
        response = await self.ask(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(table)))
        return response, json.loads(response.table_json)

    async def partitions(self, table: str, **partial: str) -> dict[str, int]:
        """Return the names and ids of partitions."""
        request = pb.ListPartitionInfosRequest(table_path=path(table))
        if partial:
            request.partial_partition_spec.CopyFrom(spec(**partial))
        response = await self.ask(apis.LIST_PARTITION_INFOS, request)
        return {
            "$".join(pair.value for pair in info.partition_spec.partition_key_values): info.partition_id
            for info in response.partitions_info
        }


def path(table: str) -> pb.PbTablePath:
    database_name, table_name = table.split(".")
    return pb.PbTablePath(database_name=database_name, table_name=table_name)


def spec(**values: str) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(
        partition_key_values=[pb.PbKeyValue(key=key, value=value) for key, value in values.items()]
    )


def create_request(table: str, descriptor: bytes, *, ignore: bool = False) -> pb.CreateTableRequest:
    return pb.CreateTableRequest(table_path=path(table), table_json=descriptor, ignore_if_exists=ignore)


def alter_request(
    table: str,
    *,
    values: dict[str, str] | None = None,
    reset: list[str] | None = None,
    columns: list[pb.PbAddColumn] | None = None,
    ignore: bool = False,
    **others: Any,
) -> pb.AlterTableRequest:
    changes = [pb.PbAlterConfig(config_key=key, config_value=value, op_type=0) for key, value in (values or {}).items()]
    changes += [pb.PbAlterConfig(config_key=key, op_type=1) for key in reset or ()]
    return pb.AlterTableRequest(
        table_path=path(table),
        ignore_if_not_exists=ignore,
        config_changes=changes,
        add_columns=columns or (),
        **others,
    )


def new_column(name: str, data_type: dict[str, Any], **more: Any) -> pb.PbAddColumn:
    fields = {"column_position_type": 0, **more}
    return pb.PbAddColumn(column_name=name, data_type_json=json.dumps(data_type).encode(), **fields)


def descriptor(
    columns: dict[str, str | dict[str, Any]] | None = None,
    *,
    primary_key: list[str] | None = None,
    partition_key: list[str] | None = None,
    bucket_key: list[str] | None = None,
    bucket_count: int | None = None,
    properties: dict[str, Any] | None = None,
    **more: Any,
) -> bytes:
    """Write the JSON of a table as a client sends it; columns are types by name, functions by column are extra."""
    functions = more.pop("functions", {})
    schema: dict[str, Any] = {
        "version": 1,
        "columns": [
            {
                "name": name,
                "data_type": {"type": data_type} if isinstance(data_type, str) else data_type,
                **({"agg_function": functions[name]} if name in functions else {}),
            }
            for name, data_type in (columns or {"id": "INTEGER", "name": "STRING"}).items()
        ],
        **more.pop("schema", {}),
    }
    if primary_key is not None:
        schema["primary_key"] = primary_key
    table: dict[str, Any] = {"version": 1, "schema": schema, "partition_key": partition_key or []}
    if bucket_key is not None or bucket_count is not None:
        table["bucket_key"] = bucket_key or []
    if bucket_count is not None:
        table["bucket_count"] = bucket_count
    table |= {"properties": properties or {}, "custom_properties": {}, **more}
    return json.dumps(table).encode()
