"""The error about input that no second attempt can make right."""

from __future__ import annotations

from fluss.errors import FlussError


class UnfitInputError(FlussError):
    """Something in the input of a job does not fit; the message says where it is and why. Nobody tries again."""
