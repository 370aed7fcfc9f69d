"""The servers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fluss.schema.server_made import ServerMade


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
