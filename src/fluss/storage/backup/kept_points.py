"""The newest backup points, which are kept, and the removal of what only older ones have named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fluss.storage.backup.points import INDEXES, METADATA, TAILS, BackupPoint
from fluss.storage.remote.store import RemoteStore


class _KeptPoint(NamedTuple):
    path: str
    objects: frozenset[str]
    # Counts those of this process; 0 for a point that an earlier one has made, of which the objects are not known.
    number: int
    began_ms: int


class KeptPoints:
    """Which points there are. Belongs to one thread; ``remove`` blocks and is for another one."""

    def __init__(self, count_max: int, paths: Sequence[str] = ()) -> None:
        """``paths`` are those of the points that are there, oldest first."""
        self._count_max = count_max
        self._kept = [_KeptPoint(path, frozenset(), 0, 0) for path in paths]
        self._garbage: list[str] = []
        # Whether it was looked for objects that earlier processes have left.
        self._is_swept = False

    @property
    def oldest_number(self) -> int:
        return self._kept[0].number if self._kept else 0

    @property
    def oldest_ms(self) -> int:
        """When the oldest one was begun; 0 if an earlier process has made it."""
        return self._kept[0].began_ms if self._kept else 0

    def add(self, point: BackupPoint, objects: Collection[str], number: int) -> None:
        """Take a new point, which names these objects; older ones are no longer kept if there are too many."""
        self._kept.append(_KeptPoint(point.path, frozenset(objects), number, point.time_ms))
        excess, self._kept = self._kept[: -self._count_max], self._kept[-self._count_max :]
        needed = self._needed()
        for dropped in excess:
            self._garbage.append(dropped.path)
            self._garbage += dropped.objects - needed

    def _needed(self) -> frozenset[str]:
        return frozenset[str]().union(*(kept.objects for kept in self._kept))

    @property
    def is_removal_due(self) -> bool:
        return bool(self._garbage) or (not self._is_swept and self.oldest_number > 0)

    def remove(self, store: RemoteStore, check: Callable[[], None]) -> None:
        """Remove what no point names any more. ``check`` raises if the directory belongs to another server by now.

        What cannot be removed is tried again the next time.
        """
        if not self._is_swept and self.oldest_number > 0:
            # All points are of this process, so that it is known what they name.
            names = [f"{place}/{name}" for place in (TAILS, INDEXES, METADATA) for name in store.names(place)]
            needed = self._needed()
            self._garbage += [path for path in names if path not in needed]
            self._is_swept = True
        check()
        while self._garbage:
            store.remove(self._garbage[-1])
            self._garbage.pop()
