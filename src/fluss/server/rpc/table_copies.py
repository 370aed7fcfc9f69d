"""Requests about copies of tables in remote storage: remote logs, snapshots of rows by key and leases of these."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT64_MAX
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import partition_id, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.metadata.kv_snapshot_table import KvSnapshotTable
from fluss.server.coordinator.metadata.remote_log_table import RemoteLogTable
from fluss.server.coordinator.table_service import check_partitioned
from fluss.server.model import Clock, KvSnapshotEntry, Partition, Table
from fluss.server.rpc.handler_group import ChangeHandler, check_table_id
from fluss.storage.remote.security_tokens import SecurityTokens

# The end of a remote log of which everything has expired.
_NOTHING_COPIED: Final = -1
_LEASE_ID_CHARS_MAX: Final = 255

# Tells of a snapshot where its files are, and what RocksDB called them.
SnapshotFiles: TypeAlias = Callable[[KvSnapshotEntry], Awaitable[list[tuple[str, str]]]]


class SnapshotHandlers:
    """Answers which copies a table has elsewhere, or why that cannot be said."""

    def __init__(
        self,
        catalog: Catalog,
        authorizer: Authorizer,
        remote_logs: RemoteLogTable,
        kv_snapshots: KvSnapshotTable,
        snapshot_files: SnapshotFiles | None,
        tokens: SecurityTokens,
        clock: Clock,
    ) -> None:
        """``snapshot_files`` tells the files of a snapshot; None if there is no remote storage."""
        self._catalog = catalog
        self._authorizer = authorizer
        self._remote_logs = remote_logs
        self._kv_snapshots = kv_snapshots
        self._snapshot_files = snapshot_files
        self._tokens = tokens
        self._clock = clock
        # Held while a lease is changed: what it has must not change between the check of rights and the change.
        self._lease_lock = asyncio.Lock()

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.GET_LATEST_KV_SNAPSHOTS: self._latest_kv_snapshots,
            ApiKey.LIST_KV_SNAPSHOTS: self._list_kv_snapshots,
            ApiKey.GET_KV_SNAPSHOT_METADATA: self._kv_snapshot_metadata,
            ApiKey.LIST_REMOTE_LOG_MANIFESTS: self._list_remote_log_manifests,
            ApiKey.GET_FILESYSTEM_SECURITY_TOKEN: self._security_token,
        }

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {
            ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE: self._acquire_lease,
            ApiKey.RELEASE_KV_SNAPSHOT_LEASE: self._release_lease,
            ApiKey.DROP_KV_SNAPSHOT_LEASE: self._drop_lease,
        }

    # Snapshots of rows by key

    async def _latest_kv_snapshots(
        self, context: RequestContext, request: pb.GetLatestKvSnapshotsRequest
    ) -> pb.GetLatestKvSnapshotsResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        table = self._catalog.existing_table(path)
        _check_primary_key_table(table)
        name = request.partition_name if request.HasField("partition_name") else None
        named = None if name is None else self._catalog.partitions_of(table.table_id).get(name)
        partition = _partition_of_request(table, name, named)
        partition_id = None if partition is None else partition.partition_id
        newest: dict[int, KvSnapshotEntry] = {}
        for entry in await self._snapshots(table, partition_id):
            newest.setdefault(entry.bucket.bucket_id, entry)
        response = pb.GetLatestKvSnapshotsResponse(table_id=table.table_id, partition_id=partition_id)
        for bucket_id in range(table.bucket_count):
            found = newest.get(bucket_id)
            response.latest_snapshots.append(
                pb.PbKvSnapshot(bucket_id=bucket_id) if found is None else _snapshot(found)
            )
        return response

    async def _list_kv_snapshots(
        self, context: RequestContext, request: pb.ListKvSnapshotsRequest
    ) -> pb.ListKvSnapshotsResponse:
        table, partition = self._table_and_partition(context, request)
        _check_primary_key_table(table)
        partition_id = None if partition is None else partition.partition_id
        return pb.ListKvSnapshotsResponse(
            table_id=table.table_id,
            partition_id=partition_id,
            active_snapshots=[_snapshot(entry) for entry in await self._snapshots(table, partition_id)],
        )

    async def _snapshots(self, table: Table, partition_id: int | None) -> list[KvSnapshotEntry]:
        """Return the snapshots that can be read, the newest of each bucket first."""
        if self._snapshot_files is None:
            return []
        return await self._kv_snapshots.of_group(table.table_id, partition_id)

    async def _kv_snapshot_metadata(
        self, context: RequestContext, request: pb.GetKvSnapshotMetadataRequest
    ) -> pb.GetKvSnapshotMetadataResponse:
        check_table_id(self._authorizer, self._catalog, context, Operation.DESCRIBE, request.table_id)
        bucket = TableBucket.new_with_partition(request.table_id, partition_id(request), request.bucket_id)
        entry = await self._kv_snapshots.find_snapshot(bucket, request.snapshot_id)
        if entry is None or self._snapshot_files is None:
            raise FlussError(
                f"Bucket {request.bucket_id} of the table of id {request.table_id} has no snapshot "
                f"{request.snapshot_id}; ask for the latest one, or read the changelog from its start instead",
                ErrorCode.KV_SNAPSHOT_NOT_EXIST,
            )
        response = pb.GetKvSnapshotMetadataResponse(log_offset=entry.log_offset)
        for remote_path, local_name in await self._snapshot_files(entry):
            response.snapshot_files.add(remote_path=remote_path, local_file_name=local_name)
        return response

    # Leases

    async def _acquire_lease(
        self, context: RequestContext, request: pb.AcquireKvSnapshotLeaseRequest
    ) -> pb.AcquireKvSnapshotLeaseResponse:
        _check_lease_id(request.lease_id)
        wanted = []
        for leased in request.snapshots_to_lease:
            self._check_leasable(context, leased.table_id)
            for snapshot in leased.bucket_snapshots:
                bucket = TableBucket.new_with_partition(leased.table_id, partition_id(snapshot), snapshot.bucket_id)
                wanted.append((bucket, snapshot.snapshot_id))
        async with self._lease_lock:
            # The new end is that of everything the lease has already.
            await self._check_lease(context, request.lease_id)
            expires_ms = min(self._clock() + max(0, request.lease_duration_ms), INT64_MAX)
            missing = await self._kv_snapshots.acquire_lease(request.lease_id, expires_ms, wanted)
        response = pb.AcquireKvSnapshotLeaseResponse()
        tables: dict[int, pb.PbKvSnapshotLeaseForTable] = {}
        for bucket, snapshot_id in missing:
            if bucket.table_id not in tables:
                tables[bucket.table_id] = response.unavailable_snapshots.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_snapshots.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
            )
        return response

    async def _release_lease(
        self, context: RequestContext, request: pb.ReleaseKvSnapshotLeaseRequest
    ) -> pb.ReleaseKvSnapshotLeaseResponse:
        for table_id in {bucket.table_id for bucket in request.buckets_to_release}:
            self._check_leasable(context, table_id)
        buckets = [
            TableBucket.new_with_partition(bucket.table_id, partition_id(bucket), bucket.bucket_id)
            for bucket in request.buckets_to_release
        ]
        async with self._lease_lock:
            await self._kv_snapshots.release_lease(request.lease_id, buckets)
        return pb.ReleaseKvSnapshotLeaseResponse()

    async def _drop_lease(
        self, context: RequestContext, request: pb.DropKvSnapshotLeaseRequest
    ) -> pb.DropKvSnapshotLeaseResponse:
        async with self._lease_lock:
            await self._check_lease(context, request.lease_id)
            await self._kv_snapshots.drop_lease(request.lease_id)
        return pb.DropKvSnapshotLeaseResponse()

    async def _check_lease(self, context: RequestContext, lease_id: str) -> None:
        """Refuse senders who may not read all tables that a lease has snapshots of. An unknown lease has none."""
        for table_id in await self._kv_snapshots.tables_of_lease(lease_id):
            self._check_leasable(context, table_id)

    def _check_leasable(self, context: RequestContext, table_id: int) -> None:
        check_table_id(self._authorizer, self._catalog, context, Operation.READ, table_id)
        _check_primary_key_table(self._catalog.existing_table_by_id(table_id))

    # Remote storage

    async def _list_remote_log_manifests(
        self, context: RequestContext, request: pb.ListRemoteLogManifestsRequest
    ) -> pb.ListRemoteLogManifestsResponse:
        table, partition = self._table_and_partition(context, request)
        partition_id = None if partition is None else partition.partition_id
        response = pb.ListRemoteLogManifestsResponse()
        for entry in await self._remote_logs.of_group(table.table_id, partition_id):
            if entry.manifest_path is not None:
                bucket = {"table_id": table.table_id, "partition_id": partition_id, "bucket_id": entry.bucket.bucket_id}
                response.manifests.add(
                    table_bucket=pb.PbTableBucket(**bucket),
                    remote_log_manifest_path=f"{entry.root}/{entry.manifest_path}",
                    remote_log_end_offset=entry.end_offset if entry.segment_count else _NOTHING_COPIED,
                )
        return response

    async def _security_token(
        self, context: RequestContext, request: pb.GetFileSystemSecurityTokenRequest
    ) -> pb.GetFileSystemSecurityTokenResponse:
        # Stores know nothing of tables: what can be said here is who reads none.
        if not self._authorizer.allows_anywhere(context, Operation.READ):
            raise FlussError(
                f"Principal {context.principal} has no authorization to read any table, and gets no keys to the files "
                "of tables in remote storage; an administrator can grant it with an ACL",
                ErrorCode.AUTHORIZATION_EXCEPTION,
            )
        token = await self._tokens.current()
        return pb.GetFileSystemSecurityTokenResponse(
            schema=token.scheme,
            token=token.credentials,
            expiration_time=token.expires_ms,
            addition_info=[pb.PbKeyValue(key=key, value=value) for key, value in token.settings.items()],
        )

    def _table_and_partition(
        self, context: RequestContext, request: pb.ListKvSnapshotsRequest | pb.ListRemoteLogManifestsRequest
    ) -> tuple[Table, Partition | None]:
        check_table_id(self._authorizer, self._catalog, context, Operation.DESCRIBE, request.table_id)
        table = self._catalog.existing_table_by_id(request.table_id)
        wanted = partition_id(request)
        found = None if wanted is None else self._catalog.partition_by_id(wanted)
        return table, _partition_of_request(table, wanted, found)


def _snapshot(entry: KvSnapshotEntry) -> pb.PbKvSnapshot:
    return pb.PbKvSnapshot(bucket_id=entry.bucket.bucket_id, snapshot_id=entry.snapshot_id, log_offset=entry.log_offset)


def _check_lease_id(lease_id: str) -> None:
    if not 0 < len(lease_id) <= _LEASE_ID_CHARS_MAX:
        raise FlussError(
            f"The id of a lease has {len(lease_id)} characters; give it 1 to {_LEASE_ID_CHARS_MAX}, such as a UUID"
        )


def _check_primary_key_table(table: Table) -> None:
    """Refuse a table without a primary key (code 20)."""
    if not table.has_primary_key:
        raise FlussError(
            f"Table {table.path} has no primary key, so there are no snapshots of its rows by key",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )


def _partition_of_request(table: Table, wanted: object | None, partition: Partition | None) -> Partition | None:
    """Check that a request names a partition exactly if the table has partitions.

    ``wanted`` is the name or id in the request, ``partition`` what was found under it. Raises 37 for a partition of a
    table that has none, and 36 for one that is missing.
    """
    if wanted is None and not table.is_partitioned:
        return None
    if wanted is not None:
        check_partitioned(table)
    if wanted is None or partition is None or partition.table_id != table.table_id:
        problem = "the request names none" if wanted is None else f"'{wanted}' does not exist"
        raise FlussError(f"A partition of table {table.path} is needed, but {problem}", ErrorCode.PARTITION_NOT_EXISTS)
    return partition
