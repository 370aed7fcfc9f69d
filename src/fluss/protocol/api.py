"""The APIs of the protocol: key, messages, versions, and which kind of server answers.

Everything has version 0 only, except:

    API                   version 0                          version 1                     version 2
    PUT_KV                legacy key encoding, lake tables   kv format version 2 keys      client understands error 72
    LOOKUP, PREFIX_LOOKUP legacy key encoding, lake tables   kv format version 2 keys      -

Internal APIs are meant for servers and the tiering service. They are advertised like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from fluss.errors import UnsupportedVersionError
from fluss.protocol import bulk_messages, lookup_messages
from fluss.protocol.codec import ENTRIES_MAX, MESSAGE_BYTES_MAX, Codec, MessageCodec
from fluss.protocol.messages import fluss_pb2 as pb

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
MessageT = TypeVar("MessageT", bound=Message)
RequestMessageT = TypeVar("RequestMessageT", bound=Message)
ResponseMessageT = TypeVar("ResponseMessageT", bound=Message)


class ApiKey(IntEnum):
    """The number of an API in a request frame. Keys below 1000 belong to another protocol."""

    API_VERSIONS = 1000
    CREATE_DATABASE = 1001
    DROP_DATABASE = 1002
    LIST_DATABASES = 1003
    DATABASE_EXISTS = 1004
    CREATE_TABLE = 1005
    DROP_TABLE = 1006
    GET_TABLE_INFO = 1007
    LIST_TABLES = 1008
    LIST_PARTITION_INFOS = 1009
    TABLE_EXISTS = 1010
    GET_TABLE_SCHEMA = 1011
    GET_METADATA = 1012
    UPDATE_METADATA = 1013
    PRODUCE_LOG = 1014
    FETCH_LOG = 1015
    PUT_KV = 1016
    LOOKUP = 1017
    NOTIFY_LEADER_AND_ISR = 1018
    STOP_REPLICA = 1019
    ADJUST_ISR = 1020
    LIST_OFFSETS = 1021
    COMMIT_KV_SNAPSHOT = 1022
    GET_LATEST_KV_SNAPSHOTS = 1023
    GET_KV_SNAPSHOT_METADATA = 1024
    GET_FILESYSTEM_SECURITY_TOKEN = 1025
    INIT_WRITER = 1026
    COMMIT_REMOTE_LOG_MANIFEST = 1027
    NOTIFY_REMOTE_LOG_OFFSETS = 1028
    NOTIFY_KV_SNAPSHOT_OFFSET = 1029
    COMMIT_LAKE_TABLE_SNAPSHOT = 1030
    NOTIFY_LAKE_TABLE_OFFSET = 1031
    GET_LAKE_SNAPSHOT = 1032
    LIMIT_SCAN = 1033
    PREFIX_LOOKUP = 1034
    GET_DATABASE_INFO = 1035
    CREATE_PARTITION = 1036
    DROP_PARTITION = 1037
    AUTHENTICATE = 1038
    CREATE_ACLS = 1039
    LIST_ACLS = 1040
    DROP_ACLS = 1041
    LAKE_TIERING_HEARTBEAT = 1042
    CONTROLLED_SHUTDOWN = 1043
    ALTER_TABLE = 1044
    DESCRIBE_CLUSTER_CONFIGS = 1045
    ALTER_CLUSTER_CONFIGS = 1046
    ADD_SERVER_TAG = 1047
    REMOVE_SERVER_TAG = 1048
    REBALANCE = 1049
    LIST_REBALANCE_PROGRESS = 1050
    CANCEL_REBALANCE = 1051
    PREPARE_LAKE_TABLE_SNAPSHOT = 1052
    REGISTER_PRODUCER_OFFSETS = 1053
    GET_PRODUCER_OFFSETS = 1054
    DELETE_PRODUCER_OFFSETS = 1055
    ACQUIRE_KV_SNAPSHOT_LEASE = 1056
    RELEASE_KV_SNAPSHOT_LEASE = 1057
    DROP_KV_SNAPSHOT_LEASE = 1058
    GET_TABLE_STATS = 1059
    ALTER_DATABASE = 1060
    SCAN_KV = 1061
    GET_CLUSTER_HEALTH = 1062
    LIST_REMOTE_LOG_MANIFESTS = 1063
    LIST_KV_SNAPSHOTS = 1064


class ServerRole(IntEnum):
    """The two roles of a server, as ApiVersions announces them."""

    COORDINATOR = 1
    TABLET_SERVER = 2


class VersionRange(NamedTuple):
    """Versions of one API that one side speaks, both ends included."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


