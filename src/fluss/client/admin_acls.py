"""Access control: the part of the admin that grants and takes away rights."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.admin_calls import AdminCalls, checked
from fluss.errors import CorruptMessageError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclFilter, AclOperation, AclResource, AclResourceType, split_principal

# Entries allow; there is nothing that forbids.
_PERMISSION_ANY, _PERMISSION_ALLOW = 1, 2


class AclAdmin(AdminCalls):
    """Operations on access control entries. Code 47 if the cluster has no access control, 48 without the right."""

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add entries. When some are refused, the first reason is raised, and the others have been added."""
        request = pb.CreateAclsRequest(acl=[_pb_acl(checked("an ACL", acl, AclBinding)) for acl in acls])
        response = await self._ask(apis.CREATE_ACLS, request)
        for result in response.aclRes:
            if result.HasField("error_code"):
                raise error_for_code(result.error_code, result.error_message)

    async def list_acls(self, acl_filter: AclFilter | None = None) -> list[AclBinding]:
        """List the entries that match, all of them by default."""
        acl_filter = AclFilter() if acl_filter is None else checked("acl_filter", acl_filter, AclFilter)
        response = await self._ask(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=_pb_filter(acl_filter)))
        return [_acl(message) for message in response.acl]

    async def drop_acls(self, acl_filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Remove the entries that match any of the filters, and return them; the first failure is raised."""
        filters = [_pb_filter(checked("an ACL filter", acl_filter, AclFilter)) for acl_filter in acl_filters]
        response = await self._ask(apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=filters))
        dropped = []
        for result in response.filter_results:
            if result.HasField("error_code"):
                raise error_for_code(result.error_code, result.error_message)
            for match in result.matching_acls:
                if match.HasField("error_code"):
                    raise error_for_code(match.error_code, match.error_message)
                dropped.append(_acl(match.acl))
        return dropped


def _pb_acl(acl: AclBinding) -> pb.PbAclInfo:
    principal_type, principal_name = split_principal(acl.principal)
    return pb.PbAclInfo(
        resource_name=acl.resource.name,
        resource_type=acl.resource.resource_type,
        principal_name=principal_name,
        principal_type=principal_type,
        host=acl.host,
        operation_type=acl.operation,
        permission_type=_PERMISSION_ALLOW,
    )


def _pb_filter(acl_filter: AclFilter) -> pb.PbAclFilter:
    message = pb.PbAclFilter(
        resource_name=acl_filter.resource_name,
        resource_type=acl_filter.resource_type,
        host=acl_filter.host,
        operation_type=acl_filter.operation,
        permission_type=_PERMISSION_ANY,
    )
    if acl_filter.principal is not None:
        message.principal_type, message.principal_name = split_principal(acl_filter.principal)
    return message


def _acl(message: pb.PbAclInfo) -> AclBinding:
    try:
        resource_type, operation = AclResourceType(message.resource_type), AclOperation(message.operation_type)
    except ValueError as error:
        raise CorruptMessageError(f"the server has an ACL that this version does not know: {error}") from None
    resource = AclResource(resource_type, message.resource_name)
    return AclBinding(resource, f"{message.principal_type}:{message.principal_name}", operation, message.host)
