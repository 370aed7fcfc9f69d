"""Requests about access control entries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import acl_matches, new_acl, pb_acl, set_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclOperation, AclResourceType
from fluss.server.authorizer import Authorizer, parent_of
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
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
        return pb.ListAclsResponse(acl=map(pb_acl, self._matching(context, request.acl_filter)))

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
            dropped: dict[AclBinding, None] = {}
            response = pb.DropAclsResponse()
            for acl_filter in request.acl_filter:
                matching = [acl for acl in self._matching(context, acl_filter) if acl not in dropped]
                dropped.update(dict.fromkeys(matching))
                response.filter_results.add(
                    matching_acls=[pb.PbDropAclsMatchingAcl(acl=pb_acl(acl)) for acl in matching]
                )
            self._check_may_change(context, dropped)
            if dropped:
                await self._store.remove_acls(dropped)
                self._authorizer.remove(dropped)
            return response

    def _matching(self, context: RequestContext, acl_filter: pb.PbAclFilter) -> Iterator[AclBinding]:
        """Yield the entries that a filter matches, as far as they are about something that the sender may see."""
        for acl in self._authorizer.acls():
            if acl_matches(acl_filter, acl) and self._authorizer.allows(context, AclOperation.DESCRIBE, acl.resource):
                yield acl

    def _check_enabled(self) -> None:
        if not self._authorizer.is_enabled:
            raise FlussError(
                "No authorizer is configured, so there are no ACLs; set 'authorizer.enabled' on the server",
                ErrorCode.SECURITY_DISABLED_EXCEPTION,
            )

    def _check_may_change(self, context: RequestContext, acls: Iterable[AclBinding]) -> None:
        """Refuse senders who may not do everything with the resources; for tables, with their database."""
        for resource in dict.fromkeys(acl.resource for acl in acls):
            owner = parent_of(resource) if resource.resource_type is AclResourceType.TABLE else resource
            assert owner is not None, "every table has a database"
            self._authorizer.check(context, AclOperation.ALL, owner)
