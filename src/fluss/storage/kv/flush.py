"""Recent rows on their way into RocksDB, step by step, in the order of their keys.

A few rows go into RocksDB's own write buffer. Many become a table file, which RocksDB then takes in as it is: that
costs a fraction of what its write buffer does, and the rows are on the disk afterwards. Either way the state goes with
the last of the rows: after a crash it never tells of rows that are not there.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.record.value_batch import prefix_schema_id
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows, packed_rows
from fluss.row.hashed_keys import row_words
from fluss.row.varint import WORD_BYTES
from fluss.storage.kv import rocks
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.state import KvState

STATE_KEY: Final = b""
# Of a table file that is being written. RocksDB knows no files of such a name.
UNFINISHED_NAME: Final = "rows.unfinished"
# So many rows are worth a table of their own.
_TABLE_ROWS_MIN: Final = 8192
# Rows become Python objects, and RocksDB takes them with the GIL held: a part takes less than a millisecond.
_PART_ROWS: Final = 1000
_PART_BYTES: Final = 512 * 1024
# After a part, so that whoever waits for the GIL gets it. Without it they would get it after five milliseconds.
_PART_PAUSE_S: Final = 1e-6
_STALL_PAUSE_MS: Final = 5
# With so many young tables RocksDB has to merge some before there is another one.
_YOUNG_TABLES_MAX: Final = 32
# A scan steps over removed keys with the GIL held: with so many in a write buffer, 10 to 20 ms. In tables they are
# merged away.
_BUFFERED_REMOVALS_MAX: Final = 50_000
# Keys of so many words are sorted by numpy.
_SORTED_WORDS_MAX: Final = 4


class MemtableFlush:
    """Brings the rows of one object, to which nothing is added any more, into a database. For one thread at a time."""

    def __init__(self, recent: Memtable, state: KvState, directory: Path, resources: rocks.KvResources) -> None:
        """``state`` is what holds once all rows are there."""
        self._recent = recent
        self.state = state
        self._directory = directory
        self._resources = resources
        self._rows: _OrderedRows | None = None
        self._done = 0
        self._part_rows = _PART_ROWS
        self._table: rocks.SstFileWriter | None = None

    def advance(self, database: rocks.Rdict, row_count: int) -> bool:
        """Bring some more rows nearer to the database; return whether all of them are there.

        When it fails, everything has to be done again: by another drain of the same rows.
        """
        rows = self._rows
        if rows is None:
            rows = self._rows = self._begin()
        if self._table is None:
            self._write_few(database, rows)
            return True
        end = min(len(rows), self._done + row_count)
        while self._done < end:
            part_end = min(end, self._done + self._part_rows)
            _add_to_table(self._table, *rows.objects(self._done, part_end))
            self._done = part_end
            self._resources.sleep(_PART_PAUSE_S)
        if self._done < len(rows):
            return False
        self._take_in(database, self._table)
        return True

    def again(self) -> MemtableFlush:
        """Return a drain of the same rows from the beginning, after this one has failed."""
        return MemtableFlush(self._recent, self.state, self._directory, self._resources)

    @property
    def is_on_disk(self) -> bool:
        """Whether what is in the database is on the disk as well, as soon as the drain is done."""
        return self._table is not None

    def _begin(self) -> _OrderedRows:
        rows = _OrderedRows.of(self._recent)
        self._part_rows = max(1, min(_PART_ROWS, _PART_BYTES * len(rows) // max(1, rows.byte_count)))
        if len(rows) >= _TABLE_ROWS_MIN:
            remove_unfinished(self._directory)
            self._table = rocks.table_writer(self._resources, self._directory / UNFINISHED_NAME)
            # The first of all keys.
            self._table[STATE_KEY] = self.state.encode()
        return rows

    # Many rows

    def _take_in(self, database: rocks.Rdict, table: rocks.SstFileWriter) -> None:
        table.finish()
        self._wait_for_merges(database)
        # It would do so itself, with the GIL held.
        database.flush(True)
        rocks.take_in(database, self._directory / UNFINISHED_NAME)

    def _wait_for_merges(self, database: rocks.Rdict) -> None:
        stalled_ms = 0
        while rocks.number_of(database, "num-files-at-level0") >= _YOUNG_TABLES_MAX:
            stalled_ms = self._stall(stalled_ms)

    def _stall(self, stalled_ms: int) -> int:
        if stalled_ms >= self._resources.settings.stall_ms_max:
            raise FlussError(
                f"The key-value store {self._directory} waited {stalled_ms} ms for the disk to catch up",
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        self._resources.sleep(_STALL_PAUSE_MS / 1000)
        return stalled_ms + _STALL_PAUSE_MS

    # A few rows

    def _write_few(self, database: rocks.Rdict, rows: _OrderedRows) -> None:
        is_over = False
        while not is_over:
            part_end = min(len(rows), self._done + self._part_rows)
            is_over = part_end == len(rows)
            keys, values = rows.objects(self._done, part_end)
            stalled_ms = 0
            while not write_part(database, keys, values, self.state if is_over else None):
                stalled_ms = self._stall(stalled_ms)
            self._done = part_end
            self._resources.sleep(_PART_PAUSE_S)


class _OrderedRows(NamedTuple):
    """The newest rows, copied out in the order of their keys: what is next to each other is quickly made objects of."""

    keys: EncodedRows
    # Schema ids and rows.
    values: EncodedRows
    is_removed: BoolArray

    @classmethod
    def of(cls, recent: Memtable) -> _OrderedRows:
        entries = recent.newest_entries()
        entries = entries[_key_order(recent.keys(entries))]
        stored = recent.rows(entries)
        values = prefix_schema_id(stored.rows, stored.schema_ids)
        return cls(packed_rows(recent.keys(entries)), values, stored.rows.lengths == 0)

    def __len__(self) -> int:
        return len(self.is_removed)

    @property
    def byte_count(self) -> int:
        return len(self.keys.data) + len(self.values.data)

    def objects(self, start: int, end: int) -> tuple[list[bytes], list[bytes]]:
        """Return some keys and their values, which are empty where a key was removed."""
        part = slice(start, end)
        keys, values = self.keys.some(part).to_list(), self.values.some(part).to_list()
        for index in np.flatnonzero(self.is_removed[part]).tolist():
            values[index] = b""
        return keys, values


def remove_unfinished(directory: Path) -> None:
    """Remove what an interrupted drain has left in the directory of a store that is not open."""
    (directory / UNFINISHED_NAME).unlink(missing_ok=True)


def write_part(database: rocks.Rdict, keys: list[bytes], values: list[bytes], state: KvState | None) -> bool:
    """Put values under their keys, or remove the key where the value is empty, all at once.

    Returns False, with nothing written, if the disk has to catch up first.
    """
    batch = rocks.write_batch()
    for key, value in zip(keys, values, strict=True):
        if value:
            batch.put(key, value)
        else:
            batch.delete(key)
    if state is not None:
        batch.put(STATE_KEY, state.encode())
    try:
        database.write(batch)
    except Exception as error:
        if rocks.is_stall(error):
            return False
        raise
    if rocks.number_of(database, "num-deletes-active-mem-table") > _BUFFERED_REMOVALS_MAX:
        database.flush(False)
    return True


def _add_to_table(table: rocks.SstFileWriter, keys: list[bytes], values: list[bytes]) -> None:
    if b"" not in values:
        deque(map(table.__setitem__, keys, values), maxlen=0)
        return
    for key, value in zip(keys, values, strict=True):
        if value:
            table[key] = value
        else:
            del table[key]


def _key_order(keys: EncodedRows) -> Int64Array:
    """Return the numbers of keys, all different, in the order of their bytes."""
    lengths = keys.lengths
    word_count = -(-int(lengths.max(initial=0)) // WORD_BYTES)
    if word_count > _SORTED_WORDS_MAX:
        objects = keys.to_list()
        return np.array(sorted(range(len(objects)), key=objects.__getitem__), np.int64)
    # What a key does not have reads as zeros: of two that differ in nothing else the shorter one is the first.
    words = [row_words(keys, index).byteswap() for index in reversed(range(word_count))]
    return np.lexsort((lengths, *words))
