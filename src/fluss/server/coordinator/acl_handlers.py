"""Requests about access control entries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclOperation,
    AclResource,
    AclResourceType,
    split_principal,
)
from fluss.server.authorizer import Authorizer, parent_of
from fluss.server.coordinator.handler_support import ChangeHandler
from fluss.server.coordinator.metadata_store import MetadataStore

_ANY_PERMISSION: Final = 1
_ALLOW: Final = 2


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
        shown = [
            _message(acl)
            for acl in self._authorizer.acls()
            if _matches(request.acl_filter, acl)
            and self._authorizer.allows(context, AclOperation.DESCRIBE, acl.resource)
        ]
        return pb.ListAclsResponse(acl=shown)

    async def _create(self, context: RequestContext, request: pb.CreateAclsRequest) -> pb.CreateAclsResponse:
        """Add what is valid. An entry that is not gets an error of its own; missing rights refuse the request."""
        self._check_enabled()
        async with self._lock:
            response = pb.CreateAclsResponse()
            acls = []
            for message in request.acl:
                result = response.aclRes.add(acl=message)
                try:
                    acls.append(_read(message))
                except FlussError as error:
                    result.error_code, result.error_message = error.error_code, error.message
            self._check_may_change(context, acls)
            if acls:
                await self._store.add_acls(acls)
                self._authorizer.add(acls)
            return response

    async def _drop(self, context: RequestContext, request: pb.DropAclsRequest) -> pb.DropAclsResponse:
        """Remove what matches. An entry that matches several filters belongs to the first one."""
        self._check_enabled()
        async with self._lock:
            dropped: dict[AclBinding, None] = {}
            response = pb.DropAclsResponse()
            for acl_filter in request.acl_filter:
                matching = [acl for acl in self._authorizer.acls() if acl not in dropped and _matches(acl_filter, acl)]
                dropped.update(dict.fromkeys(matching))
                response.filter_results.add(
                    matching_acls=[pb.PbDropAclsMatchingAcl(acl=_message(acl)) for acl in matching]
                )
            self._check_may_change(context, dropped)
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
        """Whoever may do everything with a resource may pass that on; for tables, with their database."""
        for resource in dict.fromkeys(acl.resource for acl in acls):
            owner = parent_of(resource) if resource.resource_type is AclResourceType.TABLE else resource
            assert owner is not None, "every table has a database"
            self._authorizer.check(context, AclOperation.ALL, owner)


def _read(message: pb.PbAclInfo) -> AclBinding:
    """Read an entry. It must say exactly what it allows: only filters may be vague."""
    try:
        resource_type, operation = AclResourceType(message.resource_type), AclOperation(message.operation_type)
    except ValueError as error:
        raise _invalid(str(error)) from None
    if resource_type is AclResourceType.ANY or operation is AclOperation.ANY or message.permission_type != _ALLOW:
        raise _invalid("it must name the resource type and the operation, and allow it; ANY is for filters")
    if not message.resource_name or not message.host:
        raise _invalid(f"resource and host must not be empty; '{WILDCARD}' stands for all of them")
    if resource_type is AclResourceType.CLUSTER and message.resource_name not in (CLUSTER_NAME, WILDCARD):
        raise _invalid(f"the name of the cluster is '{CLUSTER_NAME}', not '{message.resource_name}'")
    if ":" in message.principal_type:
        raise _invalid("the type of a principal must not contain ':'")
    try:
        principal = f"{message.principal_type}:{message.principal_name}"
        return AclBinding(AclResource(resource_type, message.resource_name), principal, operation, message.host)
    except FlussError as error:
        raise _invalid(error.message) from None


def _invalid(problem: str) -> FlussError:
    return FlussError(f"The ACL is invalid: {problem}", ErrorCode.UNKNOWN_SERVER_ERROR)


def _message(acl: AclBinding) -> pb.PbAclInfo:
    principal_type, principal_name = split_principal(acl.principal)
    return pb.PbAclInfo(
        resource_name=acl.resource.name,
        resource_type=acl.resource.resource_type,
        principal_name=principal_name,
        principal_type=principal_type,
        host=acl.host,
        operation_type=acl.operation,
        permission_type=_ALLOW,
    )


def _matches(acl_filter: pb.PbAclFilter, acl: AclBinding) -> bool:
    """Whether an entry is one that a filter describes; what the filter leaves out may be anything."""
    has_principal = acl_filter.HasField("principal_name") and acl_filter.HasField("principal_type")
    return (
        acl_filter.resource_type in (AclResourceType.ANY, acl.resource.resource_type)
        and acl_filter.operation_type in (AclOperation.ANY, acl.operation)
        and acl_filter.permission_type in (_ANY_PERMISSION, _ALLOW)
        and (not acl_filter.HasField("resource_name") or acl_filter.resource_name == acl.resource.name)
        and (not acl_filter.HasField("host") or acl_filter.host == acl.host)
        and (not has_principal or f"{acl_filter.principal_type}:{acl_filter.principal_name}" == acl.principal)
    )
