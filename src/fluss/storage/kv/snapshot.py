"""A pinned view of a store, read piece by piece."""

from __future__ import annotations

import threading
from pathlib import Path

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.key_filter import KEY_FIRST
from fluss.storage.kv.place import Place
from fluss.storage.kv.state import KvState


class RowReader:
    """The values that an iterator of RocksDB passes. For one thread at a time.

    Nothing else may hold the iterator, not even a local variable: it would live on in the traceback of an error, and
    the directory would stay locked for as long as the error is kept.
    """

    def __init__(
        self,
        place: Place,
        directory: Path,
        key_first: bytes = KEY_FIRST,
        key_end: bytes | None = None,
        *,
        fill_cache: bool = True,
    ) -> None:
        """Stand at the first of the rows of a place as they are now, or of those between two keys."""
        self._place = place
        self._directory = directory
        # The iterator has no copy of it.
        self._key_end = place.key_end if key_end is None else place.prefix + key_end
        self._iterator: rocks.RdictIter | None = rocks.scan(
            place.database, place.prefix + key_first, self._key_end, fill_cache=fill_cache
        )

    @property
    def has_more(self) -> bool:
        if self._open_iterator().valid():
            return True
        self._check()
        return False

    def read(self, bytes_target: int, rows_max: int) -> tuple[list[bytes], int]:
        """Return values until a number of bytes or rows is reached, and how many bytes they have."""
        assert rows_max > 0, "no rows were asked for"
        values: list[bytes] = []
        byte_count = 0
        # The value is None at the end. The step returns nothing, ever.
        for value, _ in zip(iter(self._open_iterator().value, None), iter(self._open_iterator().next, 0), strict=False):
            values.append(value)
            byte_count += len(value)
            if byte_count >= bytes_target or len(values) >= rows_max:
                break
        self._check()
        return values, byte_count

    def close(self) -> None:
        """Drop the iterator. May be called twice."""
        self._iterator = None

    def _check(self) -> None:
        """Raise what the iterator met: at damage it ends as if there were no more rows, and only its status tells."""
        try:
            self._open_iterator().status()
        except FlussError:
            raise
        except Exception as error:
            raise self._place.explain(error, self._directory) from error

    def _open_iterator(self) -> rocks.RdictIter:
        if self._iterator is None:
            raise FlussError(f"The snapshot of the store {self._directory} is closed", ErrorCode.KV_STORAGE_EXCEPTION)
        return self._iterator


class KvSnapshot:
    """The rows of a store as they were when the snapshot was taken, in the byte order of their keys.

    Until it is closed it keeps the SST files and the write buffers of that moment. Closing the store closes it. May be
    used from any thread; calls wait for each other.
    """

    def __init__(self, reader: RowReader, state: KvState) -> None:
        """Take over a reader that stands at the first row; ``KvStore.snapshot`` is for everyone else."""
        self.state = state
        self._reader = reader
        self._lock = threading.Lock()

    @property
    def has_more(self) -> bool:
        """Whether ``read`` would return anything."""
        with self._lock:
            return self._reader.has_more

    def read(self, bytes_target: int, rows_max: int) -> list[bytes]:
        """Return the next values: at most ``rows_max``, and none after the one that reaches ``bytes_target``.

        While there are any, at least one is returned.
        """
        with self._lock:
            return self._reader.read(bytes_target, rows_max)[0]

    def close(self) -> None:
        """Give up the view. May be called twice; reading afterwards is a FlussError."""
        with self._lock:
            self._reader.close()
