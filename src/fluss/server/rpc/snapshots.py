"""Requests about copies of tables: snapshots of rows by key, remote logs, lakes.

There are none yet, so the answers are about what does not exist; but what is asked for is looked at as carefully as
everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import Catalog
from fluss.server.model import Partition, Table
from fluss.server.rpc.handler_group import (
    ChangeHandler,
    check_primary_key_table,
    existing_table_of_id,
    partition_of_request,
    resource_of_table_id,
)

_LOCAL_FILE_SCHEME: Final = "file"


class SnapshotHandlers:
    """Answers that a table has no copies elsewhere, or why that cannot be said."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer) -> None:
        self._catalog = catalog
        self._authorizer = authorizer

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.GET_LATEST_KV_SNAPSHOTS: self._latest_kv_snapshots,
            ApiKey.LIST_KV_SNAPSHOTS: self._list_kv_snapshots,
            ApiKey.GET_KV_SNAPSHOT_METADATA: self._kv_snapshot_metadata,
            ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE: self._acquire_lease,
            ApiKey.RELEASE_KV_SNAPSHOT_LEASE: self._release_lease,
            ApiKey.DROP_KV_SNAPSHOT_LEASE: self._drop_lease,
            ApiKey.LIST_REMOTE_LOG_MANIFESTS: self._list_remote_log_manifests,
            ApiKey.GET_FILESYSTEM_SECURITY_TOKEN: self._security_token,
            ApiKey.GET_LAKE_SNAPSHOT: self._lake_snapshot,
        }

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {}

    # Snapshots of rows by key

    def _latest_kv_snapshots(
        self, context: RequestContext, request: pb.GetLatestKvSnapshotsRequest
    ) -> pb.GetLatestKvSnapshotsResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        table = self._catalog.existing_table(path)
        check_primary_key_table(table)
        name = request.partition_name if request.HasField("partition_name") else None
        named = None if name is None else self._catalog.partitions_of(table.table_id).get(name)
        partition = partition_of_request(table, name, named)
        return pb.GetLatestKvSnapshotsResponse(
            table_id=table.table_id,
            partition_id=None if partition is None else partition.partition_id,
            latest_snapshots=[pb.PbKvSnapshot(bucket_id=bucket_id) for bucket_id in range(table.bucket_count)],
        )

    def _list_kv_snapshots(
        self, context: RequestContext, request: pb.ListKvSnapshotsRequest
    ) -> pb.ListKvSnapshotsResponse:
        table, partition = self._table_and_partition(context, request)
        check_primary_key_table(table)
        return pb.ListKvSnapshotsResponse(
            table_id=table.table_id, partition_id=None if partition is None else partition.partition_id
        )

    def _kv_snapshot_metadata(
        self, context: RequestContext, request: pb.GetKvSnapshotMetadataRequest
    ) -> pb.GetKvSnapshotMetadataResponse:
        self._authorizer.check(context, Operation.DESCRIBE, resource_of_table_id(self._catalog, request.table_id))
        raise FlussError(
            f"Bucket {request.bucket_id} of the table of id {request.table_id} has no snapshot {request.snapshot_id}; "
            "read the changelog from its start instead",
            ErrorCode.KV_SNAPSHOT_NOT_EXIST,
        )

    def _acquire_lease(
        self, context: RequestContext, request: pb.AcquireKvSnapshotLeaseRequest
    ) -> pb.AcquireKvSnapshotLeaseResponse:
        for leased in request.snapshots_to_lease:
            self._check_leasable(context, leased.table_id)
        return pb.AcquireKvSnapshotLeaseResponse(unavailable_snapshots=request.snapshots_to_lease)

    def _release_lease(
        self, context: RequestContext, request: pb.ReleaseKvSnapshotLeaseRequest
    ) -> pb.ReleaseKvSnapshotLeaseResponse:
        for table_id in {bucket.table_id for bucket in request.buckets_to_release}:
            self._check_leasable(context, table_id)
        return pb.ReleaseKvSnapshotLeaseResponse()

    def _drop_lease(
        self, context: RequestContext, request: pb.DropKvSnapshotLeaseRequest
    ) -> pb.DropKvSnapshotLeaseResponse:
        return pb.DropKvSnapshotLeaseResponse()

    def _check_leasable(self, context: RequestContext, table_id: int) -> None:
        self._authorizer.check(context, Operation.READ, resource_of_table_id(self._catalog, table_id))
        check_primary_key_table(existing_table_of_id(self._catalog, table_id))

    # Remote storage

    def _list_remote_log_manifests(
        self, context: RequestContext, request: pb.ListRemoteLogManifestsRequest
    ) -> pb.ListRemoteLogManifestsResponse:
        self._table_and_partition(context, request)
        return pb.ListRemoteLogManifestsResponse()

    def _security_token(
        self, context: RequestContext, request: pb.GetFileSystemSecurityTokenRequest
    ) -> pb.GetFileSystemSecurityTokenResponse:
        return pb.GetFileSystemSecurityTokenResponse(schema=_LOCAL_FILE_SCHEME, token=b"")

    def _lake_snapshot(self, context: RequestContext, request: pb.GetLakeSnapshotRequest) -> pb.GetLakeSnapshotResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        self._catalog.existing_table(path)
        if request.HasField("snapshot_id") and request.readable:
            raise FlussError(
                "Ask for a snapshot by its id or for the newest readable one, not for both",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        wanted = f"lake snapshot {request.snapshot_id}" if request.HasField("snapshot_id") else "lake snapshot"
        raise FlussError(f"Table {path} has no {wanted}", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)

    def _table_and_partition(
        self, context: RequestContext, request: pb.ListKvSnapshotsRequest | pb.ListRemoteLogManifestsRequest
    ) -> tuple[Table, Partition | None]:
        self._authorizer.check(context, Operation.DESCRIBE, resource_of_table_id(self._catalog, request.table_id))
        table = existing_table_of_id(self._catalog, request.table_id)
        partition_id = request.partition_id if request.HasField("partition_id") else None
        found = None if partition_id is None else self._catalog.partition_by_id(partition_id)
        return table, partition_of_request(table, partition_id, found)
