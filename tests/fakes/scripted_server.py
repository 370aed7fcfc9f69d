"""A server for tests of the client: real sockets and frames, answers by script.

It plays both roles on one port. Tests change what it says while it runs, and look at what it was asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import Listener, ListenerSettings, RequestContext
from fluss.net.request_handler import Handler
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import CredentialsChecker
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import table_to_json
from fluss.schema.table import TablePath
from fluss.schema.types import DataTypes

SCHEMA = Schema.builder().column("id", DataTypes.int()).column("name", DataTypes.string()).build()


class ScriptedServer:
    """One server with a table of tables. ``peers`` are the ids and ports of all tablet servers it tells of."""

    def __init__(
        self,
        server_id: int = 0,
        *,
        port: int = 0,
        check_credentials: CredentialsChecker | None = None,
        handlers: Mapping[ApiKey, Handler] | None = None,
    ) -> None:
        self.server_id = server_id
        self.peers: dict[int, int] | None = None
        self.coordinator_port: int | None = None
        self.tables: dict[TablePath, pb.PbTableMetadata] = {}
        self.partitions: dict[tuple[TablePath, str], pb.PbPartitionMetadata] = {}
        self.requests: Counter[ApiKey] = Counter()
        self.metadata_requests: list[pb.MetadataRequest] = []
        # Set it to hold metadata answers back; ``is_asked`` says that one is being held.
        self.gate: asyncio.Event | None = None
        self.is_asked = asyncio.Event()
        answers: dict[ApiKey, Handler] = {
            ApiKey.GET_METADATA: self._metadata,
            ApiKey.DATABASE_EXISTS: lambda context, request: pb.DatabaseExistsResponse(exists=True),
            ApiKey.CREATE_DATABASE: lambda context, request: pb.CreateDatabaseResponse(),
            **(handlers or {}),
        }
        settings = ListenerSettings("CLIENT", port=port, check_credentials=check_credentials)
        self._listener = Listener(settings, {key: self._counted(key, answer) for key, answer in answers.items()})

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection_count(self) -> int:
        return self._listener.connection_count

    def config(self, **options: str | int) -> Config:
        named = {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
        return Config({"bootstrap.servers": self.address, **named})

    async def start(self) -> None:
        await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop(grace_s=0)

    def cut_connections(self) -> None:
        for connection in list(self._listener._connections):
            connection.abort()

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def add_table(
        self,
        path: TablePath,
        table_id: int,
        *,
        leaders: list[int | None],
        partition_keys: tuple[str, ...] = (),
        descriptor: TableDescriptor | None = None,
        schema_id: int = 1,
    ) -> None:
        """Let a table exist; one already there under the same path is replaced."""
        if descriptor is None:
            descriptor = TableDescriptor(SCHEMA, bucket_count=len(leaders), partition_keys=partition_keys)
        table = pb.PbTableMetadata(
            table_path=pb.PbTablePath(database_name=path.database_name, table_name=path.table_name),
            table_id=table_id,
            schema_id=schema_id,
            table_json=table_to_json(descriptor),
            created_time=1,
            modified_time=schema_id,
        )
        if not descriptor.partition_keys:
            _add_leaders(table, leaders)
        self.tables[path] = table

    def add_partition(self, path: TablePath, name: str, partition_id: int, *, leaders: list[int | None]) -> None:
        partition = pb.PbPartitionMetadata(
            table_id=self.tables[path].table_id, partition_name=name, partition_id=partition_id
        )
        _add_leaders(partition, leaders)
        self.partitions[path, name] = partition

    def _counted(self, key: ApiKey, handler: Handler) -> Handler:
        def answer(context: RequestContext, request: Any) -> Any:
            self.requests[key] += 1
            return handler(context, request)

        return answer

    async def _metadata(self, context: RequestContext, request: pb.MetadataRequest) -> pb.MetadataResponse:
        self.metadata_requests.append(request)
        response = self._describe(request)
        if self.gate is not None:
            self.is_asked.set()
            await self.gate.wait()
        return response

    def _describe(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        response = pb.MetadataResponse(
            coordinator_server=pb.PbServerNode(node_id=0, host="127.0.0.1", port=self.coordinator_port or self.port)
        )
        for server_id, port in ({self.server_id: self.port} if self.peers is None else self.peers).items():
            response.tablet_servers.add(node_id=server_id, host="127.0.0.1", port=port)
        for wanted in request.table_path:
            path = TablePath(wanted.database_name, wanted.table_name)
            if path not in self.tables:
                raise FlussError(f"Table '{path}' does not exist.", ErrorCode.TABLE_NOT_EXIST)
            response.table_metadata.append(self.tables[path])
        by_id = {partition.partition_id: partition for partition in self.partitions.values()}
        for wanted_partition in request.partitions_path:
            path = TablePath(wanted_partition.database_name, wanted_partition.table_name)
            found = self.partitions.get((path, wanted_partition.partition_name))
            response.partition_metadata.append(_existing(found))
        for partition_id in request.partitions_id:
            response.partition_metadata.append(_existing(by_id.get(partition_id)))
        return response


def _existing(partition: pb.PbPartitionMetadata | None) -> pb.PbPartitionMetadata:
    if partition is None:
        raise FlussError("the partition does not exist", ErrorCode.PARTITION_NOT_EXISTS)
    return partition


def _add_leaders(message: pb.PbTableMetadata | pb.PbPartitionMetadata, leaders: list[int | None]) -> None:
    for bucket_id, leader_id in enumerate(leaders):
        message.bucket_metadata.add(bucket_id=bucket_id, leader_id=leader_id, replica_id=[leader_id or 0])
