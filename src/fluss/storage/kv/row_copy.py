"""A copy of all rows of a store, as an SST file that another database ingests.

This is how a store leaves a database that it shares, how a copy of such a store is made, and how a small copy comes
back into a shared database. State and rows are in one file: the other database has all of them or none.

If the target fails, the source is as good as before: that error is never one of damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.flush import add_to_sst
from fluss.storage.kv.key_filter import KEY_FIRST
from fluss.storage.kv.place import UNFINISHED_NAME, Place
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.state import KvState, SharedState

# RocksDB hands rows over with the GIL held: a step takes about a millisecond.
_STEP_ROWS: Final = 1000
_STEP_BYTES: Final = 512 * 1024
# After a step, so that a thread that waits for the GIL gets it.
_STEP_PAUSE_S: Final = 1e-6


class RowCopy:
    """Reads the rows of a store as they are when it is made. For one thread; ``close`` it in any case."""

    def __init__(self, source: Place, store_name: Path) -> None:
        # With the source the end of its keys is kept, of which the iterator has no copy.
        self._source = source
        self._iterator: rocks.RdictIter | None = rocks.scan(
            source.database, source.prefix + KEY_FIRST, source.key_end, fill_cache=False
        )
        self._store_name = store_name
        # Of the rows that were copied, with their keys.
        self.byte_count = 0

    def close(self) -> None:
        """Let go of the source. May be called twice."""
        self._iterator = None

    def write(self, path: Path, prefix: bytes, state: bytes, resources: KvResources) -> None:
        """Write a file with the state and all rows, for a place with a prefix."""
        rocks.DISK.remove(path)
        sst = rocks.sst_writer(resources, path)
        sst[prefix] = state
        while rows := self._next_rows():
            add_to_sst(sst, [prefix + key for key, _ in rows], [value for _, value in rows])
            resources.sleep(_STEP_PAUSE_S)
        sst.finish()

    def _next_rows(self) -> list[tuple[bytes, bytes]]:
        iterator, start = self._iterator, len(self._source.prefix)
        assert iterator is not None, "the copy is closed"
        rows: list[tuple[bytes, bytes]] = []
        byte_count = 0
        try:
            while len(rows) < _STEP_ROWS and byte_count < _STEP_BYTES and (key := iterator.key()) is not None:
                value: bytes = iterator.value()
                rows.append((key[start:], value))
                byte_count += len(key) - start + len(value)
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._source.explain(error, self._store_name) from error
        finally:
            # In the traceback of an error it would keep the database open.
            del iterator
        self.byte_count += byte_count
        return rows


def copy_to_directory(rows: RowCopy, directory: Path, state: KvState, resources: KvResources) -> None:
    """Write rows and their state to a directory, for ``database_of_copy``. What is there is of no use any more."""
    with _target(directory):
        rocks.remove_database(directory)
        rocks.DISK.make_directory(directory)
        rows.write(directory / UNFINISHED_NAME, b"", state.encode(), resources)


def database_of_copy(directory: Path, resources: KvResources) -> Place:
    """Make what ``copy_to_directory`` has written a database, which survives the loss of the machine from then on."""
    with _target(directory):
        place = Place.own(rocks.open_database(directory, resources), directory)
        try:
            rocks.ingest(place.database, place.unfinished_path)
            rocks.DISK.sync_directory(directory)
            rocks.DISK.sync_directory(directory.parent)
        except BaseException:
            place.database.close()
            raise
        return place


def copy_to_shared(rows: RowCopy, target: Place, state: KvState, resources: KvResources) -> None:
    """Bring rows and their state into a shared database, where the store has nothing yet. They are on the disk then."""
    # How large the store is, is counted from here on.
    rows.write(target.unfinished_path, target.prefix, SharedState(state).encode(), resources)
    # Ingesting would do so as well, with the GIL held.
    target.database.flush(True)
    rocks.ingest(target.database, target.unfinished_path)


@contextmanager
def _target(directory: Path) -> Iterator[None]:
    """Explain what goes wrong with the target of a copy."""
    try:
        yield
    except FlussError:
        raise
    except Exception as error:
        raise FlussError(rocks.explain(error, directory).message, ErrorCode.KV_STORAGE_EXCEPTION) from error
