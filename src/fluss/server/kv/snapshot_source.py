"""What the recovery of a store asks for when remote storage has snapshots of its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from fluss.server.model import KvSnapshotEntry
from fluss.storage.kv.state import KvState


class SnapshotSource(Protocol):
    """The snapshots of one bucket's rows. Methods block, and may be called from any thread but the loop's."""

    def entries(self) -> list[KvSnapshotEntry]:
        """Return those that may be used, the newest first."""
        ...

    def fetch(self, entry: KvSnapshotEntry, target: Path, check: Callable[[], None]) -> KvState:
        """Bring the files of a snapshot to a directory, and return the state that belongs to its rows.

        ``check`` raises if there is no use in going on. Raises KvDamagedError if the snapshot cannot be used,
        FlussError if remote storage cannot be.
        """
        ...

    def discard(self, entries: Collection[KvSnapshotEntry]) -> None:
        """Forget snapshots for good that are ahead of the log: it goes on differently from here."""
        ...
