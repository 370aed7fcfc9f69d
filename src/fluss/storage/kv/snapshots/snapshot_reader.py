"""Reads the rows of a key-value snapshot that another server has made: the files of a RocksDB database, never written.

Apache Fluss servers keep such snapshots in remote storage, each file under a name of its own. Gathered in a directory
under the names that RocksDB gave them, they are a database.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from fluss.storage.kv.rocks import explain, open_read_only

# Rows that are taken from RocksDB before their size is looked at.
_ROWS_PER_STEP: Final = 1024


class SnapshotReader:
    """One pass over the stored values of a snapshot, in the order of their keys. Used by one thread at a time.

    RocksDB has all files open from the beginning: they are read to the end even if they are removed meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        """Open the database in a directory. Raises FlussError if it is none, or if RocksDB is not installed."""
        self._directory = directory
        self._database = open_read_only(directory)
        self._values = iter(self._database.values())

    def next_values(self, bytes_max: int) -> list[bytes]:
        """Return the next values, about ``bytes_max`` bytes but at least one; none at the end."""
        found: list[bytes] = []
        byte_count = 0
        try:
            while byte_count < bytes_max:
                # A step holds the GIL for each of its rows, so there are pauses between steps only.
                step = list(islice(self._values, _ROWS_PER_STEP))
                if not step:
                    break
                found += step
                byte_count += sum(map(len, step))
        except Exception as error:
            raise explain(error, self._directory) from error
        return found

    def close(self) -> None:
        """Let go of the files."""
        del self._values
        self._database.close()
