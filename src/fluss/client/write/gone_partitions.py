"""Partitions that are gone: a writer that runs for months must not keep something of each that it has ever written to.

No server tells a writer that a partition was dropped to which it sends nothing any more. So the coordinator is asked
for all partitions of a table when as many new ones were met as were left the last time, and ``_NEW_MIN`` at least.

A partition that was dropped and created again has the same name and another id, which never comes back. So what is
known by name is forgotten only while nothing is on its way, and can be found out again; numbers of batches, which must
not begin anew, are forgotten by ids that were known before the coordinator was asked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.shared_calls import cancel_all
from fluss.client.kernel.table_calls import partition_infos
from fluss.client.write.blocks import PhysicalTable
from fluss.client.write.sender import Sender
from fluss.errors import FlussError
from fluss.schema.table import TableInfo

# For fewer new partitions of a table than this it is not worth asking.
_NEW_MIN: Final = 64

logger = logging.getLogger(__name__)


class GonePartitions:
    """Has the partitions of a connection's writers forgotten that are gone.

    ``known`` returns what is known about the partitions of a table.
    """

    def __init__(
        self, cluster: Cluster, sender: Callable[[], Sender], known: Callable[[int], Collection[PhysicalTable]]
    ) -> None:
        self._cluster = cluster
        self._sender = sender
        self._known = known
        self._lock = threading.Lock()
        # How many new partitions may come before it is asked which are gone, by table id. Under the lock.
        self._left: dict[int, int] = {}
        # How often something was forgotten.
        self.forgotten_count = 0
        # Belongs to the event loop.
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def is_due(self, table_id: int) -> bool:
        """Count a new partition of a table, in any thread; return whether it is time to ``look``."""
        with self._lock:
            self._left[table_id] = self._left.get(table_id, _NEW_MIN) - 1
            return self._left[table_id] == 0

    def look(self, info: TableInfo) -> None:
        """Ask in the background which partitions of a table are gone, and forget them. On the event loop."""
        if self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._look(info))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop asking."""
        self._is_closed = True
        await cancel_all(list(self._tasks))

    async def _look(self, info: TableInfo) -> None:
        tables = self._known(info.table_id)
        gone: list[PhysicalTable] = []
        try:
            gone = await self._forget(info, tables)
        except FlussError as error:
            logger.debug("which partitions of %s are gone is not known: %s", info.table_path, error.message)
        finally:
            with self._lock:
                self._left[info.table_id] = max(_NEW_MIN, len(tables) - len(gone))

    async def _forget(self, info: TableInfo, tables: Collection[PhysicalTable]) -> list[PhysicalTable]:
        """Forget those of some partitions that are gone, and return them."""
        sender, path = self._sender(), info.table_path
        ids = sender.partition_ids(info.table_id)
        there = await partition_infos(self._cluster, path)
        names = {each.partition_name for each in there}
        gone = [table for table in tables if table.partition_name not in names]
        sender.forget(info.table_id, gone, ids - {each.partition_id for each in there})
        for table in gone:
            table.is_gone = True
            assert table.partition_name is not None, "a partition has a name"
            self._cluster.forget_partition(path, table.partition_name)
        self.forgotten_count += 1
        return gone
