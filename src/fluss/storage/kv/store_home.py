"""Where the store of a bucket is: in a directory of its own, or in a shared database; opened, removed, restored.

| directory        | shared database | the store                                                                      |
|------------------|-----------------|--------------------------------------------------------------------------------|
| with a state     | nothing         | is the directory                                                               |
| with a state     | its rows        | is the directory, and has moved; the rows that are left behind are removed     |
| without a state  | anything        | is in the shared database; it was about to move, and the directory is removed  |
| none             | anything        | is in the shared database                                                      |

So large stores from before there were shared databases are where they were. If no store is to share a database, those
that do move when they are opened.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fluss.errors import FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import bucket_prefix, prefix_range
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.shared_database import SharedDatabase, SharedDatabases
from fluss.storage.kv.store import KvStore


class StoreHome:
    """Knows the two places where the store of one bucket may be. All methods block."""

    __slots__ = ("_databases", "_prefix", "_resources", "_table_id", "directory")

    def __init__(
        self,
        directory: Path,
        resources: KvResources,
        databases: SharedDatabases | None,
        *,
        table_id: int,
        partition_id: int | None,
        bucket_id: int,
    ) -> None:
        """``databases`` are those that stores share; None if every store has one of its own."""
        self.directory = directory
        self._databases = databases
        self._resources = resources
        self._table_id = table_id
        self._prefix = bucket_prefix(table_id, partition_id, bucket_id)

    def open(self, *, may_open_own: bool = True) -> KvStore | None:
        """Open the store, creating it when absent; None if it has a database of its own, and such may not be opened.

        Raises what ``KvStore.open`` and ``KvStore.open_shared`` raise.
        """
        if rocks.DISK.exists(self.directory):
            if not may_open_own:
                return None
            store = KvStore.open(self.directory, self._resources)
            if self._is_ours(store):
                return store
            store.close(keeps_rows=False)
            rocks.remove_database(self.directory)
        if self._shares or self._is_in_shared():
            return KvStore.open_shared(self.directory, self._resources, self._shared(), self._prefix)
        return KvStore.open(self.directory, self._resources) if may_open_own else None

    @property
    def is_missing(self) -> bool:
        """Whether there is nothing of the store. Raises what ``open`` raises."""
        return not rocks.DISK.exists(self.directory) and not self._is_in_shared()

    @property
    def is_shared_damaged(self) -> bool:
        """Whether the database that the store would share is damaged as a whole."""
        return self._databases is not None and self._databases.damaged(self._table_id) is not None

    def open_copy(self, directory: Path) -> KvStore:
        """Open a copy of the store."""
        return KvStore.open(directory, self._resources)

    def remove(self) -> None:
        """Remove the store, which is not open, wherever it is. It does not come back after a crash."""
        rocks.remove_database(self.directory)
        shared = self._existing_shared()
        if shared is not None:
            shared.remove(prefix_range(self._prefix), durably=True)

    def restore(self, copy: KvStore) -> None:
        """Begin with the rows and the state of a copy, after ``remove``."""
        if self._shares and copy.size_bytes() < self._resources.settings.shared_store_bytes_max:
            copy.copy_to_shared(self._shared(), self._prefix)
        else:
            copy.checkpoint(self.directory)

    @property
    def _shares(self) -> bool:
        return self._databases is not None and self._resources.settings.shared_store_bytes_max > 0

    def _shared(self) -> SharedDatabase:
        assert self._databases is not None, "there are no shared databases"
        return self._databases.of_table(self._table_id)

    def _existing_shared(self) -> SharedDatabase | None:
        return None if self._databases is None else self._databases.find(self._table_id)

    def _is_ours(self, own: KvStore) -> bool:
        """Tell whether what is in the directory is the store; if so nothing stays in the shared database."""
        try:
            if own.has_state:
                # It has moved. What is left is removed another time if that cannot be done now.
                with suppress(FlussError):
                    if (shared := self._existing_shared()) is not None:
                        shared.remove(prefix_range(self._prefix))
                return True
            return not self._shares and not self._is_in_shared()
        except BaseException:
            own.close(keeps_rows=False)
            raise

    def _is_in_shared(self) -> bool:
        shared = self._existing_shared()
        if shared is None:
            return False
        with shared as database:
            return database.get(self._prefix) is not None