@dataclass(frozen=True, slots=True, eq=False)
class Api(Generic[RequestT, ResponseT]):
    """One API: everything needed to send a request and to read its answer, or the other way round."""

    key: ApiKey
    request: Codec[RequestT]
    response: Codec[ResponseT]
    served_by: frozenset[ServerRole]
    is_public: bool
    versions: VersionRange

    @property
    def name(self) -> str:
        return self.key.name

    def __repr__(self) -> str:
        return f"Api({self.key.name})"


_registry: dict[int, Api[Any, Any]] = {}


def _register(api: Api[RequestT, ResponseT]) -> Api[RequestT, ResponseT]:
    assert api.key not in _registry, f"{api.name} is defined twice"
    _registry[api.key] = api
    return api


def _request(message_type: type[MessageT]) -> MessageCodec[MessageT]:
    return MessageCodec(message_type, bytes_max=MESSAGE_BYTES_MAX, entries_max=ENTRIES_MAX)


def _response(message_type: type[MessageT]) -> MessageCodec[MessageT]:
    # Answers to lookups can be large, and the client chose its server; the frame size is the limit.
    return MessageCodec(message_type)


class _Define:
    """Defines APIs that are answered by the same servers."""

    def __init__(self, *served_by: ServerRole) -> None:
        self._served_by = frozenset(served_by)

    def __call__(
        self,
        key: ApiKey,
        request: type[RequestMessageT],
        response: type[ResponseMessageT],
        *,
        is_public: bool = True,
        version_highest: int = 0,
    ) -> Api[RequestMessageT, ResponseMessageT]:
        versions = VersionRange(0, version_highest)
        return _register(Api(key, _request(request), _response(response), self._served_by, is_public, versions))


_on_both = _Define(ServerRole.COORDINATOR, ServerRole.TABLET_SERVER)
_on_coordinator = _Define(ServerRole.COORDINATOR)
_on_tablet = _Define(ServerRole.TABLET_SERVER)


def _with_records(
    key: ApiKey, request: Codec[RequestT], response: Codec[ResponseT], *, version_highest: int = 0
) -> Api[RequestT, ResponseT]:
    """Define an API whose request or response is spliced: always public, always answered by tablet servers."""
    served_by = frozenset((ServerRole.TABLET_SERVER,))
    return _register(Api(key, request, response, served_by, True, VersionRange(0, version_highest)))


