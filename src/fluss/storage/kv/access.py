"""Who is using an open database, so that it is closed when nobody is."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv import rocks


class Access:
    """Lends a database: ``with access as database``. What RocksDB raises inside comes out as a FlussError.

    May be used from any thread, by many at a time, also nested.
    """

    def __init__(self, database: rocks.Rdict, directory: Path) -> None:
        self._database: rocks.Rdict | None = database
        self._directory = directory
        self._user_count = 0
        self._condition = threading.Condition()

    def __enter__(self) -> rocks.Rdict:
        with self._condition:
            if self._database is None:
                raise FlussError(f"The key-value store {self._directory} is closed", ErrorCode.KV_STORAGE_EXCEPTION)
            self._user_count += 1
            return self._database

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._user_count -= 1
            if not self._user_count:
                self._condition.notify_all()
        # RocksDB's errors are plain exceptions; anything of a type of its own is somebody else's.
        if kind is Exception and isinstance(error, Exception):
            raise rocks.explain(error, self._directory) from error

    def close(self) -> rocks.Rdict | None:
        """Refuse everyone from now on, wait for those inside, and hand the database over; None the second time."""
        with self._condition:
            database, self._database = self._database, None
            self._condition.wait_for(lambda: self._user_count == 0)
        return database
