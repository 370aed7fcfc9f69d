"""The error for a key-value store whose files cannot be used."""

from __future__ import annotations

from fluss.errors import ErrorCode, FlussError


class KvDamagedError(FlussError):
    """A store on the disk is not what was written: build it again from the changelog or from a checkpoint."""

    default_code = ErrorCode.KV_STORAGE_EXCEPTION