API_VERSIONS = _on_both(ApiKey.API_VERSIONS, pb.ApiVersionsRequest, pb.ApiVersionsResponse)
CREATE_DATABASE = _on_coordinator(ApiKey.CREATE_DATABASE, pb.CreateDatabaseRequest, pb.CreateDatabaseResponse)
DROP_DATABASE = _on_coordinator(ApiKey.DROP_DATABASE, pb.DropDatabaseRequest, pb.DropDatabaseResponse)
LIST_DATABASES = _on_both(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest, pb.ListDatabasesResponse)
DATABASE_EXISTS = _on_both(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest, pb.DatabaseExistsResponse)
CREATE_TABLE = _on_coordinator(ApiKey.CREATE_TABLE, pb.CreateTableRequest, pb.CreateTableResponse)
DROP_TABLE = _on_coordinator(ApiKey.DROP_TABLE, pb.DropTableRequest, pb.DropTableResponse)
GET_TABLE_INFO = _on_both(ApiKey.GET_TABLE_INFO, pb.GetTableInfoRequest, pb.GetTableInfoResponse)
LIST_TABLES = _on_both(ApiKey.LIST_TABLES, pb.ListTablesRequest, pb.ListTablesResponse)
LIST_PARTITION_INFOS = _on_both(
    ApiKey.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse
)
TABLE_EXISTS = _on_both(ApiKey.TABLE_EXISTS, pb.TableExistsRequest, pb.TableExistsResponse)
GET_TABLE_SCHEMA = _on_both(ApiKey.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest, pb.GetTableSchemaResponse)
GET_METADATA = _on_both(ApiKey.GET_METADATA, pb.MetadataRequest, pb.MetadataResponse)
UPDATE_METADATA = _on_tablet(
    ApiKey.UPDATE_METADATA, pb.UpdateMetadataRequest, pb.UpdateMetadataResponse, is_public=False
)
PRODUCE_LOG = _with_records(ApiKey.PRODUCE_LOG, bulk_messages.PRODUCE_LOG_REQUEST, _response(pb.ProduceLogResponse))
FETCH_LOG = _with_records(ApiKey.FETCH_LOG, _request(pb.FetchLogRequest), bulk_messages.FETCH_LOG_RESPONSE)
PUT_KV = _with_records(ApiKey.PUT_KV, bulk_messages.PUT_KV_REQUEST, _response(pb.PutKvResponse), version_highest=2)
LOOKUP = _on_tablet(ApiKey.LOOKUP, pb.LookupRequest, pb.LookupResponse, version_highest=1)
# The same for a client that asks for many keys: it finds the values of the answer all at once.
LOOKUP_MANY: Api[Any, Any] = replace(LOOKUP, response=lookup_messages.UNDECODED_VALUES)
NOTIFY_LEADER_AND_ISR = _on_tablet(
    ApiKey.NOTIFY_LEADER_AND_ISR, pb.NotifyLeaderAndIsrRequest, pb.NotifyLeaderAndIsrResponse, is_public=False
)
STOP_REPLICA = _on_tablet(ApiKey.STOP_REPLICA, pb.StopReplicaRequest, pb.StopReplicaResponse, is_public=False)
ADJUST_ISR = _on_coordinator(ApiKey.ADJUST_ISR, pb.AdjustIsrRequest, pb.AdjustIsrResponse, is_public=False)
LIST_OFFSETS = _on_tablet(ApiKey.LIST_OFFSETS, pb.ListOffsetsRequest, pb.ListOffsetsResponse)
COMMIT_KV_SNAPSHOT = _on_coordinator(
    ApiKey.COMMIT_KV_SNAPSHOT, pb.CommitKvSnapshotRequest, pb.CommitKvSnapshotResponse, is_public=False
)
GET_LATEST_KV_SNAPSHOTS = _on_both(
    ApiKey.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse
)
GET_KV_SNAPSHOT_METADATA = _on_both(
    ApiKey.GET_KV_SNAPSHOT_METADATA, pb.GetKvSnapshotMetadataRequest, pb.GetKvSnapshotMetadataResponse
)
GET_FILESYSTEM_SECURITY_TOKEN = _on_both(
    ApiKey.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest, pb.GetFileSystemSecurityTokenResponse
)
INIT_WRITER = _on_tablet(ApiKey.INIT_WRITER, pb.InitWriterRequest, pb.InitWriterResponse)
COMMIT_REMOTE_LOG_MANIFEST = _on_coordinator(
    ApiKey.COMMIT_REMOTE_LOG_MANIFEST,
    pb.CommitRemoteLogManifestRequest,
    pb.CommitRemoteLogManifestResponse,
    is_public=False,
)
NOTIFY_REMOTE_LOG_OFFSETS = _on_tablet(
    ApiKey.NOTIFY_REMOTE_LOG_OFFSETS,
    pb.NotifyRemoteLogOffsetsRequest,
    pb.NotifyRemoteLogOffsetsResponse,
    is_public=False,
)
NOTIFY_KV_SNAPSHOT_OFFSET = _on_tablet(
    ApiKey.NOTIFY_KV_SNAPSHOT_OFFSET,
    pb.NotifyKvSnapshotOffsetRequest,
    pb.NotifyKvSnapshotOffsetResponse,
    is_public=False,
)
COMMIT_LAKE_TABLE_SNAPSHOT = _on_coordinator(
    ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT,
    pb.CommitLakeTableSnapshotRequest,
    pb.CommitLakeTableSnapshotResponse,
    is_public=False,
)
NOTIFY_LAKE_TABLE_OFFSET = _on_tablet(
    ApiKey.NOTIFY_LAKE_TABLE_OFFSET, pb.NotifyLakeTableOffsetRequest, pb.NotifyLakeTableOffsetResponse, is_public=False
)
GET_LAKE_SNAPSHOT = _on_both(ApiKey.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse)
LIMIT_SCAN = _with_records(ApiKey.LIMIT_SCAN, _request(pb.LimitScanRequest), bulk_messages.LIMIT_SCAN_RESPONSE)
PREFIX_LOOKUP = _on_tablet(ApiKey.PREFIX_LOOKUP, pb.PrefixLookupRequest, pb.PrefixLookupResponse, version_highest=1)
GET_DATABASE_INFO = _on_both(ApiKey.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse)
CREATE_PARTITION = _on_coordinator(ApiKey.CREATE_PARTITION, pb.CreatePartitionRequest, pb.CreatePartitionResponse)
DROP_PARTITION = _on_coordinator(ApiKey.DROP_PARTITION, pb.DropPartitionRequest, pb.DropPartitionResponse)
AUTHENTICATE = _on_both(ApiKey.AUTHENTICATE, pb.AuthenticateRequest, pb.AuthenticateResponse)
CREATE_ACLS = _on_coordinator(ApiKey.CREATE_ACLS, pb.CreateAclsRequest, pb.CreateAclsResponse)
LIST_ACLS = _on_both(ApiKey.LIST_ACLS, pb.ListAclsRequest, pb.ListAclsResponse)
DROP_ACLS = _on_coordinator(ApiKey.DROP_ACLS, pb.DropAclsRequest, pb.DropAclsResponse)
LAKE_TIERING_HEARTBEAT = _on_coordinator(
    ApiKey.LAKE_TIERING_HEARTBEAT, pb.LakeTieringHeartbeatRequest, pb.LakeTieringHeartbeatResponse, is_public=False
)
CONTROLLED_SHUTDOWN = _on_coordinator(
    ApiKey.CONTROLLED_SHUTDOWN, pb.ControlledShutdownRequest, pb.ControlledShutdownResponse, is_public=False
)
ALTER_TABLE = _on_coordinator(ApiKey.ALTER_TABLE, pb.AlterTableRequest, pb.AlterTableResponse)
DESCRIBE_CLUSTER_CONFIGS = _on_both(
    ApiKey.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest, pb.DescribeClusterConfigsResponse
)
ALTER_CLUSTER_CONFIGS = _on_coordinator(
    ApiKey.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse
)
ADD_SERVER_TAG = _on_coordinator(ApiKey.ADD_SERVER_TAG, pb.AddServerTagRequest, pb.AddServerTagResponse)
REMOVE_SERVER_TAG = _on_coordinator(ApiKey.REMOVE_SERVER_TAG, pb.RemoveServerTagRequest, pb.RemoveServerTagResponse)
REBALANCE = _on_coordinator(ApiKey.REBALANCE, pb.RebalanceRequest, pb.RebalanceResponse)
LIST_REBALANCE_PROGRESS = _on_coordinator(
    ApiKey.LIST_REBALANCE_PROGRESS, pb.ListRebalanceProgressRequest, pb.ListRebalanceProgressResponse
)
CANCEL_REBALANCE = _on_coordinator(ApiKey.CANCEL_REBALANCE, pb.CancelRebalanceRequest, pb.CancelRebalanceResponse)
PREPARE_LAKE_TABLE_SNAPSHOT = _on_coordinator(
    ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT,
    pb.PrepareLakeTableSnapshotRequest,
    pb.PrepareLakeTableSnapshotResponse,
    is_public=False,
)
REGISTER_PRODUCER_OFFSETS = _on_coordinator(
    ApiKey.REGISTER_PRODUCER_OFFSETS, pb.RegisterProducerOffsetsRequest, pb.RegisterProducerOffsetsResponse
)
GET_PRODUCER_OFFSETS = _on_coordinator(
    ApiKey.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse
)
DELETE_PRODUCER_OFFSETS = _on_coordinator(
    ApiKey.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest, pb.DeleteProducerOffsetsResponse
)
ACQUIRE_KV_SNAPSHOT_LEASE = _on_coordinator(
    ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE, pb.AcquireKvSnapshotLeaseRequest, pb.AcquireKvSnapshotLeaseResponse
)
RELEASE_KV_SNAPSHOT_LEASE = _on_coordinator(
    ApiKey.RELEASE_KV_SNAPSHOT_LEASE, pb.ReleaseKvSnapshotLeaseRequest, pb.ReleaseKvSnapshotLeaseResponse
)
DROP_KV_SNAPSHOT_LEASE = _on_coordinator(
    ApiKey.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse
)
GET_TABLE_STATS = _on_tablet(ApiKey.GET_TABLE_STATS, pb.GetTableStatsRequest, pb.GetTableStatsResponse)
ALTER_DATABASE = _on_coordinator(ApiKey.ALTER_DATABASE, pb.AlterDatabaseRequest, pb.AlterDatabaseResponse)
SCAN_KV = _with_records(ApiKey.SCAN_KV, _request(pb.ScanKvRequest), bulk_messages.SCAN_KV_RESPONSE)
GET_CLUSTER_HEALTH = _on_both(ApiKey.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest, pb.GetClusterHealthResponse)
LIST_REMOTE_LOG_MANIFESTS = _on_coordinator(
    ApiKey.LIST_REMOTE_LOG_MANIFESTS, pb.ListRemoteLogManifestsRequest, pb.ListRemoteLogManifestsResponse
)
LIST_KV_SNAPSHOTS = _on_coordinator(ApiKey.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse)

# Every API by its key.
APIS: Mapping[int, Api[Any, Any]] = MappingProxyType(_registry)

# What a connection may ask for before it has authenticated.
UNAUTHENTICATED_APIS = frozenset((ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE))


def negotiate(api: Api[Any, Any], server_versions: VersionRange | None) -> int:
    """Return the newest version that both sides speak; ``server_versions`` is None if the server lacks the API."""
    if server_versions is None:
        raise UnsupportedVersionError(
            f"the server does not serve {api.name} ({int(api.key)}); it may be older, or have another role"
        )
    lowest = max(api.versions.lowest, server_versions.lowest)
    highest = min(api.versions.highest, server_versions.highest)
    if lowest > highest:
        raise UnsupportedVersionError(
            f"no common version of {api.name}: this side speaks {api.versions}, the server {server_versions}"
        )
    return highest
