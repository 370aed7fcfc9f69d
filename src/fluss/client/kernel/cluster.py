"""The client's side of a cluster: finds servers, keeps what is known about tables up to date, and sends requests."""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from fluss.client.kernel.metadata import Metadata
from fluss.client.kernel.remote_storage import RemoteStorage
from fluss.client.kernel.servers import Bootstrap, ServerPool
from fluss.client.kernel.shared_calls import SharedCalls
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError, NetworkError, RequestTimeoutError
from fluss.metrics import Metrics
from fluss.net.channel import Dial
from fluss.protocol import api as apis
from fluss.protocol.api import Api, ApiKey
from fluss.protocol.convert import pb_physical_path, pb_table_path, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import METADATA, Backoff
from fluss.schema.cluster_info import ServerNode, ServerType
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_from_json
from fluss.schema.table import TableBucket, TableInfo, TablePath

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

# How many tablet servers are asked for metadata before the bootstrap servers are.
_REFRESH_SERVERS_MAX: Final = 3
# Questions that some leader was missing from the answer of: so many are remembered, older ones may be asked at once.
_BACKOFFS_MAX: Final = 1000
# Changes may have been made before the connection broke, and making them twice would end in an error that is not one.
# Everything else may be asked again.
_CHANGES: Final = frozenset(
    {
        ApiKey.CREATE_DATABASE,
        ApiKey.DROP_DATABASE,
        ApiKey.ALTER_DATABASE,
        ApiKey.CREATE_TABLE,
        ApiKey.DROP_TABLE,
        ApiKey.ALTER_TABLE,
        ApiKey.CREATE_PARTITION,
        ApiKey.DROP_PARTITION,
        ApiKey.CREATE_ACLS,
        ApiKey.DROP_ACLS,
        ApiKey.ALTER_CLUSTER_CONFIGS,
        ApiKey.ADD_SERVER_TAG,
        ApiKey.REMOVE_SERVER_TAG,
        ApiKey.REBALANCE,
        ApiKey.CANCEL_REBALANCE,
        ApiKey.REGISTER_PRODUCER_OFFSETS,
        ApiKey.DELETE_PRODUCER_OFFSETS,
    }
)

logger = logging.getLogger(__name__)


class _Question(NamedTuple):
    """What a refresh asks for."""

    tables: frozenset[TablePath]
    partitions: frozenset[tuple[TablePath, str]]
    partition_ids: frozenset[tuple[TablePath, int]]

    @property
    def tables_and_owners(self) -> frozenset[TablePath]:
        """All tables: answers name the owner of a partition by its id only, so it is always asked for, too."""
        return self.tables.union(path for path, _ in (*self.partitions, *self.partition_ids))

    def request(self) -> pb.MetadataRequest:
        return pb.MetadataRequest(
            table_path=[pb_table_path(path) for path in self.tables_and_owners],
            partitions_path=[pb_physical_path(path, name) for path, name in self.partitions],
            partitions_id=[partition_id for _, partition_id in self.partition_ids],
        )


