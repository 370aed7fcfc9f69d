"""The cluster itself: the part of the admin that looks after its servers, their options and the rights of users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.client.admin.base import AdminCalls, checked
from fluss.errors import FlussError
from fluss.integers import int32
from fluss.protocol import api as apis
from fluss.protocol.convert import (
    acl,
    cluster_health,
    config_entry,
    pb_acl,
    pb_acl_filter,
    pb_config_changes,
    raise_failure,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclFilter
from fluss.schema.cluster_info import ClusterConfigEntry, ClusterHealth, ServerNode, ServerTag


class ClusterAdmin(AdminCalls):
    """Operations on servers, their options, and access control.

    Those on access control entries raise code 47 if the cluster has none, 48 without the right.
    """

    async def get_server_nodes(self) -> list[ServerNode]:
        """List the living servers, the coordinator first. They are looked up anew from the bootstrap servers."""
        return await self._run(self._server_nodes())

    async def _server_nodes(self) -> list[ServerNode]:
        await self._cluster.rebootstrap()
        coordinator = self._cluster.coordinator
        tablet_servers = sorted(self._cluster.tablet_servers, key=lambda node: node.id)
        return tablet_servers if coordinator is None else [coordinator, *tablet_servers]

    async def get_cluster_health(self) -> ClusterHealth:
        """Say whether all replicas are there."""
        return cluster_health(await self._ask(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest()))

    async def describe_cluster_configs(self) -> list[ClusterConfigEntry]:
        """List the options that the servers were started with or have been given since; secrets are masked."""
        response = await self._ask(apis.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest())
        return [config_entry(message) for message in response.configs]

    async def alter_cluster_configs(
        self,
        *,
        set_configs: Mapping[str, str] | None = None,
        reset_configs: Iterable[str] | None = None,
        append_configs: Mapping[str, str] | None = None,
        subtract_configs: Mapping[str, str] | None = None,
    ) -> None:
        """Change options of running servers, all or none; code 64 if one cannot be changed or has a bad value.

        ``append_configs`` and ``subtract_configs`` add to and take from options that are lists.
        """
        changes = pb_config_changes(set_configs, reset_configs, append_configs, subtract_configs)
        await self._ask(apis.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(alter_configs=changes))

    async def add_server_tag(self, server_ids: Iterable[int], server_tag: ServerTag) -> None:
        """Mark tablet servers, all or none; code 58 for an unknown server, 59 if one has another tag."""
        ids, tag = _checked_ids(server_ids), _checked_tag(server_tag)
        await self._ask(apis.ADD_SERVER_TAG, pb.AddServerTagRequest(server_ids=ids, server_tag=tag))

    async def remove_server_tag(self, server_ids: Iterable[int], server_tag: ServerTag) -> None:
        """Take marks from tablet servers, all or none; code 58 for an unknown server, 60 if one has no such tag."""
        ids, tag = _checked_ids(server_ids), _checked_tag(server_tag)
        await self._ask(apis.REMOVE_SERVER_TAG, pb.RemoveServerTagRequest(server_ids=ids, server_tag=tag))

    # Access control

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add entries. When some are refused, the first reason is raised, and the others have been added."""
        request = pb.CreateAclsRequest(acl=[pb_acl(checked("an ACL", binding, AclBinding)) for binding in acls])
        response = await self._ask(apis.CREATE_ACLS, request)
        for result in response.aclRes:
            raise_failure(result)

    async def list_acls(self, acl_filter: AclFilter | None = None) -> list[AclBinding]:
        """List the entries that match, all of them by default."""
        acl_filter = AclFilter() if acl_filter is None else checked("acl_filter", acl_filter, AclFilter)
        response = await self._ask(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=pb_acl_filter(acl_filter)))
        return [acl(message) for message in response.acl]

    async def drop_acls(self, acl_filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Remove the entries that match any of the filters, and return them; the first failure is raised."""
        filters = [pb_acl_filter(checked("an ACL filter", acl_filter, AclFilter)) for acl_filter in acl_filters]
        response = await self._ask(apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=filters))
        dropped = []
        for result in response.filter_results:
            raise_failure(result)
            for match in result.matching_acls:
                raise_failure(match)
                dropped.append(acl(match.acl))
        return dropped


def _checked_ids(server_ids: Iterable[int]) -> list[int]:
    return [int32("a server id", server_id) for server_id in server_ids]


def _checked_tag(server_tag: ServerTag) -> ServerTag:
    try:
        return ServerTag(server_tag)
    except ValueError:
        raise FlussError(f"Unknown server tag: {server_tag!r}; known are {', '.join(ServerTag.__members__)}") from None
