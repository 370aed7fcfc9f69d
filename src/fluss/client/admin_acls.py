"""Access control: the part of the admin that grants and takes away rights."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.admin_calls import AdminCalls, checked
from fluss.protocol import api as apis
from fluss.protocol import convert
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclFilter


class AclAdmin(AdminCalls):
    """Operations on access control entries. Code 47 if the cluster has no access control, 48 without the right."""

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add entries. When some are refused, the first reason is raised, and the others have been added."""
        request = pb.CreateAclsRequest(acl=[convert.pb_acl(checked("an ACL", acl, AclBinding)) for acl in acls])
        response = await self._ask(apis.CREATE_ACLS, request)
        for result in response.aclRes:
            convert.raise_failure(result)

    async def list_acls(self, acl_filter: AclFilter | None = None) -> list[AclBinding]:
        """List the entries that match, all of them by default."""
        acl_filter = AclFilter() if acl_filter is None else checked("acl_filter", acl_filter, AclFilter)
        response = await self._ask(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=convert.pb_acl_filter(acl_filter)))
        return [convert.acl(message) for message in response.acl]

    async def drop_acls(self, acl_filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Remove the entries that match any of the filters, and return them; the first failure is raised."""
        filters = [convert.pb_acl_filter(checked("an ACL filter", acl_filter, AclFilter)) for acl_filter in acl_filters]
        response = await self._ask(apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=filters))
        dropped = []
        for result in response.filter_results:
            convert.raise_failure(result)
            for match in result.matching_acls:
                convert.raise_failure(match)
                dropped.append(convert.acl(match.acl))
        return dropped
