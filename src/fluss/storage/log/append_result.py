"""What an append is told: where its rows lie, and by what it can be recognised later."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluss.errors import FlussError


class History:
    """The appends between two failures to write.

    After a failure offsets are given out again, so an offset alone does not say whose rows it will hold.
    """

    __slots__ = ("failure", "offset_kept")

    def __init__(self) -> None:
        self.failure: FlussError | None = None
        # Once it has failed: where that which is kept of it ends.
        self.offset_kept = 0


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where an append lies in the log. A duplicate lies where its first copy does."""

    offset_base: int
    offset_next: int
    commit_timestamp_ms: int
    is_duplicate: bool
    history: History = field(repr=False, compare=False)
