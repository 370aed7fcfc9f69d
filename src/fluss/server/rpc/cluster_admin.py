"""Requests about the cluster itself: access control, health, configuration, tags of servers, moving buckets."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import (
    acl_fields,
    acl_pattern,
    config_changes,
    new_acl,
    pb_acl,
    pb_config_entry,
    server_tag,
    set_failure,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclOperation, AclResource, AclResourceType
from fluss.schema.cluster_info import HealthStatus
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, parent_of
from fluss.server.coordinator.auto_partitioner import AutoPartitioner
from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.coordinator.nodes import ServerTags
from fluss.server.model import BucketHealth, BucketHost
from fluss.server.rpc.handler_group import ChangeHandler


class AclHandlers:
    """Stores entries and keeps the authorizer up to date with them."""

    def __init__(self, store: MetadataStore, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._lock = asyncio.Lock()

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.LIST_ACLS: self._list}

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {ApiKey.CREATE_ACLS: self._create, ApiKey.DROP_ACLS: self._drop}

    def _list(self, context: RequestContext, request: pb.ListAclsRequest) -> pb.ListAclsResponse:
        self._check_enabled()
        visible = _AclSearch(self._authorizer.visible_acls(context))
        return pb.ListAclsResponse(acl=map(pb_acl, visible.take(request.acl_filter)))

    async def _create(self, context: RequestContext, request: pb.CreateAclsRequest) -> pb.CreateAclsResponse:
        """Add what is valid. An entry that is not gets an error of its own; missing rights refuse the request."""
        self._check_enabled()
        async with self._lock:
            response = pb.CreateAclsResponse()
            acls = []
            for message in request.acl:
                result = response.aclRes.add(acl=message)
                try:
                    acls.append(new_acl(message))
                except FlussError as error:
                    set_failure(result, error)
            self._check_may_change(context, acls)
            if acls:
                await self._store.add_acls(acls)
                self._authorizer.add(acls)
            return response

    async def _drop(self, context: RequestContext, request: pb.DropAclsRequest) -> pb.DropAclsResponse:
        """Remove what matches and the sender may see. An entry that matches several filters belongs to the first one.

        Missing rights for one of the entries refuse the request.
        """
        self._check_enabled()
        async with self._lock:
            visible = _AclSearch(self._authorizer.visible_acls(context))
            found = [visible.take(acl_filter) for acl_filter in request.acl_filter]
            dropped = list(chain.from_iterable(found))
            self._check_may_change(context, dropped)
            response = pb.DropAclsResponse()
            for matching in found:
                response.filter_results.add(
                    matching_acls=[pb.PbDropAclsMatchingAcl(acl=pb_acl(acl)) for acl in matching]
                )
            if dropped:
                await self._store.remove_acls(dropped)
                self._authorizer.remove(dropped)
            return response

    def _check_enabled(self) -> None:
        if not self._authorizer.is_enabled:
            raise FlussError(
                "No authorizer is configured, so there are no ACLs; set 'authorizer.enabled' on the server",
                ErrorCode.SECURITY_DISABLED_EXCEPTION,
            )

    def _check_may_change(self, context: RequestContext, acls: Iterable[AclBinding]) -> None:
        """Refuse senders who may not do everything with the resources; for tables, with their database."""
        for owner in dict.fromkeys(_owner_of(resource) for resource in dict.fromkeys(acl.resource for acl in acls)):
            self._authorizer.check(context, AclOperation.ALL, owner)


def _owner_of(resource: AclResource) -> AclResource:
    owner = parent_of(resource) if resource.resource_type is AclResourceType.TABLE else resource
    assert owner is not None, "every table has a database"
    return owner


# A filter or an entry by fields, and which fields a filter gives.
_Pattern: TypeAlias = tuple[int | str | None, ...]
_Given: TypeAlias = tuple[bool, ...]


class _AclSearch:
    """Finds the entries that filters match. An entry that matches several filters is found by the first of them.

    Filters that give the same fields share a table of all entries by these fields. So each filter takes one look, and
    a request with very many filters does not go through all entries for each of them.
    """

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self._left = dict.fromkeys(acls)
        self._tables: dict[_Given, dict[_Pattern, list[AclBinding]]] = {}

    def take(self, acl_filter: pb.PbAclFilter) -> list[AclBinding]:
        """Return what a filter matches and no filter before it has."""
        pattern = acl_pattern(acl_filter) if self._left else None
        if pattern is None:
            return []
        given = tuple(field is not None for field in pattern)
        if given not in self._tables:
            self._tables[given] = self._by_fields(given)
        # The same filter, should it come again, finds nothing new.
        found = [acl for acl in self._tables[given].pop(pattern, ()) if acl in self._left]
        for acl in found:
            del self._left[acl]
        return found

    def _by_fields(self, given: _Given) -> dict[_Pattern, list[AclBinding]]:
        table: dict[_Pattern, list[AclBinding]] = {}
        for acl in self._left:
            fields = tuple(field if is_given else None for field, is_given in zip(acl_fields(acl), given, strict=True))
            table.setdefault(fields, []).append(acl)
        return table


_REBALANCE_GOALS: Final = range(3)
_REBALANCE_COMPLETED: Final = 3


class ClusterHandlers:
    """Answers for a cluster of one server. Rebalancing it is always done at once: there is nothing to move."""

    def __init__(
        self,
        bucket_host: BucketHost,
        auto_partitioner: AutoPartitioner,
        configs: DynamicConfigs,
        tags: ServerTags,
        authorizer: Authorizer,
        rng: random.Random,
    ) -> None:
        self._bucket_host = bucket_host
        self._auto_partitioner = auto_partitioner
        self._configs = configs
        self._tags = tags
        self._authorizer = authorizer
        self._rng = rng
        self._last_rebalance_id: str | None = None

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.GET_CLUSTER_HEALTH: self._health,
            ApiKey.DESCRIBE_CLUSTER_CONFIGS: self._describe_configs,
            ApiKey.REBALANCE: self._rebalance,
            ApiKey.LIST_REBALANCE_PROGRESS: self._rebalance_progress,
            ApiKey.CANCEL_REBALANCE: self._cancel_rebalance,
        }

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {
            ApiKey.ALTER_CLUSTER_CONFIGS: self._alter_configs,
            ApiKey.ADD_SERVER_TAG: self._add_tag,
            ApiKey.REMOVE_SERVER_TAG: self._remove_tag,
        }

    def _health(self, context: RequestContext, request: pb.GetClusterHealthRequest) -> pb.GetClusterHealthResponse:
        self._authorizer.check(context, Operation.DESCRIBE, CLUSTER)
        health = self._bucket_host.health()
        return pb.GetClusterHealthResponse(
            num_replicas=health.bucket_count,
            in_sync_replicas=health.active_count,
            num_leader_replicas=health.bucket_count,
            active_leader_replicas=health.active_count,
            status=self._status(health),
        )

    def _status(self, health: BucketHealth) -> HealthStatus:
        if health.active_count < health.bucket_count or health.is_fenced:
            return HealthStatus.RED
        # Everything works, but partitions that a table should have by now are missing, and writers will look for them.
        # Or the last backup is older than it should be.
        return HealthStatus.YELLOW if self._auto_partitioner.crowded_count or health.problem else HealthStatus.GREEN

    # Configuration

    def _describe_configs(
        self, context: RequestContext, request: pb.DescribeClusterConfigsRequest
    ) -> pb.DescribeClusterConfigsResponse:
        self._authorizer.check(context, Operation.DESCRIBE, CLUSTER)
        return pb.DescribeClusterConfigsResponse(configs=map(pb_config_entry, self._configs.describe()))

    async def _alter_configs(
        self, context: RequestContext, request: pb.AlterClusterConfigsRequest
    ) -> pb.AlterClusterConfigsResponse:
        self._authorizer.check(context, Operation.ALTER, CLUSTER)
        await self._configs.alter(config_changes(request.alter_configs, invalid=ErrorCode.CONFIG_EXCEPTION))
        return pb.AlterClusterConfigsResponse()

    # Tags

    async def _add_tag(self, context: RequestContext, request: pb.AddServerTagRequest) -> pb.AddServerTagResponse:
        self._authorizer.check(context, Operation.ALTER, CLUSTER)
        await self._tags.add(request.server_ids, server_tag(request.server_tag))
        return pb.AddServerTagResponse()

    async def _remove_tag(
        self, context: RequestContext, request: pb.RemoveServerTagRequest
    ) -> pb.RemoveServerTagResponse:
        self._authorizer.check(context, Operation.ALTER, CLUSTER)
        await self._tags.remove(request.server_ids, server_tag(request.server_tag))
        return pb.RemoveServerTagResponse()

    # Moving buckets

    def _rebalance(self, context: RequestContext, request: pb.RebalanceRequest) -> pb.RebalanceResponse:
        self._authorizer.check(context, Operation.WRITE, CLUSTER)
        unknown = [goal for goal in request.goals if goal not in _REBALANCE_GOALS]
        if unknown:
            raise FlussError(
                f"{unknown[0]} is no goal of a rebalance; known are 0 replica distribution, 1 leader distribution and "
                "2 rack awareness",
                ErrorCode.REBALANCE_FAILURE_EXCEPTION,
            )
        self._last_rebalance_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        return pb.RebalanceResponse(rebalance_id=self._last_rebalance_id)

    def _rebalance_progress(
        self, context: RequestContext, request: pb.ListRebalanceProgressRequest
    ) -> pb.ListRebalanceProgressResponse:
        self._authorizer.check(context, Operation.DESCRIBE, CLUSTER)
        wanted = request.rebalance_id if request.HasField("rebalance_id") else self._last_rebalance_id
        if wanted is None or wanted != self._last_rebalance_id:
            raise _no_rebalance()
        return pb.ListRebalanceProgressResponse(rebalance_id=wanted, rebalance_status=_REBALANCE_COMPLETED)

    def _cancel_rebalance(
        self, context: RequestContext, request: pb.CancelRebalanceRequest
    ) -> pb.CancelRebalanceResponse:
        self._authorizer.check(context, Operation.WRITE, CLUSTER)
        raise _no_rebalance()


def _no_rebalance() -> FlussError:
    return FlussError(
        "No rebalance is in progress: with one server there is nothing to move",
        ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION,
    )
