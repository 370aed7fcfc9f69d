"""Where the logs of dropped partitions ended: what a reader asks who was in the middle of one when it was dropped.

A stream that comes back and finds a partition gone has to know whether it had read everything in it. It is told for 30
days, as long as the table exists, and of the 65,536 partitions at most that were dropped last. After that, or if the
server crashed in the instant of the drop, the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

KEPT_MS: Final = 30 * 24 * 60 * 60 * 1000
KEPT_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class PartitionDrop:
    """A partition that is gone. ``log_ends`` are the next offsets its buckets would have had, by number.

    An end is -1 where it is not known; all of them are unknown in an empty tuple.
    """

    partition_id: int
    table_id: int
    name: str
    dropped_ms: int
    log_ends: tuple[int, ...] = ()


class DroppedPartitions:
    """What is known of dropped partitions, in memory, the oldest drops first. Belongs to one event loop."""

    def __init__(self) -> None:
        self._by_id: dict[int, PartitionDrop] = {}
        self._ids_by_table: dict[int, dict[int, None]] = {}

    def put(self, dropped: Iterable[PartitionDrop]) -> None:
        for partition in dropped:
            self._by_id.pop(partition.partition_id, None)
            self._by_id[partition.partition_id] = partition
            self._ids_by_table.setdefault(partition.table_id, {})[partition.partition_id] = None

    def of_table(self, table_id: int, first_id: int) -> list[PartitionDrop]:
        """Return those of a table whose ids are ``first_id`` or greater."""
        return [self._by_id[id_] for id_ in self._ids_by_table.get(table_id, ()) if id_ >= first_id]

    def take_old(self, now_ms: int) -> list[int]:
        """Forget those that are not kept any longer, and return their ids."""
        surplus = len(self._by_id) - KEPT_MAX
        old: list[PartitionDrop] = []
        for partition in self._by_id.values():
            if len(old) >= surplus and partition.dropped_ms >= now_ms - KEPT_MS:
                break
            old.append(partition)
        self._forget(old)
        return [partition.partition_id for partition in old]

    def forget_table(self, table_id: int) -> None:
        self._forget([self._by_id[id_] for id_ in self._ids_by_table.get(table_id, ())])

    def _forget(self, partitions: Collection[PartitionDrop]) -> None:
        for partition in partitions:
            del self._by_id[partition.partition_id]
            ids = self._ids_by_table[partition.table_id]
            del ids[partition.partition_id]
            if not ids:
                del self._ids_by_table[partition.table_id]
