"""The servers of a cluster, how they are, what they are configured to do, and changes of such configurations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.value_objects import ServerMade


class ServerType(StrEnum):
    """The role of a server."""

    COORDINATOR_SERVER = "CoordinatorServer"
    TABLET_SERVER = "TabletServer"
    UNKNOWN = "Unknown"


_UID_PREFIX: Final[dict[str, str]] = {ServerType.COORDINATOR_SERVER: "cs", ServerType.TABLET_SERVER: "ts"}


@dataclass(frozen=True, slots=True, init=False)
class ServerNode(ServerMade):
    """One server and where it listens. ``server_type`` is one of the texts of ``ServerType``."""

    id: int
    host: str
    port: int
    server_type: str

    @classmethod
    def _create(cls, id: int, host: str, port: int, server_type: ServerType) -> ServerNode:
        return cls._with_fields(id=id, host=host, port=port, server_type=server_type.value)

    @property
    def uid(self) -> str:
        """A name that is unique in the cluster; a server of unknown type is named by its address."""
        prefix = _UID_PREFIX.get(self.server_type)
        return f"unknown-{self.host}:{self.port}" if prefix is None else f"{prefix}-{self.id}"


class ServerTag(IntEnum):
    """Marks that keep buckets away from a server, by their number on the wire."""

    PERMANENT_OFFLINE = 0
    TEMPORARY_OFFLINE = 1


class HealthStatus(IntEnum):
    """The state of a cluster in one word, by its number on the wire."""

    GREEN = 0
    YELLOW = 1
    RED = 2
    UNKNOWN = 3

    @classmethod
    def _missing_(cls, value: object) -> HealthStatus:
        """Servers of later generations may know more words."""
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, init=False)
class ClusterHealth(ServerMade):
    """How many replicas should be there and are: green if all are, red if a bucket has no working leader."""

    status: HealthStatus
    num_replicas: int
    in_sync_replicas: int
    num_leader_replicas: int
    active_leader_replicas: int

    @classmethod
    def _create(
        cls,
        status: HealthStatus,
        num_replicas: int,
        in_sync_replicas: int,
        num_leader_replicas: int,
        active_leader_replicas: int,
    ) -> ClusterHealth:
        return cls._with_fields(
            status=status,
            num_replicas=num_replicas,
            in_sync_replicas=in_sync_replicas,
            num_leader_replicas=num_leader_replicas,
            active_leader_replicas=active_leader_replicas,
        )


@dataclass(frozen=True, slots=True, init=False)
class ClusterConfigEntry(ServerMade):
    """An option of the servers: its value, and whether it was set while they were running (``is_dynamic``)."""

    key: str
    value: str | None
    is_dynamic: bool

    @classmethod
    def _create(cls, key: str, value: str | None, is_dynamic: bool) -> ClusterConfigEntry:
        return cls._with_fields(key=key, value=value, is_dynamic=is_dynamic)


class ConfigOp(IntEnum):
    """What is done with the value, by its number on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one key. Only DELETE has no value, which is then empty."""

    key: str
    op: ConfigOp
    value: str


def set_and_deleted(changes: Iterable[ConfigChange]) -> tuple[dict[str, str], set[str]]:
    """Return what is set to which value and what is deleted, the last change of a key counting.

    For places that have single values only: appending and subtracting is not supported there (code -1).
    """
    values: dict[str, str] = {}
    deleted: set[str] = set()
    for change in changes:
        if change.op is ConfigOp.SET:
            values[change.key] = change.value
            deleted.discard(change.key)
        elif change.op is ConfigOp.DELETE:
            values.pop(change.key, None)
            deleted.add(change.key)
        else:
            raise FlussError(
                f"'{change.key}' is no list: it can be set and deleted, not changed by {change.op.name}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
    return values, deleted
