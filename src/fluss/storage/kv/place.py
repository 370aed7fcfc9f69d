"""Where the rows of a store lie: in a database of its own, or under a prefix in one that small stores share.

``Lending`` lends that database to the threads that use the store, so that it is closed, or its rows are removed from
it, when no thread uses it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import prefix_range
from fluss.storage.kv.shared_database import UNFINISHED_SUFFIX, SharedDatabase

# The state of a store lies under its prefix alone: no row has an empty key.
STATE_KEY: Final = b""
# Of an SST file that is being written. RocksDB knows no files of such a name.
UNFINISHED_NAME: Final = f"rows{UNFINISHED_SUFFIX}"


class Place(NamedTuple):
    """A database, and which keys of it are those of a store."""

    database: rocks.Rdict
    # Where files may be put that RocksDB ingests.
    directory: Path
    # What the keys begin with, and the first key behind them; None if there is nothing behind.
    prefix: bytes = b""
    key_end: bytes | None = None
    # None for a database of its own.
    shared: SharedDatabase | None = None

    @property
    def state_key(self) -> bytes:
        return self.prefix + STATE_KEY

    @property
    def unfinished_path(self) -> Path:
        """Of an SST file that is being written for this store."""
        return self.directory / (f"{self.prefix.hex()}{UNFINISHED_SUFFIX}" if self.prefix else UNFINISHED_NAME)

    @classmethod
    def own(cls, database: rocks.Rdict, directory: Path) -> Place:
        return cls(database, directory)

    @classmethod
    def within(cls, shared: SharedDatabase, prefix: bytes) -> Place:
        return cls(shared.database, shared.directory, prefix, prefix_range(prefix).end, shared)

    def keys(self, keys: list[bytes]) -> list[bytes]:
        """Return the keys of rows as they are in the database."""
        prefix = self.prefix
        return [prefix + key for key in keys] if prefix else keys

    def next_keys(self, key_first: bytes, key_count: int) -> list[bytes]:
        """Return up to so many keys of rows, from one on."""
        keys = rocks.next_keys(self.database, self.prefix + key_first, key_count, self.key_end)
        start = len(self.prefix)
        return [key[start:] for key in keys] if start else keys

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], state: bytes | None) -> bool:
        """Put values under their keys, or remove the key where the value is empty, all at once, and the state with it.

        Returns False, with nothing written, if the disk has to catch up first.
        """
        batch = rocks.write_batch()
        self.fill(batch, keys, values, state)
        return rocks.write(self.database, batch)

    def fill(
        self, batch: rocks.WriteBatch, keys: Sequence[bytes], values: Sequence[bytes], state: bytes | None
    ) -> None:
        """Add what ``write`` writes to a batch, which may have more."""
        prefix, put = self.prefix, batch.put
        for key, value in zip(keys, values, strict=True):
            if value:
                put(prefix + key, value)
            else:
                batch.delete(prefix + key)
        if state is not None:
            batch.put(self.state_key, state)

    def remove_unfinished(self) -> None:
        """Remove what an interrupted flush has left."""
        rocks.DISK.remove(self.unfinished_path)

    def explain(self, error: Exception, store_name: Path) -> FlussError:
        """Give an error of RocksDB a type. Damage of a shared database is noted there: it concerns all its stores."""
        explained = rocks.explain(error, store_name)
        if self.shared is not None and isinstance(explained, KvDamagedError):
            self.shared.is_damaged = True
        return explained


class Lending:
    """Lends the database of a store: ``with lending as database``, or ``with lending`` and then ``lending.place``.

    What RocksDB raises inside comes out as a FlussError. May be used from any thread, by many at a time, also nested.

    The place may change once, when a store has become too large for a database that it shares. A thread that uses the
    store reads the memtables before the place: what has left them by then is in the place that it finds.
    """

    __slots__ = ("_directory", "_idle", "_is_closed", "_lock", "_user_count", "place")

    def __init__(self, place: Place, directory: Path) -> None:
        """``directory`` is the name of the store in errors."""
        # Where the rows are now. For threads that use the store.
        self.place = place
        self._directory = directory
        self._user_count = 0
        self._is_closed = False
        # Set when no thread uses it; None while no thread waits for that.
        self._idle: threading.Event | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> rocks.Rdict:
        with self._lock:
            if self._is_closed:
                raise FlussError(f"The key-value store {self._directory} is closed", ErrorCode.KV_STORAGE_EXCEPTION)
            self._user_count += 1
            return self.place.database

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._user_count -= 1
            if not self._user_count and self._idle is not None:
                self._idle.set()
                self._idle = None
        # RocksDB's errors are plain exceptions; those with a type of their own come from elsewhere.
        if kind is Exception and isinstance(error, Exception):
            raise self.place.explain(error, self._directory) from error

    def move(self, place: Place) -> None:
        """Have the rows in another place from now on. Threads that found the old one may still use it."""
        with self._lock:
            self.place = place

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until all its readers have given it back; return whether they have."""
        with self._lock:
            if not self._user_count:
                return True
            idle = self._idle = self._idle or threading.Event()
        return idle.wait(timeout_s)

    def close(self) -> Place | None:
        """Lend it no more, wait until it is given back, and hand the place over; None the second time."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        self.wait_idle()
        return None if was_closed else self.place
