"""What a bucket is asked to write, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluss.server.model import Table

ACKS_ALL: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class KvPut:
    """One KV batch for one bucket."""

    # As it was when the batch came.
    table: Table
    batch: memoryview
    # The columns of a partial update; none for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the merge engine is bypassed: the row of the batch replaces the one that is there.
    is_overwrite: bool = False
    # With ACKS_ALL the batch is on the disk and in the store when it is answered. With 0 and 1 the operating system
    # has its changelog: it becomes visible when that is on the disk, a moment later.
    acks: int = ACKS_ALL


@dataclass(frozen=True, slots=True)
class KvPutResult:
    """Where a batch ends in the changelog. A batch that was sent again ends where its first copy does."""

    log_end_offset: int
