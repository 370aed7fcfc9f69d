"""The snapshots of lake tables that the tiering service has registered, in the file of the metadata."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fluss.server.coordinator.metadata.sqlite_file import SqliteFile


class LakeEntry(NamedTuple):
    """A snapshot of a lake table, and where the offsets are up to which it has all records."""

    snapshot_id: int
    tiered_offsets_path: str
    # None if readers that want everything cannot use it.
    readable_offsets_path: str | None


class LakeSnapshotTable:
    """May be used by all tasks of one event loop. Entries of dropped tables go with them."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def load(self) -> dict[int, list[LakeEntry]]:
        """Return the entries of all tables, the newest last."""

        def load(connection: sqlite3.Connection) -> dict[int, list[LakeEntry]]:
            entries: defaultdict[int, list[LakeEntry]] = defaultdict(list)
            for table_id, _, *entry in connection.execute("SELECT * FROM lake_snapshots ORDER BY table_id, position"):
                entries[table_id].append(LakeEntry(*entry))
            return dict(entries)

        return await self._file.read(load)

    async def replace(self, table_id: int, entries: Sequence[LakeEntry]) -> None:
        """Store the entries of a table in place of those it had; those of a table that has gone are not stored."""

        def replace(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM lake_snapshots WHERE table_id = ?", (table_id,))
            if connection.execute("SELECT 1 FROM tables WHERE table_id = ?", (table_id,)).fetchone() is None:
                return
            rows = [(table_id, position, *entry) for position, entry in enumerate(entries)]
            connection.executemany("INSERT INTO lake_snapshots VALUES (?, ?, ?, ?, ?)", rows)

        await self._file.write(replace)
