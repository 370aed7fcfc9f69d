"""Requests about the cluster itself: health, configuration, tags of servers, moving buckets between servers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import config_changes, pb_config_entry, server_tag
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import HealthStatus
from fluss.server.authorizer import CLUSTER, Authorizer, Operation
from fluss.server.coordinator.auto_partitioner import AutoPartitioner
from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.coordinator.nodes import ServerTags
from fluss.server.model import BucketHealth, BucketHost
from fluss.server.rpc.handler_group import ChangeHandler

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
