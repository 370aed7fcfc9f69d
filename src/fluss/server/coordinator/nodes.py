"""The servers of the cluster and the addresses by which clients reach them."""

from __future__ import annotations

from typing import Final

from fluss.protocol.messages import fluss_pb2 as pb

# Clients tell coordinators and tablet servers apart by their role, not by their number.
COORDINATOR_ID: Final = 0


class Nodes:
    """One process that is coordinator and tablet server. A client is told the address of the listener it came by."""

    def __init__(self, tablet_server_id: int = 0, rack: str | None = None) -> None:
        self._tablet_server_id = tablet_server_id
        self._rack = rack
        self._addresses: dict[str, tuple[str, int]] = {}

    @property
    def tablet_server_id(self) -> int:
        return self._tablet_server_id

    def set_listener(self, name: str, host: str, port: int) -> None:
        """Say by which address clients of a listener reach this server."""
        self._addresses[name] = (host, port)

    def coordinator(self, listener_name: str) -> pb.PbServerNode | None:
        """Return the coordinator as clients of a listener see it; None if it has no such listener."""
        address = self._addresses.get(listener_name)
        return None if address is None else pb.PbServerNode(node_id=COORDINATOR_ID, host=address[0], port=address[1])

    def tablet_servers(self, listener_name: str) -> list[pb.PbServerNode]:
        """Return all tablet servers that have a listener."""
        address = self._addresses.get(listener_name)
        if address is None:
            return []
        node = pb.PbServerNode(node_id=self._tablet_server_id, host=address[0], port=address[1])
        if self._rack:
            node.rack = self._rack
        return [node]
