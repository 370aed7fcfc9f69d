"""Copies of a store that outlive it: what lets old changelog go.

A store can be built again from its changelog, as long as the changelog begins where the table did. Before the first
segments of a changelog expire, a copy of the store is made beside it, with hard links and so at little cost; from then
on copy and rest of the changelog are as good as the whole. One copy is kept, named by its offset:

    kv-snapshots-{bucket}/00000000000000001234/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.storage.kv.rocks import DISK
from fluss.storage.kv.store import KvStore, remove_store
from fluss.storage.log.file_names import OFFSET_DIGITS, TabletKind

_OFFSET_NAME: Final = re.compile(rf"[0-9]{{{OFFSET_DIGITS}}}")
# A copy that is not complete.
_UNFINISHED_NAME: Final = "unfinished"


@dataclass(frozen=True, slots=True)
class KvDirectories:
    """Where the key-value side of a bucket lies."""

    store: Path
    snapshots: Path

    @classmethod
    def beside(cls, log_directory: Path) -> KvDirectories:
        bucket = log_directory.name.removeprefix(TabletKind.LOG)
        return cls(
            log_directory.with_name(f"{TabletKind.KV}{bucket}"),
            log_directory.with_name(f"{TabletKind.KV_SNAPSHOTS}{bucket}"),
        )

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Return the copies with their offsets, newest first. Blocking."""
        names = sorted(filter(_OFFSET_NAME.fullmatch, DISK.names(self.snapshots)), reverse=True)
        return [(int(name), self.snapshots / name) for name in names]

    def remove(self) -> None:
        """Remove all of it; what is missing is not an error. Blocking."""
        for directory in (self.store, self.snapshots):
            if DISK.exists(directory):
                remove_store(directory)


def take_checkpoint(store: KvStore, directories: KvDirectories, *, offset: int) -> int:
    """Have a durable copy of a store that has everything before an offset, and no older ones; return its own offset.

    One that is there already will do. A store that has not come that far itself is copied as it is. Blocking.
    """
    existing = directories.checkpoints()
    # One that is ahead of the store is not a copy of it.
    usable = [known for known, _ in existing if offset <= known <= store.state.applied_offset]
    if usable:
        return usable[0]
    DISK.make_directory(directories.snapshots)
    unfinished = directories.snapshots / _UNFINISHED_NAME
    remove_store(unfinished)
    offset_copied = store.checkpoint(unfinished).applied_offset
    DISK.rename(unfinished, directories.snapshots / f"{offset_copied:0{OFFSET_DIGITS}d}")
    DISK.sync_directory(directories.snapshots)
    for _, older in existing:
        remove_store(older)
    return offset_copied
