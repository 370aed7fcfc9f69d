"""When objects that nothing names any more may be removed from remote storage: when no backup needs them.

The metadata stop naming an object at some moment. Backups that were made before it still name it, and a server that is
restored from one of them looks for it. So a task with objects to remove takes a mark when they are no longer named, and
removes them when the mark is released: then every backup that is kept was begun after that moment.

Files of this server that are in remote storage, too, stay until a backup names the copies: a server that is restored
from an earlier one removes what that does not name, and here is the only other place.

Without a backup everything is released at once.
"""

from __future__ import annotations

from collections.abc import Callable


class RemovalGate:
    """Counts the backup points of a server. Belongs to the event loop; ``is_released`` may be called from any thread.

    A removal that follows from a listing is safe in this order: list, ``check_owner``, remove what was listed. Objects
    of a server that has taken the directory over cannot be in a list that was made before.
    """

    def __init__(self) -> None:
        # Points that were begun, and the oldest that is kept; None without a backup.
        self._begun = 0
        self._oldest_kept: int | None = None
        self._newest_made = 0
        # The highest mark that was taken.
        self._marked = 0
        # Raises if another server has taken the directory over. Blocking.
        self.check_owner: Callable[[], None] = _nothing
        self._listeners: list[Callable[[], None]] = []

    def mark(self) -> int:
        """Return what ``is_released`` is to be asked with about objects that are not named from now on."""
        if self._oldest_kept is None:
            return 0
        self._marked = self._begun + 1
        return self._marked

    def is_released(self, mark: int) -> bool:
        """Tell whether objects with a mark may be removed."""
        return self._oldest_kept is None or mark <= self._oldest_kept

    def is_named(self, mark: int) -> bool:
        """Tell whether what was named when a mark was taken is named by a backup, too."""
        return self._oldest_kept is None or mark <= self._newest_made

    def on_release(self, listener: Callable[[], None]) -> None:
        """Call a function whenever something may have been released."""
        self._listeners.append(listener)

    # What the backup says

    @property
    def is_waited_for(self) -> bool:
        """Whether objects wait for further points before they can be removed."""
        return self._oldest_kept is not None and self._marked > self._oldest_kept

    def close(self) -> None:
        """Release nothing from now on before points are made."""
        self._oldest_kept = 0

    def begin_point(self) -> int:
        """Note that a point is about to be made, if there is something new, and return its number in this process."""
        self._begun += 1
        return self._begun

    def point_made(self, number: int) -> None:
        """Note that a point is in remote storage, and no other server took the directory over before that."""
        self._newest_made = number

    def keep_from(self, number: int) -> None:
        """Note that no point before this one is kept any more."""
        if self._oldest_kept is not None and number > self._oldest_kept:
            self._oldest_kept = number
            for listener in self._listeners:
                listener()


def _nothing() -> None:
    """There is no other server."""
