"""What has become of a split: the files that a task has written of it, and how far it came."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyiceberg.manifest import DataFile

from fluss.tiering.round_plan import TieringSplit


@dataclass(frozen=True, slots=True)
class Deadline:
    """When tasks stop reading and return what they have: in seconds since 1970, None for never."""

    at_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.at_s is not None and time.time() >= self.at_s


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What has become of a split. ``end`` is the offset up to which the lake has it now, None if nothing is known."""

    split: TieringSplit
    end: int | None
    rows: int = 0
    data_files: tuple[DataFile, ...] = ()
    delete_files: tuple[DataFile, ...] = ()
    deleted_rows: int = 0
    last_timestamp_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.end == self.split.stop

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (*self.data_files, *self.delete_files)

    @property
    def byte_count(self) -> int:
        """The size of the files."""
        return sum(file.file_size_in_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task returns."""

    splits: tuple[SplitResult, ...]

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits)