class Cluster:
    """Servers, metadata and connections of one client. Belongs to the event loop of the library.

    Tables stay known until they are created anew or found to be dropped, also when the cluster is looked up again
    from the bootstrap servers. After ``close`` everything raises.
    """

    def __init__(
        self,
        config: Config,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dial: Dial | None = None,
    ) -> None:
        config.validate()
        self.config = config.copy()
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._request_timeout_s = config.request_timeout_ms / 1000
        self._metadata = Metadata()
        # What answers at the address of a lost server is not known to have the same tables.
        self._pool = ServerPool(
            config, rng=self._rng, sleep=sleep, dial=dial, on_lost=partial(_forget_leader, self._metadata)
        )
        self._bootstrap = Bootstrap(
            config.bootstrap_servers,
            self._pool.connect,
            connect_timeout_s=config.connect_timeout_ms / 1000,
            request_timeout_s=self._request_timeout_s,
            sleep=sleep,
        )
        self._calls = SharedCalls()
        self.remote_storage = RemoteStorage()
        # A refresh that found a bucket without a leader is followed by a pause.
        self._backoffs: dict[_Question, Backoff] = {}
        self._is_closed = False
        # A connection that its owner forgot to close must not keep sockets open.
        self._finalizer = weakref.finalize(self, _close_abandoned, asyncio.get_running_loop(), self._pool)
        self._finalizer.atexit = False

    @classmethod
    async def connect(
        cls,
        config: Config,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dial: Dial | None = None,
    ) -> Cluster:
        """Check the config, ask the bootstrap servers for the others, and return the cluster they belong to."""
        cluster = cls(config, rng=rng, sleep=sleep, dial=dial)
        try:
            await cluster.rebootstrap()
        except BaseException:
            await cluster.close()
            raise
        return cluster

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails. May be called again."""
        self._is_closed = True
        self._finalizer.detach()
        await self._calls.close()
        await self.remote_storage.close()
        await self._pool.close()

    def show(self, metrics: Metrics) -> None:
        """Have connections and requests shown among the metrics."""
        self._pool.show(metrics)

    # Servers

    @property
    def coordinator(self) -> ServerNode | None:
        return self._metadata.coordinator

    @property
    def tablet_servers(self) -> list[ServerNode]:
        return list(self._metadata.tablet_servers.values())

    def forget_server(self, server_id: int) -> None:
        """Ask no more of a tablet server until metadata lists it again; buckets it leads have no known leader."""
        node = self._metadata.tablet_servers.pop(server_id, None)
        if node is not None:
            # Otherwise it would depend on who meets the broken connection whether the loss is in the log.
            self._pool.check(node)

    async def rebootstrap(self) -> None:
        """Look the servers up again, beginning with the bootstrap servers. Known tables stay known."""
        self._check_open()
        await self._calls.join_next("bootstrap", self._bootstrap_once)

    async def _bootstrap_once(self) -> None:
        self._metadata.merge(await self._bootstrap.ask(pb.MetadataRequest()))

    # Requests

    async def request(
        self, server_id: int, api: Api[RequestT, ResponseT], message: RequestT, *, timeout_s: float | None = None
    ) -> ResponseT:
        """Send a request to one tablet server. Without ``timeout_s`` the option ``request-timeout`` is the limit.

        Raises NetworkError (1) when the connection fails, code 44 when no such server is known, RequestTimeoutError
        (25), or what the server answered.
        """
        return await self._request(self._node(server_id), api, message, timeout_s)

    def _node(self, server_id: int) -> ServerNode:
        self._check_open()
        node = self._metadata.tablet_servers.get(server_id)
        if node is None:
            raise FlussError(
                f"tablet server {server_id} is not known; it may have left the cluster",
                ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
            )
        return node

    async def offers(self, server_id: int, api: Api[Any, Any]) -> bool:
        """Whether a tablet server knows an API. Raises what ``request`` raises when it cannot be asked."""
        return (await self._pool.channel(self._node(server_id))).offers(api)

    async def request_any_tablet(self, api: Api[RequestT, ResponseT], message: RequestT) -> ResponseT:
        """Send a request that every tablet server can answer; a second server is asked when the first is gone."""
        self._check_open()
        node = self._random_tablet_server()
        if node is not None:
            try:
                return await self._request(node, api, message)
            except NetworkError as error:
                logger.debug("%s cannot be asked for %s: %s", node.uid, api.name, error.message)
                self.forget_server(node.id)
        node = self._random_tablet_server()
        if node is None:
            await self.rebootstrap()
            node = self._random_tablet_server()
        if node is None:
            raise NetworkError("the cluster has no tablet server at the moment")
        return await self._request(node, api, message)

    async def storage_token(self) -> pb.GetFileSystemSecurityTokenResponse:
        """Ask for credentials with which remote storage can be read."""
        request = pb.GetFileSystemSecurityTokenRequest()
        return await self.request_any_tablet(apis.GET_FILESYSTEM_SECURITY_TOKEN, request)

    async def request_coordinator(self, api: Api[RequestT, ResponseT], message: RequestT) -> ResponseT:
        """Send a request to the coordinator, wherever it is now.

        When it cannot be reached or is no longer the coordinator, it is looked up and asked once more. A change that
        was under way when the connection failed is not repeated: it may have been made.
        """
        self._check_open()
        node = self._metadata.coordinator
        if node is not None:
            try:
                channel = await self._pool.channel(node)
            except NetworkError as error:
                logger.debug("the coordinator %s cannot be reached: %s", node.uid, error.message)
            else:
                try:
                    return await channel.request(api, message, timeout_s=self._request_timeout_s)
                except FlussError as error:
                    if not _may_be_repeated(api, error):
                        raise
                    logger.debug("the coordinator %s cannot be asked: %s", node.uid, error.message)
        await self.rebootstrap()
        node = self._metadata.coordinator
        if node is None:
            raise NetworkError("the cluster has no coordinator at the moment")
        return await self._request(node, api, message)

    async def _request(
        self, node: ServerNode, api: Api[RequestT, ResponseT], message: RequestT, timeout_s: float | None = None
    ) -> ResponseT:
        channel = await self._pool.channel(node)
        return await channel.request(
            api, message, timeout_s=self._request_timeout_s if timeout_s is None else timeout_s
        )

    def _random_tablet_server(self) -> ServerNode | None:
        nodes = self.tablet_servers
        return self._rng.choice(nodes) if nodes else None

    # Tables

    def table_info(self, path: TablePath) -> TableInfo | None:
        """Return what is known about a table, without asking."""
        return self._metadata.table_info(path)

    def leader_of(self, bucket: TableBucket) -> int | None:
        """Return the tablet server that leads a bucket, or None if that is not known."""
        return self._metadata.leader_of(bucket)

    def named_leader_of(self, bucket: TableBucket) -> int | None:
        """Return the tablet server that was last said to lead a bucket, whether or not it is there."""
        return self._metadata.named_leader_of(bucket)

    def partition_name(self, partition_id: int) -> str | None:
        return self._metadata.partition_name(partition_id)

    def forget_leaders(self, table_id: int, partition_id: int | None = None) -> None:
        """Let the leaders of a table, or of one of its partitions, be looked up again."""
        self._metadata.forget_leaders(table_id, partition_id)

    def forget_partition(self, path: TablePath, partition_name: str) -> None:
        """Let a partition be looked up again, if somebody asks for it again."""
        self._metadata.forget_partition(path, partition_name)

    async def partition_id(self, path: TablePath, partition_name: str) -> int:
        """Return the id of a partition, known or asked for; code 36 if there is none."""
        partition_id = self._metadata.partition_id(path, partition_name)
        if partition_id is None:
            await self.refresh([path], partitions=[(path, partition_name)])
            partition_id = self._metadata.partition_id(path, partition_name)
        if partition_id is None:
            raise FlussError(f"partition '{partition_name}' of {path} does not exist", ErrorCode.PARTITION_NOT_EXISTS)
        return partition_id

    async def schema(self, path: TablePath, schema_id: int) -> Schema:
        """Return one of the schemas that a table has had."""
        schema = self._metadata.schema(path, schema_id)
        if schema is None:
            schema = await self._calls.join(("schema", path, schema_id), partial(self._get_schema, path, schema_id))
        return schema

    async def _get_schema(self, path: TablePath, schema_id: int) -> Schema:
        request = pb.GetTableSchemaRequest(table_path=pb_table_path(path), schema_id=schema_id)
        response = await self.request_any_tablet(apis.GET_TABLE_SCHEMA, request)
        schema = schema_from_json(response.schema_json)
        self._metadata.put_schema(path, schema_id, schema)
        return schema

    async def refresh(
        self,
        tables: Collection[TablePath] = (),
        *,
        partitions: Collection[tuple[TablePath, str]] = (),
        partition_ids: Collection[tuple[TablePath, int]] = (),
    ) -> None:
        """Ask for tables and partitions, and remember the answer. Raises 7 and 36 if one of them does not exist.

        Callers that ask for the same things at the same time share a request, but never one that was sent before they
        asked: a caller that has just created a table finds it.
        """
        self._check_open()
        question = _Question(frozenset(tables), frozenset(partitions), frozenset(partition_ids))
        await self._calls.join_next(question, partial(self._refresh_once, question))

    async def _refresh_once(self, question: _Question) -> None:
        backoff = self._backoffs.get(question)
        if backoff is not None:
            await self._sleep(backoff.until_s - asyncio.get_running_loop().time())
        try:
            response = await self._ask_for_metadata(question.request())
            for path in self._metadata.merge(response):
                await self._settle(path, response)
            for table in response.table_metadata:
                self._metadata.check_table(table_path(table.table_path), table.table_id)
            await self._check_answered(question, response)
        except FlussError as error:
            self._forget_missing(error, question)
            raise
        self._back_off_unless_complete(question)

    async def _settle(self, path: TablePath, response: pb.MetadataResponse) -> None:
        """Have the coordinator decide about a table of which something newer than the answer is known.

        Mostly the answer was late. Or the cluster is another one, whose tables are older.
        """
        known = self.table_info(path)
        request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
        try:
            info = await self.request_coordinator(apis.GET_TABLE_INFO, request)
        except FlussError as error:
            logger.debug("which %s is the newest is not known: %s", path, error.message)
            return
        (said,) = (table for table in response.table_metadata if table_path(table.table_path) == path)
        if (info.table_id, info.created_time) == (said.table_id, said.created_time) and self.table_info(path) is known:
            self._metadata.forget_table(path)
            self._metadata.merge(response)

    async def _check_answered(self, question: _Question, response: pb.MetadataResponse) -> None:
        """Raise why an answer leaves out a table that was asked for: metadata does so with what a user may not see."""
        if len(response.table_metadata) >= len(question.tables):
            return
        left_out = question.tables.difference(table_path(table.table_path) for table in response.table_metadata)
        for path in left_out:
            # This question is answered with the reason.
            request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
            await self.request_coordinator(apis.GET_TABLE_INFO, request)
            raise FlussError(f"Table '{path}' does not exist", ErrorCode.TABLE_NOT_EXIST)

    def _back_off_unless_complete(self, question: _Question) -> None:
        """Remember to wait before the same question is asked again, longer each time, while leaders are missing."""
        backoff = self._backoffs.pop(question, None)
        if self._has_all_leaders(question):
            return
        now_s = asyncio.get_running_loop().time()
        if backoff is None or now_s >= backoff.until_s + METADATA.longest_s:
            backoff = Backoff(METADATA)
        while len(self._backoffs) >= _BACKOFFS_MAX:
            del self._backoffs[next(iter(self._backoffs))]
        backoff.extend(now_s)
        self._backoffs[question] = backoff

    def _has_all_leaders(self, question: _Question) -> bool:
        for path in question.tables:
            info = self.table_info(path)
            if info is not None and not info.is_partitioned() and not self._metadata.has_all_leaders(path, None):
                return False
        ids = {(path, self._metadata.partition_id(path, name)) for path, name in question.partitions}
        return all(self._metadata.has_all_leaders(path, id_) for path, id_ in ids | question.partition_ids)

    async def _ask_for_metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        nodes = self.tablet_servers
        for node in self._rng.sample(nodes, min(len(nodes), _REFRESH_SERVERS_MAX)):
            try:
                return await self._request(node, apis.GET_METADATA, request)
            except (NetworkError, RequestTimeoutError) as error:
                logger.debug("%s cannot be asked for metadata: %s", node.uid, error.message)
                self.forget_server(node.id)
        return await self._bootstrap.ask(request)

    def _forget_missing(self, error: FlussError, question: _Question) -> None:
        """Forget what the server says does not exist, if the question leaves no doubt what that is."""
        tables = question.tables_and_owners
        if error.error_code == ErrorCode.TABLE_NOT_EXIST and len(tables) == 1:
            self._metadata.forget_table(*tables)
        elif error.error_code == ErrorCode.PARTITION_NOT_EXISTS and len(question.partitions) == 1:
            for path, name in question.partitions:
                self._metadata.forget_partition(path, name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise FlussError("the connection is closed; create a new one")


def _forget_leader(metadata: Metadata, node: ServerNode) -> None:
    if node.server_type == ServerType.TABLET_SERVER.value:
        metadata.forget_leader(node.id)


def _may_be_repeated(api: Api[RequestT, ResponseT], error: FlussError) -> bool:
    if error.error_code == ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION:
        return True
    return isinstance(error, NetworkError) and api.key not in _CHANGES


def _close_abandoned(loop: asyncio.AbstractEventLoop, pool: ServerPool) -> None:
    """Close the connections of a cluster that is no longer used. Called by the garbage collector, in any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(pool.close()))
