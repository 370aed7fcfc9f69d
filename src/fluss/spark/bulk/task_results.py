"""What a task of a bulk job tells: how many rows it has dealt with, or that its input can never fit."""

from __future__ import annotations

from typing import Protocol

from fluss.errors import FlussError


class UnfitInputError(FlussError):
    """Something in the input of a job does not fit; the message says where it is and why. The task is not repeated."""


class BulkTaskResult(Protocol):
    """What a task returns; it is pickled."""

    @property
    def rows(self) -> int:
        """How many rows the task has dealt with."""
        ...
