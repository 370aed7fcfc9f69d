"""Who may do what: access control entries, and the check that every request goes through.

An entry allows one principal, from one host, one operation on one resource. Resources are nested: what is allowed on
the cluster is allowed on every database, and what is allowed on a database on each of its tables. ``ALL`` allows every
operation; ``READ``, ``WRITE``, ``CREATE``, ``DROP`` and ``ALTER`` include ``DESCRIBE``. What no entry allows is denied.

Super users are never asked. Neither are requests that arrive on the listener for the cluster's own traffic; but lists
of databases and tables are filtered there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.protocol.sasl import Principal
from fluss.schema.acl import WILDCARD, AclBinding, AclOperation, AclResource, AclResourceType

# Short names: handlers write these all the time.
Operation = AclOperation
Resource = AclResource

# Entries by what they are about, in the order in which they were added.
_Entries: TypeAlias = dict[AclResource, dict[AclBinding, None]]

CLUSTER: Final = AclResource.cluster()
_ANY_PRINCIPAL: Final = f"{WILDCARD}:{WILDCARD}"
_IMPLY_DESCRIBE: Final = frozenset(
    {Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DROP, Operation.ALTER, Operation.DESCRIBE}
)
# Operation -> the operations of entries that allow it.
_GRANTED_BY: Final = {
    operation: frozenset({Operation.ALL, operation})
    | (_IMPLY_DESCRIBE if operation is Operation.DESCRIBE else frozenset())
    for operation in Operation
}


def parent_of(resource: AclResource) -> AclResource | None:
    """Return the resource whose entries count for this one, too."""
    if resource.resource_type is AclResourceType.TABLE:
        return AclResource.database(resource.name.partition(".")[0])
    return CLUSTER if resource.resource_type is AclResourceType.DATABASE else None


def parse_super_users(text: str) -> frozenset[Principal]:
    """Read ``User:alice;User:bob``; anything else is a FlussError with code 39."""
    users = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        principal_type, separator, name = part.partition(":")
        if not separator or not principal_type.strip() or not name.strip():
            raise FlussError(
                f"Invalid super user '{part}': expected type and name, such as 'User:admin', separated by ';'",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        users.add(Principal(principal_type.strip(), name.strip()))
    return frozenset(users)


def super_user_names(super_users: Collection[Principal], *, ignore_case: bool) -> Callable[[str], bool]:
    """Return a function that says whether the user of a name is a super user."""
    names = {user.name.lower() if ignore_case else user.name for user in super_users if user.principal_type == "User"}
    return lambda name: (name.lower() if ignore_case else name) in names


def host_of(peer_address: str) -> str:
    """Return the address without the port, as entries name it."""
    return peer_address.rpartition(":")[0] or peer_address


class Authorizer:
    """Decides from the entries in memory; the ACL handlers keep them up to date. Belongs to the event loop.

    A check looks at nothing but the entries for its sender: how many others there are makes no difference.
    """

    def __init__(
        self,
        *,
        super_users: Collection[Principal] = (),
        internal_listener_name: str | None = None,
        ignore_case: bool = False,
        is_enabled: bool = True,
    ) -> None:
        self._ignore_case = ignore_case
        self._super_users = frozenset(self._folded(str(user)) for user in super_users)
        self._internal_listener_name = internal_listener_name
        self._is_enabled = is_enabled
        self._acls: _Entries = {}
        # The same entries, by their principal and host.
        self._granted: dict[tuple[str, str], _Entries] = {}

    @classmethod
    def disabled(cls) -> Authorizer:
        """Return one that allows everything to every user."""
        return cls(is_enabled=False)

    @property
    def is_enabled(self) -> bool:
        return self._is_enabled

    def allows(self, context: RequestContext, operation: AclOperation, resource: AclResource) -> bool:
        """Whether the sender of a request may do something."""
        return context.listener_name == self._internal_listener_name or self.shows(context, operation, resource)

    def shows(self, context: RequestContext, operation: AclOperation, resource: AclResource) -> bool:
        """Whether something belongs into a list for the sender; the internal listener is no exception here."""
        if not self._is_enabled:
            return True
        if self._folded(str(context.principal)) in self._super_users:
            return True
        operations = _GRANTED_BY[operation]
        return any(
            acl.operation in operations
            for entries in self._granted_to(context)
            for place in _places_around(resource)
            for acl in entries.get(place, ())
        )

    def allows_anywhere(self, context: RequestContext, operation: AclOperation) -> bool:
        """Whether the sender of a request may do something with anything at all, which need not exist any more."""
        if self.allows(context, operation, CLUSTER):
            return True
        operations = _GRANTED_BY[operation]
        return any(
            acl.operation in operations
            for entries in self._granted_to(context)
            for about in entries.values()
            for acl in about
        )

    def check(self, context: RequestContext, operation: AclOperation, resource: AclResource) -> None:
        """Refuse a request whose sender may not do something (code 48)."""
        if not self.allows(context, operation, resource):
            raise FlussError(
                f"Principal {context.principal} has no authorization for {operation.name} on "
                f"{resource.resource_type.name.lower()} '{resource.name}'; an administrator can grant it with an ACL",
                ErrorCode.AUTHORIZATION_EXCEPTION,
            )

    def finds(self, context: RequestContext, operation: AclOperation, resource: AclResource) -> bool:
        """Whether something that was asked for by its number is there for the sender.

        What the sender may not see is not: its name must not be told, nor that it exists. What may be seen but not be
        used like this is refused (code 48).
        """
        if self.allows(context, operation, resource):
            return True
        if not self.allows(context, AclOperation.DESCRIBE, resource):
            return False
        self.check(context, operation, resource)
        return True

    def shows_all_tables(self, context: RequestContext, database_name: str) -> bool:
        """Whether all tables of a database, those that have no entry of their own too, belong into lists."""
        return self.shows(context, AclOperation.DESCRIBE, AclResource.database(database_name)) or self.shows(
            context, AclOperation.DESCRIBE, AclResource(AclResourceType.TABLE, WILDCARD)
        )

    def tables_with_entries(self, context: RequestContext, database_name: str) -> set[str]:
        """Return the names of those tables of a database that have entries for the sender. They need not exist."""
        prefix = f"{database_name}."
        return {
            resource.name.removeprefix(prefix)
            for entries in self._granted_to(context)
            for resource in entries
            if resource.resource_type is AclResourceType.TABLE and resource.name.startswith(prefix)
        }

    def _folded(self, principal: str) -> str:
        return principal.lower() if self._ignore_case else principal

    def _granted_to(self, context: RequestContext) -> Sequence[_Entries]:
        """Return the entries for the sender of a request: those for everybody are among them."""
        principal, host = self._folded(str(context.principal)), host_of(context.peer_address)
        keys = (principal, host), (principal, WILDCARD), (_ANY_PRINCIPAL, host), (_ANY_PRINCIPAL, WILDCARD)
        return [self._granted[key] for key in keys if key in self._granted]

    # The entries

    def acls(self) -> Iterator[AclBinding]:
        """Yield every entry."""
        for entries in self._acls.values():
            yield from entries

    def visible_acls(self, context: RequestContext) -> Iterator[AclBinding]:
        """Yield the entries that are about something that the sender of a request may see."""
        for resource, entries in self._acls.items():
            if self.allows(context, AclOperation.DESCRIBE, resource):
                yield from entries

    def add(self, acls: Iterable[AclBinding]) -> None:
        """Take entries in; those that are there already change nothing."""
        for acl in acls:
            for entries in (self._acls, self._granted.setdefault(self._grantee(acl), {})):
                entries.setdefault(acl.resource, {})[acl] = None

    def remove(self, acls: Iterable[AclBinding]) -> None:
        """Forget entries; those that are not there change nothing."""
        for acl in acls:
            _forget(self._acls, acl)
            grantee = self._grantee(acl)
            entries = self._granted.get(grantee, {})
            _forget(entries, acl)
            if not entries:
                self._granted.pop(grantee, None)

    def _grantee(self, acl: AclBinding) -> tuple[str, str]:
        return self._folded(acl.principal), acl.host


def _places_around(resource: AclResource) -> Iterator[AclResource]:
    """Yield all the resources whose entries count for one: the resource itself, and what it is in."""
    place: AclResource | None = resource
    while place is not None:
        yield place
        yield AclResource(place.resource_type, WILDCARD)
        place = parent_of(place)


def _forget(entries: _Entries, acl: AclBinding) -> None:
    about = entries.get(acl.resource, {})
    about.pop(acl, None)
    if not about:
        entries.pop(acl.resource, None)
