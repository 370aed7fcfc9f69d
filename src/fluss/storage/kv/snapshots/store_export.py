"""A store as a plain RocksDB database, for others to read, and such a database as a store again.

In a store the state lies beside the rows, under a key that no row has. Other programs would take it for a row, so an
exported copy has a mark of its removal behind it, in an SST file of its own; the other SST files are those of the
store, unchanged. Taken back, the copy gets a state again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.place import STATE_KEY
from fluss.storage.kv.rocks import DISK, PORTABLE_FORMAT_VERSION, KvResources
from fluss.storage.kv.state import KvState
from fluss.storage.kv.store import KvStore

SST_SUFFIX: Final = ".sst"
# The files that make a database; the others in its directory are made anew when it is opened.
_KEPT_PREFIXES: Final = ("CURRENT", "MANIFEST-", "OPTIONS-")
_FOOTER_END: Final = struct.Struct("<I8x")


def export_store(store: KvStore, directory: Path, resources: KvResources) -> KvState:
    """Make a copy of a store in a directory, which must not exist; return the state that belongs to its rows.

    SST files are hard links if other programs can read them; otherwise, and if the store shares a database, its rows
    are copied. Blocking.
    """
    state = store.checkpoint(directory)
    if not _is_portable(directory):
        # They were written before they had to be.
        rocks.remove_database(directory)
        state = store.checkpoint(directory, copies_rows=True)
    with _copy(directory, resources) as database:
        batch = rocks.write_batch()
        batch.delete(STATE_KEY)
        rocks.write(database, batch)
        database.flush(True)
    return state


def adopt_export(directory: Path, state: KvState, resources: KvResources) -> None:
    """Make an exported copy a store with a state. Blocking."""
    with _copy(directory, resources) as database:
        batch = rocks.write_batch()
        batch.put(STATE_KEY, state.encode())
        rocks.write(database, batch)
        database.flush(True)


def database_files(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return the SST files of a database that is not open, and the other files that it needs."""
    names = sorted(DISK.names(directory))
    sst_files = [directory / name for name in names if name.endswith(SST_SUFFIX)]
    return sst_files, [directory / name for name in names if name.startswith(_KEPT_PREFIXES)]


def _is_portable(directory: Path) -> bool:
    """Tell whether RocksDB 6 reads all SST files of a database."""
    for path in database_files(directory)[0]:
        position = DISK.size(path) - _FOOTER_END.size
        end = DISK.read(path, max(0, position), _FOOTER_END.size)
        if len(end) < _FOOTER_END.size or _FOOTER_END.unpack(end)[0] > PORTABLE_FORMAT_VERSION:
            return False
    return True


@contextmanager
def _copy(directory: Path, resources: KvResources) -> Iterator[rocks.Rdict]:
    """Open a copy to change it. What goes wrong with it is not damage of the store."""
    try:
        database = rocks.open_database(directory, resources, resources.copy_options)
        try:
            yield database
        finally:
            database.close()
    except FlussError as error:
        raise FlussError(error.message, ErrorCode.KV_STORAGE_EXCEPTION) from error
    except Exception as error:
        raise FlussError(rocks.explain(error, directory).message, ErrorCode.KV_STORAGE_EXCEPTION) from error
