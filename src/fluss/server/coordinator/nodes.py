"""The servers of the cluster: the addresses by which clients reach them, and the tags of those that will leave."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.cluster_info import ServerTag
from fluss.server.coordinator.metadata.metadata_store import MetadataStore

# Clients tell coordinators and tablet servers apart by their role, not by their number.
COORDINATOR_ID: Final = 0


class Nodes:
    """One process that is coordinator and tablet server. A client is told the address of the listener it came by."""

    def __init__(self, tablet_server_id: int = 0, rack: str | None = None) -> None:
        self.tablet_server_id = tablet_server_id
        self.rack = rack
        self._addresses: dict[str, tuple[str, int]] = {}

    def set_listener(self, name: str, host: str, port: int) -> None:
        """Say by which address clients of a listener reach this server."""
        self._addresses[name] = (host, port)

    def address(self, listener_name: str) -> tuple[str, int] | None:
        """Return host and port for clients of a listener; None if the server has no such listener."""
        return self._addresses.get(listener_name)


class ServerTags:
    """Keeps the tags. A request is carried out for all servers it names, or for none."""

    def __init__(self, store: MetadataStore, server_ids: Collection[int], tags: Mapping[int, ServerTag]) -> None:
        self._store = store
        self._server_ids = frozenset(server_ids)
        self._tags = dict(tags)
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: MetadataStore, server_ids: Collection[int]) -> ServerTags:
        return cls(store, server_ids, await store.load_server_tags())

    @property
    def assignable_count(self) -> int:
        """How many servers may get new buckets."""
        return sum(self._tags.get(server_id) is not ServerTag.PERMANENT_OFFLINE for server_id in self._server_ids)

    async def add(self, server_ids: Collection[int], tag: ServerTag) -> None:
        """Tag servers. Raises 58 for one that does not exist and 59 for one that has another tag."""
        async with self._lock:
            self._check_servers(server_ids)
            for server_id in server_ids:
                present = self._tags.get(server_id, tag)
                if present is not tag:
                    raise FlussError(
                        f"Server {server_id} already has the tag {present.name}; remove it before adding {tag.name}",
                        ErrorCode.SEVER_TAG_ALREADY_EXIST_EXCEPTION,
                    )
            await self._replace({**self._tags, **dict.fromkeys(server_ids, tag)})

    async def remove(self, server_ids: Collection[int], tag: ServerTag) -> None:
        """Take a tag off servers. Raises 58 for one that does not exist and 60 for one that has not this tag."""
        async with self._lock:
            self._check_servers(server_ids)
            for server_id in server_ids:
                if self._tags.get(server_id) is not tag:
                    raise FlussError(
                        f"Server {server_id} does not have the tag {tag.name}", ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION
                    )
            await self._replace({key: value for key, value in self._tags.items() if key not in set(server_ids)})

    def _check_servers(self, server_ids: Collection[int]) -> None:
        for server_id in server_ids:
            if server_id not in self._server_ids:
                raise FlussError(
                    f"Server {server_id} does not exist; the servers are {sorted(self._server_ids)}",
                    ErrorCode.SERVER_NOT_EXIST_EXCEPTION,
                )

    async def _replace(self, tags: dict[int, ServerTag]) -> None:
        await self._store.replace_server_tags(tags)
        self._tags = tags
