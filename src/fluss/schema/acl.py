"""Access control entries: who may do what with which resource.

A principal is written as type and name: ``User:alice``. ``*:*`` is every user. Resources are nested: what is allowed on
the cluster is allowed on its databases, and what is allowed on a database on its tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from fluss.errors import FlussError
from fluss.schema.table import TablePath

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "fluss-cluster"
_PRINCIPAL_SEPARATOR: Final = ":"


class AclResourceType(IntEnum):
    """What an entry is about, by its number on the wire. ANY is for filters only."""

    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class AclOperation(IntEnum):
    """What a principal may do, by its number on the wire. ANY is for filters only, ALL stands for the rest.

    READ, WRITE, CREATE, DROP and ALTER include DESCRIBE.
    """

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


@dataclass(frozen=True, slots=True)
class AclResource:
    """Something that is protected. The name ``*`` stands for all resources of the type."""

    resource_type: AclResourceType
    name: str

    @classmethod
    def cluster(cls) -> AclResource:
        """Everything."""
        return cls(AclResourceType.CLUSTER, CLUSTER_NAME)

    @classmethod
    def database(cls, database_name: str) -> AclResource:
        """A database with its tables."""
        return cls(AclResourceType.DATABASE, database_name)

    @classmethod
    def table(cls, table_path: TablePath) -> AclResource:
        """One table."""
        return cls(AclResourceType.TABLE, str(table_path))


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One entry: a principal may do one kind of operation on a resource, from one host address or from any."""

    resource: AclResource
    principal: str
    operation: AclOperation
    host: str = WILDCARD

    def __post_init__(self) -> None:
        split_principal(self.principal)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Matches entries by whatever is given; the default matches all of them."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    host: str | None = None

    def __post_init__(self) -> None:
        if self.principal is not None:
            split_principal(self.principal)

    @classmethod
    def on(cls, resource: AclResource) -> AclFilter:
        """Match all entries of one resource."""
        return cls(resource.resource_type, resource.name)


def split_principal(principal: str) -> tuple[str, str]:
    """Return type and name of a principal."""
    if not isinstance(principal, str):
        raise TypeError(f"a principal must be str, got {type(principal).__name__}")
    principal_type, separator, name = principal.partition(_PRINCIPAL_SEPARATOR)
    if not separator or not principal_type or not name:
        raise FlussError(f"Invalid principal '{principal}': expected type and name, such as 'User:alice'")
    return principal_type, name
